"""Define learning-rate schedules, callables of the step, with the names and formulas of torch.optim.lr_scheduler.

A schedule is given where a number may be: SGD(lr=CosineAnnealingLR(0.1, T_max=1000)). Where PyTorch counts calls of
`scheduler.step()`, these count optimizer steps, or epochs of that many steps with `every=len(batches)`. Nothing is
compiled anew, and they are saved and restored with the step.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from einsmith.base.arguments import Count, Magnitude, Share, Size, check_arguments, show
from einsmith.base.dtypes import is_whole
from einsmith.base.errors import ArgumentError, KindError


def _fail(schedule: Any, name: str, what: str) -> ArgumentError:
    return ArgumentError(f"{type(schedule).__name__}: {name}={getattr(schedule, name)!r} must be {what}")


class Schedule:
    """Base of all schedules, which are dataclasses: `at(t)` is the value after t steps of the schedule, from 0 on."""

    def __post_init__(self) -> None:
        milestones = getattr(self, "milestones", ())
        if list(milestones) != sorted(milestones):
            raise _fail(self, "milestones", "in rising order")

    def at(self, t: int) -> float:
        """Return the value after t steps of the schedule, from 0 on."""
        raise NotImplementedError

    def __call__(self, step: int) -> float:
        if not is_whole(step) or not 0 <= step < 2**63:
            raise KindError(f"{type(self).__name__}: step={show(step)} must be an integer of at least 0")
        return self.at((step - 1) // self.every)  # type: ignore[attr-defined]

    def describe(self) -> dict[str, Any] | None:
        """Return a JSON description from which `restore` makes an equal schedule; None where a part has none."""
        out: dict[str, Any] = {"schedule": type(self).__name__}
        for f in fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if f.name == "schedules":
                value = [s.describe() if isinstance(s, Schedule) else None for s in value]
                if None in value:
                    return None
            out[f.name] = list(value) if isinstance(value, tuple) else value
        return out


@dataclass
class ConstantLR(Schedule):
    """lr*factor for total_iters steps, then lr."""

    lr: Magnitude
    factor: Share = 1 / 3
    total_iters: Size = 5
    every: Count = 1

    def at(self, t: int) -> float:
        return self.lr * (self.factor if t < self.total_iters else 1.0)


@dataclass
class LinearLR(Schedule):
    """From `lr*start_factor` to `lr*end_factor` in total_iters steps: a linear warm-up."""

    lr: Magnitude
    start_factor: Share = 1 / 3
    end_factor: Share = 1.0
    total_iters: Size = 5
    every: Count = 1

    def at(self, t: int) -> float:
        done = min(t, self.total_iters) / self.total_iters if self.total_iters else 1.0
        return self.lr * (self.start_factor + (self.end_factor - self.start_factor) * done)


@dataclass
class StepLR(Schedule):
    """lr times gamma after every step_size steps."""

    lr: Magnitude
    step_size: Count
    gamma: Magnitude = 0.1
    every: Count = 1

    def at(self, t: int) -> float:
        return self.lr * self.gamma ** (t // self.step_size)


@dataclass
class MultiStepLR(Schedule):
    """lr times gamma at each of the milestones."""

    lr: Magnitude
    milestones: Sequence[Size]
    gamma: Magnitude = 0.1
    every: Count = 1

    def at(self, t: int) -> float:
        return self.lr * self.gamma ** bisect_right(self.milestones, t)


@dataclass
class ExponentialLR(Schedule):
    """lr times gamma at every step."""

    lr: Magnitude
    gamma: Magnitude
    every: Count = 1

    def at(self, t: int) -> float:
        return self.lr * self.gamma**t


@dataclass
class PolynomialLR(Schedule):
    """lr*(1 - t/total_iters)**power, and 0 after total_iters steps."""

    lr: Magnitude
    total_iters: Size = 5
    power: Magnitude = 1.0
    every: Count = 1

    def at(self, t: int) -> float:
        done = min(t, self.total_iters) / self.total_iters if self.total_iters else 1.0
        return self.lr * (1.0 - done) ** self.power


@dataclass
class CosineAnnealingLR(Schedule):
    """From lr to eta_min along half a cosine of T_max steps, and back in as many. Source: arXiv 1608.03983."""

    lr: Magnitude
    T_max: Count
    eta_min: Magnitude = 0.0
    every: Count = 1

    def at(self, t: int) -> float:
        return self.eta_min + (self.lr - self.eta_min) * (1 + math.cos(math.pi * t / self.T_max)) / 2


@dataclass
class CosineAnnealingWarmRestarts(Schedule):
    """From lr to eta_min along half a cosine of T_0 steps, then again, each time T_mult times as long.

    Source: arXiv 1608.03983.
    """

    lr: Magnitude
    T_0: Count
    T_mult: Count = 1
    eta_min: Magnitude = 0.0
    every: Count = 1

    def at(self, t: int) -> float:
        length = self.T_0
        if self.T_mult == 1:
            t %= length
        while t >= length:
            t, length = t - length, length * self.T_mult
        return self.eta_min + (self.lr - self.eta_min) * (1 + math.cos(math.pi * t / length)) / 2


def _between(strategy: str, start: float, end: float, done: float) -> float:
    if strategy == "cos":
        return end + (start - end) / 2 * (1 + math.cos(math.pi * done))
    return (end - start) * done + start


@dataclass
class OneCycleLR(Schedule):
    """A rise from max_lr/div_factor to max_lr in pct_start of total_steps, then a fall to the initial rate divided by
    final_div_factor; with three_phase, first a fall to the initial rate as fast as the rise. After total_steps the rate
    is constant. `momentum` returns the matching cycle of the momentum. Source: arXiv 1708.07120."""

    max_lr: Magnitude
    total_steps: Count
    pct_start: Share = 0.3
    anneal_strategy: str = "cos"
    div_factor: Magnitude = 25.0
    final_div_factor: Magnitude = 1e4
    three_phase: bool = False
    every: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anneal_strategy not in ("cos", "linear"):
            raise _fail(self, "anneal_strategy", "'cos' or 'linear'")

    def _cycle(self, low: float, high: float, last: float, t: int) -> float:
        n, up = self.total_steps, self.pct_start * self.total_steps - 1
        phases = [(up, low, high), (n - 1, high, last)]
        if self.three_phase:
            phases = [(up, low, high), (2 * up, high, low), (n - 1, low, last)]
        t, begin = min(t, n - 1), 0.0
        for end, a, b in phases:
            if t <= end or end == n - 1:
                return _between(self.anneal_strategy, a, b, (t - begin) / (end - begin) if end != begin else 1.0)
            begin = end
        return last

    def at(self, t: int) -> float:
        first = self.max_lr / self.div_factor
        return self._cycle(first, self.max_lr, first / self.final_div_factor, t)

    def momentum(self, base_momentum: float = 0.85, max_momentum: float = 0.95) -> OneCycleMomentum:
        """Return the schedule of the momentum (Adam's first beta), which falls while the rate rises."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        return OneCycleMomentum(**parts, base_momentum=base_momentum, max_momentum=max_momentum)


@dataclass
class OneCycleMomentum(OneCycleLR):
    """From max_momentum down to base_momentum and up again, in the phases of OneCycleLR."""

    base_momentum: Share = 0.85
    max_momentum: Share = 0.95

    def at(self, t: int) -> float:
        return self._cycle(self.max_momentum, self.base_momentum, self.max_momentum, t)


@dataclass
class SequentialLR(Schedule):
    """A sequence of schedules: at each milestone the next one begins, from its own start. A warm-up:
    SequentialLR([LinearLR(0.1, total_iters=100), CosineAnnealingLR(0.1, T_max=900)], milestones=[100])."""

    schedules: Sequence[Schedule]
    milestones: Sequence[Size]
    every: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.milestones) + 1 != len(self.schedules):
            raise _fail(self, "milestones", f"{len(self.schedules) - 1} numbers, one for each change of the schedule")
        if any(hasattr(s, "observe") for s in self.schedules):
            raise ArgumentError(
                "SequentialLR: ReduceLROnPlateau cannot be one of the schedules, as it depends on the results of "
                "epochs; use it alone, and set optimizer.lr to it after the warm-up"
            )

    def at(self, t: int) -> float:
        n = bisect_right(self.milestones, t)
        return self.schedules[n](t - (self.milestones[n - 1] if n else 0) + 1)


