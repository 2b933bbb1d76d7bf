"""Draw the picture of the site's home page: recorded times as fast as PyTorch, read from docs/speed.md and
docs/gallery.json. `python -m tests.docs --update` draws it anew for the light and the dark theme."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.docs.gallery import cells, ratio

DOCS = Path(__file__).resolve().parents[2] / "docs"
PICTURES = {theme: DOCS / "assets" / f"speed-{theme}.svg" for theme in ("light", "dark")}


class Strip(NamedTuple):
    """A line of the picture: cases of one kind, by name, with the factor by which each is faster than PyTorch."""

    title: str
    cases: dict[str, float]


class Colors(NamedTuple):
    """Colours of a theme: text, grid, and dots of faster and of slower cases."""

    text: str
    grid: str
    faster: str
    slower: str


COLORS = {
    "light": Colors("#333333", "#c9ced2", "#33658a", "#d84315"),
    "dark": Colors("#e2e4e9", "#4a4f5c", "#86bbd8", "#ff8a65"),
}
LABELS = {
    "mobilenet_v2": "MobileNetV2",
    "neighbourhood attention 1-D": "neighbourhood\nattention",
    "4,096, window of 128": "window of 128\nin 4,096 steps",
    "100 Gaussian, gradients": "gradients in\n100 dimensions",
    "3 variance of the distances, values": "variance of\ndistances",
}
"""Cases that are named in the picture, with the text beside their dots."""

APART = 1.6
"""Distance of the strips' lines; dots lie at most half of it from a line."""

RIGHT: dict[str, Any] = {"xytext": (8, 0), "ha": "left", "va": "center"}
BELOW: dict[str, Any] = {"xytext": (0, -6), "ha": "center", "va": "top"}
"""Where a text stands beside its dot, as arguments of matplotlib's `annotate`."""


def table(text: str, heading: str, column: str) -> list[dict[str, str]]:
    """Return the rows of the first table below a heading that has a column of this name, each by column."""
    section = re.split(r"^## ", text[text.index(f"\n## {heading}\n") + 1 :], flags=re.MULTILINE)[1]
    for block in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines())
        if column in head:
            return [dict(zip(head, row, strict=True)) for row in rows]
    raise AssertionError(f"no table below {heading!r} has a column {column!r}")


def strips() -> list[Strip]:
    """Return the recorded cases, from the pages that show them."""
    text = (DOCS / "speed.md").read_text()
    networks = {
        row["network"]: float(row["speed-up over the better one"]) for row in table(text, "Inside PyTorch", "eager")
    }
    attention = {
        f"{row['steps']}, {mask}": float(m[1])
        for row in table(text, "Attention and kernel methods", "causal")
        for mask, cell in row.items()
        if (m := re.search(r"\(([\d.]+)", cell))
    }
    pairs = {
        f"{row['dimensions']} {row['']}, {order}": float(m[1])
        for row in table(text, "Attention and kernel methods", "second order")
        for order in ("values", "gradients", "second order")
        if (m := re.search(r"\(([\d.]+)", row[order]))
    }
    gallery = {name: round(ratio(cell), 2) for name, cell in cells(1).items()}
    return [
        Strip(f"training steps of {len(networks)} PyTorch networks", networks),
        Strip(f"{len(gallery)} operators of research, with gradients", gallery),
        Strip(f"attention with masks and biases, with gradients ({len(attention)})", attention),
        Strip(f"kernel methods ({len(pairs)}; KeOps instead, where faster)", pairs),
    ]


def recorded(path: Path) -> list[list[object]]:
    """Return the titles and cases that a picture was drawn from."""
    m = re.search(r"<dc:description>(.*?)</dc:description>", path.read_text(), re.DOTALL)
    assert m is not None, f"{path} does not say what it was drawn from"
    return json.loads(m[1].replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


def heights(values: Iterable[float], *, apart: float = 0.048, step: float = 0.125) -> list[float]:
    """Return offsets from a strip's line at which dots in ascending order do not overlap on a logarithmic axis."""
    placed: list[tuple[float, float]] = []
    for value in values:
        x = math.log10(value)
        tries = (sign * step * n for n in range(20) for sign in (1, -1))
        y = next(y for y in tries if all(abs(x - a) >= apart or abs(y - b) > step / 2 for a, b in placed))
        placed.append((x, y))
    return [y for _, y in placed]


def draw(theme: str, shown: list[Strip]) -> None:
    """Draw the picture of a theme, with a transparent background."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colors = COLORS[theme]
    with plt.rc_context({"svg.hashsalt": "speed", "svg.fonttype": "path", "font.size": 11, "text.color": colors.text}):
        figure, axes = plt.subplots(figsize=(6.6, 4.9))
        for line, strip in enumerate(shown):
            base = -APART * line
            cases = sorted(strip.cases.items(), key=lambda case: case[1])
            axes.text(0.42, base + 0.62, strip.title, fontweight="bold", va="bottom")
            ys = [base + y for y in heights(value for _, value in cases)]
            shades = [colors.faster if value >= 1 else colors.slower for _, value in cases]
            axes.scatter([value for _, value in cases], ys, c=shades, s=30, linewidths=0, zorder=3)
            for (name, value), y in zip(cases, ys, strict=True):
                if name in LABELS:
                    place = BELOW if value < 1 else RIGHT
                    axes.annotate(LABELS[name], (value, y), textcoords="offset points", fontsize=9, **place)
        axes.axvline(1, color=colors.text, linewidth=1.2, zorder=2)
        axes.set_xscale("log")
        axes.set_xlim(0.4, 100)
        axes.set_ylim(APART * (0.45 - len(shown)), 1)
        axes.set_xticks([0.5, 1, 2, 5, 10, 20, 50, 100], ["0.5", "1", "2", "5", "10", "20", "50", "100"])
        axes.minorticks_off()
        axes.tick_params(colors=colors.text, length=0)
        axes.set_yticks([])
        axes.grid(axis="x", color=colors.grid, linewidth=0.8, zorder=0)
        axes.set_xlabel("times as fast as the fastest other form", color=colors.text)
        for spine in axes.spines.values():
            spine.set_visible(False)
        figure.tight_layout(pad=0.4)
        metadata = {"Date": None, "Creator": None, "Description": json.dumps([list(strip) for strip in shown])}
        figure.savefig(PICTURES[theme], transparent=True, metadata=metadata)
        plt.close(figure)


def draw_outdated() -> None:
    """Draw the pictures that show other figures than the pages."""
    shown = strips()
    for theme, path in PICTURES.items():
        if not path.exists() or recorded(path) != [list(strip) for strip in shown]:
            draw(theme, shown)
