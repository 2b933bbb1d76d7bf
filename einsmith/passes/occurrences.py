"""Find which kinds of expressions and nodes occur in a graph: a pass is left out where nothing occurs that it rewrites.

Kinds of templates:
    pieces           a tensor is assembled from several pieces, or scattered to
    scatter          a scatter
    reduction        a reduction
    positions        a reduction that gives positions (argmax, argmin)
    i64              a reduction in int64
    data index       an index that is read from a tensor
    data bound       a comparison of an axis with an integer that is read from a tensor
    shifted index    an index that is not one of the axes
    joint index      an index of several axes
    condition        a comparison of integers, such as of an axis with a number
    function         an elementwise tensor with a function that is not cheap (`available_expressions.CHEAP_FUNCTIONS`)
    selection        a function that clamps are made of, in a tensor that is not elementwise
                     (`store_post_activation.CLAMP_FUNCTIONS`)
Kinds of graphs:
    reductions       several reductions
    elementwise      an elementwise tensor that another tensor reads
    length           an integer that is an input of the graph
    recurrence       a recurrence
    loop             a lowered recurrence
"""

from __future__ import annotations

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.linear import linear
from einsmith.ir.analysis.lines import COMPARISONS
from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.loop import LoweredLoop
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Expr,
    Graph,
    Leaf,
    Read,
    Recurrence,
    Reduce,
    Scatter,
    Template,
    axes_of,
    has_read,
    postorder,
)
from einsmith.passes.algebra.available_expressions import CHEAP_FUNCTIONS
from einsmith.passes.algebra.store_post_activation import CLAMP_FUNCTIONS


def occurrences(graph: Graph) -> frozenset[str]:
    """Return the kinds of expressions and nodes that occur in a graph, in words of the module's docstring."""
    kinds = set[str]()
    reductions = 0
    for node in postorder(graph.roots):
        if any(isinstance(a, Compute) and pointwise_body(a.template) is not None for a in node.args):
            kinds.add("elementwise")
        if isinstance(node, Compute):
            own = kinds_of(node.template)
            kinds |= own
            reductions += own >= {"reduction"}
        elif isinstance(node, Recurrence):
            kinds.add("recurrence")
        elif isinstance(node, LoweredLoop):
            kinds.add("loop")
        elif isinstance(node, Leaf) and node.dtype.is_int and not node.shape:
            kinds.add("length")
    if reductions > 1:
        kinds.add("reductions")
    return frozenset(kinds)


def kinds_of(t: Template) -> frozenset[str]:
    """Return the kinds of expressions that occur in a template, and "reduction" if it has one."""
    return t.memo("kinds", _find_kinds)


def _find_kinds(t: Template) -> frozenset[str]:
    kinds = set[str]()
    if len(t.parts) > 1 or t.is_scatter:
        kinds.add("pieces")
    is_elementwise = pointwise_body(t) is not None
    for part in t.parts:
        indices: list[Expr] = []
        if isinstance(part, Scatter):
            kinds.add("scatter")
            indices += part.index
        elif isinstance(part.body, Reduce):
            kinds.add("reduction")
            if part.body.combiner.startswith("arg"):
                kinds.add("positions")
            if dt.i64 in t.dtypes:
                kinds.add("i64")
        for e in postorder((*part.bodies, *indices)):
            if isinstance(e, Read):
                indices += e.index
            elif isinstance(e, Apply) and e.fn in COMPARISONS and e.args[0].dtype.is_int:
                kinds.add("condition")
                sides = linear(e.args[0]) - linear(e.args[1])
                if sides.coef and any(map(has_read, sides.atoms)):
                    kinds.add("data bound")
            elif isinstance(e, Apply) and is_elementwise and e.dtype.is_float and e.fn not in CHEAP_FUNCTIONS:
                kinds.add("function")
            if isinstance(e, Apply) and not is_elementwise and e.fn in CLAMP_FUNCTIONS:
                kinds.add("selection")
        for i in indices:
            if has_read(i):
                kinds.add("data index")
            if not isinstance(i, Axis):
                kinds.add("shifted index")
            if len(axes_of(i)) > 1:
                kinds.add("joint index")
    return frozenset(kinds)
