"""What the names in a formula are: parameters that stand in left indices alone, axes with the name of a tensor."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es


@pytest.mark.parametrize("text,given", [
    ("y[st*i+r] += z[i,r]", {"st": 2}), ("y[i*st+r] += z[i,r]", {"st": 3}), ("y[i+st*r, i] += z[i,r]", {"st": 2}),
    ("y[st*i+off, r] += z[i,r]", {"st": 2, "off": 1}),
])  # fmt: skip
def test_parameters_that_stand_in_left_indices_alone(text, given, rng):
    z = rng.standard_normal((3, 2))
    spelled = text
    for name, value in given.items():
        spelled = spelled.replace(name, str(value))
    assert es.op(text).parameters == tuple(given)
    np.testing.assert_array_equal(es.op(text)(z, **given), es.op(spelled)(z))
    np.testing.assert_array_equal(es.op(text, **given)(z), es.op(spelled)(z))
    with pytest.raises(es.FormulaError, match="no parameter st is given"):
        es.op(text)(z)


def test_pieces_at_a_parameter():
    halves = es.op("y[s*i] = x[i]\ny[s*i+1] = -x[i]")
    np.testing.assert_array_equal(halves(np.arange(3.0), s=2), [0, 0, 1, -1, 2, -2])


@pytest.mark.parametrize("text", [
    "Y[@X] = X[X]", "Y[i] = sum[j, @X](X[i,j])", "Z[i] = X[i]\nY[i] = max[i1](X[i1]) + max[@X](X[i])",
])  # fmt: skip
def test_an_axis_with_the_name_of_a_tensor_is_pointed_at(text):
    with pytest.raises(es.FormulaError, match="X names both an axis and a tensor") as e:
        es.op(text.replace("@", ""))
    assert e.value.offset == text.index("@")
