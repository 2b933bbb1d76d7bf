"""Match kernels that are stencils: sums of products whose operands are neighbouring elements of rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

from einsmith.base.dtypes import DType
from einsmith.codegen.loopnest.address import address, comparison_form
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.guarded import unconditional
from einsmith.ir.analysis.in_bounds import proven
from einsmith.ir.analysis.linear import LinearForm, affine_of, linear
from einsmith.ir.nodes import Apply, Axis, Expr, Piece, Read, Reduce, axes_of, is_zero, reads
from einsmith.ir.rebuild import guarded, rebuild
from einsmith.kernels.stencil.terms import MAX_STEP, Access, MaskedRead, Phase, Prologue, Selection, Span, Stencil, Term
from einsmith.schedule.contraction_problem import affine, conjuncts, find_end
from einsmith.schedule.kernel import Kernel

MAX_TERMS = 80
"""Most products of an output point; the filter axes are unrolled. Depthwise filters of 9x9 to 11x11 take 0.94 to 1.18
times as long by stencils as by the direct form (five shapes, forward and by the input, two cores with AVX-512)."""


MAX_SUMS = 49
"""Most sums (elements of the filter) of a filter gradient. With more, those of 8x8 to 11x11 filters take 0.93 to 1.20
times as long as by the direct form (six shapes, two cores with AVX-512)."""


class _Read(NamedTuple):
    """A read in a product.

    form: address. along: the part of the address that moves within a row of the tensor, that is, along the dimensions
    in which lanes move and those inside of them. pitch: elements from one row to the next. guards: forms that are at
    most 0 where the read's guards hold; None for a guard of another kind. prologue: None where there is none."""

    slot: int
    form: LinearForm
    along: LinearForm
    pitch: int
    guards: list[LinearForm | None]
    prologue: Prologue | None


def _strip_guards(x: Expr, extents: Sequence[int]) -> tuple[Expr, list[LinearForm | None]]:
    """Strip the guards outside of which an expression is zero; return (expression, guards).

    Conditions on values that are read stay in the expression."""
    guards = []
    while isinstance(x, Apply) and x.fn == "where" and is_zero(x.args[2]) and not any(reads(x.args[0])):
        guards += [_guard_form(g, extents) for g in conjuncts(x.args[0])]
        x = x.args[1]
    return x, guards


def _split_selection(x: Expr) -> tuple[Expr, Read, Expr] | None:
    """Return (x, r, n) of an expression `where(n == r, x, 0)` in which r reads an integer and n reads nothing."""
    if not (isinstance(x, Apply) and x.fn == "where" and is_zero(x.args[2])):
        return None
    condition, value, _ = x.args
    if not (isinstance(condition, Apply) and condition.fn == "eq"):
        return None
    for read, number in (condition.args, condition.args[::-1]):
        r = read.args[0] if isinstance(read, Apply) and read.fn == "cast" else read
        exact = (
            isinstance(r, Read)
            and read.dtype.is_int
            and r.dtype.is_int
            and not r.dtype.in_memory_only
            and r.dtype.itemsize <= read.dtype.itemsize
        )
        if exact and not any(reads(number)):
            assert isinstance(r, Read)
            return value, r, number
    return None


def _find_prologue(x: Expr, lane: int) -> tuple[Read, Prologue | None] | None:
    """Return the only read of an expression that varies along the lanes, and the prologue that the expression applies.

    The prologue is None for a plain read. Returns None where there is no such read."""
    if isinstance(x, Read):
        return x, None
    varying = [r for r in reads(x) if lane in axes_of(*r.index)]
    if len(varying) != 1 or varying[0].dtype is not x.dtype or sum(r.slot == varying[0].slot for r in reads(x)) > 1:
        return None
    (r,) = varying
    element = Read(r.slot, (), r.dtype)
    (body,) = rebuild([x], lambda e: element if e is r else None)
    return r, Prologue(body, element, axes_of(body))


def _is_inside(r: Read, kernel: Kernel, piece: Piece) -> bool:
    """Return whether a read is in bounds at all points of a piece."""
    shape, facts = kernel.stages[0].template.params[r.slot][1], Facts(piece.domain)
    return all(proven(i, n, facts) for i, n in zip(r.index, shape, strict=True))


