"""Selections of short rows become comparisons of all pairs; sorting keeps its meaning in every form and size."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith import functional as F
from einsmith.api.tracing import trace_call
from einsmith.codegen.cache.native import host_target
from einsmith.ir.evaluator import evaluate
from einsmith.ir.functions import SELECTIONS
from einsmith.ir.nodes import Compute, Reduce, postorder
from einsmith.passes.algebra.compare_pairs import SHORT, compare_pairs
from einsmith.passes.context import PassContext


def rows_with_ties(rng: np.random.Generator, shape) -> np.ndarray:
    return rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, *rng.standard_normal(9)], shape).astype(np.float32)


def selections(graph) -> int:
    parts = [p for n in postorder(graph.roots) if isinstance(n, Compute) for p in n.template.parts]
    return sum(isinstance(p.body, Reduce) and p.body.combiner in SELECTIONS for p in parts)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("n", [1, 7, SHORT, SHORT + 1])
def test_short_rows_are_compared(rng, n, descending):
    x = rows_with_ties(rng, (5, n))
    graph = trace_call(lambda x: F.sort(x, -1, descending), (x,), {}).graph
    after = compare_pairs(graph, PassContext(host_target()))
    assert selections(after) == (n > SHORT)
    for a, b in zip(evaluate(graph, [x])[0], evaluate(after, [x])[0], strict=True):
        np.testing.assert_array_equal(a, b)


def test_other_back_ends_compare_all_pairs(rng):
    class Card(type(host_target())):
        backend = "card"

    x = rows_with_ties(rng, (2, SHORT + 50))
    graph = trace_call(lambda x: F.median(x, -1), (x,), {}).graph
    after = compare_pairs(graph, PassContext(Card(cores=1)))
    assert selections(graph) == 1 and selections(after) == 0
    for a, b in zip(evaluate(graph, [x])[0], evaluate(after, [x])[0], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("n", [3, 130, 1000])
def test_gradients_of_sorted_elements(rng, n):
    """The gradient of a sum of weighted sorted elements has each weight at its element's place."""
    x = rng.permutation(2 * n).reshape(2, n).astype(np.float32)
    w = rng.standard_normal((2, n)).astype(np.float32)

    def f(x, w):
        return (F.sort(x, -1, True)[0] * w).sum()

    g = es.grad(f)(x, w)
    g = g[0] if isinstance(g, tuple) else g
    want = np.empty_like(x)
    np.put_along_axis(want, np.argsort(-x, axis=-1), w, -1)
    np.testing.assert_array_equal(g, want)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "i4"])
def test_programs_of_several_sizes(rng, descending, dtype):
    """Rows are padded at their ends by keys that come last."""
    f = es.jit(lambda x: F.sort(x, -1, descending), sizes="shared")
    for n in (3, 200, 17, 150, 131, 1):
        x = rows_with_ties(rng, (3, n)) if dtype == "f4" else rng.choice([-(2**31), 2**31 - 1, 0, 5], (3, n))
        x = x.astype(dtype)
        values, positions = f(x)
        key = -x.astype("f8") if descending else x.astype("f8")
        nan = np.isnan(key) ^ descending
        want = np.lexsort((key, nan), axis=-1)
        np.testing.assert_array_equal(positions, want)
        np.testing.assert_array_equal(values, np.take_along_axis(x, want, -1))


def test_mapped_and_nested(rng):
    """Sorting inside of vmap, inside of a loop's steps, and of computed keys."""
    x = rng.standard_normal((4, 3, 120)).astype(np.float32)
    np.testing.assert_array_equal(es.jit(es.vmap(lambda x: F.argsort(x, -1)))(x), np.argsort(x, -1, kind="stable"))
    np.testing.assert_array_equal(es.jit(es.vmap(lambda x: F.argsort(x * x, 0), in_axes=2))(x),
                                  np.moveaxis(np.argsort(x * x, 1 - 1 + 0, kind="stable"), 2, 0))  # fmt: skip
