"""Compile the values of constants into a graph, before anything else is decided about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from einsmith.base.captured import FrozenArray
from einsmith.base.errors import IndexOutOfRange
from einsmith.base.numerics import Numerics
from einsmith.cost.facts import Target
from einsmith.driver import registry
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Graph, Leaf, Tensor, postorder
from einsmith.ir.origins import Origins
from einsmith.kernels.autoconfig import predicted
from einsmith.passes.algebra.constant_operands import constant_operands
from einsmith.passes.analysis.index_checks import index_checks, violation
from einsmith.passes.context import PassContext
from einsmith.passes.pipeline import CONSTANTS, left_out


def use_constants(
    graph: Graph,
    finite: Tensor | None,
    arrays: Mapping[Leaf, np.ndarray],
    threads: int,
    target: Target | None,
    numerics: Numerics,
    origins: Origins,
) -> tuple[Graph, Tensor | None, Mapping[Leaf, np.ndarray], Origins]:
    """Return the graph with the values of constants used, the output that `finite` is in it, the arrays of all its
    leaves that are bound, and origins that explain its indices by the graph as it was.

    Args:
        graph: the graph, with its gradients.
        finite: an output of the graph, or None.
        arrays: the arrays of leaves that are bound to memory; those of constants are of the type FrozenArray.
        threads: as in `Executable`.
        target: as in `Executable`.
        numerics: as in `Executable`.
        origins: the origins of the graph's leaves and indices.
    Raises:
        IndexOutOfRange: an index that a constant holds leaves its tensor.
    """
    values = {x: a.view(np.ndarray) for x, a in arrays.items() if isinstance(a, FrozenArray)}
    if not values or CONSTANTS in left_out():
        return graph, finite, arrays, origins
    _check_indices(graph, values, origins)
    target = (target or registry.target_of(None, threads)).for_numerics(numerics)
    used, more = constant_operands(graph, values, PassContext(target, predicted))
    if used is graph:
        return graph, finite, arrays, origins
    if finite is not None:
        finite = used.outputs[graph.outputs.index(finite)]
    return used, finite, {**arrays, **more}, replace(origins, differentiated=(*origins.differentiated, *graph.roots))


def _check_indices(graph: Graph, values: Mapping[Leaf, np.ndarray], origins: Origins) -> None:
    """Raise IndexOutOfRange for an index that depends on constants alone and leaves its tensor."""
    for count, message in dict((*index_checks(graph.roots), *graph.checks)).items():
        leaves = tuple(x for x in postorder([count]) if isinstance(x, Leaf))
        if leaves and all(x in values for x in leaves):
            (violations,), _ = evaluate(Graph(leaves, (count,), (), ()), [values[x] for x in leaves])
            if violations:
                raise IndexOutOfRange(violation(graph.roots, values, origins) or message)
