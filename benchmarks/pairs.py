"""Kernel methods over point clouds beside KeOps and PyTorch: python -m benchmarks.pairs [--kinds K,...] [--all]

Kernel sums, Sinkhorn's log-sum-exp, nearest neighbours and variances, values, gradients and second order. A sample of
the rows of every result is verified in float64 before anything is timed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from benchmarks import chosen_cases
from benchmarks.pair_problems import DIMENSIONS, KINDS, ORDERS, POINTS, Pairs, draw, orders, pairs
from benchmarks.problem import Workload

PEERS = ("torch", "compile", "keops")
QUICK_SECONDS = 150.0
"""No quick case begins after this time."""


def fit(problem: Workload, peers: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the peers that can run a problem, and a word on each of the others."""
    assert isinstance(problem, Pairs)
    lacking = {}
    if find_spec("pykeops") is None:
        lacking["keops"] = "pykeops is not installed"
    if problem.order == "second":
        lacking["compile"] = "torch.compile has no second derivatives"
    return [p for p in peers if p not in lacking], [f"{p}: {lacking[p]}" for p in peers if p in lacking]


def main(argv: Sequence[str] | None = None) -> int:
    parser = chosen_cases.parser("Times kernel methods over clouds of points.", PEERS)
    parser.add_argument("--kinds", default="", help=f"comma-separated: {', '.join(KINDS)}")
    parser.add_argument("--orders", default="", help=f"comma-separated: {', '.join(ORDERS)}")
    parser.add_argument("--points", type=int, action="append", help=f"can be repeated; {POINTS}, quick: 10000")
    parser.add_argument("--dimensions", type=int, action="append", help=f"can be repeated; {DIMENSIONS}, quick: 3")
    args = parser.parse_args(argv)
    kinds, wanted = args.kinds.split(",") if args.kinds else KINDS, args.orders.split(",") if args.orders else ORDERS
    if not set(kinds) <= set(KINDS) or not set(wanted) <= set(ORDERS):
        parser.error(f"--kinds are of {', '.join(KINDS)}, --orders of {', '.join(ORDERS)}")
    points = args.points or (POINTS if args.all else POINTS[:1])
    dimensions = args.dimensions or (DIMENSIONS if args.all else DIMENSIONS[:1])
    if min(*points, *dimensions, 2) < 1:
        parser.error("--points and --dimensions are at least 1")
    cases = [
        pairs(k, n, d, o) for n in points for d in dimensions for k in kinds for o in orders(k, n) if o in wanted
    ]  # fmt: skip
    if args.seed is not None:
        cases = [draw(args.seed, n) for n in range(args.count)]
    elif not (args.all or args.orders):
        cases = [c for c in cases if c.order != "second" or c.network == "gaussian"]
    return chosen_cases.run(args, parser, cases, PEERS, fit, QUICK_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
