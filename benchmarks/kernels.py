"""Single kernels, Einsmith and its peers side by side: python -m benchmarks.kernels [--only GROUP]

Every case is verified against PyTorch in float64, then timed in interleaved rounds. A group's line holds where the
geometric mean over its cases of measure / target is at least 1 and no case is more than 10 % below it; for a ratio to
a peer a case may instead reach 85 % of the roofline, the longest of the case's arithmetic, bytes and special functions
at the rates measured in the same rounds. A case whose rounds disagree is run again at the end, and the steadiest of its
runs counts, whoever is ahead in it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.kernel_cases import GROUPS, Group, Line
from benchmarks.report import begin, finished, geometric_mean, store
from benchmarks.run import Pace, run_problem
from benchmarks.worker import Crew

ROOFLINE = 85.0
"""Percent of the roofline that stand for a ratio."""
MEMBER = 0.9
"""What a case may have of its line."""
SLOW_LIBRARY = 60.0
"""Percent of the multiply-add peak below which PyTorch's library runs at the rate of narrower vectors."""
ROUNDS, CHUNK = 5, 0.03
STEADY = 0.1
"""Spread of the rounds (their middle half, in parts of the median) beyond which a case has met bad weather."""
NEAR = 1.2
"""A peer within this of the fastest may be the fastest in another run."""
AGAIN = 2
"""How often an unsteady case is run again, after all the others; the steadiest of its runs counts."""


def unsteadiness(cell: dict) -> float:
    """The largest spread among what a verdict rests on: Einsmith's rounds and those of its fastest peers."""
    timed = {p: r for p, r in cell["peers"].items() if "median" in r}
    fastest = min((r["median"] for p, r in timed.items() if p != "einsmith"), default=0.0)
    used = [r for p, r in timed.items() if p == "einsmith" or r["median"] <= NEAR * fastest]
    return max(((r["high"] - r["low"]) / r["median"] for r in used), default=0.0)


def score(cell: dict, line: Line) -> float | None:
    """A case's part of a line's target, 1 where it just holds; None where the line says nothing about the case."""
    ours = cell["peers"].get("einsmith", {})
    if "median" not in ours:
        return 0.0
    peak = cell["peak_flops_per_second"]
    if line.measure == "peak":
        return 100 * cell["flops"] / peak / ours["median"] / line.target if peak else None
    roofline = ours.get("floor_percent", 0.0) / ROOFLINE
    if line.measure == "ratio":
        return max(cell["speedup"] / line.target, roofline) if cell["speedup"] else None
    torch = cell["peers"].get("torch", {}).get("median")
    if torch is None or not peak or 100 * cell["flops"] / peak / torch > SLOW_LIBRARY:
        return None
    return max(torch / ours["median"] / line.target, roofline)


def judge(cells: Sequence[dict], line: Line) -> tuple[float | None, float | None, bool]:
    """(geometric mean of the scores, the least, whether the line holds); it does where it says nothing."""
    scores = [s for s in (score(cell, line) for cell in cells) if s is not None]
    if not scores:
        return None, None, True
    mean = geometric_mean(scores) if min(scores) > 0 else 0.0
    return mean, min(scores), bool(mean and mean >= 1 and min(scores) >= MEMBER)


def cell_key(name: str, threads: int) -> str:
    return f"{name}-t{threads}"


def table(group: Group, threads: int, cells: dict[str, dict]) -> Table:
    """One line a case of a group."""
    out = Table(title=f"{group.name}, {threads} thread{'s' if threads > 1 else ''}")
    for name in ("", "ms", "best peer ms", "which", "ratio", "to PyTorch", "of the roofline", "bound by", ""):
        out.add_column(name, justify="left" if name in ("", "which", "bound by") else "right", no_wrap=name == "")
    for case in group.cases:
        cell = cells.get(case.name)
        if cell is None:
            continue
        ours, best = cell["peers"].get("einsmith", {}), cell["best_peer"]
        peer = cell["peers"][best] if best else {}
        torch = cell["peers"].get("torch", {}).get("median")
        scores = [s for s in (score(cell, line) for line in group.lines) if s is not None]
        bad = min(scores, default=1.0) < MEMBER
        notes = [f"{p}: {r['status']}" for p, r in cell["peers"].items() if r["status"] != "ok"]
        out.add_row(
            f"[red]{case.name}[/]" if bad else case.name,
            f"{1e3 * ours['median']:.3f}" if "median" in ours else ours.get("status", ""),
            f"{1e3 * peer['median']:.3f}" if best else "none",
            ", ".join(filter(None, (best, peer.get("variant")))),
            f"{cell['speedup']:.2f}" if cell["speedup"] else "",
            f"{torch / ours['median']:.2f}" if torch and "median" in ours else "",
            f"{ours['floor_percent']:.0f} %" if "floor_percent" in ours else "",
            cell["bound_by"],
            "; ".join([*notes, *([] if cell["verified"] else ["not verified"])]),
        )
    return out


