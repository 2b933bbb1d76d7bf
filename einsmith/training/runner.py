"""Run training steps in one process, also before the ones before them have ended, where a device computes meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from einsmith.base import environment, locks
from einsmith.base.errors import EinsmithError, NonFiniteError
from einsmith.driver.bound_program import BoundProgram
from einsmith.runtime.signals import Deferred
from einsmith.runtime.steps import FINITE
from einsmith.training.compiler import StepCompiler
from einsmith.training.state import Accumulation, CountGroup, StepParts

AHEAD = 2
"""Most steps of `fit` that are under way at once on a device: one computes while the next one's batch is copied."""

Ending = Callable[[], tuple[int, list[np.ndarray]]]
"""Function that waits for the end of a run and returns its status and outputs."""


class StepRunner:
    """What runs the programs of a training step: in this process alone, or in one of a group."""

    is_parallel = False
    """Whether gradients are summed over parts of a batch: in a group of several processes, or deterministically."""
    runs_ahead = False
    """Whether `begin` may begin a step before the one before it has ended: a device computes meanwhile."""

    def __init__(self, parts: StepParts, compiler: StepCompiler):
        self._parts, self._compiler = parts, compiler
        self._checked: set[tuple] = set()
        """Shapes of batches, with versions of the programs, for which gradients have been checked."""

    def compile(self, arrays: list[np.ndarray]) -> None:
        """Compile the programs for a batch."""
        raise NotImplementedError

    def train(self, arrays: list[np.ndarray], samples: int | None = None, last: bool = False) -> float:
        """Train on a batch and return its loss.

        samples: size of the batch where it belongs to an epoch of `fit`, else None; last: whether this batch makes the
        update, however many were gathered."""
        raise NotImplementedError

    def begin(self, arrays: list[np.ndarray], samples: int, last: bool = False) -> float:
        """Train on a batch of an epoch; `settle` waits for its end. Return the last loss that is known."""
        return self.train(arrays, samples, last)

    def settle(self) -> None:
        """Wait until all steps that have begun have ended. Raises the error of one that has failed."""

    def join(self) -> None:
        """Check that all processes of the group train the same, and give them the weights of rank 0."""

    def check_agreement(self) -> None:
        """Check that all processes of the group have one model, optimizer, settings and seed. Raises GroupError, on all
        of them, which names the difference."""

    def share(self) -> None:
        """Give all processes the buffers of rank 0, such as running statistics."""

    def gather_state(self, kind: str | None = None) -> dict[str, np.ndarray]:
        """Return the state that is divided among the processes as a whole, by `parameter/state`. All of them call it.

        kind: the state to gather; all by default."""
        return {}

    def describe(self) -> str:
        """Describe what the processes exchange; "" where there is one."""
        return ""

    def check_gradients(self, arrays: list[np.ndarray]) -> None:
        """Compare the gradients of a batch's loss with central differences, before the first step of its program, where
        EINSMITH_CHECK asks for it."""
        if not environment.checks_gradients():
            return
        with locks.IMPORTING:
            from einsmith.training.gradient_check import check_gradients  # imported late: few steps are checked

        with self._parts.state.store.guard:
            self._compiler.compare_if_changed()
            key = tuple((a.shape, a.dtype.str) for a in arrays), self._compiler.version
            if key not in self._checked:
                self._parts.set_numbers(arrays)
                check_gradients(self._parts, arrays, self._parts.accumulation.steps + 1)
                self._checked.add(key)


class _Begun(NamedTuple):
    """A step that has begun: how its run ends, its samples, and the counts from before it began."""

    end: Ending
    samples: int
    accumulation: Accumulation
    updates: list[tuple[CountGroup, int]]


