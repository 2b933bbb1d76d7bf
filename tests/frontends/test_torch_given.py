"""PyTorch's modules, operators and tensors where Einsmith's own are expected: errors that name the remedy, and tensors
of which only shape and type matter."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import EinsmithError, KindError, TraceError

torch = pytest.importorskip("torch", reason="its objects are passed")
from einsmith.frontends.torch import operator  # noqa: E402

X = np.zeros((3, 4), np.float32)
SGD = es.optim.SGD(lr=0.1)


def onnx_export(model, *example):
    pytest.importorskip("onnx", reason="writes the files")
    from einsmith.frontends import onnx

    onnx.export(model, example, "never.onnx")


USES = {
    "TrainStep": lambda f, folder: es.TrainStep(f, es.functional.mse_loss, SGD),
    "export": lambda f, folder: es.export(f, folder / "library", X),
    "onnx": lambda f, folder: onnx_export(f, X),
    "quantize": lambda f, folder: es.quantize(f, [X]),
    "prepare_qat": lambda f, folder: es.quantization.prepare_qat(f),
    "jit": lambda f, folder: es.jit(f),
    "grad": lambda f, folder: es.grad(f),
    "vjp": lambda f, folder: es.vjp(f, X),
    "interpret": lambda f, folder: es.interpret(f),
    "check_gradients": lambda f, folder: es.check_gradients(f, X),
    "operator": lambda f, folder: operator(f),
}


@pytest.mark.parametrize("use", USES)
def test_modules_and_operators_of_torch_are_refused(use, tmp_path):
    with pytest.raises(KindError, match=r"a Linear, a module of PyTorch; convert it.*from_torch\(module, example\)"):
        USES[use](torch.nn.Linear(4, 2), tmp_path)
    with pytest.raises(KindError, match="scaled, an operator on PyTorch's tensors; pass the es.op itself"):
        USES[use](operator(es.op("scaled[i,k] = 2*x[i,k]")), tmp_path)
    assert not list(tmp_path.iterdir())


def test_operators_of_torch_inside_functions_are_refused():
    f = operator(es.op("y[i] = a*x[i]", a=2.0))
    for call in (lambda x: f(x), lambda x: f(x=x), lambda x: f(torch.zeros(3), a=x[0])):
        with pytest.raises(TraceError, match="y is an operator on PyTorch's tensors.*call the es.op itself"):
            es.jit(call)(X[0])


@pytest.mark.parametrize("loss", [torch.nn.MSELoss(), torch.nn.functional.mse_loss])
def test_losses_of_torch_are_refused(loss):
    with pytest.raises(KindError, match="is PyTorch's; es.functional has losses"):
        es.TrainStep(es.nn.Linear(4, 2), loss, SGD)


@pytest.mark.parametrize("f", [3, None, "y[i] = x[i]", es.nn.Linear])
def test_operator_takes_functions(f):
    with pytest.raises(KindError, match="operator takes an es.op"):
        operator(f)


def test_examples_may_require_a_gradient(tmp_path):
    x = torch.ones(3, 4, requires_grad=True)
    layer = es.nn.Linear(4, 2)
    es.export(layer, tmp_path / "layer", x)
    pytest.importorskip("onnx", reason="writes the file")
    from einsmith.frontends import onnx

    onnx.export(layer, x, tmp_path / "layer.onnx")
    with pytest.raises(EinsmithError, match="requires a gradient"):
        layer.predict(x)
