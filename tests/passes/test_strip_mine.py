"""Time in chunks: what is outside of recurrences, against the reference evaluator; what no longer depends on the number
of steps, and what is not done beyond all lengths of a batch."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.driver.executable import Executable
from einsmith.ir.evaluator import evaluate
from einsmith.schedule.plan import LoopCall
from tests.passes import ragged

RNN = es.op("""
    q[t,b,k] = sum[i](x[t,b,i] * W[i,k])
    h[t,b,k] = tanh(q[t,b,k] + 0.5*sum[j](where(t > 0, h[t-1,b,j], 0) * U[j,k]))
    return h
""")
BACK = es.op("""
    q[t,b,k] = sum[i](x[t,b,i] * W[i,k])
    h[t,b,k] = tanh(q[t,b,k] + 0.5*sum[j](where(t < size(t)-1, h[t+1,b,j], 0) * U[j,k]))
    return h
""")
NORM = es.op("""
    m[t,b] = sum[k](h[t,b,k]) / size(k)
    v[t,b] = sum[k]((h[t,b,k] - m[t,b]) * (h[t,b,k] - m[t,b])) / size(k)
    n[t,b,k] = (h[t,b,k] - m[t,b]) / sqrt(v[t,b] + 0.01)
    return n
""")


def last(x, w, u):
    return (RNN(x=x, W=w, U=u)[x.shape[0] - 1] ** 2).sum()


def every(x, w, u):
    return (RNN(x=x, W=w, U=u) ** 2).sum()


def norms(x, w, u):
    h = NORM(h=RNN(x=NORM(h=x), W=w, U=u))
    return (RNN(x=h, W=u, U=w) * x).sum()


def both_ways(x, w, u):
    h = RNN(x=x, W=w, U=u) + 2 * BACK(x=x, W=u, U=w)
    return (BACK(x=h * x, W=w, U=w) ** 2).sum() + (h[1:] * x[:-1]).sum() + (h.sum(0) ** 2).sum()


def turned(x, w, u):
    h = RNN(x=x.transpose(1, 0, 2), W=w, U=u)
    return (h.reshape((h.shape[0], -1)) ** 2).sum(0).sum() + h.transpose(1, 0, 2)[3, 2].sum()


def made(f, inputs, threads=2):
    traced = trace_call(es.grad(f, tuple(range(3))), inputs, {})
    return traced.graph, Executable(traced.graph, traced.bind, threads)


def in_chunks(program):
    return [c for c in program.plan.calls if isinstance(c, LoopCall) and c.loop.segments[0].rows]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("f", [last, every, norms, both_ways, turned], ids=lambda f: f.__name__)
def test_values_are_those_of_the_formulas(f, rng):
    shape = (64, 16, 3) if f is turned else (16, 64, 3)
    inputs = [rng.standard_normal(s) for s in (shape, (3, 3), (3, 3))]
    graph, program = made(f, inputs)
    assert in_chunks(program)
    program.arena.fill(0xFF)
    found = [program(inputs)[1] for _ in range(2)]
    one = made(f, inputs, 1)[1](inputs)[1]
    for got, again, alone, want in zip(*found, one, evaluate(graph, inputs)[0], strict=True):
        np.testing.assert_array_equal(got, again)
        for x in (got, alone):  # whose sums need not be in one order
            np.testing.assert_allclose(x, want, rtol=1e-10, atol=1e-10 * np.abs(want).max())


@pytest.mark.parametrize("f", [last, pytest.param(norms, marks=pytest.mark.slow)], ids=lambda f: f.__name__)
def test_no_loop_knows_the_number_of_steps(f, rng):
    """As many kernels, and those of all loops the same, at every number of steps that chunks divide."""
    found = []
    for steps in (8, 16, 1024):
        inputs = [rng.standard_normal(s) for s in ((steps, 64, 5), (5, 5), (5, 5))]
        _, program = made(f, inputs)
        loops = [c for c in program.plan.calls if isinstance(c, LoopCall)]
        found.append((len(program.kernels), [c.kernel for x in loops for p in x.plans for _, c, _ in p.kernel_calls()]))
        assert in_chunks(program)
    assert found[0] == found[1] == found[2]


def test_readers_of_one_step_get_that_step(rng):
    """Kernels outside of the loops are the same at every number of steps too: the one that reads the last state, and
    those that make its cotangent, which is zero at the other steps."""
    found = []
    for steps in (24, 80):
        inputs = [rng.standard_normal(s) for s in ((steps, 64, 5), (5, 5), (5, 5))]
        graph, program = made(last, inputs)
        for got, want in zip(program(inputs)[1], evaluate(graph, inputs)[0], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10 * np.abs(want).max())
        found.append([c.kernel for c in program.calls])
    assert found[0] == found[1]


@pytest.mark.parametrize("steps, batch", [(16, 3), (12, 64), (7, 64)])
def test_few_rows_and_what_chunks_do_not_divide_stay_whole(steps, batch, rng):
    inputs = [rng.standard_normal(s) for s in ((steps, batch, 5), (5, 5), (5, 5))]
    assert not in_chunks(made(every, inputs)[1])


@pytest.mark.thinned(6)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("longest", [0, 8, 19, 37])
def test_beyond_all_lengths_nothing_is_read_or_made(reverse, longest, rng):
    """A ragged batch whose padding is NaN from the first chunk on that lies beyond all lengths; 37 steps are four
    chunks of 8, and one of 5."""
    steps, batch, width = 37, 33, 3
    formula = ragged.gru(width, reverse, bias=True)
    shapes = {"x": (steps, batch, 2), "W": (2, 2 * width), "U": (width, 2 * width), "h0": (batch, width),
              "c": (2 * width,)}  # fmt: skip
    given = {n: rng.standard_normal(s) for n, s in shapes.items()}
    lengths = np.minimum(longest, rng.integers(0, steps + 1, batch))
    lengths[batch // 2] = longest

    def loss(w, x, u, h0, c, lengths):
        h = formula(x=x, W=w, U=u, h0=h0, c=c, lengths=lengths)
        return (h * h).sum()

    inputs = [given["W"], given["x"], given["U"], given["h0"], given["c"], lengths]
    traced = trace_call(es.grad(loss, (0, 1, 2, 3, 4)), inputs, {})
    want = evaluate(traced.graph, inputs)[0]
    given["x"][-(-max(longest, 1) // 8) * 8 :] = np.nan
    for threads in (1, 2):
        program = Executable(traced.graph, traced.bind, threads)
        program.arena.fill(0xFF)
        for _ in range(2):
            for got, w in zip(program(inputs)[1], want, strict=True):
                np.testing.assert_allclose(got, w, rtol=1e-11, atol=1e-11)
    found = in_chunks(program)
    assert len(found) >= 2 and all(s.stop is not None for c in found for s in c.loop.segments)
    assert all([(s.steps, s.rows) for s in c.loop.segments] == [(4, 8), (1, 5)] for c in found)


GATES = """
    a[t,b,n] = sum[i](x[t,b,i] * W[i,n]) + sum[j](where(t > 0, h[t-1,b,j], 0) * U[j,n])
    g[t,b,k] = sigmoid(a[t,b,H+k]) * where(t > 0, c[t-1,b,k], 0) + sigmoid(a[t,b,0*H+k]) * tanh(a[t,b,2*H+k])
    c[t,b,k] = where(t < lengths[b], g[t,b,k], where(t > 0, c[t-1,b,k], 0))
    h[t,b,k] = where(t < lengths[b], sigmoid(a[t,b,3*H+k]) * tanh(g[t,b,k]), where(t > 0, h[t-1,b,k], 0))
    return h
