"""The kinds of recurrences that users write, at sizes that fit no vector and no tile: values against plain loops, first
and second derivatives against differences in float64, and compiled gradients (slow tests: of gradients too)
against the evaluator, on one thread and two."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith import nn
from einsmith.api.tracing import trace_call
from einsmith.base.trees import flatten
from einsmith.driver.executable import Executable
from einsmith.ir.evaluator import evaluate
from tests.lang.recurrences import CASES

SIZES: dict[str, tuple] = {
    "linear_recurrence": ((5, 19), (19,)),
    "second_order_filter": ((17,), (2,)),
    "soft_edit_distance": ((7, 11),),
    "triangular_solve": ((13,), (13, 13)),
    "moving_average": ((5, 21),),
    "ragged_batch": ((3, 17), np.array([5, 0, 3]), (7, 3, 17), (17, 17)),
    "conv_lstm": ((3, 3, 3, 3), (3, 1, 3, 5, 7)),
    "selective_scan": ((5, 2, 3), (3, 4), (5, 2, 4), (5, 2, 3), (5, 2, 4), (3,)),
}


def compiled(f, inputs) -> None:
    traced = trace_call(f, inputs, {})
    want = evaluate(traced.graph, list(inputs))[0]
    for threads in (1, 2):
        program = Executable(traced.graph, traced.bind, threads)
        program.arena.fill(0xFF)
        for got, w in zip(program(list(inputs))[1], want, strict=True):
            np.testing.assert_allclose(got, w, rtol=1e-9, atol=1e-9 * max(1.0, np.abs(w).max()))


def gradients(f, at):
    """The gradient of a sum of squares, and that of its own sum of squares."""

    def loss(*xs):
        return sum(((o * o).sum() for o in flatten(f(*xs))[0] if o.dtype.is_float), 0.0)

    first = es.grad(loss, at)
    return first, es.grad(lambda *xs: sum((g * g).sum() for g in first(*xs)), at)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", SIZES)
def test_recurrences(name, rng):
    c = CASES[name]
    inputs = tuple(0.4 * rng.standard_normal(s) if isinstance(s, tuple) else s for s in SIZES[name])
    for got in (c.formula(*inputs), es.interpret(c.formula)(*inputs)):
        np.testing.assert_allclose(got, c.loop(*inputs, **c.parameters), rtol=1e-11, atol=1e-11)
    es.check_gradients(c.formula, *inputs, order=2)
    at = tuple(i for i, x in enumerate(inputs) if x.dtype.kind == "f")
    compiled(gradients(c.formula, at)[0], inputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_second_order_compiled(name, rng):
    c = CASES[name]
    inputs = tuple(0.4 * rng.standard_normal(s) if isinstance(s, tuple) else s for s in SIZES[name])
    compiled(gradients(c.formula, tuple(i for i, x in enumerate(inputs) if x.dtype.kind == "f"))[1], inputs)


def test_a_bidirectional_gru(rng):
    layer = nn.GRU(5, 9, bidirectional=True, dtype="float64")
    names = list(layer.state_dict())

    def f(x, *weights):
        return nn.functional_call(layer, dict(zip(names, weights, strict=True)), x)[0]

    inputs = (rng.standard_normal((3, 2, 5)), *(np.asarray(v) for v in layer.state_dict().values()))
    es.check_gradients(f, *inputs, order=2)
    compiled(gradients(f, tuple(range(len(inputs))))[0], inputs)
