"""Compute metrics for `evaluate` and `fit` from a model's outputs and the targets, as NumPy arrays.

A metric is a function (output, target) -> number of one batch, which is averaged over the samples. A metric that is no
such average is an object with `reset()`, `update(output, target)` and `compute()`, as in torchmetrics; for a group of
processes also with `states`, the names of the attributes that hold its numbers, and `add(other)`. Classification
takes outputs [N, classes] and integer targets [N]; targets of -100, which losses ignore, do not count. A sample with
NaN among its outputs counts as wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from einsmith.base.arguments import Count, Shown, check_arguments
from einsmith.base.arrays import to_array
from einsmith.base.errors import ArgumentError, IndexOutOfRange, ShapeError
from einsmith.ops.losses.classes import IGNORED


def _classes(output: Any, target: Any) -> tuple[np.ndarray, np.ndarray]:
    target = to_array(target, "target")
    if not isinstance(output, np.ndarray) or output.ndim != 2 or target.shape != output.shape[:1]:
        shape = getattr(output, "shape", type(output).__name__)
        raise ShapeError(f"classes need outputs [N, classes] and targets [N]; given {shape} and {target.shape}")
    if target.dtype.kind not in "iu":
        raise ShapeError(f"targets must be integers, the numbers of classes, not {target.dtype}")
    counted = target != IGNORED
    out, classes = output[counted], target[counted]
    outside = (classes < 0) | (classes >= out.shape[1])
    if outside.any():
        raise IndexOutOfRange(
            f"the target {classes[outside][0]} is outside the {out.shape[1]} classes; samples to ignore have {IGNORED}"
        )
    return out, classes


def predicted(output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the class with the largest output of each sample [N], and whether the sample's outputs are free of NaN
    [N]."""
    best = output.argmax(1)  # the first NaN where there is one
    return best, ~np.isnan(np.take_along_axis(output, best[:, None], 1)[:, 0])


def _same(output: Any, target: Any) -> tuple[np.ndarray, np.ndarray]:
    target = to_array(target, "target")
    if not isinstance(output, np.ndarray) or output.shape != target.shape:
        shape = getattr(output, "shape", type(output).__name__)
        raise ShapeError(f"outputs and targets need one shape; given {shape} and {target.shape}")
    return output.astype(np.float64), target.astype(np.float64)


class top_k(Shown):  # noqa: N801  # used as a function
    """The fraction of the samples whose class is among the k largest outputs."""

    states = ("right", "seen")

    @check_arguments
    def __init__(self, k: Count):
        self.k = k

    def reset(self) -> None:
        """Forget all batches."""
        self.right, self.seen = 0, 0

    def update(self, output: Any, target: np.ndarray) -> None:
        """Add a batch: outputs [N, classes] and the classes' numbers [N]."""
        out, classes = _classes(output, target)
        if self.k > output.shape[1]:
            raise ArgumentError(f"k={self.k} is more than the {output.shape[1]} classes")
        # A class is among the k largest if fewer than k outputs are larger; of equal ones the first counts first.
        own = np.take_along_axis(out, classes[:, None], 1)
        before = np.arange(out.shape[1]) < classes[:, None]
        among = ((out > own) | ((out == own) & before)).sum(1) < self.k
        self.right += int((among & predicted(out)[1]).sum())
        self.seen += len(classes)

    def add(self, other: top_k) -> None:
        """Add the batches of another one."""
        self.right, self.seen = self.right + other.right, self.seen + other.seen

    def compute(self) -> float:
        """Return the fraction over all batches; NaN without samples."""
        return self.right / self.seen if self.seen else float("nan")


def accuracy() -> top_k:
    """Return a metric: the fraction of the samples whose class has the largest output."""
    return top_k(1)


