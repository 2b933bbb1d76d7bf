"""Operators go through pickle as their formula."""

import pickle

import numpy as np

import einsmith as es


def test_an_unpickled_operator_is_its_own():
    """It must not share entries with an operator that was made in this process."""
    double = es.op("Y[i] = a*X[i]", a=2.0, name="double")
    other = pickle.loads(pickle.dumps(double))
    x = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(other(x), 2 * x)
    made = [es.op(f"Y[i] = {k}*X[i]") for k in range(3, 9)]
    again = [pickle.loads(pickle.dumps(f)) for f in made]
    for k, f, g in zip(range(3, 9), made, again, strict=True):
        np.testing.assert_array_equal(f(x), k * x)
        np.testing.assert_array_equal(g(x), k * x)
    assert other.name == "double" and other.signature == double.signature
