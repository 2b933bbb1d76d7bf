"""Evaluate expressions of templates at the points of a tile.

Each axis is a tile of numbers, along one of its dimensions or constant, and a read is a load of the elements at
computed offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.codegen.ssa import SSAValue, elem_of
from einsmith.gpu.tiles import arith
from einsmith.gpu.tiles.ir import TileBuilder, TileParameter, memory_elem
from einsmith.ir.analysis.widths import Reaches
from einsmith.ir.expression_walk import GuardedWalk
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Read
from einsmith.schedule.kernel import KernelBuffer

MOST_I32_POINTS = 1 << 30
"""Most elements and points that are numbered in i32: the numbers of lanes behind the last point must not wrap
either."""


class TileMemory(NamedTuple):
    """The memory of a buffer: a kernel's buffer, or the workspace from byte `offset` on."""

    layout: KernelBuffer
    buffer: int | None
    offset: int = 0

    def parameter(self, b: TileBuilder) -> int:
        """Return the number of the function's parameter that points to the memory."""
        elem = memory_elem(elem_of(self.layout.dtype))
        return b.parameter(TileParameter(elem, self.layout.size, self.buffer, self.offset))

    def offsets(self, b: TileBuilder, index: Sequence[SSAValue]) -> SSAValue:
        """Return the offsets of the elements at an index."""
        elem = "i64" if self.layout.size > MOST_I32_POINTS else "i32"
        out = b.const(0, elem)
        for i, stride in zip(index, self.layout.strides, strict=True):
            out = b.op("add", out, b.op("mul", b.cast(i, elem), stride))
        return out

    def store(self, b: TileBuilder, index: Sequence[SSAValue], value: SSAValue, live: Iterable[SSAValue] = ()) -> None:
        """Store a tile's lanes at an index, where all of `live` hold."""
        if value.elem == "i1":
            value = b.select(value, b.const(1, "i8"), b.const(0, "i8"))
        b.store(self.parameter(b), self.offsets(b, index), value, b.conjoin(list(live)))

    def load(self, b: TileBuilder, index: Sequence[SSAValue], live: Iterable[SSAValue] = ()) -> SSAValue:
        """Load the elements at an index, where all of `live` hold."""
        return b.load(self.parameter(b), self.offsets(b, index), b.conjoin(list(live)))


Slot = TileMemory | SSAValue
"""A template's argument: memory, or the result of an earlier stage at the points that are evaluated."""


def number_lanes(b: TileBuilder, lane: SSAValue, first: SSAValue, count: int) -> SSAValue:
    """Return first + lane, in a type that can number `count` points."""
    elem = "i64" if count > MOST_I32_POINTS else "i32"
    return b.op("add", b.cast(first, elem), b.cast(lane, elem))


def unravel(b: TileBuilder, number: SSAValue, extents: Sequence[int]) -> tuple[SSAValue, ...]:
    """Return the axes of a box of `extents` at points that are numbered in row-major order."""
    out: list[SSAValue] = []
    for d, n in reversed(list(enumerate(extents))):
        last = d == 0 or prod(extents[:d]) == 1
        at = number if last else b.op("rem", number, n)
        number = b.const(0, number.elem) if last else b.op("quot", number, n)
        out.append(b.const(0) if n == 1 else at if n > MOST_I32_POINTS else b.cast(at, "i32"))
    return tuple(reversed(out))


def expand(b: TileBuilder, axes: Iterable[SSAValue], axis: int) -> list[SSAValue]:
    """Insert a dimension of extent 1 into tiles."""
    return [b.expand(x, axis) for x in axes]


