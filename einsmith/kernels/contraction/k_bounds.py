"""Leaving out the part of K that guards make zero for a whole register tile.

A guard such as 0 <= y - r < 10 relates an axis of one side to an axis of K. For the rows of a tile the values of y are
known, so the loop over r runs only where some row can have a nonzero operand. Padded borders then cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, reduce

import numpy as np

from einsmith.expr.nodes import Apply
from einsmith.kernels.contraction.problem import Problem
from einsmith.kernels.emit.access import OperandAccess
from einsmith.loops.address import Memory, compared
from einsmith.loops.nest import Builder, Value


@dataclass(frozen=True)
class KBound:
    """A guard of one operand that bounds the K axis `axis`: `sign` is the axis's coefficient, 1 or -1."""

    guard: Apply
    axis: int
    sign: int
    axes: frozenset[int]  # the output axes it mentions


@lru_cache(maxsize=1024)
def k_bounds(p: Problem, which: int) -> list[KBound]:
    """The guards of an operand that bound one axis of K each, by output axes of the operand."""
    out = []
    for g in p.operands[which].guards:
        if g not in p.exact:  # a term that is zero only by one factor must stand: the other may be infinite
            continue
        form = compared(g, p.extents, ("lt", "le"))
        inner = [a for a in form.coef if a in p.k] if form else []
        if isinstance(g, Apply) and form and len(inner) == 1 and abs(form.coef[inner[0]]) == 1 and len(form.coef) > 1:
            out.append(KBound(g, inner[0], form.coef[inner[0]], frozenset(form.coef) - {inner[0]}))
    return out


@lru_cache(maxsize=4096)
def within(p: Problem, which: int, axes: tuple[int, ...]) -> tuple[KBound, ...]:
    """Those of an operand's k_bounds that mention no other output axes."""
    return tuple(t for t in k_bounds(p, which) if t.axes <= {*axes})


def emit_bounds(
    b: Builder, p: Problem, found: Sequence[KBound], memories: Mapping[int, Memory], batch: Value,
    axes: tuple[int, ...], points: Sequence[Value], known: Mapping[int, tuple[Value, Value]],
) -> dict[int, tuple[Value, Value]]:
    """(low, high) by axis of K, within those that there are: outside, all of these `points` of the flattened axes of a
    side are zero."""
    out = dict(known)
    for t in found:
        s = OperandAccess(b, [], [t.guard], p.extents, memories)
        if not s.conds:
            continue
        ((form, fn, _),) = s.conds
        fixed = s.part_of(p.batch, batch)
        low, high = out.get(t.axis, (b.const(0), b.const(p.extents[t.axis])))
        rows = [s.place(form, fixed, s.part_of(axes, x)) for x in (points if t.axes & {*axes} else points[:1])]
        if t.sign > 0:  # v + r < 0
            ends = [b.sub(int(fn == "le"), v) for v in rows]
            out[t.axis] = low, b.op("min", high, reduce(partial(b.op, "max"), ends))
        else:  # v - r < 0
            starts = [b.add(v, int(fn == "lt")) for v in rows]
            out[t.axis] = b.op("max", low, reduce(partial(b.op, "min"), starts)), high
    return out


SAMPLED = 1 << 16
"""Rows of a side that `share` looks at, about: those of a 256 x 256 image. More of them change the mean by less than a
thousandth."""


def _sampled_axes(p: Problem, axes: tuple[int, ...]) -> list[int]:
    """Trailing axes that have enough rows for a mean; outer ones repeat what these show."""
    seen: list[int] = []
    for a in reversed([a for a in axes if p.extents[a] > 1]):
        seen.insert(0, a)
        if p.count(seen) >= 512:
            break
    return seen


def _ends(
    p: Problem, found: tuple[KBound, ...], digits: dict[int, np.ndarray]
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """By axis of K, the first point that guards leave rows at the coordinates `digits`, and the end."""
    low: dict[int, np.ndarray] = {}
    high: dict[int, np.ndarray] = {}
    for t in found:
        if any(a not in digits for a in t.axes):
            continue
        g, form = t.guard, compared(t.guard)
        assert form is not None
        v = np.array(form.const) + sum(c * digits[a] for a, c in form.coef.items() if a in digits)
        if t.sign > 0:
            high[t.axis] = np.minimum(high.get(t.axis, p.extents[t.axis]), int(g.fn == "le") - v)
        else:
            low[t.axis] = np.maximum(low.get(t.axis, 0), v + int(g.fn == "lt"))
    none = np.array([[0]])
    return {k: (low.get(k, none), high.get(k, none + p.extents[k])) for k in {*low, *high}}


@lru_cache(maxsize=4096)
def share(p: Problem, found: tuple[KBound, ...], axes: tuple[int, ...], points: int) -> float:
    """The part of K that is left, on average over tiles of `points` flattened points of `axes`; of more than SAMPLED
    points, over tiles at even distances."""
    seen = _sampled_axes(p, axes)
    total = p.count(seen)
    tiles = -(-total // points)
    count = min(tiles, max(1, SAMPLED // points))
    first = (2 * np.arange(count) + 1) * tiles // (2 * count) * points
    # The last tile may have fewer rows: its last one stands for those that it lacks.
    rest = np.minimum(first[:, None] + np.arange(min(points, total)), total - 1)
    digits = {}
    for a in reversed(seen):
        rest, digits[a] = np.divmod(rest, p.extents[a])
    left, ends = np.ones(count), _ends(p, found, digits)
    for low, high in ends.values():
        left = left * np.maximum(high.max(1) - low.min(1), 0)
    return float(left.sum()) / (count * p.count(ends))


@lru_cache(maxsize=1024)
def least(p: Problem) -> float:
    """The part of K that is left for tiles of one point of each side; larger ones have more of it left."""
    out = 1.0
    for which, axes in enumerate((p.left, p.right)):
        found = within(p, which, (*p.batch, *axes))
        out *= share(p, found, axes, 1) if axes and found else 1.0
    return out
