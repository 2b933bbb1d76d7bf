"""The loops around a kernel's boxes, and what a point of one stores: what the plain patterns share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod

from einsmith.expr.nodes import Read
from einsmith.kernels.emit.address import Memory
from einsmith.kernels.emit.boxes import Box
from einsmith.kernels.emit.vector import Lanes, VectorEmitter
from einsmith.loops.nest import Builder, Value
from einsmith.loops.shuffle import transpose
from einsmith.loops.walk import State, blocks, digits, in_groups, part_bounds, task_range, tile_count
from einsmith.plan.kernel import Kernel


def start(name: str, kernel: Kernel) -> Builder:
    """A builder with the kernel's buffers and its workspace."""
    return Builder(name, len(kernel.buffers) + 1)


def emitter(b: Builder, kernel: Kernel, extents: Sequence[int], lanes: int) -> VectorEmitter:
    """A VectorEmitter for a box of these extents, with the kernel's buffers in place, all of whose reads are flat."""
    em = VectorEmitter(b, extents, lanes)
    for n, buffer in enumerate(kernel.buffers):
        em.place(n, Memory(b.buffers[n], buffer.flat))
    return em


def deal(found: Sequence[Box], tasks: int, emit: Callable[[Box, int, int, bool], int]) -> int:
    """Shares tasks out to the boxes of a kernel by their work; returns how many tasks there are in the end.

    `emit(box, tasks, first, alone)` emits a box for about so many tasks from `first` on and returns how many it takes;
    `alone`: no task has to be told from those of other boxes. All boxes of a kernel of one task are that task's, so
    that no worker is asked for them.
    """
    first, total = 0, sum(x.points * x.reduced for x in found)
    alone = len(found) == 1 or tasks == 1
    for box in found:
        made = emit(box, max(1, round(tasks * box.points * box.reduced / max(1, total))), first, alone)
        first = max(first, made) if alone else first + made
    return first


def values_of(em: VectorEmitter, box: Box, root: Sequence[Value]) -> dict[int, Value]:
    """By slot, what a point stores of the root's results and those of the epilogue; the output axes are bound.

    All of it is evaluated before the first store: a buffer that is updated in place is read before it is written."""
    for slot, value in zip(box.results, root, strict=False):
        em.place(slot, value)
    for slot, expr in zip(box.results[box.members :], box.stages, strict=True):
        em.place(slot, em.emit(expr))
    values = {slot: em._slots[slot] for slot, _, _ in box.stores}
    return {slot: value for slot, value in values.items() if isinstance(value, Value)}


def store_point(em: VectorEmitter, box: Box, values: Mapping[int, Value]) -> None:
    """Stores what `values_of` gave, the output axes being bound where they were."""
    for slot, buffer, index in box.stores:
        em.store(values[slot], em.memory(buffer), index)


