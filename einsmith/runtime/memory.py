"""Hold parameters and state: the memory that programs read and update, and the tensor that users see.

Programs have the elements in a layout of their own (`physical`); users read and set the tensor in its own shape
(`logical`). Without a layout both are one array, at no cost.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.random import default_rng

from einsmith.base import locks
from einsmith.base.dtypes import DType
from einsmith.base.errors import DtypeError, KindError, ShapeError
from einsmith.ir.nodes import Graph, Leaf, Tensor, leaf
from einsmith.ir.rebuild import replace
from einsmith.runtime import buffers, nested
from einsmith.tracing.builder import Value


class Layout(Protocol):
    """The order in which memory holds a tensor's elements. Both functions take NumPy arrays, for users, and traced
    tensors, for programs."""

    def physical(self, x: Any) -> Any:
        """Return a tensor in the form that memory holds: its elements in another order, with padding between them."""
        ...

    def logical(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Return the tensor of `shape` that memory in this layout holds; for an array a view, where there is one."""
        ...


@dataclass(frozen=True)
class DimensionOrder:
    """The layout that holds a tensor's dimensions in another order, as (1, 0) for a transposed matrix.

    Training steps choose it for parameters that their kernels read faster in this order. As long as nobody asks for the
    array itself (`Parameter.data`): then the memory is row-major again, for good."""

    order: tuple[Any, ...]

    def physical(self, x: Any) -> Any:
        """Return a tensor as it lies in memory."""
        return x.transpose(self.order)

    def logical(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Return a tensor of a shape as users see it, of one as it lies in memory."""
        return x.transpose(tuple(self.order.index(d) for d in range(len(self.order))))


class Clock:
    """The times at which memory may have changed. Each is a number that never occurs again, so that two threads that
    tell of changes at once are not taken for one.

    changed: the last time at which a program stored into memory, or any memory was set or given to users; stored: the
    last time at which something was stored into parameters or state that does not know of their `Memory`; times: new
    times
    """

    changed = stored = 0
    times = count(1)

    @classmethod
    def note(cls) -> int:
        """Note a change, after it has happened, and return its time."""
        time = cls.changed = next(cls.times)
        return time

    @classmethod
    def note_store(cls) -> None:
        """Note that something was stored into parameters or state, whichever they are."""
        cls.stored = cls.changed = next(cls.times)


class ChangeWatch:
    """What tells whether memory may have changed: `time()` is another number after each such change.

    That is so where a program of this process may have stored there, where the memory was set, and as long as somebody
    else has an array of its elements, which may be changed without a word.
    """

    def __init__(self, memories: Iterable[Memory]):
        self._memories = tuple(memories)
        self._seen, self._time = -1, 0
        self._versions: tuple[int, ...] = ()
        self._shared: list[Memory] = []

    def time(self) -> int:
        """Return a number that differs from the one before if the memory may have changed since."""
        now = Clock.changed
        if now != self._seen or self._shared:
            versions = (Clock.stored, *(m.version for m in self._memories))
            if versions != self._versions or self._shared:
                self._time += 1
            self._shared = [m for m in self._memories if m.is_shared()]
            self._seen, self._versions = now, versions
        return self._time

    def known_time(self) -> int | None:
        """Return the last `time()` where nothing can have changed since; None otherwise. Threads may ask at one
        time."""
        return self._time if self._seen == Clock.changed and not self._shared else None


class Newest(Protocol):
    """A copy of the elements elsewhere, on a device, which programs there have changed."""

    def fetch(self) -> None:
        """Copy the elements into this process's memory."""
        ...


class Memory:
    """The elements of a tensor at a fixed address, C-contiguous, aligned to 64 bytes, not initialised.

    guard: the lock to hold while the elements are read or changed; it covers all memory that programs use with them.
    place: the array that is the memory, of the shape and type of the elements; None for memory of its own.
    Raises ShapeError where a layout does not give the tensor back, DtypeError where it changes the elements' type.

    version: the time (`Clock`) of the last change that was made through this object. Programs have the memory as
    `physical`; users have other arrays, by which `is_shared` knows of them.
    is_exposed: whether a user has asked for the array while programs had chosen another order (`DimensionOrder`).
    newest: the copy of the elements on a device that is newer than this memory; None where this memory is up to date.
    Reading the elements, also as `physical`, fetches them.
    """

    may_be_away: ClassVar[bool] = False
    """Whether there may be memory of which a copy on a device is newer."""

    __slots__ = (
        "_physical",
        "newest",
        "layout",
        "shape",
        "guard",
        "version",
        "is_exposed",
        "_public",
        "_owner",
        "_references",
        "__weakref__",
    )

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype,
        layout: Layout | None = None,
        guard: locks.Guard | None = None,
        place: np.ndarray | None = None,
    ):
        self.shape, self.layout = shape, layout
        self.guard = guard or locks.Guard()
        stored = shape
        if layout is not None:
            stored = _check_layout(layout, shape, dtype)
        self._physical = buffers.empty(stored, dtype) if place is None else place
        self.newest: Newest | None = None
        self.version = Clock.note()
        self.is_exposed = False
        self._public = self._physical.view()  # of the elements without a layout
        self._owner = self._physical.base if place is None else None
        self._references = sys.getrefcount(self._owner)

    @property
    def physical(self) -> np.ndarray:
        """The memory as programs have it, up to date."""
        self.fetch()
        return self._physical

    @property
    def host(self) -> np.ndarray:
        """The memory of this process; a copy on a device may be newer."""
        return self._physical

    def fetch(self) -> None:
        """Bring the memory up to date, where a copy on a device is newer."""
        if self.newest is None:
            return
        with self.guard:
            newest, self.newest = self.newest, None
            if newest is not None:
                newest.fetch()

    @property
    def dtype(self) -> np.dtype:
        """The NumPy type of the elements."""
        return self._physical.dtype

    def logical(self) -> np.ndarray:
        """Return the tensor: the memory itself or a view of it, through which it is changed in place. Where a layout
        has no view, return a copy, which cannot be written to; `store` sets the values."""
        self.fetch()
        tensor = self._public if self.layout is None else self._read()
        self.version = Clock.note()  # whoever has the array may change it
        return tensor

    def is_movable(self) -> bool:
        """Return whether programs may reorder the dimensions: the array is neither exposed nor shared nor laid out."""
        return self.layout is None and len(self.shape) > 1 and not self.is_exposed and not self.is_shared()

    def is_shared(self) -> bool:
        """Return whether anybody but programs may have an array of the elements."""
        if self._owner is None or sys.getrefcount(self._owner) > self._references:
            return True
        return sys.getrefcount(self._public) > _OWN_REFERENCES

    def _read(self) -> np.ndarray:
        """Return the tensor for reading: a view of the memory, or a copy, which cannot be written to."""
        if self.layout is None:
            return self.physical
        tensor = self.layout.logical(self.physical, self.shape)
        if not np.may_share_memory(tensor, self.physical):
            tensor.flags.writeable = False
        return tensor

    def store(self, values: Any) -> None:
        """Set the elements to those of an array that has the tensor's shape, or is broadcast to it.

        Raises EinsmithError in the middle of a run of the same thread that uses them.
        """
        if self.layout is not None:
            array = np.empty(self.shape, self.dtype)
            array[...] = values
            values = self.layout.physical(array)
        with self.guard:
            nested.check_store(self.guard)
            self.physical[...] = values
            self.version = Clock.note()

    def copy(self) -> np.ndarray:
        """Return a copy of the tensor, taken under the guard so that no run changes it meanwhile."""
        with self.guard:
            return self._read().copy()

    def convert(self, dtype: np.dtype, layout: Layout | None) -> Memory:
        """Return new memory with these elements, under this guard, which the caller holds."""
        memory = Memory(self.shape, dtype, layout, self.guard)
        memory.store(self._read())
        return memory


