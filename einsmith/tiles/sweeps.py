"""Lower phases of chains of reductions: a program holds a block of one side and sweeps over the other one.

before: for each block of i:  for each block of j:  s[i,j];  m[i], l[i], o[i,v]
after:  a loop over j that carries tiles of m, l and o; s = dot(q, k) is a tile in registers

Points are a matrix, rows of the held side by columns of the swept one. A sum that follows a running maximum is rescaled
when the maximum changes (Milakov and Gimelshein 2018). A phase passes results to later members in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from einsmith.base import dtypes as dt
from einsmith.ir.functions import identity
from einsmith.ir.nodes import Expr, Piece, Read, Reduce, reads
from einsmith.kernels.contraction.problem import Operand, Problem
from einsmith.schedule.row_blocks import NO_RESULT
from einsmith.tiles import arith
from einsmith.tiles.bounds import Ends, bound_sweep, find_condition
from einsmith.tiles.chains import Chain, SweepPhase
from einsmith.tiles.contraction import LEAST_DOT_EXTENT, emit_root_steps
from einsmith.tiles.ir import TileBuilder, TileValue
from einsmith.tiles.pieces import Functions, Tiling, blocks, bound_masks, least_power
from einsmith.tiles.points import MOST_I32_POINTS, Points, Slot, TileMemory, number_lanes, unravel
from einsmith.tiles.reduction import TileCombine
from einsmith.tiles.verify import LEAST_K

MOST_ROWS = 64
"""Most rows and columns of the points of a sweep: the tile, its factors and the sums lie in registers at once."""
MOST_DEPTH = 128
"""Most terms of a tile's product that are multiplied at once, so that the held factor is loaded once for all turns."""
MOST_TURN_BYTES = 1 << 15
"""Most bytes that the products of a turn take of the swept side: those of three turns, which are loaded ahead, and the
held factors lie in the shared memory of a block."""
MOST_WRITTEN_OUT = 8
"""Most terms of a tile's sum that are written out."""


@dataclass
class _SweepSide:
    """Points along a dimension of a tile: their numbers, the values of the classes of axes, and the conditions that
    hold at points."""

    number: TileValue
    axes: dict[int, TileValue]
    live: list[TileValue]


@dataclass
class _Sum:
    """A sink while its sweep runs: the sums of one block of columns at once, or of single columns one by one.

    Attributes:
        member: the sink.
        columns: the points of its columns, each a block or a single one.
        product: the sum as a product; None where terms are added one by one.
        states: what the loop carries, for each of `columns`.
    """

    member: int
    columns: list[_SweepSide]
    product: Problem | None
    states: list[list[TileValue]]


def lower_phase(
    functions: Functions, chain: Chain, phase: SweepPhase, places: Sequence[Sequence[TileMemory]], tiling: Tiling
) -> None:
    """Lower a phase to a function. places: the memory of each member's buffers."""
    held, swept = chain.sides[phase.held], chain.sides[1 - phase.held]
    rows, columns, batch = chain.count(held), chain.count(swept), chain.count(chain.batch)
    m = _extent(min(MOST_ROWS, tiling.m), rows)
    n = _extent(min(MOST_ROWS, tiling.n, _most_columns(chain, phase)), columns)
    divided = max(chain.columns_of_programs(k)[1] for sinks in phase.sweeps for k in sinks)
    b = functions.begin("sweep")
    program = b.program()
    part, program = b.op("rem", program, divided), b.op("quot", program, divided)
    block, number = b.op("rem", program, blocks(rows, m)), b.op("quot", program, blocks(rows, m))
    batch_axes = dict(zip(chain.batch, unravel(b, number, [chain.extents[c] for c in chain.batch]), strict=True))
    first = b.op("mul", _wide(b, block, rows), m)
    sides = _points(b, chain, held, first, m, 1), _points(b, chain, held, first, m)
    for k, sinks in enumerate(phase.sweeps):
        if k:
            b.barrier()
        _SweepEmitter(b, chain, places, tiling, batch_axes, first, *sides, swept, (m, n), part, divided).emit(sinks)
    functions.add(b, batch * blocks(rows, m) * divided)


