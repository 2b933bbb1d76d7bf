"""Pad dimensions: by a number, by reflection, by the last element, periodically."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.ops.common import all_of, tensor
from einsmith.ops.operator import operator
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

MODES = "constant", "reflect", "replicate", "circular"


@operator()
def pad(input: Any, pad: Sequence[int], mode: str = "constant", value: float | bool | Value | None = None) -> Value:
    """Pad the input: pad = (before, after) of the last dimension, then of the one before it, ...

    mode: 'constant' pads with `value` (0 where not given), 'reflect' with the elements mirrored at the first and the
    last one, 'replicate' with the first and the last one, 'circular' with those of the other end. Negative amounts cut
    elements off. Raises ShapeError for amounts that the extents do not allow.
    """
    x = tensor(input, "pad", "input")
    if mode not in MODES:
        raise ArgumentError(f"pad: mode={mode!r} is none of {', '.join(map(repr, MODES))}")
    amounts = tuple(pad)
    if any(isinstance(n, bool) or not isinstance(n, int) for n in amounts):
        raise ShapeError(f"pad: {amounts!r} must be ints")
    if len(amounts) % 2 or len(amounts) > 2 * x.ndim:
        raise ShapeError(f"pad: {amounts!r} must be pairs, at most one for each of {x.ndim} dimensions")
    first = x.ndim - len(amounts) // 2
    pairs = [(amounts[n], amounts[n + 1]) for n in range(len(amounts) - 2, -1, -2)]
    if any(n + lo + hi < 0 for n, (lo, hi) in zip(x.shape[first:], pairs, strict=True)):
        raise ShapeError(f"pad: {amounts!r} removes more elements than shape {x.shape} has")
    if mode == "constant":
        return _constant(x, [(0, 0)] * first + pairs, 0 if value is None else value)
    if value not in (None, 0):
        raise ArgumentError(f"pad: value={value!r} goes with mode='constant', not with {mode!r}")
    for d, (lo, hi) in enumerate(pairs, first):
        if mode == "circular":  # elements that are cut off do not reappear at the other end
            x = x[(slice(None),) * d + (slice(max(-lo, 0), x.shape[d] + min(hi, 0)),)]
            lo, hi = max(lo, 0), max(hi, 0)
        x = _along(x, d, lo, hi, mode)
    return x


def _constant(x: Value, pairs: Sequence[tuple[int, int]], value: Any) -> Value:
    def body(*i: Any) -> Any:
        at = [p - lo for p, (lo, _) in zip(i, pairs, strict=True)]
        guards = [0 <= h for h, (lo, _) in zip(at, pairs, strict=True) if lo > 0]
        guards += [h < n for h, n, (_, hi) in zip(at, x.shape, pairs, strict=True) if hi > 0]
        return builder.where(all_of(guards), x[tuple(at)], value) if guards else x[tuple(at)]

    return builder.compute(tuple(n + lo + hi for n, (lo, hi) in zip(x.shape, pairs, strict=True)), body)


def _along(x: Value, d: int, lo: int, hi: int, mode: str) -> Value:
    """Pad `x` along dimension `d` with its own elements."""
    n = x.shape[d]
    most = {"reflect": n - 1, "circular": n}.get(mode, max(lo, hi) if n else 0)
    if max(lo, hi) > most:
        raise ShapeError(f"pad: {mode!r} by ({lo}, {hi}) is more than {max(most, 0)} along dimension {d} of {x.shape}")
    if (lo, hi) == (0, 0):
        return x

    def body(*i: Any) -> Any:
        def at(h: Any) -> Any:
            return x[(*i[:d], h, *i[d + 1 :])]

        h = i[d] - lo
        below, above = {"reflect": (-h, 2 * n - 2 - h), "replicate": (0, n - 1), "circular": (h + n, h - n)}[mode]
        inside = at(h) if hi <= 0 else builder.where(h < n, at(h), at(above))
        return inside if lo <= 0 else builder.where(h < 0, at(below), inside)

    return builder.compute((*x.shape[:d], n + lo + hi, *x.shape[d + 1 :]), body)
