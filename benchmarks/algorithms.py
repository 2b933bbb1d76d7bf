"""What each algorithm of a kernel executes and takes: python -m benchmarks.algorithms [case ...] [--target neon]

For each kernel of the cases, and each pattern that takes it, in its best configuration: the instructions on floats, of
memory and of special functions that it executes (a vector's is one), predicted and measured microseconds, and times as
fast as the formula's loops in scalar code. Contractions are told apart by how they reach their operands: in place, as
broadcasts and vectors, or as packed panels. --target prices another CPU, on which nothing is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from rich.table import Table

from benchmarks import choices, driver, kernel_cases
from benchmarks.cost_model import way
from benchmarks.driver import KEPT, Parser, Results, geometric_mean

CASES = (
    "product-256-nn", "product-512-nn", "conv-3x3s1-64-64-56-forward", "conv-3x3s2-64-128-56-forward",
    "conv-1x1s1-256-128-56-forward", "conv-3x3dws1-576-576-14-forward", "capsule-s1-forward", "batch_norm-1MB",
)  # fmt: skip
"""Cases that are shown by default."""
SECONDS = 0.3
"""For which each kernel's candidates are measured."""


def ways(kernel: Any, target: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """(name, pattern, configuration, cost) of each algorithm's cheapest configuration, and of scalar code last."""
    from einsmith.kernels import autoconfig

    seen = set()
    for name, config, cost in autoconfig.choose(kernel, target).alternatives:
        tiled: Any = getattr(config, "pieces", ())
        shown = name if len(tiled) != 1 else f"{name}, {way(tiled[0])}"
        if shown not in seen:
            seen.add(shown)
            yield shown, autoconfig.pattern_of(name), config, cost
    scalar = autoconfig.price_scalar(kernel, target)
    if scalar is not None:
        pattern = autoconfig.SCALAR
        yield pattern.name, pattern, pattern.configs(kernel, target)[0], scalar


def rows_of(kernel: Any, target: Any, found: Sequence[tuple[str, Any, Any, Any]], seconds: float) -> list[dict]:
    """Return what is predicted of each (name, pattern, configuration, cost), in seconds, and where they are measured,
    for so many `seconds` in all, what each takes."""
    from einsmith.tuning.kernels.measure import example_buffers, prepare, shortest

    rows: list[dict[str, Any]] = [{"algorithm": name, "predicted": cost.seconds} for name, *_, cost in found]
    if seconds:
        arrays = example_buffers(kernel)
        ready = [prepare(kernel, pattern, config, target, 1, arrays) for _, pattern, config, _ in found]
        for row, time in zip(rows, shortest(ready, seconds), strict=True):
            row["measured"] = time
    return rows


def told(name: str, target_name: str) -> list[dict[str, Any]]:
    """The rows of a case's kernels."""
    from einsmith.cost.facts import of_instruction_set
    from einsmith.driver.cpu import CPU
    from einsmith.tuning.calibration import calibrate

    target = of_instruction_set(target_name) if target_name else calibrate.target(1)
    rows: list[dict[str, Any]] = []
    case = kernel_cases.CASES[name]
    assert isinstance(case, kernel_cases.Case)
    for number, kernel in enumerate(choices.kernels_of(case)):
        found = list(ways(kernel, target))
        for row, (_, pattern, config, _) in zip(
            rows_of(kernel, target, found, 0.0 if target_name else SECONDS), found, strict=True
        ):
            counts = CPU.count_instructions(kernel, pattern, config, target) or {}
            rows.append({"kernel": number} | row | counts)
    return rows


def table(cells: dict[str, list[dict[str, Any]]], measured: bool) -> Table:
    """Return the table of all cases."""

    def speedup(row: dict[str, Any], rows: list[dict[str, Any]], key: str) -> str:
        scalar = [x for x in rows if x["kernel"] == row["kernel"] and x["algorithm"] == "scalar"]
        return f"{scalar[0][key] / row[key]:.1f}" if scalar else ""

    kinds, lines = ("predicted", "measured")[: 1 + measured], []
    for name, rows in cells.items():
        for row in rows:
            counts = [f"{row[x]:,}" if x in row else "" for x in ("floats", "moves", "special")]
            times = [text for k in kinds for text in (f"{row[k] * 1e6:.1f}", speedup(row, rows, k))]
            lines.append([name, row["algorithm"], *counts, *times])
    columns = [x for k in kinds for x in (f"{k}, us", "times scalar")]
    names = ("", "algorithm", "float instructions", "memory", "special", *columns)
    return driver.table("instructions and times of each algorithm, one thread", names, lines, {"algorithm"})


def best(cells: dict[str, list[dict[str, Any]]], key: str) -> float | None:
    """Return the geometric mean over kernels of how many times as fast as scalar code the chosen algorithm is."""
    ratios = []
    for rows in cells.values():
        for number in {x["kernel"] for x in rows}:
            own = [x for x in rows if x["kernel"] == number]
            if own[-1]["algorithm"] == "scalar":
                ratios.append(own[-1][key] / own[0][key])
    return geometric_mean(ratios)


def main() -> int:
    """Tell of the cases; return the exit status."""
    from einsmith.cost.microarchitectures import VECTORS

    parser = Parser(__doc__, kernel_cases.CASES, target=("", f"one of {', '.join(VECTORS)}"), json=KEPT)
    args = parser.read()
    if args.target and args.target not in VECTORS:
        parser.error(f"--target {args.target}: there are {', '.join(VECTORS)}")
    results = Results(args.json, 170, timing=not args.target)
    prefix = f"{args.target} " if args.target else ""
    cells = results.fill((prefix + n, partial(told, n, args.target)) for n in args.names or CASES)
    results.console.print(table(cells, not args.target))
    mean = best(cells, "predicted" if args.target else "measured")
    if mean is not None:
        results.console.print(f"chosen, times as fast as scalar code, geometric mean: {mean:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
