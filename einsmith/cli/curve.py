"""Draw the loss curve of a run as a PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from einsmith.base import files
from einsmith.cli.progress import metric_text


def draw(losses: Sequence[float], history: Sequence[dict[str, float]], path: Path, title: str) -> None:
    """Write a PNG with the loss of every step, its running mean, and the epochs' test loss and metric to `path`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120)  # laid out by default margins: to find them it would be drawn twice
    axes = figure.subplots()
    steps = np.arange(1, len(losses) + 1)
    axes.plot(steps, losses, color="#b8c4d6", linewidth=0.6, label="loss of a step")
    axes.plot(steps, running_mean(losses), color="#27408b", linewidth=1.4, label="running mean")
    if history:
        # Epochs are of one length, and the last one ends at the last step of its own.
        length = len(losses) / max(h["epoch"] for h in history) if losses else 1
        ends = [h["epoch"] * length for h in history]
        axes.plot(ends, [h["test_loss"] for h in history], "o", color="#c0392b", markersize=4, label="test loss")
        for x, h in zip(ends, history, strict=True):
            if metric_text(h):
                axes.annotate(
                    metric_text(h).removeprefix("accuracy "),
                    (x, h["test_loss"]),
                    xytext=(0, 6),
                    textcoords="offset points",
                    ha="right",
                    fontsize=7,
                    color="#c0392b",
                )
    axes.set(xlabel="step", ylabel="loss", title=title, yscale="log")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    files.write(path, picture.getvalue())


def running_mean(values: Sequence[float], weight: float = 0.05) -> np.ndarray:
    """Return the exponential running mean of values; the first 1/weight values are averaged equally."""
    out = np.empty(len(values))
    mean = 0.0
    for n, v in enumerate(values):
        mean += (v - mean) * max(weight, 1 / (n + 1))
        out[n] = mean
    return out
