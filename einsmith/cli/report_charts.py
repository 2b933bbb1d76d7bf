"""Draw the charts of `einsmith explain --html` as inline SVG: kernels in time, and memory over the calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from math import floor, log10
from typing import Any

from einsmith.base.sizes import show_size
from einsmith.cli.kernel_report import seconds_of
from einsmith.driver.streaming import us

WIDTH = 960
LEFT = 74
"""X coordinate at which the axis begins; labels stand to its left."""
RIGHT = WIDTH - 20
"""X coordinate at which the axis ends."""
SPAN = RIGHT - LEFT
LANE = 40
"""Height of a row of kernels."""
HEIGHT = 190
"""Height of the memory chart above its axis."""
KINDS = {
    "saved": "saved for the backward pass",
    "rest": "other results",
    "workspace": "workspace of kernels",
}
Report = Mapping[str, Any]


def colour_of(kernel: Mapping[str, Any]) -> str:
    """Return the CSS class that colours a kernel."""
    return "again" if kernel["again"] else kernel["role"]


def title_of(number: int, kernel: Mapping[str, Any]) -> str:
    """Describe a kernel in a few lines, as a tooltip."""
    measured = "" if kernel["measured"] is None else f", measured {us(kernel['measured'])}"
    role = kernel["role"] + (" (recomputed)" if kernel["again"] else "")
    return (
        f"kernel {number}, {role}: {kernel['root']}\n{kernel['pattern']} {kernel['config']}\n"
        f"predicted {us(seconds_of(kernel, False))}{measured}"
    )


def ticks(largest: float, most: int = 8) -> list[float]:
    """Return at most `most` + 1 round ticks from 0 to `largest`; their distance is 1, 2 or 5 times a power of ten."""
    if largest <= 0:
        return [0.0]
    unit = 10.0 ** floor(log10(largest / most))
    step = next(k * unit for k in (1, 2, 5, 10) if largest / (k * unit) <= most)
    return [n * step for n in range(floor(largest / step + 1e-9) + 1)]


def _svg(height: float, label: str, body: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(label)}">{"".join(body)}</svg>'


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(text)}</text>'


def legend(entries: Mapping[str, str]) -> str:
    """Return the HTML legend of entries {CSS class: meaning}."""
    entries_html = (f'<span><i class="{kind}"></i>{escape(text)}</span>' for kind, text in entries.items())
    return f'<p class="legend">{"".join(entries_html)}</p>'


def timeline(report: Report) -> str:
    """Draw the kernels in order with widths proportional to their predicted and, where known, measured time."""
    kernels = report["kernels"]
    lanes = [("predicted", False)] + ([("measured", True)] if report["parts"][-1]["measured"] is not None else [])
    longest = max(sum(seconds_of(k, m) for k in kernels) for _, m in lanes)
    scale = SPAN / longest if longest else 0.0
    bottom = 10 + len(lanes) * (LANE + 8)
    marks = ticks(longest)
    unit, name = (1e3, "ms") if longest >= 2e-3 else (1e6, "us")
    body = []
    for t in marks:
        x = LEFT + t * scale
        body.append(f'<path class="grid" d="M{x:.1f} 4V{bottom}"/>')
        body.append(_text(x, bottom + 14, f"{t * unit:g}" + (f" {name}" if t == marks[-1] else ""), "middle"))
    for row, (lane, measured) in enumerate(lanes):
        y = 8 + row * (LANE + 8)
        body.append(_text(LEFT - 8, y + LANE / 2 + 4, lane, "end"))
        body += _bars(kernels, y, scale, measured)
    return _svg(bottom + 20, "kernels in order of execution; widths are proportional to time", body)


def _bars(kernels: Sequence[Mapping[str, Any]], y: float, scale: float, measured: bool) -> Iterator[str]:
    x = float(LEFT)
    for n, k in enumerate(kernels):
        width = seconds_of(k, measured) * scale
        edge = "" if width < 3 else " edged"
        yield (
            f'<a href="#k{n}"><rect class="{colour_of(k)}{edge}" data-k="{n}" x="{x:.2f}" y="{y}" width="{width:.2f}" '
            f'height="{LANE}"><title>{escape(title_of(n, k))}</title></rect></a>'
        )
        if width >= 24:
            yield _text(x + width / 2, y + LANE / 2 + 4, str(n), "middle", "number")
        x += width


def memory(report: Report) -> str:
    """Draw the live bytes of intermediate results at each call, stacked by kind, results saved for later at the bottom.

    A line marks the size of the arena, and a band below shows the roles of the calls."""
    use = report["memory"]
    live = use["live"]
    calls = len(live["saved"])
    most = max(use["peak"], use["results"], 1)
    across, up = SPAN / max(calls, 1), HEIGHT / (1.06 * most)
    bottom = HEIGHT + 8
    body = []
    for n in ticks(most, 5):
        y = bottom - n * up
        body.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{RIGHT}"/>')
        body.append(_text(LEFT - 8, y + 4, show_size(round(n)), "end"))
    below = [0] * calls
    for kind in KINDS:
        above = [a + b for a, b in zip(below, live[kind], strict=True)]
        body.append(_area(kind, below, above, across, up, bottom))
        below = above
    end = bottom - use["results"] * up
    body.append(f'<path class="arena" d="M{LEFT} {end:.1f}H{RIGHT}"/>')
    body.append(_text(RIGHT - 2, end - 4, f"arena {show_size(use['results'])}", "end"))
    body += _roles(report["kernels"], across, bottom + 3)
    for i in range(calls):
        parts = "\n".join(f"{show_size(live[kind][i])} {text}" for kind, text in KINDS.items())
        title = f"call {i}: {show_size(below[i])} live\n{parts}"
        body.append(
            f'<rect class="call" x="{LEFT + i * across:.2f}" y="8" width="{across:.2f}" height="{HEIGHT + 14}">'
            f"<title>{title}</title></rect>"
        )
    if calls:
        x = LEFT + (use["peak_call"] + 0.5) * across
        body.append(f'<path class="peak" d="M{x:.1f} 8V{bottom}"/>')
        text, late = f"peak at call {use['peak_call']}: {show_size(use['peak'])}", x > WIDTH / 2
        body.append(_text(x - 5 if late else x + 5, bottom - 6, text, "end" if late else "start", "strong"))
    for n in ticks(max(calls - 1, 0)):
        if n == int(n):
            body.append(_text(LEFT + (n + 0.5) * across, bottom + 27, f"{n:.0f}", "middle"))
    body.append(_text(LEFT - 8, bottom + 27, "call", "end"))
    return _svg(bottom + 34, "bytes of intermediate results that are live at each call", body)


def _area(kind: str, below: Sequence[int], above: Sequence[int], across: float, up: float, bottom: float) -> str:
    """Draw the filled area between two step curves."""

    def steps(heights: Sequence[int], order: Sequence[int], first: int) -> str:
        # Consecutive calls of equal height become one line.
        path = ""
        for height, run in groupby(order, lambda i: heights[i]):
            last = list(run)[-1]
            path += f"V{bottom - height * up:.1f}H{LEFT + (last + first) * across:.2f}"
        return path

    there = steps(above, range(len(above)), 1)
    back = steps(below, range(len(below) - 1, -1, -1), 0)
    return f'<path class="{kind}" d="M{LEFT} {bottom}{there}{back}Z"/>'


def _roles(kernels: Sequence[Mapping[str, Any]], across: float, y: float) -> Iterator[str]:
    """Draw a band of the roles of calls; a loop has the role of its first kernel."""
    first = {k["call"]: colour_of(k) for k in reversed(kernels)}
    for colour, run in groupby(sorted(first), first.__getitem__):
        numbers = list(run)
        width = (numbers[-1] - numbers[0] + 1) * across
        yield f'<rect class="{colour}" x="{LEFT + numbers[0] * across:.2f}" y="{y}" width="{width:.2f}" height="9"/>'
