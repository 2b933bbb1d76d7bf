"""Estimate how far the cost model's predictions are from measured times, and what a try is expected to save.

Kernels of a running program show the bias of a pattern's predictions and their spread; configurations that were tried
show the spread alone. Both are of the logarithm of measured over predicted seconds.
"""

from __future__ import annotations

from math import erfc, exp, log, sqrt
from typing import NamedTuple

from einsmith.tuning.kernels.verdict import MAX_KEPT_RATIO

PRIOR_DEVIATION = 0.15
"""Standard deviation of the logarithm of measured over predicted seconds among the configurations of one kernel, as
assumed before any is measured. It counts as one measurement."""


class ModelError:
    """The errors of the cost model's predictions, by the name of a pattern, as logarithms of ratios of times."""

    def __init__(self) -> None:
        self._kernels: dict[str, list[float]] = {}
        self._tries: dict[str, list[float]] = {}

    def add_kernel(self, pattern: str, measured: float, predicted: float) -> None:
        """Add the seconds of a kernel of the running program, measured and predicted. Times of 0 tell nothing."""
        if measured > 0 and predicted > 0:
            self._kernels.setdefault(pattern, []).append(log(measured / predicted))

    def add_try(self, pattern: str, measured: float, predicted: float) -> None:
        """Add the seconds of a configuration that was tried."""
        if measured > 0 and predicted > 0:
            self._tries.setdefault(pattern, []).append(log(measured / predicted))

    def bias(self, pattern: str) -> float:
        """Return the mean error of a pattern's predictions, to which that of all patterns counts as one measurement."""
        every = [e for errors in self._kernels.values() for e in errors]
        errors = self._kernels.get(pattern, [])
        return (sum(errors) + (sum(every) / len(every) if every else 0.0)) / (len(errors) + 1)

    def optimism(self, pattern: str) -> float:
        """Return the mean error of a pattern's configurations that were tried. They were chosen for low predictions, so
        these are too low on average."""
        tries = self._tries.get(pattern, [])
        return sum(tries) / (len(tries) + 1)

    def deviation(self, pattern: str) -> float:
        """Return the standard deviation of a pattern's predictions: how unsure the model is of its configurations."""
        bias, optimism = self.bias(pattern), self.optimism(pattern)
        squares = [(e - bias) ** 2 for e in self._kernels.get(pattern, [])]
        squares += [(e - optimism) ** 2 for e in self._tries.get(pattern, [])]
        return sqrt((PRIOR_DEVIATION**2 + sum(squares)) / (1 + len(squares)))


class Win(NamedTuple):
    """A configuration that was faster than the model's choice, for a kernel or for one that differs in extents.

    ratio: its seconds over those of the model's choice; distance: sum of the absolute logarithms of the ratios of the
    extents, 0 for the kernel itself"""

    text: str
    ratio: float
    distance: float

    def correct(self, seconds: float, choice_seconds: float) -> float:
        """Return the geometric mean of predicted seconds and those that the win lets expect, which count for less the
        more the extents differ."""
        if not (seconds > 0 and self.ratio > 0 and choice_seconds > 0):
            return seconds
        weight = 1 / (1 + self.distance)
        return exp((log(seconds) + weight * log(self.ratio * choice_seconds)) / (1 + weight))


def expect_saving(ratio: float, deviation: float, bound: float = 0.0) -> float:
    """Return the fraction of a kernel's time that a configuration is expected to save.

    Its time is lognormal around the prediction. Where it takes more than MAX_KEPT_RATIO of the present one's time, it
    is not kept and saves nothing.

    Args:
        ratio: predicted time of the configuration, as a ratio to the present one's
        deviation: standard deviation of the logarithm of its time
        bound: lower bound of the time of any configuration, as a ratio to the present one's
    """
    if ratio <= 0 or bound > MAX_KEPT_RATIO:
        return 0.0
    above = (log(MAX_KEPT_RATIO) - log(ratio)) / deviation
    saving = _normal(above) - ratio * exp(deviation**2 / 2) * _normal(above - deviation)
    return max(0.0, min(saving, 1 - bound))


def _normal(x: float) -> float:
    """Return the probability that a standard normal variable is less than x."""
    return erfc(-x / sqrt(2)) / 2
