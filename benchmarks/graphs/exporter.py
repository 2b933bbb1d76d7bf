"""Write a network's graph of PyTorch's operations as a pickle: python -m benchmarks.graphs.exporter resnet18-b4

What is exported is the training forward and its loss, or the output in evaluation (resnet18-b4-inference), before
anything is decomposed: a convolution, a batch norm, an attention is one operation, which each library then has in its
own best form.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

import torch

from benchmarks.graphs.graph import GraphNode, NetworkGraph, ValueRef
from einsmith.bench.in_torch import in_torch
from einsmith.bench.torch_steps import TorchWithLoss


class TorchOutput(torch.nn.Module):
    """A network in evaluation, under the name that it has in `TorchWithLoss`."""

    def __init__(self, problem: Any):
        super().__init__()
        self.network = in_torch(problem.make_network())
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)


def export(module: torch.nn.Module, *given: torch.Tensor) -> NetworkGraph:
    """Return the graph of a module of x, or of x and y, whose parameters and buffers have the names of the network's
    state; in evaluation no parameter is trained."""
    exported = torch.export.export(module, given)
    signature = exported.graph_signature
    state = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    users = list(signature.user_inputs)
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
    parameters = [n.removeprefix("network.") for n, _ in module.named_parameters() if module.training]
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
    """Return an argument without anything of PyTorch."""
    if isinstance(a, torch.fx.Node):
        return ValueRef(a.name)
    if isinstance(a, (list, tuple)):
        return tuple(_plain(x) for x in a)
    if a is None or isinstance(a, (bool, int, float, str)):
        return a
    return str(a)


def main(name: str) -> None:
    """Write the graph of a problem."""
    from benchmarks.models import named

    problem: Any = named(name)
    x, y = (torch.from_numpy(a) for a in problem.inputs_and_targets())
    graph = export(TorchWithLoss(problem), x, y) if problem.training else export(TorchOutput(problem), x)
    sys.stdout.buffer.write(pickle.dumps(graph))


if __name__ == "__main__":
    main(sys.argv[1])
