"""Lower selections by rank: kernels whose root is argkmin or argkmax, by sorting the keys of each row.

before: P[b, k] = argkmin[j](x[b, j], k)
after:  for each b: words = (ordered bits of x[b, j], j) for all j;  sort words;  P[b, k] = position of words[k]

A row's keys become unsigned integers in the order of the selection. They are sorted by digits from the lowest to the
highest, each by a stable counting sort (Knuth, The Art of Computer Programming, volume 3, section 5.2.5, "radix list
sort"). A digit that all keys share is skipped. Keys of 32 bits are moved with their positions as words of 64 bits.

Where few ranks are selected, only the keys are sorted whose highest digit lies between those of the lowest and the
highest rank: the positions of the others are not asked for.

Few long rows are sorted by all threads. For each digit a launch counts the keys of each part of a row, and another one
moves them to their places (Zagha and Blelloch 1991, "Radix sort for vector multiprocessors").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import product
from math import prod
from typing import NamedTuple

from einsmith.codegen.loopnest.address import address
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.walk import State, emit_groups, part_bounds
from einsmith.codegen.ssa import SSAValue
from einsmith.cost.facts import LINE, Target
from einsmith.cost.roofline import distribute
from einsmith.ir.analysis.bounds import bounds
from einsmith.ir.functions import SELECTIONS
from einsmith.ir.nodes import Axis, Piece, Reduce, axes_of
from einsmith.kernels.emit import boxes, loops
from einsmith.kernels.emit.boxes import Box
from einsmith.kernels.pattern import Cost, Launch, Lowered, Pattern
from einsmith.schedule.footprint import touched_bytes
from einsmith.schedule.kernel import Beyond, Kernel, Rows, row_major

_MIN_PART = 1 << 14
"""Fewest keys of a part of a row: the launches for each digit take some microseconds, as the sort of so many keys."""
_MAX_PARTS = 64
"""Most parts of a row: each of them adds up the bins of all others."""
_FIRST_DIGIT = 11
"""Bits of the digit by which keys are left out: the sign, the exponent and two bits of the mantissa of a float32."""


class SelectionConfig(NamedTuple):
    """A configuration of a selection.

    bits: of a digit. narrow: leave out keys by their highest digit. lanes: of the vectors that evaluate keys. tasks:
    parts of the rows. parts: of a row, which are sorted at once (1: not divided)."""

    bits: int
    narrow: bool
    lanes: int
    tasks: int
    parts: int = 1


class Digit(NamedTuple):
    """The bits of a word from `shift` on that one counting sort is by."""

    shift: int
    bits: int


def find_ranked_axis(box: Box) -> int | None:
    """Return the longest output axis on which the rank depends and the key does not; None: there is none."""
    key, rank = box.bodies
    axes = [a for a in axes_of(rank) if a < box.rank and a not in axes_of(key)]
    return max(axes, key=lambda a: box.extents[a], default=None)


def _find_digits(first: int, width: int, bits: int) -> list[Digit]:
    """Return the digits of keys of `width` bits that begin at bit `first`, the lowest first."""
    return [Digit(first + at, min(bits, width - at)) for at in range(0, width, bits)]


class SelectionEmitter:
    """The emitter of the selections of a box: `emit_row` sorts a row's keys and stores its results.

    A word is an i64. Keys of 32 bits share it with their positions; those of 64 bits have the positions in an array of
    their own, `positions`. Both arrays have twice the row's elements, of which every counting sort reads one half and
    writes the other."""

    def __init__(self, b: Builder, kernel: Kernel, box: Box, config: SelectionConfig):
        self.b, self.box, self.config = b, box, config
        self.em = loops.make_emitter(b, kernel, box.extents + box.reduce, config.lanes)
        loops.limit_points(self.em, kernel, box)
        self.descending = box.combiner == "argkmax"
        self.axis = find_ranked_axis(box)
        self.n = box.reduced
        self.key = box.bodies[0].dtype
        self.wide = _key_bits(box) == 64
        self.digits = _find_digits(0, 64, config.bits) if self.wide else _find_digits(32, 32, config.bits)
        self.low, self.high = _find_rank_range(box)
        self.positions: SSAValue | None = None
        self.part: SSAValue | None = None
        if config.parts > 1:
            return
        self.words = b.alloc("i64", 2 * self.n)
        self.positions = b.alloc("i32", 2 * self.n) if self.wide else None
        bins = max(len(self.digits) << config.bits, 1 << _FIRST_DIGIT if config.narrow else 0)
        self.bins = b.alloc("i32", bins)

    def emit(self, tasks: int, first: int, alone: bool) -> int:
        """Emit the selections for about `tasks` tasks from number `first` on; return how many they take."""
        sweep = loops.BoxSweep(self.em, self.box, None, 1, lambda *_: self.emit_row(), own=self.axis)
        return sweep.emit_tasks(tasks, first, alone)

    def emit_row(self) -> None:
        """Emit the selections of a row, whose axes are bound."""
        b = self.b
        self._emit_words()
        base, count = (b.const(0), b.const(self.n)) if not self.config.narrow else self._emit_narrowing()
        self._emit_results(b.sub(self._emit_sort(count), base))

    def _emit_results(self, begin: SSAValue) -> None:
        """Emit the results of a row, or of the part. begin: element of the arrays at which rank 0 is."""
        b, em, box = self.b, self.em, self.box
        extent = 1 if self.axis is None else box.extents[self.axis]
        low, high = part_bounds(b, extent, self.part, self.config.parts)
        if self.axis is not None and self.axis in em.limits:
            high = b.op("min", high, em.limits[self.axis])
        with b.loop(low, high) as loop:
            if self.axis is not None:
                em.bind(self.axis, loop.var)
            rank = b.cast(em.emit(box.bodies[1]), "i64")
            at = b.add(begin, rank)
            chosen = b.load(self.words, at, "i64") if self.positions is None else b.load(self.positions, at, "i32")
            loops.store_point(em, box, loops.evaluate_point(em, box, [b.cast(chosen, "i32")]))

    # -- keys

    def _emit_words(self) -> None:
        """Emit the evaluation of a row's keys as words, in the order of their positions."""
        b, em, rank = self.b, self.em, self.box.rank
        if not self.box.reduce:  # the only element of a row
            key, place = b.const(0, "i64" if self.wide else "i32"), b.const(0, "i32")
            self._store_words(key, place, b.const(0), None)
            return
        *outer, last = range(rank, rank + len(self.box.reduce))
        lanes = self.config.lanes

        def emit_group(state: State, base: SSAValue | int, count: int, before: SSAValue) -> State:
            for at, active in loops.make_ramps(base, count, lanes, lanes):
                em.bind(last, at)
                em.mask = active
                key = em.splat(em.emit(self.box.bodies[0]))
                start = b.add(before, base)
                position = b.add(b.splat(b.cast(start, "i32"), lanes), b.iota(lanes, "i32"))
                mask = None if active is None else em.first_lanes(active)
                self._store_words(self._order(key), position, start, mask)
                em.mask = None
            return state

        def emit_axis(axes: Sequence[int], before: SSAValue) -> None:
            if axes:
                with b.loop(0, self.box.reduce[axes[0] - rank]) as loop:
                    em.bind(axes[0], loop.var)
                    inner = prod(self.box.reduce[axes[0] - rank + 1 :])
                    emit_axis(axes[1:], b.add(before, b.mul(loop.var, inner)))
                return
            group = partial(emit_group, before=before)
            emit_groups(b, self.box.reduce[-1], lanes, [], group, self.part, self.config.parts)

        emit_axis(outer, b.const(0))

    def _order(self, key: SSAValue) -> SSAValue:
        """Return integers that, without their signs, are in the order of the selection."""
        b, lanes = self.b, key.type.lanes
        elem = "i64" if self.wide else "i32"
        lowest = b.const(-(1 << (63 if self.wide else 31)), elem, lanes)
        if self.key.is_float:
            zero = b.const(0.0, key.type.elem, lanes)
            bits = b.bitcast(b.select(b.op("eq", key, zero), zero, key), elem)
            is_negative = b.op("lt", bits, b.const(0, elem, lanes))
            out = b.select(is_negative, b.op("not", bits), b.add(bits, lowest))
            out = b.select(b.op("eq", key, key), out, b.const(-1, elem, lanes))
        else:
            out = b.add(key, lowest)
        return b.op("not", out) if self.descending else out

    def _store_words(self, order: SSAValue, position: SSAValue, at: SSAValue, mask: SSAValue | None) -> None:
        b, lanes = self.b, order.type.lanes
        if self.positions is None:
            shifted = b.mul(b.cast(order, "i64"), b.const(1 << 32, "i64", lanes))
            order = b.add(shifted, b.cast(position, "i64"))
        else:
            b.store(position, self.positions, at, mask)
        b.store(order, self.words, at, mask)

    # -- sorting

    def _digit(self, word: SSAValue, digit: Digit) -> SSAValue:
        shifted = self.b.op("floordiv", word, 1 << digit.shift)
        return self.b.op("and", shifted, (1 << digit.bits) - 1)

    def _clear(self, count: int) -> None:
        lanes = 16
        with self.b.loop(0, count, lanes) as loop:
            self.b.store(self.b.const(0, "i32", lanes), self.bins, loop.var)

    def _count_bin(self, bin: SSAValue) -> None:
        old = self.b.load(self.bins, bin, "i32")
        self.b.store(self.b.add(old, self.b.const(1, "i32")), self.bins, bin)

    def _move(self, source: SSAValue, target: SSAValue, word: SSAValue) -> None:
        """Emit the move of a word, and of its position, from one element of the arrays to another."""
        b = self.b
        b.store(word, self.words, target)
        if self.positions is not None:
            b.store(b.load(self.positions, source, "i32"), self.positions, target)

    def _emit_narrowing(self) -> tuple[SSAValue, SSAValue]:
        """Emit the removal of the keys whose highest digit is not among those of the ranks.

        Return (number of removed keys that come before the others, number of keys that remain)."""
        b, n = self.b, self.n
        digit = Digit(64 - _FIRST_DIGIT, _FIRST_DIGIT)
        self._clear(1 << digit.bits)
        with b.loop(0, n) as loop:
            self._count_bin(self._digit(b.load(self.words, loop.var, "i64"), digit))
        zero = b.const(0)

        def visit(state: list[SSAValue], bin: SSAValue) -> list[SSAValue]:
            total, base, first, last = state
            after = b.add(total, b.cast(b.load(self.bins, bin, "i32"), "i64"))
            has_low = b.op("and", b.op("le", total, self.low), b.op("lt", self.low, after))
            has_high = b.op("and", b.op("le", total, self.high), b.op("lt", self.high, after))
            return [
                after,
                b.select(has_low, total, base),
                b.select(has_low, bin, first),
                b.select(has_high, bin, last),
            ]

        with b.loop(0, 1 << digit.bits, init=[zero] * 4) as loop:
            loop.next = visit(list(loop.carried), loop.var)
        _, base, first, last = loop.results
        with b.loop(0, n, init=[zero]) as loop:
            (count,) = loop.carried
            word = b.load(self.words, loop.var, "i64")
            bin = self._digit(word, digit)
            self._move(loop.var, count, word)
            remains = b.op("and", b.op("le", first, bin), b.op("le", bin, last))
            loop.next = [b.add(count, b.cast(remains, "i64"))]
        return base, loop.results[0]

    def _emit_sort(self, count: SSAValue) -> SSAValue:
        """Emit the sort of the first `count` words; return the element of the arrays at which the sorted ones begin."""
        b, bits = self.b, self.config.bits
        self._clear(len(self.digits) << bits)
        with b.loop(0, count) as loop:
            word = b.load(self.words, loop.var, "i64")
            for k, digit in enumerate(self.digits):
                self._count_bin(b.add(self._digit(word, digit), k << bits))
        begin, word = b.const(0), b.load(self.words, 0, "i64")
        for k, digit in enumerate(self.digits):
            shared = b.cast(b.load(self.bins, b.add(self._digit(word, digit), k << bits), "i32"), "i64")
            with b.loop(0, b.select(b.op("lt", shared, count), b.const(1), b.const(0)), init=[begin]) as turn:
                (source,) = turn.carried
                turn.next = [self._emit_counting_sort(source, count, digit, k << bits)]
            (begin,) = turn.results
        return begin

    def _emit_counting_sort(self, source: SSAValue, count: SSAValue, digit: Digit, bins: int) -> SSAValue:
        b = self.b
        target = b.sub(self.n, source)
        with b.loop(bins, bins + (1 << digit.bits), init=[b.cast(target, "i32")]) as loop:
            (total,) = loop.carried
            own = b.load(self.bins, loop.var, "i32")
            b.store(total, self.bins, loop.var)
            loop.next = [b.add(total, own)]
        self._emit_moves(b.const(0), count, source, digit, bins)
        return target

    def _emit_moves(
        self, low: SSAValue | int, high: SSAValue | int, source: SSAValue | int, digit: Digit, bins: int
    ) -> None:
        """Emit the moves of words low .. high-1 after `source` to the places that are next in their bins."""
        b = self.b
        with b.loop(low, high) as loop:
            at = b.add(loop.var, source)
            word = b.load(self.words, at, "i64")
            bin = b.add(self._digit(word, digit), bins)
            place = b.load(self.bins, bin, "i32")
            self._move(at, b.cast(place, "i64"), word)
            b.store(b.add(place, b.const(1, "i32")), self.bins, bin)


