"""Choose which program of a training step is explored."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from einsmith.driver.executable import Executable
from einsmith.tuning.programs.online import Exploration


class Explorer:
    """Explorer of the programs of a training step, one at a time: two would compete for processors."""

    def __init__(self) -> None:
        self._current: weakref.ref[Exploration] | None = None

    def begin(
        self, run: Executable, threads: int, seconds: float, programs: Sequence[Executable]
    ) -> Exploration | None:
        """Begin to explore a program; return None where another one of `programs` (all of the step) is being explored.

        threads: worker threads of the program; seconds: time limit."""
        current = None if self._current is None else self._current()
        if current is not None and not current.over:
            if any(other is current.run for other in programs):
                return None
            current.end("its program is no longer used")
        exploration = Exploration(run, run.backend.workshop(run.target, threads), seconds)
        self._current = weakref.ref(exploration)
        return exploration