class _Counts(Shown):
    """Counts of right, wrong and missed samples of each class.

    `score` computes a class's number from them; `average` combines the classes: "macro", the mean over the classes that
    occur, or "micro", over the samples.
    """

    states = ("counts",)

    @check_arguments
    def __init__(self, average: str = "macro"):
        if average not in ("macro", "micro"):
            raise ArgumentError(f"average={average!r} is neither 'macro' nor 'micro'")
        self.average = average

    def reset(self) -> None:
        """Forget all batches."""
        self.counts = np.zeros((3, 0))

    def update(self, output: Any, target: np.ndarray) -> None:
        """Add a batch: outputs [N, classes] and the classes' numbers [N]."""
        out, classes = _classes(output, target)
        n = output.shape[1]
        if not self.counts.size:
            self.counts = np.zeros((3, n))
        if self.counts.shape[1] != n:
            raise ShapeError(f"a batch has outputs of {n} classes, but earlier batches had {self.counts.shape[1]}")
        said, sound = predicted(out)
        right = (said == classes) & sound
        for row, which in zip(self.counts, (said[right], said[~right & sound], classes[~right]), strict=True):
            row += np.bincount(which, minlength=n)

    def add(self, other: _Counts) -> None:
        """Add the batches of another one."""
        if self.counts.size and other.counts.size:
            self.counts = self.counts + other.counts
        elif other.counts.size:
            self.counts = other.counts

    def compute(self) -> float:
        """Return the score over all batches, averaged over the classes that occur; NaN without samples."""
        counts = self.counts.sum(1, keepdims=True) if self.average == "micro" else self.counts
        counts = counts[:, counts.sum(0) > 0]
        return float(np.mean(self.score(*counts))) if counts.size else float("nan")

    def score(self, right: np.ndarray, wrong: np.ndarray, missed: np.ndarray) -> np.ndarray:
        """Return the score of each class from its counts of right, wrong and missed predictions."""
        raise NotImplementedError


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)


class precision(_Counts):  # noqa: N801
    """The fraction of the samples predicted as a class that belong to it."""

    def score(self, right: np.ndarray, wrong: np.ndarray, missed: np.ndarray) -> np.ndarray:
        return _ratio(right, right + wrong)


class recall(_Counts):  # noqa: N801
    """The fraction of a class's samples that are predicted as it."""

    def score(self, right: np.ndarray, wrong: np.ndarray, missed: np.ndarray) -> np.ndarray:
        return _ratio(right, right + missed)


class f1(_Counts):  # noqa: N801
    """The harmonic mean of precision and recall."""

    def score(self, right: np.ndarray, wrong: np.ndarray, missed: np.ndarray) -> np.ndarray:
        return _ratio(2 * right, 2 * right + wrong + missed)


def mean_absolute_error(output: Any, target: np.ndarray) -> float:
    """Return the mean of |output - target|."""
    a, b = _same(output, target)
    return float(np.abs(a - b).mean())


def mean_squared_error(output: Any, target: np.ndarray) -> float:
    """Return the mean of (output - target)**2."""
    a, b = _same(output, target)
    return float(((a - b) ** 2).mean())


class r2(Shown):  # noqa: N801
    """The fraction of the targets' variance that the outputs explain; NaN where all targets are equal."""

    states = ("seen", "mean", "spread", "wrong")

    def reset(self) -> None:
        """Forget all batches."""
        self.seen, self.mean, self.spread, self.wrong = 0, 0.0, 0.0, 0.0

    def update(self, output: Any, target: np.ndarray) -> None:
        """Add a batch."""
        a, b = _same(output, target)
        if b.size:
            mean = float(b.mean())
            self._add(b.size, mean, float(((b - mean) ** 2).sum()), float(((a - b) ** 2).sum()))

    def add(self, other: r2) -> None:
        """Add the batches of another one."""
        if other.seen:
            self._add(other.seen, other.mean, other.spread, other.wrong)

    def _add(self, seen: int, mean: float, spread: float, wrong: float) -> None:
        """Merge squared distances from the mean, since sums of squares cancel where the mean is large.

        Source: T. Chan, G. Golub, R. LeVeque, Updating Formulae and a Pairwise Algorithm, 1979.
        """
        n, apart = self.seen + seen, mean - self.mean
        self.spread += spread + apart * apart * self.seen * seen / n
        self.mean += apart * seen / n
        self.seen, self.wrong = n, self.wrong + wrong

    def compute(self) -> float:
        """Return the fraction over all batches."""
        return 1 - self.wrong / self.spread if self.spread > 0 else float("nan")


Metric = Callable[[Any, np.ndarray], float]
