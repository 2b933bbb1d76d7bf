"""Strip-mine time: compute the tensors that recurrences leave outside of their loops in loops over chunks of steps.

before: P[t, b, n] = sum[i](x[t, b, i]*W[n, i])  (1024 steps);  D[n, i] = sum[t, b](g[t, b, n]*x[t, b, i])
after:  loop of 128 steps over the chunks x[8*c .. 8*c+7] of 8: P[8*c+s, b, n] = sum[i](x[8*c+s, b, i]*W[n, i]);
        D[n, i] = 0;  loop over chunks: D[n, i] = D[n, i] + sum[s, b](g[8*c+s, b, n]*x[8*c+s, b, i])

No kernel then depends on the number of steps, so a new sequence length compiles nothing. If a recurrence ends at a
limit (`live_steps`), the loops over chunks that compute only its operands end there too, and so do totals whose terms
are zero beyond it: products with those zeros are skipped. Tensors that read each other at the same step share one loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.ir.loop import InputPlace, LoopSegment, LoweredLoop
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Item,
    Leaf,
    Piece,
    Read,
    Reduce,
    Template,
    Tensor,
    apply,
    is_zero,
    leaf,
    postorder,
    read_whole,
    size,
    template,
)
from einsmith.ir.rebuild import exchanged, template_over, with_args
from einsmith.ir.recurrence.pieces import restated
from einsmith.ir.rewrite.simplify import canonical, simplified
from einsmith.ir.views import is_view, storage
from einsmith.passes.recurrence.early_exit import TripCount, count_steps, find_ends
from einsmith.passes.recurrence.lower_loops import add_argument, bind_inputs, separate_outputs
from einsmith.passes.recurrence.time_axis import Along, count_points, count_rows, find_along

Passes = Callable[[Graph], Graph]
ReadTensor = Callable[[Compute, Read | None, int | None], Tensor]
"""Returns the tensor of a chunk that a node's read accesses, at the given distance from the step (None: the whole
tensor); without a read, the tensor of step numbers."""

_CHUNK_STEPS = 8
"""Steps of a chunk, doubled until they are enough rows."""
_MIN_ROWS = 512
"""Fewest rows of a chunk's products that run at full speed. A total is read and written once per chunk, so it must be
at most twice as large as the operands of a chunk of its terms."""
_MIN_ROWS_WITH_LIMIT = 256
"""Fewest rows of a chunk's products in loops whose chunks beyond a limit are skipped."""


def strip_mine(graph: Graph, passes: Passes) -> Graph:
    """Return the graph with tensors along time computed in loops over chunks; `passes` are run on the graph of a
    chunk."""
    order = list(postorder(graph.roots))
    loops = [n for n in order if isinstance(n, LoweredLoop)]
    return _StripMining(graph, order, loops, passes).rewrite() if loops else graph


@dataclass
class _Time:
    """The time of recurrences of one length, and the nodes along it that are computed in chunks."""

    steps: int
    along: dict[Compute, Along]  # nodes along it, views included
    chunk: int = 0  # steps of a chunk; 0: no chunks
    ends: dict[Compute, TripCount | None] = field(default_factory=dict)  # of the nodes computed in chunks
    filled: set[Compute] = field(default_factory=set)  # nodes that are read beyond their end, where they are zero

    def count_elements_read(self, n: Compute) -> int:
        """Return the number of elements that a node reads at one step."""
        return sum(size(n.args[slot].shape[1:]) for slot in self.along[n].slots) or 1


