"""How far the kernels that are chosen are from the best partition: python -m tests.passes.partition_costs --json FILE

For small graphs drawn at random, and the training graphs of the gallery's small formulas, every legal partition into
kernels is priced by the model of cost (see tests/passes/partitions.py); printed is how many times as long the chosen
plan takes, by those prices, and where it is off most. Nothing is run.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from benchmarks.driver import KEPT, Parser, Results, asked, table
from tests.passes.drawn_graphs import drawn

GRAPHS = 300
MEDIAN, MOST = 1.05, 1.2
"""What is asked of the plans: in the median, and at worst."""
NODES = 9
"""Tensors of a training graph that is small."""


def differentiated() -> Iterator[tuple[str, Any, tuple[np.ndarray, ...]]]:
    """(entry, the squares of its result with their gradients as a function, its arguments) of every entry."""
    import einsmith as es
    from tests.gallery.entries import ENTRIES

    rng = np.random.default_rng(0)
    for entry in ENTRIES:
        op = es.op(entry.formula, extents=entry.extents)
        given = entry.inputs(entry.cases[-1], rng)
        arrays = {n: given[n] for n in op.inputs}
        parameters = entry.parameters(entry.cases[-1])
        floats = [n for n, a in arrays.items() if a.dtype.kind == "f"]
        x = tuple(arrays[n].astype(np.float32) for n in floats)

        def f(*x, op=op, arrays=arrays, floats=floats, parameters=parameters):
            y = op(**{**arrays, **dict(zip(floats, x, strict=True))}, **parameters)
            return (y * y).sum()

        yield entry.name, es.value_and_grad(f, tuple(range(len(x)))), x


def gallery() -> Iterator[tuple[str, Any]]:
    """(name, training graph) of the entries whose gradients are a few tensors."""
    from einsmith.api.tracing import trace_call
    from einsmith.ir.loop import LoweredLoop
    from einsmith.ir.nodes import Compute, Recurrence, postorder
    from einsmith.ir.views import is_view
    from tests.passes.partitions import unfused

    for name, both, x in differentiated():
        graph = trace_call(both.traced, x, {}).graph
        nodes = list(postorder(unfused(graph).roots))
        made = [n for n in nodes if isinstance(n, Compute) and not is_view(n.template)]
        if len(made) <= NODES and not any(isinstance(n, Recurrence | LoweredLoop) for n in nodes):
            yield name, graph


def measured(graph: Any) -> dict[str, Any]:
    """The predicted seconds and the kernels of the plan that is chosen for a graph, and of the best one."""
    from einsmith.cost.facts import Target
    from tests.passes.partitions import Best, chosen, seconds_of

    target = Target(cpu="x86-64-v3", features="", triple="x86_64-unknown-linux-gnu", cores=2)
    start = time.process_time()
    best = Best(target)
    plan = chosen(graph, target)
    seconds, kernels = best.of(graph)
    return {
        "chosen": seconds_of(plan, best.price),
        "best": seconds,
        "kernels": [sum(1 for _ in plan.kernel_calls()), len(kernels)],
        "priced": len(best.kernels),
        "took": time.process_time() - start,
    }


def rows(cells: dict[str, dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the table, the cases that are off most first."""
    for name, c in sorted(cells.items(), key=lambda x: -x[1]["chosen"] / x[1]["best"]):
        us = [f"{1e6 * c[k]:.1f}" for k in ("chosen", "best")]
        yield name, *us, f"{c['chosen'] / c['best']:.3f}", *c["kernels"], c["priced"]


def main() -> int:
    """Price the partitions; return the exit status."""
    parser = Parser(
        __doc__, graphs=(GRAPHS, "how many are drawn at random"), json=KEPT,
        shown=(20, "how many of those that are off most are printed"),
    )  # fmt: skip
    args = parser.read()
    results = Results(args.json, 140, timing=False)
    graphs = {f"graph {n}": partial(drawn, n) for n in range(args.graphs)}
    every = (*graphs.items(), *((name, lambda g=g: g) for name, g in gallery()))
    cells = results.fill((name, lambda make=make: measured(make())) for name, make in every)
    columns = ("", "us", "best", "times", "kernels", "best", "partitions priced")
    title = "chosen partitions, and the best ones"
    results.console.print(table(title, columns, islice(rows(cells), args.shown)))
    verdicts = []
    for kind, of in (("graphs drawn at random", True), ("training graphs of the gallery", False)):
        times = [c["chosen"] / c["best"] for n, c in cells.items() if n.startswith("graph ") == of]
        if times:
            middle, high, most = statistics.median(times), float(np.percentile(times, 95)), max(times)
            verdicts.append((f"{len(times)} {kind}, median", f"{middle:.3f}", f"{MEDIAN}", middle <= MEDIAN))
            verdicts.append((f"{kind}, 95 of 100", f"{high:.3f}", "", None))
            verdicts.append((f"{kind}, at worst", f"{most:.3f}", f"{MOST}", most <= MOST))
    results.console.print(asked("partitions", verdicts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
