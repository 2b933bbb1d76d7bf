"""Place the charts of `einsmith explain --html` for its template: kernels in time, and memory over the calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from math import floor, log10
from typing import Any

from einsmith.base.sizes import show_size
from einsmith.cli.kernel_report import seconds_of

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


def ticks(largest: float, most: int = 8) -> list[float]:
    """Return at most `most` + 1 round ticks from 0 to `largest`; their distance is 1, 2 or 5 times a power of ten."""
    if largest <= 0:
        return [0.0]
    unit = 10.0 ** floor(log10(largest / most))
    step = next(k * unit for k in (1, 2, 5, 10) if largest / (k * unit) <= most)
    return [n * step for n in range(floor(largest / step + 1e-9) + 1)]


def timeline(report: Report) -> dict[str, Any]:
    """Place the kernels in order with widths proportional to their predicted and, where known, measured time."""
    kernels = report["kernels"]
    names = ["predicted"] + (["measured"] if report["parts"][-1]["measured"] is not None else [])
    lanes = {name: [seconds_of(k, name == "measured") for k in kernels] for name in names}
    longest = max(map(sum, lanes.values()))
    scale = SPAN / longest if longest else 0.0
    marks = ticks(longest)
    unit, name = (1e3, "ms") if longest >= 2e-3 else (1e6, "us")
    labels = [f"{t * unit:g}" for t in marks]
    labels[-1] += f" {name}"
    bars = {}
    for lane, seconds in lanes.items():
        widths = [s * scale for s in seconds]
        bars[lane] = [*zip(accumulate(widths, initial=LEFT), widths, kernels, strict=False)]
    return {"lanes": bars, "marks": [*zip((LEFT + t * scale for t in marks), labels, strict=True)]}


def memory(report: Report) -> dict[str, Any]:
    """Place the live bytes of intermediate results at each call, stacked by kind, results saved for later at the
    bottom, the size of the arena, and the roles of the calls."""
    use, live = report["memory"], report["memory"]["live"]
    calls = len(live["saved"])
    most = max(use["peak"], use["results"], 1)
    across, up = SPAN / max(calls, 1), HEIGHT / (1.06 * most)
    bottom = HEIGHT + 8
    areas, below = {}, [0] * calls
    for kind in KINDS:
        above = [a + b for a, b in zip(below, live[kind], strict=True)]
        areas[kind] = _area(below, above, across, up, bottom)
        below = above
    return {
        "across": across,
        "bottom": bottom,
        "marks": [(bottom - n * up, round(n)) for n in ticks(most, 5)],
        "areas": areas,
        "live": below,
        "arena": bottom - use["results"] * up,
        "roles": [*_roles(report["kernels"], across)],
        "calls": [(LEFT + (n + 0.5) * across, int(n)) for n in ticks(max(calls - 1, 0)) if n == int(n)],
        "peak": LEFT + (use["peak_call"] + 0.5) * across,
        "peak_text": f"peak at call {use['peak_call']}: {show_size(use['peak'])}",
    }


def _area(below: Sequence[int], above: Sequence[int], across: float, up: float, bottom: float) -> str:
    """Return the path of the filled area between two step curves."""

    def steps(heights: Sequence[int], order: Sequence[int], first: int) -> str:
        # Consecutive calls of equal height become one line.
        path = ""
        for height, run in groupby(order, lambda i: heights[i]):
            last = list(run)[-1]
            path += f"V{bottom - height * up:.1f}H{LEFT + (last + first) * across:.2f}"
        return path

    there = steps(above, range(len(above)), 1)
    back = steps(below, range(len(below) - 1, -1, -1), 0)
    return f"M{LEFT} {bottom}{there}{back}Z"


def _roles(kernels: Sequence[Mapping[str, Any]], across: float) -> Iterator[tuple[str, float, float]]:
    """Yield (colour, x, width) of consecutive calls of one role; a loop has the role of its first kernel."""
    first = {k["call"]: colour_of(k) for k in reversed(kernels)}
    for colour, run in groupby(sorted(first), first.__getitem__):
        numbers = list(run)
        yield colour, LEFT + numbers[0] * across, (numbers[-1] - numbers[0] + 1) * across
