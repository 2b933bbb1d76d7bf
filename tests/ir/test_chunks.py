"""The chunk form of linear recurrences against their steps, in float64."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.autodiff.reverse import gradients
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Graph, Recurrence, StepOptions, leaf, postorder
from einsmith.ir.recurrence.chunks import readers
from einsmith.ir.recurrence.chunks.affine import NotLinearError
from einsmith.ir.recurrence.chunks.readers import ChunkSearch
from einsmith.ir.verify import verify_graph

SIZES = {"T": 11, "b": 2, "h": 3, "k": 4, "v": 5}


def traced(text: str, inputs: Sequence[np.ndarray], names: str, **extents: int) -> Graph:
    return trace_call(es.op(text, inputs=names, extents=extents), tuple(inputs), {}).graph


def in_chunks(graph: Graph, length: int) -> Graph:
    return Graph(graph.inputs, tuple(ChunkSearch(lambda found, outputs: length).replace_all(graph.outputs)), (), ())


def check(text: str, inputs: Sequence[np.ndarray], names: str, length: int, **extents: int) -> Graph:
    """Compare values and gradients of a formula with those of its chunk form, which it must have; return this one."""
    graph = traced(text, inputs, names, **extents)
    chunked = in_chunks(graph, length)
    assert not {*recurrences(chunked)} & {*recurrences(graph)}
    seeds = [np.random.default_rng(k).standard_normal(x.shape) for k, x in enumerate(graph.outputs)]
    expected, found = (with_gradients(g, inputs, seeds) for g in (graph, chunked))
    for a, b in zip(expected, found, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-12 * max(1.0, np.abs(a).max(initial=0.0)))
    return chunked


def recurrences(graph: Graph) -> list[Recurrence]:
    return [n for n in postorder(graph.outputs) if isinstance(n, Recurrence)]


def with_gradients(graph: Graph, inputs: Sequence[np.ndarray], seeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    cotangents = [leaf(x.shape, x.dtype) for x in graph.outputs]
    values, pulled = gradients(graph.outputs, cotangents, graph.inputs)
    whole = Graph((*graph.inputs, *cotangents), (*values, *pulled), (), ())
    verify_graph(whole)
    return evaluate(whole, [*inputs, *seeds])[0]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_few_steps(steps: int, monkeypatch) -> None:
    monkeypatch.setitem(SIZES, "T", steps)
    for seed in range(8):
        x = Drawn(seed)
        graph = traced(x.text, [*x.inputs.values()], ", ".join(x.inputs))
        if recurrences(graph):
            check(x.text, [*x.inputs.values()], ", ".join(x.inputs), 2)


@pytest.mark.parametrize("size", ["b", "h", "v"])
def test_axes_of_one_element(size: str, monkeypatch) -> None:
    """They have no index in what reads them."""
    monkeypatch.setitem(SIZES, size, 1)
    for seed in range(6):
        x = Drawn(seed)
        check(x.text, [*x.inputs.values()], ", ".join(x.inputs), 4)


def normal(rng: np.random.Generator, axes: str, scale: float = 0.5) -> np.ndarray:
    return rng.standard_normal([SIZES.get(a, 1) for a in axes]) * scale


class Drawn:
    """A linear recurrence drawn at random: its formula and inputs."""

    def __init__(self, seed: int):
        self.draw = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        self.inputs: dict[str, np.ndarray] = {}
        draw = self.draw
        self.shared = draw.choice(["", "h", "bh"])
        kinds = ["k", "v", *self.shared]
        draw.shuffle(kinds)
        self.state = "".join(kinds)
        self.is_reverse = draw.random() < 0.3
        first, last = ("T-1", "T-1") if self.is_reverse else ("0", "0")
        at = f"[t{'+' if self.is_reverse else '-'}1,{self.axes(self.state)}]"
        condition = f"t < {last}" if self.is_reverse else f"t > {first}"
        initial = self.tensor(self.state) if draw.random() < 0.5 else "0"
        decay, guarded = self.decay(), ""
        if draw.random() < 0.3:  # the first step is then the initial state of the others
            decay, guarded = "", decay
        lines = [f"p[t,{self.axes(self.state)}] = where({condition}, S{at}{guarded}, {initial})"]
        reads = draw.randint(0, 2)
        for s in range(reads):
            q = self.tensor("t" + self.some("k"))
            lines.append(f"z{s}[t,{self.axes(self.without('k'))}] = sum[k](p[t,{self.axes(self.state)}]*{q})")
        terms = [f"p[t,{self.axes(self.state)}]{decay}"]
        for r in range(draw.randint(1, 2)):
            key = self.tensor("t" + self.some("k"))
            value = self.tensor("t" + self.some("v"))
            parts = [value]
            for s in range(reads):
                if draw.random() < 0.7 or r == 0:
                    weight = draw.choice(["0.3", self.tensor("t" + self.some(""))])
                    parts.append(f"{weight}*z{s}[t,{self.axes(self.without('k'))}]")
            terms.append(f"{key}*({' - '.join(parts)})")
        lines.append(f"S[t,{self.axes(self.state)}] = {' + '.join(terms)}")
        out = list("t" + self.without("k"))
        draw.shuffle(out)
        q = self.tensor("t" + self.some("k"))
        read = draw.choice(["S", "S" if guarded else "p"]) + f"[t,{self.axes(self.state)}]"
        lines.append(f"y[{','.join(out)}] = sum[k]({read}*{q})")
        results = ["y"]
        if reads and draw.random() < 0.3 and not guarded:
            results.append("z0")
        if draw.random() < 0.4:
            end = "0" if self.is_reverse else "T-1"
            lines.append(f"F[{self.axes(self.state)}] = S[{end},{self.axes(self.state)}]")
            results.append("F")
        self.text = "\n".join([*lines, f"return {', '.join(results)}"])
        self.text = self.text.replace("T-1", str(SIZES["T"] - 1))
        self.inputs = {n: x for n, x in self.inputs.items() if f"{n}[" in self.text}

    @staticmethod
    def axes(letters: str) -> str:
        return ",".join(letters)

    def without(self, letter: str) -> str:
        return self.state.replace(letter, "")

    def some(self, own: str) -> str:
        """Some shared axes, and one of the state's own."""
        return "".join(a for a in self.shared if self.draw.random() < 0.8) + own

    def tensor(self, axes: str, values: np.ndarray | None = None) -> str:
        name = "ABCDEGHIJKLMNOPQRUVWXYZ"[len(self.inputs)]
        self.inputs[name] = normal(self.rng, axes.replace("t", "T")) if values is None else values
        return f"{name}[{self.axes(axes)}]"

    def decay(self) -> str:
        kind = self.draw.choice(["none", "number", "step", "channel", "zeros", "exp"])
        if kind in ("none", "number"):
            return "" if kind == "none" else "*0.9"
        axes = "t" + self.some("k" if kind == "channel" or self.draw.random() < 0.3 else "")
        values = normal(self.rng, axes.replace("t", "T"), 0.8)
        if kind == "zeros":
            values *= self.rng.random(values.shape) < 0.7
        name = self.tensor(axes, values)
        return f"*exp({name})" if kind == "exp" else f"*{name}"


