"""Networks written as ONNX files: onnxruntime and the reader give the network's own outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import einsmith as es
from einsmith.base.errors import ArgumentError, DataError, FormulaError, KindError, ShapeError
from einsmith.base.trees import flatten
from einsmith.frontends.onnx import export, load
from einsmith.frontends.onnx.writer import batch

ort = pytest.importorskip("onnxruntime", reason="onnxruntime, which runs the files, is not installed")
F, N = es.functional, es.nn


class Of(N.Module):
    """A network of a function of tensors, with parameters."""

    def __init__(self, function: Callable[..., Any], *parameters: np.ndarray):
        self.function = function
        self.weights = N.ParameterList([N.Parameter(p) for p in parameters])

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs, *self.weights)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def numbers(high: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, shape)


def session(path: Path) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def agree(path: Path, model: N.Module, *inputs: np.ndarray, atol: float = 2e-5, again: bool = True) -> None:
    """onnxruntime's outputs and (again) those of the file that is read again are the network's, in type and value."""
    with model.in_mode(training=False):
        expected = model(*inputs)
    expected = flatten(expected)[0]
    run = session(path)
    theirs = run.run(None, dict(zip((i.name for i in run.get_inputs()), inputs, strict=True)))
    results = [theirs]
    if again:
        read = load(path)
        read.eval()
        ours = read(*inputs)
        results.append(ours if isinstance(ours, tuple) else (ours,))
    for found in results:
        for a, b in zip(expected, found, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            np.testing.assert_allclose(b, a, 1e-4, atol)


def written(path: Path, model: N.Module, *inputs: np.ndarray, **options: Any) -> Counter[str]:
    """Write a network, compare it, and return how often the file has each operator, in the graph and in functions."""
    export(model, inputs, path, **options)
    agree(path, model, *inputs)
    made = onnx.load(path)
    return Counter(n.op_type for part in (made.graph, *made.functions) for n in part.node)


# ---------------------------------------------------------------------------------------------------------- networks

IMAGE = (1, 3, 32, 32)
NETWORKS: dict[str, tuple[Callable[[], N.Module], tuple[np.ndarray, ...]]] = {
    "lenet5": (es.models.lenet5, (floats(3, 1, 28, 28),)),
    "mlp3": (es.models.mlp3, (floats(3, 784),)),
    "squeezenet": (lambda: es.models.squeezenet(classes=10), (floats(1, 3, 64, 64),)),
    "shufflenet_v1": (lambda: es.models.shufflenet_v1(classes=10), (floats(*IMAGE),)),
    "mobilenet_v1": (lambda: es.models.mobilenet_v1(classes=10), (floats(*IMAGE),)),
    "mobilenet_v2": (lambda: es.models.mobilenet_v2(classes=10), (floats(*IMAGE),)),
    "resnet50": (lambda: es.models.resnet50(classes=10), (floats(*IMAGE),)),
    "efficientnet_lite0": (lambda: es.models.efficientnet_lite0(classes=10), (floats(*IMAGE),)),
    "resnet18_cifar": (es.models.resnet18_cifar, (floats(2, 3, 32, 32),)),
    "unet": (lambda: es.models.unet(width=4, depth=2), (floats(2, 1, 16, 16),)),
    "vit_small": (
        lambda: es.models.vit_small(size=16, patch=8, width=16, heads=2, layers=2, inner=32),
        (floats(2, 3, 16, 16),),
    ),
    "bert_base": (
        lambda: es.models.bert_base(vocabulary=50, width=16, heads=2, layers=2, inner=32, positions=16),
        (numbers(50, 2, 7),),
    ),
    "gpt_small": (
        lambda: es.models.gpt_small(vocabulary=50, width=16, heads=2, layers=2, positions=16),
        (numbers(50, 2, 7),),
    ),
    "llama": (
        lambda: es.models.Llama(
            es.models.LlamaConfig(
                vocab_size=50,
                hidden_size=16,
                intermediate_size=24,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
            )
        ),
        (numbers(50, 2, 7),),
    ),
    "capsulenet": (es.models.capsulenet, (floats(2, 1, 28, 28),)),
    "capsulenet_conv": (es.models.capsulenet_conv, (floats(2, 1, 28, 28),)),
    "milstm": (lambda: es.models.milstm(input_size=5, hidden_size=7), (floats(2, 6, 5),)),
    "scrn": (lambda: es.models.scrn(input_size=5, hidden_size=7), (floats(2, 6, 5),)),
    "sublstm": (lambda: es.models.sublstm(input_size=5, hidden_size=7), (floats(2, 6, 5),)),
    "lltm": (lambda: es.models.lltm(input_size=5, hidden_size=7), (floats(2, 6, 5),)),
    "lstm-lm": (lambda: es.models.lstm_lm(vocabulary=40, width=8), (numbers(40, 2, 6),)),
}
QUICK = ("lenet5", "sublstm")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS])
def test_networks_by_name(name: str, tmp_path: Path):
    es.manual_seed(3)
    make, inputs = NETWORKS[name]
    model = make()
    for k, b in enumerate(model.buffers()):  # statistics that are not those of no training
        if b.ndim:
            b.data = 0.5 + np.abs(floats(*b.shape, seed=k))
    path = tmp_path / "net.onnx"
    export(model, inputs, path)
    agree(path, model, *inputs, atol=1e-4)
    export(model, inputs, path, dynamic_batch=True)
    more = tuple(np.concatenate([x, x[:1]]) for x in inputs)
    agree(path, model, *more, atol=1e-4, again=False)
    assert [d.dim_param for d in onnx.load(path).graph.input[0].type.tensor_type.shape.dim][0] == "batch"


def test_every_network_by_name_is_among_them():
    assert {*es.models.names()} - {*NETWORKS} == {"resnet18"}  # a resnet50 of other blocks


def test_operators_have_their_names_and_parameters_theirs(tmp_path: Path):
    model = es.models.resnet18_cifar()
    path = tmp_path / "net.onnx"
    export(model, floats(2, 3, 32, 32), path)
    graph = onnx.load(path).graph
    counts = Counter(n.op_type for n in graph.node)
    assert counts["Conv"] == counts["BatchNormalization"] == 20 and counts["Relu"] == 17 and counts["Add"] == 8
    assert len(graph.node) < 70 and counts["Gather"] == counts["Einsum"] == 0
    state = model.state_dict()
    found = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    kept = {n for n in state if "num_batches" not in n}
    assert kept <= {*found}
    assert all(np.array_equal(found[n], state[n]) for n in kept)
    assert {*dict(load(path).named_parameters())} == {*dict(model.named_parameters())}


def test_a_network_from_torch(tmp_path: Path):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from einsmith.frontends.torch import from_torch

    torch.manual_seed(0)
    nn = torch.nn
    body = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5)
    ).eval()  # fmt: skip
    x = floats(3, 2, 8, 8)
    model = from_torch(body, torch.from_numpy(x))
    counts = written(tmp_path / "net.onnx", model, x)
    assert {"Conv", "BatchNormalization", "Gelu", "MaxPool", "MatMul"} <= {*counts}
    steps = floats(5, 2, 4)
    recurrent = from_torch(nn.GRU(4, 3, bidirectional=True), torch.from_numpy(steps))
    assert written(tmp_path / "net.onnx", recurrent, steps)["GRU"] == 1


def test_networks_of_integers_and_networks_that_were_read(tmp_path: Path):
    x = floats(4, 6)
    model = N.Sequential(N.Linear(6, 5), N.ReLU(), N.Linear(5, 3))
    quantized = es.quantize(model, [(x,)])
    written(tmp_path / "integers.onnx", quantized, x)
    export(model, x, tmp_path / "net.onnx")
    counts = written(tmp_path / "again.onnx", load(tmp_path / "net.onnx"), x)
    assert counts["MatMul"] == 2 and load(tmp_path / "again.onnx").state_dict().keys() == model.state_dict().keys()


# ------------------------------------------------------------------------------------------------- calls and formulas

CALLS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], str]] = {
    "conv same, dilated": (
        lambda x, w: F.conv1d(x, w, padding="same", dilation=2),
        (floats(2, 3, 9), floats(4, 3, 3)),
        "Conv",
    ),
    "conv groups": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=1, groups=2),
        (floats(2, 4, 7, 6), floats(6, 2, 3, 3)),
        "Conv",
    ),
    "conv without batch": (lambda x, w: F.conv1d(x, w), (floats(3, 9), floats(4, 3, 3)), "MatMul Einsum"),
    "conv transpose": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1, padding=1),
        (floats(2, 3, 4, 5), floats(3, 2, 3, 3)),
        "ConvTranspose",
    ),
    "linear": (lambda x, w, b: F.linear(x, w, b), (floats(2, 3, 5), floats(4, 5), floats(4)), "MatMul"),
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (floats(2, 3, 9, 8),), "MaxPool"),
    "max pool, places": (lambda x: F.max_pool2d(x, 2, return_indices=True), (floats(2, 3, 6, 6),), "MaxPool ArgMax"),
    "ceiling": (lambda x: F.max_pool1d(x, 3, 2, ceil_mode=True), (floats(2, 3, 8),), "MaxPool"),
    "mean pool, ceiling": (lambda x: F.avg_pool1d(x, 3, 2, ceil_mode=True), (floats(2, 3, 8),), "ReduceSum"),
    "mean pool": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (floats(2, 3, 9, 8),), "AveragePool"),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (floats(2, 3, 9, 8),), "AveragePool"),
    "adaptive, uneven": (lambda x: F.adaptive_max_pool1d(x, 3), (floats(2, 3, 8),), "ReduceMax"),
    "softmax": (lambda x: F.log_softmax(F.softmax(x, -1), 1), (floats(2, 5, 3),), "Softmax LogSoftmax"),
    "norms": (
        lambda x, w: F.instance_norm(F.layer_norm(x, (5, 3), w)),
        (floats(2, 4, 5, 3), floats(5, 3)),
        "LayerNormalization InstanceNormalization",
    ),
    "activations": (
        lambda x: F.hardsigmoid(F.selu(F.relu6(F.leaky_relu(x, 0.2)))) + F.hardtanh(x, -0.5, 0.7),
        (floats(4, 5),),
        "HardSigmoid Selu Clip LeakyRelu",
    ),
    "elementwise": (
        lambda x: F.elu(F.softplus(x)) + F.gelu(x) + F.mish(x) + F.silu(x) + F.softplus(x, beta=2.0),
        (floats(4, 5),),
        "Elu Softplus Gelu Mish",
    ),
    "clamp": (lambda x: F.clamp(x, max=0.3), (floats(4, 5),), "Clip"),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1), value=2.5), (floats(2, 3, 4),), "Pad"),
    "pad by reflection": (lambda x: F.pad(x, (2, 1), mode="reflect"), (floats(2, 3, 4),), "Gather Where"),
    "embedding": (lambda i, w: F.embedding(i, w, padding_idx=2), (numbers(6, 2, 3), floats(6, 4)), "Gather"),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (floats(2, 2, 5, 4), floats(2, 2, 5, 4, seed=1), floats(2, 2, 5, 3, seed=2)),
        "Softmax",
    ),
    "views": (
        lambda x: F.cat([x[:, ::-1].reshape(2, -1, 3), F.stack([x, x], 1)[:, 0].transpose(0, 2, 1)], 1),
        (floats(2, 3, 3),),
        "Slice Concat",
    ),
    "interpolation": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
        (floats(2, 3, 4, 5),),
        "Gather",
    ),
    "extremes": (
        lambda x: (x.argmax(1), x.max(0), x.argmin(), x.prod(2)),
        (floats(3, 4, 2),),
        "ArgMax ReduceMax ArgMin ReduceProd",
    ),
    "integers": (lambda i: (i // 3 - i % -4, (i > 2) & (i != 5), i.sum(1)), (numbers(9, 3, 5),), "Mod Div"),
    "sums": (lambda x, y: F.einsum("abc,cb,bd->da", x, y, y), (floats(3, 4, 4), floats(4, 4)), "Einsum"),
    "norm of rows": (lambda x: F.normalize(x, dim=1), (floats(3, 4),), "Where Sqrt"),
    "one_hot and gather": (lambda i: F.one_hot(i, 5), (numbers(5, 3, 4),), "Equal"),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_functions(name: str, tmp_path: Path):
    function, inputs, operators = CALLS[name]
    counts = written(tmp_path / "net.onnx", Of(function), *inputs)
    assert any(o in counts for o in operators.split()[1:] or operators.split()), counts


FORMULAS: dict[str, tuple[str, tuple[np.ndarray, ...], dict[str, Any]]] = {
    "capsules": (
        "C[b,k,p,q,i,j] = sum[c,r,s,m](A[b,c,t*p+r,t*q+s,i,m]*W[k,c,r,s,m,j])",
        (floats(2, 3, 5, 7, 2, 4), floats(4, 3, 3, 3, 4, 3)),
        {"t": 2},
    ),
    "prefix sums": ("y[i] = sum[j](where(j <= i, x[j], 0))", (floats(7),), {"extents": {"i": 7}}),
    "pieces": ("y[b,2*h] = x[b,h]\ny[b,2*h+1] = exp(x[b,h])", (floats(2, 3),), {}),
    "diagonal": ("y[i] = x[i,i]*2\nz[] = sum[i](x[i,i])\nreturn y, z", (floats(4, 4),), {}),
    "rows by index, guarded": ("y[t,k] = where(ids[t] > 0, E[ids[t]-1,k], 0)", (numbers(5, 6), floats(4, 3)), {}),
    "two indices": ("y[b,k] = x[b,i[b,k],k]", (floats(3, 5, 4), numbers(5, 3, 4)), {}),
    "scatter": ("y[i,k] = 0.5\ny[ids[n],k] += x[n,k]", (numbers(4, 6), floats(6, 3)), {"extents": {"i": 4, "k": 3}}),
    "maximum of scatter": (
        "y[i] = -9.0\ny[ids[n]] max= x[n]\nreturn y",
        (numbers(4, 6), floats(6)),
        {"extents": {"i": 4}},
    ),
    "positions": ("y[i,j] = x[j] + i*10 - f32(i//2)*j", (floats(3),), {"extents": {"i": 4}}),
    "condition on a product": (
        "y[p] = sum[r](where(0 <= p+r-1 and p+r-1 < 5, x[p+r-1]*w[r], 0))",
        (floats(5), floats(3)),
        {"extents": {"p": 5}},
    ),
    "unused axes": (
        "y[b] = sum[k,j](x[b,k])\nz[b] = prod[k](x[b,0])\nreturn y, z",
        (floats(3, 4),),
        {"extents": {"j": 3, "k": 4}},
    ),
    "recurrence backwards": ("h[t,b] = tanh(x[t,b] + where(t < 5, 0.5*h[t+1,b], 0))", (floats(6, 3),), {}),
    "two steps back": ("h[t] = where(t > 1, h[t-1] - 0.5*h[t-2], x[t])", (floats(7),), {}),
    "sums of all steps": ("h[t] = x[t] + sum[s](where(s < t, h[s], 0))*0.25", (floats(6),), {"extents": {"s": 6}}),
    "initial values": ("h[0] = x[0]\nh[t+1] = 0.5*h[t] + x[t]", (floats(6),), {}),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas(name: str, tmp_path: Path):
    text, inputs, settings = FORMULAS[name]
    extents = settings.pop("extents", None) if "extents" in settings else None
    formula = es.op(text, extents=extents, **settings)
    written(tmp_path / "net.onnx", Of(lambda *x: formula(*x)), *inputs)


DISTANCE = "D[i,j] = sum[k](abs(x[i,k] - z[j,k]))"


def calls_and_functions(path: Path) -> tuple[list[str], dict[str, onnx.FunctionProto]]:
    """Return the operators of a file's graph in order, with their domains, and its functions by name."""
    made = onnx.load(path)
    return [f"{n.domain}.{n.op_type}" for n in made.graph.node], {f.name: f for f in made.functions}


