"""Totals that a loop carries along have one slot."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.ir.loop import LoweredLoop
from einsmith.ir.nodes import postorder
from einsmith.passes.pipeline import run_passes

FORWARD = es.op("s[t,i] = where(t > 0, s[t-1,i], a[i]) + sum[k](x[t,i,k] * x[t,i,k])")
BACKWARD = es.op("s[t,i] = where(t < size(t)-1, s[t+1,i], a[i]) + sum[k](x[t,i,k] * x[t,i,k])")
TWICE = es.op(
    """
    s[t,i] = where(t > 0, s[t-1,i], a[i]) + sum[k](x[t,i,k] * x[t,i,k])
    h[t,i] = tanh(s[t,i] + where(t > 0, h[t-1,i] + s[t-1,i], 0))
    return s, h
    """
)
T, N, K = 9, 20, 5


def forward(x, a):
    return FORWARD(x=x, a=a)[T - 1]


def backward(x, a):
    return BACKWARD(x=x, a=a)[0]


def shapes(f, *arrays):
    graph = run_passes(trace_call(f, arrays, {}).graph)
    (loop,) = (n for n in postorder(graph.roots) if isinstance(n, LoweredLoop))
    made = {j for s in loop.segments for j, _ in s.targets} | {j for j, *_ in loop.initial}
    return [loop.results[j][1] for j in sorted(made)]


@pytest.mark.parametrize("f", [forward, backward], ids=["forward", "backward"])
def test_a_total_has_one_slot(f):
    rng = np.random.default_rng(3)
    x, a = rng.standard_normal((T, N, K)), rng.standard_normal(N)
    assert shapes(f, x, a) == [(1, N)]
    run = es.jit(f)
    for _ in range(2):
        np.testing.assert_allclose(run(x, a), a + (x * x).sum((0, 2)), rtol=1e-12)


def test_other_readers_see_every_slot():
    rng = np.random.default_rng(3)
    x, a = rng.standard_normal((T, N, K)), rng.standard_normal(N)
    assert (2, N) in shapes(lambda x, a: FORWARD(x=x, a=a)[T - 2], x, a)  # a circular buffer
    assert (T + 1, N) in shapes(lambda x, a: (FORWARD(x=x, a=a)[T - 1], FORWARD(x=x, a=a)[2]), x, a)

    def both(x, a):
        s, h = TWICE(x=x, a=a)
        return s[T - 1], h

    for got, want in zip(es.jit(both)(x, a), es.interpret(both)(x, a), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