@pytest.mark.thinned(3)
@pytest.mark.parametrize("seed", range(60))
def test_random_recurrences(seed: int) -> None:
    x = Drawn(seed)
    check(x.text, [*x.inputs.values()], ", ".join(x.inputs), random.Random(seed).choice([2, 3, 4, 7, 8, 11]))


DELTA = """
p[t,h,k,v] = where(t > 0, S[t-1,h,k,v], 0)*a[t,h]
u[t,h,v] = V[t,h,v] - sum[k](p[t,h,k,v]*K[t,h,k])
S[t,h,k,v] = p[t,h,k,v] + K[t,h,k]*u[t,h,v]
o[t,h,v] = sum[k](S[t,h,k,v]*Q[t,h,k])
return o
"""


@pytest.mark.parametrize("steps", [1, 4, 5, 13])
def test_numbers_of_steps(steps: int, rng: np.random.Generator) -> None:
    """Of one chunk, of a chunk and a step, of a shorter last one."""
    x = [rng.standard_normal((steps, 2, *n)) for n in ((), (5,), (3,), (3,))]
    check(DELTA, x, "a, V, K, Q", min(4, steps))


@pytest.mark.parametrize("steps", [8, 9])
@pytest.mark.parametrize("shared", ["a", "aVKQ"])
@pytest.mark.parametrize("decay", ["a[t,h]", "a[t,h,k]"])
def test_factors_that_all_steps_share(decay: str, shared: str, steps: int, rng: np.random.Generator) -> None:
    """In whole chunks nothing depends on the step then."""
    text = DELTA.replace("a[t,h]", decay)
    for name in shared:
        text = text.replace(f"{name}[t,", f"{name}[")
    extents = {"t": steps, "h": 2, "k": 3, "v": 5}
    reads = [re.findall(rf"\b{name}\[(.*?)\]", text)[0].split(",") for name in "aVKQ"]
    x = [rng.standard_normal([extents[i] for i in read]) for read in reads]
    check(text, x, "a, V, K, Q", 4, **extents)


