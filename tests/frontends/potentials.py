"""Models that are trained on derivatives, such as forces, through `torch.compile(model, backend="einsmith")`.

    python -m tests.frontends.potentials [NAME ..] [--dtype float32] [--steps 50] [--changing]

Each model of `benchmarks.potentials` takes steps of Adam in eager execution and compiled, from the same weights. Losses
and weights of the compiled one are to be those of eager execution: in float64 within 1e-10 of the largest element of a
tensor, in float32 within 1e-4. A line of JSON says what was seen of a model. `--changing`: each batch has edges of its
own.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch._dynamo.utils import counters

import einsmith.frontends.torch  # noqa: F401  registers the backend
from benchmarks.models_of_others import Trained, converted
from benchmarks.potentials import MODELS, get

CLOSE = {"float64": 1e-10, "float32": 1e-4}
"""Most that a loss or a weight may be off, relative to the largest element of the tensor."""
RATE, EPS = 1e-3, 1e-5
"""Adam's rate, and what it adds to a gradient's size: with it, rounding alone moves no weight whose gradient is 0."""
STEPS = 50
Trajectory = tuple[list[float], list[torch.Tensor]]
"""The loss of each step, and the weights after the last one."""
Compile = Callable[[torch.nn.Module], Any]


@dataclass
class Training:
    """What was seen of a model's training.

    Args:
        name: of the model.
        loss: greatest relative difference of a step's loss.
        weight: greatest difference of a weight at the end, relative to the largest element of its tensor.
        breaks: reasons of graph breaks.
        in_pytorch: what ran in PyTorch.
        seconds: of the compiled steps, with compilation.
        losses: of eager execution, the first and the last one.
    """

    name: str
    loss: float
    weight: float
    breaks: tuple[str, ...]
    in_pytorch: tuple[str, ...]
    seconds: float
    losses: tuple[float, float]


def train(
    trained: Trained, dtype: torch.dtype, steps: int, compile_: Compile
) -> tuple[list[float], list[torch.Tensor]]:
    """Return the loss of each step, and the weights after the last one."""
    optimizer = torch.optim.Adam(trained.model.parameters(), RATE, eps=EPS)
    f = compile_(trained.model)
    losses = []
    for seed in range(steps):
        optimizer.zero_grad()
        loss = trained.loss(f, converted(trained.batch(seed), dtype))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().clone() for p in trained.model.parameters()]


def compare(name: str, dtype: str, steps: int = STEPS, changing: bool = False, fallback: str = "warn") -> Training:
    """Train a model in both ways."""
    trained = get(name, "small", getattr(torch, dtype), changing)
    start = copy.deepcopy(trained.model.state_dict())
    losses, weights = train(trained, getattr(torch, dtype), steps, lambda m: m)
    trained.model.load_state_dict(start)
    counters.clear()
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        begun = time.perf_counter()
        ours, ends = train(
            trained, getattr(torch, dtype), steps,
            lambda m: torch.compile(m, backend="einsmith", options={"fallback": fallback}),
        )  # fmt: skip
        seconds = time.perf_counter() - begun
    said = [x for x in (str(w.message).partition("\n")[0] for w in messages) if x.startswith("einsmith")]
    breaks = [why.partition("\n")[0] for why in counters["graph_break"]]
    return Training(
        name,
        *differences((ours, ends), (losses, weights)),
        tuple(dict.fromkeys(breaks)),
        tuple(dict.fromkeys(said)),
        seconds,
        (losses[0], losses[-1]),
    )


def differences(got: Trajectory, wanted: Trajectory) -> tuple[float, float]:
    """Return the greatest relative differences of a loss and of a weight."""
    steps = [torch.tensor(x, dtype=torch.float64).unbind() for x in (got[0], wanted[0])]
    return max(map(_relative, *steps)), max(_relative(a, b) for a, b in zip(got[1], wanted[1], strict=True))


def _relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the greatest difference, relative to the largest element that is wanted; infinity where one is NaN."""
    off = float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-12))
    return math.inf if math.isnan(off) else off


def main() -> int:
    """Print a line for each model; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"which (default: all): {', '.join(MODELS)}")
    parser.add_argument("--dtype", choices=CLOSE, default="float64")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--changing", action="store_true", help="each batch has edges of its own")
    parser.add_argument("--fallback", choices=("warn", "error"), default="warn")
    args = parser.parse_args()
    failed = False
    for name in args.names or MODELS:
        try:
            seen = compare(name, args.dtype, args.steps, args.changing, args.fallback)
        except ImportError as e:
            print(json.dumps({"name": name, "skipped": str(e)}), flush=True)
            continue
        failed |= not max(seen.loss, seen.weight) <= CLOSE[args.dtype]
        print(json.dumps(asdict(seen)), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
