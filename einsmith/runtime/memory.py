"""Where parameters and state live: the memory that programs read and update, and the tensor that people see.

Programs have the elements in a layout of their own (`physical`); whoever reads or sets values sees the tensor in its
own shape (`logical`). Without a layout both are one array, at no cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.random import default_rng

from einsmith import locks
from einsmith.dtypes import DType
from einsmith.errors import DtypeError, KindError, ShapeError
from einsmith.expr.nodes import Graph, Leaf, Tensor, leaf
from einsmith.expr.rewrite.rebuild import replace
from einsmith.lang.builder import Value
from einsmith.runtime import buffers, nested


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

    guard: the lock that whoever reads or changes the elements holds, beside all else that programs use with them.
    Raises ShapeError where a layout does not give the tensor back, DtypeError where it changes the elements' type.
    """

    __slots__ = ("physical", "layout", "shape", "guard", "__weakref__")

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype, layout: Layout | None = None, guard: locks.Guard | None = None
    ):
        self.shape, self.layout = shape, layout
        self.guard = guard or locks.Guard()
        stored = shape
        if layout is not None:
            stored = _checked(layout, shape, dtype)
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
        """Sets the elements to those of an array that has the tensor's shape, or is broadcast to it.

        Raises EinsmithError in the middle of a run of the same thread that uses them.
        """
        if self.layout is not None:
            whole = np.empty(self.shape, self.dtype)
            whole[...] = values
            values = self.layout.physical(whole)
        with self.guard:
            nested.check_store(self.guard)
            self.physical[...] = values

    def copy(self) -> np.ndarray:
        """Return the tensor as an array of its own, whose values are of one moment."""
        with self.guard:
            return self.logical().copy()

    def moved(self, dtype: np.dtype, layout: Layout | None) -> Memory:
        """New memory with the same elements, under the same guard, which the caller holds."""
        new = Memory(self.shape, dtype, layout, self.guard)
        new.store(self.logical())
        return new


def _checked(layout: Layout, shape: tuple[int, ...], dtype: np.dtype) -> tuple[int, ...]:
    """The shape of the memory of a layout that holds a tensor of this shape, and gives it back."""
    if not hasattr(layout, "physical") or not hasattr(layout, "logical"):
        raise KindError(f"layout={layout!r} is no layout, which has `physical` and `logical`")
    sample = default_rng(0).integers(0, 100, shape).astype(dtype)
    try:
        there = np.asarray(layout.physical(sample))
        back = np.asarray(layout.logical(there, shape))
    except (ValueError, IndexError, TypeError) as e:
        raise ShapeError(f"the layout {layout!r} does not take a tensor of shape {shape}: {e}") from e
    if there.dtype != dtype or back.dtype != dtype:
        raise DtypeError(f"the layout {layout!r} holds {dtype} as {there.dtype} and gives it back as {back.dtype}")
    if back.shape != shape:
        raise ShapeError(f"the layout {layout!r} makes a tensor of shape {back.shape} of one of shape {shape}")
    if not np.array_equal(back, sample):
        raise ShapeError(f"the layout {layout!r} gives the elements of a tensor of shape {shape} back in other places")
    return there.shape


def _fits(layout: Layout, name: str, found: Value, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """The tensor that a layout's function makes in a program, which is what it makes of arrays."""
    if found.shape != shape or found.dtype is not dtype:
        raise ShapeError(
            f"`{name}` of the layout {layout!r} makes {found.dtype.name}{list(found.shape)} in a program, and "
            f"{dtype.name}{list(shape)} of arrays: both must be the same"
        )
    return found.tensor


def in_memory(graph: Graph, memories: Mapping[Leaf, Memory]) -> tuple[Graph, dict[Leaf, Leaf]]:
    """The graph with leaves for what memories hold in the place of those for their tensors, and which leaf that is for
    each: the tensors are read through their layouts, and updates are stored through them."""
    leaves = {x: leaf(m.physical.shape, x.dtype) if m.layout is not None else x for x, m in memories.items()}
    other = {x: m.layout for x, m in memories.items() if m.layout is not None}
    if not other:
        return graph, leaves

    def logical(x: Leaf) -> Tensor:
        return _fits(other[x], "logical", other[x].logical(Value(leaves[x]), x.shape), x.shape, x.dtype)

    def physical(x: Leaf, t: Tensor) -> Tensor:
        return _fits(other[x], "physical", other[x].physical(Value(t)), leaves[x].shape, x.dtype)

    new = replace(graph, {x: logical(x) for x in other}.get)
    updates = tuple((leaves.get(x, x), physical(x, t) if x in other else t) for x, t in new.updates)
    inputs = tuple(leaves.get(x, x) for x in new.inputs)
    return Graph(inputs, new.outputs, updates, new.checks, new.gradients), leaves
