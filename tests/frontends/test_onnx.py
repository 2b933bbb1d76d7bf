"""Files of ONNX: cases of the standard, whole networks, loops, quantized graphs, and weights back."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import einsmith as es
from einsmith.base.errors import ArgumentError
from einsmith.frontends.onnx import export, load, save
from einsmith.frontends.onnx.backend import Backend
from tests.frontends.onnx_cases import APART, OTHERWISE, PASSED, WRONG, cases, few_cases, run
from tests.quantization.test_quantize import integer_sums

SAMPLE = (
    "adam_multiple", "add_bcast", "batchnorm_example_training_mode", "bitshift_left_uint8", "cast_INT4_to_FLOAT16",
    "cumsum_1d_reverse_exclusive", "dft_axis", "gathernd_example_int32_batch_dim1", "group_normalization_epsilon", "if",
    "loop13_seq", "lstm_with_peepholes", "mod_mixed_sign_int8", "nonzero_example", "onehot_with_axis",
    "qlinearmatmul_3D_int8_float32", "reflect_pad", "resize_tf_crop_and_resize", "scan9_multi_state", "scatternd_add",
    "split_equal_parts_2d_opset13", "top_k_smallest",
)  # fmt: skip
"""Cases of every family: what a mistake in one of them would show."""


def test_a_sample_of_the_standards_cases():
    known = few_cases()
    assert {how for how, _ in (run(known[f"test_{n}"]) for n in SAMPLE)} == {PASSED}


@pytest.mark.slow
def test_all_of_the_standards_cases():
    known = cases()
    ended = {name: run(case) for name, case in known.items()}
    counts = Counter(how for how, _ in ended.values())
    assert {n: why for n, (how, why) in ended.items() if how == WRONG} == {}
    assert counts[PASSED] >= 0.93 * len(known), counts
    assert all(any(re.search(p, n) for p in OTHERWISE) for n, (how, _) in ended.items() if how == APART)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["simple", "pytorch-converted", "pytorch-operator"])
def test_all_other_cases(kind: str):
    ended = {name: run(case) for name, case in cases(kind).items()}
    assert {n: why for n, (how, why) in ended.items() if how == WRONG} == {}


# ------------------------------------------------------------------------------------------------------ small networks


def floats(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def model_of(
    nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: list[str], weights: dict[str, np.ndarray],
    opset: int = 21, extra: list[Any] | None = None,
) -> onnx.ModelProto:  # fmt: skip
    """A checked model. inputs: name -> (element type, shape)."""
    graph = h.make_graph(
        nodes, "net", [h.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [h.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )  # fmt: skip
    made = h.make_model(graph, opset_imports=[h.make_opsetid("", opset), *(extra or [])], ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


def perceptron(dtype: Any = np.float32) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    rng = np.random.default_rng(3)
    weights = {
        "fc1.weight": floats(rng, 17, 13, dtype=dtype), "fc1.bias": floats(rng, 17, dtype=dtype),
        "fc2.weight": floats(rng, 5, 17, dtype=dtype), "fc2.bias": floats(rng, 5, dtype=dtype),
    }  # fmt: skip
    kind = T.FLOAT if dtype == np.float32 else T.DOUBLE
    nodes = [
        h.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["a"], transB=1),
        h.make_node("Tanh", ["a"], ["b"]),
        h.make_node("Gemm", ["b", "fc2.weight", "fc2.bias"], ["y"], transB=1),
    ]
    return model_of(nodes, {"x": (kind, ["batch", 13])}, ["y"], weights), weights


def agree(model: onnx.ModelProto, feeds: dict[str, np.ndarray], rtol: float = 1e-5, atol: float = 1e-5) -> None:
    """Our outputs are those of the reference evaluator."""
    expected = ReferenceEvaluator(model).run(None, feeds)
    found = load(model)(**feeds)
    for a, b in zip(expected, found if len(expected) > 1 else (found,), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(b, a, rtol, atol)


def test_constant_nodes_that_are_named_train(tmp_path: Path):
    proto, weights = perceptron(np.float64)
    nodes = [h.make_node("Constant", [], [n], value=onnx.numpy_helper.from_array(w)) for n, w in weights.items()]
    made = model_of([*nodes, *proto.graph.node], {"x": (T.DOUBLE, ["batch", 13])}, ["y"], {})
    rng = np.random.default_rng(5)
    x, y = floats(rng, 7, 13, dtype=np.float64), rng.integers(0, 5, 7)
    assert not list(load(made).parameters())
    model, twin = load(made, trained=["fc1.*", "fc2.weight"]), load(proto)
    assert [n for n, _ in model.named_parameters()] == ["fc1.weight", "fc1.bias", "fc2.weight"]
    for m in (model, twin):
        es.TrainStep(m, es.functional.cross_entropy, es.optim.SGD(lr=1.0))(x, y)
    np.testing.assert_allclose(model.fc1.weight.numpy(), twin.fc1.weight.numpy(), 1e-12)
    save(model, tmp_path / "kept.onnx")
    np.testing.assert_allclose(load(tmp_path / "kept.onnx")(x), model(x), 1e-12)


def test_constants_of_bodies_that_are_named_train(tmp_path: Path):
    w = floats(np.random.default_rng(2), 3)

    def branch(name: str, value: np.ndarray) -> onnx.GraphProto:
        nodes = [
            h.make_node("Constant", [], [f"{name}.w"], value=onnx.numpy_helper.from_array(value)),
            h.make_node("Mul", ["x", f"{name}.w"], [f"{name}.p"]),
            h.make_node("Add", [f"{name}.p", f"{name}.b"], [f"{name}.y"]),
        ]
        bias = [numpy_helper.from_array(np.ones(3, np.float32), f"{name}.b")]
        return h.make_graph(nodes, name, [], [h.make_empty_tensor_value_info(f"{name}.y")], bias)

    node = h.make_node("If", ["c"], ["y"], then_branch=branch("one", w), else_branch=branch("two", -w))
    proto = model_of([node], {"x": (T.FLOAT, [2, 3]), "c": (T.BOOL, [])}, ["y"], {})
    model = load(proto, constants={"c": np.array(True)}, trained=["*.w", "one.b"])
    assert {n for n, _ in model.named_parameters()} == {"one.w", "two.w", "one.b"}
    x = floats(np.random.default_rng(3), 2, 3)
    np.testing.assert_allclose(model(x), x * w + 1, 1e-6)
    es.TrainStep(model, es.functional.mse_loss, es.optim.SGD(lr=0.1))(x, np.zeros((2, 3), np.float32))
    assert not np.allclose(model.one.w.numpy(), w) and np.array_equal(model.two.w.numpy(), -w)
    save(model, tmp_path / "kept.onnx")
    kept = load(tmp_path / "kept.onnx")
    np.testing.assert_allclose(kept(x, np.array(True)), model(x), 1e-6)
    with pytest.raises(ArgumentError, match="'y' cannot become a parameter, as it is the output of a body"):
        bodies = [h.make_node("Constant", [], ["y"], value=onnx.numpy_helper.from_array(w))]
        inner = h.make_graph(bodies, "b", [], [h.make_empty_tensor_value_info("y")])
        node = h.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=branch("two", -w))
        load(model_of([node], {"x": (T.FLOAT, [2, 3]), "c": (T.BOOL, [])}, ["z"], {}), trained=["*"])


def test_initializers_are_parameters_and_a_step_is_gradient_descent(tmp_path: Path):
    proto, weights = perceptron(np.float64)
    rng = np.random.default_rng(5)
    x, y = floats(rng, 7, 13, dtype=np.float64), rng.integers(0, 5, 7)
    model = load(proto)
    assert [n for n, _ in model.named_parameters()] == list(weights)
    np.testing.assert_allclose(model(x), ReferenceEvaluator(proto).run(None, {"x": x})[0], 1e-12)

    def loss(w: dict[str, np.ndarray]) -> float:
        z = np.tanh(x @ w["fc1.weight"].T + w["fc1.bias"]) @ w["fc2.weight"].T + w["fc2.bias"]
        return float(np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(7), y]))

    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=1.0))
    assert abs(step(x, y) - loss(weights)) < 1e-12
    for name, p in model.named_parameters():
        gradient, place = weights[name] - p.numpy(), np.unravel_index(3, weights[name].shape)
        around = [dict(weights, **{name: weights[name].copy()}) for _ in range(2)]
        for w, sign in zip(around, (1, -1), strict=True):
            w[name][place] += sign * 1e-6
        assert abs((loss(around[0]) - loss(around[1])) / 2e-6 - gradient[place]) < 1e-8
    save(model, tmp_path / "trained.onnx")
    again = load(tmp_path / "trained.onnx")
    np.testing.assert_array_equal(again(x), model(x))
    assert not np.array_equal(again.state_dict()["fc1.bias"], weights["fc1.bias"])


def test_external_data(tmp_path: Path):
    proto, _ = perceptron()
    onnx.save_model(proto, tmp_path / "net.onnx", save_as_external_data=True, location="net.bin", size_threshold=0)
    x = floats(np.random.default_rng(1), 3, 13)
    model = load(tmp_path / "net.onnx")
    np.testing.assert_array_equal(model(x), load(perceptron()[0])(x))
    save(model, tmp_path / "whole.onnx")
    (tmp_path / "net.bin").unlink()
    np.testing.assert_array_equal(load(tmp_path / "whole.onnx")(x), model(x))


def test_frozen_and_numbers_of_formulas_are_constants():
    one = {"w": np.ones(3, np.float32), "scale": np.array(2.0, np.float32), "val_1": np.ones(3, np.float32)}
    nodes = [h.make_node("Mul", ["x", "w"], ["a"]), h.make_node("Mul", ["a", "scale"], ["b"]),
             h.make_node("Add", ["b", "val_1"], ["y"])]  # fmt: skip
    proto = model_of(nodes, {"x": (T.FLOAT, [2, 3])}, ["y"], one)
    assert [n for n, _ in load(proto).named_parameters()] == ["w", "val_1"]
    assert [n for n, _ in load(proto, frozen=["val_*"]).named_parameters()] == ["w", "scale"]
    assert [n for n, _ in load(proto, frozen=[]).named_parameters()] == ["w", "scale", "val_1"]


def test_batch_norm_learns_in_training_and_not_in_evaluation():
    rng = np.random.default_rng(2)
    vectors = {"scale": floats(rng, 3), "bias": floats(rng, 3), "mean": floats(rng, 3), "var": np.abs(floats(rng, 3))}
    nodes = [h.make_node("BatchNormalization", ["x", *vectors], ["y", "m", "v"], training_mode=1, momentum=0.75)]
    model = load(model_of(nodes, {"x": (T.FLOAT, ["n", 3, 5, 7])}, ["y"], vectors))
    assert [n for n, _ in model.named_buffers()] == ["mean", "var"]
    x = floats(rng, 2, 3, 5, 7) + 1
    model.eval()
    still = model(x)
    at = (None, slice(None), None, None)
    wanted = (x - vectors["mean"][at]) / np.sqrt(vectors["var"][at] + 1e-5) * vectors["scale"][at] + vectors["bias"][at]
    np.testing.assert_allclose(still, wanted, 1e-4, 1e-4)
    model.train()
    model(x)
    np.testing.assert_allclose(model.mean.numpy(), 0.75 * vectors["mean"] + 0.25 * x.mean((0, 2, 3)), 1e-5)
    np.testing.assert_allclose(model.var.numpy(), 0.75 * vectors["var"] + 0.25 * x.var((0, 2, 3)), 1e-5)


def test_a_block_of_a_transformer_of_any_batch_and_length():
    rng = np.random.default_rng(4)
    weights = {"qkv": floats(rng, 8, 24) / 3, "out": floats(rng, 8, 8) / 3, "g": floats(rng, 8), "b": floats(rng, 8),
               "heads": np.array([0, 0, 2, 4], np.int64), "merge": np.array([0, 0, -1], np.int64)}  # fmt: skip
    nodes = [h.make_node("MatMul", ["x", "qkv"], ["p"]),
             h.make_node("Split", ["p"], ["q", "k", "v"], axis=-1, num_outputs=3)]  # fmt: skip
    for name in "qkv":
        order = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes += [h.make_node("Reshape", [name, "heads"], [f"{name}4"]),
                  h.make_node("Transpose", [f"{name}4"], [f"{name}h"], perm=order)]  # fmt: skip
    nodes += [
        h.make_node("MatMul", ["qh", "kh"], ["s"]), h.make_node("Softmax", ["s"], ["a"], axis=-1),
        h.make_node("MatMul", ["a", "vh"], ["c"]), h.make_node("Transpose", ["c"], ["ct"], perm=[0, 2, 1, 3]),
        h.make_node("Reshape", ["ct", "merge"], ["m"]), h.make_node("MatMul", ["m", "out"], ["o"]),
        h.make_node("Add", ["o", "x"], ["r"]), h.make_node("LayerNormalization", ["r", "g", "b"], ["y"]),
    ]  # fmt: skip
    proto = model_of(nodes, {"x": (T.FLOAT, ["n", "t", 8])}, ["y"], weights)
    for n, t in ((1, 5), (3, 7)):
        agree(proto, {"x": floats(rng, n, t, 8)})
    step = es.TrainStep(load(proto), es.functional.mse_loss, es.optim.Adam(lr=1e-3))
    losses = [step(floats(np.random.default_rng(0), 3, 7, 8), np.zeros((3, 7, 8), np.float32)) for _ in range(3)]
    assert losses[2] < losses[0]


@pytest.mark.parametrize("kind, gates", [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_with_all_that_they_have(kind: str, gates: int):
    """Lengths, clipping, activations of both directions: against the equations, step by step."""
    rng = np.random.default_rng(6)
    t, b, i, n = 5, 3, 4, 3
    weights = {"W": floats(rng, 2, gates * n, i), "R": floats(rng, 2, gates * n, n), "B": floats(rng, 2, 2 * gates * n)}
    lengths = np.array([5, 2, 4], np.int32)
    names = {"LSTM": ["HardSigmoid", "Tanh", "Softsign"], "GRU": ["Sigmoid", "ScaledTanh"], "RNN": ["Affine"]}[kind]
    alpha, beta = [0.3, 0.7], [0.4, 0.6]
    node = h.make_node(
        kind, ["x", "W", "R", "B", "lengths"], ["y", "last"], hidden_size=n, direction="bidirectional", clip=0.9,
        activations=names * 2, activation_alpha=alpha, activation_beta=beta,
        **({"linear_before_reset": 1} if kind == "GRU" else {}), **({"input_forget": 1} if kind == "LSTM" else {}),
    )  # fmt: skip
    proto = model_of([node], {"x": (T.FLOAT, [t, b, i]), "lengths": (T.INT32, [b])}, ["y", "last"], weights)
    x = floats(rng, t, b, i)
    y, last = load(proto)(x, lengths)

    def act(name: str, e: np.ndarray, d: int) -> np.ndarray:
        a, c = alpha[d], beta[d]
        return {
            "HardSigmoid": lambda: np.clip(a * e + c, 0, 1), "Tanh": lambda: np.tanh(e),
            "Softsign": lambda: e / (1 + abs(e)), "Sigmoid": lambda: 1 / (1 + np.exp(-e)),
            "ScaledTanh": lambda: a * np.tanh(c * e), "Affine": lambda: a * e + c,
        }[name]()  # fmt: skip

    for d in range(2):
        w, r, bias = weights["W"][d], weights["R"][d], weights["B"][d]
        for m in range(b):
            hid, cell = np.zeros(n), np.zeros(n)
            order = range(lengths[m]) if d == 0 else range(lengths[m] - 1, -1, -1)
            for s in order:
                p, q = w @ x[s, m] + bias[: gates * n], r @ hid + bias[gates * n :]

                def cut(e: np.ndarray) -> np.ndarray:
                    return np.clip(e, -0.9, 0.9)

                if kind == "RNN":
                    hid = act("Affine", cut(p + q), d)
                elif kind == "GRU":
                    z, g = (act("Sigmoid", cut((p + q)[k * n : (k + 1) * n]), d) for k in (0, 1))
                    new = act("ScaledTanh", cut(p[2 * n :] + g * q[2 * n :]), d)
                    hid = (1 - z) * new + z * hid
                else:
                    a = p + q
                    gi = act("HardSigmoid", cut(a[:n]), d)
                    cell = (1 - gi) * cell + gi * act("Tanh", cut(a[3 * n :]), d)
                    hid = act("HardSigmoid", cut(a[n : 2 * n]), d) * act("Softsign", cell, d)
                np.testing.assert_allclose(y[s, d, m], hid, 1e-4, 1e-5)
            np.testing.assert_allclose(last[d, m], hid, 1e-4, 1e-5)
            assert not y[lengths[m] :, d, m].any()


def quantized(x: np.ndarray) -> tuple[np.ndarray, np.float32]:
    """(whole numbers less their zero point, scale), as DynamicQuantizeLinear."""
    low, top = np.float32(min(x.min(), 0)), np.float32(max(x.max(), 0))
    scale = np.float32(1 if low == top else top - low) / np.float32(255)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.int64) - int(zero), scale


@pytest.mark.parametrize("kind, spread", [(np.int8, False), (np.uint8, True)])
def test_an_lstm_of_whole_numbers(kind: type, spread: bool):
    """onnxruntime's DynamicQuantizeLSTM against the equations: x is quantized as a whole, h at every step."""
    rng = np.random.default_rng(8)
    t, b, i, n, d = 4, 3, 5, 6, 2
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    per = (d, 4 * n) if spread else (d,)
    weights = {
        "W": rng.integers(low, high + 1, (d, i, 4 * n)).astype(kind), "B": floats(rng, d, 8 * n),
        "R": rng.integers(low, high + 1, (d, n, 4 * n)).astype(kind), "P": floats(rng, d, 3 * n),
        "sw": (rng.random(per) / 100).astype(np.float32), "zw": rng.integers(low, high + 1, per).astype(kind),
        "sr": (rng.random(per) / 100).astype(np.float32), "zr": rng.integers(low, high + 1, per).astype(kind),
    }  # fmt: skip
    node = h.make_node(
        "DynamicQuantizeLSTM", ["x", "W", "R", "B", "", "", "", "P", "sw", "zw", "sr", "zr"], ["y", "h", "c"],
        hidden_size=n, direction="bidirectional", domain="com.microsoft",
    )  # fmt: skip
    proto = model_of([node], {"x": (T.FLOAT, [t, b, i])}, ["y", "h", "c"], weights,
                     extra=[h.make_opsetid("com.microsoft", 1)])  # fmt: skip
    x = floats(rng, t, b, i)
    y, last, cells = load(proto)(x)
    whole, scale = quantized(x)
    for way in range(d):
        bias, peep = weights["B"][way].reshape(2, 4 * n).sum(0), weights["P"][way]
        hid, cell = np.zeros((b, n), np.float32), np.zeros((b, n), np.float32)
        for s in range(t)[:: 1 - 2 * way]:
            a = bias.copy()
            for (q, q_scale), m in (((whole[s], scale), "w"), (quantized(hid), "r")):
                zero = weights[f"z{m}"][way].astype(np.int64)
                a = a + np.float32(q_scale) * weights[f"s{m}"][way] * (q @ (weights[m.upper()][way] - zero))
            ai, ao, af, ag = np.split(a, 4, 1)
            pi, po, pf = np.split(peep, 3)
            forget, enter = 1 / (1 + np.exp(-af - pf * cell)), 1 / (1 + np.exp(-ai - pi * cell))
            cell = (forget * cell + enter * np.tanh(ag)).astype(np.float32)
            hid = (np.tanh(cell) / (1 + np.exp(-ao - po * cell))).astype(np.float32)
            np.testing.assert_allclose(y[s, way], hid, 1e-4, 1e-5)
        np.testing.assert_allclose(last[way], hid, 1e-4, 1e-5)
        np.testing.assert_allclose(cells[way], cell, 1e-4, 1e-5)


