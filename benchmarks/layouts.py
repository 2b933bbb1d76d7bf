"""What do other layouts gain? python -m benchmarks.layouts NETWORK-bBATCH ... [--kernels 6] [--threads 2] [--bounds]

The experiment behind the margins of `einsmith/schedule/layout/price.py`. Of each network's training step it takes the
kernels that gain the most, by the model, from other orders of their tensors (tensors of one shape share one order;
what the neighbouring kernels would lose is left out), and measures each of them in both orders.

With `--bounds` nothing is measured: a table bounds, from predicted times of whole plans, what each kind of layout could
gain on each network (`bounds`).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import driver, plans
from benchmarks.driver import Parser

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
    from einsmith.schedule.layout.apply import BufferMove, move_kernel
    from einsmith.schedule.layout.order import candidates, placement_of

    shapes = [s for s in dict.fromkeys(b.shape for b in kernel.buffers) if len(candidates(s)) > 1][:SHAPES]
    for orders in product(*map(candidates, shapes)):
        of = dict(zip(shapes, orders, strict=True))
        moves = {
            n: BufferMove(0, placement_of(b.shape, of[b.shape])) for n, b in enumerate(kernel.buffers) if b.shape in of
        }
        reordered = move_kernel(kernel, moves)
        if reordered is not None:
            yield reordered[0]


def promising(kernels: Mapping[Any, int], target: Any, count: int) -> list[tuple[Any, Any]]:
    """(choice as it is, choice in the best orders) of the kernels that would gain most. `kernels`: runs of each."""
    from einsmith.base.errors import CompileError
    from einsmith.kernels import autoconfig
    from einsmith.schedule.kernel import Rows

    total = sum(autoconfig.choose(k, target).cost.seconds * n for k, n in kernels.items())
    gains = []
    for k, n in kernels.items():
        now = best = autoconfig.choose(k, target)
        if isinstance(k, Rows) or now.cost.seconds * n < SHARE * total:
            continue
        for other in in_orders(k):
            try:
                best = min(best, autoconfig.choose(other, target), key=lambda c: c.cost.seconds)
            except CompileError:
                continue  # no pattern takes it so
        gains.append((n * (now.cost.seconds - best.cost.seconds), now, best))
    gains.sort(key=lambda x: -x[0])
    return [(now, best) for gain, now, best in gains[:count] if gain > 0]


def measure(network: str, threads: int, count: int) -> list[Found]:
    """The kernels of a network's training step that would gain most by the model."""
    import einsmith as es
    from benchmarks.models import TRAINING
    from benchmarks.peers import einsmith_networks
    from einsmith.schedule.layout import forced
    from einsmith.tuning.kernels.measure import example_buffers, prepare, shortest

    es.set_threads(threads)
    problem: Any = TRAINING[network]
    trainer = einsmith_networks.build(problem, problem.arrays(), threads, "einsmith").trainer
    with forced.forcing(lambda t, orders: orders[0]):
        trainer.compile(*problem.inputs_and_targets())
    (run,) = trainer.compiler.programs.values()
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


WHOLE = 256
"""Size of images whose feature maps are whole vectors after five strides of 2; those of 224 are not."""
POOLED = ("resnet18", "resnet50", "mobilenet_v1", "mobilenet_v2", "shufflenet_v1", "efficientnet_lite0")
"""Networks of images of 224 that take other sizes too."""


class Bounds(NamedTuple):
    """The most that layouts can gain on a training step, as fractions of its predicted time.

    orders: what the layout pass gains. whole: gain per pixel where feature maps are whole vectors, which bounds padded
    lanes and channels in blocks of a vector; None for networks without images. borders: excess of kernels with guarded
    windows over their arithmetic at peak rate and their traffic, which bounds zero halos. phases: the same excess of
    kernels that store phases of a stride, which bounds phase-major storage."""

    seconds: float
    orders: float
    whole: float | None
    borders: float
    phases: float


