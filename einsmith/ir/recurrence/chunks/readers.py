"""Find what reads a recurrence from outside, and replace it by the chunk form."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from einsmith.base import environment
from einsmith.base.errors import RecurrenceError
from einsmith.ir import labels
from einsmith.ir.analysis.linear import linear
from einsmith.ir.nodes import Axis, Compute, Const, Item, Piece, Read, Recurrence, Reduce, Tensor, postorder
from einsmith.ir.rebuild import exchange, map_reads, prune_args
from einsmith.ir.recurrence.chunks.affine import (
    STATE,
    Affine,
    AffineStep,
    NotLinearError,
    affine,
    moved,
    plain_index,
    with_slots,
)
from einsmith.ir.recurrence.chunks.chunk_form import ChunkForm, Output
from einsmith.ir.recurrence.chunks.linear_recurrence import LinearRecurrence, contraction, recognize
from einsmith.ir.recurrence.chunks.sheet import plus
from einsmith.ir.recurrence.chunks.triangular import blocked
from einsmith.ir.recurrence.slices import read_through

CHUNK_FORM = "chunk form"
"""Name by which chunk forms, and blocks of triangular systems, can be left out."""
Choice = Callable[[LinearRecurrence, Sequence[Output]], int]
"""Returns the length of chunks; 1: the recurrence stays."""


class Readers:
    """What reads a recurrence.

    Attributes:
        outputs: contractions of the state at all steps, by the tensor that each one is
        ends: tensors that read the state after the last step alone, reading members themselves
        exposed: numbers of other members that are read
    """

    def __init__(self, step: AffineStep, nodes: Sequence[Any], roots: Collection[Tensor]):
        self.node, self.step = step.node, step
        self.outputs: dict[Compute, Output] = {}
        self.ends: dict[Compute, Compute] = {}
        self.items: dict[Tensor, int] = {Item(self.node, j): j for j in range(len(self.node.members))}
        # The state, and members that are the state before a step times coefficients.
        wholes = {t for t, j in self.items.items() if j == step.state or _is_whole(step.value(j))}
        read = {a for n in nodes for a in n.args} | {*roots}
        self.exposed = sorted(j for t, j in self.items.items() if t not in wholes and t in read)
        if not wholes.isdisjoint(roots):
            raise NotLinearError("all states are results")
        if any(isinstance(n, Recurrence) and not wholes.isdisjoint(n.args) for n in nodes):
            raise NotLinearError("another recurrence, as that of its gradient, reads all states")
        slices: set[Any] = set()
        for n in nodes:
            if (wholes | slices).isdisjoint(n.args):
                continue
            through = read_through(n, wholes) if isinstance(n, Compute) else None
            if through is None:
                raise NotLinearError("all states are read as they are")
            if self._is_end(through):
                self.ends[n] = through
            elif _is_slice(through) and n not in roots:
                slices.add(n)
            else:
                self.outputs[n] = self._output(through, wholes)

    def _is_end(self, n: Compute) -> bool:
        """Return whether all that a tensor reads is the state after the last step."""
        last = self.node.origins[self.step.state] + (0 if self.node.reverse else self.node.steps - 1)
        for part in n.template.parts:
            for e in postorder(part.bodies):
                j = self.items.get(n.args[e.slot]) if isinstance(e, Read) else None
                if j is not None and (j != self.step.state or linear(e.index[0]).key != (last, frozenset())):
                    return False
        return True

    def _output(self, n: Compute, wholes: Collection[Tensor]) -> Output:
        """Return the contraction that a tensor is."""
        part = n.template.parts[0]
        if len(n.template.parts) > 1 or not isinstance(part, Piece) or not isinstance(part.body, Reduce):
            raise NotLinearError("all states are read as they are")
        if part.body.combiner != "sum" or len(part.body.bodies) > 1:
            raise NotLinearError(f"a {part.body.combiner} over all states is not linear")
        reads = [e for e in postorder(part.bodies) if isinstance(e, Read) and n.args[e.slot] in wholes]
        places = {self._place(e, self.items[n.args[e.slot]]) for e in reads}
        if len(places) != 1:
            raise NotLinearError("states are read at several distances")
        ((time, ahead, is_before),) = places
        # The state after the last step is not before any; the one before the first is the initial one.
        if time >= len(part.extents):
            raise NotLinearError("states of several steps are added up")
        steps, number, back = part.extents[time], self.node.steps, 1 if self.node.reverse else -1
        is_after = not is_before and (ahead != back or steps > number)
        first = ahead if is_after or is_before else ahead - back
        least, most = (0, number) if self.node.reverse else (-1, number - 1)
        if first < (least if is_after else 0) or first + steps - 1 > (most if is_after else number - 1):
            raise NotLinearError("states are read at a distance")
        shifted = {s: len(n.args) + s for s in range(len(self.node.args))}

        def form(e: Read) -> Affine | None:
            if n.args[e.slot] not in wholes:
                return None
            index = plain_index(e.index[1:], n.args[e.slot].shape[1:])
            if is_after or self.items[n.args[e.slot]] == self.step.state:
                return {Read(STATE, index, e.dtype): Const(1, e.dtype)}
            own = with_slots(self.step.value(self.items[n.args[e.slot]]), shifted)
            return moved(own, {0: plus(Axis(time), first)} | dict(enumerate(index, 1)))

        read = contraction(affine(part.body.bodies[0], form), len(n.shape), time, part.domain)
        return Output(read, (*n.args, *self.node.args), is_after, first, steps)

    def _place(self, e: Read, j: int) -> tuple[int, int, bool]:
        """Return the axis that is time in a read of member j, the step that its first element reads, and whether the
        member is the state before that step, times coefficients."""
        at = linear(e.index[0])
        axes = [a.position for a, c in at.terms.items() if isinstance(a, Axis) and c == 1]
        if len(at.terms) != 1 or not axes:
            raise NotLinearError("states are read at positions in time that only the data give")
        return axes[0], at.const - self.node.origins[j], j != self.step.state


def _is_whole(form: Affine) -> bool:
    return any(r is not None and r.slot == STATE for r in form)


def _is_slice(n: Compute) -> bool:
    part = n.template.parts[0]
    return len(n.template.parts) == 1 and isinstance(part, Piece) and isinstance(part.body, Read)


class ChunkSearch:
    """The search for recurrences that are run in blocks of products.

    choice: gives the length of a linear recurrence's chunks; reasons: why recurrences have no chunk form; is_any:
    whether one has been replaced
    """

    def __init__(self, choice: Choice):
        self.choice = choice
        self.reasons: dict[Recurrence, str] = {}
        self.is_any = False
        self._known: set[Recurrence] = set()
        self._systems: set[Recurrence] = set()

    def next_replacements(self, roots: Sequence[Tensor]) -> dict[Tensor, Tensor]:
        """Return the replacements of the first recurrence of a graph that has not been decided on and is run in blocks;
        none where there is none left. Triangular systems come last: chunk forms have such systems."""
        nodes = list(postorder(roots))
        recurrences = [n for n in nodes if isinstance(n, Recurrence) and not n.options.chunk]
        for node in recurrences:
            if node in self._known:
                continue
            self._known.add(node)
            try:
                replaced = _chunk_form(node, nodes, {*roots}, self.choice)
            except NotLinearError as e:
                self.reasons[node] = str(e)
                continue
            if replaced:
                self.is_any = True
                self._known |= {n for n in postorder([*replaced.values()], nodes) if isinstance(n, Recurrence)}
                return replaced
        for node in recurrences:
            if node not in self._systems:
                self._systems.add(node)
                if replaced := blocked(node):
                    return replaced
        return {}

    def replace_all(self, roots: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors whose recurrences are run in blocks; none where EINSMITH_WITHOUT leaves this out."""
        out = list(roots)
        if CHUNK_FORM in environment.WITHOUT.get():
            return out
        while replaced := self.next_replacements(out):
            labels.carry(replaced)
            out = exchange(out, replaced)
        return out


