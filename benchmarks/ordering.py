"""Sorting, selection, searches and running extremes beside PyTorch: python -m benchmarks.ordering [NAME ...]

Fresh standard normal numbers for each case, in one row of 10^3 to 10^6 and in many rows. Every result is compared with
PyTorch's before both are timed, in turns; a time is the least of several rounds. Einsmith's calls take and return NumPy
arrays, PyTorch's tensors. More than 1 is faster than PyTorch.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np
import torch

import einsmith as es
import einsmith.functional as F  # noqa: N812

SHAPES = ((1_000,), (10_000,), (100_000,), (1_000_000,), (4_096, 16), (1_000, 100), (100, 1_000))
ROUNDS = 7
SECONDS = 0.04
"""Least seconds of the calls of a round."""
Arrays = tuple[np.ndarray, ...]


class Function(NamedTuple):
    """A function of Einsmith and of PyTorch, and what makes its operands from a row's numbers."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    operands: Callable[[np.ndarray], Arrays] = lambda x: (x,)


def _sorted_rows(x: np.ndarray) -> Arrays:
    return np.sort(x, -1), x[..., ::-1].copy()


def _gradient(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    (torch.sort(x, stable=True, dim=-1)[0] * w).sum().backward()
    return x.grad


FUNCTIONS: dict[str, Function] = {
    "sort": Function(lambda x: F.sort(x, -1), lambda x: torch.sort(x, stable=True, dim=-1)),
    "argsort": Function(lambda x: F.argsort(x, -1), lambda x: torch.argsort(x, dim=-1, stable=True)),
    "sort, gradient": Function(es.grad(lambda x, w: (F.sort(x, -1)[0] * w).sum()), _gradient, lambda x: (x, np.cos(x))),
    "topk 5": Function(lambda x: F.topk(x, 5), lambda x: torch.topk(x, 5)),
    "topk 16": Function(lambda x: F.topk(x, 16), lambda x: torch.topk(x, 16)),
    "median": Function(lambda x: F.median(x, -1), lambda x: torch.median(x, -1)),
    "searchsorted": Function(F.searchsorted, torch.searchsorted, _sorted_rows),
    "cummax": Function(lambda x: F.cummax(x, -1), lambda x: torch.cummax(x, -1)),
    "cumsum": Function(lambda x: F.cumsum(x, -1), lambda x: torch.cumsum(x, -1)),
    "logcumsumexp": Function(lambda x: F.logcumsumexp(x, -1), lambda x: torch.logcumsumexp(x, -1)),
}


def _seconds(call: Callable[[], Any], count: int) -> float:
    begun = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begun) / count


def _leaves(x: Any) -> list[Any]:
    return [*x] if isinstance(x, tuple) else [x]


def measure(name: str, shape: tuple[int, ...], dtype: str, seed: int) -> tuple[float, float]:
    """Return the seconds of Einsmith and of PyTorch. Raises AssertionError where their results differ."""
    function = FUNCTIONS[name]
    arrays = function.operands(np.random.default_rng(seed).standard_normal(shape).astype(dtype))
    tensors = [torch.from_numpy(a) for a in arrays]
    ours = es.jit(function.ours)
    results = ours(*arrays), function.theirs(*tensors)
    tolerance = 1e-4 if dtype == "float32" else 1e-10
    for one, other in zip(_leaves(results[0]), _leaves(results[1]), strict=True):
        a, b = np.asarray(one), other.numpy()
        if a.dtype.kind == "i" and name != "searchsorted":  # of equal elements, PyTorch takes any
            a, b = (np.take_along_axis(arrays[0], i.reshape(*shape[:-1], -1), -1) for i in (a, b))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=name)
    calls = (lambda: ours(*arrays)), (lambda: function.theirs(*tensors))
    counts = [max(1, round(SECONDS / _seconds(c, 2))) for c in calls]
    best = [np.inf, np.inf]
    for _ in range(ROUNDS):
        for k in range(2):
            best[k] = min(best[k], _seconds(calls[k], counts[k]))
    return best[0], best[1]


def main(arguments: list[str] | None = None) -> int:
    """Print a table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ordering", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(FUNCTIONS)}; by default all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if unknown := {*options.names} - FUNCTIONS.keys():
        parser.error(f"no function {', '.join(sorted(unknown))}; there are {', '.join(FUNCTIONS)}")
    es.set_threads(options.threads)
    torch.set_num_threads(options.threads)
    print(f"| {options.dtype}, threads: {options.threads} | us | PyTorch | ratio |\n|---|---|---|---|")
    ratios = []
    for name in options.names or FUNCTIONS:
        for shape in SHAPES:
            ours, theirs = measure(name, shape, options.dtype, options.seed)
            ratios.append(theirs / ours)
            size = " x ".join(f"{n:,}" for n in shape)
            print(f"| {name}, {size} | {ours * 1e6:.1f} | {theirs * 1e6:.1f} | {ratios[-1]:.2f} |", flush=True)
    print(f"| geometric mean of {len(ratios)}, least | | | {geometric_mean(ratios):.2f}, {min(ratios):.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