class PartsEmitter(SelectionEmitter):
    """The emitter of one launch of selections from rows that all tasks sort together, each a part of every row.

    The workspace has the words of each row, its positions where these are apart, and the bins of its parts."""

    def __init__(self, b: Builder, kernel: Kernel, box: Box, config: SelectionConfig):
        super().__init__(b, kernel, box, config)
        outer = [a for a in range(box.rank) if a != self.axis]
        extents = tuple(box.extents[a] for a in outer)
        self.rows, self.number = prod(extents), address([Axis(a) for a in outer], row_major(extents))

    @property
    def workspace(self) -> int:
        """Bytes of the workspace."""
        words = self.rows * 2 * self.n
        return words * (12 if self.wide else 8) + self.rows * 4 * (self.config.parts << self.config.bits)

    def emit_launch(self, step: Callable[[], None]) -> int:
        """Emit a step for every row and part; return the number of tasks."""

        def begin(part: SSAValue) -> None:
            self.part = part

        def emit_row() -> None:
            self._place_row()
            step()

        sweep = loops.BoxSweep(self.em, self.box, None, 1, lambda *_: emit_row(), own=self.axis)
        return sweep.emit_tasks(1, 0, True, self.config.parts, begin)

    def _place_row(self) -> None:
        """Find the arrays of the row whose axes are bound."""
        b, n, parts, bits = self.b, self.n, self.config.parts, self.config.bits
        row = b.cast(self.em.emit(self.number.expr()), "i64") if self.number.axes else b.const(0)
        after = self.rows * 4 * n  # in elements of 32 bits
        self.words = b.address(b.buffers[-1], b.mul(row, 2 * n), "i64")
        if self.wide:
            self.positions = b.address(b.buffers[-1], b.add(b.mul(row, 2 * n), after), "i32")
            after += self.rows * 2 * n
        self.counts = b.address(b.buffers[-1], b.add(b.mul(row, parts << bits), after), "i32")

    def emit_keys(self) -> None:
        """Emit the words of the part."""
        self._emit_words()

    def emit_counts(self, k: int) -> None:
        """Emit the numbers of the part's words in the bins of digit k."""
        b, bits = self.b, self.config.bits
        assert self.part is not None
        self.bins = b.address(self.counts, b.mul(self.part, 1 << bits), "i32")
        self._clear(1 << bits)
        with b.loop(*part_bounds(b, self.n, self.part, self.config.parts)) as loop:
            word = b.load(self.words, b.add(loop.var, k % 2 * self.n), "i64")
            self._count_bin(self._digit(word, self.digits[k]))

    def emit_moves(self, k: int) -> None:
        """Emit the moves of the part's words to their places by digit k: behind those of smaller digits, and those of
        the parts before it of the same digit."""
        b, bits, parts = self.b, self.config.bits, self.config.parts
        assert self.part is not None
        self.bins = b.alloc("i32", 1 << bits)
        zero = b.const(0, "i32")
        with b.loop(0, 1 << bits, init=[b.const((1 - k % 2) * self.n, "i32")]) as loop:
            (total,) = loop.carried
            place = total
            for part in range(parts):
                count = b.load(self.counts, b.add(loop.var, part << bits), "i32")
                place = b.add(place, b.select(b.op("lt", part, self.part), count, zero))
                total = b.add(total, count)
            b.store(place, self.bins, loop.var)
            loop.next = [total]
        low, high = part_bounds(b, self.n, self.part, parts)
        self._emit_moves(low, high, k % 2 * self.n, self.digits[k], 0)

    def emit_results(self) -> None:
        """Emit the part's results."""
        self._emit_results(self.b.const(len(self.digits) % 2 * self.n))


