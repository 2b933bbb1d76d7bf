"""What a library is made of: graphs to compile, and the memory that outlives their calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from einsmith.errors import ArgumentError
from einsmith.expr.nodes import Graph, Leaf, Tensor
from einsmith.nn import Module
from einsmith.runtime.memory import Memory

WEIGHT, BUFFER, STATE, OPTIMIZER = "weight", "buffer", "state", "optimizer"
TRAINING, NUMBER = "training", "number"
"""What a lasting tensor is: a parameter or a buffer of a model's state dictionary, other state that functions change,
state of the optimizer, a counter or the settings of the step, or a number that is set before each run and is in no
file."""
TRAIN, GATHER, EVALUATE, PREDICT, CALL = "train", "gather", "evaluate", "predict", "call"
"""What a graph is for. Gathering adds a batch's gradients to those of others, and updates nothing."""
COUNT, UPDATES, SETTING, DRAW, WEIGHT_OF_BATCH, BEGINS, SAMPLES = range(7)
"""What a number is; as in runtime/machine.c."""


@dataclass(frozen=True)
class Lasting:
    """A tensor that lives between calls, with its present values, which have an address of their own."""

    name: str
    kind: str
    array: np.ndarray


@dataclass(frozen=True)
class Traced:
    """A graph to compile. variant: which of the batches' shapes it is for; arguments: names of its inputs; finite: the
    loss that must be; memory: bytes that a run may hold; groups: numbers of those of the parameters that it updates;
    samples: of a batch."""

    role: str
    variant: int
    graph: Graph
    bind: dict[Leaf, np.ndarray]
    arguments: tuple[str, ...]
    winograd: bool
    finite: Tensor | None = None
    memory: int | None = None
    groups: tuple[int, ...] = ()
    samples: int = 1


@dataclass(frozen=True)
class ExportedSetting:
    """A number that may be changed between steps. table: its values at steps 1, 2, ..., where it follows such."""

    name: str
    value: float
    table: tuple[float, ...] = ()


@dataclass(frozen=True)
class Training:
    """What happens around a step. reports: names of what it tells behind its loss; groups: of parameters that were
    always updated together."""

    settings: tuple[ExportedSetting, ...]
    reports: tuple[str, ...]
    accumulate: int
    groups: int


@dataclass
class Memories:
    """All lasting tensors, what each number is (kind, which one), and names of tensors that have another one first."""

    tensors: list[Lasting] = field(default_factory=list)
    numbers: dict[str, tuple[int, int]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    _known: dict[int, Lasting] = field(default_factory=dict)
    _constants: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def add(self, name: str, kind: str, array: np.ndarray) -> None:
        """A tensor; another name for it, where it is known."""
        if id(array) in self._known:
            self.aliases[name] = self._known[id(array)].name
            return
        self._known[id(array)] = made = Lasting(name, kind, array)
        self.tensors.append(made)

    def add_memory(self, name: str, kind: str, memory: Memory) -> None:
        """Raises ArgumentError where the memory has a layout."""
        if memory.layout is not None:
            raise ArgumentError(
                f"{name} has a layout of its own, {memory.layout!r}, which a library does not have; take it back with "
                "store_as(None)"
            )
        self.add(name, kind, memory.physical)

    def add_model(self, model: Module, prefix: str = "") -> None:
        """A model's parameters and buffers."""
        lasting = model.state_dict().keys()
        for kind, named in ((WEIGHT, model.named_parameters), (BUFFER, model.named_buffers)):
            for name, stored in named(remove_duplicate=False):
                self.add_memory(prefix + name, kind if name in lasting else STATE, stored.memory)

    def add_number(self, array: np.ndarray, kind: int, which: int = 0) -> None:
        """A number that is set before each run."""
        name = f"number/{len(self.numbers)}"
        self.add(name, NUMBER, array)
        self.numbers[name] = kind, which

    def bound(self, bind: Mapping[Leaf, np.ndarray], live: Iterable[tuple[Any, Memory]]) -> dict[Leaf, np.ndarray]:
        """What a graph's leaves are bound to: lasting tensors, and copies of constants, which do not overlap."""
        for _, memory in live:
            if id(memory.physical) not in self._known:
                self.add_memory(f"captured.{len(self.tensors)}", STATE, memory)
        return {x: array if id(array) in self._known else self._constant(array) for x, array in bind.items()}

    def _constant(self, array: np.ndarray) -> np.ndarray:
        """A copy, the same one for the same array."""
        if id(array) not in self._constants:
            self._constants[id(array)] = array, np.array(array, order="C")
        return self._constants[id(array)][1]

    @property
    def constants(self) -> list[np.ndarray]:
        return [copy for _, copy in self._constants.values()]


@dataclass(frozen=True)
class ExportSubject:
    """What is exported: a training step, or (training=None) a function."""

    name: str
    threads: int
    graphs: list[Traced]
    memories: Memories
    training: Training | None = None