def summary(groups: Sequence[Group], found: dict[str, dict[str, dict]]) -> Table:
    """One line for each target of each group."""
    out = Table(title="groups: geometric mean over the cases of what they reach of their target")
    for name in ("", "threads", "target", "cases", "mean ratio", "of the roofline", "of the target", "least", ""):
        out.add_column(name, justify="left" if name in ("", "target") else "right")
    words = {"ratio": "{:g} times the best peer", "torch": "{:g} times PyTorch", "peak": "{:g} % of the peak"}
    for group in groups:
        cells = [found[group.name][c.name] for c in group.cases if c.name in found[group.name]]
        if not cells:
            continue
        threads = cells[0]["threads"]
        ratios = geometric_mean([c["speedup"] for c in cells if c["speedup"]])
        percents = [c["peers"].get("einsmith", {}).get("floor_percent") for c in cells]
        percent = geometric_mean([p for p in percents if p])
        for line in group.lines:
            mean, least, holds = judge(cells, line)
            verdict = ("[green]holds[/]" if holds else "[red]fails[/]") if mean is not None else "no such case"
            if len(cells) < len(group.cases):
                verdict += " so far"
            out.add_row(
                group.name, str(threads), words[line.measure].format(line.target), f"{len(cells)}/{len(group.cases)}",
                f"{ratios:.2f}" if ratios else "", f"{percent:.0f} %" if percent else "",
                f"{mean:.2f}" if mean is not None else "", f"{least:.2f}" if least is not None else "", verdict,
            )  # fmt: skip
    return out


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Times single kernels in every peer.")
    only = "groups or cases whose name contains this; may be given several times"
    parser.add_argument("--only", action="append", default=[], help=only)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, help="instead of each group's own number")
    parser.add_argument("--peers", help="comma-separated, instead of each group's own")
    parser.add_argument("--cap", type=float, default=40.0, help="seconds that a peer may take on a case")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case after this time")
    parser.add_argument("--json", type=Path, help="results are kept here; what it holds already is not run again")
    parser.add_argument("--again", type=int, default=AGAIN, help="how often an unsteady case is run again, at the end")
    parser.add_argument("--fresh", action="store_true", help="run again what the JSON file holds")
    parser.add_argument("--summary", action="store_true", help="run nothing, print what the JSON file holds")
    args = parser.parse_args(argv)
    if args.rounds < 1 or args.again < 0 or args.cap <= 0 or (args.threads is not None and args.threads < 1):
        parser.error("threads and rounds are at least 1, the cap is positive, cases are run again 0 times or more")
    chosen = _chosen(args.only)
    if not chosen:
        parser.error(f"no group and no case has {', '.join(args.only)} in its name; the groups are {', '.join(GROUPS)}")
    say, console, results = begin(args.json, 150, timing=not args.summary)
    if not args.summary:
        _run(chosen, args, results, say)
    found = {
        g.name: {
            c.name: results["cells"][key]
            for c in g.cases
            if (key := cell_key(c.name, args.threads or g.threads)) in results["cells"]
        }
        for g in chosen
    }
    for group in chosen:
        if found[group.name]:
            console.print(table(group, args.threads or group.threads, found[group.name]))
    console.print(summary(chosen, found))
    ours = [c["peers"].get("einsmith", {}).get("status") for cells in found.values() for c in cells.values()]
    return int(any(status != "ok" for status in ours))


def _chosen(only: Sequence[str]) -> list[Group]:
    """The groups with the cases that are asked for."""
    out = []
    for group in GROUPS.values():
        whole = not only or any(text in group.name for text in only)
        cases = tuple(c for c in group.cases if whole or any(text in c.name for text in only))
        if cases:
            out.append(group._replace(cases=cases))
    return out


def _run(groups: Sequence[Group], args: argparse.Namespace, results: dict, say: Console) -> None:
    """Runs what is not in the results yet, then again what was unsteady; stores after every case."""
    crews = _Crews()
    begun = time.monotonic()
    pace = Pace(args.rounds, CHUNK, 1, 1)
    ran: set[str] = set()
    try:
        for turn in range(1 + args.again):
            for group, case in ((g, c) for g in groups for c in g.cases):
                threads = args.threads or group.threads
                peers = ["einsmith", *(args.peers.split(",") if args.peers else group.peers)]
                key = cell_key(case.name, threads)
                old = results["cells"].get(key)
                done = old is not None and finished(old, peers) and not (args.fresh and key not in ran)
                if done and (turn == 0 or key not in ran or unsteadiness(old) <= STEADY):
                    continue
                if time.monotonic() - begun > args.seconds:
                    say.print("out of time; the same command goes on from here")
                    return
                crew = crews.of(threads)
                for peer in (*peers, "peak", "copy", *(() if case.training else ("reference",))):
                    crew.start(peer)
                start = time.monotonic()
                cell = run_problem(case, peers, threads, pace, args.cap, say.print, crew)
                say.print(_line(case.name, cell, time.monotonic() - start))
                if not (done and finished(cell, peers) and unsteadiness(cell) >= unsteadiness(old)):
                    results["cells"][key] = cell
                results["cells"][key]["runs"] = 1 + turn
                ran.add(key)
                store(args.json, results)
    finally:
        crews.close()


class _Crews:
    """The processes of all peers, anew where the number of threads changes."""

    def __init__(self) -> None:
        self._crew: Crew | None = None

    def of(self, threads: int) -> Crew:
        if self._crew is None or self._crew.threads != threads:
            self.close()
            self._crew = Crew(threads, None)
        return self._crew

    def close(self) -> None:
        if self._crew is not None:
            self._crew.close()
            self._crew = None


def _line(name: str, cell: dict, seconds: float) -> str:
    ours = cell["peers"].get("einsmith", {})
    if "median" not in ours:
        return f"{name}: {ours.get('status', 'not run')}"
    ratio = f", {cell['speedup']:.2f} times {cell['best_peer']}" if cell["speedup"] else ""
    percent = f", {ours['floor_percent']:.0f} % of the roofline" if "floor_percent" in ours else ""
    return f"{name}: {1e3 * ours['median']:.3f} ms{ratio}{percent} ({seconds:.1f} s)"


if __name__ == "__main__":
    sys.exit(main())