class _StripMining:
    """Rewriter of a graph that computes nodes along the time of its loops in loops over chunks."""

    def __init__(self, graph: Graph, order: list[Any], loops: list[LoweredLoop], passes: Passes):
        self.graph, self.order, self.loops, self.passes = graph, order, loops, passes
        self.time: dict[Compute, _Time] = {}
        self.mostly_zero: dict[Tensor, int] = {}  # tensors that `_is_mostly_zero` accepts -> steps of a chunk
        before_loops = set(postorder(t for t, _ in graph.checks)) | {storage(t) for _, t in graph.updates}
        before_loops |= set(postorder(n.args[s.stop] for n in loops for s in n.segments if s.stop is not None))
        for steps in sorted(set(map(count_steps, loops)), reverse=True):
            excluded = {n for n in order if n in before_loops or n in self.time}
            time = _Time(
                steps, _find_nodes_along(order, [n for n in loops if count_steps(n) == steps], steps, excluded)
            )
            self._choose_chunk(time)
            if time.chunk and time.steps % time.chunk == 0:
                self.mostly_zero |= {
                    t: time.chunk
                    for n in loops
                    if count_steps(n) == steps
                    for t in _find_stepwise_arguments(n)
                    if _is_mostly_zero(t)
                }
            self.time |= {n: time for n in time.along if time.chunk and (n in time.ends or is_view(n.template))}
        self.levels = self._compute_levels()

    # -- which nodes are computed in chunks, and up to which step

    def _choose_chunk(self, time: _Time) -> None:
        """Decide the number of steps of a chunk and the nodes that are computed in chunks."""
        computed_nodes = [n for n in time.along if not is_view(n.template)]
        if not computed_nodes or time.steps < 2:
            return
        largest = max(computed_nodes, key=lambda n: count_points(n.template))
        rows = max(count_rows(largest.template, time.along[largest]), 1)
        min_steps = max(
            (size(n.shape) / (2 * time.count_elements_read(n)) for n in computed_nodes if time.along[n].total),
            default=0.0,
        )
        all_chunked = time.steps % _CHUNK_STEPS == 0 and _CHUNK_STEPS * rows >= _MIN_ROWS and _CHUNK_STEPS >= min_steps
        steps = _CHUNK_STEPS
        while not all_chunked and (steps * rows < _MIN_ROWS_WITH_LIMIT or steps < min_steps):
            steps *= 2
        if all_chunked or steps < time.steps:
            node_ends, time.filled = find_ends(self.order, self.graph.roots, time.along, time.steps)
            time.ends = {n: end for n, end in node_ends.items() if all_chunked or end is not None}
            time.chunk = steps if time.ends else 0

    # -- which nodes share a loop

    def _find_loop_operand(self, n: Compute, slot: int) -> Compute | None:
        """Return the node whose result `n` reads at the same step, directly or through views, in a slot; None if one
        loop cannot compute both."""
        time = self.time[n]
        a: Tensor = n.args[slot]
        if time.along[n].slots[slot] != {0}:
            return None
        while isinstance(a, Compute) and is_view(a.template):
            if self.time.get(a) is not time or time.along[a].slots != {0: {0}}:
                return None
            a = a.args[0]
        if not isinstance(a, Compute) or self.time.get(a) is not time or time.along[a].total:
            return None
        return a if time.ends[a] == time.ends.get(n, time.ends[a]) else None

    def _is_chunked(self, n: Any) -> bool:
        return n in self.time and n in self.time[n].ends

    def _compute_levels(self) -> dict[Any, int]:
        """Return, for each node, the number of loops over chunks that have to be complete before it. Nodes of one level
        depend on each other only at the same step."""
        levels: dict[Any, int] = {}
        for n in self.order:
            own = 0
            for slot, a in enumerate(n.args):
                s = storage(a)
                shares_loop = (
                    self._is_chunked(n)
                    and slot in self.time[n].along[n].slots
                    and self._find_loop_operand(n, slot) is not None
                )
                own = max(own, levels[s] + (self._is_chunked(s) and not shares_loop))
            levels[n] = own
        return levels

    def _loop_key(self, n: Compute) -> tuple:
        time = self.time[n]
        return self.levels[n], time.steps, time.ends[n]

    # -- the new graph

    def rewrite(self) -> Graph:
        """Return the graph with the nodes of each level in loops over chunks."""
        groups: dict[tuple, list[Compute]] = defaultdict(list)
        stored: set[Tensor] = {storage(t) for t in self.graph.roots}
        for n in self.order:
            inside = self._is_chunked(n)
            if inside:
                groups[self._loop_key(n)].append(n)
            elif isinstance(n, Compute) and is_view(n.template):
                continue
            for slot, a in enumerate(n.args):
                operand = self._find_loop_operand(n, slot) if inside and slot in self.time[n].along[n].slots else None
                if operand is None or self._loop_key(operand) != self._loop_key(n):
                    stored.add(storage(a))
        if not groups:
            return self.graph
        memo: dict[Any, Any] = {}
        for n in sorted(self.order, key=lambda n: (self.levels[n], self._is_chunked(n))):
            if not self._is_chunked(n):
                args = tuple(memo[a] for a in n.args)  # None: read only by its own loop, through views
                memo[n] = with_args(n, args) if args and None not in args else None if args else n
                if n in self.mostly_zero:
                    memo[n] = _build_zero_loop(memo[n], self.mostly_zero[n])
            elif n not in memo:
                group = groups[self._loop_key(n)]
                memo |= self._build_loop(group, [m for m in group if m in stored], memo)
        return exchanged(self.graph, memo)

    def _build_loop(self, group: list[Compute], stored: list[Compute], memo: Mapping[Any, Any]) -> dict[Any, Any]:
        """Compute the nodes of a group in one loop over chunks; return the tensor that replaces each stored node."""
        time = self.time[group[0]]
        end = time.ends[group[0]]
        args: list[Tensor] = []
        segments = []
        whole, rest = divmod(time.steps, time.chunk)
        for first, count, rows in ((0, whole, time.chunk), (whole * time.chunk, 1, rest)):
            if rows:
                segment = self._build_segment(group, stored, first, count, rows, args, memo)
                if end is not None:
                    segment = segment.replaced(stop=add_argument(args, _count_chunks(end, first, rows, memo)))
                segments.append(segment)
        results, initial, replacements = [], [], {}
        for j, n in enumerate(stored):
            total = time.along[n].total
            shape = (1, *n.shape) if total else n.shape
            results.append((n.dtype, shape))
            if total or n in time.filled:
                initial.append((j, template(shape, (), Const(0, n.dtype)), ()))
        loop = LoweredLoop(False, tuple(results), tuple(initial), tuple(segments), tuple(args))
        for j, n in enumerate(stored):
            replacements[n] = _read_total(Item(loop, j)) if time.along[n].total else Item(loop, j)
        return dict.fromkeys(group) | replacements

    def _build_segment(
        self,
        group: list[Compute],
        stored: list[Compute],
        first: int,
        count: int,
        rows: int,
        args: list[Tensor],
        memo: Mapping[Any, Any],
    ) -> LoopSegment:
        """Return the segment of `count` chunks of `rows` steps from step `first` on. New arguments are appended to
        `args`, the loop's arguments."""
        time = self.time[group[0]]
        inputs: dict[InputPlace, Leaf] = {}
        computed: dict[Tensor, Tensor] = {}

        def read_tensor(n: Compute, e: Read | None, distance: int | None) -> Tensor:
            """Return the tensor of a chunk that a read accesses; without a read, the tensor of step numbers."""
            if e is None:
                return add_input(Compute(template((time.steps,), (), Axis(0)), ()), 0)
            if distance is not None and self._find_loop_operand(n, e.slot) in computed:
                return restrict_view(n.args[e.slot])
            return add_input(memo[n.args[e.slot]], distance)

        def add_input(t: Tensor, distance: int | None) -> Tensor:
            """Return the chunk's input for a tensor, read at a distance from the step (None: as a whole)."""
            k = add_argument(args, t)
            place = (
                InputPlace("argument", k)
                if distance is None
                else InputPlace("argument", k, distance + first, rows, rows)
            )
            if place not in inputs:
                inputs[place] = leaf(t.shape if distance is None else (rows, *t.shape[1:]), t.dtype)
            return inputs[place]

        def restrict_view(a: Tensor) -> Tensor:
            """Return a node of the loop, or a view of one, restricted to the chunk's steps."""
            if a not in computed:
                assert isinstance(a, Compute)
                computed[a] = _restrict_to_rows(a, time.along[a], rows, lambda n, e, distance: restrict_view(n.args[0]))
            return computed[a]

        for n in group:
            computed[n] = _restrict_to_rows(n, time.along[n], rows, read_tensor)
        updates = []
        for j, n in enumerate(stored):
            if time.along[n].total:
                place = InputPlace("member", j, 0, 0)
                inputs[place] = leaf(n.shape, n.dtype)
                updates.append((inputs[place], _add(inputs[place], computed[n])))
        members = [j for j, n in enumerate(stored) if not time.along[n].total]
        roots = tuple(computed[stored[j]] for j in members)
        body = self.passes(Graph(tuple(inputs.values()), roots, tuple(updates), ()))
        return LoopSegment(count, *bind_inputs(body, inputs), tuple((j, first) for j in members), rows=rows)


