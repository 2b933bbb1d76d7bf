"""ParameterStore: owns the memory of weights and optimizer state, shared by every program of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from einsmith.errors import ShapeError
from einsmith.runtime import buffers


class Slot:
    """A named tensor that lives as long as training does: programs read and update `data` in place."""

    __slots__ = ("name", "data", "__weakref__")

    def __init__(self, name: str, data: np.ndarray):
        self.name, self.data = name, data


class ParameterStore:
    """Parameters (the model's own memory) and state (made here) by name. State is named `parameter/state`."""

    def __init__(self) -> None:
        self.parameters: dict[str, Any] = {}
        self.state: dict[str, Slot] = {}

    def add_parameter(self, name: str, parameter: Any) -> None:
        """Takes a parameter, whose memory is its own `data`, under a name."""
        self.parameters[name] = parameter

    def slot(self, name: str, shape: tuple[int, ...], dtype: np.dtype, initial: float | np.ndarray = 0.0) -> Slot:
        """The state tensor `name`, made with `initial` at its first use, moved to new memory for another element type.

        Raises ShapeError where it has another shape.
        """
        if name not in self.state:
            data = buffers.empty(shape, dtype)
            data[...] = initial
            self.state[name] = Slot(name, data)
        found = self.state[name]
        if found.data.shape != shape:
            raise ShapeError(f"state {name!r} has shape {found.data.shape}, its parameter {shape}")
        if found.data.dtype != dtype:
            data = buffers.empty(shape, dtype)
            data[...] = found.data
            found.data = data
        return found

    def forget(self, parameter: str) -> None:
        """Drops the state of a parameter."""
        for name in [n for n in self.state if n.startswith(f"{parameter}/")]:
            del self.state[name]

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """(name, memory) of everything: parameters first."""
        for name, p in self.parameters.items():
            yield name, p.data
        for name, s in self.state.items():
            yield name, s.data
