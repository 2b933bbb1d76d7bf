"""Turn scalar expressions into vector instructions; every pattern emits its bodies by this.

A VectorEmitter holds the position of each axis (a literal, a scalar, or lanes) and the source of each slot (memory, or
a value). `emit(x)` gives a scalar where x does not vary along the lanes and a vector where it does.

Instructions are hoisted and shared (`hoist`). Nothing that depends on an axis moves above the region in which
the axis was bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from einsmith.base import dtypes as dt
from einsmith.base.errors import CompileError
from einsmith.codegen.loopnest.address import BufferMemory, address
from einsmith.codegen.loopnest.expressions import ExpressionEmitter, Memo
from einsmith.codegen.loopnest.hoist import Hoisting
from einsmith.codegen.loopnest.lanes import (
    between,
    covering,
    pick_lanes,
    place_lanes,
    place_mask,
    take_lanes,
    whole_powers,
)
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.ssa import SSAValue
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.analysis.ranges import leaves, wrapped
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Read, postorder

MAX_WIDE_LOADS = 4
"""Most vectors that a literal lane pattern may span (vectors); beyond it the lanes are gathered or scattered."""


@dataclass(frozen=True, eq=False)
class LanePattern:
    """The position `base + pattern[l]` of an axis in lane l; `base` is a literal or an i64 divisible by `multiple`."""

    base: SSAValue | int
    pattern: tuple[int, ...]
    multiple: int = 1


Position = int | SSAValue | LanePattern
"""The position of an axis: a literal, a scalar i64, lanes with a literal pattern, or a vector of i32 (any lanes)."""


@dataclass(frozen=True, eq=False)
class Split:
    """An integer as `const + sum(coefficient * value) + pattern[l]`: a part shared by all lanes plus a literal pattern.

    `terms` are (coefficient, scalar i64, known divisor of it). `pattern` is None where the lanes agree.
    """

    const: int
    terms: tuple[tuple[int, SSAValue, int], ...] = ()
    pattern: tuple[int, ...] | None = None

    @property
    def first(self) -> int | None:
        """The pattern's first element where its elements are neighbours, 0 where the lanes agree; None elsewhere."""
        if self.pattern is None:
            return 0
        first = self.pattern[0]
        return first if self.pattern == tuple(range(first, first + len(self.pattern))) else None


