"""Evaluate graphs on NumPy as their definition: templates by `template_evaluator`, recurrences step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from einsmith.base.errors import IndexOutOfRange, ShapeError, VerifyError
from einsmith.ir.nodes import (
    Compute,
    Graph,
    Item,
    Piece,
    Recurrence,
    Tensor,
    postorder,
)
from einsmith.ir.printer import show
from einsmith.ir.recurrence.define import at_step, step_groups, step_parts
from einsmith.ir.template_evaluator import WIDE, evaluate_piece, evaluate_template, to_wide


def evaluate_recurrence(node: Recurrence, args: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return the members of a recurrence for its arguments, computed step by step."""
    members: tuple[np.ndarray, ...] = tuple(np.zeros(shape, WIDE[d.kind]) for d, shape in node.results)
    tensors = [*args, *members]
    groups = step_groups(node)
    steps = {j: step_parts(node, j) for j in range(len(members))}
    with np.errstate(all="ignore"):
        for j, member in enumerate(node.members):
            for part in member.parts:
                if isinstance(part, Piece) and part not in steps[j]:
                    evaluate_piece(part, part.domain, tensors, [members[j]])
        for t in reversed(range(node.steps)) if node.reverse else range(node.steps):
            for group, cyclic in groups:
                if not cyclic:
                    (j,) = group
                    for part in steps[j]:
                        evaluate_piece(part, (1, *part.domain[1:]), tensors, [members[j]], t)
                    continue
                step = at_step(node, group)
                known = {x: (a,) for x, a in zip((*step.args, *step.wholes), tensors, strict=True)}
                for j, value in zip(
                    group, _evaluate_tensors(step.tensors, {**known, step.step: (np.asarray(t),)}), strict=True
                ):
                    members[j][node.origins[j] + t] = value
    return members


def _evaluate_tensors(roots: Sequence[Tensor], known: dict[Any, tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    """Return the values of tensors in terms of tensors with known values; all values computed are added to `known`."""
    for node in postorder(roots):
        if node not in known:
            known[node] = _evaluate_node(node, known)
    return [known[t][0] for t in roots]


def _evaluate_node(node: Any, known: dict[Any, tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    if isinstance(node, Item):
        return (known[node.node][node.member],)
    args = [known[a][0] for a in node.args]
    if isinstance(node, Recurrence):
        return evaluate_recurrence(node, args)
    if not isinstance(node, Compute):
        raise VerifyError(f"{show(node)} is not an input of the graph")
    return evaluate_template(node.template, args)


def evaluate(graph: Graph, inputs: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the outputs of a graph and the values of its updates. Raises IndexOutOfRange where a check fails."""
    if len(inputs) != len(graph.inputs):
        raise ShapeError(f"the graph takes {len(graph.inputs)} inputs, got {len(inputs)}")
    values: dict[Any, tuple[np.ndarray, ...]] = {
        leaf: (to_wide(x, leaf.dtype, leaf.shape, f"input {n}"),)
        for n, (leaf, x) in enumerate(zip(graph.inputs, inputs, strict=True))
    }
    failures = iter(graph.checks)
    checks = {t for t, _ in graph.checks}
    for node in postorder(graph.roots):  # the checks come first among the roots
        if node not in values:
            values[node] = _evaluate_node(node, values)
        if checks and node in checks:
            checks.discard(node)
            if not checks:
                for t, message in failures:
                    if values[t][0].any():
                        raise IndexOutOfRange(message)
    return [values[t][0] for t in graph.outputs], [values[t][0] for _, t in graph.updates]
