"""Search for faster kernels and graphs of a training step's programs, within the given seconds."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from math import inf

import numpy as np

from einsmith.base import environment
from einsmith.base.errors import EinsmithWarning
from einsmith.base.system.processes import can_wait_for_pipes
from einsmith.cost.facts import Target
from einsmith.driver.bound_program import BoundProgram
from einsmith.training.progress import SearchProgress
from einsmith.training.settings import TuningSettings
from einsmith.tuning.programs import graph_search, kernel_search
from einsmith.tuning.programs.explorer import Explorer
from einsmith.tuning.programs.online import Exploration


class ProgramSearch:
    """The search for faster programs of a training step: before their first step, or while they train.

    settings: how programs that are compiled from now on are tuned; the seconds are for all programs together."""

    def __init__(self, settings: TuningSettings):
        self.settings = settings
        self._spent_seconds = self._spent_graph_seconds = 0.0
        self._explorer = Explorer()

    @property
    def remaining_seconds(self) -> float:
        """Seconds left to search kernels."""
        return kernel_search.parse_tune(self.settings.tune)[0] - self._spent_seconds

    def can_tune(self) -> bool:
        """Return whether the next program is to be tuned. Warns where EINSMITH_CHECK or the system forbids it."""
        if self.settings.mode == "static" and self.remaining_seconds < 1:
            return False
        if environment.check_level():
            warnings.warn("programs are not tuned while EINSMITH_CHECK is set; unset it to tune", EinsmithWarning, 3)
            return False
        if not can_wait_for_pipes():
            warnings.warn("programs are not tuned on Windows: no other process can measure kernels", EinsmithWarning, 3)
            return False
        return True

    def preparing(
        self, target: Target | None, threads: int, programs: Sequence[BoundProgram]
    ) -> AbstractContextManager[None]:
        """Return a block in which a program is compiled that is explored in dynamic mode. target: what it is compiled
        for."""
        return self._explorer.preparing(target, threads, programs) if self.settings.mode == "dynamic" else nullcontext()

    def explore(self, run: BoundProgram, threads: int, programs: Sequence[BoundProgram]) -> Exploration | None:
        """Begin to explore a program while it trains; return None where another one of `programs` is being explored."""
        return self._explorer.begin(run, threads, self.remaining_seconds or inf, programs)

    def search(self, run: BoundProgram, arrays: list[np.ndarray]) -> BoundProgram:
        """Search for faster graphs and kernels in the time that is left, and return the resulting program.

        The numbers that its runs of this batch read are set before."""
        graph_seconds = kernel_search.parse_tune(self.settings.tune)[1] - self._spent_graph_seconds
        run, remaining = graph_search.tune_graph(run, arrays, graph_seconds)
        self._spent_graph_seconds += graph_seconds - remaining
        seconds = self.remaining_seconds
        with SearchProgress(seconds, kernel_search.predict_seconds(run)) as progress:
            report = kernel_search.tune(run, arrays, seconds, progress, self.settings.executor)
        self._spent_seconds += report.seconds
        return report.run
