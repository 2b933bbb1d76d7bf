"""Loops whose end depends on values: any trip count, memory that does not grow with it, and what stands around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

import einsmith as es
from einsmith.base.errors import TraceError
from einsmith.frontends.onnx import load
from einsmith.runtime.arena import Arena

COUNTS = [None, 2**14 + 1, 2**31 - 1, 2**31, 2**63 - 1]


def value(name: str, kind: int = T.FLOAT, shape: Any = None) -> onnx.ValueInfoProto:
    return h.make_tensor_value_info(name, kind, shape)


def while_below(most: int | None, rows: int = 2, name: str = "loop") -> onnx.ModelProto:
    """s = 2*x; while sum(s) < most: s = s*factor + w*0, i counts; y = s - t, t being the steps done."""
    body = h.make_graph(
        [
            h.make_node("Mul", ["s", "factor"], ["scaled"]),
            h.make_node("Mul", ["w", "zero"], ["none"]),
            h.make_node("Add", ["scaled", "none"], ["s_out"]),
            h.make_node("Cast", ["i"], ["seen"], to=T.FLOAT),
            h.make_node("ReduceSum", ["s_out"], ["total"], keepdims=0),
            h.make_node("Less", ["total", "most"], ["goes_on"]),
        ],
        "body",
        [value("i", T.INT64, []), value("c", T.BOOL, []), value("s", T.FLOAT, [rows, 3]), value("last", T.FLOAT, [])],
        [value("goes_on", T.BOOL, []), value("s_out", T.FLOAT, [rows, 3]), value("seen", T.FLOAT, [])],
    )
    constants: dict[str, Any] = {"two": np.float32(2), "zero": np.float32(0), "none_yet": np.float32(-1),
                                 "w": np.ones((rows, 3), np.float32)}  # fmt: skip
    count = ""
    if most is not None:
        count, constants["count"] = "count", np.int64(most)
    nodes = [
        h.make_node("Mul", ["x", "two"], ["doubled"]),
        h.make_node("Abs", ["f"], ["factor"]),
        h.make_node("ReduceSum", ["doubled"], ["first"], keepdims=0),
        h.make_node("Less", ["first", "most"], ["starts"]),
        h.make_node("Loop", [count, "starts", "doubled", "none_yet"], ["end", "steps"], name=name, body=body),
        h.make_node("Sub", ["end", "steps"], ["low"]),
        h.make_node("Add", ["low", "first"], ["y"]),
    ]
    inputs = [value("x", T.FLOAT, [rows, 3]), value("f", T.FLOAT, []), value("most", T.FLOAT, [])]
    graph = h.make_graph(nodes, "net", inputs, [value("y", T.FLOAT, [rows, 3])],
                         [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()])  # fmt: skip
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=10)


def expected(x: np.ndarray, factor: float, most: float, count: int | None) -> np.ndarray:
    s = first = 2 * x
    steps, last = 0, -1.0
    while s.sum() < most and (count is None or steps < count):
        s, last, steps = s * factor, float(steps), steps + 1
    return s - last + first.sum()


@pytest.mark.parametrize("count", [0, 1, 5, *COUNTS])
def test_while_loops_end_by_their_condition(count: int | None, rng: np.random.Generator):
    net = load(while_below(count).SerializeToString())
    x = rng.integers(1, 5, (2, 3)).astype(np.float32)
    for most in (0.0, 1e2, 2.0**40):  # no step, some, and more than one call of the loop's program takes
        y = net(x, np.float32(2), np.float32(most))
        np.testing.assert_array_equal(y, expected(x, 2, most, count))


def test_a_trip_count_ends_a_long_loop(rng: np.random.Generator):
    x = rng.integers(1, 5, (2, 3)).astype(np.float32)
    y = load(while_below(2**14 + 5).SerializeToString())(x, np.float32(1), np.float32(np.inf))
    np.testing.assert_array_equal(y, expected(x, 1, np.inf, 2**14 + 5))


def test_states_of_all_steps_are_not_stored(monkeypatch: pytest.MonkeyPatch):
    sizes: list[int] = []
    known = Arena.reserve

    def reserve(own: Arena, nbytes: int, *more: Any) -> Any:
        sizes.append(nbytes)
        return known(own, nbytes, *more)

    monkeypatch.setattr(Arena, "reserve", reserve)
    rows = 4099
    x = np.ones((rows, 3), np.float32)
    y = load(while_below(2**31 - 1, rows).SerializeToString())(x, np.float32(2), np.float32(1e9))
    np.testing.assert_array_equal(y, expected(x, 2, 1e9, None))
    assert x.nbytes < max(sizes) < 100 * x.nbytes, sizes


def test_a_trace_says_what_to_do():
    net = load(while_below(2**31 - 1).SerializeToString())
    with pytest.raises(TraceError, match="trip count of at most") as caught:
        es.jit(net)(np.ones((2, 3), np.float32), np.float32(2), np.float32(100))
    assert "Loop 'loop'" in "".join(caught.value.__notes__)
    short = load(while_below(20).SerializeToString())
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(es.jit(short)(x, np.float32(2), np.float32(100)), expected(x, 2, 100, 20))


def test_two_long_loops_after_each_other(rng: np.random.Generator):
    first, second = while_below(None), while_below(2**40, name="second")
    second = onnx.compose.add_prefix(second, "b_")
    joined = onnx.compose.merge_models(first, second, io_map=[("y", "b_x")])
    x = rng.integers(1, 5, (2, 3)).astype(np.float32)
    net = load(joined.SerializeToString())
    named = {"x": x, "f": np.float32(2), "most": np.float32(1e3), "b_f": np.float32(3), "b_most": np.float32(1e6)}
    y = expected(x, 2, 1e3, None)
    np.testing.assert_allclose(net(**named), expected(y, 3, 1e6, None), 1e-6)
    np.testing.assert_allclose(net.eval()(**named), expected(y, 3, 1e6, None), 1e-6)
