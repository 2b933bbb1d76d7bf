"""Recognise stencils: decompose sums of few products into the reads of single points.

    Y[b,c,h,w] = sum[r,s](K[c,r,s] * X[b,c,h+r-1,w+s-1])                 nine terms, each with a number and a vector
    dK[c,r,s] = sum[b,h,w](dY[b,c,h,w] * X[b,c,h+r-1,w+s-1])             nine sums, each term with two vectors
    dX[b,c,h,w] = sum[r](where(J[b,c,h-r,w] == r, dY[b,c,h-r,w], 0))     a term for each r, selected by J

Vectors run along one axis (`lane`), tiles along another one (`row`). Filter axes are unrolled, so that a guard depends
on one axis and becomes an interval of it. A row may have a prologue, pointwise operations with values uniform over the
row (a normalisation or ReLU before a convolution), which is applied as the row is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from einsmith.base.dtypes import DType
from einsmith.ir.nodes import Expr, Read

MAX_STEP = 4
"""Most phases of the row axis (step of the pieces); also the largest row stride of adjacent rows in loads."""


class Span(NamedTuple):
    """The interval lo .. hi (inclusive) of an axis; empty where hi < lo."""

    lo: int
    hi: int

    def meet(self, other: Span) -> Span:
        """Return the intersection with another interval."""
        return Span(max(self.lo, other.lo), min(self.hi, other.hi))

    def covers(self, other: Span) -> bool:
        """Return whether the other interval lies within this one."""
        return self.lo <= other.lo and other.hi <= self.hi


class Access(NamedTuple):
    """The element const + row * (row axis) + lane * (lane axis) + sum of coefficient * axis over `outer` of a slot.

    pitch: elements from one row of the tensor to the next, lanes running along a row. shift: the part of `const` by
    which a tap moves along the row.
    """

    slot: int
    const: int
    row: int
    lane: int
    outer: tuple[tuple[int, int], ...]
    pitch: int
    shift: int


class MaskedRead(NamedTuple):
    """A read that is zero outside of these rows and lanes; a vector's lie within those of its term."""

    read: Access
    rows: Span
    lanes: Span

    def limit(self, rows: Span, lanes: Span) -> MaskedRead:
        """Return the read limited to rows and lanes."""
        return MaskedRead(self.read, self.rows.meet(rows), self.lanes.meet(lanes))


class Selection(NamedTuple):
    """The condition that an integer read equals a number; `dtype` is the type of the elements read."""

    read: MaskedRead
    number: int
    dtype: DType


class Term(NamedTuple):
    """A product that is zero outside of these rows and lanes, whatever the factors are there.

    sum: number of the sum that it is a term of. weight: a scalar for all lanes (None: no second factor), or a second
    vector in filter gradients. selection: the term is zero in lanes where it does not hold (None: no condition)."""

    sum: int
    vector: MaskedRead
    weight: MaskedRead | None
    rows: Span
    lanes: Span
    selection: Selection | None = None


class Prologue(NamedTuple):
    """The pointwise operations on a loaded element: `body` computes a value from the read `element`.

    axes: the axes along which the body's other reads vary."""

    body: Expr
    element: Read
    axes: frozenset[int]


@dataclass(frozen=True)
class Phase:
    """A piece of the output: the `rows` by `lanes` results whose position is (`row`, `lane`) modulo the steps."""

    row: int
    lane: int
    rows: int
    lanes: int
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Stencil:
    """A kernel root as a stencil, over axes that all its pieces share: the output's, then the reduction's.

    along_k: lanes and rows run along the reduction, whose other axes are `loops`; else along the output. taps: the
    output axes that number the sums, with `sums` points together. steps: phases of (rows, lanes). prologues: (slot,
    prologue of its elements). end: slot of the number at which the first axis of the reduction, one of `loops`, ends in
    a run; None: it does not.
    """

    dtype: DType
    extents: tuple[int, ...]
    rank: int
    row: int | None
    lane: int
    outer: tuple[int, ...]
    loops: tuple[int, ...]
    taps: tuple[int, ...]
    sums: int
    steps: tuple[int, int]
    phases: tuple[Phase, ...]
    along_k: bool
    prologues: tuple[tuple[int, Prologue], ...] = ()
    end: int | None = None

    @property
    def vectors(self) -> list[MaskedRead]:
        """The factors of all terms that are vectors, and the reads of their selections."""
        out = []
        for t in (t for p in self.phases for t in p.terms):
            out.append(t.vector)
            if self.along_k and t.weight is not None:
                out.append(t.weight)
            if t.selection is not None:
                out.append(t.selection.read)
        return out

    @property
    def selections(self) -> list[Selection]:
        """The selections of all terms that have one."""
        return [t.selection for p in self.phases for t in p.terms if t.selection is not None]

    @property
    def rows(self) -> int:
        """The most rows of a phase."""
        return max(p.rows for p in self.phases)

    @property
    def lanes(self) -> int:
        """The most lanes of a phase."""
        return max(p.lanes for p in self.phases)
