"""The sizes that follow from a configuration: tiles, blocks of K, what panels and buffers hold; walks over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from typing import Any

from einsmith.errors import CompileError
from einsmith.kernels.contraction.config import (
    HALO_BYTES,
    Config,
    Side,
    masked_tail,
    orientation,
    padded_row,
    sampler,
    sides,
    with_halos,
)
from einsmith.kernels.contraction.halo import SLACK, SLOT, HaloCopy, covers, holds
from einsmith.kernels.contraction.k_pack import fits
from einsmith.kernels.contraction.problem import Problem
from einsmith.kernels.emit.access import OperandAccess, PartialAddress, Pointer
from einsmith.kernels.emit.walk import ceil_div
from einsmith.loops.nest import Builder, Value, elem_of
from einsmith.plan.kernel import Kernel

ROW_FILLED = 0.8
"""The least part of its vectors along K that a row fills which they keep to."""


class Sizes:
    """One configuration of a problem: its sizes, its operands' samplers and scratch, and where things lie in the
    workspace. What follows of a task's place (`batch` and what ends in `_batch`, `m_range`, `n_range`, `k_lo`, `k_hi`)
    is set where it is known."""

    batch: Value
    limit: int | None
    a_batch: PartialAddress
    b_batch: PartialAddress
    a_pack_batch: PartialAddress
    b_along_batch: PartialAddress
    m_range: tuple[Value | int, Value | int]
    n_range: tuple[Value | int, Value | int]
    k_lo: Value | int
    k_hi: Value | int
    lent: Sequence[tuple[HaloCopy, Value]] = ()
    """Windows of another piece's task, filled by it, and where they are."""
    home: Value | None = None
    """Where the piece's part of the workspace begins, if not at its start."""

    def __init__(self, kernel: Kernel, config: Config, target: Any, builder: Builder, problem: Problem):
        self.kernel, self.c, self.target, self.b, self.p = kernel, config, target, builder, problem
        self.elem = elem_of(problem.dtype)
        self.lanes = target.lanes(problem.dtype.itemsize)
        self.pointers: dict[int, Pointer] = {
            n: Pointer(builder.buffers[n], x.shape, x.dtype) for n, x in enumerate(kernel.buffers)
        }
        self.slots = self._operand_pointers()
        self._make_windows()
        self._count_points()
        self._sample_operands()
        self._size_panels()

    def _operand_pointers(self) -> dict[int, Pointer]:
        """Those of the root's arguments, by slot."""
        return {slot: self.pointers[ref[1]] for slot, ref in enumerate(self.kernel.stages[0].args)}

    def _make_windows(self) -> None:
        """The windows, and the problem that reads them."""
        b, config = self.b, self.c
        self.windows: list[tuple[HaloCopy, Value]] = []
        self.cuts: list[tuple[int, HaloCopy, Value]] = []
        self.k_outer = False
        if config.windows:
            changed = with_halos(self.p, config.windows, HALO_BYTES)
            assert changed is not None
            self.p = changed.problem
            self.k_heads, self.k_outer = changed.heads, changed.k_outer
            # A row read past its end reaches into what follows, at the end of the window into its slack.
            for i, w in changed.windows:
                lent = [(x, own) for own, x in self.lent if holds(own, w, self.slots)]
                at, whole = lent[0] if lent else (b.alloc(self.elem, w.elements + SLACK * self.lanes), w)
                self.slots[SLOT + i] = Pointer(at, whole.shape, w.dtype)
                if not lent:
                    self.windows.append((w, at))
                if w.block:
                    self.cuts.append((i, w, at))

    def _count_points(self) -> None:
        """Points of the sides and of K, in tiles, blocks and tasks."""
        config, problem = self.c, self.p
        self.m_side, self.n_side = sides(problem, config.swap)
        self.M, self.N = problem.count(self.m_side.axes), problem.count(self.n_side.axes)
        self.row = 0
        if config.rows:
            self.row = padded_row(problem, self.n_side, self.lanes)
            self.N = self.N // problem.extents[self.n_side.axes[-1]] * self.row
        self.K, self.B = problem.count(problem.k), problem.count(problem.batch)
        self.mr = config.mr
        self.nr = config.nv * self.lanes // config.depth
        self.width = config.nv * self.lanes
        self.mt, self.nt = ceil_div(self.M, self.mr), ceil_div(self.N, self.nr)
        self.k_max = self.K if config.split == 1 else ceil_div(self.K, config.split)
        self.kc = min(config.kc or self.k_max, self.k_max)
        if self.k_outer:
            self.kc = self.K // self.k_heads
            self.k_max = ceil_div(self.k_heads, config.split) * self.kc
        self.blocked = self.kc < self.k_max
        if config.split > 1 and self.k_max % self.kc and "buffer" in (config.a, config.b):
            raise CompileError(f"buffers over parts of {self.k_max} points of K, no whole blocks, in {config}")
        # Blocks and parts of K begin at multiples of it, as far as vectors along K care.
        self.k_unit = gcd(self.lanes, self.kc if self.blocked else 0, self.k_max if config.split > 1 else 0)
        tail = masked_tail(problem)
        self.tail = tail if self.kc % tail == 0 and self.k_max % tail == 0 else 1
        self.tasks = self.B * config.split * config.tm * config.tn

    def _orientation(self, side: Side) -> str:
        """Whether lanes lie along a side's axes or along K where it is packed."""

        def sample(axes: Sequence[int]) -> OperandAccess:
            return sampler(None, self.p, side, self.slots, axes, self.lanes)

        align = self.lanes if side is self.n_side else gcd(self.mr, self.lanes)
        return orientation(sample, side.axes, self.p.k, self.lanes, align)[0]

    def _rows_along(self) -> OperandAccess | None:
        """The N operand by vectors along K that keep to rows of its innermost axes, the last one of each within the one
        before, where all blocks of K are whole rows: every other element of rows that nearly fill their vectors. A
        vector that crosses rows loads from both, under masks, and what lies beside them comes too."""
        s, n = self.b_along, self.lanes
        if s is None or len(s.lane_groups) < 2 or self.c.depth > 1:
            return None
        row = s.lane_extents[-1]
        if row < n or row % n == 0 or row < ROW_FILLED * ceil_div(row, n) * n or self.kc % row or self.k_max % row:
            return None
        return s.along(self.p.k, n, tile=row) if all(s.step(f) == 2 for f in s.reads.values()) else None

    def _sample_operands(self) -> None:
        """The operands as tiles and packing read them."""
        b, config, p, slots = self.b, self.c, self.p, self.slots
        self.a_rows = False
        self.a_in = sampler(b, p, self.m_side, slots, (), 0)
        if config.a != "inline":
            self.a_rows = self._orientation(self.m_side) == "along"
            self.a_pack = sampler(b, p, self.m_side, slots, p.k if self.a_rows else self.m_side.axes, self.lanes)
        loose = False
        if config.rows and self.n_side.operand.plain:
            loose = covers(sampler(None, p, self.n_side, slots, (), 0), self.n_side.axes[-1])
        self.b_in = sampler(b, p, self.n_side, slots, self.n_side.axes, self.lanes, self.row, loose)
        self.b_along: OperandAccess | None = None
        if config.b != "inline" and not config.rows:
            if self._orientation(self.n_side) == "along" and self.lanes * p.dtype.itemsize >= 16:
                self.b_along = sampler(b, p, self.n_side, slots, p.k, self.lanes)
        self.b_rows = self._rows_along()
        if config.depth > 1:
            beside = fits(p, self.m_side, self.a_in, config.depth, (self.k_max, self.kc)) and config.a == "inline"
            turned = config.b == "panel" and self.b_along is not None and self.nt == 1
            if not beside or not turned or config.windows:
                raise CompileError(f"vectors along N do not hold {config.depth} points of K each in {config}")

    def _size_panels(self) -> None:
        """Elements of a packed tile of M and a packed panel of N, and the scratch of those that tasks pack."""
        b, config = self.b, self.c
        self.k_pad = ceil_div(self.kc, self.lanes) * self.lanes
        if self.a_rows and self.k_pad // self.lanes % 2 == 0:
            self.k_pad += self.lanes  # an odd number of vectors: rows do not meet in one cache set
        a_slab = self.mr * self.k_pad if self.a_rows else self.mr * self.kc + self.lanes
        self.a_slab = ceil_div(a_slab, 16) * 16 if config.a != "inline" else 0
        self.b_slab = self.nr * self.k_pad if config.b != "inline" else 0
        self.a_scratch = b.alloc(self.elem, self.a_slab) if config.a == "panel" else None
        self.b_scratch = b.alloc(self.elem, self.b_slab) if config.b == "panel" else None

    # -- walks

    def _range(self, t: Value, parts: int, tiles: int) -> tuple[Value | int, Value | int]:
        if parts == 1:
            return 0, tiles
        b = self.b
        lo = b.op("floordiv", b.mul(t, b.const(tiles)), b.const(parts))
        hi = b.op("floordiv", b.mul(b.add(t, b.const(1)), b.const(tiles)), b.const(parts))
        return lo, hi

    def _level(
        self, span, tiles: int, size: int, unit: int, full: int, body: Callable[[Value, int, bool], None]
    ) -> None:
        """Runs body(tile number, tile's units, whether it is the tail) for the tiles of a range."""
        b = self.b
        lo, hi = span
        tail = size - (tiles - 1) * full * unit
        units = ceil_div(tail, unit)
        whole = tiles if units == full and tail % unit == 0 else tiles - 1
        if isinstance(lo, int):
            stop: Value | int = min(hi, whole)
        else:
            stop = b.op("min", hi, b.const(whole)) if whole < tiles else hi
        if whole:
            if isinstance(lo, int) and lo == 0 and stop == 1:
                body(b.const(0), full, False)
            else:
                with b.loop(lo, stop) as loop:
                    body(loop.var, full, False)
        if whole < tiles:
            if isinstance(hi, int):
                body(b.const(whole), units, True)
            else:
                with b.if_(b.op("lt", b.const(whole), hi)):
                    body(b.const(whole), units, True)

    def _n_level(self, body: Callable[[Value, int], None]) -> None:
        def panel(jn: Value, nv: int, tail: bool) -> None:
            last = tail or self.c.depth > 1  # all points of N
            self.limit = self.N if last and self.N % self.lanes else None
            body(jn, nv)

        self._level(self.n_range, self.nt, self.N, self.lanes // self.c.depth, self.c.nv, panel)

    def _m_level(self, body: Callable[[Value, int], None]) -> None:
        self._level(self.m_range, self.mt, self.M, 1, self.mr, lambda jm, mr, _: body(jm, mr))

    def _relative(self, tile: Value, span) -> Value:
        lo = span[0]
        return tile if isinstance(lo, int) else self.b.sub(tile, lo)

    def _count(self, span) -> Value | int:
        lo, hi = span
        return hi - lo if isinstance(lo, int) else self.b.sub(hi, lo)

    def _column(self, v: int) -> int | None:
        """Where in its row vector v of a panel begins, if that is the same in every panel."""
        if not self.row:
            return None
        if self.row == self.lanes:
            return 0
        return v * self.lanes % self.row if self.nr % self.row == 0 or self.nt == 1 else None

    # -- the workspace: packed buffers, [batch][K block][tile], and partial sums; a K block has kc points

    @property
    def k_blocks(self) -> int:
        return ceil_div(self.K, self.kc)

    def _points(self, side: Side) -> int:
        """Batch points of an operand's packed buffer: one where it depends on no batch axis."""
        return self.B if any(a in side.operand.axes for a in self.p.batch) else 1

    def _buffer_index(self, side: Side, tile: Value, tiles: int, lo) -> Value:
        b = self.b
        at = self.batch if self._points(side) > 1 else b.const(0)
        if self.k_blocks > 1:
            low = b.index(lo)
            at = b.add(b.mul(at, b.const(self.k_blocks)), b.op("floordiv", low, b.const(self.kc)))
        return b.add(b.mul(at, b.const(tiles)), tile)

    def _slot(self, base: Value, slab: int, tile: Value) -> Value:
        b = self.b
        return b.address(base, b.mul(tile, b.const(slab)), self.elem)

    def buffer_elements(self) -> tuple[int, int]:
        a = self._points(self.m_side) * self.k_blocks * self.mt * self.a_slab if self.c.a == "buffer" else 0
        b = self._points(self.n_side) * self.k_blocks * self.nt * self.b_slab if self.c.b == "buffer" else 0
        return a, b

    @property
    def workspace(self) -> Value:
        return self.b.buffers[-1] if self.home is None else self.home

    def a_buffer(self) -> Value:
        return self.workspace

    def b_buffer(self) -> Value:
        return self.b.address(self.workspace, self.b.const(self.buffer_elements()[0]), self.elem)

    def partial_base(self) -> int:
        return sum(self.buffer_elements())

    @property
    def partial_row(self) -> int:
        """Elements of a row of partial sums in the workspace."""
        return ceil_div(self.N, self.lanes) * self.lanes

    @property
    def partials(self) -> int:
        return self.B * self.M * self.partial_row
