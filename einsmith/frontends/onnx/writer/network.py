"""Write the tensors of a trace as nodes: calls by the names of operators and functions, all else as formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from einsmith.base.errors import ArgumentError
from einsmith.frontends.onnx.writer.formulas import write_template
from einsmith.frontends.onnx.writer.loops import write_recurrence
from einsmith.frontends.onnx.writer.onnx_graph import GraphWriter
from einsmith.frontends.onnx.writer.operators import NamedCall
from einsmith.ir.nodes import Compute, Item, Recurrence, Tensor


def write_tensors(
    graph: GraphWriter, leaves: Mapping[Any, str], roots: Sequence[Tensor], calls: Mapping[Tensor, NamedCall]
) -> list[str]:
    """Write tensors and return their names.

    Args:
        graph: the graph that takes the nodes
        leaves: names of the leaves, or other known tensors, that the tensors read
        roots: the tensors
        calls: the tensors that are results of calls which operators or functions express
    """
    names: dict[Any, list[str]] = {x: [name] for x, name in leaves.items()}
    under_way: set[Any] = set()
    as_formula: set[Any] = set()
    stack: list[Any] = list(roots)[::-1]
    while stack:
        node = stack[-1]
        if node in names:
            stack.pop()
            continue
        call = None if node in as_formula else calls.get(node)
        args = node.args if call is None else tuple(x for x in call.operands if x is not None)
        pending = [a for a in args if a not in names]
        if call is not None and any(a in under_way for a in pending):
            as_formula.add(node)  # the call's operand is computed from its result, of which it is another form
            continue
        under_way.add(node)
        if pending:
            stack += pending[::-1]
            continue
        if call is not None:
            written = call.write(graph, *("" if x is None else names[x][0] for x in call.operands))
            if not written:  # the operator set lacks the operator
                as_formula.add(node)
                under_way.discard(node)
                continue
            written = (written,) if isinstance(written, str) else written
            names |= {x: [name] for x, name in zip(call.results, written, strict=True) if x not in names}
        else:
            names[node] = _write(graph, node, [names[a] for a in args])
        under_way.discard(node)
        stack.pop()
    return [names[t][0] for t in roots]


def _write(graph: GraphWriter, node: Any, names_of_args: list[list[str]]) -> list[str]:
    """Write a node without a name in ONNX and return the names of its results. given: those of its arguments."""
    if isinstance(node, Item):
        return [names_of_args[0][node.member]]
    args = [names[0] for names in names_of_args]
    if isinstance(node, Compute):
        return write_template(graph, node.template, args)
    if isinstance(node, Recurrence):
        return write_recurrence(graph, node, args, lambda g, leaves, roots: write_tensors(g, leaves, roots, {}))
    raise ArgumentError(
        f"ONNX cannot express {type(node).__name__}; export a network that is evaluated in one process, without a group"
    )
