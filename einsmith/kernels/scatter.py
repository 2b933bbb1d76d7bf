"""`out[index(i)] += body(i)` from an output of zeros, deterministically: contributions to an element are added in
row-major order of i, whatever the number of tasks.

Where an output dimension's index is a plain axis of its own (the embedding's width), tasks and lanes run along that
axis; otherwise each task owns a range of the output and adds what falls into it.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from einsmith.expr.kernel import Kernel
from einsmith.expr.nodes import Axis, Expr, Scatter, postorder
from einsmith.kernels import boxes as bx
from einsmith.kernels.boxes import Ramps
from einsmith.kernels.kernel import Cost, Launch, Lowered
from einsmith.kernels.pointwise import SMALL_SECONDS, TASK_SECONDS
from einsmith.kernels.vectorize import Emitter, Memory, flat_index
from einsmith.loops.nest import Builder, Value, elem_of
from einsmith.target.facts import Target


class ScatterConfig(NamedTuple):
    """axis: the domain's axis that tasks and lanes run along, or None; lanes; tasks."""

    axis: int | None
    lanes: int
    tasks: int


def free_axis(s: Scatter) -> tuple[int, int] | None:
    """(axis, output dimension) such that the dimension's index is that axis alone, the longest; None: no such."""
    best: tuple[int, int] | None = None
    for d, e in enumerate(s.index):
        if not isinstance(e, Axis):
            continue
        others = [x for k, x in enumerate(s.index) if k != d]
        if any(x is e for x in postorder(others)):
            continue
        if best is None or s.extents[e.position] > s.extents[best[0]]:
            best = (e.position, d)
    return best


