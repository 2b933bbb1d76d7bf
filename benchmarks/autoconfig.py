"""How good are choices without search? python -m benchmarks.autoconfig [--only NETWORK]

The distinct convolutions of EfficientNet-Lite0, ResNet-50 and MobileNetV2 at batch 1 and 16: every algorithm (pattern)
that takes the convolution, in a spread of its configurations from the best predicted to the worst, is measured. Printed
are the model's choice, its regret (measured time over the best measured one, less 1), the rank correlation of predicted
and measured times, and how much CPU time choosing took.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks import driver, kernel_cases
from benchmarks.convolutions import Conv, distinct
from benchmarks.driver import FRESH, KEPT, LIMIT, Parser, Results, asked
from benchmarks.kernel_cases import Case

CONVOLUTIONS = ("efficientnet_lite0", "resnet50", "mobilenet_v2")
BATCHES = (1, 16)
MEDIAN_REGRET, MOST_REGRET, CHOOSE_SECONDS = 0.10, 0.30, 5e-3
"""The regret's median and its nine tenths at most, and the CPU time of one choice."""


def calls_of(case: Case, types: Sequence[Any] = ()) -> tuple[list[Any], dict[Any, str]]:
    """The kernels that are launched for a case, once the passes are done, and the names of the inputs.

    types: of the arguments in order and of the results, which are computed in the type of the latter's arithmetic;
    float32 if not told.
    """
    from benchmarks.peers.einsmith_kernels import function
    from einsmith.base import dtypes as dt

    f, names = function(case)
    assert case.shapes is not None
    *given, result = types or (dt.f32,) * (len(names) + 1)

    def converted(*xs: Any) -> list[Any]:
        return [y.astype(result.name) for y in f(*(x.astype(result.arithmetic.name) for x in xs))]

    arguments = [(case.shapes[n], dtype) for n, dtype in zip(names, given, strict=True)]
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
    for found in places.values():
        steps = np.linspace(1, len(found) - 1, max(1, count - 1)).round() if len(found) > 1 else np.zeros(0)
        picked.append(list(dict.fromkeys([found[0], *(found[int(i)] for i in steps)])))
    return [p[i] for i in range(max(map(len, picked))) for p in picked if i < len(p)]


def measure(conv: Conv, batch: int, threads: int, count: int, cap: float, winograd: bool = False) -> dict:
    """One cell, as it is written to JSON."""
    (kernel,) = kernels_of(next(kernel_cases.convolution(conv, batch)))
    return measure_kernel(kernel, threads, count, cap, winograd)


def measure_kernel(kernel: Any, threads: int, count: int, cap: float, winograd: bool = False) -> dict:
    """The same of a kernel."""
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
    made = [row for row in rows if "predicted" in row]
    for row, seconds in zip(made, shortest(ready, min(0.3, cap / 4)), strict=True):
        row["measured"] = seconds
    # What seems faster than the choice is measured once more beside it: of several the least is the luckiest.
    again = [n for n, row in enumerate(made) if not n or row["measured"] < made[0]["measured"]]
    if len(again) > 1:
        for n, seconds in zip(again, shortest([ready[n] for n in again], min(0.3, cap / 4)), strict=True):
            made[n]["measured"] = min(made[n]["measured"], seconds)
    return {
        "threads": threads,
        "choose_seconds": choice.took,
        "considered": len(choice.alternatives),
        "candidates": rows,
        "seconds": time.monotonic() - begun,
    }


def measured(cell: dict) -> list[dict]:
    return [c for c in cell["candidates"] if "measured" in c]


def regret(cell: dict) -> float:
    """How much longer than the best measured candidate the chosen one takes, as a part."""
    found = measured(cell)
    chosen = next(c["measured"] for c in found if c["chosen"])
    return chosen / min(c["measured"] for c in found) - 1


def ranks(values: Sequence[float]) -> np.ndarray:
    """The rank of each value; equal ones share the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


def rank_correlation(cell: dict) -> float | None:
    """Spearman's, of predicted and measured times; None for fewer than three candidates."""
    found = measured(cell)
    if len(found) < 3:
        return None
    p, m = ranks([c["predicted"] for c in found]), ranks([c["measured"] for c in found])
    if not np.ptp(p) or not np.ptp(m):
        return None
    return float(np.corrcoef(p, m)[0, 1])


