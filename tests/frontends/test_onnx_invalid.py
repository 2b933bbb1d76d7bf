"""Files that are no valid models, or made to use up time and memory, are clear errors: attributes, constants, bodies,
functions, texts. The standard's cases, changed at random, look for more."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from einsmith.base.errors import ArgumentError, DataError, EinsmithError, TraceError
from einsmith.frontends.onnx import evaluate, inlining, load
from tests.frontends.onnx_cases import cases, few_cases
from tests.frontends.onnx_fuzz import try_changes

NODE = h.make_node


def value(name: str, kind: int = T.FLOAT, shape: Any = None) -> onnx.ValueInfoProto:
    return h.make_tensor_value_info(name, kind, shape)


def model(node: Any, shape: tuple[int, ...] = (), opset: int = 20, kind: int = T.FLOAT, **constants: Any) -> Any:
    """A model of one node, or some, that reads x of `shape`, and constants, and gives y."""
    inputs = [value("x", T.FLOAT, shape)] if shape else []
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = h.make_graph(node if isinstance(node, list) else [node], "g", inputs, [value("y", kind)], held)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=10)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


IMAGE, W = (1, 4, 8, 8), np.ones((4, 4, 3, 3), np.float32)
LSTM = {"w": np.ones((1, 16, 3), np.float32), "r": np.ones((1, 16, 4), np.float32)}
BODY = h.make_graph([NODE("Neg", ["i"], ["o"])], "b", [value("i", T.INT64, [])], [value("o", T.INT64)])
COUNTED = {"t": np.int64(3), "c": np.bool_(True)}
INVALID: dict[str, tuple[Any, tuple[int, ...]]] = {
    **{
        f"{op} {name}={v!r}": (model(NODE(op, ["x", *more], ["y"], **{name: v, **others}), shape, **constants), shape)
        for op, more, shape, constants, others, name, values in (
            ("Conv", ["w"], IMAGE, {"w": W}, {}, "strides", ([0, 0], [1], [1, 1, 1], [-1, 1], [2**40, 1], [1.5, 1.5])),
            ("Conv", ["w"], IMAGE, {"w": W}, {}, "dilations", ([0, 1], [1], "one")),
            ("Conv", ["w"], IMAGE, {"w": W}, {}, "pads", ([-1] * 4, [1] * 3, [2**40] * 4, [2**31 - 1] * 4)),
            ("Conv", ["w"], IMAGE, {"w": W}, {}, "group", (0, -1, 3, 2**40)),
            ("Conv", ["w"], IMAGE, {"w": W}, {}, "auto_pad", ("EVIL", "", 1)),
            ("Conv", ["w"], IMAGE, {"w": W}, {}, "kernel_shape", ([2, 2], [3], [0, 3])),
            ("Conv", ["w"], IMAGE, {"w": W}, {}, "made_up", (1,)),
            ("ConvTranspose", ["w"], IMAGE, {"w": W}, {}, "output_shape", ([2**40] * 2, [0, 0])),
            ("ConvTranspose", ["w"], IMAGE, {"w": W}, {}, "output_padding", ([-1, 0], [1])),
            ("MaxPool", [], IMAGE, {}, {"kernel_shape": [2, 2]}, "strides", ([0, 1], [1])),
            ("MaxPool", [], IMAGE, {}, {}, "kernel_shape", ([0, 2], [2], [2**31, 1])),
            ("MaxPool", [], IMAGE, {}, {"kernel_shape": [2, 2]}, "ceil_mode", (2, -1)),
            ("Softmax", [], (2, 3), {}, {}, "axis", ("zero", 1.0, 2, -3, 2**63 - 1)),
            ("LayerNormalization", ["w"], (2, 3), {"w": np.ones(3, np.float32)}, {}, "axis", (2**63 - 1, 2, -3)),
            ("LayerNormalization", ["w"], (2, 3), {"w": np.ones(3, np.float32)}, {}, "stash_type", (9999, 7)),
            ("Cast", [], (2, 3), {}, {}, "to", (9999, -1, 0, "FLOAT")),
            ("DepthToSpace", [], IMAGE, {}, {}, "blocksize", (0, -2, 3, 2**40)),
            ("DepthToSpace", [], IMAGE, {}, {"blocksize": 2}, "mode", ("EVIL",)),
            ("Split", [], (4, 3), {}, {}, "num_outputs", (0, 4, 2**40)),
            ("LRN", [], IMAGE, {}, {}, "size", (0, -1, 2**40)),
            ("Resize", ["", "s"], (2, 3), {"s": np.ones(2, np.float32)}, {}, "mode", ("EVIL",)),
            ("Trilu", [], (2, 3), {}, {}, "upper", (7,)),
            ("LSTM", ["w", "r"], (5, 1, 3), LSTM, {}, "hidden_size", (2**40, 3, 0)),
            ("LSTM", ["w", "r"], (5, 1, 3), LSTM, {"hidden_size": 4}, "clip", (float("nan"), -1.0)),
            ("LSTM", ["w", "r"], (5, 1, 3), LSTM, {"hidden_size": 4}, "activations", (["Tanh"], ["EVIL"] * 3)),
            ("LSTM", ["w", "r"], (5, 1, 3), LSTM, {"hidden_size": 4}, "direction", ("up", "reverse ")),
        )
        for v in values
    },
    **{
        f"{op} of {name}={np.asarray(v).tolist()}": (
            model(NODE(op, more, ["y"], **others), shape, **{name: v, **constants}),
            shape,
        )
        for op, more, shape, others, constants, name, values in (
            ("ConstantOfShape", ["s"], (), {}, {}, "s", (ints(-3), ints(2**40), np.ones((1, 1), np.int64))),
            ("Range", "abd", (), {}, {"a": np.float32(0), "d": np.float32(1)}, "b",
             (np.float32(np.nan), np.float32(np.inf), np.float32(1e30))),
            ("Range", "abd", (), {}, {"a": np.float32(0), "b": np.float32(1)}, "d", (np.float32(0), np.float32(1e-30))),
            ("Pad", ["x", "p"], (2, 3), {}, {}, "p", (ints(2**62, 0, 2**62, 0), ints(0, 0, 0), ints(-3, 0, 0, 0))),
            ("Split", ["x", "s"], (3, 3), {}, {}, "s", (ints(-1, 4), ints(3, 3), ints(2))),
            ("Expand", ["x", "s"], (2, 3), {}, {}, "s", (ints(2, -3), ints(2**40, 2, 3))),
            ("Tile", ["x", "s"], (2, 3), {}, {}, "s", (ints(-1, 1), ints(2**40, 1), ints(1))),
            ("Reshape", ["x", "s"], (2, 3), {}, {}, "s", (ints(-2, -3), ints(-1, -1), ints(4, 2**62), ints(2**40))),
            ("Unsqueeze", ["x", "s"], (2, 3), {}, {}, "s", (np.arange(100), ints(0, 0), ints(9))),
            ("Slice", ["x", "s", "e", "a"], (2, 3), {}, {"e": ints(1, 1), "s": ints(0, 0)}, "a",
             (ints(0, 0), ints(5, 0))),
            ("TopK", ["x", "k"], (2, 3), {}, {}, "k", (ints(-1), ints(4), ints(2**62))),
            ("Resize", ["x", "", "s"], (2, 3), {}, {}, "s",
             tuple(np.array([a, 1], np.float32) for a in (np.nan, np.inf, 0, -2, 1e30))),
            ("Resize", ["x", "", "s"], (2, 3), {"mode": "cubic"}, {}, "s",
             tuple(np.array([a, 1], np.float32) for a in (-2, 1e9))),
            ("OneHot", ["i", "s", "v"], (), {}, {"i": ints(0, 1), "v": np.ones(2, np.float32)}, "s",
             (ints(-2), ints(2**40), np.float32(np.nan))),
            ("GatherND", ["x", "s"], (2, 3), {"batch_dims": 5}, {}, "s", (ints(0)[None],)),
            ("ReverseSequence", ["x", "s"], (3, 3), {}, {}, "s", (ints(4, 1, 2), ints(-1, 1, 2), ints(1, 2))),
            ("HannWindow", ["s"], (), {}, {}, "s", (np.int64(2**45),)),
            ("DFT", ["x", "s"], (1, 8, 1), {}, {}, "s", (np.int64(2**40), np.int64(0), np.int64(-3))),
            ("STFT", ["x", "s", "", "l"], (1, 64, 1), {}, {"l": np.int64(16)}, "s", (np.int64(0), np.int64(-1))),
            ("LSTM", ["x", "w", "r", "", "s"], (5, 1, 3), {"hidden_size": 4}, LSTM, "s",
             (np.array([1000], np.int32), np.array([-1], np.int32), np.array([1, 1], np.int32))),
            ("Dropout", ["x", "s"], (2, 3), {}, {}, "s", (np.float32(1), np.float32(np.nan))),
        )
        for v in values
    },
    "Concat without axis": (model(NODE("Concat", ["x", "x"], ["y"]), (2, 3)), (2, 3)),
    "Loop, short body": (model(NODE("Loop", ["t", "c", "x"], ["y"], body=BODY), (2, 3), **COUNTED), (2, 3)),
    "Loop without a body": (model(NODE("Loop", ["t", "c", "x"], ["y"]), (2, 3), **COUNTED), (2, 3)),
    "If without else": (model(NODE("If", ["c"], ["y"], then_branch=BODY), (2, 3), **COUNTED), (2, 3)),
    "Scan of 7": (model(NODE("Scan", ["x"], ["y"], body=BODY, num_scan_inputs=7), (2, 3)), (2, 3)),
    "Add of one": (model(NODE("Add", ["x"], ["y"]), (2, 3)), (2, 3)),
    "Add of nothing": (model(NODE("Add", ["x", ""], ["y"]), (2, 3)), (2, 3)),
    "Neg of two": (model(NODE("Neg", ["x", "x"], ["y"]), (2, 3)), (2, 3)),
    "Neg, declared as int64": (model(NODE("Neg", ["x"], ["y"]), (2, 3), kind=T.INT64), (2, 3)),
    "SplitToSequence by 0": (
        model([NODE("SplitToSequence", ["x", "k"], ["s"]), NODE("SequenceAt", ["s", "p"], ["y"])], (2, 3),
              k=np.int64(0), p=np.int64(0)), (2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
def test_attributes_and_constants_that_the_standard_does_not_allow(name: str):
    proto, shape = INVALID[name]
    with pytest.raises(EinsmithError):
        load(proto.SerializeToString())(*([np.ones(shape, np.float32)] if shape else []))


def test_dimensions_of_constants():
    for dims in ((-1, 3), (2**40, 2**40), (2, -3)):
        proto = model(NODE("Add", ["x", "w"], ["y"]), (2, 3), w=np.zeros((2, 3), np.float32))
        proto.graph.initializer[0].dims[:] = dims
        with pytest.raises(DataError, match="'w' has the shape"):
            load(proto.SerializeToString())
    values = numpy_helper.from_array(np.ones(2, np.float32), "w")
    for dims, places in (
        ((2, 3), ints(0, 6)), ((2, 3), ints(-1, 5)), ((2**40, 2**40), ints(0, 5)), ((-2, 3), ints(0, 1)),
        ((2, 3), ints(0, 1, 2)), ((2, 3), np.array([[0, 0], [1, 3]])),
    ):  # fmt: skip
        proto = model(NODE("Add", ["x", "w"], ["y"]), (2, 3))
        at = numpy_helper.from_array(places, "k")
        proto.graph.sparse_initializer.append(h.make_sparse_tensor(values, at, dims))
        with pytest.raises(DataError, match="'w'"):
            load(proto.SerializeToString())


def doubling(depth: int, width: int = 2) -> onnx.ModelProto:
    """Functions that each call the one before some times."""
    sets = [h.make_opsetid("", 20), h.make_opsetid("f", 1)]
    functions = [h.make_function("f", "f0", ["a"], ["b"], [NODE("Neg", ["a"], ["b"])], sets)]
    for k in range(1, depth + 1):
        names = ["a", *(f"t{j}" for j in range(1, width)), "b"]
        calls = [NODE(f"f{k - 1}", [a], [b], domain="f") for a, b in zip(names, names[1:], strict=False)]
        functions.append(h.make_function("f", f"f{k}", ["a"], ["b"], calls, sets))
    graph = h.make_graph([NODE(f"f{depth}", ["x"], ["y"], domain="f")], "g", [value("x", T.FLOAT, [2])], [value("y")])
    return h.make_model(graph, opset_imports=sets, functions=functions, ir_version=10)


@pytest.mark.parametrize(("depth", "width"), [(25, 2), (60, 2), (7, 40), (101, 1), (3000, 1)])
def test_functions_that_become_too_many_nodes(depth: int, width: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inlining.onnx.inliner, "inline_local_functions", None)  # is not begun
    with pytest.raises(ArgumentError, match="its functions cannot be inlined: they would become"):
        load(doubling(depth, width).SerializeToString())


def test_functions_within_the_limits():
    x = np.array([1, -2], np.float32)
    np.testing.assert_array_equal(load(doubling(6).SerializeToString())(x), x)
    np.testing.assert_array_equal(load(doubling(90, 1).SerializeToString())(x), -x)


def nested_loops(depth: int) -> onnx.ModelProto:
    """Loops in each other, of two steps each, around y = -x."""
    nodes = [NODE("Neg", ["s0"], ["r0"])]
    for d in range(depth):
        inputs = [value(f"i{d}", T.INT64, []), value(f"c{d}", T.BOOL, []), value(f"s{d}", T.FLOAT, [2])]
        same = NODE("Identity", [f"c{d}"], [f"o{d}"])
        outputs = [value(f"o{d}", T.BOOL, []), value(f"r{d}", T.FLOAT, [2])]
        body = h.make_graph([*nodes, same], f"b{d}", inputs, outputs)
        nodes = [NODE("Loop", ["t", "", f"s{d + 1}"], [f"r{d + 1}"], body=body)]
    nodes[0].input[2], nodes[0].output[0] = "x", "y"
    return model(nodes, (2,), t=np.int64(2))


def test_nested_loops_are_searched_once(monkeypatch: pytest.MonkeyPatch):
    load(nested_loops(29).SerializeToString())  # would take 4**29 searches
    monkeypatch.setattr(evaluate, "MOST_NODES", 1000)
    with pytest.raises(TraceError, match="more than 1,000 nodes"):
        load(nested_loops(29).SerializeToString())(np.ones(2, np.float32))
    x = np.array([1, -2], np.float32)
    np.testing.assert_array_equal(load(nested_loops(3).SerializeToString())(x), x)


def test_texts_of_files_are_printed_as_escape_sequences():
    evil = "\x1b]0;title\x07\u202e"
    node = NODE("Neg", ["x"], ["y"], name=evil)
    unknown, attribute, inner = (model(node, (2, 3)) for _ in range(3))
    unknown.graph.node[0].op_type = evil
    attribute.graph.node[0].attribute.append(h.make_attribute(evil, 1))
    inner.graph.node[0].input[0] = evil
    shown = []
    for proto in (unknown, attribute, inner):
        proto.graph.name = evil
        with pytest.raises(EinsmithError) as caught:
            load(proto)
        shown.append(str(caught.value))
    wrong = model(NODE("Reshape", ["x", "s"], ["y"], name=evil), (2, 3), s=ints(5, 5))
    wrong.graph.name = evil
    with pytest.raises(EinsmithError) as caught:
        load(wrong)(np.ones((2, 3), np.float32))
    shown.append(str(caught.value) + "".join(caught.value.__notes__))
    for text in shown:
        assert r"\x1b]0;title\x07\u202e" in text and not any(c in text for c in evil[:1] + evil[-1:])


@pytest.mark.parametrize(
    ("seed", "count", "run"),
    [(0, 80, False), *(pytest.param(s, 2500, False, marks=pytest.mark.slow) for s in (1, 2, 3)),
     pytest.param(4, 300, True, marks=pytest.mark.slow)],
)  # fmt: skip
def test_changed_cases_of_the_standard(seed: int, count: int, run: bool):
    assert try_changes(cases() if seed else few_cases(), seed, count, run) == []
