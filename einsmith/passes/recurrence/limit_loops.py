"""End loops at the limits of their members, and pass limits on to the graphs of their steps.

before: loop of 80 steps of h[u+1] = f(h[u]), of which only positions below n[] matter (`schedule.limited_positions`)
after:  the loop ends before step n[] - 1; n[] is an input of the step's graph, and its kernels end at n[] as well
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.ends import guards_around
from einsmith.ir.loop import InputPlace, LoopSegment, LoweredLoop
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Graph,
    Item,
    Leaf,
    Piece,
    Read,
    Reduce,
    Template,
    Tensor,
    apply,
    cast,
    leaf,
    postorder,
    template,
)
from einsmith.ir.rebuild import map_templates, rebuild, replace
from einsmith.ir.rewrite.simplify import canonical
from einsmith.passes.recurrence.lower_loops import add_argument
from einsmith.passes.sized_template import put_first
from einsmith.schedule.limited_positions import Limited, RowLimit, find_limited, limit_of_step, with_members


def limit_loops(graph: Graph, limits: Sequence[RowLimit]) -> Graph:
    """Return the graph in which loops end at limits, and the steps of loops have them as inputs."""
    loops = [n for n in postorder(graph.roots) if isinstance(n, LoweredLoop)]
    if not limits or not loops:
        return graph
    limits = with_members(graph, limits)
    limited = find_limited(graph, limits)
    memo: dict = {}
    held = [x for x in limits if x.leaf in graph.inputs]
    for loop in loops:
        args = rebuild(loop.args, lambda n: None, memo)
        segments = tuple(_limit_segment(loop, s, args, limits, limited, held) for s in loop.segments)
        memo[loop] = loop.replaced(segments=segments, args=tuple(args))
    return replace(graph, lambda n: None, memo)


def _limit_segment(
    loop: LoweredLoop,
    segment: LoopSegment,
    args: list[Tensor],
    limits: Sequence[RowLimit],
    limited: Sequence[Limited],
    held: Sequence[RowLimit],
) -> LoopSegment:
    """Return a segment that ends at limits. args: the arguments of the loop, to which those that it needs are added;
    held: the limits that a tensor holds."""
    body, inputs, places = segment.body, list(segment.body.inputs), list(segment.places)
    inner, outer = [], dict[Tensor, Tensor]()  # limits of the step, and what holds them outside of it
    for limit, positions in zip(limits, limited, strict=True):
        holder = limit.leaf
        is_there = holder in args and InputPlace("argument", args.index(holder)) in places
        if limit in held and (is_there or _has_extent(body, limit.extent)):
            place = InputPlace("argument", add_argument(args, limit.leaf))
            if not is_there:
                places.append(place)
                inputs.append(leaf((), limit.leaf.dtype))
            holder = inputs[places.index(place)]
            outer[holder] = limit.leaf
        inner.append(limit_of_step(loop, segment, limit, positions, holder))
    body = limit_loops(Graph(tuple(inputs), body.outputs, body.updates, body.checks, body.gradients), inner)

    def move_out(node: Any) -> Leaf | None:
        """Return the input that holds where a loop in the step ends; None for other nodes (a `replace` rule)."""
        is_number = isinstance(node, Compute) and not node.shape and node.dtype is dt.i64
        if not is_number or not node.args or not outer.keys() >= {*node.args} or node in body.outputs:
            return None
        end = Compute(node.template, tuple(outer[x] for x in node.args))
        places.append(InputPlace("argument", add_argument(args, end)))
        inputs.append(leaf((), dt.i64))
        return inputs[-1]

    body = replace(replace(body, move_out), lambda node: map_templates(node, _end_sums))
    body = Graph(tuple(inputs), body.outputs, body.updates, body.checks, body.gradients)
    stop = segment.stop
    if stop is None and (end := _find_end(loop, segment, limits, limited, held)) is not None:
        stop = add_argument(args, end)
    return segment.replaced(body=body, places=tuple(places), stop=stop)


def _end_sums(t: Template) -> Template:
    """Return a template whose sums have an axis that ends at a number ahead of the others. The first one may be time,
    of which a step has a few positions and no such end."""
    parts = []
    for p in t.parts:
        if isinstance(p, Piece) and isinstance(p.body, Reduce) and p.body.combiner == "sum":
            rank, (first, *others) = len(p.extents), p.body.bodies
            of_others = [{c for c, _ in guards_around(b, 0.0)} for b in others]
            guards = [c for c, _ in guards_around(first, 0.0) if all(c in known for known in of_others)]
            ends = [
                c.args[0].position - rank
                for c in guards
                if isinstance(c, Apply) and c.fn == "lt" and isinstance(c.args[0], Axis)
                if isinstance(c.args[1], Read) and not c.args[1].index and c.args[0].position >= rank
            ]
            if ends and 0 not in ends:
                p = Piece(p.offset, p.step, p.extents, put_first(p.body, rank, ends))
        parts.append(p)
    return Template(t.shape, t.params, tuple(parts)) if tuple(parts) != t.parts else t


def _has_extent(graph: Graph, extent: int) -> bool:
    """Return whether a graph of a step has a tensor of this extent."""
    for node in postorder(graph.roots):
        if isinstance(node, LoweredLoop):
            shapes = [s for _, s in node.results]
            if any(extent in s for s in shapes) or any(_has_extent(x.body, extent) for x in node.segments):
                return True
        elif isinstance(node, Compute) and extent in node.template.shape:
            return True
    return False


def _find_end(
    loop: LoweredLoop,
    segment: LoopSegment,
    limits: Sequence[RowLimit],
    limited: Sequence[Limited],
    held: Sequence[RowLimit],
) -> Compute | None:
    """Return the number of the first step whose results do not matter, nor those of later ones; None where no limit
    tells it."""
    if segment.body.updates or not segment.targets:
        return None
    for holder in held:
        near = [(x.offset, p) for x, p in zip(limits, limited, strict=True) if x.origin is holder.origin]
        ends = [[more - at for more, p in near if (Item(loop, j), 0) in p] for j, at in segment.targets]
        if all(ends):
            more = max(map(min, ends)) - holder.offset
            number = holder.leaf.dtype
            end = apply("add", cast(Read(0, (), number), dt.i64), Const(more, dt.i64))
            if segment.rows > 1:
                end = apply("add", end, Const(segment.rows - 1, dt.i64))
                end = apply("floordiv", end, Const(segment.rows, dt.i64))
            return canonical(template((), [(number, ())], end), (holder.leaf,))
    return None
