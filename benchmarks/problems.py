"""What is timed: the shapes, the starting arrays, and the arithmetic that cannot be avoided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

LR = 0.01
"""Learning rate of the training problems: plain SGD."""


@dataclass(frozen=True)
class Problem:
    """A training step or an operator with its gradients.

    `arrays()` makes the starting values, the same in every process; those named in `results` change in a training step
    (weights), or are what the operator gives (gradients). `flops`: multiplications and additions of the products alone.
    """

    name: str
    network: str
    batch: int
    flops: int
    results: tuple[str, ...]
    make: Callable[[], dict[str, np.ndarray]]
    training: bool = True
    stride: int = 0

    def arrays(self) -> dict[str, np.ndarray]:
        return self.make()


class Session(Protocol):
    """A problem set up in one library."""

    def step(self) -> float:
        """One training step, or one evaluation with its gradients, until the result is there; the loss."""
        ...

    def results(self) -> dict[str, np.ndarray]:
        """The arrays named in Problem.results, in the layout of `Problem.arrays`."""
        ...


def _uniform(rng: np.random.Generator, shape: tuple[int, ...], fan_in: int) -> np.ndarray:
    bound = 1 / np.sqrt(fan_in)
    return rng.uniform(-bound, bound, shape).astype(np.float32)


def _dense(rng: np.random.Generator, name: str, n_in: int, n_out: int) -> dict[str, np.ndarray]:
    return {f"{name}.weight": _uniform(rng, (n_out, n_in), n_in), f"{name}.bias": _uniform(rng, (n_out,), n_in)}


def _conv(rng: np.random.Generator, name: str, c_in: int, c_out: int, k: int) -> dict[str, np.ndarray]:
    n = c_in * k * k
    return {f"{name}.weight": _uniform(rng, (c_out, c_in, k, k), n), f"{name}.bias": _uniform(rng, (c_out,), n)}


def _dense_macs(sizes: tuple[int, ...]) -> list[int]:
    return [a * b for a, b in zip(sizes, sizes[1:], strict=False)]


def _step_flops(batch: int, macs: list[int]) -> int:
    """Forward, weight gradients, and input gradients of all layers but the first."""
    return 2 * batch * (2 * sum(macs) + sum(macs[1:]))


MLP_SIZES = (784, 512, 256, 10)
LENET_MACS = [28 * 28 * 6 * 25, 10 * 10 * 16 * 150, *_dense_macs((400, 120, 84, 10))]


def mlp3(batch: int) -> Problem:
    """784-512-256-10 with ReLU and cross entropy."""

    def make() -> dict[str, np.ndarray]:
        rng = np.random.default_rng(1)
        out: dict[str, np.ndarray] = {"x": rng.random((batch, 784), np.float32), "y": rng.integers(0, 10, batch)}
        for k, (a, b) in enumerate(zip(MLP_SIZES, MLP_SIZES[1:], strict=False)):
            out |= _dense(rng, f"fc{k + 1}", a, b)
        return out

    results = tuple(f"fc{k}.{part}" for k in (1, 2, 3) for part in ("weight", "bias"))
    return Problem(f"mlp3-b{batch}", "mlp3", batch, _step_flops(batch, _dense_macs(MLP_SIZES)), results, make)


def lenet5(batch: int) -> Problem:
    """LeNet-5 on 28x28 (padding 2, 6 and 16 channels, ReLU, max pooling, 120/84/10) with cross entropy."""

    def make() -> dict[str, np.ndarray]:
        rng = np.random.default_rng(2)
        out: dict[str, np.ndarray] = {
            "x": rng.random((batch, 1, 28, 28), np.float32),
            "y": rng.integers(0, 10, batch),
        }
        out |= _conv(rng, "conv1", 1, 6, 5) | _conv(rng, "conv2", 6, 16, 5)
        return out | _dense(rng, "fc1", 400, 120) | _dense(rng, "fc2", 120, 84) | _dense(rng, "fc3", 84, 10)

    results = tuple(f"{n}.{part}" for n in ("conv1", "conv2", "fc1", "fc2", "fc3") for part in ("weight", "bias"))
    return Problem(f"lenet5-b{batch}", "lenet5", batch, _step_flops(batch, LENET_MACS), results, make)


def capsule_conv(stride: int) -> Problem:
    """C[b,k,p,q,i,j] = sum[c,r,s,m](A[b,c,stride*p+r,stride*q+s,i,m] * W[k,c,r,s,m,j]), the loss mean(C*C)/2 and both
    gradients; A [16,32,14,14,4,4], W [32,32,3,3,4,4]."""
    n_out = (14 - 3) // stride + 1

    def make() -> dict[str, np.ndarray]:
        rng = np.random.default_rng(3)
        a = rng.standard_normal((16, 32, 14, 14, 4, 4), np.float32)
        w = rng.standard_normal((32, 32, 3, 3, 4, 4), np.float32) / np.float32(np.sqrt(32 * 9 * 4))
        return {"A": a, "W": w}

    macs = 16 * 32 * n_out * n_out * 16 * (32 * 9 * 4)
    return Problem(f"capsule_conv-s{stride}", "capsule_conv", 16, 3 * 2 * macs, ("dA", "dW"), make, False, stride)


TRAINING = {p.name: p for network in (mlp3, lenet5) for p in (network(256), network(64))}
OPERATORS = {p.name: p for p in (capsule_conv(1), capsule_conv(2))}
PROBLEMS = TRAINING | OPERATORS
