"""Loops of which each thread runs a part: against the reference evaluator, and where they are left as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.cost.facts import Target
from einsmith.driver.executable import Executable
from einsmith.ir.evaluator import evaluate
from einsmith.ir.loop import LoweredLoop
from einsmith.ir.nodes import postorder
from einsmith.passes.context import PassContext
from einsmith.passes.pipeline import run_passes
from einsmith.passes.recurrence import split_loops
from einsmith.runtime.steps import Apart

RNN = """
    h[t,b,k] = tanh(x[t,b,k] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j])*U[j,k]))
    return h
"""
LSTM = """
    z[t,b,g,k] = x[t,b,g,k] + sum[j](where(t > 0, h[t-1,b,j], 0)*U[j,g,k])
    c[t,b,k] = sigmoid(z[t,b,1,k])*where(t > 0, c[t-1,b,k], 0) + sigmoid(z[t,b,0,k])*tanh(z[t,b,2,k])
    h[t,b,k] = sigmoid(z[t,b,3,k])*tanh(c[t,b,k])
    return h
"""
DELTA = """
    p[t,h,k,v] = where(t > 0, S[t-1,h,k,v], 0)*exp(g[t,h])
    u[t,h,v] = beta[t,h]*(V[t,h,v] - sum[k](p[t,h,k,v]*K[t,h,k]))
    S[t,h,k,v] = p[t,h,k,v] + K[t,h,k]*u[t,h,v]
    o[t,h,v] = sum[k](S[t,h,k,v]*K[t,h,k])
    return o
"""
SCAN = """
    s[t,b,d,n] = exp(-e[b,t,d]*e[b,t,d]*A[d,n])*where(t > 0, s[t-1,b,d,n], 0) + e[b,t,d]*B[b,t,n]
    y[b,t,d] = sum[n](B[b,t,n]*s[t,b,d,n])
    return y
"""
CHAIN = """
    p[t,b,i] = where(t > 0, a[t-1,b,i], 0)
    m[t,b] = stop_gradient(max[i](p[t,b,i]))
    q[t,b,j] = where(t > 0, m[t,b] + log(sum[i](exp(p[t,b,i] - m[t,b])*exp(M[i,j]))), 0)
    a[t,b,j] = where(t < n[b], e[t,b,j] + q[t,b,j], p[t,b,j])
    return a
"""
LENGTHS = np.array([9, 4, 7, 2, 9, 1])
CASES = {
    "batch": (RNN, [(9, 6, 5), (6, 5), (5, 5)]),
    "gates": (LSTM, [(9, 6, 4, 5), (5, 4, 5)]),
    "heads": (DELTA, [(9, 6), (9, 6), (9, 6, 3), (9, 6, 4)]),
    "channels of one sample": (SCAN, [(1, 9, 6), (6, 4), (1, 9, 4)]),
    "lengths": (CHAIN, [(5, 5), LENGTHS, (9, 6, 5)]),
    "backward in time": (RNN.replace("t-1", "t+1").replace("t > 0", "t+1 < size(t)"), [(9, 6, 5), (6, 5), (5, 5)]),
}


@pytest.fixture
def force(monkeypatch):
    """Let parts be faster than whole loops."""
    monkeypatch.setattr("einsmith.passes.recurrence.split_loops.plan_seconds", lambda plan, cost, target: target.cores)


def compiled(f, x, threads):
    """A function's graph and program, in memory that starts as NaN."""
    traced = trace_call(f, x, {})
    program = Executable(traced.graph, traced.bind, threads)
    program.arena.fill(0xFF)
    return traced.graph, program


def parts(program):
    return [s.parts for s in program.program.steps if isinstance(s, Apart)]


def drawn(name, **options):
    """Values and gradients of a case, as a function of its inputs and a cotangent; and these inputs."""
    text, shapes = CASES[name]
    rng = np.random.default_rng(7)
    x = [s if isinstance(s, np.ndarray) else 0.5 * rng.standard_normal(s) for s in shapes]
    f = es.op(text, extents={"t": 9})
    c = rng.standard_normal(es.interpret(f)(*x).shape)
    floats = tuple(n for n, a in enumerate(x) if a.dtype.kind == "f")

    def both(c, *x):
        return f(*x, **options), *es.grad(lambda *x: (f(*x, **options) * c).sum(), floats)(*x)

    return both, [c, *x]


