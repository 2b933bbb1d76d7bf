"""Generate docs/gallery.md from the operators of benchmarks/showpieces, their derived gradients, and measured times.

`python -m benchmarks.showpieces --threads 1 2 --peers 2 --json docs/gallery.json` measures; `python -m tests.docs
--update` writes the page and, where they are missing, its pictures.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import default_rng

import einsmith as es
from benchmarks.driver import geometric_mean
from benchmarks.showpieces.case import FIELDS, Showpiece
from benchmarks.showpieces.collection import SHOWPIECES
from benchmarks.showpieces.measure import EINSMITH, fastest
from benchmarks.showpieces.programs import middle

DOCS = Path(__file__).resolve().parents[2] / "docs"
PATH, TIMES, PICTURES = DOCS / "gallery.md", DOCS / "gallery.json", DOCS / "assets" / "gallery"
MOST_LINES = 20
"""Longest gradient that is shown whole; of a longer one the page has the beginning."""
THIN = 2
"""Speed-ups below which operators are named."""
MOST_BLOCKS = 30
"""Longest bar of a speed-up; a block is once as fast."""
MEBI = 2**20
COLUMNS = [
    "| operator | size | ms | fastest other, ms | times as fast | | with two threads | memory, MiB | first call, s |",
    "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
]

HEAD = """# Gallery

<!-- generated: python -m tests.docs --update -->

{count} operators of today's research, each as a formula that its paper has, without a rewriting for speed. The tests
compare each with the other libraries' forms, up to second derivatives. Each field has a page that goes on from here.

Times are of values and the gradients by all inputs together, in float32, in milliseconds of processor time of one
thread, {cpu}, {date}: `python -m benchmarks.showpieces --threads 1 2 --peers 2 --json docs/gallery.json`. Others are
written for this comparison from their papers in the best vectorised form that we know, in PyTorch (eager, and by
torch.compile) and JAX; loops over steps where there is no other form. All are verified in float64 before they are
timed. They take turns, each in a process of its own, and the table shows the fastest other one. A block of a bar is
once as fast. Memory is what a call takes beyond its arguments, and what Einsmith keeps between calls, as memory of
results for the next ones; a first call begins with empty caches. Times with two threads are by the clock, beside the
two others that are fastest with one.

Geometric mean of the speed-ups: {mean} with one thread, {both} with two. {slow} Below {level} times: {thin}.
More memory than the fastest other one: {heavy}.
"""


def cells(threads: int) -> dict[str, dict[str, Any]]:
    """Return what was measured of each operator at its first size."""
    measured = json.loads(TIMES.read_text())["cells"]
    keys = {name: f"{name}/{next(iter(piece.sizes))}/{threads}" for name, piece in SHOWPIECES.items()}
    return {name: measured[key] for name, key in keys.items() if key in measured}


def ratio(cell: Mapping[str, Any]) -> float:
    """Return how many times as fast as the fastest other library an operator is."""
    return cell["seconds"][fastest(cell)] / cell["seconds"][EINSMITH]


def page() -> str:
    """Return the page."""
    machine, of_one, of_two = json.loads(TIMES.read_text())["machine"], cells(1), cells(2)
    ratios = {name: ratio(cell) for name, cell in of_one.items()}
    slow, thin = (_named({name: times(x) for name, x in ratios.items() if x < n}) for n in (1, THIN))
    heavy = _named({name: _memory(cell) for name, cell in of_one.items() if is_heavier(cell)})
    means = [times(geometric_mean([ratio(c) for c in of.values()]) or 0) for of in (of_one, of_two)]
    head = HEAD.format(
        count=len(SHOWPIECES), cpu=machine["cpu"], date=machine["date"], mean=means[0], both=means[1],
        slow=f"Slower: {slow}." if slow else "None is slower.", level=THIN, thin=thin or "none",
        heavy=heavy or "none",
    )  # fmt: skip
    parts = [textwrap.dedent(head)]
    for area in FIELDS:
        pieces = [p for p in SHOWPIECES.values() if p.area == area]
        parts += [f"## {area.capitalize()}", "", f"From here on: [{title(area)}](fields/{area}.md).", ""]
        parts += COLUMNS
        parts += [row(p, of_one[p.name], of_two.get(p.name)) for p in pieces] + [""]
        for piece in pieces:
            parts += [*section(piece), ""]
    return "\n".join(parts)


def _named(figures: Mapping[str, str]) -> str:
    """Return names, each with its figure."""
    return ", ".join(f"{name} ({x})" for name, x in figures.items())


def title(area: str) -> str:
    """Return the title of a field's page."""
    return (DOCS / "fields" / f"{area}.md").read_text().partition("\n")[0].removeprefix("# ")


