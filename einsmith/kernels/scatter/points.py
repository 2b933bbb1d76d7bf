"""Find the destinations of a Scatter's points, and emit the loops that add the points."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from contextlib import ExitStack
from functools import lru_cache, partial
from itertools import product

from einsmith.base import dtypes as dt
from einsmith.codegen.loopnest.address import BufferMemory, address
from einsmith.codegen.loopnest.walk import part_bounds, tile_count
from einsmith.codegen.ssa import SSAValue
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.functions import COMBINING
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Scatter, has_read
from einsmith.ir.rebuild import rebuild
from einsmith.kernels.emit import boxes
from einsmith.kernels.emit.loops import Bounds, Ramps, emit_vector_tiles, find_guard_bounds
from einsmith.kernels.emit.vector import VectorEmitter
from einsmith.schedule.kernel import Kernel


def scatter_of(kernel: Kernel) -> Scatter:
    """Return the scatter of a kernel, the last part of its root."""
    part = kernel.root.parts[-1]
    assert isinstance(part, Scatter)
    return part


def owned_axes(s: Scatter) -> dict[int, int]:
    """Return the axes that alone determine (one-to-one) the position along an output dimension, with that dimension."""
    out: dict[int, int] = {}
    for d, e in enumerate(s.index):
        terms = list(linear(e).terms)
        if len(terms) == 1 and isinstance(terms[0], Axis) and s.extents[terms[0].position] > 1:
            out.setdefault(terms[0].position, d)
    return out


def renumber_parts(kernel: Kernel) -> tuple[list[Expr], int]:
    """Return (output indices and body of the scatter with kernel-wide slots, number of the output's buffer)."""
    s = scatter_of(kernel)
    exprs = boxes.renumber(kernel, kernel.stages[0], [*s.index, s.body], {})
    out = kernel.stages[0].outputs[0]
    assert out is not None
    return exprs, out


MAX_UNROLLED_POINTS = 8
"""Most points of the innermost axes that are unrolled into one iteration of the loops."""


@lru_cache(maxsize=512)
def terms_of(kernel: Kernel) -> tuple[int, tuple[tuple[LinearForm, Expr], ...]]:
    """Return (number of outer axes with loops, (output address, body) of every point of the axes inside of them).

    The inner axes have few points and determine no output dimension. They are unrolled, so that subexpressions common
    to their points are computed once."""
    s = scatter_of(kernel)
    exprs, out = renumber_parts(kernel)
    owned, count, loops = owned_axes(s), 1, len(s.extents)
    while loops and loops - 1 not in owned and 0 < count * s.extents[loops - 1] <= MAX_UNROLLED_POINTS:
        loops -= 1
        count *= s.extents[loops]
    terms = []
    for place in product(*(range(n) for n in s.extents[loops:])):
        *index, body = rebuild(exprs, partial(_fold_at, dict(enumerate(place, loops))))
        terms.append((address(index, kernel.buffers[out].strides), body))
    return loops, tuple(terms)


_COMPARISONS = {"lt": operator.lt, "le": operator.le, "eq": operator.eq, "ne": operator.ne}


def _fold_at(place: Mapping[int, int], e: Expr) -> Expr | None:
    """Rewrite one node for known positions of some axes (a `rebuild` rule): fold comparisons and `where`; else None."""
    if isinstance(e, Axis):
        return Const(place[e.position], dt.i32) if e.position in place else None
    values = [a.value for a in e.args if isinstance(a, Const)]
    if isinstance(e, Apply) and e.fn in _COMPARISONS and len(values) == 2:
        return Const(_COMPARISONS[e.fn](*values), dt.bool_)
    if isinstance(e, Apply) and e.fn == "where" and isinstance(e.args[0], Const):
        return e.args[1 if e.args[0].value else 2]
    return None


@lru_cache(maxsize=512)
def find_bounds(kernel: Kernel, along: int | None) -> Mapping[int, Bounds]:
    """Return the data-dependent bounds of the domain's axes, by axis, as far as they are known before the axis's loop.

    The loops are in the order of the axes, except that `along` is innermost."""
    s, out = scatter_of(kernel), dict[int, Bounds]()
    exprs, _ = renumber_parts(kernel)
    every = range(len(s.extents))
    for a in every:
        later = {b for b in every if b > a or b == along} if a != along else {a}
        bounds_before_loop = find_guard_bounds(
            exprs[-1], s.neutral, a, s.extents, [b.size for b in kernel.buffers]
        ).without(later)
        if any(map(has_read, (*bounds_before_loop.low, *bounds_before_loop.high))):
            out[a] = bounds_before_loop
    return out


def combine_at(em: VectorEmitter, fn: str, target: BufferMemory, flat: LinearForm, value: SSAValue) -> None:
    """Emit `target[flat] = fn(target[flat], value)`; the lanes are contiguous elements.

    The load is neither hoisted nor shared, because later points may add to the same element."""
    b, part = em.b, em.split(flat)
    assert part is not None and part.first is not None
    lanes, mask, at = 0, None, em.total(part, part.first)
    if part.pattern is not None:
        lanes, mask, value = em.lanes, em.lane_mask(), em.splat(value)
    old = b.load(target.pointer, at, target.elem, lanes, mask)
    b.store(b.op(fn, old, value), target.pointer, at, mask)


def add_points(em: VectorEmitter, kernel: Kernel, along: int | None, axis: int | None, tasks: int) -> int:
    """Emit the loops that add the terms of every point; return the number of tasks.

    Args:
        em: The emitter.
        kernel: The kernel.
        along: Vectorised axis, whose loop is innermost (None: scalar code); the other axes keep their order.
        axis: Axis that is divided among the tasks (None: one task).
        tasks: About how many tasks there shall be.
    """
    b, (loops, terms), bounds_by_axis = em.b, terms_of(kernel), find_bounds(kernel, along)
    target, fn = em.memory(renumber_parts(kernel)[1]), COMBINING[scatter_of(kernel).combiner]
    parts = 1 if axis is None else tile_count(em.extents[axis], tasks, em.lanes if axis == along else 1)
    part = b.task if parts > 1 else None

    def emit_terms() -> None:
        for flat, body in terms:
            combine_at(em, fn, target, flat, em.emit(body))

    with ExitStack() as stack:
        for a in range(loops):
            if a != along:
                ends = part_bounds(b, em.extents[a], part if a == axis else None, parts)
                if a in bounds_by_axis:
                    ends = bounds_by_axis[a].emit_range(em, *ends)
                em.bind(a, stack.enter_context(b.loop(*ends)).var)
        if along is None:
            emit_terms()
            return parts
        n, number = em.extents[along], part if along == axis else None

        def emit(ramps: Ramps) -> None:
            assert along is not None
            for at, active in ramps:
                em.bind(along, at)
                em.mask = active
                emit_terms()
            em.mask = None

        ends_along = None
        if along in bounds_by_axis:
            ends_along = bounds_by_axis[along].emit_range(em, *part_bounds(b, n, number, parts, em.lanes, rest=True))
        emit_vector_tiles(em, n, 1, emit, number, parts, ends_along)
    return parts
