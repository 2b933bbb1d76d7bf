"""Take reductions of states into recurrences whose states the gradient recomputes.

before: recurrence of S[t+1, k, v] that saves every 32nd state;  o[t, v] = sum[k](S[t+1, k, v]*q[t, k])
after:  the same recurrence also has o[t, v] as a member

The gradient by q needs all states. Outside of the recurrence they would be kept from the forward pass on; within it
they are those that a segment recomputes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.ir import labels
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Item,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Tensor,
    postorder,
    size,
)
from einsmith.ir.rebuild import exchange
from einsmith.ir.recurrence.assembly import Assembly
from einsmith.ir.recurrence.slices import read_through, reads_data

_LEAST_RATIO = 2
"""Least ratio of the elements of states that a reduction reads in a step to its results: with fewer, what is stored for
all steps is hardly less."""
_MOST_RATIO = 2
"""Most ratio of the points that it evaluates to the elements of states: a product with weights, which has more, takes
all steps at once."""


def absorb_reductions(outputs: Sequence[Tensor], others: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the outputs, and other tensors that they depend on, with reductions of states as members of their
    recurrences."""
    roots = [*outputs, *others]
    while True:
        nodes = list(postorder(roots))
        saving = (n for n in nodes if isinstance(n, Recurrence) and 0 < n.options.checkpoint < n.steps)
        replaced: dict[Tensor, Tensor] = next(filter(None, (_absorb(n, nodes) for n in saving)), {})
        if not replaced:
            return roots[: len(outputs)], roots[len(outputs) :]
        labels.carry(replaced)
        roots = exchange(roots, replaced)


def _absorb(node: Recurrence, nodes: Sequence[Any]) -> dict[Tensor, Tensor]:
    """Return the replacements of a recurrence's members and of the reductions that it takes in."""
    items = {Item(node, j): j for j in range(len(node.members))}
    below: set[Any] = {node}
    readers: dict[Compute, Compute] = {}
    for n in nodes:
        if not below.isdisjoint(n.args):
            below.add(n)
            whole = read_through(n, items) if isinstance(n, Compute) else None
            if whole is not None and all(a in items or a not in below for a in whole.args):
                if _is_reduction_of_states(whole, node, items):
                    readers[n] = whole
    if not readers:
        return {}
    assembly = Assembly.of(node)
    numbers = {n: assembly.add_tensor(whole.template, whole.args, items).number for n, whole in readers.items()}
    new, at = assembly.build(node.steps, node.reverse, node.options)
    return {t: Item(new, at[n]) for t, n in (items | numbers).items()}


def _is_reduction_of_states(n: Compute, node: Recurrence, items: dict[Item, int]) -> bool:
    """Return whether a tensor is a reduction of the states of each step, to fewer elements."""
    t = n.template
    part = t.parts[0]
    if t.is_scatter or len(t.parts) > 1 or not isinstance(part, Piece) or len(t.dtypes) > 1 or not n.dtype.is_float:
        return False
    if not isinstance(part.body, Reduce) or part.extents != n.shape or n.shape[:1] != (node.steps,):
        return False
    states: set[Item] = set()
    for e in postorder(part.bodies):
        if not isinstance(e, Read):
            continue
        if reads_data(e):
            return False
        a = n.args[e.slot]
        if isinstance(a, Item) and a in items:
            at = linear(e.index[0]) - LinearForm(node.origins[items[a]], {Axis(0): 1})
            if at.terms or at.const:
                return False
            states.add(a)
    elements = sum(size(a.shape[1:]) for a in states) * node.steps
    return size(part.domain) <= _MOST_RATIO * elements and _LEAST_RATIO * size(n.shape) <= elements
