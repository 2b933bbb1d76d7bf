"""Multiply up the decays of the steps of a chunk, and weigh pairs of its steps by them.

Products of decays are multiplied up step by step, without logarithms and divisions: no factor is larger than the
decays make it, and decays of zero and of any sign are as good as others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from einsmith.ir.nodes import Axis, Const, Expr, Read, apply
from einsmith.ir.recurrence.chunks.affine import product
from einsmith.ir.recurrence.chunks.sheet import PLACES, Labelled, Sheet, choose, integer, labels_of, plus

CHUNK, ROW, COLUMN, BEFORE, BLOCK, INNER, LEFT, BEHIND = range(PLACES, PLACES + 8)
"""Labels: the number of a chunk; a step of it; a step of it that a sum is over; the number of chunks before. A block of
steps of a chunk; a step of it; a block before it; a step of that."""
_PLACES = (BEFORE, CHUNK, ROW, BLOCK, INNER, COLUMN, LEFT, BEHIND)
BLOCK_STEPS = 4
"""Steps of a block where decays are by channel: pairs of steps within a block are weighed one by one."""


class ChunkSheet(Sheet):
    """Tensors of a chunk form: shared axes come first, then the chunk and its steps, then keys and values."""

    def __init__(self, extents: dict[int, int], keys: Sequence[int], values: Sequence[int]):
        super().__init__(extents)
        self.keys, self.values = keys, values

    def lay(self, labels: Iterable[int], x: Expr, over: Sequence[int] = ()) -> Labelled:
        """Return the tensor of an expression, summed over some labels."""
        return self.define(self.ordered({*labels} - {*over}), x, over)

    def ordered(self, labels: Collection[int]) -> list[int]:
        """Return labels in the order of dimensions."""
        apart = [*self.keys, *self.values]
        shared = sorted(d for d in labels if d not in _PLACES and d not in apart)
        return [*shared, *(d for d in (*_PLACES, *apart) if d in labels)]

    def sum(self, x: Expr, over: Sequence[int]) -> Labelled:
        """Return the sum of an expression over some labels."""
        return self.lay(labels_of(x), x, over)


class Decays(Protocol):
    """The products of a chunk's decays."""

    def from_start(self, is_after: bool) -> Expr | None:
        """Return the product of the decays up to a row's step, or to the one before; None for 1."""

    def to_end(self) -> Expr | None:
        """Return the product of the decays behind a row's step; None for 1."""

    def coefficients(self, query: Labelled, key: Labelled, is_after: bool) -> Labelled:
        """Return M[i,j]: the sum over keys of query[i]*key[j] and the decays of the steps j+1 .. i, or up to the one
        before i; 0 for j > i, or j >= i."""


def _is_below(is_after: bool) -> Expr:
    return apply("le" if is_after else "lt", Axis(COLUMN), Axis(ROW))


class NoDecays:
    """Decays of 1."""

    def __init__(self, sheet: ChunkSheet):
        self.sheet = sheet

    def from_start(self, is_after: bool) -> Expr | None:
        """Return None."""
        return None

    def to_end(self) -> Expr | None:
        """Return None."""
        return None

    def coefficients(self, query: Labelled, key: Labelled, is_after: bool) -> Labelled:
        """Return query[i]*key[j] for j <= i, or j < i."""
        sheet = self.sheet
        pairs = sheet.sum(product(sheet.read(query), sheet.read(key, {ROW: Axis(COLUMN)})), sheet.keys)
        return sheet.lay({*pairs.labels, ROW, COLUMN}, choose(_is_below(is_after), sheet.read(pairs), 0.0))


class StepDecays:
    """Decays that all keys share: pairs of steps are weighed after the sum over keys."""

    def __init__(self, sheet: ChunkSheet, decay: Labelled):
        self.sheet, self.decay = sheet, decay
        row, column = Axis(ROW), Axis(COLUMN)
        labels = sheet.ordered({*decay.labels, ROW, COLUMN})
        whole = sheet.placeholder(labels, decay.tensor.dtype)
        longer = product(sheet.read(decay), sheet.read(whole, {ROW: plus(row, -1)}))
        empty = choose(apply("eq", row, column), Const(1.0, decay.tensor.dtype), 0.0)
        self.between = sheet.solve(whole, choose(apply("lt", column, row), longer, empty))

    def from_start(self, is_after: bool) -> Expr | None:
        """Return D[i,0] and the first decay."""
        sheet = self.sheet
        first = sheet.read(self.decay, {ROW: integer(0)})
        if is_after:
            return product(sheet.read(self.between, {COLUMN: integer(0)}), first)
        before = sheet.read(self.between, {ROW: plus(Axis(ROW), -1), COLUMN: integer(0)})
        return choose(apply("lt", integer(0), Axis(ROW)), product(before, first), 1.0)

    def to_end(self) -> Expr | None:
        """Return D[C-1,i]."""
        last = integer(self.sheet.extents[ROW] - 1)
        return self.sheet.read(self.between, {ROW: last, COLUMN: Axis(ROW)})

    def coefficients(self, query: Labelled, key: Labelled, is_after: bool) -> Labelled:
        """Return D[i,j]*query[i]*key[j]."""
        sheet = self.sheet
        pairs = sheet.sum(product(sheet.read(query), sheet.read(key, {ROW: Axis(COLUMN)})), sheet.keys)
        at = {} if is_after else {ROW: plus(Axis(ROW), -1)}
        x = product(sheet.read(pairs), sheet.read(self.between, at))
        return sheet.lay(labels_of(x) | {ROW, COLUMN}, choose(_is_below(is_after), x, 0.0))