class ScatterAdd:
    """A Scatter alone: without an epilogue."""

    name = "scatter"

    def match(self, kernel: Kernel) -> bool:
        return kernel.root.is_scatter and len(kernel.stages) == 1

    def configs(self, kernel: Kernel, target: Target) -> list[ScatterConfig]:
        s = kernel.root.parts[0]
        assert isinstance(s, Scatter)
        lanes = bx.lanes_of(kernel, target)
        tasks = dict.fromkeys((1, target.cores, 4 * target.cores))
        out = [ScatterConfig(None, 0, t) for t in tasks]
        found = free_axis(s)
        if found is not None:
            out += [ScatterConfig(found[0], lanes, t) for t in tasks]
        return out

    def cost(self, kernel: Kernel, config: ScatterConfig, target: Target) -> Cost:
        """Zeros written, then one load, add and store a point; every task of the plain form scans all points."""
        s = kernel.root.parts[0]
        assert isinstance(s, Scatter)
        full = bx.lanes_of(kernel, target)
        count, seconds = bx.operations((*s.index, s.body), target)
        points, size = prod(s.extents), prod(kernel.shape)
        cores = min(target.cores, config.tasks)
        rate = target.fma_per_second / full
        if config.axis is None:
            arithmetic = points * (count + 12) / rate + size / target.lanes() / rate / cores
            special = points * seconds
        else:
            extent = max(1, s.extents[config.axis])
            cores = max(1, min(cores, extent // config.lanes))
            vectors = points / extent * -(-extent // config.lanes)
            arithmetic = (vectors * (count + 6) + size / config.lanes) / rate / cores
            special = points * seconds / cores
        moved, footprint = bx.touched_bytes(kernel)
        memory = target.seconds_for_bytes(moved, footprint, cores)
        launch = config.tasks * TASK_SECONDS + (target.launch_seconds + SMALL_SECONDS if config.tasks > 1 else 0.0)
        return Cost(arithmetic, memory, special, launch)

    def lower(self, kernel: Kernel, config: ScatterConfig, target: Target) -> Lowered:
        s = kernel.root.parts[0]
        assert isinstance(s, Scatter)
        if prod(kernel.shape) == 0:
            return Lowered()
        b = bx.start(bx.function_name(self.name, kernel, config), kernel)
        if config.axis is None or prod(s.extents) == 0:
            tasks = _ranges(b, kernel, s, config)
        else:
            tasks = _along(b, kernel, s, config)
        return Lowered([Launch(b.finish(), tasks)])


def _parts(kernel: Kernel, s: Scatter) -> tuple[list[Expr], int]:
    """(output indices and body, for the whole kernel's slots; the output's buffer)."""
    exprs = bx.renumber(kernel, kernel.stages[0], [*s.index, s.body], {})
    out = kernel.stages[0].outputs[0]
    assert out is not None
    return exprs, out


def _emitter(b: Builder, kernel: Kernel, extents: tuple[int, ...], lanes: int) -> Emitter:
    em = Emitter(b, extents, lanes)
    for n, buffer in enumerate(kernel.buffers):
        em.place(n, Memory(b.buffers[n], buffer.dtype, (prod(buffer.shape),)))
    return em


def _add(em: Emitter, target: Memory, at: Value, value: Value) -> None:
    """`target[at] += value`, never moved nor shared: the same element may come again."""
    b, elem = em.b, elem_of(target.dtype)
    mask = em.lane_mask()
    lanes = em.lanes if value.type.lanes else 0
    b.store(b.add(b.load(target.ptr, at, elem, lanes, mask), value), target.ptr, at, mask)


def _along(b: Builder, kernel: Kernel, s: Scatter, config: ScatterConfig) -> int:
    """Tasks and lanes along an axis that is an output dimension of its own."""
    (*index, body), out = _parts(kernel, s)
    axis = config.axis
    assert axis is not None
    dim = next(d for d, e in enumerate(index) if e is Axis(axis))
    shape, extent = kernel.shape, s.extents[axis]
    stride = prod(shape[dim + 1 :])
    vector = stride == 1 and all(f.coefficient(Axis(axis)) in (0, 1) for f in bx.uses([body])[0])
    lanes = config.lanes if vector else 0
    unit = lanes or 1
    tiles = bx.tile_count(extent, config.tasks, unit)
    em = _emitter(b, kernel, s.extents, lanes)
    target = em.memory(out)
    size = bx.tile_size(extent, tiles, unit)
    # The output's positions along `dim` that no contribution reaches are the last task's to clear.
    lo = b.mul(b.task, b.const(size))
    last = b.op("eq", b.task, b.const(tiles - 1))
    hi = b.op("select", last, b.const(shape[dim]), b.add(lo, b.const(size)))
    zeros = _emitter(b, kernel, shape, 0)
    zero = zeros.const(0, elem_of(target.dtype))
    others = [d for d in range(len(shape)) if d != dim]
    with bx.rows(zeros, others, [shape[d] for d in others], b.task, 1), b.loop(lo, hi) as loop:
        zeros.bind(dim, loop.var)
        zeros.store(zero, target, flat_index([Axis(d) for d in range(len(shape))], shape))
    rest = [a for a in range(len(s.extents)) if a != axis]
    flat = flat_index(index, shape)

    def point() -> None:
        part = em.split(flat)
        assert part is not None
        value = em.emit(body)
        _add(em, target, em.total(part), em.splat(value) if part.pattern else value)

    def emit(ramps: Ramps) -> None:
        for at, active in ramps:
            em.bind(axis, at)
            em.mask = active
            point()
        em.mask = None

    with bx.rows(em, rest, [s.extents[a] for a in rest], b.task, 1):
        if lanes:
            bx.vector_tiles(em, extent, 1, emit, b.task, tiles)
        else:
            with b.loop(lo, b.op("min", hi, b.const(extent))) as loop:
                em.bind(axis, loop.var)
                point()
    return tiles


def _ranges(b: Builder, kernel: Kernel, s: Scatter, config: ScatterConfig) -> int:
    """Each task owns a range of the flat output and scans all points."""
    (*index, body), out = _parts(kernel, s)
    total = prod(kernel.shape)
    tasks = bx.tile_count(total, config.tasks, 1)
    em = _emitter(b, kernel, s.extents, 0)
    target = em.memory(out)
    size = bx.tile_size(total, tasks, 1)
    lo = b.mul(b.task, b.const(size))
    hi = b.op("min", b.add(lo, b.const(size)), b.const(total))
    with b.loop(lo, hi) as loop:
        b.store(b.const(0, elem_of(target.dtype)), target.ptr, loop.var)
    flat = flat_index(index, kernel.shape)
    with bx.rows(em, range(len(s.extents)), s.extents, b.task, 1):
        part = em.split(flat)
        assert part is not None
        at = em.total(part)
        if tasks == 1:
            _add(em, target, at, em.emit(body))
        else:
            mine = b.op("and", b.op("le", lo, at), b.op("lt", at, hi))
            with b.if_(mine):
                _add(em, target, at, em.emit(body))
    return tasks
