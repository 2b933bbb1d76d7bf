"""Models of ONNX with dynamic axes: calls of a further size are not traced where the file decides nothing by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.random import default_rng
from onnx import TensorProto as T
from onnx import helper as h
from onnx.reference import ReferenceEvaluator

import einsmith as es
from einsmith import functional as F
from einsmith.api import jit
from einsmith.frontends.onnx import load
from einsmith.training.compiler import StepCompiler

N = h.make_node


def weights(name: str, *shape: int) -> onnx.TensorProto:
    return h.make_tensor(name, T.FLOAT, shape, default_rng(len(name)).normal(size=shape).astype("f").ravel())


def integers(name: str, *values: int, shape: Sequence[int] | None = None) -> onnx.TensorProto:
    return h.make_tensor(name, T.INT64, (len(values),) if shape is None else shape, values)


def model(nodes: Sequence[Any], inits: Sequence[Any], shape: Sequence[Any], kind: int = T.FLOAT) -> onnx.ModelProto:
    inputs = [h.make_tensor_value_info("x", kind, shape)]
    outputs = [h.make_tensor_value_info("y", T.FLOAT, None)]
    graph = h.make_graph(nodes, "g", inputs, outputs, inits)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


def layers() -> onnx.ModelProto:
    nodes = [N("Gemm", ["x", "w", "b"], ["h"]), N("Relu", ["h"], ["r"]), N("MatMul", ["r", "v"], ["y"])]
    return model(nodes, [weights("w", 6, 8), weights("b", 8), weights("v", 8, 3)], ["n", 6])


def convolutions() -> onnx.ModelProto:
    nodes = [
        N("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), N("Relu", ["c"], ["r"]), N("GlobalAveragePool", ["r"], ["p"]),
        N("Flatten", ["p"], ["y"]),
    ]  # fmt: skip
    return model(nodes, [weights("w", 4, 3, 3, 3)], ["n", 3, "t", "t"])


def attention() -> onnx.ModelProto:
    """As it is exported: shapes of views are computed of the shape of x."""
    nodes = [
        N("Shape", ["x"], ["s"]), N("Gather", ["s", "i0"], ["b"]), N("Gather", ["s", "i1"], ["t"]),
        N("Unsqueeze", ["b", "first"], ["b1"]), N("Slice", ["s", "one", "two"], ["t1"]), N("Mul", ["t", "i1"], ["t2"]),
        N("Unsqueeze", ["t2", "first"], ["t3"]), N("Concat", ["b1", "t1", "heads"], ["split"], axis=0),
        N("Concat", ["b1", "t3", "width"], ["whole"], axis=0),
    ]  # fmt: skip
    for c in "qkv":
        nodes += [N("MatMul", ["x", f"w{c}"], [c]), N("Reshape", [c, "split"], [f"{c}1"])]
        nodes.append(N("Transpose", [f"{c}1"], [f"{c}2"], perm=[0, 2, 3, 1] if c == "k" else [0, 2, 1, 3]))
    nodes += [
        N("MatMul", ["q2", "k2"], ["a"]), N("Softmax", ["a"], ["p"], axis=-1), N("MatMul", ["p", "v2"], ["o"]),
        N("Transpose", ["o"], ["o1"], perm=[0, 2, 1, 3]), N("Reshape", ["o1", "whole"], ["y"]),
    ]  # fmt: skip
    inits = [weights("wq", 8, 8), weights("wk", 8, 8), weights("wv", 8, 8), integers("heads", 2, 4)]
    inits += [integers("first", 0), integers("one", 1), integers("two", 2), integers("width", 8)]
    inits += [integers("i0", 0, shape=()), integers("i1", 1, shape=())]
    return model(nodes, inits, ["n", "t", 8])


def positions() -> onnx.ModelProto:
    """Rows of a table that are counted, and one that depends on the number of words."""
    nodes = [
        N("Shape", ["x"], ["s"]), N("Gather", ["s", "i1"], ["t"]), N("Range", ["i0", "t", "i1"], ["r"]),
        N("Gather", ["table", "r"], ["places"]), N("Gather", ["table", "x"], ["words"]), N("Cast", ["t"], ["f"], to=1),
        N("Div", ["words", "f"], ["w"]), N("Add", ["w", "places"], ["y"]),
    ]  # fmt: skip
    inits = [weights("table", 64, 5), integers("i0", 0, shape=()), integers("i1", 1, shape=())]
    return model(nodes, inits, ["n", "t"], T.INT64)


def branches() -> onnx.ModelProto:
    """A file that decides by the batch."""

    def body(function: str) -> onnx.GraphProto:
        return h.make_graph(
            [N(function, ["x"], [f"{function}_y"])], function, [], [h.make_tensor_value_info(f"{function}_y", 1, None)]
        )

    nodes = [
        N("Shape", ["x"], ["s"], end=1), N("Greater", ["s", "limit"], ["c"]),
        N("If", ["c"], ["y"], then_branch=body("Exp"), else_branch=body("Neg")),
    ]  # fmt: skip
    return model(nodes, [integers("limit", 8)], ["n", "t"])


def unrolled() -> onnx.ModelProto:
    """A loop with a step for each row, whose states grow."""
    body = h.make_graph(
        [N("Concat", ["state", "x"], ["grown"], axis=0), N("Identity", ["on"], ["goes"])],
        "body",
        [
            h.make_tensor_value_info("k", T.INT64, ()),
            h.make_tensor_value_info("on", T.BOOL, ()),
            h.make_tensor_value_info("state", T.FLOAT, None),
        ],
        [h.make_tensor_value_info("goes", T.BOOL, ()), h.make_tensor_value_info("grown", T.FLOAT, None)],
    )
    nodes = [
        N("Shape", ["x"], ["s"], end=1), N("Squeeze", ["s"], ["count"]),
        N("Loop", ["count", "true", "x"], ["z"], body=body), N("ReduceSum", ["z", "axis"], ["y"], keepdims=0),
    ]  # fmt: skip
    return model(nodes, [integers("axis", 0), h.make_tensor("true", T.BOOL, (), [True])], ["n", 3])


CASES: dict[str, tuple[Callable[[], onnx.ModelProto], Callable[[int, int], tuple[int, ...]]]] = {
    "layers": (layers, lambda b, t: (b, 6)),
    "convolutions": (convolutions, lambda b, t: (b, 3, t, t)),
    "attention": (attention, lambda b, t: (b, t, 8)),
    "positions": (positions, lambda b, t: (b, t)),
}


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that are traced, with EINSMITH_SIZES=shared."""
    calls: list[Any] = []
    trace = jit.trace_arguments
    monkeypatch.setattr(jit, "trace_arguments", lambda *a: calls.append(a) or trace(*a))
    monkeypatch.setenv("EINSMITH_SIZES", "shared")
    return calls


