"""What a configuration of a contraction means for its operands: sides, windows, how each is best read or packed, how
tiles meet them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from einsmith.expr.nodes import axes_of
from einsmith.kernels.contraction.halo import SLOT, HaloCopy, elements, halo_copy
from einsmith.kernels.contraction.problem import Operand, Problem
from einsmith.kernels.emit.access import OperandAccess
from einsmith.locks import cached_property
from einsmith.loops.address import BufferMemory, arguments_of, memories_of
from einsmith.loops.nest import Builder
from einsmith.loops.walk import divisors
from einsmith.plan.kernel import Kernel

HALO_BYTES = 1 << 19
"""Most bytes of a halo copy: it lives in a private second-level cache."""

PANEL = 32
"""Points that a panel has about."""

MAX_TAIL = 64
"""Most places of a filter whose masks are made once for all channels."""
UNROLLED, WIDE_UNROLLED = 170, 75
"""Multiply-adds in the body of the loop over K up to which a short innermost axis of K is unrolled, which takes up to
30 % less time for tiles of one vector and 8 % for those of two; and for wider ones, of whose sums LLVM lets some go to
the stack in longer bodies: tiles of 6x3 and 4x3 take 3 to 15 % longer at 5 and 7 taps."""


class HaloBlock(NamedTuple):
    """One block of `points` points of an axis at a time: for a task, of an operand's output axis `place`, its side's
    outermost once those before it have joined the batch; within a task, of K's axis `place` where `of_k`, those before
    it having one value at a time."""

    place: int
    points: int
    of_k: bool = False

    def __str__(self) -> str:
        return f"{'k' * self.of_k}{self.place}/{self.points}"


Halos = tuple[tuple[int, str | HaloBlock], ...]
"""Operands (0 left, 1 right) that tasks copy into windows, each with what has one value at a time besides the batch:
"all" (nothing), "side" (the operand's first output axis, which joins the batch), "k" (the first axis of K), a
HaloBlock; or "batch", which lets that axis join the batch and copies nothing."""


@dataclass(frozen=True)
class Direct:
    """The direct form (direct): lanes along `vector`, `vectors` of them side by side where that is an
    output axis; `tile` and `unroll`: (axis, points) of the unrolled box, output axes and axes of K; `outer`: output
    axes whose points are outermost; `k_outer`: an axis of K that is outside all tiles, for the sake of windows, which
    are as in Tiled; tasks: ranges of the points of `outer`, each `parts` times: with so many ranges of the tiles along
    the output axis that has the most of them; split: ranges of `k_outer`, whose partial sums a later launch adds;
    fused: axes of K that are one with `vector`, which is inside of them."""

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
    """Register tiles of results over blocks of K (blocked).

    swap: the right operand is the broadcast side (M). mr x nv: register tile, rows by vectors. a, b: how the M and N
    operands reach the tile: "inline" (read in place inside the K loop), "panel" (packed by the task into its scratch),
    "buffer" (packed by an earlier launch into the workspace). order "n": N panels in the outer loop, "m": M tiles, "k":
    blocks of K, whose rows of N are read as streams, while the sums of all tiles wait.
    kc: points of K in a block. split: partial sums over K, added by a later launch. tm, tn: tasks along M and N.
    windows: what tasks copy into windows first (see Halos). rows: vectors of N do not cross rows
    of its innermost axis, whose extent is rounded up. depth: the lanes of a vector of N are so many points of K of each
    of its points, added at the end (k_pack).
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
        return text + (f" split={self.split}" if self.split > 1 else "")


Config = Tiled | Direct
"""How a contraction is computed."""


class Side(NamedTuple):
    """An operand as M or N side."""

    operand: Operand
    axes: tuple[int, ...]


@lru_cache(maxsize=4096)
def sides(p: Problem, swap: bool) -> tuple[Side, Side]:
    """The M side and the N side."""
    left, right = Side(p.operands[0], p.left), Side(p.operands[1], p.right)
    return (right, left) if swap else (left, right)


def depends_on_batch(p: Problem, side: Side) -> bool:
    """Whether an operand is another one at another point of the batch; of one that is no halo copy."""
    return any(a in side.operand.axes for a in p.batch)


def sampler(
    b: Builder | None,
    p: Problem,
    side: Side,
    memories: Mapping[int, BufferMemory],
    lane_axes: Sequence[int],
    lanes: int,
    row: int = 0,
    loose: bool = False,
) -> OperandAccess:
    """The sampler of one operand."""
    o = side.operand
    return OperandAccess(b, [o.expr], o.guards, p.extents, memories, lane_axes, lanes, row=row, loose=loose)


def padded_row(p: Problem, side: Side, lanes: int) -> int:
    """The innermost axis's extent, rounded up to whole vectors."""
    return -(-p.extents[side.axes[-1]] // lanes) * lanes


Steps = tuple[tuple[int, int], ...]
"""How many points each group of axes has along which a read moves evenly, outer first, and how far from one to the
next."""


@lru_cache(maxsize=4096)
def row_offsets(groups: Steps, mr: int) -> list[int] | None:
    """Where the rows of a tile of `mr` lie from its first one, if that is the same in every tile; else None. Tiles
    begin at multiples of mr."""
    if not _repeats(_merged(groups), mr):
        return None
    out = [0] * mr
    inner = 1
    for n, (extent, stride) in enumerate(reversed(groups), start=1):
        # Beyond the last row the outermost group goes on.
        out = [at + stride * (i // inner if n == len(groups) else i // inner % extent) for i, at in enumerate(out)]
        inner *= extent
    return out


def _merged(groups: Steps) -> Steps:
    """The groups, one for those that rows go through evenly; in those that are left, a row that begins a point of the
    group outside lies at another distance from the row before it than others do."""
    out: list[tuple[int, int]] = []
    for extent, stride in groups:
        if out and out[-1][1] == extent * stride:
            out[-1] = out[-1][0] * extent, stride
        elif extent > 1:
            out.append((extent, stride))
    return tuple(out)


def _repeats(groups: Steps, mr: int) -> bool:
    """Whether all tiles of `mr` rows are like the first one, as far as they go; of merged groups.

    With an innermost group of n rows, tiles are alike where they divide it; where they are whole groups and so many of
    them are alike outside; and where there are but two, the second one within the last group."""
    rows = prod(extent for extent, _ in groups)
    for extent, _ in reversed(groups):
        if mr >= rows or extent % mr == 0:
            return True
        if mr % extent:
            return mr > rows - extent
        mr, rows = mr // extent, rows // extent
    return True


@lru_cache(maxsize=4096)
def regular_rows(groups: Steps, limit: int) -> int:
    """The most rows, at most `limit`, of a tile that can be read in place; 0 where there are none beyond one group."""
    best, width = 0, 1
    if len(groups) <= 1:
        return 0
    for extent, _ in reversed(groups):
        for t in range(1, min(extent, limit // width) + 1):
            # Whole rows may be taken together even where the last tile has fewer.
            if extent % t == 0 or (width > 1 and row_offsets(groups, width * t) is not None):
                best = max(best, width * t)
        width *= extent
        if width > limit:
            break
    return best if best and row_offsets(groups, best) is not None else 0


def masked_tail(p: Problem) -> int:
    """Points of the innermost axes of K, from the first one on that a guard mentions: an image's channels stand before
    its filter's places. 1 where guards mention the first axis of K or there are more than MAX_TAIL."""
    guarded = {a for o in p.operands for g in o.guards for a in axes_of(g)}
    inner = [i for i, a in enumerate(p.k) if a in guarded and p.extents[a] > 1]
    points = prod(p.extents[a] for a in p.k[inner[0] :]) if inner and inner[0] > 0 else 1
    return points if points <= MAX_TAIL else 1


def unit_of_k(p: Problem, lanes: int) -> int:
    """Points of K of which its blocks are multiples."""
    tail = masked_tail(p)
    return tail if tail > 1 else lanes


def most_unrolled(nv: Any) -> Any:
    """Multiply-adds of a body in which tiles of `nv` vectors (a number, or an array of them) are unrolled, at most."""
    return WIDE_UNROLLED + (UNROLLED - WIDE_UNROLLED) * (nv <= 2)


def room_to_unroll(mr: Any, nv: Any, registers: int) -> Any:
    """Whether registers are left (numbers, or arrays of them) for what a body of several points loads ahead: without,
    sums would rotate through the stack at every turn."""
    return mr * nv + 2 * nv + 2 < registers


class HaloProblem(NamedTuple):
    """A problem whose operands read windows; `problem.batch` has taken in the output axes that windows fix.
    `heads`: a halo copy fixes the first axis of K, or cuts it or the second, so that K is cut into so many blocks; 0:
    none does."""

    problem: Problem
    windows: tuple[tuple[int, HaloCopy], ...]
    heads: int


@lru_cache(maxsize=1 << 13)
def with_halos(p: Problem, which: Halos) -> HaloProblem | None:
    """The problem with these windows, of at most HALO_BYTES each, twice that where a block of K has one halo copy
    that spares all tiles their masks; None where one cannot be or gains nothing."""
    found: list[tuple[int, HaloCopy]] = []
    heads = 0
    for i, fixes in which:
        side = p.left if i == 0 else p.right
        cut = None
        if fixes == "batch":
            if not side:
                return None
            p = _in_batch(p, side[0])
            continue
        if isinstance(fixes, HaloBlock):
            axes = p.k if fixes.of_k else side
            head = axes[: fixes.place]
            if len(axes) <= fixes.place or p.extents[axes[fixes.place]] % fixes.points:
                return None
            cut = axes[fixes.place], fixes.points
        else:
            head = {"all": (), "side": side[:1], "k": p.k[:1]}[fixes]
        if head and not cut and p.extents[head[0]] == 1:
            return None
        if p.operands[i].plain and (fixes != "side" or len(side) < 2):
            return None  # rows without what a stride skips, for vectors along them, are all that it would gain
        most = HALO_BYTES * (1 + (fixes == "k")) // p.dtype.itemsize
        w = halo_copy(p, i, frozenset(p.batch) | frozenset(head), cut, most)
        if w is None or (head and not set(head) & set(w.fixed)):
            return None
        found.append((i, w))
        p = reading(p, [(i, w)])
        if head and head[0] in side:
            p = _in_batch(p, head[0])
        elif head or (cut and cut[0] in p.k):
            heads = p.count(head) * (p.extents[cut[0]] // cut[1] if cut else 1)
    return HaloProblem(p, tuple(found), heads)


def reading(p: Problem, windows: Sequence[tuple[int, HaloCopy]]) -> Problem:
    """The problem whose operands are these windows."""
    left, right = (dict(windows).get(i) for i in (0, 1))
    return replace(p, operands=(left.operand if left else p.operands[0], right.operand if right else p.operands[1]))


def _in_batch(p: Problem, axis: int) -> Problem:
    """The problem whose batch has taken in an axis of a side."""
    left, right = (tuple(a for a in x if a != axis) for x in (p.left, p.right))
    return replace(p, batch=(*p.batch, axis), left=left, right=right)


def halo_blocks(p: Problem, i: int, limit: int) -> list[HaloBlock]:
    """The cuts of operand i in the largest blocks of which a halo copy has at most `limit` bytes, where one of the
    whole axis has more: of each of its two outermost output axes; and of K, where a panel of the other operand that is
    PANEL points wide has half of that too, of its first axis, or of the second where one point of that has more."""
    item, side = p.dtype.itemsize, p.left if i == 0 else p.right
    out: list[HaloBlock] = []

    def fits(axes: tuple[int, ...], place: int, points: int) -> bool | None:
        """None where there is no such halo copy."""
        cut = (axes[place], points) if points < p.extents[axes[place]] else None
        count = elements(p, i, frozenset((*p.batch, *axes[:place])), cut)
        if count is None:
            return None
        panel = points * p.count(axes[place + 1 :]) * PANEL if axes is p.k else 0
        return count * item <= limit and panel * item <= limit // 2

    for axes in (side, p.k) if not p.operands[i].plain else ():
        of_k = axes is p.k
        for place, axis in enumerate(axes[:2]):
            if fits(axes, place, p.extents[axis]) is not False:
                break
            sizes = [n for n in divisors(p.extents[axis])[:-1] if n > 1 or not of_k]
            largest = next((n for n in reversed(sizes) if fits(axes, place, n) is not False), None)
            if largest and fits(axes, place, largest) and (place or largest > 1):  # one point is "side"
                out.append(HaloBlock(place, largest, of_k))
            if of_k and largest:
                break
    return out


@lru_cache(maxsize=1024)
def operand_memories(kernel: Kernel) -> Mapping[int, BufferMemory]:
    """The root's arguments by slot, without values."""
    return arguments_of(kernel, memories_of(kernel))


@lru_cache(maxsize=1024)
def _accesses(kernel: Kernel, p: Problem) -> dict[tuple, Any]:
    """What is found out of an operand holds for every setting it is part of."""
    return {}


class WindowSetting:
    """What configurations with the same halo copies and sides have in common.

    `p` is the problem that reads the halo copies; `original` is it without them. halos: (operand, copy); heads: blocks
    that they cut K into, 0 for none. B, M, N, K: points of the batch, the sides and K; `columns`: of N, whose rows,
    where vectors keep to them (`rows`), N counts as filled up to `row` points.
    """

    def __init__(self, kernel: Kernel, problem: Problem, windows: Halos, swap: bool, rows: bool, target: Any):
        changed = with_halos(problem, windows)
        assert changed is not None
        self.kernel, self.target, self.windows, self.swap, self.rows = kernel, target, windows, swap, rows
        self.original, self.p, self.heads = problem, changed.problem, changed.heads
        self.item, self.lanes = problem.dtype.itemsize, target.lanes(problem.dtype.itemsize)
        self.slots = dict(operand_memories(kernel))
        self.halos = changed.windows
        self.slots |= {SLOT + i: BufferMemory(None, w.buffer) for i, w in self.halos}
        p = self.p
        self.m_side, self.n_side = sides(p, swap)
        self.B, self.M, self.columns, self.K = map(p.count, (p.batch, self.m_side.axes, self.n_side.axes, p.k))
        self.row, self.N = 0, self.columns
        if rows:
            self.row = padded_row(p, self.n_side, self.lanes)
            self.N = self.columns // p.extents[self.n_side.axes[-1]] * self.row
        self._known = _accesses(kernel, problem)

    def access(self, side: Side, axes: Sequence[int] = (), lanes: int = 0) -> OperandAccess:
        """An operand, analysed along these axes."""
        key = side.operand, tuple(axes), lanes
        found = self._known.get(key)
        if found is None:
            plain = not axes and not lanes
            made = sampler(None, self.p, side, self.slots, (), 0) if plain else self.access(side).along(axes, lanes)
            found = self._known[key] = made
        return found

    def lies_along_k(self, side: Side, align: int) -> bool:
        """Whether a side is packed with lanes along K rather than along its own axes: where that takes fewer loads a
        vector, and one more to turn it."""
        if not (side.axes and self.p.k):
            return False
        along = self.access(side, side.axes, self.lanes).load_cost(align)
        return along > 1.0 and self.access(side, self.p.k, self.lanes).load_cost(self.lanes) + 1.0 < along

    @cached_property
    def m_steps(self) -> Steps:
        """Of the rows of M, if that is a plain operand."""
        s = self.access(self.m_side)
        form = s.forms[next(iter(s.reads.values()))]
        return tuple((g.extent, form.coef.get(g.inner, 0)) for g in s.groups(self.m_side.axes))

    def reads_in_place(self, mr: int) -> bool:
        """Whether tiles of `mr` rows of M read that side without a copy."""
        return self.m_side.operand.plain and row_offsets(self.m_steps, mr) is not None
