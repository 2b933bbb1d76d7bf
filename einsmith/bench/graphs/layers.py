"""Describe networks that are a sequence of layers, and write their graphs without PyTorch."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from einsmith.bench.graphs.graph import GraphNode, NetworkGraph, ValueRef


class Layer(NamedTuple):
    """A layer of a network.

    kind: `linear` or `conv` (of images, stride 1) with a weight and a bias, `relu`, `pool` (the maximum of windows of
    2 by 2) or `flatten`. kernel: extent of a filter. padding: zeros on each side of an image.
    """

    kind: str
    name: str
    before: int = 0
    after: int = 0
    kernel: int = 1
    padding: int = 0

    @property
    def weights(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the layer's parameters by name."""
        if not self.after:
            return {}
        filters = (self.kernel, self.kernel) if self.kind == "conv" else ()
        return {f"{self.name}.weight": (self.after, self.before, *filters), f"{self.name}.bias": (self.after,)}


def _dense(*widths: int) -> tuple[Layer, ...]:
    """Return linear layers fc1, fc2, ... with a ReLU between each two."""
    out = [Layer("flatten", "flatten")]
    for n, (before, after) in enumerate(zip(widths, widths[1:], strict=False), 1):
        out += [Layer("linear", f"fc{n}", before, after), Layer("relu", f"relu_fc{n}")]
    return tuple(out[:-1])


LAYERS: dict[str, tuple[Layer, ...]] = {
    "mlp3": _dense(784, 512, 256, 10),
    "lenet5": (
        Layer("conv", "conv1", 1, 6, 5, 2), Layer("relu", "relu1"), Layer("pool", "pool1"),
        Layer("conv", "conv2", 6, 16, 5), Layer("relu", "relu2"), Layer("pool", "pool2"), *_dense(400, 120, 84, 10),
    ),
}  # fmt: skip
"""Layers of each network by its name in `einsmith.models`."""


def layers_of(network: str, classes: int = 10) -> tuple[Layer, ...]:
    """Return the layers of a network of LAYERS with so many classes."""
    *first, last = LAYERS[network]
    return (*first, last._replace(after=classes))


def write_graph(layers: tuple[Layer, ...], sample: tuple[int, ...], batch: int) -> NetworkGraph:
    """Return the graph of a sequence of layers on `batch` samples of a shape, with the cross entropy as its loss: the
    operations that `torch.export` finds in the same network."""
    shapes: dict[str, tuple[int, ...]] = {n: s for layer in layers for n, s in layer.weights.items()}
    parameters = tuple(shapes)
    shapes |= {"x": (batch, *sample), "y": (batch,)}
    nodes: list[GraphNode] = []
    value, shape = ValueRef("x"), shapes["x"]
    for layer in layers:
        op, more, shape = _operation(layer, shape)
        weights = tuple(ValueRef(n) for n in layer.weights)
        nodes.append(GraphNode(layer.name, op, (value, *weights, *more), shape))
        value = ValueRef(layer.name)
    nodes.append(GraphNode("loss", "cross_entropy_loss", (value, ValueRef("y")), ()))
    return NetworkGraph(tuple((n, n) for n in shapes), tuple(nodes), "loss", parameters, shapes)


def _operation(layer: Layer, shape: tuple[int, ...]) -> tuple[str, tuple[Any, ...], tuple[int, ...]]:
    """Return a layer's operation, its arguments after the weights, and the shape of its result."""
    if layer.kind == "linear":
        return "linear", (), (*shape[:-1], layer.after)
    if layer.kind == "conv":
        image = (n + 2 * layer.padding - layer.kernel + 1 for n in shape[2:])
        return "conv2d", ((1, 1), (layer.padding,) * 2, (1, 1), 1), (shape[0], layer.after, *image)
    if layer.kind == "pool":
        return "max_pool2d", ((2, 2), (2, 2), (0, 0), (1, 1)), (*shape[:2], *(n // 2 for n in shape[2:]))
    if layer.kind == "flatten":
        return "flatten.using_ints", (1,), (shape[0], math.prod(shape[1:]))
    return "relu", (), shape
