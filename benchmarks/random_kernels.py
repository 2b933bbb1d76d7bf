"""Shapes that no benchmark lists: python -m benchmarks.random_kernels --seed S --count N

Products and convolutions drawn anew from S (see `random_cases`), in every library, each in a process of its own,
interleaved, results verified first; and what the choices of configurations lose against the best of the candidates,
measured. A case is judged by its ratio to the best peer.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import autoconfig, random_cases
from benchmarks.kernel_cases import LIBRARIES, Case
from benchmarks.report import asked, begin, finished, store
from benchmarks.run import Pace, run_problem
from benchmarks.worker import Crew

MEAN, USUAL, LEAST = 1.15, 0.9, 0.7
"""The ratio to the best peer: its geometric mean, what nine of ten cases reach, and every case."""
REGRET, MOST_REGRET = 0.05, 0.20
"""The median of regrets, and the 95th percentile."""


def regret(case: Case, threads: int, count: int, cap: float) -> dict:
    """What the choices for the kernels of a case lose: {"regret", "cells": one for each kernel}."""
    kernels = autoconfig.kernels_of(case)
    cells = [autoconfig.measure_kernel(k, threads, count, cap / len(kernels)) for k in kernels]
    chosen = sum(next(c["measured"] for c in autoconfig.measured(x) if c["chosen"]) for x in cells)
    best = sum(min(c["measured"] for c in autoconfig.measured(x)) for x in cells)
    return {"regret": chosen / best - 1, "cells": cells}


def verdicts(cells: Sequence[dict]) -> list[tuple[str, str, str, bool]]:
    """What is asked of all cases together: (what, found, asked for, whether it holds)."""
    out = []
    failed = [c for c in cells if c["peers"].get("einsmith", {}).get("status") != "ok"]
    out.append(("cases that fail or are wrong", f"{len(failed)} of {len(cells)}", "0", not failed))
    ratios = np.array([c["speedup"] for c in cells if c.get("speedup")])
    if ratios.size:
        mean, usual, least = np.exp(np.log(ratios).mean()), np.percentile(ratios, 10), ratios.min()
        out += [
            ("ratio to the best peer, geometric mean", f"{mean:.2f}", f"{MEAN}", mean >= MEAN),
            ("nine of ten cases", f"{usual:.2f}", f"{USUAL}", usual >= USUAL),
            ("every case", f"{least:.2f}", f"{LEAST}", least >= LEAST),
        ]
    regrets = [c["choice"]["regret"] for c in cells if "choice" in c]
    if regrets:
        middle, most = np.median(regrets), np.percentile(regrets, 95)
        out += [
            ("regret, median", f"{100 * middle:.1f} %", f"{100 * REGRET:.0f} %", middle <= REGRET),
            ("regret, 95 of 100 cases", f"{100 * most:.1f} %", f"{100 * MOST_REGRET:.0f} %", most <= MOST_REGRET),
        ]
    return [(what, found, asked, bool(holds)) for what, found, asked, holds in out]


def table(cells: dict[str, dict]) -> Table:
    """One row a case, the least ratio first."""
    out = Table(title="shapes drawn at random")
    for name in ("", "ms", "best peer", "ms", "ratio", "% of roofline", "regret", "chosen"):
        out.add_column(name, justify="left" if name in ("", "best peer", "chosen") else "right", no_wrap=name == "")
    for name, cell in sorted(cells.items(), key=lambda x: x[1].get("speedup") or 0.0):
        ours, best, ratio = cell["peers"].get("einsmith", {}), cell.get("best_peer"), cell.get("speedup")
        lost = cell["choice"]["regret"] if "choice" in cell else None
        chosen = [r for x in cell.get("choice", {}).get("cells", ()) for r in x["candidates"] if r.get("chosen")]
        color = "" if ratio is None or ratio >= USUAL else "[yellow]" if ratio >= LEAST else "[red]"
        out.add_row(
            name, f"{1e3 * ours['median']:.3f}" if "median" in ours else ours.get("status", ""), best or "",
            f"{1e3 * cell['peers'][best]['median']:.3f}" if best else "",
            f"{color}{ratio:.2f}" if ratio else "", f"{ours['floor_percent']:.0f}" if "floor_percent" in ours else "",
            "" if lost is None else f"{100 * lost:.0f} %", " | ".join(f"{r['pattern']} {r['config']}" for r in chosen),
        )  # fmt: skip
    return out


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Times products and convolutions of random shapes in every library.")
    parser.add_argument("--seed", type=int, required=True, help="what the shapes are drawn from")
    parser.add_argument("--count", type=int, default=30, help="cases")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", default=",".join(LIBRARIES), help="comma-separated; none: regrets alone")
    parser.add_argument("--candidates", type=int, default=12, help="of a pattern that are measured; 0: no regrets")
    parser.add_argument("--cap", type=float, default=40.0, help="seconds that a peer, or a regret, may take on a case")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case after this time")
    parser.add_argument("--json", type=Path, help="results are kept here; what it holds already is not run again")
    parser.add_argument("--fresh", action="store_true", help="run again what the JSON file holds")
    args = parser.parse_args(argv)
    if args.seed < 0 or args.count < 1 or args.threads < 1 or args.rounds < 1 or args.candidates < 0 or args.cap <= 0:
        parser.error("count, threads and rounds are at least 1, seed and candidates at least 0, the cap is positive")
    cases = [c for n in range(args.count) if args.only in (c := random_cases.draw(args.seed, n)).name]
    if not cases:
        parser.error(f"no case of this seed has {args.only!r} in its name")
    say, console, results = begin(args.json, 200)
    shown = _run(cases, args, results, say)
    if shown:
        console.print(table(shown))
        console.print(asked(f"over {len(shown)} cases", verdicts(list(shown.values()))))
    return int(not all(holds for *_, holds in verdicts(list(shown.values()))))


def _run(cases: Sequence[Case], args: argparse.Namespace, results: dict, say: Console) -> dict[str, dict]:
    """The cells of the cases, by name; stores after every case."""
    peers = ["einsmith", *filter(None, args.peers.split(","))]
    crew, begun, shown = Crew(args.threads, None), time.monotonic(), {}
    try:
        for case in cases:
            key = f"{case.name}-t{args.threads}"
            cell = results["cells"].get(key)
            if cell is None or args.fresh or not finished(cell, peers) or (args.candidates and "choice" not in cell):
                if time.monotonic() - begun > args.seconds:
                    say.print("out of time; the same command goes on from here")
                    break
                for peer in (*peers, "peak", "copy", "reference"):
                    crew.start(peer)
                cell = run_problem(case, peers, args.threads, Pace(args.rounds, 0.05, 1, 1), args.cap, say.print, crew)
                if args.candidates:
                    cell["choice"] = regret(case, args.threads, args.candidates, args.cap)
                results["cells"][key] = cell
                store(args.json, results)
                say.print(_line(case.name, cell))
            shown[case.name] = cell
    finally:
        crew.close()
    return shown


def _line(name: str, cell: dict) -> str:
    ours = cell["peers"].get("einsmith", {})
    took = f"{1e3 * ours['median']:.3f} ms" if "median" in ours else ours.get("status", "not run")
    ratio = f", {cell['speedup']:.2f} times {cell['best_peer']}" if cell.get("speedup") else ""
    lost = f", regret {100 * cell['choice']['regret']:.0f} %" if "choice" in cell else ""
    return f"{name}: {took}{ratio}{lost}"


if __name__ == "__main__":
    sys.exit(main())
