"""Choose which program of a training step is explored."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from einsmith.driver.executable import Executable
from einsmith.tuning.programs.online import Exploration


class Explorer:
    """Explorer of the programs of a training step, one at a time: two would compete for processors."""

    def __init__(self) -> None:
        self._now: weakref.ref[Exploration] | None = None

    def begin(
        self, run: Executable, threads: int, seconds: float, programs: Sequence[Executable]
    ) -> Exploration | None:
        """Begin to explore a program; return None where another one of `programs` (all of the step) is being explored.

        threads: worker threads of the program; seconds: time limit."""
        now = None if self._now is None else self._now()
        if now is not None and not now.over:
            if any(other is now.run for other in programs):
                return None
            now.end("its program is no longer used")
        found = Exploration(run, run.backend.workshop(run.target, threads), seconds)
        self._now = weakref.ref(found)
        return found
