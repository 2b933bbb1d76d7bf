"""Compute the epilogue of one row of a register tile: the root's own steps, the later stages, the stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Literal

from einsmith.codegen.loopnest.address import memories_of, store_address
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.ssa import SSAValue, elem_of
from einsmith.cost.facts import Target
from einsmith.cost.memory_traffic import scatter_cycles
from einsmith.cost.overheads import Overheads
from einsmith.ir.analysis.predicates import compares_integers
from einsmith.ir.nodes import Apply, Const, Expr, Piece, Read, cached_postorder
from einsmith.ir.rebuild import substitute
from einsmith.kernels.contraction.config import HaloSetting
from einsmith.kernels.contraction.units import Unit, find_unit
from einsmith.kernels.emit.access import OperandAccess, PartialAddress
from einsmith.kernels.emit.boxes import output_index, simplified
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.schedule.contraction_problem import EpilogueSteps, Problem, apply_epilogue
from einsmith.schedule.kernel import Kernel

MIN_RUN_BYTES = 16
"""Fewest bytes of a run that is put together with others; shuffles move blocks of this size."""
SUM_SLOTS = (-1, -2)
"""The slots of the sum and of the companion's sum."""
MAX_REGISTER_EPILOGUE = 8
"""Most operations of an epilogue that is unrolled over the register tile; beyond, rows go through scratch."""

Form = Literal["straight", "stacked", "turned", "lines"]
"""How the results of a tile are stored.

"straight": vectors along N, row by row; "stacked": several rows at a time, whose runs make whole vectors; "turned":
transposed first, so that vectors run along M; "lines": in whole units of results (whole_lines).
"""


@lru_cache(maxsize=4096)
def operations(exprs: tuple[Expr, ...]) -> int:
    """Return the number of operations and reads in expressions."""
    return sum([isinstance(e, (Apply, Read)) for e in cached_postorder(exprs)])


class Results:
    """The results of a problem, its constant pieces and its companion.

    exprs: for each result, its expression over the piece's axes, then the terms of the kernel's sums; slots are
        buffers, -1 the sum, -2 the companion's sum
    outputs, buffers, places: for each result, the number of its buffer, the buffer, and the place in it
    constants: values of constant results, by number
    size: operations of all expressions
    access: the analysis of all expressions and places
    """

    def __init__(self, kernel: Kernel, p: Problem):
        results_of_pieces = _results_of(kernel, p.piece, p.epilogue, p.constant_pieces, SUM_SLOTS[0])
        if p.companion is not None:
            results_of_pieces = results_of_pieces + _results_of(
                kernel, p.companion.piece, p.companion.epilogue, (), SUM_SLOTS[1]
            )
        self.exprs = tuple(x for x, _, _ in results_of_pieces)
        stored = [(n, piece) for _, n, piece in results_of_pieces if n is not None]
        self.outputs = [n for n, _ in stored]
        self.buffers = [kernel.buffers[n] for n in self.outputs]
        self.places = [store_address(piece, kernel.buffers[n]) for n, piece in stored]
        self.constants = {i: float(x.value) for i, x in enumerate(self.exprs) if isinstance(x, Const)}
        self.size = operations(self.exprs)
        self.access = OperandAccess(
            None, self.exprs, (), p.extents, memories_of(kernel), extra=self.places, supplied_slots=SUM_SLOTS
        )

    def find_interleaved(self, axis: int | None) -> dict[int, int]:
        """Return pairs of results whose lanes along `axis` are alternate elements of one buffer, as {first: second}."""
        out: dict[int, int] = {}
        every = list(zip(self.outputs, self.places, strict=True))
        for i, (n, first) in enumerate(every):
            for j, (m, second) in enumerate(every):
                if n == m and second == first + 1 and axis is not None:
                    if first.coef.get(axis) == 2 and not {i, j} & {*out, *out.values()}:
                        out[i] = j
        return out


results = lru_cache(maxsize=1024)(Results)


