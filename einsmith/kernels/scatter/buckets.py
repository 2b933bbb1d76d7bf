"""Points of a Scatter sorted by ranges of destinations: a stable counting sort, in three launches.

count: each task counts, in its run of the points, how many go to each range.
place: from all the counts each task knows where its points of a range stand, and puts them there in their order.
add: each range is a task's, which adds its points in order; no other task touches these destinations.

A point is a row where the last dimensions are axes of their own that nothing else depends on (the embedding's width).
Of a row its number is sorted, of a single element its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from einsmith import dtypes as dt
from einsmith.expr.nodes import Axis, Scatter
from einsmith.kernels.emit import loops as bl
from einsmith.kernels.emit.access import digits
from einsmith.kernels.emit.address import Memory, address
from einsmith.kernels.emit.vector import VectorEmitter
from einsmith.kernels.pattern import Launch
from einsmith.kernels.scatter.points import add_points, parts_of, row_axes
from einsmith.loops.nest import Builder, Value, elem_of
from einsmith.plan.kernel import Kernel, row_major

SORTED = 24
"""Instructions that sorting one point is worth: its destination found twice, counted, placed and read again."""


class Buckets:
    """The three launches of one kernel."""

    def __init__(self, kernel: Kernel, s: Scatter, along: int | None, lanes: int, tasks: int, buckets: int):
        self.kernel, self.s, self.along, self.lanes = kernel, s, along, lanes
        self.row = row_axes(s)
        first = min(self.row.values(), default=len(s.index))
        (*index, self.body), self.out = parts_of(kernel)
        out = kernel.buffers[self.out]
        outer, inner = out.strides[:first], out.strides[first:]
        # A destination is numbered by its address in units that all of them are multiples of.
        self.width = (gcd(*outer) or out.size) if self.row else 1
        self.key = address(index[:first], [s // self.width for s in outer])
        self.inside = address(index[first:], inner)
        self.axes = [a for a in range(len(s.extents)) if a not in self.row]
        self.extents = [s.extents[a] for a in self.axes]
        self.points = prod(self.extents)
        keys = sum((n - 1) * s for n, s in zip(out.shape, outer, strict=False)) // self.width + 1
        self.size = 1 << max(0, -(-keys // buckets) - 1).bit_length()
        self.buckets = -(-keys // self.size)
        self.tasks = bl.row_tasks(self.extents, tasks) if self.extents else 1
        self.key_type = dt.i32 if keys < 2**31 else dt.i64
        self.entry_type = (dt.i32 if self.points < 2**31 else dt.i64) if self.row else s.body.dtype
        self.keys_at = _aligned(8 * self.tasks * self.buckets)
        self.entries_at = self.keys_at + _aligned(self.key_type.itemsize * self.points)
        self.workspace = self.entries_at + _aligned(self.entry_type.itemsize * self.points)

    @staticmethod
    def vector_axis(kernel: Kernel, s: Scatter, along: Sequence[int]) -> int | None:
        """The axis of a row that lanes run along: the last, where its reads allow that."""
        row = row_axes(s)
        last = next((a for a, d in row.items() if d == len(kernel.shape) - 1), None)
        return last if last in along else None

    @staticmethod
    def cost(kernel: Kernel, s: Scatter, along: int | None) -> float:
        """Instructions of the sorting."""
        return SORTED * prod(n for a, n in enumerate(s.extents) if a not in row_axes(s))

    def lower(self, names: Sequence[str]) -> list[Launch]:
        made = [(self._count, self.tasks), (self._place, self.tasks), (self._add, self.buckets)]
        out = []
        for name, (emit, tasks) in zip(names, made, strict=True):
            b = bl.start(name, self.kernel)
            emit(b)
            out.append(Launch(b.finish(), tasks))
        return out

    def _section(self, b: Builder, at: int, elem: str, itemsize: int) -> Value:
        return b.address(b.buffers[-1], at // itemsize, elem)

    def _keys(self, b: Builder) -> tuple[Value, str]:
        elem = elem_of(self.key_type)
        return self._section(b, self.keys_at, elem, self.key_type.itemsize), elem

    def _entries(self, b: Builder) -> tuple[Value, str]:
        elem = elem_of(self.entry_type)
        return self._section(b, self.entries_at, elem, self.entry_type.itemsize), elem

    def _key(self, em: VectorEmitter) -> tuple[Value, Value]:
        """(destination, its range) of the point that the axes stand at."""
        key = em.shared(self.key)
        return key, em.op("floordiv", key, self.size)

    def _count(self, b: Builder) -> None:
        em = bl.emitter(b, self.kernel, self.s.extents, 0)
        counts = b.address(b.buffers[-1], b.mul(b.task, self.buckets), "i64")
        with b.loop(0, self.buckets) as loop:
            b.store(b.const(0), counts, loop.var)
        with bl.rows(em, self.axes, self.extents, b.task, self.tasks):
            _, bucket = self._key(em)
            b.store(b.add(b.load(counts, bucket, "i64"), 1), counts, bucket)

    def _place(self, b: Builder) -> None:
        em = bl.emitter(b, self.kernel, self.s.extents, 0)
        counts, places = b.buffers[-1], b.alloc("i64", self.buckets)
        (keys, key_elem), (entries, elem) = self._keys(b), self._entries(b)
        zero = b.const(0)
        with b.loop(0, self.buckets, init=[zero]) as bucket:
            with b.loop(0, self.tasks, init=[bucket.carried[0], bucket.carried[0]]) as task:
                n = b.load(counts, b.add(b.mul(task.var, self.buckets), bucket.var), "i64")
                mine = b.select(b.op("lt", task.var, b.task), n, zero)
                task.next = [b.add(task.carried[0], n), b.add(task.carried[1], mine)]
            b.store(task.results[1], places, bucket.var)
            bucket.next = [task.results[0]]
        with bl.rows(em, self.axes, self.extents, b.task, self.tasks):
            key, bucket_of = self._key(em)
            at = b.load(places, bucket_of, "i64")
            b.store(b.add(at, 1), places, bucket_of)
            b.store(b.cast(key, key_elem), keys, at)
            if self.row:
                number = em.shared(address([Axis(a) for a in self.axes], row_major(tuple(self.extents))))
                b.store(b.cast(number, elem), entries, at)
            else:
                b.store(em.emit(self.body), entries, at)

    def _add(self, b: Builder) -> None:
        counts = b.buffers[-1]
        (keys, key_elem), (entries, elem) = self._keys(b), self._entries(b)
        zero = b.const(0)
        with b.loop(0, self.tasks, init=[zero, zero]) as task:
            row = b.address(counts, b.mul(task.var, self.buckets), "i64")
            with b.loop(0, b.task, init=[task.carried[0]]) as bucket:
                bucket.next = [b.add(bucket.carried[0], b.load(row, bucket.var, "i64"))]
            task.next = [bucket.results[0], b.add(task.carried[1], b.load(row, b.task, "i64"))]
        first, count = task.results
        em = bl.emitter(b, self.kernel, self.s.extents, self.lanes)
        target = em.memory(self.out)
        with b.loop(first, b.add(first, count)) as loop:
            key = b.cast(b.load(keys, loop.var, key_elem), "i64")
            entry = b.load(entries, loop.var, elem)
            if not self.row:
                value = b.add(b.load(target.pointer, key, target.elem), entry)
                b.store(value, target.pointer, key)
                return
            number = b.cast(entry, "i64")
            for a, at in zip(self.axes, digits(b, number, self.extents), strict=True):
                em.bind(a, at)
            row = b.address(target.pointer, b.mul(key, self.width), target.elem)
            em.place(self.out, Memory(row, target.buffer))
            add_points(em, self.row, self.along, em.memory(self.out), [(self.inside, self.body)])


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 64) * 64
