"""Exponentials of sums: which separate without permission, which with it, and what becomes of extreme numbers."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base import environment
from einsmith.base.dtypes import f32
from einsmith.base.numerics import Numerics
from einsmith.ir.analysis.signs import is_never
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Axis, Const, Read, apply
from einsmith.ir.rewrite import separate_exponentials as separation
from einsmith.ir.verify import verify_graph
from einsmith.passes.algebra.inline import inline
from einsmith.passes.algebra.separate_exponentials import separate_exponentials
from einsmith.passes.algebra.simplify import simplify

INF = float("inf")
AFT = "y[i,d] = g[i,d]*sum[j](exp(k[j,d] + w[i,j])*v[j,d])/sum[j](exp(k[j,d] + w[i,j]))"
NAMED = "e[i,j,d] = exp(k[j,d] + w[i,j])\ny[i,d] = g[i,d]*sum[j](e[i,j,d]*v[j,d])/sum[j](e[i,j,d])"
CAUSAL = "y[i,d] = g[i,d]*sum[j](where(j <= i, exp(w[i,j] + k[j,d])*v[j,d], 0))"
TEXTBOOK = """p[t,b,i] = where(t > 0, a[t-1,b,i], 0)
m[t,b,j] = stop_gradient(max[i](p[t,b,i] + M[i,j]))
a[t,b,j] = e[t,b,j] + where(t > 0, m[t,b,j] + log(sum[i](exp(p[t,b,i] + M[i,j] - m[t,b,j]))), 0)
y[b] = logsumexp[j](a[a.shape[0]-1,b,j])"""
CRF = """a[t,b,j] = where(t == 0, e[t,b,j], logsumexp[i](a[t-1,b,i] + M[i,j]) + e[t,b,j])
y[b] = logsumexp[j](a[a.shape[0]-1,b,j])"""
MAXIMA = "y[i,d] = sum[j](exp(w[i,j] + k[j,d] - max[l](w[i,l]) - max[l](k[l,d]))*v[j,d])"
GAUSSIANS = "y[i,j,c] = sum[p](exp(-((s[i] - m[p,0])**2 + (r[j] - m[p,1])**2)/(2*q[p]**2))*v[p,c])"
ATTENTION = {"g": "id", "k": "jd", "v": "jd", "w": "ij"}
CHAIN = {"e": "tbi", "M": "ii"}
PERMITTED = {
    "one formula": (AFT, ATTENTION),
    "named": (NAMED, ATTENTION),
    "causal": (CAUSAL, ATTENTION),
    "scaled": ("y[i,d] = sum[j](g[i,d]*exp((w[i,j] - k[j,d])*0.5/(1 + abs(u[j])))/3)", ATTENTION | {"u": "j"}),
    "three tables": ("y[i,d,n] = sum[j](exp(w[i,j] + k[j,d] - u[j,n]))", ATTENTION | {"u": "jn"}),
    "a free term": ("y[i,d] = sum[j](exp(w[i,j] + k[j,d] - g[i,d])*v[j,d])", ATTENTION),
    "no common axis": ("y[i,d] = sum[j,n](exp(w[i,j] + u[n,d]))", {"w": "ij", "u": "nd"}),
    "logsumexp": ("y[i,d] = logsumexp[j](w[i,j] - k[j,d] + g[i,d])", ATTENTION),
    "logsumexp of one table": ("y[d] = logsumexp[i,j](w[i,j] + k[j,d])", ATTENTION),
    "a divisor": ("y[i,d] = sum[j](v[j,d]/exp(w[i,j] + k[j,d]))", ATTENTION),
    "a chain": (CRF, CHAIN),
    "a chain, textbook": (TEXTBOOK, CHAIN),
}  # fmt: skip
SAFE = {
    "maxima": (MAXIMA, ATTENTION),
    "Gaussians": (GAUSSIANS, {"s": "i", "r": "j", "m": "p2", "q": "p", "v": "pc"}),
    "magnitudes": ("y[i,d] = sum[j](exp(min(w[i,j], 0) - abs(k[j,d]))*v[j,d])", ATTENTION),
    "a divisor": ("y[i,d] = sum[j](v[j,d]/exp(w[i,j]**2 + abs(k[j,d])))", ATTENTION),
    "named terms": (
        "a[i,j] = -(w[i,j]**2)\nb[j,d] = -exp(k[j,d])\ny[i,d] = sum[j](exp(a[i,j] + b[j,d])*v[j,d])",
        ATTENTION,
    ),
    "in steps": (
        "y[t,b,i] = v[t,b,i] + sum[j](exp(-(w[i,j]**2) - where(t > 0, y[t-1,b,j], 0)**2))",
        {"v": "tbi", "w": "ii"},
    ),
}  # fmt: skip
SIZES = [
    {"i": 7, "j": 17, "d": 15, "n": 3, "t": 5, "b": 2, "p": 11, "c": 2},
    {"i": 1, "j": 2, "d": 1, "n": 1, "t": 2, "b": 1, "p": 1, "c": 3},
]  # fmt: skip


@pytest.fixture
def dear(monkeypatch):
    """Exponentials so dear that all separate which can."""
    monkeypatch.setattr(separation, "EXPONENTIAL_COST", 1e9)


def drawn(text, axes, sizes, rng, dtype=np.float64):
    """An operator, and random arrays for its inputs, by name."""
    f = es.op(text + "\nreturn y")
    shapes = {name: [int(sizes.get(a, a)) for a in axes[name]] for name in f.inputs}
    return f, {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def derivatives(f, arrays, permits):
    """Value, gradients, and gradients of a product with the gradients, by each argument, evaluated after the pass."""
    weights = [np.cos(np.arange(a.size)).reshape(a.shape) for a in arrays.values()]
    every = tuple(range(len(arrays)))

    def loss(*xs):
        y = f(*xs)
        return (y * es.sin(y)).sum()

    def product(*xs):
        return sum((g * w).sum() for g, w in zip(es.grad(loss, argnums=every)(*xs), weights, strict=True))

    def all_orders(*xs):
        return f(*xs), *es.grad(loss, argnums=every)(*xs), *es.grad(product, argnums=every)(*xs)

    numerics = Numerics(separate_exponentials=permits)
    traced = trace_call(all_orders, tuple(arrays.values()), {}, numerics=numerics)
    with numerics.allowing():
        graph = separate_exponentials(inline(simplify(traced.graph)))
    verify_graph(graph)
    values = [*arrays.values(), *(traced.bind[x] for x in graph.inputs[len(arrays) :])]
    return evaluate(graph, values)[0]


def compared(some, others, tolerance=1e-11):
    for x, y in zip(some, others, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * max(1.0, np.abs(y).max()))


def separated(text, axes, sizes, permits=False) -> bool:
    """Whether the pass changes the graph of the values."""
    f, arrays = drawn(text, axes, sizes, np.random.default_rng(0))
    numerics = Numerics(separate_exponentials=permits)
    graph = trace_call(f, tuple(arrays.values()), {}, numerics=numerics).graph
    with numerics.allowing():
        return separate_exponentials(inline(simplify(graph))) is not inline(simplify(graph))


@pytest.mark.parametrize("sizes", SIZES, ids=["odd", "ones"])
@pytest.mark.parametrize("case", PERMITTED)
def test_permitted(case, sizes, dear, rng, monkeypatch):
    f, arrays = drawn(*PERMITTED[case], sizes, rng)
    got = derivatives(f, arrays, True)
    monkeypatch.setenv(environment.WITHOUT.name, separation.SEPARATE_EXPONENTIALS)
    want = derivatives(f, arrays, False)
    compared(got, want)


@pytest.mark.parametrize("sizes", SIZES, ids=["odd", "ones"])
@pytest.mark.parametrize("case", SAFE)
def test_safe(case, sizes, dear, rng, monkeypatch):
    f, arrays = drawn(*SAFE[case], sizes, rng)
    got = derivatives(f, arrays, False)
    monkeypatch.setenv(environment.WITHOUT.name, separation.SEPARATE_EXPONENTIALS)
    want = derivatives(f, arrays, False)
    compared(got, want)


@pytest.mark.parametrize("case", ["in steps", "a chain", "a chain, textbook"])
def test_loops(case, dear, rng, monkeypatch):
    """The steps of loops are separated where the loop is made."""
    f, arrays = drawn(*{**SAFE, **PERMITTED}[case], SIZES[0], rng)
    every = tuple(range(len(arrays)))

    def values(*xs):
        return f(*xs), *es.grad(lambda *ys: (f(*ys) ** 2).sum(), argnums=every)(*xs)

    got = es.jit(values, separate_exponentials=case not in SAFE)(*arrays.values())
    monkeypatch.setenv(environment.WITHOUT.name, separation.SEPARATE_EXPONENTIALS)
    compared(got, es.jit(values)(*arrays.values()))


def test_choice():
    """What is safe separates in any case, other exponentials only if they may, and small sums not at all."""
    large = {"i": 64, "j": 64, "d": 64, "p": 64, "c": 3, "n": 16, "t": 8, "b": 16}
    small = {"i": 6, "j": 5, "d": 4, "p": 7, "c": 3, "n": 2, "t": 4, "b": 3}
    for text, axes in SAFE.values():
        assert separated(text, axes, large)
        assert not separated(text, axes, small)
    for case, (text, axes) in PERMITTED.items():
        if "logsumexp" not in text and "chain" not in case:
            assert not separated(text, axes, large)
            assert separated(text, axes, large, True)


@pytest.mark.parametrize("text", [AFT, NAMED, CAUSAL])
def test_default_keeps_extremes(text, dear, rng):
    """Without permission, terms that are large but cancel, and infinite ones, give what the formula says."""
    f, arrays = drawn(text, ATTENTION, SIZES[0], rng, np.float32)
    arrays["w"][:, ::2] += 200
    arrays["k"][::2] -= 200
    arrays["w"][0, 1:] = -INF
    want = es.interpret(f)(**arrays)
    assert np.isfinite(want).all()
    np.testing.assert_allclose(es.jit(f)(*arrays.values()), want, rtol=2e-5)


def test_permission_balances(dear, rng):
    """With permission, nothing overflows that did not, and only what is far below its column's maximum is lost."""
    f, arrays = drawn(AFT, ATTENTION, SIZES[0], rng, np.float32)
    arrays["w"][:, ::2] += 200
    arrays["k"][::2] -= 200
    arrays["w"][2, 1:] = -INF
    arrays["w"][:, 3] = -INF
    run = es.jit(f, separate_exponentials=True)
    np.testing.assert_allclose(run(*arrays.values()), es.interpret(f)(**arrays), rtol=2e-5)
    arrays["w"][4] = -120  # a row whose exponentials are all below 1e-38 of the others'
    assert np.isnan(run(*arrays.values())[4]).all()
    assert np.isfinite(np.delete(run(*arrays.values()), 4, 0)).all()


