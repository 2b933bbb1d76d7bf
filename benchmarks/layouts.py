"""What do other orders of dimensions gain? python -m benchmarks.layouts NETWORK-bBATCH ... [--kernels 6] [--threads 2]

The experiment behind the doubts of `einsmith/schedule/layout/price.py`. Of each network's training step it takes the
kernels that gain the most, by the model, from other orders of their tensors (tensors of one shape share one order;
what the neighbouring kernels would lose is left out), and measures each of them in both orders.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

SHAPES = 4
"""Shapes of a kernel's tensors whose orders are tried, at most."""
SHARE = 0.002
"""The part of a step that a kernel takes, at least."""
SECONDS = 0.5
"""For measuring a kernel."""


class Found(NamedTuple):
    """A kernel, in those of its orders that are predicted to be the best; seconds, those that are predicted and those
    that were measured, each as it is and in other orders."""

    network: str
    kernel: Any
    other: Any
    predicted: tuple[float, float]
    measured: tuple[float, float]

    @property
    def gains(self) -> tuple[float, float]:
        """How many times as fast it is in other orders, as predicted and as measured."""
        return self.predicted[0] / self.predicted[1], self.measured[0] / self.measured[1]


def in_orders(kernel: Any) -> Iterator[Any]:
    """The kernel with the tensors of some shapes in other orders."""
    from einsmith.schedule.kernel import Kernel
    from einsmith.schedule.layout.order import candidates, reorder

    shapes = [s for s in dict.fromkeys(b.shape for b in kernel.buffers) if len(candidates(s)) > 1][:SHAPES]
    for orders in product(*map(candidates, shapes)):
        of: Mapping[tuple[int, ...], tuple[int, ...]] = dict(zip(shapes, orders, strict=True))
        found = [reorder(b, 0, b.shape, of[b.shape]) if b.shape in of else (b, 0) for b in kernel.buffers]
        yield Kernel(kernel.stages, tuple(x[0] for x in found if x is not None), kernel.loop_invariant)


def promising(kernels: Mapping[Any, int], target: Any, count: int) -> list[tuple[Any, Any]]:
    """(choice as it is, choice in the best orders) of the kernels that would gain most. `kernels`: runs of each."""
    from einsmith.base.errors import CompileError
    from einsmith.kernels import autoconfig
    from einsmith.schedule.kernel import Kernel

    total = sum(autoconfig.choose(k, target).cost.seconds * n for k, n in kernels.items())
    found = []
    for k, n in kernels.items():
        now = best = autoconfig.choose(k, target)
        if not isinstance(k, Kernel) or now.cost.seconds * n < SHARE * total:
            continue
        for other in in_orders(k):
            try:
                best = min(best, autoconfig.choose(other, target), key=lambda c: c.cost.seconds)
            except CompileError:
                continue  # no pattern takes it so
        found.append((n * (now.cost.seconds - best.cost.seconds), now, best))
    found.sort(key=lambda x: -x[0])
    return [(now, best) for gain, now, best in found[:count] if gain > 0]


def measure(network: str, threads: int, count: int) -> list[Found]:
    """The kernels of a network's training step that would gain most by the model."""
    import einsmith as es
    from benchmarks.models import TRAINING, in_einsmith
    from einsmith.schedule.layout import forced
    from einsmith.tuning.kernels.measure import example_buffers, prepare, shortest

    es.set_threads(threads)
    problem = TRAINING[network]
    session = in_einsmith.Training(problem, problem.arrays(), threads)  # type: ignore[arg-type]
    with forced.forcing(lambda t, orders: orders[0]):
        session._step.compile(session.x, session.y)
    (run,) = session._step._programs.values()
    kernels: Counter = Counter()
    for call, turns in zip(run.calls, run.turns, strict=True):
        kernels[call.kernel] += turns
    out = []
    for now, best in promising(kernels, run.target, count):
        ready = [
            prepare(c.kernel, c.pattern, c.config, run.target, threads, example_buffers(c.kernel)) for c in (now, best)
        ]
        first, second = shortest(ready, SECONDS)
        predicted = now.cost.seconds, best.cost.seconds
        out.append(Found(network, now.kernel, best.kernel, predicted, (first, second)))
    return out


def table(found: list[Found]) -> Table:
    from einsmith.kernels.pattern import describe

    out = Table(title="kernels in other orders of their tensors' dimensions")
    for name in ("", "kernel", "predicted us", "measured us", "gains"):
        out.add_column(name, justify="left" if name in ("", "kernel") else "right")
    for x in found:
        us = [f"{1e6 * a:.0f} -> {1e6 * b:.0f}" for a, b in (x.predicted, x.measured)]
        told, real = x.gains
        color = "green" if real >= told else "red"
        out.add_row(x.network, describe(x.kernel), *us, f"[{color}]{told:.2f}, {real:.2f}[/]")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--kernels", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    found = [x for n in given.networks for x in measure(n, given.threads, given.kernels)]
    console = Console(width=200)
    console.print(table(found))
    if found:
        parts = [real / told for told, real in (x.gains for x in found)]
        low, middle, high = np.percentile(parts, [10, 50, 90])
        console.print(f"measured gains over predicted ones: {low:.2f}, {middle:.2f}, {high:.2f} (10, 50, 90 %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