class VectorEmitter(Hoisting, ExpressionEmitter):
    """An emitter of vector code through a Builder. extents: points of each axis, to prove that reads are in bounds."""

    def __init__(self, b: Builder, extents: Sequence[int], lanes: int = 0):
        super().__init__(b, lanes)
        self.extents = tuple(extents)
        self._facts = Facts(self.extents)
        self.limit: SSAValue | None = None
        """Number of the first points of axis 0 that count in this run (`schedule.kernel.LimitedKernel`); None: all."""
        self.limits: dict[int, SSAValue] = {}
        """Number of the first points that count in this run, by axis; all count of axes without one."""
        self.row_sizes: dict[int, int] = {}
        """Elements of a row, by slot, of memory that may end at the limit: there is no more than the rows below it."""
        self._axes: dict[int, Position] = {}
        self._slots: dict[int, BufferMemory | SSAValue] = {}
        self._overrides: dict[Read, SSAValue] = {}
        self._memo: Memo = {}
        self._scope: tuple = ()
        self._flats: dict[Read, LinearForm] = {}
        self._ranges: dict[Read, tuple[int | None, int | None]] = {}
        self.unsafe = {}

    # -- axes and slots

    def bind(self, axis: int, position: Position) -> None:
        """Set the position of an axis; instructions that depend on it stay inside the region that is open now."""
        self._axes[axis] = position
        base = position.base if isinstance(position, LanePattern) else position
        number = self.b.known(base)  # a literal position within the axis is valid in all regions
        if isinstance(base, SSAValue) and not (number is not None and 0 <= number < self.extents[axis]):
            self.pin(base)
        self._memo.clear()

    def position(self, axis: int) -> Position:
        """Return the position that an axis is bound to."""
        return self._axes[axis]

    def give(self, values: Mapping[Read, SSAValue]) -> None:
        """Set the reads that take a given value in place of a load from their slot; earlier overrides are dropped."""
        self._overrides = dict(values)
        self._memo.clear()

    def place(self, slot: int, source: BufferMemory | SSAValue) -> None:
        """Set the source of a slot: memory that its reads load from, or the value of every read whatever its index."""
        self._slots[slot] = source
        if isinstance(source, SSAValue):
            self.pin(source)
        else:
            self.unsafe.clear()
        self._memo.clear()

    # -- integers

    def split(self, x: Expr | LinearForm, guard: SSAValue | None = None) -> Split | None:
        """Split an integer expression into a shared part and a lane pattern; None where its lanes are not literals."""
        lin = x if isinstance(x, LinearForm) else linear(x)
        const, terms = lin.const, []
        pattern: tuple[int, ...] | None = None
        for atom, c in lin.terms.items():
            part = self._split_atom(atom, guard)
            if part is None:
                return None
            const += c * part.const
            terms += [(c * k, v, m) for k, v, m in part.terms]
            if part.pattern is not None:
                old = pattern or (0,) * self.lanes
                pattern = tuple(a + c * p for a, p in zip(old, part.pattern, strict=True))
        if pattern is not None and len(set(pattern)) == 1:
            const, pattern = const + pattern[0], None
        return Split(const, tuple(terms), pattern)

    def _split_atom(self, atom: Expr, guard: SSAValue | None) -> Split | None:
        if isinstance(atom, Axis):
            at = self._axes[atom.position]
            if isinstance(at, int):
                return Split(at)
            if isinstance(at, LanePattern):
                if isinstance(at.base, int):
                    return Split(at.base, (), at.pattern)
                return Split(0, ((1, at.base, at.multiple),), at.pattern)
            return None if at.type.lanes else Split(0, ((1, at, 1),))
        if isinstance(atom, Apply) and atom.fn in ("floordiv", "mod") and isinstance(atom.args[1], Const):
            d = int(atom.args[1].value)
            inner = self.split(atom.args[0], guard) if d > 0 else None
            if inner is not None:
                out = self._divide(inner, atom.fn, d)
                if out is not None:
                    return out
        if self.may_vary(atom):
            return None
        return Split(0, ((1, self.cast(self.emit(atom, guard), "i64"), 1),))

    def _divide(self, x: Split, fn: str, d: int) -> Split | None:
        """Return `x // d` or `x % d` as a Split; None where the terms' known divisors do not allow it."""
        if any(k * m % d for k, _, m in x.terms):
            if x.pattern is not None:
                return None
            return Split(0, ((1, self.op(fn, self.total(x), d), 1),))
        pattern = None if x.pattern is None else tuple(x.const + p for p in x.pattern)
        if fn == "mod":
            return Split(x.const % d) if pattern is None else Split(0, (), tuple(p % d for p in pattern))
        terms = []
        for k, v, m in x.terms:
            if k % d == 0:
                terms.append((k // d, v, m))
            else:
                terms.append((1, self.op("floordiv", self.op("mul", v, k), d), k * m // d))
        if pattern is None:
            return Split(x.const // d, tuple(terms))
        return Split(0, tuple(terms), tuple(p // d for p in pattern))

    def total(self, x: Split, extra: int = 0) -> SSAValue:
        """Return the shared part of a Split plus `extra` as a scalar i64, summed from the outermost region inwards."""
        merged: dict[int, list] = {}
        for k, v, _ in x.terms:
            merged.setdefault(v.id, [0, v])[0] += k
        out = self.const(0)
        for k, v in sorted(merged.values(), key=lambda t: (self.level(t[1]), t[1].id)):
            out = self.op("add", out, self.op("mul", v, k))
        return self.op("add", out, x.const + extra)

    def emit_uniform(self, x: LinearForm) -> SSAValue:
        """Return the value of an integer that is uniform over the lanes."""
        part = self.split(x)
        assert part is not None and part.pattern is None
        return self.total(part)

    def may_vary(self, x: Expr) -> bool:
        """Return whether the value of x may differ between lanes."""
        for e in postorder([x]):
            if isinstance(e, Axis):
                at = self._axes[e.position]
                if isinstance(at, LanePattern) and any(p != at.pattern[0] for p in at.pattern):
                    return True
                if isinstance(at, SSAValue) and at.type.lanes:
                    return True
            elif isinstance(e, Read):
                source = self._overrides.get(e) or self._slots.get(e.slot)
                if isinstance(source, SSAValue) and source.type.lanes:
                    return True
        return False

    def _integer(self, x: Expr, elem: str) -> SSAValue | None:
        """Return the value of an axis, or of a quotient or remainder of axes; None where its lanes are not literals."""
        if isinstance(x, Axis):
            at = self._axes[x.position]
            if isinstance(at, SSAValue):
                return self.cast(at, elem)
        part = self.split(x)
        if part is None:
            return None
        uniform = self.cast(self.total(part), elem) if part.terms else self.const(part.const, elem)
        if part.pattern is None:
            return uniform
        if not part.terms:
            return self.literal([wrapped(part.const + p, int(elem[1:])) for p in part.pattern], elem)
        return self.op("add", self.splat(uniform), self.literal(part.pattern, elem))

    # -- expressions

    def emit(self, x: Expr, mask: SSAValue | None = None) -> SSAValue:
        """Emit x and return its value. mask: condition (scalar or vector i1) under which its reads may touch memory."""
        scope = (self.b._blocks[-1], self.mask)
        if len(self._scope) != 2 or self._scope[0] is not scope[0] or self._scope[1] is not scope[1]:
            self._memo.clear()
            self._scope = scope
        return self.evaluate(x, mask, self._memo)

    def guard_of(self, x: Expr, guard: SSAValue | None) -> SSAValue | None:
        return guard if guard is not None and self.is_unsafe(x) else None

    def index(self, x: Expr, elem: str) -> SSAValue | None:
        if isinstance(x, Axis):
            return self._integer(x, elem)
        assert isinstance(x, Apply)
        first = x.args[0]
        if x.fn == "cast":
            large = isinstance(first, Axis) and self.extents[first.position] > 2**31  # beyond an axis's type, i32
            return self._integer(first, elem) if large else None
        # `split` decomposes no other quotients.
        divides = isinstance(x.args[1], Const) and int(x.args[1].value) > 0
        return self._integer(x, elem) if divides and not any(isinstance(e, Read) for e in postorder([x])) else None

    # -- memory

    def memory(self, slot: int) -> BufferMemory:
        """Return the memory behind a slot; raise CompileError if the slot is not in memory."""
        source = self._slots.get(slot)
        if not isinstance(source, BufferMemory):
            raise CompileError(f"slot {slot} is not in memory")
        return source

    def flat(self, x: Read) -> LinearForm:
        """Return the offset (elements) of a read's element in its buffer."""
        if x not in self._flats:
            self._flats[x] = address(x.index, self.memory(x.slot).buffer.strides)
        return self._flats[x]

    def _range(self, x: Read) -> tuple[int | None, int | None]:
        if x not in self._ranges:
            self._ranges[x] = self._facts.bounds(self.flat(x).expr())
        return self._ranges[x]

    def needs_guard(self, x: Read) -> bool:
        if not isinstance(self._slots.get(x.slot), BufferMemory):
            return False
        lo, hi = self._range(x)
        return lo is None or hi is None or lo < 0 or hi >= self.memory(x.slot).buffer.size

    def read(self, x: Read, guard: SSAValue | None = None) -> SSAValue:
        """Return the element or vector that x reads; where `guard` fails, any value, and memory is not touched."""
        if x in self._overrides:
            return self._overrides[x]
        source = self._slots[x.slot]
        if isinstance(source, SSAValue):
            return source
        elem = source.elem
        part = self.split(self.flat(x), guard)
        if part is None:
            return self._gather(x, source, elem, guard)
        if part.first is not None:
            lanes = 0 if part.pattern is None else self.lanes
            if guard is not None and guard.type.lanes and not lanes:
                mask = self.lane_mask(guard)
                assert mask is not None
                guard = self.hoist(("any", mask.id), [mask], lambda: self.b.any(mask))
            at, guard = self._limit_load(x, source, self.total(part, part.first), guard, max(lanes, 1))
            return self.load(source.pointer, at, elem, lanes, self.lane_mask(guard) if lanes else guard)
        assert part.pattern is not None
        if not isinstance(self.mask, SSAValue):
            loaded = self._load_wide(x, source, elem, part, guard is not None)
            if loaded is not None:
                return loaded
        ptr = self.address(source.pointer, self.total(part), elem)
        return self.gather(ptr, self._offsets(part.pattern), elem, self.lane_mask(guard))

    def _limit_load(
        self, x: Read, source: BufferMemory, at: SSAValue, guard: SSAValue | None, count: int
    ) -> tuple[SSAValue, SSAValue | None]:
        """Return (offset, guard) for a load of `count` elements by x.

        A scalar guard becomes a select of the offset: where it fails, the buffer's first elements are loaded instead.
        That is cheaper than a data-dependent branch and than a load with an empty mask, which is slow in hardware."""
        if guard is None or guard.type.lanes or self.row_sizes.get(x.slot, source.buffer.size) < count:
            return at, guard
        return self.op("where", guard, at, 0), None

    def _load_wide(self, x: Read, source: BufferMemory, elem: str, part: Split, is_guarded: bool) -> SSAValue | None:
        """Load whole vectors over the span of a literal pattern and shuffle them; None where the span is too long.

        Where a guard keeps lanes in bounds (is_guarded), the loads are limited to the buffer, not by the guard: the
        lanes for which it fails may have any value.

        Before: lanes read p[2*i + 1], i = 0..15. After: two loads of p[0..31] and one shuffle; the loads of p[2*i] and
        p[2*i + 1] are the same, because both begin at a multiple of the stride wherever that is known to be in bounds.
        """
        assert part.pattern is not None
        n = self.lanes
        used = part.pattern[: self.mask] if isinstance(self.mask, int) else part.pattern
        low, high = min(used), max(used)
        first, last = self._range(x)
        room = source.buffer.size - 1 - last if last is not None else -1
        start = part.const + low
        stride = gcd(*(p - low for p in used)) if len(used) > 1 else 1
        lead = start % stride if stride > 1 else 0
        is_below = first is None or first - lead < 0
        if lead and (is_below and not is_guarded or any(k % stride for k, _, _ in part.terms)):
            lead = 0
        starts: Sequence[int] = range(low - lead, high + 1, n)
        if len(starts) > MAX_WIDE_LOADS:
            return None
        # Whether the last load may leave the buffer.
        beyond = room < starts[-1] + n - 1 - high
        if beyond and not is_guarded:
            starts = covering(used, n, low - lead)
        is_short = beyond and not is_guarded and len(starts) == 1
        vectors = []
        for k in starts:
            at = self.total(part, k)
            mask = self._lanes_inside(x, source, at) if is_guarded and (is_below or beyond) else None
            vectors.append(self.load(source.pointer, at, elem, n, self.first_lanes(high + 1 - k) if is_short else mask))
        return pick_lanes(self, vectors, starts, used)

    def _lanes_inside(self, x: Read, source: BufferMemory, at: SSAValue) -> SSAValue | None:
        """Return the mask of the lanes of a vector at an offset that lie inside of the memory that x reads."""
        row, lanes = self.row_sizes.get(x.slot), self.literal(range(self.lanes), "i32")
        size = source.buffer.size if row is None or self.limit is None else self.op("mul", self.limit, row)
        ends = self.op("neg", at), self.op("sub", size, at)
        first, end = (self.op("min", self.op("max", x, 0), self.lanes) for x in ends)
        return between(self, first, lanes, end)

    def _gather(self, x: Read, source: BufferMemory, elem: str, guard: SSAValue | None) -> SSAValue:
        """Gather a read whose lane offsets are known only at run time."""
        index_elem = source.offset_elem
        flat, lanes = self.flat(x), None
        lane_part = LinearForm(0, {atom: c for atom, c in flat.terms.items() if self.may_vary(atom)})
        shared_part = flat - lane_part
        for atom, c in lane_part.terms.items():
            term = self.cast(self.splat(self.emit(atom, guard)), index_elem)
            term = term if c == 1 else self.op("mul", term, self.const(c, index_elem))
            lanes = term if lanes is None else self.op("add", lanes, term)
        part = self.split(shared_part, guard)
        assert part is not None and lanes is not None
        at, ptr = self.total(part), source.pointer
        if index_elem == "i64" or self._fits_int32(lane_part, shared_part, source.buffer.size):
            ptr = self.address(ptr, at, elem)
        else:  # the sum is an offset below the size, so it is exact modulo 2^32
            lanes = self.op("add", lanes, self.splat(self.cast(at, index_elem)))
        return self.gather(ptr, lanes, elem, self.lane_mask(guard))

    def _fits_int32(self, lane_part: LinearForm, shared_part: LinearForm, size: int) -> bool:
        """Return whether the lane part of an offset below `size` is certain to fit int32."""
        low, high = self._facts.interval(shared_part)
        own_interval = self._facts.interval(lane_part)
        least = max((x for x in (own_interval[0], None if high is None else -high) if x is not None), default=None)
        most = min(
            (x for x in (own_interval[1], None if low is None else size - 1 - low) if x is not None), default=None
        )
        return least is not None and most is not None and not leaves((least, most), dt.i32)

    def store(self, value: SSAValue, target: BufferMemory, index: LinearForm, unmasked: bool = False) -> None:
        """Store `value` at offset `index` (elements) of `target`; masked lanes are left alone.

        unmasked: the first lanes of a vector are stored as shorter vectors, without a mask.

        Raises:
            CompileError: the offset has no literal lane pattern, or several lanes would be stored to one element."""
        part = self.split(index)
        if part is None:
            raise CompileError("a result is stored at a position that its axes do not give")
        if part.pattern is None:
            if value.type.lanes:
                raise CompileError("lanes would be stored over each other")
            self.b.store(value, target.pointer, self.total(part))
            return
        value = self.splat(value)
        if part.first is not None:
            mask, at = self.lane_mask(), self.total(part, part.first)
            streams = target.buffer.non_temporal and mask is None and not target.dtype.is_bool
            if streams and self._is_aligned(part, part.first):
                self.b.stream(value, target.pointer, at)
            elif unmasked and mask is not None and isinstance(self.mask, int) and not target.dtype.is_bool:
                self._store_first_lanes(value, self.mask, target, at)
            else:
                self.b.store(value, target.pointer, at, mask)
            return
        if not self._store_ascending(value, target, part):
            ptr = self.address(target.pointer, self.total(part), value.type.elem)
            self.b.scatter(value, ptr, self._offsets(part.pattern), self.lane_mask())

    def _store_first_lanes(self, value: SSAValue, count: int, target: BufferMemory, at: SSAValue) -> None:
        """Store the first `count` lanes as vectors of whole powers of two."""
        for first, n in whole_powers([True] * count):
            self.b.store(take_lanes(self, value, first, n), target.pointer, self.b.add(at, first))

    def _store_ascending(self, value: SSAValue, target: BufferMemory, part: Split) -> bool:
        """Store an ascending lane pattern by shuffles and masked stores of whole vectors over its span.

        Returns False, and stores nothing, where the span is too long or the pattern does not ascend.

        Before: lanes are stored to p[2*i], i = 0..15. After: the even lanes of two vectors, stored at p and p + 16.
        """
        assert part.pattern is not None
        n = self.lanes
        used = part.pattern[: self.mask] if isinstance(self.mask, int) else part.pattern
        low = used[0]
        if used[-1] - low >= MAX_WIDE_LOADS * n or any(b <= a for a, b in zip(used, used[1:], strict=False)):
            return False
        for k in range(low, used[-1] + 1, n):
            mask = place_mask(self, self.mask if isinstance(self.mask, SSAValue) else None, n, k, used)
            values = place_lanes(self, value, None, k, used)
            self.b.store(values, target.pointer, self.total(part, k), mask)
        return True

    def _offsets(self, pattern: Sequence[int]) -> SSAValue:
        return self.literal(pattern, "i64" if any(leaves((p, p), dt.i32) for p in pattern) else "i32")

    def _is_aligned(self, part: Split, extra: int) -> bool:
        """Return whether an offset is known to be a multiple of the vector length."""
        return (part.const + extra) % self.lanes == 0 and all(k * m % self.lanes == 0 for k, _, m in part.terms)
