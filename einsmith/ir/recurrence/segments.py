"""Split a recurrence into segments of S steps each, and make one segment a step of another recurrence.

    before   h[t+1,b,k] = tanh(x[t,b,k] + sum[j](h[t,b,j]*U[j,k])),  t < G*S,  h[0,b,k] = h0[b,k]
    segment  from e[0,b,k], the state before it:  h'[s+1,b,k] = tanh(x'[s,b,k] + sum[j](h'[s,b,j]*U[j,k])), h'[0] = e[0]
    after    H[g,s+1,b,k] = tanh(X[g,s,b,k] + sum[j](H[g,s,b,j]*U[j,k])),  H[g,0] = E[g,0],  E[g+1,0] = H[g,S],
             E[0,0,b,k] = h0[b,k];  outside: X[g,s,b,k] = x[S*g+s,b,k]

Only the states E live longer than a segment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from einsmith.base import dtypes as dt
from einsmith.base.errors import RecurrenceError
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.linear import LinearForm, linear, moved
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
    StepOptions,
    Template,
    Tensor,
    apply,
    leaf,
    postorder,
)
from einsmith.ir.rebuild import map_bodies, rebuild, template_over
from einsmith.ir.recurrence.assembly import Arguments, Assembly, renumbered
from einsmith.ir.recurrence.define import distances, recurrence, step_parts
from einsmith.ir.recurrence.pieces import dense_piece, map_piece, parts_at, restated, shifted
from einsmith.ir.recurrence.results import split_results
from einsmith.ir.rewrite.simplify import canonical
from einsmith.ir.views import own_index, read_at, slice_of

_OWN = 1 << 20
"""First slot number of members; lower slots are arguments."""


@dataclass
class Segment:
    """One of `count` segments: step s of segment g is step base + size*g + s of the recurrence.

    It reads the recurrence's arguments, and leaves: `number`, the 0-d i32 g; `slices`, parts of arguments, with their
    tensors over all segments, dimension 0 being g; `states`, by member, the slots ahead of the segment. `values[j]` are
    the segment's steps of member j, `ends[j]` the slots that the next segment begins from.
    """

    base: int
    count: int
    number: Leaf
    slices: dict[Leaf, Tensor] = field(default_factory=dict)
    states: dict[int, Leaf] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    ends: dict[int, Tensor] = field(default_factory=dict)


def segment(node: Recurrence, size: int, base: int, count: int) -> Segment:
    """Build one of `count` segments of `size` steps, beginning at step `base`. Raises RecurrenceError where a step
    reads earlier steps other than at a constant distance."""
    return _Builder(node, size, base, count).build()


class _Builder:
    def __init__(self, node: Recurrence, size: int, base: int, count: int):
        self.node, self.size = node, size
        self.out = Segment(base, count, leaf((), dt.i32))
        self.read_leaves: list[Tensor] = []  # tensors that the segment's recurrence reads
        self.depth = self._depth()
        self.spans: dict[tuple[int, int, int], tuple[int, int]] = {}  # (slot, dimension, coefficient of t): offsets
        self.parts: dict[tuple[int, int, int], Leaf] = {}

    def _depth(self) -> dict[int, int]:
        """Return the largest number of steps back at which each member is read. Raises RecurrenceError for a read
        without a constant distance."""
        node = self.node
        out = dict.fromkeys(range(len(node.members)), 0)
        for j in out:
            known = distances(node, j)
            for p in step_parts(node, j):
                for e in postorder(p.bodies):
                    if not isinstance(e, Read) or e.slot < len(node.args):
                        continue
                    i = e.slot - len(node.args)
                    low, high = known[e][1:] if e in known else (None, None)
                    form = linear(e.index[0])
                    if low is None or high is None or form.coefficient(Axis(0)) != 1:
                        raise RecurrenceError(
                            "with checkpoint=, a step may read earlier steps at constant distances only, since most "
                            f"states are not kept but recomputed. Step i0 of {node.steps} reads position {e.index[0]} "
                            f"of a tensor of shape {list(node.results[i][1])}; leave out checkpoint="
                        )
                    out[i] = max(out[i], high)
        return out

    def build(self) -> Segment:
        node, out = self.node, self.out
        for j, n in self.depth.items():
            if n:
                dtype, shape = node.results[j]
                out.states[j] = leaf((n, *shape[1:]), dtype)
        self._find_spans()
        drafts = [self._member(j) for j in range(len(node.members))]
        if self.size == 1 and self._define_values(drafts):
            return out
        own = [leaf(self._shape(j), node.results[j][0]) for j in range(len(drafts))]
        definitions = {x: self._compute(x.shape, parts, own, _OWN) for x, parts in zip(own, drafts, strict=True)}
        solved = recurrence(definitions, options=StepOptions(self.size))  # its gradient saves all states of the segment
        for j, n in self.depth.items():
            out.values[j] = slice_of(solved[own[j]], self._origin(j), self.size)
            if n:
                out.ends[j] = slice_of(solved[own[j]], 0 if node.reverse else self.size, n)
        return out

    def _define_values(self, drafts: Sequence[Sequence[Piece]]) -> bool:
        """Define a segment of one step without a recurrence: a tensor for each member. Return whether that is possible:
        no step reads members in a cycle, or positions that depend on other axes."""
        values: list[Tensor] = []

        def rule(e: Expr) -> Expr | None:
            if not isinstance(e, Read) or e.slot < _OWN:
                return None
            i, at = e.slot - _OWN, e.index[0]
            if not isinstance(at, Const):
                return None
            back = int(at.value) - self._origin(i)
            if back:
                state = Const(int(at.value) - (self.size if self.node.reverse else 0), at.dtype)
                return Read(self._slot(self.out.states[i]), (state, *e.index[1:]), e.dtype)
            if i >= len(values):
                return None
            return Read(2 * _OWN + i, (Const(0, at.dtype), *e.index[1:]), e.dtype)

        for j, parts in enumerate(drafts):
            first, rest = self._origin(j), self._shape(j)[1:]
            steps = [shifted(p, -first) for p in parts if p.offset[0] == first]
            own = [map_piece(p, lambda b: rebuild([b], rule)[0]) for p in steps]
            if any(isinstance(e, Read) and _OWN <= e.slot < 2 * _OWN for p in own for e in postorder(p.bodies)):
                return False
            values.append(self._compute((1, *rest), own, values, 2 * _OWN))
        for j, n in self.depth.items():
            self.out.values[j] = values[j]
            if n:
                self.out.ends[j] = self._end(values[j], self.out.states[j])
        return True

    def _end(self, value: Tensor, state: Leaf) -> Tensor:
        """Return the slots that the next segment begins from: those of the state but one, and the value of the step."""
        n, rest = state.shape[0], state.shape[1:]
        if n == 1:
            return value
        first, *others = own_index((n - 1, *rest))
        kept = (first if self.node.reverse else moved(first, 1), *others)
        starts = (1, 0) if self.node.reverse else (0, n - 1)
        parts = [
            dense_piece((n - 1, *rest), Read(0, kept, state.dtype), starts[0]),
            dense_piece((1, *rest), Read(1, own_index((1, *rest)), state.dtype), starts[1]),
        ]
        return canonical(template_over((state, value), state.shape, parts), (state, value))

    def _compute(self, shape: tuple[int, ...], parts: Sequence[Piece], own: Sequence[Tensor], first: int) -> Tensor:
        """Return a tensor of parts that read the segment's leaves, and own[i] at slot first + i."""
        tensors = (*self.read_leaves, *own)
        slots = {s: s for s in range(len(self.read_leaves))}
        slots |= {first + i: len(self.read_leaves) + i for i in range(len(own))}
        return canonical(template_over(tensors, shape, [renumbered(p, slots) for p in parts]), tensors)

    def _origin(self, j: int) -> int:
        return 0 if self.node.reverse else self.depth[j]

    def _shape(self, j: int) -> tuple[int, ...]:
        return (self.depth[j] + self.size, *self.node.results[j][1][1:])

    def _slot(self, x: Tensor) -> int:
        if x not in self.read_leaves:
            self.read_leaves.append(x)
        return self.read_leaves.index(x)

    # -- parts of arguments

    def _find_spans(self) -> None:
        """Find the range of offsets at which the steps read each argument along the dimension that t runs in."""
        node = self.node
        for j in range(len(node.members)):
            for p in step_parts(node, j):
                facts = Facts(p.domain)
                for e in postorder(p.bodies):
                    key = self._key(e)
                    if key is None or not isinstance(e, Read):
                        continue
                    low, high = facts.bounds(linear(e.index[key[1]]).without(Axis(0)).expr(dt.i64))
                    if low is not None and high is not None and high - low < self.size:
                        a, b = self.spans.get(key, (low, high))
                        self.spans[key] = min(a, low), max(b, high)

    def _key(self, e: Expr) -> tuple[int, int, int] | None:
        """Return (slot, dimension, c) of a read of an argument at c*t + offset in one dimension; None for others."""
        if not isinstance(e, Read) or e.slot >= len(self.node.args):
            return None
        dims = [d for d, i in enumerate(e.index) if _mentions_time(i)]
        if len(dims) != 1:
            return None
        form = linear(e.index[dims[0]])
        c = form.coefficient(Axis(0))
        if not c or any(a is not Axis(0) and _mentions_time(a) for a in form.terms):
            return None
        return e.slot, dims[0], c

    def _part(self, key: tuple[int, int, int]) -> Leaf:
        """Return the input of a segment's graph for the slice of an argument that the segment reads. The slices of all
        segments are one tensor outside of the loop."""
        if key in self.parts:
            return self.parts[key]
        (slot, d, c), (low, high) = key, self.spans[key]
        x, first, extent = self.node.args[slot], self._start(key), abs(c) * (self.size - 1) + high - low + 1
        shape = (*x.shape[:d], extent, *x.shape[d + 1 :])
        index = [*own_index(shape, 1)]
        whole = (self.out.count, *shape)
        form = LinearForm(first + c * self.out.base)
        for axis, by in ((Axis(0), c * self.size), (Axis(d + 1), 1)):
            if whole[axis.position] > 1:
                form = form + LinearForm(0, {axis: by})
        at = form.expr()
        least, most = Facts(whole).bounds(at)
        if least is None or least < 0:
            at = apply("max", at, Const(0, dt.i32))
        if most is None or most >= x.shape[d]:
            at = apply("min", at, Const(x.shape[d] - 1, dt.i32))
        index[d] = at
        self.parts[key] = part = leaf(shape, x.dtype)
        self.out.slices[part] = read_at(x, whole, index)
        return part

    def _start(self, key: tuple[int, int, int]) -> int:
        """Return the least position of a part, less c*(base + size*g)."""
        c, (low, _) = key[2], self.spans[key]
        return low if c > 0 else low + c * (self.size - 1)

    # -- members

    def _member(self, j: int) -> list[Piece]:
        shape, first, n = self._shape(j), self._origin(j), self.depth[j]
        out = []
        for p in step_parts(self.node, j):
            out.append(Piece((first, *p.offset[1:]), p.step, (self.size, *p.extents[1:]), self._body(p)))
        if n:
            extents = (n, *shape[1:])
            state = Read(self._slot(self.out.states[j]), own_index(extents), self.node.results[j][0])
            out.append(dense_piece(extents, state, self.size if self.node.reverse else 0))
        return out

    def _body(self, p: Piece) -> Expr | Reduce:
        before = LinearForm(self.out.base)  # t - s
        if self.out.count > 1:
            before = before + LinearForm(0, {Read(self._slot(self.out.number), (), dt.i32): self.size})
        time = (before + LinearForm(0, {Axis(0): 1} if self.size > 1 else {})).expr()
        return restated(p, {Axis(0): time}, lambda e, new: self._read(e, new, before)).body

    def _read(self, e: Read, new: Read, before: LinearForm) -> Read:
        """Return a read of a recurrence's template as one of a segment's template, which reads members and slices of
        arguments by positions within the segment. new: the read with the axes of its index rewritten. before: the
        number of steps before the segment, which is subtracted from positions along time."""
        node = self.node
        i = e.slot - len(node.args)
        if i >= 0:
            at = linear(new.index[0]) - before - node.origins[i] + self._origin(i)
            return Read(_OWN + i, (at.expr(), *new.index[1:]), e.dtype)
        key = self._key(e)
        if key not in self.spans or key is None:
            return Read(self._slot(node.args[e.slot]), new.index, e.dtype)
        _, d, c = key
        at = linear(new.index[d]) - before * c - self._start(key)
        return Read(self._slot(self._part(key)), (*new.index[:d], at.expr(), *new.index[d + 1 :]), e.dtype)


