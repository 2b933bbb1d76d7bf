"""Hoist loop-invariant instructions out of loops, and share equal ones.

Every instruction is placed in the outermost open region where its arguments exist, and equal instructions are emitted
once per region.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from einsmith.codegen.loopnest.nest import PTR, Builder
from einsmith.codegen.ssa import SharedResult, SSAValue


class Hoisting:
    """A wrapper of a Builder that hoists and shares instructions.

    b: the builder. lanes: the vector length (0 for scalar code). mask: the active lanes: None (all), an int n (the
    first n), or an i1 vector; inactive lanes touch no memory.
    """

    def __init__(self, b: Builder, lanes: int = 0):
        self.b, self.lanes = b, lanes
        self.mask: int | SSAValue | None = None
        self._levels: dict[int, int] = {v.id: 0 for v in (*b.buffers, b.scratch_base, b.task)}
        self._hoisted: dict[Hashable, SharedResult] = {}

    def pin(self, v: SSAValue) -> None:
        """Pin v: instructions that depend on it stay inside the region that is open now."""
        self._levels[v.id] = self.b.depth

    def level(self, v: SSAValue) -> int:
        """Return the depth of the outermost open region in which v is available (0: the function's top)."""
        return min(self._levels.setdefault(v.id, 0 if self.b.known(v) is not None else self.b.depth), self.b.depth)

    def hoist(self, key: tuple, args: Sequence[SSAValue | None], make: Callable[[], SSAValue]) -> SSAValue:
        """Return the value of `make()`, emitted once per `key` into the outermost region where `args` exist."""
        shared = self.b.find_shared(self._hoisted, key)
        if shared is not None:
            return shared
        depth = max((self.level(a) for a in args if a is not None), default=0)
        with self.b.at(depth):
            out = make()
        self._levels[out.id] = max(self._levels.get(out.id, 0), depth)  # it may be a shared constant
        self.b.share(self._hoisted, key, out, depth)
        return out

    def const(self, value: float | int | bool, elem: str = "i64", lanes: int = 0) -> SSAValue:
        """Emit a constant, which is available in every region."""
        out = self.b.const(value, elem, lanes)
        self._levels.setdefault(out.id, 0)
        return out

    def splat(self, x: SSAValue) -> SSAValue:
        """Return a vector of x in every lane (x itself where it is a vector, or where there are no lanes)."""
        if x.type.lanes or not self.lanes:
            return x
        return self.hoist(("splat", x.id), [x], lambda: self.b.splat(x, self.lanes))

    def op(self, fn: str, *args: SSAValue | int) -> SSAValue:
        """Emit `Builder.op`, hoisted and shared; scalars are splatted where they meet vectors."""
        values = [self.const(a) if isinstance(a, int) else a for a in args]
        if any(a.type.lanes for a in values):
            values = [self.splat(a) for a in values]
        return self.hoist((fn, *(a.id for a in values)), values, lambda: self.b.op(fn, *values))

    def cast(self, x: SSAValue, elem: str) -> SSAValue:
        """Emit a conversion in the outermost region that has its operand."""
        if x.type.elem == elem:
            return x
        return self.hoist(("cast", x.id, elem), [x], lambda: self.b.cast(x, elem))

    def shuffle(self, a: SSAValue, c: SSAValue, lanes: Sequence[int]) -> SSAValue:
        """Emit a choice of lanes of two vectors in the outermost region that has both."""
        return self.hoist(("shuffle", a.id, c.id, tuple(lanes)), [a, c], lambda: self.b.shuffle(a, c, lanes))

    def extract(self, x: SSAValue, lane: int) -> SSAValue:
        """Emit one lane of a vector as a scalar."""
        return self.b.extract(x, lane)

    def literal(self, values: Sequence[float | int | bool], elem: str) -> SSAValue:
        """Return a vector of literals."""
        out = self.b.literal(values, elem) if len(set(values)) > 1 else self.b.const(values[0], elem, len(values))
        self._levels[out.id] = 0
        return out

    def first_lanes(self, n: int) -> SSAValue:
        """Return the i1 vector whose first n lanes hold."""
        return self.op("lt", self.literal(range(self.lanes), "i32"), self.const(n, "i32", self.lanes))

    def lane_mask(self, guard: SSAValue | None = None) -> SSAValue | None:
        """Return the i1 vector of the active lanes for which `guard` holds; None: all lanes."""
        active = self.mask
        if isinstance(active, int):
            active = None if active >= self.lanes else self.first_lanes(active)
        if guard is None:
            return active
        guard = self.splat(guard)
        return guard if active is None else self.op("and", active, guard)

    def load(
        self, ptr: SSAValue, offset: SSAValue, elem: str, lanes: int = 0, mask: SSAValue | None = None
    ) -> SSAValue:
        """Emit `Builder.load`, hoisted and shared.

        That is safe because a launch does not write memory that it reads at other positions."""
        key = ("load", ptr.id, offset.id, elem, lanes, None if mask is None else mask.id)
        return self.hoist(key, [ptr, offset, mask], lambda: self.b.load(ptr, offset, elem, lanes, mask))

    def address(self, ptr: SSAValue, offset: SSAValue, elem: str) -> SSAValue:
        """Emit the address `offset` elements after `ptr` in the outermost region that has both."""
        out = self.hoist(("address", ptr.id, offset.id, elem), [ptr, offset], lambda: self.b.address(ptr, offset, elem))
        assert out.type == PTR
        return out

    def gather(self, ptr: SSAValue, offsets: SSAValue, elem: str, mask: SSAValue | None) -> SSAValue:
        """Emit a load of one element per lane in the outermost region that has the operands."""
        key = ("gather", ptr.id, offsets.id, elem, None if mask is None else mask.id)
        return self.hoist(key, [ptr, offsets, mask], lambda: self.b.gather(ptr, offsets, elem, mask))