def _find_stepwise_arguments(loop: LoweredLoop) -> Iterator[Tensor]:
    """Yield the arguments that a loop reads at every step."""
    for s in loop.segments:
        yield from (loop.args[p.number] for p in s.places if p.kind == "argument" and p.first is not None)


def _is_mostly_zero(t: Tensor) -> bool:
    """Return whether a tensor is zero at all steps except some, each of which is a separate piece, such as the
    cotangent of a last state."""
    if not isinstance(t, Compute) or t.template.is_scatter or len(t.template.dtypes) != 1:
        return False
    others = [p for p in t.template.parts if isinstance(p, Piece) and not is_zero(p.body)]
    return len(others) < len(t.template.parts) and all(p.extents[0] == 1 for p in others)


def _build_zero_loop(t: Compute, steps: int) -> Item:
    """Return a tensor that `_is_mostly_zero` accepts as a loop that stores zeros in chunks of `steps` steps and then
    the other pieces."""
    zeros = Compute(template((steps, *t.shape[1:]), (), Const(0, t.dtype)), ())
    segments = [LoopSegment(t.shape[0] // steps, Graph((), (zeros,), (), ()), (), ((0, 0),), rows=steps)]
    for p in t.template.parts:
        if isinstance(p, Piece) and not is_zero(p.body):
            inputs = tuple(leaf(a.shape, a.dtype) for a in t.args)
            part = Piece((0, *p.offset[1:]), p.step, p.extents, p.body)
            value = simplified(Template((1, *t.shape[1:]), t.template.params, (part,)), inputs)
            places = tuple(InputPlace("argument", inputs.index(x)) for x in value.args)
            body = Graph(value.args, separate_outputs([value]), (), ())
            segments.append(LoopSegment(1, body, places, ((0, p.offset[0]),), rows=1))
    return Item(LoweredLoop(False, ((t.dtype, t.shape),), (), tuple(segments), t.args), 0)


def _find_nodes_along(
    order: Sequence[Any], loops: Sequence[LoweredLoop], steps: int, excluded: set
) -> dict[Compute, Along]:
    """Return the nodes that go along the time of the given loops, each with how it does. Such a node reads a member of
    a loop at every step, or computes an operand that a loop reads at every step, or is connected to such a node by
    operands along time."""
    candidates = {
        n: at
        for n in order
        if isinstance(n, Compute) and n not in excluded and (at := find_along(n.template, steps)) is not None
    }
    connected: set[Any] = {n for n in order if isinstance(n, Item) and n.node in loops}
    connected |= {t for n in loops for t in _find_stepwise_arguments(n) if t in candidates}
    count = -1
    while count != (count := len(connected)):
        for n, at in candidates.items():
            if any(n.args[slot] in connected for slot in at.slots):
                connected.add(n)
        for n, at in reversed(candidates.items()):
            if n in connected:
                connected |= {a for slot in at.slots if (a := n.args[slot]) in candidates and not candidates[a].total}
    return {n: at for n, at in candidates.items() if n in connected}


def _restrict_to_rows(n: Compute, at: Along, rows: int, read_tensor: ReadTensor) -> Compute:
    """Return the node restricted to `rows` steps."""
    tensors: list[Tensor] = []
    parts = []
    for p, axis, reads, uses_position in zip(n.template.parts, at.axes, at.reads, at.uses_position, strict=True):
        assert isinstance(p, Piece)
        axes: dict[Expr, Expr] = {}
        if uses_position:
            tensors.append(read_tensor(n, None, None))
            axes[Axis(axis)] = Read(len(tensors) - 1, (Axis(axis),), dt.i32)

        def read(e: Read, new: Read, axis=axis, reads=reads) -> Read:
            t = read_tensor(n, e, reads.get(e))
            if t not in tensors:
                tensors.append(t)
            return Read(tensors.index(t), (Axis(axis), *new.args[1:]) if e in reads else new.args, e.dtype)

        rank, extents, body = len(p.extents), p.extents, restated(p, axes, read).body
        if isinstance(body, Reduce):
            sums = tuple(rows if rank + k == axis else m for k, m in enumerate(body.extents))
            body = Reduce(body.combiner, sums, body.bodies)
        if axis < rank:
            extents = (rows, *extents[1:])
        parts.append(Piece(p.offset, p.step, extents, body))
    shape = n.shape if at.total else (rows, *n.shape[1:])
    return simplified(template_over(tensors, shape, parts), tensors)


def _add(a: Tensor, b: Tensor) -> Compute:
    body = apply("add", read_whole(0, a.shape, a.dtype), read_whole(1, a.shape, a.dtype))
    return Compute(template(a.shape, [(a.dtype, a.shape)] * 2, body), (a, b))


def _read_total(t: Tensor) -> Compute:
    """Return a total read from its single slot."""
    index = (Const(0, dt.i32), *(Axis(d) for d in range(len(t.shape) - 1)))
    return Compute(template(t.shape[1:], [(t.dtype, t.shape)], Read(0, index, t.dtype)), (t,))


def _count_chunks(end: TripCount, first: int, rows: int, memo: Mapping[Any, Any]) -> Compute:
    """Return the number of chunks of `rows` steps, from step `first` on, that begin before an end."""
    assert isinstance(end.limit, Compute)
    limit = with_args(end.limit, tuple(memo[a] for a in end.limit.args))
    stop = apply("add", Read(0, (), dt.i64), Const(end.after, dt.i64))
    if end.least > 0:
        stop = apply("max", stop, Const(end.least, dt.i64))
    chunks = apply("floordiv", apply("add", stop, Const(rows - 1 - first, dt.i64)), Const(rows, dt.i64))
    return canonical(template((), [(dt.i64, ())], chunks), (limit,))
