"""Emit the values of a chain's members at the points of one turn of a sweep: their roots, operands and tiles.

Points are a matrix, rows of the held side by columns of the swept one. A tile tensor is computed in registers, when the
first member of the turn reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from einsmith.base import dtypes as dt
from einsmith.codegen.ssa import SSAValue
from einsmith.gpu.tiles.chains import Chain, read_places
from einsmith.gpu.tiles.contraction import emit_root_steps
from einsmith.gpu.tiles.ir import TileBuilder
from einsmith.gpu.tiles.operations import LEAST_K
from einsmith.gpu.tiles.pieces import Tiling, bound_masks, least_power
from einsmith.gpu.tiles.points import Points, Slot, TileMemory, number_lanes, unravel
from einsmith.gpu.tiles.reduction import TileCombine
from einsmith.ir.nodes import Expr, Piece, Read, Reduce, reads
from einsmith.schedule.contraction_problem import Operand, Problem

MOST_DEPTH = 128
"""Most terms of a tile's product that are multiplied at once, so that the held factor is loaded once for all turns."""
MOST_WRITTEN_OUT = 8
"""Most terms of a tile's sum that are written out."""


@dataclass
class SweepSide:
    """Points along a dimension of a tile: their numbers, the values of the classes of axes, and the conditions that
    hold at points."""

    number: SSAValue
    axes: dict[int, SSAValue]
    live: list[SSAValue]


def points_of(
    b: TileBuilder, chain: Chain, classes: Sequence[int], first: SSAValue, size: int, expand: int | None = None
) -> SweepSide:
    """Return `size` points of a box of classes from number `first` on; expand: the number of the other dimension, None
    where there is none."""
    extents = [chain.extents[c] for c in classes]
    count = prod(extents)
    number = number_lanes(b, b.arange(size), first, count)
    number = number if expand is None else b.expand(number, expand)
    axes = dict(zip(classes, unravel(b, number, extents), strict=True))
    return SweepSide(number, axes, bound_masks(b, number, count, size))


