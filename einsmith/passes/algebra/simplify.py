"""Simplify every template of a graph.

before: T = X + 0;  Y = exp(T);  Z = exp(X)
after:  Y = exp(X);  Z is Y
"""

from __future__ import annotations

from einsmith.ir.analysis.pointwise import is_copy
from einsmith.ir.nodes import Compute, Graph
from einsmith.ir.rebuild import map_templates, replace, without_twins
from einsmith.ir.rewrite.simplify import simplify_template


def simplify(graph: Graph) -> Graph:
    """Return the graph with its templates simplified, unread arguments dropped and copies left out.

    Equal tensors become one by interning.
    """

    def rule(node):
        node = map_templates(node, without_twins)
        node = map_templates(node, simplify_template)
        return node.args[0] if isinstance(node, Compute) and is_copy(node.template) else node

    return replace(graph, rule)
