"""How far the kernels that are chosen are from the best partition: python -m benchmarks.partitions --json FILE

For small graphs drawn at random, and the training graphs of the gallery's small formulas, every legal partition into
kernels is priced by the model of cost (see tests/passes/partitions.py); printed is how many times as long the chosen
plan takes, by those prices, and where it is off most. Nothing is run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.gallery_compile import differentiated
from benchmarks.report import asked, begin, store

GRAPHS = 300
MEDIAN, MOST = 1.05, 1.2
"""What is asked of the plans: in the median, and at worst."""
NODES = 9
"""Tensors of a training graph that is small."""


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


def table(cells: dict[str, dict[str, Any]], count: int) -> Table:
    """The cases that are off most."""
    out = Table(title="chosen partitions, and the best ones")
    for name in ("", "us", "best", "times", "kernels", "best", "partitions priced"):
        out.add_column(name, justify="right" if name else "left")
    for name, c in sorted(cells.items(), key=lambda x: -x[1]["chosen"] / x[1]["best"])[:count]:
        us = [f"{1e6 * c[k]:.1f}" for k in ("chosen", "best")]
        out.add_row(name, *us, f"{c['chosen'] / c['best']:.3f}", *map(str, c["kernels"]), str(c["priced"]))
    return out


def main() -> int:
    from tests.passes.drawn_graphs import drawn

    parser = argparse.ArgumentParser(description="Compares chosen partitions into kernels with the best ones.")
    parser.add_argument("--graphs", type=int, default=GRAPHS, help="how many are drawn at random")
    parser.add_argument("--shown", type=int, default=20, help="how many of those that are off most are printed")
    parser.add_argument("--json", type=Path, help="results are kept here; what it holds already is not run again")
    args = parser.parse_args()
    _, console, results = begin(args.json, 140, timing=False)
    cells: dict[str, dict[str, Any]] = results["cells"]
    for name, make in [*((f"graph {n}", lambda n=n: drawn(n)) for n in range(args.graphs)),
                       *((name, lambda g=g: g) for name, g in gallery())]:  # fmt: skip
        if name not in cells:
            cells[name] = measured(make())
            store(args.json, results)
    console.print(table(cells, args.shown))
    verdicts = []
    for kind, of in (("graphs drawn at random", True), ("training graphs of the gallery", False)):
        found = [c["chosen"] / c["best"] for n, c in cells.items() if n.startswith("graph ") == of]
        if found:
            middle, high, most = statistics.median(found), float(np.percentile(found, 95)), max(found)
            verdicts.append((f"{len(found)} {kind}, median", f"{middle:.3f}", f"{MEDIAN}", middle <= MEDIAN))
            verdicts.append((f"{kind}, 95 of 100", f"{high:.3f}", "", None))
            verdicts.append((f"{kind}, at worst", f"{most:.3f}", f"{MOST}", most <= MOST))
    console.print(asked("partitions", verdicts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