def bounds(network: str, threads: int) -> Bounds:
    """Return the most that each kind of layout can gain on a network's training step, by the cost model."""
    from benchmarks.models import TRAINING
    from einsmith.ir.nodes import Piece, Reduce, cached_postorder
    from einsmith.kernels import autoconfig
    from einsmith.passes.pipeline import deciding
    from einsmith.schedule.layout.price import _lower_bound
    from einsmith.schedule.pipeline import LAYOUTS

    problem: Any = TRAINING[network]
    run = plans.planned(problem, threads)
    plan, target = run.plan, run.target
    seconds = plans.seconds_of(run)
    with deciding(frozenset({f"without {LAYOUTS}"})):
        unordered = plans.seconds_of(plans.planned(problem, threads))
    whole = None
    if problem.network in POOLED:  # the others' last layers take one size only
        larger = replace(problem, sample=(problem.sample[0], WHOLE, WHOLE))
        whole = 1 - plans.seconds_of(plans.planned(larger, threads)) * (problem.sample[-1] / WHOLE) ** 2 / seconds
    borders = phases = 0.0
    for _, call, times in plan.kernel_calls():
        members = call.kernel.parts
        for k in members:
            sums = [p for p in k.root.parts if isinstance(p, Piece) and isinstance(p.body, Reduce)]
            excess = times * max(0.0, autoconfig.choose(k, target).cost.seconds - _lower_bound(k, target))
            if any(_is_guard(e) for p in sums for e in cached_postorder(p.bodies)):
                borders += excess
            if sums and any(n > 1 for p in sums for n in p.step):
                phases += excess
    return Bounds(seconds, unordered / seconds - 1, whole, borders / seconds, phases / seconds)


def _is_guard(e: Any) -> bool:
    """Return whether an expression is zero outside of a condition that reads nothing, as at the border of an image."""
    from einsmith.ir.nodes import Apply, is_zero, reads

    return isinstance(e, Apply) and e.fn == "where" and is_zero(e.args[2]) and not any(reads(e.args[0]))


def bounds_table(of: Mapping[str, Bounds]) -> Table:
    rows = (
        (network, f"{1e3 * x.seconds:.2f}", *("-" if share is None else f"{100 * share:.1f}" for share in x[1:]))
        for network, x in of.items()
    )
    columns = ("", "ms", "orders", "whole vectors", "zero halos", "phases")
    return driver.table("most that layouts can gain, in % of a step's predicted time", columns, rows)


def table(every: list[Found]) -> Table:
    from einsmith.kernels.pattern import describe

    def row(x: Found) -> tuple[str, ...]:
        us = [f"{1e6 * a:.0f} -> {1e6 * b:.0f}" for a, b in (x.predicted, x.measured)]
        expected, real = x.gains
        color = "green" if real >= expected else "red"
        return x.network, describe(x.kernel), *us, f"[{color}]{expected:.2f}, {real:.2f}[/]"

    columns = ("", "kernel", "predicted us", "measured us", "gains")
    title = "kernels in other orders of their tensors' dimensions"
    return driver.table(title, columns, map(row, every), text=("kernel",))


def main() -> int:
    """Measure, or bound, what layouts gain; return the exit status."""
    parser = Parser(
        __doc__, (), kernels=(6, "of a network"), threads=(2, ""),
        bounds=(False, "bound what each kind of layout could gain, by the model"),
    )  # fmt: skip
    args, console = parser.read(), Console(width=200)
    if args.bounds:
        console.print(bounds_table({n: bounds(n, args.threads) for n in args.names}))
        return 0
    every = [x for n in args.names for x in measure(n, args.threads, args.kernels)]
    console.print(table(every))
    if every:
        parts = [real / expected for expected, real in (x.gains for x in every)]
        low, middle, high = np.percentile(parts, [10, 50, 90])
        console.print(f"measured gains over predicted ones: {low:.2f}, {middle:.2f}, {high:.2f} (10, 50, 90 %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