class SingleRunner(StepRunner):
    """What runs the programs of a training step in this process alone.

    Steps that have begun and not ended count as updates from their beginning on. A step whose loss is not finite, or
    whose index is out of range, has changed nothing; nor have the ones that had begun after it, which then count for
    nothing either."""

    def __init__(self, parts: StepParts, compiler: StepCompiler):
        super().__init__(parts, compiler)
        self._begun: deque[_Begun] = deque()
        self._failure: BaseException | None = None
        self._loss = float("nan")
        """The loss of the last step that has ended, of those that `begin` began."""

    def compile(self, arrays: list[np.ndarray]) -> None:
        for gather in (False, True)[: 1 + (self._parts.definition.updates.accumulate > 1)]:
            self._compiler.find_or_compile(arrays, gather)

    def train(self, arrays: list[np.ndarray], samples: int | None = None, last: bool = False) -> float:
        parts = self._parts
        while True:
            # A signal during native code is handled when that ends: weights and counters change together. A signal
            # while the guard is taken or released must not leave it held.
            with Deferred(), parts.state.store.guard:
                # The choice of the program and the step are one critical section: other threads gather batches, too.
                gather = parts.accumulation.batches + 1 < parts.definition.updates.accumulate and not last
                run = self._compiler.find(arrays, gather)
                if run is not None:
                    return self._train(run, arrays, samples, gather)
            self.check_gradients(arrays)
            self._compiler.compile(arrays, gather)

    def _train(self, run: BoundProgram, arrays: list[np.ndarray], samples: int | None, gather: bool) -> float:
        """Run a step's program and count the step. The caller holds the guard and defers signals.

        Where only the gradients of float16 are not finite, the program runs again with a smaller scale of the loss."""
        parts, numbers = self._parts, self._parts.numbers
        groups = run.note.groups
        while True:
            parts.set_numbers(arrays)
            status, outputs = run.run_locked(arrays)
            value = float(outputs[0])
            if status != FINITE or not np.isfinite(value) or not numbers.scaling.shrink():
                break
        if status == FINITE:
            raise non_finite(value, parts.accumulation.steps + 1)
        if "loss_scale" in numbers.derived:
            numbers.scaling.count()
        if parts.reports.names:
            parts.reports.read(outputs, parts.definition.updates.clip_grad_norm is not None)
        if gather:
            parts.accumulation.add(parts.definition.count_samples(arrays))
        else:
            parts.accumulation.end_update(groups)
        if samples is not None:
            parts.epochs.add(value, samples, parts.reports.losses)
        return value

    # -- steps ahead

    @property
    def runs_ahead(self) -> bool:  # type: ignore[override]
        """True if a program's next run may begin before the previous one has ended."""
        able = self._parts.definition.updates.accumulate == 1 and not environment.checks_gradients()
        return able and self._compiler.backend.overlaps

    def begin(self, arrays: list[np.ndarray], samples: int, last: bool = False) -> float:
        with Deferred(), self._parts.state.store.guard:
            run = self._compiler.find(arrays, False)
            ahead = "loss_scale" not in self._parts.numbers.derived
            if run is not None and ahead and self._begin(run, arrays, samples):
                return self._loss
        self.settle()
        return self.train(arrays, samples)

    def _begin(self, run: BoundProgram, arrays: list[np.ndarray], samples: int) -> bool:
        """Begin a step, after the end of as many as are needed for at most AHEAD to be under way. Return whether the
        program could. The caller holds the guard and defers signals."""
        self._end(AHEAD - 1)
        self._raise_failure()
        groups: Sequence[CountGroup] = run.note.groups
        counts = replace(self._parts.accumulation), [(g, g.updates) for g in groups]
        self._parts.set_numbers(arrays)
        end = run.begin_locked(arrays)
        if end is None:
            return False
        self._begun.append(_Begun(end, samples, *counts))
        self._parts.accumulation.end_update(groups)
        return True

    def settle(self) -> None:
        with Deferred(), self._parts.state.store.guard:
            self._end()
        self._raise_failure()

    def _end(self, most: int = 0) -> None:
        """Wait until at most `most` steps are under way. An error is kept for `_raise_failure`. The caller holds the
        guard and defers signals."""
        parts = self._parts
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
            if parts.reports.names:
                parts.reports.read(outputs, parts.definition.updates.clip_grad_norm is not None)
            self._loss = value
            parts.epochs.add(value, step.samples, parts.reports.losses)

    def _take_back(self, failed: _Begun) -> None:
        """Wait for the steps after one that has failed, and restore the counts from before it."""
        for step in self._begun:
            with suppress(EinsmithError):  # it fails as the first did
                step.end()
        self._begun.clear()
        for name, value in vars(failed.accumulation).items():
            setattr(self._parts.accumulation, name, value)
        for group, updates in failed.updates:
            group.updates = updates

    def _raise_failure(self) -> None:
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
