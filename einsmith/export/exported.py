"""Data classes of an export: the graphs to compile, and the memory that outlives their calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from einsmith.base.errors import ArgumentError
from einsmith.base.numerics import Numerics
from einsmith.ir.nodes import Graph, Leaf, Tensor
from einsmith.nn import Module
from einsmith.runtime.memory import Memory
from einsmith.schedule.row_clusters import MAX_STORED_BYTES

WEIGHT, BUFFER, STATE, OPTIMIZER = "weight", "buffer", "state", "optimizer"
TRAINING, NUMBER = "training", "number"
"""Kinds of lasting tensors: a parameter or a buffer of a model's state dictionary, other state that functions change,
state of the optimizer, a counter or the settings of the step, or a number that is set before each run and is in no
file."""
TRAIN, GATHER, EVALUATE, PREDICT, CALL = "train", "gather", "evaluate", "predict", "call"
"""Roles of graphs. GATHER adds a batch's gradients to accumulated ones and updates nothing."""
COUNT, UPDATES, SETTING, DRAW, WEIGHT_OF_BATCH, BEGINS, SAMPLES = range(7)
"""Kinds of numbers that are set before each run, as in runtime/machine.c."""


@dataclass(frozen=True)
class Lasting:
    """A tensor that lives between calls, with its current values in separate memory."""

    name: str
    kind: str
    array: np.ndarray


@dataclass(frozen=True)
class Traced:
    """A graph to compile.

    role: one of the roles above; variant: number of its batch shapes; arguments: names of its inputs; finite: loss that
    must be finite; memory: most bytes of a run; groups: numbers of the groups of parameters that it updates; samples:
    batch size; max_stored: as in `TrainStep`."""

    role: str
    variant: int
    graph: Graph
    bind: dict[Leaf, np.ndarray]
    arguments: tuple[str, ...]
    numerics: Numerics
    finite: Tensor | None = None
    memory: int | None = None
    groups: tuple[int, ...] = ()
    samples: int = 1
    max_stored: int = MAX_STORED_BYTES


@dataclass(frozen=True)
class ExportedSetting:
    """A number that may be changed between steps. table: values at steps 1, 2, ..., empty for a constant."""

    name: str
    value: float
    table: tuple[float, ...] = ()


@dataclass(frozen=True)
class Training:
    """Settings and counters of an exported training step.

    reports: names of values reported after the loss; accumulate: batches per update; groups: number of groups of
    parameters that were always updated together."""

    settings: tuple[ExportedSetting, ...]
    reports: tuple[str, ...]
    accumulate: int
    groups: int


@dataclass
class Memories:
    """The lasting tensors of an export.

    numbers: (kind, index) of each number by name; aliases: further names of tensors, with the first name."""

    tensors: list[Lasting] = field(default_factory=list)
    numbers: dict[str, tuple[int, int]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    _known: dict[int, Lasting] = field(default_factory=dict)
    _constants: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def add(self, name: str, kind: str, array: np.ndarray) -> None:
        """Add a tensor, or an alias where its array is already known."""
        if id(array) in self._known:
            self.aliases[name] = self._known[id(array)].name
            return
        self._known[id(array)] = lasting = Lasting(name, kind, array)
        self.tensors.append(lasting)

    def add_memory(self, name: str, kind: str, memory: Memory) -> None:
        """Add the tensor in `memory`. Raises ArgumentError where it has a layout of its own."""
        if memory.layout is not None:
            raise ArgumentError(
                f"{name} has a layout of its own, {memory.layout!r}, which a library does not support; return to the "
                "default layout with store_as(None)"
            )
        self.add(name, kind, memory.physical)

    def add_model(self, model: Module, prefix: str = "") -> None:
        """Add a model's parameters and buffers, their names after `prefix`."""
        lasting = model.state_dict().keys()
        for kind, named in ((WEIGHT, model.named_parameters), (BUFFER, model.named_buffers)):
            for name, stored in named(remove_duplicate=False):
                self.add_memory(prefix + name, kind if name in lasting else STATE, stored.memory)

    def add_number(self, array: np.ndarray, kind: int, which: int = 0) -> None:
        """Add a number that is set before each run. which: index among numbers of its kind."""
        name = f"number/{len(self.numbers)}"
        self.add(name, NUMBER, array)
        self.numbers[name] = kind, which

    def bound(self, bind: Mapping[Leaf, np.ndarray], live: Iterable[tuple[Any, Memory]]) -> dict[Leaf, np.ndarray]:
        """Bind a graph's leaves to lasting tensors and to copies of constants, none of which overlap.

        live: captured objects with their memory, which is added where it is not known."""
        for _, memory in live:
            if id(memory.physical) not in self._known:
                self.add_memory(f"captured.{len(self.tensors)}", STATE, memory)
        return {x: array if id(array) in self._known else self._constant(array) for x, array in bind.items()}

    def _constant(self, array: np.ndarray) -> np.ndarray:
        """Return the copy of a constant array, one for each array."""
        if id(array) not in self._constants:
            self._constants[id(array)] = array, np.array(array, order="C")
        return self._constants[id(array)][1]

    @property
    def constants(self) -> list[np.ndarray]:
        """The copies of the constants, in the order of their numbers."""
        return [copy for _, copy in self._constants.values()]


@dataclass(frozen=True)
class ExportSubject:
    """The subject of an export: a training step, or (training=None) a function."""

    name: str
    threads: int
    graphs: list[Traced]
    memories: Memories
    training: Training | None = None
