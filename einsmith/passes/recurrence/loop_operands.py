"""Find the operands of a loop that its steps may compute instead of loading them.

Loading costs more than computing where an operand is larger than its own operands, or is a cheap function of tensors
that the steps read in any case: a backward pass that reads S and `p[t, k] = S[t, k]*f[t]`, a member of the forward
pass, needs to load only S and f.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from einsmith.cost.facts import Target
from einsmith.cost.roofline import launch_overhead
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.analysis.reads import has_data_index
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Expr,
    Graph,
    Item,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Template,
    Tensor,
    axes_of,
    has_read,
    nbytes,
    postorder,
    size,
)
from einsmith.ir.rebuild import prune_args, substitute
from einsmith.ir.recurrence.pieces import map_piece
from einsmith.ir.rewrite.simplify import simplified
from einsmith.passes.algebra.available_expressions import CHEAP_FUNCTIONS
from einsmith.passes.recurrence.accumulators import find_positions_read
from einsmith.passes.recurrence.copy_propagation import forward_copies
from einsmith.passes.recurrence.split_segments import MAX_POINTS_PER_ELEMENT

MANY_STEPS = 512
"""Steps of a long recurrence."""
_MIN_REPEATS = 8
"""Fewest points for each value of a function that is more than an instruction, in an expression that is computed again:
a value is then a small part of the points' work."""


class StepOperands:
    """The operands of a graph's recurrences. users: the nodes that read each tensor."""

    def __init__(self, graph: Graph, users: Mapping[Tensor, Sequence[Tensor]]):
        self.users, self.roots = users, set(graph.roots)
        self.positions = find_positions_read(graph)

    def find_definition(self, a: Tensor, node: Recurrence) -> Compute | None:
        """Return the definition by which a step may compute an operand of a recurrence; None if there is none.

        It is the operand's own template, that of the tensor of which the operand is a view, or a cheap function of
        stored members of another recurrence.
        """
        if isinstance(a, Item):
            again = self._find_function(a) if isinstance(a.node, Recurrence) and a.node is not node else None
        else:
            again = a if isinstance(a, Compute) else None
            owner: Tensor = a
            while again is not None and (viewed := self._find_viewed(again, owner)) is not None:
                again, owner = viewed
        if again is None or again.template.is_scatter or len(again.template.dtypes) != 1:
            return None
        return None if has_data_index(again.template) else again

    def _find_function(self, a: Item) -> Compute | None:
        """Return a member of a recurrence as a cheap function of other members whose steps are all stored anyway; None
        if it is no such function."""
        n = a.node
        items = tuple(Item(n, j) for j in range(len(n.members)))
        again = prune_args(n.members[a.member], (*n.args, *items))
        copied = forward_copies(again)
        again = copied if isinstance(copied, Compute) else again
        own = [x for x in again.args if isinstance(x, Item) and x.node is n]
        if any(x is a or len(self.positions[n][x.member]) < n.steps for x in own):
            return None
        return again if _is_cheap(again.template) else None

    def _find_viewed(self, a: Compute, owner: Tensor) -> tuple[Compute, Tensor] | None:
        """Return (`a` computed from the operands of the tensor it views, that tensor); None where this is impossible.

        `a` must be a view, such as a reshape into segments of time, and the only reader of the viewed tensor. owner:
        the tensor of the graph that `a` computes.
        """
        part = a.template.parts[0]
        if len(a.template.parts) > 1 or not isinstance(part, Piece) or not isinstance(part.body, Read):
            return None
        index, x = part.body.index, a.args[part.body.slot]
        if not isinstance(x, Compute) or x.template.is_scatter or x in self.roots or self.users[x] != [owner]:
            return None
        if part.extents != a.shape or len(x.template.dtypes) > 1 or any(map(has_read, index)):
            return None
        plain = {
            d: i.position
            for d, i in enumerate(index)
            if isinstance(i, Axis) and a.shape[i.position] == x.shape[d]
            if not any(i.position in axes_of(other) for k, other in enumerate(index) if k != d)
        }
        new = []
        for p in x.template.parts:
            assert isinstance(p, Piece)
            offset, step, extents = [0] * len(a.shape), [1] * len(a.shape), list(a.shape)
            for d, span in enumerate(zip(p.offset, p.step, p.extents, strict=True)):
                if span == (0, 1, x.shape[d]):
                    continue
                if d not in plain:
                    return None
                offset[plain[d]], step[plain[d]], extents[plain[d]] = span
            moves: dict[int, Expr] = dict(enumerate(index))
            moves |= {len(x.shape) + r: Axis(len(a.shape) + r) for r in range(len(p.domain) - len(x.shape))}
            new.append(_substitute(Piece(tuple(offset), tuple(step), tuple(extents), p.body), moves))
        return simplified(Template(a.shape, x.template.params, tuple(new)), x.args), x


