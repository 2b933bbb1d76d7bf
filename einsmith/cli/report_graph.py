"""Place the graph of a program for `einsmith explain --html`: its calls, what is fused in each, and the tensors between
them. The template draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

from einsmith.cli.kernel_report import seconds_of
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


def _path(source: _Box, target: _Box) -> str:
    """Return the curve of a tensor: straight down or up to the next call of a column, else around those between."""
    if source.column == target.column:
        down = target.y > source.y
        a = source.y + (source.height if down else 0)
        b = target.y + (0 if down else target.height)
        if abs(b - a) <= 2 * GAP:
            x = source.x + WIDTH / 2
            return f"M{x:.0f} {a:.0f}L{x:.0f} {b:.0f}"
    a, b = source.y + source.height / 2, target.y + target.height / 2
    if source.column == target.column:
        x = z = source.x
        middle = x - min(110.0, 24 + abs(b - a) / 12)
    else:
        right = target.column > source.column
        x, z = source.x + (WIDTH if right else 0), target.x + (0 if right else WIDTH)
        middle = (x + z) / 2
    return f"M{x:.0f} {a:.0f}C{middle:.0f} {a:.0f} {middle:.0f} {b:.0f} {z:.0f} {b:.0f}"


def graph(report: Report) -> dict[str, Any]:
    """Place the calls of the plan as boxes, and tensors between them as lines, as wide as they are large."""
    boxes = _boxes(report)
    place = {b.number: b for b in boxes}
    edges = []
    for e in report["edges"]:
        if e["from"] in place and e["to"] in place:
            width = 0.6 + 0.13 * max(0.0, log2(max(e["bytes"], 1) / 1024))
            edges.append((e, _path(place[e["from"]], place[e["to"]]), width))
    return {
        "boxes": boxes,
        "edges": edges,
        "width": max((b.x for b in boxes), default=0.0) + WIDTH + 150,
        "height": max((b.y + b.height for b in boxes), default=0.0) + 20,
    }
