"""Fit the overheads of the cost model to measured kernels: what matters is the order of a kernel's own candidates.

The model is the cost of the patterns themselves. Fitted are the logarithms of factors on the coefficients, by ridge
regression on the logarithms of time ratios between the candidates of one kernel. Each step is Gauss and Newton's; the
Jacobian is measured once and then updated from every step (Broyden 1965, "A class of methods for solving nonlinear
simultaneous equations"), as it costs one pricing of all candidates for every coefficient. The ridge's weight is chosen
by cross-validation over kernels, and a fit counts only if it lowers the regret of the kernels left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.random import default_rng

from einsmith.base.errors import CompileError
from einsmith.cost.facts import Target
from einsmith.cost.overheads import Overheads
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import cost_of
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.tuning.calibration.fitted import FITTED, MAX_FACTOR, OverheadFit
from einsmith.tuning.kernels.genetic import Candidate

MIN_KERNELS = 10
"""Fewest kernels of which a fit is made, whose predictions depend on the coefficients: with fewer, those left out say
little about others."""
FOLDS = 5
"""Parts of the kernels for cross-validation; each is left out once."""
MAX_KERNELS, MAX_CANDIDATES = 100, 24
"""Most kernels, and candidates of a kernel, that a fit uses: it prices each of them some 100 times, in a millisecond or
two (measured: 2 to 5 seconds a kernel)."""
WEIGHTS = (0.03, 0.01, 0.003, 0.001)
"""Weights of the ridge from which cross-validation chooses: squared error (logarithm of time) for a coefficient that
changes by a factor of e. The range was set on fits to the kernels of `benchmarks.cost_model --seed 2711`."""
MAX_STEPS = 5
"""Most steps of a fit."""
MIN_STEP_GAIN = 0.01
"""Least fraction of the objective that a step gains for another one to be taken."""
DIFFERENCE = 0.2
"""Change of a factor's logarithm by which the Jacobian is measured: beyond the small steps at which the cost, which has
many maxima, may not change at all."""
MIN_REGRET_FALL = 0.001
"""Least fall of the mean regret of kernels left out for a fit to be accepted: every fit changes choices, and so
rounding."""

CONFIDENCE, RESAMPLES = 0.95, 2000
"""Fraction of resamples of the kernels in which the mean regret has to fall, and their number. Of four fits to twenty
kernels each whose mean regret merely fell, one made the regret of the other twenty worse (`benchmarks.cost_model --seed
2712 --refit`)."""

Array = np.ndarray


class FitSample:
    """A kernel and its measured candidates.

    Attributes:
        name: digest of the kernel; samples of equal name are left out together.
        log_seconds: logarithms of the measured times.
        weights: of the candidates, 1 in all; a slow candidate matters less for choices.
    """

    def __init__(self, kernel: Kernel, target: Target, seconds: Mapping[Candidate, float]):
        self.name, self._kernel, self._target = kernel.digest.hex(), kernel, target
        self._candidates = [(autoconfig.pattern_of(c.pattern), c.config) for c in seconds]
        self._times = np.array([*seconds.values()])
        self.log_seconds = np.log(self._times)
        closeness = self._times.min() / self._times
        self.weights = closeness / closeness.sum()

    def __len__(self) -> int:
        return len(self._candidates)

    def predict(self, overheads: Overheads) -> Array:
        """Return the logarithms of the candidates' cost ranks. Raises CompileError where one has none."""
        target = replace(self._target, overheads=overheads)
        return np.log([cost_of(p, self._kernel, config, target).rank for p, config in self._candidates])

    def residuals(self, predicted: Array) -> Array:
        """Return the weighted differences of measured and predicted logarithms, each less their mean."""
        return self.centre(self.log_seconds - predicted)

    def centre(self, x: Array) -> Array:
        """Subtract the weighted mean (over the last axis), and weight each candidate by the root of its weight."""
        return (x - (x * self.weights).sum(-1, keepdims=True)) * np.sqrt(self.weights)

    def regret(self, predicted: Array) -> float:
        """Return how much longer the candidate of the lowest prediction takes than the fastest, as a fraction."""
        return float(self._times[int(predicted.argmin())] / self._times.min() - 1)


@dataclass(frozen=True)
class Refit:
    """The result of fitting.

    Attributes:
        fit: the fit to all kernels, with the figures of cross-validation.
        weight: the ridge's weight.
        accepted: whether fits significantly lower the regret of kernels left out.
    """

    fit: OverheadFit
    weight: float
    accepted: bool


def overheads_of(logs: Array) -> Overheads:
    """Return the table with factors of these logarithms, in the order of FITTED, on its coefficients."""
    table = Overheads()
    factors = zip(FITTED, map(math.exp, logs), strict=True)
    changed: dict[str, Any] = {name: float(f"{getattr(table, name) * x:.4g}") for name, x in factors}
    return replace(table, **changed)