class Points(GuardedWalk[SSAValue, tuple[SSAValue, ...]]):
    """An evaluator of expressions at points. A guard is a tuple of conditions, each a tile as small as it can be.

    Args:
        domain: the extents of all axes
        axes: the values of a piece's axes
        live: conditions that hold at points and fail in other lanes, each as small as it can be (of rows, of columns)
        slots: the template's arguments
    """

    def __init__(
        self,
        b: TileBuilder,
        domain: Sequence[int],
        axes: Mapping[int, SSAValue],
        live: Sequence[SSAValue],
        slots: Sequence[Slot],
    ):
        self.b, self.axes, self.live, self.slots = b, axes, list(live), slots
        self.unsafe = {}
        self._reaches = Reaches(domain)
        self._known: dict[tuple[Expr, tuple[SSAValue, ...]], SSAValue] = {}

    def values(self, roots: Iterable[Expr], guards: Sequence[Expr] = ()) -> list[SSAValue]:
        """Return the values of expressions where all `guards` hold; in other lanes they are undefined. A read under a
        condition loads only where the condition holds."""
        roots, conditions = list(roots), tuple(self.conditions(guards))
        for _ in self._reaches.add(roots):  # determines which integers may be negative
            pass
        return [self.evaluate(e, conditions, self._known) for e in roots]

    def value(self, e: Expr, guards: Sequence[Expr] = ()) -> SSAValue:
        """Evaluate an expression at the points where guards hold."""
        return self.values([e], guards)[0]

    def conditions(self, guards: Sequence[Expr]) -> list[SSAValue]:
        """Return the conditions, each evaluated where the preceding ones hold."""
        out: list[SSAValue] = []
        for g in guards:
            for _ in self._reaches.add([g]):
                pass
            out.append(self.evaluate(g, tuple(out), self._known))
        return out

    def needs_guard(self, x: Read) -> bool:
        return isinstance(self.slots[x.slot], TileMemory)

    def guard_of(self, x: Expr, guard: tuple[SSAValue, ...]) -> tuple[SSAValue, ...]:
        return guard if guard and self.is_unsafe(x) else ()

    def narrow(self, guard: tuple[SSAValue, ...], condition: SSAValue, holds: bool) -> tuple[SSAValue, ...]:
        return tuple(dict.fromkeys((*guard, condition if holds else arith.apply(self.b, "not", condition))))

    def select(self, condition: SSAValue, yes: SSAValue, no: SSAValue) -> SSAValue:
        return self.b.select(condition, yes, no)

    def leaf(self, x: Expr, guard: tuple[SSAValue, ...]) -> SSAValue | None:
        if isinstance(x, Const):
            return self.b.const(x.value, elem_of(x.dtype))
        return self.axes[x.position] if isinstance(x, Axis) else None

    def combine(self, x: Expr, operands: Sequence[SSAValue], guard: tuple[SSAValue, ...]) -> SSAValue:
        b = self.b
        if isinstance(x, Read):
            return self._read(x, operands, guard)
        assert isinstance(x, Apply)
        if x.fn == "cast":
            source = x.args[0].dtype
            if isinstance(x.args[0], Axis) and x.dtype is dt.i64:
                return b.cast(operands[0], "i64")
            return arith.convert(b, self._narrow(x.args[0], operands[0]), source, x.dtype)
        args = [self._narrow(a, v) for a, v in zip(x.args, operands, strict=False)]
        if x.fn in ("floordiv", "mod") and x.dtype.is_int:
            reach = self._reaches.known[x.args[0]]
            return arith.division(b, x.fn, args[0], args[1], is_nonnegative=reach is not None and reach[0] >= 0)
        return arith.apply(b, x.fn, *args)

    def _narrow(self, e: Expr, x: SSAValue) -> SSAValue:
        """Return an axis's value as i32 for arithmetic; only as an index by itself may an axis be an i64."""
        return self.b.cast(x, "i32") if isinstance(e, Axis) else x

    def _read(self, e: Read, index: Sequence[SSAValue], guards: Sequence[SSAValue]) -> SSAValue:
        b, slot = self.b, self.slots[e.slot]
        if isinstance(slot, SSAValue):
            return slot
        at = slot.offsets(b, index)
        if self._is_inside(e, slot):
            # A condition along another dimension of the tile would have each element loaded many times.
            guards = [x for x in guards if _dimensions(x) <= _dimensions(at)]
        wide = set().union(*map(_dimensions, (at, *guards)))
        here = [x for x in self.live if _dimensions(x) <= wide]
        out = b.load(slot.parameter(b), at, b.conjoin([*here, *guards]))
        return b.op("ne", out, b.const(0, "i8")) if e.dtype.is_bool else out

    def _is_inside(self, e: Read, memory: TileMemory) -> bool:
        """Return whether a read is in bounds at all points, whatever its conditions."""
        ranges = [self._reaches.known[i] for i in e.index]
        return all(r is not None and 0 <= r[0] and r[1] < n for r, n in zip(ranges, memory.layout.shape, strict=True))


def _dimensions(x: SSAValue) -> set[int]:
    """Return the dimensions along which a tile has several elements."""
    return {d for d, n in enumerate(x.shape) if n > 1}
