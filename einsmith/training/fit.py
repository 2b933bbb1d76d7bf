"""Loop over epochs and batches of a training, and report them to callbacks, history and progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from einsmith.base.arguments import Shown
from einsmith.base.errors import ArgumentError, DataError, EinsmithError, ShapeError
from einsmith.training.evaluate import as_metrics, as_tuple
from einsmith.training.progress import Progress
from einsmith.training.state import Epochs

if TYPE_CHECKING:
    from einsmith.training.step import TrainStep


class Callback(Shown):
    """A callback of `fit`: base class of `es.callbacks` and of a user's own. No method has to be overridden."""

    def on_begin(self, step: TrainStep) -> bool | None:
        """Act before the first batch of a call of `fit`; return true to train nothing."""

    def on_step(self, step: TrainStep, loss: float) -> None:
        """Act after each batch with its loss."""

    def on_epoch(self, step: TrainStep, row: Mapping[str, Any]) -> bool | None:
        """Act after each epoch with its results, the last row of `step.history`; return true to end the training."""

    def on_end(self, step: TrainStep) -> None:
        """Act at the end of a call of `fit`, also after an error."""


@dataclass
class Fit:
    """One call of `TrainStep.fit`, with its arguments."""

    step: TrainStep
    batches: Iterable
    epochs: int = 1
    progress: bool | None = None
    on_step: Callable[[Any, float], None] | None = None
    on_epoch: Callable[[Any, float], None] | None = None
    validation: Iterable | None = None
    metrics: Mapping[str, Any] | None = None
    callbacks: Sequence[Any] = ()

    def run(self) -> list[float]:
        """Train and return the mean loss of each epoch."""
        self._check()
        history: list[float] = []
        step, epochs = self.step, self.step.parts.epochs
        report = Progress(self.progress if step.group.rank == 0 else False)
        # Only what a callback defines is called after each batch.
        step_callbacks = [c.on_step for c in self.callbacks if type(c).on_step is not Callback.on_step]
        if self.on_step is not None:
            step_callbacks.insert(0, self.on_step)
        try:
            stop = self._any([c.on_begin(step) for c in self.callbacks])
            while epochs.epoch < self.epochs and not stop:
                start = time.perf_counter()
                self._epoch(report, step_callbacks, start)
                row = self._row(time.perf_counter() - start)
                self._validate(row)  # an interruption here leaves the epoch unfinished
                with step.store.guard:  # a save by another thread has all of this or none
                    epochs.end_epoch(row, _generator_state(self.batches))
                history.append(row["loss"])
                report.epoch(epochs.epoch, self.epochs, row)
                if self.on_epoch is not None:
                    self.on_epoch(step, row["loss"])
                stop = self._any([c.on_epoch(step, row) for c in self.callbacks])
        finally:
            report.close()
            for c in self.callbacks:
                c.on_end(step)
        return history

    def _any(self, answers: Sequence[Any]) -> bool:
        """Return whether any callback, of any process of the group, ends the training."""
        return self.step.group.all_reduce(int(any(answers))) > 0

    def _check(self) -> None:
        if self.epochs < 0:
            raise ArgumentError(f"epochs={self.epochs!r} must be an integer of at least 0")
        for c in self.callbacks:
            if not isinstance(c, Callback):
                raise ArgumentError(
                    f"the callback {c!r} is not an es.callbacks.Callback; derive its class from Callback"
                )
        if self.metrics and self.validation is None:
            raise ArgumentError("metrics= needs validation data; pass validation=, or pass the metrics to `evaluate`")
        as_metrics(self.metrics or {})
        self.step.runner.check_agreement()
        length = len(self.batches) if isinstance(self.batches, Sized) else None
        self.step.group.agree("the number of batches", length)

    def _epoch(self, report: Progress, step_callbacks: Sequence[Callable], start: float) -> None:
        """Train on the rest of the step's current epoch."""
        step, epochs = self.step, self.step.parts.epochs
        samples_before = epochs.samples
        shared = step.group.size > 1
        length = len(self.batches) if isinstance(self.batches, Sized) else None
        look_ahead = step.accumulate > 1
        runner = step.runner
        train = runner.begin if not step_callbacks and runner.runs_ahead else runner.train
        try:
            for item in _mark_last(self._batches()) if look_ahead else self._batches():
                batch, last = item if look_ahead else (item, False)
                arrays = step.read_batch(as_tuple(batch), shared)
                samples = step.parts.definition.count_samples(arrays)
                value = train(arrays, samples, last)
                rate = (epochs.samples - samples_before) / (time.perf_counter() - start)
                mean = epochs.loss / max(epochs.samples, 1)  # none is reported before the first update of a group
                report.step(epochs.epoch, self.epochs, epochs.position, length, mean, rate)
                for f in step_callbacks:
                    f(step, value)
        finally:
            runner.settle()
        if not epochs.position:
            once = isinstance(self.batches, Iterator) and epochs.epoch
            hint = "; an iterator yields its batches only once: pass a list, or es.data.batches" if once else ""
            raise ShapeError(f"the batches are empty in epoch {epochs.epoch + 1}{hint}")

    def _batches(self) -> Iterator[Any]:
        """Yield the batches of the step's current epoch, from its position on. Raises DataError where they raise."""
        epochs, batches = self.step.parts.epochs, self.batches
        epoch, start = epochs.epoch, epochs.position
        try:
            if hasattr(batches, "epoch"):
                yield from batches.epoch(epoch, start=start)
                return
            _set_epoch(batches, epochs)
            if isinstance(batches, Iterator):
                if epochs.source is None or epochs.source.batches is not batches:
                    epochs.source = _Source(batches)
                yield from epochs.source.yield_remaining(epochs)
                return
            for i, batch in enumerate(batches):
                if i >= start:
                    yield batch
        except EinsmithError:
            raise
        except Exception as e:
            lines = [line.strip() for line in str(e).splitlines() if line.strip()]
            message = " ... ".join(dict.fromkeys((*lines[:1], *lines[-1:]))) or "no message"
            raise DataError(
                f"the batches raised {type(e).__name__} in epoch {epoch + 1}, after batch {epochs.position}: "
                f"{message}\nNothing is lost: another call of fit continues after that batch"
            ) from e

    def _row(self, seconds: float) -> dict[str, Any]:
        """Return the row of `history` of the epoch that has just ended, without validation. seconds: its duration."""
        step, epochs = self.step, self.step.parts.epochs
        n = max(epochs.samples, 1)
        row: dict[str, Any] = {"epoch": epochs.epoch + 1, "steps": step.steps, "loss": epochs.loss / n}
        row |= {name: total / n for name, total in epochs.losses.items()}
        row |= {n: v for n, v in step.optimizer.values(max(step.steps, 1)).items() if n.split("/")[-1] == "lr"}
        return row | {"seconds": seconds}

    def _validate(self, row: dict[str, Any]) -> None:
        step = self.step
        if self.validation is not None:
            results = step.evaluate(self.validation, metrics=self.metrics, averaged=step.ema is not None)
            row |= {f"val_{name}": value for name, value in results.items()}
        schedules = {id(v): v for rule in step.optimizer.rules.values() for v in rule.hyper.values()}
        for schedule in schedules.values():
            if hasattr(schedule, "observe"):
                schedule.observe(row)


