"""What tuning costs and brings: python -m benchmarks.tuning [network ...] --json FILE

Training steps without a search, after one of 60 and of 300 seconds before the first step (static), and with one that
goes on while the network trains (dynamic), beside torch.compile with max-autotune and TensorFlow's XLA. Each in a
process with caches of its own; after the first calls the steps are taken in turns. What is compared is the time from
the start, compiling and tuning included, to the end of so many steps, after which the losses are the same.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.table import Table

from benchmarks.models import TRAINING
from benchmarks.process import Allowance, Crew, WorkerError
from benchmarks.report import asked, begin, store

OURS = ("einsmith", "static-60", "static-300", "dynamic")
PEERS = ("compile-max", "xla")
STEPS = 2000
TURNS = 20
CLOSE = 1e-3
"""How far apart, in parts, the losses of two ways may be after some steps."""
BEHIND, SLOWER = 0.02, 0.03
"""How much longer the whole may take with the search in the steps than with one before them, and a step while it goes
on than without."""


def measure(name: str, peers: Sequence[str], threads: int, steps: int, cap: float, say) -> dict:
    """One cell: for each peer the seconds of its first call, of a step in every turn, and the last loss."""
    cell: dict = {"steps": steps, "threads": threads, "peers": {}}
    with tempfile.TemporaryDirectory(prefix="einsmith-bench-") as folder:
        crew = Crew(threads, Path(folder))
        try:
            left = {p: Allowance(cap) for p in peers}
            for p in peers:
                found = cell["peers"][p] = {"status": "ok", "turns": []}
                try:
                    worker = crew.start(p)
                    worker.ask(f"open {name}", left[p])
                    begun = time.perf_counter()
                    found["first"] = worker.ask("first", left[p])["seconds"]
                    say(f"{name}: {p}: first call {time.perf_counter() - begun:.1f} s")
                except WorkerError as e:
                    found |= {"status": e.kind, "message": str(e)}
                    crew.drop(p)
            for _ in range(TURNS):
                for p in peers:
                    found = cell["peers"][p]
                    if found["status"] != "ok":
                        continue
                    try:
                        found["turns"].append(crew.start(p).ask(f"time {steps // TURNS} 0", left[p])["seconds"])
                    except WorkerError as e:
                        found |= {"status": e.kind, "message": str(e)}
                        crew.drop(p)
            for p in peers:
                if cell["peers"][p]["status"] == "ok":
                    cell["peers"][p]["loss"] = crew.start(p).ask("steps 1", left[p])["losses"][0]
        finally:
            crew.close()
    for found in cell["peers"].values():
        if found["status"] == "ok":
            turns = found.pop("turns")
            found["total"] = found["first"] + sum(map(sum, turns))
            found["step"] = median(x for t in turns[-TURNS // 4 :] for x in t)
            found["by_turn"] = [sum(t) / len(t) for t in turns]
    return cell


def verdicts(cells: Sequence[dict]) -> list[tuple[str, str, str, bool | None]]:
    """What is asked of all networks together."""
    behind, ahead, slower, wrong = [], [], [], 0
    for c in cells:
        good = {p: r for p, r in c["peers"].items() if r["status"] == "ok"}
        losses = [r["loss"] for r in good.values()]
        wrong += max(losses) - min(losses) > CLOSE * abs(max(losses, key=abs)) if losses else 0
        if "dynamic" not in good:
            continue
        static = [good[p]["total"] for p in OURS[:3] if p in good]
        behind.append(good["dynamic"]["total"] / min(static) - 1 if static else 0.0)
        others = [good[p]["total"] for p in PEERS if p in good]
        if others:
            ahead.append(min(others) / good["dynamic"]["total"])
        if "einsmith" in good:
            early = [a / b for a, b in zip(good["dynamic"]["by_turn"], good["einsmith"]["by_turn"], strict=True)]
            slower.append(median(early[: TURNS // 4]) - 1)
    out: list[tuple[str, str, str, bool | None]] = [("networks whose losses differ", str(wrong), "0", not wrong)]
    if behind:
        most = max(behind)
        out.append(("dynamic behind the best other way, at most", f"{most:.1%}", f"{BEHIND:.0%}", most <= BEHIND))
    if ahead:
        out.append(("times as fast as the best peer, at least", f"{min(ahead):.2f}", "1", min(ahead) >= 1))
    if slower:
        most = max(slower)
        out.append(("steps slower while it searches, at most", f"{most:.1%}", f"{SLOWER:.0%}", most <= SLOWER))
    return out


def table(cells: dict[str, dict]) -> Table:
    out = Table(title="first call, step in the end, and all steps")
    peers = list(dict.fromkeys(p for c in cells.values() for p in c["peers"]))
    out.add_column("")
    for p in peers:
        out.add_column(p, justify="right")
    for name, c in cells.items():
        out.add_row(name, *(_shown(c["peers"].get(p, {"status": ""})) for p in peers))
    return out


def _shown(found: dict) -> str:
    if found["status"] != "ok":
        return found["status"]
    return f"{found['first']:.1f} s, {found['step'] * 1e3:.2f} ms, {found['total']:.1f} s"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Times training steps with and without tuning, everything included.")
    parser.add_argument("network", nargs="*", default=[n for n in TRAINING if n.endswith("-b16")], help="as lenet5-b16")
    parser.add_argument("--peers", default=",".join((*OURS, *PEERS)), help="comma-separated; default: %(default)s")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--cap", type=float, default=1200.0, help="seconds that a peer may take")
    parser.add_argument("--json", type=Path, help="results are kept here; what it holds already is not run again")
    args = parser.parse_args(argv)
    if unknown := [n for n in args.network if n not in TRAINING]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(TRAINING)}")
    if args.threads < 1 or args.steps < TURNS or args.cap <= 0:
        parser.error(f"threads are at least 1, steps {TURNS}, and the cap is positive")
    say, console, results = begin(args.json, 200)
    peers = [p for p in args.peers.split(",") if p]
    for name in args.network:
        if name not in results["cells"]:
            results["cells"][name] = measure(name, peers, args.threads, args.steps, args.cap, say.print)
            store(args.json, results)
    cells = {n: results["cells"][n] for n in args.network}
    console.print(table(cells))
    found = verdicts(list(cells.values()))
    console.print(asked("tuning", found))
    return int(any(holds is False for *_, holds in found))


if __name__ == "__main__":
    sys.exit(main())
