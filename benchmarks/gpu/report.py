"""Show the results of a run: tables, a plot of ratios, and, of a real run, a page of the documentation."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import driver
from benchmarks.driver import geometric_mean
from benchmarks.gpu.record import Record, RecordError

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "gpu-figures").with_suffix(".md")
"""The page of a real run, which does not exist before one."""
WIDTH = 150
STYLES = (("o", "#0072b2"), ("s", "#d55e00"), ("^", "#009e73"), ("D", "#cc79a7"))
"""Markers and colours of batch sizes in the plot."""


def show(path: Path, plot: Path | None, page: bool) -> int:
    """Print the tables of a file, draw its ratios, and write the page. Raises RecordError."""
    if not path.exists():
        raise RecordError(f"there is no file {path}")
    record = Record(path)
    if page and record.about.get("fake", True):
        raise RecordError(f"{path} is of an interpreter in the place of a card: its times are no figures for the docs")
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=WIDTH)
    console.print(_about(record))
    for table in tables(record):
        console.print(table)
    drawn = draw(record, plot or path.with_suffix(".png"))
    console.print(f"ratios are drawn in {drawn}" if drawn else "there are no ratios to draw")
    if page:
        picture = draw(record, PAGE.parent / "assets" / "gpu-ratios.png")
        PAGE.write_text(write_page(record, picture is not None))
        console.print(f"written: {PAGE}")
    return 0


def _about(record: Record) -> str:
    about = record.about
    runs = about.get("runs") or [{}]
    versions = ", ".join(f"{n} {v}" for n, v in runs[-1].get("versions", {}).items())
    what = "an interpreter in the place of a card, whose times mean nothing" if about.get("fake") else about.get("card")
    dates = sorted({r["date"] for r in runs if "date" in r})
    return f"{what}; {', '.join(dates)}; {versions}"


def tables(record: Record) -> Iterator[Table]:
    """Yield the tables of all parts that the file has."""
    makers = {
        "facts": _facts, "kernels": _kernels, "steps": _steps, "coefficients": _coefficients, "models": _models,
        "regret": _regret, "dynamic": _dynamic,
    }  # fmt: skip
    for part, items in record.parts.items():
        if items and part in makers:
            yield makers[part](items)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Return a table whose first and last columns are text, with numbers between them."""
    out = driver.table(title, columns, rows, text=(columns[0], columns[-1]))
    for column in out.columns:
        column.overflow, column.no_wrap = "fold", False
    return out


def _status(row: Mapping[str, Any]) -> str:
    """Return what is to be said of a row; nothing of one that is right."""
    return "" if row["status"] == "ok" else escape(f"{row['status']}: {row.get('reason', '')}")


def _number(x: Any, scale: float = 1.0, digits: int = 3) -> str:
    return "" if x is None else f"{x * scale:.{digits}g}"


def _facts(items: Mapping[str, Any]) -> Table:
    every = items["card"].items()
    return _table("facts", ("", ""), ((n, escape(str(v))) for n, v in every if n not in ("status", "versions")))


def _kernels(items: Mapping[str, Any]) -> Table:
    precisions = list(dict.fromkeys(p for r in items.values() for p in r.get("errors", {})))
    rows = (
        (
            name,
            row.get("runs", ""),
            *(_number(row.get("errors", {}).get(p), digits=2) for p in precisions),
            _status(row),
        )
        for name, row in items.items()
    )
    title = "kernels: largest errors, relative to the largest result"
    out = _table(title, ("kind", "runs", *precisions, ""), rows)
    right = sum(r["status"] == "ok" for r in items.values())
    out.caption = f"{right} of {len(items)} kinds are right, {sum(r.get('runs', 0) for r in items.values())} runs"
    return out


def _steps(items: Mapping[str, Any]) -> Table:
    rows = (
        (name, _number(row.get("loss"), digits=2), _number(row.get("change"), digits=2), row.get("launches", ""),
         row.get("edges", ""), _status(row))
        for name, row in items.items()
    )  # fmt: skip
    columns = ("network, precision", "loss off", "change off", "launches", "edges", "")
    return _table("steps: against the CPU's program", columns, rows)


def _coefficients(items: Mapping[str, Any]) -> Table:
    def measured(row: Mapping[str, Any]) -> str:
        if row.get("bytes_per_second"):
            return f"{row['bytes_per_second'] / 1e12:.3g} TB/s"
        if "launch_gap" in row:
            return f"{row['launch_gap'] * 1e6:.3g} us between launches, {row['one'] * 1e6:.3g} us alone"
        if row.get("operations_per_second"):
            return f"{row['operations_per_second'] / 1e12:.3g} TFLOP/s ({row['tiling']})"
        return ""

    rows = ((name, measured(row), _status(row)) for name, row in items.items())
    return _table("coefficients", ("", "measured", ""), rows)


def _models(items: Mapping[str, Any]) -> Table:
    peers = list(dict.fromkeys(p for r in items.values() for p in r.get("peers", {})))

    def row(name: str, r: Mapping[str, Any]) -> tuple[str, ...]:
        every = r.get("peers", {})
        missing = "; ".join(f"{p} {_status(x)}" for p, x in every.items() if x["status"] != "ok")
        times = (_times(every.get(p, {})) for p in peers)
        return name, *times, _number(r.get("times_as_fast")), r.get("best_peer") or "", missing

    title = "models: ms of a training step on the card (and with its batch from the process and its loss read)"
    columns = ("network, precision", *peers, "times as fast", "of", "not timed")
    out = _table(title, columns, (row(*x) for x in items.items()))
    mean = geometric_mean([r["times_as_fast"] for r in items.values() if r.get("times_as_fast")])
    if mean is not None:
        out.caption = f"geometric mean: {mean:.2f} times as fast as the best peer"
    return out


