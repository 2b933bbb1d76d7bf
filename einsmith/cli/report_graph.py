"""Draw the graph of a program for `einsmith explain --html`: its calls, what is fused in each, and the tensors between
them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log2
from typing import Any

from einsmith.base.sizes import show_size
from einsmith.cli.kernel_report import describe_fusion, seconds_of
from einsmith.cli.report_charts import Report, colour_of
from einsmith.driver.streaming import us

WIDTH = 250
"""Width of a call."""
COLUMN = 380
"""Distance of the columns, one for each role."""
LINE = 14
"""Height of a line of text."""
GAP = 22
"""Least distance of calls above each other."""
STAGES = 5
"""Most stages of a kernel that are listed, and most kernels of a loop."""
LETTERS = 36
"""Letters of a line that fit into a call."""
COLUMNS = {"forward": 0, "again": 1, "backward": 1, "update": 2}


@dataclass
class _Box:
    """A call of the plan: its number, its kernels, the lines of its text, and the place of its upper left corner."""

    number: int
    kernels: Sequence[Mapping[str, Any]]
    lines: Sequence[str]
    column: int
    y: float = 0.0

    @property
    def x(self) -> float:
        return self.column * COLUMN

    @property
    def height(self) -> float:
        return LINE * len(self.lines) + 10


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"


def _lines(number: int, kernels: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the text of a call: what it is and takes, the stages that are fused in it, and what fusing them gains."""
    seconds = sum(seconds_of(k, k["measured"] is not None) for k in kernels)
    first = kernels[0]
    if len(kernels) > 1:
        inner = [k["root"] for k in kernels[:STAGES]]
        head = f"{number}  loop of {len(kernels)} kernels, {us(seconds)}"
    else:
        inner = first["fused"][:STAGES]
        head = f"{number}  {first['pattern']}, {us(seconds)}"
    more = (len(kernels) if len(kernels) > 1 else len(first["fused"])) - len(inner)
    reward = sum(k["turns"] * k["fusion"]["reward"] for k in kernels if k["fusion"])
    lines = [
        head,
        *inner,
        *([f"and {more} more"] if more else []),
        *([f"fused: {us(abs(reward))} {'less' if reward > 0 else 'more'}"] if reward else []),
    ]
    return [_short(line) for line in lines]


def _boxes(report: Report) -> list[_Box]:
    """Return the calls with their positions: the forward pass downwards, the backward pass upwards next to it, then the
    updates."""
    of_call: dict[int, list[Mapping[str, Any]]] = {}
    for k in report["kernels"]:
        of_call.setdefault(k["call"], []).append(k)
    boxes = [_Box(n, ks, _lines(n, ks), COLUMNS[colour_of(ks[0])]) for n, ks in sorted(of_call.items())]
    place = {b.number: b for b in boxes}
    sources: dict[int, list[int]] = {}
    for e in report["edges"]:
        sources.setdefault(e["to"], []).append(e["from"])

    def beside(box: _Box) -> list[float]:
        known = (place[n] for n in sources.get(box.number, ()) if n in place)
        return [b.y for b in known if b.column < box.column]

    passes = [[b for b in boxes if b.column == column] for column in (0, 1)]
    heights = [sum(b.height + GAP for b in column) for column in passes]
    for column, height in zip(passes, heights, strict=True):
        at, stretch = 0.0, max(heights) / (height or 1.0)
        for b in column:
            b.y, at = at, at + (b.height + GAP) * stretch
    for b in passes[1]:
        b.y = max(heights) - b.y - b.height
    bottom = -float("inf")
    for b in sorted((b for b in boxes if b.column == 2), key=lambda b: min(beside(b), default=0.0)):
        b.y = max(bottom, min(beside(b), default=0.0))
        bottom = b.y + b.height + GAP
    least = min((b.y for b in boxes), default=0.0)
    for b in boxes:
        b.y -= least
    return boxes


def _edge(edge: Mapping[str, Any], source: _Box, target: _Box) -> str:
    """Return the curve of a tensor: straight down or up to the next call of a column, else around those between."""
    if source.column == target.column:
        down = target.y > source.y
        a = source.y + (source.height if down else 0)
        b = target.y + (0 if down else target.height)
        if abs(b - a) <= 2 * GAP:
            x = source.x + WIDTH / 2
            path = f"M{x:.0f} {a:.0f}L{x:.0f} {b:.0f}"
        else:
            x = source.x
            a, b = source.y + source.height / 2, target.y + target.height / 2
            away = x - min(110.0, 24 + abs(b - a) / 12)
            path = f"M{x:.0f} {a:.0f}C{away:.0f} {a:.0f} {away:.0f} {b:.0f} {x:.0f} {b:.0f}"
    else:
        right = target.column > source.column
        a, b = source.y + source.height / 2, target.y + target.height / 2
        x, z = source.x + (WIDTH if right else 0), target.x + (0 if right else WIDTH)
        middle = (x + z) / 2
        path = f"M{x:.0f} {a:.0f}C{middle:.0f} {a:.0f} {middle:.0f} {b:.0f} {z:.0f} {b:.0f}"
    layout = f", {edge['layout']}" if edge["layout"] else ""
    title = (
        f"{edge['tensor']}: {edge['type']}, {show_size(edge['bytes'])}{layout}\ncall {source.number} to {target.number}"
    )
    width = 0.6 + 0.13 * max(0.0, log2(max(edge["bytes"], 1) / 1024))
    kind = "edge ordered" if edge["layout"] else "edge"
    return f'<path class="{kind}" d="{path}" stroke-width="{width:.2f}"><title>{escape(title)}</title></path>'


def _box(box: _Box) -> str:
    colour = colour_of(box.kernels[0])
    titles = []
    for k in box.kernels:
        fused = f"\n{describe_fusion(k)}" if len(k["fused"]) > 1 and k["fusion"] else ""
        titles.append(f"{k['root']}\n{k['pattern']} {k['config']}{fused}")
    text = []
    for n, line in enumerate(box.lines):
        kind = "" if n else ' class="strong"'
        text.append(f'<text x="{box.x + 8:.0f}" y="{box.y + 5 + LINE * (n + 0.8):.0f}"{kind}>{escape(line)}</text>')
    number = box.number
    return (
        f'<a href="#c{number}"><g><title>{escape(chr(10).join(titles))}</title>'
        f'<rect class="box" x="{box.x:.0f}" y="{box.y:.0f}" width="{WIDTH}" height="{box.height:.0f}" rx="3"/>'
        f'<rect class="{colour}" x="{box.x:.0f}" y="{box.y:.0f}" width="4" height="{box.height:.0f}"/>'
        f"{''.join(text)}</g></a>"
    )


def graph(report: Report) -> Iterator[str]:
    """Draw the calls of the plan as boxes, tensors between them as lines, as wide as they are large."""
    boxes = _boxes(report)
    place = {b.number: b for b in boxes}
    width = max((b.x for b in boxes), default=0.0) + WIDTH
    height = max((b.y + b.height for b in boxes), default=0.0)
    view = f"{-130} {-10} {width + 150:.0f} {height + 20:.0f}"
    yield (
        f'<div class="graph"><svg id="graph" viewBox="{view}" style="width:{width + 150:.0f}px" role="img" '
        'aria-label="calls of the plan and the tensors between them">'
    )
    for e in report["edges"]:
        if e["from"] in place and e["to"] in place:
            yield _edge(e, place[e["from"]], place[e["to"]])
    yield from map(_box, boxes)
    yield "</svg></div>"
