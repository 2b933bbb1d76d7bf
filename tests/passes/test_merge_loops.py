"""Computations along time are merged into the steps of recurrences: values and gradients against the reference."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base.trees import flatten
from einsmith.driver.executable import Executable
from einsmith.ir.loop import LoweredLoop
from einsmith.ir.nodes import postorder, size
from einsmith.passes.pipeline import run_passes
from einsmith.passes.recurrence import merge_loops

DELTA = """
p[t,h,k,v] = where(t > 0, S[t-1,h,k,v], 0)*exp(g[t,h])
u[t,h,v] = V[t,h,v] - sum[k](p[t,h,k,v]*K[t,h,k])
S[t,h,k,v] = p[t,h,k,v] + K[t,h,k]*u[t,h,v]
o[t,h,v] = sum[k](S[t,h,k,v]*Q[t,h,k])
return o
"""
BATCH_FIRST = """
s[b,t,d,n] = exp(-g[b,t,d]*g[b,t,d]*A[d,n])*where(t > 0, s[b,t-1,d,n], 0) + g[b,t,d]*B[b,t,n]
y[b,t,d] = sum[n](C[b,t,n]*s[b,t,d,n]) + g[b,t,d]
return y
"""
WAVE = """
a[t,i,j] = where(t > 0, u[t-1,i,j], 0)
l[t,i,j] = where(i > 0, a[t,i-1,j], 0) + where(j < size(j)-1, a[t,i,j+1], 0) - 2*a[t,i,j]
u[t,i,j] = 2*a[t,i,j] - where(t > 1, u[t-2,i,j], 0) + c[i,j]*c[i,j]*l[t,i,j] + where(i == 1, w[t,j], 0)
r[t,m] = u[t,1,at[m]]
return r
"""
BACKWARD = """
S[t,k,v] = where(t < size(t)-1, S[t+1,k,v], z[k,v])*f[t,k] + K[t,k]*V[t,v]
o[t,v] = sum[k](S[t,k,v]*K[t,k])
d[k,v] = sum[t](S[t,k,v]*where(t > 1, V[t,v], 0))
m[t,k] = max[v](S[t,k,v])
return o, d, m
"""
LATE = """
S[t,k,v] = where(t > 0, S[t-1,k,v], 0)*f[t,k] + K[t,k]*V[t,v]
e[t,k] = sum[v](where(t < size(t)-1, S[t+1,k,v], 0)*V[t,v])
o[t,v] = sum[k](where(t > 1, S[t-2,k,v], 0)*K[t,k])
q[k] = sum[t,v](where(t > 1, S[t-1,k,v]*S[t,k,v], 0))
x[k,v,t] = S[t,k,v]*K[t,k]
y[k,t] = sum[v](x[k,v,t]*x[k,v,t])
return e, o, q, y
"""
GATE = """
h[t,b,k] = tanh(x[t,b,k]*w[t,b]*v[t,k] + sum[j](where(t > 0, h[t-1,b,j], 0)*U[j,k]))
s[t] = sum[b,k](h[t,b,k]*h[t,b,k])
c[b,k] = sum[t](h[t,b,k]*s[t])
return s, c
"""


def z(rng, *shape):
    return rng.standard_normal(shape)


def delta(rng, T, a, b):
    return DELTA, "Q, K, V, g", (z(rng, T, 2, a) * 0.4, z(rng, T, 2, a) * 0.4, z(rng, T, 2, b), -abs(z(rng, T, 2)))


def batch_first(rng, T, a, b):
    return BATCH_FIRST, "g, A, B, C", (z(rng, 2, T, a), abs(z(rng, a, b)), z(rng, 2, T, b), z(rng, 2, T, b))


def wave(rng, T, a, b):
    a += 1
    return WAVE, "c, w, at", (z(rng, a, b) * 0.3, z(rng, T, b), rng.integers(0, b, 4).astype(np.int32))


def backward(rng, T, a, b):
    return BACKWARD, "z, f, K, V", (z(rng, a, b), z(rng, T, a) * 0.5, z(rng, T, a), z(rng, T, b))


def late(rng, T, a, b):
    return LATE, "f, K, V", (z(rng, T, a) * 0.5, z(rng, T, a), z(rng, T, b))


def gate(rng, T, a, b):
    return GATE, "x, w, v, U", (z(rng, T, a, b), z(rng, T, a), z(rng, T, b), z(rng, b, b) * 0.3)


CASES = [delta, batch_first, wave, backward, late, gate]


@pytest.fixture
def forced(monkeypatch):
    """Merge all that may be merged, of any size."""
    monkeypatch.setattr(merge_loops, "is_large", lambda step_bytes, target: step_bytes > 0)
    monkeypatch.setattr(merge_loops, "leaves_last_level", lambda step_bytes, target: True)


def build(case, rng, T, a, b, checkpoint=0):
    """Return (forward, its arrays, forward and gradients, their arrays)."""
    text, inputs, arrays = case(rng, T, a, b)
    op = es.op(text, inputs=inputs, checkpoint=checkpoint)
    floats = [x for x in arrays if x.dtype.kind == "f"]
    others = arrays[len(floats) :]

    def both(c, rest, *x):
        y, pull = es.vjp(lambda *x: op(*x, *rest), *x)
        return y, pull(c)

    y = es.interpret(op)(*arrays)
    c = tuple(rng.standard_normal(np.shape(v)) for v in y) if isinstance(y, tuple) else z(rng, *np.shape(y))
    return op, arrays, both, (c, tuple(others), *floats)


def check(f, *arrays) -> None:
    """Results equal the reference, in memory that holds NaN before."""
    want, _ = flatten(es.interpret(f)(*arrays))
    flat, _ = flatten(list(arrays))
    traced = trace_call(f, arrays, {})
    for threads in (1, 2):
        program = Executable(traced.graph, {}, threads)
        for _ in range(2):
            program.arena.fill(0xFF)
            for x, y in zip(program(list(flat))[1], want, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11)


def largest_members(f, *arrays) -> int:
    """Return the most elements of a step of a member that is stored for more than three steps."""
    graph = run_passes(trace_call(f, arrays, {}).graph)
    loops = [n for n in postorder(graph.roots) if isinstance(n, LoweredLoop)]
    stored = [(loop, j) for loop in loops for s in loop.segments for j, _ in s.targets]
    return max((size(n.results[j][1][1:]) for n, j in stored if n.results[j][1][0] > 3), default=0)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
@pytest.mark.parametrize("T, a, b", [(4, 1, 3), (5, 2, 7), (9, 3, 17)])
def test_values_and_gradients(case, T, a, b, rng, forced):
    f, arrays, both, inputs = build(case, rng, T, a, b)
    check(f, *arrays)
    check(both, *inputs)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
@pytest.mark.parametrize("checkpoint", [0, 3])
def test_gradients_of_a_loss(case, checkpoint, rng, forced):
    """The cotangents depend on the forward pass: gradients by what reads the states are taken in the backward loop."""
    if case is late and checkpoint:
        return  # what it returns is read at later steps
    op, arrays, _, (_, rest, *floats) = build(case, rng, 9, 3, 5, checkpoint)

    def loss(*x):
        y = op(*x, *rest)
        return sum(((v * v).sum() for v in (y if isinstance(y, tuple) else (y,))), start=0.0)

    check(es.value_and_grad(loss, tuple(range(len(floats)))), *floats) if not rest else check(
        lambda rest, *x: es.value_and_grad(lambda *x: (op(*x, *rest) ** 2).sum(), tuple(range(len(x))))(*x),
        rest,
        *floats,
    )


@pytest.mark.parametrize("case", [delta, wave, gate], ids=lambda c: c.__name__)
def test_checkpoints(case, rng, forced):
    _, _, both, inputs = build(case, rng, 9, 3, 5, checkpoint=2)
    check(both, *inputs)


@pytest.mark.parametrize("case", [delta, batch_first, backward, wave], ids=lambda c: c.__name__)
def test_forward_stores_no_state_for_all_steps(case, rng, forced, monkeypatch):
    f, arrays, _, _ = build(case, rng, 9, 4, 8)
    assert largest_members(f, *arrays) < 4 * 8
    monkeypatch.setenv("EINSMITH_WITHOUT", "merge loops")
    assert largest_members(f, *arrays) >= 4 * 8
    check(f, *arrays)


def test_gradient_stores_the_states_alone(rng, forced):
    """Of the four tensors of a step's state, one is stored for all steps; none of the cotangents is."""
    _, _, both, inputs = build(delta, rng, 9, 4, 8)
    graph = run_passes(trace_call(both, inputs, {}).graph)
    loops = [n for n in postorder(graph.roots) if isinstance(n, LoweredLoop)]
    whole = [s for n in loops for _, s in n.results if s == (10, 2, 4, 8)]
    stored = {(n, j) for n in loops for s in n.segments for j, _ in s.targets if n.results[j][1][1:] == (2, 4, 8)}
    assert sum(n.results[j][1][0] > 3 for n, j in stored) == 1 <= len(whole)


def test_products_with_weights_stay_outside(rng, forced):
    """A projection, and the gradient of weights, read each element of the states many times."""
    op = es.op(
        """
        h[t,b,k] = tanh(x[t,b,k] + where(t > 0, h[t-1,b,k], 0))
        y[t,b,n] = sum[k](h[t,b,k]*W[k,n])
        return y
        """
    )
    x, W = rng.standard_normal((9, 3, 8)), rng.standard_normal((8, 16))
    assert largest_members(lambda x, W: op(x=x, W=W), x, W) == 3 * 8
    check(lambda x, W: op(x=x, W=W), x, W)


def test_small_states_stay_as_they_are(rng):
    f, arrays, _, _ = build(delta, rng, 9, 4, 8)
    assert largest_members(f, *arrays) >= 4 * 8