def test_a_formula_of_ones_own_is_a_function(tmp_path: Path):
    path = tmp_path / "net.onnx"
    distance, inputs = es.op(DISTANCE, name="distance"), (floats(3, 4), floats(5, 4, seed=1))
    written(path, Of(lambda x, z: distance(x, z)), *inputs, output_names=["far"])
    graph = onnx.load(path).graph
    (node,) = graph.node
    assert (node.domain, node.op_type) == ("einsmith", "distance")
    assert list(node.input) == ["input_0", "input_1"] and list(node.output) == ["far"] and not graph.initializer
    (function,) = onnx.load(path).functions
    assert list(function.input) == ["x", "z"] and list(function.output) == ["D"] and function.doc_string == DISTANCE
    inner = function.node[-1]
    assert inner.op_type == "ReduceSum" and "sum[r0]" in inner.doc_string and "x[i0, r0]" in inner.doc_string
    # One node is a function, too, and numbers, parameters and several results are inside, inputs and outputs.
    both = es.op("y[b,k] = sum[c](x[b,c]*w[c,k])\nz[b] = scale*x[b,0]\nreturn y, z", name="both of them")
    model = Of(lambda x, w: both(x, w, scale=3.0), floats(4, 3))
    counts = written(path, model, floats(2, 4))
    names, functions = calls_and_functions(path)
    assert names == ["einsmith.both_of_them"] and counts["MatMul"] == 1
    assert list(functions["both_of_them"].input) == ["x", "w"] and list(functions["both_of_them"].output) == ["y", "z"]
    same = es.op("y[i] = 2*exp(x[i])\nz[i] = 2*exp(w[i])\nreturn y, z", name="same")
    written(path, Of(lambda x: same(x, x)), floats(5))
    single = es.op("y[b,k] = sum[c](x[b,c]*w[c,k])", name="product")
    written(path, Of(lambda x, w: single(x, w), floats(4, 3)), floats(2, 4))
    assert calls_and_functions(path)[0] == ["einsmith.product"]


