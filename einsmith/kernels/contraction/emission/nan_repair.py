"""Recompute sums that are NaN because a guard zeroes one operand and the other operand is infinite or NaN.

A guard such as k <= i zeroes the operand that has both axes; the term is then zero times the other operand, which is
zero unless that operand is infinite or NaN. So sums are computed without a check of the operands, and a sum that comes
out as NaN is computed again, term by term under the guards. The common case costs an addition a sum; the rare case is
slow and right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from einsmith.codegen.loopnest.address import BufferMemory
from einsmith.codegen.loopnest.lanes import merge_in_tree
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.walk import sweep
from einsmith.codegen.ssa import SSAValue, elem_of
from einsmith.kernels.emit.access import OperandAccess
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.schedule.contraction_problem import Problem, needs_exact_guards


class NanRepair:
    """Recomputes sums that are NaN because of an operand zeroed by a guard; reads the operands in place.

    lane_axes, lanes, row: where the lanes of a sum lie, as for an OperandAccess; with 0 lanes, a sum is the total of
    the lanes of a vector along K
    size: elements of the largest tile
    """

    def __init__(
        self,
        b: Builder,
        p: Problem,
        memories: Mapping[int, BufferMemory],
        lane_axes: Sequence[int],
        lanes: int,
        size: int,
        row: int = 0,
    ):
        self.b, self.elem, self.is_needed = b, elem_of(p.dtype), needs_exact_guards(p)
        if self.is_needed:
            self.sampler = OperandAccess(b, [p.term], p.exact, p.extents, memories, lane_axes, lanes, row=row)
            self.scratch = b.alloc(self.elem, size)

    def repair_sums(
        self,
        sums: Sequence[SSAValue],
        init: Sequence[SSAValue],
        k_axes: Sequence[int],
        lo: SSAValue | int,
        hi: SSAValue | int,
        place: Callable[[OperandAccess, SSAValue], LaneCursor],
    ) -> list[SSAValue]:
        """Return the sums over points lo .. hi of flattened `k_axes`; if one is NaN, all are recomputed from `init`.

        place(access, number) returns a cursor at the lanes of a sum, with every axis bound except `k_axes`.
        """
        if not self.is_needed:
            return list(sums)
        b, n, total = self.b, sums[0].type.lanes, merge_in_tree(sums, self.b.add)
        rounds = b.cast(b.any(b.op("ne", total, total)), "i64")
        scratch = self.scratch
        with b.loop(0, rounds, init=sums, seldom=True) as loop:
            for i, x in enumerate(init):
                b.store(x, scratch, i * n)
            with b.loop(0, len(sums)) as numbers:
                at = b.mul(numbers.var, n)
                x = self._sum_terms(place(self.sampler, numbers.var), k_axes, lo, hi, n)
                b.store(b.add(b.load(scratch, at, self.elem, n), x), scratch, at)
            loop.next = []
            for i, old in enumerate(loop.carried):
                new = b.load(scratch, i * n, self.elem, n)
                # Lanes that are never stored may be NaN by chance; the other lanes' values do not depend on them.
                loop.next.append(b.op("where", b.op("ne", old, old), new, old) if self.sampler.lanes else new)
        return list(loop.results)

    def repair_stored(
        self,
        memory: SSAValue,
        place_of: Callable[[SSAValue], SSAValue],
        count: int,
        k_axes: Sequence[int],
        lo: SSAValue | int,
        hi: SSAValue | int,
        place: Callable[[OperandAccess, SSAValue], LaneCursor],
    ) -> None:
        """Recompute the sums that are NaN among `count` vectors in memory, over all of K, which is one block.

        place_of(number) returns where a vector lies."""
        if not self.is_needed:
            return
        b, n = self.b, self.sampler.lanes
        with b.loop(0, count, init=[b.const(0.0, self.elem, n)]) as loop:
            loop.next = [b.add(loop.carried[0], b.load(memory, place_of(loop.var), self.elem, n))]
        (total,) = loop.results
        with b.if_(b.any(b.op("ne", total, total)), seldom=True), b.loop(0, count) as numbers:
            at = place_of(numbers.var)
            new = self._sum_terms(place(self.sampler, numbers.var), k_axes, lo, hi, n)
            old = b.load(memory, at, self.elem, n)
            b.store(b.op("where", b.op("ne", old, old), new, old), memory, at)

    def _sum_terms(
        self, state: LaneCursor, k_axes: Sequence[int], lo: SSAValue | int, hi: SSAValue | int, n: int
    ) -> SSAValue:
        """Return the sum of terms at a cursor over points lo .. hi of flattened `k_axes`, in a vector of n lanes."""
        b, s = self.b, self.sampler
        groups = s.groups(k_axes)

        def outer(values: list[SSAValue]) -> LaneCursor:
            return state.bind(s.part(groups[:-1], values))

        def inner(context: LaneCursor, digit: SSAValue, _: SSAValue, carried: Sequence[SSAValue]) -> Sequence[SSAValue]:
            return [b.add(carried[0], context.bind(s.part(groups[-1:], [digit])).product())]

        zero = b.const(0.0, self.elem, s.lanes)
        (x,) = sweep(b, [g.extent for g in groups], lo, hi, [zero], outer, inner)
        return x if s.lanes else b.insert(b.const(0.0, self.elem, n), x, 0)
