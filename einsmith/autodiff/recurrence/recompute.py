"""Differentiate a recurrence that saves only every S-th state: segment by segment, backward, with recomputed states.

    forward   E[g+1] = the state at the end of segment g, from E[g]
    adjoint   in segment g, from the last one to the first: the segment's states again, from E[g]; with them the
              cotangents of E[g], from those of E[g+1], and of what the segment reads; what is read in all segments gets
              the sum, which is carried along

Both are recurrences over g whose steps hold recurrences over a segment's own steps.

S is the user's (`checkpoint=S`). Without it, S is 1 where most of what the gradient would save are results that
reductions of the same step use up, such as scores of attention: a step then computes them block by block in both
passes, and neither stores them. Nothing else is chosen by cost here, and `schedule.recomputation` is not involved: each
state of a segment follows from the previous one, not from operands that could be kept instead. In the resulting graph,
`passes.algebra.recompute` chooses among the remaining tensors as in any other.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from einsmith.autodiff.plan import constant_value
from einsmith.autodiff.totals import add, zeros
from einsmith.base.dtypes import DType
from einsmith.base.errors import GradientError, RecurrenceError
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Const,
    Expr,
    Item,
    Leaf,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Tensor,
    apply,
    axes_of,
    leaf,
    nbytes,
    postorder,
    reads,
)
from einsmith.ir.rebuild import rebuild, template_over
from einsmith.ir.recurrence.assembly import ARGS, Assembly
from einsmith.ir.recurrence.define import distances, step_parts
from einsmith.ir.recurrence.pieces import clipped, dense_piece
from einsmith.ir.recurrence.segments import CarriedTensor, initial_slots, lift, segment
from einsmith.ir.rewrite.simplify import canonical
from einsmith.ir.views import element_of, own_index

MAX_SAVED_BYTES = 1 << 25
"""Most bytes of all steps' results that reductions use up and that the gradient saves nevertheless. The same as the
bound for results outside of recurrences (`schedule.row_clusters.MAX_STORED_BYTES`)."""

Gradients = Callable[..., tuple[list[Tensor], list[Tensor]]]
"""The reverse sweep: (outputs, cotangents, targets, whether the points that a max chose are added up by sums) to (the
outputs, the gradients)."""


def checkpoint_of(node: Recurrence, read_outside: Container[int]) -> int:
    """Return the number of steps between the states that the gradient of a recurrence saves; 0 if it saves all.

    read_outside: members of which the gradient needs all steps in any case.
    """
    if node.options.checkpoint:
        return node.options.checkpoint if node.options.checkpoint < node.steps else 0
    sizes = [nbytes(Item(node, j)) for j in range(len(node.members))]
    if node.steps == 1 or sum(sizes) <= MAX_SAVED_BYTES:
        return 0
    used_up = sum(sizes[j] for j in _used_up(node) if j not in read_outside)
    return 1 if used_up > MAX_SAVED_BYTES and used_up > sum(sizes) - used_up else 0


def _used_up(node: Recurrence) -> set[int]:
    """Return the members that need not outlive a step: only reductions of the same step read them, directly or through
    other such members."""
    first = len(node.args)
    read: set[int] = set()
    lasting: set[int] = set()
    for i in reversed(range(len(node.members))):
        known = distances(node, i)
        for p in step_parts(node, i):
            for e in postorder(p.bodies):
                if not isinstance(e, Read) or e not in known:
                    continue
                j = e.slot - first
                read.add(j)
                reduced = isinstance(p.body, Reduce) and max(axes_of(*e.index), default=-1) >= len(p.extents)
                if known[e][1:] != (0, 0) or not (reduced or (i in read and i not in lasting)):
                    lasting.add(j)
    return read - lasting


def _absorb_arguments(node: Recurrence, single_reader: Container[Tensor]) -> Recurrence:
    """Convert arguments in `single_reader`, of which each step reads only its own element, to members of a recurrence.

    The backward pass then recomputes them like other members, and they are not saved.
    """
    while True:
        slot = next((s for s, a in enumerate(node.args) if a in single_reader and _is_read_step_by_step(node, s)), None)
        if slot is None:
            return node
        absorbed = node.args[slot]
        assert isinstance(absorbed, Compute)
        assembly = Assembly.of(node)
        number = assembly.add_tensor(absorbed.template, absorbed.args, {}, is_first=True).number
        assembly.redirect(ARGS + slot, number)
        node = assembly.build(node.steps, node.reverse, node.options)[0]


def _is_read_step_by_step(node: Recurrence, slot: int) -> bool:
    """Return whether an argument is a tensor of one piece of which each step reads only its own element."""
    a = node.args[slot]
    if not isinstance(a, Compute) or len(a.template.parts) > 1 or len(a.template.dtypes) > 1 or not a.args:
        return False
    part = a.template.parts[0]
    if isinstance(part.body, Reduce) and part.body.combiner != "sum":
        return False
    if any(reads(i) for b in part.bodies for e in reads(b) for i in e.index):
        return False  # its gradient is scattered to data-dependent positions
    if not isinstance(part, Piece) or part.extents != a.shape or a.shape[:1] != (node.steps,):
        return False
    for j, m in enumerate(node.members):
        steps = step_parts(node, j)
        for p in m.parts:
            for e in postorder(p.bodies):
                if isinstance(e, Read) and e.slot == slot and (p not in steps or e.index[0] is not Axis(0)):
                    return False
    return True


def differentiate_with_recomputation(
    node: Recurrence,
    size: int,
    cotangents: Mapping[int, Tensor],
    needed: Container[Tensor],
    single_reader: Container[Tensor],
    gradients: Gradients,
) -> tuple[list[tuple[Tensor, Tensor]], dict[Tensor, Tensor]]:
    """Differentiate a recurrence without saving all of its states.

    Returns (tensor, contribution to its cotangent) for float tensors in `needed` that the recurrence depends on, and
    the replacements of its members, which let the states be recomputed.

    Args:
        node: the recurrence.
        size: number of steps from one saved state to the next.
        cotangents: cotangents of members, by member.
        needed: tensors whose cotangents are needed.
        single_reader: tensors with one reader.
        gradients: the reverse sweep.

    Raises:
        GradientError: for a step that a recurrence over segments cannot hold.
    """
    whole = _absorb_arguments(node, single_reader)
    more = len(whole.members) - len(node.members)
    try:
        contributions, members = _RecomputedAdjoint(
            whole, size, {j + more: g for j, g in cotangents.items()}, needed, gradients
        ).run()
    except RecurrenceError as e:
        raise GradientError(e.message) from e
    return contributions, {Item(node, j): members[j + more] for j in range(len(node.members))}


class _RecomputedAdjoint:
    """The adjoint by segments of a recurrence: `count` segments of `size` steps, and `remainder` more steps after
    them."""

    def __init__(
        self,
        node: Recurrence,
        size: int,
        cotangents: Mapping[int, Tensor],
        needed: Container[Tensor],
        gradients: Gradients,
    ):
        self.cotangents, self.gradients, self.original = cotangents, gradients, node
        self.size = size
        self.count = node.steps // self.size
        self.remainder = node.steps - self.count * self.size
        # Leaves take the place of the arguments, so that the sweep does not differentiate these.
        self.args = tuple(leaf(a.shape, a.dtype) for a in node.args)
        self.node = Recurrence(node.steps, node.reverse, node.origins, node.members, self.args)
        self.base = self.remainder if node.reverse else 0
        self.seg = segment(self.node, self.size, self.base, self.count)
        self.needed = [x for x, a in zip(self.args, node.args, strict=True) if a in needed and a.dtype.is_float]

    def run(self) -> tuple[list[tuple[Tensor, Tensor]], dict[int, Tensor]]:
        """Return (contributions to the arguments' cotangents, the recomputed tensor of each member, by number)."""
        node, seg = self.node, self.seg
        sources: dict[Leaf, tuple[Tensor, int | None]] = {x: (x, None) for x in self.args}
        sources |= {x: (t, 0) for x, t in seg.slices.items()}
        starts = {j: initial_slots(node, j, x.shape[0]) for j, x in seg.states.items()}
        carried = [CarriedTensor(x, seg.ends[j], starts[j]) for j, x in seg.states.items()]
        stacked, states = lift(self.count, node.reverse, list(seg.values.values()), carried, sources, seg.number)
        values, state = dict(zip(seg.values, stacked, strict=True)), dict(zip(seg.states, states, strict=True))

        # Outside of the segments: the members, from the segments' values.
        whole = {j: leaf(t.shape, t.dtype) for j, t in values.items()}
        last = {j: leaf(x.shape, x.dtype) for j, x in seg.states.items()}
        members = self._members(whole, last)
        seen = [*whole.values(), *last.values(), *self.needed]
        _, gradients = self.gradients([members[j] for j in self.cotangents], list(self.cotangents.values()), seen)
        cotangent = dict(zip(seen, gradients, strict=True))
        totals = {x: [cotangent[x]] for x in self.needed}

        # Within a segment.
        differentiated = [
            j for j, t in seg.values.items() if t.dtype.is_float and constant_value(cotangent[whole[j]]) != 0
        ]
        on_values = {j: leaf(seg.values[j].shape, seg.values[j].dtype.arithmetic) for j in differentiated}
        on_states = {j: leaf(x.shape, x.dtype.arithmetic) for j, x in seg.states.items() if x.dtype.is_float}
        parts = [x for x, t in seg.slices.items() if any(a in self.needed for a in t.args)]
        targets = [*(seg.states[j] for j in on_states), *parts, *self.needed]
        outputs = [*(seg.values[j] for j in on_values), *(seg.ends[j] for j in on_states)]
        # A segment becomes a step of a recurrence, which holds no scatter.
        _, inner = self.gradients(outputs, [*on_values.values(), *on_states.values()], targets, True)
        of = dict(zip(targets, inner, strict=True))

        # The segments backward.
        sources |= {x: (state[j], int(node.reverse)) for j, x in seg.states.items()}
        sources |= {x: (cotangent[whole[j]], 0) for j, x in on_values.items()}
        sums = {x: leaf(x.shape, x.dtype.arithmetic) for x in self.needed if constant_value(of[x]) != 0}
        carried = [CarriedTensor(x, of[seg.states[j]], cotangent[last[j]]) for j, x in on_states.items()]
        carried += [CarriedTensor(s, add([s, of[x]]), zeros(x.shape, x.dtype.arithmetic)) for x, s in sums.items()]
        on_parts, slots = lift(self.count, not node.reverse, [of[x] for x in parts], carried, sources, seg.number)
        ends = [element_of(t, self.count if node.reverse else 0) for t in slots]
        for x, g in zip(sums, ends[len(on_states) :], strict=True):
            totals[x].append(g)
        outputs = [*(seg.slices[x] for x in parts), *(starts[j] for j in on_states)]
        _, gradients = self.gradients(outputs, [*on_parts, *ends[: len(on_states)]], self.needed)
        for x, g in zip(self.needed, gradients, strict=True):
            totals[x].append(g)

        # Express the results in terms of the arguments.
        real: dict = dict(zip(self.args, self.original.args, strict=True))
        memo = dict(real)
        ended = [element_of(state[j], 0 if node.reverse else self.count) for j in last]
        rebuilt = rebuild([*values.values(), *ended], _keep, memo)
        memo |= dict(zip([*whole.values(), *last.values()], rebuilt, strict=True))
        pairs = [(real[x], g) for x, gs in totals.items() for g in gs if constant_value(g) != 0]
        contributions = rebuild([g for _, g in pairs], _keep, memo)
        again = rebuild(members.values(), _keep, memo)
        return [(a, g) for (a, _), g in zip(pairs, contributions, strict=True)], dict(zip(members, again, strict=True))

    def _members(self, whole: Mapping[int, Leaf], last: Mapping[int, Leaf]) -> dict[int, Tensor]:
        """Return every member: its initial values, the segments' steps (`whole`), the remaining steps."""
        node, steps = self.node, self.count * self.size
        after = self._recompute_remainder(last) if self.remainder else {}
        by = Const(self.size, Axis.dtype)
        out: dict[int, Tensor] = {}
        for j, (dtype, shape) in enumerate(node.results):
            first = node.origins[j]
            args: list[Tensor] = [*self.args]
            parts: list[Piece] = []
            for start, stop in ((0, first), (first + node.steps, shape[0])):
                parts += [q for p in node.members[j].parts if isinstance(p, Piece) for q in clipped(p, start, stop)]

            slot = len(args)
            args.append(whole[j])
            t = Axis(0) if steps > 1 else Const(0, Axis.dtype)
            place = apply("floordiv", t, by), apply("mod", t, by)
            parts.append(_copy(first + self.base, (steps, *shape[1:]), slot, place, dtype))
            if self.remainder:
                args.append(after[j])
                start = first + (0 if node.reverse else steps)
                t = Axis(0) if self.remainder > 1 else Const(0, Axis.dtype)
                parts.append(_copy(start, (self.remainder, *shape[1:]), slot + 1, (t,), dtype))
            out[j] = canonical(template_over(args, shape, parts), args)
        return out

    def _recompute_remainder(self, last: Mapping[int, Leaf]) -> dict[int, Tensor]:
        """Recompute the steps that remain after the last whole segment; return each member's values at those steps.

        last: the state at the end of the last whole segment, by member
        """
        node = self.node
        rest = segment(node, self.remainder, 0 if node.reverse else self.count * self.size, 1)
        memo: dict = {x: last[j] for j, x in rest.states.items()}
        for x, t in rest.slices.items():
            memo[x] = rebuild([element_of(t, 0)], _keep, dict(memo))[0]
        return dict(zip(rest.values, rebuild(rest.values.values(), _keep, memo), strict=True))


def _keep(node: object) -> None:
    """Keep a node: the rule of a rebuild that only replaces leaves."""


def _copy(start: int, extents: tuple[int, ...], slot: int, place: tuple[Expr, ...], dtype: DType) -> Piece:
    """Return a piece that copies a tensor to positions from `start` on along dimension 0; the tensor's index begins
    with `place`."""
    return dense_piece(extents, Read(slot, (*place, *own_index(extents)[1:]), dtype), start)