# -------------------------------------------------------------------------------------------------------------- loops


def looped(outputs: bool = True, stops: bool = False) -> onnx.ModelProto:
    """s = tanh(s*w + number), `trips` times; with the states of all steps, or stopping once their sum is above 2."""
    nodes = [h.make_node("Cast", ["k"], ["f"], to=T.DOUBLE), h.make_node("Mul", ["s", "w"], ["p"]),
             h.make_node("Add", ["p", "f"], ["q"]), h.make_node("Tanh", ["q"], ["s1"]),
             h.make_node("Identity", ["s1"], ["row"])]  # fmt: skip
    if stops:
        nodes += [h.make_node("ReduceSum", ["s1"], ["total"], keepdims=0),
                  h.make_node("Less", ["total", "two"], ["on1"])]  # fmt: skip
    else:
        nodes += [h.make_node("Identity", ["on"], ["on1"])]
    shape = [3]
    outs = [h.make_tensor_value_info("on1", T.BOOL, []), h.make_tensor_value_info("s1", T.DOUBLE, shape)]
    outs += [h.make_tensor_value_info("row", T.DOUBLE, shape)] if outputs else []
    ins = [h.make_tensor_value_info("k", T.INT64, []), h.make_tensor_value_info("on", T.BOOL, []),
           h.make_tensor_value_info("s", T.DOUBLE, shape)]  # fmt: skip
    body = h.make_graph(nodes, "body", ins, outs)
    given = ["y", "rows"] if outputs else ["y"]
    node = h.make_node("Loop", ["trips", "", "x"], given, body=body)
    weights = {"w": np.array([0.3, -0.5, 0.9], np.float64), "two": np.array(2.0, np.float64)}
    return model_of([node], {"x": (T.DOUBLE, shape), "trips": (T.INT64, [])}, given, weights)


