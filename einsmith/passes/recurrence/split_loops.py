"""Split loops over threads: each thread runs all steps for its part of an axis along which a loop carries nothing.

before: loop of 512 steps: S1[h, k, v] = f(S0[h, k, v], K[h, k], V[h, v])      of 8 heads
after:  loop of 512 steps: S1[h, k, v] = f(S0[h, k, v], K[h, k], V[h, v])      of heads 0 .. 3, and at the same time
        loop of 512 steps: S1[h, k, v] = f(S0[h, k, v], K[h, k], V[h, v])      of heads 4 .. 7

A thread otherwise waits for the others after every kernel of every step. The parts of a tensor are contiguous: all
dimensions before the axis have one position. The body of the parts is one graph, so their kernels are compiled once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from einsmith.cost.facts import CPU, Target
from einsmith.ir.loop import LoopSegment, LoweredLoop
from einsmith.ir.nodes import Axis, Compute, Graph, Item, Leaf, Piece, Read, Template, Tensor, leaf, nbytes, postorder
from einsmith.ir.rebuild import replace, with_args
from einsmith.passes.context import PassContext
from einsmith.schedule.planner import MIN_STEPS_TO_HOIST, fuse
from einsmith.schedule.residency import memory_seconds, plan_seconds

SPINNING_LAUNCH_SECONDS = 4e-7
"""Most seconds of a launch on threads that still spin after the last one, as in a loop of short steps (measured: two
cores of Zen 5, steps of the gated delta rule and of Mamba's scan)."""
NEIGHBOUR_SECONDS, NEIGHBOUR_BYTES = 1e-7, 4096
"""Seconds of a step in which cores take lines from each other that they prefetch, or both write to, where parts of a
result are smaller than the bytes (measured: 512 steps of parts of 1 KiB took 89 us instead of 42, on two cores of Zen
5)."""
MAX_RATIO = 0.9
"""Largest predicted time of parts, as a fraction of that of the whole loop: the parts of an LSTM's step that were
predicted to take 0.94 and 0.87 of its time took 1.08 and 1.0 (batch 64, 256 units, two cores of Zen 5)."""

Dimensions = dict[Tensor, int | None]
"""The dimension along which each tensor of a step is divided; None: it is the same for all parts."""


def split_loops(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with those loops split over the threads that are predicted to be faster so, loops within the
    steps of loops included. Graphs with limits stay: the positions of a part are not those of the whole tensor."""
    is_host = context.target.backend == CPU and context.target.cores > 1
    if not is_host or not context.can_price or context.limits or context.is_step:
        return graph
    return _split_graph(graph, context)


def _split_graph(graph: Graph, context: PassContext) -> Graph:
    return replace(graph, lambda node: _split_loop(node, context) if isinstance(node, LoweredLoop) else None)


def _split_loop(loop: LoweredLoop, context: PassContext) -> LoweredLoop:
    segments: list[LoopSegment] = []
    for s in loop.segments:
        parts = split_segment(s, context.target.cores, context)
        segments += parts if len(parts) > 1 else [s.replaced(body=_split_graph(s.body, context))]
    return loop.replaced(segments=tuple(segments))


def split_segment(segment: LoopSegment, threads: int, context: PassContext) -> list[LoopSegment]:
    """Return the parts of a segment; the segment itself if it cannot be split, or is predicted to be faster as it
    is."""
    s = segment
    axis = None if s.steps < MIN_STEPS_TO_HOIST or s.rows else find_dimensions(s)
    if axis is None:
        return [s]
    extent, dims = axis
    count = next((n for n in range(threads, 1, -1) if extent % n == 0), 1)
    if count == 1:
        return [s]
    body = _restrict(s.body, dims, count)

    spinning = min(context.target.launch_seconds, SPINNING_LAUNCH_SECONDS)
    whole = dataclasses.replace(context.target, launch_seconds=spinning)

    def price(g: Graph, target: Target) -> float:
        seconds = plan_seconds(fuse(g, target=target, on_lines=False, cost=context.cost), context.cost, target)
        return max(seconds, memory_seconds(_count_streamed_bytes(s, whole), whole))

    are_near = any(nbytes(t) < NEIGHBOUR_BYTES for t in body.outputs)
    seconds = price(body, one_of_cores(whole, count)) + are_near * NEIGHBOUR_SECONDS
    if seconds >= MAX_RATIO * price(s.body, whole):
        return [s]
    return [s.replaced(body=body, part=(n, count)) for n in range(count)]


def _count_streamed_bytes(s: LoopSegment, target: Target) -> int:
    """Return the bytes that each step moves from memory or to it: those of tensors over all steps, if these do not stay
    in the last level of cache. Lines of a result are fetched before they are written."""
    read = [x for x, p in zip(s.body.inputs, s.places, strict=True) if p.first is not None and p.stride]
    streamed = sum(map(nbytes, read)) + 2 * sum(map(nbytes, s.body.outputs))
    return streamed if s.steps * streamed > target.kept * target.last_level else 0


def one_of_cores(target: Target, count: int) -> Target:
    """Return a target of one core, with its share of L3 and of the memory's bandwidth while `count` cores work."""
    l1, l2, l3 = target.bytes_per_second
    return dataclasses.replace(
        target,
        cores=1,
        l3=target.l3 // count,
        bytes_per_second=(l1, l2, min(l3, target.l3_bandwidth / count)),
        memory_bandwidth=target.memory_bandwidth / count,
    )


def find_dimensions(segment: LoopSegment) -> tuple[int, Dimensions] | None:
    """Return (extent, dimension of each tensor) of an axis along which a segment's step computes every element from
    those at the same position only; None if there is none."""
    body = segment.body
    results = [*body.outputs, *(t for _, t in body.updates)]
    leading = [next((d for d, n in enumerate(t.shape) if n > 1), None) for t in results]
    if not results or body.checks or None in leading:
        return None
    extents = {t.shape[d] for t, d in zip(results, leading, strict=True) if d is not None}
    if len(extents) > 1:
        return None
    (extent,) = extents
    dims: Dimensions = dict(zip(results, leading, strict=True))
    for node in reversed(list(postorder(results))):
        d = dims.get(node)
        if isinstance(node, Item):
            if dims.setdefault(node.node, d) != d:
                return None
        elif isinstance(node, Compute):
            if d is None or not _propagate(node, d, dims):
                return None
        elif not isinstance(node, Leaf):
            return None
    carried = {x for x, p in zip(body.inputs, segment.places, strict=True) if p.kind == "member"}
    carried |= {x for x, _ in body.updates}
    for x in body.inputs:
        d = dims.get(x)
        if d is None:
            if x in carried and x in dims:
                return None
        elif x.shape[d] != extent or any(n > 1 for n in x.shape[:d]):
            return None
    return extent, dims


def _propagate(node: Compute, d: int, dims: Dimensions) -> bool:
    """Note along which dimensions the arguments of a node are divided whose results are divided along dimension d;
    return whether it computes every element from those at the same position."""
    t = node.template
    for p in t.parts:
        if not isinstance(p, Piece) or (p.offset[d], p.step[d], p.extents[d]) != (0, 1, t.shape[d]):
            return False
        own = Axis(d)
        for e in postorder(p.bodies):
            if not isinstance(e, Read):
                if own in e.args:
                    return False
                continue
            along = [k for k, i in enumerate(e.index) if i is own]
            if len(along) > 1 or any(own in postorder([i]) for k, i in enumerate(e.index) if k not in along):
                return False
            a, k = node.args[e.slot], along[0] if along else None
            if dims.setdefault(a, k) != k or (k is not None and a.shape[k] != t.shape[d]):
                return False
        if any(b is own for b in p.bodies):
            return False
    return True


def _restrict(body: Graph, dims: Mapping[Tensor, int | None], count: int) -> Graph:
    """Return the graph of a step on one of `count` parts of the axis."""

    def part(shape: Sequence[int], d: int | None) -> tuple[int, ...]:
        return tuple(n // count if k == d else n for k, n in enumerate(shape))

    memo: dict = {x: leaf(part(x.shape, d), x.dtype) if (d := dims.get(x)) is not None else x for x in body.inputs}
    for node in postorder(body.roots, memo):
        args = tuple(memo[a] for a in node.args)
        if not isinstance(node, Compute):
            memo[node] = with_args(node, args)
            continue
        t, d = node.template, dims[node]
        params = tuple((a.dtype, part(a.shape, dims.get(a))) for a in node.args)
        pieces = tuple(Piece(p.offset, p.step, part(p.extents, d), p.body) for p in t.parts if isinstance(p, Piece))
        memo[node] = Compute(Template(part(t.shape, d), params, pieces), args)
    updates = tuple((memo[x], memo[t]) for x, t in body.updates)
    return Graph(tuple(memo[x] for x in body.inputs), tuple(memo[t] for t in body.outputs), updates, ())