def array(m: onnx.ModelProto, shape: tuple[int, ...], n: int) -> np.ndarray:
    if m.graph.input[0].type.tensor_type.elem_type == T.INT64:
        return default_rng(n).integers(0, 60, shape)
    return default_rng(n).normal(size=shape).astype("f")


def sizes() -> list[tuple[int, int]]:
    rng = default_rng(7)
    return [(12, 14), (9, 13), *((int(rng.integers(2, 24)), int(rng.integers(3, 28))) for _ in range(22))]


@pytest.mark.parametrize("name", CASES)
def test_further_sizes_are_not_traced(name: str, traced: list) -> None:
    make, shape = CASES[name]
    network, reference, counts = load(make()).eval(), ReferenceEvaluator(make()), []
    for n, size in enumerate(sizes()):
        x, before = array(make(), shape(*size), n), len(traced)
        y = network(x)
        counts.append(len(traced) - before)
        (expected,) = reference.run(None, {"x": x})
        assert y.shape == expected.shape
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5, err_msg=str(size))
    assert counts[:2] == [1, 4] and sum(counts[2:]) == 0


@pytest.mark.parametrize("make, shape", [(branches, (0, 4)), (unrolled, (0, 3))])
def test_files_that_decide_by_a_size_are_traced(make: Callable, shape: tuple[int, int], traced: list) -> None:
    network, reference, counts = load(make()).eval(), ReferenceEvaluator(make()), {}
    for n, b in enumerate((12, 10, 15, 9, 7, 5, 3, 8, 4)):
        x, before = array(make(), (b, shape[1]), n), len(traced)
        np.testing.assert_allclose(network(x), reference.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5, err_msg=str(b))
        counts[b] = len(traced) - before
    assert counts[7] >= 1 and (make is unrolled or counts[15] == counts[9] == 0)


def test_training_steps_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    trace = StepCompiler.trace
    monkeypatch.setattr(StepCompiler, "trace", lambda self, *a: calls.append(a) or trace(self, *a))
    shared, each = (
        es.TrainStep(load(attention()), F.mse_loss, es.optim.SGD(lr=0.1), sizes=s) for s in ("shared", "each")
    )
    for n, (b, t) in enumerate(sizes()[:8]):
        x, y = default_rng(n).normal(size=(2, b, t, 8)).astype("f")
        before = len(calls)
        value = shared(x, y)
        assert n < 2 or len(calls) == before
        np.testing.assert_allclose(value, each(x, y), rtol=1e-4)
