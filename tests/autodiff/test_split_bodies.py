"""Derivatives of bodies with many factors and terms: right, and made by work that is linear in their number."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.autodiff.split_bodies import MAX_WHOLE_READS, split_body
from einsmith.driver.executable import Executable
from einsmith.ir.nodes import Compute, postorder
from tests.counting import python_calls

N = 40
"""Factors of the smaller formula: several links, so that twice as many differ in nothing but their number."""


def reads(n: int) -> list[str]:
    return [f"x{k}[i]" for k in range(n)]


FORMULAS = {
    "product": lambda n: "y[i] = " + "*".join(reads(n)),
    "quotient": lambda n: "y[i] = " + "/".join(reads(n)),
    "squared sum": lambda n: f"y[i] = ({'+'.join(reads(n))})**2",
    "sum of squares": lambda n: "y[i] = " + "+".join(f"{x}**2" for x in reads(n)),
    "product of sums": lambda n: "y[i] = " + "*".join(f"(1 + {x})" for x in reads(n)),
    "sum of products": lambda n: "y[i] = " + "+".join(f"{a}*{b}" for a, b in zip(reads(n), reads(n)[1:], strict=False)),
    "sum over an axis": lambda n: f"y[] = sum[i]({'*'.join(reads(n))})",
    "product over an axis": lambda n: f"y[] = prod[i]({'+'.join(reads(n))})",
    "guarded product": lambda n: f"y[i] = where(x0[i] < 1, {'*'.join(reads(n))}, x1[i])",
}


def arguments(rng, n: int, width: int = 3) -> list[np.ndarray]:
    return [rng.uniform(0.8, 1.2, width) for _ in range(n)]


def gradient(formula: str):
    """The derivatives of the sum of a formula's result by all its arguments."""
    f = es.op(formula)
    return lambda *xs: es.grad(lambda *a: f(*a).sum(), argnums=tuple(range(len(xs))))(*xs)


@pytest.mark.thinned(12)
@pytest.mark.parametrize("name", FORMULAS)
def test_the_work_of_compiling_gradients_is_linear(name: str, rng, monkeypatch) -> None:
    """Twice the factors take at most 2.2 times the calls, and no factor more than 25,000 calls: its read, its
    derivative and its part of a link are some 30 expressions, each met in some twenty passes."""

    def work(n: int) -> int:
        xs = arguments(rng, n)

        def compiled() -> None:
            traced = trace_call(gradient(FORMULAS[name](n)), tuple(xs), {})
            Executable(traced.graph, traced.bind, 1)

        return python_calls(compiled)

    few, many = work(N), work(2 * N)
    assert many <= 2.2 * few
    assert many <= 25_000 * 2 * N


@pytest.mark.thinned(2)
@pytest.mark.parametrize("n", [MAX_WHOLE_READS + 1, 31, 64])
def test_derivatives_of_a_product_where_factors_are_zero(n: int, rng) -> None:
    xs = arguments(rng, n, 5)
    xs[3][1] = xs[9][2] = xs[12][2] = 0.0  # one zero, and two of them
    got = gradient(FORMULAS["product"](n))(*xs)
    for k, g in enumerate(got):
        np.testing.assert_allclose(g, np.prod([x for m, x in enumerate(xs) if m != k], axis=0), rtol=1e-12)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("n", [17, 37])
def test_compiled_gradients_are_those_of_the_evaluator_and_of_differences(name: str, n: int, rng) -> None:
    f, xs = es.interpret(es.op(FORMULAS[name](n))), arguments(rng, n, 5)
    got, want = (g(*xs) for g in (gradient(FORMULAS[name](n)), es.interpret(gradient(FORMULAS[name](n)))))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-12)
    step = 1e-6
    for k in (0, 1, n // 2, n - 1):
        up, down = (np.asarray(f(*(x + s * (m == k) for m, x in enumerate(xs)))).sum() for s in (step, -step))
        assert np.asarray(got[k]).sum() == pytest.approx((up - down) / (2 * step), rel=1e-5)


def test_second_derivatives_of_a_product(rng) -> None:
    n = 21
    f, xs = es.op(FORMULAS["product"](n)), arguments(rng, n)
    xs[4][0] = 0.0

    def by_the_fifth(*a):
        return es.grad(lambda *b: f(*b).sum(), argnums=4)(*a).sum()

    got = es.grad(by_the_fifth, argnums=tuple(range(n)))(*xs)
    for k, g in enumerate(got):
        want = np.zeros(3) if k == 4 else np.prod([x for m, x in enumerate(xs) if m not in (4, k)], axis=0)
        np.testing.assert_allclose(g, want, rtol=1e-12)


def test_shifted_reads_of_one_tensor_that_guards_keep_inside(rng) -> None:
    n, width = 23, 7
    f = es.op("y[i] = " + "*".join(f"where({k} <= i, x[i-{k}], 2.0)" for k in range(n)), extents={"i": width})
    x = rng.uniform(0.5, 1.5, width)
    x[3] = 0.0
    got = es.grad(lambda x: f(x).sum())(x)
    want = np.zeros(width)
    for i in range(width):
        for k in range(i + 1):
            want[i - k] += np.prod([x[i - m] if m <= i else 2.0 for m in range(n) if m != k])
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_links_stay_under_their_guards(rng) -> None:
    """Where the guard does not hold the product is infinite, and its derivatives do not count."""
    n = 33
    quotients = "*".join(f"(1/{x})" for x in reads(n))
    xs = arguments(rng, n)
    for x in xs:
        x[1] = 0.0
    got = gradient(f"y[i] = where(x0[i] > 0, {quotients}, 3*x0[i])")(*xs)
    whole = 1 / np.prod([x[[0, 2]] for x in xs], axis=0)
    for k, g in enumerate(got):
        assert g[1] == (3.0 if k == 0 else 0.0)
        np.testing.assert_allclose(g[[0, 2]], -whole / xs[k][[0, 2]], rtol=1e-12)


def test_a_link_is_no_larger_than_operands_and_result(rng) -> None:
    """Factors over i and k, and over k and j: a product of both kinds would be stored for all i, j and k."""
    n = 24
    factors = [f"x{k}[{'ik' if k % 2 else 'kj'}]".replace("ik", "i,k").replace("kj", "k,j") for k in range(n)]
    f = es.op(f"y[i,j] = sum[k](exp({'+'.join(factors)}))")
    xs = [rng.uniform(-0.1, 0.1, (2, 65) if k % 2 else (65, 2)) for k in range(n)]
    traced = trace_call(lambda *a: es.grad(lambda *b: f(*b).sum(), argnums=tuple(range(n)))(*a), tuple(xs), {})
    assert max(np.prod(t.shape) for t in postorder(traced.graph.roots) if isinstance(t, Compute)) <= n * 130


@pytest.mark.parametrize("name, n", [("sum of squares", 80), ("sum of products", 80), ("product", MAX_WHOLE_READS)])
def test_bodies_with_small_derivatives_stay_whole(name: str, n: int, rng) -> None:
    f = es.op(FORMULAS[name](n))
    (y,) = trace_call(lambda *a: f(*a), tuple(arguments(rng, n)), {}).graph.outputs
    assert split_body(y) is None
