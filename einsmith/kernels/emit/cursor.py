"""Lanes at a place: where the lanes of a vector lie, and which of them are on, as scalars become known."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from einsmith.kernels.emit.access import FusedAxes, OperandAccess, PartialAddress, digits
from einsmith.kernels.emit.lanes import LaneEmitter, add_to, both
from einsmith.loops.nest import Value


class LaneCursor(LaneEmitter):
    """Lanes at one place, with the scalars bound so far. `bind` gives a new one; what is decided is emitted there.

    The lanes are start, start+1, ... of the sampler's flattened lane axes. Those not below `limit` (None: all are) are
    off, and of `count` lanes (None: all) the others are. start is a multiple of `align`; `column` is its place in a
    row, where that is known: a number, or a value where all lanes are in the row's extent; `place`: its digits, if
    they are.
    """

    def __init__(
        self,
        sampler: OperandAccess,
        start: Value | int,
        limit: int | Value | None,
        align: int = 1,
        count: int | None = None,
        column: int | Value | None = None,
        place: Sequence[Value] | None = None,
    ):
        self.s, b = sampler, sampler.b
        self.sums: dict[int, Value] = {}
        self.axes: frozenset[int] = frozenset()
        self.opaque: dict[int, Value] = {}
        self.mask: Value | None = None
        self.pending = list(range(len(sampler.conds)))
        # Vectors of i32, of i64 where they do not fit.
        self.lane_digits: dict[int, Value] = {}  # by group's inner axis
        self.lane_forms: dict[int, Value] = {}  # what lanes add to a form
        self.run_masks: list[Value | None] = [None]
        self.run_offsets: dict[int, list[Value]] = {}
        n = sampler.lanes
        self.aligned = n > 0 and align % n == 0
        self.kinds: dict[int, str] = {}
        if count is not None:
            self.mask = b.op("lt", b.iota(n, "i32"), b.const(count, "i32", n))
        if not n or not sampler.lane_groups:
            for i in (*sampler.reads.values(), *sampler.extra):
                self.kinds[i] = "uniform"
            if n and limit is not None:
                at = b.index(start)
                self.mask = self._tail(at, limit)
            self._resolve()
            return
        x = b.index(start)
        if limit is not None:
            self.mask = self._tail(x, limit)
        groups, extents = sampler.lane_groups, sampler.lane_extents
        for i in (*sampler.reads.values(), *sampler.extra):
            self.kinds[i] = sampler.kind(i, align)
        lane_used = [i for i, _, _ in sampler.conds]
        vectors = {i for i in lane_used if self._touches(i)}
        vectors |= {i for i, k in self.kinds.items() if k == "gather"}
        need = {g.inner for g in groups if g.inner in sampler.opaque}
        need |= {g.inner for g in groups for i in vectors if sampler.forms[i].coef.get(g.inner)}
        inner = groups[-1]
        if sampler.aligned_rows(align):
            scalar = list(place) if place else digits(b, x, extents)
            if sampler.row:
                if column is not None:
                    scalar[-1] = b.index(column)
                within = isinstance(column, Value) or column is not None and column + n <= inner.extent
                if not (sampler.loose or within):
                    self.mask = both(b, self.mask, self._tail(scalar[-1], inner.extent))
            outer = sampler.part(list(zip(groups[:-1], scalar[:-1], strict=True)))
            base = sampler.part([(inner, scalar[-1])])
            for i in set(outer.sums) | set(base.sums):
                total = add_to(b, outer.sums.get(i), base.sums.get(i))
                assert total is not None
                self.sums[i] = total
            self.opaque.update(outer.opaque)
            iota = b.iota(n, "i32")
            for i in vectors:
                c = sampler.forms[i].coef.get(inner.inner, 0)
                if c:
                    elem = _elem_of(c * n)
                    lanes = b.iota(n, elem)
                    self.lane_forms[i] = b.mul(lanes, b.const(c, elem)) if c != 1 else lanes
            if inner.inner in sampler.opaque:
                self.lane_digits[inner.inner] = b.add(b.cast(scalar[-1], "i32"), iota)
            self._finish(groups)
            return
        if need:
            elem = _elem_of(prod(extents) + n)
            flat = b.add(b.cast(x, elem), b.iota(n, elem))
            for g in reversed(groups[1:]):
                if g.inner in need:
                    self.lane_digits[g.inner] = b.op("mod", flat, b.const(g.extent, elem))
                flat = b.op("floordiv", flat, b.const(g.extent, elem))
            self.lane_digits[groups[0].inner] = flat
            for i in vectors:
                coef = sampler.forms[i].coef
                elem = _elem_of(sum(abs(coef.get(g.inner, 0)) * g.extent for g in groups))
                total = None
                for g in groups:
                    c = coef.get(g.inner, 0)
                    if c:
                        d = b.cast(self.lane_digits[g.inner], elem)
                        total = add_to(b, total, d if c == 1 else b.mul(d, b.const(c, elem)))
                if total is not None:
                    self.lane_forms[i] = total
        if "runs" in self.kinds.values():
            self._make_runs(x, align)
        self._finish(groups)

    def _finish(self, groups: Sequence[FusedAxes]) -> None:
        self.axes = frozenset(a for g in groups for a in g.axes)
        self._resolve()

    def _touches(self, form: int) -> bool:
        return any(self.s.forms[form].coef.get(g.inner) for g in self.s.lane_groups)

    def _tail(self, x: Value, limit: int | Value) -> Value:
        b, n = self.s.b, self.s.lanes
        end = b.index(limit)
        left = b.cast(b.op("min", b.sub(end, x), b.const(n)), "i32")
        return b.op("lt", b.iota(n, "i32"), b.splat(left, n))

    def _make_runs(self, x: Value, align: int) -> None:
        """Run j covers the lanes of row `x // e + j`; its address is where lane 0 would lie in that row."""
        s, b = self.s, self.s.b
        n, e = s.lanes, s.lane_extents[-1]
        count = s.runs(align)
        row = b.op("floordiv", x, b.const(e))
        first = b.sub(b.mul(row, b.const(e)), x)  # lane where row 0 begins, at most 0
        iota = b.iota(n, "i32")
        self.run_masks = []
        for j in range(count):
            low = b.add(first, b.const(j * e))
            mask = None
            if j:
                mask = b.op("le", b.splat(b.cast(low, "i32"), n), iota)
            if j < count - 1:
                high = b.cast(b.add(low, b.const(e)), "i32")
                mask = both(b, mask, b.op("lt", iota, b.splat(high, n)))
            self.run_masks.append(mask)
            values = digits(b, b.add(row, b.const(j)) if j else row, s.lane_extents[:-1])
            part = s.part(list(zip(s.lane_groups[:-1], values, strict=True)))
            for i, kind in self.kinds.items():
                if kind == "runs":
                    back = b.mul(low, b.const(s.step(i))) if s.step(i) != 1 else low
                    offset = b.sub(part.sums.get(i, b.const(0)), back)
                    found = self.run_offsets.setdefault(i, [])
                    if j:  # a row without lanes touches no other line
                        offset = b.select(b.op("lt", low, b.const(n)), offset, found[0])
                    found.append(offset)

    def _resolve(self) -> None:
        """Linear guards whose axes are all known become part of the mask."""
        s, b = self.s, self.s.b
        left = []
        for c in self.pending:
            form, fn, axes = s.conds[c]
            if not axes <= self.axes:
                left.append(c)
                continue
            const = s.forms[form].const
            total = self.sums.get(form)
            lanes = self.lane_forms.get(form)
            if lanes is None:
                total = b.const(const) if total is None else b.add(total, b.const(const))
                mask = b.op(fn, total, b.const(0))
            else:
                negated = b.const(-const) if total is None else b.sub(b.const(-const), total)
                elem = _elem_of(abs(const) + sum(abs(k) * s.extents[a] for a, k in s.forms[form].coef.items()))
                elem = max(elem, lanes.type.elem)
                mask = b.op(fn, b.cast(lanes, elem), b.splat(b.cast(negated, elem), s.lanes))
            self.mask = both(b, self.mask, mask)
        self.pending = left

    def bind(self, *parts: PartialAddress) -> LaneCursor:
        """With scalars added; guards that are decided now are emitted here."""
        out = object.__new__(LaneCursor)
        out.__dict__.update(self.__dict__)
        out.sums, out.opaque = dict(self.sums), dict(self.opaque)
        for part in parts:
            for i, v in part.sums.items():
                total = add_to(self.s.b, out.sums.get(i), v)
                assert total is not None
                out.sums[i] = total
            out.opaque.update(part.opaque)
            out.axes = out.axes | part.axes
        out._resolve()
        return out


def _elem_of(most: int) -> str:
    """The type of lanes whose magnitudes are `most` at most."""
    return "i32" if abs(most) < 2**31 else "i64"
