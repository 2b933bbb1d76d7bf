"""Single kernels, Einsmith and its peers side by side: python -m benchmarks.kernels [--only GROUP]

Every case is verified against PyTorch in float64, then timed in interleaved rounds. A group's line holds where the
geometric mean over its cases of measure / target is at least 1 and no case is more than 10 % below it; for a ratio to
a peer a case may instead reach 85 % of the roofline, the longest of the case's arithmetic, bytes and special functions
at the rates measured in the same rounds. A case whose rounds disagree is run again at the end, and the steadiest of its
runs counts, whoever is ahead in it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from benchmarks import choices, driver
from benchmarks.driver import FRESH, KEPT, LIMIT, Parser, Results, asked, geometric_mean
from benchmarks.kernel_cases import GROUPS, Case, Group, Line
from benchmarks.report import Job, measure_all
from benchmarks.run import Pace

ROOFLINE = 85.0
"""Percent of the roofline that stand for a ratio."""
MEMBER = 0.9
"""What a case may have of its line."""
SLOW_LIBRARY = 60.0
"""Percent of the multiply-add peak below which PyTorch's library runs at the rate of narrower vectors."""
ROUNDS, CHUNK = 5, 0.03
AGAIN = 2
"""How often an unsteady case is run again, after all the others; the steadiest of its runs counts."""


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


def table(group: Group, threads: int, cells: Mapping[str, dict]) -> Table:
    """One line a case of a group."""

    def row(name: str, cell: dict) -> tuple[str, ...]:
        ours, best = cell["peers"].get("einsmith", {}), cell["best_peer"]
        peer = cell["peers"][best] if best else {}
        torch = cell["peers"].get("torch", {}).get("median")
        scores = [s for s in (score(cell, line) for line in group.lines) if s is not None]
        notes = [f"{p}: {r['status']}" for p, r in cell["peers"].items() if r["status"] != "ok"]
        return (
            f"[red]{name}[/]" if min(scores, default=1.0) < MEMBER else name,
            f"{1e3 * ours['median']:.3f}" if "median" in ours else ours.get("status", ""),
            f"{1e3 * peer['median']:.3f}" if best else "none",
            ", ".join(filter(None, (best, peer.get("variant")))),
            f"{cell['speedup']:.2f}" if cell["speedup"] else "",
            f"{torch / ours['median']:.2f}" if torch and "median" in ours else "",
            f"{ours['floor_percent']:.0f} %" if "floor_percent" in ours else "",
            cell["bound_by"],
            "; ".join([*notes, *([] if cell["verified"] else ["not verified"])]),
        )

    names = ("", "ms", "best peer ms", "which", "ratio", "to PyTorch", "of the roofline", "bound by", "")
    title = f"{group.name}, {threads} thread{'s' if threads > 1 else ''}"
    return driver.table(title, names, (row(*x) for x in cells.items()), text=("which", "bound by"))


def summary(groups: Sequence[Group], cells_of: Mapping[str, Mapping[str, dict]]) -> Table:
    """One line for each target of each group."""
    words = {"ratio": "{:g} times the best peer", "torch": "{:g} times PyTorch", "peak": "{:g} % of the peak"}
    rows = []
    for group in groups:
        cells = list(cells_of[group.name].values())
        if not cells:
            continue
        ratios = geometric_mean([c["speedup"] for c in cells if c["speedup"]])
        percents = [c["peers"].get("einsmith", {}).get("floor_percent") for c in cells]
        percent = geometric_mean([p for p in percents if p])
        for line in group.lines:
            mean, least, holds = judge(cells, line)
            verdict = ("[green]holds[/]" if holds else "[red]fails[/]") if mean is not None else "no such case"
            rows.append((
                group.name, cells[0]["threads"], words[line.measure].format(line.target),
                f"{len(cells)}/{len(group.cases)}",
                f"{ratios:.2f}" if ratios else "", f"{percent:.0f} %" if percent else "",
                f"{mean:.2f}" if mean is not None else "", f"{least:.2f}" if least is not None else "",
                verdict + " so far" * (len(cells) < len(group.cases)),
            ))  # fmt: skip
    names = ("", "threads", "target", "cases", "mean ratio", "of the roofline", "of the target", "least", "")
    title = "groups: geometric mean over the cases of what they reach of their target"
    return driver.table(title, names, rows, text=("target",))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that are asked for; return the exit status."""
    parser = Parser(
        __doc__, only=([str], "groups or cases whose name contains this"), rounds=(ROUNDS, ""),
        threads=(int, "instead of each group's own number"), peers=(str, "comma-separated, instead of each group's"),
        cap=(40.0, "seconds that a peer may take on a case"), seconds=LIMIT, json=KEPT, fresh=FRESH,
        candidates=(0, "measure the loss of choices against so many configurations of each pattern, too"),
        again=(AGAIN, "how often an unsteady case is run again, at the end"),
        summary=(False, "run nothing, print what the JSON file holds"),
    )  # fmt: skip
    args = parser.read(argv, rounds=1, again=0, cap=1e-9, threads=1)
    groups = _chosen(args.only)
    if not groups:
        parser.error(f"no group and no case has {', '.join(args.only)} in its name; the groups are {', '.join(GROUPS)}")
    results = Results(args.json, 150, timing=not args.summary)
    wanted = None if args.peers is None else [p for p in args.peers.split(",") if p]
    jobs = {
        g.name: [
            Job(c, ["einsmith", *(g.peers if wanted is None else wanted)], args.threads or g.threads) for c in g.cases
        ]
        for g in groups
    }

    def choice(case: Any, threads: int, cap: float) -> dict:
        return choices.regret(case, threads, args.candidates, cap) if isinstance(case, Case) else {}

    if not args.summary:
        every, pace = [job for of in jobs.values() for job in of], Pace(args.rounds, CHUNK, 1, 1)
        how: dict[str, Any] = {"choice": choice} if args.candidates else {}
        how |= {"fresh": args.fresh, "is_shared": True, "again": args.again, "seconds": args.seconds}
        for job, cell, is_new in measure_all(every, results, pace, args.cap, **how):
            if is_new:
                results.say(_line(job.problem.name, cell))
    cells = {g: {j.problem.name: results.cells[j.key] for j in of if j.key in results.cells} for g, of in jobs.items()}
    for group in groups:
        if cells[group.name]:
            results.console.print(table(group, args.threads or group.threads, cells[group.name]))
    results.console.print(summary(groups, cells))
    if judged := choices.verdicts({name: cell for of in cells.values() for name, cell in of.items()}):
        results.console.print(asked("choices of configurations", judged))
    return int(any(c["peers"].get("einsmith", {}).get("status") != "ok" for of in cells.values() for c in of.values()))


def _chosen(only: Sequence[str]) -> list[Group]:
    """Return the groups with the cases that are asked for."""
    out = []
    for group in GROUPS.values():
        whole = not only or any(text in group.name for text in only)
        cases = tuple(c for c in group.cases if whole or any(text in c.name for text in only))
        if cases:
            out.append(group._replace(cases=cases))
    return out


def _line(name: str, cell: dict) -> str:
    ours = cell["peers"].get("einsmith", {})
    if "median" not in ours:
        return f"{name}: {ours.get('status', 'not run')}"
    ratio = f", {cell['speedup']:.2f} times {cell['best_peer']}" if cell["speedup"] else ""
    percent = f", {ours['floor_percent']:.0f} % of the roofline" if "floor_percent" in ours else ""
    return f"{name}: {1e3 * ours['median']:.3f} ms{ratio}{percent}"


if __name__ == "__main__":
    sys.exit(main())
