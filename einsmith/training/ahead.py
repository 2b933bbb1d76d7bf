"""Begin steps of an epoch before the ones before them have ended, where a device computes meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from einsmith.base.errors import EinsmithError, NonFiniteError
from einsmith.driver.executable import FINITE, Executable
from einsmith.training.accumulation import Accumulation
from einsmith.training.counts import CountGroup
from einsmith.training.definition import StepDefinition
from einsmith.training.epochs import Epochs
from einsmith.training.numbers import StepNumbers
from einsmith.training.reports import Reports

Ending = Callable[[], tuple[int, list[np.ndarray]]]
"""Function that waits for the end of a run and returns its status and outputs."""


class _Begun(NamedTuple):
    """A step that has begun: how its run ends, its samples, and the counts from before it began."""

    end: Ending
    samples: int
    accumulation: Accumulation
    updates: list[tuple[CountGroup, int]]


class StepsAhead:
    """The steps that have begun and not ended, in order. They count as updates from their beginning on. A step whose
    loss is not finite, or whose index is out of range, has changed nothing; nor have the ones that had begun after it,
    which then count for nothing either.

    The arguments are parts of the step.
    """

    def __init__(
        self,
        definition: StepDefinition,
        accumulation: Accumulation,
        epochs: Epochs,
        numbers: StepNumbers,
        reports: Reports,
    ):
        self._definition = definition
        self._accumulation, self._epochs, self._numbers, self._reports = accumulation, epochs, numbers, reports
        self._begun: deque[_Begun] = deque()
        self._failure: BaseException | None = None
        self.loss = float("nan")
        """The loss of the last step that has ended."""

    def begin(self, run: Executable, arrays: list[np.ndarray], samples: int, most: int) -> bool:
        """Begin a step, after the end of as many as are needed for at most `most` to be under way. Return whether the
        program could. The caller holds the guard and defers signals."""
        self.end(most - 1)
        self.raise_failure()
        groups: Sequence[CountGroup] = run.note.groups
        before = _Begun(_no_end, samples, replace(self._accumulation), [(g, g.updates) for g in groups])
        self._numbers.set(arrays)
        end = run.begin_locked(arrays)
        if end is None:
            return False
        self._begun.append(before._replace(end=end))
        self._accumulation.end_update(groups)
        return True

    def end(self, most: int = 0) -> None:
        """Wait until at most `most` steps are under way. An error is kept for `raise_failure`. The caller holds the
        guard and defers signals."""
        while len(self._begun) > most:
            step = self._begun.popleft()
            try:
                status, outputs = step.end()
                value = float(outputs[0])
                if status == FINITE:
                    raise non_finite(value, step.accumulation.steps + 1)
            except BaseException as e:
                self._failure = self._failure or e
                self._take_back(step)
                return
            if self._reports.names:
                self._reports.read(outputs, self._definition.settings.clip_grad_norm is not None)
            self.loss = value
            self._epochs.add(value, step.samples, self._reports.losses)

    def _take_back(self, failed: _Begun) -> None:
        """Wait for the steps after one that has failed, and restore the counts from before it."""
        for step in self._begun:
            with suppress(EinsmithError):  # it fails as the first did
                step.end()
        self._begun.clear()
        for name, value in vars(failed.accumulation).items():
            setattr(self._accumulation, name, value)
        for group, updates in failed.updates:
            group.updates = updates

    def raise_failure(self) -> None:
        """Raise the error of a step that has failed, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def non_finite(value: float, number: int) -> NonFiniteError:
    """Return the error of a step, of which `value` is the loss, and whose loss or gradients are not finite."""
    what = f"the loss of step {number} is {value}"
    if np.isfinite(value):
        what = f"the gradients of step {number}, whose loss is {value}, are not finite in float16"
    return NonFiniteError(f"{what}; nothing was updated. Lower the learning rate, or look at the batch", number, value)


def _no_end() -> tuple[int, list[np.ndarray]]:
    raise RuntimeError("the step has not begun")
