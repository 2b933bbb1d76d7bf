"""Evaluate integer expressions and conditions at sample points of a box: a condition that fails at one needs no
proof."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod

import numpy as np
from numpy.random import default_rng

from einsmith.base.symbolic import hint
from einsmith.ir.analysis.linear import LinearForm
from einsmith.ir.functions import FUNCTIONS
from einsmith.ir.nodes import Apply, Axis, Const, Expr, postorder

SAMPLE_POINTS = 512
"""Most sample points; a box with no more points is sampled whole."""


class Sample:
    """Sample points of a box, deterministic, and the values of expressions at them."""

    def __init__(self, extents: Sequence[int]):
        self.extents = tuple(map(hint, extents))
        self._known: dict[Expr, np.ndarray | None] = {}

    def values(self, e: Expr) -> np.ndarray | None:
        """Return the values of an integer expression at the points; None: it reads a tensor, or contains floats."""
        if e not in self._known:
            with np.errstate(all="ignore"):  # a divisor may be 0 where a condition guards it
                for x in postorder([e]):
                    if x not in self._known:
                        self._known[x] = self._value(x)
        return self._known[e]

    def of_form(self, form: LinearForm) -> np.ndarray | None:
        """Return the values of a linear form at the points; None as for `values`."""
        total = np.full(_points(self.extents).shape[1], hint(form.const))
        for atom, c in form.terms.items():
            value = self.values(atom)
            if value is None:
                return None
            total = total + hint(c) * value
        return total

    def everywhere(self) -> np.ndarray:
        """Return a mask that is True at every point."""
        return np.ones(_points(self.extents).shape[1], bool)

    def _value(self, e: Expr) -> np.ndarray | None:
        if e.dtype.is_float:
            return None
        if isinstance(e, Const):
            return np.asarray(hint(e.value))
        if isinstance(e, Axis):
            return _points(self.extents)[e.position] if e.position < len(self.extents) else None
        if not isinstance(e, Apply):
            return None
        args = [a for x in e.args if (a := self._known[x]) is not None]
        if len(args) < len(e.args):
            return None
        out = FUNCTIONS[e.fn].numpy(*args)
        return out if e.fn != "cast" or e.dtype.is_int and e.args[0].dtype.is_int else out.astype(e.dtype.numpy)


class SampledConditions:
    """The sample points of a box at which assumed conditions hold, and what they show to be unprovable.

    known: the conditions, each with the truth value that it has."""

    __slots__ = ("sample", "_known", "_mask", "_line_values")

    def __init__(self, sample: Sample, known: frozenset[tuple[Expr, bool]]):
        self.sample, self._known = sample, known
        self._mask: np.ndarray | None = None  # result of `_mask_points`
        # Values of lines, by the line's id, with the line, so that its id stays unique.
        self._line_values: dict[int, tuple[LinearForm, np.ndarray | None]] = {}

    def _mask_points(self) -> np.ndarray | None:
        """Return a mask of the sample points at which the conditions hold; None if one cannot be evaluated."""
        if self._mask is None:
            mask = self.sample.everywhere()
            for c, truth in self._known:
                value = self.sample.values(c)
                if value is None:
                    return None
                mask &= value == truth
            self._mask = mask
        return self._mask

    def values(self, form: LinearForm) -> np.ndarray | None:
        """Return a linear form's values at the sample points where the conditions hold.

        No lower bound of the form exceeds any of them. None: the values cannot be computed, or no sample point
        satisfies the conditions.
        """
        mask = self._mask_points()
        values = self.sample.of_form(form) if mask is not None and mask.any() else None
        return None if values is None else values[mask]

    def refutes(self, cond: Expr, truth: bool) -> bool:
        """Return whether a sample point satisfies the conditions but not `cond` (or its negation if not `truth`)."""
        value = self.sample.values(cond)
        mask = self._mask_points() if value is not None else None
        return mask is not None and bool((mask & (value != truth)).any())

    def is_undecided(self, cond: Expr, others: Iterable[Expr], truth: bool) -> bool:
        """Return whether neither `cond` nor its negation follows from the conditions and `others`.

        others: more conditions, which hold (or, with truth=False, do not). False: one of the two may follow.
        """
        value, mask = self.sample.values(cond), self._mask_points()
        for c in others:
            other = self.sample.values(c)
            mask = None if other is None or mask is None else mask & (other == truth)
        return value is not None and mask is not None and bool((mask & value).any() and (mask & ~value).any())

    def shows_no_better(self, values: np.ndarray | None, a: int, line: LinearForm, b: int, best: int | None) -> bool:
        """Return whether a*form - b*line bounds a form no better than `best`. values: the form's (`values`)."""
        if values is None or best is None:
            return False
        if (cached := self._line_values.get(id(line))) is None:
            cached = self._line_values[id(line)] = line, self.values(line)
        return cached[1] is not None and -(-int((values * a - cached[1] * b).min()) // a) <= best


@lru_cache(maxsize=64)
def _points(extents: tuple[int, ...]) -> np.ndarray:
    """Return points as columns: all of a small box; of a large one random points and as many near its edges."""
    count = prod(extents)
    if count <= SAMPLE_POINTS:
        return np.indices(extents).reshape(len(extents), count)
    rng = default_rng(0)
    near = [sorted({max(0, min(x, n - 1)) for x in (0, 1, n - 2, n - 1)}) for n in extents]
    anywhere = [rng.integers(0, n, SAMPLE_POINTS // 2) for n in extents]
    edges = [rng.choice(x, SAMPLE_POINTS // 2) for x in near]
    return np.array([np.concatenate(both) for both in zip(anywhere, edges, strict=True)])