def test_a_formula_that_is_used_twice_is_one_function(tmp_path: Path):
    path = tmp_path / "net.onnx"
    distance = es.op(DISTANCE, name="distance")
    written(path, Of(lambda x, z: distance(distance(x, z), x)), floats(3, 4), floats(4, 4, seed=1))
    names, functions = calls_and_functions(path)
    assert names == ["einsmith.distance"] * 2 and [*functions] == ["distance"]
    # Constants that differ between the calls are inputs; another formula of the name has another one.
    head = es.op("y[b,k] = s*x[b,2*k+1]", name="head", extents={"k": "n"})
    tail = es.op("y[b,k] = x[b,k] - 1.0", name="head")
    model = Of(lambda x: (head(x, n=2, s=0.5), head(x, n=3, s=0.25), tail(x)))
    written(path, model, floats(3, 8))
    names, functions = calls_and_functions(path)
    assert sorted(names) == ["einsmith.head", "einsmith.head", "einsmith.head_1"] and len(functions) == 2
    assert sorted(map(len, (f.input for f in functions.values()))) == [1, 3]


def test_functions_without_a_name_in_onnx(tmp_path: Path):
    path = tmp_path / "net.onnx"
    written(path, Of(lambda x: F.silu(F.relu(F.silu(x))) + x.transpose(1, 0)), floats(4, 4))
    names, functions = calls_and_functions(path)
    assert names.count("einsmith.silu") == 2 and {".Relu", ".Transpose", ".Add"} < {*names}
    assert [*functions] == ["silu"] and [n.op_type for n in functions["silu"].node] == ["Sigmoid", "Mul"]


