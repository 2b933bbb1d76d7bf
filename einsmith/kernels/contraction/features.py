"""What the configurations of a contraction with the same windows and sides have in common, analysed once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from einsmith.kernels.contraction import config as plan
from einsmith.kernels.contraction import epilogue as finish
from einsmith.kernels.contraction import k_bounds as trim
from einsmith.kernels.contraction import traffic
from einsmith.kernels.contraction.config import Config
from einsmith.kernels.contraction.emission import launches as launch
from einsmith.kernels.contraction.geometry import operand_memories
from einsmith.kernels.contraction.problem import Operand, Problem
from einsmith.kernels.emit.access import PAIR_CYCLES, OperandAccess
from einsmith.kernels.emit.address import Memory
from einsmith.kernels.footprint import touched
from einsmith.kernels.pattern import Cost
from einsmith.plan.kernel import Kernel
from einsmith.target.facts import LINE


@lru_cache(maxsize=1024)
def with_halos_of(kernel: Kernel, p: Problem, windows: plan.Halos) -> plan.HaloProblem | None:
    return plan.with_halos(p, windows, plan.HALO_BYTES) if windows else plan.HaloProblem(p, (), 0)


@lru_cache(maxsize=1024)
def slots_of(kernel: Kernel, p: Problem, windows: plan.Halos) -> dict[int, Memory]:
    changed = with_halos_of(kernel, p, windows)
    assert changed is not None
    return {**operand_memories(kernel), **plan.halo_memories(changed.windows)}


class Features(NamedTuple):
    """A setting in numbers, flags 0 or 1; or many settings, each field an array. m, n, k, batch: points, those of N
    with its rows filled up to whole vectors; columns: points of N as they are; row: points of a filled row, 0 for none.
    a, b are the M and N sides: turned: whether a side is packed along K; packed: cycles beyond a load that a vector
    takes which is packed; pieces, masks, pairs: those that a vector of N takes which is read in place, its masks, and
    whether it is every other element; side, step: bytes from one point of the side's innermost axis, and of K, to the
    next (0 where there are windows); held: lines of a column along K that the second level keeps; fit: rows of M read
    in place that the first level keeps a line of, 0 where that does not matter; spread: bytes of lines for a byte that
    is read in place; meets: whether rows and points of K next to each other share elements; run: points of K that lie
    evenly where the side, or both sides, are read in place; strips: whether the side comes in strips; once: packed once
    for many runs; far: rows of N are far apart; even: both sides are plain reads at one stride along K. finish: cycles
    a vector of what follows the sum, along N; results: bytes of results, and of what is read with them, that strips
    wait for (traffic.far_results); parted: bytes of results stored in parts of lines; elements: of all windows; heads:
    blocks that windows cut K into, 0 for none; a_batch, b_batch: points of the batch that a side depends on; a_window,
    b_window: bytes of a window, 0 for none; m_parts, n_parts: blocks that a window cuts M or N into, 0 for no matter.
    """

    m: Any
    n: Any
    columns: Any
    row: Any
    k: Any
    batch: Any
    a_turned: Any
    a_packed: Any
    a_side: Any
    a_step: Any
    a_held: Any
    a_fit: Any
    a_spread: Any
    a_meets: Any
    a_run: Any
    a_once: Any
    b_turned: Any
    b_packed: Any
    b_pieces: Any
    b_masks: Any
    b_pairs: Any
    b_side: Any
    b_step: Any
    b_held: Any
    b_run: Any
    b_strips: Any
    b_once: Any
    b_far: Any
    run: Any
    even: Any
    finish: Any
    results: Any
    parted: Any
    windows: Any
    elements: Any
    heads: Any
    a_batch: Any
    b_batch: Any
    a_window: Any
    b_window: Any
    m_parts: Any
    n_parts: Any
    b_share: Any


class OperandPlan(NamedTuple):
    """Windows, which operand is the M side, and whether vectors of N keep to rows."""

    windows: plan.Halos
    swap: bool
    rows: bool
    changed: plan.HaloProblem
    numbers: Features


class Analysis:
    """A contraction of a kernel on a target: what is found out of an operand holds for every setting it is part of.
    known: what configurations of the tiled form cost besides their launches, and those, where it has been predicted.
    """

    def __init__(self, kernel: Kernel, p: Problem, target: Any):
        self.kernel, self.p, self.target = kernel, p, target
        self.item = p.dtype.itemsize
        self.lanes = target.lanes(self.item)
        self.nbytes = sum(touched(kernel))
        self.known: dict[Config, tuple[Cost, int]] = {}
        self._samplers: dict[tuple, OperandAccess] = {}
        self._turned: dict[tuple, tuple[bool, float]] = {}
        self._settings: dict[tuple, OperandPlan] = {}

    def sampler(self, o: Operand, windows: plan.Halos, axes: Sequence[int], lanes: int) -> OperandAccess:
        """Of an operand; `windows`: those of the problem that the operand belongs to."""
        key = (o, tuple(axes), lanes)
        found = self._samplers.get(key)
        if found is None:
            if not axes and not lanes:
                slots = slots_of(self.kernel, self.p, windows)
                found = OperandAccess(None, [o.expr], o.guards, self.p.extents, slots)
            else:
                found = self.sampler(o, windows, (), 0).along(axes, lanes)
            self._samplers[key] = found
        return found

    def plain(self, side: plan.Side, windows: plan.Halos) -> OperandAccess | None:
        """The sampler of a side's points where it is plain."""
        return self.sampler(side.operand, windows, (), 0) if side.operand.plain else None

    def turned(self, side: plan.Side, windows: plan.Halos, k: Sequence[int], align: int) -> tuple[bool, float]:
        """Whether a side is packed along K, and cycles beyond a load that a vector takes."""
        key = (side.operand, side.axes, align)
        if key not in self._turned:
            def sample(axes: Sequence[int]) -> OperandAccess:
                return self.sampler(side.operand, windows, axes, self.lanes)

            along = plan.lies_along_k(sample, side.axes, k, self.lanes, align)
            self._turned[key] = along, sample(k if along else side.axes).read_cycles(align)
        return self._turned[key]

    def steps(self, side: plan.Side, windows: plan.Halos, p: Problem) -> traffic.Steps:
        return traffic.address_steps(self.sampler(side.operand, windows, (), 0), p, side, self.item)

    def _run(self, p: Problem, windows: plan.Halos, *sides: plan.Side) -> int:
        """Points of K that lie evenly in these sides, innermost."""
        forms = [f.coef for x in sides for f in self.sampler(x.operand, windows, (), 0).forms]
        points, inner = 1, None
        for a in reversed([a for a in p.k if p.extents[a] > 1]):
            if inner is not None and any(c.get(a, 0) != c.get(inner, 0) * points for c in forms):
                break
            inner, points = a if inner is None else inner, points * p.extents[a]
        return points

    def _share(self, p: Problem, windows: plan.Halos, side: plan.Side) -> int:
        """Points of K whose vectors of a window lie a few elements apart."""
        k = [a for a in p.k if p.extents[a] > 1][-1:]
        forms = self.sampler(side.operand, windows, (), 0).forms
        return p.extents[k[0]] if k and all(abs(f.coef.get(k[0], 0)) in (1, 2) for f in forms) else 1

    def _meets(self, p: Problem, windows: plan.Halos, side: plan.Side) -> bool:
        """Whether elements of a side that are next to each other along it are so along K."""
        k, m = ([a for a in axes if p.extents[a] > 1][-1:] for axes in (p.k, side.axes))
        if not side.operand.plain or not k or not m:
            return False
        s = self.sampler(side.operand, windows, (), 0)
        (form,) = (s.forms[i].coef for i in s.reads.values())
        return form.get(k[0], 0) == form.get(m[0], 0) != 0

    def setting(self, windows: plan.Halos, changed: plan.HaloProblem, swap: bool, rows: bool) -> OperandPlan:
        key = windows, swap, rows
        if key not in self._settings:
            self._settings[key] = self._setting(windows, changed, swap, rows)
        return self._settings[key]

    def _setting(self, windows: plan.Halos, changed: plan.HaloProblem, swap: bool, rows: bool) -> OperandPlan:
        p, target, item = changed.problem, self.target, self.item
        m_side, n_side = plan.sides(p, swap)
        m, columns, k, batch = p.count(m_side.axes), p.count(n_side.axes), p.count(p.k), p.count(p.batch)
        n, row = columns, 0
        if rows:
            row = plan.padded_row(p, n_side, self.lanes)
            n = columns // p.extents[n_side.axes[-1]] * row
        a_turned, a_packed = self.turned(m_side, windows, p.k, 4)
        b_turned, b_packed = self.turned(n_side, windows, p.k, self.lanes)
        s = self.sampler(n_side.operand, windows, n_side.axes, self.lanes)
        pairs = bool(s.lane_groups) and any(s.step(f) == 2 for f in s.reads.values())
        pieces, masks = PAIR_CYCLES * pairs, 0
        if not rows:
            pieces, masks = s.read_cycles(self.lanes), s.masks
        a_steps = b_steps = traffic.Steps(0, 0)
        if not windows:
            a_steps, b_steps = (self.steps(x, windows, p) for x in (m_side, n_side))

        def copied(which: int) -> int:
            return sum(w.buffer.size * item for i, w in changed.windows if i == which and not changed.k_outer)

        a_copy, b_copy = copied(int(swap)), copied(1 - int(swap))

        def blocks(which: int, side: plan.Side) -> int:
            cut = dict(windows).get(which)
            if not isinstance(cut, plan.HaloBlock) or cut.of_k:
                return 0
            return p.extents[side.axes[0]] // cut.points

        buffers = self.kernel.buffers
        inner = [x.axes[-1] for x in (m_side, n_side) if x.axes]
        parts = {n for axis in inner for n in finish.parted(self.kernel, self.p, axis)}
        if finish.unit(self.kernel, self.p, n_side.axes, self.lanes) is not None:
            parts = set()
        near = a_steps.k == item and a_steps.side >= LINE
        once = launch.fixed_sides(self.kernel, self.p, swap)
        return OperandPlan(windows, swap, rows, changed, Features(
            m=m, n=n, columns=columns, row=row, k=k, batch=batch,
            a_turned=a_turned, a_packed=a_packed, a_side=a_steps.side, a_step=a_steps.k,
            a_held=traffic.held(target.l2, a_steps.k), a_fit=traffic.rows_that_fit(a_steps, target.l1) if near else 0,
            a_spread=1.0 if a_copy else self.steps(m_side, windows, p).spread(item),
            a_meets=self._meets(p, windows, m_side), a_run=self._run(p, windows, m_side), a_once="a" in once,
            b_turned=b_turned, b_packed=b_packed, b_pieces=pieces, b_masks=masks, b_pairs=pairs,
            b_side=b_steps.side, b_step=b_steps.k, b_held=traffic.held(target.l2, b_steps.k),
            b_run=self._run(p, windows, n_side),
            b_strips=not windows and traffic.in_strips(b_steps, n * k, item, target.l2), b_once="b" in once,
            b_far=0 if rows else traffic.far_rows(b_steps, n * k, item, target.l2),
            run=self._run(p, windows, m_side, n_side), even=a_steps.even and b_steps.even,
            finish=finish.cycles(self.kernel, self.p, n_side.axes, self.lanes, target.l2),
            results=traffic.far_results(self.kernel, p, m_side, n_side, target),
            parted=sum(buffers[n].nbytes for n in parts), windows=bool(windows),
            elements=sum(w.buffer.size for _, w in changed.windows),
            heads=changed.heads,
            a_batch=batch if a_copy or plan.depends_on_batch(p, m_side) else 1,
            b_batch=batch if b_copy or plan.depends_on_batch(p, n_side) else 1,
            a_window=a_copy, b_window=b_copy,
            m_parts=blocks(int(swap), m_side), n_parts=blocks(1 - int(swap), n_side),
            b_share=self._share(p, windows, n_side) if any(i != int(swap) for i, _ in changed.windows) else 0,
        ))  # fmt: skip


