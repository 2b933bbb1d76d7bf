"""Pair the times of two forms of a program, kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, log
from statistics import median

from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels.tuner import Answer
from einsmith.tuning.programs.tunable_program import TunableProgram

Seconds = dict[Kernel, float]


class PairedTimes:
    """Ratios of the kernels' times in the second of two forms of a program to those in the first, in runs by turns."""

    def __init__(self) -> None:
        self._ratios: dict[Kernel, list[float]] = {}

    def add(self, first: Seconds, second: Seconds) -> None:
        """Add a pair of runs."""
        for k, seconds in first.items():
            self._ratios.setdefault(k, []).append(second[k] / seconds if seconds > 0 else inf)

    def ratios(self, kernel: Kernel) -> list[float]:
        """Return a kernel's ratios in ascending order."""
        return sorted(self._ratios[kernel])

    def ratio(self, kernel: Kernel) -> float:
        """Return the median of a kernel's ratios."""
        return median(self._ratios[kernel])

    def deviation(self, kernel: Kernel) -> float:
        """Return the median absolute logarithmic deviation of a kernel's ratios from their median."""
        middle = self.ratio(kernel)
        return median(abs(log(r / middle)) if r > 0 and middle > 0 else inf for r in self._ratios[kernel])


@dataclass
class Trial:
    """Configurations of several kernels that are tried at once.

    undecided: the configurations; comparing: the program that runs them in addition to its own kernels, until their
    results are compared; other: the program that uses them, for timing; first: seconds of the kernels in the first step
    of an unfinished pair, empty between pairs."""

    undecided: dict[Kernel, Answer]
    comparing: TunableProgram | None = None
    other: TunableProgram | None = None
    first: Seconds = field(default_factory=dict)
    times: PairedTimes = field(default_factory=PairedTimes)


def sum_by_kernel(run: TunableProgram, seconds: Sequence[float]) -> Seconds:
    """Sum the seconds of calls, in the order of `run.calls`, by kernel."""
    out: Seconds = {}
    for call, x in zip(run.calls, seconds, strict=True):
        out[call.kernel] = out.get(call.kernel, 0.0) + x
    return out
