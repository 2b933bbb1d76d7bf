"""What do other layouts gain? python -m benchmarks.layouts NETWORK-bBATCH ... [--kernels 6] [--threads 2] [--bounds]
                                                           [--parameters]

The experiment behind the margins of `einsmith/schedule/layout/price.py`. Of each network's training step it takes the
kernels that gain the most, by the model, from other orders of their tensors (tensors of one shape share one order;
what the neighbouring kernels would lose is left out), and measures each of them in both orders.

With `--bounds` nothing is measured: a table bounds, from predicted times of whole plans, what each kind of layout could
gain on each network (`bounds`).

With `--parameters` whole training steps are measured, on one thread by its processor time: as they are, with each
parameter in each other order, with all orders together that are faster, and without any packing of parameters, which
bounds what their order can gain.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
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


def in_orders(kernel: Any) -> Iterator[tuple[Mapping[tuple[int, ...], Any], Any]]:
    """(orders by shape, kernel in them) of the kernel with the tensors of some shapes in other orders."""
    from einsmith.schedule.layout.apply import BufferMove, move_kernel
    from einsmith.schedule.layout.dimension_orders import candidates, placement_of

    shapes = [s for s in dict.fromkeys(b.shape for b in kernel.buffers) if len(candidates(s)) > 1][:SHAPES]
    for orders in product(*map(candidates, shapes)):
        of = dict(zip(shapes, orders, strict=True))
        moves = {
            n: BufferMove(0, placement_of(b.shape, of[b.shape])) for n, b in enumerate(kernel.buffers) if b.shape in of
        }
        reordered = move_kernel(kernel, moves)
        if reordered is not None:
            yield of, reordered[0]


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
        for _, other in in_orders(k):
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
    trainer = einsmith_networks.EinsmithTraining(problem, problem.arrays(), threads).trainer
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


class Ordered(NamedTuple):
    """A parameter in another order, and what a step then takes, as parts of its time: predicted and measured."""

    decision: str
    shape: tuple[int, ...]
    predicted: float
    measured: float


FASTER = 0.99
"""Part of the time of a step from which on a parameter's order counts as faster: 1 % repeats from run to run."""


ROUNDS = 10
"""Steps of each form between two restorations of what they store."""


def processor_seconds(runs: Mapping[str, Any], inputs: Any, seconds: float = 2.0) -> dict[str, float]:
    """Return the least processor time of a run of each program, in turns on this thread; stores are undone."""
    times = dict.fromkeys(runs, float("inf"))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or float("inf") in times.values():
        with ExitStack() as stack:  # training on one batch would end in numbers that are not finite
            for run in runs.values():
                stack.enter_context(run.preserve())
            for _ in range(ROUNDS):
                for name, run in runs.items():
                    start = time.thread_time()
                    run(inputs)
                    times[name] = min(times[name], time.thread_time() - start)
    return times


def order_parameters(network: str) -> tuple[float, float, float, list[Ordered]]:
    """Return the processor seconds of a network's training step as it is, with all parameters in the orders that are
    faster, and without packing of parameters; and each order that was tried."""
    import einsmith as es
    from benchmarks.models import TRAINING
    from einsmith.tuning.programs import graph_search

    es.set_threads(1)
    step, batch = plans.begun(TRAINING[network], 1)
    step.compile(*batch)
    run, arrays = plans.program_of(step), step.read_batch(batch)
    step.parts.set_numbers(arrays)
    total, shares = plans.seconds_of(run), graph_search._shares(run)
    tried: list[Ordered] = []
    for decision, (x,), more in graph_search._leaf_losses(run):
        if shares.get(x, 0.0) < graph_search.MIN_SHARE or any(decision == o.decision for o in tried):
            continue
        times = processor_seconds({"": run, decision: run.compile_deciding(frozenset({decision}))}, arrays)
        tried.append(Ordered(decision, x.shape, 1 + more / total, times[decision] / times[""]))
    best: dict[str, Ordered] = {}
    for o in tried:
        name = o.decision.split()[1]
        if o.measured < min(FASTER, best[name].measured if name in best else FASTER):
            best[name] = o
    with plans.without_packing(of_leaves=True):
        free = run.source.compile(run, ())
    forms = {"": run, "free": free}
    if best:
        forms["best"] = run.compile_deciding(frozenset(o.decision for o in best.values()))
    times = processor_seconds(forms, arrays)
    return times[""], times.get("best", times[""]), times["free"], tried


def parameters_table(name: str) -> Table:
    now, best, free, tried = order_parameters(name)
    rows = [("", "", "", f"{1e3 * now:.4g} ms"), ("", "orders that are faster", "", f"{1e3 * best:.4g} ms")]
    rows.append(("", "no packing", "", f"{1e3 * free:.4g} ms"))
    rows += [(f"{o.shape}", o.decision.split()[2], f"{o.predicted:.3f}", f"{o.measured:.3f}") for o in tried]
    title = f"{name}: parameters in other orders, parts of the step's time"
    return driver.table(title, ("parameter", "order", "predicted", "measured"), rows, text=("order",))


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
        parameters=(False, "measure steps with parameters in other orders"),
    )  # fmt: skip
    args, console = parser.read(), Console(width=200)
    if args.bounds:
        console.print(bounds_table({n: bounds(n, args.threads) for n in args.names}))
        return 0
    if args.parameters:
        for name in args.names:
            console.print(parameters_table(name))
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
