"""Generate docs/gallery.md from operators of papers (tests/papers), their derived gradients, and measured times.

`python -m tests.papers.speed --json docs/gallery.json` measures; `python -m tests.docs --update` writes the page and,
where they are missing, its pictures.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import default_rng

import einsmith as es
from tests.papers.speed import SIZES, problem

DOCS = Path(__file__).resolve().parents[2] / "docs"
PATH, TIMES, PICTURES = DOCS / "gallery.md", DOCS / "gallery.json", DOCS / "assets" / "gallery"
MOST_LINES = 20
"""Longest gradient that is shown whole; of a longer one the page has the beginning."""

HEAD = """# Gallery

<!-- generated: python -m tests.docs --update -->

{count} operators of papers as formulas. Each is compared with a PyTorch program of its own by the tests, up to second
derivatives. The gradient below a formula is what `.gradient` prints for small shapes; `es.op` compiles it again.

Times are of values and the gradients by all inputs together, in milliseconds of processor time of one thread, {cpu},
{date}: `python -m tests.papers.speed --json docs/gallery.json`. PyTorch's time is the better one of eager execution and
torch.compile, of its program in `tests/papers`; where that is a loop over steps, of eager execution alone. Linear
recurrences are beside the form in chunks that is published for them, too. The other programs are written to check the
formulas independently, from PyTorch's operators; some of them could be made faster by hand.
"""


def page() -> str:
    """Return the page."""
    found = json.loads(TIMES.read_text())
    machine = found["machine"]
    head = HEAD.format(count=len(SIZES), cpu=machine["cpu"], date=machine["date"])
    parts = [
        head,
        "| operator | sizes | Einsmith, ms | PyTorch, ms | times as fast |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in SIZES:
        row = found["operators"][name]
        sizes = ", ".join(f"{a} {n}" for a, n in row["sizes"].items())
        ms = dict(row["ms"])
        own = ms.pop("einsmith")
        peer = min(ms, key=lambda p: ms[p])
        parts.append(
            f"| [{name}](#{anchor(name)}) | {sizes} | {own:.3g} | {ms[peer]:.3g} ({peer}) | {times(ms[peer] / own)} |"
        )
    for name in SIZES:
        parts += ["", *section(name)]
    return "\n".join([*parts, ""])


def section(name: str) -> list[str]:
    """Return the lines of an operator: its source, formula, gradient and picture."""
    op = problem(name)
    lines = [f"## {name}", "", f"{op.source}.", "", "```text", *_outdented(op.text), "```", ""]
    formula = es.op(op.text, extents=dict(op.extents))
    arrays = small(op).arrays(0, default_rng(0))
    wrt = next(n for n in formula.inputs if arrays[n].dtype.kind == "f")
    arrays = {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in arrays.items()}
    shown = formula.gradient(wrt, **arrays, **op.parameters).splitlines()
    shapes = ", ".join(f"{n} {list(arrays[n].shape)}" for n in formula.inputs)
    lines += [f"Its gradient by {wrt}, for {shapes}:", "", "```text"]
    lines += [piece for line in shown[:MOST_LINES] for piece in textwrap.wrap(line, 116, subsequent_indent="    ")]
    lines += [f"... and {len(shown) - MOST_LINES} lines more"] if len(shown) > MOST_LINES else []
    lines += ["```"]
    if name in DRAWN:
        _, caption = DRAWN[name]
        lines += ["", f"![{caption}](assets/gallery/{anchor(name)}.png)", "", f"*{caption}*"]
    return lines


def times(ratio: float) -> str:
    """Return a ratio with two digits, or as a whole number from ten on."""
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}"


def anchor(name: str) -> str:
    """Return the anchor of an operator's heading."""
    return "".join(c for c in name.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def small(op: Any) -> Any:
    """Return the operator at the small sizes of its tests."""
    from tests.papers.collection import OPERATORS

    return next(o for o in OPERATORS if o.name == op.name)


def _outdented(text: str) -> list[str]:
    first, *others = text.splitlines()
    return [first, *textwrap.dedent("\n".join(others)).splitlines()]


# ------------------------------------------------------------------------------------------------------- pictures


def formula_of(name: str) -> Any:
    op = problem(name)
    return es.op(op.text, extents=dict(op.extents), **op.parameters)


def draw_reaction(axes: Any) -> None:
    f = formula_of("Gray-Scott reaction and diffusion")
    rng = default_rng(0)
    u, v = np.ones((2, 128, 128), np.float32) * np.array([1, 0], np.float32)[:, None, None]
    for y, x in rng.integers(10, 118, (12, 2)):
        u[y - 4 : y + 4, x - 4 : x + 4], v[y - 4 : y + 4, x - 4 : x + 4] = 0.5, 0.25
    for _ in range(1500):
        u, v = f(u, v)
    axes[0].imshow(v, cmap="magma")


def draw_filtered(axes: Any) -> None:
    f = formula_of("bilateral filter")
    y, x = np.mgrid[:98, :98] / 98
    clean = 4.0 * ((x - 0.5) ** 2 + (y - 0.5) ** 2 < 0.1) + 2 * (x > y)
    noisy = clean + 0.35 * default_rng(0).standard_normal(clean.shape)
    smooth = noisy
    for _ in range(4):
        smooth = np.pad(f(smooth), 1, mode="edge")
    for ax, picture in zip(axes, (noisy, smooth), strict=True):
        ax.imshow(picture, cmap="gray", vmin=-1, vmax=7)


def draw_cluster(axes: Any) -> None:
    energy = formula_of("Lennard-Jones energy")
    x = default_rng(3).standard_normal((38, 3)) * 0.9
    slope = es.jit(es.grad(energy))
    for _ in range(3000):
        x = x - np.clip(0.01 * slope(x), -0.05, 0.05)
    order = np.argsort(x[:, 2])
    axes[0].scatter(x[order, 0], x[order, 1], c=x[order, 2], s=420, cmap="viridis", edgecolors="black")
    axes[0].set_aspect("equal")


DRAWN: dict[str, tuple[Callable[[Any], None], str]] = {
    "Gray-Scott reaction and diffusion": (draw_reaction, "4500 steps of the reaction from twelve seeds"),
    "bilateral filter": (draw_filtered, "a picture with noise, and after four filters"),
    "Lennard-Jones energy": (draw_cluster, "38 atoms after gradient descent on their energy"),
}
"""What is drawn of an operator, with a caption."""

COLUMNS = {"bilateral filter": 2}


def draw_missing() -> None:
    """Write the pictures that are not there yet."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, (draw, _) in DRAWN.items():
        path = PICTURES / f"{anchor(name)}.png"
        if path.exists():
            continue
        columns = COLUMNS.get(name, 1)
        figure, axes = pyplot.subplots(1, columns, figsize=(3.2 * columns, 3.2), squeeze=False)
        draw(axes[0])
        for ax in axes[0]:
            ax.set_xticks([])
            ax.set_yticks([])
        figure.tight_layout()
        figure.savefig(path, dpi=75, metadata={"Software": None})
        pyplot.close(figure)
