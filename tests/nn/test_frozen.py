"""Weights that do not train, in fewer bits: their values, what programs read of them, errors."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.base.errors import ArgumentError, DtypeError, ShapeError
from einsmith.nn import KeptWeight


def grouped(w: np.ndarray, group: int) -> np.ndarray:
    """The nearest values of int8 with a scale for each group of the last dimension, by loops."""
    out = np.empty_like(w)
    for row, to in zip(w, out, strict=True):
        for k in range(0, w.shape[-1], group):
            scale = np.float32(np.abs(row[..., k : k + group]).max() / 127 or 1)
            to[..., k : k + group] = np.rint(row[..., k : k + group] / scale) * scale
    return out


@pytest.mark.parametrize("shape", [(1, 1), (5, 17), (16, 32), (3, 4, 5)])
@pytest.mark.parametrize(("keep", "group"), [("bf16", None), ("int8", None), ("int8", 1), ("int8", 7), ("int8", 64)])
def test_values_and_what_programs_read(keep, group, shape, rng, torch) -> None:
    module = es.nn.Module()
    w = rng.standard_normal(shape).astype(np.float32)
    w[0] *= 1e-3
    module.weight = es.nn.Parameter(w)
    es.nn.freeze(module, keep=keep, group=group)
    kept = module.weight
    if keep == "bf16":
        wanted = torch.from_numpy(w).bfloat16().float().numpy()
    else:
        wanted = grouped(w, group or shape[-1])
    assert isinstance(kept, KeptWeight) and kept.memory.dtype.itemsize == (2 if keep == "bf16" else 1)
    np.testing.assert_array_equal(kept.numpy(), wanted)
    np.testing.assert_array_equal(es.jit(lambda: kept * 1.0)(), wanted)
    np.testing.assert_array_equal(module.state_dict()["weight"], wanted)
    assert not dict(module.named_parameters())


@pytest.mark.parametrize("keep", ["bf16", "int8"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("n", [1, 15, 17, 33])
def test_products_and_gathers(keep, precision, n, rng) -> None:
    w, x = rng.standard_normal((n, 37)).astype(np.float32), rng.standard_normal((5, 37)).astype(np.float32)
    layer, table = es.nn.Linear(37, n), es.nn.Embedding(n, 37)
    layer.weight.data, table.weight = w, layer.weight
    both = es.nn.ModuleList([layer, table])
    es.nn.freeze(both, keep=keep)
    assert table.weight is layer.weight, "a weight that two layers share stays shared"
    ids = rng.integers(0, n, 9)
    wide, tolerance = layer.weight.numpy().astype(np.float64), 1e-5 if precision == "fp32" else 2e-2

    def f(x):
        return F.linear(x, layer.weight), table(ids)

    def g(x):
        return es.grad(lambda x: (f(x)[0] ** 2).sum())(x)

    y, rows = es.jit(f, precision=precision)(x)
    np.testing.assert_allclose(y, x @ wide.T, atol=tolerance * 10, rtol=tolerance)
    np.testing.assert_allclose(rows, wide[ids], rtol=tolerance)
    dx = 2 * (x.astype(np.float64) @ wide.T) @ wide
    np.testing.assert_allclose(es.jit(g, precision=precision)(x), dx, atol=tolerance * abs(dx).max(), rtol=tolerance)


def test_assigned_values_are_stored_anew(rng) -> None:
    module = es.nn.freeze(es.nn.Linear(8, 4), "weight", keep="int8", group=4)
    w = 100 * rng.standard_normal((4, 8)).astype(np.float32)
    module.weight.data = w
    np.testing.assert_allclose(module.weight.numpy(), w, atol=np.abs(w).max() / 250)
    other = es.nn.freeze(es.nn.Linear(8, 4), "weight", keep="int8", group=4)
    other.load_state_dict(module.state_dict())
    np.testing.assert_allclose(other.weight.numpy(), module.weight.numpy(), rtol=1e-6)
    copied = copy.deepcopy(module)
    np.testing.assert_array_equal(copied.weight.numpy(), module.weight.numpy())
    np.testing.assert_array_equal(es.jit(lambda: copied.weight * 1.0)(), module.weight.numpy())
    with pytest.raises(DtypeError, match="read as float32"):
        module.to("float64")
    with pytest.raises(ShapeError, match=r"shape \(4, 8\)"):
        module.weight.data = w[:2]
    with pytest.raises(ValueError, match="read-only"):
        module.weight.data[0] = 1


def test_small_ones_and_other_names_stay_as_they_are() -> None:
    module = es.nn.freeze(es.nn.Sequential(es.nn.Linear(3, 4), es.nn.Linear(4, 2)), "0.*", keep="bf16")
    assert isinstance(module[0].weight, KeptWeight) and not module[0].bias.requires_grad
    assert sorted(n for n, p in module.named_parameters() if p.requires_grad) == ["1.bias", "1.weight"]


def test_errors() -> None:
    layer = es.nn.Linear(3, 2)
    with pytest.raises(ArgumentError, match="'fp4' must be one of 'bf16', 'int8'"):
        es.nn.freeze(layer, keep="fp4")
    with pytest.raises(ArgumentError, match="no parameters of such names"):
        es.nn.freeze(layer, "wieght")
    with pytest.raises(ArgumentError, match="keep='int8'"):
        es.nn.freeze(layer, keep="bf16", group=2)
    layer.weight.data[1, 1] = np.nan
    with pytest.raises(ArgumentError, match="weight: .*finite"):
        es.nn.freeze(layer, keep="int8")


@pytest.mark.parametrize("keep", ["bf16", "int8"])
def test_what_else_reads_weights(keep, rng, tmp_path) -> None:
    """Steps of a group, the interpreter, ONNX files: all have the values that `numpy()` says."""
    layers = es.nn.Sequential(es.nn.Linear(6, 8), es.nn.ReLU(), es.nn.Linear(8, 3))
    es.nn.freeze(layers, "0.*", keep=keep)
    x = rng.standard_normal((4, 6)).astype(np.float32)
    first, last = layers[0], layers[2]
    hidden = np.maximum(x @ first.weight.numpy().T + first.bias.numpy(), 0)
    wanted = hidden @ last.weight.numpy().T + last.bias.numpy()
    np.testing.assert_allclose(es.interpret(lambda x: layers(x))(x), wanted, atol=1e-5)
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from einsmith.frontends.onnx import export

    export(layers, x, tmp_path / "layers.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "layers.onnx"))
    np.testing.assert_allclose(session.run(None, {session.get_inputs()[0].name: x})[0], wanted, atol=1e-5)
    other = rng.standard_normal((8, 6)).astype(np.float32)
    hidden = np.maximum(x @ other.T + first.bias.numpy(), 0)
    got = es.jit(lambda w, x: es.nn.functional_call(layers, {"0.weight": w}, x))(other, x)
    np.testing.assert_allclose(got, hidden @ last.weight.numpy().T + last.bias.numpy(), atol=1e-5)
    step = es.TrainStep(layers, F.mse_loss, es.optim.SGD(lr=0.1), deterministic=True)
    assert step(x, wanted + 1) == pytest.approx(1.0, rel=1e-4)