def test_products_of_decays_that_vanish(rng: np.random.Generator) -> None:
    """Nothing is divided by them, and no logarithm is taken: values are finite, as those of steps."""
    x = [rng.standard_normal((32, 2, *n)) for n in ((), (5,), (3,), (3,))]
    x[0] = np.full((32, 2), 1e-200)
    chunked = check(DELTA, x, "a, V, K, Q", 16)
    assert np.isfinite(evaluate(chunked, x)[0][0]).all()


NOT_LINEAR = {
    "a step has tanh of its state": "S[t,k,v] = tanh(where(t > 0, S[t-1,k,v], 0)) + K[t,k]*V[t,v]",
    "a step reads more than the step before it": "S[t,k,v] = where(t > 1, S[t-2,k,v], 0) + K[t,k]*V[t,v]",
    "a step reads elements of its state at other places than their own": (
        "S[t,k,v] = 0.5*where(t > 0 and k > 0, S[t-1,k-1,v], 0) + K[t,k]*V[t,v]"
    ),
    "a step has mul of its state": "S[t,k,v] = where(t > 0, S[t-1,k,v]*S[t-1,k,v], 0) + K[t,k]*V[t,v]",
}


@pytest.mark.parametrize("reason", NOT_LINEAR)
def test_what_has_no_chunk_form_stays(reason: str, rng: np.random.Generator, monkeypatch) -> None:
    reasons: list[str] = []
    form = readers._chunk_form

    def noted(*arguments):
        try:
            return form(*arguments)
        except NotLinearError as e:
            reasons.append(str(e))
            raise

    monkeypatch.setattr(readers, "_chunk_form", noted)
    text = f"{NOT_LINEAR[reason]}\no[t,v] = sum[k](S[t,k,v]*Q[t,k])\nreturn o"
    graph = traced(text, [rng.standard_normal((8, n)) for n in (3, 4, 3)], "K, V, Q")
    assert in_chunks(graph, 4).outputs == graph.outputs and reasons == [reason]


def test_initial_states(rng: np.random.Generator) -> None:
    """One formula gives it; of several parts, the steps stay."""
    whole = "S[0,k,v] = A[k,v]\n"
    parts = "S[0,0,v] = A[0,v]\nS[0,k+1,v] = 2*A[k+1,v]\n"
    rest = "S[t+1,k,v] = 0.9*S[t,k,v] + K[t,k]*V[t,v]\no[t,v] = sum[k](S[t+1,k,v]*Q[t,k])\nreturn o"
    x = [rng.standard_normal(n) for n in ((3, 5), (8, 3), (8, 5), (8, 3))]
    check(whole + rest, x, "A, K, V, Q", 4)
    graph = traced(parts + rest, x, "A, K, V, Q")
    assert in_chunks(graph, 4).outputs == graph.outputs


def test_states_that_are_results_stay(rng: np.random.Generator) -> None:
    text = DELTA.replace("return o", "return o, S")
    graph = traced(text, [rng.standard_normal((8, 2, *n)) for n in ((), (5,), (3,), (3,))], "a, V, K, Q")
    assert in_chunks(graph, 4).outputs == graph.outputs


def test_resets_are_decays_of_zero(rng: np.random.Generator) -> None:
    """Documents of other lengths: their first steps begin with an empty state."""
    text = DELTA.replace("where(t > 0, S[t-1,h,k,v], 0)*a[t,h]", "where(t > 0, where(r[t] == 0, S[t-1,h,k,v], 0), 0)")
    x = [rng.standard_normal((16, 2, *n)) for n in ((5,), (3,), (3,))]
    check(text, [np.array([1, 0, 0, 1, 1, *[0] * 11], np.float64), *x], "r, V, K, Q", 4)