def sample_of(kernel: Kernel | Rows, target: Target, seconds: Mapping[Candidate, float]) -> FitSample | None:
    """Return a kernel's measurements as a sample, of its fastest candidates and others at even steps; None for kernels
    whose cost chooses configurations of its own parts (`Rows`), and where a candidate has no cost any more."""
    if isinstance(kernel, Rows) or len(seconds) < 2:
        return None
    ordered = sorted(seconds, key=seconds.__getitem__)
    fastest, others = ordered[: MAX_CANDIDATES // 2], ordered[MAX_CANDIDATES // 2 :]
    steps = np.linspace(0, len(others) - 1, min(len(others), MAX_CANDIDATES - len(fastest))).round()
    try:
        sample = FitSample(kernel, target, {c: seconds[c] for c in (*fastest, *(others[int(i)] for i in steps))})
        sample.predict(Overheads())
        return sample
    except (CompileError, StopIteration):
        return None


class _Problem:
    """Samples whose predictions depend on the coefficients, with their predictions by the table of the code and the
    Jacobians there."""

    def __init__(self, samples: Iterable[FitSample], tell: Callable[[str], None]):
        self.samples: list[FitSample] = []
        self.start: list[Array] = []
        self.jacobians: list[Array] = []
        zero = np.zeros(len(FITTED))
        tables = [overheads_of(zero + DIFFERENCE * unit) for unit in np.eye(len(FITTED))]
        for n, sample in enumerate(islice(samples, MAX_KERNELS)):
            start = sample.predict(Overheads())
            jacobian = np.array([sample.predict(table) - start for table in tables]) / DIFFERENCE
            if np.abs(sample.centre(jacobian)).max() > 1e-3:
                self.samples.append(sample)
                self.start.append(start)
                self.jacobians.append(jacobian)
            tell(f"{n + 1} kernels priced")

    def solve(self, numbers: Sequence[int], weight: float) -> Array:
        """Return the logarithms of the factors that fit these samples best."""
        samples = [self.samples[n] for n in numbers]
        jacobians = [self.jacobians[n].copy() for n in numbers]
        predicted = [self.start[n] for n in numbers]
        logs, limit = np.zeros(len(FITTED)), math.log(MAX_FACTOR)

        def objective(logs: Array, predicted: Sequence[Array]) -> float:
            return _mean_square(samples, predicted) + weight * float(logs @ logs)

        best = objective(logs, predicted)
        for _ in range(MAX_STEPS):
            normal, gradient = weight * np.eye(len(FITTED)), -weight * logs
            for s, j, p in zip(samples, jacobians, predicted, strict=True):
                centred = s.centre(j)
                normal += centred @ centred.T / len(samples)
                gradient += centred @ s.residuals(p) / len(samples)
            step = np.clip(logs + np.linalg.solve(normal, gradient), -limit, limit) - logs
            if not step.any():
                break
            trial = [s.predict(overheads_of(logs + step)) for s in samples]
            for j, before, after in zip(jacobians, predicted, trial, strict=True):
                j += np.outer(step, after - before - step @ j) / (step @ step)
            value = objective(logs + step, trial)
            if value >= best:
                continue  # the Jacobian has learned from the step
            gain, best = 1 - value / best, value
            logs, predicted = logs + step, trial
            if gain < MIN_STEP_GAIN:
                break
        return logs


def _mean_square(samples: Sequence[FitSample], predicted: Sequence[Array]) -> float:
    """Return the mean over kernels of the weighted mean square of residuals."""
    return float(np.mean([(s.residuals(p) ** 2).sum() for s, p in zip(samples, predicted, strict=True)]))


def fit(samples: Iterable[FitSample], tell: Callable[[str], None] = lambda _: None) -> Refit | int:
    """Fit the overheads to these samples; return the number of useful kernels where they are too few.

    tell: called with the state of the work, as text for people."""
    problem = _Problem(samples, tell)
    names = sorted({s.name for s in problem.samples})
    if len(names) < MIN_KERNELS:
        return len(names)
    fold_of = {name: n % FOLDS for n, name in enumerate(names)}
    folds = [fold_of[s.name] for s in problem.samples]
    every = range(len(folds))
    held_out: dict[float, list[Array]] = {}
    for weight in WEIGHTS:
        predicted = list(problem.start)
        for fold in range(FOLDS):
            table = overheads_of(problem.solve([n for n in every if folds[n] != fold], weight))
            for n in every:
                if folds[n] == fold:
                    predicted[n] = problem.samples[n].predict(table)
            tell(f"cross-validation with weight {weight:g}: {fold + 1} of {FOLDS}")
        held_out[weight] = predicted
    weight = min(WEIGHTS, key=lambda w: _mean_square(problem.samples, held_out[w]))
    before, after = problem.start, held_out[weight]
    regrets = [np.array([s.regret(x) for s, x in zip(problem.samples, p, strict=True)]) for p in (before, after)]
    found = OverheadFit(
        overheads_of(problem.solve(every, weight)),
        len(names),
        sum(map(len, problem.samples)),
        (math.sqrt(_mean_square(problem.samples, before)), math.sqrt(_mean_square(problem.samples, after))),
        (float(regrets[0].mean()), float(regrets[1].mean())),
        time.time(),
    )
    return Refit(found, weight, is_significant(regrets[0] - regrets[1]))


def is_significant(falls: Sequence[float] | Array) -> bool:
    """Return whether the mean of paired falls of regrets is at least MIN_REGRET_FALL, and above 0 in CONFIDENCE of
    resamples of the kernels (bootstrap: Efron 1979): the mean of some twenty kernels may hang on one of them."""
    means = default_rng(0).choice(np.asarray(falls), (RESAMPLES, len(falls))).mean(axis=1)
    return bool(np.mean(falls) >= MIN_REGRET_FALL and np.quantile(means, 1 - CONFIDENCE) > 0)