@pytest.mark.parametrize("trips", [0, 1, 2, 7])
def test_loops_are_recurrences_with_derivatives(trips: int):
    proto, x = looped(), floats(np.random.default_rng(8), 3, dtype=np.float64)
    expected, rows, w = x, [], np.array([0.3, -0.5, 0.9])
    for k in range(trips):
        expected = np.tanh(expected * w + k)
        rows.append(expected)
    y, found = load(proto)(x, np.array(trips))
    np.testing.assert_allclose(y, expected, 1e-5)
    assert found.shape == (trips, 3)
    np.testing.assert_allclose(found, np.array(rows).reshape(trips, 3), 1e-5)
    if trips == 7:
        model = load(proto, constants={"trips": np.array(trips)})
        es.check_gradients(lambda p, a: (es.nn.functional_call(model, p, a)[1] ** 2).sum(), {"w": w}, x, order=1)


def test_a_long_loop_compiles_as_a_short_one():
    model = load(looped(outputs=False), constants={"trips": np.array(100_000)})
    assert np.isfinite(model(np.zeros(3))).all()


@pytest.mark.parametrize("backward", [0, 1])
def test_scans_are_recurrences_with_derivatives(backward: int):
    """s = tanh(s @ U + x), of more steps than are ever written out, along the second axis, in both directions."""
    shape = [2, 3]
    info = {n: h.make_tensor_value_info(n, T.DOUBLE, shape) for n in ("s", "x", "s1", "o")}
    nodes = [h.make_node("MatMul", ["s", "U"], ["p"]), h.make_node("Add", ["p", "x"], ["q"]),
             h.make_node("Tanh", ["q"], ["s1"]), h.make_node("Softmax", ["s1"], ["o"])]  # fmt: skip
    body = h.make_graph(nodes, "body", [info["s"], info["x"]], [info["s1"], info["o"]])
    node = h.make_node("Scan", ["s0", "xs"], ["last", "ys"], num_scan_inputs=1, body=body, scan_input_axes=[1],
                       scan_output_axes=[1], scan_input_directions=[backward])  # fmt: skip
    rng = np.random.default_rng(11)
    weights = {"U": floats(rng, 3, 3, dtype=np.float64) / 2, "s0": floats(rng, 2, 3, dtype=np.float64)}
    model = load(model_of([node], {"xs": (T.DOUBLE, [2, "t", 3])}, ["last", "ys"], weights))
    xs = floats(rng, 2, 1201, 3, dtype=np.float64)
    last, ys = model(xs)
    state, rows = weights["s0"], []
    for k in reversed(range(1201)) if backward else range(1201):
        state = np.tanh(state @ weights["U"] + xs[:, k])
        rows.append(np.exp(state) / np.exp(state).sum(-1, keepdims=True))
    np.testing.assert_allclose(last, state, 1e-12)
    np.testing.assert_allclose(ys, np.stack(rows, 1), 1e-12)

    def loss(p: dict[str, Any], a: Any) -> Any:
        return (es.nn.functional_call(model, p, a)[1] ** 2).sum()

    es.check_gradients(loss, weights, xs[:, :5], order=1)