def _read(
    kernel: Kernel,
    r: Read,
    lane: int,
    extents: Sequence[int],
    guards: list[LinearForm | None],
    prologue: Prologue | None,
) -> _Read:
    x = kernel.buffers[kernel.stages[0].args[r.slot][1]]
    inner = sorted(range(len(x.shape)), key=lambda d: (x.strides[d], -d))  # dimensions, innermost first
    lane_dims = [n for n, d in enumerate(inner) if extents[lane] > 1 and linear(r.index[d]).coefficient(Axis(lane))]
    count = max(lane_dims, default=0) + 1
    inside = [s if d in inner[:count] else 0 for d, s in enumerate(x.strides)]
    pitch = [x.strides[d] for d in inner[count:]] or [x.strides[d] * x.shape[d] for d in inner[-1:]] or [1]
    form, along = (affine_of(address(r.index, strides), extents) for strides in (x.strides, inside))
    assert form is not None and along is not None
    return _Read(r.slot, form, along, max(1, pitch[0]), guards, prologue)


def _guard_form(g: Any, extents: Sequence[int]) -> LinearForm | None:
    """Return the form that is at most 0 where the guard holds; None for a guard of another kind."""
    form = comparison_form(g, extents, ("lt", "le"))
    return None if form is None else form + int(g.fn == "lt")


