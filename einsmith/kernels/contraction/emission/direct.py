"""The direct form: vectors along one axis of a contraction, loads shared between the points of an unrolled box.

A depthwise convolution Y[b,c,h,w] = sum[r,s](K[c,r,s] * X[b,c,h+r,w+s]) has one row of M, and an involution
Y[c,h,w] = sum[r,s](K[r,s,h,w] * X[c,h+r,w+s]) has its vectors along an axis of both operands: neither is a matrix
product. Here the lanes run along any axis along which the operands are contiguous, an output axis or an axis of K. A
tile of output points (accumulators) and some points of K are unrolled, and what two of their products share is loaded
once: at h=0..7 and r=0..6 the 56 products of a depthwise tile read 14 rows of X and 7 elements of K.

    Y[c,h,w]: lanes along w, tile h: 8, unrolled r: 7, loop over s
    dK[c,r,s] = sum[b,h,w](dY[b,c,h,w] * X[b,c,h+r,w+s]): lanes along w, tile r: 7, unrolled h: 8, loops over h/8, w/16
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from einsmith.kernels.contraction.config import Direct, halo_memories
from einsmith.kernels.contraction.direct_boxes import inner_axes, shaped, tiles_along, waiting
from einsmith.kernels.contraction.emission.nan_repair import NanRepair, needed
from einsmith.kernels.contraction.epilogue import REGISTER_EPILOGUE, Epilogue
from einsmith.kernels.contraction.halo import SLACK, covers, fill
from einsmith.kernels.contraction.problem import Problem
from einsmith.kernels.emit.access import OperandAccess, PartialAddress, digits
from einsmith.kernels.emit.address import Memory, arguments_of, memories_of
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.walk import part_range
from einsmith.loops.nest import Builder, Value, elem_of
from einsmith.plan.kernel import Kernel


def _sampler(
    b: Builder | None, p: Problem, i: int, memories: Mapping[int, Memory], vector: int, lanes: int
) -> OperandAccess:
    o = p.operands[i]
    return OperandAccess(b, [o.expr], o.guards, p.extents, memories, (vector,), lanes)


class DirectLowering:
    """Emission of this form. A task takes a range of the points of `outer`, and of the tiles along `cut` where these
    have parts; it has number `part` then."""

    def __init__(self, kernel: Kernel, config: Direct, target: Any, builder: Builder, problem: Problem):
        self.b, self.d = builder, config
        b = builder
        shape = shaped(problem, config)
        assert shape is not None
        p = self.p = shape.problem
        self.elem = elem_of(p.dtype)
        self.lanes = target.lanes(p.dtype.itemsize)
        n = self.lanes
        memories = memories_of(kernel, b.buffers)
        arguments = arguments_of(kernel, memories)
        at = [b.alloc(self.elem, w.buffer.size + SLACK * n) for _, w in shape.windows]
        self.slots = {**arguments, **halo_memories(shape.windows, at)}
        self.windows = [(w, x) for (_, w), x in zip(shape.windows, at, strict=True)]
        self.rank = len(p.piece.extents)
        self.samplers = [_sampler(b, p, i, self.slots, self.d.vector, n) for i in (0, 1)]
        self.in_k = self.d.vector >= self.rank
        lane_axes = () if self.in_k else (self.d.vector,)
        self.epi = Epilogue(b, kernel, p, memories, lane_axes, 0 if self.in_k else n, 0)
        self.zero = b.const(0.0, self.elem, n)
        self.counts = dict((*self.d.tile, *self.d.unroll))
        self.inner = inner_axes(p, config)
        self.cut = max(self.inner, key=lambda a: tiles_along(p, config, a)) if config.parts > 1 else None
        self.part: Value | None = None
        self.k_axes = [a for a in p.k if a not in (*self.d.k_outer, self.d.vector) and p.extents[a] > 1]
        self.exact = None
        if needed(problem):
            size = self.d.vectors * prod(x for _, x in self.d.tile) * n
            self.exact = NanRepair(b, problem, arguments, lane_axes, 0 if self.in_k else n, size)
        self.values: dict[int, Value] = {}
        self.sums: Value | None = None
        self.rows: Value | None = None
        if self.epi.size > REGISTER_EPILOGUE:
            self.rows = b.alloc(self.elem, self.d.vectors * prod(x for _, x in self.d.tile) * n)
        if self.d.k_outer:
            self.sums = b.alloc(self.elem, waiting(p, self.d, n))

    def run(self, task: Value) -> None:
        b, p, d = self.b, self.p, self.d
        extents = [p.extents[a] for a in d.outer]
        if d.parts > 1:
            self.part = b.op("mod", task, b.const(d.parts))
            task = b.op("floordiv", task, b.const(d.parts))
        with b.loop(*part_range(b, task, self.d.tasks, prod(extents))) as points:
            self.values = dict(zip(d.outer, digits(b, points.var, extents) if extents else [], strict=True))
            if not d.k_outer:
                self._fill()
                self._tiles(lambda sizes, vectors, limit: self._compute(sizes, vectors, limit, None))
                return
            assert self.sums is not None
            with b.loop(0, waiting(p, d, self.lanes), step=self.lanes) as clear:
                b.store(self.zero, self.sums, clear.var)
            with b.loop(0, p.extents[d.k_outer[0]]) as head:
                self.values[d.k_outer[0]] = head.var
                self._fill()
                self._tiles(self._accumulate)
            self._tiles(self._finish_scratch)

    def _fill(self) -> None:
        for w, to in self.windows:
            fill(self.b, w, self.slots, to, self.lanes, self.values)

    def _split(self, axis: int, body: Callable[[int], None]) -> None:
        """body(points) for the tiles of an axis, its first point in `values`."""
        b, extent = self.b, self.p.extents[axis]
        count = min(self.counts.get(axis, 1), extent)
        whole = extent // count * count
        if axis == self.cut and self.part is not None:
            lo, hi = part_range(b, self.part, self.d.parts, tiles_along(self.p, self.d, axis))
            end = b.op("min", b.mul(b.index(hi), b.const(count)), b.const(whole))
            with b.loop(b.mul(b.index(lo), b.const(count)), end, step=count) as loop:
                self.values[axis] = loop.var
                body(count)
            if whole < extent:
                with b.if_(b.op("eq", self.part, b.const(self.d.parts - 1))):
                    self.values[axis] = b.const(whole)
                    body(extent - whole)
            return
        if whole == count:
            self.values[axis] = b.const(0)
            body(count)
        else:
            with b.loop(0, whole, step=count) as loop:
                self.values[axis] = loop.var
                body(count)
        if whole < extent:
            self.values[axis] = b.const(whole)
            body(extent - whole)

    def _tiles(self, body: Callable[[dict[int, int], int, int | None], None]) -> None:
        """body(points by tiled axis, vectors, limit of the last vector)."""
        b, n, d = self.b, self.lanes, self.d

        def level(i: int, sizes: dict[int, int]) -> None:
            if i < len(self.inner):
                a = self.inner[i]
                self._split(a, lambda count: level(i + 1, {**sizes, a: count} if a in self.counts else sizes))
                return
            if self.in_k:
                body(sizes, 1, None)
                return
            extent = self.p.extents[d.vector]
            step = d.vectors * n
            whole = extent // step * step
            if whole:
                with b.loop(0, whole, step=step) as loop:
                    self.values[d.vector] = loop.var
                    body(sizes, d.vectors, None)
            if whole < extent:
                self.values[d.vector] = b.const(whole)
                body(sizes, -(-(extent - whole) // n), extent if extent % n else None)

        level(0, {})

    def _part(
        self, s: OperandAccess, values: dict[int, Value], point: dict[int, int], base: dict[int, Value]
    ) -> PartialAddress:
        """Every axis of `values` bound, `point` added to those of a tile; `base`: the forms at the tile's corner."""
        b = self.b
        sums = dict(base)
        for i, f in enumerate(s.forms):
            delta = sum(f.coef.get(a, 0) * x for a, x in point.items())
            if delta:
                sums[i] = b.add(sums[i], b.const(delta)) if i in sums else b.const(delta)
        opaque = {a: b.add(v, b.const(point.get(a, 0))) for a, v in self._opaque(s, values).items()}
        return PartialAddress(sums, frozenset(values), opaque)

    def _opaque(self, s: OperandAccess, values: dict[int, Value]) -> dict[int, Value]:
        return {a: v for a, v in values.items() if a in s.opaque}

    def _base(self, s: OperandAccess, values: dict[int, Value]) -> dict[int, Value]:
        b = self.b
        sums: dict[int, Value] = {}
        for i, f in enumerate(s.forms):
            for a, v in values.items():
                c = f.coef.get(a, 0)
                if c:
                    term = v if c == 1 else b.mul(v, b.const(c))
                    sums[i] = b.add(sums[i], term) if i in sums else term
        return sums

    def _scalars(self) -> dict[int, Value]:
        return {a: v for a, v in self.values.items() if a != self.d.vector}

    def _products(self, sums: list[Value], sizes: dict[int, int], unrolled: dict[int, int], vectors: int,
                  limit: int | None) -> list[Value]:
        """The products of one unrolled box added to the sums (tile points outer, vectors inner)."""
        b, n = self.b, self.lanes
        v = self.d.vector
        start = self.values[v]
        values = self._scalars()
        bases = [self._base(s, values) for s in self.samplers]
        states: dict[tuple[int, int], LaneCursor] = {}
        kinds = [any(s.forms[i].coef.get(v, 0) for i in range(len(s.forms))) for s in self.samplers]
        done: dict[tuple, Value] = {}

        def key(which: int, point: dict[int, int], vector: int) -> tuple:
            s = self.samplers[which]
            deltas = tuple(sum(f.coef.get(a, 0) * x for a, x in point.items()) for f in s.forms)
            opaque = tuple(point.get(a, 0) for a in sorted(s.opaque))
            return (which, vector if kinds[which] else 0, deltas, opaque)

        def value(which: int, point: dict[int, int], k: tuple) -> Value:
            if k not in done:
                s, vector = self.samplers[which], k[1]
                if (which, vector) not in states:
                    # Lanes past the end are not stored: sums over the lanes, and reads of others' memory, need the
                    # mask.
                    masked = kinds[which] and (self.in_k or not covers(s, v))
                    last = limit if vector == vectors - 1 and masked else None
                    at = b.add(start, b.const(vector * n)) if vector else start
                    states[which, vector] = LaneCursor(s, at, last, n)
                done[k] = states[which, vector].bind(self._part(s, values, point, bases[which])).product()
            return done[k]

        work = []
        tile = list(product(*(range(x) for x in sizes.values())))
        steps = list(product(*(range(x) for x in unrolled.values())))
        for t, at in enumerate(tile):
            for u in steps:
                point = dict(zip((*sizes, *unrolled), (*at, *u), strict=True))
                for j in range(vectors):
                    work.append((t * vectors + j, point, key(0, point, j), key(1, point, j)))
        streamed = 2 if len({w[2] for w in work}) > len({w[3] for w in work}) else 3
        work.sort(key=lambda w: (w[streamed], w[5 - streamed], w[0]))
        for i, point, left, right in work:
            sums[i] = b.fma(value(0, point, left), value(1, point, right), sums[i])
        return sums

    def _k_loops(self, sums: list[Value], sizes: dict[int, int], vectors: int, limit: int | None) -> list[Value]:
        b, n = self.b, self.lanes

        def level(i: int, unrolled: dict[int, int], carried: list[Value]) -> list[Value]:
            if i < len(self.k_axes):
                a = self.k_axes[i]
                extent = self.p.extents[a]
                count = min(self.counts.get(a, 1), extent)
                whole = extent // count * count
                out = carried
                here = {**unrolled, a: count} if a in self.counts else unrolled
                if whole == count:
                    self.values[a] = b.const(0)
                    out = level(i + 1, here, out)
                else:
                    with b.loop(0, whole, step=count, init=out) as loop:
                        self.values[a] = loop.var
                        loop.next = level(i + 1, here, list(loop.carried))
                    out = list(loop.results)
                if whole < extent:
                    self.values[a] = b.const(whole)
                    out = level(i + 1, {**unrolled, a: extent - whole}, out)
                return out
            if not self.in_k:
                return self._products(list(carried), sizes, unrolled, vectors, limit)
            v, out = self.d.vector, carried
            extent = self.p.extents[v]
            whole = extent // n * n
            if whole:
                with b.loop(0, whole, step=n, init=out) as loop:
                    self.values[v] = loop.var
                    loop.next = self._products(list(loop.carried), sizes, unrolled, 1, None)
                out = list(loop.results)
            if whole < extent:
                self.values[v] = b.const(whole)
                out = self._products(list(out), sizes, unrolled, 1, extent)
            return out

        out = level(0, {}, sums)
        if self.exact is None:
            return out
        rest = [a for a in self.p.k if a not in self.d.k_outer]
        total = prod(self.p.extents[a] for a in rest)
        corner = dict(self.values)
        return self.exact.sums(
            out, sums, rest, 0, total, lambda number: self._exactly(number, corner, sizes, vectors, limit)
        )

    def _exactly(
        self, number: Value, corner: dict[int, Value], sizes: dict[int, int], vectors: int, limit: int | None
    ) -> LaneCursor:
        """The place of a vector of a tile, or of a result where lanes lie along K, for `exact`."""
        b, n, d = self.b, self.lanes, self.d
        assert self.exact is not None
        s = self.exact.sampler
        *point, vector = digits(b, number, [*sizes.values(), vectors])
        inner = {*self.k_axes, d.vector}
        values = {a: v for a, v in corner.items() if a not in inner}
        values |= {a: b.add(values[a], x) for a, x in zip(sizes, point, strict=True)}
        if self.in_k:
            state = LaneCursor(s, 0, None)
        else:
            state = LaneCursor(s, b.add(corner[d.vector], b.mul(vector, b.const(n))), limit, n)
        axes = frozenset(a for a, x in enumerate(self.p.extents) if x == 1)
        return state.bind(PartialAddress(self._base(s, values), axes | frozenset(values), self._opaque(s, values)))

    def _points(self, sizes: dict[int, int]) -> list[dict[int, int]]:
        return [dict(zip(sizes, at, strict=True)) for at in product(*(range(x) for x in sizes.values()))]

    def _compute(self, sizes: dict[int, int], vectors: int, limit: int | None, _: None) -> None:
        start = [self.zero] * (prod(sizes.values()) * vectors)
        self._store(sizes, vectors, limit, self._k_loops(start, sizes, vectors, limit))

    def _store(self, sizes: dict[int, int], vectors: int, limit: int | None, sums: Sequence[Value]) -> None:
        b, n, s = self.b, self.lanes, self.epi.sampler
        values = {a: x for a, x in self._scalars().items() if a < self.rank}
        base = self._base(s, values)
        if self.in_k:
            states = [LaneCursor(s, 0, None)]
        else:
            at = self.values[self.d.vector]
            states = []
            for j in range(vectors):
                start = b.add(at, b.const(j * n)) if j else at
                states.append(LaneCursor(s, start, limit if j == vectors - 1 else None, n))

        def finish(part: PartialAddress, row: list[Value]) -> None:
            self.epi.row(states, part, [b.horizontal("add", x) for x in row] if self.in_k else row)

        if self.rows is None or len(sums) == vectors:
            for t, here in enumerate(self._points(sizes)):
                finish(self._part(s, values, here, base), list(sums[t * vectors : (t + 1) * vectors]))
            return
        for i, x in enumerate(sums):
            b.store(x, self.rows, b.const(i * n))
        with b.loop(0, len(sums) // vectors) as loop:
            point = digits(b, loop.var, list(sizes.values()))
            values |= {a: b.add(values[a], x) for a, x in zip(sizes, point, strict=True)}
            at = b.mul(loop.var, b.const(vectors * n))
            row = [b.load(self.rows, b.add(at, b.const(j * n)), self.elem, n) for j in range(vectors)]
            finish(self._part(s, values, {}, self._base(s, values)), row)

    # -- sums that wait in scratch while windows change

    def _places(self, sizes: dict[int, int], vectors: int) -> list[Value]:
        b, n, v = self.b, self.lanes, self.d.vector
        row = n if self.in_k else -(-self.p.extents[v] // n) * n
        out = []
        for point in self._points(sizes):
            at: Value = b.const(0)
            for a in self.inner:
                x = self.values[a]
                x = b.add(x, b.const(point[a])) if point.get(a) else x
                at = b.add(b.mul(at, b.const(self.p.extents[a])), x)
            at = b.mul(at, b.const(row))
            if not self.in_k:
                at = b.add(at, self.values[v])
            out += [b.add(at, b.const(j * n)) if j else at for j in range(vectors)]
        return out

    def _accumulate(self, sizes: dict[int, int], vectors: int, limit: int | None) -> None:
        b = self.b
        assert self.sums is not None
        places = self._places(sizes, vectors)
        start = [b.load(self.sums, x, self.elem, self.lanes) for x in places]
        for x, value in zip(places, self._k_loops(start, sizes, vectors, limit), strict=True):
            b.store(value, self.sums, x)

    def _finish_scratch(self, sizes: dict[int, int], vectors: int, limit: int | None) -> None:
        b = self.b
        assert self.sums is not None
        sums = [b.load(self.sums, x, self.elem, self.lanes) for x in self._places(sizes, vectors)]
        self._store(sizes, vectors, limit, sums)
