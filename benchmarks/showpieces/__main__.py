"""Operators of research beside the best forms of PyTorch and JAX: python -m benchmarks.showpieces [operator or field]

Values and all gradients in float32, of formulas as their papers write them. All peers' results are compared with
Einsmith's in float64 before anything is timed. Each library then has a process with empty caches of its own; they take
turns: milliseconds of the processor with one thread, by the clock with more, the least of the turns. Memory is what a
call adds to an idle process. `--without` measures Einsmith without passes instead of peers; `--random` verifies
operators at random sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.driver import FRESH, KEPT, Parser, Results, geometric_mean, table
from benchmarks.showpieces.case import FIELDS
from benchmarks.showpieces.collection import SHOWPIECES
from benchmarks.showpieces.measure import EINSMITH, Settings, fastest, measure, peers_by_time
from benchmarks.showpieces.verify import fuzz
from benchmarks.worker import WorkerError

MEBI = 2**20
LEVELS = 1.5, 1.0
"""Ratios to the best peer below which operators are listed."""


def chosen(names: Sequence[str]) -> list[str]:
    """Return the names of the showpieces that names, some of them of fields, stand for."""
    return [n for n, x in SHOWPIECES.items() if not names or n in names or x.area in names]


def _row(key: str, cell: dict[str, Any]) -> tuple[Any, ...]:
    name, label, *_ = key.split("/")
    best, seconds = fastest(cell), cell["seconds"]

    def both(values: Mapping[str, float], unit: float, digits: int) -> str:
        return " / ".join(f"{values[n] / unit:.{digits}f}" for n in (EINSMITH, best) if n)

    if best is None:
        return name, label, f"{seconds[EINSMITH] * 1e3:.2f}", *[""] * 6
    times = (
        f"{seconds[EINSMITH] * 1e3:.2f}",
        f"{seconds[best] * 1e3:.2f}",
        best,
        f"{seconds[best] / seconds[EINSMITH]:.2f}",
    )
    errors = " / ".join(f"{cell['off'][n]:.0e}" for n in (EINSMITH, best))
    return name, label, *times, both(cell["bytes"], MEBI, 1), both(cell["first"], 1.0, 1), errors


def _show(results: Results, cells: Mapping[str, dict[str, Any]], threads: int) -> None:
    """Print the table of one number of threads, the mean, and what is slow."""
    columns = "", "size", "Einsmith, ms", "best peer, ms", "which", "times", "memory, MiB", "first call, s", "off"
    rows = [_row(key, cell) for key, cell in cells.items()]
    results.console.print(table(f"values and gradients, {threads} threads", columns, rows, ("size", "which")))
    ratios = {k: c["seconds"][n] / c["seconds"][EINSMITH] for k, c in cells.items() if (n := fastest(c))}
    mean = geometric_mean(list(ratios.values()))
    if mean is not None:
        results.console.print(f"times as fast as the best peer, geometric mean of {len(ratios)}: {mean:.2f}")
    for level in LEVELS:
        slow = [f"{' '.join(k.split('/')[:2])} ({r:.2f})" for k, r in ratios.items() if r < level]
        results.console.print(f"below {level:g}: {', '.join(slow) or 'none'}")
    for key, cell in cells.items():
        for peer, why in cell["left_out"].items():
            results.console.print(f"left out, {key}: {peer}: {why}", markup=False)


def _show_without(results: Results, cells: Mapping[str, dict[str, Any]]) -> None:
    """Print the table of programs without passes."""
    without = [n for n in next(iter(cells.values()))["seconds"] if n != EINSMITH]
    rows = []
    for key, cell in cells.items():
        seconds, size = cell["seconds"], cell["bytes"]
        ratios = [f"{seconds[n] / seconds[EINSMITH]:.2f} ({size[n] / max(size[EINSMITH], 1):.2f})" for n in without]
        rows.append((*key.split("/")[:2], f"{seconds[EINSMITH] * 1e3:.2f}", f"{size[EINSMITH] / MEBI:.1f}", *ratios))
    columns = ("", "size", "ms", "MiB", *(f"without {n.partition(' ')[2]}" for n in without))
    results.console.print(table("times as long without a pass (as much memory)", columns, rows, ("size",)))


def main() -> int:
    """Print tables; return the exit status."""
    options: dict[str, Any] = {
        "threads": ((1,), "of each library"),
        "sizes": ("first", "which sizes of an operator: first or all"),
        "rounds": (7, "turns of each library"),
        "limit": (90.0, "seconds that a peer's first call may take"),
        "without_compile": (False, "leave out torch.compile"),
        "peers": (
            0,
            "with several threads, measure this number of peers, the fastest with one (--json); 0: all",
        ),
        "without": ([str], "measure Einsmith without these passes, and no peers; several at once: separated by commas"),
        "random": (0, "verify this number of operators at random small sizes instead"),
        "seed": (0, "of the random sizes"),
        "json": KEPT,
        "fresh": FRESH,
    }
    parser = Parser(__doc__, (*FIELDS, *SHOWPIECES), **options)
    args = parser.read(threads=1, rounds=1, limit=1, random=0, peers=0)
    if args.sizes not in ("first", "all"):
        parser.error("--sizes is first or all")
    results, names = Results(args.json, timing=not args.random), chosen(args.names)
    if args.random:
        return fuzz(results, names, args.random, args.seed)
    failed: list[str] = []

    def attempt(name: str, label: str, settings: Settings) -> dict[str, Any] | None:
        one = results.cells.get(f"{name}/{label}/1")
        if args.peers and settings.threads > 1 and one is not None:
            settings = replace(settings, peers=tuple(peers_by_time(one)[: args.peers]))
        try:
            return measure(name, label, settings)
        except (ValueError, WorkerError) as e:
            failed.append(f"{name}, {label}: {e}")
            results.say(failed[-1], markup=False)
            return None

    for threads in args.threads:
        settings = Settings(threads, args.rounds, args.limit, not args.without_compile, None, tuple(args.without))
        more = "/".join(("", *args.without)) if args.without else ""
        cases = [
            (f"{n}/{label}/{threads}{more}", partial(attempt, n, label, settings))
            for n in names
            for label in list(SHOWPIECES[n].sizes)[: None if args.sizes == "all" else 1]
        ]
        cells = results.fill(cases, args.fresh, line=_line)
        if cells:
            if args.without:
                _show_without(results, cells)
            else:
                _show(results, cells, threads)
    for words in failed:
        results.console.print(words, style="red", markup=False)
    return int(bool(failed))


def _line(cell: dict[str, Any]) -> str:
    return ", ".join(f"{n} {t * 1e3:.2f} ms" for n, t in cell["seconds"].items())


if __name__ == "__main__":
    sys.exit(main())
