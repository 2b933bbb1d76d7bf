"""Compute, once for each setting (halo copies and sides), the features from which its configurations are priced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from einsmith.base.locks import cached_property
from einsmith.cost.facts import LINE
from einsmith.cost.memory_traffic import PAGE, lines_kept
from einsmith.kernels.contraction import config, epilogue, k_bounds, traffic
from einsmith.kernels.contraction.config import HaloSetting
from einsmith.kernels.contraction.emission import launches
from einsmith.kernels.contraction.halo import HaloCopy
from einsmith.kernels.contraction.traffic import Array
from einsmith.kernels.emit import boxes
from einsmith.schedule.contraction_problem import Problem, slots_of
from einsmith.schedule.footprint import bytes_by_buffer
from einsmith.schedule.kernel import Kernel


class Features(SimpleNamespace):
    """The numbers of a setting by which its configurations are priced; flags are 0 or 1.

    Of the problem:
    m, n, k, batch: points; n counts rows padded to whole vectors
    columns: points of N without padding
    row: points of a padded row, 0 for none
    run: points of K, innermost, that lie evenly in both sides
    even: both sides are plain reads at one stride along K
    result_bytes: bytes of results that strips wait for (`traffic.non_temporal_bytes`)
    multiplies: vector multiply-adds per clock cycle
    in_tiles: whether tile registers multiply
    registers: registers for accumulators and the vectors that they share
    has_halos: whether operands are read from halo copies
    halo_elements, halo_cycles: elements of all halo copies, and cycles to compute them
    halo_k_blocks: blocks into which halo copies cut K, 0 for none

    Of a side, with the prefix a_ (M) or b_ (N):
    transposed: whether the side is packed with lanes along K
    pack_cycles, pack_masks: cycles beyond a load to read a vector that is packed, and its masks
    prologue_cycles: cycles to compute a vector from the tensors that are read
    read_cycles, masks, pairs (N): for a vector read in place, the extra cycles, the masks, and whether it has stride 2
    side, step: bytes from one point to the next of the side's innermost axis, and of K; 0 with halo copies
    l2_lines: lines of a column along K that L2 keeps
    l1_rows (M): rows read in place of which L1 keeps a line each, 0 where that does not matter
    overfetch: bytes of lines fetched per byte read in place
    shares_elements (M): whether neighbouring rows and neighbouring points of K share elements
    run: points of K, innermost, that lie evenly where the side is read in place
    strips (N): whether the side is read in narrow strips
    invariant: bytes of the tensors that the side reads where all are loop-invariant, so that it is packed once for many
    runs; else 0
    from_halo: whether the side is read from a halo copy
    halo_bytes: bytes of its halo copy that no block of K changes
    batch: points of the batch that the side depends on
    parts: blocks into which a halo copy cuts the side, 0 if it does not
    share (N): points of K whose vectors of a halo copy lie a few elements apart
    stream_lines (N): lines of each tensor that a vector is read from where rows are far apart, else 0
    (`traffic.count_stream_lines`)
    step_alignment (N): largest power of two, up to a page, that divides the step along K (bytes)
    streams (N): tensors that rows are read from
    """


class FeatureArrays(Features):
    """The features of many settings, as columns of `values`, each field an array.

    which: settings to select, one for each configuration
    has: whether a field is nonzero in any setting
    """

    def __init__(self, values: Array, has: Mapping[str, bool], which: Array | None = None):
        self.__dict__.update(zip(has, values if which is None else values.take(which, axis=1), strict=True))
        self.values, self.has = values, has

    def select(self, which: Array) -> FeatureArrays:
        """Return the features of the settings numbered `which`."""
        return FeatureArrays(self.values, self.has, which)


def stack_features(every: Sequence[Features]) -> FeatureArrays:
    """Return the features of several settings as arrays."""
    values = np.array([[*vars(x).values()] for x in every], np.float64).T
    return FeatureArrays(values, dict(zip(vars(every[0]), (values != 0).any(axis=1).tolist(), strict=True)))


class OperandPlan(HaloSetting):
    """A setting together with the features by which its configurations are priced."""

    def _common_features(self, side: config.Side, align: int) -> tuple[traffic.Strides, dict[str, Any]]:
        """Return a side's address strides and features common to all settings; tiles begin at multiples of `align`."""
        key = side.operand, side.axes, self.lanes, align
        if key not in self._access_cache:
            along = self.lies_along_k(side, align) or (self.p.in_tiles and side is self.m_side)
            packed = self.access(side, self.p.k if along else side.axes, self.lanes)
            common = dict(
                transposed=along,
                pack_cycles=packed.read_cycles(align, self.target.overheads),
                pack_masks=packed.masks,
                run=self._even_run(side),
            )
            self._access_cache[key] = traffic.address_steps(self, side), common
        return self._access_cache[key]

    def _side_features(self, name: str, side: config.Side, align: int) -> tuple[traffic.Strides, dict[str, Any]]:
        """Return the address strides and features of side `name`, "a" (M) or "b" (N).

        The strides are zero if the side is read from a halo copy, or if some halo copy's elements are read at several
        points each: then little comes from memory.
        """
        p, which, (strides, common) = self.p, int(self.swap != (name == "b")), self._common_features(side, align)
        halo, halo_bytes = dict(self.windows).get(which), 0
        overfetch = strides.overfetch(self.item)
        if self.windows and (halo is not None or any(self._overlaps(i, w) for i, w in self.halos)):
            strides = traffic.Strides(0, 0)
        if not self.halo_k_blocks:
            halo_bytes = sum(w.buffer.size * self.item for i, w in self.halos if i == which)
        side_features = dict(
            **common,
            side=strides.side,
            step=strides.k,
            l2_lines=lines_kept(self.target.l2, strides.k),
            prologue_cycles=0.0 if halo is not None else self._prologue_cycles(which),
            overfetch=1.0 if halo_bytes else overfetch,
            from_halo=halo is not None,
            halo_bytes=halo_bytes,
            invariant=self._invariant_bytes(name),
            batch=self.B if halo_bytes or config.depends_on_batch(p, side) else 1,
            parts=p.extents[side.axes[0]] // halo.points if isinstance(halo, config.HaloBlock) and not halo.of_k else 0,
        )
        return strides, {f"{name}_{key}": value for key, value in side_features.items()}

    def _invariant_bytes(self, name: str) -> int:
        if name not in launches.invariant_sides(self.kernel, self.original, self.swap):
            return 0
        side = config.sides(self.original, self.swap)["ab".index(name)]
        args, every = self.kernel.stages[0].args, bytes_by_buffer(self.kernel)
        return sum(every[n] for n in {args[slot][1] for slot in slots_of(side.operand)})

    def _prologue_cycles(self, which: int) -> float:
        """Return the cycles to compute one vector of operand `which` while it is read."""
        count, seconds = boxes.operations((self.original.operands[which].expr,), self.target)
        return 0.25 * count + self.lanes * seconds / self.target.cycle_seconds

    def _overlaps(self, which: int, w: HaloCopy) -> bool:
        """Return whether a halo copy has fewer elements than its operand has points."""
        return prod(w.extents) < self.original.count(self.original.operands[which].axes)

    def _even_run(self, side: config.Side) -> int:
        """Return the points of K, innermost, that lie evenly in a side."""
        p, forms = self.p, [f.coef for f in self.access(side).forms]
        points, inner = 1, None
        for a in reversed([a for a in p.k if p.extents[a] > 1]):
            if inner is not None and any(c.get(a, 0) != c.get(inner, 0) * points for c in forms):
                break
            inner, points = a if inner is None else inner, points * p.extents[a]
        return points

    def _points_sharing_lines(self, side: config.Side) -> int:
        """Return the points of K whose vectors of a halo copy lie a few elements apart."""
        k = [a for a in self.p.k if self.p.extents[a] > 1][-1:]
        forms = self.access(side).forms
        return self.p.extents[k[0]] if k and all(abs(f.coef.get(k[0], 0)) in (1, 2) for f in forms) else 1

    def _shares_elements(self, side: config.Side) -> bool:
        """Return whether a side has equal, nonzero strides along its innermost axis and along K."""
        k, m = ([a for a in axes if self.p.extents[a] > 1][-1:] for axes in (self.p.k, side.axes))
        if not side.operand.plain or not k or not m:
            return False
        s = self.access(side)
        (form,) = (s.forms[i].coef for i in s.reads.values())
        return form.get(k[0], 0) == form.get(m[0], 0) != 0

    def without_results(self) -> Features:
        """Return the features of a piece whose results another piece stores."""
        return Features(**{**vars(self.numbers), "result_bytes": 0})

    @cached_property
    def numbers(self) -> Features:
        """Return the features of the piece."""
        target, item, m_side, n_side, k = self.target, self.item, self.m_side, self.n_side, self.K
        s = self.access(n_side, n_side.axes, self.lanes)
        pairs = bool(s.lane_groups) and any(s.step(f) == 2 for f in s.reads.values())
        w = target.overheads
        read_cycles, masks = (w.every_other * pairs, 0) if self.rows else (s.read_cycles(self.lanes, w), s.masks)
        (a_strides, a_side), (b_strides, b_side) = (
            self._side_features("a", m_side, 4),
            self._side_features("b", n_side, self.lanes),
        )
        return Features(
            m=self.M,
            n=self.N,
            columns=self.columns,
            row=self.row,
            k=k,
            batch=self.B,
            **a_side,
            **b_side,
            a_l1_rows=traffic.rows_in_l1(a_strides, target.l1) if a_strides.k == item and a_strides.side >= LINE else 0,
            a_shares_elements=self._shares_elements(m_side),
            b_read_cycles=read_cycles,
            b_masks=masks,
            b_pairs=pairs,
            b_strips=traffic.reads_in_strips(b_strides, self.N * k, item, target.l2),
            b_stream_lines=0 if self.rows else traffic.count_stream_lines(b_strides, self, n_side, self.N),
            b_step_alignment=min(PAGE, b_strides.k & -b_strides.k),
            b_share=self._points_sharing_lines(n_side) if any(i != int(self.swap) for i, _ in self.halos) else 0,
            run=min(a_side["a_run"], b_side["b_run"]),
            b_streams=b_strides.streams,
            even=a_strides.even and b_strides.even and m_side.operand.plain and n_side.operand.plain,
            result_bytes=traffic.non_temporal_bytes(self),
            multiplies=self.multiplies,
            in_tiles=self.p.in_tiles,
            registers=self.registers,
            has_halos=bool(self.windows),
            halo_k_blocks=self.halo_k_blocks,
            halo_elements=sum(w.buffer.size for _, w in self.halos),
            halo_cycles=sum(w.buffer.size * self._prologue_cycles(i) for i, w in self.halos) / self.lanes,
        )

    def price_epilogue(self, mr: int, nv: int, split: int) -> float:
        """Return the cycles, a vector, of the epilogue of mr x nv tiles over one of `split` parts of K."""
        return epilogue.choose_form(self, self.original, mr, nv, split)[0]

    def k_fractions(self, tiles: Sequence[tuple[int, int]]) -> Sequence[float]:
        """Return the part of K that guards leave to each tile of (mr rows of M, nv vectors of N) over all of K."""
        fractions = [1.0] * len(tiles)
        if self.p.in_tiles or self.halo_k_blocks:
            return fractions
        sizes_of_sides = [(int(self.swap), self.m_side.axes, tuple(mr for mr, _ in tiles))]
        if self.rows:
            rows = tuple(max(1, nv * self.lanes // self.row) for _, nv in tiles)
            sizes_of_sides.append((1 - int(self.swap), self.n_side.axes[:-1], rows))
        for which, axes, sizes in sizes_of_sides:
            bounds = k_bounds.restrict_bounds(self.original, which, (*self.p.batch, *axes))
            if axes and bounds and tiles:
                fractions = [
                    x * y
                    for x, y in zip(fractions, k_bounds.k_fractions(self.original, bounds, axes, sizes), strict=True)
                ]
        return fractions


@lru_cache(maxsize=1 << 14)
def operand_plan(kernel: Kernel, p: Problem, windows: config.Halos, swap: bool, rows: bool, target: Any) -> OperandPlan:
    """Return the setting of a piece whose halo copies exist."""
    return OperandPlan(kernel, p, windows, swap, rows, target)
