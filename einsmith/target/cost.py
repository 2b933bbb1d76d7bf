"""What work is predicted to take on a target, by what binds, and what starting and sharing it out adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from einsmith.target.facts import Target

HIDDEN = 0.05
"""How much of what hides behind the term that binds counts in a rank: that is above the seconds by no larger a part."""
CALL_SECONDS = 1e-7
"""What the code of a launch takes to begin."""
SMALL_SECONDS = 4e-7
"""Work below this is not worth another thread, which is awake within a program."""
TASK_SECONDS = 1e-7
"""What one more task costs."""


class Cost(NamedTuple):
    """Predicted seconds, by what binds: the kernel takes max(arithmetic, memory) + special + launch."""

    arithmetic: float
    memory: float
    special: float = 0.0
    launch: float = 0.0

    @property
    def seconds(self) -> float:
        return max(self.arithmetic, self.memory) + self.special + self.launch

    @property
    def rank(self) -> float:
        """What candidates for the same work are ordered by: `seconds`, and a little of what hides behind the term that
        binds, which tells apart those that memory makes equal."""
        arithmetic, memory, special, launch = self
        return max(arithmetic, memory) + special + launch + HIDDEN * min(arithmetic, memory)


def launched(tasks: Any, target: Target) -> Any:
    """Seconds that a launch takes beside its work, of so many tasks (a number, or an array of them): a single one is
    done by the thread that comes to it; more are shared with other threads, which have to hear of it."""
    return CALL_SECONDS + (tasks > 1) * (target.cores > 1) * target.launch_seconds


def may_be_one_task(multiplies: Any, target: Target) -> Any:
    """Whether so many multiply-adds (a number, or an array of them) are so short a work that what other cores spare of
    it, at the peak, may be less than it takes to let them know."""
    return target.cores > 1 and multiplies / target.fma_per_second * (1 - 1 / target.cores) < target.launch_seconds


def shared_out(tasks: int, target: Target) -> float:
    """Seconds that a launch of so many short tasks takes beside their work."""
    return launched(tasks, target) + TASK_SECONDS * (tasks - 1) + SMALL_SECONDS * (tasks > 1)


def dealt_out(arithmetic: float, memory: float, special: float, tasks: int, target: Target) -> Cost:
    """The cost of so many tasks, of which one core would have these seconds of arithmetic and special functions: the
    fewer tasks a core has, the longer some cores wait for the last one."""
    cores = min(target.cores, tasks)
    uneven = 1.0 if tasks == 1 else 1 + 0.15 * cores / tasks
    return Cost(arithmetic * uneven / cores, memory, special * uneven / cores, shared_out(tasks, target))


def in_turn(costs: Sequence[Cost]) -> Cost:
    """Of parts that run one after the other: each takes the longer of its own arithmetic and memory; a lone one's cost
    is the whole's."""
    if len(costs) == 1:
        return costs[0]
    arithmetic = sum(max(c.arithmetic, c.memory) for c in costs)
    return Cost(arithmetic, 0.0, sum(c.special for c in costs), sum(c.launch for c in costs))