@pytest.mark.parametrize("opset", [18, 23])
def test_functions_take_any_batch(opset: int, tmp_path: Path):
    path = tmp_path / "net.onnx"
    distance = es.op(DISTANCE, name="distance")
    spread = es.op("y[b,c,k] = w[k] + where(c > 0, x[b,0], 0)", name="spread", extents={"c": 2})
    flat = es.op("y[n] = x[n//3, n%3]", name="flat", extents={"n": "3*x.shape[0]"})
    steps = es.op("h[t,b] = tanh(x[b,t] + where(t > 0, 0.5*h[t-1,b], 0))", name="steps")
    model = Of(
        lambda x, z, w: (spread(x=distance(x, z), w=w), distance(z, x), flat(x), steps(x)),
        floats(5, 3),
        floats(4, seed=1),
    )
    export(model, floats(2, 3), path, dynamic_batch=True, opset=opset)
    names, functions = calls_and_functions(path)
    assert names.count("einsmith.distance") == 2 and {*functions} == {"distance", "spread", "flat", "steps"}
    for size in (1, 3):
        agree(path, model, floats(size, 3))


def test_an_error_names_the_formula(tmp_path: Path):
    weighted = es.op("y[i] = x[i]*(i*i)", name="weighted")
    with pytest.raises(FormulaError, match=r"(?s)batch size determines a table.*x\[i0\]"):
        export(Of(lambda x: weighted(x)), floats(3), tmp_path / "net.onnx", dynamic_batch=True)
    noise = Of(lambda x: F.dropout(x, 0.5, training=True))
    with pytest.raises(FormulaError, match=r"(?s)the formula of 'dropout'.*random numbers.*line 1: out"):
        export(noise, floats(2, 3), tmp_path / "net.onnx")


