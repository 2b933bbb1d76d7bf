"""Where parameters and state live: the memory that programs read and update, and the tensor that people see.

Programs have the elements in a layout of their own (`physical`); whoever reads or sets values sees the tensor in its
own shape (`logical`). Without a layout both are one array, at no cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from einsmith.errors import ShapeError
from einsmith.expr.nodes import Graph, Leaf, leaf
from einsmith.expr.rewrite.rebuild import replace
from einsmith.lang.builder import Value
from einsmith.runtime import buffers


class Layout(Protocol):
    """How memory holds a tensor. Both functions take NumPy arrays, for people, and traced tensors, for programs."""

    def physical(self, x: Any) -> Any:
        """What memory holds of a tensor: its elements in another order, others between them."""
        ...

    def logical(self, x: Any, shape: tuple[int, ...]) -> Any:
        """The tensor of that shape which such memory holds; of an array a view, where there is one."""
        ...


class Memory:
    """The elements of a tensor at a fixed address, C-contiguous, aligned to 64 bytes. Not initialised.

    Raises ShapeError where a layout does not give the tensor back.
    """

    __slots__ = ("physical", "layout", "shape", "__weakref__")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, layout: Layout | None = None):
        self.shape, self.layout = shape, layout
        stored = shape
        if layout is not None:
            sample = layout.physical(np.zeros(shape, dtype))
            found = layout.logical(sample, shape).shape
            if found != shape:
                raise ShapeError(f"the layout {layout!r} makes a tensor of shape {found} of one of shape {shape}")
            stored = sample.shape
        self.physical = buffers.empty(stored, dtype)

    @property
    def dtype(self) -> np.dtype:
        return self.physical.dtype

    def logical(self) -> np.ndarray:
        """The tensor: the memory itself or a view of it, through which it is changed in place. Where a layout has no
        view it is a copy, which cannot be written to; `store` sets the values."""
        if self.layout is None:
            return self.physical
        found = self.layout.logical(self.physical, self.shape)
        if not np.may_share_memory(found, self.physical):
            found.flags.writeable = False
        return found

    def store(self, values: Any) -> None:
        """Sets the elements to those of an array that has the tensor's shape, or is broadcast to it."""
        if self.layout is not None:
            whole = np.empty(self.shape, self.dtype)
            whole[...] = values
            values = self.layout.physical(whole)
        self.physical[...] = values

    def moved(self, dtype: np.dtype, layout: Layout | None) -> Memory:
        """New memory with the same elements."""
        new = Memory(self.shape, dtype, layout)
        new.store(self.logical())
        return new


def in_memory(graph: Graph, memories: Mapping[Leaf, Memory]) -> tuple[Graph, dict[Leaf, Leaf]]:
    """The graph with leaves for what memories hold in the place of those for their tensors, and which leaf that is for
    each: the tensors are read through their layouts, and updates are stored through them."""
    leaves = {x: leaf(m.physical.shape, x.dtype) if m.layout is not None else x for x, m in memories.items()}
    other = {x: m.layout for x, m in memories.items() if m.layout is not None}
    if not other:
        return graph, leaves
    read = {x: layout.logical(Value(leaves[x]), x.shape).tensor for x, layout in other.items()}
    new = replace(graph, read.get)
    updates = tuple(
        (leaves.get(x, x), other[x].physical(Value(t)).tensor if x in other else t) for x, t in new.updates
    )
    inputs = tuple(leaves.get(x, x) for x in new.inputs)
    return Graph(inputs, new.outputs, updates, new.checks, new.gradients), leaves
