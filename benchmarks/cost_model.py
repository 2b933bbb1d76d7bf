"""How well are tiles priced? python -m benchmarks.cost_model --seed S --json FILE

The experiment behind most constants of `einsmith/cost/overheads.py`: contractions of random shapes (see
`random_cases`), for each the candidates that are priced low, of every way to reach the operands, measured. The file
keeps the measurements and the machine; run again after a change of the model it prices the same candidates anew.
Printed are the regret of what is priced lowest against the best that was measured, how far prices are off, and by which
ways.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks import choices, driver, random_cases
from benchmarks.driver import LIMIT, Parser, Results, asked

LIKELY = 2.5
"""Candidates are measured whose price is at most so many times the least."""
EACH = 2
"""How many of a way to reach the operands."""
SEEN = 6
"""Ways that fewer candidates have are not printed."""


def contractions(case: random_cases.Case) -> Iterator[tuple[Any, Any]]:
    """The kernels of a case that are one contraction, as axes under quotients leave them, and the contraction."""
    from einsmith.kernels.contraction.contraction_pattern import CONTRACTION
    from einsmith.schedule.contraction_problem import problems
    from einsmith.schedule.split_axes import split_kernels

    for kernel in choices.kernels_of(case):
        kernel = (*split_kernels(kernel), kernel)[0]
        if CONTRACTION.match(kernel) and len(sums := problems(kernel.root) or ()) == 1:
            yield kernel, sums[0]


def priced(kernel: Any, p: Any, target: Any) -> dict[str, tuple[Any, float]]:
    """(configuration, seconds) of every candidate, by what it is printed as; the cheapest first."""
    from einsmith.kernels.contraction.contraction_pattern import CONTRACTION, Configs
    from einsmith.kernels.contraction.search import candidates

    every = [(c, CONTRACTION.cost(kernel, Configs((c,)), target).rank) for c in candidates(kernel, (p,), target)]
    return {str(c): (c, price) for c, price in sorted(every, key=lambda x: x[1])}


def way(config: Any) -> str:
    """How a configuration reaches the operands."""
    name = type(config).__name__
    if name != "Tiled":
        return f"{name}{' in windows' if config.windows else ''}"
    windows = "".join(" window of " + "NM"[int(config.swap) == i] for i, _ in config.windows)
    more = windows + " rows" * config.rows + " blocks" * bool(config.kc) + " split" * (config.split > 1)
    return f"a={config.a} b={config.b} {config.order}-outer{more}"


def chosen(prices: dict[str, tuple[Any, float]], most: int) -> list[str]:
    """What is measured: the cheapest, and some of every way that is not much dearer."""
    (least, *_), seen, out = [price for _, price in prices.values()], dict[str, int](), list(prices)[: most // 4]
    for name, (config, price) in prices.items():
        kind = way(config)
        seen[kind] = seen.get(kind, 0) + 1
        if name not in out and seen[kind] <= EACH and price <= LIKELY * least and len(out) < most:
            out.append(name)
    return out


def measure(kernel: Any, p: Any, threads: int, most: int, seconds: float) -> dict[str, float]:
    """Seconds of the chosen candidates, by what they are printed as."""
    from einsmith.kernels.contraction.contraction_pattern import CONTRACTION, Configs
    from einsmith.tuning.calibration import calibrate
    from einsmith.tuning.kernels.measure import example_buffers, prepare, shortest

    target = calibrate.target(threads)
    prices, arrays = priced(kernel, p, target), example_buffers(kernel)
    names = chosen(prices, most)
    ready = [prepare(kernel, CONTRACTION, Configs((prices[n][0],)), target, threads, arrays) for n in names]
    return dict(zip(names, map(float, shortest(ready, seconds)), strict=True))


@dataclass
class Judged:
    """A kernel's regret, and of each candidate its way and the logarithm of how far its price is off beside those of
    the other candidates."""

    regret: float
    off: list[tuple[str, float]]


def judge(kernel: Any, p: Any, target: Any, times: dict[str, float]) -> Judged | None:
    """What was measured on a machine against today's prices; None where less than two of the candidates are still
    there."""
    prices = priced(kernel, p, target)
    names = [n for n in prices if n in times]  # the cheapest first
    if len(names) < 2:
        return None
    off = np.log([times[n] / prices[n][1] for n in names])
    ways = [way(prices[n][0]) for n in names]
    regret = times[names[0]] / min(times[n] for n in names) - 1
    return Judged(regret, list(zip(ways, map(float, off - np.median(off)), strict=True)))


def target_of(results: dict[str, Any]) -> Any:
    """The machine on which the times of a file were measured, with the overheads of today's table."""
    from einsmith.cost import facts

    return facts.target_of({name: x for name, x in results["target"].items() if name != "overheads"})