def test_a_loop_stops_by_values():
    proto, x = looped(outputs=False, stops=True), np.array([0.1, 0.2, 0.3])
    expected, w = x, np.array([0.3, -0.5, 0.9])
    for k in range(9):
        expected = np.tanh(expected * w + k)
        if expected.sum() >= 2:
            break
    assert 0 < k < 8
    np.testing.assert_allclose(load(proto)(x, np.array(9)), expected, 1e-5)


def test_a_branch_is_taken_by_shapes():
    def branch(op: str) -> onnx.GraphProto:
        out = f"{op}_out"
        return h.make_graph([h.make_node(op, ["x"], [out])], op, [], [h.make_empty_tensor_value_info(out)])

    nodes = [h.make_node("Shape", ["x"], ["s"], end=1), h.make_node("Squeeze", ["s"], ["n"]),
             h.make_node("Greater", ["n", "three"], ["c"]),
             h.make_node("If", ["c"], ["y"], then_branch=branch("Exp"), else_branch=branch("Neg"))]  # fmt: skip
    model = load(model_of(nodes, {"x": (T.FLOAT, ["n"])}, ["y"], {"three": np.array(3, np.int64)}))
    np.testing.assert_allclose(model(np.ones(4, np.float32)), np.exp(np.ones(4)), 1e-6)
    np.testing.assert_allclose(model(np.ones(3, np.float32)), -np.ones(3))


