"""Sums of all elements up to each: the same values as scans, fewer points, and what stays as it is."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Compute, Graph, postorder
from einsmith.ir.verify import verify_graph
from einsmith.kernels.scan import find_scan
from einsmith.passes.algebra import prefix_sums as passes
from einsmith.passes.algebra.prefix_sums import MIN_POINTS, prefix_sums
from einsmith.passes.algebra.simplify import simplify
from tests.kernels.samples import kernel_of


def traced(text, shapes, extents=None) -> Graph:
    op = es.op(text, extents=extents)
    return simplify(trace_call(lambda *a: op(*a), tuple(np.zeros(s) for s in shapes), {}).graph)


def points(graph: Graph, linear: bool = True) -> int:
    """The points of all tensors; of a scan those of its output, if `linear`."""
    out = 0
    for t in (x.template for x in postorder(graph.roots) if isinstance(x, Compute)):
        out += prod(t.shape) if linear and find_scan(kernel_of(t)) else sum(prod(p.domain) for p in t.parts)
    return out


UP = "y[i] = sum[j](where(j <= i, x[j], 0))"
CASES = {
    "up to each": (UP, [(97,)], {"i": 97}),
    "before each": ("y[i] = sum[j](where(j < i, x[j]*x[j], 0))", [(64,)], {"i": 64}),
    "from each on": ("y[i] = sum[j](where(j >= i, x[j], 0))", [(101,)], {"i": 101}),
    "after each": ("y[i] = sum[j](where(i + 3 < j, x[j], 0))", [(83,)], {"i": 80}),
    "more places than elements": ("y[i] = sum[j](where(j <= i - 5, x[j], 0))", [(70,)], {"i": 90}),
    "fewer places than elements": ("y[i] = sum[j](where(j <= i + 30, x[j], 0))", [(90,)], {"i": 40}),
    "rows": ("y[b,i] = sum[j](where(j <= i, x[b,j], 0))", [(3, 61)], {"i": 61}),
    "columns": ("y[i,b] = sum[j](where(j <= i, x[j,b], 0))", [(61, 3)], {"i": 61}),
    "many rows": ("y[b,i] = sum[j](where(j <= i, x[b,j], 0))", [(9, 61)], {"i": 61}),
    "many columns from the end": (
        "y[i,b] = sum[j](where(i <= j, x[j,b]*w[b], 0))", [(61, 8), (8,)], {"i": 61}
    ),
    "another sum inside": ("y[i] = sum[j,k](where(j <= i, x[j,k]*w[k], 0))", [(60, 7), (7,)], {"i": 60}),
    "a factor of the place": ("y[i,b] = sum[j](where(j <= i, x[j]*w[i,b], 0))", [(60,), (60, 4)], {"i": 60}),
    "a factor of both terms": ("y[i] = sum[j](where(j <= i, w[i]*x[j] - z[j]*w[i], 0))", [(60,), (60,), (60,)], None),
    "terms": ("y[i] = sum[j](where(j <= i, w[i]*x[j] - v[i]*z[j] - x[j], 0))", [(200,)] * 4, None),
    "factors of another sum": ("y[i] = sum[j,d](where(j <= i, k[i,d]*x[j,d]*v[j], 0))", [(80, 3)] * 2 + [(80,)], None),
    "from a place on": ("y[i] = sum[j](where(i + j < 80, w[i]*x[i+j+1], 0))", [(85,), (82,)], {"i": 85, "j": 80}),
    "a condition of the elements": ("y[i] = sum[j](where(j <= i and j % 3 == 1, x[j], 0))", [(60,)], {"i": 60}),
    "a condition of the result": ("y[i,b] = sum[j](where(j <= i and b < 2, x[j], 0))", [(60,)], {"i": 60, "b": 3}),
    "long": (UP, [(1123,)], {"i": 1123}),
    "fewer places, from the end": ("y[i] = sum[j](where(j >= i + 2, x[j], 0))", [(90,)], {"i": 40}),
    "more places, from the end": ("y[i] = sum[j](where(j >= i - 7, x[j], 0))", [(50,)], {"i": 90}),
    "a factor that only places with elements have": (
        "y[i] = sum[j](where(j < i, x[j]*w[i - 1], 0))", [(96,), (95,)], {"i": 96}
    ),
    "the same from the end": ("y[i] = sum[j](where(j > i, x[j]*w[i + 1], 0))", [(96,), (96,)], {"i": 96}),
    "elements that only included places have": (
        "y[i] = sum[j](where(j <= i + 30, x[j], 0))", [(70,)], {"i": 40, "j": 90}
    ),
    "the same, from the end": ("y[i] = sum[j](where(j >= i + 2, x[j - 2], 0))", [(88,)], {"i": 40, "j": 90}),
    "the same, from the end, every one": (
        "y[i] = sum[j](where(j >= i + 2, x[j - 2], 0))", [(88,)], {"i": 89, "j": 90}
    ),
    "the same, of another sum": (
        "y[i] = sum[j,k](where(j <= i - 5, x[j + 5, k]*w[k], 0))", [(90, 3), (3,)], {"i": 90, "j": 90}
    ),
    "the same, of another sum, from the end": (
        "y[i] = sum[j,k](where(j >= i + 5, x[j - 5, k]*w[k], 0))", [(85, 3), (3,)], {"i": 90, "j": 90}
    ),
    "a factor of another sum, later": ("y[i,d] = sum[j](where(j <= i - 2, x[j]*w[d], 0))", [(60,), (5,)], {"i": 61}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_scans_have_the_values_of_the_sums(case, monkeypatch, rng):
    monkeypatch.setattr(passes, "MIN_POINTS", 0)
    graph = traced(*CASES[case])
    steps = prefix_sums(graph)
    verify_graph(steps)
    arrays = [rng.integers(-3, 4, x.shape).astype(np.float64) for x in graph.inputs]
    np.testing.assert_array_equal(evaluate(steps, arrays)[0][0], evaluate(graph, arrays)[0][0])
    assert points(steps) < points(graph, False) / 4


@pytest.mark.parametrize("rows", [1, 8])
def test_nonfinite_elements_reach_their_own_sums_alone(rows, monkeypatch):
    """Infinite and NaN elements reach the sums that they are in, and no others."""
    monkeypatch.setattr(passes, "MIN_POINTS", 0)
    graph = traced("y[b,i] = sum[j](where(j <= i - 1, x[b,j], 0))", [(rows, 70)], {"i": 71})
    x = np.ones((rows, 70))
    x[:, 33], x[:, 50] = np.inf, np.nan
    steps = prefix_sums(graph)
    assert points(steps) < points(graph, False) / 4
    got = evaluate(steps, [x])[0][0]
    want = np.concatenate([np.zeros((rows, 1)), np.cumsum(x, 1)], 1)
    np.testing.assert_array_equal(got, want)


def test_infinite_factors_of_no_elements_reach_nothing(monkeypatch):
    monkeypatch.setattr(passes, "MIN_POINTS", 0)
    graph = traced("y[i] = sum[j](where(j < i, x[j]*w[i], 0))", [(70,), (70,)], {"i": 70})
    x, w = np.ones(70), np.full(70, 2.0)
    w[0] = np.inf
    np.testing.assert_array_equal(evaluate(prefix_sums(graph), [x, w])[0][0], 2.0 * np.arange(70))


def test_factors_of_an_axis_that_the_elements_lack_make_no_table_over_it(monkeypatch):
    monkeypatch.setattr(passes, "MIN_POINTS", 0)
    graph = traced("y[i] = sum[j,d](where(j <= i, x[j]*a[i,d]*b[i,d], 0))", [(80,), (80, 6), (80, 6)], None)
    steps = prefix_sums(graph)
    verify_graph(steps)
    assert points(steps) == 80 + 80 * 6


@pytest.mark.parametrize("text, shapes, extents", [
    ("y[i] = sum[j](where(j <= i, A[i,j]*x[j], 0))", [(300, 300), (300,)], None),
    ("y[i] = sum[j](where(j <= i, w[i]*x[j] + A[i,j], 0))", [(300,), (300,), (300, 300)], None),
    ("y[i,e] = sum[j,d](where(j <= i, k[i,d]*x[j,d]*v[j,e], 0))", [(70, 9), (70, 9), (70, 9)], None),
    ("y[i] = sum[j](where(i + j < 400, x[i+j+1], 0))", [(402,)], {"i": 300, "j": 300}),
    ("y[i] = sum[j](where(j <= 2*i, x[j], 0))", [(600,)], {"i": 300}),
    ("y[i] = sum[j](where(j <= i and i <= j + 9, x[j], 0))", [(300,)], {"i": 300}),
    ("y[i] = max[j](where(j <= i, x[j], 0))", [(300,)], {"i": 300}),
    ("y[i] = sum[j](where(j <= i, x[j], 0))", [(int(MIN_POINTS**0.5) - 1,)], {"i": int(MIN_POINTS**0.5) - 1}),
])  # fmt: skip
def test_other_sums_stay_what_they_are(text, shapes, extents):
    """Terms that depend on the place, sums that take more memory than all arguments, places that are no neighbours,
    bands, other reductions, short sums."""
    graph = traced(text, shapes, extents)
    assert prefix_sums(graph) is graph


@pytest.mark.parametrize("text, shapes", [
    ("y[i] = sum[j](where(j <= i, x[j]*x[j]*w[i], 0))", [(), ()]),
    ("y[i] = sum[j](where(j < i, x[j]*v[j]*w[i], 0))", [(), (), ()]),
    ("y[i,d] = w[i]*sum[j](where(i <= j, x[j,d]*v[j], 0))", [(), (3,), ()]),
])  # fmt: skip
def test_gradients_are_such_sums(text, shapes, rng):
    """Of squares, of products with factors of the place, of what is strictly before it, and of rows."""
    n = 300
    op = es.op(text)
    own = [rng.integers(-3, 4, (n, *shape)).astype(np.float64) for shape in shapes]
    f = es.grad(lambda *own: (op(*own) * op(*own)).sum(), argnums=tuple(range(len(own))))
    graph = simplify(trace_call(f, own, {}).graph)
    steps = prefix_sums(graph)
    verify_graph(steps)
    assert points(graph, False) > n * n and points(steps) < 50 * n
    for got, want in zip(evaluate(steps, own)[0], evaluate(graph, own)[0], strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", [(1500,), (3, 700), (40, 300)])
def test_compiled_sums_and_their_gradients(shape, rng):
    n = shape[-1]
    text = UP if len(shape) == 1 else "y[b,i] = sum[j](where(j <= i, x[b,j], 0))"
    op = es.op(text, extents={"i": n})
    x, w = rng.standard_normal((2, *shape))
    value, gradient = es.jit(es.value_and_grad(lambda x, w: (op(x) * w).sum()))(x, w)
    np.testing.assert_allclose(value, (np.cumsum(x, -1) * w).sum(), rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(gradient, np.cumsum(w[..., ::-1], -1)[..., ::-1], rtol=1e-10, atol=1e-10)
