"""A kernel: stages that share one output box. What fusion makes and patterns lower."""

from __future__ import annotations

from math import prod

from einsmith.dtypes import DType
from einsmith.expr.interned import Node
from einsmith.expr.nodes import Template


class Buffer(Node):
    """An argument of a kernel: row-major elements of `dtype` in `shape`. `far`: it is only written, begins on a cache
    line, and is too large to be found in a cache afterwards, so that stores may go past the caches. `short`: the kernel
    may be given a pointer into a tensor, from where so many of the last elements of the shape lie behind its end."""

    __slots__ = ("dtype", "shape", "far", "short")
    fields = ("dtype", "shape", "far", "short")
    exact = True
    dtype: DType
    shape: tuple[int, ...]
    far: bool
    short: int

    def __new__(cls, dtype: DType, shape: tuple[int, ...], far: bool = False, short: int = 0):
        return super().__new__(cls, dtype, shape, bool(far), short)

    @property
    def size(self) -> int:
        """Elements from the pointer to the end."""
        return prod(self.shape) - self.short


class Stage(Node):
    """One template of a kernel.

    `args[slot]` is ("buffer", n) for the kernel's buffer n, or ("stage", i, member) for a result of an earlier stage,
    which is read at the identity index only. `outputs[member]` is the buffer that the result is stored to, or None.
    """

    __slots__ = ("template", "args", "outputs")
    fields = ("template", "args", "outputs")
    exact = True
    template: Template
    args: tuple[tuple, ...]
    outputs: tuple[int | None, ...]


class Kernel(Node):
    """Stage 0, the root, is any template; the later stages (the epilogue) are pointwise templates of one piece over the
    root's output shape, that see the root and each other at the identity index, and buffers at any index.

    A written buffer may be the same memory as a read one only where every read of the latter is at the identity index;
    a read comes before the write of the same element. Where they are one buffer, the root is a scatter whose initial
    value reads it there.

    `fixed`: the kernel is a step of a loop, many runs in a row, and these buffers hold the same elements in all of
    them, so that what is made of them alone can be made once. None: it is no step of a loop.
    """

    __slots__ = ("stages", "buffers", "fixed")
    fields = ("stages", "buffers", "fixed")
    exact = True
    stages: tuple[Stage, ...]
    buffers: tuple[Buffer, ...]
    fixed: tuple[int, ...] | None

    def __new__(
        cls, stages: tuple[Stage, ...], buffers: tuple[Buffer, ...], fixed: tuple[int, ...] | None = None
    ) -> Kernel:
        return super().__new__(cls, stages, buffers, fixed)

    @property
    def root(self) -> Template:
        return self.stages[0].template

    @property
    def shape(self) -> tuple[int, ...]:
        return self.root.shape


class Member(Node):
    """A kernel of a Rows, in row form: one axis of some buffers is the row, and such buffers are read and written in
    the row at which the kernel stands only.

    `places[n]` is the buffer of the Rows that buffer n of the kernel is; the numbers after those of `Rows.buffers` are
    the `local` ones. `by_row[n]`: 1 + the axis of buffer n that is the row, 0 where none is. The row is axis `axis` of
    the output, or, if `reduces`, the root's first reduction axis; then the stages after the root see all rows, and no
    other member reads the result.
    """

    __slots__ = ("kernel", "places", "by_row", "reduces", "axis")
    fields = ("kernel", "places", "by_row", "reduces", "axis")
    exact = True
    kernel: Kernel
    places: tuple[int, ...]
    by_row: tuple[int, ...]
    reduces: bool
    axis: int

    def __new__(
        cls, kernel: Kernel, places: tuple[int, ...], by_row: tuple[int, ...], reduces: bool, axis: int = 0
    ) -> Member:
        return super().__new__(cls, kernel, places, by_row, bool(reduces), axis)


class Rows(Node):
    """Kernels that share their rows: within a row, each may read what the ones before it have made. Run block of rows
    by block of rows, they go through memory once, and what is `local` to a row is never stored beyond its block.

    before: m[i] = max[k](x[i,k]);  s[i] = sum[k](exp(x[i,k] - m[i]));  y[i,k] = exp(x[i,k] - m[i])/s[i]
    after:  for each block of i: these three
    """

    __slots__ = ("rows", "members", "buffers", "local")
    fields = ("rows", "members", "buffers", "local")
    exact = True
    rows: int
    members: tuple[Member, ...]
    buffers: tuple[Buffer, ...]
    local: tuple[Buffer, ...]

    @property
    def root(self) -> Template:
        return self.members[0].kernel.root

    @property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(s for m in self.members for s in m.kernel.stages)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.members[-1].kernel.shape