def test_gradients_are_operators_too():
    """d(a*b + a)/da and d/db beside what they are taken of; the second time at the first one's result."""
    own = "ai.onnx.preview.training"
    nodes = [
        h.make_node("Mul", ["a", "b"], ["p"]), h.make_node("Sin", ["p"], ["s"]), h.make_node("Add", ["s", "a"], ["y"]),
        h.make_node("Gradient", ["a", "b"], ["da", "db"], xs=["a", "b"], y="y", domain=own),
        h.make_node("Gradient", ["da", "b"], ["again"], xs=["a"], zs=["b"], y="y", domain=own),
    ]  # fmt: skip
    graph = h.make_graph(
        nodes, "net", [h.make_tensor_value_info(n, T.DOUBLE, [3]) for n in "ab"],
        [h.make_tensor_value_info(n, T.DOUBLE, [3]) for n in ("da", "db", "again")],
    )  # fmt: skip
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 21), h.make_opsetid(own, 1)], ir_version=10)
    a, b = (floats(np.random.default_rng(k), 3, dtype=np.float64) for k in (1, 2))
    da, db, again = load(proto)(a, b)
    np.testing.assert_allclose(da, b * np.cos(a * b) + 1, 1e-12)
    np.testing.assert_allclose(db, a * np.cos(a * b), 1e-12)
    np.testing.assert_allclose(again, b * np.cos(da * b) + 1, 1e-12)


