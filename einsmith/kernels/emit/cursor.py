"""Emit loads, expression values and stores for the lanes of one vector.

A LaneCursor accumulates the scalar parts of addresses as they become known, and the mask of active lanes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from functools import reduce
from math import prod

from einsmith.base.errors import CompileError
from einsmith.codegen.loopnest.dots import WORD
from einsmith.codegen.loopnest.expressions import ExpressionEmitter, Memo
from einsmith.codegen.loopnest.lanes import (
    between,
    conjoin,
    covering,
    pick_lanes,
    place_lanes,
    place_mask,
    transpose_blocks,
)
from einsmith.codegen.loopnest.walk import digits
from einsmith.codegen.ssa import BYTES, SSAValue
from einsmith.ir.nodes import Apply, Axis, Expr, Read, outermost
from einsmith.kernels.emit.access import OperandAccess, PartialAddress

_COMPUTED_BYTES = 4
"""Fewest bytes of an element in a register; shorter elements are narrowed as they are stored."""
_MASK_REGISTERS_BYTES = 64
"""Bytes of vectors whose masks have registers of their own, so that masked stores are as fast as others. A Zen 3, whose
vectors have 32 bytes, takes 12 to 20 cycles for each."""


class LaneCursor(ExpressionEmitter):
    """The lanes of one vector at one place, with the scalars bound so far.

    `bind` returns a new cursor with more scalars and emits the guards that they decide. The lanes are the points
    start, start + 1, ... of the sampler's flattened lane axes.

    Args:
        limit: Lanes at or beyond this point are inactive; None: all lanes lie below it.
        align: A known divisor of `start` (points).
        count: Lanes from this one on are inactive; None: all are active.
        column: Position of `start` within its row where it is known: a number, or a value if the row holds all lanes.
        place: Mixed-radix digits of `start` over the lane groups, where they are known.
    """

    def __init__(
        self,
        sampler: OperandAccess,
        start: SSAValue | int,
        limit: int | SSAValue | None,
        align: int = 1,
        count: int | None = None,
        column: int | SSAValue | None = None,
        place: Sequence[SSAValue] | None = None,
    ):
        self.s, self.b = sampler, sampler.b
        b = self.b
        self.sums: dict[int, SSAValue] = {}
        self.axes: frozenset[int] = frozenset()
        self.opaque: dict[int, SSAValue] = {}
        self.mask: SSAValue | None = None
        self.pending = list(range(len(sampler.conds)))
        # Vectors of i32, or of i64 where values do not fit.
        self.lane_digits: dict[int, SSAValue] = {}  # by group's inner axis
        self.lane_forms: dict[int, SSAValue] = {}  # the lane part of a form
        self.run_masks: list[SSAValue | None] = [None]
        self.is_in_one_run: SSAValue | None = None
        self.run_offsets: dict[int, list[SSAValue]] = {}
        n, groups = sampler.lanes, sampler.lane_groups
        self.align, self.aligned = align, n > 0 and align % n == 0
        self.final_mask: SSAValue | None = None
        self.supplied: Mapping[int, SSAValue] = {}
        self.memo: Memo = {}
        self.unsafe = {}
        if count is not None:
            self.mask = between(b, None, b.iota(n, "i32"), count)
        x = b.index(start)
        if n and limit is not None:
            self.mask = self._tail_mask(x, limit)
        has_lanes = n > 0 and len(groups) > 0
        forms = (*sampler.reads.values(), *sampler.extra)
        self.kinds = {i: sampler.kind(i, align) if has_lanes else "uniform" for i in forms}
        if has_lanes:
            self._place_lanes(x, align, column, place)
            self.axes = frozenset(a for g in groups for a in g.axes)
        self._emit_known_guards()

    def _place_lanes(
        self, x: SSAValue, align: int, column: int | SSAValue | None, place: Sequence[SSAValue] | None
    ) -> None:
        """Compute what the lanes from point x on add to each form: the shared scalar part and the part of each lane."""
        s, b, n, groups, extents = self.s, self.b, self.s.lanes, self.s.lane_groups, self.s.lane_extents
        inner, within_row = groups[-1], self.s.has_aligned_rows(align)
        vectors = {i for i, _, _ in s.conds if any(s.forms[i].coef.get(g.inner) for g in groups)}
        vectors |= {i for i, k in self.kinds.items() if k == "gather"}
        if within_row:
            scalar = list(place) if place else digits(b, x, extents)
            if s.row:
                if column is not None:
                    scalar[-1] = b.index(column)
                inside = isinstance(column, SSAValue) or column is not None and column + n <= inner.extent
                if not (s.loose or inside):
                    self.mask = conjoin(b, self.mask, self._tail_mask(scalar[-1], inner.extent))
            part = s.part(groups, scalar)
            self.sums, self.opaque = part.sums, part.opaque
            lanes = {inner.inner: b.iota(n, "i32")}
            if inner.inner in s.opaque:
                self.lane_digits[inner.inner] = b.add(b.cast(scalar[-1], "i32"), lanes[inner.inner])
        else:
            used_axes = {a for i in vectors for a in s.forms[i].coef} | s.opaque
            lanes = self.lane_digits = self._lane_coordinates(x) if any(g.inner in used_axes for g in groups) else {}
        for i in vectors:
            coef = s.forms[i].coef
            elem = _elem_of(sum(abs(coef.get(g.inner, 0)) * (n if within_row else g.extent) for g in groups))
            terms = [(coef[a], b.cast(d, elem)) for a, d in lanes.items() if coef.get(a)]
            if terms:
                self.lane_forms[i] = reduce(b.add, [d if c == 1 else b.mul(d, b.const(c, elem)) for c, d in terms])
        if "runs" in self.kinds.values():
            self._compute_runs(x, align)

    def _lane_coordinates(self, x: SSAValue) -> dict[int, SSAValue]:
        """Return the coordinates of the lanes from point x on along each lane group, by the group's inner axis."""
        s, b = self.s, self.b
        elem = _elem_of(prod(s.lane_extents) + s.lanes)
        flat = b.add(b.cast(x, elem), b.iota(s.lanes, elem))
        coordinates = digits(b, flat, [b.const(n, elem) for n in s.lane_extents])
        return {g.inner: at for g, at in zip(s.lane_groups, coordinates, strict=True)}

    def _tail_mask(self, x: SSAValue, limit: int | SSAValue) -> SSAValue | None:
        b, n = self.b, self.s.lanes
        return between(b, None, b.iota(n, "i32"), b.op("min", b.sub(limit, x), n))

    def _compute_runs(self, x: SSAValue, align: int) -> None:
        """Compute the lane mask and the offset of each run: run j holds the lanes in row `x // e + j`.

        A run's offset is where lane 0 would lie in its row."""
        s, b = self.s, self.b
        n, e = s.lanes, s.lane_extents[-1]
        count = s.runs(align)
        row = b.op("floordiv", x, e)
        first = b.sub(b.mul(row, e), x)  # lane where row 0 begins, at most 0
        self.run_masks, self.is_in_one_run = [], b.op("le", n, b.add(first, e)) if e >= n else None
        for j in range(count):
            low = b.add(first, j * e)
            ends = low if j else None, b.add(low, e) if j < count - 1 else None
            self.run_masks.append(between(b, ends[0], b.iota(n, "i32"), ends[1]))
            values = digits(b, b.add(row, j), s.lane_extents[:-1])
            part = s.part(s.lane_groups[:-1], values)
            for i, kind in self.kinds.items():
                if kind == "runs":
                    offset = b.sub(part.sums.get(i, 0), b.mul(low, s.step(i)))
                    offsets = self.run_offsets.setdefault(i, [])
                    if j:  # a row without lanes gets row 0's address, so that it touches no other line
                        offset = b.select(b.op("lt", low, n), offset, offsets[0])
                    offsets.append(offset)

    def _emit_known_guards(self) -> None:
        """Emit the pending linear guards whose axes are all known, and add them to the mask."""
        s, b = self.s, self.b
        undecided = []
        for c in self.pending:
            form, fn, axes = s.conds[c]
            if not axes <= self.axes:
                undecided.append(c)
                continue
            const, total, lanes = s.forms[form].const, self.sums.get(form, 0), self.lane_forms.get(form)
            if lanes is None:
                mask = b.op(fn, b.add(total, const), 0)
            else:
                negated = b.sub(-const, total)
                elem = _elem_of(abs(const) + sum(abs(k) * s.extents[a] for a, k in s.forms[form].coef.items()))
                elem = max(elem, lanes.type.elem)
                mask = b.op(fn, b.cast(lanes, elem), b.splat(b.cast(negated, elem), s.lanes))
            self.mask = conjoin(b, self.mask, mask)
        self.pending = undecided

    def bind(self, *parts: PartialAddress) -> LaneCursor:
        """Return a cursor with further scalar parts, and emit the guards that they decide."""
        out = copy(self)
        out.sums, out.opaque = dict(self.sums), dict(self.opaque)
        for part in parts:
            for i, v in part.sums.items():
                out.sums[i] = self.b.add(out.sums.get(i, 0), v)
            out.opaque.update(part.opaque)
            out.axes = out.axes | part.axes
        out._emit_known_guards()
        return out

    # -- expressions

    def index(self, x: Expr, elem: str) -> SSAValue | None:
        if isinstance(x, Apply) and x.fn == "cast":  # of an axis, whose value its own type may not hold
            x = x.args[0]
        if not isinstance(x, Axis):
            return None
        if x.position in self.lane_digits:
            return self.cast(self.lane_digits[x.position], elem)
        if self.s.extents[x.position] == 1:
            return self.const(0, elem)
        return self.cast(self.opaque[x.position], elem)

    def needs_guard(self, x: Read) -> bool:
        return x.slot not in self.s.supplied_slots and not self.s.is_safe(x)

    def read(self, x: Read, guard: SSAValue | None) -> SSAValue:
        if x.slot in self.s.supplied_slots:
            return self.supplied[x.slot]
        b, n, p, form = self.b, self.s.lanes, self.s.memories[x.slot], self.s.reads.get(x)
        kind = "computed" if form is None else self.kinds[form]
        at = self._compute_offset(x, guard) if form is None else self.offset(form)
        if kind == "uniform" or (form is None and not at.type.lanes):
            return b.load(p.pointer, at, p.elem, 0, None if guard is None else b.any(guard))
        mask = None if guard is None else b.splat(guard, n)
        if form is None:
            return b.gather(p.pointer, at, p.elem, mask)
        if kind != "gather":
            masked_rows = [(x, conjoin(b, run, mask)) for x, run in self._rows(form, at)]
            return self._load_rows(p.pointer, masked_rows, p.elem, self.s.step(form))
        if p.offset_elem == "i64":
            return b.gather(p.pointer, b.add(b.cast(self.lane_forms[form], "i64"), b.splat(at, n)), p.elem, mask)
        return b.gather(b.address(p.pointer, at, p.elem), self.lane_forms[form], p.elem, mask)

    def adjacent_words(self, x: Apply, guard: SSAValue | None) -> SSAValue | None:
        s, b = self.s, self.b
        reads = list(outermost([x.args[0]], Read))
        own = [r for r in reads if r in s.word_reads]
        if guard is not None or not own or not all(s.is_contiguous_word(r, self.align) for r in own):
            return None
        if any(r not in own and self.kinds.get(s.reads.get(r, -1)) != "uniform" for r in reads):
            return None
        points: Memo = {}
        for r in own:
            m, at = s.memories[r.slot], self.offset(s.reads[r])
            points[r, None] = b.load(m.pointer, at, m.elem, len(x.args) * s.lanes)
        return b.bitcast(self.evaluate(x.args[0], None, points), WORD)

    # -- memory

    def offset(self, form: int) -> SSAValue:
        """Return the scalar part of a form's address."""
        return self.b.add(self.sums.get(form, 0), self.s.forms[form].const)

    def _rows(self, form: int, at: SSAValue) -> Iterator[tuple[SSAValue, SSAValue | None]]:
        """Yield (address of lane 0, mask of the lanes in the row; None: all) for each row that the lanes touch.

        at: the scalar part of the address."""
        if self.kinds[form] == "unit":
            yield at, None
            return
        for x, run in zip(self.run_offsets[form], self.run_masks, strict=True):
            yield self.b.add(at, x), run

    def _load_rows(
        self, pointer: SSAValue, rows: Sequence[tuple[SSAValue, SSAValue | None]], elem: str, step: int
    ) -> SSAValue:
        """Load the elements at, at + step, ... of the active lanes of each row; lanes inactive in all rows are 0.

        The masked loads of all rows merge into one vector, so that one shuffle (step 2) serves all rows.

        rows: (`at`, mask of the lanes in the row; None: all)."""
        b, n = self.b, self.s.lanes
        pattern = range(0, step * n, step)
        starts = covering(pattern, n)
        parts = []
        for first in starts:
            out: SSAValue | None = None
            for at, mask in rows:
                if mask is not None and step > 1:
                    mask = place_mask(b, mask, n, first, pattern)
                out = b.load(pointer, b.add(at, first), elem, n, mask, out)
            assert out is not None
            parts.append(out)
        return parts[0] if step == 1 else pick_lanes(b, parts, starts, pattern)

    def _compute_offset(self, r: Read, guard: SSAValue | None) -> SSAValue:
        """Return the offset of a read whose index is computed at run time: a vector where the index varies by lane."""
        b, p = self.b, self.s.memories[r.slot]
        index = [self.evaluate(i, guard, self.memo) for i in r.index]
        elem = p.offset_elem if any(x.type.lanes for x in index) else "i64"
        at = b.const(0, elem)
        for x, stride in zip(index, p.buffer.strides, strict=True):
            at = b.add(at, b.mul(b.cast(x, elem), b.const(stride, elem)))
        return at

    def values(
        self, exprs: Sequence[Expr] | None = None, supplied: Mapping[int, SSAValue] | None = None
    ) -> list[SSAValue]:
        """Emit the expressions (default: the sampler's own); lanes outside of the mask hold any value.

        A result that is uniform over the lanes is a scalar. supplied: values of reads of `supplied_slots`.

        Raises:
            CompileError: a guard mentions an axis without a value."""
        if self.pending:
            raise CompileError("a guard mentions an axis without value")
        mask = self.mask
        self.supplied, self.memo = supplied or {}, {}
        for g in self.s.generic:
            mask = conjoin(self.b, mask, self.evaluate(g, mask, self.memo))
        self.final_mask = mask
        return [self.evaluate(e, mask, self.memo) for e in (self.s.exprs if exprs is None else exprs)]

    def product(self) -> SSAValue:
        """Emit the sampler's only expression as a full vector, zero in the lanes where a guard does not hold."""
        b = self.b
        (x,) = self.values()
        x = b.splat(x, self.s.lanes)
        e, mask = self.s.exprs[0], self.final_mask
        uniform = isinstance(e, Read) and e in self.s.reads and self.kinds[self.s.reads[e]] == "uniform"
        if mask is not None and (not isinstance(e, Read) or (uniform and mask.type.lanes)):
            x = b.select(mask, x, b.const(0.0, x.type.elem))
        return x

    def prefetch(self, form: int, pointer: SSAValue, elem: str) -> None:
        """Prefetch the lines that the lanes read or write at an address form, unless they are scattered."""
        b, n = self.b, self.s.lanes
        kind, at = self.kinds[form], self.offset(form)
        if kind == "unit":
            b.prefetch(pointer, at, elem)
        elif kind == "runs":
            rows = [x for x, _ in self._rows(form, at)]
            b.prefetch(pointer, rows[0], elem)
            b.prefetch(pointer, b.add(rows[-1], n - 1), elem)

    def store(self, extra: int, pointer: SSAValue, value: SSAValue, non_temporal: bool = False) -> None:
        """Store the active lanes of `value` at the sampler's address form number `extra`.

        non_temporal: use a non-temporal store where the vector is whole and lies at a multiple of its length from
        `pointer`."""
        s, b = self.s, self.b
        form, n, at = s.extra[extra], s.lanes, self.offset(s.extra[extra])
        value, kind = b.splat(value, n), self.kinds[form]
        if kind == "uniform":
            # One point: only the first lane is an element.
            b.store(b.extract(value, 0) if n else value, pointer, at)
        elif kind == "unit" and non_temporal and self.mask is None and self.aligned and s.is_vector_aligned(form):
            b.stream(value, pointer, at)
        elif kind != "gather":
            self._store_rows(form, pointer, value)
        else:
            offsets = b.add(b.cast(self.lane_forms[form], "i64"), b.splat(at, n))
            b.scatter(value, pointer, offsets, self.vector_mask())

    def vector_mask(self) -> SSAValue | None:
        """Return the mask of active lanes as a vector; None: all are active."""
        return None if self.mask is None else self.b.splat(self.mask, self.s.lanes)

    def _store_rows(self, form: int, pointer: SSAValue, value: SSAValue, odd: SSAValue | None = None) -> None:
        """Store the active lanes, one masked store per row touched; the address has unit stride or stride 2.

        odd: values for the elements after those of `value`, at stride 2 (None: these elements are left alone)."""
        b, n, step = self.b, self.s.lanes, self.s.step(form)
        mask, pattern = self.vector_mask(), range(0, self.s.lanes * step, step)
        for first in range(0, step * n, n):
            here = value if step == 1 else place_lanes(b, value, odd, first, pattern)

            def emit(at: SSAValue, active: SSAValue | None, first=first, here=here) -> None:
                if step > 1 and odd is None:
                    active = place_mask(b, active or b.const(True, "i1", n), n, first, pattern)
                elif step > 1 and active is not None:
                    active = place_lanes(b, active, active, first, pattern)
                b.store(here, pointer, b.add(at, first), active)

            rows = list(self._rows(form, self.offset(form)))
            is_whole = self.is_in_one_run if len(rows) > 1 and self._has_slow_masks(value) else None
            if is_whole is not None:
                with b.if_(is_whole):
                    emit(rows[0][0], mask)
            with nullcontext() if is_whole is None else b.if_(b.op("not", is_whole)):
                for at, run in rows:
                    emit(at, conjoin(b, run, mask))

    def _has_slow_masks(self, value: SSAValue) -> bool:
        return self.s.lanes * max(_COMPUTED_BYTES, BYTES[value.type.elem]) < _MASK_REGISTERS_BYTES

    def store_stacked(self, extra: int, pointer: SSAValue, rows: Sequence[SSAValue]) -> None:
        """Store as many vectors as a vector has runs at the sampler's address form number `extra`.

        This cursor stands at the first vector. The vectors' blocks of one run are contiguous in memory, so that each
        run takes one whole store after the blocks are transposed."""
        s, b = self.s, self.b
        form, n = s.extra[extra], s.lanes
        at, width = self.offset(form), n // len(rows)
        whole = transpose_blocks(b, [b.splat(x, n) for x in rows], n, width)
        for j, (value, more) in enumerate(zip(whole, self.run_offsets[form], strict=True)):
            b.store(value, pointer, b.add(at, b.add(more, j * width)))

    def store_interleaved(self, first: int, second: int, pointer: SSAValue, even: SSAValue, odd: SSAValue) -> None:
        """Store `even` and `odd` interleaved: at the address forms `first` and `second`, each with stride 2.

        The form `second` names the elements one after those of `first`."""
        b, n, form = self.b, self.s.lanes, self.s.extra[first]
        if self.kinds[form] in ("unit", "runs"):
            self._store_rows(form, pointer, b.splat(even, n), b.splat(odd, n))
        else:
            self.store(first, pointer, even)
            self.store(second, pointer, odd)


def _elem_of(most: int) -> str:
    """Return the integer lane type that holds magnitudes up to `most`."""
    return "i32" if abs(most) < 2**31 else "i64"
