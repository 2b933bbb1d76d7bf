"""Define networks that are a sequence of layers in PyTorch: the perceptron and LeNet-5."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from einsmith.bench.graphs.layers import Layer, layers_of


def sequence(network: str, classes: int = 10) -> nn.Sequential:
    """Return a network of `graphs.layers` as a module."""
    return nn.Sequential(OrderedDict((layer.name, _module(layer)) for layer in layers_of(network, classes)))


def _module(layer: Layer) -> nn.Module:
    if layer.kind == "linear":
        return nn.Linear(layer.before, layer.after)
    if layer.kind == "conv":
        return nn.Conv2d(layer.before, layer.after, layer.kernel, padding=layer.padding)
    if layer.kind == "pool":
        return nn.MaxPool2d(2)
    return nn.Flatten() if layer.kind == "flatten" else nn.ReLU()