def test_checkpoints_are_chunks(rng: np.random.Generator) -> None:
    """Where the gradient saves every 8th state of single steps, it saves every second one of chunks of four."""
    x = [rng.standard_normal((32, 2, *n)) for n in ((), (5,), (3,), (3,))]
    f = es.op(DELTA, inputs="a, V, K, Q", checkpoint=8)
    chunked = in_chunks(trace_call(f, tuple(x), {}).graph, 4)
    assert {n.options for n in recurrences(chunked) if n.steps == 8} == {StepOptions(2, 4)}


def test_they_can_be_left_out(rng: np.random.Generator, monkeypatch) -> None:
    graph = traced(DELTA, [rng.standard_normal((8, 2, *n)) for n in ((), (5,), (3,), (3,))], "a, V, K, Q")
    assert in_chunks(graph, 4).outputs != graph.outputs
    monkeypatch.setenv("EINSMITH_WITHOUT", "chunk form")
    assert in_chunks(graph, 4).outputs == graph.outputs


def test_grouped_queries_and_keys_of_several_heads(rng: np.random.Generator) -> None:
    text = """
S[t,h,k,v] = 0.9*where(t > 0, S[t-1,h,k,v], 0) + K[t,h//2,k]*V[t,h//2,v]*B[t,h]
o[t,h,g,v] = sum[k](S[t,h,k,v]*Q[t,h,g,k])
return o
"""
    x = [rng.standard_normal((9, *n)) for n in ((2, 3), (2, 5), (4,), (4, 3, 3))]
    check(text, x, "K, V, B, Q", 4)


SOLVE = """
x[i,h,v] = w[i,h]*(b[i,h,v] - sum[j](where(j < i, A[h,i,j]*x[j,h,v], 0)))
return x
"""


@pytest.mark.parametrize("text", [SOLVE, SOLVE.replace("j < i", "j > i"), SOLVE.replace("[i,h,v]", "[v,h,i]")])
def test_triangular_systems_are_solved_by_blocks(text: str, rng: np.random.Generator) -> None:
    x = [rng.random((48, 2)), rng.standard_normal((48, 2, 17)), rng.standard_normal((2, 48, 48)) * 0.2]
    text = text.replace("x[j,h,v]", "x[v,h,j]") if "x[v" in text else text
    x[1] = x[1].T.copy() if "b[v" in text else x[1]
    check(text, x, "w, b, A", 16)


def test_small_systems_are_solved_by_rows(rng: np.random.Generator) -> None:
    x = [rng.random((32, 2)), rng.standard_normal((32, 2, 3)), rng.standard_normal((2, 32, 32))]
    graph = traced(SOLVE, x, "w, b, A")
    assert in_chunks(graph, 16).outputs == graph.outputs


def plan_of(f, *arrays: np.ndarray) -> list[str]:
    run = es.jit(f)
    run(*arrays)
    return [line for line in str(run.plan).splitlines() if line.startswith("recurrence of")]


def test_plans_say_how_steps_are_taken(rng: np.random.Generator) -> None:
    x = [rng.standard_normal((128, 2, *n)).astype(np.float32) for n in ((), (64,), (64,), (64,))]
    f = es.op(DELTA, inputs="a, V, K, Q")
    assert plan_of(f, *x) == ["recurrence of 128 steps: 16 at a time, as products"]
    small = [a[:16, :, :2] if a.ndim > 2 else a[:16] for a in x]
    less = "recurrence of 16 steps: one after the other, which is predicted to take less than chunks"
    assert plan_of(f, *small) == [less]
    cell = es.op("h[t,k] = tanh(X[t,k] + where(t > 0, h[t-1,k], 0))\nreturn h")
    assert plan_of(cell, x[0]) == ["recurrence of 128 steps: one after the other: a step has tanh of its state"]


def test_values_and_gradients_share_their_chunks(rng: np.random.Generator) -> None:
    """A pull-back reads what the values are computed from."""
    x = [rng.standard_normal((128, 2, *n)).astype(np.float32) for n in ((), (64,), (64,), (64,))]
    f = es.op(DELTA, inputs="a, V, K, Q")

    def both(c, *x):
        y, pull = es.vjp(f, *x)
        return y, *pull(c)

    assert plan_of(both, x[1], *x) == ["recurrence of 8 chunks: 16 steps at a time, as products"]
