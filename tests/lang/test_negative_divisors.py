"""Quotients and remainders by negative numbers and by 0, in indices, guards and elements: values and gradients."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import FormulaError

SQUARES = es.op("L[] = sum[i,j](Y[i,j]*Y[i,j])")
WHERE = {  # `@` is the index that is read
    "index": "where(0 <= (@) and (@) < 5, A[@, k], 0)",
    "guard": "where((@) % 2 == 0, A[k % 5, k], 1)",
    "both": "where((@) != 1 and 0 <= (@) < 5, A[@, k], 2)",
}
INDICES = (
    "(j-1) // -2", "j // -3 + 4", "j % -4 + 3", "-(j % -5)", "(-2*j + 7) // -3", "(3*j) // -2 % -5 + 4",
    "(i - k) // -2", "(j // -2) // -3", "(k % -3) % 2", "min(j, 9) // -2 + k", "abs(j // -4)", "j // q", "j % q + 1",
    "(i + j) // (q - 1) + 3", "i8(j) % -3 + 2", "j // q // q", "-1*j // -3",
)  # fmt: skip


def check(text: str, extents: dict[str, int], rng: np.random.Generator, **parameters: int) -> None:
    """Compiled values and gradients against the evaluator, its gradient against central differences."""
    f = es.op(text, extents=extents)
    a, b = rng.standard_normal((5, extents["k"])), rng.standard_normal((extents["k"], extents["j"]))

    def value(a, b):
        return f(a, b, **parameters)

    def loss(a, b):
        return SQUARES(value(a, b))

    np.testing.assert_allclose(es.jit(value)(a, b), es.interpret(value)(a, b), rtol=1e-12, atol=1e-12)
    want = es.interpret(es.grad(loss, argnums=(0, 1)))(a, b)
    for mine, others in zip(es.jit(es.grad(loss, argnums=(0, 1)))(a, b), want, strict=True):
        np.testing.assert_allclose(mine, others, rtol=1e-10, atol=1e-10)
    move, step, at = rng.standard_normal(a.shape), 1e-6, es.interpret(loss)
    moved = (at(a + step * move, b) - at(a - step * move, b)) / (2 * step)
    np.testing.assert_allclose(np.sum(want[0] * move), moved, rtol=1e-4, atol=1e-5)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("form", WHERE)
@pytest.mark.parametrize("index", INDICES)
def test_in_a_reduction(form, index, rng):
    body = WHERE[form].replace("@", index)
    check(f"Y[i,j] = sum[k]({body} * B[k,j])", {"i": 3, "j": 17, "k": 5}, rng, **({"q": -2} if "q" in index else {}))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("combiner", ["max", "min", "prod", "mean"])
def test_other_reductions(combiner, rng):
    body = WHERE["index"].replace("@", "(j - k) // -3 % -4 + 3")
    check(f"Y[i,j] = {combiner}[k]({body} + B[k,j])", {"i": 2, "j": 15, "k": 7}, rng)


@pytest.mark.parametrize("guard", ["(k - j) % -3 == -1", "(2*j) % -2 == 0", "i8(k) % -4 == -2", "k % -2 != -1"])
def test_congruences(guard, rng):
    """Of which the gradient visits every few points."""
    check(f"Y[i,j] = sum[k](where({guard}, A[i,k], 1) * B[k,j])", {"i": 5, "j": 7, "k": 13}, rng)


def test_without_a_reduction(rng):
    index = "(j + i) // -4 % -3 + 2"
    check(f"Y[i,j] = A[{index}, (i - j) % -3 + 2] * sum[k](B[k,j])", {"i": 5, "j": 16, "k": 3}, rng)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("by", [-1, -2, -3, -8, 0])
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
def test_elements(dtype, by, rng):
    """As NumPy has them, but for 0, by which both are 0; the divisor is an element, where it is no value of the type,
    one of the type that both have in common."""
    info = np.iinfo(dtype)
    x = np.concatenate([[info.min, info.min + 1, info.max, 0, 1], rng.integers(info.min, info.max, 12)]).astype(dtype)
    d = np.full(x.shape, by, "int8")
    q, r = es.op("Q[i] = X[i] // D[i]\nR[i] = X[i] % D[i]")(x, d)
    with np.errstate(divide="ignore", over="ignore"):
        np.testing.assert_array_equal(q, x // d)
        np.testing.assert_array_equal(r, x % d)
    if by and dtype != "uint8":
        q, r = es.op(f"Q[i] = X[i] // {by}\nR[i] = X[i] % {by}")(x)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(q, x // np.dtype(dtype).type(by))
            np.testing.assert_array_equal(r, x % np.dtype(dtype).type(by))


def test_elements_in_an_index(rng):
    ids = np.array([0, -1, -7, -31, -30, -16, -2], "int32")
    x = rng.standard_normal((16, 3))
    f = es.op("Y[i,j] = X[ids[i] // -2, j] * X[ids[i] % -16 + 15, j]")
    np.testing.assert_allclose(f(ids=ids, X=x), x[ids // -2] * x[ids % -16 + 15], rtol=1e-12)


def test_a_divisor_that_is_0():
    """A literal, a parameter and a shape are refused, before anything is compiled; an axis gives 0."""
    for text in ("Y[i] = sum[k](A[k] * (i // (A.shape[0] - 5)))", "Y[i] = sum[k](where(i % s == 0, A[k], 0))"):
        f = es.op(text, extents={"i": 3})
        with pytest.raises(FormulaError, match=r"integer division by zero(.|\n)*\^"):
            f(np.ones(5), **({"s": 0} if "s ==" in text else {}))
    for fn in ("//", "%"):
        f = es.op(f"Y[i] = sum[k](where((i + k) {fn} (k - k) == 0, A[k], 0))", extents={"i": 3})
        a = np.arange(5.0)
        np.testing.assert_array_equal(f(a), np.full(3, a.sum()))
        np.testing.assert_array_equal(es.interpret(f)(a), np.full(3, a.sum()))
        np.testing.assert_array_equal(es.grad(lambda a, f=f: es.op("L[] = sum[i](Y[i])")(f(a)))(a), np.full(5, 3.0))
