"""Choose which program of a training step is explored."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from einsmith.cost.facts import Target
from einsmith.driver import registry
from einsmith.driver.backend import Workshop
from einsmith.driver.executable import Executable
from einsmith.tuning.programs.online import Exploration


class Explorer:
    """Explorer of the programs of a training step, one at a time: two would compete for processors."""

    def __init__(self) -> None:
        self._current: weakref.ref[Exploration] | None = None
        self._prepared: tuple[Workshop, weakref.finalize] | None = None
        """Workshop of the next program to explore, and what closes it if there is none."""

    def prepare(self, target: Target | None, threads: int, programs: Sequence[Executable]) -> None:
        """Begin to start the workshop of a program that is compiled next, so that starting it costs no steps.

        target: what the program is compiled for; threads, programs: as for `begin`."""
        if self._prepared is None and not self._is_exploring(programs):
            backend = registry.DEFAULT if target is None else registry.backend_of(target)
            workshop = backend.workshop(target or backend.target(threads), threads)
            workshop.prepare()
            self._prepared = workshop, weakref.finalize(self, workshop.close)

    def begin(
        self, run: Executable, threads: int, seconds: float, programs: Sequence[Executable]
    ) -> Exploration | None:
        """Begin to explore a program; return None where another one of `programs` (all of the step) is being explored.

        threads: worker threads of the program; seconds: time limit."""
        if self._is_exploring(programs):
            return None
        current = None if self._current is None else self._current()
        if current is not None:
            current.end("its program is no longer used")
        exploration = Exploration(run, self._take_workshop(run, threads), seconds)
        self._current = weakref.ref(exploration)
        return exploration

    def _is_exploring(self, programs: Sequence[Executable]) -> bool:
        """Return whether one of `programs` is being explored."""
        current = None if self._current is None else self._current()
        return current is not None and not current.over and any(run is current.run for run in programs)

    def _take_workshop(self, run: Executable, threads: int) -> Workshop:
        """Return the workshop that was prepared, for a program; a new one where none was."""
        if self._prepared is None:
            return run.backend.workshop(run.target, threads)
        (workshop, closing), self._prepared = self._prepared, None
        closing.detach()
        workshop.target, workshop.threads = run.target, threads
        return workshop
