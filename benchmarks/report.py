"""Run problems through all peers, and show what they took: the program of benchmarks that compare libraries."""

from __future__ import annotations

import argparse
import fnmatch
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks import driver
from benchmarks.driver import FRESH, KEPT, Options, Parser, Results, Verdicts, asked, geometric_mean
from benchmarks.problem import Workload
from benchmarks.run import PEERS, Pace, run_problem
from benchmarks.worker import PEERS as LIBRARIES
from benchmarks.worker import Crew

QUICK: dict[str, Any] = {"rounds": 5, "seconds": 1.0, "cap": 30.0}
"""Defaults of options where there are many short cases."""
STEADY = 0.1
"""Spread of the rounds (their middle half, in parts of the median) beyond which a case has met bad weather."""
NEAR = 1.2
"""A peer within this of the fastest may be the fastest in another run."""


Choice = Callable[[Any, int, float], dict]
"""What measures the loss of choices of kernels: of a problem, on so many threads, in so many seconds at most."""


class Job(NamedTuple):
    """A problem and the peers that it is measured with, on so many threads."""

    problem: Workload
    peers: Sequence[str]
    threads: int

    @property
    def key(self) -> str:
        """Name of its cell in the results."""
        return f"{self.problem.name}-t{self.threads}"


def measure_all(
    jobs: Sequence[Job], results: Results, pace: Pace, cap: float, *, fresh: bool = False, is_shared: bool = False,
    keeper: str | None = None, again: int = 0, seconds: float = math.inf,
    choice: Choice | None = None,
) -> Iterator[tuple[Job, dict, bool]]:  # fmt: skip
    """Measure what the results lack; yield each job with its cell, and whether that is new.

    Args:
        jobs: what is to be there in the end
        results: where cells are kept, each at once
        pace, cap, keeper: as for `run_problem`
        fresh: whether to measure again what the results hold
        is_shared: whether a peer has one process, and its usual caches, for all problems
        again: how often a case whose rounds disagree is measured again, after all others; its steadiest run counts,
            whoever is ahead in it
        seconds: time after which no case begins
        choice: measures what the choices of kernels lose
    """
    begun, ran, crew = time.monotonic(), set[str](), None
    try:
        for turn in range(1 + again):
            for job in jobs:
                old = results.cells.get(job.key)
                known = old is not None and finished(old, job.peers) and (choice is None or "choice" in old)
                if old is not None and known and (job.key in ran or not fresh):
                    if turn == 0:
                        yield job, old, False
                    if turn == 0 or job.key not in ran or unsteadiness(old) <= STEADY:
                        continue
                if time.monotonic() - begun > seconds:
                    results.say("out of time; the same command goes on from here")
                    return
                if is_shared and (crew is None or crew.threads != job.threads):
                    if crew is not None:
                        crew.close()
                    crew = Crew(job.threads, None)
                cell = run_problem(
                    job.problem, job.peers, job.threads, pace, cap, results.say, crew=crew, keeper=keeper
                )
                if choice is not None:
                    cell["choice"] = choice(job.problem, job.threads, cap)
                is_worse = known and job.key in ran and finished(cell, job.peers)
                best = old if old and is_worse and unsteadiness(cell) >= unsteadiness(old) else cell
                results.keep(job.key, best | {"runs": 1 + turn})
                ran.add(job.key)
                yield job, cell, True
    finally:
        if crew is not None:
            crew.close()


def unsteadiness(cell: dict) -> float:
    """Return the largest spread among what a verdict rests on: Einsmith's rounds and those of its fastest peers."""
    timed = {p: r for p, r in cell["peers"].items() if "median" in r}
    fastest = min((r["median"] for p, r in timed.items() if p != "einsmith"), default=0.0)
    used = [r for p, r in timed.items() if p == "einsmith" or r["median"] <= NEAR * fastest]
    return max(((r["high"] - r["low"]) / r["median"] for r in used), default=0.0)


Cases = Mapping[str, Workload]