def row_tasks(extents: Sequence[int], tasks: int) -> int:
    """How many tasks `tasks` come to when whole rows of the leading axes are dealt out in equal runs."""
    rows = _leading(extents, tasks)[1]
    return -(-rows // -(-rows // tasks))


def _leading(extents: Sequence[int], tasks: int) -> tuple[int, int]:
    """How many leading axes are dealt out to tasks, and the product of their extents."""
    rows, k = 1, 0
    while k < len(extents) and rows < tasks:
        rows *= extents[k]
        k += 1
    return k, rows


@contextmanager
def rows(em: VectorEmitter, axes: Sequence[int], extents: Sequence[int], task: Value, tasks: int) -> Iterator[None]:
    """Loops over `axes`, bound as scalars; with tasks > 1 the leading ones are dealt out in equal runs."""
    b = em.b
    with ExitStack() as stack:
        k = 0
        if tasks > 1:
            k, count = _leading(extents, tasks)
            chunk = -(-count // tasks)
            lo = b.mul(task, chunk)
            hi = b.add(lo, chunk)
            if count % chunk:
                hi = b.op("min", hi, count)
            row = stack.enter_context(b.loop(lo, hi)).var
            for axis, at in zip(axes[:k], digits(b, row, extents[:k]), strict=True):
                em.bind(axis, at)
        for axis, n in zip(axes[k:], extents[k:], strict=True):
            em.bind(axis, stack.enter_context(b.loop(0, n)).var)
        yield


Ramps = list[tuple[Lanes, int | None]]
"""Neighbouring vectors along one axis, each with its number of lanes that count (None: all)."""


def ramps(base: Value | int, count: int, lanes: int, multiple: int, first: int = 0) -> Ramps:
    """The vectors that hold `count` points from `base + first` on, `base` being a multiple of `multiple`."""
    out: Ramps = []
    for at in range(0, count, lanes):
        pattern = tuple(range(first + at, first + at + lanes))
        out.append((Lanes(base, pattern, multiple), None if at + lanes <= count else count - at))
    return out


def vector_tiles(em: VectorEmitter, extent: int, unroll: int, emit: Callable[[Ramps], None], tile: Value | None = None,
                 tiles: int = 1, within: tuple[Value, Value] | None = None) -> None:
    """Calls `emit` for groups of `unroll` vectors, as `in_groups` does."""
    group = em.lanes * unroll

    def body(state: State, base: Value | int, count: int) -> State:
        emit(ramps(base, count, em.lanes, group))
        return state

    in_groups(em.b, extent, group, [], body, tile, tiles, within)


def sweep_box(em: VectorEmitter, box: Box, axis: int | None, unroll: int, tasks: int,
              emit: Callable[[Ramps, Value | int, int], None], first: int, alone: bool,
              tile: tuple[int, int] | None = None, inside: bool = False, parts: int = 1,
              begin: Callable[[Value], None] | None = None) -> int:
    """The loops over a box's outputs for about `tasks` tasks from `first` on (`alone`: there are no others); returns
    how many it takes.

    emit(vectors, base, rows) is called for `unroll` vectors along `axis` (None: a scalar) at every point of the other
    axes; tile: an axis of which it takes so many rows at once, from `base` on. The rows of a tile change `inside` the
    vectors: what those read is still in the cache for the next rows; or around them. `parts` tasks have the same
    outputs, and `begin` is told the number of each.
    """
    b, (row, height) = em.b, tile or (None, 1)
    turns = 1 if row is None else -(-box.extents[row] // height)
    others = [a for a in range(box.rank) if a not in (axis, row)]
    sizes = [box.extents[a] for a in others]
    if row is not None and not inside:
        others, sizes = [*others, row], [*sizes, turns]
    count = prod(sizes)
    runs, tiles = min(count, tasks), 1
    if count >= tasks:
        runs = row_tasks(sizes, tasks)
    elif inside and row is not None:
        tiles = tile_count(turns, -(-tasks // count), 1)
    elif axis is not None:
        tiles = tile_count(box.extents[axis], -(-tasks // count), em.lanes * unroll)
    with task_range(b, b.task, first, runs * tiles * parts, alone) as task:
        if parts > 1:
            assert begin is not None
            begin(b.op("mod", task, parts))
            task = b.op("floordiv", task, parts)
        number: Value | None = None
        if tiles > 1:
            number = b.op("mod", task, tiles)
            task = b.op("floordiv", task, tiles)
        with rows(em, others, sizes, task, runs):
            if axis is None:
                emit([(Lanes(0, ()), None)], 0, 1)
            elif row is None:
                vector_tiles(em, box.extents[axis], unroll, lambda ramps: emit(ramps, 0, 1), number, tiles)
            elif inside:
                lo, hi = part_bounds(b, turns, number, tiles)

                def walk(ramps: Ramps) -> None:
                    with b.loop(lo, hi) as loop:
                        blocks(b, loop.var, box.extents[row], height, lambda base, n: emit(ramps, base, n))

                vector_tiles(em, box.extents[axis], unroll, walk)
            else:
                at = em.position(row)
                assert isinstance(at, Value)

                def around(ramps: Ramps) -> None:
                    blocks(b, at, box.extents[row], height, lambda base, n: emit(ramps, base, n))

                vector_tiles(em, box.extents[axis], unroll, around, number, tiles)
    return runs * tiles * parts


def turned_tile(em: VectorEmitter, read: Read, along: int, at: Lanes, active: int | None, across: int,
                base: Value | int, count: int) -> list[Value]:
    """A square tile of a read that is contiguous along `across`, from `base` on, of which `count` points count: loaded
    row by row, `active` (None: all) of the rows `at` along the other axis, and transposed."""
    n, rows = em.lanes, list[Value]()
    em.mask = count
    for r in range(n):
        em.bind(along, Lanes(at.base, (at.pattern[r],) * n, at.multiple))
        em.bind(across, Lanes(base, tuple(range(n)), n))
        rows.append(em.read(read) if active is None or r < active else em.const(0, rows[0].type.elem, n))
    return transpose(em, rows)
