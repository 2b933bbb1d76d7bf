"""Own the memory of weights and optimizer state, shared by every program of a model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np

from einsmith.base import locks
from einsmith.base.errors import ShapeError
from einsmith.runtime.memory import Layout, Memory


class Slot:
    """A named tensor that lives as long as training does. Programs read and update `memory` in place; `data` are its
    values (`Memory.logical`)."""

    __slots__ = ("name", "memory", "__weakref__")

    def __init__(self, name: str, memory: Memory):
        self.name, self.memory = name, memory

    @property
    def data(self) -> np.ndarray:
        """The elements in the order of the tensor's dimensions, whatever the layout in memory."""
        return self.memory.logical()


class ParameterStore:
    """Parameters (in the model's own memory) and state (in memory allocated here) by name. A state's name is
    `parameter/state`."""

    def __init__(self) -> None:
        self.parameters: dict[str, Any] = {}
        self.state: dict[str, Slot] = {}
        self.shards: dict[str, Slot] = {}
        """State of the parts of parameters that this process updates in a group of processes that divide the state."""
        self.guard = locks.Guard()
        """The lock of all parameters and state. Hold it to read or change values that a training step uses, to restore
        them, or to add and remove entries."""

    def add_parameter(self, name: str, parameter: Any) -> None:
        """Add a parameter, whose memory is its own `data`, under a name."""
        self.parameters[name] = parameter
        self.protect([parameter.memory])

    def protect(self, memories: Iterable[Memory]) -> None:
        """Put memory that belongs to the model, such as its buffers, under the store's lock."""
        locks.join([self.guard, *(m.guard for m in memories)])

    def slot(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype,
        initial: float | np.ndarray = 0.0,
        layout: Layout | None = None,
    ) -> Slot:
        """Return the state tensor `name`, created with `initial` at its first use, and moved to new memory for another
        element type or layout.

        Raises ShapeError where it has another shape.
        """
        state = self.state.get(name)
        if state is None:
            state = self.state[name] = Slot(name, Memory(shape, dtype, layout, self.guard))
            state.memory.store(initial)
        if state.memory.shape != shape:
            raise ShapeError(f"state {name!r} has shape {state.memory.shape}, its parameter {shape}")
        if state.memory.dtype != dtype or state.memory.layout is not layout:
            state.memory = state.memory.convert(dtype, layout)
        return state

    def place(self, name: str, memory: Memory) -> Memory:
        """Give the state tensor `name` this memory, with the values that it has, or zeros; return the memory."""
        state = self.state.get(name)
        if state is None:
            memory.store(0.0)
            self.state[name] = Slot(name, memory)
        else:
            memory.store(state.data)
            state.memory = memory
        return memory

    def shard(
        self, name: str, shape: tuple[int, ...], part: slice, dtype: np.dtype, initial: float | np.ndarray
    ) -> Slot:
        """Return the part of the state tensor `name` that this process updates: elements `part` of the memory of a
        tensor with the parameter's shape, else (shape is ()) all. It begins with the values of the whole state, which
        is removed, or with `initial`."""
        shard = self.shards.get(name)
        if shard is None:
            whole = self.state.pop(name, None)
            values = initial if whole is None else whole.memory.physical
            shard = self.shards[name] = Slot(name, Memory(shape, dtype, None, self.guard))
            shard.memory.store(np.asarray(values).reshape(-1)[part] if shape and np.ndim(values) else values)
        return shard

    def forget(self, parameter: str) -> None:
        """Remove the state of a parameter."""
        for known in (self.state, self.shards):
            for name in [n for n in known if n.startswith(f"{parameter}/")]:
                del known[name]

    def keep(self, kinds: Collection[str]) -> None:
        """Remove the state of all names except `kinds`."""
        self.drop({n.rpartition("/")[2] for n in (*self.state, *self.shards)} - set(kinds))

    def drop(self, kinds: Collection[str]) -> None:
        """Remove the state of these names, of all parameters."""
        for known in (self.state, self.shards):
            for name in [n for n in known if n.rpartition("/")[2] in kinds]:
                del known[name]

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (name, values) of all parameters, then of all state."""
        for name, p in self.parameters.items():
            yield name, p.memory.logical()
        for name, s in self.state.items():
            yield name, s.data