# ---------------------------------------------------------------------------------------------------------- quantized


def test_quantized_layers_are_exact():
    """Whole sums of a depth at which float32 would have rounded, then one rounding, ties to even."""
    rng = np.random.default_rng(9)
    a, b = rng.integers(0, 256, (7, 4099), np.uint8), rng.integers(-128, 128, (4099, 5), np.int8)
    za, zb = np.array(131, np.uint8), rng.integers(-9, 9, 5).astype(np.int8)
    inputs = {"a": (T.UINT8, a.shape), "b": (T.INT8, b.shape), "za": (T.UINT8, []), "zb": (T.INT8, [5])}
    model = load(model_of([h.make_node("MatMulInteger", ["a", "b", "za", "zb"], ["y"])], inputs, ["y"], {}))
    exact = (a.astype(np.int64) - 131) @ (b.astype(np.int64) - zb)
    np.testing.assert_array_equal(model(a, b, za, zb), exact)

    x, scale = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, 127.49, 1e9, -1e9]], np.float32), np.array(1.0, np.float32)
    zero = np.array(3, np.int8)
    kinds = {"x": (T.FLOAT, x.shape), "s": (T.FLOAT, []), "z": (T.INT8, [])}
    model = load(model_of([h.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])], kinds, ["y"], {}))
    np.testing.assert_array_equal(model(x, scale, zero), [[3, 5, 5, 3, 1, 127, 127, -128]])


