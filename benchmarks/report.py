"""Command line, JSON file and tables that benchmarks share."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.problem import Workload
from benchmarks.run import PEERS, Pace, run_problem
from benchmarks.worker import PEERS as LIBRARIES
from benchmarks.worker import Crew
from einsmith.bench.compare import machine

QUICK: dict[str, Any] = {"rounds": 5, "seconds": 1.0, "cap": 30.0}
"""Defaults of options where there are many short cases."""


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """Return the geometric mean; None of nothing."""
    return statistics.geometric_mean(ratios) if ratios else None


Verdicts = Sequence[tuple[str, str, str, bool | None]]
"""What was found beside what is asked for: (what, found, asked for, whether it holds, None: not asked)."""


def run(
    title: str, problems: Mapping[str, Workload], argv: Sequence[str] | None = None, known: Sequence[str] = PEERS,
    fit: Callable[[Workload, list[str]], list[str]] = lambda problem, peers: peers,
    verdicts: Callable[[Mapping[str, dict]], Verdicts] | None = None,
    choice: Callable[[Any, int, float], dict] | None = None, defaults: Mapping[str, Any] | None = None,
) -> int:  # fmt: skip
    """Run the whole program: parse the arguments, run what is not in the JSON file yet, print. Return the exit status.

    Args:
        title: what the program says of itself
        problems: the problems by name
        argv: arguments; None for the process's own
        known: the peers that there are for these problems
        fit: returns those of the peers asked for that a problem has
        verdicts: returns what is found beside what is asked for in the cells by problem
        choice: measures what the choices of kernels lose; from a problem, the threads and the most seconds
        defaults: of options, by name
    """
    parser = _parser(title, problems, known)
    parser.set_defaults(**(defaults or {}))
    args = parser.parse_args(argv)
    chosen, peers = _chosen(parser, args, problems, known)
    say, console, results = begin(args.json, 170, timing=not (args.alone or args.summary))
    cells: dict[str, dict] = results["cells"]
    crew = Crew(args.threads, None) if args.shared else None
    try:
        for problem in chosen if not args.summary else ():
            key = f"{problem.name}-t{args.threads}"
            fitting = fit(problem, peers)
            old = cells.get(key)
            if old is not None and finished(old, fitting) and not args.fresh and (choice is None or "choice" in old):
                say.print(f"{problem.name}: already in {args.json}")
            else:
                pace = Pace(args.rounds, seconds=args.seconds)
                cells[key] = run_problem(
                    problem, fitting, args.threads, pace, args.cap, say.print, crew=crew, keeper=args.alone
                )
                if choice is not None:
                    cells[key]["choice"] = choice(problem, args.threads, args.cap)
                store(args.json, results)
            console.print(table(problem, cells[key]))
    finally:
        if crew is not None:
            crew.close()
    chosen = [p for p in chosen if f"{p.name}-t{args.threads}" in cells]
    shown = {p.name: cells[f"{p.name}-t{args.threads}"] for p in chosen}
    console.print(summary(chosen, list(shown.values())))
    columns = list(dict.fromkeys(peer for p in chosen for peer in fit(p, peers)))
    console.print(first_calls({n: c["peers"] for n, c in shown.items()}, columns))
    statuses = [(peer, r["status"]) for c in shown.values() for peer, r in c["peers"].items()]
    failed = any(s == "wrong" or (peer == "einsmith" and s != "ok") for peer, s in statuses)
    if verdicts is not None:
        console.print(asked(title, verdicts(shown)))
    return int(failed)


def _parser(title: str, problems: Mapping[str, Workload], known: Sequence[str]) -> argparse.ArgumentParser:
    networks = sorted({p.network for p in problems.values()} | set(problems))
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("network", nargs="*", help=f"which (default: all): {', '.join(networks)}")
    parser.add_argument("--networks", metavar="NAMES", default="", help="the same, comma-separated")
    parser.add_argument("--batch", type=int, action="append", help="only of this batch size; can be repeated")
    parser.add_argument("--only", metavar="PATTERN", help="problems whose names match, as in '*-b64-*'")
    parser.add_argument("--peers", "--libraries", default=",".join(known), help="comma-separated; default: %(default)s")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--seconds", type=float, help="about how long a peer is timed on a problem, where that is less than its rounds"
    )
    parser.add_argument("--cap", type=float, default=120.0, help="seconds that a peer may take on a problem")
    parser.add_argument("--json", type=Path, help="results are kept here; what it holds already is not run again")
    parser.add_argument("--fresh", action="store_true", help="run again what the JSON file holds")
    parser.add_argument("--summary", action="store_true", help="run nothing, show what the JSON file holds")
    parser.add_argument(
        "--alone", metavar="COMMAND", help="a shell command that keeps other work away while times are taken, as on a"
        " shared machine: timing begins when it prints a line, and at the end its input is closed and its end awaited"
    )  # fmt: skip
    parser.add_argument("--shared", action="store_true", help="one process of a peer for all problems, and its caches")
    parser.add_argument("--without-einsmith", action="store_true", help="the peers alone")
    return parser


def _chosen(
    parser: argparse.ArgumentParser, args: argparse.Namespace, problems: Mapping[str, Workload], known: Sequence[str]
) -> tuple[list[Workload], list[str]]:
    """Return the problems and the peers that are asked for; end the process where there are none."""
    wanted = {*args.network, *filter(None, args.networks.split(","))}
    peers = [p for p in args.peers.split(",") if p]
    unknown = wanted - {p.network for p in problems.values()} - set(problems) | set(peers) - set(known)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if args.only and not fnmatch.filter(problems, args.only):
        parser.error(f"no problem matches {args.only}; there are {', '.join(problems)}")
    if args.threads < 1 or args.rounds < 1 or args.cap <= 0 or (args.seconds is not None and args.seconds <= 0):
        parser.error("threads and rounds are at least 1, the seconds and the cap are positive")
    chosen = [p for p in problems.values() if not wanted or {p.name, p.network} & wanted]
    chosen = [p for p in chosen if not args.only or fnmatch.fnmatch(p.name, args.only)]
    chosen = [p for p in chosen if not args.batch or p.batch in args.batch]
    if not chosen:
        parser.error(f"no problem has batch size {', '.join(map(str, args.batch))} of those asked for")
    return chosen, [*([] if args.without_einsmith else ["einsmith"]), *peers]


def begin(path: Path | None, width: int, timing: bool = True) -> tuple[Console, Console, dict]:
    """What a benchmark begins with: where progress and results are printed, these `width` wide in a file, and what the
    JSON file holds. What ends the process closes its workers on the way out. timing: whether load is told of."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    say = Console(stderr=True, highlight=False, soft_wrap=True)
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=width)
    results = load(path)
    results["machine"] = machine()
    if timing and os.getloadavg()[0] > 0.5:
        say.print(f"[yellow]the machine is busy (load {os.getloadavg()[0]:.1f}): times will be off[/]")
    return say, console, results


