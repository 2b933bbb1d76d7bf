"""A kernel: stages that share one output box. What fusion makes and patterns lower."""

from __future__ import annotations

from einsmith.dtypes import DType
from einsmith.expr.nodes import Node, Template


class Buffer(Node):
    """An argument of a kernel: row-major elements of `dtype` in `shape`."""

    __slots__ = ("dtype", "shape")
    fields = ("dtype", "shape")
    dtype: DType
    shape: tuple[int, ...]


class Stage(Node):
    """One template of a kernel.

    `args[slot]` is ("buffer", n) for the kernel's buffer n, or ("stage", i, member) for a result of an earlier stage,
    which is read at the identity index only. `outputs[member]` is the buffer that the result is stored to, or None.
    """

    __slots__ = ("template", "args", "outputs")
    fields = ("template", "args", "outputs")
    template: Template
    args: tuple[tuple, ...]
    outputs: tuple[int | None, ...]


class Kernel(Node):
    """Stage 0, the root, is any template; the later stages (the epilogue) are pointwise templates of one piece over the
    root's output shape, that see the root and each other at the identity index, and buffers at any index.

    A written buffer may be the same memory as a read one only where every read of the latter is at the identity index;
    a read comes before the write of the same element.
    """

    __slots__ = ("stages", "buffers")
    fields = ("stages", "buffers")
    stages: tuple[Stage, ...]
    buffers: tuple[Buffer, ...]

    @property
    def root(self) -> Template:
        return self.stages[0].template

    @property
    def shape(self) -> tuple[int, ...]:
        return self.root.shape
