"""Kernel methods over point clouds beside KeOps and PyTorch: python -m benchmarks.pairs [--kinds K,...] [--all]

Kernel sums, Sinkhorn's log-sum-exp, nearest neighbours and variances, values, gradients and second order. A sample of
the rows of every result is verified in float64 before anything is timed.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.driver import Options
from benchmarks.problem import Workload
from benchmarks.report import QUICK, run

KINDS = ("gaussian", "laplacian", "matern32", "matern52", "sinkhorn", "nearest", "variance")
_WITHOUT_WEIGHTS = "nearest", "variance"
"""Kinds that read the points alone, and whose values alone are timed."""
ORDERS = ("values", "gradients", "second")
POINTS, DIMENSIONS = (10_000, 30_000, 100_000), (3, 10, 100)
SAMPLE = 64
"""Rows of every result that are verified in float64; all rows of 10^5 points would take minutes."""
EPS = 0.5
"""Temperature of Sinkhorn's log-sum-exp."""
_NAME = re.compile(r"pairs-(\w+)-n(\d+)-d(\d+)-(\w+)")


@dataclass(frozen=True)
class Pairs(Workload):
    """A reduction over all pairs of n points x and n points y in d dimensions. `order`: "values" o; "gradients": those
    of sum(o * G) by all inputs; "second": the gradient by x of the squared norm of the gradient by x."""

    kind = "pairs"
    has_reference = True

    order: str = "values"
    points: int = 0

    @property
    def rows(self) -> np.ndarray:
        """The rows of results that are verified."""
        return np.random.default_rng(2).permutation(self.points)[:SAMPLE]


def orders(kind: str, points: int) -> tuple[str, ...]:
    """The orders that are timed: of indices and of the variance of distances the values, second order up to 10^4
    points."""
    if kind in _WITHOUT_WEIGHTS:
        return ORDERS[:1]
    return ORDERS if points <= POINTS[0] else ORDERS[:2]


def pairs(kind: str, points: int, dimension: int, order: str = "values") -> Pairs:
    """The problem. Coordinates have the variance 1/d, so that distances are about 1.4 whatever the dimension. Floor:
    d + 1 multiply-adds a pair, four times as many with gradients, eight times for second order."""
    values = {"sinkhorn": (points,), "nearest": (), "variance": ()}.get(kind, (points, 1))
    times = {"values": 1, "gradients": 4, "second": 8}[order]
    inputs = ("X", "Y") if kind in _WITHOUT_WEIGHTS else ("X", "Y", "B")
    results = {"values": ("o",), "gradients": tuple(f"d{n}" for n in inputs), "second": ("ddX",)}[order]

    def make() -> dict[str, np.ndarray]:
        rng = np.random.default_rng(17)
        scale = np.float32(dimension**-0.5)
        out = {n: scale * rng.standard_normal((points, dimension), np.float32) for n in "XY"}
        if kind not in _WITHOUT_WEIGHTS:
            out["B"] = rng.standard_normal(values, np.float32)
            out["G"] = rng.standard_normal(values, np.float32)
        return out

    name, flops = f"pairs-{kind}-n{points}-d{dimension}-{order}", times * 2 * points**2 * (dimension + 1)
    how: dict[str, Any] = {"training": False, "inputs": inputs, "order": order, "points": points}
    return Pairs(name, kind, points, flops, results, make, **how)


def named(name: str) -> Pairs | None:
    """The problem of that name; None where it is no kernel method's."""
    match = _NAME.fullmatch(name)
    return pairs(match[1], int(match[2]), int(match[3]), match[4]) if match else None


def draw(seed: int, number: int) -> Pairs:
    """Case `number` of a seed: 500 to 20 000 points in 1 to 128 dimensions."""
    rng = np.random.default_rng((seed, number))
    kind = KINDS[int(rng.integers(len(KINDS)))]
    points, dimension = (int(np.exp(rng.uniform(np.log(a), np.log(b)))) for a, b in ((500, 20_000), (1, 129)))
    possible = orders(kind, points)
    return pairs(kind, points, dimension, possible[int(rng.integers(len(possible)))])


def sampled(problem: Pairs, arrays: dict[str, np.ndarray], results: list[np.ndarray]) -> dict[str, np.ndarray]:
    """The verified rows of results. Of nearest neighbours the squared distances in float64: float32 may choose another
    of two that are equally near but for rounding."""
    rows = problem.rows
    out = {n: np.asarray(r)[rows] for n, r in zip(problem.results, results, strict=True)}
    if problem.network == "nearest":
        chosen = arrays["Y"][out["o"].reshape(-1)].astype(np.float64)
        out["o"] = np.square(arrays["X"][rows].astype(np.float64) - chosen).sum(1)
    return out


def fit(problem: Any, peers: list[str]) -> list[str]:
    """Return the peers that can run a problem: torch.compile has no second derivatives."""
    return [p for p in peers if p != "compile" or problem.order != "second"]


def cases(args: argparse.Namespace) -> dict[str, Pairs]:
    """Return the problems that the arguments ask for. Raises ValueError."""
    kinds, wanted = args.kinds.split(","), args.orders.split(",") if args.orders else ORDERS
    points = args.points or (POINTS if args.all else POINTS[:1])
    dimensions = args.dimensions or (DIMENSIONS if args.all else DIMENSIONS[:1])
    if not set(kinds) <= set(KINDS) or not set(wanted) <= set(ORDERS) or min(*points, *dimensions, args.count, 2) < 1:
        raise ValueError(
            f"--kinds are of {', '.join(KINDS)}, --orders of {', '.join(ORDERS)}; --points, --dimensions and --count "
            "are at least 1"
        )
    chosen = [pairs(k, n, d, o) for n in points for d in dimensions for k in kinds for o in orders(k, n) if o in wanted]
    if args.seed is not None:
        chosen = [draw(args.seed, n) for n in range(args.count)]
    elif not (args.all or args.orders):
        chosen = [c for c in chosen if c.order != "second" or c.network == "gaussian"]
    return {c.name: c for c in chosen}


OPTIONS: Options = {
    "all": (False, "all points, dimensions and orders"), "kinds": (",".join(KINDS), "comma-separated"),
    "orders": ("", f"of {','.join(ORDERS)}"), "points": ([int], "of each cloud"), "dimensions": ([int], "of a point"),
    "seed": (int, "draw the cases"), "count": (8, "how many are drawn"),
}  # fmt: skip

if __name__ == "__main__":
    title = "Times kernel methods over clouds of points."
    sys.exit(run(title, cases, None, ("torch", "compile", "keops"), fit, defaults=QUICK, options=OPTIONS))
