"""Leave out the part of K that guards make zero for a whole register tile.

A guard such as 0 <= y - r < 10 relates an axis of one side to an axis of K. For the rows of a tile the values of y are
known, so the loop over r runs only where some row can have a nonzero operand. Padded borders then cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial, reduce
from math import prod
from typing import Any, NamedTuple

import numpy as np

from einsmith.codegen.loopnest.address import BufferMemory, comparison_form
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.ssa import SSAValue
from einsmith.ir.nodes import Apply
from einsmith.kernels.emit.access import OperandAccess
from einsmith.schedule.contraction_problem import Problem


class KBound(NamedTuple):
    """A guard of one operand that bounds the K axis `axis`: `sign` is the axis's coefficient, 1 or -1."""

    guard: Apply
    axis: int
    sign: int
    axes: frozenset[int]  # the output axes it mentions


def k_bounds(p: Problem, which: int) -> list[KBound]:
    """Return the guards of an operand that each bound one axis of K in terms of the operand's output axes."""
    out = []
    for g in p.operands[which].guards:
        if g not in p.exact:  # a term that is zero by one factor only must be computed: the other may be infinite
            continue
        form = comparison_form(g, p.extents, ("lt", "le"))
        inner = [a for a in form.coef if a in p.k] if form else []
        if isinstance(g, Apply) and form and len(inner) == 1 and abs(form.coef[inner[0]]) == 1 and len(form.coef) > 1:
            out.append(KBound(g, inner[0], form.coef[inner[0]], frozenset(form.coef) - {inner[0]}))
    return out


@lru_cache(maxsize=4096)
def restrict_bounds(p: Problem, which: int, axes: tuple[int, ...]) -> tuple[KBound, ...]:
    """Return the bounds of an operand that mention no output axes but `axes`."""
    return tuple(t for t in k_bounds(p, which) if t.axes <= {*axes})


def emit_bounds(
    b: Builder,
    p: Problem,
    bounds: Sequence[KBound],
    memories: Mapping[int, BufferMemory],
    batch: SSAValue,
    axes: tuple[int, ...],
    points: Sequence[SSAValue],
    known: Mapping[int, tuple[SSAValue, SSAValue]],
) -> dict[int, tuple[SSAValue, SSAValue]]:
    """Emit bounds (low, high) by axis of K outside of which the operand is zero at all of `points`.

    Args:
        b: the builder
        p: the problem
        bounds: the guards
        memories: memories of the arguments by slot
        batch: the point of the batch
        axes: axes of a side, or some of them
        points: flattened points of `axes`
        known: bounds that are already known, which are narrowed
    """
    out = dict(known)
    for t in bounds:
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


MAX_SAMPLED_ROWS = 1 << 16
"""Approximate number of rows of a side over which `k_fractions` averages, those of a 256 x 256 image; more rows change
the mean by less than a thousandth."""


def _sampled_axes(p: Problem, axes: tuple[int, ...]) -> list[int]:
    """Return trailing axes with enough rows for a mean; outer axes only repeat these rows."""
    trailing: list[int] = []
    for a in reversed([a for a in axes if p.extents[a] > 1]):
        trailing.insert(0, a)
        if p.count(trailing) >= 512:
            break
    return trailing


def k_fractions(
    p: Problem, bounds: tuple[KBound, ...], axes: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[float, ...]:
    """Return, for each tile size, the part of K that guards leave, on average over tiles.

    Sizes are in flattened points of `axes`. Where there are more than SAMPLED points, tiles at even distances are
    sampled.
    """
    inner_axes = _sampled_axes(p, axes)
    return _k_fractions(tuple(p.extents[a] for a in inner_axes), _edges(p, bounds, tuple(inner_axes)), sizes)


@lru_cache(maxsize=4096)
def _edges(p: Problem, bounds: tuple[KBound, ...], inner_axes: tuple[int, ...]) -> tuple[tuple, ...]:
    """Return the edge of each bound that mentions no axes but those `inner_axes`.

    An edge is (axis of K, its extent, sign of its coefficient, edge at the origin, coefficients along `inner_axes`).
    """
    out = []
    for t in bounds:
        form = comparison_form(t.guard)
        assert form is not None
        if t.axes <= {*inner_axes}:
            less = int((t.guard.fn == "le") == (t.sign > 0))
            coef = tuple(-t.sign * form.coef.get(a, 0) for a in inner_axes)
            out.append((t.axis, p.extents[t.axis], t.sign, less - t.sign * form.const, coef))
    return tuple(out)


@lru_cache(maxsize=4096)
def _k_fractions(shape: tuple[int, ...], edges: tuple[tuple, ...], sizes: tuple[int, ...]) -> tuple[float, ...]:
    """Return `k_fractions` for axes of this shape, from edges alone, so that problems with equal edges share them."""
    total, starts = prod(shape), []
    rows: list[np.ndarray] = []
    for n, points in enumerate(sizes):
        tiles = -(-total // points)
        if total > MAX_SAMPLED_ROWS:  # the last tile's missing rows repeat its last row
            count = min(tiles, max(1, MAX_SAMPLED_ROWS // points))
            first = (2 * np.arange(count) + 1) * tiles // (2 * count) * points
            starts.append(np.arange(count) * points + sum(len(x) for x in rows))
            rows.append(np.minimum(first[:, None] + np.arange(points), total - 1).ravel())
        else:
            starts.append(np.arange(n * total, (n + 1) * total, points))
    digits: list[np.ndarray] = []
    digits_left, tile_starts = np.concatenate(rows) if rows else np.arange(total), np.concatenate(starts)
    for n in reversed(shape):
        outer = digits_left // n
        digits.insert(0, digits_left - outer * n)
        digits_left = outer
    bounds: dict[tuple[int, int], np.ndarray] = {}
    for axis, _, sign, const, coef in edges:
        edge = sum((c * x for c, x in zip(coef, digits, strict=True) if c), np.full_like(digits_left, const))
        if (axis, sign) in bounds:
            edge = (np.minimum if sign > 0 else np.maximum)(bounds[axis, sign], edge)
        bounds[axis, sign] = edge
    fractions, extents = np.ones(len(tile_starts)), {axis: extent for axis, extent, *_ in edges}
    for axis, extent in extents.items():
        ends: list[Any] = [0, extent]
        for end, sign in enumerate((-1, 1)):
            if (axis, sign) in bounds:
                each = bounds[axis, sign] if rows else np.concatenate([bounds[axis, sign]] * len(sizes))
                ends[end] = (np.minimum, np.maximum)[end].reduceat(each, tile_starts)
        fractions *= np.maximum(np.minimum(ends[1], extent) - np.maximum(ends[0], 0), 0)
    counts = [len(x) for x in starts]
    sums = np.add.reduceat(fractions, np.cumsum([0, *counts[:-1]]))
    return tuple(float(x) / n / prod(extents.values()) for x, n in zip(sums, counts, strict=True))


@lru_cache(maxsize=1024)
def least_k_fraction(p: Problem) -> float:
    """Return the part of K that guards leave to tiles of one point of each side; larger tiles keep more of it."""
    out = 1.0
    for which, axes in enumerate((p.left, p.right)):
        bounds = restrict_bounds(p, which, (*p.batch, *axes))
        out *= k_fractions(p, bounds, axes, (1,))[0] if axes and bounds else 1.0
    return out