def verdicts(every: Sequence[Judged]) -> list[tuple[str, str, str, bool | None]]:
    """As `driver.asked` takes them."""
    regrets = np.array([j.regret for j in every])
    off = np.array([x for j in every for _, x in j.off])
    return [
        ("regret, median", f"{100 * np.median(regrets):.1f} %", "", None),
        ("regret, nine of ten", f"{100 * np.percentile(regrets, 90):.1f} %", "", None),
        ("regret, geometric mean", f"{100 * np.expm1(np.log1p(regrets).mean()):.1f} %", "", None),
        ("prices off, standard deviation", f"{100 * np.expm1(off.std()):.0f} %", "", None),
    ]


def ways(every: Sequence[Judged]) -> Table:
    """By way: how much longer its candidates take than their prices say, beside the other candidates of a kernel."""
    by: dict[str, list[float]] = {}
    for j in every:
        for kind, off in j.off:
            by.setdefault(kind, []).append(off)
    rows = (
        (kind, len(off), *(f"{np.exp(np.percentile(off, part)):.2f}" for part in (50, 10, 90)))
        for kind, off in sorted(by.items(), key=lambda x: -len(x[1]))
        if len(off) >= SEEN
    )
    names = ("", "candidates", "median", "one of ten below", "one of ten above")
    return driver.table("measured against priced, by way to reach the operands", names, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure candidates, and judge their prices; return the exit status."""
    parser = Parser(
        __doc__, seed=(int, "what the shapes are drawn from"), count=(60, "cases"), threads=(2, ""),
        candidates=(28, "that are measured of a kernel"), each=(0.8, "seconds that a kernel's candidates are measured"),
        seconds=LIMIT, json=(Path, "measurements are kept here, and not made again"),
    )  # fmt: skip
    args = parser.read(argv, seed=0, count=1, threads=1, candidates=4, each=1e-9)
    if args.seed is None:
        parser.error("--seed is asked for")
    from einsmith.tuning.calibration import calibrate

    results = Results(args.json, 120)
    results.content.setdefault("target", asdict(calibrate.target(args.threads)))
    target = target_of(results.content)
    kernels = {
        f"{case.name}-{n}-t{args.threads}": x
        for case in (random_cases.draw(args.seed, number) for number in range(args.count))
        for n, x in enumerate(contractions(case))
    }

    def timed(kernel: Any, p: Any) -> dict[str, float]:
        gc.collect()
        return measure(kernel, p, args.threads, args.candidates, args.each)

    cells = results.fill(((key, partial(timed, *x)) for key, x in kernels.items()), seconds=args.seconds)
    judged = {key: judge(*kernels[key], target, times) for key, times in cells.items()}
    every = [j for j in judged.values() if j is not None]
    for key, j in judged.items():
        if j is not None:
            results.say(f"{key}: regret {100 * j.regret:.0f} % of {len(j.off)}")
    if every:
        results.console.print(ways(every))
        results.console.print(asked(f"over {len(every)} kernels", verdicts(every)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
