"""Scalar functions added from outside: values, derivatives of every order, checks, errors and keys of caches."""

from __future__ import annotations

import copy
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base.identity import identify
from einsmith.driver import registry
from einsmith.driver.compile import compile_graph
from einsmith.ir.evaluator import evaluate
from einsmith.ir.functions import CALLS, FUNCTIONS

SIZES = (1, 7, 15, 16, 17, 33)


def mish(x):
    return x * np.tanh(np.logaddexp(0.0, x))


def slope(t):
    return "tanh(softplus(x)) + x*sigmoid(x)*(1 - tanh(softplus(x))**2)".replace("x", t)


def soft_sign(v, x):
    return v.div(x, v.add(v.f(1.0), v.abs(x)))


@pytest.fixture
def functions() -> Iterator[dict]:
    made = {
        "mish2": es.function("mish2", derivative=slope("x"), evaluate=mish, emit="x*tanh(softplus(x))"),
        "softsign2": es.function(
            "softsign2", derivative="1/(1 + abs(x))**2", evaluate=lambda x: x / (1 + np.abs(x)), emit=soft_sign
        ),
        "length": es.function(
            "length", derivative=("x/length(x, y)", "y/length(x, y)"), evaluate=np.hypot, emit="sqrt(x*x + y*y)"
        ),
    }
    yield made
    for f in made.values():
        f.unregister()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", SIZES)
def test_values_and_derivatives(functions, n, dtype, rng) -> None:
    x, w = rng.normal(size=n).astype(dtype), rng.normal(size=n).astype(dtype)
    f = es.op("y[i] = mish2(x[i]) + softsign2(w[i])*length(x[i], 2*w[i])")

    def loss(x, w):
        return es.sum(f(x, w))

    tolerance = 1e-5 if dtype is np.float32 else 1e-12
    for g in (loss, es.grad(loss, argnums=0), es.grad(loss, argnums=1), f):
        (want,), _ = evaluate(trace_call(g, (x, w), {}).graph, [x.astype(np.float64), w.astype(np.float64)])
        np.testing.assert_allclose(g(x, w), want, rtol=tolerance, atol=tolerance)
    a, b = x.astype(np.float64), w.astype(np.float64)
    exact = mish(a) + b / (1 + np.abs(b)) * np.hypot(a, 2 * b)
    np.testing.assert_allclose(f(x, w), exact, rtol=tolerance, atol=tolerance)


def test_second_derivatives(functions) -> None:
    x = np.array([-1.3, -0.4, 0.6, 2.2])
    for name in ("mish2", "softsign2"):
        f = es.op(f"y[] = sum[i]({name}(x[i]))")
        h = 1e-5
        numeric = (es.grad(f)(x + h) - es.grad(f)(x - h)) / (2 * h)
        np.testing.assert_allclose(np.diagonal(es.hessian(f)(x)), numeric, rtol=1e-7, atol=1e-8)
        _, tangent = es.jvp(f, (x,), (np.ones(4),))
        np.testing.assert_allclose(tangent, es.grad(f)(x).sum())


def test_in_training(functions, rng) -> None:
    """A layer with the added function trains as one with the formula it is defined by."""

    class Net(es.nn.Module):
        def __init__(self, text: str):
            self.hidden, self.out = es.nn.Linear(7, 17), es.nn.Linear(17, 1)
            self.activation = es.op(text)

        def forward(self, x):
            return self.out(self.activation(self.hidden(x)))

    x, y = rng.normal(size=(33, 7)).astype(np.float32), rng.normal(size=(33, 1)).astype(np.float32)
    curves = []
    for text in ("y[i,j] = mish2(x[i,j])", "y[i,j] = x[i,j]*tanh(softplus(x[i,j]))"):
        es.manual_seed(0)
        step = es.TrainStep(Net(text), es.functional.mse_loss, es.optim.SGD(lr=0.1))
        curves.append([float(step(x, y)) for _ in range(5)])
    np.testing.assert_allclose(*curves, rtol=1e-5)
    assert curves[0][-1] < curves[0][0]