def _mentions_time(e: Expr) -> bool:
    """Return whether t occurs in an expression other than in a read's index."""
    stack = [e]
    seen: set[Expr] = set()
    while stack:
        x = stack.pop()
        if isinstance(x, Axis) and x.position == 0:
            return True
        if not isinstance(x, Read) and x not in seen:
            seen.add(x)
            stack += x.args
    return False


def initial_slots(node: Recurrence, j: int, n: int) -> Tensor:
    """Return the n slots of a member that lie ahead of its first step (after its last, if the recurrence is in
    reverse).

    Missing slots are zeros. The slots read the arguments alone.
    """
    dtype, shape = node.results[j]
    first = node.origins[j] + node.steps if node.reverse else node.origins[j] - n
    parts = parts_at(node.members[j].parts, first, n)
    rest = shape[1:]
    low, high = max(0, -first), min(n, shape[0] - first)
    for start, stop in ((0, low), (high, n)):
        if stop > start:
            parts.append(dense_piece((stop - start, *rest), Const(0, dtype), start))
    args = (*node.args, *(leaf(s, d) for d, s in node.results))
    return canonical(template_over(args, (n, *rest), parts), args)


# ---------------------------------------------------------------------------------------------- a step of a recurrence


@dataclass(frozen=True)
class CarriedTensor:
    """A tensor that a step computes (`end`) for the next one, which reads it as `state`; the first step reads `start`,
    a tensor outside."""

    state: Leaf
    end: Tensor
    start: Tensor


