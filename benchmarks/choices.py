"""Measure the loss of choices of configurations: how much longer the chosen ones take than the best of others.

For each kernel every algorithm (pattern) that takes it is measured in a spread of its configurations, from the best
predicted to the worst. The regret is the measured time of the choice over the best measured one, less 1.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.driver import Verdicts
from benchmarks.kernel_cases import Case

REGRET, MOST_REGRET, CHOOSE_SECONDS = 0.05, 0.20, 5e-3
"""The regret's median and its 95th percentile at most, and the CPU time of one choice."""
SHOWN = 10
"""Cases of which the choice is told."""


def calls_of(case: Case, types: Sequence[Any] = ()) -> tuple[list[Any], dict[Any, str]]:
    """The kernels that are launched for a case, once the passes are done, and the names of the inputs.

    types: of the arguments in order and of the results, which are computed in the type of the latter's arithmetic;
    float32 if not told.
    """
    from benchmarks.peers.einsmith_kernels import function
    from einsmith.base import dtypes as dt

    f, names = function(case)
    assert case.shapes is not None
    *types_of_arguments, result = types or (dt.f32,) * (len(names) + 1)

    def converted(*xs: Any) -> list[Any]:
        return [y.astype(result.name) for y in f(*(x.astype(result.arithmetic.name) for x in xs))]

    arguments = [(case.shapes[n], dtype) for n, dtype in zip(names, types_of_arguments, strict=True)]
    calls, inputs = planned_calls(converted, arguments)
    return calls, dict(zip(inputs, names, strict=True))


def planned_calls(f: Any, arguments: Sequence[tuple[tuple[int, ...], Any]]) -> tuple[list[Any], Sequence[Any]]:
    """The kernels that are launched for a function of arguments of these shapes and types, and its inputs."""
    from einsmith.api import tracing
    from einsmith.passes.pipeline import run_passes
    from einsmith.schedule.plan import KernelCall
    from einsmith.schedule.planner import fuse

    graph = tracing.trace_shapes(f, arguments).graph
    return [x for x in fuse(run_passes(graph), None).calls if isinstance(x, KernelCall)], graph.inputs


def kernels_of(case: Case) -> list[Any]:
    """The kernels alone."""
    return [call.kernel for call in calls_of(case)[0]]


def spread(alternatives: Sequence[tuple[str, Any, Any]], count: int) -> list[int]:
    """Which alternatives (cheapest first) are measured: of every pattern the two best predicted and others at even
    steps to the worst, `count` in all; the chosen one first, then the patterns in turn, so that a cap leaves some of
    each."""
    places: dict[str, list[int]] = {}
    for n, (name, _, _) in enumerate(alternatives):
        places.setdefault(name, []).append(n)
    picked = []
    for members in places.values():
        steps = np.linspace(1, len(members) - 1, max(1, count - 1)).round() if len(members) > 1 else np.zeros(0)
        picked.append(list(dict.fromkeys([members[0], *(members[int(i)] for i in steps)])))
    return [p[i] for i in range(max(map(len, picked))) for p in picked if i < len(p)]


