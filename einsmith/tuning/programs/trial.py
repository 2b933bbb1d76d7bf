"""Decide from paired step times whether configurations that are tried while a program trains are faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import erfc, inf, log, prod, sqrt
from statistics import median

from einsmith.driver.bound_program import BoundProgram
from einsmith.schedule.kernel import Kernel

MIN_PAIRS, MAX_PAIRS = 8, 14
"""Pairs of steps after which a configuration can win, and after which one that has not won is dropped."""
MAX_KEPT_RATIO = 0.98
"""Largest median time ratio with which a configuration wins; smaller gains are lost in the noise of a program."""
LOSING_RATIO = 1.25
"""Time ratio; a configuration is dropped at once when every ratio of its first two or more pairs exceeds it."""

PREDICTION_ERROR = 0.15
"""Standard deviation of the logarithm of measured over predicted seconds among the configurations of one kernel, as
assumed before any of them is measured; every configuration without a gain discounts what is expected of the others."""
GAIN_POINTS = 32
"""Points of the numeric integration in `expect_saving`; with twice as many, the result changes by less than 0.001."""

Seconds = dict[Kernel, float]


@dataclass
class KernelRecord:
    """Measurements of one kernel during exploring.

    seconds: time of one run with the current configuration; runs: runs in a step; least: lower bound of the seconds of
    a run with any configuration; part: current time as a fraction of the time with the model's choice; failures:
    consecutive configurations without a gain; over: the reason why the kernel is not tuned any more, or ""; predicted:
    predicted times of the other configurations, as ratios to that of the model's choice, None while they are not known.
    """

    seconds: float
    runs: int
    least: float = 0.0
    part: float = 1.0
    failures: int = 0
    over: str = ""
    predicted: Sequence[float] | None = None
    _saving: tuple[tuple, float] | None = field(default=None, repr=False, compare=False)
    """What the saving was last computed from, and the saving: computing it takes a millisecond."""

    @property
    def gain(self) -> float:
        """Seconds per step that other configurations are expected to save, discounted by 0.8 for each one without a
        gain. Before their predicted times are known: all seconds above the lower bound."""
        key = self.seconds, self.least, self.part, self.predicted
        known = self._saving
        if known is None or known[0] != key:
            self._saving = known = key, self._compute_saving()
        return self.seconds * known[1] * self.runs * 0.8**self.failures

    def _compute_saving(self) -> float:
        """Return the fraction of its time that the kernel is expected to save."""
        if self.seconds <= 0:
            return 0.0
        least = min(1.0, self.least / self.seconds)
        if self.predicted is None:
            return 1 - least
        return expect_saving([x for r in self.predicted if 0 < (x := r / self.part) < inf], least)

    def becomes(self, ratio: float) -> None:
        """Scale the kernel's time by `ratio` after a new configuration was installed."""
        self.part *= ratio
        self.seconds *= ratio
        self.failures = 0


@dataclass
class Trial:
    """Candidate configurations of several kernels under test at once.

    texts: undecided configurations; beside: the program that runs them in addition to its own kernels, for comparing
    results; other: the program that uses them, for timing; has_run: whether `beside` has run and its results wait to be
    compared; won, lost: decided configurations that are still part of `other`, the winners not yet installed."""

    texts: dict[Kernel, str]
    comparing: BoundProgram | None = None
    other: BoundProgram | None = None
    has_run: bool = False
    won: dict[Kernel, str] = field(default_factory=dict)
    lost: list[Kernel] = field(default_factory=list)
    ratios: dict[Kernel, list[float]] = field(default_factory=dict)
    """Time ratios, candidate to current, of each kernel in the pairs of steps."""
    first: Seconds = field(default_factory=dict)
    """Seconds of the kernels in the first step of the unfinished pair; empty between pairs."""


def expect_saving(predicted: Sequence[float], least: float) -> float:
    """Return the fraction of its time that a kernel is expected to save by the fastest of other configurations.

    The time of each configuration is lognormal around its prediction (PREDICTION_ERROR); where none is faster, the
    current one stays and nothing is saved.

    Args:
        predicted: predicted times of the configurations, as ratios to the current time
        least: lower bound of the time of any configuration, as a ratio to the current time
    """
    width = (1 - least) / GAIN_POINTS
    points = [least + (n + 0.5) * width for n in range(GAIN_POINTS)]
    return width * sum(1 - prod(_probability_above(x, r) for r in predicted) for x in points)


def _probability_above(time: float, predicted: float) -> float:
    """Return the probability that a configuration takes longer than `time`."""
    return erfc(log(time / predicted) / (PREDICTION_ERROR * sqrt(2))) / 2


def judge(ratios: Sequence[float]) -> bool | None:
    """Judge a candidate by the ratios of its times to the current ones in pairs of steps.

    Return True where it is faster, False where it has to be dropped, None while undecided. Faster means a
    median of at most MAX_KEPT_RATIO, and faster in all pairs but one of eight."""
    n = len(ratios)
    if n >= 2 and min(ratios) > LOSING_RATIO:
        return False
    if n < MIN_PAIRS:
        return False if n >= 5 and sorted(ratios)[1] > 1 else None
    slower = sum(r >= 1 for r in ratios)
    if median(ratios) <= MAX_KEPT_RATIO and slower <= n // 8:
        return True
    return False if n >= MAX_PAIRS or median(ratios) > 1 else None


def sum_by_kernel(run: BoundProgram, seconds: Sequence[float]) -> Seconds:
    """Sum the seconds of calls, in the order of `run.calls`, by kernel."""
    out: Seconds = {}
    for call, x in zip(run.calls, seconds, strict=True):
        out[call.kernel] = out.get(call.kernel, 0.0) + x
    return out


def median_deviation(values: Sequence[float]) -> float:
    """Return the median absolute logarithmic deviation of values from their median."""
    middle = median(values)
    return median(abs(log(v / middle)) if v > 0 and middle > 0 else inf for v in values)
