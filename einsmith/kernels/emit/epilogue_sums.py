"""Emit the sums that an epilogue takes of its values (`schedule.kernel.EpilogueSum`).

A task keeps a vector of running sums for each element of the sum that it meets, called a slot, and adds the values of
a tile as soon as they are computed. At its end it stores one number for each slot; these are its part of the sum. Of a
centred sum a slot has the lanes' means and sums of squared deviations, which the values of a tile join as a group
(Chan, Golub and LeVeque 1983, equation 1.5); the lanes are combined alike. Slots that meet the same lanes share a count
of terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import NamedTuple

from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.shuffle import combine_lanes, merge_in_tree, transpose
from einsmith.codegen.ssa import BYTES, SSAValue, elem_of
from einsmith.cost.facts import LINE
from einsmith.ir.analysis.linear import LinearForm
from einsmith.kernels.emit.access import OperandAccess, PartialAddress
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.schedule.kernel import Kernel


class SumPlaces(NamedTuple):
    """Where the parts of a kernel's sums lie in the workspace.

    parts: number of parts, each of one number for every element of the sum. elements: number of these. offsets: for
    each sum, the byte at which its parts begin by what they hold (`schedule.summed.SumPart`).
    """

    parts: int
    elements: int
    offsets: tuple[dict[str, int], ...]

    def moved(self, by: int) -> SumPlaces:
        """Return the places `by` bytes further."""
        return self._replace(offsets=tuple({what: at + by for what, at in x.items()} for x in self.offsets))


def place_sums(kernel: Kernel, parts: int, base: int) -> tuple[SumPlaces, int]:
    """Return where a kernel's sums lie from byte `base` of the workspace on, and the byte at which they end."""
    item, at = kernel.root.dtypes[0].itemsize, base
    elements = prod(kernel.shape[d] for d in kernel.sums[0].kept)
    offsets: list[dict[str, int]] = []
    for s in kernel.sums:
        sizes = {"count": parts, "mean": parts * elements, "squares": parts * elements}
        offsets.append({})
        for what, size in sizes.items() if s.centred else [("sum", parts * elements)]:
            offsets[-1][what] = at
            at += -(-size * item // LINE) * LINE
    return SumPlaces(parts, elements, tuple(offsets)), at


class SumElements:
    """Computes the numbers of elements and of parts of a kernel's sums from the axes of its output.

    kept: see `EpilogueSum`. extents: of all axes. parted: the axes whose points are parts of their own.
    """

    def __init__(self, b: Builder, kept: Sequence[int], extents: Sequence[int], parted: Sequence[int]):
        def form(axes: Sequence[int]) -> LinearForm:
            return LinearForm.of_axes(0, {a: prod(extents[x] for x in axes if x > a) for a in axes})

        self.access = OperandAccess(b, (), (), extents, {}, extra=(form(sorted(kept)), form(sorted(parted))))

    def element(self, *at: PartialAddress) -> SSAValue:
        """Return the number of an element."""
        return self.access.place(self.access.extra[0], *at)

    def part(self, *at: PartialAddress) -> SSAValue:
        """Return the number of a part."""
        return self.access.place(self.access.extra[1], *at)


class GroupWeights(NamedTuple):
    """How a group of values joins the running results of its slots, in each lane.

    terms: the reciprocal of the number of values in the group. share: the group's share of all terms so far. spread:
    the factor of the squared difference of the means.
    """

    terms: SSAValue
    share: SSAValue
    spread: SSAValue


class EpilogueSums:
    """Emits the sums of a kernel's epilogue in one task.

    slots: elements of each sum that a task meets at most. counters: groups of slots that meet different lanes. lanes:
    lanes of a vector of values.
    """

    def __init__(self, b: Builder, kernel: Kernel, places: SumPlaces, slots: int, counters: int, lanes: int):
        self.b, self.sums, self.places, self.lanes = b, kernel.sums, places, lanes
        self.elem = elem_of(kernel.root.dtypes[0])
        self.centred = any(s.centred for s in self.sums)
        widths = [2 if s.centred else 1 for s in self.sums]
        self.width = sum(widths)
        self.first = [sum(widths[:i]) for i in range(len(widths))]
        self.slots, self.counters = -(-slots // lanes) * lanes if slots > 1 else 1, counters
        self.running = b.alloc(self.elem, self.slots * self.width * lanes)
        self.counts = b.alloc(self.elem, counters * lanes) if self.centred else None
        self.zero, self.one = b.const(0.0, self.elem, lanes), b.const(1.0, self.elem, lanes)

    def clear(self) -> None:
        """Set the running results of all slots to zero."""
        self._clear(self.running, self.slots * self.width * self.lanes)
        if self.counts is not None:
            self._clear(self.counts, self.counters * self.lanes)

    def _clear(self, scratch: SSAValue, size: int) -> None:
        b = self.b
        if size <= 4 * self.lanes:
            for at in range(0, size, self.lanes):
                b.store(self.zero, scratch, at)
            return
        with b.loop(0, size, step=self.lanes) as loop:
            b.store(self.zero, scratch, loop.var)

    def weigh(self, counter: SSAValue | int, cursors: Sequence[LaneCursor], times: int = 1) -> GroupWeights | None:
        """Count a group of values, and return how it joins each of the counter's slots; None if no sum is centred.

        cursors: the vectors of the group, `times` times."""
        b = self.b
        if self.counts is None:
            return None
        full = sum(c.mask is None for c in cursors)
        terms = b.const(float(full * times), self.elem, self.lanes)
        for c in cursors:
            if c.mask is not None:
                one = b.const(float(times), self.elem, self.lanes)
                terms = b.add(terms, b.select(b.splat(c.mask, self.lanes), one, self.zero))
        at = b.mul(counter, self.lanes)
        before = b.load(self.counts, at, self.elem, self.lanes)
        total = b.add(before, terms)
        b.store(total, self.counts, at)
        share = b.op("div", terms, b.op("max", total, self.one))
        inverse = b.op("div", self.one, b.op("max", terms, self.one))
        return GroupWeights(inverse, share, b.mul(before, share))

    def add(
        self, slot: SSAValue | int, group: Sequence[tuple[LaneCursor, Sequence[SSAValue]]], weights: GroupWeights | None
    ) -> None:
        """Add a group of values to a slot; group: for each vector its cursor, and the value for each sum."""
        b, n = self.b, self.lanes
        at = b.mul(slot, self.width * n)
        for i, s in enumerate(self.sums):
            vectors = [(at_lane.mask, b.splat(values[i], n)) for at_lane, values in group]
            place = b.add(at, self.first[i] * n)
            total = reduce(b.add, [self._active(mask, x) for mask, x in vectors])
            old = b.load(self.running, place, self.elem, n)
            if not s.centred:
                b.store(b.add(old, total), self.running, place)
                continue
            assert weights is not None
            mean = b.mul(total, weights.terms)
            squares = b.load(self.running, b.add(place, n), self.elem, n)
            for mask, x in vectors:
                deviation = self._active(mask, b.sub(x, mean))
                squares = b.fma(deviation, deviation, squares)
            moved = b.sub(mean, old)
            b.store(b.fma(moved, weights.share, old), self.running, place)
            b.store(b.fma(b.mul(moved, moved), weights.spread, squares), self.running, b.add(place, n))

    def _active(self, mask: SSAValue | None, x: SSAValue) -> SSAValue:
        return x if mask is None else self.b.select(self.b.splat(mask, self.lanes), x, self.zero)

    def finish(self, slot: SSAValue | int, counter: SSAValue | int, part: SSAValue, element: SSAValue) -> None:
        """Combine the lanes of a slot, and store the task's part of an element of each sum."""
        b, n, workspace = self.b, self.lanes, self.b.buffers[-1]
        at = b.mul(slot, self.width * n)
        where = b.add(b.mul(part, self.places.elements), element)
        for i, s in enumerate(self.sums):
            place, offsets = b.add(at, self.first[i] * n), self._offsets(i)
            x = b.load(self.running, place, self.elem, n)
            if not s.centred:
                b.store(combine_lanes(b, "add", x), workspace, b.add(where, offsets["sum"]))
                continue
            assert self.counts is not None
            counts = b.load(self.counts, b.mul(counter, n), self.elem, n)
            count = combine_lanes(b, "add", counts)
            mean = b.op("div", combine_lanes(b, "add", b.mul(x, counts)), b.op("max", count, b.const(1.0, self.elem)))
            deviation = b.sub(x, b.splat(mean, n))
            squares = b.load(self.running, b.add(place, n), self.elem, n)
            squares = b.fma(b.mul(counts, deviation), deviation, squares)
            b.store(mean, workspace, b.add(where, offsets["mean"]))
            b.store(combine_lanes(b, "add", squares), workspace, b.add(where, offsets["squares"]))
            b.store(count, workspace, b.add(part, offsets["count"]))

    def finish_slots(self, slot: SSAValue | int, part: SSAValue, element: SSAValue, mask: SSAValue) -> None:
        """Combine the lanes of as many slots as a vector has lanes, all of the first counter, and store the task's part
        of their elements, which follow each other; mask: the slots that there are."""
        b, n, workspace = self.b, self.lanes, self.b.buffers[-1]
        where = b.add(b.mul(part, self.places.elements), element)

        def columns(place: int) -> list[SSAValue]:
            """Return the lanes of a running result of all slots: a vector of slots for each lane."""
            rows = [b.add(b.mul(b.add(slot, i), self.width * n), place * n) for i in range(n)]
            return transpose(b, [b.load(self.running, at, self.elem, n) for at in rows])

        for i, s in enumerate(self.sums):
            offsets = self._offsets(i)
            lanes = columns(self.first[i])
            if not s.centred:
                b.store(merge_in_tree(lanes, b.add), workspace, b.add(where, offsets["sum"]), mask)
                continue
            assert self.counts is not None
            counts = b.load(self.counts, 0, self.elem, n)
            count = combine_lanes(b, "add", counts)
            shares = [b.splat(b.extract(counts, lane), n) for lane in range(n)]
            total = merge_in_tree([b.mul(x, share) for x, share in zip(lanes, shares, strict=True)], b.add)
            mean = b.op("div", total, b.splat(b.op("max", count, b.const(1.0, self.elem)), n))
            b.store(mean, workspace, b.add(where, offsets["mean"]), mask)
            deviations = [b.sub(x, mean) for x in lanes]
            moved = [b.mul(b.mul(d, d), share) for d, share in zip(deviations, shares, strict=True)]
            squares = merge_in_tree([*moved, *columns(self.first[i] + 1)], b.add)
            b.store(squares, workspace, b.add(where, offsets["squares"]), mask)
            b.store(count, workspace, b.add(part, offsets["count"]))

    def finish_lanes(self, slot: SSAValue | int, part: SSAValue, element: SSAValue, mask: SSAValue | None) -> None:
        """Store the task's part of the elements that a slot's lanes are; `element` is the number of the first one."""
        b, n = self.b, self.lanes
        where = b.add(b.mul(part, self.places.elements), element)
        for i in range(len(self.sums)):
            place = b.add(b.mul(slot, self.width * n), self.first[i] * n)
            x = b.load(self.running, place, self.elem, n)
            b.store(x, b.buffers[-1], b.add(where, self._offsets(i)["sum"]), mask)

    def _offsets(self, i: int) -> dict[str, int]:
        """Return where the parts of sum number i begin (elements)."""
        item = BYTES[self.elem]
        return {what: offset // item for what, offset in self.places.offsets[i].items()}