def run(
    title: str, cases: Cases | Callable[[argparse.Namespace], Cases], argv: Sequence[str] | None = None,
    known: Sequence[str] = PEERS, fit: Callable[[Workload, list[str]], list[str]] = lambda problem, peers: peers,
    verdicts: Callable[[Mapping[str, dict]], Verdicts] | None = None,
    choice: Callable[[argparse.Namespace], Choice | None] = lambda args: None,
    defaults: Mapping[str, Any] | None = None, is_of_first_calls: bool = False, options: Options | None = None,
) -> int:  # fmt: skip
    """Run the whole program: parse the arguments, run what is not in the JSON file yet, print. Return the exit status.

    Args:
        title: what the program says of itself
        cases: the problems by name, or a function of the arguments that returns them, or raises ValueError
        argv: arguments; None for the process's own
        known: the peers that there are for these problems
        fit: returns those of the peers asked for that a problem has
        verdicts: returns what is measured beside what is asked for in the cells by problem
        choice: returns, from the arguments, what measures the loss of choices of kernels
        defaults: of options, by name
        is_of_first_calls: whether first calls alone are measured, and what is asked for decides the exit status
        options: more of them (see `driver.Parser`)
    """
    parser = _parser(title, {} if callable(cases) else cases, known, options or {})
    parser.set_defaults(**(defaults or {}))
    args = parser.read(argv, threads=1, rounds=1, cap=1e-9, seconds=1e-9)
    try:
        chosen, peers = _chosen(args, cases(args) if callable(cases) else cases, known)
    except ValueError as e:
        parser.error(str(e))
    results = Results(args.json, 170, timing=not (args.alone or args.summary))
    jobs = [Job(p, fit(p, peers), args.threads) for p in chosen]
    if not args.summary:
        pace = Pace(0 if is_of_first_calls else args.rounds, seconds=args.seconds)
        how: dict[str, Any] = {"fresh": args.fresh, "is_shared": args.shared, "keeper": args.alone}
        how["choice"] = choice(args)
        for job, cell, is_new in measure_all(jobs, results, pace, args.cap, **how):
            if not is_new:
                results.say(f"{job.problem.name}: already in {args.json}")
            if not is_of_first_calls:
                results.console.print(cell_table(job.problem, cell))
    jobs = [j for j in jobs if j.key in results.cells]
    shown = {j.problem.name: results.cells[j.key] for j in jobs}
    if not is_of_first_calls:
        results.console.print(summary(shown))
    columns = list(dict.fromkeys(peer for j in jobs for peer in j.peers))
    results.console.print(first_calls({n: c["peers"] for n, c in shown.items()}, columns))
    statuses = [(peer, r["status"]) for c in shown.values() for peer, r in c["peers"].items()]
    failed = any(s == "wrong" or (peer == "einsmith" and s != "ok") for peer, s in statuses)
    if verdicts is not None:
        judged = verdicts(shown)
        results.console.print(asked(title, judged))
        failed |= is_of_first_calls and any(holds is False for *_, holds in judged)
    return int(failed)


def _parser(title: str, problems: Cases, known: Sequence[str], options: Options) -> Parser:
    parser = Parser(
        title, (), networks=("", "the same, comma-separated"), only=(str, "problems whose names match, as '*-b64-*'"),
        batch=([int], "only of these batch sizes"), peers=(",".join(known), "comma-separated"), threads=(2, ""),
        rounds=(15, ""), cap=(120.0, "seconds that a peer may take on a problem"), json=KEPT, fresh=FRESH,
        seconds=(float, "about how long a peer is timed on a problem, where that is less than its rounds"),
        summary=(False, "run nothing, show what the JSON file holds"),
        alone=(str, "a shell command that keeps other work away while times are taken, as on a shared machine: timing"
               " begins when it prints a line, and at the end its input is closed and its end awaited"),
        shared=(False, "one process of a peer for all problems, and its caches"),
        without_einsmith=(False, "the peers alone"), **options,
    )  # fmt: skip
    names = sorted({p.network for p in problems.values()} | set(problems)) if problems else []
    parser.epilog = f"names: {', '.join(names)}" if names else None
    return parser


def _chosen(args: argparse.Namespace, problems: Cases, known: Sequence[str]) -> tuple[list[Workload], list[str]]:
    """Return the problems and the peers that are asked for. Raises ValueError where there are none."""
    wanted = {*args.names, *filter(None, args.networks.split(","))}
    peers = [p for p in args.peers.split(",") if p]
    unknown = wanted - {p.network for p in problems.values()} - set(problems) | set(peers) - set(known)
    if unknown:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    if args.only and not fnmatch.filter(problems, args.only):
        raise ValueError(f"no problem matches {args.only}; there are {', '.join(problems)}")
    chosen = [p for p in problems.values() if not wanted or {p.name, p.network} & wanted]
    chosen = [p for p in chosen if not args.only or fnmatch.fnmatch(p.name, args.only)]
    chosen = [p for p in chosen if not args.batch or p.batch in args.batch]
    if not chosen:
        raise ValueError(f"no problem has batch size {', '.join(map(str, args.batch))} of those asked for")
    return chosen, [*([] if args.without_einsmith else ["einsmith"]), *peers]