class KeyDecays:
    """Decays by key. Pairs of steps of one block are weighed one by one; of two blocks, the query takes the decays from
    the beginning of its block, and the key those up to there: a product (Yang et al. 2023, "Gated Linear Attention
    Transformers", section 4, with factors of at most the decays' size)."""

    def __init__(self, sheet: ChunkSheet, decay: Labelled):
        self.sheet, self.decay, length = sheet, decay, sheet.extents[ROW]
        self.steps = BLOCK_STEPS if length % BLOCK_STEPS == 0 else length
        self.blocks = length // self.steps
        sheet.extents |= {BLOCK: self.blocks, INNER: self.steps, LEFT: self.blocks, BEHIND: self.steps}
        one = Const(1.0, decay.tensor.dtype)
        rest = {*decay.labels} - {ROW}
        row, inner, behind, block = Axis(ROW), Axis(INNER), Axis(BEHIND), Axis(BLOCK)

        def grown(labels: Iterable[int], along: int, by: int, condition: Expr, decay: Expr, first: Expr) -> Labelled:
            whole = sheet.placeholder(sheet.ordered({*rest, *labels}), one.dtype)
            longer = product(decay, sheet.read(whole, {along: plus(Axis(along), by)}))
            return sheet.solve(whole, choose(condition, longer, first))

        last, final = integer(length - 1), integer(self.steps - 1)
        self.start = grown({ROW}, ROW, -1, apply("lt", integer(0), row), self._at(row), self._at(row))
        self.end = grown({ROW}, ROW, 1, apply("lt", row, last), self._at(plus(row, 1)), one)
        same = choose(apply("eq", inner, behind), one, 0.0)
        here, after = self._place(BLOCK, INNER), plus(self._place(BLOCK, INNER), 1)
        self.within = grown({BLOCK, INNER, BEHIND}, INNER, -1, apply("lt", behind, inner), self._at(here), same)
        self.of_block = grown({BLOCK, INNER}, INNER, -1, apply("lt", integer(0), inner), self._at(here), self._at(here))
        rest_of_block = grown({BLOCK, INNER}, INNER, 1, apply("lt", inner, final), self._at(after), one)
        left = Axis(LEFT)
        if self.blocks > 1:
            whole = sheet.placeholder(sheet.ordered({*rest, BLOCK, LEFT, BEHIND}), one.dtype)
            own = sheet.read(rest_of_block, {BLOCK: left, INNER: behind})
            passed = sheet.read(self.of_block, {BLOCK: plus(block, -1), INNER: final})
            longer = product(passed, sheet.read(whole, {BLOCK: plus(block, -1)}))
            x = choose(apply("lt", plus(left, 1), block), longer, own)
            self.up_to_block = sheet.solve(whole, choose(apply("lt", left, block), x, 0.0))

    def _at(self, row: Expr) -> Read:
        return self.sheet.read(self.decay, {ROW: row})

    def _place(self, block: int, inner: int) -> Expr:
        return apply("add", apply("mul", Axis(block), integer(self.steps)), Axis(inner))

    def from_start(self, is_after: bool) -> Expr | None:
        """Return the product of the decays up to a row's step, or to the one before."""
        if is_after:
            return self.sheet.read(self.start)
        before = self.sheet.read(self.start, {ROW: plus(Axis(ROW), -1)})
        return choose(apply("lt", integer(0), Axis(ROW)), before, 1.0)

    def to_end(self) -> Expr | None:
        """Return the product of the decays behind a row's step."""
        return self.sheet.read(self.end)

    def coefficients(self, query: Labelled, key: Labelled, is_after: bool) -> Labelled:
        """Return the sum over keys of query[i]*D[i,j]*key[j]."""
        sheet = self.sheet
        here = sheet.read(query, {ROW: self._place(BLOCK, INNER)})
        back = {} if is_after else {INNER: plus(Axis(INNER), -1)}
        below = apply("le" if is_after else "lt", Axis(BEHIND), Axis(INNER))
        pair = product(here, sheet.read(key, {ROW: self._place(BLOCK, BEHIND)}))
        near = sheet.sum(choose(below, product(pair, sheet.read(self.within, back)), 0.0), sheet.keys)
        x: Expr = sheet.read(near)
        if self.blocks > 1:
            decayed: Expr = sheet.read(self.of_block, back)
            if not is_after:
                decayed = choose(apply("lt", integer(0), Axis(INNER)), decayed, 1.0)
            e = product(here, decayed)
            rows = sheet.lay(labels_of(e), e)
            e = product(sheet.read(key, {ROW: self._place(LEFT, BEHIND)}), sheet.read(self.up_to_block))
            columns = sheet.lay(labels_of(e), e)
            far = sheet.sum(product(sheet.read(rows), sheet.read(columns)), sheet.keys)
            # Keys of the block itself and of later ones are 0 in what is far.
            x = choose(apply("eq", Axis(LEFT), Axis(BLOCK)), x, sheet.read(far))
        pairs = sheet.lay(labels_of(x) | {BLOCK, INNER, LEFT, BEHIND}, x)
        places = {BLOCK: ROW, INNER: ROW, LEFT: COLUMN, BEHIND: COLUMN}
        at = {
            d: apply("floordiv" if d in (BLOCK, LEFT) else "mod", Axis(p), integer(self.steps))
            for d, p in places.items()
        }
        e = sheet.read(pairs, at)
        return sheet.lay(labels_of(e), e)


def decays_of(sheet: ChunkSheet, decay: Labelled | None) -> Decays:
    """Return the products of decays, None for those of 1."""
    if decay is None:
        return NoDecays(sheet)
    return StepDecays(sheet, decay) if {*decay.labels}.isdisjoint(sheet.keys) else KeyDecays(sheet, decay)
