"""Represent a network's forward and loss as a list of PyTorch's operations (`benchmarks.graphs.exporter`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class ValueRef(NamedTuple):
    """The value of a node or an input."""

    name: str


class GraphNode(NamedTuple):
    """An operation: PyTorch's name of it without "aten.", all its arguments in order, the shape of its result."""

    name: str
    op: str
    args: tuple[Any, ...]
    shape: tuple[int, ...]

    def refs(self) -> Iterator[str]:
        """Yield the names of the values that the operation reads."""
        yield from _refs(self.args)


def _refs(a: Any) -> Iterator[str]:
    if isinstance(a, ValueRef):
        yield a.name
    elif isinstance(a, tuple):
        for x in a:
            yield from _refs(x)


@dataclass(frozen=True)
class NetworkGraph:
    """A network's forward and loss.

    inputs: (name of the value, name in the state, or "x", "y"); result: the loss; parameters: those of the state that
    are trained; shapes: of the inputs by value.
    """

    inputs: tuple[tuple[str, str], ...]
    nodes: tuple[GraphNode, ...]
    result: str
    parameters: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]

    def users(self, name: str) -> list[tuple[GraphNode, int]]:
        """Return the nodes that read a value, each with the position of the argument."""
        return [(n, k) for n in self.nodes for k, a in enumerate(n.args) if name in _refs(a)]

    def flops(self) -> int:
        """Return the multiplications and additions of the products: forward, and a product of the same size for the
        gradient of each factor that depends on a parameter. Products with the zeros around an image count."""
        shapes = dict(self.shapes) | {n.name: n.shape for n in self.nodes}
        trained = {value for value, name in self.inputs if name in self.parameters}
        total = 0
        for node in self.nodes:
            if any(r in trained for r in node.refs()):
                trained.add(node.name)
            factors = [a.name for a in node.args[:3] if isinstance(a, ValueRef)]
            macs, of = _macs(node, [shapes[f] for f in factors])
            total += 2 * macs * (1 + sum(f in trained for f in (factors[k] for k in of)))
        return total


def _macs(node: GraphNode, shapes: list[tuple[int, ...]]) -> tuple[int, tuple[int, ...]]:
    """Return the multiply-adds of an operation, and which of its first arguments are the factors."""
    op, size = node.op.partition(".")[0], math.prod(node.shape)
    if op == "conv2d":
        return size * math.prod(shapes[1][1:]), (0, 1)
    if op == "conv_transpose2d":
        return math.prod(shapes[0]) * math.prod(shapes[1][1:]), (0, 1)
    if op in ("linear", "matmul"):
        return size * shapes[0][-1], (0, 1)
    if op == "addmm":
        return size * shapes[1][-1], (1, 2)
    if op == "scaled_dot_product_attention":
        pairs = math.prod(shapes[0][:-1]) * shapes[1][-2]
        return pairs * (shapes[0][-1] + shapes[2][-1]), (0, 1)  # each product has two factors
    return 0, ()
