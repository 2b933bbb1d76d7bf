"""Define what is compared: a training step or an operator, its starting arrays, its operations and bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np


@dataclass(frozen=True)
class Workload:
    """A training step or an operator with its gradients.

    `arrays()` makes the starting values, the same in every process; those named in `results` change in a training step
    (weights), or are what the operator gives (gradients). `flops`: multiplications and additions of the products alone.
    `inputs`, `options`: an operator's inputs, in order, and its keyword arguments; `nbytes`: what it must read and
    write at least (inputs, weights of the loss, gradients, each once); `specials`: evaluations of functions that are
    more than one instruction. `task`: what is run of a training step: "step", all of it; "loss", the loss in training
    mode, and running statistics; "gradients", the loss and the gradients, without the update.
    """

    name: str
    network: str
    batch: int
    flops: int = 0
    results: tuple[str, ...] = ()
    make: Callable[[], dict[str, np.ndarray]] = dict
    training: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    nbytes: int = 0
    specials: tuple[tuple[str, int], ...] = ()
    task: str = "step"

    kind: ClassVar[str] = "kernels"
    """What runs it in a library: `benchmarks.peers.LIBRARY_KIND`."""
    has_reference: ClassVar[bool] = False
    """Whether results are verified against those of the peer "reference" in float64, not against the other peers."""
    verified_steps: ClassVar[int] = 5
    """Training steps whose losses and results are verified before anything is timed."""
    exact: ClassVar[bool] = False
    """Whether a training step is verified against the peer "reference" in float64, not against the other peers: the
    losses of the verified steps, and what the first of them changes."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the starting values by name."""
        return self.make()

    @property
    def operations(self) -> int:
        """Return `flops`; counted, where they are not known from the beginning."""
        return self.flops

    @property
    def stateful(self) -> bool:
        """Whether a step changes what the next one starts from."""
        return self.training or not set(self.results).isdisjoint(self.inputs)


def uniform(rng: np.random.Generator, shape: tuple[int, ...], fan_in: int) -> np.ndarray:
    """Return weights between the bounds of PyTorch's layers of so many inputs."""
    bound = 1 / np.sqrt(fan_in)
    return rng.uniform(-bound, bound, shape).astype(np.float32)


def dense(rng: np.random.Generator, name: str, n_in: int, n_out: int) -> dict[str, np.ndarray]:
    """Return the weight and the bias of a linear layer."""
    return {f"{name}.weight": uniform(rng, (n_out, n_in), n_in), f"{name}.bias": uniform(rng, (n_out,), n_in)}
