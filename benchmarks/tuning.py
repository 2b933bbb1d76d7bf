"""What tuning costs and brings: python -m benchmarks.tuning [network ...] --json FILE

Training steps without a search, after one of 60 and of 300 seconds before the first step (static), and with one that
goes on while the network trains (dynamic), beside torch.compile with max-autotune and TensorFlow's XLA. Each in a
process with caches of its own; after the first calls the steps are taken in turns. What is compared is the time from
the start, compiling and tuning included, to the end of so many steps, after which the losses are the same. With
--neighbour, another program computes on one processor all the while.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks import driver
from benchmarks.driver import KEPT, Parser, Results, asked
from benchmarks.models import TRAINING
from benchmarks.worker import Allowance, Crew, WorkerError

OURS = ("einsmith", "static-60", "static-300", "dynamic")
PEERS = ("compile-max", "xla")
STEPS = 2000
TURNS = 20
FIRST_TURN = 20
"""Steps of the first turn where seconds are given, the first of which are slow."""
CLOSE = 1e-3
"""How far apart, in parts, the losses of two ways may be after some steps."""
BEHIND, SLOWER = 0.02, 0.03
"""How much longer the whole may take with the search in the steps than with one before them, and a step while it goes
on than without."""


@contextmanager
def neighbour(wanted: bool) -> Iterator[subprocess.Popen | None]:
    """Another program that computes while the block runs, if wanted."""
    if not wanted:
        yield None
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield process
        finally:
            process.kill()


def measure(name: str, peers: Sequence[str], threads: int, steps: int, seconds: float, cap: float, say) -> dict:
    """One cell: for each peer the seconds of its first call, of a step in every turn, and the last loss.

    seconds: about how long the steps take, which determines their number; 0 where `steps` does."""
    cell: dict = {"steps": steps, "threads": threads, "peers": {}}
    with tempfile.TemporaryDirectory(prefix="einsmith-bench-") as folder:
        crew = Crew(threads, Path(folder))
        crew.keep_calibration(OURS)
        try:
            left = {p: Allowance(cap) for p in peers}
            rows = cell["peers"] = {p: {"status": "ok", "turns": []} for p in peers}

            def ask(peer: str, *request: Any) -> Any:
                """Return a peer's answer; None where it has failed, now or before."""
                if rows[peer]["status"] != "ok":
                    return None
                try:
                    return crew.start(peer).request(request[0], left[peer], *request[1:])
                except WorkerError as e:
                    rows[peer] |= {"status": e.kind, "message": str(e)}
                    crew.drop(peer)
                    return None

            for p in peers:
                ask(p, "open", name)
                if first := ask(p, "first"):
                    rows[p]["first"] = first["seconds"]
                    say(f"{name}: {p}: first call {first['seconds']:.1f} s")
            each = FIRST_TURN if seconds else steps // TURNS
            for n in range(TURNS):
                for p in peers:
                    if turn := ask(p, "time", each, 0):
                        rows[p]["turns"].append(turn)
                if seconds and not n:
                    step = median(x for r in rows.values() for t in r["turns"] for x in t)
                    each = max(1, int(seconds / TURNS / step))
                    cell["steps"] = FIRST_TURN + each * (TURNS - 1)
            for p in peers:
                if last := ask(p, "steps", 1):
                    rows[p] |= {"loss": last["losses"][0]} | (ask(p, "describe") or {})
        finally:
            crew.close()
    for row in cell["peers"].values():
        if row["status"] == "ok":
            turns = row.pop("turns")
            row["total"] = row["first"] + sum(map(sum, turns))
            row["step"] = median(x for t in turns[-TURNS // 4 :] for x in t)
            row["by_turn"] = [sum(t) / len(t) for t in turns]
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
    peers = list(dict.fromkeys(p for c in cells.values() for p in c["peers"]))

    def shown(r: dict) -> str:
        if r["status"] != "ok":
            return r["status"]
        return f"{r['first']:.1f} s, {r['step'] * 1e3:.2f} ms, {r['total']:.1f} s"

    rows = ((name, *(shown(c["peers"].get(p, {"status": ""})) for p in peers)) for name, c in cells.items())
    return driver.table("first call, step in the end, and all steps", ("", *peers), rows)


def explored(cells: dict[str, dict]) -> Table:
    """What the search that goes on while a network trains has tried, and what it brought."""
    rows = []
    for name, c in cells.items():
        static, dynamic = (c["peers"].get(p, {"status": ""}) for p in ("einsmith", "dynamic"))
        if static["status"] == dynamic["status"] == "ok":
            x = dynamic["explored"]
            steps = [f"{r['step'] * 1e3:.3f} ms" for r in (static, dynamic)]
            rows.append((name, x["tried"], x["kept"], *steps, f"{x['cost']:.1%}", x["state"]))
    names = ("", "tried", "kept", "step before", "step after", "cost", "state")
    return driver.table("tuned while it trains", names, rows, text=("state",))


def main(argv: Sequence[str] | None = None) -> int:
    """Time the networks' steps; return the exit status."""
    parser = Parser(
        __doc__, TRAINING, peers=(",".join((*OURS, *PEERS)), "comma-separated"), threads=(2, ""), steps=(STEPS, ""),
        seconds=(0.0, "of the steps of a peer, about; in place of --steps"), json=KEPT,
        neighbour=(False, "another program keeps one processor busy"), cap=(1200.0, "seconds that a peer may take"),
    )  # fmt: skip
    args = parser.read(argv, threads=1, steps=TURNS, cap=1e-9, seconds=0)
    results = Results(args.json, 200)
    peers = [p for p in args.peers.split(",") if p]

    def timed(name: str) -> dict:
        with neighbour(args.neighbour):
            cell = measure(name, peers, args.threads, args.steps, args.seconds, args.cap, results.say)
        return cell | {"neighbour": args.neighbour}

    names = args.names or [n for n in TRAINING if n.endswith("-b16")]
    cells = results.fill((n, partial(timed, n)) for n in names)
    judged = verdicts(list(cells.values()))
    for out in (table(cells), explored(cells), asked("tuning", judged)):
        results.console.print(out)
    return int(any(holds is False for *_, holds in judged))


if __name__ == "__main__":
    sys.exit(main())
