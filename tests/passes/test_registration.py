"""Passes that are registered from outside: order, names, verified results, and keys of plans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base import dtypes as dt
from einsmith.base.errors import VerifyError
from einsmith.codegen.cache import objects
from einsmith.driver import compile as compilation
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Apply, Compute, Const, Graph, Read, apply, template
from einsmith.ir.rebuild import map_bodies, map_templates, rebuild, replace
from einsmith.passes import pipeline
from einsmith.passes.pipeline import run_passes

F = es.functional
UNKNOWN = object()


def rational(e):
    """tanh(x) -> x*(27 + x*x)/(27 + 9*x*x)"""
    if not isinstance(e, Apply) or e.fn != "tanh":
        return None
    (x,) = e.args
    square = apply("mul", x, x)
    above = apply("mul", x, apply("add", Const(27.0, x.dtype), square))
    return apply("div", above, apply("add", Const(27.0, x.dtype), apply("mul", Const(9.0, x.dtype), square)))


def rational_tanh(graph: Graph) -> Graph:
    return replace(graph, lambda n: map_templates(n, lambda t: map_bodies(t, lambda b: rebuild([b], rational)[0])))


def doubled(graph: Graph) -> Graph:
    """x*x -> x + x, which is wrong, so that a program tells whether it went through the pass."""

    def rule(e):
        is_square = isinstance(e, Apply) and e.fn == "mul" and e.args[0] is e.args[1]
        return apply("add", *e.args) if is_square else None

    return replace(graph, lambda n: map_templates(n, lambda t: map_bodies(t, lambda b: rebuild([b], rule)[0])))


def square(x: np.ndarray) -> np.ndarray:
    return es.jit(lambda x: x * x)(x)


@pytest.mark.parametrize("n", [1, 7, 16, 17])
def test_values_and_gradients_are_those_of_the_rewritten_graph(n: int, rng: np.random.Generator) -> None:
    x, w = rng.normal(size=(n, 13)), rng.normal(size=(5, 13))
    layer = es.op("y[i,o] = tanh(sum[k](x[i,k]*w[o,k]))")

    def loss(x, w):
        return es.sum(layer(x, w))

    for f in (loss, es.grad(loss), es.grad(loss, argnums=1)):
        graph = rational_tanh(trace_call(f, (x, w), {}).graph)
        (want,), _ = evaluate(graph, [x, w])
        with es.passes.register("rational tanh", rational_tanh, needs="simplified", after="simplify"):
            np.testing.assert_allclose(es.jit(f)(x, w), want, rtol=1e-10, atol=1e-10)


def test_in_recurrences_and_training(rng: np.random.Generator) -> None:
    x = rng.normal(size=(9, 3))
    f = es.op("h[t,i] = tanh(x[t,i] + where(t > 0, h[t-1,i], 0))")
    state, want = np.zeros(3), []
    for row in x:
        a = row + state
        state = a * (27 + a * a) / (27 + 9 * a * a)
        want.append(state)
    batch, y = rng.normal(size=(17, 5)).astype(np.float32), rng.integers(0, 3, 17)

    def losses() -> list[float]:
        es.manual_seed(0)
        net = es.nn.Sequential(es.nn.Linear(5, 7), es.nn.Tanh(), es.nn.Linear(7, 3))
        step = es.TrainStep(net, F.cross_entropy, es.optim.SGD(lr=0.5))
        return [float(step(batch, y)) for _ in range(5)]

    before = losses()
    with es.passes.register("rational tanh", rational_tanh, needs="simplified", after="simplify"):
        np.testing.assert_allclose(f(x), want, rtol=1e-12)
        after = losses()
    assert after[-1] < after[0] and after != before and losses() == before
    np.testing.assert_allclose(after, before, rtol=0.1)


def test_place_and_order() -> None:
    before = pipeline.PASSES
    with es.passes.register("one", lambda g: g, provides="ones", after="prefix sums"):
        with es.passes.register("two", lambda g: g, needs="ones inlined") as two:
            names = [p.name for p in pipeline.PASSES]
            assert names[names.index("prefix sums") + 1] == "one" and names[-1] == "two"
            assert {"one", "two"} <= {*pipeline.optional()}
            two.unregister()
            two.unregister()  # nothing happens
        with es.passes.register("three", lambda g: g, after="simplify"):  # behind the last one of this name
            names = [p.name for p in pipeline.PASSES]
            assert names[names.index("three") - 1] == "simplify" and "simplify" in names[: names.index("three") - 1]
    assert pipeline.PASSES == before


@pytest.mark.parametrize(
    ("message", "given"),
    [
        ("there is a pass 'inline' already; choose another name", {"name": "inline"}),
        ("there is a pass 'layouts' already", {"name": "layouts"}),
        ("there is a pass 'circular buffers' already", {"name": "circular buffers"}),
        ("there is no pass 'inlin'; after= names one of simplify, ", {"after": "inlin"}),
        ("'own' needs magic, which no pass before it provides; passes provide inlined, ", {"needs": "magic"}),
        ("'own' needs loops, which no pass before", {"needs": ("loops",), "after": "simplify"}),
        ("object of builtins.object.*pass version=", {"function": lambda g, o=UNKNOWN: g}),
    ],
)
def test_what_is_refused(message: str, given: dict) -> None:
    before = pipeline.PASSES
    with pytest.raises(es.ArgumentError, match=message):
        es.passes.register(**{"name": "own", "function": lambda g: g} | given)
    assert pipeline.PASSES == before


def test_a_pass_that_another_one_needs_stays() -> None:
    with es.passes.register("one", lambda g: g, provides="ones") as one:
        with es.passes.register("two", lambda g: g, needs="ones"):
            with pytest.raises(es.ArgumentError, match="'two' needs ones"):
                one.unregister()
    assert all(p.name not in ("one", "two") for p in pipeline.PASSES)


def wrong_type(graph: Graph) -> Graph:
    (t,) = graph.outputs
    return Graph(graph.inputs, (Compute(template((3,), (), Const(1, t.dtype)), ()),), (), ())


def out_of_bounds(graph: Graph) -> Graph:
    (t,), (x,) = graph.outputs, graph.inputs
    body = Read(0, (Const(99, dt.i32),), x.dtype)
    return Graph(graph.inputs, (Compute(template(t.shape, ((x.dtype, x.shape),), body), (x,)),), (), ())


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda g: None, "the pass 'own' returns a NoneType, not a Graph"),
        (wrong_type, "the pass 'own' changes the graph's outputs from .*'f64', .5,.* to .*'f64', .3,"),
        (lambda g: Graph((), g.outputs, (), ()), "the pass 'own' changes the graph's inputs"),
        (out_of_bounds, "the pass 'own' returns a graph that is not valid: .*99"),
    ],
)
def test_wrong_graphs_name_the_pass(function, message: str) -> None:
    with es.passes.register("own", function), pytest.raises(VerifyError, match=message):
        square(np.ones(5))


def test_the_context(rng: np.random.Generator) -> None:
    seen = []

    def asks(graph, context):
        seen.append((context.target.cores, context.can_price))
        return graph

    with es.passes.register("asks", asks, version="1"):
        square(np.ones(5))
    assert seen and all(prices for _, prices in seen)


def test_left_out_by_name_and_dumped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    x = np.full(5, 3.0)
    monkeypatch.setenv("EINSMITH_DUMP", str(tmp_path / "dump"))
    with es.passes.register("doubled", doubled, after="simplify"):
        assert square(x)[0] == 6
        (folder,) = (tmp_path / "dump").iterdir()
        (file,) = folder.glob("*-doubled.txt")
        assert "no change" not in file.read_text()
        assert es.load_graph(folder)(x)[0] == 6
        monkeypatch.setenv("EINSMITH_WITHOUT", "doubled")
        assert square(x)[0] == 9
    with pytest.raises(es.KnobError, match="names 'doubled', which is no pass"):
        square(x)


def test_compiled_programs_and_plans_on_disk_follow_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where a function of the same name is defined otherwise."""
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("EINSMITH_PLANS", "1")
    monkeypatch.setattr(objects, "_written", {})
    runs = []
    run = run_passes
    monkeypatch.setattr(compilation, "run_passes", lambda *a: runs.append(1) or run(*a))
    f, x = es.jit(lambda x: x * x), np.full(5, 3.0)

    def passes_run() -> int:
        es.cache_clear()
        before = len(runs)
        f(x)
        return len(runs) - before

    assert passes_run() == 1 and passes_run() == 0 and f(x)[0] == 9
    with es.passes.register("own", doubled):
        assert f(x)[0] == 6  # compiled anew at once
        assert passes_run() == 0  # from disk
    with es.passes.register("own", lambda g: g):
        assert f(x)[0] == 9 and len(runs) == 3
    with es.passes.register("own", doubled, version="2"):
        assert f(x)[0] == 6 and len(runs) == 4
    assert f(x)[0] == 9 and len(runs) == 4
