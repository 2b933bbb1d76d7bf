"""What the emission of a blocked contraction works on: a `Frame` for a kernel function, a `Task` for what a task has
bound, a `Panel` for the panel of N that it is at; and the loops over tiles, panels and blocks of K."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from einsmith.dtypes import DType
from einsmith.kernels.contraction.config import Side, sampler
from einsmith.kernels.contraction.emission.prefetch import RowPrefetch, prefetches
from einsmith.kernels.contraction.geometry import Geometry
from einsmith.kernels.contraction.halo import SLACK, SLOT, HaloCopy, fill
from einsmith.kernels.emit.access import OperandAccess, PartialAddress
from einsmith.kernels.emit.address import Memory, arguments_of, memories_of
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.walk import Bound, Range, ceil_div
from einsmith.loops.nest import Builder, Value, elem_of
from einsmith.plan.kernel import Kernel


def workspace(b: Builder, base: int, item: int, elem: str) -> Value:
    """Where a piece's part of the workspace begins, `base` bytes from its start."""
    return b.address(b.buffers[-1], b.const(base // item), elem) if base else b.buffers[-1]


class Operands:
    """The buffers of a kernel function by number, the root's arguments by slot, and in `slots` these and the halo
    copies, for each of which there is scratch. halos: (operand, copy, a copy of another piece that has all of it, in
    `lent` with its place, or None)."""

    def __init__(
        self, b: Builder, kernel: Kernel, dtype: DType, lanes: int,
        halos: Sequence[tuple[int, HaloCopy, HaloCopy | None]], lent: Sequence[tuple[HaloCopy, Value]] = (),
    ):
        self.b, self.elem, self.lanes = b, elem_of(dtype), lanes
        self.buffers = memories_of(kernel, b.buffers)
        self.arguments = arguments_of(kernel, self.buffers)
        self.slots = dict(self.arguments)
        self.windows: list[tuple[HaloCopy, Value]] = []
        for i, w, whole in halos:
            if whole is None:
                # A row read past its end reaches into what follows, at the end of the copy into its slack.
                at = b.alloc(self.elem, w.buffer.size + SLACK * lanes)
                self.windows.append((w, at))
            else:
                at = next(place for x, place in lent if x is whole)
            self.slots[SLOT + i] = Memory(at, (whole or w).buffer)

    def fill(self, values: Mapping[int, Value]) -> None:
        """Fills the halo copies for these values of the axes that they fix."""
        for w, to in self.windows:
            fill(self.b, w, self.slots, to, self.lanes, values)


class Frame(Operands):
    """The operands, halo copies and packed panels of a kernel function; a copy that is cut moves (`blocked.move`).
    base: bytes of the workspace before this piece's part. cuts: (operand, copy, where its first block lies)."""

    def __init__(self, b: Builder, g: Geometry, base: int = 0, lent: Sequence[tuple[HaloCopy, Value]] = ()):
        super().__init__(b, g.kernel, g.p.dtype, g.lanes, g.halos, lent)
        self.g = g
        self.cuts = [(i, w, self.slots[SLOT + i].pointer) for i, w, _ in g.halos if w.block]
        self._read_operands()
        self.ahead = prefetches(g)
        self.row_prefetch: RowPrefetch | None = None
        if g.c.b != "inline" and not g.c.windows and self.b_along is None:
            self.row_prefetch = RowPrefetch.of(self.n_scalar, g.p, g.n_side, self.b_in, g.target)
        self.a_scratch = b.alloc(self.elem, g.a_slab) if g.c.a == "panel" else None
        self.b_scratch = b.alloc(self.elem, g.b_slab) if g.c.b == "panel" else None
        self.workspace = workspace(b, base, g.item, self.elem)

    def _read_operands(self) -> None:
        """The operands as tiles and packing read them; n_scalar: that of N without lanes."""
        g, p, lanes = self.g, self.g.p, self.g.lanes
        self.a_in = self._access(g.m_side)
        if g.c.a != "inline":
            self.a_pack = self._access(g.m_side, p.k if g.a_along else g.m_side.axes, lanes)
        self.b_in = sampler(self.b, p, g.n_side, self.slots, g.n_side.axes, lanes, g.row, g.loose)
        self.b_along: OperandAccess | None = self._access(g.n_side, p.k, lanes) if g.b_along else None
        self.b_rows = self.b_along.along(p.k, lanes, tile=g.b_row) if self.b_along and g.b_row else None
        self.n_scalar = self._access(g.n_side)

    def _access(self, side: Side, axes: Sequence[int] = (), lanes: int = 0) -> OperandAccess:
        return sampler(self.b, self.g.p, side, self.slots, axes, lanes)

    def slot(self, base: Value, slab: int, tile: Value) -> Value:
        """Where tile number `tile` of slabs lies."""
        b = self.b
        return b.address(base, b.mul(tile, b.const(slab)), self.elem)


@dataclass
class Task:
    """What a task has bound: its point of the batch and part of K; its tiles of M, panels of N and points of K; what
    the batch adds to the addresses of operands and results (b: as for `pack.pack_b`; n_scalar: only where lines of it
    are asked for); the axes of halo copies that have one value; the task of the other piece of joint tiles."""

    batch: Value
    split: Value
    m_range: Range
    n_range: Range
    k_lo: Bound
    k_hi: Bound
    a: PartialAddress
    b: Sequence[PartialAddress]
    results: PartialAddress
    a_pack: PartialAddress | None = None
    n_scalar: PartialAddress | None = None
    fixed: dict[int, Value] = field(default_factory=dict)
    companion: Task | None = None


class Panel(NamedTuple):
    """Panel `jn` of N, of nv vectors; lanes from `limit` on are off (None: all are on). operand, results: its vectors
    of the operand, where that is read in place, and of the results; companion: the panel of the other piece of joint
    tiles."""

    jn: Value
    nv: int
    limit: int | None
    operand: Sequence[LaneCursor] = ()
    results: Sequence[LaneCursor] = ()
    companion: Any = None


# -- loops


def strips(
    b: Builder, lo: int, hi: int, size: int, body: Callable[[Value, int, list[Value]], Any], init: Sequence[Value] = ()
) -> list[Value]:
    """body(first point, points, carried), which gives what is carried next (None: nothing), for the whole strips of
    `size` points in lo .. hi, in a loop unless there is one, and for a shorter one at the end."""
    whole, out = lo + (hi - lo) // size * size, list(init)
    if whole == lo + size:
        out = body(b.const(lo), size, out) or []
    elif whole > lo:
        with b.loop(lo, whole, step=size, init=out) as loop:
            loop.next = body(loop.var, size, list(loop.carried)) or ()
        out = list(loop.results)
    return body(b.const(whole), hi - whole, out) or [] if whole < hi else out


def tiles(
    b: Builder, span: Range, count: int, size: int, unit: int, full: int, body: Callable[[Value, int, bool], None]
) -> None:
    """body(tile, its units, whether it is the last, smaller one) for the tiles of a range, of `count` with `size`
    points in all, `full` units of `unit` points each."""
    lo, hi = span
    tail = size - (count - 1) * full * unit
    units = ceil_div(tail, unit)
    whole = count if units == full and tail % unit == 0 else count - 1
    if isinstance(lo, int):
        assert isinstance(hi, int)
        stop: Bound = min(hi, whole)
    else:
        stop = b.op("min", b.index(hi), b.const(whole)) if whole < count else hi
    if whole:
        if isinstance(lo, int) and lo == 0 and stop == 1:
            body(b.const(0), full, False)
        else:
            with b.loop(lo, stop) as loop:
                body(loop.var, full, False)
    if whole < count:
        if isinstance(hi, int):
            body(b.const(whole), units, True)
        else:
            with b.if_(b.op("lt", b.const(whole), hi)):
                body(b.const(whole), units, True)


def n_panels(f: Frame, span: Range, body: Callable[[Value, int, int | None], None]) -> None:
    """body(panel, vectors, limit) for a range of panels of N; limit: as for a Panel."""
    g = f.g

    def panel(jn: Value, nv: int, tail: bool) -> None:
        last = tail or g.c.depth > 1  # all points of N
        body(jn, nv, g.N if last and g.N % g.lanes else None)

    tiles(f.b, span, g.nt, g.N, g.lanes // g.c.depth, g.c.nv, panel)


def m_tiles(f: Frame, span: Range, body: Callable[[Value, int], None]) -> None:
    """body(tile, rows) for a range of tiles of M."""
    tiles(f.b, span, f.g.mt, f.g.M, 1, f.g.mr, lambda jm, mr, _: body(jm, mr))


def k_blocks(f: Frame, t: Task, body: Callable[[Bound, Bound, Value | None], None]) -> None:
    """body(lo, hi, last) for a task's blocks of K; `last` is None where there is one block."""
    b = f.b
    if not f.g.blocked:
        body(t.k_lo, t.k_hi, None)
        return
    lo = b.index(t.k_lo)
    hi = b.index(t.k_hi)
    with b.loop(lo, hi, step=f.g.kc) as loop:
        end = b.add(loop.var, b.const(f.g.kc))
        body(loop.var, b.op("min", end, hi), b.op("le", hi, end))


def relative(b: Builder, tile: Value, span: Range) -> Value:
    """A tile's number within a range."""
    lo = span[0]
    return tile if isinstance(lo, int) else b.sub(tile, lo)


def count(b: Builder, span: Range) -> Bound:
    lo, hi = span
    if isinstance(lo, int):
        assert isinstance(hi, int)
        return hi - lo
    return b.sub(b.index(hi), lo)

