"""Which limits of fusion decide anything? python -m benchmarks.limits NETWORK-bBATCH ...

Kernels are chosen by predicted time; what code need not grow to is limited by constants. Of each network's training
step: the predicted seconds of its plan with each of these halved and doubled, where that changes the plan.
Nothing is run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from rich.console import Console

from benchmarks import plans
from benchmarks.driver import Parser, table

LIMITS = (
    ("schedule.fusion", "_MAX_BUFFERS"), ("schedule.fusion", "MAX_STAGES"), ("schedule.row_fusion", "MAX_MEMBERS"),
    ("schedule.row_fusion", "_MAX_BUFFERS"), ("schedule.row_fusion", "_MAX_SHARED_RATIO"),
    ("schedule.row_clusters", "_MAX_RECENT"), ("schedule.repeat_products", "_MAX_WORK"),
    ("passes.algebra.inline", "_MAX_OPERATIONS"), ("passes.algebra.recompute", "MAX_OPERATIONS"),
    ("passes.algebra.recompute", "MAX_SIZE_RATIO"), ("passes.algebra.horizontal_fusion", "_MAX_SUMS"),
)  # fmt: skip
"""Modules of `einsmith`, and their constants."""


def planned(name: str) -> tuple[float, int]:
    """Predicted seconds and calls of the plan of a network's training step."""
    from benchmarks.models import TRAINING

    run = plans.planned(TRAINING[name], 2)
    return plans.seconds_of(run), len(run.plan.calls)


@contextmanager
def changed(module: str, name: str, factor: float) -> Iterator[None]:
    """A limit multiplied by a factor, in its module and in those that have imported it."""
    owner = import_module(f"einsmith.{module}")
    value = getattr(owner, name)
    users = [m for n, m in sys.modules.items() if n.startswith("einsmith.") and m.__dict__.get(name) is value]
    users = [m for m in users if m is owner or not name.startswith("_")]
    for m in users:
        setattr(m, name, type(value)(value * factor))
    try:
        yield
    finally:
        for m in users:
            setattr(m, name, value)


def changes(network: str) -> Iterator[tuple[str, ...]]:
    """Yield a row for a network's plan as it is, and one for each change of a limit that changes it."""
    seconds, calls = planned(network)
    yield network, "as they are", f"{seconds * 1e3:.3f}", "", str(calls)
    for module, name in LIMITS:
        for factor in (0.5, 2.0):
            with changed(module, name, factor):
                other, count = planned(network)
            if (other, count) != (seconds, calls):
                limit = f"{module.rpartition('.')[2]}.{name} x {factor:g}"
                yield "", limit, f"{other * 1e3:.3f}", f"{100 * (other / seconds - 1):+.2f} %", str(count)


def main() -> int:
    """Plan the networks' steps; return the exit status."""
    from einsmith.tuning.calibration import calibrate

    args = Parser(__doc__, ()).read()
    calibrate.target()
    rows = [row for network in args.names for row in changes(network)]
    columns = ("", "limit", "ms", "difference", "calls")
    Console().print(table("plans that a limit changes", columns, rows, text=("limit",)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
