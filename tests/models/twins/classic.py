"""Define networks that are a sequence of layers in PyTorch: the perceptron and LeNet-5."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def sequence(network: str, classes: int = 10) -> nn.Sequential:
    """Return a network with the names of `einsmith.models`."""
    layers: dict[str, nn.Module] = {}
    widths = (784, 512, 256, classes)
    if network == "lenet5":
        layers |= {"conv1": nn.Conv2d(1, 6, 5, padding=2), "relu1": nn.ReLU(), "pool1": nn.MaxPool2d(2)}
        layers |= {"conv2": nn.Conv2d(6, 16, 5), "relu2": nn.ReLU(), "pool2": nn.MaxPool2d(2)}
        widths = (400, 120, 84, classes)
    layers["flatten"] = nn.Flatten()
    for n, (before, after) in enumerate(zip(widths, widths[1:], strict=False), 1):
        layers |= {f"fc{n}": nn.Linear(before, after), f"relu_fc{n}": nn.ReLU()}
    del layers["relu_fc3"]
    return nn.Sequential(OrderedDict(layers))
