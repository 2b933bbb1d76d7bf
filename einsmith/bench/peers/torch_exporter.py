"""Print a network's graph of PyTorch's operations as JSON: python -m einsmith.bench.peers.torch_exporter resnet18-b4

What is exported is the training forward and its loss, before anything is decomposed: a convolution, a batch norm, an
attention is one operation, which each library then has in its own best form.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from einsmith.bench import twins
from einsmith.bench.graphs.graph import GraphNode, NetworkGraph, ValueRef
from einsmith.bench.networks import NetworkStep
from einsmith.bench.table import find
from einsmith.bench.twins.capsule import margin_loss

LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cross_entropy": lambda y, t: (
        F.cross_entropy(y.flatten(0, 1), t.flatten()) if y.ndim == 3 else F.cross_entropy(y, t)
    ),
    "margin_loss": margin_loss,
    "mse_loss": F.mse_loss,
}


class TorchWithLoss(torch.nn.Module):
    """The loss of a network's output, by the names of the network."""

    def __init__(self, network: torch.nn.Module, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]):
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.loss(self.network(x), y)


def trained(problem: NetworkStep) -> TorchWithLoss:
    """Return the twin of a problem's network with its loss."""
    return TorchWithLoss(problem.network_of(twins.get), LOSSES[problem.loss])


def export(module: TorchWithLoss, x: torch.Tensor, y: torch.Tensor) -> NetworkGraph:
    """Return the graph of `module(x, y)`, whose parameters and buffers have the names of the network's state."""
    exported = torch.export.export(module, (x, y))
    given = exported.graph_signature
    state = {**given.inputs_to_parameters, **given.inputs_to_buffers}
    users = list(given.user_inputs)
    inputs: list[tuple[str, str]] = []
    nodes = []
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            name = (
                ("x", "y")[users.index(node.name)] if node.name in users else state[node.name].removeprefix("network.")
            )
            inputs.append((node.name, name))
        elif node.op == "call_function":
            value = node.meta["val"]
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
            target = str(node.target).removeprefix("aten.").removesuffix(".default")
            schema = getattr(node.target, "_schema", None)
            args = _complete(node, schema) if schema is not None else tuple(node.args)
            nodes.append(GraphNode(node.name, target, tuple(_plain(a) for a in args), shape))
        elif node.op == "output":
            (result,) = node.args[0]
    shapes = {n.name: tuple(n.meta["val"].shape) for n in exported.graph.nodes if n.op == "placeholder"}
    parameters = [n.removeprefix("network.") for n, _ in module.named_parameters()]
    return NetworkGraph(tuple(inputs), tuple(nodes), result.name, tuple(parameters), shapes)


def _complete(node: torch.fx.Node, schema: Any) -> tuple:
    """Return all arguments in order, defaults where none was given, without those that say where a tensor lies."""
    out = []
    for n, argument in enumerate(schema.arguments):
        if n < len(node.args):
            out.append(node.args[n])
        elif argument.name in node.kwargs:
            out.append(node.kwargs[argument.name])
        else:
            out.append(argument.default_value)
    return tuple(out)


def _plain(a: Any) -> Any:
    """Return an argument as JSON can hold it."""
    if isinstance(a, torch.fx.Node):
        return ValueRef(a.name)
    if isinstance(a, (list, tuple)):
        return tuple(_plain(x) for x in a)
    if a is None or isinstance(a, (bool, int, float, str)):
        return a
    return str(a)


def main(name: str) -> None:
    """Print the graph of a problem."""
    problem = find(name)
    if not isinstance(problem, NetworkStep):
        raise SystemExit(f"{name} is no network that has a graph")
    x, y = (torch.from_numpy(a) for a in problem.inputs_and_targets())
    graph = export(trained(problem), x, y)
    json.dump(graph.to_json(), sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