_OWN_REFERENCES = 2
"""References to an array that only a `Memory` has, as `sys.getrefcount` counts them: its own, and the argument's."""


def _check_layout(layout: Layout, shape: tuple[int, ...], dtype: np.dtype) -> tuple[int, ...]:
    """Return the shape in which a layout stores a tensor of `shape`, after a check that the layout gives the tensor
    back."""
    if not hasattr(layout, "physical") or not hasattr(layout, "logical"):
        raise KindError(f"layout={layout!r} must have the methods `physical` and `logical`")
    sample = default_rng(0).integers(0, 100, shape).astype(dtype)
    try:
        there = np.asarray(layout.physical(sample))
        back = np.asarray(layout.logical(there, shape))
    except (ValueError, IndexError, TypeError) as e:
        raise ShapeError(f"the layout {layout!r} does not take a tensor of shape {shape}: {e}") from e
    if there.dtype != dtype or back.dtype != dtype:
        raise DtypeError(
            f"the layout {layout!r} stores {dtype} as {there.dtype} and returns {back.dtype}; both must be {dtype}"
        )
    if back.shape != shape:
        raise ShapeError(f"the layout {layout!r} returns a tensor of shape {shape} with the shape {back.shape}")
    if not np.array_equal(back, sample):
        raise ShapeError(f"the layout {layout!r} returns the elements of a tensor of shape {shape} in another order")
    return there.shape


def _check_tensor(layout: Layout, name: str, value: Value, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """Return the tensor that a layout's function makes in a program, after a check that its type is the one made of
    arrays."""
    if value.shape != shape or value.dtype is not dtype:
        raise ShapeError(
            f"`{name}` of the layout {layout!r} makes {value.dtype.name}{list(value.shape)} in a program, and "
            f"{dtype.name}{list(shape)} of arrays: both must be the same"
        )
    return value.tensor


def in_memory(
    graph: Graph, memories: Mapping[Leaf, Memory], keeps_orders: bool = False
) -> tuple[Graph, dict[Leaf, Leaf]]:
    """Replace the leaves of tensors in a graph by leaves for the physical arrays in their memories; return the graph
    and the new leaf for each old one. Tensors are read through their layouts, and updates are stored through them.

    keeps_orders: leaves whose layout is a `DimensionOrder` stay, because the program's kernels follow that order."""
    layouts = {
        x: m.layout
        for x, m in memories.items()
        if m.layout is not None and not (keeps_orders and isinstance(m.layout, DimensionOrder))
    }
    leaves = {x: leaf(m.physical.shape, x.dtype) if x in layouts else x for x, m in memories.items()}
    if not layouts:
        return graph, leaves

    def logical(x: Leaf) -> Tensor:
        return _check_tensor(layouts[x], "logical", layouts[x].logical(Value(leaves[x]), x.shape), x.shape, x.dtype)

    def physical(x: Leaf, t: Tensor) -> Tensor:
        return _check_tensor(layouts[x], "physical", layouts[x].physical(Value(t)), leaves[x].shape, x.dtype)

    rewritten = replace(graph, {x: logical(x) for x in layouts}.get)
    updates = tuple((leaves.get(x, x), physical(x, t) if x in layouts else t) for x, t in rewritten.updates)
    inputs = tuple(leaves.get(x, x) for x in rewritten.inputs)
    return Graph(inputs, rewritten.outputs, updates, rewritten.checks, rewritten.gradients), leaves