LAYERS: dict[str, Callable[..., N.Module]] = {
    "LSTM": N.LSTM,
    "GRU": N.GRU,
    "RNN": lambda *args, **settings: N.RNN(*args, nonlinearity="relu", **settings),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("operator", LAYERS)
def test_layers_of_recurrence_have_their_names(operator: str, tmp_path: Path):
    path = tmp_path / "net.onnx"
    layer = LAYERS[operator](4, 3, num_layers=2, bidirectional=True)
    for size in (1, 3):
        counts = written(path, layer, floats(5, size, 4))
        assert counts[operator] == 2 and counts["Loop"] == 0
    assert {*dict(load(path).named_parameters())} == {*dict(layer.named_parameters())}
    assert written(tmp_path / "again.onnx", load(path), floats(5, 3, 4))[operator] == 2
    first = LAYERS[operator](4, 3, batch_first=True, bias=False)
    states = [floats(1, 2, 3, seed=n) for n in range(2 if operator == "LSTM" else 1)]
    given = Of(lambda x, *hx: first(x, hx if operator == "LSTM" else hx[0]))
    assert written(path, given, floats(2, 5, 4), *states)[operator] == 1
    export(first, floats(2, 5, 4), path, dynamic_batch=True)
    for size in (1, 3):
        agree(path, first, floats(size, 5, 4))


def test_a_projected_layer_is_a_formula(tmp_path: Path):
    counts = written(tmp_path / "net.onnx", N.LSTM(4, 3, proj_size=2), floats(5, 2, 4))
    assert counts["Loop"] == 1 and counts["LSTM"] == 0


def test_attention_is_softmax_between_products(tmp_path: Path):
    path, q = tmp_path / "net.onnx", floats(2, 2, 5, 4)
    causal = Of(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True))
    counts = written(path, causal, q)
    assert counts == {"Transpose": 1, "MatMul": 2, "Mul": 1, "Where": 1, "Softmax": 1}
    export(causal, q, path, dynamic_batch=True)
    for size in (1, 3):
        agree(path, causal, floats(size, 2, 5, 4))
    keys = numbers(2, 5, 5).astype(bool)
    keys[2] = False  # a query without any key
    for mask in (keys, np.where(keys, floats(5, 5), -np.inf).astype(np.float32)):
        counts = written(path, Of(lambda q, mask: F.scaled_dot_product_attention(q, q, q, mask)), q, mask)
        assert counts["Softmax"] == 1 and counts["Exp"] == 0


