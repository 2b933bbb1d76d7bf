"""What is wrong with a file, or with what a network is given, is one clear error before anything runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import einsmith as es
from einsmith.base.errors import ArgumentError, DataError, DtypeError, EinsmithError, ShapeError, TraceError
from einsmith.frontends.onnx import load, save
from tests.frontends.test_onnx import model_of, perceptron


def saved(folder: Path, change: Callable[[onnx.ModelProto], None] | None = None) -> Path:
    """A small network as a file, its weights in another one."""
    proto, _ = perceptron()
    onnx.save_model(proto, folder / "net.onnx", save_as_external_data=True, location="net.bin", size_threshold=0)
    if change is not None:
        proto = onnx.load(folder / "net.onnx", load_external_data=False)
        change(proto)
        (folder / "net.onnx").write_bytes(proto.SerializeToString())
    return folder / "net.onnx"


def test_files_that_are_missing_or_damaged(tmp_path: Path):
    with pytest.raises(DataError, match="nowhere.onnx cannot be read"):
        load(tmp_path / "nowhere.onnx")
    data = perceptron()[0].SerializeToString()
    rng = np.random.default_rng(0)
    for end in {0, 1, 2, 5, len(data) - 1, *rng.integers(0, len(data), 60)}:
        with pytest.raises(EinsmithError):
            load(data[: int(end)])
    for _ in range(60):
        broken = bytearray(data)
        for place in rng.integers(0, len(data), 4):
            broken[place] = rng.integers(0, 256)
        try:
            load(bytes(broken))(np.zeros((1, 13), np.float32))
        except EinsmithError:
            pass
    with pytest.raises(DataError, match="is not an ONNX file, is truncated|it has no operator set"):
        load(b"not a file of ONNX at all")
    with pytest.raises(ArgumentError, match="a path, bytes"):
        load(3)


def test_external_data_that_is_not_there(tmp_path: Path):
    def location(name: str) -> Callable[[onnx.ModelProto], None]:
        def change(proto: onnx.ModelProto) -> None:
            for t in proto.graph.initializer:
                for entry in t.external_data:
                    if entry.key == "location":
                        entry.value = name

        return change

    (tmp_path / "a").mkdir()
    file = saved(tmp_path / "a")
    (tmp_path / "outside.bin").write_bytes(b"0" * 10_000)
    for name in ("../outside.bin", str(tmp_path / "outside.bin"), "x/../../outside.bin", "", "."):
        with pytest.raises(DataError, match="fc1.weight.*outside of the model's folder"):
            load(saved(tmp_path / "a", location(name)))
    (tmp_path / "a" / "link.bin").symlink_to(tmp_path / "outside.bin")
    with pytest.raises(DataError, match="outside of the model's folder"):
        load(saved(tmp_path / "a", location("link.bin")))
    file = saved(tmp_path / "a")
    data = (tmp_path / "a" / "net.bin").read_bytes()
    (tmp_path / "a" / "net.bin").write_bytes(data[:100])
    with pytest.raises(DataError, match="fc1.weight.*the file has 100; copy it again"):
        load(file)
    (tmp_path / "a" / "net.bin").unlink()
    with pytest.raises(DataError, match="'fc1.weight' are in the file 'net.bin', which cannot be read"):
        load(file)
    with pytest.raises(DataError, match="give load the path of the model"):
        load(file.read_bytes())


def chain(*nodes: onnx.NodeProto, opset: int = 21) -> onnx.ModelProto:
    graph = h.make_graph(list(nodes), "net", [h.make_tensor_value_info("x", T.FLOAT, [2, 3])],
                         [h.make_tensor_value_info("y", T.FLOAT, None)])  # fmt: skip
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=10)


def test_graphs_that_are_none():
    with pytest.raises(ArgumentError, match="(?s)'first'.*'second' are in a cycle|'second'.*'first' are in a cycle"):
        load(chain(h.make_node("Add", ["x", "b"], ["a"], name="first"), h.make_node("Exp", ["a"], ["b"], name="second"),
                   h.make_node("Exp", ["a"], ["y"])))  # fmt: skip
    with pytest.raises(ArgumentError, match="Exp 'lonely' reads 'nothing', which no node computes"):
        load(chain(h.make_node("Exp", ["nothing"], ["y"], name="lonely")))
    with pytest.raises(ArgumentError, match="'y' is defined twice, the second time by Neg"):
        load(chain(h.make_node("Exp", ["x"], ["y"]), h.make_node("Neg", ["x"], ["y"])))
    with pytest.raises(ArgumentError, match="no node computes its output 'y'"):
        load(chain(h.make_node("Exp", ["x"], ["z"])))
    late = chain(h.make_node("Exp", ["a"], ["y"]), h.make_node("Neg", ["x"], ["a"]))
    np.testing.assert_allclose(load(late)(np.ones((2, 3), np.float32)), np.exp(-np.ones((2, 3))), 1e-6)


def test_operators_and_sets_that_are_not_here():
    both = h.make_node("ImageDecoder", ["x"], ["u"], name="a"), h.make_node("Frobnicate", ["u"], ["y"], name="b")
    with pytest.raises(
        TraceError, match="(?s)ImageDecoder 'a'.*image files are not supported.*Frobnicate 'b'.*no operator of"
    ):
        load(chain(*both))
    for opset in (6, 29, 1000):
        with pytest.raises(TraceError, match=f"operator set {opset} of ai.onnx; 7 to 28 are supported"):
            load(chain(h.make_node("Exp", ["x"], ["y"]), opset=opset))
    with pytest.raises(ArgumentError, match="Scaler 'y' is of a domain that the file imports no operator set of"):
        load(chain(h.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml")))
    with pytest.raises(DtypeError, match="input 'x' is of string: strings are not supported"):
        load(model_of([h.make_node("Identity", ["x"], ["y"])], {"x": (T.STRING, [1])}, ["y"], {}))
    with pytest.raises(ArgumentError, match="is not a valid model"):  # integers where floats are taken
        load(model_of_unchecked("Exp", T.INT64))


def model_of_unchecked(op: str, kind: int) -> onnx.ModelProto:
    graph = h.make_graph([h.make_node(op, ["x"], ["y"])], "net", [h.make_tensor_value_info("x", kind, [2])],
                         [h.make_tensor_value_info("y", kind, [2])])  # fmt: skip
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10)


def test_inputs_that_do_not_fit():
    model = load(perceptron()[0])
    x = np.zeros((2, 13), np.float32)
    with pytest.raises(ShapeError, match=r"shape \(2, 12\), 12 along dimension 1; the graph was made for 13"):
        model(x[:, :12])
    with pytest.raises(ShapeError, match=r"input 0 has shape \(13,\)"):
        model(x[0])
    with pytest.raises(DtypeError, match="input 0 is f64; the file is for f32"):
        model(x.astype(np.float64))
    for wrong in ((), (x, x)):
        with pytest.raises(ArgumentError, match="takes 1 inputs, 'x'"):
            model(*wrong)
    with pytest.raises(ArgumentError, match="'z' is no input or is given twice; 'x' is missing"):
        model(z=x)
    with pytest.raises(ArgumentError, match="has no input 'z'; it has 'x'"):
        load(perceptron()[0], constants={"z": x})
    with pytest.raises(ArgumentError, match="a network that .load. returned"):
        save(es.nn.Linear(2, 2), "nowhere.onnx")


def test_shapes_that_only_values_tell():
    inputs = {"x": (T.FLOAT, ["n"]), "s": (T.INT64, ["r"])}
    reshape = model_of([h.make_node("Reshape", ["x", "s"], ["y"])], inputs, ["y"], {})
    model, x, s = load(reshape), np.arange(6, dtype=np.float32), np.array([2, 3])
    assert model(x, s).shape == (2, 3) and model(x, np.array([3, -1])).shape == (3, 2)
    with pytest.raises(ShapeError):
        model(x, np.array([4, 2]))
    with pytest.raises(TraceError, match="extents depend on the values of the input 's'.*constants="):
        es.jit(model)(x, s)
    assert es.jit(load(reshape, constants={"s": s}))(x).shape == (2, 3)
    many = model_of([h.make_node("NonZero", ["x"], ["y"])], {"x": (T.FLOAT, ["n"])}, ["y"], {})
    np.testing.assert_array_equal(load(many)(np.array([0, 2, 0, 1], np.float32)), [[1, 3]])
    with pytest.raises(TraceError, match="of 5000 elements"):
        load(many)(np.zeros(5000, np.float32))


def test_wrong_nodes_are_named():
    nodes = [h.make_node("Exp", ["x"], ["a"]), h.make_node("Concat", ["a", "w"], ["y"], axis=0, name="joined")]
    proto = model_of(nodes, {"x": (T.FLOAT, ["n", "m"])}, ["y"], {"w": np.ones((2, 3), np.float32)})
    with pytest.raises(ShapeError) as caught:
        load(proto)(np.zeros((2, 4), np.float32))
    assert "in Concat 'joined' of net" in "".join(caught.value.__notes__)
    inputs = {"x": (T.FLOAT, [4]), "k": (T.INT64, ["n"])}
    gather = model_of([h.make_node("Gather", ["x", "k"], ["y"])], inputs, ["y"], {})
    np.testing.assert_array_equal(load(gather)(np.arange(4, dtype=np.float32), np.array([-1, 0])), [3, 0])
    with pytest.raises(IndexError):
        load(gather)(np.zeros(4, np.float32), np.array([4]))


def test_without_the_package_onnx():
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "import einsmith as es\n"
        "try: es.frontends.onnx.load(b'')\nexcept ImportError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'einsmith[onnx]'" in done.stdout


def nested(depth: int) -> onnx.ModelProto:
    """An If in an If, so many, around the identity."""
    inputs = [h.make_tensor_value_info("x", T.FLOAT, [2]), h.make_tensor_value_info("c", T.BOOL, [])]
    outputs = [h.make_tensor_value_info("y0", T.FLOAT, [2])]
    model = h.make_model(h.make_graph([], "nest", inputs, outputs), opset_imports=[h.make_opsetid("", 18)])
    graph = model.graph
    for d in range(depth + 1):
        if d:
            graph.output.add().CopyFrom(h.make_tensor_value_info(f"y{d}", T.FLOAT, [2]))
        node = graph.node.add()
        node.name, node.op_type = f"node{d}", "If" if d < depth else "Identity"
        node.input.append("c" if d < depth else "x")
        node.output.append(f"y{d}")
        if d < depth:
            body, other = node.attribute.add(), node.attribute.add()
            body.name, body.type = "then_branch", onnx.AttributeProto.GRAPH
            same = h.make_graph([h.make_node("Identity", ["x"], ["z"])], "else", [],
                                [h.make_tensor_value_info("z", T.FLOAT, [2])])  # fmt: skip
            other.name, other.type = "else_branch", onnx.AttributeProto.GRAPH
            other.g.CopyFrom(same)
            graph = body.g
            graph.name = f"body{d}"
    return model


def message(number: int, content: bytes) -> bytes:
    """A field of protobuf's wire format, which may be nested deeper than its library writes."""
    size, out = len(content), bytearray([number << 3 | 2])
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    return bytes(out) + bytes([size]) + content


