"""What graph searches bring: python -m benchmarks.graph_search NETWORK ... [--batch 16] [--seconds 60] [--threads 2]

Of each network's training step it tries the decisions of passes, of fusion and of the layout choice
(`einsmith.tuning.programs.graph_search`), with a store of its own, and prints, by kind, how many forms raced and the
lowest ratio of their time to that of the program at that moment, and what was kept. Kernels are not tuned.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rich.table import Table

from benchmarks import driver
from benchmarks.driver import KEPT, Parser, Results

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
    raced = [match.groups() for line in cell["log"] if (match := OUTCOME.match(line))]
    return {kind: [float(ratio) for word, ratio in raced if word == kind] for kind in KINDS}


def table(cells: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the forms that raced, by network and kind, and what was kept."""

    def row(name: str, cell: Mapping[str, Any]) -> tuple[str, ...]:
        raced = [f"{len(r)}: {min(r):.3f}" if r else "" for r in ratios(cell).values()]
        times = [f"{cell[x] * 1e3:.2f} ms" if cell[x] else "" for x in ("before", "after")]
        return name, *raced, "; ".join(cell["decisions"]), *times

    title = "forms raced, and their lowest time, as a ratio to the program's at that moment"
    names, rows = ("", *KINDS, "kept", "before", "after"), (row(*x) for x in cells.items())
    return driver.table(title, names, rows, text=("kept",))


def main(argv: Sequence[str] | None = None) -> int:
    """Search over the networks' graphs; return the exit status."""
    parser = Parser(__doc__, (), batch=(16, ""), seconds=(60.0, "of a search"), threads=(2, ""), json=KEPT)
    args = parser.read(argv)
    results = Results(args.json, 200)
    cells = results.fill(
        (f"{n}-b{args.batch}-t{args.threads}", partial(search, n, args.batch, args.threads, args.seconds))
        for n in args.names
    )
    for key, cell in cells.items():
        results.say(f"{key}: compiled in {cell['compiled']:.1f} s, searched {cell['seconds']:.0f} s")
        results.say("\n".join(f"  {line}" for line in cell["log"]))
    results.console.print(table(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
