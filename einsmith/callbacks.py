"""Callbacks that `fit` calls at steps and epochs: saving, early stopping, logging; subclass Callback to add one.

Their only state is `step.history`, which is saved: a training that is resumed is logged and stopped like one that was
never interrupted.
"""

from __future__ import annotations

import csv
import importlib
import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from einsmith.base import files, locks
from einsmith.base.arguments import Count, Magnitude, check_arguments
from einsmith.base.errors import ArgumentError, SaveError
from einsmith.training import TrainStep, checkpoint
from einsmith.training.fit import Callback


def _mode(mode: str) -> str:
    if mode not in ("min", "max"):
        raise ArgumentError(f"mode={mode!r} is neither 'min' nor 'max'")
    return mode


def _values(history: Sequence[Mapping[str, Any]], monitor: str, mode: str) -> list[float]:
    """Return an epoch metric's history, negated unless mode is "min" so that less is better. Raises ArgumentError where
    the last epoch has no metric of this name."""
    if history and monitor not in history[-1]:
        raise ArgumentError(
            f"monitor={monitor!r} is none of the results of an epoch, {', '.join(history[-1])}; pass validation= to "
            "fit, or another monitor="
        )
    values = [float(row.get(monitor, float("nan"))) for row in history]
    return values if mode == "min" else [-v for v in values]


class EarlyStopping(Callback):
    """A callback that ends the training once `monitor` has not improved by more than min_delta for `patience` epochs.

    mode: "min" or "max" is better.
    """

    @check_arguments
    def __init__(
        self, monitor: str = "val_loss", *, patience: Count = 3, min_delta: Magnitude = 0.0, mode: str = "min"
    ):
        self.monitor, self.patience, self.min_delta, self.mode = monitor, patience, min_delta, _mode(mode)

    def _over(self, history: Sequence[Mapping[str, Any]]) -> bool:
        best, bad = float("inf"), 0
        for value in _values(history, self.monitor, self.mode):
            better = value < best - self.min_delta
            best, bad = (value, 0) if better else (best, bad + 1)
        return bad >= self.patience

    def on_begin(self, step: TrainStep) -> bool:
        return bool(step.history) and self.monitor in step.history[-1] and self._over(step.history)

    def on_epoch(self, step: TrainStep, row: Mapping[str, Any]) -> bool:
        return self._over(step.history)


class Save(Callback):
    """A callback that saves the step (`es.save`) after every epoch as `folder`/last and, where `monitor` is the best so
    far, as `folder`/best.

    every_steps: also save within epochs, after that many updates.
    """

    @check_arguments
    def __init__(
        self,
        folder: str | os.PathLike,
        *,
        monitor: str | None = None,
        mode: str = "min",
        every_steps: Count | None = None,
    ):
        if monitor is None and _mode(mode) != "min":
            raise ArgumentError(f"mode={mode!r} has no effect without a metric to compare; pass monitor=")
        self.folder, self.monitor, self.mode, self.every_steps = Path(folder), monitor, _mode(mode), every_steps
        self._saved = -1

    def on_begin(self, step: TrainStep) -> None:
        self._saved = step.steps
        try:  # fail now if the place cannot take a save, not after hours of training
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as e:
            raise SaveError(f"cannot save to {self.folder}: {e}; choose a folder that can be written") from e

    def on_step(self, step: TrainStep, loss: float) -> None:
        if self.every_steps is not None and step.steps - self._saved >= self.every_steps:
            self._save(step, "last")

    def on_epoch(self, step: TrainStep, row: Mapping[str, Any]) -> None:
        self._save(step, "last")
        if self.monitor is not None:
            values = _values(step.history, self.monitor, self.mode)
            before = [v for v in values[:-1] if v == v]
            if values[-1] == values[-1] and (not before or values[-1] < min(before)):
                self._save(step, "best")

    def _save(self, step: TrainStep, name: str) -> None:
        checkpoint.save(step, self.folder / name)
        self._saved = step.steps


class CSVLog(Callback):
    """A callback that writes a CSV file with a line for each epoch of `step.history` and a column for each metric."""

    @check_arguments
    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)

    def on_begin(self, step: TrainStep) -> None:
        self._write(step)

    def on_epoch(self, step: TrainStep, row: Mapping[str, Any]) -> None:
        self._write(step)

    def _write(self, step: TrainStep) -> None:
        """Rewrite the whole file: epochs undone by an interruption are dropped, and new names get columns."""
        if not step.writes:
            return
        names = dict.fromkeys(name for row in step.history for name in row)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = io.StringIO(newline="")
            writer = csv.DictWriter(text, names, restval="")
            writer.writeheader()
            writer.writerows(step.history)
            files.write(self.path, text.getvalue())
        except OSError as e:
            raise SaveError(f"cannot write {self.path}: {e}; choose a place that can be written") from e


class TensorBoard(Callback):
    """A callback that writes scalars for TensorBoard: the metrics of each epoch and, every `every_steps` updates, those
    of the step.

    Needs the package tensorboardX or tensorboard. Raises ArgumentError where neither is installed.
    """

    @check_arguments
    def __init__(self, folder: str | os.PathLike, *, every_steps: Count = 50):
        self.folder, self.every_steps = Path(folder), every_steps
        self._make = _writer_class()
        self._writer: Any = None
        self._written = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_writer": None}  # the file belongs to its training

    def on_begin(self, step: TrainStep) -> None:
        self._writer = self._make(str(self.folder)) if step.writes else None
        self._written = step.steps

    def on_step(self, step: TrainStep, loss: float) -> None:
        if self._writer is None or step.steps - self._written < self.every_steps:
            return
        self._written = step.steps
        results = {"loss": loss, **step.losses}
        if step.grad_norm is not None:
            results["grad_norm"] = step.grad_norm
        for name, value in results.items():
            self._writer.add_scalar(f"step/{name}", value, step.steps)

    def on_epoch(self, step: TrainStep, row: Mapping[str, Any]) -> None:
        for name, value in row.items() if self._writer is not None else ():
            if name not in ("epoch", "steps"):
                self._writer.add_scalar(f"epoch/{name}", value, row["epoch"])
        if self._writer is not None:
            self._writer.flush()

    def on_end(self, step: TrainStep) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


def _writer_class() -> Any:
    for module, name in (("tensorboardX", "SummaryWriter"), ("tensorboard.summary", "Writer")):
        try:
            with locks.IMPORTING:
                return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ArgumentError(
        "a log for TensorBoard needs the package tensorboardX or tensorboard, and neither is installed: pip install "
        "tensorboardX"
    )


__all__ = ["CSVLog", "Callback", "EarlyStopping", "Save", "TensorBoard"]
