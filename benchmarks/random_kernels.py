"""Shapes that no benchmark lists: python -m benchmarks.random_kernels --seed S --count N

Products and convolutions drawn anew from S (see `random_cases`), in every library, each in a process of its own,
interleaved, results verified first; and what the choices of configurations lose against the best of the candidates,
measured. A case is judged by its ratio to the best peer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks import autoconfig, random_cases
from benchmarks.driver import Options
from benchmarks.kernel_cases import LIBRARIES, Case
from benchmarks.report import Choice, run

MEAN, USUAL, LEAST = 1.15, 0.9, 0.7
"""The ratio to the best peer: its geometric mean, what nine of ten cases reach, and every case."""
REGRET, MOST_REGRET = 0.05, 0.20
"""The median of regrets, and the 95th percentile."""


SHOWN = 10
"""Cases of which the choice is told."""


def regret(case: Case, threads: int, count: int, cap: float) -> dict:
    """What the choices for the kernels of a case lose: {"regret", "cells": one for each kernel}."""
    kernels = autoconfig.kernels_of(case)
    cells = [autoconfig.measure_kernel(k, threads, count, cap / len(kernels)) for k in kernels]
    chosen = sum(next(c["measured"] for c in autoconfig.measured(x) if c["chosen"]) for x in cells)
    best = sum(min(c["measured"] for c in autoconfig.measured(x)) for x in cells)
    return {"regret": chosen / best - 1, "cells": cells}


def verdicts(by_name: Mapping[str, dict]) -> list[tuple[str, str, str, bool | None]]:
    """What is asked of all cases together (see `driver.Verdicts`), and what was chosen where it loses most."""
    out: list[tuple[str, str, str, bool | None]] = []
    cells = list(by_name.values())
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
    for name, lost in sorted(_losses(by_name).items(), key=lambda x: -x[1])[:SHOWN]:
        kernels = [r for x in by_name[name]["choice"]["cells"] for r in x["candidates"] if r.get("chosen")]
        text = " | ".join(f"{r['pattern']} {r['config']}" for r in kernels)
        out.append((name, f"{100 * lost:.0f} %: {text}", "", None))
    return [(what, text, limit, None if holds is None else bool(holds)) for what, text, limit, holds in out]


def _losses(by_name: Mapping[str, dict]) -> dict[str, float]:
    return {n: c["choice"]["regret"] for n, c in by_name.items() if c.get("choice", {}).get("regret", 0.0) > REGRET}


def cases(args: argparse.Namespace) -> dict[str, Case]:
    """Return the drawn cases. Raises ValueError."""
    if args.seed is None or args.seed < 0 or args.count < 1 or args.candidates < 0:
        raise ValueError("--seed is asked for; count is at least 1, seed and candidates at least 0")
    return {c.name: c for c in (random_cases.draw(args.seed, n) for n in range(args.count))}


OPTIONS: Options = {
    "seed": (int, "what the cases are drawn from"), "count": (30, "cases"),
    "candidates": (12, "that are measured of a pattern; 0: no regrets. --peers= : regrets alone"),
}  # fmt: skip


def choice(args: argparse.Namespace) -> Choice | None:
    """Return what measures the choices for a case; None where none is asked for."""
    if not args.candidates:
        return None
    return lambda case, threads, cap: regret(case, threads, args.candidates, cap)


def main(argv: Sequence[str] | None = None) -> int:
    """Time the drawn cases; return the exit status."""
    title = "Times products and convolutions of random shapes in every library."
    defaults = {"rounds": 7, "seconds": 2.0, "cap": 40.0, "shared": True}
    return run(title, cases, argv, LIBRARIES, verdicts=verdicts, choice=choice, defaults=defaults, options=OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
