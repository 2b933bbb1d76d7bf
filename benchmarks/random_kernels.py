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

from benchmarks import choices, random_cases
from benchmarks.driver import Options
from benchmarks.kernel_cases import LIBRARIES, Case
from benchmarks.report import Choice, run

MEAN, USUAL, LEAST = 1.15, 0.9, 0.7
"""The ratio to the best peer: its geometric mean, what nine of ten cases reach, and every case."""


def verdicts(by_name: Mapping[str, dict]) -> list[tuple[str, str, str, bool | None]]:
    """What is asked of all cases together (see `driver.Verdicts`)."""
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
    judged = [(what, text, limit, None if holds is None else bool(holds)) for what, text, limit, holds in out]
    return [*judged, *choices.verdicts(by_name)]


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
    return lambda case, threads, cap: choices.regret(case, threads, args.candidates, cap)


def main(argv: Sequence[str] | None = None) -> int:
    """Time the drawn cases; return the exit status."""
    title = "Times products and convolutions of random shapes in every library."
    defaults = {"rounds": 7, "seconds": 2.0, "cap": 40.0, "shared": True}
    return run(title, cases, argv, LIBRARIES, verdicts=verdicts, choice=choice, defaults=defaults, options=OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
