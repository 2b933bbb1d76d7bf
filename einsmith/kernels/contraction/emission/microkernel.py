"""Emit the register tile: the loop over K around mr x nv vectors of sums.

Sources: Goto and van de Geijn 2008; Van Zee and van de Geijn 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import Any

from einsmith.codegen.loopnest.dots import TILE_ROWS
from einsmith.codegen.loopnest.walk import Range, ceil_div, digits, nest, sweep
from einsmith.codegen.ssa import SSAValue
from einsmith.kernels.contraction.config import has_room_to_unroll, unroll_limit
from einsmith.kernels.contraction.emission import prefetch
from einsmith.kernels.contraction.emission.frame import Frame, Strip, TaskFrame, Tile
from einsmith.kernels.contraction.emission.k_pack import repeat_elements
from einsmith.kernels.contraction.emission.nan_repair import NanRepair
from einsmith.kernels.contraction.emission.tile_epilogue import TileEpilogue
from einsmith.kernels.contraction.k_bounds import emit_bounds
from einsmith.kernels.contraction.row_offsets import row_offsets
from einsmith.kernels.emit.access import OperandAccess
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.schedule.contraction_problem import k_limit

PREFETCH_BYTES = 4096
"""Bytes by which a packed tile of M is prefetched ahead. A tile is one stretch of memory, which the hardware prefetcher
follows, but not far enough ahead for lines in a level that cores share."""

SHARED_ELEMENT_REGISTERS = 4
"""Registers for elements of M that several points of K share."""


class Microkernel:
    """Emits the sums of a tile over a block of K."""

    def __init__(self, f: Frame, tile_epilogue: TileEpilogue):
        g = f.g
        self.f, self.tile_epilogue = f, tile_epilogue
        self.repair = NanRepair(f.b, g.original, f.arguments, g.n_side.axes, g.lanes, g.mr * g.nr, g.row)

    def emit_sums(self, t: TaskFrame, x: Tile) -> list[list[SSAValue]]:
        """Emit the loop over a block of K and return the tile's vectors of sums, row by row."""
        f, b, g, c, mr, nv = self.f, self.f.b, self.f.g, self.f.g.c, x.rows.size, x.panel.size
        groups, lo, hi, left, right = g.k_groups, x.lo, x.hi, x.left, x.right
        m0 = b.mul(x.rows.number, g.mr)
        init = self.tile_epilogue.initial_sums(x)
        self.tile_epilogue.prefetch(t, x)
        a, bs = f.m_access, f.n_access
        a_tile, steps = None, [0]
        if c.a == "inline":
            steps = row_offsets(g.m_strides, min(g.mr, g.M)) or [0]
            a_tile = LaneCursor(a, 0, None).bind(t.m_part, a.part_of(g.m_side.axes, m0))
        prefetches = prefetch.tile_prefetches(f, t, x, steps)
        points = self._k_points_per_iteration(steps[:mr], nv) if groups and not prefetches else 1
        k_points = c.depth * points  # points of K in an iteration of the loop

        def bind_outer(values: list[SSAValue]) -> Any:
            here = None if a_tile is None else a_tile.bind(a.part(groups[:-1], values))
            return here, [v.bind(bs.part(groups[:-1], values)) for v in x.panel.operand], values

        def emit_products(
            context: Any, digit: SSAValue, flat: SSAValue, carried: Sequence[SSAValue]
        ) -> Sequence[SSAValue]:
            if k_points > 1:
                digit, flat = (b.mul(v, k_points) for v in (digit, flat))
            k, out = b.sub(flat, lo), list(carried)
            vectors = [self._vectors(context[1], digit, right, b.add(k, t), nv) for t in range(points)]
            pointer, first, offsets = self._rows(context[0], digit, left, k, steps[:mr], mr)
            elements = [(b.add(first, x), uses) for x, uses in self._elements(offsets, points)]
            for emit_prefetch in prefetches:
                emit_prefetch(first, [*context[2], digit], flat, k)
            for place, uses in elements:
                element = repeat_elements(b, pointer, place, f.elem, c.depth, g.lanes)
                for i, t in uses:
                    row = slice(i * nv, i * nv + nv)
                    out[row] = [self._multiply_add(element, v, x) for v, x in zip(vectors[t], out[row], strict=True)]
            return out

        max_unrolled = self._unroll_limit(steps[:mr], mr, nv, points)
        if g.bounded:
            bounds = self._bounds(t, m0, mr, x.panel)
            box: list[Range] = [bounds.get(k.inner, (0, k.extent)) for k in groups]
            if k_limit(g.p) is not None:  # K ends before its last point
                box[0] = box[0][0], b.op("min", box[0][1], b.op("floordiv", hi, g.K // groups[0].extent))
            sums = nest(b, [k.extent for k in groups], box, init, bind_outer, emit_products, max_unrolled)
        else:
            extents = [k.extent for k in groups]
            begin, end = lo, hi
            if k_points > 1:
                extents[-1] //= k_points
                begin, end = (b.op("floordiv", k, k_points) for k in (lo, hi))
            sums = sweep(b, extents, begin, end, init, bind_outer, emit_products, max_unrolled)
        sums = self.repair.repair_sums(sums, init, g.p.k, lo, hi, partial(self._cursor_at, t, m0, x.panel))
        return [list(sums[i * nv : (i + 1) * nv]) for i in range(mr)]

    def emit_in_tiles(self, t: TaskFrame, x: Tile) -> None:
        """Emit the loops over a block of K in tile registers; the tile's sums end in scratch.

        Registers 0 to 3 hold the sums of two by two tiles, 4 and 5 those of M, 6 and 7 those of N. Rows of M are along
        K; panels of N have a row for each word. The words of either past the end of K are zero. Rows past the tile's
        last one have sums too, of whatever memory holds, which nothing reads. A panel of more than two vectors is
        walked two by two, while L1 holds the rows of M.
        """
        b, g, sums = self.f.b, self.f.g, self.tile_epilogue.scratch_sums
        assert sums is not None and x.left is not None and x.right is not None and g.p.dot is not None
        rows, n, width = range(ceil_div(x.rows.size, TILE_ROWS)), TILE_ROWS, x.panel.size * TILE_ROWS
        is_reversed = g.p.dot_first != int(g.c.swap)
        at, steps = sums.place(x.number), b.op("floordiv", b.add(b.sub(x.hi, x.lo), n - 1), n)
        for first in range(0, x.panel.size, 2):
            vectors = range(min(2, x.panel.size - first))
            places = {2 * i + j: b.add(at, i * n * sums.width + (first + j) * n) for i in rows for j in vectors}
            for register, place in places.items():
                if g.blocked:
                    b.tile_load(register, sums.sums, place, sums.width)
                else:
                    b.tile_zero(register)
            with b.loop(0, steps) as loop:
                k = b.mul(loop.var, n)
                for j in vectors:
                    b.tile_load(6 + j, x.right, b.add(b.mul(k, width), (first + j) * n), width)
                for i in rows:
                    b.tile_load(4 + i, x.left, b.add(k, i * n * g.k_pad), g.k_pad)
                for i in rows:
                    for j in vectors:
                        b.tile_dot(g.p.dot, 2 * i + j, 4 + i, 6 + j, is_reversed)
            for register, place in places.items():
                b.tile_store(register, sums.sums, place, sums.width)

        def place_of(number: SSAValue) -> SSAValue:
            row, vector = digits(b, number, (g.mr, x.panel.size))
            return b.add(at, b.add(b.mul(row, sums.width), b.mul(vector, n)))

        cursor = partial(self._cursor_at, t, b.mul(x.rows.number, g.mr), x.panel)
        self.repair.repair_stored(sums.sums, place_of, x.rows.size * x.panel.size, g.p.k, x.lo, x.hi, cursor)

    def _multiply_add(self, element: SSAValue, vector: SSAValue, total: SSAValue) -> SSAValue:
        """Emit total + element*vector, of elements of M and N or of their words."""
        b, p = self.f.b, self.f.g.p
        if p.dot is None:
            return b.fma(element, vector, total)
        words = (element, vector) if p.dot_first == int(self.f.g.c.swap) else (vector, element)
        return b.dot(p.dot, *words, total)

    def _vectors(
        self, states: Sequence[LaneCursor], digit: SSAValue, right: SSAValue | None, k: SSAValue, nv: int
    ) -> list[SSAValue]:
        """Return the vectors of the N operand at a point of K."""
        f, b, n = self.f, self.f.b, self.f.g.lanes
        if right is None:
            part = f.n_access.part(f.g.k_groups[-1:], [digit])
            return [x.bind(part).product() for x in states]
        at = b.mul(k, nv * n // f.g.c.depth)
        return [b.load(right, b.add(at, v * n), f.elem, n) for v in range(nv)]

    def _rows(
        self,
        state: LaneCursor | None,
        digit: SSAValue,
        left: SSAValue | None,
        k: SSAValue,
        steps: Sequence[int],
        mr: int,
    ) -> tuple[SSAValue, SSAValue, Sequence[int]]:
        """Return the M operand's pointer, the place of the first row at a point of K, and each row's offset from it."""
        f, b, g, a = self.f, self.f.b, self.f.g, self.f.m_access
        if left is None:
            assert state is not None
            read = next(iter(a.reads))
            here = state.bind(a.part(g.k_groups[-1:], [digit]))
            return a.memories[read.slot].pointer, here.offset(a.reads[read]), steps
        if g.a.along_k:
            return left, k, [i * g.k_pad for i in range(mr)]
        at = b.mul(k, mr)
        if g.c.a == "buffer":
            b.prefetch(left, b.add(at, PREFETCH_BYTES // g.item), f.elem)
        return left, at, range(mr)

    def _unroll_limit(self, steps: Sequence[int], mr: int, nv: int, points: int) -> int:
        """Return the largest extent of the innermost axis of K that is unrolled."""
        f, c = self.f, self.f.g.c
        if c.a == "inline" and f.g.k_groups and self._has_shared_elements(steps):
            return 0
        if c.b == "inline" and any(
            f.n_access.step(x) == 2 for x in f.n_access.reads.values() if f.n_access.lane_groups
        ):
            return 0  # loads that wait for their shuffles would take registers from the sums
        if not has_room_to_unroll(mr, nv, f.g.registers):
            return 0
        return unroll_limit(nv) // (mr * nv * points)

    # -- elements of M that rows of a tile share

    def _has_shared_elements(self, steps: Sequence[int]) -> bool:
        """Return whether rows of a tile read an element in common at different points of the innermost axis of K.

        If that axis were unrolled, the compiler would load the element once and keep it in a register that a sum needs.
        """
        step, points = self._k_stride(), self.f.g.k_groups[-1].extent
        if not step:
            return points > 1 or len({*steps}) < len(steps)
        distances = (abs(x - y) for x, y in combinations(steps, 2))
        return any(d % step == 0 and d // abs(step) < points for d in distances)

    def _k_stride(self) -> int:
        """Return the elements between a row's reads at neighbouring points of the innermost axis of K."""
        a = self.f.m_access
        return a.forms[next(iter(a.reads.values()))].coef.get(self.f.g.k_groups[-1].inner, 0)

    def _elements(self, rows: Sequence[int], points: int) -> Sequence[tuple[int, list[tuple[int, int]]]]:
        """Return the elements that rows of a tile read at `points` points of an axis of K, in the order of the points.

        Each is (offset from the first row's element, [(row, point) that reads it, ...]); `rows` holds each row's
        offset.
        """
        if points == 1:
            return [(x, [(i, 0)]) for i, x in enumerate(rows)]
        step, uses = self._k_stride(), dict[int, list[tuple[int, int]]]()
        for i, x in enumerate(rows):
            for t in range(points):
                uses.setdefault(x + step * t, []).append((i, t))
        return sorted(uses.items(), reverse=step < 0)

    def _k_points_per_iteration(self, steps: Sequence[int], nv: int) -> int:
        """Return the points of the innermost axis of K that an iteration of the loop takes together.

        An element that rows of a tile read at several points is then loaded once. Their number divides
        blocks and parts of K, and is limited by the registers left for their vectors of N. Tiles of several vectors
        take one point: they load less than they multiply anyway.
        """
        g, c, sums = self.f.g, self.f.g.c, len(steps) * nv
        if (
            c.a != "inline"
            or c.b == "inline"
            or c.depth > 1
            or nv > 1
            or g.bounded
            or not self._has_shared_elements(steps)
        ):
            return 1
        free = g.registers - sums - SHARED_ELEMENT_REGISTERS
        extents = [g.k_groups[-1].extent, g.kc, g.k_max]
        if k_limit(g.p) is not None:  # where K ends
            extents.append(g.p.count(g.p.k[1:]))
        return max(
            d for d in range(1, max(1, min(free, unroll_limit(nv) // sums)) + 1) if not any(x % d for x in extents)
        )

    # -- guards

    def _cursor_at(self, t: TaskFrame, m0: SSAValue, panel: Strip, s: OperandAccess, number: SSAValue) -> LaneCursor:
        """Return a cursor at the lanes of vector `number` of a tile, for NanRepair."""
        b, g, n = self.f.b, self.f.g, self.f.g.lanes
        row, vector = digits(b, number, (g.mr, panel.size))
        at = b.add(b.mul(panel.number, g.nr), b.mul(vector, n))
        state = LaneCursor(s, at, g.N if g.N % n else None, n)
        return state.bind(s.part_of(g.p.batch, t.batch), s.part_of(g.m_side.axes, b.add(m0, row)))

    def _bounds(self, t: TaskFrame, m0: SSAValue, mr: int, panel: Strip) -> dict[int, tuple[SSAValue, SSAValue]]:
        """Return the bounds of the axes of K that guards of either side leave for a tile."""
        f, b, g = self.f, self.f.b, self.f.g
        rows = [b.add(m0, i) for i in range(mr)]
        out = emit_bounds(b, g.p, g.m_bounds, f.slots, t.batch, g.m_side.axes, rows, {})
        if g.n_bounds:  # rows of N: a vector has one value of every axis but the innermost
            n0 = b.mul(panel.number, g.nr)
            rows = [b.op("floordiv", b.add(n0, v * g.lanes), g.row) for v in range(panel.size)]
            out = emit_bounds(b, g.p, g.n_bounds, f.slots, t.batch, g.n_side.axes[:-1], rows, out)
        return out
