"""Predict the cost of work on a target (roofline terms), including launch overhead and distribution over cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from einsmith.cost.facts import Target

HIDDEN = 0.05
"""Weight of the non-dominant roofline term in a candidate's rank; the rank exceeds the predicted seconds by at most
this fraction."""


class Cost(NamedTuple):
    """Predicted seconds by roofline term: the kernel takes max(arithmetic, memory) + special + launch."""

    arithmetic: float
    memory: float
    special: float = 0.0
    launch: float = 0.0

    @property
    def seconds(self) -> float:
        """The predicted seconds."""
        return max(self.arithmetic, self.memory) + self.special + self.launch

    @property
    def rank(self) -> float:
        """The key that orders candidates for one piece of work: `seconds` plus a fraction of the non-dominant term.

        The fraction orders candidates of equal memory time by their arithmetic."""
        arithmetic, memory, special, launch = self
        return max(arithmetic, memory) + special + launch + HIDDEN * min(arithmetic, memory)


def launch_overhead(tasks: Any, target: Target) -> Any:
    """Return the overhead (seconds) of a launch of `tasks` tasks (a number or an array).

    A single task runs on the calling thread; more tasks have to wake other threads."""
    return target.overheads.call_seconds + (tasks > 1) * (target.cores > 1) * target.launch_seconds


def may_be_one_task(multiplies: Any, target: Target) -> Any:
    """Return whether these multiply-adds (a number or an array) may be too few to parallelise.

    That is where the time that other cores save, at peak rate, is below the launch overhead."""
    return target.cores > 1 and multiplies / target.fma_per_second * (1 - 1 / target.cores) < target.launch_seconds


def shared_out(tasks: int, target: Target) -> float:
    """Return the overhead (seconds) of a launch of `tasks` short tasks, with the overhead of each task."""
    w = target.overheads
    return launch_overhead(tasks, target) + w.task_seconds * (tasks - 1) + w.parallel_seconds * (tasks > 1)


def distribute(arithmetic: float, memory: float, special: float, tasks: int, target: Target) -> Cost:
    """Return the cost of work distributed over `tasks` tasks, with load imbalance: the fewer tasks a core has, the
    longer the other cores wait for the last one.

    arithmetic, special: seconds of all the work on one core. memory: seconds at the bandwidth of all tasks."""
    cores = min(target.cores, tasks)
    uneven = 1.0 if tasks == 1 else 1 + 0.15 * cores / tasks
    return Cost(arithmetic * uneven / cores, memory, special * uneven / cores, shared_out(tasks, target))


def in_turn(costs: Sequence[Cost]) -> Cost:
    """Return the cost of parts that run one after the other; each takes the longer of its own arithmetic and memory.

    The cost of a single part is returned unchanged."""
    if len(costs) == 1:
        return costs[0]
    arithmetic = sum(max(c.arithmetic, c.memory) for c in costs)
    return Cost(arithmetic, 0.0, sum(c.special for c in costs), sum(c.launch for c in costs))
