"""Places in sorted rows and most frequent elements, of rows below and above the length that is compared whole."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith import functional as F
from einsmith.frontends.aten.counting import mode
from einsmith.ops.counting import FEW


def places(row: np.ndarray, x: np.ndarray, right: bool) -> np.ndarray:
    """NumPy's places; what comes after all numbers of a row comes after its NaN, too."""
    at, numbers = np.searchsorted(row, x, "right" if right else "left"), np.sum(row == row)
    return np.where(at >= numbers, len(row), at)


LENGTHS = [1, 2, FEW, FEW + 1, 2 * FEW - 1, 2 * FEW, 2 * FEW + 1, 1000]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
@pytest.mark.parametrize("n", LENGTHS)
def test_places_in_sorted_rows(rng, n, dtype, right):
    values = rng.integers(-20, 20, (3, n)).astype(dtype)
    x = rng.integers(-22, 22, (3, 5)).astype(dtype)
    if dtype != "i4":
        values[1, :: max(n // 3, 1)], values[2, n // 2] = np.inf, -np.inf
        values[0, n // 2 :] = np.nan
        x[:, 0], x[:, 1], x[:, 2] = np.nan, np.inf, -np.inf
    values = np.sort(values, -1)
    y = es.jit(lambda a, x: F.searchsorted(a, x, right=right))(values, x)
    np.testing.assert_array_equal(y, [places(a, b, right) for a, b in zip(values, x, strict=True)])
    one = es.jit(lambda a, x: F.searchsorted(a, x, right=right))(values[0], x)
    np.testing.assert_array_equal(one, places(values[0], x, right))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("n", LENGTHS)
def test_most_frequent_elements(rng, n, dim):
    x = rng.integers(-n // 3, n // 3 + 1, (3, n) if dim else (n, 3)).astype(np.float32)
    (x[1] if dim else x[:, 1])[: n // 2] = np.nan  # all of which are equal
    value, place = es.jit(lambda x: mode(x, dim))(x)
    counted = [np.unique(row, return_counts=True) for row in (x if dim else x.T)]
    want = np.array([values[counts.argmax()] for values, counts in counted])
    np.testing.assert_array_equal(value, want)
    np.testing.assert_array_equal(np.take_along_axis(x, np.expand_dims(place, dim), dim).squeeze(dim), want)
