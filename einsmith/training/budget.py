"""What exploring may cost: a part of the time that a program trains.

Four things take time from the steps: that somebody looks whether to explore, what is tried in them, what threads of
this process do (they keep the interpreter from the thread that trains), and what another process does, which shares
processors and caches. Steps in which nothing of it goes on, nor has in the step before (it leaves cold caches), tell
how long a step takes; what others take beyond that is lost. So is what the threads work, where the steps do not show
it: there is time between them, too.
Whoever is about to do something asks first whether there is time left for it, and what can be stopped is, as long as
there is none. So the time that is lost is a part of the whole, or of one unit of work more, however short a step is.
"""

from __future__ import annotations

from einsmith import locks

SUSPENDED = 100.0
"""How many times as long as usual a step takes at most; in one that takes longer the machine did something else."""
QUIET = 3.0
"""The same of a step in which nothing goes on: what disturbs it once says nothing about the next ones."""
COLD = 5
"""Quiet steps of which the shortest counts: the first ones meet cold caches and memory that was never touched."""
CREDIT = 3.0
"""Usual steps that may be won, by steps that are quicker than these, and lost again: more says that the usual time was
measured too long."""
MEMORY = 100
"""Steps, about, of which the usual time is the mean."""
RESUMED = 0.8
"""The part of what may be lost that is lost at most where work that was stopped goes on: it is not stopped and begun
at every step."""


class Budget:
    """share: of the time of all steps, which may be lost. Used by the thread that trains and by others. total, lost:
    seconds so far."""

    def __init__(self, share: float):
        self.share = share
        self.total = 0.0
        self._in_steps = self._beside_threads = self._in_threads = 0.0
        """Lost in steps while no thread works, and while one does, and what the threads have worked."""
        self._beside_steps = 0.0
        self._usual = self._steps = 0.0
        self._settled = True
        """Whether nothing else went on in the step before."""
        self._lock = locks.lock()
        self.stopped = False
        """Whether work that can be stopped is to rest."""

    @property
    def lost(self) -> float:
        return self._beside_steps + max(0.0, self._in_steps) + max(self._beside_threads, self._in_threads)

    @property
    def usual(self) -> float:
        """Seconds of a step in which nothing else goes on."""
        return self._usual

    def may(self, seconds: float = 0.0) -> bool:
        """Whether so much more may be lost."""
        return self.lost + seconds <= self.share * self.total

    def step(self, seconds: float, quiet: bool, threads: bool = False, more: float = 0.0) -> None:
        """A step is done, in which nothing (quiet) or something else was going on; threads: work of threads; more:
        seconds that exploring has taken beside the step."""
        self.total += seconds + more
        self._beside_steps += more
        settled, self._settled = self._settled, quiet
        if quiet and (settled or self._steps < COLD):
            self._steps = min(self._steps + 1, MEMORY)
            if self._steps <= COLD:
                self._usual = min(self._usual or seconds, seconds)
            else:
                self._usual += (min(seconds, QUIET * self._usual) - self._usual) / self._steps
        elif self._usual:
            lost = min(seconds, SUSPENDED * self._usual) - self._usual
            if threads:
                self._beside_threads = max(0.0, self._beside_threads + lost)
            else:
                self._in_steps += lost
        if self._in_steps < 0:
            self._in_steps = max(self._in_steps, -CREDIT * self._usual)
        allowed = self.share * self.total
        self.stopped = self.lost > (RESUMED * allowed if self.stopped else allowed)

    def work(self, seconds: float) -> None:
        """A thread has worked so long."""
        with self._lock:
            self._in_threads += seconds
