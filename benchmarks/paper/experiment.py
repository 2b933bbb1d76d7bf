"""What an experiment of a paper is: what is measured for it, and what its cells say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.driver import geometric_mean
from benchmarks.report import Job

Cells = Mapping[str, Any]
"""Results by case."""
Cases = Iterable[tuple[str, Callable[[], Any]]]
"""(key, function that measures it, and returns None where it cannot) of each case."""


class Plan(NamedTuple):
    """How much is measured. `quick`: a small part, to see that everything runs; `threads`: of each library."""

    quick: bool
    threads: int

    def pick(self, everything: Sequence[Any], few: Sequence[Any]) -> Sequence[Any]:
        """Return a few of what there is where the run is quick, else everything."""
        return few if self.quick else everything


class Bars(NamedTuple):
    """Groups of bars: the value of each series at each label, None where there is none. `unit`: of the values; `line`:
    a value that is marked."""

    labels: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    unit: str
    line: float | None = None
    is_log: bool = False


class Curves(NamedTuple):
    """Lines: (x, y) of each series, and what the axes show."""

    series: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    x: str
    y: str
    is_log: bool = False


class Shown(NamedTuple):
    """What cells say: a table, sentences below it, a drawing. `text`: columns of text; others are of numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str] = ()
    drawing: Bars | Curves | None = None
    text: Sequence[str] = ()
    title: str = ""


def _no_jobs(plan: Plan) -> Sequence[Job]:
    return ()


def _no_cases(plan: Plan) -> Cases:
    return ()


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of a paper.

    figure: its name there. paper: what the paper reports, as far as its text gives figures. show: function of this
    experiment's cells by key, which returns what they say. jobs: training steps and operators that are timed beside
    peers. cases: what is measured in this process. remark: where the paper's claim does not hold on a CPU, and why.
    card: arguments of `python -m benchmarks.gpu`, which measures the part that needs a card.
    """

    figure: str
    title: str
    paper: str
    show: Callable[[Cells], Sequence[Shown]]
    jobs: Callable[[Plan], Sequence[Job]] = _no_jobs
    cases: Callable[[Plan], Cases] = _no_cases
    remark: str = ""
    card: str = ""

    @property
    def card_key(self) -> str:
        """Name of the cell with what a card measured."""
        return f"card/{self.card}"

    def of(self, cells: Cells, plan: Plan) -> dict[str, Any]:
        """Return those of the cells that belong to this experiment, in its order."""
        keys = [*(job.key for job in self.jobs(plan)), *(key for key, _ in self.cases(plan))]
        return {key: cells[key] for key in keys if key in cells}


@dataclass(frozen=True)
class Paper:
    """A paper and its experiments. `source`: authors, title, place; `taken`: what Einsmith has from it, and the page of
    the documentation that tells of it, by a name for it. is_shared: whether a peer has one process for all cases, with
    its usual caches, as first calls are not what the experiments show."""

    name: str
    title: str
    source: str
    taken: Mapping[str, str]
    experiments: Sequence[Experiment]
    is_shared: bool = False


def problem_of(key: str) -> str:
    """Return the name of the problem of a cell of the harness: its key without the threads (`report.Job.key`)."""
    return key.rpartition("-t")[0]


def milliseconds(seconds: float | None) -> str:
    """Return a time with three significant digits; nothing where there is none."""
    if seconds is None:
        return ""
    ms = 1e3 * seconds
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}" if ms >= 1 else f"{ms:.3f}"


def time_of(cell: Mapping[str, Any], *peers: str) -> float | None:
    """Return the median time of the fastest of these peers in a cell of the harness; None where none was timed."""
    times = [row["median"] for p in peers if "median" in (row := cell["peers"].get(p, {}))]
    return min(times, default=None)


def times_as_fast(cell: Mapping[str, Any], *peers: str) -> float | None:
    """Return how many times as fast as the fastest of these peers Einsmith is; None where one was not timed."""
    ours, theirs = time_of(cell, "einsmith"), time_of(cell, *peers)
    return None if ours is None or theirs is None else theirs / ours


def beside(
    cells: Cells, peers: Mapping[str, Sequence[str]], *, title: str = "", what: str = "Einsmith's speed as a ratio to",
    more: Mapping[str, Callable[[Any], str]] | None = None,
) -> Shown:  # fmt: skip
    """Return milliseconds of Einsmith and of peers, how many times as fast as each Einsmith is, and its geometric mean.

    Args:
        cells: cells of the harness
        peers: the peers that a column stands for, of which the fastest counts, by the column's name
        title: of the table
        what: what the ratios are, before the column's name
        more: further columns, as functions of a cell
    """
    ratios = {name: [times_as_fast(c, *of) for c in cells.values()] for name, of in peers.items()}

    def row(key: str, cell: Any, n: int) -> list[str]:
        times = [_time(cell, "einsmith"), *(_time(cell, *of) for of in peers.values())]
        parts = ["" if r[n] is None else f"{r[n]:.2f}" for r in ratios.values()]
        return [problem_of(key), *times, *parts, *(f(cell) for f in (more or {}).values())]

    rows = [row(key, cell, n) for n, (key, cell) in enumerate(cells.items())]
    remarks = []
    for name, values in ratios.items():
        known = [v for v in values if v is not None]
        mean = geometric_mean(known)
        if mean is not None:
            remarks.append(f"{what} {name}, geometric mean of {len(known)}: {mean:.2f}.")
    columns = ["", "Einsmith, ms", *(f"{n}, ms" for n in peers), *(f"times {n}" for n in peers), *(more or {})]
    labels = [problem_of(key) for key in cells]
    bars = Bars(labels, ratios, "times as fast", 1.0) if any(v for r in ratios.values() for v in r) else None
    return Shown(columns, rows, remarks, bars, title=title)


def _time(cell: Mapping[str, Any], *peers: str) -> str:
    """Return the time of the fastest of these peers, or why there is none."""
    seconds = time_of(cell, *peers)
    if seconds is not None:
        return milliseconds(seconds)
    return ", ".join(dict.fromkeys(cell["peers"][p]["status"] for p in peers if p in cell["peers"]))