def _chunk_form(
    node: Recurrence, nodes: Sequence[Any], roots: Collection[Tensor], choice: Choice
) -> dict[Tensor, Tensor]:
    """Return the tensors that replace a recurrence's members and what reads them; none where it stays.

    Raises NotLinearError where it has no chunk form."""
    step = AffineStep(node)
    readers = Readers(step, nodes, roots)
    outputs = [*readers.outputs.values()]
    linear_form = recognize(step, [o.read for o in outputs], readers.exposed)
    length = choice(linear_form, outputs)
    if length == 1:
        return {}
    form = ChunkForm(linear_form, length)
    replaced: dict[Tensor, Tensor] = {Item(node, j): form.member(j) for j in readers.exposed}
    replaced |= {n: form.output(out) for n, out in readers.outputs.items()}
    last = Item(node, step.state)
    return replaced | {n: _at_end(through, last, form.last()) for n, through in readers.ends.items()}


def _at_end(n: Compute, whole: Tensor, last: Tensor) -> Tensor:
    """Return a tensor that reads the last state as a tensor of its own."""
    slot, new = n.args.index(whole), len(n.args)
    params = (*n.template.params, (last.dtype, last.shape))
    t = map_reads(n.template, lambda e: Read(new, e.index[1:], e.dtype) if e.slot == slot else None, params)
    return prune_args(t, (*n.args, last))


def force_chunks(roots: Sequence[Tensor], length: int) -> list[Tensor]:
    """Return tensors with the chunk forms of all linear recurrences. length: the number of steps of a chunk. Raises
    RecurrenceError where there are none."""
    search = ChunkSearch(lambda recurrence, outputs: length)
    out = search.replace_all(roots)
    if not search.is_any:
        reason = next(iter(search.reasons.values()), "the formula has none")
        raise RecurrenceError(
            f"chunk={length} asks for linear recurrences in chunks of steps, but {reason}",
            "leave out chunk=; the steps of other recurrences are taken one after the other",
        )
    return out
