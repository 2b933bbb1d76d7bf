"""Evaluate integer expressions and conditions at sample points of a box: a condition that fails at one needs no
proof."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np
from numpy.random import default_rng

from einsmith.ir.analysis.linear import LinearForm
from einsmith.ir.functions import FUNCTIONS
from einsmith.ir.nodes import Apply, Axis, Const, Expr, postorder

SAMPLE_POINTS = 512
"""Most sample points; a box with no more points is sampled whole."""


class Sample:
    """Sample points of a box, deterministic, and the values of expressions at them."""

    def __init__(self, extents: Sequence[int]):
        self.extents = tuple(extents)
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
        total = np.full(_points(self.extents).shape[1], form.const)
        for atom, c in form.terms.items():
            value = self.values(atom)
            if value is None:
                return None
            total = total + c * value
        return total

    def everywhere(self) -> np.ndarray:
        """Return a mask that is True at every point."""
        return np.ones(_points(self.extents).shape[1], bool)

    def _value(self, e: Expr) -> np.ndarray | None:
        if e.dtype.is_float:
            return None
        if isinstance(e, Const):
            return np.asarray(e.value)
        if isinstance(e, Axis):
            return _points(self.extents)[e.position] if e.position < len(self.extents) else None
        if not isinstance(e, Apply):
            return None
        args = [a for x in e.args if (a := self._known[x]) is not None]
        if len(args) < len(e.args):
            return None
        out = FUNCTIONS[e.fn].numpy(*args)
        return out if e.fn != "cast" or e.dtype.is_int and e.args[0].dtype.is_int else out.astype(e.dtype.numpy)


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
