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

from einsmith.base.dtypes import DType
from einsmith.codegen.ssa import SSAValue
from einsmith.gpu.tiles.bounds import Ends, bound_sweep, find_condition
from einsmith.gpu.tiles.chains import Chain, SweepPhase
from einsmith.gpu.tiles.contraction import LEAST_DOT_EXTENT
from einsmith.gpu.tiles.ir import TileBuilder
from einsmith.gpu.tiles.pieces import Functions, Tiling, blocks, least_power
from einsmith.gpu.tiles.points import MOST_I32_POINTS, Points, TileMemory, unravel
from einsmith.gpu.tiles.reduction import TileCombine
from einsmith.gpu.tiles.turns import MOST_DEPTH, SweepSide, SweepTurn, points_of
from einsmith.ir.nodes import Piece, Read, Reduce
from einsmith.schedule.contraction_problem import Problem
from einsmith.schedule.kernel import Follow
from einsmith.schedule.row_blocks import correction_kernel, scale

MOST_ROWS = 64
"""Most rows and columns of the points of a sweep: the tile, its factors and the sums lie in registers at once."""
MOST_TURN_BYTES = 1 << 15
"""Most bytes that the products of a turn take of the swept side: those of three turns, which are loaded ahead, and the
held factors lie in the shared memory of a block."""


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
    columns: list[SweepSide]
    product: Problem | None
    states: list[list[SSAValue]]


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
    sides = points_of(b, chain, held, first, m, 1), points_of(b, chain, held, first, m)
    for k, sinks in enumerate(phase.sweeps):
        if k:
            b.barrier()
        turn = SweepTurn(b, chain, places, tiling, batch_axes, *sides, swept, (m, n), part, divided)
        _SweepEmitter(turn, first).emit(sinks)
    functions.add(b, batch * blocks(rows, m) * divided)


def _extent(most: int, count: int) -> int:
    """Return the extent of a dimension of a tile."""
    return max(LEAST_DOT_EXTENT, min(most, least_power(count)))


