"""The loop of benchmarks whose cases are chosen by flags or drawn from a seed, verified against float64."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.problem import Workload
from benchmarks.report import begin, finished, geometric_mean, store
from benchmarks.run import Pace, run_problem
from benchmarks.worker import Crew

Fit = Callable[[Workload, Sequence[str]], tuple[list[str], list[str]]]
"""Of a problem and the peers asked for: the peers that can run it, and a word on each of the others."""


def parser(title: str, peers: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser of the flags that such benchmarks share."""
    out = argparse.ArgumentParser(description=title)
    out.add_argument("--all", action="store_true", help="every case, not the quick ones alone")
    out.add_argument("--seed", type=int, help="draw cases from this seed instead")
    out.add_argument("--count", type=int, default=8, help="cases that are drawn")
    out.add_argument("--peers", default=",".join(peers), help="comma-separated; default: %(default)s")
    out.add_argument("--threads", type=int, action="append", help="can be repeated; default: 2")
    out.add_argument("--rounds", type=int, default=5)
    out.add_argument("--seconds", type=float, default=1.0, help="about how long a peer is timed on a case")
    out.add_argument("--cap", type=float, default=30.0, help="seconds that a peer may take on a case")
    out.add_argument("--json", type=Path, help="results are kept here; what it holds already is not run again")
    return out


def run(
    args: argparse.Namespace,
    parser: argparse.ArgumentParser,
    problems: Sequence[Workload],
    known: Sequence[str],
    fit: Fit,
    limit: float,
) -> int:
    """Run the problems, print a table; the exit status is 1 where a result of Einsmith's fails or any is wrong.

    limit: seconds after which no quick case begins; with --all and drawn cases there is none.
    """
    threads = args.threads or [2]
    peers = [p for p in args.peers.split(",") if p]
    unknown = sorted(set(peers) - set(known))
    if unknown:
        parser.error(f"--peers: unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    if min(threads) < 1 or args.rounds < 1 or args.count < 1 or args.cap <= 0 or args.seconds <= 0:
        parser.error("threads, rounds and count are at least 1, the seconds and the cap are positive")
    if not problems:
        parser.error("no case is of all the kinds asked for; leave a flag out, or add --all")
    say, console, results = begin(args.json, 170)
    begun, shown, words = time.monotonic(), {}, {}
    for count in threads:
        for problem in problems:
            if not args.all and args.seed is None and time.monotonic() - begun > limit:
                say.print(f"{problem.name}: not begun: the quick cases have taken {limit:g} s")
                continue
            key = f"{problem.name}-t{count}"
            fitting, skipped = fit(problem, peers)
            words[key] = skipped
            if key not in results["cells"] or not finished(results["cells"][key], ["einsmith", *fitting]):
                results["cells"][key] = _cell(problem, fitting, count, args, say)
                store(args.json, results)
            shown[key] = (problem, results["cells"][key])
            say.print(f"{key}: done after {time.monotonic() - begun:.0f} s")
    machine = results["machine"]
    console.print(f"{machine['cpu']}, {machine['cores']} processors, {machine['date']}")
    console.print(table(shown, words))
    cells = [c for _, c in shown.values()]
    statuses = [(peer, r["status"]) for c in cells for peer, r in c["peers"].items()]
    return int(any(s == "wrong" or (peer == "einsmith" and s != "ok") for peer, s in statuses))


def _cell(problem: Workload, peers: Sequence[str], threads: int, args: argparse.Namespace, say: Console) -> dict:
    """One case in processes of its own, so that memory is that of the case alone."""
    crew = Crew(threads, None)
    try:
        for peer in ("einsmith", *peers, "reference"):
            crew.start(peer)
        pace = Pace(args.rounds, 0.1, 1, 1, args.seconds)
        return run_problem(problem, ["einsmith", *peers], threads, pace, args.cap, say.print, crew)
    finally:
        crew.close()


def table(shown: dict[str, tuple[Workload, dict]], words: dict[str, list[str]]) -> Table:
    """A row a peer: milliseconds, throughput of the floor's multiply-adds, ratio to the best peer, memory."""
    out = Table(title="Einsmith and peers, verified against float64")
    for name in ("", "peer", "ms", "G multiply-adds/s", "against best peer", "MiB above inputs", ""):
        out.add_column(name, justify="left" if name in ("", "peer") else "right")
    for key, (problem, cell) in shown.items():
        inputs = sum(a.nbytes for a in problem.arrays().values())
        best = cell["peers"].get(cell["best_peer"] or "", {}).get("median")
        for n, (peer, r) in enumerate(cell["peers"].items()):
            memory = f"{max(0, r['bytes'] - inputs) / 2**20:.0f}" if r.get("bytes") else ""
            note = ", ".join(filter(None, (r.get("variant"), r.get("message"))))
            if "median" not in r:
                out.add_row(key if n == 0 else "", peer, "", "", "", memory, f"{r['status']}: {note}")
                continue
            out.add_row(
                key if n == 0 else "", peer, f"{1e3 * r['median']:.2f}", f"{cell['flops'] / 2e9 / r['median']:.1f}",
                f"{best / r['median']:.2f}x" if best else "", memory, note,
            )  # fmt: skip
        for word in words.get(key, ()):
            out.add_row("", word.partition(":")[0], "", "", "", "", f"skipped:{word.partition(':')[2]}")
        if not cell.get("verified") or cell.get("verification", "").startswith("not verified"):
            out.add_row("", "", "", "", "", "", "not verified")
        out.add_section()
    mean = geometric_mean([c["speedup"] for _, c in shown.values() if c.get("speedup")])
    if mean is not None:
        out.add_row("geometric mean of ratios", "einsmith", "", "", f"{mean:.2f}x")
    return out
