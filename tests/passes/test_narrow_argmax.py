"""Positions in small windows are kept in bytes between forward and backward."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base import dtypes as dt
from einsmith.driver.executable import Executable
from einsmith.ir.nodes import Compute, postorder
from einsmith.passes.pipeline import run_passes
from tests.fuzz.check import agree

F = es.functional


def bytes_in(graph) -> list[Compute]:
    return [n for n in postorder(graph.roots) if isinstance(n, Compute) and n.template.dtypes == (dt.i8,)]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("width, kept", [(1, False), (2, True), (127, True), (128, True), (129, True), (256, True),
                                         (257, False)])  # fmt: skip
def test_the_positions_of_a_rows_largest(width, kept, rng):
    x = rng.standard_normal((5, width)).astype(np.float32)
    x[:2, -1] = 9  # the last place, and a tie with the first
    x[0, 0] = 9

    def f(x):
        return es.grad(lambda x: (x.max(1) ** 2).sum())(x)

    traced = trace_call(f, (x,), {})
    assert bool(bytes_in(run_passes(traced.graph))) is kept
    run = Executable(traced.graph, traced.bind, 2)
    agree(run([x])[1], run.graph, [x], str(width))
    np.testing.assert_allclose(run([x])[1][0], es.interpret(f)(x), rtol=1e-5)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kernel, stride, padding", [(2, 2, 0), (3, 2, 1), (3, 1, 1)])
def test_pooling_stores_a_byte(kernel, stride, padding, rng):
    """With a product between pooling and its gradient, so that what the backward reads is stored."""
    x = rng.standard_normal((8, 3, 9, 11)).astype(np.float32)
    n = F.max_pool2d(x, kernel, stride, padding)[0].size
    w = rng.standard_normal((n, 70)).astype(np.float32)

    def f(x, w):
        def loss(x):
            return (F.relu(F.max_pool2d(x, kernel, stride, padding).reshape((8, n)) @ w) ** 2).sum()

        return es.grad(loss)(x)

    traced = trace_call(f, (x, w), {})
    run = Executable(traced.graph, traced.bind, 2)
    stored = {b.dtype for c in run.plan.calls for b, t in zip(c.kernel.buffers, c.tensors, strict=True)}
    assert dt.i8 in stored and dt.i32 not in stored
    agree(run([x, w])[1], run.graph, [x, w], "pooling")


def test_positions_that_are_results_or_indices_stay(rng):
    x = rng.standard_normal((5, 7)).astype(np.float32)
    table = rng.standard_normal((7, 3)).astype(np.float32)

    def f(x, table):
        return F.argmax(x, 1), F.embedding(F.argmax(x + 0.5, 1), table)

    traced = trace_call(f, (x, table), {})
    assert not bytes_in(run_passes(traced.graph))
    run = Executable(traced.graph, traced.bind, 1)
    where, rows = run([x, table])[1]
    np.testing.assert_array_equal(where, x.argmax(1))
    np.testing.assert_array_equal(rows, table[x.argmax(1)])
