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
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Read, apply, postorder
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


class Points:
    """An evaluator of expressions at points.

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
        self._reaches = Reaches(domain)
        self._known: dict[tuple[Expr, tuple[Expr, ...]], SSAValue] = {}
        self._reads_memory: dict[Expr, bool] = {}

    def values(self, roots: Iterable[Expr], guards: Sequence[Expr] = ()) -> list[SSAValue]:
        """Return the values of expressions where all `guards` hold; in other lanes they are undefined. A read under a
        condition loads only where the condition holds."""
        roots = list(roots)
        for e in postorder([*roots, *guards], self._reads_memory):
            self._reads_memory[e] = isinstance(e, Read) or any(self._reads_memory[a] for a in e.args)
        for _ in self._reaches.add([*roots, *guards]):  # determines which integers may be negative
            pass
        keys = [self._key(e, tuple(guards)) for e in roots]
        stack = list(keys)
        while stack:
            key = stack[-1]
            below = [] if key in self._known else [k for k in self._operand_keys(*key) if k not in self._known]
            stack += below
            if not below:
                stack.pop()
                if key not in self._known:
                    self._known[key] = self._value(*key)
        return [self._known[k] for k in keys]

    def value(self, e: Expr, guards: Sequence[Expr] = ()) -> SSAValue:
        """Evaluate an expression at the points where guards hold."""
        return self.values([e], guards)[0]

    def conditions(self, guards: Sequence[Expr]) -> list[SSAValue]:
        """Return the conditions, each evaluated where the preceding ones hold."""
        return [self.value(g, tuple(guards[:n])) for n, g in enumerate(guards)]

    def _key(self, e: Expr, guards: tuple[Expr, ...]) -> tuple[Expr, tuple[Expr, ...]]:
        """Return the key of an expression's value: an expression that reads nothing has one value under all
        conditions."""
        return (e, tuple(dict.fromkeys(guards))) if self._reads_memory[e] else (e, ())

    def _operand_keys(self, e: Expr, guards: tuple[Expr, ...]) -> list[tuple[Expr, tuple[Expr, ...]]]:
        """Return the keys of an expression's arguments, and of the conditions of its read."""
        if isinstance(e, Apply) and e.fn == "where":
            c, x, y = e.args
            negated = apply("not", c)
            self._reads_memory[negated] = self._reads_memory[c]
            return [self._key(c, guards), self._key(x, (*guards, c)), self._key(y, (*guards, negated))]
        out = [self._key(a, guards) for a in (e.args[:1] if _is_twin(e) else e.args)]
        if isinstance(e, Read) and isinstance(self.slots[e.slot], TileMemory):
            out += [self._key(g, guards[:n]) for n, g in enumerate(guards)]
        return out

    def _value(self, e: Expr, guards: tuple[Expr, ...]) -> SSAValue:
        b = self.b
        if isinstance(e, Const):
            return b.const(e.value, elem_of(e.dtype))
        if isinstance(e, Axis):
            return self.axes[e.position]
        args = [self._known[k] for k in self._operand_keys(e, guards)]
        if isinstance(e, Read):
            return self._read(e, args[: len(e.index)], args[len(e.index) :])
        if e.fn == "where":
            return b.select(*args)
        if e.fn == "cast":
            source = e.args[0].dtype
            if isinstance(e.args[0], Axis) and e.dtype is dt.i64:
                return b.cast(args[0], "i64")
            return arith.convert(b, self._narrow(e.args[0], args[0]), source, e.dtype)
        args = [self._narrow(a, x) for a, x in zip(e.args, args, strict=False)]
        if e.fn in ("floordiv", "mod") and e.dtype.is_int:
            reach = self._reaches.known[e.args[0]]
            return arith.division(b, e.fn, args[0], args[1], is_nonnegative=reach is not None and reach[0] >= 0)
        return arith.apply(b, e.fn, *args)

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


def _is_twin(e: Expr) -> bool:
    return isinstance(e, Apply) and e.fn == "differentiate_as"