def _most_columns(chain: Chain, phase: SweepPhase) -> int:
    """Return the most points of the swept side per iteration at which the operands of its products fit in shared
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


def _wide(b: TileBuilder, x: SSAValue, count: int) -> SSAValue:
    return b.cast(x, "i64") if count > MOST_I32_POINTS else x


class _SweepEmitter:
    """The emitter of one loop.

    Args:
        turn: the values at the points of a turn.
        first: the number of the first point of the held side.
    """

    def __init__(self, turn: SweepTurn, first: SSAValue):
        self.turn, self.first = turn, first
        self.b, self.chain, self.shape = turn.b, turn.chain, turn.shape
        self.part, self.divided = turn.part, turn.divided
        # Factors of sums that follow running results, by place: tiles of one dimension.
        self.corrections: dict[int, SSAValue] = {}

    def emit(self, members: Sequence[int]) -> None:
        """Emit the loop, the steps that follow the sums, and the stores of members' results."""
        b, chain = self.b, self.chain
        sums = [self._begin(n) for n in members if n in chain.sinks]
        for n in sorted({k for s in members for k in chain.closure(s)} - chain.sinks.keys()):
            self.turn.load_factor(n)
        count = chain.count(self.turn.swept)
        lo, hi = self._bounds(members, count)
        with b.loop(lo, hi, self.shape[1], [v for s in sums for x in s.states for v in x]) as loop:
            self.turn.begin(loop.var)
            self._take(sums, loop.carried)
            for s in sums:
                self._add(s)
            for place in (p for n in members for p in chain.members[n].results if p in chain.stored):
                self.turn.store_tile(place)
            loop.next = [v for s in sums for x in s.states for v in x]
        self._take(sums, loop.results)
        self.turn.end()
        for s in sums:
            self._finish(s)

    def _bounds(self, members: Sequence[int], count: int) -> tuple[SSAValue, SSAValue]:
        """Return the bounds of the loop: the part of the swept side that masks do not exclude."""
        b, chain, elem = self.b, self.chain, "i64" if count > MOST_I32_POINTS else "i32"
        only_sums = all(n in chain.sinks for n in members)
        bounded = only_sums and len(self.turn.swept) == 1 and count > self.shape[1]
        condition = find_condition(chain, members) if bounded else None
        if condition is None:
            return b.const(0, elem), b.const(count, elem)
        ends = {c: Ends(x, x) for c, x in ((c, b.cast(x, elem)) for c, x in self.turn.batch.items())}
        ends |= {c: Ends(b.const(0, elem), b.const(chain.extents[c] - 1, elem)) for c in self.turn.held.axes}
        if len(self.turn.held.axes) == 1:
            (c,), first = self.turn.held.axes, b.cast(self.first, elem)
            last = b.op("add", first, self.shape[0] - 1)
            ends[c] = Ends(first, b.op("min", last, chain.extents[c] - 1))
        return bound_sweep(b, condition, self.turn.swept[0], ends, count, self.shape[1])

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
            column = points_of(b, chain, classes, b.op("mul", self.part, width), width, 0)
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
            singles.append(SweepSide(number, dict(zip(classes, unravel(b, number, extents), strict=True)), live))
        combine = TileCombine(b, self._reduce(n))
        return _Sum(n, singles, None, [combine.identity_state((m,)) for _ in singles])

    def _reduce(self, n: int) -> Reduce:
        body = self.chain.members[n].kernel.root.parts[0].body
        assert isinstance(body, Reduce)
        return body

    @staticmethod
    def _take(sums: Sequence[_Sum], values: Sequence[SSAValue]) -> None:
        """Set the states of sums to the values that a loop carries."""
        rest = iter(values)
        for s in sums:
            s.states = [[next(rest) for _ in x] for x in s.states]

    def _add(self, s: _Sum) -> None:
        """Add the terms of this turn to a sum."""
        b, n = self.b, s.member
        follow = self.chain.members[n].follows
        if follow is not None:
            types = self._reduce(n).dtypes
            s.states = [[self._correct(*x, follow) for x in zip(state, types, strict=True)] for state in s.states]
        if s.product is not None:
            left, right = self.chain.operands(n, s.product) or (0, 1)
            x = self.turn.operand(n, s.product, left, self.turn.axes(n), self.turn.live(), self.shape)
            width = s.states[0][0].shape[1]
            turned = self.turn.turned_column()
            at = self.turn.axes(n, {**turned.axes, **s.columns[0].axes}, tile=False)
            y = self.turn.operand(n, s.product, right, at, [*turned.live, *s.columns[0].live], (self.shape[1], width))
            s.states = [[b.dot(x, y, s.states[0][0], self.turn.precision(s.product))]]
            return
        kernel, body = self.chain.members[n].kernel, self._reduce(n)
        piece = kernel.root.parts[0]
        assert isinstance(piece, Piece) and self.turn.column is not None
        combine = TileCombine(b, body)
        for k, column in enumerate(s.columns):
            axes = self.turn.axes(n, column.axes)
            live = [*self.turn.live(), *column.live]
            points = Points(b, piece.domain, axes, live, self.turn.slots(n, 0, body.bodies))
            position = self._position(n, axes) if combine.arg else b.const(0)
            terms = combine.term_states(points.values(body.bodies), position, self.turn.live(), self.shape)
            before = s.states[k]
            s.states[k] = combine.merge(before, combine.merge_lanes(terms, 1))
            follows = {f.place: f for m in self.chain.members if (f := m.follows) is not None and f.reducer == n}
            if follows:
                self._run_on(n, before, s.states[k], follows)

    def _position(self, n: int, axes: Mapping[int, SSAValue]) -> SSAValue:
        """Return the number of a term among those of a reduction, in the order of its axes."""
        b, rank, out = self.b, self.chain.members[n].kernel.root.rank, self.b.const(0)
        for d, extent in enumerate(self._reduce(n).extents):
            out = b.op("add", b.op("mul", out, extent), b.cast(axes[rank + d], "i32"))
        return out

    def _run_on(
        self, n: int, before: Sequence[SSAValue], after: Sequence[SSAValue], follows: Mapping[int, Follow]
    ) -> None:
        """Set the running results of a reducer, and the factors of sums that follow them. follows: how sums follow a
        result, by its place."""
        combine, axes = TileCombine(self.b, self._reduce(n)), self.turn.axes(n, flat=True)
        old, new = (self.turn.stages(n, [combine.results(x)], axes, self.turn.rows.live, True) for x in (before, after))
        self.turn.running |= new
        for place, follow in follows.items():
            t = correction_kernel(self.chain.members[n], follow).root
            points = Points(self.b, t.shape, axes, [], [before[0], old[place], new[place]])
            (self.corrections[place],) = points.values(t.parts[0].bodies)

    def _correct(self, x: SSAValue, dtype: DType, follow: Follow) -> SSAValue:
        """Return a sum so far, of type `dtype`, for the running result that it follows."""
        factor = self.corrections[follow.place]
        slots = [x, self.b.expand(factor, 1) if len(x.shape) > 1 else factor]
        return Points(self.b, (), {}, [], slots).value(scale(Read(0, (), dtype), Read(1, (), follow.buffer.dtype)))

    def _finish(self, s: _Sum) -> None:
        """Emit the steps that follow a sum, and store the results."""
        b, n = self.b, s.member
        kernel = self.chain.members[n].kernel
        for column, state in zip(s.columns, s.states, strict=True):
            axes = self.turn.axes(n, column.axes, tile=False, flat=s.product is None)
            if s.product is None:
                live = [*self.turn.rows.live, *column.live]
                values = TileCombine(b, self._reduce(n)).results(state)
            else:
                live = [*self.turn.held.live, *column.live]
                values = [self.turn.epilogue(n, s.product, axes, live, state[0])]
            results = self.turn.stages(n, [values], axes, live, s.product is None)
            if not column.axes:
                self.turn.running |= results
            at = [axes[a] for a in range(kernel.root.rank)]
            for stage in kernel.stages:
                for buffer in stage.outputs:
                    if buffer is not None:
                        value = b.broadcast(results[self.chain.members[n].places[buffer]], state[0].shape)
                        self.turn.places[n][buffer].store(b, at, value, live)