def row(piece: Showpiece, one: Mapping[str, Any], two: Mapping[str, Any] | None) -> str:
    """Return the line of an operator in its field's table, of what one thread and two threads measured."""
    peer, seconds = fastest(one), one["seconds"]
    assert peer is not None
    first = " / ".join(digits(one["first"][n]) for n in (EINSMITH, peer))
    fast = times(ratio(one)) if ratio(one) >= 1 else f"**{times(ratio(one))}, slower**"
    size = ", ".join(f"{a} {n}" for a, n in next(iter(piece.sizes.values())).items())
    columns = (
        *(piece.name, size, digits(1e3 * seconds[EINSMITH]), f"{digits(1e3 * seconds[peer])} ({spoken(peer)})"),
        *(fast, bar(ratio(one)), times(ratio(two)) if two else "", _memory(one), first),
    )
    return f"| {' | '.join(columns)} |"


def _memory(cell: Mapping[str, Any]) -> str:
    """Return the MiB of an operator and of the fastest other one."""
    return " / ".join(digits(cell["bytes"][n] / MEBI) for n in (EINSMITH, fastest(cell)))


def is_heavier(cell: Mapping[str, Any]) -> bool:
    """Return whether an operator takes more memory than the fastest other one."""
    return cell["bytes"][EINSMITH] > cell["bytes"][fastest(cell)]


def spoken(contender: str) -> str:
    """Return how the page calls a program of another library."""
    library, _, form = contender.partition(" ")
    return f"{form}, " + {"torch": "PyTorch", "compile": "torch.compile", "jax": "JAX", "keops": "KeOps"}[library]


def digits(x: float) -> str:
    """Return a number with three digits at most."""
    return f"{x:.0f}" if x >= 99.95 else f"{x:.3g}"


def times(x: float) -> str:
    """Return a ratio with two digits, or as a whole number from ten on."""
    return f"{x:.0f}" if x >= 9.95 else f"{x:.1f}"


def bar(x: float) -> str:
    """Return a bar of a block for each time as fast, with eighths at its end."""
    eighths = round(8 * min(x, MOST_BLOCKS))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def section(piece: Showpiece) -> list[str]:
    """Return the folded lines of an operator: its formula, gradient and picture."""
    lines = ['<details markdown="1">', f"<summary>{piece.name}: {piece.source}</summary>", ""]
    lines += ["```text", *textwrap.dedent(piece.formula).strip().splitlines(), "```", ""]
    if piece.build is None:
        lines += _gradient(piece)
    if piece.known:
        lines += [f"{' and '.join(piece.known)} are known, as `es.constant`.", ""]
    if piece.settings:
        settings = ", ".join(f"{name}={value}" for name, value in piece.settings.items())
        lines += [f"Compiled with `{settings}` ([Semantics](semantics.md)).", ""]
    if piece.limit:
        lines += [piece.limit, ""]
    if piece.name in DRAWN:
        caption = DRAWN[piece.name][1]
        lines += [f"![{caption}](assets/gallery/{anchor(piece.name)}.png)", "", f"*{caption}*", ""]
    return [*lines, "</details>"]


def _gradient(piece: Showpiece) -> list[str]:
    sizes = middle(piece)
    arrays = piece.arrays(default_rng(0), **sizes)
    operator: Any = piece.operator(sizes)
    wrt = next(n for n, a in arrays.items() if a.dtype.kind == "f" and n not in piece.constant + piece.known)
    arrays = {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in arrays.items()}
    shown = operator.gradient(wrt, **arrays).splitlines()
    shapes = ", ".join(f"{n} {list(a.shape)}" for n, a in arrays.items())
    lines = [f"Its gradient by {wrt}, for {shapes}:", "", "```text"]
    lines += [piece for line in shown[:MOST_LINES] for piece in textwrap.wrap(line, 116, subsequent_indent="    ")]
    lines += [f"... and {len(shown) - MOST_LINES} lines more"] if len(shown) > MOST_LINES else []
    return [*lines, "```", ""]


def anchor(name: str) -> str:
    """Return a name that files may have."""
    return "".join(c for c in name.lower().replace(" ", "-") if c.isalnum() or c in "-_")


# ------------------------------------------------------------------------------------------------------- pictures