class _Source:
    """The batches of one epoch of an iterator, which yields each batch once.

    Batches that were drawn but not trained on when `fit` was interrupted are kept for the next call."""

    def __init__(self, batches: Iterator[Any]):
        self.batches = batches
        self._pending: dict[int, Any] = {}
        self._drawn = 0
        self._failed = False

    def yield_remaining(self, epochs: Epochs) -> Iterator[Any]:
        """Yield the batches from the position in the epoch on. Raises DataError where the iterator has ended after an
        error, as a generator does."""
        number, none = epochs.position, object()
        while True:
            while self._drawn <= number:
                failed, self._failed = self._failed, True
                batch = next(self.batches, none)
                if batch is none and failed:
                    raise DataError("the iterator has raised an error and yields no more batches; pass a new one")
                self._failed = False
                if batch is none:
                    return
                self._pending[self._drawn] = batch
                self._drawn += 1
                for k in [k for k in self._pending if k < epochs.position]:
                    del self._pending[k]
            yield self._pending[number]
            number += 1


def _mark_last(batches: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
    """Yield (batch, whether it is the last)."""
    none = object()
    batch = next(batches, none)
    while batch is not none:
        after = next(batches, none)
        yield batch, after is none
        batch = after


def _generator_state(batches: Any) -> str | None:
    """Return the state, in hexadecimal, of the random generator that a torch DataLoader has for its order, or None."""
    generator: Any = getattr(batches, "generator", None)
    return np.asarray(generator.get_state()).tobytes().hex() if hasattr(generator, "get_state") else None


def _set_epoch(batches: Any, epochs: Epochs) -> None:
    """Set a torch DataLoader to the order of the current epoch."""
    if hasattr(getattr(batches, "sampler", None), "set_epoch"):
        batches.sampler.set_epoch(epochs.epoch)
    state = _generator_state(batches)
    if state is None:
        return
    if epochs.loader_state is not None and epochs.loader_state != state and len(epochs.loader_state) == len(state):
        memory = batches.generator.get_state()
        np.asarray(memory)[...] = np.frombuffer(bytes.fromhex(epochs.loader_state), np.uint8)
        batches.generator.set_state(memory)
    epochs.loader_state = _generator_state(batches)