class _StencilProduct:
    """The body of a piece as a product of at most two reads, whose vectors run along `lane`.

    Each read has its own guards and prologue; `guards` are the guards of the whole product. vector_axes: the axes along
    which the reads that are vectors vary. selector: the read of the terms' selections, its type, and the number that it
    is compared with (None: the terms are not selected)."""

    def __init__(
        self,
        piece: Piece,
        lane: int,
        guards: list[LinearForm | None],
        reads: list[_Read],
        selector: tuple[_Read, DType, LinearForm] | None,
    ):
        self.piece, self.extents, self.lane, self.guards, self.reads = piece, piece.domain, lane, guards, reads
        self.selector = selector
        self.vector_axes = {a for r in reads if r.form.coef.get(lane) for a in r.form.coef}

    def find_row_axis(self, axes: Sequence[int]) -> int | None:
        """Return the last of the axes along which a vector's read varies; None: there is none."""
        return next((a for a in reversed(axes) if a in self.vector_axes and self.extents[a] > 1), None)

    def has_own_weights(self) -> bool:
        """Return whether every channel has its own weights, so that no vector serves several results as in a matrix."""
        return all(a in self.vector_axes for r in self.reads for a in r.form.coef if a < len(self.piece.extents))

    def _find_spans(
        self, forms: Sequence[LinearForm | None], point: dict[int, int], row: int | None
    ) -> tuple[Span, Span] | None:
        """Return (rows, lanes) where all forms are at most 0; None where a form has other axes."""
        lane = self.lane
        spans = {a: Span(0, self.extents[a] - 1) for a in (row, lane) if a is not None}
        never = False
        for form in forms:
            if form is None:
                return None
            f = form.at_point(point)
            if not f.coef:
                never = never or f.const > 0
                continue
            if len(f.coef) > 1 or not f.coef.keys() <= spans.keys():
                return None
            ((a, c),) = f.coef.items()
            last = -f.const // c if c > 0 else self.extents[a] - 1
            first = -(-f.const // -c) if c < 0 else 0
            spans[a] = spans[a].meet(Span(first, last))
        if never:
            spans[lane] = Span(0, -1)
        return (Span(0, 0) if row is None else spans[row]), spans[lane]

    def expand_terms(
        self, row: int | None, unrolled: Sequence[int], along_k: bool, rows: int
    ) -> tuple[Term, ...] | None:
        """Return the terms of the piece, with the axes `unrolled` enumerated; None where it is not a stencil.

        Args:
            row: Axis of the rows (None: there is none).
            unrolled: Axes whose points become terms of one sum, or, with `along_k`, sums of their own.
            along_k: Lanes and rows run along the reduction.
            rows: Most rows of any piece.
        """
        n, lane = self.extents, self.lane
        if any(r.prologue and r.prologue.axes & {*unrolled, row, lane} for r in self.reads):
            return None
        # Taps share the loads of a row, so no tap may depend on the row's guards.
        tile_reads = [*self.reads, *(self.selector[:1] if self.selector else ())]
        shares_rows = row is not None and any(row in r.along.coef for r in tile_reads)
        whole_span = Span(0, n[row] - 1 if row is not None else 0), Span(0, n[lane] - 1)
        terms = []
        for number, place in enumerate(product(*(range(n[a]) for a in unrolled))):
            point = dict(zip(unrolled, place, strict=True))
            span, *read_spans = (
                self._find_spans(guards, point, row) for guards in (self.guards, *(r.guards for r in self.reads))
            )
            if span is None:
                return None
            factors = []
            for r, x in zip(self.reads, read_spans, strict=True):
                if x is None or (shares_rows and any(y != Span(0, rows - 1) for y in (span[0], x[0]))):
                    return None
                factors.append(MaskedRead(_access_at(r, point, row, lane), *x))
            vector, *weights = sorted(factors, key=lambda f: f.read.lane == 0)
            if any(f.read.lane not in (1, 2) for f in (factors if along_k else (vector,))):
                return None
            if not along_k and any(f.read.lane or f.read.row or f[1:] != whole_span for f in weights):
                return None  # the weight is not uniform over the tile
            selection = None
            if self.selector is not None:
                if along_k or weights or vector.read.lane != 1:
                    return None
                if (selection := self._select(vector.limit(*span), point, row)) is None:
                    return None
            if span[0].lo <= span[0].hi and span[1].lo <= span[1].hi:
                vectors = [f.limit(*span) if f is vector or along_k else f for f in (vector, *weights)]
                weight = vectors[1] if weights else None
                terms.append(Term(number if along_k else 0, vectors[0], weight, *span, selection))
        return tuple(terms)

    def _select(self, vector: MaskedRead, point: dict[int, int], row: int | None) -> Selection | None:
        """Return the selection of a term's vector; None where it varies within the tile or reads with a stride."""
        assert self.selector is not None
        r, dtype, number = self.selector
        at, a = number.at_point(point), _access_at(r, point, row, self.lane)
        low, high = dtype.range
        if at.coef or a.lane != 1 or not low <= at.const <= high:
            return None
        return Selection(vector._replace(read=a), at.const, dtype)


def _access_at(r: _Read, point: dict[int, int], row: int | None, lane: int) -> Access:
    form = r.form.at_point(point)
    outer = tuple(sorted((a, c) for a, c in form.coef.items() if a not in (row, lane)))
    row_stride = form.coef.get(row, 0) if row is not None else 0
    return Access(r.slot, form.const, row_stride, form.coef.get(lane, 0), outer, r.pitch, r.along.at_point(point).const)


@lru_cache(maxsize=4096)
def _product(kernel: Kernel, piece: Piece, lane: int) -> _StencilProduct | None:
    """Return the body of a piece as a product; None where it is anything else."""
    body, guards = _strip_guards(piece.bodies[0], piece.domain)
    selector = None
    if (selected := _split_selection(body)) is not None:
        body, r, number = selected
        at = affine_of(linear(number), piece.domain)
        if at is None or affine(r) is None:
            return None
        selector = _read(kernel, r, lane, piece.domain, [], None), r.dtype, at
    operands = []
    for factor in body.args if isinstance(body, Apply) and body.fn == "mul" else (body,):
        x, read_guards = _strip_guards(factor, piece.domain)
        operand = _find_prologue(x, lane)
        if operand is None or affine(operand[0]) is None:
            return None
        if operand[1] is not None and not (operand[0] in unconditional([x]) or _is_inside(operand[0], kernel, piece)):
            return None  # an element that a prologue guards is loaded all the same
        operands.append(_read(kernel, operand[0], lane, piece.domain, read_guards, operand[1]))
    return _StencilProduct(piece, lane, guards, operands, selector) if len(operands) <= 2 else None


def _find_phase_steps(kernel: Kernel, pieces: Sequence[Piece], row: int | None, lane: int) -> tuple[int, int] | None:
    """Return the steps of (rows, lanes) if the pieces are exactly the phases of these axes; else None."""
    steps = pieces[0].step
    m, n = steps[row] if row is not None else 1, steps[lane]
    shape = kernel.root.shape
    if m > MAX_STEP or n > 2 or len(pieces) != m * n or any(p.step != steps for p in pieces):
        return None
    seen = set()
    for p in pieces:
        for a, size in enumerate(shape):
            if a not in (row, lane) and (p.offset[a] or p.step[a] != 1 or p.extents[a] != size):
                return None
            if p.offset[a] >= p.step[a] or p.extents[a] != -(-(size - p.offset[a]) // p.step[a]):
                return None
        seen.add((p.offset[row] if row is not None else 0, p.offset[lane]))
    return (m, n) if len(seen) == m * n else None


def _find_prologues(products: Sequence[_StencilProduct]) -> tuple[tuple[int, Prologue], ...] | None:
    """Return the prologue of each slot that has one; None where reads of a slot differ in it."""
    out: dict[int, set[Prologue | None]] = {}
    for p in products:
        for r in p.reads:
            out.setdefault(r.slot, set()).add(r.prologue)
    prologues = [(slot, m) for slot, x in out.items() for m in x if m is not None]
    return tuple(prologues) if all(len(out[slot]) == 1 for slot, _ in prologues) else None


@lru_cache(maxsize=4096)
def stencils(kernel: Kernel) -> tuple[Stencil, ...]:
    """Return the stencils that the kernel's root forms: with lanes along the output, along the reduction, or both."""
    root = kernel.root
    if root.is_scatter or len(root.dtypes) != 1 or not root.dtypes[0].is_float or not root.shape:
        return ()
    pieces = [p for p in root.parts if isinstance(p, Piece)]
    if not any(isinstance(p.body, Reduce) for p in pieces):
        return ()
    for p in pieces:
        if 0 in p.domain or (isinstance(p.body, Reduce) and (p.body.combiner != "sum" or len(p.body.bodies) > 1)):
            return ()
    candidates = (_match_along_output(kernel, pieces), _match_along_k(kernel, pieces))
    return tuple(s for s in candidates if s is not None)


def _match_along_output(kernel: Kernel, pieces: Sequence[Piece]) -> Stencil | None:
    rank = len(kernel.root.shape)
    lane = rank - 1
    if any(prod(p.domain[rank:]) > MAX_TERMS for p in pieces):
        return None
    products: dict[Piece, _StencilProduct] = {}
    for p in (p for p in pieces if not is_zero(p.bodies[0])):
        if (x := _product(kernel, p, lane)) is None:
            return None
        products[p] = x
    largest = max(products.values(), key=lambda x: prod(x.extents[rank:]), default=None)
    if largest is None or not isinstance(largest.piece.body, Reduce):
        return None
    row = largest.find_row_axis(range(lane))
    steps, prologues = _find_phase_steps(kernel, pieces, row, lane), _find_prologues(list(products.values()))
    if steps is None or prologues is None or not largest.has_own_weights():
        return None
    phases = []
    max_rows = max(p.extents[row] for p in pieces) if row is not None else 1
    for p in pieces:
        terms = products[p].expand_terms(row, range(rank, len(p.domain)), False, max_rows) if p in products else ()
        if terms is None:
            return None
        row_range = (0, 1) if row is None else (p.offset[row], p.extents[row])
        phases.append(Phase(row_range[0], p.offset[lane], row_range[1], p.extents[lane], terms))
    phases.sort(key=lambda p: (p.row, p.lane))
    outer = tuple(a for a in range(rank) if a not in (row, lane))
    return Stencil(
        kernel.root.dtypes[0],
        pieces[0].extents,
        rank,
        row,
        lane,
        outer,
        (),
        (),
        1,
        steps,
        tuple(phases),
        False,
        prologues,
    )


def _split_end(piece: Piece, axis: int) -> tuple[Piece, int | None]:
    """Return a piece without the guard that an axis of its sum lies below a number which is read from memory, and the
    number's slot; the piece itself and None where there is no such guard."""
    body, guards = piece.bodies[0], list[Expr]()
    while isinstance(body, Apply) and body.fn == "where" and is_zero(body.args[2]):
        guards += conjuncts(body.args[0])
        body = body.args[1]
    end = find_end(guards, axis)
    if end is None or not isinstance(piece.body, Reduce):
        return piece, None
    body = guarded([g for g in guards if g is not end], body)
    reduction = Reduce(piece.body.combiner, piece.body.extents, (body,))
    return Piece(piece.offset, piece.step, piece.extents, reduction), next(r.slot for r in reads(end))


def _match_along_k(kernel: Kernel, pieces: Sequence[Piece]) -> Stencil | None:
    (piece, *more), rank = pieces, len(kernel.root.shape)
    lane, n = len(piece.domain) - 1, piece.domain
    if more or lane < rank or any(piece.offset) or set(piece.step) != {1}:
        return None
    piece, end = _split_end(piece, rank)
    body = _product(kernel, piece, lane)
    prologues = _find_prologues([body]) if body is not None and len(body.reads) == 2 else None
    if body is None or prologues is None:
        return None
    row = body.find_row_axis(range(rank, lane))
    first, second = (r.form.coef for r in body.reads)
    # Output axes along which only one factor varies: the filter's axes.
    taps = tuple(a for a in range(rank) if n[a] > 1 and (a in first) != (a in second))
    sums = prod(n[a] for a in taps)
    rows = n[row] if row is not None else 1
    terms = body.expand_terms(row, taps, True, rows) if taps and sums <= MAX_SUMS else None
    loops = tuple(a for a in range(rank, lane) if a != row and n[a] > 1)
    if terms is None or end is not None and rank not in loops:
        return None
    outer = tuple(a for a in range(rank) if a not in taps and n[a] > 1)
    phase = Phase(0, 0, rows, n[lane], terms)
    return Stencil(
        kernel.root.dtypes[0], n, rank, row, lane, outer, loops, taps, sums, (1, 1), (phase,), True, prologues, end
    )
