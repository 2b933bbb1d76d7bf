"""Compare programs that several sizes share with programs for one size: `python -m benchmarks.sizes`.

`--seed N` draws four batch sizes up to the largest instead of the given ones; names choose networks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.random import default_rng

import einsmith as es
from benchmarks.driver import Parser, in_turns
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


class Transformer(nn.Module):
    """An encoder of four layers of 256 for sequences of 32 tokens, and a classifier of its pooled state."""

    def __init__(self) -> None:
        super().__init__()
        self.body = es.models.bert_base(vocabulary=WORDS, width=256, heads=4, layers=4, inner=1024, positions=32)
        self.head = nn.Linear(256, 10)

    def forward(self, tokens: Any) -> Any:
        """Return the logits [batch, 10] of tokens [batch, steps]."""
        return self.head(self.body(tokens)[1])


WORDS = 1000
"""Tokens are numbers below this one."""
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...]]] = {
    "MLP": (multilayer_perceptron, (512,), (33, 96, 200)),
    "convolutions": (convolutional, (3, 32, 32), (5, 16)),
    "transformer": (Transformer, (32,), (3, 9, 16)),
    "ResNet": (es.models.resnet18_cifar, (3, 32, 32), (3, 9, 16)),
    "MobileNet": (lambda: es.models.mobilenet_v1(classes=10), (3, 32, 32), (3, 7, 13)),
    "LeNet": (es.models.lenet5, (1, 28, 28), (7, 20, 61)),
}
"""Networks by name: how to make one, the shape of an example, and batch sizes, the largest last."""


def measure(name: str, sizes: Sequence[int], is_training: bool) -> Iterator[tuple[int, float, float]]:
    """Yield each batch size with the microseconds of the program that sizes share, and of the one for that size."""
    make, shape, _ = NETWORKS[name]
    programs: dict[str, Any] = {}
    for choice in ("shared", "each"):
        model = make()
        if is_training:
            programs[choice] = es.TrainStep(model, F.cross_entropy, es.optim.SGD(lr=1e-4), sizes=choice)
        else:
            programs[choice] = es.jit(model.eval(), sizes=choice)
    rng = default_rng(0)
    for n in (3, sizes[-1], *sizes[:-1]):
        data = rng.normal(size=(n, *shape)).astype("float32")
        if name == "transformer":
            data = rng.integers(0, WORDS, data.shape)
        x = data.copy()
        batch = (x, rng.integers(0, 10, n)) if is_training else (x,)
        for program in programs.values():
            program(*batch)
        if n != 3:
            # Each call gets a batch that was written just now, by one core, as a program's batches are.
            calls = {choice: partial(program, *batch) for choice, program in programs.items()}
            times = in_turns(calls, RUNS, before=partial(np.copyto, x, data))
            yield n, min(times["shared"]) * 1e6, min(times["each"]) * 1e6


def main() -> int:
    """Print, for each network, mode and batch size, the microseconds of both programs and their ratio."""
    args = Parser(__doc__, NETWORKS, seed=(int, "draw batch sizes")).read()
    rng = default_rng(args.seed)
    for name in args.names or NETWORKS:
        sizes = NETWORKS[name][2]
        if args.seed is not None:
            sizes = (*map(int, rng.integers(2, sizes[-1], 4)), sizes[-1])
        for mode in ("inference", "training"):
            for n, mine, theirs in measure(name, sizes, mode == "training"):
                text = f"{mine:8.0f} us shared {theirs:8.0f} us each  {mine / theirs:.2f}"
                print(f"{name:<14}{mode:<10} batch {n:4d}  {text}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
