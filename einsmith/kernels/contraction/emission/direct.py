"""Emit the direct form: vectors along one axis of a contraction, loads shared between the points of an unrolled box.

A depthwise convolution Y[b,c,h,w] = sum[r,s](K[c,r,s] * X[b,c,h+r,w+s]) has one row of M, and an involution Y[c,h,w] =
sum[r,s](K[r,s,h,w] * X[c,h+r,w+s]) has its vectors along an axis of both operands: neither is a matrix product. Here
the lanes run along any axis along which the operands are contiguous, an output axis or an axis of K. A tile of output
points (accumulators) and some points of K are unrolled, and elements that two of their products share are loaded once:
at h=0..7 and r=0..6 the 56 products of a depthwise tile read 14 rows of X and 7 elements of K.

    Y[c,h,w]: lanes along w, tile h: 8, unrolled r: 7, loop over s
    dK[c,r,s] = sum[b,h,w](dY[b,c,h,w] * X[b,c,h+r,w+s]): lanes along w, tile r: 7, unrolled h: 8, loops over h/8, w/16
    dW[o,c] = sum[b,h,w](dY[b,o,h,w] * X[b,c,h,w]): lanes along w, tile o: 4, c: 6, loops over h, w/16; b divided among
    tasks, whose partial sums another launch adds
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from math import inf, prod
from typing import Any, NamedTuple

from einsmith.codegen.loopnest.lanes import combine_lanes
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.walk import Bound, digits, part_bounds, part_range, strips, tiles
from einsmith.codegen.ssa import SSAValue
from einsmith.cost.facts import LINE
from einsmith.kernels.contraction.config import Direct
from einsmith.kernels.contraction.direct_boxes import (
    add_halo_copies,
    inner_axes,
    prefetched_operands,
    sum_elements,
    tiles_along,
)
from einsmith.kernels.contraction.direct_loads import find_inner_strips, guards_inside
from einsmith.kernels.contraction.emission.frame import Operands, clear, limited_axes, limited_points, workspace
from einsmith.kernels.contraction.emission.nan_repair import NanRepair
from einsmith.kernels.contraction.epilogue import Epilogue
from einsmith.kernels.contraction.geometry import PartialSums
from einsmith.kernels.contraction.halo import can_read_past
from einsmith.kernels.emit.access import OperandAccess
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.loops import is_below_limits
from einsmith.schedule.contraction_problem import Problem, k_limit
from einsmith.schedule.kernel import Kernel


class UnrolledBox(NamedTuple):
    """An unrolled box: points by axis, number of vectors next to each other, and the limit of the last vector's lanes
    (None: all are active)."""

    points: dict[int, int]
    vectors: int = 1
    limit: int | None = None

    @property
    def sums(self) -> int:
        """The number of accumulators (vectors)."""
        return self.vectors * prod(self.points.values())

    def each(self) -> list[dict[int, int]]:
        """Return the points of the box, each as a position by axis."""
        return [dict(zip(self.points, at, strict=True)) for at in product(*map(range, self.points.values()))]

    def point(self, b: Builder, number: int | SSAValue) -> Mapping[int, int | SSAValue]:
        """Return the point of `each` with this number."""
        return dict(zip(self.points, digits(b, b.index(number), list(self.points.values())), strict=True))


def partial_sums(p: Problem, d: Direct, lanes: int) -> PartialSums:
    """Return the layout of the partial sums of the parts of K, with a row for each point of the left operand."""
    batch, left, right, _ = p.sizes
    return PartialSums(batch, left, right, lanes, d.split, p.left, p.right)


class DirectLowering(Operands):
    """Emits the direct form.

    A task takes a range of the points of `outer`. It has number `part` among the parts of the tiles along the axis
    `parts_axis`, and number `split` among the parts of the outer axis of K.

    values: for each axis that a loop has bound, the first of the box's points
    base: bytes of the workspace before this piece's part
    """

    def __init__(self, kernel: Kernel, config: Direct, target: Any, builder: Builder, problem: Problem, base: int = 0):
        self._kernel = kernel
        halo_problem = add_halo_copies(problem, config)
        assert halo_problem is not None
        p, n, d, b = halo_problem.problem, target.lanes(problem.dtype.itemsize), config, builder
        super().__init__(b, kernel, p.dtype, n, halo_problem.halos)
        self.p, self.d = p, d
        self.in_k = d.vector in p.k
        axes, lanes = ((), 0) if self.in_k else ((d.vector,), n)  # of results
        self._samplers: dict[tuple[int, ...], list[OperandAccess]] = {}
        self.inner_strips, self.inside = find_inner_strips(p, d, n), list[int]()
        self.varies_along_lanes = [any(f.coef.get(d.vector, 0) for f in s.forms) for s in self.samplers]
        size = d.vectors * prod(x for _, x in d.tile) * n
        self.epilogue = Epilogue(b, kernel, p, axes, lanes, room=size)
        self.counts = {**dict((*d.tile, *d.unroll)), d.vector: n if self.in_k else d.vectors * n}
        self.inner = inner_axes(p, d)
        self.prefetched = prefetched_operands(p, d, self.samplers, target)
        self.tiled = self.inner if self.in_k else [*self.inner, d.vector]
        self.k_axes = [a for a in p.k if a not in (*d.k_outer, *d.fused, d.vector) and p.extents[a] > 1]
        self.parts_axis = max(self.inner, key=lambda a: tiles_along(p, d, a)) if d.parts > 1 else None
        self.repair = NanRepair(b, problem, self.arguments, axes, lanes, size)
        self.sums = b.alloc(self.elem, sum_elements(p, d, n)) if d.k_outer else None
        self.values: dict[int, SSAValue] = {}
        self.part = self.split = b.const(0)
        self.k_end: SSAValue | None = None
        """Where the first axis of K ends, if that is known in a run alone."""
        self.partials, self.workspace = partial_sums(p, d, n), workspace(b, base, p.dtype.itemsize, self.elem)

    def run(self, task: SSAValue) -> None:
        """Emit a task."""
        b, p, d = self.b, self.p, self.d
        zero = b.const(0.0, self.elem, self.lanes)
        extents = [p.extents[a] for a in d.outer]
        task, self.part, self.split = digits(b, task, (d.tasks, d.parts, d.split))
        if (slot := k_limit(p)) is not None:
            self.k_end = b.op("min", self.load_k_limit(slot), p.extents[p.k[0]])
        limited = limited_points(b, self._kernel, p, d.outer)
        count: Bound = prod(extents) if limited is None else limited
        with b.loop(*part_range(b, task, d.tasks, count)) as points:
            self.values = dict(zip(d.outer, digits(b, points.var, extents) if extents else [], strict=True))
            limited_outer = limited_axes(self._kernel, p, d.outer[int(limited is not None) :])
            below = is_below_limits(b, self._kernel, {a: self.values[a] for a in limited_outer})
            with nullcontext() if below is None else b.if_(below):
                self._emit_point(zero)

    def _emit_point(self, zero: SSAValue) -> None:
        """Emit all tiles at one point of the outer axes."""
        b, p, d = self.b, self.p, self.d
        if self.sums is None:
            self.fill(self.values)
            self._for_each_tile(lambda tile: self._emit_epilogue(tile, self._sum_products(tile, [zero] * tile.sums)))
            return
        clear(b, self.sums, sum_elements(p, d, self.lanes), self.elem, self.lanes)
        bounds = part_bounds(b, p.extents[d.k_outer[0]], self.split, d.split)
        if self.k_end is not None:
            bounds = part_range(b, self.split, d.split, self.k_end)
        with b.loop(*bounds) as k_outer:
            self.values[d.k_outer[0]] = k_outer.var
            self.fill(self.values)
            self._for_each_tile(self._accumulate)
        self._for_each_tile(lambda tile: self._emit_epilogue(tile, self._load_sums(tile)))

    # -- loops

    def _extent(self, axis: int) -> int:
        return self.p.count((*self.d.fused, axis)) if axis == self.d.vector else self.p.extents[axis]

    def _for_each_box(
        self, axes: Sequence[int], body: Callable[[UnrolledBox, list[SSAValue]], Any], init: Sequence[SSAValue] = ()
    ) -> list[SSAValue]:
        """Emit loops over axes in steps of the box's points, and call body(box, carried) inside; return the results.

        `values` holds the first of the box's points along each axis; `init` is carried through the loops.
        """
        b, n, v = self.b, self.lanes, self.d.vector

        def emit_loops(i: int, box: UnrolledBox, carried: Sequence[SSAValue]) -> Any:
            if i == len(axes):
                return body(box, list(carried))
            a, extent, size = axes[i], self._extent(axes[i]), self.counts.get(axes[i], 1)

            def emit_strip(at: SSAValue, count: int, carried: list[SSAValue]) -> Any:
                self.values[a] = at
                if a == v:
                    here = box._replace(vectors=-(-count // n), limit=extent if count % n else None)
                else:
                    here = box._replace(points={**box.points, a: count}) if a in self.counts else box
                return emit_loops(i + 1, here, carried)

            if a == self.p.k[0] and self.k_end is not None:
                return self._strips_below(self.k_end, size, emit_strip, carried)
            span = (
                part_range(b, self.part, self.d.parts, tiles_along(self.p, self.d, a)) if a == self.parts_axis else None
            )
            for lo, hi, is_inner in self._ranges(a, extent):
                self.inside += [a] * is_inner
                if span is None:
                    carried = strips(b, lo, hi, size, emit_strip, carried)
                else:
                    here = b.op("max", span[0], lo // size), b.op("min", span[1], -(-hi // size))
                    emit_tile = lambda number, count, _: emit_strip(b.mul(number, size), count, [])  # noqa: E731
                    tiles(b, here, -(-hi // size), hi, 1, size, emit_tile)
                del self.inside[len(self.inside) - is_inner :]
            return carried

        return emit_loops(0, UnrolledBox({}), init)

    def _ranges(self, axis: int, extent: int) -> list[tuple[int, int, bool]]:
        """Return the ranges (points) of an axis, with whether their strips are inner ones.

        Rows have inner strips only inside those of the axis before it, as every kind of strip has code of its own.
        """
        inner = self.inner_strips.get(axis)
        if inner is None or any(a != axis and a not in self.inside for a in self.inner_strips if a != self.d.vector):
            return [(0, extent, False)]
        ranges = [(0, inner.lo, False), (inner.lo, inner.hi, True), (inner.hi, extent, False)]
        return [x for x in ranges if x[0] < x[1]]

    @property
    def samplers(self) -> list[OperandAccess]:
        """Return the operands' accesses with the guards that the strips that are being emitted need."""
        key, d, p = tuple(self.inside), self.d, self.p
        if key not in self._samplers:
            guards = guards_inside(p, [self.inner_strips[a] for a in key])
            self._samplers[key] = [
                OperandAccess(self.b, [o.expr], g, p.extents, self.slots, (*d.fused, d.vector), self.lanes)
                for o, g in zip(p.operands, guards, strict=True)
            ]
        return self._samplers[key]

    def _strips_below(
        self, end: SSAValue, size: int, emit_strip: Callable[..., Any], init: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """Emit the strips of `size` points below an end that is known in a run alone, then single points."""
        b, out = self.b, list(init)
        whole = b.mul(b.op("floordiv", end, size), size)
        for low, high, count in [(b.const(0), whole, size), (whole, end, 1)][: min(size, 2)]:
            with b.loop(low, high, step=count, init=out) as loop:
                loop.next = emit_strip(loop.var, count, list(loop.carried)) or ()
            out = list(loop.results)
        return out

    def _for_each_tile(self, body: Callable[[UnrolledBox], None]) -> None:
        self._for_each_box(self.tiled, lambda tile, _: body(tile))

    # -- the sums of a tile: points outer, vectors inner

    def _sum_products(self, tile: UnrolledBox, init: Sequence[SSAValue]) -> list[SSAValue]:
        """Return the sums `init` plus all products over K except its outer axis."""
        axes = [*self.k_axes, self.d.vector] if self.in_k else self.k_axes
        sums = self._for_each_box(axes, partial(self._add_products, tile), init)
        rest = [a for a in self.p.k if a not in self.d.k_outer]
        place = partial(self._cursor_at, tile, dict(self.values))
        return self.repair.repair_sums(sums, init, rest, 0, self.p.count(rest), place)

    def _add_products(self, tile: UnrolledBox, k: UnrolledBox, carried: Sequence[SSAValue]) -> list[SSAValue]:
        """Add the products of one unrolled box to the sums; elements that two products share are loaded once."""
        b, n, v = self.b, self.lanes, self.d.vector
        last = k if self.in_k else tile
        start, values = self.values[v], {a: x for a, x in self.values.items() if a != v}
        states: dict[tuple[int, int], LaneCursor] = {}
        loaded: dict[tuple, SSAValue] = {}

        def load_key(which: int, point: dict[int, int], vector: int) -> tuple:
            """Return the key of a load: the operand, the vector, and what the point adds to addresses."""
            s = self.samplers[which]
            deltas = tuple(sum(f.coef.get(a, 0) * x for a, x in point.items()) for f in s.forms)
            return (
                which,
                vector if self.varies_along_lanes[which] else 0,
                deltas,
                tuple(point.get(a, 0) for a in sorted(s.opaque)),
            )

        def load_value(point: dict[int, int], key: tuple) -> SSAValue:
            which, vector = key[:2]
            s = self.samplers[which]
            if (which, vector) not in states:
                # Lanes past the end are not stored, but sums over the lanes and reads beyond a halo copy need the mask.
                masked = self.varies_along_lanes[which] and (self.in_k or not can_read_past(s, v))
                limit = last.limit if vector == tile.vectors - 1 and masked else None
                states[which, vector] = LaneCursor(s, b.add(start, vector * n), limit, n)
            if key not in loaded:
                loaded[key] = states[which, vector].bind(s.at(values, point)).product()
            return loaded[key]

        products = []
        for t, tile_point in enumerate(tile.each()):
            for k_point in k.each():
                for j in range(tile.vectors):
                    point = tile_point | k_point
                    products.append((t * tile.vectors + j, point, load_key(0, point, j), load_key(1, point, j)))
        streamed = 2 if len({w[2] for w in products}) > len({w[3] for w in products}) else 3
        products.sort(key=lambda w: (w[streamed], w[5 - streamed], w[0]))
        sums = list(carried)
        for which in self.prefetched:
            self._prefetch_next_tile(which, tile, k)
        for i, point, left, right in products:
            sums[i] = b.fma(load_value(point, left), load_value(point, right), sums[i])
        return sums

    def _prefetch_next_tile(self, which: int, tile: UnrolledBox, k: UnrolledBox) -> None:
        """Prefetch the lines of an operand that the next tile along the last inner axis reads and this one does not."""
        b, s, v, axis = self.b, self.samplers[which], self.d.vector, self.inner[-1]
        place = LaneCursor(s, self.values[v], None, self.lanes).bind(
            s.at({a: x for a, x in self.values.items() if a != v})
        )
        for read, form in s.reads.items():
            coef, source = s.forms[form].coef, s.memories[read.slot]
            points = [x | y | {v: j * self.lanes} for x in tile.each() for y in k.each() for j in range(tile.vectors)]
            offsets = {sum(coef.get(a, 0) * n for a, n in point.items()) for point in points}
            step, last = coef.get(axis, 0) * tile.points.get(axis, 1), -inf
            for offset in sorted({x + step for x in offsets} - offsets):
                if offset - last >= LINE // self.p.dtype.itemsize:
                    b.prefetch(source.pointer, b.add(place.offset(form), offset), source.elem)
                    last = offset

    def _cursor_at(
        self, tile: UnrolledBox, corner: dict[int, SSAValue], s: OperandAccess, number: SSAValue
    ) -> LaneCursor:
        """Return a cursor at a vector of a tile, or at one result where lanes lie along K, for NanRepair."""
        b, n, v = self.b, self.lanes, self.d.vector
        count = b.const(tile.vectors)
        values = {a: x for a, x in corner.items() if a not in (*self.k_axes, v)}
        part = s.at(values, tile.point(b, b.op("floordiv", number, count)))
        if self.in_k:
            return LaneCursor(s, 0, None).bind(part)
        return LaneCursor(s, b.add(corner[v], b.mul(b.op("mod", number, count), n)), tile.limit, n).bind(part)

    # -- what follows the sums

    def _emit_epilogue(self, tile: UnrolledBox, sums: Sequence[SSAValue]) -> None:
        """Emit the epilogue of a tile, or the store of its partial sums."""
        b, n, v, s, count = self.b, self.lanes, self.d.vector, self.epilogue.sampler, tile.vectors
        values = {a: x for a, x in self.values.items() if a != v and a not in self.p.k}
        states = [LaneCursor(s, 0, None)]
        if not self.in_k:
            states = [
                LaneCursor(s, b.add(self.values[v], j * n), tile.limit if j == count - 1 else None, n)
                for j in range(count)
            ]

        def emit_row(number: int | SSAValue, row: Sequence[SSAValue]) -> None:
            point = tile.point(b, number)
            if self.in_k:
                row = [combine_lanes(b, "add", x) for x in row]
            if self.d.split == 1:
                self.epilogue.row(states, s.at(values, point), row)
                return
            place = values | {a: b.add(values[a], x) for a, x in point.items()}
            at = (self._flat(axes, place) for axes in (self.p.batch, self.p.left, self.p.right))
            b.store(row[0], self.workspace, self.partials.place(b, self.split, *at))

        self.epilogue.rows([sums[i : i + count] for i in range(0, len(sums), count)], emit_row)

    def _flat(self, axes: Sequence[int], values: Mapping[int, SSAValue]) -> SSAValue:
        """Return the flattened point of some output axes."""
        at = self.b.const(0)
        for a in axes:
            at = self.b.add(self.b.mul(at, self.p.extents[a]), values.get(a, 0))
        return at

    # -- sums that stay in scratch while halo copies change

    def _places(self, tile: UnrolledBox) -> list[SSAValue]:
        """Return the places in scratch of a tile's sums while halo copies change."""
        b, n, v = self.b, self.lanes, self.d.vector
        row = n if self.in_k else -(-self.p.extents[v] // n) * n
        out = []
        for point in tile.each():
            at = b.mul(self._flat(self.inner, {a: b.add(self.values[a], point.get(a, 0)) for a in self.inner}), row)
            if not self.in_k:
                at = b.add(at, self.values[v])
            out += [b.add(at, j * n) for j in range(tile.vectors)]
        return out

    def _load_sums(self, tile: UnrolledBox) -> list[SSAValue]:
        """Load the sums of a tile from scratch."""
        assert self.sums is not None
        return [self.b.load(self.sums, x, self.elem, self.lanes) for x in self._places(tile)]

    def _accumulate(self, tile: UnrolledBox) -> None:
        """Add the products of a tile to its sums in scratch."""
        assert self.sums is not None
        sums = self._sum_products(tile, self._load_sums(tile))
        for x, place in zip(sums, self._places(tile), strict=True):
            self.b.store(x, self.sums, place)
