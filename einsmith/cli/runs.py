"""Train with progress, saves, interrupts between steps and a loss curve, for the commands that train."""

from __future__ import annotations

import json
import math
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Self

import click
import numpy as np

from einsmith import nn, optim
from einsmith.base import files
from einsmith.base.errors import SaveError
from einsmith.cli.progress import TrainProgress
from einsmith.data import Batches, Stream, TokenRows
from einsmith.training import TrainStep

SETTINGS, CURVE = "run.json", "loss.png"
"""Files of a run in its save folder."""
DAMAGED = (OSError, ValueError, KeyError, TypeError, RecursionError)
"""Errors of `SavedRun.read` where the file is missing or damaged."""
REDRAWN = 2.0
"""Least seconds between two drawings of the loss curve; drawing takes 0.1 s, as long as a short epoch."""
_ASKED = 16
"""Batches after which the processes of a group tell each other of Ctrl-C: 0.1 ms each time."""


class Interrupted(Exception):
    """Raised after a step during which Ctrl-C came."""


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Context that yields a function returning whether Ctrl-C came. A second Ctrl-C interrupts at once, as usual."""
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            signal.default_int_handler(number, frame)
        came = True

    try:
        old = signal.signal(signal.SIGINT, note)
    except ValueError:  # only the main thread handles signals
        yield lambda: False
        return
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, old)


def check_writable(target: Path, is_saved: Callable[[Path], bool]) -> None:
    """Make the save folder and check that it can be written, before time is spent on training.

    is_saved: whether a folder that is not empty may be replaced. Raises SaveError."""
    try:
        is_free = not files.exists(target) or (files.is_folder(target) and not any(target.iterdir()))
        if not is_free and not is_saved(target):
            raise SaveError(f"{target} exists and is not a saved run; choose another folder or remove it")
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except SaveError:
        raise
    except OSError as e:
        raise SaveError(f"cannot save to {target}: {e.strerror or e}; choose a folder that can be written") from e


@dataclass(kw_only=True)
class SavedRun:
    """The settings and the history of a run, kept as run.json in its save folder.

    Attributes:
        clip, accumulate, ema, seed, precision: as in TrainStep
        losses: losses of batches
        history: results of epochs
        seconds: time that the run has taken, in all its parts
    """

    WARM_UP: ClassVar[float]
    """Fraction of a run in which the learning rate rises."""

    epochs: int
    lr: float = 0.0
    clip: float | None = None
    accumulate: int = 1
    ema: float | None = None
    seed: int = 0
    precision: str = "fp32"
    losses: list[float] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0

    @classmethod
    def read(cls, file: Path, since: Collection[str] = ()) -> Self:
        """Read the run from a file, in which settings of the names `since` may be missing. Raises DAMAGED."""
        saved = json.loads(files.read_bytes(file))
        return cls(**{f.name: saved[f.name] for f in fields(cls) if f.name in saved or f.name not in since})

    def write(self, file: Path) -> None:
        """Write the run to a file."""
        files.write(file, json.dumps(asdict(self)))

    def check_kept(self, folder: Path, chosen: Mapping[str, Any], options: Mapping[str, str]) -> None:
        """Raise click's error where a resumed run would change a setting. options: names of command-line options, where
        they are not those of the settings."""
        for name, value in chosen.items():
            if value != getattr(self, name):
                raise click.BadParameter(
                    f"the run in {folder} has {getattr(self, name)!r}; a resumed run keeps its settings",
                    param_hint=f"--{options.get(name, name)}",
                )

    def new_step(self, model: nn.Module, loss: Callable, optimizer: Any, **settings: Any) -> TrainStep:
        """Return a training step with the run's settings and others."""
        return TrainStep(
            model,
            loss,
            optimizer,
            seed=self.seed,
            clip_grad_norm=self.clip,
            accumulate=self.accumulate,
            ema=self.ema,
            precision=self.precision,
            **settings,
        )

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of step number `step` (from 0) of `steps`.

        It rises linearly to `lr` over the fraction WARM_UP of the steps, and ends at a hundredth."""
        done = min((step + 1) / max(1, steps), 1.0)
        if done < self.WARM_UP:
            return self.lr * done / self.WARM_UP
        fall = 0.5 * (1 + math.cos(math.pi * (done - self.WARM_UP) / (1 - self.WARM_UP)))
        return self.lr * (0.01 + 0.99 * fall)

    def save(self, step: TrainStep, target: Path) -> None:
        """Replace the save folder by weights, state, settings and history as they are now, as a whole."""
        raise NotImplementedError


@dataclass
class TrainingRun:
    """A run under way.

    Attributes:
        run: settings and history, which grows
        step: what is trained
        train: batches to train on
        test: batches of the evaluation, None for none
        target: save folder, None for none
        progress: shows steps and epochs
        title: title of the loss curve
        samples: samples of a batch, for the speed that is shown
        metric: name of the metric of an evaluation
        folder: folder within the save folder that has the loss curve
    """

    run: SavedRun
    step: TrainStep
    train: Batches | Stream
    test: Batches | Stream | None
    target: Path | None
    progress: TrainProgress
    title: str
    samples: int
    metric: str = "perplexity"
    folder: str = ""

    def finish(self, command: str) -> None:
        """Train the rest of the run, with an evaluation, a save and a loss curve after every epoch.

        command: continues the run, for the message of click's exception after Ctrl-C, which is raised when all is
        saved."""
        run, step, target = self.run, self.step, self.target
        began, self._drawn = time.perf_counter() - run.seconds, -math.inf
        if step.epoch >= run.epochs:
            self.progress.say(f"the saved run has already trained for its {run.epochs} epochs")
        with self.progress, interrupts() as came:

            def on_step(step: TrainStep, loss: float) -> None:
                run.seconds = time.perf_counter() - began
                self._count(loss)
                if self._comes_anywhere(came()):
                    raise Interrupted

            def on_epoch(step: TrainStep, loss: float) -> None:
                row = self._evaluate(loss)
                run.seconds = row["seconds"] = time.perf_counter() - began
                self._end_epoch(row)

            try:
                self._set_rates()
                step.fit(self.train, epochs=run.epochs, progress=False, on_step=on_step, on_epoch=on_epoch)
            except Interrupted:
                if target is None:
                    raise click.ClickException("interrupted; nothing is saved, since --save was not given") from None
                run.save(step, target)
                if step.group.rank == 0:
                    self.draw()
                step.group.barrier()
                raise click.ClickException(f"interrupted after step {step.steps}; continue with: {command}") from None

    def _count(self, loss: float) -> None:
        """Count a step with its loss."""
        run, step, length = self.run, self.step, len(self.train)
        del run.losses[step.epoch * length + step.position - 1 :]
        run.losses.append(loss)
        self.progress.step(step.epoch, run.epochs, step.position, length, loss, self.samples)
        self._set_rates()

    def _set_rates(self) -> None:
        """Set every rule's learning rate for the next update; AdamW for a matrix optimizer's rest gets a tenth."""
        run = self.run
        rate = run.rate(self.step.steps, run.epochs * -(-len(self.train) // run.accumulate))
        for group, rule in self.step.optimizer.rules.items():
            rule.lr = rate / 10 if group == optim.REST else rate

    def _comes_anywhere(self, came: bool) -> bool:
        """Return whether Ctrl-C came: where a group of processes trains, to any of them, of which each learns at the
        same step."""
        step, group, length = self.step, self.step.group, len(self.train)
        if group.size == 1:
            return came
        is_asked = (step.epoch * length + step.position) % _ASKED == 0 or step.position == length
        return is_asked and group.all_reduce(int(came)) > 0

    def _evaluate(self, loss: float) -> dict[str, float]:
        """Return the results of an epoch. loss: its mean over the batches that this process trained."""
        run, step, train = self.run, self.step, self.train
        if not step.runner.is_parallel:  # with the batches before a resume
            losses = run.losses[(step.epoch - 1) * len(train) : step.epoch * len(train)]
            weights = [train.size] * (len(train) - 1) + [train.samples - train.size * (len(train) - 1)]
            if isinstance(train, TokenRows):
                weights = train.labels_of(step.epoch - 1)
            loss = float(np.average(losses, weights=weights))
        row = {"epoch": step.epoch, "loss": loss}
        if self.test is not None:
            result = step.evaluate(self.test, averaged=run.ema is not None)
            row["test_loss"] = result["loss"]
            if self.metric == "perplexity":
                row["perplexity"] = math.exp(min(result["loss"], 700.0))  # a larger one has no float
            elif self.metric in result:
                row[self.metric] = result[self.metric]
        return row

    def _end_epoch(self, row: dict[str, float]) -> None:
        run, step = self.run, self.step
        run.history = [h for h in run.history if h["epoch"] < step.epoch] + [row]
        self.progress.epoch(row, run.epochs)
        if self.target is not None:
            run.save(step, self.target)
            is_due = step.epoch >= run.epochs or time.perf_counter() - self._drawn > REDRAWN
            if is_due and step.writes:
                self.draw()
                self._drawn = time.perf_counter()

    def draw(self) -> None:
        """Draw the loss curve; a failure is only reported, as the save is valid without it."""
        from einsmith.cli.curve import draw

        assert self.target is not None
        try:
            evaluated = [h for h in self.run.history if "test_loss" in h]
            draw(self.run.losses, evaluated, self.target / self.folder / CURVE, self.title)
        except Exception as e:
            self.progress.say(f"saved, but the loss curve cannot be drawn: {type(e).__name__}: {e}")
