"""Extents of axes in guarded reads: a guard on one axis is none on those that its own reads have."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es


@pytest.mark.parametrize(
    "text",
    ["y[b] = sum[t](where(t < n[b], x[b,t], 0))", "y[b,t] = where(n[b] > t, x[b,t], 0) + where(n[b] > 0, x[b,t], 0)"],
)
def test_lengths_of_fewer_samples_are_refused(text) -> None:
    f, x = es.op(text), np.ones((3, 7), "f")
    assert f(x=x, n=np.array([2, 7, 3])).shape[0] == 3
    for count in (2, 4):
        with pytest.raises(es.ShapeError, match="the axis b has two extents"):
            f(x=x, n=np.ones(count, int))


def test_a_guard_on_the_axis_itself_allows_other_extents() -> None:
    f = es.op("y[t] = where(t < 2, x[t], 0) + z[t]")
    assert f(x=np.ones(2), z=np.zeros(5)).tolist() == [1, 1, 0, 0, 0]