def test_products_between_nodes_that_dequantize_multiply_integers():
    """A padded convolution and a product of two decoded tensors each, beside the standard's own evaluator."""
    rng = np.random.default_rng(21)
    weights = {
        "w": rng.integers(-127, 128, (6, 5, 3, 3), np.int8), "ws": (2.0 ** rng.integers(-9, -5, 6)).astype(np.float32),
        "wz": np.zeros(6, np.int8), "xs": np.float32(0.03), "xz": np.uint8(117), "ys": np.float32(0.5),
        "yz": np.int8(-9), "v": rng.integers(-127, 128, (6, 17), np.int8), "vz": np.int8(4), "vs": np.float32(0.01),
        "b": floats(rng, 6),
    }  # fmt: skip
    nodes = [
        h.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        h.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        h.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        h.make_node("Conv", ["xd", "wd", "b"], ["y"], pads=[1, 1, 1, 1], strides=[2, 1]),
        h.make_node("QuantizeLinear", ["y", "ys", "yz"], ["yq"]),
        h.make_node("DequantizeLinear", ["yq", "ys", "yz"], ["yd"]),
        h.make_node("Transpose", ["yd"], ["t"], perm=[0, 2, 3, 1]),
        h.make_node("DequantizeLinear", ["v", "vs", "vz"], ["vd"]),
        h.make_node("MatMul", ["t", "vd"], ["z"]),
    ]
    proto = model_of(nodes, {"x": (T.FLOAT, [2, 5, 7, 9])}, ["z"], weights)
    model = load(proto).eval()
    x = (3 * rng.standard_normal((2, 5, 7, 9))).astype(np.float32)
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(es.jit(model)(x), wanted, rtol=1e-5, atol=1e-5)
    assert len(integer_sums(model, x)) == 2
    assert not integer_sums(model.train(), x)