def _results_of(
    kernel: Kernel, piece: Piece, steps: EpilogueSteps, constant_pieces: tuple[Piece, ...], slot: int
) -> list[tuple[Expr, int | None, Piece]]:
    """Return (expression, buffer, piece) of each result of a piece with its sum in `slot`, and of constant pieces; the
    terms of the kernel's sums, which have no buffer, come last."""
    buffers = {n: ref[1] for n, ref in enumerate(kernel.stages[0].args)}
    total = substitute(apply_epilogue(steps, Read(slot, (), kernel.root.dtypes[0])), {}, {**buffers, slot: slot})
    out = _results(kernel, piece, total)
    for other in constant_pieces:
        assert isinstance(other.body, Const)
        out += _results(kernel, other, other.body)
    if len(kernel.stages) > 1 and compares_integers(
        tuple(x for x, _, _ in out)
    ):  # root and later stages may both have guards
        out = [(simplified(x, piece.domain), n, owner) for x, n, owner in out]
    return out


def _results(kernel: Kernel, piece: Piece, total: Expr) -> list[tuple[Expr, int | None, Piece]]:
    """Return (expression, buffer, piece) of the results of a piece whose sum is `total`, then of the terms of sums."""
    sizes = zip(piece.offset, piece.step, piece.extents, strict=True)
    place = {d: output_index(d, *size) for d, size in enumerate(sizes)}
    results: list[list[Expr]] = [[total]]
    for stage in kernel.stages[1:]:
        args = (ref[1] if ref[0] == "buffer" else results[ref[1]][ref[2]] for ref in stage.args)
        slots, part = dict(enumerate(args)), stage.template.parts[0]
        assert isinstance(part, Piece)
        results.append([substitute(x, place, slots) for x in part.bodies])
    out: list[tuple[Expr, int | None, Piece]] = []
    for stage, exprs in zip(kernel.stages, results, strict=True):
        out += [(x, n, piece) for x, n in zip(exprs, stage.outputs, strict=True) if n is not None]
    return out + [(results[s.stage][0], None, piece) for s in kernel.sums]


@lru_cache(maxsize=4096)
def cycles(
    kernel: Kernel, p: Problem, axes: tuple[int, ...], lanes: int, target: Target, tile: int = 0, stacks: bool = False
) -> float:
    """Return the cycles of the epilogue (loads, arithmetic, stores) for one vector along the axes.

    `tile` is that of an OperandAccess; `stacks`: rows that are `adjacent_rows` are stored together,
    at no price.
    """
    r = results(kernel, p)
    s = r.access.along(axes, lanes, tile)
    out = s.load_cost(lanes) + 0.5 * r.size
    if stacks:
        return out
    pairs = r.find_interleaved(axes[-1] if axes else None)
    for i, (f, x) in enumerate(zip(s.extra, r.buffers, strict=True)):
        kind = s.kind(f, lanes)
        if kind == "gather":
            stride = s.forms[f].coef.get(s.lane_groups[-1].inner, 0) * x.dtype.itemsize
            out += lanes * scatter_cycles(abs(stride), x.nbytes, target.l2)
        elif kind == "uniform":
            out += 1.0
        elif i in pairs or i in pairs.values():  # a shuffle and a whole store
            out += 1.0 + (1.5 * s.runs(lanes) if kind == "runs" else 1.0)
        else:
            out += 1.5 * s.runs(lanes) if kind == "runs" else 1.0
    return out


@lru_cache(maxsize=1024)
def store_unit(kernel: Kernel, p: Problem, axes: tuple[int, ...], lanes: int) -> Unit | None:
    """Return the points along `axes` (N) whose results are stored together; None where each vector is stored alone."""
    r = results(kernel, p)
    if not p.constant_pieces or p.companion is not None or any(x.dtype != p.dtype for x in r.buffers):
        return None
    return find_unit(r.outputs, r.places, p.piece.extents, axes, lanes)