def test_in_recurrences_and_as_a_call(functions, rng) -> None:
    x = rng.normal(size=(13,)).astype(np.float32)
    f = es.op("h[t] = mish2(x[t] + where(t > 0, h[t-1], 0))")
    state, want = 0.0, []
    for v in x.astype(np.float64):
        state = mish(v + state)
        want.append(state)
    np.testing.assert_allclose(f(x), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(functions["mish2"](x), mish(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(es.jit(lambda x: functions["length"](x, 3.0))(x), np.hypot(x, 3), rtol=1e-5)


def test_a_builder_as_derivative_and_evaluation_as_code(rng) -> None:
    x = rng.normal(size=17)
    with es.function("cube", derivative=lambda x: 3 * x * x, evaluate=lambda x: x * x * x) as cube:
        np.testing.assert_allclose(cube(x), x**3)
        np.testing.assert_allclose(es.grad(lambda x: es.sum(cube(x)))(x), 3 * x * x)
    with es.function("quart", evaluate=lambda x: x**4, emit="x*x*x*x"):  # the derivative of the formula
        np.testing.assert_allclose(es.grad(es.op("y[] = sum[i](quart(x[i]))"))(x), 4 * x**3)
    with pytest.raises(es.FormulaError, match="unknown function quart"):
        es.op("y[i] = quart(x[i])")


def test_functions_that_a_definition_calls_stay_those_of_its_time() -> None:
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    with es.function("inner", derivative="2", evaluate=lambda x: 2 * x, emit="x + x"):
        outer = es.function("outer", derivative="inner(1.0)", evaluate=lambda x: 2 * x, emit="inner(x)")
    with es.function("inner", derivative="3", evaluate=lambda x: 3 * x, emit="3*x"), outer:
        np.testing.assert_array_equal(outer(x), 2 * x)  # lowered in float32 for the first time
        np.testing.assert_array_equal(es.grad(lambda x: es.sum(outer(x)))(x), np.full(5, 2, np.float32))


def test_evaluation_of_numbers() -> None:
    with es.function("lgamma2", derivative="log(x)", evaluate=np.vectorize(lambda x: x * math.log(x) - x),
                     emit="x*log(x) - x", points=(0.5, 1.5, 4)) as f:  # fmt: skip
        np.testing.assert_allclose(f(np.array([2.0])), 2 * math.log(2) - 2)


def test_names_stay_free_for_tensors(functions) -> None:
    x = np.array([1.0, 2.0])
    np.testing.assert_allclose(es.op("mish2[i] = 2*x[i]\ny[i] = mish2(mish2[i])\nreturn y")(x), mish(2 * x))
    assert str(es.op("y[i] = mish2(x[i])").gradient("x", x=x))


def test_gradient_text_parses_again(functions) -> None:
    x = np.array([0.5, -2.0])
    text = str(es.op("y[i] = softsign2(x[i])*length(x[i], 1.0)").gradient("x", x=x))
    assert "softsign2(x[i])" in text and "@" not in text
    es.op(text)


@pytest.mark.parametrize(
    ("message", "given"),
    [
        ("derivative of bad by its argument 0 is .* finite differences", {"derivative": "2*cos(x)"}),
        ("code of bad gives .* in f64 at -2.9", {"emit": "sin(x + 1e-6)"}),
        ("code of bad gives", {"emit": lambda v, x: v.mul(x, x)}),
        ("code of bad cannot be built: .*no sine", {"emit": lambda v, x: v.sine(x)}),
        ("has no parameter y", {"derivative": "cos(y)"}),
        ("needs evaluate=", {"evaluate": None}),
        ("needs derivative=", {"derivative": None, "emit": lambda v, x: x}),
        ("1 parameters, x, and 2 derivatives", {"derivative": ("cos(x)", "0")}),
        ("finite at none", {"evaluate": np.log, "emit": "log(x)", "derivative": "1/x", "points": (-1, -2)}),
        ("fails on arrays.*np.vectorize takes", {"evaluate": lambda x: x.nothing}),
        ("returns shape", {"evaluate": lambda x: 1.0}),
        ("a function or a word of the formula language", {"name": "sin"}),
        ("a function or a word of the formula language", {"name": "sum"}),
        ("no name of a function", {"name": "a b"}),
    ],
)
def test_wrong_definitions(message, given) -> None:
    before = dict(CALLS), dict(FUNCTIONS)
    with pytest.raises((es.ArgumentError, es.FormulaError), match=message):
        es.function(**{"name": "bad", "derivative": "cos(x)", "evaluate": np.sin, "emit": "sin(x)"} | given)
    assert (dict(CALLS), dict(FUNCTIONS)) == before


def test_names_clash_unless_the_definition_is_equal(functions) -> None:
    again = es.function("mish2", derivative=slope("x"), evaluate=mish, emit="x*tanh(softplus(x))")
    assert again.spec is functions["mish2"].spec
    with pytest.raises(es.ArgumentError, match="mish2 is defined otherwise already; unregister it first"):
        es.function("mish2", derivative="cos(x)", evaluate=np.sin, emit="sin(x)")


def test_domains_are_those_of_the_evaluation() -> None:
    with es.function("root", derivative="0.5/root(x)", evaluate=np.sqrt, emit="sqrt(x)") as root:
        assert np.isnan(root(np.array([-1.0], np.float32))).all()
    with pytest.raises(es.ArgumentError, match="code of root gives 1.7.* where evaluate= gives nan"):
        es.function("root", derivative="0.5/root(x)", evaluate=np.sqrt, emit="sqrt(abs(x))")


def test_definitions_are_part_of_keys(functions) -> None:
    """Another definition under the name gives another node, also in programs of the same text."""
    x = np.linspace(-1, 1, 5)

    def program():
        return es.op("y[i] = twice(x[i])")

    with es.function("twice", derivative="2", evaluate=lambda x: 2 * x, emit="x + x") as first:
        old = program()
        np.testing.assert_array_equal(old(x), 2 * x)
    with es.function("twice", derivative="3", evaluate=lambda x: 3 * x, emit="x + x + x") as second:
        assert first.spec.name != second.spec.name
        np.testing.assert_allclose(program()(x), 3 * x)
        np.testing.assert_array_equal(old(x), 2 * x)
        np.testing.assert_allclose(es.grad(lambda x: es.sum(program()(x)))(x), np.full(5, 3.0))


def test_copies_and_pickles(functions) -> None:
    x = np.ones(3, np.float32)
    f = es.op("y[i] = softsign2(x[i])")
    for kept in (functions["softsign2"], f):
        for copied in (copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
            np.testing.assert_array_equal(copied(x), f(x))
    data = pickle.dumps(functions["softsign2"]).replace(b"softsign2@", b"softsign2@"[:-1] + b"#")
    with pytest.raises(es.ArgumentError, match="softsign2#.* is not defined here"):
        pickle.loads(data)


def test_identity_of_functions() -> None:
    def make(k, helper=None):
        return lambda x: k * x if helper is None else helper(x)

    assert identify(make(1)) == identify(make(1)) != identify(make(2))
    assert identify(lambda x: x in {1, 2, 3}) == identify(lambda x: x in {3, 2, 1}) != identify(lambda x: x in {1, 2})
    assert identify(make(1, mish)) != identify(make(1, slope)) != identify(make(1))
    assert identify(make(object()), version="1") != identify(make(object()), version="2")
    with pytest.raises(es.ArgumentError, match="object of builtins.object.*pass version="):
        identify(make(object()))


def test_exports(functions, tmp_path, rng) -> None:
    """A C library computes added functions; ONNX has a formula's operators, and none for code over lanes."""
    x = rng.normal(size=17).astype(np.float32)
    both = es.op("y[i] = mish2(x[i]) + softsign2(x[i])")
    es.export(lambda x: both(x), tmp_path / "lib", x, target="host")
    library = es.load_library(tmp_path / "lib")
    np.testing.assert_array_equal(library(x), both(x))


def test_compiled_for_cards(functions) -> None:
    """Code over lanes, and compositions, are lowered to tiles."""
    target = registry.target_of("h100", 1)
    x = np.ones((33, 65), np.float32)
    for name in ("mish2", "softsign2"):
        f = es.op(f"y[] = sum[i,j]({name}(x[i,j]))")
        graph = trace_call(es.value_and_grad(f), (x,), {}).graph
        assert compile_graph(graph, {}, 1, target=target).kernels


PROGRAM = """
import numpy as np, einsmith as es
def helper(x): return x if 1 in {1, 2, 3} else -x
f = es.function("same", derivative=lambda x: 3*x*x, evaluate=lambda x: helper(x)**3, emit="x*x*x")
print(f.spec.name)
"""


def test_identities_are_equal_in_every_process() -> None:
    names = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    }
    (name,) = names
    assert name.startswith("same@")