@lru_cache(maxsize=512)
def _find_rank_range(box: Box) -> tuple[int, int]:
    """Return the lowest and the highest rank that is selected."""
    low, high = bounds(box.bodies[1], box.extents)
    return max(low or 0, 0), box.reduced - 1 if high is None else min(high, box.reduced - 1)


class RankSelection(Pattern):
    """The pattern of selections by rank, with an epilogue."""

    name = "selection"

    def match(self, kernel: Kernel) -> bool:
        parts = kernel.root.parts
        return (
            not isinstance(kernel, Rows)
            and not kernel.sums
            and all(isinstance(p, Piece) and isinstance(p.body, Reduce) for p in parts)
            and all(p.body.combiner in SELECTIONS for p in parts if isinstance(p.body, Reduce))
        )

    def configs(self, kernel: Kernel, target: Target) -> list[SelectionConfig]:
        several = (1,) if target.cores == 1 else (1, target.cores, 4 * target.cores)
        lanes = target.lanes(max(p.bodies[0].dtype.itemsize for p in kernel.root.parts))
        out = [SelectionConfig(*c, lanes, t) for c in product((8, 11), (False, True)) for t in several]
        box_list = boxes.boxes(kernel)
        if len(box_list) == 1:
            parts = min(target.cores, box_list[0].reduced // _MIN_PART, _MAX_PARTS)
            if 1 <= _count_rows(box_list[0]) < parts:
                out += [SelectionConfig(bits, False, lanes, 1, parts) for bits in (8, 11)]
        return out

    def cost(self, kernel: Kernel, config: SelectionConfig, target: Target) -> Cost:
        """Return the cost: instructions per key and digit, and per bin; and bytes."""
        rate, arithmetic, special, rows = boxes.vectors_per_second(target), 0.0, 0.0, 0
        for box in boxes.boxes(kernel):
            count = _count_rows(box)
            instructions, seconds = boxes.operations(box.bodies, target)
            arithmetic += count * _estimate_row(box, config, instructions) / rate
            special += count * box.reduced * seconds
            rows += count
        moved, footprint = touched_bytes(kernel, LINE)
        tasks = config.parts if config.parts > 1 else min(config.tasks, max(rows, 1))
        memory = target.seconds_for_bytes(moved, footprint, tasks)
        cost = distribute(arithmetic, memory, special, tasks, target)
        if config.parts == 1:
            return cost
        launches = 1 + 2 * _count_digits(boxes.boxes(kernel)[0], config.bits)
        return cost._replace(launch=cost.launch + launches * target.overheads.call_seconds)

    def lower(self, kernel: Kernel, config: SelectionConfig, target: Target) -> Lowered:
        if config.parts > 1:
            return self._lower_parts(kernel, config)
        b = Builder(boxes.function_name(self.name, kernel, config), len(kernel.buffers) + 1)

        def emit(box: Box, tasks: int, first: int, alone: bool) -> int:
            return SelectionEmitter(b, kernel, box, config).emit(tasks, first, alone)

        count = loops.distribute_tasks(boxes.boxes(kernel), config.tasks, emit)
        return Lowered([Launch(b.finish(), count)] if count else [], beyond=Beyond.UNTOUCHED)

    def _lower_parts(self, kernel: Kernel, config: SelectionConfig) -> Lowered:
        (box,) = boxes.boxes(kernel)
        out = Lowered(beyond=Beyond.UNTOUCHED)

        def launch(step: Callable[[PartsEmitter], None]) -> None:
            name = boxes.function_name(self.name, kernel, config, len(out.launches))
            emitter = PartsEmitter(Builder(name, len(kernel.buffers) + 1), kernel, box, config)
            tasks = emitter.emit_launch(lambda: step(emitter))
            out.workspace = emitter.workspace
            out.launches.append(Launch(emitter.b.finish(), tasks))

        launch(PartsEmitter.emit_keys)
        for k in range(_count_digits(box, config.bits)):
            launch(partial(PartsEmitter.emit_counts, k=k))
            launch(partial(PartsEmitter.emit_moves, k=k))
        launch(PartsEmitter.emit_results)
        return out


def _count_rows(box: Box) -> int:
    """Return the number of rows that are sorted."""
    ranked = find_ranked_axis(box)
    return box.points // (1 if ranked is None else box.extents[ranked])


def _key_bits(box: Box) -> int:
    return 64 if box.bodies[0].dtype.itemsize == 8 else 32


def _count_digits(box: Box, bits: int) -> int:
    """Return the number of digits of this number of bits that a key has."""
    return -(-_key_bits(box) // bits)


def _estimate_row(box: Box, config: SelectionConfig, instructions: float) -> float:
    """Return the instructions that select the ranks of one row."""
    n, digits = box.reduced, _count_digits(box, config.bits)
    low, high = _find_rank_range(box)
    total = n * (instructions + 8.0) / config.lanes + 4.0 * (high - low + 1)
    if config.narrow:
        total += 10.0 * n + 6.0 * (1 << _FIRST_DIGIT)
        n = min(n, high - low + 1 + n // 16)
    return total + digits * (11.0 * n + 4.0 * (1 << config.bits))
