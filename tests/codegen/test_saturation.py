"""Floats as integers: whole vectors and what is left beside them, at the ends of the integers and beyond."""

from __future__ import annotations

import math

import numpy as np
import pytest

import einsmith as es


@pytest.mark.parametrize("n", [1, 5, 67])
@pytest.mark.parametrize("of", [np.float32, np.float64])
@pytest.mark.parametrize("integer", ["i32", "i64"])
def test_out_of_range_is_the_nearest_integer_and_nan_is_zero(integer, of, n, rng):
    info = np.iinfo(np.int32 if integer == "i32" else np.int64)
    end = of(2.0 ** (info.bits - 1))
    below, above = np.nextafter(end, of(0)), np.nextafter(-end, of(-np.inf))
    edges = [end, below, -end, above, np.inf, -np.inf, np.nan, -0.0, 0.7, -0.7]
    x = np.concatenate([edges, rng.standard_normal(n) * 2.0**33]).astype(of)
    rng.shuffle(x)

    def nearest(v: float) -> int:
        if math.isinf(v):
            return info.max if v > 0 else info.min
        return 0 if math.isnan(v) else min(max(int(v), info.min), info.max)

    got = es.op(f"z[i] = {integer}(x[i])")(x)
    assert got.dtype == info.dtype
    assert got.tolist() == [nearest(float(v)) for v in x]
