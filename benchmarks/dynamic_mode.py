"""Draw the time of training steps while their kernels are tuned: python -m benchmarks.dynamic_mode --seconds 300

Each network trains for so many seconds without a search, and for as long in dynamic mode, one after the other, in
processes with caches of their own: beside another process that trains, the search would be free. The table shows the
steps at the beginning and in the end, what was tried, and what it has cost by its own account. --plot draws the curves.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks import driver, tuning
from benchmarks.driver import KEPT, Parser, Results
from benchmarks.models import TRAINING

NETWORKS = ("milstm-b64-t28", "capsulenet-b16", "resnet18-b16")
PEERS = {"einsmith": "cost model", "dynamic": "dynamic mode"}
COLORS = {"einsmith": "#888888", "dynamic": "#c0392b"}
LAST = tuning.TURNS // 4
"""Last turns whose median is the step in the end."""


def measure(
    name: str, threads: int, seconds: float, cap: float, say: Any, peers: Sequence[str] = tuple(PEERS)
) -> dict[str, Any]:
    """Return, for a network, the rows of `tuning.measure` with and without dynamic mode, by peer, with their steps."""
    cells = {p: tuning.measure(name, [p], threads, 0, seconds, cap, say) for p in peers}
    return {p: cell["peers"][p] | {"steps": cell["steps"]} for p, cell in cells.items()}


def progress(row: dict[str, Any]) -> tuple[list[float], list[int]]:
    """Return the seconds that the steps have taken at the end of each turn of a peer, and how many steps there were."""
    turns = row["by_turn"]
    each = [tuning.FIRST_TURN, *[(row["steps"] - tuning.FIRST_TURN) // (len(turns) - 1)] * (len(turns) - 1)]
    return list(accumulate(t * n for t, n in zip(turns, each, strict=True))), list(accumulate(each))


def summarize(cells: dict[str, dict[str, Any]]) -> Table:
    """Return the table of the networks that could be measured."""
    rows = []
    for name, cell in cells.items():
        static, dynamic = (cell[p] for p in PEERS)
        if static["status"] == dynamic["status"] == "ok":
            explored, turns = dynamic["explored"], dynamic["by_turn"]
            steps = static["step"], median(turns[1:4]), median(turns[-LAST:])
            milliseconds = [f"{x * 1e3:.3f} ms" for x in steps]
            tries = explored["tried"], explored["kept"], f"{explored['cost']:.1%}", explored["state"]
            rows.append((name, *milliseconds, f"{steps[2] / steps[1]:.3f}", *tries))
    names = ("", "no search", "beginning", "end", "ratio", "tried", "kept", "own cost", "state")
    return driver.table("steps in dynamic mode", names, rows, text=("state",))


def draw(cells: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw the mean time of a step in each turn over the seconds that the steps have taken, a panel a network."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "einsmith"
    from matplotlib.figure import Figure

    good = {n: c for n, c in cells.items() if all(c[p]["status"] == "ok" for p in PEERS)}
    figure = Figure(figsize=(3.4 * max(1, len(good)), 2.8), layout="constrained")
    axes = figure.subplots(1, max(1, len(good)), squeeze=False)[0]
    for axis, (name, cell) in zip(axes, good.items(), strict=False):
        for peer, label in PEERS.items():
            ends, _ = progress(cell[peer])
            axis.plot(ends, [t * 1e3 for t in cell[peer]["by_turn"]], color=COLORS[peer], marker=".", label=label)
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("seconds of training")
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
        axis.grid(color="#dddddd")
    axes[0].set_ylabel("ms per step")
    axes[0].legend(frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)


def main(argv: Sequence[str] | None = None) -> int:
    """Train the networks; return the exit status."""
    parser = Parser(
        __doc__, TRAINING, threads=(2, ""), seconds=(300.0, "that each network trains in each of the two ways"),
        json=KEPT, plot=(Path, "file of the drawing, .svg or .png"), cap=(3600.0, "seconds that a peer may take"),
    )  # fmt: skip
    args = parser.read(argv, threads=1, seconds=0.1, cap=1e-9)
    results = Results(args.json, 200)
    names = args.names or NETWORKS
    cells = results.fill((n, partial(measure, n, args.threads, args.seconds, args.cap, results.say)) for n in names)
    results.console.print(summarize(cells))
    if args.plot is not None:
        draw(cells, args.plot)
    return int(any(row["status"] != "ok" for cell in cells.values() for row in cell.values()))


if __name__ == "__main__":
    sys.exit(main())
