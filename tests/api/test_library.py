"""Which functions run code of Einsmith alone: layers, operators and networks, but nothing that calls code of users."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith import functional as F
from einsmith import models, nn
from einsmith.api.library import called_modules


class Scaled(nn.Linear):
    """A layer of a user's, who may have changed how it is called."""


@functools.wraps(F.mse_loss)
def wrapped(input: Any, target: Any) -> Any:
    return F.mse_loss(input, target)


def hooked() -> nn.Module:
    layer = nn.Linear(3, 3)
    layer.register_forward_hook(lambda *_: None)
    return layer


def replaced() -> nn.Module:
    layer = nn.Linear(3, 3)
    object.__setattr__(layer, "forward", lambda x: x)
    return layer


OTHERS = {
    "function": lambda x: x,
    "subclass": Scaled(3, 3),
    "part": nn.Sequential(nn.ReLU(), nn.ModuleList([Scaled(3, 3)])),
    "hook": nn.Sequential(hooked()),
    "forward": replaced(),
    "wrapped": wrapped,
    "partial": functools.partial(wrapped, target=None),
    "activation": nn.TransformerEncoderLayer(16, 2, activation=lambda x: x),
    "distance": nn.TripletMarginWithDistanceLoss(distance_function=lambda a, b: (a - b).sum(-1)),
    "gradient": es.grad(lambda x: x),
    "compiled": es.jit(lambda x: x),
    "method": [].append,
    "class": Scaled,
    "operator": type("Mine", (es.lang.op.Operator,), {})("y[i] = x[i]"),
}


@pytest.mark.parametrize("f", OTHERS.values(), ids=OTHERS)
def test_code_of_others_is_seen(f: Any) -> None:
    assert called_modules(f) is None and called_modules((nn.ReLU(), f)) is None


def test_functions_are_einsmiths_before_and_after_a_call() -> None:
    layer, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Softmax(-1)), np.ones((2, 4), "float32")
    for _ in range(2):
        assert called_modules(layer) == (layer, layer[2], layer[1], layer[0])
        for f in (F.softmax, es.op("y[i] = x[i]"), es.grad(es.op("y[] = sum[i](x[i])")), es.jit(layer)):
            assert called_modules(f) is not None
        assert called_modules(functools.partial(F.cross_entropy, label_smoothing=0.1)) == ()
        layer(x), F.softmax(x, -1), F.cross_entropy(x, np.zeros(2, int))
    assert all(called_modules(getattr(F, name)) == () for name in F.__all__)


def test_layers_and_networks_are_einsmiths() -> None:
    networks = ("lenet5", "lstm-lm", "mobilenet_v2", "unet", "scrn", "capsulenet", "resnet18_cifar")
    layers = [m for name in networks for m in models.get(name).modules()]
    layers += [nn.Transformer(8, 2, 1, 1, 8), nn.LSTM(3, 4), nn.CrossEntropyLoss(), nn.MultiheadAttention(8, 2)]
    assert {type(m).__name__ for m in layers if called_modules(m) is None} == set()