def _times(row: Mapping[str, Any]) -> str:
    if "median" not in row:
        return ""
    wall = f" ({row['wall'] * 1e3:.3g})" if row.get("wall") else ""
    return f"{row['median'] * 1e3:.3g}{wall}"


def _regret(items: Mapping[str, Any]) -> Table:
    def rows() -> Iterator[tuple[str, ...]]:
        for name, row in items.items():
            share = "" if row.get("share") is None else f"{100 * row['share']:.0f} % of the step is lost"
            yield f"[bold]{name}[/]", "", "", _number(row.get("median")), "", share, _status(row)
            for k in row.get("kernels", ()):
                seconds = _number(k["seconds"], 1e6), _number(k["times"].get(k["best"]), 1e6)
                faults = f"{len(k['faults'])} cannot run" if k["faults"] else ""
                text = escape(f"  {k['kernel'][:60]}")
                yield text, *seconds, _number(k["regret"]), k["chosen"], k["best"] or "", faults

    columns = ("kernel", "us", "best us", "regret", "chosen", "best", "")
    return _table("regret: kernels that take longest", columns, rows())


def _dynamic(items: Mapping[str, Any]) -> Table:
    rows = (
        (name, _number(row.get("static_seconds"), 1e3), _number(row.get("seconds"), 1e3),
         _number(row.get("times_as_fast")), _status(row))
        for name, row in items.items()
    )  # fmt: skip
    columns = ("network, precision, way", "before ms", "after ms", "times", "")
    return _table("searches while or before a step trains", columns, rows)


# ---------------------------------------------------------------------------------------------------------------- plot


def ratios(record: Record) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return (batch, times as fast as the best peer), by precision and network."""
    out: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for name, row in record.parts.get("models", {}).items():
        if row.get("times_as_fast"):
            case, _, precision = name.rpartition(" ")
            model, _, batch = case.rpartition("-b")
            out.setdefault(precision, {}).setdefault(model, []).append((int(batch), row["times_as_fast"]))
    return out


def draw(record: Record, path: Path) -> Path | None:
    """Draw how many times as fast as the best peer each network is, a panel for each precision; return the path, or
    None where there is nothing to draw."""
    found = ratios(record)
    if not found:
        return None
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    def mean(model: str) -> float:
        every = [r for p in found.values() for _, r in p.get(model, ())]
        return math.fsum(map(math.log, every)) / len(every)

    models = sorted({m for p in found.values() for m in p}, key=mean)
    batches = sorted({b for p in found.values() for points in p.values() for b, _ in points})
    figure, axes = pyplot.subplots(
        1, len(found), figsize=(2.2 + 3.2 * len(found), 0.3 * len(models) + 1.6), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axis, (precision, by_model) in zip(axes[0], found.items(), strict=True):
        for batch, (marker, color) in zip(batches, STYLES, strict=False):
            points = [(r, n) for n, m in enumerate(models) for b, r in by_model.get(m, ()) if b == batch]
            axis.plot(*zip(*points, strict=True) if points else ((), ()), marker, color=color, label=f"batch {batch}")
        axis.axvline(1.0, color="black", linewidth=1)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axis.set_ylim(-0.6, len(models) - 0.4)
        axis.grid(color="#dddddd")
        axis.set_axisbelow(True)
        axis.set_title(precision)
    axes[0][0].set_yticks(range(len(models)), models)
    what = "interpreter: times mean nothing" if record.about.get("fake") else str(record.about.get("card"))
    title = f"Training steps: times as fast as the fastest peer ({what})\nright of 1: Einsmith is faster"
    figure.suptitle(title, fontsize=10)
    handles = axes[0][0].get_legend_handles_labels()[0]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


# ---------------------------------------------------------------------------------------------------------------- page


def write_page(record: Record, has_picture: bool) -> str:
    """Return the page of a real run, with its machine, dates and commands."""
    runs = record.about.get("runs", [])
    lines = ["# Figures of a graphics card", "", f"Machine: {_about(record)}.", "", "```"]
    lines += [f"{r['command']}    # {r['date']}" for r in runs if "command" in r]
    lines += ["```", ""]
    if has_picture:
        lines += ["![Times as fast as the fastest peer](assets/gpu-ratios.png)", ""]
    for table in tables(record):
        lines += [f"## {str(table.title).partition(':')[0].capitalize()}", "", *_markdown(table), ""]
    return "\n".join(lines)


def _markdown(table: Table) -> Iterator[str]:
    """Yield a table's lines in Markdown."""
    names = [str(c.header) for c in table.columns]
    title = str(table.title).partition(": ")[2]
    if title:
        yield from (f"{title[0].upper()}{title[1:]}.", "")
    yield f"| {' | '.join(names)} |"
    yield f"|{'|'.join(['---'] * len(names))}|"
    for cells in zip(*(c.cells for c in table.columns), strict=True):
        yield f"| {' | '.join(_plain(str(c)) for c in cells)} |"
    if table.caption:
        yield from ("", f"{table.caption}.")


def _plain(text: str) -> str:
    out = io.StringIO()
    Console(file=out, width=10_000, color_system=None, highlight=False).print(text)
    return out.getvalue().strip().replace("|", "\\|")