def asked(title: str, verdicts: Verdicts) -> Table:
    """What was found beside what is asked for: (what, found, asked for, whether it holds, None: not asked)."""
    out = Table(title=title)
    for name in ("", "found", "asked for", ""):
        out.add_column(name, justify="right" if name else "left")
    for what, found, wanted, holds in verdicts:
        out.add_row(what, found, wanted, "" if holds is None else "[green]holds[/]" if holds else "[red]fails[/]")
    return out


def finished(cell: dict, peers: Sequence[str]) -> bool:
    """Whether a cell need not be run again: every peer was timed, ran into its cap, or is still not installed."""

    def done(peer: str) -> bool:
        status = cell["peers"].get(peer, {}).get("status")
        if status == "missing":
            return find_spec(LIBRARIES[peer]) is None
        return status in ("ok", "timeout")

    return all(done(peer) for peer in peers)


def load(path: Path | None) -> dict:
    if path is None or not path.exists():
        return {"cells": {}}
    try:
        results = json.loads(path.read_text())
        if isinstance(results.get("cells"), dict):
            return results
    except (ValueError, AttributeError):
        pass
    raise SystemExit(f"{path} is not a file of this benchmark; name another with --json")


def store(path: Path | None, results: dict) -> None:
    """Written whole or not at all, after every problem."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as f:
        json.dump(results, f, indent=1)
    os.replace(f.name, path)


def first_calls(cells: Mapping[str, Mapping[str, dict]], peers: Sequence[str]) -> Table:
    """Seconds of every peer's first call, which compiles, without those that it waited for other work: one line a
    problem. Ours with the number of its kernels and the size of their code where it is known."""
    out = Table(title="first call, seconds; ours with its kernels and KiB of code")
    out.add_column("")
    for peer in peers:
        out.add_column(peer, justify="right")
    for problem, found in cells.items():
        out.add_row(problem, *(_first(found.get(peer, {})) for peer in peers))
    return out


def _first(r: dict) -> str:
    if "first_seconds" not in r:
        return f"over {r['cap']:.0f}" if r.get("status") == "timeout" else r.get("status", "")
    seconds = r.get("first_spent", r["first_seconds"])
    more = f" ({r['kernels']}, {r['code_bytes'] / 1024:.0f})" if "code_bytes" in r else ""
    return f"{seconds:.2f}{more}"


def table(problem: Workload, cell: dict) -> Table:
    """Return the table of all peers of one problem, the fastest first."""
    bound = "" if cell.get("bound_by", "arithmetic") == "arithmetic" else f" by its {cell['bound_by']}"
    floor = f", floor {1e3 * cell['floor_seconds']:.2f} ms{bound}" if cell.get("floor_seconds") else ""
    usual = "results agree" if cell["verified"] else "one peer only: nothing to verify against"
    verified = cell.get("verification", usual)
    out = Table(title=f"{problem.name}, {cell['threads']} threads{floor} ({verified})")
    for name in ("", "ms", "middle half", "of the floor", "against best peer", "first call s", "MiB", ""):
        out.add_column(name, justify="left" if name == "" else "right")
    best = cell["peers"].get(cell.get("best_peer") or "", {}).get("median")
    rows = sorted(cell["peers"].items(), key=lambda item: item[1].get("median", float("inf")))
    for peer, r in rows:
        if "median" not in r:
            out.add_row(peer, "", "", "", "", _seconds(r), _mebibytes(r), f"{r['status']}: {r.get('message', '')}")
            continue
        out.add_row(
            f"[bold]{peer}[/]" if peer == "einsmith" else peer,
            f"{1e3 * r['median']:.2f}",
            f"{1e3 * r['low']:.2f} to {1e3 * r['high']:.2f}",
            f"{r['floor_percent']:.0f} %" if "floor_percent" in r else "",
            f"{best / r['median']:.2f}x" if best else "",
            _seconds(r),
            _mebibytes(r),
            ", ".join(filter(None, (r.get("variant"), r.get("message")))),
        )
    if len(cell.get("groups", ())) > 1:
        turns = "; then ".join(", ".join(group) for group in cell["groups"])
        out.caption = f"not all at once, for want of memory: {turns}"
    return out


def _mebibytes(r: dict) -> str:
    """Return the most memory (MiB) that a peer held while it ran, above that of its imported library."""
    return f"{r['bytes'] / 2**20:.0f}" if r.get("bytes") else ""


def _seconds(r: dict) -> str:
    if "first_seconds" not in r:
        return ""
    warm = f" (warm {r['first_seconds_warm']:.2f})" if "first_seconds_warm" in r else ""
    return f"{r['first_seconds']:.2f}{warm}"


def summary(problems: Sequence[Workload], cells: Sequence[dict]) -> Table:
    """Return a table with a line for each problem: Einsmith against the best peer of those that were timed, and which
    were not because they took too long to compile; at the end the geometric mean of the ratios."""
    out = Table(title="Einsmith against the best peer")
    columns = (
        "", "Einsmith ms", "best peer ms", "which", "times as fast", "of the floor", "first call s", "kernels", "MiB",
        "PyTorch MiB", "not timed",
    )  # fmt: skip
    for name in columns:
        out.add_column(name, justify="left" if name in ("", "which", "not timed") else "right")
    for problem, cell in zip(problems, cells, strict=True):
        ours = cell["peers"].get("einsmith", {})
        best = cell["best_peer"]
        peer = cell["peers"][best] if best else {}
        out.add_row(
            problem.name,
            f"{1e3 * ours['median']:.2f}" if "median" in ours else ours.get("status", "not run"),
            f"{1e3 * peer['median']:.2f}" if best else "none",
            ", ".join(filter(None, (best, peer.get("variant")))),
            f"{cell['speedup']:.2f}" if cell["speedup"] else "",
            f"{ours['floor_percent']:.0f} %" if "floor_percent" in ours else "",
            _seconds(ours),
            str(ours.get("kernels", "")),
            _mebibytes(ours),
            _mebibytes(cell["peers"].get("torch", {})),
            ", ".join(_untimed(p, r) for p, r in cell["peers"].items() if p != "einsmith" and "median" not in r),
        )
    mean = geometric_mean([c["speedup"] for c in cells if c["speedup"]])
    if mean is not None:
        out.add_section()
        out.add_row("geometric mean", "", "", "", f"{mean:.2f}")
    return out


def _untimed(peer: str, r: dict) -> str:
    cap = f" {r['cap']:.0f} s" if "cap" in r else ""
    return f"{peer} over{cap}" if r["status"] == "timeout" else f"{peer} {r['status']}"
