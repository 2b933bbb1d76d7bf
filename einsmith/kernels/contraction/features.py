"""What the configurations of a contraction with the same windows and sides have in common, analysed once."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from types import SimpleNamespace
from typing import Any

from einsmith.kernels.contraction import config as plan
from einsmith.kernels.contraction import epilogue as finish
from einsmith.kernels.contraction import k_bounds as trim
from einsmith.kernels.contraction import traffic
from einsmith.kernels.contraction.config import Setting
from einsmith.kernels.contraction.emission import launches as launch
from einsmith.kernels.contraction.halo import HaloCopy
from einsmith.kernels.contraction.problem import Problem
from einsmith.kernels.emit import boxes as bx
from einsmith.kernels.emit.access import PAIR_CYCLES, OperandAccess
from einsmith.locks import cached_property
from einsmith.plan.kernel import Kernel
from einsmith.target.facts import LINE


class Features(SimpleNamespace):
    """A setting in numbers, flags 0 or 1; or many settings, each field an array. m, n, k, batch: points, those of N
    with its rows filled up to whole vectors; columns: points of N as they are; row: points of a filled row, 0 for
    none. a, b are the M and N sides: turned: whether a side is packed along K; packed: cycles beyond a load that a
    vector takes which is packed; made: those that computing it takes; pieces, masks, pairs: those that a vector of N
    takes which is read in place, its masks, and whether it is every other element; side, step: bytes from one point of
    the side's innermost axis, and of K, to the next (0 where there are windows); held: lines of a column along K that
    the second level keeps; fit: rows of M read in place that the first level keeps a line of, 0 where that does not
    matter; spread: bytes of lines for a byte that is read in place; meets: whether rows and points of K next to each
    other share elements; run: points of K that lie evenly where the side, or both sides, are read in place; strips:
    whether the side comes in strips; once: packed once for many runs; copied: whether it is read from a window; window:
    bytes of one that no block of K changes; batch: points of the batch that the side depends on; parts: blocks that a
    window cuts it into, 0 for no matter; share: points of K whose vectors of a window lie a few elements apart; far:
    rows of N are far apart; even: both sides are plain reads at one stride along K. finish: cycles a vector of what
    follows the sum, along N; results: bytes of results, and of what is read with them, that strips wait for
    (traffic.far_results); parted: bytes of results stored in parts of lines; elements: of all windows; copies: cycles
    that computing them takes; heads: blocks that windows cut K into, 0 for none.
    """

    def changed(self, **values: Any) -> Features:
        """With other values of some."""
        return type(self)(**vars(self) | values)


class OperandPlan(Setting):
    """A setting, and what configurations that have it are priced by."""

    def _of_side(self, name: str, side: plan.Side, align: int, steps: traffic.Steps) -> dict[str, Any]:
        """What there is of either side, "a" or "b"; align: points of which its tiles are multiples."""
        p, which, target = self.p, int(self.swap != (name == "b")), self.target
        along, cut = self.lies_along_k(side, align), dict(self.windows).get(which)
        window = sum(w.buffer.size * self.item for i, w in self.halos if i == which and not self.heads)
        of_side = dict(
            turned=along, packed=self.access(side, p.k if along else side.axes, self.lanes).read_cycles(align),
            made=0.0 if which in dict(self.windows) else self._made(which),
            side=steps.side, step=steps.k, held=traffic.held(target.l2, steps.k), run=self._run(side),
            once=name in launch.fixed_sides(self.kernel, self.original, self.swap), copied=cut is not None,
            window=window, batch=self.B if window or plan.depends_on_batch(p, side) else 1,
            parts=p.extents[side.axes[0]] // cut.points if isinstance(cut, plan.HaloBlock) and not cut.of_k else 0,
        )  # fmt: skip
        return {f"{name}_{key}": value for key, value in of_side.items()}

    def _steps(self, side: plan.Side, which: int) -> traffic.Steps:
        """Of a side that is read in place; none of windows, or beside windows that several points read each element of,
        where little comes from memory."""
        if self.windows and (which in dict(self.windows) or any(self._overlaps(i, w) for i, w in self.halos)):
            return traffic.Steps(0, 0)
        return traffic.address_steps(self, side)

    def _made(self, which: int) -> float:
        """Cycles that a vector of an operand takes which is computed as it is read."""
        count, seconds = bx.operations((self.original.operands[which].expr,), self.target)
        return 0.25 * count + self.lanes * seconds / self.target.cycle_seconds

    def _overlaps(self, which: int, w: HaloCopy) -> bool:
        """Whether a window has fewer elements than its operand points."""
        return prod(w.extents) < self.original.count(self.original.operands[which].axes)

    def _run(self, *sides: plan.Side) -> int:
        """Points of K that lie evenly in these sides, innermost."""
        p, forms = self.p, [f.coef for x in sides for f in self.access(x).forms]
        points, inner = 1, None
        for a in reversed([a for a in p.k if p.extents[a] > 1]):
            if inner is not None and any(c.get(a, 0) != c.get(inner, 0) * points for c in forms):
                break
            inner, points = a if inner is None else inner, points * p.extents[a]
        return points

    def _share(self, side: plan.Side) -> int:
        """Points of K whose vectors of a window lie a few elements apart."""
        k = [a for a in self.p.k if self.p.extents[a] > 1][-1:]
        forms = self.access(side).forms
        return self.p.extents[k[0]] if k and all(abs(f.coef.get(k[0], 0)) in (1, 2) for f in forms) else 1

    def _meets(self, side: plan.Side) -> bool:
        """Whether elements of a side that are next to each other along it are so along K."""
        k, m = ([a for a in axes if self.p.extents[a] > 1][-1:] for axes in (self.p.k, side.axes))
        if not side.operand.plain or not k or not m:
            return False
        s = self.access(side)
        (form,) = (s.forms[i].coef for i in s.reads.values())
        return form.get(k[0], 0) == form.get(m[0], 0) != 0

    @cached_property
    def numbers(self) -> Features:
        target, item, windows = self.target, self.item, self.windows
        m_side, n_side, k = self.m_side, self.n_side, self.K
        s = self.access(n_side, n_side.axes, self.lanes)
        pairs = bool(s.lane_groups) and any(s.step(f) == 2 for f in s.reads.values())
        pieces, masks = PAIR_CYCLES * pairs, 0
        if not self.rows:
            pieces, masks = s.read_cycles(self.lanes), s.masks
        a_steps, b_steps = self._steps(m_side, int(self.swap)), self._steps(n_side, 1 - int(self.swap))
        buffers = self.kernel.buffers
        inner = [x.axes[-1] for x in (m_side, n_side) if x.axes]
        parts = {n for axis in inner for n in finish.parted(self.kernel, self.original, axis)}
        if finish.unit(self.kernel, self.original, n_side.axes, self.lanes) is not None:
            parts = set()
        near = a_steps.k == item and a_steps.side >= LINE
        a_side, b_side = self._of_side("a", m_side, 4, a_steps), self._of_side("b", n_side, self.lanes, b_steps)
        return Features(
            m=self.M, n=self.N, columns=self.columns, row=self.row, k=k, batch=self.B, **a_side, **b_side,
            a_fit=traffic.rows_that_fit(a_steps, target.l1) if near else 0,
            a_spread=1.0 if a_side["a_window"] else traffic.address_steps(self, m_side).spread(item),
            a_meets=self._meets(m_side), b_pieces=pieces, b_masks=masks, b_pairs=pairs,
            b_strips=traffic.in_strips(b_steps, self.N * k, item, target.l2),
            b_far=0 if self.rows else traffic.far_rows(b_steps, self.N * k, item, target.l2),
            b_share=self._share(n_side) if any(i != int(self.swap) for i, _ in self.halos) else 0,
            run=self._run(m_side, n_side), even=a_steps.even and b_steps.even,
            finish=finish.cycles(self.kernel, self.original, n_side.axes, self.lanes, target.l2),
            results=traffic.far_results(self),
            parted=sum(buffers[n].nbytes for n in parts), windows=bool(windows),
            elements=sum(w.buffer.size for _, w in self.halos), heads=self.heads,
            copies=sum(w.buffer.size * self._made(i) for i, w in self.halos) / self.lanes,
        )  # fmt: skip

    def finished(self, mr: int, nv: int, split: int) -> float:
        """Cycles a vector of what follows the sum of tiles of mr rows and nv vectors."""
        m, n = self.m_side.axes, self.n_side.axes
        if split > 1 or self.rows:
            return finish.cycles(self.kernel, self.original, n, self.lanes, self.target.l2)
        return finish.least(self.kernel, self.original, m, n, mr, nv, self.lanes, self.target.l2)[0]

    def kept(self, mr: int, nv: int) -> float:
        """The part of K that guards leave for a tile of mr rows of M and nv vectors of N."""
        out = 1.0
        n_axes, rows = (self.n_side.axes[:-1], max(1, nv * self.lanes // self.row)) if self.rows else ((), 0)
        for which, axes, points in ((int(self.swap), self.m_side.axes, mr), (1 - int(self.swap), n_axes, rows)):
            if axes and points:
                found = trim.within(self.original, which, (*self.p.batch, *axes))
                if found:
                    out *= trim.share(self.original, found, axes, points)
        return out


@lru_cache(maxsize=1024)
def _accesses(kernel: Kernel, p: Problem) -> dict[tuple, OperandAccess]:
    """What is found out of an operand holds for every setting it is part of."""
    return {}


@lru_cache(maxsize=1 << 14)
def operand_plan(kernel: Kernel, p: Problem, windows: plan.Halos, swap: bool, rows: bool, target: Any) -> OperandPlan:
    """A setting of a piece, whose halo copies there are."""
    return OperandPlan(kernel, p, windows, swap, rows, target, known=_accesses(kernel, p))