def _extent(most: int, count: int) -> int:
    """Return the extent of a dimension of a tile."""
    return max(LEAST_DOT_EXTENT, min(most, least_power(count)))


def _most_columns(chain: Chain, phase: SweepPhase) -> int:
    """Return how many points of the swept side a turn may have, so that what its products take of it stays in shared
    memory."""
    most = MOST_ROWS
    for sinks in phase.sweeps:
        nbytes = 0  # of a point
        for n in {k for s in sinks for k in chain.closure(s)}:
            p = chain.product_of(n)
            if p is not None:
                terms = chain.columns_of_programs(n)[0] if n in chain.sinks else min(MOST_DEPTH, p.count(p.k))
                nbytes += p.dtype.itemsize * least_power(terms)
        while most > LEAST_DOT_EXTENT and most * nbytes > MOST_TURN_BYTES:
            most //= 2
    return most


def _wide(b: TileBuilder, x: TileValue, count: int) -> TileValue:
    return b.cast(x, "i64") if count > MOST_I32_POINTS else x


def _points(
    b: TileBuilder, chain: Chain, classes: Sequence[int], first: TileValue, size: int, expand: int | None = None
) -> _SweepSide:
    """Return `size` points of a box of classes from number `first` on; expand: the number of the other dimension, None
    where there is none."""
    extents = [chain.extents[c] for c in classes]
    count = prod(extents)
    number = number_lanes(b, b.arange(size), first, count)
    number = number if expand is None else b.expand(number, expand)
    axes = dict(zip(classes, unravel(b, number, extents), strict=True))
    return _SweepSide(number, axes, bound_masks(b, number, count, size))