def lift(
    steps: int,
    reverse: bool,
    outputs: Sequence[Tensor],
    carried: Sequence[CarriedTensor],
    sources: Mapping[Leaf, tuple[Tensor, int | None]],
    number: Leaf,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return a step's tensors over all steps of a recurrence.

    Each of `outputs` gets the step as dimension 0. Each carried tensor has steps+1 slots, the first (last, if
    `reverse`) being its start. `sources` gives the source of each leaf of the step's tensors: (a tensor outside, None),
    or (a tensor, d), whose element step + d along dimension 0 it is; `number` is the step's number. Raises
    RecurrenceError for a tensor that cannot be a member.
    """
    return _Lift(steps, reverse, carried, sources, number).run(outputs)


class _Lift:
    def __init__(self, steps, reverse, carried, sources, number):
        self.steps, self.reverse, self.carried, self.sources, self.number = steps, reverse, carried, sources, number
        self.states: dict[Tensor, int] = {c.state: n for n, c in enumerate(carried)}
        self.assembly = Assembly(Arguments(), len(carried))
        self.place: dict[Tensor, int] = {}

    def run(self, outputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        ends = [c.end for c in self.carried]
        nodes = list(postorder([*outputs, *ends]))
        readers = Counter([*outputs, *ends, *(a for n in nodes for a in n.args)])
        for node in nodes:
            if isinstance(node, Compute) and node in ends and readers[node] == 1:
                continue  # becomes a member where it is carried
            if isinstance(node, Recurrence):
                self._recurrence(node)
            elif isinstance(node, Compute) and len(node.template.dtypes) > 1:
                for m, t in enumerate(split_results(node.template, node.args)):
                    self.place[Item(node, m)] = self._add(t, self._parts(t.template, t.args))
            elif isinstance(node, Compute):
                self._add(node, self._parts(node.template, node.args))
        output_members = [self._member(t) for t in outputs]
        for n, c in enumerate(self.carried):
            shape = c.state.shape
            start = Read(self._arg(c.start), own_index(shape, 1), c.state.dtype)
            if isinstance(c.end, Compute) and c.end not in self.place:
                steps = self._parts(c.end.template, c.end.args)
            else:
                steps = [dense_piece((self.steps, *shape), self._read(c.end, own_index(shape, 1), c.state.dtype))]
            origin = 0 if self.reverse else 1
            pieces = [dense_piece((1, *shape), start, self.steps * self.reverse), *(shifted(p, origin) for p in steps)]
            self.assembly.add(c.state.dtype, (self.steps + 1, *shape), origin, pieces, n)
        node, at = self.assembly.build(self.steps, self.reverse)
        return [Item(node, at[m]) for m in output_members], [Item(node, at[n]) for n in range(len(self.carried))]

    def _arg(self, t: Tensor) -> int:
        return self.assembly.arguments.slot(t)

    def _add(self, t: Tensor, pieces: Sequence[Piece]) -> int:
        """Add a step's tensor over all steps as a member; return its number."""
        self.place[t] = self.assembly.add(t.dtype, (self.steps, *t.shape), 0, pieces).number
        return self.place[t]

    def _member(self, t: Tensor) -> int:
        """Return the number of the member that is a step's tensor over all steps."""
        if t in self.place:
            return self.place[t]
        return self._add(t, [dense_piece((self.steps, *t.shape), self._read(t, own_index(t.shape, 1), t.dtype))])

    def _recurrence(self, node: Recurrence) -> None:
        items = tuple(Item(node, j) for j in range(len(node.members)))
        for x in items:
            self._add(x, [])
        for draft, t in zip(self.assembly.members[-len(items) :], node.members, strict=True):
            draft.pieces += self._parts(t, (*node.args, *items))

    def _parts(self, t: Template, args: Sequence[Tensor]) -> list[Piece]:
        """Return the parts of a step's template over all steps: every axis moves up by one."""
        if t.is_scatter:
            raise RecurrenceError(
                "with checkpoint=, no step may read or accumulate at positions that come from tensors: read them "
                "before the recurrence, as in e[t,k] = E[ids[t],k], and let the step read e[t,k]"
            )

        def rule(e):
            if isinstance(e, Axis):
                return Axis(e.position + 1)
            return self._read(args[e.slot], e.index, e.dtype) if isinstance(e, Read) else None

        out = []
        for p in map_bodies(t, lambda b: rebuild([b], rule)[0]).parts:
            assert isinstance(p, Piece)
            out.append(Piece((0, *p.offset), (1, *p.step), (self.steps, *p.extents), p.body))
        return out

    def _read(self, t: Tensor, index: tuple[Expr, ...], dtype: dt.DType) -> Expr:
        """Return a read of a step's tensor, given its index in terms of all steps' axes."""
        step: Expr = Axis(0) if self.steps > 1 else Const(0, dt.i32)
        if t is self.number:
            return step
        if t in self.states:
            at = moved(step, 1) if self.reverse else step
            return Read(self.states[t], (at, *index), dtype)
        if t in self.place:
            return Read(self.place[t], (step, *index), dtype)
        source, along = self.sources[t]
        return Read(self._arg(source), index if along is None else (moved(step, along), *index), dtype)
