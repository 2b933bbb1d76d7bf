"""Metrics for `evaluate` and `fit`: of a model's outputs and the targets, as NumPy arrays.

A metric is a function (output, target) -> number of one batch, whose mean over the samples is taken, or an object with
`reset()`, `update(output, target)` and `compute()` for what is no such mean, as torchmetrics has them. Classes are told
by outputs [N, classes] and integer targets [N]; targets of -100, which losses ignore, do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from einsmith.arguments import Count, Shown, checked
from einsmith.arrays import to_array
from einsmith.errors import ArgumentError, IndexOutOfRange, ShapeError
from einsmith.functional.losses.classes import IGNORED


def _classes(output: Any, target: Any) -> tuple[np.ndarray, np.ndarray]:
    target = to_array(target, "target")
    if not isinstance(output, np.ndarray) or output.ndim != 2 or target.shape != output.shape[:1]:
        shape = getattr(output, "shape", type(output).__name__)
        raise ShapeError(f"classes need outputs [N, classes] and targets [N]; given {shape} and {target.shape}")
    if target.dtype.kind not in "iu":
        raise ShapeError(f"classes are told by integer targets; these are {target.dtype}")
    counted = target != IGNORED
    found = target[counted]
    if found.size and not 0 <= found.min() <= found.max() < output.shape[1]:
        wrong = found.min() if found.min() < 0 else found.max()
        raise IndexOutOfRange(f"the target {wrong} is no class of the {output.shape[1]} that outputs have")
    return output[counted], found


def _same(output: Any, target: Any) -> tuple[np.ndarray, np.ndarray]:
    target = to_array(target, "target")
    if not isinstance(output, np.ndarray) or output.shape != target.shape:
        shape = getattr(output, "shape", type(output).__name__)
        raise ShapeError(f"outputs and targets need one shape; given {shape} and {target.shape}")
    return output.astype(np.float64), target.astype(np.float64)


class top_k(Shown):  # noqa: N801  # used as a function
    """The part of the samples whose class is among the k largest outputs."""

    @checked
    def __init__(self, k: Count):
        self.k = k

    def reset(self) -> None:
        self.right, self.seen = 0, 0

    def update(self, output: Any, target: np.ndarray) -> None:
        out, classes = _classes(output, target)
        if self.k > output.shape[1]:
            raise ArgumentError(f"k={self.k} is more than the {output.shape[1]} classes")
        # A class is among the k largest where fewer than k outputs are larger, the first of equal ones counting first.
        own = np.take_along_axis(out, classes[:, None], 1)
        before = np.arange(out.shape[1]) < classes[:, None]
        self.right += int((((out > own) | ((out == own) & before)).sum(1) < self.k).sum())
        self.seen += len(classes)

    def compute(self) -> float:
        return self.right / self.seen if self.seen else float("nan")


def accuracy() -> top_k:
    """The part of the samples whose class has the largest output."""
    return top_k(1)


class _Counts(Shown):
    """Right, wrong and missed samples of each class; `score` makes a number of them, `average` one of all classes:
    "macro", the mean over the classes that occur, or "micro", over the samples."""

    @checked
    def __init__(self, average: str = "macro"):
        if average not in ("macro", "micro"):
            raise ArgumentError(f"average={average!r} is neither 'macro' nor 'micro'")
        self.average = average

    def reset(self) -> None:
        self.counts = np.zeros((3, 0))

    def update(self, output: Any, target: np.ndarray) -> None:
        out, classes = _classes(output, target)
        n = output.shape[1]
        if self.counts.shape[1] != n:
            self.counts = np.zeros((3, n))
        said = out.argmax(1)
        right = said == classes
        for row, which in zip(self.counts, (said[right], said[~right], classes[~right]), strict=True):
            row += np.bincount(which, minlength=n)

    def compute(self) -> float:
        counts = self.counts.sum(1, keepdims=True) if self.average == "micro" else self.counts
        counts = counts[:, counts.sum(0) > 0]
        return float(np.mean(self.score(*counts))) if counts.size else float("nan")

    def score(self, right: np.ndarray, wrong: np.ndarray, missed: np.ndarray) -> np.ndarray:
        raise NotImplementedError


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)


class precision(_Counts):  # noqa: N801
    """Of the samples that are said to be of a class, the part that is."""

    def score(self, right: np.ndarray, wrong: np.ndarray, missed: np.ndarray) -> np.ndarray:
        return _ratio(right, right + wrong)


class recall(_Counts):  # noqa: N801
    """Of the samples of a class, the part that is said to be."""

    def score(self, right: np.ndarray, wrong: np.ndarray, missed: np.ndarray) -> np.ndarray:
        return _ratio(right, right + missed)


class f1(_Counts):  # noqa: N801
    """The harmonic mean of precision and recall."""

    def score(self, right: np.ndarray, wrong: np.ndarray, missed: np.ndarray) -> np.ndarray:
        return _ratio(2 * right, 2 * right + wrong + missed)


def mean_absolute_error(output: Any, target: np.ndarray) -> float:
    a, b = _same(output, target)
    return float(np.abs(a - b).mean())


def mean_squared_error(output: Any, target: np.ndarray) -> float:
    a, b = _same(output, target)
    return float(((a - b) ** 2).mean())


class r2(Shown):  # noqa: N801
    """The part of the targets' variance that the outputs explain."""

    def reset(self) -> None:
        self.sums = np.zeros(4)

    def update(self, output: Any, target: np.ndarray) -> None:
        a, b = _same(output, target)
        self.sums += b.size, b.sum(), (b * b).sum(), ((a - b) ** 2).sum()

    def compute(self) -> float:
        n, total, squares, wrong = self.sums
        spread = squares - total * total / n if n else 0.0
        return float(1 - wrong / spread) if spread > 0 else float("nan")


Metric = Callable[[Any, np.ndarray], float]
