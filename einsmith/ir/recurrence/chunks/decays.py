"""Multiply up the decays of the steps of a chunk, and weigh pairs of its steps by them.

Products of decays are multiplied up step by step, without logarithms and divisions: no factor is larger than the
decays make it, and decays of zero and of any sign are as good as others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from einsmith.ir.nodes import Axis, Const, Expr, apply
from einsmith.ir.recurrence.chunks.affine import product
from einsmith.ir.recurrence.chunks.sheet import PLACES, Labelled, Sheet, choose, integer, labels_of, plus

CHUNK, ROW, COLUMN, BEFORE, PAIR, RIGHT, LEFT, STEP = range(PLACES, PLACES + 8)
"""Labels: the number of a chunk; a step of it; a step of it that a sum is over; the number of chunks before. A pair of
blocks of steps of a chunk; a step of the right one; a step of the left one. A step of the padded recurrence."""
_PLACES = (BEFORE, STEP, CHUNK, ROW, COLUMN, PAIR, RIGHT, LEFT)


class ChunkSheet(Sheet):
    """Tensors of a chunk form: shared axes come first, then the chunk and its steps, then keys and values. varies:
    whether the number of chunks does, which then comes first of all, as what lies beyond a limit is left out there."""

    def __init__(self, extents: dict[int, int], keys: Sequence[int], values: Sequence[int], varies: bool):
        super().__init__(extents)
        self.keys, self.values, self.varies = keys, values, varies

    def lay(self, labels: Iterable[int], x: Expr, over: Sequence[int] = ()) -> Labelled:
        """Return the tensor of an expression, summed over some labels."""
        return self.define(self.ordered({*labels} - {*over}), x, over)

    def ordered(self, labels: Collection[int]) -> list[int]:
        """Return labels in the order of dimensions."""
        apart = [*self.keys, *self.values]
        shared = sorted(d for d in labels if d not in _PLACES and d not in apart)
        order = (BEFORE, STEP, CHUNK, *shared) if self.varies else shared
        return list(dict.fromkeys(d for d in (*order, *_PLACES, *apart) if d in labels))

    def sum(self, x: Expr, over: Sequence[int]) -> Labelled:
        """Return the sum of an expression over some labels."""
        return self.lay(labels_of(x), x, over)


def _is_below(is_after: bool) -> Expr:
    return apply("le" if is_after else "lt", Axis(COLUMN), Axis(ROW))


class StepDecays:
    """Decays that all keys share, None for 1: pairs of steps are weighed after the sum over keys."""

    def __init__(self, sheet: ChunkSheet, decay: Labelled | None):
        self.sheet, self.decay = sheet, decay
        if decay is None:
            return
        row, column = Axis(ROW), Axis(COLUMN)
        labels = sheet.ordered({*decay.labels, ROW, COLUMN})
        whole = sheet.placeholder(labels, decay.tensor.dtype)
        longer = product(sheet.read(decay), sheet.read(whole, {ROW: plus(row, -1)}))
        empty = choose(apply("eq", row, column), Const(1.0, decay.tensor.dtype), 0.0)
        self.between = sheet.solve(whole, choose(apply("lt", column, row), longer, empty))

    def from_start(self, is_after: bool) -> Expr | None:
        """Return the product of the decays up to a row's step, or to the one before, D[i,0] and the first decay; None
        for 1."""
        if self.decay is None:
            return None
        sheet = self.sheet
        first = sheet.read(self.decay, {ROW: integer(0)})
        if is_after:
            return product(sheet.read(self.between, {COLUMN: integer(0)}), first)
        before = sheet.read(self.between, {ROW: plus(Axis(ROW), -1), COLUMN: integer(0)})
        return choose(apply("lt", integer(0), Axis(ROW)), product(before, first), 1.0)

    def to_end(self) -> Expr | None:
        """Return the product of the decays behind a row's step, D[C-1,i]; None for 1."""
        if self.decay is None:
            return None
        return self.sheet.read(self.between, {ROW: integer(self.sheet.extents[ROW] - 1), COLUMN: Axis(ROW)})

    def coefficients(self, query: Labelled, key: Labelled, is_after: bool) -> Labelled:
        """Return M[i,j]: the sum over keys of query[i]*key[j] and the decays of the steps j+1 .. i, or up to the one
        before i; 0 for j > i, or j >= i."""
        sheet = self.sheet
        x: Expr = sheet.read(sheet.sum(product(sheet.read(query), sheet.read(key, {ROW: Axis(COLUMN)})), sheet.keys))
        if self.decay is not None:
            x = product(x, sheet.read(self.between, {} if is_after else {ROW: plus(Axis(ROW), -1)}))
        return sheet.lay(labels_of(x) | {ROW, COLUMN}, choose(_is_below(is_after), x, 0.0))