def is_large(step_bytes: int, target: Target) -> bool:
    """Return whether a tensor of `step_bytes` per step exceeds L2 after MANY_STEPS steps and takes longer to load than
    a launch takes to start.

    The actual number of steps is ignored, so that programs of all lengths have the same kernels.
    """
    least = launch_overhead(1, target) * target.core_bandwidth
    return step_bytes >= least and not target.fits_l2(step_bytes * MANY_STEPS)


def leaves_last_level(step_bytes: int, target: Target) -> bool:
    """Return whether a tensor of `step_bytes` per step exceeds the last-level cache after MANY_STEPS steps."""
    return step_bytes * MANY_STEPS > target.last_level


def is_larger_than_operands(a: Compute, dim: int, target: Target) -> bool:
    """Return whether a slice of a tensor at one position along `dim` has more elements than the operands' parts that it
    reads, and at most MAX_POINTS_PER_ELEMENT points to evaluate per element.

    Operands that do not depend on the position count as cached if they fit in L2.
    """
    t = a.template
    elements = size(t.shape) // t.shape[dim]
    points = sum(size(p.domain) for p in t.parts) // t.shape[dim]
    if points > MAX_POINTS_PER_ELEMENT * elements:
        return False
    operands = 0
    for s, x in enumerate(a.args):
        indices = [e.index for p in t.parts for e in postorder(p.bodies) if isinstance(e, Read) and e.slot == s]
        moving = {d for index in indices for d, i in enumerate(index) if dim in axes_of(i)}
        if len(moving) == 1:
            operands += size(x.shape) // min(x.shape[moving.pop()], t.shape[dim])
        elif moving or not target.fits_l2(nbytes(x)):
            return False
    return elements > operands


def count_elements(n: Compute, a: Tensor, axes: Sequence[int]) -> int:
    """Return the elements of an operand that a node reads at a position of time; 0 unless it reads it along time. axes:
    the axis of each part of the node that is time."""
    slots = {s for s, x in enumerate(n.args) if x is a}
    dims = {
        tuple(d for d, i in enumerate(e.index) if axis in axes_of(i))
        for p, axis in zip(n.template.parts, axes, strict=True)
        for e in postorder(p.bodies)
        if isinstance(e, Read) and e.slot in slots
    }
    (moving,) = dims if len(dims) == 1 else ((),)
    return size(a.shape) // a.shape[moving[0]] if len(moving) == 1 else 0


def is_read(e: Expr, slot: int) -> bool:
    """Return whether an expression is a read of a slot."""
    return isinstance(e, Read) and e.slot == slot


def find_position(reads: Sequence[Any], axis: Axis) -> tuple[int, int] | None:
    """Return (dimension, d) if all of the reads are at position axis + d of the dimension."""
    places: set[tuple[int, int]] | None = None
    for e in reads:
        forms = [linear(i) - LinearForm(0, {axis: 1}) for i in e.index]
        at = {(d, form.const) for d, form in enumerate(forms) if not form.terms}
        places = at if places is None else places & at
    return min(places) if places else None


def _substitute(p: Piece, axes: Mapping[int, Expr]) -> Piece:
    return map_piece(p, lambda b: substitute(b, axes))


def _is_cheap(t: Template) -> bool:
    """Return whether a template has no reduction, and functions that are more than an instruction only of expressions
    with few of its points."""
    for p in t.parts:
        if not isinstance(p, Piece) or isinstance(p.body, Reduce):
            return False
        for e in postorder(p.bodies):
            if isinstance(e, Apply) and e.dtype.is_float and e.fn not in CHEAP_FUNCTIONS:
                if size(p.domain[a] for a in axes_of(e)) * _MIN_REPEATS > size(p.domain):
                    return False
    return True
