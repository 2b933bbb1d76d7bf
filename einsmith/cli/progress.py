"""Print the progress of a long command: a bar on a terminal, plain lines elsewhere, JSON lines with --json."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from einsmith.base import messages
from einsmith.base.bars import BAR, TIME_LEFT, Bar


class TrainProgress:
    """Progress of a training run. Epochs go to stdout, as lines or as JSON; a bar goes to stderr if it is a terminal.

    things: the noun for samples; is_shown: whether anything is printed, as by one process of a group.
    """

    def __init__(self, as_json: bool, things: str = "images", is_shown: bool = True):
        self._json, self._things, self._is_shown = as_json, things, is_shown
        self._bar: Bar | None = None
        self._shown = self._began = 0.0
        self._first = -1
        self._loss = 0.0

    def __enter__(self) -> TrainProgress:
        if self._is_shown and messages.is_terminal(sys.stderr):
            text = f"{{task.fields[rate]}} {self._things}/s  loss {{task.fields[loss]}}"
            columns = "epoch {task.fields[epoch]}", BAR, text, TIME_LEFT
            self._bar = Bar(*columns, transient=True, epoch="", rate="", loss="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, line: str) -> None:
        """Print a remark on stderr, so that stdout holds only results."""
        if self._is_shown:
            click.echo(line, err=True)

    def step(self, epoch: int, epochs: int, position: int, length: int, loss: float, batch: int) -> None:
        """Update the bar after a step. The loss shown is a running mean, as losses of single batches vary."""
        done, now = epoch * length + position, time.perf_counter()
        if self._first < 0:
            self._first, self._began, self._loss = done, now, loss
        self._loss += 0.05 * (loss - self._loss)
        if self._bar is None or now - self._shown < 0.1:
            return
        self._shown = now
        rate = self.rate(done, now, batch)
        self._bar.update(
            done,
            total=epochs * length,
            epoch=f"{epoch + 1}/{epochs}",
            rate=f"{rate:,.0f}" if rate else "",
            loss=f"{self._loss:.4f}",
        )

    def rate(self, done: int, now: float, batch: int) -> float:
        """Return the samples per second since the first step, which compiles and does not count."""
        return (done - self._first) * batch / (now - self._began) if done > self._first else 0.0

    def epoch(self, row: dict[str, float], epochs: int) -> None:
        """Print the results of an epoch after its evaluation."""
        if not self._is_shown:
            return
        if self._json:
            click.echo(json.dumps(row))
            return
        metric = metric_text(row)
        metric = f"  {metric}" if metric else ""
        test = f"  test loss {row['test_loss']:.4f}" if "test_loss" in row else ""
        left = row["seconds"] / row["epoch"] * (epochs - row["epoch"])
        line = f"epoch {row['epoch']}/{epochs}  loss {row['loss']:.4f}{test}{metric}  {row['seconds']:.1f} s" + (
            f", {left:.0f} s left" if left else ""
        )
        if self._bar is not None:
            self._bar.say(line)
        else:
            click.echo(line)

    def final(self, row: dict[str, float], run: Any, target: Path | None) -> None:
        """Print the final result of the run. row: results of its last epoch; target: its save folder, if any."""
        if not self._is_shown:
            return
        if self._json:
            name = "perplexity" if "perplexity" in row else "accuracy"
            result = {"loss": row.get("test_loss"), name: row.get(name), "epochs": row.get("epoch", 0)}
            click.echo(json.dumps(result | {"seconds": run.seconds}))
            return
        metric = f"test {metric_text(row)}" if metric_text(row) else "done"
        where = f"; saved in {target}, its loss curve in {target / 'loss.png'}" if target is not None else ""
        click.echo(f"{run.model}: {metric} after {row.get('epoch', 0)} epochs, {run.seconds:.1f} s{where}")


def metric_text(row: Mapping[str, float]) -> str:
    """Format an epoch's accuracy or perplexity; return "" where it has neither."""
    if "accuracy" in row:
        return f"accuracy {100 * row['accuracy']:.2f} %"
    return f"perplexity {row['perplexity']:.2f}" if "perplexity" in row else ""
