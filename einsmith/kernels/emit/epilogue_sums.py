"""Emit the sums that an epilogue takes of its values (`schedule.kernel.EpilogueSum`).

A task keeps a vector of running sums for each element of the sum that it meets, called a slot, and adds the values of
a tile as soon as they are computed. At its end it stores one number for each slot; these are its part of the sum. Of a
centred sum a slot has the lanes' means and sums of squared deviations, which the values of a tile join as a group
(Chan, Golub and LeVeque 1983, equation 1.5); the lanes are combined alike. Slots that meet the same lanes share a count
of terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import prod
from typing import NamedTuple

from einsmith.codegen.loopnest.lanes import combine_lanes, merge_in_tree, transpose
from einsmith.codegen.loopnest.nest import Builder
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
                terms = b.add(terms, self._active(c.mask, b.const(float(times), self.elem, self.lanes)))
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
        b, counts = self.b, self._load_counts(counter)
        load = partial(self._load, slot)
        self._store_parts(load, lambda x: combine_lanes(b, "add", *x), [counts], counts, part, element)

    def finish_slots(self, slot: SSAValue | int, part: SSAValue, element: SSAValue, mask: SSAValue) -> None:
        """Combine the lanes of as many slots as a vector has lanes, all of the first counter, and store the task's part
        of their elements, which follow each other; mask: the slots that there are."""
        b, counts, every = self.b, self._load_counts(0), range(self.lanes)

        def load(at: int) -> list[SSAValue]:
            return transpose(b, [x for i in every for x in self._load(b.add(slot, i), at)])

        shares = [b.extract(counts, lane) for lane in every] if self.centred else []
        self._store_parts(load, lambda x: merge_in_tree(x, b.add), shares, counts, part, element, mask)

    def finish_lanes(self, slot: SSAValue | int, part: SSAValue, element: SSAValue, mask: SSAValue | None) -> None:
        """Store the task's part of the elements that a slot's lanes are; `element` is the number of the first one."""
        self._store_parts(partial(self._load, slot), lambda x: x[0], [], self.zero, part, element, mask)

    def _load(self, slot: SSAValue | int, at: int) -> list[SSAValue]:
        """Return, as a list, the vector `at` elements into the running results of a slot."""
        b, n = self.b, self.lanes
        return [b.load(self.running, b.add(b.mul(slot, self.width * n), at), self.elem, n)]

    def _load_counts(self, counter: SSAValue | int) -> SSAValue:
        """Return the number of values in each lane of a counter; zeros if no sum is centred."""
        if self.counts is None:
            return self.zero
        return self.b.load(self.counts, self.b.mul(counter, self.lanes), self.elem, self.lanes)

    def _store_parts(
        self,
        load: Callable[[int], list[SSAValue]],
        total: Callable[[list[SSAValue]], SSAValue],
        shares: Sequence[SSAValue],
        counts: SSAValue,
        part: SSAValue,
        element: SSAValue,
        mask: SSAValue | None = None,
    ) -> None:
        """Store the task's part of an element of each sum, or of a vector of elements from number `element` on.

        Args:
            load: Returns the vectors of running results at an offset (elements) in a slot.
            total: Adds such vectors up to what is stored.
            shares: The numbers of values in each of the vectors; not used unless a sum is centred.
            counts: The number of values in each lane.
            part: Number of the task's part.
            element: Number of the element.
            mask: Elements that there are; None: all.
        """
        b, workspace = self.b, self.b.buffers[-1]
        where = b.add(b.mul(part, self.places.elements), element)
        for i, s in enumerate(self.sums):
            at, offsets = self.first[i] * self.lanes, self._offsets(i)
            vectors = load(at)
            if not s.centred:
                b.store(total(vectors), workspace, b.add(where, offsets["sum"]), mask)
                continue
            count = combine_lanes(b, "add", counts)
            values = total([b.mul(x, share) for x, share in zip(vectors, shares, strict=True)])
            mean = b.op("div", values, b.op("max", count, b.const(1.0, self.elem)))
            deviations = [b.sub(x, mean) for x in vectors]
            weighted = [b.mul(share, x) for share, x in zip(shares, deviations, strict=True)]
            squares = [b.fma(*x) for x in zip(weighted, deviations, load(at + self.lanes), strict=True)]
            b.store(mean, workspace, b.add(where, offsets["mean"]), mask)
            b.store(total(squares), workspace, b.add(where, offsets["squares"]), mask)
            b.store(count, workspace, b.add(part, offsets["count"]))

    def _offsets(self, i: int) -> dict[str, int]:
        """Return where the parts of sum number i begin (elements)."""
        item = BYTES[self.elem]
        return {what: offset // item for what, offset in self.places.offsets[i].items()}