def measure_kernel(kernel: Any, threads: int, count: int, cap: float, winograd: bool = False) -> dict:
    """One kernel's candidates, as they are written to JSON."""
    from einsmith.base.errors import CompileError
    from einsmith.kernels import autoconfig
    from einsmith.tuning.calibration import calibrate
    from einsmith.tuning.kernels.measure import example_buffers, prepare, shortest

    begun = time.monotonic()
    target = replace(calibrate.target(threads), winograd=winograd)
    gc.collect()  # what measuring the cells before has left is no part of this choice
    choice = autoconfig.choose(kernel, target)
    patterns = {p.name: p for p in autoconfig.PATTERNS}
    arrays = example_buffers(kernel)
    rows: list[dict[str, Any]] = []
    ready = []
    for n in spread(choice.alternatives, count):
        if rows and time.monotonic() - begun > cap / 2:
            break
        name, config, cost = choice.alternatives[n]
        try:
            ready.append(prepare(kernel, patterns[name], config, target, threads, arrays))
        except CompileError as e:
            rows.append({"pattern": name, "config": str(config), "failed": str(e)})
            continue
        rows.append({"pattern": name, "config": str(config), "predicted": cost.seconds, "chosen": n == 0})
    timed = [row for row in rows if "predicted" in row]
    for row, seconds in zip(timed, shortest(ready, min(0.3, cap / 4)), strict=True):
        row["measured"] = seconds
    # What seems faster than the choice is measured once more beside it: of several the least is the luckiest.
    again = [n for n, row in enumerate(timed) if not n or row["measured"] < timed[0]["measured"]]
    if len(again) > 1:
        for n, seconds in zip(again, shortest([ready[n] for n in again], min(0.3, cap / 4)), strict=True):
            timed[n]["measured"] = min(timed[n]["measured"], seconds)
    return {
        "threads": threads,
        "choose_seconds": choice.took,
        "considered": len(choice.alternatives),
        "candidates": rows,
        "seconds": time.monotonic() - begun,
    }


def measured(cell: dict) -> list[dict]:
    return [c for c in cell["candidates"] if "measured" in c]


def regret(case: Case, threads: int, count: int, cap: float) -> dict[str, Any]:
    """What the choices for the kernels of a case lose: {"regret", "cells": one for each kernel}."""
    kernels = kernels_of(case)
    cells = [measure_kernel(k, threads, count, cap / len(kernels), case.winograd) for k in kernels]
    chosen = sum(next(c["measured"] for c in measured(x) if c["chosen"]) for x in cells)
    best = sum(min(c["measured"] for c in measured(x)) for x in cells)
    return {"regret": chosen / best - 1, "cells": cells}


def ranks(values: Sequence[float]) -> np.ndarray:
    """The rank of each value; equal ones share the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


def rank_correlation(cell: dict) -> float | None:
    """Spearman's, of predicted and measured times; None for fewer than three candidates."""
    timed = measured(cell)
    if len(timed) < 3:
        return None
    p, m = ranks([c["predicted"] for c in timed]), ranks([c["measured"] for c in timed])
    if not np.ptp(p) or not np.ptp(m):
        return None
    return float(np.corrcoef(p, m)[0, 1])


def verdicts(by_name: Mapping[str, dict]) -> Verdicts:
    """Return what is asked of the choices of all cases together, and what was chosen where it loses most."""
    choices = {n: c["choice"] for n, c in by_name.items() if c.get("choice")}
    if not choices:
        return []
    regrets = [c["regret"] for c in choices.values()]
    every = [x for c in choices.values() for x in c["cells"]]
    middle, most = float(np.median(regrets)), float(np.percentile(regrets, 95))
    longest = max((x["choose_seconds"] for x in every), default=0.0)
    ranked = [r for r in map(rank_correlation, every) if r is not None]
    limit = f"{1e3 * CHOOSE_SECONDS:.0f} ms"
    out: list[tuple[str, str, str, bool | None]] = [
        ("regret, median", f"{100 * middle:.1f} %", f"{100 * REGRET:.0f} %", middle <= REGRET),
        ("regret, 95 of 100 cases", f"{100 * most:.1f} %", f"{100 * MOST_REGRET:.0f} %", most <= MOST_REGRET),
        ("choosing, longest", f"{1e3 * longest:.1f} ms", limit, longest <= CHOOSE_SECONDS),
    ]
    if ranked:
        out.append(("rank correlation, median", f"{np.median(ranked):.2f}", "", None))
    for name, choice in sorted(choices.items(), key=lambda x: -x[1]["regret"])[:SHOWN]:
        if choice["regret"] > REGRET:
            chosen = [r for x in choice["cells"] for r in x["candidates"] if r.get("chosen")]
            text = " | ".join(f"{r['pattern']} {r['config']}" for r in chosen)
            out.append((name, f"{100 * choice['regret']:.0f} %: {text}", "", None))
    return out