def assert_equal(got, want):
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("threads,count", [(2, 2), (2, 3), (3, 2)])
def test_parts(force, monkeypatch, name, threads, count):
    own = split_loops.split_segment
    monkeypatch.setattr(split_loops, "split_segment", lambda s, _, context: own(s, count, context))
    f, x = drawn(name)
    graph, program = compiled(f, x, threads)
    assert len(parts(program)) > 1 and set(parts(program)) == {count}
    want = evaluate(graph, x)[0]
    for _ in range(20):
        assert_equal(program(x)[1], want)


@pytest.mark.parametrize("name", ["gates", "heads"])
def test_parts_within_segments(force, name):
    """With checkpoints, the loops are within the step of a loop over segments."""
    f, x = drawn(name, checkpoint=3)
    graph, program = compiled(f, x, 2)
    assert parts(program)
    want = evaluate(graph, x)[0]
    for _ in range(5):
        assert_equal(program(x)[1], want)


@pytest.mark.parametrize("name", CASES)
def test_checked(force, monkeypatch, name):
    """Under EINSMITH_CHECK, kernels of parts read and write what their tensors have, and the native run agrees."""
    monkeypatch.setenv("EINSMITH_CHECK", "2")
    f, x = drawn(name)
    graph, program = compiled(f, x, 2)
    assert parts(program)
    assert_equal(program(x)[1], evaluate(graph, x)[0])


def test_one_thread_has_no_parts(force):
    f, x = drawn("batch")
    _, program = compiled(f, x, 1)
    assert not parts(program)


def test_loops_that_are_faster_whole_stay(monkeypatch):
    price = "einsmith.passes.recurrence.split_loops.plan_seconds"
    monkeypatch.setattr(price, lambda plan, cost, target: 1 / target.cores)
    f, x = drawn("batch")
    _, program = compiled(f, x, 2)
    assert not parts(program)


@pytest.mark.parametrize(
    "text",
    [
        "m[t,k] = mean[b](where(t > 0, h[t-1,b,k], 0))\nh[t,b,k] = tanh(x[t,b,k] + m[t,k])\nreturn h",
        "h[t,b,k] = tanh(x[t,b,k] + where(t > 0 and b > 0, h[t-1,b-1,k], 0))\nreturn h",
        "h[t,b,k] = tanh(x[t,b,k] + where(t > 0, h[t-1,5-b,k], 0))\nreturn h",
        "h[t,b,k] = tanh(x[t,b,k] + where(t > 0, h[t-1,b,k], 0)*b)\nreturn h",
        "h[t,b,k] = tanh(x[t,0,k] + x[t,b,k] + where(t > 0, h[t-1,b,k], 0))\nreturn h",
    ],
)
def test_what_depends_on_other_parts_stays(force, text):
    x = [np.random.default_rng(1).standard_normal((7, 6, 3))]
    graph, program = compiled(es.op(text), x, 2)
    assert not parts(program)
    assert_equal(program(x)[1], evaluate(graph, x)[0])


@pytest.mark.parametrize("l3,bandwidth,count", [(32 << 20, 5e10, 2), (1 << 10, 1e6, 1)])
def test_loops_that_wait_for_memory_stay(l3, bandwidth, count):
    """Two cores read and write no more bytes than one where the tensors over all steps leave the caches."""
    f, x = drawn("batch")
    cost = {1: 1e-6, 2: 3e-6}
    context = PassContext(Target(cores=1), lambda kernel, target: cost[target.cores])
    graph = run_passes(trace_call(f, x, {}).graph, context)
    target = Target(cores=2, l3=l3, memory_bandwidth=bandwidth)
    new = split_loops.split_loops(graph, replace(context, target=target))
    loops = [n for n in postorder(new.roots) if isinstance(n, LoweredLoop)]
    assert {s.part[1] for n in loops for s in n.segments if s.steps > 3} == {count}


def test_small_parts_stay(monkeypatch):
    """Cores that write to neighbouring lines wait for each other."""
    monkeypatch.setattr(split_loops, "NEIGHBOUR_SECONDS", 1.0)
    f, x = drawn("batch")
    context = PassContext(Target(cores=2), lambda kernel, target: 1e-9 * target.cores)
    loops = [n for n in postorder(run_passes(trace_call(f, x, {}).graph, context).roots) if isinstance(n, LoweredLoop)]
    assert loops and all(s.part == (0, 1) for n in loops for s in n.segments)