# ------------------------------------------------------------------------------------------------------------ options


def test_names_types_and_operator_sets(tmp_path: Path):
    path = tmp_path / "net.onnx"
    model = Of(lambda x, y: {"sum": x + y, "same": y, "twice": (x + y, F.gelu(x))})
    x, y = floats(2, 3).astype(np.float64), floats(3).astype(np.float64)
    export(model, (x, y), path, input_names=["left", "right"], opset=18)
    made = onnx.load(path)
    assert made.opset_import[0].version == 18 and [i.name for i in made.graph.input] == ["left", "right"]
    assert [o.name for o in made.graph.output] == ["output_0", "output_1", "output_2", "output_3"]
    assert "Gelu" not in {n.op_type for n in made.graph.node}  # it came with operator set 20
    ours = load(path)(x, y)
    np.testing.assert_allclose(ours[0], x + y)
    np.testing.assert_allclose(ours[1], y)
    assert ours[3].dtype == np.float64


def test_a_batch_of_any_size_is_said_by_shapes(tmp_path: Path):
    path = tmp_path / "net.onnx"
    model = Of(lambda x, token: F.cat([token.expand(x.shape[0], 1, 3), x.reshape(-1, 2, 3)], 1), floats(1, 1, 3))
    export(model, floats(3, 6), path, dynamic_batch=True)
    for size in (1, 2, 5):
        agree(path, model, floats(size, 6))


