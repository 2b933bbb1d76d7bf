"""Compare a training step in Einsmith with PyTorch's: first calls, verification, then interleaved rounds."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from einsmith.base.system import processors
from einsmith.base.workers import Failed, Lost, Worker
from einsmith.bench.networks import NetworkStep
from einsmith.bench.verify import Exact, step_error

PEERS = ("torch", "compile")
ROUNDS, MIN_ROUNDS = 9, 3
"""Most and fewest rounds, in each of which every peer has a turn."""
SECONDS, TURN = 4.0, 0.2
"""About the most seconds that a peer is timed for, and those of a turn: long enough to be in its stride, short enough
that all peers meet the same conditions on a machine whose speed drifts."""
PAUSE = 0.05
"""Seconds before a turn: the idle threads of the peer before it no longer spin (libgomp's do for 10 to 30 ms)."""
TRIALS = 6
"""Steps of each formulation among which the fastest is chosen."""
VERIFIED = 2
"""Steps whose losses are verified; of the first one, the change of every array is."""


class Peer:
    """A library in a process of its own. `row`: its results so far, for JSON; `left`: seconds that it may still
    take."""

    def __init__(self, name: str, worker: Worker, cap: float):
        self.name, self.worker, self.left = name, worker, cap
        self.row: dict[str, Any] = {"status": "ok", "rounds": []}

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return an answer of its `server.StepServer`; None where it fails, which ends the peer's part."""
        if self.row["status"] != "ok":
            return None
        start = time.monotonic()
        try:
            return self.worker.ask(name, *arguments, limit=max(self.left, 0.0))
        except (Lost, Failed) as e:
            late, missing = "did not end within" in str(e), "ModuleNotFoundError" in str(e)
            status = "timeout" if late else "missing" if missing else "failed"
            self.row |= {"status": status, "message": "over the time limit" if late else str(e)}
            self.worker.close()
            return None
        finally:
            self.left -= time.monotonic() - start


def compare(
    problem: NetworkStep, peers: Sequence[str], threads: int, cap: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return the times of each peer for a training step of a network, for JSON.

    Args:
        problem: the training step
        peers: "einsmith" and some of PEERS
        threads: threads of each peer
        cap: most seconds of a peer, compilation included
        say: function that shows the progress
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="einsmith-bench-")))

        def start(name: str) -> Peer:
            worker = stack.enter_context(Worker("einsmith.bench.server:StepServer", start=cap))
            worker.set_up(name, threads, str(folder / name))
            return Peer(name, worker, cap)

        arrays = problem.arrays()
        exact = _run(start("reference"), problem, arrays, say)
        started = [start(name) for name in peers]
        results = {p.name: r for p in started if (r := _run(p, problem, arrays, say)) is not None}
        cell: dict[str, Any] = {"threads": threads, "peers": {p.name: p.row for p in started}}
        source = "float64" if exact is not None else "float32"
        exact = exact or results.get("torch")
        cell["verified"] = exact is not None
        cell["verification"] = "not verified: PyTorch has not run"
        if exact is not None:
            cell["verification"] = f"verified against PyTorch in {source}"
            known = Exact(*exact, arrays, results.get("torch"))
            for p in started:
                if p.name in results and (wrong := step_error(*results[p.name], known)):
                    p.row |= {"status": "wrong", "message": wrong}
        _time(started, problem.name, say)
    return _summarize(cell)


def _run(
    peer: Peer, problem: NetworkStep, arrays: dict[str, np.ndarray], say: Callable[[str], None]
) -> tuple[list[float], dict[str, np.ndarray]] | None:
    """Run the first steps; return their losses and the change of every array in the first, None where it fails."""
    say(f"{problem.name}: {peer.name}: first call")
    peer.ask("open", problem)
    first, chosen = peer.ask("first"), peer.ask("choose", TRIALS)
    begun, results, later = peer.ask("steps", 1), peer.ask("results"), peer.ask("steps", VERIFIED - 1)
    if later is None:
        return None
    nbytes = max(begun["bytes"], later["bytes"])
    peer.row |= {"first_seconds": first["seconds"], "layout": chosen["variant"], "bytes": nbytes}
    return begun["losses"] + later["losses"], {n: a - arrays[n] for n, a in results.items()}


def _time(peers: Sequence[Peer], name: str, say: Callable[[str], None]) -> None:
    """Add the seconds of a step in each round to the rows; every round begins with another peer."""
    turns: dict[str, tuple[int, int]] = {}
    for p in peers:
        probe = p.ask("time", 1, 1)
        if probe is not None:
            count = max(1, min(200, round(TURN / probe[0])))
            turns[p.name] = count, max(MIN_ROUNDS, min(ROUNDS, int(SECONDS / (probe[0] * (count + 1)))))
    for r in range(max((rounds for _, rounds in turns.values()), default=0)):
        say(f"{name}: round {r + 1}")
        running = [p for p in peers if p.name in turns and r < turns[p.name][1]]
        for p in running[r % len(running) :] + running[: r % len(running)]:
            time.sleep(PAUSE)
            seconds = p.ask("time", turns[p.name][0], 1)
            if seconds is not None:
                p.row["rounds"].append(statistics.median(seconds))


def _summarize(cell: dict[str, Any]) -> dict[str, Any]:
    """Add medians, the middle half of the rounds, and the ratio to the fastest other peer."""
    for row in cell["peers"].values():
        if row["rounds"] and row["status"] in ("ok", "timeout"):
            low, middle, high = np.percentile(row["rounds"], [25, 50, 75])
            row |= {"status": "ok", "median": float(middle), "low": float(low), "high": float(high)}
    others = {p: r["median"] for p, r in cell["peers"].items() if p != "einsmith" and "median" in r}
    ours = cell["peers"].get("einsmith", {}).get("median")
    cell["best_peer"] = min(others, key=others.__getitem__) if others else None
    cell["speedup"] = others[cell["best_peer"]] / ours if ours and others else None
    return cell


def machine() -> dict[str, Any]:
    """Return what the figures belong to: processor, cores, Python, system and date."""
    return {
        "cpu": processors.model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "date": time.strftime("%Y-%m-%d"),
    }


def table(problem: NetworkStep, cell: dict[str, Any]) -> Table:
    """Return the table of a comparison, the fastest peer first."""
    out = Table(title=f"{problem.name}, {cell['threads']} threads ({cell['verification']})")
    for name in ("", "ms", "middle half", "against best peer", "first call s", "MiB", ""):
        out.add_column(name, justify="right" if name else "left")
    best = cell["peers"][cell["best_peer"]]["median"] if cell["best_peer"] else None
    for peer, r in sorted(cell["peers"].items(), key=lambda item: item[1].get("median", float("inf"))):
        first, mib = (f"{r[n] / unit:.{d}f}" if r.get(n) else "" for n, unit, d in
                      (("first_seconds", 1, 2), ("bytes", 2**20, 0)))  # fmt: skip
        times = ("", "", "")
        if "median" in r:
            ms, low, high = (1e3 * r[n] for n in ("median", "low", "high"))
            times = f"{ms:.2f}", f"{low:.2f} to {high:.2f}", f"{best / r['median']:.2f}x" if best else ""
        status = r.get("layout", "") if r["status"] == "ok" else f"{r['status']}: {r['message']}"
        out.add_row(f"[bold]{peer}[/]" if peer == "einsmith" else peer, *times, first, mib, status)
    return out