def test_products_stay_floats_where_integers_could_not_say_the_same():
    """Scales that differ along the sum, and sums that could leave int32."""
    rng = np.random.default_rng(22)
    for depth, scale, zero in (
        (6, (2.0 ** rng.integers(-9, -5, 6)).astype(np.float32), np.zeros(6, np.int8)),
        (2**31 // 255**2 + 1, np.float32(0.01), np.int8(0)),
    ):
        weights = {"w": rng.integers(-127, 128, (depth, 3), np.int8), "ws": scale, "wz": zero, "xs": np.float32(0.25)}
        nodes = [
            h.make_node("DequantizeLinear", ["x", "xs"], ["xd"]),
            h.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
            h.make_node("MatMul", ["xd", "wd"], ["z"]),
        ]
        proto = model_of(nodes, {"x": (T.INT8, [5, depth])}, ["z"], weights)
        model = load(proto).eval()
        x = rng.integers(-128, 128, (5, depth), np.int8)
        (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
        np.testing.assert_allclose(es.jit(model)(x), wanted, rtol=1e-4, atol=1e-4 * float(np.abs(wanted).max()))
        assert not integer_sums(model, x)


# ----------------------------------------------------------------------------------------------------------- interface


def test_the_backend_runs_models_and_nodes():
    proto, _ = perceptron()
    x = floats(np.random.default_rng(1), 2, 13)
    prepared = Backend.prepare(proto)
    np.testing.assert_array_equal(prepared.run([x]).y, prepared.run({"x": x})["y"])
    np.testing.assert_array_equal(Backend.run_node(h.make_node("Add", ["a", "b"], ["c"]), [x, x])[0], x + x)
    assert Backend.is_compatible(proto) and not Backend.supports_device("CUDA")
    strings = h.make_node("StringConcat", ["a", "b"], ["c"])
    ends = {"a": (T.STRING, [1]), "b": (T.STRING, [1])}
    assert not Backend.is_compatible(model_of([strings], ends, ["c"], {}))


def test_parts_with_names_that_collide():
    weights = {"a": np.ones(2, np.float32), "a.b": np.ones(2, np.float32) * 2, "training": np.ones(2, np.float32) * 3}
    nodes = [h.make_node("Sum", ["x", *weights], ["y"])]
    model = load(model_of(nodes, {"x": (T.FLOAT, [2])}, ["y"], weights))
    np.testing.assert_array_equal(model(np.zeros(2, np.float32)), [6, 6])
    assert len(model.state_dict()) == 3


def test_a_place_that_cannot_be_written_is_an_error(tmp_path) -> None:
    x = np.ones((1, 3), np.float32)
    export(es.nn.Linear(3, 2), x, tmp_path / "net.onnx")
    model = load(tmp_path / "net.onnx")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    for name in (".", "none/net.onnx", "net.onnx/net.onnx", "n" * 300, "loop", "fifo", "a\0b"):
        with pytest.raises(es.DataError):
            save(model, tmp_path / name)
        with pytest.raises(es.DataError):
            export(es.nn.Linear(3, 2), x, tmp_path / name)
    os.symlink(tmp_path / "net.onnx", tmp_path / "link.onnx")
    save(model, tmp_path / "link.onnx")
    assert (tmp_path / "link.onnx").is_symlink() and load(tmp_path / "net.onnx").inputs == model.inputs
