"""Layers against torch.nn, over their options: state dictionaries, values, gradients to second order."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith import nn
from einsmith.api.transforms import vjp
from einsmith.autodiff.reverse import gradients
from einsmith.base.dtypes import f32
from einsmith.ir.nodes import Compute, leaf, postorder
from einsmith.tracing.builder import Value, as_value
from einsmith.tracing.trace import Trace, tracing
from tests.nn.layer_table import TABLE, Draw, draws

ALL = [d for layer in TABLE for d in draws(layer)]
FEW = [d for layer in TABLE for d in draws(layer)[:1]]


def pair(torch: Any, draw: Draw) -> tuple[nn.Module, Any]:
    """The layer and its twin in float64, with equal random parameters and buffers, which go both ways by name."""
    ours = getattr(nn, draw.name)(*draw.args, **draw.kwargs).double().train(draw.training)
    theirs = getattr(torch.nn, draw.name)(*draw.args, **draw.kwargs).double().train(draw.training)
    assert repr(ours) == repr(theirs)
    rng = np.random.default_rng(zlib.crc32(str(draw).encode()))
    state = {}
    for name, value in theirs.state_dict().items():
        drawn = rng.uniform(0.5, 1.5, value.shape) if value.dtype.is_floating_point else rng.integers(3, 9, value.shape)
        state[name] = torch.as_tensor(drawn, dtype=value.dtype)
    theirs.load_state_dict(state)
    ours.load_state_dict(theirs.state_dict())
    back = ours.state_dict()
    assert list(back) == list(state)
    for name, value in state.items():
        assert back[name].shape == tuple(value.shape) and back[name].dtype == value.numpy().dtype
        np.testing.assert_array_equal(back[name], value.numpy())
    theirs.load_state_dict({n: torch.as_tensor(v) for n, v in back.items()})
    return ours, theirs


def derived(ours: nn.Module, x: Any, params: dict, weights: list[np.ndarray], order: int) -> tuple:
    """Value, and the gradients of c*y^2 and of the gradients' sum, weighted, by input and parameters. In a trace."""
    names = list(params)

    def value(*inputs: Any) -> Value:
        return nn.functional_call(ours, dict(zip(names, inputs[1:], strict=True)), inputs[0])

    def first(*inputs: Any) -> tuple[Value, tuple]:
        y, pull = vjp(value, *inputs)
        return y, pull(y * as_value(weights[0]))

    inputs = (x, *params.values())
    if order == 0:
        return (value(*inputs),)
    if order == 1:
        y, grads = first(*inputs)
        return y, *grads

    def weighted(*inputs: Any) -> Any:
        y, grads = first(*inputs)
        return sum((g * as_value(w)).sum() for g, w in zip(grads, weights[1:], strict=True))

    y, grads = first(*inputs)
    return y, *grads, *es.grad(weighted, tuple(range(len(inputs))))(*inputs)


def expected(torch: Any, theirs: Any, x: Any, weights: list[np.ndarray], order: int) -> list:
    inputs = [x.requires_grad_(), *theirs.parameters()]
    c = [torch.as_tensor(w, dtype=x.dtype) for w in weights]
    y = theirs(inputs[0])
    out = [y]
    if order:
        grads = torch.autograd.grad(y, inputs, y * c[0], create_graph=True)
        out += grads
    if order == 2:
        total = sum((g * w).sum() for g, w in zip(grads, c[1:], strict=True))
        seconds = torch.autograd.grad(total, inputs, allow_unused=True)
        out += [torch.zeros_like(i) if s is None else s for i, s in zip(inputs, seconds, strict=True)]
    return [o.detach().numpy() for o in out]


def compare(torch: Any, draw: Draw, how: Any, order: int = 2, dtype: str = "float64", tolerance: float = 1e-9) -> None:
    ours, theirs = pair(torch, draw)
    ours.to(dtype)
    theirs = theirs.to(getattr(torch, dtype))
    rng = np.random.default_rng(zlib.crc32(f"{draw} input".encode()))
    x = rng.permutation(int(np.prod(draw.shape))).reshape(draw.shape) / 7 - 3  # no ties in windows
    x = (x + rng.uniform(0, 0.1, draw.shape)).astype(dtype) / 4
    state = theirs.state_dict()
    y = theirs(torch.as_tensor(x))
    theirs.load_state_dict(state)
    params = {n: p.numpy() for n, p in ours.named_parameters()}
    weights = [rng.standard_normal(s).astype(dtype) for s in (y.shape, draw.shape, *(p.shape for p in params.values()))]
    names = list(params)

    def f(x: Any, *values: Any) -> tuple:
        return derived(ours, x, dict(zip(names, values, strict=True)), weights, order)

    found = how(f)(x, *params.values())
    wanted = expected(torch, theirs, torch.as_tensor(x), weights, order)
    assert len(found) == len(wanted)
    for n, (a, b) in enumerate(zip(found, wanted, strict=True)):
        scale = max(1.0, float(np.abs(b).max(initial=0)))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale, err_msg=f"result {n} of {draw}")


def evaluated(f: Any) -> Any:
    return es.interpret(f)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("draw", FEW, ids=str)
def test_layers_compiled(torch, draw) -> None:
    compare(torch, draw, es.jit, order=1)


@pytest.mark.thinned(12)
@pytest.mark.parametrize("draw", ALL, ids=str)
def test_layers_evaluated(torch, draw) -> None:
    compare(torch, draw, evaluated)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("draw", FEW + [d for d in ALL if d.name == "Upsample"], ids=str)
def test_gradients_gather(draw) -> None:
    """No gradient by the input is a scatter: each is a sum over what reads an element."""
    layer = getattr(nn, draw.name)(*draw.args, **draw.kwargs)
    with tracing(Trace()):
        x = leaf(draw.shape, f32)
        y = layer(Value(x))
        _, grads = gradients([y.tensor], [(y * 2).tensor], [x])
    assert not [t for t in postorder(grads) if isinstance(t, Compute) and t.template.is_scatter]


@pytest.mark.slow
@pytest.mark.parametrize("draw", ALL, ids=str)
def test_all_layers_compiled(torch, draw) -> None:
    compare(torch, draw, es.jit)


@pytest.mark.slow
@pytest.mark.parametrize("draw", ALL[::5], ids=str)
def test_layers_in_float32(torch, draw) -> None:
    compare(torch, draw, es.jit, order=1, dtype="float32", tolerance=2e-5)


def test_forward_takes_the_tensors_of_its_operator_and_no_others() -> None:
    for layer, tensors in ((nn.ReLU(), 2), (nn.ReLU(), 0), (nn.MSELoss(), 1), (nn.MSELoss(), 3)):
        with pytest.raises(TypeError):
            layer.forward(*[np.ones(3, np.float32)] * tensors)