class SweepTurn:
    """The values at the points of one turn of a loop over the swept side.

    Args:
        places: the memory of each member's buffers.
        batch: the values of the classes of the batch, which are scalars.
        held: the points of the held side, along the first dimension of a matrix.
        rows: the same points as a tile of one dimension.
        swept: the classes of the other side.
        shape: rows and columns of a tile.
        part, divided: the program's number among those that share the columns of sums, and how many these are.
    """

    def __init__(
        self,
        b: TileBuilder,
        chain: Chain,
        places: Sequence[Sequence[TileMemory]],
        tiling: Tiling,
        batch: Mapping[int, SSAValue],
        held: SweepSide,
        rows: SweepSide,
        swept: Sequence[int],
        shape: tuple[int, int],
        part: SSAValue,
        divided: int,
    ):
        self.b, self.chain, self.places, self.tiling = b, chain, places, tiling
        self.batch, self.held, self.rows, self.swept, self.shape = batch, held, rows, swept, shape
        self.part, self.divided = part, divided
        self.factors: dict[int, SSAValue] = {}  # held factors of the products of tiles, by member
        self.column: SweepSide | None = None
        self.start: SSAValue | None = None  # of the swept points of this turn
        self.tiles: dict[int, SSAValue] = {}  # tile tensors in this turn
        self.running: dict[int, SSAValue] = {}  # results of sums so far, by place: tiles of one dimension

    def begin(self, start: SSAValue) -> None:
        """Begin the turn of the swept points from number `start` on."""
        self.column, self.start = points_of(self.b, self.chain, self.swept, start, self.shape[1], 0), start

    def end(self) -> None:
        """Forget what is known of the last turn: the loop is over."""
        self.tiles.clear()
        self.running.clear()
        self.column = None

    def stages(
        self,
        n: int,
        results: list[Sequence[SSAValue]],
        axes: Mapping[int, SSAValue],
        live: Sequence[SSAValue],
        flat: bool = False,
    ) -> dict[int, SSAValue]:
        """Return the results of a member, by place, from those of its root. flat: at points of one dimension."""
        kernel, m = self.chain.members[n].kernel, self.chain.members[n]
        for k, stage in enumerate(kernel.stages[1:], 1):
            t = stage.template
            bodies = t.parts[0].bodies
            slots = self.slots(n, k, bodies, results, flat)
            results.append(Points(self.b, t.shape, axes, live, slots).values(bodies))
        return {
            m.places[buffer]: value
            for stage, values in zip(kernel.stages, results, strict=True)
            for buffer, value in zip(stage.outputs, values, strict=True)
            if buffer is not None
        }

    def epilogue(
        self, n: int, p: Problem, axes: Mapping[int, SSAValue], live: Sequence[SSAValue], total: SSAValue
    ) -> SSAValue:
        """Emit the steps that follow a product's sum within the root."""
        b = self.b
        slots = self.slots(n, 0, [e for _, e in p.epilogue if e is not None])
        points = Points(b, p.extents, axes, live, slots)
        return emit_root_steps(b, p, points, total)

    # -- points

    def live(self) -> list[SSAValue]:
        """Return the conditions that hold at the points of a tile."""
        assert self.column is not None
        return [*self.held.live, *self.column.live]

    def turned_column(self) -> SweepSide:
        """Return the points of the swept side along the first dimension."""
        assert self.start is not None
        return points_of(self.b, self.chain, self.swept, self.start, self.shape[1], 1)

    def axes(
        self,
        n: int,
        more: Mapping[int, SSAValue] = {},  # noqa: B006
        tile: bool = True,
        own: bool = False,
        flat: bool = False,
    ) -> dict[int, SSAValue]:
        """Return the values of a member's axes: of the batch and of the held side, as a tile of one dimension if
        `flat`, of the swept side if `tile`, and those of `more`, which are by class, or by axis if `own`."""
        chain = self.chain
        values = {**self.batch, **(self.rows if flat else self.held).axes}
        if tile and not flat and self.column is not None:
            values |= self.column.axes
        if not own:
            values |= more
        piece = chain.members[n].kernel.root.parts[0]
        assert isinstance(piece, Piece)
        out = {}
        for a, extent in enumerate(piece.domain):
            if extent == 1:
                out[a] = self.b.const(0)
            elif own and a in more:
                out[a] = more[a]
            elif chain.classes[n, a] in values:
                out[a] = values[chain.classes[n, a]]
        return out

    def slots(
        self,
        n: int,
        stage: int,
        bodies: Sequence[Expr],
        results: Sequence[Sequence[SSAValue]] = (),
        flat: bool = False,
    ) -> list[Slot]:
        """Return the arguments of a member's stage that expressions read: tiles, results so far, memory, or results of
        earlier stages."""
        member, out = self.chain.members[n], list[Slot]()
        read = {r.slot for e in bodies for r in reads(e)}
        for slot, (kind, *where) in enumerate(member.kernel.stages[stage].args):
            place = member.places[where[0]] if kind == "buffer" else -1
            if kind == "stage":
                out.append(results[where[0]][where[1]])
            elif slot in read and place in self.chain.makers:
                out.append(self.tile(place))
            elif slot in read and place in self.running:
                out.append(self.running[place] if flat else self.b.expand(self.running[place], 1))
            else:
                out.append(self.places[n][where[0]])
        return out

    # -- tiles

    def tile(self, place: int) -> SSAValue:
        """Return the tile of a tile tensor in this turn."""
        if place not in self.tiles:
            n = self.chain.makers[place]
            kernel = self.chain.members[n].kernel
            piece = kernel.root.parts[0]
            assert isinstance(piece, Piece)
            axes, live = self.axes(n), self.live()
            if isinstance(piece.body, Reduce):
                root = self._sum_of_tile(n, piece, axes, live)
            else:
                root = Points(self.b, piece.domain, axes, live, self.slots(n, 0, piece.bodies)).values(piece.bodies)
            for p, value in self.stages(n, [root], axes, live).items():
                self.tiles[p] = value
        return self.tiles[place]

    def store_tile(self, place: int) -> None:
        """Store the tile of a tile tensor in this turn."""
        b, n = self.b, self.chain.makers[place]
        member, axes = self.chain.members[n], self.axes(n)
        live = [*self.live(), *([b.op("lt", self.part, 1)] if self.divided > 1 else [])]
        buffer = next(x for x in member.kernel.outputs if member.places[x] == place)
        at = [axes[a] for a in range(member.kernel.root.rank)]
        self.places[n][buffer].store(b, at, b.broadcast(self.tile(place), self.shape), live)

    def _sum_of_tile(
        self, n: int, piece: Piece, axes: Mapping[int, SSAValue], live: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """Return the results of a sum at the points of a tile: a dot, or its terms one by one."""
        b, p = self.b, self.chain.product_of(n)
        if p is not None:
            return [self.epilogue(n, p, axes, live, self._dot_of_tile(n, p))]
        body = piece.body
        assert isinstance(body, Reduce)
        combine, terms, rank = TileCombine(b, body), prod(body.extents), len(piece.extents)

        def add(state: Sequence[SSAValue], number: SSAValue) -> list[SSAValue]:
            inner = dict(enumerate(unravel(b, number, body.extents), rank))
            points = Points(b, piece.domain, {**axes, **inner}, live, self.slots(n, 0, body.bodies))
            return combine.merge(state, combine.term_states(points.values(body.bodies), number, [], self.shape))

        state = combine.identity_state(self.shape)
        if terms <= MOST_WRITTEN_OUT:
            for k in range(terms):
                state = add(state, b.const(k))
        else:
            tiles, self.tiles = self.tiles, dict(self.tiles)
            for place in read_places(self.chain.members[n]) & self.chain.makers.keys():
                tiles[place] = self.tile(place)
            with b.loop(0, terms, 1, state) as loop:
                loop.next = add(loop.carried, loop.var)
            self.tiles, state = tiles, list(loop.results)
        return combine.results(state)

    def _held_operand(self, n: int, p: Problem) -> tuple[int, int]:
        """Return the numbers of the operand of a tile's product that varies along the held side, and of the other."""
        left, right = self.chain.operands(n, p) or (0, 1)
        return (left, right) if {*self.held.axes} == {*self.chain.sides[0]} else (right, left)

    def load_factor(self, n: int) -> None:
        """Load the held factor of a tile's product before the loop, unless it is too long."""
        b, p = self.b, self.chain.product_of(n)
        if p is None or self._depth(p) < p.count(p.k):
            return
        held, _ = self._held_operand(n, p)
        terms = self._terms(n, p, b.const(0), 0)
        axes = self.axes(n, terms.axes, tile=False, own=True)
        shape = (self.shape[0], self._depth(p))
        self.factors[n] = self.operand(n, p, held, axes, [*self.held.live, *terms.live], shape)

    def _depth(self, p: Problem) -> int:
        """Return how many terms of a tile's product are multiplied at once."""
        most = MOST_DEPTH if least_power(p.count(p.k)) <= MOST_DEPTH else self.tiling.k
        return max(LEAST_K, min(most, least_power(p.count(p.k))))

    def _terms(self, n: int, p: Problem, first: SSAValue, expand: int) -> SweepSide:
        """Return terms of a tile's product along K, by the axes of the member."""
        b, size, count = self.b, self._depth(p), p.count(p.k)
        number = b.expand(number_lanes(b, b.arange(size), first, count), expand)
        axes = dict(zip(p.k, unravel(b, number, [p.extents[a] for a in p.k]), strict=True))
        return SweepSide(number, axes, bound_masks(b, number, count, size))

    def _dot_of_tile(self, n: int, p: Problem) -> SSAValue:
        """Return the sum of a product at the points of a tile."""
        b, (m, columns), depth = self.b, self.shape, self._depth(p)
        held, swept = self._held_operand(n, p)

        def add(total: SSAValue, first: SSAValue) -> SSAValue:
            terms, turned = self._terms(n, p, first, 0), self._terms(n, p, first, 1)
            x = self.factors.get(n)
            if x is None:
                axes = self.axes(n, terms.axes, tile=False, own=True)
                x = self.operand(n, p, held, axes, [*self.held.live, *terms.live], (m, depth))
            assert self.column is not None
            axes = self.axes(n, turned.axes, own=True)
            y = self.operand(n, p, swept, axes, [*turned.live, *self.column.live], (depth, columns))
            return b.dot(x, y, total, self.precision(p))

        zero = b.full(self.shape, 0.0, p.dtype.name)
        if depth >= p.count(p.k):
            return add(zero, b.const(0))
        with b.loop(0, p.count(p.k), depth, [zero]) as loop:
            loop.next = [add(loop.carried[0], loop.var)]
        return loop.results[0]

    def operand(
        self,
        n: int,
        p: Problem,
        number: int,
        axes: Mapping[int, SSAValue],
        live: Sequence[SSAValue],
        shape: tuple[int, int],
    ) -> SSAValue:
        """Return a tile of an operand of a member's product, zero outside the box and where guards fail."""
        b, o = self.b, p.operands[number]
        points = Points(b, p.extents, axes, live, self.slots(n, 0, [o.expr, *o.guards]))
        value = points.value(o.expr, o.guards)
        mask = b.conjoin([*live, *points.conditions(o.guards)])
        if mask is not None and not (self._is_load(n, o) and value.shape == shape):
            value = b.select(mask, value, b.const(0.0, value.elem))
        return b.broadcast(value, shape)

    def _is_load(self, n: int, o: Operand) -> bool:
        """Return whether an operand is loaded from memory; masked loads give zero without a select."""
        return isinstance(o.expr, Read) and self.chain.slot_place(n, 0, o.expr.slot) not in (
            {*self.chain.makers} | {*self.running}
        )

    def precision(self, p: Problem) -> str:
        """Return the precision of a product's dot."""
        return self.tiling.precision if p.dtype is dt.f32 else "ieee"
