"""Describe how the lanes of a tile access a buffer: how many elements one instruction moves, and how many bytes the
cache delivers for each element that is used.

Lanes number the axes of a tile's dimension, the last axis fastest. Neighbouring lanes that access neighbouring elements
share sectors of the cache, and one lane may access several of them at once.

before: x[b, c, h, w] of a tile of pixels, channels first     w runs along the lanes, each a load of its own near a
                                                              border; c runs along the other dimension
after:  x[b, h, w, c], channels last                          c runs along the lanes, 4 floats a load
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from einsmith.ir.analysis.linear import linear
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Piece, Read, axes_of
from einsmith.schedule.kernel import KernelBuffer, Stage

SECTOR = 32
"""Bytes that a cache of a card delivers at once."""
WIDEST = 16
"""Most bytes that one lane accesses at once."""


class LaneRun(NamedTuple):
    """Accesses of lanes that number some axes. vector: elements that a lane accesses at once; fetched: bytes that a
    cache delivers for each element."""

    vector: int
    fetched: float


@dataclass(frozen=True)
class LaneAccess:
    """A read or a store of a buffer at points of a template.

    Attributes:
        buffer: number of the kernel's buffer
        itemsize: bytes of an element
        strides: elements from one point of an axis to the next
        start: elements from the buffer's begin to the access at the first point
        runs: points of an axis along which the stride holds, where they are fewer than the axis has
        gathered: axes on which the place depends otherwise
        conditions: axes on which a condition of the access depends
    """

    buffer: int
    itemsize: int
    strides: Mapping[int, int]
    start: int = 0
    runs: Mapping[int, int] = field(default_factory=dict)
    gathered: frozenset[int] = frozenset()
    conditions: frozenset[int] = frozenset()

    @property
    def axes(self) -> frozenset[int]:
        """The axes on which the place depends."""
        return self.gathered.union(self.strides)

    def along(self, order: Iterable[int], extents: Sequence[int]) -> LaneRun:
        """Return the accesses of lanes that number axes in this order, the last one fastest."""
        inner = [a for a in order if extents[a] > 1][::-1]
        if not inner:
            return LaneRun(1, self.itemsize)
        first, length = inner[0], 1
        for a in inner:
            if a in self.gathered or abs(self.strides.get(a, 0)) != length:
                break
            length *= min(extents[a], self.runs.get(a, extents[a]))
            if a in self.runs:
                break
        if length > 1:
            return LaneRun(self._vector(first, extents), max(self.itemsize, SECTOR / length))
        if first in self.gathered:
            return LaneRun(1, SECTOR)
        step = abs(self.strides.get(first, 0))
        shared_by = min(32, extents[first])  # lanes of a warp that access one element
        return LaneRun(1, min(SECTOR, step * self.itemsize) if step else self.itemsize / shared_by)

    def _vector(self, first: int, extents: Sequence[int]) -> int:
        """Return how many elements along an axis of contiguous elements a lane accesses at once: all of them must be
        neighbours, begin at a multiple of their size, and be under one condition."""
        if first in self.conditions or self.strides[first] < 0:
            return 1
        multiples = [self.start, extents[first], self.runs.get(first, 0)]
        multiples += [s for a, s in self.strides.items() if a != first]
        vector = WIDEST // self.itemsize
        while vector > 1 and any(n % vector for n in multiples):
            vector //= 2
        return vector


def read_access(
    stage: Stage, buffers: Sequence[KernelBuffer], read: Read, guards: Iterable[Expr] = ()
) -> LaneAccess | None:
    """Return the access of a read under conditions; None for a read of an earlier stage's result."""
    kind, n, *_ = stage.args[read.slot]
    if kind != "buffer":
        return None
    b = buffers[n]
    strides: dict[int, int] = {}
    runs: dict[int, int] = {}
    gathered: set[int] = set()
    start = 0
    for index, stride in zip(read.index, b.strides, strict=True):
        form = linear(index)
        start += form.const * stride
        for atom, step in form.terms.items():
            at, run, moves = _walk(atom)
            if at is None:
                gathered |= axes_of(atom)
                continue
            strides[at] = strides.get(at, 0) + (step * stride if moves else 0)
            if run:
                runs[at] = min(runs.get(at, run), run)
    conditions = axes_of(*guards)
    return LaneAccess(n, b.dtype.itemsize, strides, start, runs, frozenset(gathered), conditions)


def _walk(atom: Expr) -> tuple[int | None, int, bool]:
    """Describe how an atom of an index varies, as (axis, length of the runs along it, whether it grows along a run).

    An axis is one run (length 0); axis % n grows within runs of n; axis // n is constant within runs of n. The axis is
    None for other atoms.
    """
    if isinstance(atom, Axis):
        return atom.position, 0, True
    if isinstance(atom, Apply) and atom.fn in ("mod", "floordiv"):
        of, by = atom.args
        if isinstance(of, Axis) and isinstance(by, Const):
            return of.position, int(by.value), atom.fn == "mod"
    return None, 0, False


def store_access(n: int, b: KernelBuffer, piece: Piece) -> LaneAccess:
    """Return the access of the stores of a piece's results."""
    strides = {a: step * s for a, (step, s) in enumerate(zip(piece.step, b.strides, strict=True))}
    start = sum(o * s for o, s in zip(piece.offset, b.strides, strict=True))
    return LaneAccess(n, b.dtype.itemsize, strides, start)