def test_a_batch_in_a_formula_is_an_error(tmp_path: Path):
    model = Of(lambda x: x * x.shape[0])
    with pytest.raises(FormulaError, match=r"(?s)batch size determines a number.*out\[i0, i1\].*dynamic_batch=False"):
        export(model, floats(2, 3), tmp_path / "net.onnx", dynamic_batch=True)
    assert not list(tmp_path.iterdir())
    export(model, floats(2, 3), tmp_path / "net.onnx")
    with pytest.raises(FormulaError, match="batch size"):
        export(Of(lambda x: x[: x.shape[0] // 2]), floats(4, 3), tmp_path / "net.onnx", dynamic_batch=True)
    steps = es.op("h[t] = x[t] + where(t > 0, 0.5*h[t-1], 0)")
    with pytest.raises(FormulaError, match=r"(?s)batch size.*line 1: out"):
        export(Of(lambda x: steps(x)), floats(4), tmp_path / "net.onnx", dynamic_batch=True)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "text, made",
    [
        ("y[b,k] = x[b,n[b]-1,k]", {"Range"}),  # a table of positions of the batch
        ("h[b,t,k] = x[b,t,k] + where(t>0, h[b,t-1,k], 0) + where(k>0, h[b,t,k-1], 0)*n[b]\nreturn h", {"Loop"}),
    ],
)
def test_a_batch_in_positions_and_steps(text: str, made: set[str], tmp_path: Path):
    path, formula = tmp_path / "net.onnx", es.op(text)
    x, n = floats(6, 5, 3), np.array([1, 5, 2, 4, 3, 5])
    export(Of(lambda x, n: formula(x=x, n=n)), (x, n), path, dynamic_batch=True)
    file = onnx.load(path)
    assert made <= {node.op_type for part in (file.graph, *file.functions) for node in part.node}
    export(Of(lambda x, n: formula(x=x, n=n)), (x, n), tmp_path / "one.onnx")  # a Loop without states
    for size in (1, 2, 6):
        agree(path, Of(lambda x, n: formula(x=x, n=n)), x[:size], n[:size])


def test_the_sizes_compared_are_primes():
    assert all(n > 1 and all(n % k for k in range(2, n)) for n in batch.SIZES) and len({*batch.SIZES}) == 2


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model, x, path = es.models.mlp3(), floats(2, 784), tmp_path / "net.onnx"
    with pytest.raises(DataError, match="make it first"):
        export(model, x, tmp_path / "none" / "net.onnx")
    with pytest.raises(DataError, match="is a folder"):
        export(model, x, tmp_path)
    with pytest.raises(KindError, match="must be a path"):
        export(model, x, 3)
    with pytest.raises(KindError, match="model='mlp3' must be an es.nn.Module or a function"):
        export("mlp3", x, path)
    with pytest.raises(ArgumentError, match="opset=7 must be from 18"):
        export(model, x, path, opset=7)
    with pytest.raises(ArgumentError, match="must be 1 names"):
        export(model, x, path, input_names=["a", "b"])
    with pytest.raises(ArgumentError, match="different names"):
        export(model, x, path, input_names=["a"], output_names=["a"])
    with pytest.raises(ArgumentError, match="has 1 outputs"):
        export(model, x, path, output_names=["a", "b"])
    name = next(iter(model.state_dict()))
    with pytest.raises(ArgumentError, match="names a parameter"):
        export(model, x, path, input_names=[name])
    with pytest.raises(ShapeError, match="first extents must be equal"):
        export(Of(lambda x, y: x + y), (floats(2, 3), floats(3)), path, dynamic_batch=True)
    monkeypatch.setattr("einsmith.frontends.onnx.writer.model.MAX_BYTES", 1000)
    with pytest.raises(ArgumentError, match="GiB"):
        export(model, x, path)
    assert not list(tmp_path.iterdir())


def test_what_an_evaluation_cannot_be(tmp_path: Path):
    class Counting(N.Module):
        def __init__(self) -> None:
            self.register_buffer("count", np.zeros((), np.float32))

        def forward(self, x: Any) -> Any:
            self.count = self.count + 1
            return x + self.count

    with pytest.raises(ArgumentError, match="updates 'count'"):
        export(Counting(), floats(2), tmp_path / "net.onnx")
    counting = Counting()
    with pytest.raises(ArgumentError, match="evaluation of function updates a buffer"):
        export(lambda x: counting(x), floats(2), tmp_path / "net.onnx")
    with pytest.raises(FormulaError, match=r"(?s)random numbers.*line 1: out"):
        export(Of(lambda x: F.dropout(x, 0.5, training=True)), floats(2, 3), tmp_path / "net.onnx")
    # In evaluation mode dropout and batch norm are those of evaluation, whatever the network's mode is.
    model = N.Sequential(N.Linear(3, 4), N.BatchNorm1d(4), N.Dropout(0.5))
    counts = written(tmp_path / "net.onnx", model, floats(2, 3))
    assert counts == {"Gemm": 1, "BatchNormalization": 1} and model.training


@pytest.mark.parametrize("jitted", [False, True])
def test_functions_of_tensors(jitted, tmp_path):
    scale, shift = floats(4), N.Parameter(floats(4, seed=1))

    def scaled(x, bias):
        return x * scale + bias + shift

    f = es.jit(scaled) if jitted else scaled
    x = floats(3, 4, seed=2)
    export(f, (x, x), tmp_path / "f.onnx", dynamic_batch=True)
    graph = onnx.load(tmp_path / "f.onnx").graph
    assert graph.name == "scaled" and [i.name for i in graph.input] == ["x", "bias"]
    x = floats(5, 4, seed=3)
    (got,) = ort.InferenceSession(tmp_path / "f.onnx").run(None, {"x": x, "bias": 2 * x})
    np.testing.assert_allclose(got, es.jit(scaled)(x, 2 * x), rtol=1e-5, atol=1e-6)


def test_an_operator(tmp_path):
    distance = es.op("D[i,j] = sum[k](abs(x[i,k] - z[j,k]))", name="distance")
    x, z = floats(3, 4), floats(5, 4, seed=1)
    export(distance, (x, z), tmp_path / "d.onnx")
    session = ort.InferenceSession(tmp_path / "d.onnx")
    assert [i.name for i in session.get_inputs()] == ["x", "z"]
    np.testing.assert_allclose(session.run(None, {"x": x, "z": z})[0], distance(x, z), rtol=1e-5)
    with pytest.raises(KindError, match="a function of tensors"):
        export(3, x, tmp_path / "n.onnx")
    with pytest.raises(KindError, match=r"^file=<ndarray of shape \(3, 4\)> must be a path"):
        export(distance, "d.onnx", x)
