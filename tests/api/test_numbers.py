"""Python's numbers, passed: one rule for operators, compiled functions, functions of tensors, lists and parameters."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es

F = es.functional

INPUT = es.op("y[] = x[] + 1")
PARAMETER = es.op("y[] = s + 1")
STATIC = es.op("y[i] = n + 1", extents={"i": "n - n + 1"})  # known when it is compiled, as it stands in an extent
RECURRENCE = es.op("h[t] = where(t > 0, h[t-1] * 2, x[] + 1)", extents={"t": 2})
CHOSEN = es.op("y[] = where(x[] < c, 0, x[]) + 1")

CALLS = {
    "an input": INPUT,
    "a list": lambda x: es.op("y[i] = x[i] + 1")([x])[0],
    "an array": lambda x: INPUT(np.asarray(x)),
    "a parameter": lambda x: PARAMETER(s=x),
    "a parameter with a default": lambda x: es.op("y[] = s + 1", s=x)(),
    "a member of a recurrence": lambda x: RECURRENCE(x)[0],
    "an input beside a condition": lambda x: CHOSEN(x, c=x),
    "a compiled function": es.jit(lambda x: x + 1),
    "a list of arguments": lambda x: es.jit(lambda xs: xs[0] + 1)([x]),
    "an element of a formula in Python": es.jit(lambda x: es.compute((), lambda: x + 1)),
    "a view": es.jit(lambda x: x.reshape(1)[0] + 1),
    "an input in a trace": es.jit(lambda x: INPUT(x)),
    "an input that is known in a trace": lambda x: es.jit(lambda: INPUT(x))(),
    "a parameter that is known in a trace": lambda x: es.jit(lambda: PARAMETER(s=x))(),
    "a function": lambda x: F.add(x, 1),
    "a function of a formula": lambda x: -F.neg(x) + 1,
    "a function of a list": lambda x: F.add([x], 1)[0],
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("x", [3, 2**24 + 1, -(2**24) - 1, 2**31, 2**53 + 1, -(2**60) - 1])
def test_whole_numbers_stay_whole(call, x):
    """float32 has not all of those above 2**24, float64 not all above 2**53."""
    got = call(x)
    assert got.dtype == np.int64 and got == x + 1


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_fractions_keep_their_digits(call):
    got = call(0.1)
    assert got.dtype == np.float64 and got == 0.1 + 1


@pytest.mark.parametrize("x", [5, 2**24 + 1, 2**53 + 1])
def test_known_parameters_that_stand_in_extents(x):
    assert STATIC(n=x).dtype == np.int64 and STATIC(n=x) == x + 1


@pytest.mark.parametrize("x", [5, 2**40 + 2])
def test_quotients_of_numbers_are_float64(x):
    """Whatever their size: a program for numbers that int32 holds is no program for others."""
    divided = es.jit(lambda v: v / 3)
    divided(7)
    for call in (es.op("y[] = x[] / 3"), lambda v: es.op("y[] = s / 3")(s=v), divided):
        assert call(x).dtype == np.float64 and call(x) == x / 3


def test_numbers_take_the_float_type_of_what_they_meet(rng):
    for dtype in (np.float16, np.float32, np.float64):
        a = rng.standard_normal(5).astype(dtype)
        for got in (
            es.op("y[i] = a[i] * x[]")(a, 3), es.op("y[i] = a[i] * s")(a, s=0.5), es.jit(lambda a, x: a * x)(a, 0.5),
            F.mul(a, 3), es.op("t[] = x[] + 1\ny[i] = a[i] * t[]")(a=a, x=0.5),
        ):  # fmt: skip
            assert got.dtype == dtype


def test_types_of_numbers_with_integers_and_axes():
    """A whole number takes the integers' type; a fraction makes floats, float32 where the formula has no other."""
    n = np.arange(3, dtype=np.int32)
    for got in (es.op("y[i] = n[i] + s")(n, s=5), es.jit(lambda n, s: n + s)(n, 5), F.add(n, 5)):
        assert got.dtype == np.int32 and got.tolist() == [5, 6, 7]
    for got in (es.op("y[i] = n[i] * s")(n, s=0.5), es.jit(lambda n, s: n * s)(n, 0.5), F.mul(n, 0.5)):
        assert got.dtype == np.float32 and got.tolist() == [0, 0.5, 1]
    assert es.op("y[i] = i * s", extents={"i": 3})(s=2).dtype == np.int32


def test_literals_are_float32_where_nothing_else_is_there():
    """Also where a number that is passed decides which of them is taken."""
    assert es.op("y[i] = 1", extents={"i": 2})().dtype == np.float32
    mask = es.op("y[i] = where(i < n, 1, 0)", extents={"i": 3})(n=2)
    assert mask.dtype == np.float32 and mask.tolist() == [1, 1, 0]
    assert es.op("h[t] = where(t > 0, h[t-1] * 2, 1)", extents={"t": 3})().dtype == np.float32


@pytest.mark.parametrize("first,then", [(5, 2**40), (2**40, 5), (-5, -(2**31) - 1)])
def test_wide_numbers_with_narrow_integers(first, then):
    """A program that holds its numbers in int32 is not run on one that int32 does not hold."""
    n = np.arange(3, dtype=np.int32)
    parameter = es.op("y[i] = n[i] + s")
    for call in (es.jit(lambda n, s: n + s), lambda n, s: parameter(n, s=s), es.op("y[i] = n[i] + s[]")):
        for s in (first, then, first):
            assert call(n, s).tolist() == [s, s + 1, s + 2]


def test_products_of_numbers_that_leave_int32(rng):
    """The product of two numbers that int32 holds is one that it may not hold."""
    n = np.arange(3, dtype=np.int32)
    got = es.jit(lambda n, s: n + s * s)(n, 2**20)
    assert got.tolist() == [2**40, 2**40 + 1, 2**40 + 2]
    x = rng.standard_normal(5)
    assert es.jit(lambda x, s: x[s * s])(x, 2) == x[4]
    with pytest.raises(IndexError):
        es.jit(lambda x, s: x[s * s])(x, 2**16)  # 2**32, which int32 takes for 0


def test_scalars_of_numpy_are_arrays(rng):
    """In a trace, too."""
    x = rng.standard_normal(4).astype(np.float32)
    scaled = es.op("y[i] = x[i] * s")
    for s in (np.float64(0.1), np.float32(0.1)):
        for call in (lambda x, s: scaled(x, s=s), lambda x, s: es.jit(lambda x: scaled(x, s=s))(x)):
            got = call(x, s)
            assert got.dtype == (x * s).dtype
            np.testing.assert_allclose(got, x * s, rtol=1e-6)


def test_whole_numbers_of_a_choice(torch):
    mask = np.array([True, False])
    got = F.where(mask, 2**24 + 1, 0)
    assert got.dtype == np.int64 and got.tolist() == torch.where(torch.tensor(mask), 2**24 + 1, 0).tolist()
    assert F.where(mask, 0.5, 0).dtype == np.float32  # as torch's


def test_wide_numbers_inside_torch(torch):
    from einsmith.frontends.torch import operator

    f = operator(es.op("y[i] = n[i] + s"))
    n = torch.arange(3, dtype=torch.int32)
    for s in (5, 2**40, 5):
        assert f(n, s=s).tolist() == [s, s + 1, s + 2]


def test_gradients_by_numbers_have_their_type():
    square = es.op("y[] = x[] * x[]")
    for f in (square, lambda x: x * x):
        got = es.grad(f)(0.1)
        assert got.dtype == np.float64 and got == 0.2