@dataclass
class ReduceLROnPlateau(Schedule):
    """A rate that is multiplied by `factor` when the result `monitor` of epochs of `fit` (in `step.history`) has not
    improved for more than `patience` epochs. mode: "min" or "max" is better. The other arguments are PyTorch's;
    `best`, `bad_epochs` and `cooldown_left` are the state. Without `fit`, call `schedule.step(value)`."""

    lr: Magnitude
    mode: str = "min"
    factor: float = 0.1
    patience: Size = 10
    threshold: Magnitude = 1e-4
    threshold_mode: str = "rel"
    cooldown: Size = 0
    min_lr: Magnitude = 0.0
    eps: Magnitude = 1e-8
    monitor: str = "val_loss"
    best: float | None = None
    bad_epochs: int = 0
    cooldown_left: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in ("min", "max"):
            raise _fail(self, "mode", "'min' or 'max'")
        if self.threshold_mode not in ("rel", "abs"):
            raise _fail(self, "threshold_mode", "'rel' or 'abs'")
        if not 0 < self.factor < 1:
            raise _fail(self, "factor", "between 0 and 1")

    def __call__(self, step: int) -> float:
        return self.lr

    def observe(self, row: Mapping[str, Any]) -> None:
        """Take the results of an epoch of `fit`. Raises ArgumentError where no result is named `monitor`."""
        if self.monitor not in row:
            raise ArgumentError(
                f"ReduceLROnPlateau: monitor={self.monitor!r} is none of the results of an epoch, {', '.join(row)}; "
                "pass validation= to fit, or another monitor="
            )
        self.step(row[self.monitor])

    def step(self, value: float) -> None:
        """Take the monitored value of an epoch, and reduce the rate after more than `patience` bad epochs."""
        value = float(value)
        if self._better(value):
            self.best, self.bad_epochs = value, 0
        else:
            self.bad_epochs += 1
        if self.cooldown_left > 0:
            self.cooldown_left, self.bad_epochs = self.cooldown_left - 1, 0
        if self.bad_epochs > self.patience:
            new = max(self.lr * self.factor, self.min_lr)
            if self.lr - new > self.eps:
                self.lr = new
            self.cooldown_left, self.bad_epochs = self.cooldown, 0

    def _better(self, value: float) -> bool:
        sign = 1.0 if self.mode == "min" else -1.0
        best = math.inf if self.best is None else sign * self.best
        if math.isfinite(best):
            best = best * (1 - sign * self.threshold) if self.threshold_mode == "rel" else best - self.threshold
        return sign * value < best


SCHEDULES: dict[str, type] = {
    c.__name__: c
    for c in (
        ConstantLR,
        LinearLR,
        StepLR,
        MultiStepLR,
        ExponentialLR,
        PolynomialLR,
        CosineAnnealingLR,
        CosineAnnealingWarmRestarts,
        OneCycleLR,
        OneCycleMomentum,
        SequentialLR,
        ReduceLROnPlateau,
    )
}

for _kind in SCHEDULES.values():
    _kind.__init__ = check_arguments(_kind.__init__)  # type: ignore[misc]


def restore(description: Mapping[str, Any]) -> Schedule:
    """Return the schedule that `describe` described. Raises KeyError and TypeError for any other description."""
    arguments = {n: v for n, v in description.items() if n != "schedule"}
    if "schedules" in arguments:
        arguments["schedules"] = [restore(s) for s in arguments["schedules"]]
    return SCHEDULES[description["schedule"]](**arguments)
