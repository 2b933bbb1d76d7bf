"""Build the members of a recurrence from their drafts: their schedule, and the values outside of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.ir.analysis.guarded import reads_under
from einsmith.ir.analysis.linear import LinearForm, linear, moved
from einsmith.ir.components import components
from einsmith.ir.nodes import (
    DEFAULT_STEPS,
    Axis,
    Const,
    Expr,
    Piece,
    Read,
    Recurrence,
    Reduce,
    StepOptions,
    Tensor,
    apply,
    postorder,
)
from einsmith.ir.rebuild import rebuild, substitute, template_over
from einsmith.ir.recurrence.assembly import ARGS, Arguments, Assembly, renumbered
from einsmith.ir.recurrence.drafts import Draft, Edge, node_reads, potentials
from einsmith.ir.recurrence.pieces import clipped, dense_piece, dims_first, map_piece, shifted
from einsmith.ir.rewrite.simplify import canonical
from einsmith.ir.views import own_index, transposed

# ------------------------------------------------------------------------------------------------------------- layout


@dataclass(frozen=True)
class StepLayout:
    """The schedule of the nodes: node n is evaluated at `steps` positions from `first[n]` on, in the order `groups`
    within a step.

    `clean[n]`: up to this position (from it on, running downward) node n depends on no step.
    """

    sign: int
    steps: int
    first: tuple[int, ...]
    clean: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]


def schedule(drafts: Sequence[Draft], edges: Sequence[Edge], sign: int) -> StepLayout:
    """Return the layout with the least padding.

    Positions that depend on no step lie ahead of the first one, and every read is of an earlier step or of the current
    one.
    """
    # In the direction of evaluation, node n covers begin[n] .. end[n]-1.
    begin = [0 if sign > 0 else 1 - d.shape[0] for d in drafts]
    end = [b + d.shape[0] for b, d in zip(begin, drafts, strict=True)]
    direct = [_find_first_dependent(d, {}, b, e, sign) for d, b, e in zip(drafts, begin, end, strict=True)]
    best: tuple[tuple[int, int], StepLayout] | None = None
    for start in (direct, [0] * len(drafts)):
        shift = potentials(edges, start, sign)
        assert shift is not None
        clean = list(direct)
        for group in _groups(edges, shift, sign):
            if len(group) == 1:
                (n,) = group
                read = {e.source for e in edges if e.reader == n and _may_read_current_step(e, shift, sign)}
                limits = {i: clean[i] for i in read if clean[i] > begin[i]}
                clean[n] = max(clean[n], _find_first_dependent(drafts[n], limits, begin[n], end[n], sign))
        shift = potentials(edges, clean, sign)
        assert shift is not None
        low = min(c - s for c, s in zip(clean, shift, strict=True))
        firsts = [s + low for s in shift]
        steps = max(e - w for e, w in zip(end, firsts, strict=True))
        waste = sum(steps - (e - c) for e, c in zip(end, clean, strict=True))
        groups = tuple(tuple(g) for g in _groups(edges, shift, sign))
        if sign < 0:
            firsts, clean = [1 - w - steps for w in firsts], [1 - c for c in clean]
        candidate = (
            (waste, sum(len(g) > 1 for g in groups)),
            StepLayout(sign, steps, tuple(firsts), tuple(clean), groups),
        )
        if best is None or candidate[0] < best[0]:
            best = candidate
    assert best is not None
    return best[1]


def _may_read_current_step(e: Edge, shift: Sequence[int], sign: int) -> bool:
    """Return whether a read may be of the current step."""
    nearest = e.low if sign > 0 else e.high
    assert nearest is not None
    return sign * nearest + shift[e.source] - shift[e.reader] <= 0


def _groups(edges: Sequence[Edge], shift: Sequence[int], sign: int) -> list[list[int]]:
    """Return the nodes in order of evaluation within a step; nodes of one group read each other in a cycle."""
    below: list[list[int]] = [[] for _ in shift]
    for e in edges:
        if _may_read_current_step(e, shift, sign):
            below[e.reader].append(e.source)
    return components(range(len(shift)), below.__getitem__)


def _find_first_dependent(d: Draft, limits: Mapping[int, int], begin: int, end: int, sign: int) -> int:
    """Return the first position that depends on a step; a read of node i below `limits[i]` does not."""
    out = end
    for p in d.parts:
        last = p.offset[0] + p.step[0] * (p.extents[0] - 1)
        first, stop = (p.offset[0], last + 1) if sign > 0 else (-last, 1 - p.offset[0])
        for r in node_reads(p):
            back = linear(r.index[0]) - LinearForm(0, {Axis(0): 1})
            limit = first
            if r.slot in limits and not back.terms and p.step[0] == 1:
                limit = max(first, limits[r.slot] - sign * (back.const - p.offset[0]))
            if limit < stop:
                out = min(out, limit)
    return out if out < end else begin


# ------------------------------------------------------------------------------------------------------------ members


class Members:
    """The members of a recurrence under construction, made from drafts once the layout of their steps is known.

    depth: number of leading time dimensions of a member: one of this recurrence, others of those in its steps."""

    def __init__(
        self,
        args: Arguments,
        exposed: set[int],
        drafts: Sequence[Draft],
        layout: StepLayout,
        options: StepOptions = DEFAULT_STEPS,
        depth: int = 1,
    ):
        self.args, self.exposed, self.drafts, self.layout = args, exposed, drafts, layout
        self.options, self.depth = options, depth
        self.initial: dict[int, Tensor] = {}
        self.base = [self._base(n) for n in range(len(drafts))]
        self.assembly = Assembly(args, len(drafts))

    def _base(self, n: int) -> int:
        """Return the position that is slot 0 of a node's member."""
        lay = self.layout
        return min(0, lay.first[n]) if lay.sign > 0 and self._is_kept(n) else lay.first[n]

    def _is_kept(self, n: int) -> bool:
        """Return whether a node's values outside of its steps are read, in a step or outside the recurrence."""
        if n in self.exposed:
            return True
        first, stop = self.layout.first[n], self.layout.first[n] + self.layout.steps
        for m, d in enumerate(self.drafts):
            for p in d.parts:
                for part in clipped(p, self.layout.first[m], self.layout.first[m] + self.layout.steps):
                    for r, facts in reads_under(part):
                        if r.slot == n:
                            low, high = facts.bounds(r.index[0])
                            if low is None or high is None or low < first or high >= stop:
                                return True
        return False

    def build(self) -> tuple[Recurrence, list[tuple[int, int]]]:
        """Build the recurrence; return it with the (member, offset) of each draft."""
        lay = self.layout
        for group in lay.groups:
            for n in group:
                first, stop = lay.first[n], lay.first[n] + lay.steps
                size = self.drafts[n].shape[0]
                kept = self._is_kept(n)
                low = self.base[n]
                high = max(stop, size) if lay.sign < 0 and kept else stop
                parts = [
                    shifted(p, -low)
                    for p in self._clip_outside_steps(n, low, first) + self._clip_outside_steps(n, stop, high)
                ]
                parts += [shifted(p, -low) for p in self._step_parts(n)]
                shape = (high - low, *self.drafts[n].shape[1:])
                self.assembly.add(self.drafts[n].dtype, shape, first - low, parts, n)
        self._transpose_args()
        node, members = self.assembly.build(lay.steps, lay.sign < 0, self.options)
        return node, [(members[n], self.base[n]) for n in range(len(self.drafts))]

    # -- positions that depend on no step

    def _clip_outside_steps(self, n: int, low: int, high: int) -> list[Piece]:
        """Return the pieces of node n at positions ahead of its first step: they read no node."""
        if low >= high:
            return []
        out = [q for p in self.drafts[n].parts for q in clipped(p, low, high)]
        return [map_piece(p, lambda b: rebuild([b], self._rewrite_read_outside)[0]) for p in out]

    def _rewrite_read_outside(self, e: Expr) -> Expr | None:
        """Rewrite a read of a node, at a position that depends on no step, as a read of an outside tensor or as its
        value; else None."""
        if not isinstance(e, Read) or e.slot >= ARGS:
            return None
        lay, n = self.layout, e.slot
        d = self.drafts[n]
        low, high = (0, lay.clean[n]) if lay.sign > 0 else (lay.clean[n], d.shape[0])
        at = (moved(e.index[0], -low), *e.index[1:])
        parts = [shifted(p, -low) for p in self._clip_outside_steps(n, low, high)]
        shape = (high - low, *d.shape[1:])
        if len(parts) == 1 and parts[0].extents == shape and not isinstance(parts[0].body, Reduce):
            return substitute(parts[0].body, dict(enumerate(at)))
        if n not in self.initial:
            args = self.args.tensors
            slots = {ARGS + s: s for s in range(len(args))}
            t = template_over(args, shape, [renumbered(p, slots) for p in parts])
            self.initial[n] = canonical(t, args)
        return Read(self.args.slot(self.initial[n]), at, e.dtype)

    # -- steps

    def _step_parts(self, n: int) -> list[Piece]:
        """Return the pieces of a node at its steps, each along all of them."""
        lay, d = self.layout, self.drafts[n]
        first, stop = lay.first[n], lay.first[n] + lay.steps
        low, high = (0, lay.clean[n]) if lay.sign > 0 else (lay.clean[n], d.shape[0])
        clipped_parts: list[Piece] = []
        for p in d.parts:
            for q in clipped(p, first, stop):
                if low <= q.offset[0] < high and low <= q.offset[0] + q.step[0] * (q.extents[0] - 1) < high:
                    q = map_piece(q, lambda b: rebuild([b], self._rewrite_read_outside)[0])
                clipped_parts.append(q)
        groups: dict[tuple, list[Piece]] = {}
        for p in clipped_parts:
            groups.setdefault((p.offset[1:], p.step[1:], p.extents[1:]), []).append(p)
        if any(boxes_meet(a, b) for a, b in combinations(groups, 2)):
            groups = {((0,) * (len(d.shape) - 1), (1,) * (len(d.shape) - 1), d.shape[1:]): clipped_parts}
        out = []
        for (offset, step, extents), parts in groups.items():
            p = parts[0]
            if len(parts) > 1 or p.extents != (lay.steps, *extents) or p.step[0] != 1 or p.offset[0] != first:
                p = self._select_by_position(n, parts, offset, step, extents)
            out.append(map_piece(p, self._rewrite_reads))
        return out

    def _rewrite_reads(self, body: Expr) -> Expr:
        """Return a body whose reads of nodes are at slots of their members."""

        def rule(e):
            if isinstance(e, Read) and e.slot < len(self.base):
                return Read(e.slot, (moved(e.index[0], -self.base[e.slot]), *e.index[1:]), e.dtype)
            return None

        return rebuild([body], rule)[0]

    def _select_by_position(self, n: int, parts: Sequence[Piece], offset, step, extents) -> Piece:
        """Return one piece along all steps that selects by position between the bodies of `parts`, each of which
        covers a part of it."""
        lay, dtype = self.layout, self.drafts[n].dtype
        whole = Piece((lay.first[n], *offset), (1, *step), (lay.steps, *extents), Const(0, dtype))
        body: Expr = Const(0, dtype)
        for p in parts:
            condition: Expr | None = None
            places: dict[int, Expr] = {}
            for d, (o, s, e) in enumerate(zip(p.offset, p.step, p.extents, strict=True)):
                if (o, s, e) == (whole.offset[d], whole.step[d], whole.extents[d]):
                    continue
                at = LinearForm(whole.offset[d] - o, {Axis(d): whole.step[d]}).expr()
                number = apply("floordiv", at, Const(s, dt.i32)) if s > 1 else at
                tests = [apply("le", Const(0, dt.i32), at), apply("lt", number, Const(e, dt.i32))]
                if s > 1:
                    tests.append(apply("eq", apply("mod", at, Const(s, dt.i32)), Const(0, dt.i32)))
                for t in tests:
                    condition = t if condition is None else apply("and", condition, t)
                places[d] = number
            value = self._pointwise(p, whole, condition, places)
            body = value if condition is None else apply("where", condition, value, body)
        return Piece(whole.offset, whole.step, whole.extents, body)

    def _pointwise(self, p: Piece, whole: Piece, condition: Expr | None, places: Mapping[int, Expr]) -> Expr:
        """Return a piece's value at a point of the whole; a reduction becomes a member of its own."""
        if not isinstance(p.body, Reduce):
            return substitute(p.body, places)
        r = p.body
        assert len(r.bodies) == 1
        inner = substitute(r.bodies[0], places)
        if condition is not None:
            inner = apply("where", condition, inner, Const(_neutral(r.combiner, inner.dtype), inner.dtype))
        box = dense_piece(whole.extents, Reduce(r.combiner, r.extents, (inner,)))
        box = map_piece(box, self._rewrite_reads)
        number = self.assembly.add(inner.dtype, whole.extents, 0, [box]).number
        return Read(number, own_index(whole.extents), inner.dtype)

    def _transpose_args(self) -> None:
        """Transpose arguments of which steps read slices, so that the dimensions of the slices come first, in the order
        of the times."""
        sliced_dims: dict[int, set[tuple[int, ...]]] = {}
        for m in self.assembly.members:
            for p in m.pieces:
                for r in dict.fromkeys(e for e in postorder(p.bodies) if isinstance(e, Read) and e.slot >= ARGS):
                    dims = [k for t in range(self.depth) if (k := _find_slice(r, t)) is not None]
                    sliced_dims.setdefault(r.slot, set()).add(dims_first(dims, len(r.index)))
        copies: dict[int, tuple[int, tuple[int, ...]]] = {}
        for slot, orders in sliced_dims.items():
            a = self.args.tensors[slot - ARGS]
            order = next(iter(orders))
            if len(orders) == 1 and order != tuple(range(len(order))):
                copies[slot] = self.args.slot(transposed(a, order)), order

        def rule(e):
            if isinstance(e, Read) and e.slot in copies:
                slot, order = copies[e.slot]
                return Read(slot, tuple(e.index[d] for d in order), e.dtype)
            return None

        self.assembly.rewrite(rule)


def _find_slice(r: Read, time: int) -> int | None:
    """Return the dimension of which a read accesses one position for each position along a time; None if there is no
    such dimension, or several depend on the time."""
    along = [k for k, i in enumerate(r.index) if Axis(time) in postorder([i])]
    return along[0] if len(along) == 1 and len(linear(r.index[along[0]]).terms) == 1 else None


def _neutral(combiner: str, dtype: DType) -> float | int:
    """Return the identity element of a combiner."""
    if combiner in ("sum", "prod"):
        return 0 if combiner == "sum" else 1
    if dtype.is_float:
        return float("-inf") if combiner == "max" else float("inf")
    info = np.iinfo(dtype.numpy)
    return int(info.min if combiner == "max" else info.max)


def boxes_meet(a: tuple, b: tuple) -> bool:
    """Return whether two boxes (offset, step, extents) may share a position; only their bounds are compared, not the
    strides."""
    for o1, s1, n1, o2, s2, n2 in zip(*a, *b, strict=True):
        if o1 > o2 + s2 * (n2 - 1) or o2 > o1 + s1 * (n1 - 1):
            return False
    return True
