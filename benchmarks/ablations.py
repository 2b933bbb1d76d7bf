"""What each pass brings: python -m benchmarks.ablations [network ...] [--batch 16] [--fusion]

One training step of each network, compiled with all passes, and without one of those that changed it at a time
(EINSMITH_WITHOUT), each in a process of its own. All take turns in one run; their first losses are compared before.
--fusion: without each pass that fuses tensors into kernels, and without all of them, when each operator of the model
is a kernel of its own.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

from rich.table import Table

from benchmarks import driver
from benchmarks.driver import KEPT, Parser, Results, asked
from benchmarks.models import TRAINING
from benchmarks.run import CHUNK_SECONDS
from benchmarks.worker import Allowance, PeerProcess, WorkerError
from einsmith.base import environment
from einsmith.passes.pipeline import optional
from einsmith.schedule.options import EPILOGUE_SUMS, FUSION, ROW_FUSION, UPDATE_FUSION
from einsmith.schedule.pipeline import COPIES, JOINED, TOGETHER

CLOSE = 1e-3
"""Relative difference of the first losses, as of sums in another order."""
HELP = 1.02
"""How many times as fast a step may be without a pass."""
FUSING = (
    "inline", "read forwarding", "fold into scatter", "multi-output reduction", "join products", "parallel fusion",
    "horizontal fusion", "recompute", FUSION, UPDATE_FUSION, ROW_FUSION, EPILOGUE_SUMS, COPIES, JOINED, TOGETHER,
)  # fmt: skip
"""Passes, and parts of passes, that make one kernel of several operators, or run several in one launch."""
ALL = ", ".join(FUSING)


def measured(problem: str, threads: int, rounds: int, cap: float, only: Sequence[str] = ()) -> dict:
    """By passes that are left out, "" for none: medians of rounds in seconds, bytes of the arena, calls of kernels.

    only: what is left out at a time; empty for each pass that changed the step. Of programs that are alike in number
    and size, the one with all passes stands for all."""
    out: dict[str, dict] = {}
    with ExitStack() as stack:
        workers: dict[str, PeerProcess] = {}
        allowed: dict[str, Allowance] = {}

        def start(name: str) -> dict:
            with mock.patch.dict(os.environ, {environment.WITHOUT.name: name}):
                worker = stack.enter_context(PeerProcess("einsmith", threads, None))
                allowed[name] = Allowance(cap)
                worker.request("open", allowed[name], problem)
            first = worker.request("first", allowed[name])
            workers[name] = worker
            return first

        whole = start("")
        told = whole["described"]
        for name in ["", *(only or [n for n in optional() if n in told["passes"]])]:
            first = whole if not name else start(name)
            alike = all(first["described"][x] == told[x] for x in ("kernels", "calls", "code_bytes", "arena_bytes"))
            if name and name not in told["passes"] and alike:
                workers.pop(name).close()
                continue
            if abs(first["loss"] - whole["loss"]) > CLOSE * abs(whole["loss"]):
                raise WorkerError("wrong", f"the first loss is {whole['loss']}, without {name} {first['loss']}")
            out[name] = {x: first["described"][x] for x in ("calls", "arena_bytes")} | {"rounds": []}
        (step,) = workers[""].request("time", allowed[""], 1, 2)
        count = max(1, min(200, round(CHUNK_SECONDS / step)))
        for r in range(rounds):
            order = list(workers)
            for name in order[r % len(order) :] + order[: r % len(order)]:
                seconds = workers[name].request("time", allowed[name], count, 1)
                out[name]["rounds"].append(statistics.median(seconds))
    return out


def table(cells: dict[str, dict]) -> Table:
    """Times as fast, and the arena as large, as without each pass."""
    passes = [n for n in optional() if any(n in c for c in cells.values())]

    def row(problem: str, cell: dict) -> list[str]:
        seconds, whole = statistics.median(cell[""]["rounds"]), cell[""]["arena_bytes"]
        ratios = [
            f"{gain_with(cell, n):.2f} ({whole / cell[n]['arena_bytes']:.2f})" if n in cell else "" for n in passes
        ]
        return [problem, f"{seconds * 1e3:.2f}", f"{whole / 2**20:.0f}", *ratios]

    title = "times as fast with the pass as without it (its arena, of that without)"
    return driver.table(title, ("", "ms", "MiB", *passes), (row(*x) for x in cells.items()))


def fusion_table(cells: Mapping[str, dict]) -> Table:
    """Return the table of steps without each pass that fuses, and without all of them."""

    def row(problem: str, cell: dict, name: str) -> list[str]:
        ratio = f"{gain_with(cell, name):.2f}" if name else ""
        seconds, arena = statistics.median(cell[name]["rounds"]), cell[name]["arena_bytes"]
        what = "all of these" if name == ALL else name or "none"
        return [problem, what, f"{cell[name]['calls']}", f"{seconds * 1e3:.2f}", ratio, f"{arena / 2**20:.1f}"]

    columns = ("", "left out", "kernels", "ms", "times as fast with it", "arena, MiB")
    rows = (row(problem, cell, name) for problem, cell in cells.items() for name in cell)
    return driver.table("what fusion brings", columns, rows, {"left out"})


def gain_with(cell: Mapping[str, Any], name: str) -> float:
    """Return how many times as fast a step is with a pass: the median over rounds, in each of which both had a turn."""
    return statistics.median(b / a for a, b in zip(cell[""]["rounds"], cell[name]["rounds"], strict=True))


def main() -> int:
    """Time the networks' steps; return the exit status."""
    parser = Parser(
        __doc__, sorted({p.network for p in TRAINING.values()}), batch=(16, ""), threads=(2, ""), rounds=(7, ""),
        fusion=(False, "what fuses tensors into kernels, each and all"),
        cap=(300.0, "seconds that a process may take"), json=KEPT,
    )  # fmt: skip
    args = parser.read()
    chosen = [n for n, p in TRAINING.items() if p.batch == args.batch and p.network in (args.names or [p.network])]
    results = Results(args.json, 200)

    def attempt(problem: str) -> dict | None:
        results.say(f"{problem}: compiled with and without each pass")
        try:
            return measured(problem, args.threads, args.rounds, args.cap, [*FUSING, ALL] if args.fusion else ())
        except WorkerError as e:
            results.say(f"{problem}: {e.kind}: {e}")
            return None

    cells = results.fill((f"{p}-t{args.threads}{'-fusion' * args.fusion}", partial(attempt, p)) for p in chosen)
    results.console.print(fusion_table(cells) if args.fusion else table(cells))
    worst = [(1 / gain_with(c, n), p, n) for p, c in cells.items() for n in c if n]
    slow = [f"{p} without {n}: {r:.2f}" for r, p, n in sorted(worst, reverse=True) if r > HELP]
    verdict = ("steps that leaving one out makes faster", ", ".join(slow) or "none", f"none by {HELP:.2f}", not slow)
    results.console.print(asked("passes", [verdict]))
    return 0 if cells else 1


if __name__ == "__main__":
    sys.exit(main())
