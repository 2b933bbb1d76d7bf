"""Reads that a guard bounds by elements of integer tensors: `where(e > row[s[e]], x[e-1], 0)`, checked at each call."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import einsmith as es

SCAN = "T[e,p] = where(e > row[s[e]], T[e-1,p]*(1 - a[e-1,p]), 1.0)\nreturn T"
LENGTHS = [[1], [3, 0, 4], [1] * 9, [0, 16, 1], [33]]


def lists(lengths):
    """The first positions of ragged lists, and the list of each element."""
    return np.concatenate([[0], np.cumsum(lengths)]), np.repeat(np.arange(len(lengths)), lengths)


def scan(row, s, a):
    out = []
    for e in range(len(a)):
        out.append(out[-1] * (1 - a[e - 1]) if e > row[s[e]] else torch.ones_like(a[0]))
    return torch.stack(out)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("width", [1, 16])
@pytest.mark.parametrize("options", [{}, {"checkpoint": 4}], ids=str)
def test_a_recurrence_over_ragged_lists(rng, lengths, width, options):
    row, s = lists(lengths)
    a = rng.random((len(s), width))
    x = torch.tensor(a, requires_grad=True)
    wanted = scan(row, s, x)
    f = es.op(SCAN)
    np.testing.assert_allclose(f(row, s, a, **options), wanted.detach(), rtol=1e-13)
    gradient = torch.zeros_like(x)
    if wanted.requires_grad:
        (gradient,) = torch.autograd.grad((wanted**2).sum(), x, create_graph=True)
    loss = lambda a: (f(row, s, a, **options) ** 2).sum()  # noqa: E731
    np.testing.assert_allclose(es.grad(loss)(a), gradient.detach(), rtol=1e-11, atol=1e-12)
    if gradient.requires_grad:
        (second,) = torch.autograd.grad((gradient**2).sum(), x)
        got = es.grad(lambda a: (es.grad(loss)(a) ** 2).sum())(a)
        np.testing.assert_allclose(got, second, rtol=1e-10, atol=1e-10)


def test_a_list_of_one_element_is_checked_too():
    f, none = es.op(SCAN), np.zeros(1, np.int64)
    assert f(none, none, np.ones((1, 3))).tolist() == [[1, 1, 1]]
    with pytest.raises(es.IndexOutOfRange, match="admits index -1 of dimension 0"):
        f(none - 1, none, np.ones((1, 3)))


@pytest.mark.parametrize("lengths", LENGTHS)
def test_neighbours_within_lists(rng, lengths):
    """Vectors of elements whose first or last neighbour does not exist; sums over each list."""
    row, s = lists(lengths)
    x = rng.standard_normal(len(s))
    f = es.op(
        """
        before[e] = where(e > row[s[e]], x[e-1], 0)
        after[e] = where(e + 1 < row[s[e]+1], x[e+1], 0)
        total[t] = sum[e](where(row[t] < e and e < row[t+1], x[e]*x[e-1], 0))
        """
    )
    before = [x[e - 1] if e > row[s[e]] else 0 for e in range(len(s))]
    after = [x[e + 1] if e + 1 < row[s[e] + 1] else 0 for e in range(len(s))]
    total = [sum(x[e] * x[e - 1] for e in range(row[t] + 1, row[t + 1])) for t in range(len(lengths))]
    for got, wanted in zip(f(row, s, x), (before, after, total), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-13, atol=1e-13)
    np.testing.assert_array_equal(es.interpret(lambda r, s, x: f(r, s, x)[0])(row, s, x), before)
    es.check_gradients(lambda x: f(row, s, x), x, order=2)


@pytest.mark.parametrize("jit", [False, True])
def test_a_guard_that_admits_a_missing_element_is_an_error_before_anything_runs(rng, jit):
    row, s = lists([3, 4])
    a = rng.random((7, 2))
    f = es.jit(es.op(SCAN)) if jit else es.op(SCAN)
    g = es.jit(lambda row, s, a: es.grad(lambda a: es.op(SCAN)(row, s, a).sum())(a))
    f(row, s, a), g(row, s, a)
    row[0] = -1
    for function in (f, g):
        with pytest.raises(es.IndexOutOfRange, match=r"element \[0\] of row.* is -1, which admits index -1 of dim"):
            function(row, s, a)
    after = es.op("y[e] = where(e + 1 < row[s[e]+1], x[e+1], 0)")
    row[0] = 0
    after(row, s, a[:, 0])
    row[2] = 8
    with pytest.raises(es.IndexOutOfRange, match=r"\[2\] of row.* is 8, which admits index 7 of dimension 0 of x") as e:
        after(row, s, a[:, 0])
    assert "y[e] = where(e + 1" in str(e.value) and "^" in str(e.value)


@pytest.mark.parametrize(
    "text",
    [
        "y[e] = where(m[e] > 0, x[e-1], 0)",  # flags bound no position
        "y[e] = where(e > x[e], x[e-1], 0)\nz[e] = x[m[e]]\nreturn y",  # floats
        "y[e,i] = where(i > m[e], x[e-1], 0)",  # another axis
        "y[e] = where(e > m[e] or e > 3, x[e-1], 0)",
    ],
)
def test_other_guards_prove_nothing(text):
    with pytest.raises(es.FormulaError, match="the read of x, dimension 0, runs from -1") as error:
        es.op(text, extents={"e": 7, "i": 3} if "i]" in text else {"e": 7})(m=np.ones(7, np.int64), x=np.ones(7))
    assert "guard the read" in error.value.hint


def test_a_guard_of_the_recurrence_itself_cannot_be_checked_before_it():
    with pytest.raises(es.FormulaError, match="c computes or guards in the recurrence"):
        es.op("T[e] = where(e > c[e], T[e-1], 1.0)\nc[e] = i32(T[e])\nreturn T", extents={"e": 5})()