def finished(cell: dict, peers: Sequence[str]) -> bool:
    """Return whether a cell need not be run again: every peer was timed, ran into its cap, or is still missing."""

    def done(peer: str) -> bool:
        status = cell["peers"].get(peer, {}).get("status")
        if status == "missing":
            return find_spec(LIBRARIES[peer]) is None
        return status in ("ok", "timeout")

    return all(done(peer) for peer in peers)


def first_calls(cells: Mapping[str, Mapping[str, dict]], peers: Sequence[str]) -> Table:
    """Return the table of seconds of every peer's first call, which compiles, without those that it waited for other
    work: one line a problem. Ours with the number of its kernels and the size of their code where it is known."""

    def shown(r: dict) -> str:
        if "first_seconds" not in r:
            return f"over {r['cap']:.0f}" if r.get("status") == "timeout" else r.get("status", "")
        more = f" ({r['kernels']}, {r['code_bytes'] / 1024:.0f})" if "code_bytes" in r else ""
        return f"{r.get('first_spent', r['first_seconds']):.2f}{more}"

    rows = ((name, *(shown(cell.get(peer, {})) for peer in peers)) for name, cell in cells.items())
    return driver.table("first call, seconds; ours with its kernels and KiB of code", ("", *peers), rows)


def cell_table(problem: Workload, cell: dict) -> Table:
    """Return the table of all peers of one problem, the fastest first."""
    bound = "" if cell.get("bound_by", "arithmetic") == "arithmetic" else f" by its {cell['bound_by']}"
    floor = f", floor {1e3 * cell['floor_seconds']:.2f} ms{bound}" if cell.get("floor_seconds") else ""
    usual = "results agree" if cell["verified"] else "one peer only: nothing to verify against"
    best = cell["peers"].get(cell.get("best_peer") or "", {}).get("median")

    def row(peer: str, r: dict) -> tuple[str, ...]:
        if "median" not in r:
            return peer, "", "", "", "", _seconds(r), _mebibytes(r), f"{r['status']}: {r.get('message', '')}"
        return (
            f"[bold]{peer}[/]" if peer == "einsmith" else peer,
            f"{1e3 * r['median']:.2f}",
            f"{1e3 * r['low']:.2f} to {1e3 * r['high']:.2f}",
            f"{r['floor_percent']:.0f} %" if "floor_percent" in r else "",
            f"{best / r['median']:.2f}x" if best else "",
            _seconds(r),
            _mebibytes(r),
            ", ".join(filter(None, (r.get("variant"), r.get("message")))),
        )

    out = driver.table(
        f"{problem.name}, {cell['threads']} threads{floor} ({cell.get('verification', usual)})",
        ("", "ms", "middle half", "of the floor", "against best peer", "first call s", "MiB", ""),
        (row(*x) for x in sorted(cell["peers"].items(), key=lambda x: x[1].get("median", float("inf")))),
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


def summary(cells: Mapping[str, dict]) -> Table:
    """Return a table with a line for each problem: Einsmith against the best peer of those that were timed, and which
    were not because they took too long to compile; at the end the geometric mean of the ratios."""

    def row(name: str, cell: dict) -> tuple[str, ...]:
        ours, best = cell["peers"].get("einsmith", {}), cell["best_peer"]
        peer = cell["peers"][best] if best else {}
        return (
            name,
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

    names = (
        "", "Einsmith ms", "best peer ms", "which", "times as fast", "of the floor", "first call s", "kernels", "MiB",
        "PyTorch MiB", "not timed",
    )  # fmt: skip
    rows = (row(*x) for x in cells.items())
    out = driver.table("Einsmith against the best peer", names, rows, text=("which", "not timed"))
    mean = geometric_mean([c["speedup"] for c in cells.values() if c["speedup"]])
    if mean is not None:
        out.add_section()
        out.add_row("geometric mean", "", "", "", f"{mean:.2f}")
    return out


def _untimed(peer: str, r: dict) -> str:
    cap = f" {r['cap']:.0f} s" if "cap" in r else ""
    return f"{peer} over{cap}" if r["status"] == "timeout" else f"{peer} {r['status']}"
