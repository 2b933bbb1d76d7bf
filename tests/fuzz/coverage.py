"""Which cells (pattern, gene of a configuration, element type, tail length) were reached, and which were at hand."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

Cell = tuple[str, ...]


class Coverage:
    def __init__(self) -> None:
        self.reached: dict[Cell, None] = {}
        self.known: dict[Cell, None] = {}

    def add(self, reached: Iterable[Sequence[str]], offered: Iterable[Sequence[str]] = ()) -> int:
        """How many cells were reached for the first time."""
        before = len(self.reached)
        self.reached.update(dict.fromkeys(map(tuple, reached)))
        self.known.update(dict.fromkeys(map(tuple, offered)))
        self.known.update(self.reached)
        return len(self.reached) - before

    def report(self) -> dict[str, Any]:
        """By pattern and by element type: cells reached and known; genes of which no cell was reached; and what is
        known but was not reached, most frequent genes first."""
        both: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        genes: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for cell in self.known:
            there = cell in self.reached
            for key in (f"pattern {cell[0]}", f"type {cell[2]}", f"length {cell[3]}", f"{cell[0]} {cell[2]}"):
                both[key][0] += there
                both[key][1] += 1
            genes[f"{cell[0]} {cell[1]}"][0] += there
            genes[f"{cell[0]} {cell[1]}"][1] += 1
        missing = Counter({g: n - r for g, (r, n) in genes.items() if r < n})
        return {
            "reached": len(self.reached), "known": len(self.known), "by": {k: both[k] for k in sorted(both)},
            "genes never reached": sorted(g for g, (r, _) in genes.items() if not r),
            "genes with most cells missing": dict(missing.most_common(30)),
        }  # fmt: skip

    def table(self) -> str:
        """The report for people."""
        report = self.report()
        rows = [f"{'':<28}{'reached':>8}{'known':>8}"]
        rows += [f"{k:<28}{r:>8}{n:>8}" for k, (r, n) in report["by"].items()]
        never = report["genes never reached"]
        return "\n".join([*rows, f"genes never reached: {', '.join(never) or 'none'}"])
