"""Describe the networks that every library runs: a sequence of layers, the starting values, and the arithmetic of a
step.

The layers are those of `einsmith.models` under the names of their parameters. A library sets them up in its own best
layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import default_rng

from einsmith import models
from einsmith.bench.problem import Workload
from einsmith.nn.init import manual_seed

LR = 0.01
"""Learning rate: plain SGD."""
CLASSES = 10


class Layer(NamedTuple):
    """A layer: `linear` or `conv` (of images, stride 1), with the name of its parameters, else `relu`, `pool` (the
    maximum of windows of 2 by 2) or `flatten`. padding: zeros on each side of an image."""

    kind: str
    name: str = ""
    padding: int = 0


RELU, POOL, FLATTEN = Layer("relu"), Layer("pool"), Layer("flatten")
LAYERS: dict[str, tuple[Layer, ...]] = {
    "mlp3": (FLATTEN, Layer("linear", "fc1"), RELU, Layer("linear", "fc2"), RELU, Layer("linear", "fc3")),
    "lenet5": (
        Layer("conv", "conv1", 2), RELU, POOL, Layer("conv", "conv2"), RELU, POOL, FLATTEN,
        Layer("linear", "fc1"), RELU, Layer("linear", "fc2"), RELU, Layer("linear", "fc3"),
    ),
}  # fmt: skip
"""Layers of each network, by its name in `einsmith.models`; the loss is the cross entropy."""


@dataclass(frozen=True)
class NetworkStep(Workload):
    """A training step of a network of LAYERS: forward, loss, backward and SGD's update."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Return the network's layers."""
        return LAYERS[self.network]


def network_step(network: str, batch: int) -> NetworkStep:
    """Return the training step of a network. Raises KeyError for a name that LAYERS does not have."""
    layers = LAYERS[network]

    def make() -> dict[str, np.ndarray]:
        manual_seed(0)
        rng = default_rng(1)
        x = rng.standard_normal((batch, 1, 28, 28), np.float32)
        y = rng.integers(0, CLASSES, batch)
        state = {n: np.array(v) for n, v in models.get(network).state_dict().items()}
        return {"x": x, "y": y, **state}

    names = tuple(f"{x.name}.{kind}" for x in layers if x.name for kind in ("weight", "bias"))
    return NetworkStep(f"{network}-b{batch}", network, batch, _operations(layers, make()), names, make)


def _operations(layers: tuple[Layer, ...], arrays: dict[str, np.ndarray]) -> int:
    """Return the multiplications and additions of the products of a step; the first layer needs no gradient of its
    input."""
    batch, _, height, _ = arrays["x"].shape
    total, first = 0, True
    for layer in layers:
        points = batch
        if layer.kind == "conv":
            height += 2 * layer.padding - arrays[f"{layer.name}.weight"].shape[2] + 1
            points = batch * height**2
        elif layer.kind == "pool":
            height //= 2
        if layer.name:
            total += (2 if first else 3) * 2 * points * arrays[f"{layer.name}.weight"].size
            first = False
    return total