class KeyDecays:
    """Decays by key. At each power of two s, blocks of s steps are joined in pairs: steps of the right one take the
    decays from its beginning, and those of the left one the decays up to its end, so that what is between two steps is
    a product of two factors, which are products of decays themselves (Yang et al. 2023, "Gated Linear Attention
    Transformers", section 4, has one level of it)."""

    def __init__(self, sheet: ChunkSheet, decay: Labelled):
        self.sheet, self.length = sheet, sheet.extents[ROW]
        self.sizes = [2**n for n in range((self.length - 1).bit_length())]
        one = Const(1.0, decay.tensor.dtype)
        self.begun = [decay]
        """Products of the decays from the beginning of a row's block up to the row's step, by levels."""
        self.left: list[Labelled | None] = [None]
        """Products of those behind it, up to the end of its block; None for 1."""
        row, labels = Axis(ROW), sheet.ordered({*decay.labels, ROW})
        for s in self.sizes:
            begun, left = self.begun[-1], self.left[-1]
            first = apply("mul", apply("floordiv", row, integer(2 * s)), integer(2 * s))
            inner = apply("mod", row, integer(2 * s))
            before = sheet.read(begun, {ROW: plus(first, s - 1)})
            x: Expr = product(sheet.read(begun), choose(apply("le", integer(s), inner), before, one))
            self.begun.append(sheet.define(labels, x))
            # The last block of a chunk may be shorter, or be none.
            end = plus(first, 2 * s - 1)
            is_joined = apply("lt", inner, integer(s))
            if self.length % (2 * s):
                is_joined = apply("and", is_joined, apply("lt", plus(first, s), integer(self.length)))
                end = apply("min", end, integer(self.length - 1))
            x = choose(is_joined, sheet.read(begun, {ROW: end}), one)
            self.left.append(sheet.define(labels, x if left is None else product(sheet.read(left), x)))

    def from_start(self, is_after: bool) -> Expr | None:
        """Return the product of the decays up to a row's step, or to the one before."""
        if is_after:
            return self.sheet.read(self.begun[-1])
        before = self.sheet.read(self.begun[-1], {ROW: plus(Axis(ROW), -1)})
        return choose(apply("lt", integer(0), Axis(ROW)), before, 1.0)

    def to_end(self) -> Expr | None:
        """Return the product of the decays behind a row's step."""
        return None if self.left[-1] is None else self.sheet.read(self.left[-1])

    def coefficients(self, query: Labelled, key: Labelled, is_after: bool) -> Labelled:
        """Return the sum over keys of query[i]*D[i,j]*key[j]."""
        sheet, row, column = self.sheet, Axis(ROW), Axis(COLUMN)
        x: Expr = Const(0.0, query.tensor.dtype)
        if is_after:
            x = sheet.read(sheet.sum(product(sheet.read(query), sheet.read(key)), sheet.keys))
        for level, s in enumerate(self.sizes):
            pairs = self._pairs(level, query, key, is_after)
            at = {
                PAIR: apply("floordiv", row, integer(2 * s)),
                RIGHT: apply("mod", row, integer(s)),
                LEFT: apply("mod", column, integer(s)),
            }
            is_same = apply("eq", *(apply("floordiv", d, integer(s)) for d in (row, column)))
            x = choose(is_same, x, sheet.read(pairs, at))
        return sheet.lay(labels_of(x) | {ROW, COLUMN}, choose(_is_below(is_after), x, 0.0))

    def _pairs(self, level: int, query: Labelled, key: Labelled, is_after: bool) -> Labelled:
        """Return the sums over keys of the steps of right blocks and those of left ones."""
        sheet, s = self.sheet, self.sizes[level]
        sheet.extents |= {PAIR: -(-(self.length - s) // (2 * s)), RIGHT: s, LEFT: s}
        first = apply("mul", Axis(PAIR), integer(2 * s))
        row, column = plus(apply("add", first, Axis(RIGHT)), s), apply("add", first, Axis(LEFT))
        begun: Expr = sheet.read(self.begun[level], {ROW: row if is_after else plus(row, -1)})
        if not is_after:
            begun = choose(apply("lt", integer(0), Axis(RIGHT)), begun, 1.0)
        x = product(sheet.read(query, {ROW: row}), begun)
        if self.length % (2 * s):
            x = choose(apply("lt", row, integer(self.length)), x, 0.0)
        left, y = self.left[level], sheet.read(key, {ROW: column})
        whole = y if left is None else product(y, sheet.read(left, {ROW: column}))
        rows, columns = (sheet.read(sheet.lay(labels_of(e), e)) for e in (x, whole))
        return sheet.sum(product(rows, columns), sheet.keys)


Decays = StepDecays | KeyDecays
"""The products of a chunk's decays."""


def decays_of(sheet: ChunkSheet, decay: Labelled | None) -> Decays:
    """Return the products of decays, None for those of 1."""
    if decay is None or {*decay.labels}.isdisjoint(sheet.keys):
        return StepDecays(sheet, decay)
    return KeyDecays(sheet, decay)
