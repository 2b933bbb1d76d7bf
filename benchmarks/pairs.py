"""Kernel methods over point clouds beside KeOps and PyTorch: python -m benchmarks.pairs [--kinds K,...] [--all]

Kernel sums, Sinkhorn's log-sum-exp, nearest neighbours and variances, values, gradients and second order. A sample of
the rows of every result is verified in float64 before anything is timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.pair_problems import DIMENSIONS, KINDS, ORDERS, POINTS, draw, orders, pairs
from benchmarks.report import QUICK, run


def fit(problem: Any, peers: list[str]) -> list[str]:
    """Return the peers that can run a problem: torch.compile has no second derivatives."""
    return [p for p in peers if p != "compile" or problem.order != "second"]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--orders", default="")
    parser.add_argument("--points", type=int, action="append")
    parser.add_argument("--dimensions", type=int, action="append")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--count", type=int, default=8)
    args, others = parser.parse_known_args(argv)
    kinds, wanted = args.kinds.split(","), args.orders.split(",") if args.orders else ORDERS
    points = args.points or (POINTS if args.all else POINTS[:1])
    dimensions = args.dimensions or (DIMENSIONS if args.all else DIMENSIONS[:1])
    if not set(kinds) <= set(KINDS) or not set(wanted) <= set(ORDERS) or min(*points, *dimensions, args.count, 2) < 1:
        parser.error(
            f"--kinds are of {', '.join(KINDS)}, --orders of {', '.join(ORDERS)}; --points, --dimensions and --count "
            "are at least 1"
        )
    cases = [pairs(k, n, d, o) for n in points for d in dimensions for k in kinds for o in orders(k, n) if o in wanted]
    if args.seed is not None:
        cases = [draw(args.seed, n) for n in range(args.count)]
    elif not (args.all or args.orders):
        cases = [c for c in cases if c.order != "second" or c.network == "gaussian"]
    title = f"""Times kernel methods over clouds of points. Cases: --kinds of {",".join(KINDS)}; --orders of
        {",".join(ORDERS)}; --points and --dimensions, which can be repeated; --all; or --count drawn from --seed."""
    return run(title, {c.name: c for c in cases}, others, ("torch", "compile", "keops"), fit, defaults=QUICK)


if __name__ == "__main__":
    sys.exit(main())
