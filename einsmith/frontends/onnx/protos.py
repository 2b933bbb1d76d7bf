"""Walk over and name the nodes of messages of ONNX. Imports the package `onnx`, or says how to install it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from einsmith.base.errors import DataError, escape_text

__all__ = ["DecodeError", "check_depth", "describe", "get_key", "onnx", "quote", "walk_nodes"]

try:
    import onnx
    import onnx.inliner
    import onnx.numpy_helper
    from google.protobuf.message import DecodeError  # the library below onnx
except ImportError as e:
    raise ImportError(
        "einsmith.frontends.onnx needs the package onnx, which is missing: pip install 'einsmith[onnx]'"
    ) from e

MAX_BODY_NESTING = 30
"""Most levels of bodies (of If, Loop and Scan) inside each other. The protobuf library reads 100 levels of messages, of
which a body takes three, and functions here recurse over bodies."""


def walk_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and those of all bodies in them, each node before the nodes of its own bodies."""
    yield from (node for node, _ in _walk_nested(nodes))


def _walk_nested(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Yield (node, number of bodies around it), each node followed by the nodes of its bodies."""
    stack = [iter(nodes)]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            continue
        yield node, len(stack) - 1
        bodies = [a.g.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
        if bodies:
            stack.append(chain.from_iterable(bodies))


def check_depth(model: onnx.ModelProto, what: str) -> None:
    """Raise DataError, naming a node, if bodies of the model or its functions are nested beyond MAX_BODY_NESTING."""
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        for node, depth in _walk_nested(nodes):
            if depth > MAX_BODY_NESTING:
                raise DataError(
                    f"{what} nests bodies of If, Loop and Scan more than {MAX_BODY_NESTING} deep, down to "
                    f"{describe(node)}; write the inner ones as operators in the graph around them"
                )


def get_key(node: onnx.NodeProto) -> str:
    """Return a node's operator as the table names it, with the domain if it is not the default one."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return f"{domain}.{node.op_type}" if domain else node.op_type


def describe(node: onnx.NodeProto) -> str:
    """Return a node's operator and name, or else its outputs, for messages."""
    return f"{escape_text(get_key(node))} {node.name or ', '.join(node.output)!r}"


def quote(e: Exception) -> str:
    """Return the message of an error of the library, which quotes names of the file."""
    return "\n".join(map(escape_text, str(e).splitlines()))