@lru_cache(maxsize=4096)
def adjacent_rows(kernel: Kernel, p: Problem, m_axes: tuple[int, ...], n_axes: tuple[int, ...], lanes: int) -> int:
    """Return how many rows of M have results that are adjacent in memory and together make whole vectors; 1 for none.

    The results of a row are runs of a vector along N.
    """
    s = results(kernel, p).access.along(n_axes, lanes)
    groups, run = s.groups(m_axes), s.lane_extents[-1] if s.lane_groups else 0
    if p.companion is not None or not groups or not run or lanes % run or prod(s.lane_extents) % lanes:
        return 1
    if groups[-1].extent % (lanes // run) or run * p.dtype.itemsize < MIN_RUN_BYTES:
        return 1
    are_adjacent = all(
        s.kind(f, lanes) == "runs" and s.step(f) == 1 and s.forms[f].coef.get(groups[-1].inner, 0) == run
        for f in s.extra
    )
    return lanes // run if are_adjacent else 1


def sum_cycles(kernel: Kernel, nv: int, w: Overheads) -> float:
    """Return the cycles, a vector, of the sums that an epilogue takes of rows of `nv` vectors."""
    plain, centred = w.taken_sum + w.taken_sum_row / nv, w.centred_sum + w.centred_sum_row / nv
    return sum(centred if x.centred else plain for x in kernel.sums)


def finish_cycles(kernel: Kernel, w: Overheads) -> float:
    """Return the cycles of combining the lanes of one element of all sums that an epilogue takes."""
    return sum(w.finished_centred_sum if x.centred else w.finished_sum for x in kernel.sums)


def choose_form(s: HaloSetting, p: Problem, mr: int, nv: int, split: int) -> tuple[float, Form]:
    """Return the form of the epilogue with the fewest cycles, and these cycles for a vector along N.

    The tile has mr rows and nv vectors and sums over one of `split` parts of K.
    """
    m_axes, n_axes = s.m_side.axes, s.n_side.axes
    if split > 1 or s.rows or s.kernel.sums:
        straight = cycles(s.kernel, p, n_axes, s.lanes, s.target)
        return straight + sum_cycles(s.kernel, nv, s.target.overheads), "straight"
    return _choose_form(s.kernel, p, m_axes, n_axes, mr, s.lanes, s.target)


@lru_cache(maxsize=4096)
def _choose_form(
    kernel: Kernel, p: Problem, m_axes: tuple[int, ...], n_axes: tuple[int, ...], mr: int, lanes: int, target: Target
) -> tuple[float, Form]:
    """Return the fewest cycles a vector along N over all forms of the epilogue, and the form that takes them."""
    form: Form = "straight"
    w = target.overheads
    rows = adjacent_rows(kernel, p, m_axes, n_axes, lanes)
    if rows > 1 and mr % rows == 0:
        form = "stacked"
    straight = cycles(kernel, p, n_axes, lanes, target, 0, form == "stacked")
    whole_unit, r = store_unit(kernel, p, n_axes, lanes), results(kernel, p)
    if whole_unit is not None:
        in_units = r.access.along(n_axes, lanes).load_cost(lanes) + 0.5 * r.size
        if in_units < straight:
            straight, form = in_units, "lines"
    can_transpose = p.dtype.itemsize * lanes >= 16 and p.dtype.itemsize in (4, 8) and mr >= lanes // 2
    if not (can_transpose and m_axes and n_axes) or straight <= w.transposed_results:
        return straight, form
    store_factor = -(-mr // lanes) * lanes / mr
    transposed = (
        w.transposed_results * (1 + (p.companion is not None))
        + cycles(kernel, p, m_axes, lanes, target, mr) * store_factor
    )
    return (transposed, "turned") if transposed < straight else (straight, form)


Terms = Sequence[tuple[LaneCursor, Sequence[SSAValue]]]
"""The values of each vector of a row, with its cursor."""


class Epilogue:
    """Emits the epilogue of rows of sums: the root's steps, the later stages, the stores.

    row, tile: as for an OperandAccess
    room: most elements of all rows given to `rows`
    take: is given the terms of the kernel's sums, for each vector of a row its cursor and a value for each sum
    """

    def __init__(
        self,
        b: Builder,
        kernel: Kernel,
        p: Problem,
        axes: Sequence[int],
        lanes: int,
        row: int = 0,
        tile: int = 0,
        room: int = 0,
    ):
        self.b, self.results, self.elem = b, results(kernel, p), elem_of(p.dtype)
        self.room = b.alloc(self.elem, room) if room and self.results.size > MAX_REGISTER_EPILOGUE else None
        self.outputs, self.non_temporal = self.results.outputs, [x.non_temporal for x in self.results.buffers]
        self.interleaved = self.results.find_interleaved(axes[-1] if axes else None)
        places = self.results.places
        memories = memories_of(kernel, b.buffers)
        self.sampler = OperandAccess(
            b, self.results.exprs, (), p.extents, memories, axes, lanes, places, SUM_SLOTS, row, tile=tile
        )
        self.take: Callable[[Terms], None] | None = None

    def values(
        self,
        states: Sequence[LaneCursor],
        row: PartialAddress,
        sums: Sequence[SSAValue],
        companion_sums: Sequence[SSAValue] = (),
    ) -> list[tuple[LaneCursor, list[SSAValue]]]:
        """Return the values to store for one row of the tile, with the cursor of each vector.

        Args:
            states: the tile's vectors, with all axes but the row bound
            row: the row's part of the address
            sums: the row's vectors of sums
            companion_sums: the companion's sums
        """
        cursors_and_values, terms = [], []
        stored = len(self.outputs)
        for i, (state, x) in enumerate(zip(states, sums, strict=True)):
            at = state.bind(row)
            values = at.values(supplied={-1: x, -2: companion_sums[i]} if companion_sums else {-1: x})
            cursors_and_values.append((at, values[:stored]))
            terms.append((at, values[stored:]))
        if self.take is not None:
            self.take(terms)
        return cursors_and_values

    def row(
        self,
        states: Sequence[LaneCursor],
        row: PartialAddress,
        sums: Sequence[SSAValue],
        companion_sums: Sequence[SSAValue] = (),
    ) -> None:
        """Compute and store one row of the tile; arguments are those of `values`."""
        self.store(self.values(states, row, sums, companion_sums))

    def store(self, cursors_and_values: Sequence[tuple[LaneCursor, Sequence[SSAValue]]]) -> None:
        """Store the results of `values`."""
        for at, values in cursors_and_values:
            for i, value in enumerate(values):
                pointer = self.b.buffers[self.outputs[i]]
                if i in self.interleaved:
                    other = self.interleaved[i]
                    at.store_interleaved(i, other, pointer, value, values[other])
                elif i not in self.interleaved.values():
                    at.store(i, pointer, value, self.non_temporal[i])

    def rows(
        self, rows: Sequence[Sequence[SSAValue]], emit_row: Callable[[int | SSAValue, Sequence[SSAValue]], None]
    ) -> None:
        """Call emit_row(number, sums) for rows of sums: unrolled, or in a loop that loads them from scratch."""
        b, n, width, room = self.b, rows[0][0].type.lanes, len(rows[0]), self.room
        if room is None or len(rows) == 1:
            for i, row in enumerate(rows):
                emit_row(i, row)
            return
        for i, x in enumerate(x for row in rows for x in row):
            b.store(x, room, i * n)
        with b.loop(0, len(rows)) as loop:
            at = b.mul(loop.var, width * n)
            emit_row(loop.var, [b.load(room, b.add(at, j * n), self.elem, n) for j in range(width)])

    def store_stacked(
        self, states: Sequence[LaneCursor], rows: Sequence[PartialAddress], sums: Sequence[Sequence[SSAValue]]
    ) -> None:
        """Compute and store rows together that are `adjacent_rows`."""
        for v, state in enumerate(states):
            at = [state.bind(row) for row in rows]
            values = [x.values(supplied={-1: row[v]}) for x, row in zip(at, sums, strict=True)]
            for i, n in enumerate(self.outputs):
                at[0].store_stacked(i, self.b.buffers[n], [x[i] for x in values])