@pytest.mark.parametrize("gap", [0.0, 60.0, 200.0, INF])
def test_safe_extremes(gap, dear, rng, monkeypatch):
    """Differences from maxima: the products underflow where the exponential of the sum does."""
    f, arrays = drawn(MAXIMA, ATTENTION, SIZES[0], rng, np.float32)
    arrays["w"][:, 1:] -= gap
    arrays["k"][0] -= gap
    arrays["w"][:, 2] = arrays["w"][:, 0]
    want = es.interpret(f)(**arrays)
    np.testing.assert_allclose(es.jit(f)(*arrays.values()), want, rtol=2e-5, atol=1e-37)


def test_logsumexp_of_forbidden_transitions(dear, rng):
    """Tables with -inf: the value is -inf where no pair is left, its derivatives are 0 there, and none is NaN."""
    f = es.op("y[b,j] = logsumexp[i](p[b,i] + M[i,j])\nreturn y")
    p, m = rng.standard_normal((3, 5)).astype(np.float32), rng.standard_normal((5, 4)).astype(np.float32)
    m[:, 1] = -INF
    m[3] = -INF
    p[0, :3] = -INF
    p[1] = -INF
    m[4, 2] = -INF
    p[2] += 1000

    def both(p, m):
        y = f(p=p, M=m)
        return y, es.grad(lambda p, m: es.where(f(p=p, M=m) > -1e30, f(p=p, M=m), 0).sum(), argnums=(0, 1))(p, m)

    want, gradients = es.jit(both)(p, m)
    got, others = es.jit(both, separate_exponentials=True)(p, m)
    assert (got == -INF).any() and np.isfinite(got).any()
    np.testing.assert_allclose(got, want, rtol=1e-4)
    for x, y in zip(others, gradients, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def test_logsumexp_of_tensors(rng):
    """The function of a broadcast sum: its joint maximum stays, as a term free of the sum; -inf is neutral."""
    p, m = rng.standard_normal((66, 70)).astype(np.float32), rng.standard_normal((70, 68)).astype(np.float32)
    p[3] = -INF
    p[4, ::2] = -INF
    m[:, 5] = -INF

    def f(p, m):
        return es.functional.logsumexp(p[:, :, None] + m[None], 1)

    def both(p, m):
        y = f(p, m)
        return y, es.grad(lambda p, m: es.where(f(p, m) > -1e30, f(p, m), 0).sum(), argnums=(0, 1))(p, m)

    want, gradients = es.jit(both)(p, m)
    run = es.jit(both, separate_exponentials=True)
    got, others = run(p, m)
    assert separation.SEPARATE_EXPONENTIALS in str(run.plan)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    for x, y in zip(others, gradients, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def test_stored_types(dear, rng):
    """Sums of tensors of 16 bits, which have no arithmetic of their own, and exponentials of such."""
    f, arrays = drawn("y[i,d] = sum[j](exp(w[i,j] + k[j,d])*v[j,d])", ATTENTION, SIZES[0], rng, np.float16)

    def both(w, k, v):
        return f(w=w, k=k, v=v), (w @ (k + v)).sum()

    arrays = [arrays[n] for n in "wkv"]
    for x, y in zip(es.jit(both, separate_exponentials=True)(*arrays), es.jit(both)(*arrays), strict=True):
        np.testing.assert_allclose(np.float64(x), np.float64(y), rtol=1e-2)


def test_explain(rng):
    """The plan says what would separate by permission; not with it, nor where the pass is left out."""
    f, arrays = drawn(NAMED, ATTENTION, {"i": 64, "j": 64, "d": 64}, rng, np.float32)

    def plan(**settings):
        run = es.jit(lambda *xs: es.grad(lambda *ys: f(*ys).sum(), argnums=(0, 1, 2, 3))(*xs), **settings)
        run(*arrays.values())
        return str(run.plan)

    assert "exponentials of sums: 262,144; with separate_exponentials=True they are products of 8,192" in plan()
    assert "exponentials of sums" not in plan(separate_exponentials=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(environment.WITHOUT.name, separation.SEPARATE_EXPONENTIALS)
        assert "exponentials of sums" not in plan()


def test_left_out(monkeypatch):
    large = {"i": 64, "j": 64, "d": 64}
    monkeypatch.setenv(environment.WITHOUT.name, separation.SEPARATE_EXPONENTIALS)
    assert not separated(MAXIMA, ATTENTION, large)
    assert not separated(AFT, ATTENTION, large, True)


def test_bad_setting():
    with pytest.raises(es.ArgumentError, match="separate_exponentials"):
        es.jit(lambda x: x, separate_exponentials="yes")
    with pytest.raises(es.ArgumentError, match="separate_exponentials"):
        es.CompileSettings(separate_exponentials=2)


def test_condition_of_several_parts():
    """A condition on axes of two parts: their maxima would count what it excludes, and overflow."""
    text = "y[i,k] = sum[j](where(j <= i, exp(c[i,k] - c[j,k])*v[j], 0))"
    large = {"i": 128, "k": 32, "j": 128}
    assert not separated(text, {"c": "ik", "v": "j"}, large, True)


def test_shared_sizes(dear, rng):
    """One program for several sizes: maxima end at the limits of axes, too."""
    f = es.op(AFT + "\nreturn y")
    run = es.jit(f, separate_exponentials=True, sizes="shared")
    for n in (9, 12, 7, 11, 5):
        _, arrays = drawn(AFT, ATTENTION, {"i": n, "j": n, "d": 5}, rng)
        np.testing.assert_allclose(run(*arrays.values()), es.interpret(f)(**arrays), rtol=1e-12)


def test_signs():
    x, y = Read(0, (Axis(0),), f32), Read(1, (Axis(0),), f32)
    leaves = [None, None]

    def never(sign, e):
        return is_never(sign, e, leaves, (4,))

    zero = Const(0.0, f32)
    assert never(-1, apply("mul", x, x)) and not never(-1, apply("mul", x, y))
    assert never(1, apply("neg", apply("exp", x))) and not never(1, apply("exp", x))
    assert never(1, apply("min", x, zero)) and not never(1, apply("max", x, zero)) and never(-1, apply("max", x, zero))
    assert never(1, apply("sub", Const(-1.0, f32), apply("abs", y))) and not never(1, apply("sub", x, y))
    assert never(-1, apply("pow", x, Const(4.0, f32))) and not never(-1, apply("pow", x, Const(3.0, f32)))
    assert never(1, apply("where", apply("lt", x, y), zero, Const(-INF, f32)))