def table(cells: dict[str, dict]) -> Table:
    def row(key: str, cell: dict) -> tuple[str, ...]:
        found = measured(cell)
        chosen, best = next(c for c in found if c["chosen"]), min(found, key=lambda c: c["measured"])
        r, rank = regret(cell), rank_correlation(cell)
        color = "red" if r > MOST_REGRET else "yellow" if r > MEDIAN_REGRET else "green"
        return (
            key, chosen["pattern"], f"{1e3 * chosen['predicted']:.3f}", f"{1e3 * chosen['measured']:.3f}",
            best["pattern"], f"{1e3 * best['measured']:.3f}", f"[{color}]{100 * r:.0f} %[/]",
            "" if rank is None else f"{rank:.2f}", f"{len(found)}/{cell['considered']}",
            f"{1e3 * cell['choose_seconds']:.1f}",
        )  # fmt: skip

    columns = ("", "chosen", "predicted ms", "measured ms", "best", "best ms", "regret", "rank corr.", "tried")
    rows = (row(*x) for x in cells.items())
    return driver.table("choices without search", (*columns, "choose ms"), rows, text=("chosen", "best"))


def verdicts(cells: Sequence[dict]) -> list[tuple[str, str, str, bool | None]]:
    """As `driver.asked` takes them."""
    regrets, seconds = [regret(c) for c in cells if len(measured(c)) > 1], [c["choose_seconds"] for c in cells]
    correlations = [r for r in map(rank_correlation, cells) if r is not None]
    out: list[tuple[str, str, str, bool | None]] = []

    def line(what: str, found: float, limit: float, scale: float, unit: str) -> None:
        out.append((what, f"{scale * found:.1f} {unit}", f"{scale * limit:.0f} {unit}", found <= limit))

    if regrets:
        line("regret, median", float(np.median(regrets)), MEDIAN_REGRET, 100, "%")
        line("regret, nine cases of ten", float(np.percentile(regrets, 90)), MOST_REGRET, 100, "%")
    if len(regrets) < len(cells):  # the cap left no time for others
        out.append(("the choice alone measured, not counted", f"{len(cells) - len(regrets)} of {len(cells)}", "", None))
    line("choosing, longest", max(seconds), CHOOSE_SECONDS, 1e3, "ms")
    over = sum(s > CHOOSE_SECONDS for s in seconds)
    out.append((f"choosing, over {1e3 * CHOOSE_SECONDS:.0f} ms", f"{over} of {len(seconds)}", "", None))
    if correlations:
        out.append(("rank correlation, median", f"{np.median(correlations):.2f}", "", None))
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the convolutions that are asked for; return the exit status."""
    parser = Parser(
        __doc__, only=([str], "networks, or convolutions whose name contains this"), batch=(BATCHES, ""),
        threads=(2, ""), count=(8, "configurations of a pattern that are measured"),
        cap=(10.0, "seconds that a cell may take, about"), winograd=(False, "allow Winograd's form"), seconds=LIMIT,
        json=KEPT, fresh=FRESH,
    )  # fmt: skip
    args = parser.read(argv, threads=1, count=1, batch=1, cap=1e-9)
    networks = [n for n in CONVOLUTIONS if n in args.only] or list(CONVOLUTIONS)
    parts = [text for text in args.only if text not in CONVOLUTIONS]
    convs = [c for c in distinct(*networks) if not parts or any(text in str(c) for text in parts)]
    if not convs:
        parser.error(f"no convolution is called {', '.join(parts)}; the networks are {', '.join(CONVOLUTIONS)}")
    results = Results(args.json)
    form = "-winograd" if args.winograd else ""
    cases = (
        (f"{c}-b{b}{form}-t{args.threads}", partial(measure, c, b, args.threads, args.count, args.cap, args.winograd))
        for c in convs
        for b in args.batch
    )
    shown = results.fill(cases, args.fresh, args.seconds, lambda c: f"regret {100 * regret(c):.0f} %")
    if shown:
        results.console.print(table(shown))
        results.console.print(asked(f"over {len(shown)} convolutions", verdicts(list(shown.values()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