def test_bodies_are_nested_up_to_a_depth(rng: np.random.Generator):
    x = rng.standard_normal(2).astype(np.float32)
    np.testing.assert_array_equal(load(nested(30).SerializeToString())(x, np.array(True)), x)
    for depth in (31, 32, 400, 3000):
        with pytest.raises(DataError, match=r"nest nests bodies.* more than 30 deep, down to \w+ 'node31'"):
            load(nested(depth))
    with pytest.raises(DataError, match=r"nests bodies.* more than 30 deep, down to Identity 'node31'"):
        load(nested(31).SerializeToString())
    inner = b""
    for _ in range(3000):  # a graph in an attribute of a node of a graph
        inner = message(1, message(5, message(6, inner)))
    with pytest.raises(DataError, match="is not an ONNX file, is truncated, or nests bodies more than 30 deep"):
        load(b"\x08\x08" + message(7, inner))


def calling(called: onnx.FunctionProto, depth: int) -> onnx.ModelProto:
    """Calls of a function at the innermost of so many Ifs."""
    model = nested(depth)
    graph = model.graph
    for _ in range(depth):
        graph = graph.node[0].attribute[0].g
    graph.node[0].op_type, graph.node[0].domain = called.name, called.domain
    model.functions.append(called)
    model.opset_import.append(h.make_opsetid(called.domain, 1))
    return model


def test_functions_that_call_themselves_or_are_too_deep(rng: np.random.Generator):
    imports = [h.make_opsetid("own", 1), h.make_opsetid("", 18)]
    itself = h.make_function("own", "f", ["a"], ["b"], [h.make_node("f", ["a"], ["b"], domain="own")], imports)
    with pytest.raises(ArgumentError, match="its functions cannot be inlined: 'f' calls itself, in a cycle"):
        load(calling(itself, 0))
    inner = nested(20).graph.node[0]
    given = [h.make_node("Identity", ["a"], ["x"]), h.make_node("ReduceMin", ["a"], ["least"], keepdims=0),
             h.make_node("Cast", ["least"], ["c"], to=T.BOOL)]  # fmt: skip
    deep = h.make_function("own", "deep", ["a"], ["y0"], [*given, inner], imports)
    for depth in (11, 20):  # 31 together, and more than protobuf reads
        with pytest.raises(DataError, match="bodies.* more than 30 deep"):
            load(calling(deep, depth))
    x = rng.standard_normal(2).astype(np.float32)
    np.testing.assert_array_equal(load(calling(deep, 5))(x, np.array(True)), x)