"""


def test_gates_from_one_product_end_too(rng):
    """An LSTM whose new state has a name: gates at several places of one stacked tensor are read under the condition
    on the lengths alone."""
    op = es.op(GATES, H=4, extents={"k": "H"})
    given = rng.standard_normal((30, 33, 3)), rng.standard_normal((3, 16)), rng.standard_normal((4, 16))
    lengths = rng.integers(0, 7, 33)
    traced = trace_call(es.grad(lambda x, w, u, n: (op(x=x, W=w, U=u, lengths=n)[-1] ** 2).sum(), (1, 2)),
                        [*given, lengths], {})  # fmt: skip
    want = evaluate(traced.graph, [*given, lengths])[0]
    given[0][8:] = np.nan
    program = Executable(traced.graph, traced.bind, 2)
    program.arena.fill(0xFF)
    for got, w in zip(program([*given, lengths])[1], want, strict=True):
        np.testing.assert_allclose(got, w, rtol=1e-11, atol=1e-11)
    assert len(in_chunks(program)) == 2


def test_members_read_outside_are_computed_for_all_steps(rng):
    """The product is read under no condition on the lengths as well."""
    formula = es.op("""
        q[t,b,k] = sum[i](x[t,b,i] * W[i,k])
        h[t,b,k] = where(t < lengths[b], tanh(q[t,b,k] + where(t > 0, h[t-1,b,k], 0)), where(t > 0, h[t-1,b,k], 0))
        return h, q
    """)
    given = {"x": rng.standard_normal((20, 40, 3)), "W": rng.standard_normal((3, 5)), "lengths": np.full(40, 4)}
    inputs = [given[n] for n in formula.inputs]
    traced = trace_call(lambda *x: formula(*x), inputs, {})
    program = Executable(traced.graph, traced.bind, 2)
    for got, want in zip(program(inputs)[1], evaluate(traced.graph, inputs)[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)
    assert not in_chunks(program)
