"""checkpoint=S: the gradient computes states again, segment by segment, and saves every S-th only."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.autodiff import reverse
from einsmith.autodiff.recurrence import recompute
from einsmith.autodiff.recurrence.recompute import checkpoint_of
from einsmith.base.errors import FormulaError, GradientError, KindError
from einsmith.base.trees import flatten
from einsmith.driver.executable import Executable
from einsmith.ir.verify import verify_graph
from tests.lang.recurrences import CASES

NAMES = [
    "rnn", "batch_first", "lstm", "linear_recurrence", "second_order_filter", "filter_with_state", "moving_average",
    "reads_under_a_reduction", "soft_edit_distance", "bidirectional_gates", "ragged_batch", "conv_lstm",
    "coupled_in_reverse", "first_element_apart", "carried_maximum", "carried_product", "viterbi",
]  # fmt: skip


def gradient(name, checkpoint, order=1):
    """The gradient of a sum of squares by every float input; of that gradient's sum of squares, at order 2."""
    c = CASES[name]
    at = tuple(i for i, x in enumerate(c.inputs) if x.dtype.kind == "f")

    def loss(*xs):
        return sum((o * o).sum() for o in flatten(c.formula(*xs, checkpoint=checkpoint))[0])

    g = es.grad(loss, at)
    return g if order == 1 else es.grad(lambda *xs: sum((x * x).sum() for x in g(*xs)), at)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_the_same(name, steps):
    c = CASES[name]
    g = gradient(name, steps)
    verify_graph(trace_call(g, c.inputs, {}).graph)
    for got, want in zip(es.interpret(g)(*c.inputs), es.interpret(gradient(name, 0))(*c.inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12 * np.abs(want).max())


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", ["rnn", "lstm", "second_order_filter", "coupled_in_reverse", "ragged_batch"])
def test_second_derivatives_are_the_same(name):
    c = CASES[name]
    got = es.interpret(gradient(name, 2, order=2))(*c.inputs)
    for x, want in zip(got, es.interpret(gradient(name, 0, order=2))(*c.inputs), strict=True):
        np.testing.assert_allclose(x, want, rtol=1e-11, atol=1e-12 * np.abs(want).max())


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name,steps", [("lstm", 2), ("lstm", 4), ("soft_edit_distance", 3), ("coupled_in_reverse", 2)])
def test_compiled(name, steps):
    c = CASES[name]
    for got, want in zip(gradient(name, steps)(*c.inputs), es.interpret(gradient(name, 0))(*c.inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11 * np.abs(want).max())


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name,steps", [("rnn", 3), ("coupled_in_reverse", 2), ("ragged_batch", 2)])
def test_the_gradient_as_a_text_computes_states_again(name, steps):
    """The text has the segments as an axis, and read again it gives the same gradients."""
    c = CASES[name]
    wrt = [n for n, x in zip(c.formula.inputs, c.inputs, strict=True) if x.dtype.kind == "f"]
    text, plain = (c.formula.gradient(wrt, *c.inputs, checkpoint=s) for s in (steps, 0))
    assert f"//{steps}" in text and "//" not in plain
    given = dict(zip(c.formula.inputs, c.inputs, strict=True))
    rng = np.random.default_rng(5)
    for n, out in zip(c.formula.program.outputs, flatten(es.interpret(c.formula)(*c.inputs))[0], strict=True):
        given["d" + n] = rng.standard_normal(out.shape)
    one, two = (es.op(t) for t in (text, plain))
    got, want = (flatten(es.interpret(f)(**{n: given[n] for n in f.inputs}))[0] for f in (one, two))
    for x, w in zip(got, want, strict=True):
        np.testing.assert_allclose(x, w, rtol=1e-12, atol=1e-12)


B, N, H = 32, 8, 16
GATES = """
    p[t,b,n] = sum[i](x[t,b,i] * W[n,i]) + v[n]
    a[t,b,n] = p[t,b,n] + sum[j](where(t > 0, h[t-1,b,j], 0) * U[n,j])
    c[t,b,k] = sigmoid(a[t,b,H+k]) * where(t > 0, c[t-1,b,k], 0) + sigmoid(a[t,b,0*H+k]) * tanh(a[t,b,2*H+k])
    h[t,b,k] = sigmoid(a[t,b,3*H+k]) * tanh(c[t,b,k])
    return h
"""


def arena(steps: int, checkpoint: int) -> int:
    """Bytes for the gradient of a loss of the last state."""
    op = es.op(GATES, H=H, checkpoint=checkpoint)

    def loss(x, w, v, u):
        return (op(x, w, v, u)[steps - 1] ** 2).sum()

    shapes = [(steps, B, N), (4 * H, N), (4 * H,), (4 * H, H)]
    arrays = [np.zeros(s) for s in shapes]
    return Executable(trace_call(es.grad(loss, (1, 2, 3)), arrays, {}).graph, {}, 1).arena.nbytes


@pytest.mark.thinned(2)
@pytest.mark.parametrize("steps,checkpoint", [(64, 8), (144, 12)])
def test_memory_is_that_of_saved_states_and_of_one_segment(steps, checkpoint):
    """Beside the output and its cotangent, T/S + S times what a step makes."""
    step, output = 4 * B * H * 8, B * H * 8
    assert arena(steps, 0) > 2.5 * steps * step
    assert arena(steps, checkpoint) < 2.5 * (steps // checkpoint + checkpoint) * step + 2 * steps * output


STATES = """
    S[t,k,v] = where(t > 0, S[t-1,k,v], 0)*exp(-g[t,k]*g[t,k]) + K[t,k]*V[t,v]
    o[t,v] = sum[k](S[t,k,v]*Q[t,k])
    m[t,k] = max[v](S[t,k,v])
    return o, m
"""


@pytest.mark.parametrize("checkpoint", [2, 3, 5, 6])
def test_reductions_of_states_belong_to_the_segments(checkpoint):
    """Their gradients need all states, which are recomputed for them, too."""
    rng = np.random.default_rng(3)
    x = [rng.standard_normal(s) for s in ((11, 4), (11, 4), (11, 4), (11, 7))]

    def loss(checkpoint):
        op = es.op(STATES, inputs="g, Q, K, V", checkpoint=checkpoint)

        def f(*x):
            o, m = op(*x)
            return (o * o).sum() + (m * m * m).sum()

        return es.value_and_grad(f, (0, 1, 2, 3))

    want, of = es.interpret(loss(0))(*x)
    for run in (es.interpret(loss(checkpoint)), es.jit(loss(checkpoint))):
        got, gradients = run(*x)
        np.testing.assert_allclose(got, want, rtol=1e-12)
        for a, b in zip(gradients, of, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


def test_reductions_of_states_keep_no_states():
    """Beside the saved states, the arena holds those of one segment."""
    rng = np.random.default_rng(3)
    steps, size = 64, 32 * 32 * 8
    x = [rng.standard_normal(s) for s in ((steps, 32), (steps, 32), (steps, 32), (steps, 32))]
    op = es.op(STATES, inputs="g, Q, K, V", checkpoint=8, chunk=1)
    graph = trace_call(es.grad(lambda *x: (op(*x)[0] ** 2).sum(), (0, 1, 2, 3)), x, {}).graph
    assert Executable(graph, {}, 1).arena.nbytes < 0.6 * steps * size


SCORES = "s[t,i,j] = sum[k](where(t > 0, h[t-1,i,k], 1)*y[j,k])\n"
STATE = "h[t,i,k] = tanh(x[t,i,k] + sum[j](exp(s[t,i,j])*y[j,k]))\n"
LOOPS = {
    "scores": (f"{SCORES}{STATE}return h", 11, 1),
    "scores that are read elsewhere": (f"{SCORES}{STATE}return h, s", 11, 0),
    "few scores": (f"{SCORES}{STATE}return h", 1, 0),
    "scores of earlier steps": (f"{SCORES.strip()} + where(t > 0, s[t-1,i,j], 0)\n{STATE}return h", 11, 0),
    "gates": ("s[t,i,k] = where(t > 0, h[t-1,i,k], 1)*y[i,k]\nh[t,i,k] = tanh(x[t,i,k] + s[t,i,k])\nreturn h", 7, 0),
}


def gradients_of(text, args, checkpoint=0):
    """The gradients of the sum of squares of a formula's results by x and y."""
    f = es.op(text, checkpoint=checkpoint)
    g = es.grad(lambda x, y: sum((o * o).sum() for o in flatten(f(x=x, y=y))[0]), (0, 1))
    return es.interpret(g)(*args)


@pytest.mark.parametrize("name", LOOPS)
def test_results_that_reductions_use_up_are_recomputed(name, rng, monkeypatch):
    """Where these are most of what the gradient would save, it saves the states alone."""
    monkeypatch.setattr(recompute, "MAX_SAVED_BYTES", 0)
    found = []
    monkeypatch.setattr(reverse, "checkpoint_of", lambda *args: found.append(checkpoint_of(*args)) or found[-1])
    text, columns, expected = LOOPS[name]
    args = rng.standard_normal((5, 7, 2)), rng.standard_normal((columns, 2))
    got = gradients_of(text, args)
    assert found[0] == expected
    want = gradients_of(text, args, checkpoint=5)  # of five steps: all states are saved
    assert found[-1] == 0
    for x, w in zip(got, want, strict=True):
        np.testing.assert_allclose(x, w, rtol=1e-12, atol=1e-12 * np.abs(w).max())


@pytest.mark.parametrize("steps", [1, 2])
def test_scalars_of_few_steps(steps, rng, monkeypatch):
    """A member without other axes than time, which is a number where there is one step."""
    monkeypatch.setattr(recompute, "MAX_SAVED_BYTES", 0)
    f = es.op("s[t] = x[t]*where(t > 0, h[t-1], y[0])\nh[t] = tanh(s[t]) + sum[k](s[t]*y[k])\nreturn h")
    args = rng.standard_normal(steps), rng.standard_normal(3)
    gradient = es.grad(lambda x, y: (f(x=x, y=y) ** 2).sum(), (0, 1))
    for x, w in zip(gradient(*args), es.interpret(gradient)(*args), strict=True):
        np.testing.assert_allclose(x, w, rtol=1e-12)


def test_what_cannot_be_recomputed_is_saved_where_nobody_asked(rng, monkeypatch):
    """A step that reads another one than the last."""
    text = SCORES.replace("t-1", "(t-1)//2") + STATE + "return h"
    args = rng.standard_normal((5, 7, 2)), rng.standard_normal((11, 2))
    monkeypatch.setattr(recompute, "MAX_SAVED_BYTES", 0)
    with pytest.raises(GradientError, match="at constant distances only"):
        gradients_of(text, args, checkpoint=1)
    for x, w in zip(gradients_of(text, args), gradients_of(text, args, checkpoint=5), strict=True):
        np.testing.assert_array_equal(x, w)


def test_states_that_cannot_be_recomputed_are_rejected():
    with pytest.raises(GradientError, match=r"constant distances only.*\n?.*Step i0 of 7 reads position"):
        gradient("triangular_solve", 2)(*CASES["triangular_solve"].inputs)
    table = es.op("h[t,k] = where(t > 0, tanh(where(h[t-1,k] < 9, E[ids[t],k], 0) + h[t-1,k]), 1)", checkpoint=2)
    with pytest.raises(GradientError, match="read them before the recurrence"):
        es.grad(lambda e, ids: (table(e, ids) ** 2).sum())(np.ones((500, 2)), np.array([0, 2, 1, 2]))
    for wrong in (-1, 1.5, True, "2"):
        with pytest.raises((FormulaError, KindError), match="integer"):
            es.op("y[t] = where(t > 0, y[t-1], 0) + x[t]", checkpoint=wrong)
        with pytest.raises(FormulaError, match="positive integer"):
            CASES["rnn"].formula(*CASES["rnn"].inputs, checkpoint=wrong)


def test_a_value_without_a_gradient_is_computed_as_ever():
    c = CASES["lstm"]
    for got, want in zip(flatten(c.formula(*c.inputs, checkpoint=2))[0], flatten(c.formula(*c.inputs))[0], strict=True):
        np.testing.assert_array_equal(got, want)