def finished(at: Analysis, s: OperandPlan, mr: int, nv: int, split: int) -> float:
    """Cycles a vector of what follows the sum of tiles of mr rows and nv vectors."""
    m_side, n_side = plan.sides(s.changed.problem, s.swap)
    if split > 1 or s.rows:
        return finish.cycles(at.kernel, at.p, n_side.axes, at.lanes, at.target.l2)
    return finish.least(at.kernel, at.p, m_side.axes, n_side.axes, mr, nv, at.lanes, at.target.l2)[0]


@lru_cache(maxsize=1024)
def analysis(kernel: Kernel, p: Problem, target: Any) -> Analysis:
    return Analysis(kernel, p, target)


def kept(original: Problem, s: OperandPlan, mr: int, nr: int) -> float:
    """The part of K that guards leave for a tile of mr rows of M and nr rows of N (0: N is no rows)."""
    p = s.changed.problem
    m_side, n_side = plan.sides(p, s.swap)
    out = 1.0
    for which, axes, points in (
        (int(s.swap), m_side.axes, mr), (1 - int(s.swap), n_side.axes[:-1] if s.rows else (), nr),
    ):
        if axes and points:
            found = trim.within(original, which, (*p.batch, *axes))
            if found:
                out *= trim.share(original, found, axes, points)
    return out
