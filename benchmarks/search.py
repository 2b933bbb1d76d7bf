"""How much of what can be found does a search find? python -m benchmarks.search --seed S --count N

Kernels of random shapes (`random_cases`). Each is searched by the genetic search that the cost model guides, by the
same one without the model, and by chance, with as many candidates each; and everything that the patterns hold to be
worth a measurement is measured. The best of each are raced against each other in the end, results being compared with
the evaluator first; what all of them together have found counts as the best there is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from math import inf
from statistics import median
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks import driver, random_cases
from benchmarks.choices import kernels_of
from benchmarks.driver import KEPT, LIMIT, Parser, Results, asked

WITHIN, CANDIDATES = 0.03, 100
"""How near to the best there is the guided search comes in the median, after so many candidates."""
GUIDED, UNGUIDED, CHANCE, EVERY = "guided", "unguided", "chance", "every configuration"
STRATEGIES = (GUIDED, UNGUIDED, CHANCE)


def _makers() -> dict[str, Any]:
    from einsmith.tuning.kernels.genetic import Candidate, Search

    class Chance(Search):
        """Legal configurations drawn at random: one of those worth a measurement, with some genes drawn anew."""

        def _breed(self) -> Candidate | None:
            for _ in range(200):
                parent = self._random.choice(self._ranked)
                child = parent
                for _ in range(self._random.randrange(4)):
                    child = self._cross(child, child) or child
                if child not in self._known:
                    return child
            return None

    class Every(Search):
        """What the patterns hold to be worth a measurement, in order of their predictions."""

        def _breed(self) -> Candidate | None:
            return None

    def unguided(kind: type) -> Any:
        return lambda kernel, target, seed, first: kind(kernel, target, seed, first, guided=False)

    return {GUIDED: Search, UNGUIDED: unguided(Search), CHANCE: unguided(Chance), EVERY: Every}


def measure(kernel: Any, threads: int, count: int) -> dict:
    """One cell: for every strategy the best time so far after each candidate, over the choice's, and what its best and
    the choice take in a common race."""
    from einsmith.driver import registry
    from einsmith.tuning.kernels import session
    from einsmith.tuning.kernels.bench import BenchProcess
    from einsmith.tuning.kernels.genetic import Candidate

    target = registry.DEFAULT.target(threads)
    curves: dict[str, list[float]] = {}
    best: dict[str, Candidate] = {}
    with BenchProcess() as bench:
        for name, make in _makers().items():
            search = session.KernelSearch(session.Part(kernel), target, make)
            curve: list[float] = []
            tried: set[Candidate] = set()

            def tell(f: session.SearchResult, c: Candidate, s: float, tried=tried, curve=curve) -> None:
                if c not in tried:
                    tried.add(c)
                    curve.append(min(s / f.prior, curve[-1] if curve else 1.0))

            while not search.result.over and len(tried) < count:
                before = len(tried)
                search.visit(bench, threads, inf, tell, lambda _: ())
                if len(tried) == before:
                    break
            curves[name], best[name] = curve, search.result.best or search.result.choice
        choice = search.result.choice
        runners = list(dict.fromkeys([choice, *best.values()]))
        bench.begin(kernel, target, threads)
        for n, c in enumerate(runners):
            if reason := bench.prepare(n, c):
                raise RuntimeError(f"{c}: {reason}")
        times, _ = bench.race([*range(len(runners))], 4.0, final=True)
    took = [median(b / a for a, b in zip(times[0], t, strict=False)) for t in times]
    least = min(took)
    return {
        "threads": threads, "curves": curves, "choice_seconds": median(times[0]), "choice": str(choice),
        "best": {name: str(c) for name, c in best.items()},
        "regret": {"choice": 1 / least - 1} | {name: took[runners.index(c)] / least - 1 for name, c in best.items()},
    }  # fmt: skip


def verdicts(cells: Sequence[dict]) -> list[tuple[str, str, str, bool | None]]:
    """What is asked of all kernels together."""
    lost = {name: np.array([c["regret"][name] for c in cells]) for name in (*STRATEGIES, "choice")}
    out: list[tuple[str, str, str, bool | None]] = []
    middle = float(np.median(lost[GUIDED]))
    out.append(("from the best there is, median", f"{100 * middle:.1f} %", f"{100 * WITHIN:.0f} %", middle <= WITHIN))
    near = float((lost[GUIDED] <= WITHIN).mean())
    out.append(("kernels within that", f"{100 * near:.0f} %", "most", near > 0.5))
    for other in (UNGUIDED, CHANCE):
        part = float((lost[GUIDED] <= lost[other] + 0.005).mean())
        out.append((f"no worse than {other}", f"{100 * part:.0f} %", "most", part > 0.5))
    return out


def table(cells: dict[str, dict]) -> Table:
    def row(key: str, c: dict) -> tuple[str, ...]:
        best = min(c["best"], key=lambda n: c["regret"][n])
        shares = [f"{100 * c['regret'][n]:.0f} %" for n in ("choice", *STRATEGIES, EVERY)]
        return key, f"{1e6 * c['choice_seconds']:.1f}", *shares, c["best"][best]

    names = ("", "choice us", "choice", *STRATEGIES, EVERY, "best")
    return driver.table("what searches find", names, (row(*x) for x in cells.items()), text=("best",))


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the searches; return the exit status."""
    parser = Parser(
        __doc__, seed=(int, "what the shapes are drawn from"), count=(20, "kernels"),
        candidates=(CANDIDATES, "of each search"), threads=(2, ""), seconds=LIMIT, json=KEPT,
    )  # fmt: skip
    args = parser.read(argv, seed=0, count=1, candidates=1, threads=1)
    if args.seed is None:
        parser.error("--seed is asked for")
    results = Results(args.json, 200)
    cases = (
        (f"{case.name}-t{args.threads}" + f"-{n}" * bool(n), partial(measure, kernel, args.threads, args.candidates))
        for case in (random_cases.draw(args.seed, number) for number in range(args.count))
        for n, kernel in enumerate(kernels_of(case))
    )

    def line(cell: dict) -> str:
        return ", ".join(f"{name} {100 * x:.0f} %" for name, x in cell["regret"].items())

    shown = results.fill(cases, seconds=args.seconds, line=line)
    if not shown:
        return 1
    judged = verdicts(list(shown.values()))
    results.console.print(table(shown))
    results.console.print(asked(f"over {len(shown)} kernels", judged))
    return int(not all(holds for *_, holds in judged))


if __name__ == "__main__":
    sys.exit(main())
