"""Recurrent networks, Einsmith and its peers side by side: python -m benchmarks.recurrent [network ...]

One training step (forward, backward, update) of MI-LSTM, SC-RNN, subLSTM and LLTM, a single step and over 28, 35 and
150 steps, and of an LSTM language model. With --first-calls instead: how long the first call takes at 8, 128 and 1024
steps, with the number of Einsmith's kernels and the size of their code.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import report
from benchmarks.recurrent_problems import FIRST_CALLS, RECURRENT
from benchmarks.recurrent_steps import RECURRENT_PEERS
from benchmarks.report import machine
from benchmarks.worker import Allowance, PeerProcess, WorkerError


def first_call(peer: str, problem: str, threads: int, cap: float) -> dict:
    """Seconds of the first call in a new process with empty caches, and what the program says of itself."""
    with tempfile.TemporaryDirectory(prefix="einsmith-bench-") as folder:
        allowance = Allowance(cap)
        worker = None
        try:
            worker = PeerProcess(peer, threads, Path(folder))
            worker.request("open", allowance, problem)
            before = allowance.left
            first = worker.request("first", allowance)
            return {"status": "ok", "version": worker.version, "first_seconds": first["seconds"],
                    "first_spent": round(before - allowance.left, 3)} | first["described"]  # fmt: skip
        except WorkerError as e:
            return {"status": e.kind, "message": str(e), "cap": cap}
        finally:
            if worker is not None:
                worker.close()


def first_calls(argv: Sequence[str] | None = None) -> int:
    """The table of first calls. The exit status: 1 where Einsmith failed, or where its number of kernels or the size of
    its code depends on how many steps there are (see `steady`)."""
    parser = argparse.ArgumentParser(description="Times the first training step of recurrent networks.")
    parser.add_argument("--first-calls", action="store_true", help="this table")
    parser.add_argument("--only", metavar="PATTERN", default="*", help="problems whose names match, as in 'milstm-*'")
    parser.add_argument("--peers", default=",".join(("einsmith", *RECURRENT_PEERS)), help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cap", type=float, default=300.0, help="seconds that a first call may take")
    parser.add_argument("--json", type=Path, help="results are kept here; what it holds already is not run again")
    args = parser.parse_args(argv)
    chosen = fnmatch.filter(FIRST_CALLS, args.only)
    peers = [p for p in args.peers.split(",") if p]
    if not chosen or not set(peers) <= {"einsmith", *RECURRENT_PEERS} or args.cap <= 0 or args.threads < 1:
        parser.error(f"problems: {', '.join(FIRST_CALLS)}; peers: einsmith, {', '.join(RECURRENT_PEERS)}")
    say = Console(stderr=True, highlight=False, soft_wrap=True)
    results = report.load(args.json)
    results["machine"] = machine()
    for problem in chosen:
        cell = results["cells"].setdefault(f"first-{problem}-t{args.threads}", {"peers": {}})
        for peer in peers:
            if cell["peers"].get(peer, {}).get("status") not in ("ok", "timeout"):
                say.print(f"{problem}: {peer}")
                cell["peers"][peer] = first_call(peer, problem, args.threads, args.cap)
                report.store(args.json, results)
    cells = {p: results["cells"][f"first-{p}-t{args.threads}"]["peers"] for p in chosen}
    Console(highlight=False, width=160).print(report.first_calls(cells, peers))
    return 0 if all(c["einsmith"]["status"] == "ok" for c in cells.values() if "einsmith" in c) and steady(cells) else 1


def steady(cells: dict[str, dict]) -> bool:
    """Whether every cell has one number of kernels and one size of code in its loops at all numbers of steps, and one
    of all code but for the tiles that kernels outside of loops choose by their extents: a quarter."""
    by_cell: dict[str, list[dict]] = {}
    for problem, found in cells.items():
        ours = found.get("einsmith", {})
        if "kernels" in ours:
            by_cell.setdefault(problem.partition("-")[0], []).append(ours)
    return all(
        len({(r["kernels"], r["loop_bytes"]) for r in rows}) == 1
        and max(r["code_bytes"] for r in rows) <= 1.25 * min(r["code_bytes"] for r in rows)
        for rows in by_cell.values()
    )


if __name__ == "__main__":
    if "--first-calls" in sys.argv[1:]:
        sys.exit(first_calls())
    sys.exit(report.run("Times one training step (SGD) of recurrent networks.", RECURRENT, known=RECURRENT_PEERS))