def draw_wave(axes: Any) -> None:
    piece = SHOWPIECES["wave equation"]
    wave = es.op(piece.formula.replace("return r", "return u"), inputs="c, w, s, at")
    speed = np.full((160, 160), 0.35)
    speed[80:] = 0.6
    time = np.arange(260)
    pulse = (1 - (time - 30.0) ** 2 / 40) * np.exp(-((time - 30.0) ** 2) / 80)
    u = wave(speed, pulse, np.array([50, 80]), np.zeros((1, 2), int))
    for ax, step in zip(axes, (100, 170, 240), strict=True):
        ax.imshow(u[step], cmap="RdBu", vmin=-0.25, vmax=0.25)
        ax.axhline(80, color="black", linewidth=0.5)


def draw_splats(axes: Any) -> None:
    piece = SHOWPIECES["2-D Gaussian splatting"]
    splat: Any = piece.operator(next(iter(piece.sizes.values())))
    rng, side = default_rng(0), 96
    y, x = np.mgrid[:side, :side] + 0.5
    r, angle = np.hypot(x - 48, y - 48), np.arctan2(y - 48, x - 48)
    petals = (r < 18 + 22 * np.abs(np.cos(2.5 * angle)))[..., None] * np.array([0.9, 0.3, 0.4])
    target = np.where((r < 12)[..., None], np.array([0.95, 0.8, 0.2]), petals).astype(np.float32)
    places = np.arange(side, dtype=np.float32) + 0.5

    class Scene(es.nn.Module):
        def __init__(self, count: int):
            super().__init__()
            kept = {"m": rng.random((count, 2)) * side, "o": np.full(count, 0.5), "c": rng.random((count, 3))}
            kept["s"] = np.full((count, 2), 0.25)
            kept["turn"] = np.zeros(count)
            for name, value in kept.items():
                setattr(self, name, es.nn.Parameter(value.astype(np.float32)))

        def forward(self, places: Any) -> Any:
            a, b, t = self.s[:, 0] ** 2, self.s[:, 1] ** 2, self.turn
            q = es.functional.stack([a + t * t * b, t * b, b], 1)
            return splat(self.m, q, self.o, self.c, places, places)

    scene = Scene(250)
    step = es.TrainStep(scene, lambda y, t: ((y - t) ** 2).mean(), es.optim.Adam(lr=0.02))
    step.optimizer = es.optim.Groups(es.optim.Adam(lr=0.02), places=es.optim.Group("m", lr=0.3))
    first = scene(places)
    for _ in range(600):
        step(places, target)
    for ax, picture in zip(axes, (target, first, scene(places)), strict=True):
        ax.imshow(np.clip(picture, 0, 1))


def draw_flow(axes: Any) -> None:
    piece = SHOWPIECES["Sinkhorn"]
    cost: Any = piece.operator(next(iter(piece.sizes.values())))
    rng = default_rng(0)
    turn = rng.random(400) * 2 * np.pi
    y = np.stack([np.cos(turn), np.sin(turn)], 1) * (1 + 0.05 * rng.standard_normal((400, 1)))
    x = 0.25 * rng.standard_normal((400, 2))
    slope = es.jit(es.grad(lambda x: cost(x, y)))
    own = es.jit(es.grad(lambda x: cost(x, x)))
    shown = [x]
    for n in range(60):
        x = x - 60 * (slope(x) - own(x) / 2)
        shown += [x] if n in (4, 59) else []
    for ax, points in zip(axes, shown, strict=True):
        ax.scatter(*y.T, s=2, color="silver")
        ax.scatter(*points.T, s=2, color="crimson")
        ax.set_aspect("equal")
        ax.set_xlim(-1.4, 1.4)
        ax.set_ylim(-1.4, 1.4)


DRAWN: dict[str, tuple[Callable[[Any], None], str]] = {
    "wave equation": (draw_wave, "The field after 100, 170 and 240 steps; waves are faster below the line."),
    "2-D Gaussian splatting": (draw_splats, "A picture, 250 Gaussians at random, and after 600 steps of Adam."),
    "Sinkhorn": (draw_flow, "Points that descend the divergence to a circle: at first, after 5 and after 60 steps."),
}
"""What is drawn of an operator, and a caption."""
PANELS = 3


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
        figure, axes = pyplot.subplots(1, PANELS, figsize=(3 * PANELS, 3))
        draw(axes)
        for ax in axes:
            ax.set_xticks([])
            ax.set_yticks([])
        figure.tight_layout()
        figure.savefig(path, dpi=75, metadata={"Software": None})
        pyplot.close(figure)
