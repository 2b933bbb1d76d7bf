"""Write docs/papers.md and its drawings from the files of results: no figure on the page is typed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import driver
from benchmarks.paper.experiment import Bars, Curves, Experiment, Paper, Plan, Shown

DOCS = Path(__file__).resolve().parents[2] / "docs"
FOLDER, PATH, DRAWINGS = DOCS / "papers", DOCS / "papers.md", DOCS / "assets" / "papers"
COLORS = ("#33658a", "#f26419", "#86a873", "#8d6a9f", "#c9a227", "#7d8491", "#b23a48")
WIDE = 14
"""Labels of bars from which on they stand upright."""

HEAD = """# The five papers

Einsmith unites what five papers propose. `python -m benchmarks.paper NAME` runs the experiments of each as far as a CPU
can, beside the libraries of today, and keeps the results in `docs/papers/`; this page and its drawings are made from
them (`python -m benchmarks.paper --page`). Results of peers are verified before anything is timed, and peers take turns
in one run. The figures of the papers themselves are quoted where their text gives them. Ratios above 1 are for
Einsmith.

"""


def write(papers: Sequence[Paper]) -> None:
    """Write the page and draw its pictures from the files of results that there are."""
    DRAWINGS.mkdir(parents=True, exist_ok=True)
    PATH.write_text(text(papers, draw))


def text(papers: Sequence[Paper], drawn: Any = lambda drawing, name: None) -> str:
    """Return the page. `drawn`: called with each drawing and the name of its file."""
    return HEAD + "\n".join(line for paper in papers for line in _chapter(paper, drawn)).rstrip() + "\n"


def _chapter(paper: Paper, drawn: Any) -> Iterator[str]:
    path = FOLDER / f"{paper.name}.json"
    content = driver.load(path)
    yield f"## {paper.title}\n"
    yield f"{paper.source}\n"
    yield from (f"- {what}: {where}" for what, where in paper.taken.items())
    yield ""
    if not content["cells"]:
        yield f"Not measured yet: `python -m benchmarks.paper {paper.name}`.\n"
        return
    m = content["machine"]
    yield (
        f"Measured on {m['date']} on {m['cores']} cores of {m['cpu']}, {content['threads']} threads, by"
        f" `python -m benchmarks.paper {paper.name}` ({', '.join(_versions(content['cells']))}).\n"
    )
    plan = Plan(content["quick"], content["threads"])
    for experiment in paper.experiments:
        cells = experiment.of(content["cells"], plan)
        yield f"### {paper.title}, {experiment.figure.lower()}: {experiment.title}\n"
        yield f"The paper: {experiment.paper}\n"
        for n, shown in enumerate(experiment.show(cells) if cells else ()):
            yield from _part(shown, f"{paper.name}-{_slug(experiment.figure)}{f'-{n + 1}' * (n > 0)}", drawn)
        if experiment.remark:
            yield f"{experiment.remark}\n"
        if experiment.card:
            told = content["cells"].get(experiment.card_key)
            yield "\n".join(["```text", *told, "```\n"]) if told else f"{needs_card(experiment)}\n"


def needs_card(experiment: Experiment) -> str:
    """Return what stands in the place of what a card would measure."""
    return f"Not measured, as it needs a card: `python -m benchmarks.gpu --out FILE {experiment.card}`."


def _versions(cells: Any) -> list[str]:
    rows = (row for c in cells.values() if isinstance(c, dict) for row in (c.get("peers") or {}).values())
    return sorted({row["version"] for row in rows if row.get("version")})


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _part(shown: Shown, name: str, drawn: Any) -> Iterator[str]:
    if shown.title:
        yield f"{shown.title[0].upper()}{shown.title[1:]}:\n"
    if shown.rows:
        marks = ("---" if not c or c in shown.text else "---:" for c in shown.columns)
        yield "\n".join([_line(shown.columns), f"|{'|'.join(marks)}|", *map(_line, shown.rows)]) + "\n"
    if shown.drawing is not None:
        drawn(shown.drawing, name)
        yield f"![{name.replace('-', ' ')}](assets/papers/{name}.svg)\n"
    if shown.remarks:
        yield "\n".join(shown.remarks) + "\n"


def _line(values: Iterable[str]) -> str:
    return "| " + " | ".join(str(v).replace("|", "\\|") for v in values) + " |"


def draw(drawing: Bars | Curves, name: str) -> None:
    """Draw bars or curves into a file of the documentation."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.hashsalt": "einsmith", "svg.fonttype": "path"}
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.2), layout="constrained")
    axis = figure.subplots()
    if isinstance(drawing, Bars):
        _draw_bars(axis, drawing)
    else:
        for color, (label, (x, y)) in zip(COLORS * 2, drawing.series.items(), strict=False):
            axis.plot(x, y, color=color, label=label, linewidth=1.4)
        axis.set_xlabel(drawing.x)
        axis.set_ylabel(drawing.y)
        if not drawing.is_log:
            axis.set_ylim(bottom=0)
    if drawing.is_log:
        axis.set_yscale("log")
    axis.grid(axis="y", color="#cccccc", linewidth=0.6)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    if len(drawing.series) > 1:
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(DRAWINGS / f"{name}.svg", metadata={"Date": None}, facecolor="white")


def _draw_bars(axis: Any, drawing: Bars) -> None:
    width = 0.8 / max(1, len(drawing.series))
    for n, (label, values) in enumerate(drawing.series.items()):
        known = [(k, v) for k, v in enumerate(values) if v is not None]
        places = [k + (n - (len(drawing.series) - 1) / 2) * width for k, _ in known]
        axis.bar(places, [v for _, v in known], width, label=label, color=COLORS[n % len(COLORS)])
    upright = len(drawing.labels) > WIDE or sum(map(len, drawing.labels)) > 6 * WIDE
    how = {"rotation": 90} if upright else {}
    axis.set_xticks(range(len(drawing.labels)), drawing.labels, fontsize=8, **how)
    axis.set_ylabel(drawing.unit)
    if drawing.line is not None:
        axis.axhline(drawing.line, color="#333333", linewidth=0.8)
