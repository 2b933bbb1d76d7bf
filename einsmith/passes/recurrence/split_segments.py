"""Split the time of what reads a recurrence over segments into the segment and the step within it.

before: recurrence over segments of S[g, s, k];  R[t] = sum[k](S[t//8, t%8, k]*q[t, k])
after:  P[g, s] = sum[k](S[g, s, k]*q[8*g + s, k]);  R[t] = P[t//8, t%8]

`merge_loops` can then merge P into the recurrence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Item,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Template,
    apply,
    nbytes,
    postorder,
    size,
    template,
)
from einsmith.ir.rebuild import replace, substitute
from einsmith.ir.rewrite.inlining import inline_arguments
from einsmith.ir.rewrite.simplify import simplified
from einsmith.ir.views import own_index

MAX_POINTS_PER_ELEMENT = 2
"""Most points that a reader evaluates for each element that it reads of members in a step. A product that reads each
element more often takes all steps at once, to load its other operand once."""


def split_segments(graph: Graph, is_large: Callable[[int], bool]) -> Graph:
    """Return the graph with the time of readers of recurrences over segments split; `is_large(bytes of a step)` tells
    which members are worth it."""

    def rule(n: Any) -> Compute | None:
        if not isinstance(n, Compute) or n.template.is_scatter or len(n.template.parts) > 1:
            return None
        cuts = {a for a in n.args if isinstance(a, Compute) and _find_cut(a, is_large) is not None}
        whole = inline_arguments(n, cuts) if cuts else n
        cut = _find_cut(whole, is_large)
        return None if cut is None or _is_copy(n) else _split(whole, *cut)

    return replace(graph, rule)


def _is_copy(n: Compute) -> bool:
    """Return whether a tensor only has the elements of another one at other positions, each once."""
    body = n.template.parts[0].body
    return isinstance(body, Read) and size(n.shape) == size(n.args[body.slot].shape)


def _find_cut(n: Compute, is_large: Callable[[int], bool]) -> tuple[int, int] | None:
    """Return (axis, steps of a segment) of a tensor that reads a member of a recurrence over segments at each step.
    None for other tensors, and if it evaluates many more points than it reads elements."""
    t = n.template
    part = t.parts[0]
    if t.is_scatter or len(t.parts) > 1 or not isinstance(part, Piece) or len(t.dtypes) > 1:
        return None
    if isinstance(part.body, Reduce) and part.body.combiner not in ("sum", "max", "min"):
        return None
    cuts = set()
    elements = 0
    for e in dict.fromkeys(e for e in postorder(part.bodies) if isinstance(e, Read)):
        a = n.args[e.slot]
        if isinstance(a, Item) and isinstance(a.node, Recurrence):
            cut = _match_cut(e, a)
            if cut is None or not is_large(nbytes(a) // a.shape[0]):
                return None
            cuts.add(cut)
            elements += size(a.shape)
    if len(cuts) != 1:
        return None
    ((axis, steps),) = cuts
    rank = len(part.extents)
    is_whole = axis >= rank or (part.offset[axis], part.step[axis], part.extents[axis]) == (0, 1, t.shape[axis])
    is_cheap = size(part.domain) <= MAX_POINTS_PER_ELEMENT * elements
    return (axis, steps) if is_whole and is_cheap and part.domain[axis] % steps == 0 else None


def _match_cut(e: Read, a: Item) -> tuple[int, int] | None:
    """Return (axis, n) if a read is at position axis//n, axis%n of the first dimensions."""
    if len(e.index) < 2:
        return None
    segment, step = e.index[:2]
    if not (isinstance(segment, Apply) and isinstance(step, Apply)) or segment.args != step.args:
        return None
    by = segment.args[1]
    if (segment.fn, step.fn) != ("floordiv", "mod") or not isinstance(by, Const) or by.value != a.shape[1]:
        return None
    return (segment.args[0].position, a.shape[1]) if isinstance(segment.args[0], Axis) else None


def _split(n: Compute, axis: int, steps: int) -> Compute:
    """Return a tensor with an axis of its domain split."""
    part = n.template.parts[0]
    assert isinstance(part, Piece)
    rank, by = len(part.extents), Const(steps, dt.i32)
    axes: dict[int, Expr] = {k: Axis(k + 1) for k in range(axis + 1, len(part.domain))}
    axes[axis] = apply("add", apply("mul", Axis(axis), by), Axis(axis + 1))
    bodies = tuple(substitute(b, axes) for b in part.bodies)
    new: Expr | Reduce = bodies[0]

    def split(extents: tuple[int, ...], at: int) -> tuple[int, ...]:
        return (*extents[:at], extents[at] // steps, steps, *extents[at + 1 :])

    if isinstance(part.body, Reduce):
        extents = part.body.extents if axis < rank else split(part.body.extents, axis - rank)
        new = Reduce(part.body.combiner, extents, bodies)
    if axis >= rank:
        piece = Piece(part.offset, part.step, part.extents, new)
        return simplified(Template(n.shape, n.template.params, (piece,)), n.args)
    offset, step = ((*x[: axis + 1], y, *x[axis + 1 :]) for x, y in ((part.offset, 0), (part.step, 1)))
    piece = Piece(offset, step, split(part.extents, axis), new)
    whole = simplified(Template(split(n.shape, axis), n.template.params, (piece,)), n.args)
    index = [*own_index(n.shape)]
    index[axis : axis + 1] = [apply("floordiv", Axis(axis), by), apply("mod", Axis(axis), by)]
    return Compute(template(n.shape, [(n.dtype, whole.shape)], Read(0, tuple(index), n.dtype)), (whole,))
