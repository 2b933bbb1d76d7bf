"""Define the configurations of a contraction and derive the layouts of its operands.

Covers M and N sides, halo copies, and how each operand is read or packed for the register tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from einsmith.base.locks import cached_property
from einsmith.codegen.loopnest.address import BufferMemory
from einsmith.codegen.loopnest.dots import DOTS, TILE_ROWS
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.walk import divisors
from einsmith.ir.nodes import axes_of
from einsmith.kernels.contraction.halo import SLOT, HaloCopy, count_elements, halo_copy
from einsmith.kernels.contraction.row_offsets import GroupStrides, row_offsets
from einsmith.kernels.contraction.words import operand_memories
from einsmith.kernels.emit.access import OperandAccess
from einsmith.schedule.contraction_problem import Operand, Problem, needs_exact_guards
from einsmith.schedule.kernel import Kernel

MAX_HALO_BYTES = 1 << 19
"""Most bytes of a halo copy, so that it stays in a private L2."""

PANEL_WIDTH = 32
"""Approximate width of a panel (points of M or N)."""

MAX_TAIL_POINTS = 64
"""Most points of the guarded inner axes of K (a filter's taps) whose masks are computed once for all channels."""
MAX_UNROLLED_PRODUCTS, MAX_WIDE_UNROLLED_PRODUCTS = 170, 75
"""Most multiply-adds in the body of the loop over K for which a short innermost axis of K is unrolled.

MAX_UNROLLED_PRODUCTS holds for tiles of one or two vectors: unrolling takes up to 30 % less time with one vector and 8
% with two. MAX_WIDE_UNROLLED_PRODUCTS holds for wider tiles, some of whose sums LLVM spills in longer bodies: tiles of
6x3 and 4x3 take 3 to 15 % longer at 5 and 7 taps.
"""


class HaloBlock(NamedTuple):
    """A cut of an axis into blocks of `points` points, so that a halo copy holds one block at a time.

    place: index of the axis among the operand's output axes, or among the axes of K where `of_k`
    points: points of the axis in a block
    of_k: the axis belongs to K

    With an output axis, a task has one block, and the side's axes before `place` join the batch. With an axis of K, a
    task goes through the blocks, and the axes of K before `place` have one value at a time.
    """

    place: int
    points: int
    of_k: bool = False

    def __str__(self) -> str:
        return f"{'k' * self.of_k}{self.place}/{self.points}"


Halos = tuple[tuple[int, str | HaloBlock], ...]
"""Operands (0 left, 1 right) that tasks copy into halo copies, each with what has one value at a time.

These have one value at a time in addition to the batch:
"all": nothing
"side": the operand's first output axis, which joins the batch
"k": the first axis of K
HaloBlock: a block of an axis
"batch": the operand's first output axis, which joins the batch, while nothing is copied
"""


@dataclass(frozen=True)
class Direct:
    """A configuration of the direct form, which loops over an unrolled box without packing operands.

    vector: the axis of the lanes
    vectors: vectors computed next to each other along `vector`, where that is an output axis
    tile, unroll: (axis, points) of the unrolled box, for output axes and for axes of K
    outer: output axes whose points are outermost
    k_outer: an axis of K outside all tiles, which halo copies need
    tasks: ranges of the points of `outer`
    windows: operands that are read from halo copies, as in Tiled
    parts: ranges, within each task's, of the tiles along the output axis that has the most of them
    split: ranges of `k_outer`, whose partial sums a later launch adds
    fused: axes of K that are one with `vector`, which is the innermost of them
    """

    vector: int
    vectors: int
    tile: tuple[tuple[int, int], ...]
    unroll: tuple[tuple[int, int], ...]
    outer: tuple[int, ...]
    k_outer: tuple[int, ...] = ()
    tasks: int = 1
    windows: Halos = ()
    parts: int = 1
    split: int = 1
    fused: tuple[int, ...] = ()

    def __str__(self) -> str:
        box = ",".join(f"i{a}:{n}" for a, n in (*self.tile, *self.unroll)) or "1"
        lanes = "+".join(f"i{a}" for a in (*self.fused, self.vector))
        text = f"direct lanes={lanes}x{self.vectors} box={box} outer={','.join(f'i{a}' for a in self.outer)}"
        text += "".join(f" head=i{a}" for a in self.k_outer) + f" tasks {self.tasks}"
        text += f"x{self.parts}" if self.parts > 1 else ""
        text += f" windows={','.join('LR'[i] for i, _ in self.windows)}" if self.windows else ""
        return text + (f" split={self.split}" if self.split > 1 else "")


@dataclass(frozen=True)
class Tiled:
    """A configuration of the tiled form: register tiles of results over blocks of K.

    swap: the right operand is the broadcast side (M)
    mr, nv: register tile, rows by vectors
    a, b: how the M and N operands reach the tile: "inline" (read in place inside the K loop), "panel" (packed by the
    task into its scratch) or "buffer" (packed by an earlier launch into the workspace)
    order: the outer loop: "n" (panels of N), "m" (tiles of M) or "k" (blocks of K, whose rows of N are read as streams
    while the sums of all tiles stay in scratch)
    kc: points of K in a block
    split: partial sums over K, added by a later launch
    tm, tn: tasks along M and N
    windows: operands that tasks first copy into halo copies (see Halos)
    rows: vectors of N do not cross rows of N's innermost axis, whose extent is rounded up
    depth: points of K in the lanes of a vector of N for each point of N, added at the end (k_vectorization)
    words: the axis of K whose points are in words (`words.in_words`); None where operands are read by elements
    tiles: tile registers multiply the words
    """

    swap: bool = False
    mr: int = 8
    nv: int = 2
    a: str = "panel"
    b: str = "panel"
    order: str = "n"
    kc: int = 0
    split: int = 1
    tm: int = 1
    tn: int = 1
    windows: Halos = ()
    rows: bool = False
    depth: int = 1
    words: int | None = None
    tiles: bool = False

    def __str__(self) -> str:
        text = f"{'swap ' if self.swap else ''}{self.mr}x{self.nv} a={self.a} b={self.b} {self.order}-outer"
        text += f" tasks {self.tm}x{self.tn}"
        if self.kc:
            text += f" kc={self.kc}"
        if self.windows:
            text += f" windows={','.join('LR'[i] + f':{fixes}' for i, fixes in self.windows)}"
        text += " rows" if self.rows else ""
        if self.depth > 1:
            text += f" depth={self.depth}"
        if self.words is not None:
            text += f" words=i{self.words}" + " tiles" * self.tiles
        return text + (f" split={self.split}" if self.split > 1 else "")


Config = Tiled | Direct
"""A configuration of a contraction, in the tiled or the direct form."""


TILE_SIZES = (TILE_ROWS, 2 * TILE_ROWS)
"""Rows that tile registers compute together: of eight, four hold sums and two each rows of either side."""
TILE_VECTORS = (1, 2, 4, 8)
"""Vectors of a panel for them, two at a time."""


def reject_tiles(p: Problem, c: Tiled) -> str:
    """Return the reason why tile registers do not compute a configuration; empty where they do."""
    if c.mr not in TILE_SIZES or c.nv not in TILE_VECTORS:
        return f"tile registers take 16 or 32 rows and 1, 2, 4 or 8 vectors, not {c.mr}x{c.nv}"
    if "inline" in (c.a, c.b) or c.order == "k" or c.split > 1 or c.windows or c.rows or c.depth > 1:
        return f"tile registers read packed operands and sum over all of K: {c}"
    if c.kc and needs_exact_guards(p):
        return "sums over blocks of K are not computed again where they are NaN"
    return f"a block of {c.kc} points is not whole tiles" if c.kc % TILE_ROWS else ""


class Side(NamedTuple):
    """An operand in the role of the M or N side, with its output axes."""

    operand: Operand
    axes: tuple[int, ...]


def sides(p: Problem, swap: bool) -> tuple[Side, Side]:
    """Return the M side and the N side; `swap` makes the right operand the M side."""
    left, right = Side(p.operands[0], p.left), Side(p.operands[1], p.right)
    return (right, left) if swap else (left, right)


def depends_on_batch(p: Problem, side: Side) -> bool:
    """Return whether an operand that is not a halo copy varies over the points of the batch."""
    return any(a in side.operand.axes for a in p.batch)


def make_access(
    b: Builder | None,
    p: Problem,
    side: Side,
    memories: Mapping[int, BufferMemory],
    lane_axes: Sequence[int],
    lanes: int,
    row: int = 0,
    loose: bool = False,
) -> OperandAccess:
    """Return the access of one side's operand, with lanes along `lane_axes`."""
    o = side.operand
    return OperandAccess(b, [o.expr], o.guards, p.extents, memories, lane_axes, lanes, row=row, loose=loose)


def padded_row(p: Problem, side: Side, lanes: int) -> int:
    """Return the extent of the side's innermost axis, rounded up to whole vectors."""
    return -(-p.extents[side.axes[-1]] // lanes) * lanes


def masked_tail(p: Problem) -> int:
    """Return the points of K from its first guarded axis inward, for which masks are computed once (a filter's taps).

    Returns 1 if guards mention the first axis of K, or if there are more than MAX_TAIL_POINTS points.
    """
    guarded = {a for o in p.operands for g in o.guards for a in axes_of(g)}
    inner = [i for i, a in enumerate(p.k) if a in guarded and p.extents[a] > 1]
    points = prod(p.extents[a] for a in p.k[inner[0] :]) if inner and inner[0] > 0 else 1
    return points if points <= MAX_TAIL_POINTS else 1


def unit_of_k(p: Problem, lanes: int) -> int:
    """Return the number of points of K of which blocks of K are multiples."""
    tail = masked_tail(p)
    return tail if tail > 1 else lanes


def unroll_limit(nv: Any) -> Any:
    """Return the most multiply-adds of an unrolled body for tiles of `nv` vectors (a number or an array)."""
    return MAX_WIDE_UNROLLED_PRODUCTS + (MAX_UNROLLED_PRODUCTS - MAX_WIDE_UNROLLED_PRODUCTS) * (nv <= 2)


def has_room_to_unroll(mr: Any, nv: Any, registers: int) -> Any:
    """Return whether an unrolled body has spare registers for its loads ahead (arguments: numbers or arrays).

    Without spare registers the sums rotate through the stack in every iteration, as LLVM loads the elements of a point
    of K ahead of the sums that use them. On a Zen 4 with AVX-512, tiles of 12 rows and 2 vectors, some of whose sums
    rotate, took 1.25 and 1.89 times as long unrolled as not, over runs of 4 and 3 points, and equally long over runs
    without: unrolling gains nothing for tiles of that many sums.
    """
    return mr * nv + 2 * nv + 4 < registers


class HaloProblem(NamedTuple):
    """A problem whose operands read halo copies.

    problem: the problem, whose batch includes the output axes that halo copies fix
    halos: (operand, halo copy)
    halo_k_blocks: blocks into which halo copies cut K, because one fixes the first axis of K or cuts it or the second;
    0 for none
    """

    problem: Problem
    halos: tuple[tuple[int, HaloCopy], ...]
    halo_k_blocks: int

    def memories(self, kernel: Kernel) -> dict[int, BufferMemory]:
        """Return the memories of what the operands read by slot, without values."""
        return {**operand_memories(kernel), **{SLOT + i: BufferMemory(None, w.buffer) for i, w in self.halos}}


@lru_cache(maxsize=1 << 13)
def with_halos(p: Problem, which: Halos) -> HaloProblem | None:
    """Return the problem with these halo copies, or None if one of them is impossible or gains nothing.

    A halo copy has at most MAX_HALO_BYTES, or twice that with "k": a copy of a block of K spares all tiles their masks.
    """
    copies: list[tuple[int, HaloCopy]] = []
    halo_k_blocks = 0
    for i, fixes in which:
        side = p.left if i == 0 else p.right
        cut = None
        if fixes == "batch":
            if not side:
                return None
            p = _move_to_batch(p, side[0])
            continue
        if isinstance(fixes, HaloBlock):
            axes = p.k if fixes.of_k else side
            single_axes = axes[: fixes.place]
            if len(axes) <= fixes.place or p.extents[axes[fixes.place]] % fixes.points:
                return None
            cut = axes[fixes.place], fixes.points
        else:
            single_axes = {"all": (), "side": side[:1], "k": p.k[:1]}[fixes]
        if single_axes and not cut and p.extents[single_axes[0]] == 1:
            return None
        if p.operands[i].plain and (fixes != "side" or len(side) < 2):
            return None  # it would only remove a stride's gaps from rows, for vectors along them
        max_elements = MAX_HALO_BYTES * (1 + (fixes == "k")) // p.dtype.itemsize
        halo = halo_copy(p, i, frozenset(p.batch) | frozenset(single_axes), cut, max_elements)
        if halo is None or (single_axes and not set(single_axes) & set(halo.fixed)):
            return None
        copies.append((i, halo))
        p = read_halos(p, [(i, halo)])
        if single_axes and single_axes[0] in side:
            p = _move_to_batch(p, single_axes[0])
        elif single_axes or (cut and cut[0] in p.k):
            halo_k_blocks = p.count(single_axes) * (p.extents[cut[0]] // cut[1] if cut else 1)
    return HaloProblem(p, tuple(copies), halo_k_blocks)


def read_halos(p: Problem, halos: Sequence[tuple[int, HaloCopy]]) -> Problem:
    """Return the problem whose operands are these halo copies."""
    left, right = (dict(halos).get(i) for i in (0, 1))
    return replace(p, operands=(left.operand if left else p.operands[0], right.operand if right else p.operands[1]))


def _move_to_batch(p: Problem, axis: int) -> Problem:
    """Return the problem whose batch also has an axis of a side."""
    left, right = (tuple(a for a in x if a != axis) for x in (p.left, p.right))
    return replace(p, batch=(*p.batch, axis), left=left, right=right)


def halo_blocks(p: Problem, i: int, limit: int) -> list[HaloBlock]:
    """Return cuts of operand `i` into the largest blocks whose halo copy has at most `limit` bytes.

    An axis is cut only if a halo copy of the whole axis is larger than `limit`. Candidates are each of the two
    outermost output axes, and the first axis of K, or the second if even one point of the first exceeds the limit. For
    K, a panel of the other operand, PANEL_WIDTH points wide, must have at most half of `limit`.
    """
    item, side = p.dtype.itemsize, p.left if i == 0 else p.right
    cuts: list[HaloBlock] = []

    def fits(axes: tuple[int, ...], place: int, points: int) -> bool | None:
        """Return whether a halo copy of blocks of `points` points fits the limit; None if there is no such copy."""
        cut = (axes[place], points) if points < p.extents[axes[place]] else None
        count = count_elements(p, i, frozenset((*p.batch, *axes[:place])), cut)
        if count is None:
            return None
        panel = points * p.count(axes[place + 1 :]) * PANEL_WIDTH if axes is p.k else 0
        return count * item <= limit and panel * item <= limit // 2

    for axes in (side, p.k) if not p.operands[i].plain else ():
        of_k = axes is p.k
        for place, axis in enumerate(axes[:2]):
            if fits(axes, place, p.extents[axis]) is not False:
                break
            sizes = [n for n in divisors(p.extents[axis])[:-1] if n > 1 or not of_k]
            largest = next((n for n in reversed(sizes) if fits(axes, place, n) is not False), None)
            if largest and fits(axes, place, largest) and (place or largest > 1):  # one point is "side"
                cuts.append(HaloBlock(place, largest, of_k))
            if of_k and largest:
                break
    return cuts


@lru_cache(maxsize=1024)
def _accesses(kernel: Kernel, p: Problem) -> dict[tuple, Any]:
    """Return the cache of operand analyses of a problem, shared by all settings that contain the operand."""
    return {}


class HaloSetting:
    """The properties common to configurations with equal halo copies and sides.

    p: the problem that reads the halo copies
    original: the problem without halo copies
    halos: (operand, halo copy)
    halo_k_blocks: blocks into which halo copies cut K, 0 for none
    multiplies: vector multiply-adds, of elements or of words, per clock cycle
    registers: registers for accumulators and the vectors that they share
    B, M, N, K: points of the batch, the sides and K; N counts rows of `row` points where vectors keep to rows (`rows`)
    columns: points of N without padding
    """

    def __init__(self, kernel: Kernel, problem: Problem, windows: Halos, swap: bool, rows: bool, target: Any):
        copied = with_halos(problem, windows)
        assert copied is not None
        self.kernel, self.target, self.windows, self.swap, self.rows = kernel, target, windows, swap, rows
        self.original, self.p, self.halo_k_blocks = problem, copied.problem, copied.halo_k_blocks
        self.item, self.lanes = problem.dtype.itemsize, target.lanes(problem.dtype.itemsize)
        if problem.dot is None:
            self.multiplies = target.multiplies
        else:
            rate = target.tile_dots_per_cycle if problem.in_tiles else target.dots_per_cycle
            self.multiplies = rate(problem.dot)
        self.registers = target.sum_registers - (0 if problem.dot is None else DOTS[problem.dot].temporaries)
        self.halos, self.slots = copied.halos, copied.memories(kernel)
        p = self.p
        self.m_side, self.n_side = sides(p, swap)
        self.B, self.M, self.columns, self.K = map(p.count, (p.batch, self.m_side.axes, self.n_side.axes, p.k))
        self.row, self.N = 0, self.columns
        if rows:
            self.row = padded_row(p, self.n_side, self.lanes)
            self.N = self.columns // p.extents[self.n_side.axes[-1]] * self.row
        self._access_cache = _accesses(kernel, problem)

    def access(self, side: Side, axes: Sequence[int] = (), lanes: int = 0) -> OperandAccess:
        """Return the analysis of an operand with `lanes` lanes along these axes, cached."""
        key = side.operand, tuple(axes), lanes
        access = self._access_cache.get(key)
        if access is None:
            if axes or lanes:
                access = self.access(side).along(axes, lanes)
            else:
                access = make_access(None, self.p, side, self.slots, (), 0)
            self._access_cache[key] = access
        return access

    def lies_along_k(self, side: Side, align: int) -> bool:
        """Return whether packing a side with lanes along K takes fewer loads a vector, transposition included."""
        if not (side.axes and self.p.k):
            return False
        along = self.access(side, side.axes, self.lanes).load_cost(align)
        return along > 1.0 and self.access(side, self.p.k, self.lanes).load_cost(self.lanes) + 1.0 < along

    @cached_property
    def m_strides(self) -> GroupStrides:
        """Return the extents and strides of the groups of M's rows; the M operand is plain."""
        s = self.access(self.m_side)
        form = s.forms[next(iter(s.reads.values()))]
        return tuple((g.extent, form.coef.get(g.inner, 0)) for g in s.groups(self.m_side.axes))

    def reads_in_place(self, mr: int) -> bool:
        """Return whether tiles of `mr` rows of M read that side without a copy."""
        return self.m_side.operand.plain and row_offsets(self.m_strides, mr) is not None
