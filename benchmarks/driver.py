"""Command line, file of results, turns and tables: what every benchmark is made of."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from einsmith.base import files
from einsmith.bench.compare import machine

KEPT = Path, "results are kept here; what it holds already is not run again"
FRESH = False, "run again what the JSON file holds"
LIMIT = math.inf, "begin no case after this time"

Verdicts = Sequence[tuple[str, str, str, bool | None]]
"""What was measured beside what is asked for: (what, measured, asked for, whether it holds, None: not asked)."""


Options = Mapping[str, tuple[Any, str]]
"""(default, help) of options by their names, as `Parser` takes them."""


class Parser(argparse.ArgumentParser):
    """The command line of a benchmark.

    Args:
        doc: docstring of the module, whose first sentence `--help` shows
        names: names that the positional arguments may have; empty for any, None for no arguments
        options: (default, help) of each option by its name. A default decides the type: False is a switch, a tuple
            several values (`--batch 1 16` or `--batch 1 --batch 16`), a type an option without a default, and `[type]`
            several values without a default.
    """

    def __init__(self, doc: str | None, names: Collection[str] | None = None, **options: tuple[Any, str]):
        super().__init__(description=(doc or "").partition("\n\n")[0])
        self._names, self._several = names, dict[str, list]()
        if names is not None:
            self.add_argument("names", nargs="*", metavar="name", help=f"which (default: all): {', '.join(names)}")
        for name, (default, text) in options.items():
            kind: dict[str, Any] = {"type": type(default), "default": default}
            if default is False:
                kind = {"action": "store_true"}
            elif isinstance(default, (tuple, list)):
                is_empty = isinstance(default, list)
                kind = {"nargs": "+", "action": "extend", "type": default[0] if is_empty else type(default[0])}
                self._several[name] = [] if is_empty else list(default)
            elif isinstance(default, type):
                kind = {"type": default}
            self.add_argument(f"--{name.replace('_', '-')}", help=text, **kind)

    def read(self, argv: Sequence[str] | None = None, **least: float) -> argparse.Namespace:
        """Return the arguments; end the process where a name is unknown, or an option is less than its `least`."""
        args = self.parse_args(argv)
        for name, values in self._several.items():
            setattr(args, name, getattr(args, name) or values)
        if self._names and (unknown := sorted({*args.names} - {*self._names})):
            self.error(f"unknown: {', '.join(unknown)}; there are {', '.join(self._names)}")
        for name, bound in least.items():
            values = getattr(args, name)
            if any(x is not None and x < bound for x in (values if isinstance(values, list) else [values])):
                self.error(f"--{name.replace('_', '-')} is at least {bound:g}")
        return args


class Results:
    """Results of a benchmark, and where it speaks: `say` prints progress, `console` results.

    Args:
        path: JSON file, which is written whole after each case; None to keep nothing
        width: of the tables where they go to a file
        timing: whether a busy machine is worth a warning
    """

    def __init__(self, path: Path | None, width: int = 150, timing: bool = True):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # workers are closed on the way out
        self.path, self.content = path, load(path)
        self.cells: dict[str, Any] = self.content["cells"]
        self.content["machine"] = machine()
        self.say = Console(stderr=True, highlight=False, soft_wrap=True).print
        self.console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=width)
        if timing and os.getloadavg()[0] > 0.5:
            self.say(f"[yellow]the machine is busy (load {os.getloadavg()[0]:.1f}): times will be off[/]")

    def keep(self, key: str, cell: Any) -> Any:
        """Add a case's result, write the file, and return the result."""
        self.cells[key] = cell
        store(self.path, self.content)
        return cell

    def fill(
        self, cases: Iterable[tuple[str, Callable[[], Any]]], fresh: bool = False, seconds: float = math.inf,
        line: Callable[[Any], str] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the results of cases by key, and measure those that the file lacks.

        Args:
            cases: (key, function that measures it, and returns None where it cannot) of each case
            fresh: whether to measure again what the file holds
            seconds: time after which no case begins
            line: function of a result that says how it went
        """
        begun, shown, late = time.monotonic(), dict[str, Any](), 0
        for key, measure in cases:
            if fresh or key not in self.cells:
                if time.monotonic() - begun > seconds:
                    late += 1
                    continue
                cell = measure()
                if cell is None:
                    continue
                self.keep(key, cell)
                if line is not None:
                    self.say(f"{key}: {line(cell)}")
            shown[key] = self.cells[key]
        if late:
            self.say(f"out of time for {late} cases; the same command goes on from here")
        return shown


def load(path: Path | None) -> dict[str, Any]:
    """Return the content of a file of results, nothing where there is none; end the process where it is of another
    kind."""
    if path is None or not path.exists():
        return {"cells": {}}
    try:
        results = json.loads(path.read_text())
        if isinstance(results.get("cells"), dict):
            return results
    except (ValueError, AttributeError):
        pass
    raise SystemExit(f"{path} is not a file of this benchmark; name another with --json")


def store(path: Path | None, results: Mapping[str, Any]) -> None:
    """Write results whole, or not at all."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, json.dumps(results, indent=1))


def in_turns(
    calls: Mapping[str, Callable[[], Any]], rounds: int, turn: float = 0.0, least: int = 1, warm: int = 0,
    before: Callable[[], Any] = lambda: None,
) -> dict[str, list[float]]:  # fmt: skip
    """Return the seconds of every call of functions that take turns.

    Args:
        calls: the functions by name
        rounds: turns of each
        turn: seconds of a turn, at least
        least: calls of a turn, at least
        warm: untimed calls at the beginning of a turn
        before: called before a turn
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            before()
            for _ in range(warm):
                call()
            end, count = time.perf_counter() + turn, 0
            while count < least or time.perf_counter() < end:
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
                count += 1
    return times


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """Return the geometric mean; None of nothing."""
    return statistics.geometric_mean(ratios) if ratios else None


def table(title: str, names: Iterable[str], rows: Iterable[Sequence[Any]], text: Collection[str] = ()) -> Table:
    """Return a table of columns with these names; those without a name and in `text` are of text, others of numbers."""
    out = Table(title=title)
    for n, name in enumerate(names):
        out.add_column(name, justify="left" if not name or name in text else "right", no_wrap=not (n or name))
    for row in rows:
        out.add_row(*map(str, row))
    return out


def compared(
    title: str, cells: Mapping[str, dict], peers: Sequence[str], more: Mapping[str, Callable[[dict], Any]] | None = None
) -> tuple[Table, str]:
    """Return a table of milliseconds of each peer, and of Einsmith's speed as a ratio to the best other one, and a line
    with the mean of that.

    Args:
        title: title of the table
        cells: results by case, with "seconds" by peer
        peers: columns of the table
        more: further columns by name, as functions of a result
    """
    ratios: dict[str, float] = {}
    for name, cell in cells.items():
        others = [t for p, t in cell["seconds"].items() if p != "einsmith"]
        if others and "einsmith" in cell["seconds"]:
            ratios[name] = min(others) / cell["seconds"]["einsmith"]

    def row(name: str, cell: dict) -> tuple[Any, ...]:
        times = (f"{cell['seconds'][p] * 1e3:.3f}" if p in cell["seconds"] else "-" for p in peers)
        ratio = f"{ratios[name]:.2f}" if name in ratios else "-"
        return name, *times, ratio, *(f(cell) for f in (more or {}).values())

    columns = ("", *(f"{p}, ms" for p in peers), "of the best other", *(more or {}))
    mean = geometric_mean(list(ratios.values()))
    line = f"speed as a ratio to the best other, geometric mean of {len(ratios)}: {mean:.2f}" if mean else ""
    return table(title, columns, (row(*x) for x in cells.items())), line


def asked(title: str, verdicts: Verdicts) -> Table:
    """Return the table of what was measured beside what is asked for."""
    mark = {None: "", True: "[green]holds[/]", False: "[red]fails[/]"}
    rows = ((what, measured, wanted, mark[holds]) for what, measured, wanted, holds in verdicts)
    return table(title, ("", "measured", "asked for", ""), rows)
