"""Have another process measure candidates: one that hangs or crashes it is reported and left behind."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Sequence

from einsmith.base.caches import Once
from einsmith.base.errors import EinsmithWarning
from einsmith.base.workers import Worker
from einsmith.cost.facts import Target
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import Pattern
from einsmith.kernels.pattern_keys import is_builtin
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels.genetic import Candidate
from einsmith.tuning.kernels.measure import HostRunner, KernelRunner

CHOICE = 0
"""The number of the model's choice, with which all other candidates are compared."""
REQUEST_SECONDS = 20.0
"""Most seconds that compiling a candidate and running it once, or a race, takes; LLVM takes up to 2 for the largest
kernels there are."""
RACE_LIMIT_RUNS = 40
"""Runs of each candidate that the time limit of a race allows for, in case the candidates are slow."""
START_SECONDS = 60.0
"""Most seconds that a process takes to start."""
_WARNED = Once("patterns that tuning leaves out", 64)


def find_import_fault(pattern: Pattern) -> str:
    """Return why another process cannot import a pattern; empty where it can."""
    if type(pattern).__module__ == "__main__":
        return "its class is defined in a script"
    try:
        pickle.dumps(pattern)
        return ""
    except Exception as e:  # a user's class may raise anything
        return f"it cannot be pickled: {e}"


def sendable_patterns() -> list[Pattern]:
    """Return the user's patterns that another process can import (`register`). Warns once of each other one."""
    patterns = [(p, find_import_fault(p)) for p in autoconfig.PATTERNS if not is_builtin(p)]
    for pattern, why in patterns:
        if why and _WARNED((pattern.name, why)):
            warnings.warn(
                f"tuning tries no configuration of the pattern {pattern.name!r}, as its process cannot import "
                f"the pattern: {why}; define the class in a module that can be imported, with attributes that can be "
                "pickled",
                EinsmithWarning,
                stacklevel=3,
            )
    return [p for p, why in patterns if not why]


def register(patterns: Sequence[Pattern]) -> None:
    """Add a user's own patterns to those of this process."""
    known = {p.name for p in autoconfig.PATTERNS}
    for p in patterns:
        if p.name not in known:
            autoconfig.register(p)


MakeRunner = Callable[[], KernelRunner]
"""Function that can be pickled, and returns in any process what runs the kernels of a back end there."""


class BenchProcess(Worker):
    """A `worker.Bench` in a process of its own.

    Args:
        limit: most seconds of a request; by default REQUEST_SECONDS
        make: what runs kernels; by default the CPU
    """

    def __init__(self, limit: float | None = None, make: MakeRunner = HostRunner):
        super().__init__(
            "einsmith.tuning.kernels.candidate_worker:Bench", REQUEST_SECONDS if limit is None else limit, START_SECONDS
        )
        self.make = make
        self._known: set[int] = set()

    def start(self) -> None:
        if not self.begun:
            self._known = set()
        super().start()

    def begin(self, kernel: Kernel, target: Target, threads: int, cold: bool = False) -> None:
        """Set the kernel that later requests are about. User patterns that no other process can import are left
        out."""
        self.set_up(kernel, target, threads, cold, sendable_patterns(), self.make)

    def compile_ahead(self, candidates: Sequence[Candidate]) -> None:
        """Compile candidates, several at once; see `worker.Bench.compile_ahead`."""
        self.ask("compile_ahead", candidates, limit=self.limit * max(1, len(candidates)))

    def prepare(self, number: int, candidate: Candidate) -> str:
        """Compile a candidate and run it once; return the reason where it cannot be run, else an empty string."""
        reason = self.ask("prepare", number, candidate)
        if not reason:
            self._known.add(number)
        return reason

    def ready(self, number: int) -> bool:
        """Return whether a candidate is prepared: a process that was lost has lost all its candidates."""
        return self.begun and number in self._known

    def drop(self, numbers: Sequence[int]) -> None:
        """Remove kernels with these numbers from the process, if it has them."""
        gone = [n for n in numbers if self.ready(n)]
        if gone:
            self.ask("drop", gone)
        self._known.difference_update(gone)

    def race(
        self, numbers: Sequence[int], seconds: float, final: bool = False, run: float = 0.0
    ) -> tuple[list[list[float]], str]:
        """Race candidates in the process; see `worker.Bench.race`. run: approximate seconds of one run."""
        limit = self.limit + seconds + RACE_LIMIT_RUNS * run * len(numbers)
        return self.ask("race", list(numbers), seconds, final, limit=limit)

    def vet(self, number: int, seed: int) -> str:
        """Return why a candidate may not be used; see `worker.Bench.vet`."""
        return self.ask("vet", number, seed)
