"""Products: derivatives of every order, also where factors are zero."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.ir.nodes import Compute, Reduce, postorder
from einsmith.ir.rewrite.simplify import values_only

ORDERS = (1, 2, 3)


def moved(f, order, directions):
    """The derivative of f along the first `order` directions, by reverse mode nested in itself."""
    g = f
    for v in directions[:order]:
        g = along(g, v)
    return g


def along(g, v):
    return lambda x: (es.grad(g)(x) * v).sum()


def expected(x, order, directions):
    """The same for the sum over rows of the product of each: the sum over distinct factors of the other factors."""
    total = 0.0
    for row, *vs in zip(x, *directions[:order], strict=True):
        for chosen in permutations(range(len(row)), order):
            rest = np.prod([row[k] for k in range(len(row)) if k not in chosen])
            total += rest * np.prod([v[k] for v, k in zip(vs, chosen, strict=True)])
    return total


def rows_with_zeros(rng, n=5):
    x = rng.standard_normal((4, n))
    for zeros in range(4):
        x[zeros, rng.permutation(n)[:zeros]] = 0.0
    return x


@pytest.mark.parametrize("order", ORDERS)
def test_any_order_where_none_to_three_factors_are_zero(order, rng):
    product = es.op("Y[b] = prod[k](X[b,k])")
    x = rows_with_zeros(rng)
    directions = [rng.standard_normal(x.shape) for _ in range(order)]
    for n in range(4):
        at, vs = x[n : n + 1], [v[n : n + 1] for v in directions]
        got = es.interpret(moved(lambda x: product(x).sum(), order, vs))(at)
        np.testing.assert_allclose(got, expected(at, order, vs), rtol=1e-12, err_msg=f"{n} zeros")


def test_the_compiled_third_order_agrees(rng):
    product = es.op("Y[b] = prod[k](X[b,k])")
    x = rows_with_zeros(rng)
    directions = [rng.standard_normal(x.shape) for _ in range(3)]
    got = es.jit(moved(lambda x: product(x).sum(), 3, directions))(x)
    np.testing.assert_allclose(got, expected(x, 3, directions), rtol=1e-9)


def test_forward_mode_nests_in_reverse_mode_and_in_itself(rng):
    product = es.op("Y[b] = prod[k](X[b,k])")
    x = rows_with_zeros(rng)
    u, v, w = (rng.standard_normal(x.shape) for _ in range(3))

    def once(x):
        return es.jvp(lambda x: product(x).sum(), (x,), (u,))[1]

    def twice(x):
        return es.jvp(once, (x,), (v,))[1]

    np.testing.assert_allclose(es.interpret(once)(x), expected(x, 1, [u]), rtol=1e-12)
    np.testing.assert_allclose(es.interpret(twice)(x), expected(x, 2, [u, v]), rtol=1e-12)
    np.testing.assert_allclose(es.interpret(along(twice, w))(x), expected(x, 3, [u, v, w]), rtol=1e-12)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "text, twin",
    [
        ("Y[i] = prod[k](where(k <= i, X[k], 1))", lambda T, x: x.cumprod(0)),
        ("Y[i] = prod[k](where(k == i, 1, X[k]*X[k] + 0.5*X[i]))", None),
        ("Y[i] = max[k](X[k] - X[i]) * prod[k](X[k])", lambda T, x: (x[:, None] - x).amax(0) * x.prod()),
        ("Y[2*i] = prod[k](X[k]) * X[i]\nY[2*i+1] = X[i]", None),
    ],
)
@pytest.mark.parametrize("zeros", range(4))
def test_products_inside_formulas_to_the_third_order(text, twin, zeros, rng, torch):
    if twin is None:
        twin = {
            "p": lambda T, x: (x * x + 0.5 * x[:, None]).masked_fill(T.eye(5).bool(), 1.0).prod(1),
            "2": lambda T, x: T.stack([x.prod() * x, x], 1).reshape(-1),
        }["p" if text.startswith("Y[i]") else "2"]
    op = es.op(text, extents={"i": 5, "k": 5})
    x = rng.standard_normal(5)
    x[rng.permutation(5)[:zeros]] = 0.0
    directions = [rng.standard_normal(5) for _ in ORDERS]
    c = rng.standard_normal(es.interpret(op)(x).shape)
    t = torch.from_numpy(x).requires_grad_()
    want = (twin(torch, t) * torch.from_numpy(c)).sum()
    for order in ORDERS:
        (g,) = torch.autograd.grad(want, t, create_graph=True)
        want = (g * torch.from_numpy(directions[order - 1])).sum()
        got = es.interpret(moved(lambda x: (op(x) * c).sum(), order, directions))(x)
        np.testing.assert_allclose(got, want.item(), rtol=1e-9, atol=1e-9, err_msg=f"order {order}")


def test_nan_and_infinity_reach_the_factors_that_they_concern(rng):
    """The product of all other factors: NaN where one of them is, whatever the factor itself; 0 * inf is NaN."""
    product = es.op("Y[b] = prod[k](X[b,k])")
    x = np.array([[np.nan, 0.0, 2.0], [0.0, 0.0, np.nan], [np.inf, 0.0, 2.0], [0.0, 0.0, np.inf], [3.0, np.inf, -2.0]])
    with np.errstate(invalid="ignore"):
        got = es.interpret(es.grad(lambda x: product(x).sum()))(x)
    nan = np.nan
    want = [[nan, nan, nan], [nan, nan, 0.0], [0.0, np.inf, nan], [nan, nan, 0.0], [-np.inf, nan, np.inf]]
    off = ~((got == want) | (np.isnan(got) & np.isnan(want)))
    # Where the factor itself is not finite, the quotient of the whole product by it is not known: NaN is allowed.
    assert not (off & np.isfinite(x)).any() and np.isnan(got[off]).all()


def test_the_gradient_sweeps_once_over_the_factors():
    """The product, that of the nonzeros and the count of zeros are one reduction, and the factors are divided out."""
    product = es.op("Y[b] = prod[k](X[b,k])")
    traced = trace_call(lambda x: es.vjp(product, x)[1](np.ones(3))[0], (np.ones((3, 5)),), {})
    nodes = [n for n in postorder(values_only(traced.graph).outputs) if isinstance(n, Compute)]
    reductions = [n.template for n in nodes if isinstance(n.template.parts[0].body, Reduce)]
    assert [len(t.parts[0].body.bodies) for t in reductions] == [3]
    assert all(len(n.shape) == 1 or n is nodes[-1] for n in nodes)
