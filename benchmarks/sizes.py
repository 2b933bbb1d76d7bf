"""Compare programs that several sizes share with programs for one size: `python -m benchmarks.sizes`."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np
from numpy.random import default_rng

import einsmith as es
from einsmith import functional as F
from einsmith import nn

RUNS = 60
"""Runs of each program, in turns; the least time counts."""


def multilayer_perceptron() -> nn.Module:
    """Return a network of three layers for vectors of 512."""
    layers = nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)
    return nn.Sequential(*layers)


def convolutional() -> nn.Module:
    """Return a network of two convolutions with batch norm for images of 3 x 32 x 32."""
    first = nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64 * 36, 10))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...]]] = {
    "MLP": (multilayer_perceptron, (512,), (33, 96, 200)),
    "convolutions": (convolutional, (3, 32, 32), (5, 16)),
}
"""Networks by name: how to make one, the shape of an example, and batch sizes, the largest last."""


def compare(a: Callable[[], object], b: Callable[[], object], prepare: Callable[[], object]) -> tuple[float, float]:
    """Return the least microseconds of two functions, called in turns, each after `prepare`."""
    times: list[list[float]] = [[], []]
    for _ in range(RUNS):
        for f, out in zip((a, b), times, strict=True):
            prepare()
            start = perf_counter()
            f()
            out.append(perf_counter() - start)
    return min(times[0]) * 1e6, min(times[1]) * 1e6


def main() -> None:
    """Print, for each network, mode and batch size, the microseconds of both programs and their ratio."""
    rng = default_rng(0)
    for name, (make, shape, sizes) in NETWORKS.items():
        for training in (False, True):
            programs = []
            for choice in ("shared", "each"):
                model = make()
                if training:
                    programs.append(es.TrainStep(model, F.cross_entropy, es.optim.SGD(lr=1e-4), sizes=choice))
                else:
                    model.eval()
                    programs.append(es.jit(model, sizes=choice))
            for n in (3, sizes[-1], *sizes[:-1]):
                data = rng.normal(size=(n, *shape)).astype("float32")
                x = data.copy()
                batch = (x, rng.integers(0, 10, n)) if training else (x,)
                shared, each = programs
                shared(*batch), each(*batch)
                if n == 3:
                    continue
                # Each call gets a batch that was written just now, by one core, as a program's batches are.
                calls = (lambda: shared(*batch)), (lambda: each(*batch))  # noqa: B023
                mine, theirs = compare(*calls, lambda: np.copyto(x, data))  # noqa: B023
                mode = "training" if training else "inference"
                text = f"{mine:8.0f} us shared {theirs:8.0f} us each  {mine / theirs:.2f}"
                print(f"{name:<14}{mode:<10} batch {n:4d}  {text}")


if __name__ == "__main__":
    main()
