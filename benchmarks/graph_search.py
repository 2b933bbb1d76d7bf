"""What graph searches bring: python -m benchmarks.graph_search NETWORK ... [--batch 16] [--seconds 60] [--threads 2]

Of each network's training step it tries the decisions of passes, of fusion and of the layout choice
(`einsmith.tuning.programs.graph_search`), with a store of its own, and prints, by kind, how many forms raced and the
lowest ratio of their time to that of the program at that moment, and what was kept. Kernels are not tuned.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.report import begin, store

KINDS = ("without", "cut", "join", "order")
"""First words of decisions."""
OUTCOME = re.compile(r"(\w+) .*: ([0-9.]+) of the time")
"""Line of a report on a form that raced: its first word, and the ratio."""


def search(network: str, batch: int, threads: int, seconds: float) -> dict[str, Any]:
    """Return the outcome of a search of so many seconds."""
    from einsmith.base import environment
    from einsmith.cli.programs import program
    from einsmith.tuning.calibration import calibrate
    from einsmith.tuning.programs import graph_search

    calibrate.target(threads)
    with tempfile.TemporaryDirectory() as folder, environment.setting(environment.CACHE_DIR, folder):
        run, arrays, _ = program(network, batch, (), (), threads, None, None)
        report = graph_search.tune(run, arrays, seconds)
    return {
        "compiled": run.compile_seconds,
        "seconds": report.seconds,
        "tried": report.tried,
        "before": report.before,
        "after": report.after,
        "decisions": sorted(report.decisions),
        "log": [line.strip() for line in report.log],
    }


def ratios(cell: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the ratios of the forms that raced, by kind."""
    raced = [found.groups() for line in cell["log"] if (found := OUTCOME.match(line))]
    return {kind: [float(ratio) for word, ratio in raced if word == kind] for kind in KINDS}


def table(cells: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the forms that raced, by network and kind, and what was kept."""
    out = Table(title="forms raced, and their lowest time, as a ratio to the program's at that moment")
    for name in ("", *KINDS, "kept", "before", "after"):
        out.add_column(name, justify="right" if name not in ("", "kept") else "left")
    for name, cell in cells.items():
        raced = [f"{len(found)}: {min(found):.3f}" if found else "" for found in ratios(cell).values()]
        times = [f"{cell[x] * 1e3:.2f} ms" if cell[x] else "" for x in ("before", "after")]
        out.add_row(name, *raced, "; ".join(cell["decisions"]), *times)
    return out


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Searches over the graphs of training steps.")
    parser.add_argument("network", nargs="+", help="as for einsmith tune")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=60.0, help="of a search")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="results are kept here; what it holds already is not run again")
    args = parser.parse_args(argv)
    say, console, results = begin(args.json, 200)
    cells = {}
    for name in args.network:
        key = f"{name}-b{args.batch}-t{args.threads}"
        if key not in results["cells"]:
            results["cells"][key] = search(name, args.batch, args.threads, args.seconds)
            store(args.json, results)
        cells[key] = results["cells"][key]
        say.print(f"{key}: compiled in {cells[key]['compiled']:.1f} s, searched {cells[key]['seconds']:.0f} s")
        for line in cells[key]["log"]:
            say.print(f"  {line}")
    console.print(table(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