class _SweepEmitter:
    """The emitter of one loop.

    Args:
        batch: the values of the classes of the batch, which are scalars.
        first: the number of the first point of the held side.
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
        batch: Mapping[int, TileValue],
        first: TileValue,
        held: _SweepSide,
        rows: _SweepSide,
        swept: Sequence[int],
        shape: tuple[int, int],
        part: TileValue,
        divided: int,
    ):
        self.b, self.chain, self.places, self.tiling = b, chain, places, tiling
        self.first = first
        self.batch, self.held, self.rows, self.swept, self.shape = batch, held, rows, swept, shape
        self.part, self.divided = part, divided
        self.factors: dict[int, TileValue] = {}  # held factors of the products of tiles, by member
        self.column: _SweepSide | None = None
        self.tiles: dict[int, TileValue] = {}  # tile tensors in this turn
        # Results of sums so far, and factors of sums that follow them, by place: tiles of one dimension.
        self.running: dict[int, TileValue] = {}
        self.corrections: dict[int, TileValue] = {}
        self.start: TileValue | None = None  # of the swept points of this turn

    def emit(self, members: Sequence[int]) -> None:
        """Emit the loop, the steps that follow the sums, and the stores of members' results."""
        b, chain = self.b, self.chain
        sums = [self._begin(n) for n in members if n in chain.sinks]
        for n in sorted({k for s in members for k in chain.closure(s)} - chain.sinks.keys()):
            self._load_factor(n)
        count = chain.count(self.swept)
        lo, hi = self._bounds(members, count)
        with b.loop(lo, hi, self.shape[1], [v for s in sums for x in s.states for v in x]) as loop:
            self.column, self.start = _points(b, chain, self.swept, loop.var, self.shape[1], 0), loop.var
            self._take(sums, loop.carried)
            for s in sums:
                self._add(s)
            for place in (p for n in members for p in chain.results(n) if p in chain.stored):
                self._store_tile(place)
            loop.next = [v for s in sums for x in s.states for v in x]
        self._take(sums, loop.results)
        self.tiles.clear()
        self.running.clear()
        self.column = None
        for s in sums:
            self._finish(s)

    def _bounds(self, members: Sequence[int], count: int) -> tuple[TileValue, TileValue]:
        """Return the bounds of the loop: the part of the swept side that masks do not exclude."""
        b, chain, elem = self.b, self.chain, "i64" if count > MOST_I32_POINTS else "i32"
        only_sums = all(n in chain.sinks for n in members)
        bounded = only_sums and len(self.swept) == 1 and count > self.shape[1]
        condition = find_condition(chain, members) if bounded else None
        if condition is None:
            return b.const(0, elem), b.const(count, elem)
        ends = {c: Ends(x, x) for c, x in ((c, b.cast(x, elem)) for c, x in self.batch.items())}
        ends |= {c: Ends(b.const(0, elem), b.const(chain.extents[c] - 1, elem)) for c in self.held.axes}
        if len(self.held.axes) == 1:
            (c,), first = self.held.axes, b.cast(self.first, elem)
            last = b.op("add", first, self.shape[0] - 1)
            ends[c] = Ends(first, b.op("min", last, chain.extents[c] - 1))
        return bound_sweep(b, condition, self.swept[0], ends, count, self.shape[1])

    # -- sums

    def _begin(self, n: int) -> _Sum:
        """Return a sum of no terms."""
        b, chain = self.b, self.chain
        classes = chain.columns(n)
        size, programs = chain.columns_of_programs(n)
        p = chain.product_of(n)
        m = self.shape[0]
        if p is not None:
            width = max(LEAST_DOT_EXTENT, least_power(size))
            column = _points(b, chain, classes, b.op("mul", self.part, width), width, 0)
            if programs < self.divided:
                column.live.append(b.op("lt", self.part, programs))
            return _Sum(n, [column], p, [[b.full((m, width), 0.0, p.dtype.name)]])
        singles = []
        for k in range(size):
            number = b.op("add", b.op("mul", self.part, size), k)
            extents = [chain.extents[c] for c in classes]
            live = [b.op("lt", number, prod(extents))] if programs * size != prod(extents) else []
            if programs < self.divided:
                live.append(b.op("lt", self.part, programs))
            singles.append(_SweepSide(number, dict(zip(classes, unravel(b, number, extents), strict=True)), live))
        combine = TileCombine(b, self._reduce(n))
        return _Sum(n, singles, None, [combine.identity_state((m,)) for _ in singles])

    def _reduce(self, n: int) -> Reduce:
        body = self.chain.members[n].kernel.root.parts[0].body
        assert isinstance(body, Reduce)
        return body

    @staticmethod
    def _take(sums: Sequence[_Sum], values: Sequence[TileValue]) -> None:
        """Set the states of sums to the values that a loop carries."""
        rest = iter(values)
        for s in sums:
            s.states = [[next(rest) for _ in x] for x in s.states]

    def _add(self, s: _Sum) -> None:
        """Add the terms of this turn to a sum."""
        b, n = self.b, s.member
        follow = self.chain.following.get(n)
        if follow is not None:
            s.states = [[self._corrected(x, follow.place) for x in state] for state in s.states]
        if s.product is not None:
            left, right = self.chain.operands(n, s.product) or (0, 1)
            x = self._operand(n, s.product, left, self._axes(n), self._live(), self.shape)
            width = s.states[0][0].shape[1]
            turned = self._turned_column()
            at = self._axes(n, {**turned.axes, **s.columns[0].axes}, tile=False)
            y = self._operand(n, s.product, right, at, [*turned.live, *s.columns[0].live], (self.shape[1], width))
            s.states = [[b.dot(x, y, s.states[0][0], self._precision(s.product))]]
            return
        kernel, body = self.chain.members[n].kernel, self._reduce(n)
        piece = kernel.root.parts[0]
        assert isinstance(piece, Piece) and self.column is not None
        combine = TileCombine(b, body)
        for k, column in enumerate(s.columns):
            axes = self._axes(n, column.axes)
            live = [*self._live(), *column.live]
            points = Points(b, piece.domain, axes, live, self._slots(n, 0, body.bodies))
            position = self._position(n, axes) if combine.arg else b.const(0)
            terms = combine.term_states(points.values(body.bodies), position, self._live(), self.shape)
            before = s.states[k]
            s.states[k] = combine.merge(before, combine.merge_lanes(terms, 1))
            if any(f.reducer == n for f in self.chain.following.values()):
                self._run_on(n, before, s.states[k])

    def _position(self, n: int, axes: Mapping[int, TileValue]) -> TileValue:
        """Return the number of a term among those of a reduction, in the order of its axes."""
        b, rank, out = self.b, self.chain.members[n].kernel.root.rank, self.b.const(0)
        for d, extent in enumerate(self._reduce(n).extents):
            out = b.op("add", b.op("mul", out, extent), b.cast(axes[rank + d], "i32"))
        return out

    def _run_on(self, n: int, before: Sequence[TileValue], after: Sequence[TileValue]) -> None:
        """Set the running results of a reducer, and the factors of sums that follow them: exp(before - after) for a
        maximum; `NO_RESULT` where there was none, 1 where it stays."""
        b, combiner = self.b, self._reduce(n).combiner
        combine = TileCombine(b, self._reduce(n))
        results = [
            self._stages(n, [combine.results(x)], self._axes(n, flat=True), self.rows.live, True)
            for x in (before, after)
        ]
        none = b.op("eq", before[0], b.const(identity(combiner, self._reduce(n).dtypes[0]), before[0].elem))
        for place, x, y in ((p, results[0][p], results[1][p]) for p in results[1]):
            self.running[place] = y
            change = b.op("sub", x, y) if combiner == "max" else b.op("sub", y, x)
            factor = arith.apply(b, "exp", change)
            factor = b.select(none, b.const(NO_RESULT, factor.elem), factor)
            self.corrections[place] = b.select(b.op("eq", x, y), b.const(1.0, factor.elem), factor)

    def _corrected(self, x: TileValue, place: int) -> TileValue:
        """Return a sum so far times the correction factor of a running result. Without an earlier result the sum may be
        NaN, and is dropped."""
        b, factor = self.b, self.corrections[place]
        factor = b.expand(factor, 1) if len(x.shape) > 1 else factor
        none = b.op("lt", factor, b.const(0.0, factor.elem))
        return b.select(none, b.const(0.0, x.elem), b.op("mul", x, factor))

    def _finish(self, s: _Sum) -> None:
        """Emit the steps that follow a sum, and store the results."""
        b, n = self.b, s.member
        kernel = self.chain.members[n].kernel
        for column, state in zip(s.columns, s.states, strict=True):
            axes = self._axes(n, column.axes, tile=False, flat=s.product is None)
            if s.product is None:
                live = [*self.rows.live, *column.live]
                values = TileCombine(b, self._reduce(n)).results(state)
            else:
                live = [*self.held.live, *column.live]
                values = [self._epilogue(n, s.product, axes, live, state[0])]
            results = self._stages(n, [values], axes, live, s.product is None)
            if not column.axes:
                self.running |= results
            at = [axes[a] for a in range(kernel.root.rank)]
            for stage in kernel.stages:
                for buffer in stage.outputs:
                    if buffer is not None:
                        value = b.broadcast(results[self.chain.members[n].places[buffer]], state[0].shape)
                        self.places[n][buffer].store(b, at, value, live)

    def _stages(
        self,
        n: int,
        results: list[Sequence[TileValue]],
        axes: Mapping[int, TileValue],
        live: Sequence[TileValue],
        flat: bool = False,
    ) -> dict[int, TileValue]:
        """Return the results of a member, by place, from those of its root. flat: at points of one dimension."""
        kernel, m = self.chain.members[n].kernel, self.chain.members[n]
        for k, stage in enumerate(kernel.stages[1:], 1):
            t = stage.template
            bodies = t.parts[0].bodies
            slots = self._slots(n, k, bodies, results, flat)
            results.append(Points(self.b, t.shape, axes, live, slots).values(bodies))
        return {
            m.places[buffer]: value
            for stage, values in zip(kernel.stages, results, strict=True)
            for buffer, value in zip(stage.outputs, values, strict=True)
            if buffer is not None
        }

    def _epilogue(
        self, n: int, p: Problem, axes: Mapping[int, TileValue], live: Sequence[TileValue], total: TileValue
    ) -> TileValue:
        """Emit the steps that follow a product's sum within the root."""
        b = self.b
        slots = self._slots(n, 0, [e for _, e in p.epilogue if e is not None])
        points = Points(b, p.extents, axes, live, slots)
        return emit_root_steps(b, p, points, total)

    # -- tiles

    def _tile(self, place: int) -> TileValue:
        """Return the tile of a tile tensor in this turn."""
        if place not in self.tiles:
            n = self.chain.makers[place]
            kernel = self.chain.members[n].kernel
            piece = kernel.root.parts[0]
            assert isinstance(piece, Piece)
            axes, live = self._axes(n), self._live()
            if isinstance(piece.body, Reduce):
                root = self._sum_of_tile(n, piece, axes, live)
            else:
                root = Points(self.b, piece.domain, axes, live, self._slots(n, 0, piece.bodies)).values(piece.bodies)
            for p, value in self._stages(n, [root], axes, live).items():
                self.tiles[p] = value
        return self.tiles[place]

    def _store_tile(self, place: int) -> None:
        """Store the tile of a tile tensor in this turn."""
        b, n = self.b, self.chain.makers[place]
        member, axes = self.chain.members[n], self._axes(n)
        live = [*self._live(), *([b.op("lt", self.part, 1)] if self.divided > 1 else [])]
        buffer = next(x for s in member.kernel.stages for x in s.outputs if x is not None and member.places[x] == place)
        at = [axes[a] for a in range(member.kernel.root.rank)]
        self.places[n][buffer].store(b, at, b.broadcast(self._tile(place), self.shape), live)

    def _sum_of_tile(
        self, n: int, piece: Piece, axes: Mapping[int, TileValue], live: Sequence[TileValue]
    ) -> list[TileValue]:
        """Return the results of a sum at the points of a tile: a dot, or its terms one by one."""
        b, p = self.b, self.chain.product_of(n)
        if p is not None:
            return [self._epilogue(n, p, axes, live, self._dot_of_tile(n, p))]
        body = piece.body
        assert isinstance(body, Reduce)
        combine, terms, rank = TileCombine(b, body), prod(body.extents), len(piece.extents)

        def add(state: Sequence[TileValue], number: TileValue) -> list[TileValue]:
            inner = dict(enumerate(unravel(b, number, body.extents), rank))
            points = Points(b, piece.domain, {**axes, **inner}, live, self._slots(n, 0, body.bodies))
            return combine.merge(state, combine.term_states(points.values(body.bodies), number, [], self.shape))

        state = combine.identity_state(self.shape)
        if terms <= MOST_WRITTEN_OUT:
            for k in range(terms):
                state = add(state, b.const(k))
        else:
            tiles, self.tiles = self.tiles, dict(self.tiles)
            for place in self._tiles_of(n):
                tiles[place] = self._tile(place)
            with b.loop(0, terms, 1, state) as loop:
                loop.next = add(loop.carried, loop.var)
            self.tiles, state = tiles, list(loop.results)
        return combine.results(state)

    def _tiles_of(self, n: int) -> set[int]:
        """Return the tile tensors that a member reads."""
        m = self.chain.members[n]
        read = {m.places[where[0]] for s in m.kernel.stages for kind, *where in s.args if kind == "buffer"}
        return read & self.chain.makers.keys()

    def _held_operand(self, n: int, p: Problem) -> tuple[int, int]:
        """Return the numbers of the operand of a tile's product that varies along the held side, and of the other."""
        left, right = self.chain.operands(n, p) or (0, 1)
        return (left, right) if {*self.held.axes} == {*self.chain.sides[0]} else (right, left)

    def _load_factor(self, n: int) -> None:
        """Load the held factor of a tile's product before the loop, unless it is too long."""
        b, p = self.b, self.chain.product_of(n)
        if p is None or self._depth(p) < p.count(p.k):
            return
        held, _ = self._held_operand(n, p)
        terms = self._terms(n, p, b.const(0), 0)
        axes = self._axes(n, terms.axes, tile=False, own=True)
        shape = (self.shape[0], self._depth(p))
        self.factors[n] = self._operand(n, p, held, axes, [*self.held.live, *terms.live], shape)

    def _depth(self, p: Problem) -> int:
        """Return how many terms of a tile's product are multiplied at once."""
        most = MOST_DEPTH if least_power(p.count(p.k)) <= MOST_DEPTH else self.tiling.k
        return max(LEAST_K, min(most, least_power(p.count(p.k))))

    def _terms(self, n: int, p: Problem, first: TileValue, expand: int) -> _SweepSide:
        """Return terms of a tile's product along K, by the axes of the member."""
        b, size, count = self.b, self._depth(p), p.count(p.k)
        number = b.expand(number_lanes(b, b.arange(size), first, count), expand)
        axes = dict(zip(p.k, unravel(b, number, [p.extents[a] for a in p.k]), strict=True))
        return _SweepSide(number, axes, bound_masks(b, number, count, size))

    def _dot_of_tile(self, n: int, p: Problem) -> TileValue:
        """Return the sum of a product at the points of a tile."""
        b, (m, columns), depth = self.b, self.shape, self._depth(p)
        held, swept = self._held_operand(n, p)

        def add(total: TileValue, first: TileValue) -> TileValue:
            terms, turned = self._terms(n, p, first, 0), self._terms(n, p, first, 1)
            x = self.factors.get(n)
            if x is None:
                axes = self._axes(n, terms.axes, tile=False, own=True)
                x = self._operand(n, p, held, axes, [*self.held.live, *terms.live], (m, depth))
            assert self.column is not None
            axes = self._axes(n, turned.axes, own=True)
            y = self._operand(n, p, swept, axes, [*turned.live, *self.column.live], (depth, columns))
            return b.dot(x, y, total, self._precision(p))

        zero = b.full(self.shape, 0.0, p.dtype.name)
        if depth >= p.count(p.k):
            return add(zero, b.const(0))
        with b.loop(0, p.count(p.k), depth, [zero]) as loop:
            loop.next = [add(loop.carried[0], loop.var)]
        return loop.results[0]

    def _operand(
        self,
        n: int,
        p: Problem,
        number: int,
        axes: Mapping[int, TileValue],
        live: Sequence[TileValue],
        shape: tuple[int, int],
    ) -> TileValue:
        """Return a tile of an operand of a member's product, zero outside the box and where guards fail."""
        b, o = self.b, p.operands[number]
        points = Points(b, p.extents, axes, live, self._slots(n, 0, [o.expr, *o.guards]))
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

    def _precision(self, p: Problem) -> str:
        return self.tiling.precision if p.dtype is dt.f32 else "ieee"

    # -- points

    def _live(self) -> list[TileValue]:
        """Return the conditions that hold at the points of a tile."""
        assert self.column is not None
        return [*self.held.live, *self.column.live]

    def _turned_column(self) -> _SweepSide:
        """Return the points of the swept side along the first dimension."""
        assert self.start is not None
        return _points(self.b, self.chain, self.swept, self.start, self.shape[1], 1)

    def _axes(
        self,
        n: int,
        more: Mapping[int, TileValue] = {},  # noqa: B006
        tile: bool = True,
        own: bool = False,
        flat: bool = False,
    ) -> dict[int, TileValue]:
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

    def _slots(
        self,
        n: int,
        stage: int,
        bodies: Sequence[Expr],
        results: Sequence[Sequence[TileValue]] = (),
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
                out.append(self._tile(place))
            elif slot in read and place in self.running:
                out.append(self.running[place] if flat else self.b.expand(self.running[place], 1))
            else:
                out.append(self.places[n][where[0]])
        return out
