"""Configurations that are tried while a program trains, and when it is decided whether they are faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, log
from statistics import median

from einsmith.compile import Executable
from einsmith.plan.kernel import Kernel, Rows

FEWEST, MOST = 8, 14
"""Pairs of steps after which a configuration may stay, and after which it is told apart or dropped."""
GAIN = 0.98
"""What a configuration must take of the present one's time, at most: less is lost in the noise of a program."""
SLOW = 1.25
"""How many times the present one's time two runs may take before a configuration is dropped at once."""

Seconds = dict[Kernel | Rows, float]


@dataclass
class KernelRecord:
    """What is known of a kernel. seconds: of a run of it as it is now; least: of any configuration's; runs: in a step;
    part: what it takes of the time that it took as it was at first; barren: configurations in a row that brought
    nothing; over: why it is left alone.
    """

    seconds: float
    runs: int
    least: float = 0.0
    part: float = 1.0
    barren: int = 0
    over: str = ""

    @property
    def gain(self) -> float:
        """Seconds of a step that other configurations may bring, the less the more of them brought nothing."""
        return max(0.0, self.seconds - self.least) * self.runs * 0.8**self.barren

    def becomes(self, ratio: float) -> None:
        """It takes so much of its time from now on."""
        self.part *= ratio
        self.seconds *= ratio
        self.barren = 0


@dataclass
class Trial:
    """Configurations of some kernels that are tried together, first in `beside`, the program that runs them beside its
    own kernels, then in `other`, the program with them. ran: `beside` has, and its results wait to be compared; won,
    lost: what is decided, and still part of `other`; what won is not yet part of the program."""

    texts: dict[Kernel | Rows, str]
    beside: Executable | None = None
    other: Executable | None = None
    ran: bool = False
    won: dict[Kernel | Rows, str] = field(default_factory=dict)
    lost: list[Kernel | Rows] = field(default_factory=list)
    ratios: dict[Kernel | Rows, list[float]] = field(default_factory=dict)
    """Of each kernel's time in pairs of steps."""
    steps: list[float] = field(default_factory=list)
    """Seconds of the pairs' first steps."""
    first: Seconds = field(default_factory=dict)
    """Of the pair whose second step comes next."""


def told_apart(ratios: Sequence[float]) -> bool | None:
    """Whether the other one is faster (True), or is to be dropped (False), by the ratios of their times in pairs of
    steps; None while that is open. Faster: by GAIN in the median, and in all pairs but one of eight."""
    n = len(ratios)
    if n >= 2 and min(ratios) > SLOW:
        return False
    if n < FEWEST:
        return False if n >= 5 and sorted(ratios)[1] > 1 else None
    slower = sum(r >= 1 for r in ratios)
    if median(ratios) <= GAIN and slower <= n // 8:
        return True
    return False if n >= MOST or median(ratios) > 1 else None


def of_kernels(run: Executable, seconds: Sequence[float]) -> Seconds:
    """Seconds of each kernel in all of its calls, from those of each call."""
    out: Seconds = {}
    for call, x in zip(run.calls, seconds, strict=True):
        out[call.kernel] = out.get(call.kernel, 0.0) + x
    return out


def spread(values: Sequence[float]) -> float:
    """The median distance from the median, as a part of it."""
    middle = median(values)
    return median(abs(log(v / middle)) if v > 0 and middle > 0 else inf for v in values)
