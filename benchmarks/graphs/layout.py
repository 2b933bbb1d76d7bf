"""Keep arrays whose axes lie in memory in another order than PyTorch numbers them, so that few are transposed.

PyTorch's programs speak of images [B, C, H, W] and of weights [out, in]; a library that wants images with their
channels last, or weights [in, out], holds them so, and an exchange of axes changes numbers alone. Axes are moved in
memory only where several of them become one and do not lie one behind the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple


class Laid(NamedTuple):
    """An array, and for each of its axes in memory the number that it has in the graph."""

    array: Any
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the extents as the graph numbers the axes."""
        held = [int(n) for n in self.array.shape]
        return tuple(held[self.at(k)] for k in range(len(held)))

    def at(self, axis: int) -> int:
        """Return where in memory an axis of the graph lies."""
        return self.order.index(axis % len(self.order))

    def permuted(self, axes: Sequence[int]) -> Laid:
        """Return the array whose axis k is axis axes[k] of this one."""
        places = [a % len(self.order) for a in axes]
        return Laid(self.array, tuple(places.index(k) for k in self.order))

    def without(self, axes: Sequence[int], array: Any) -> Laid:
        """Return `array`, which lacks the given axes of the graph, with the other axes in the same order."""
        gone = {a % len(self.order) for a in axes}
        kept = [k for k in self.order if k not in gone]
        return Laid(array, tuple(sorted(kept).index(k) for k in kept))


def plain(array: Any) -> Laid:
    """Return an array whose axes lie in the order of their numbers."""
    return Laid(array, tuple(range(len(array.shape))))


def in_order(lib: Any, x: Laid, order: Sequence[int]) -> Laid:
    """Return x with its axes in memory in that order."""
    if tuple(order) == x.order:
        return x
    return Laid(lib.transpose(x.array, [x.order.index(k) for k in order]), tuple(order))


def beside(lib: Any, x: Laid, order: Sequence[int]) -> Any:
    """Return x in memory as an operand of an array in that order, which may have more axes in front."""
    missing = len(order) - len(x.order)
    held = in_order(lib, x, [k - missing for k in order if k >= missing]).array
    if not missing:
        return held
    shape = iter(int(n) for n in held.shape)
    return lib.reshape(held, [next(shape) if k >= missing else 1 for k in order])


def reshaped(lib: Any, x: Laid, shape: Sequence[int]) -> Laid:
    """Return x in another shape, as PyTorch's reshape; -1 stands for the extent that is left."""
    old = x.shape
    if -1 in shape:
        rest = -math.prod(shape)
        shape = [math.prod(old) // rest if n == -1 else n for n in shape]
    if tuple(shape) == old:
        return x
    wide = [k for k, n in enumerate(old) if n != 1]
    order = [wide.index(k) for k in x.order if k in wide]
    held = Laid(lib.reshape(x.array, [old[wide[k]] for k in order]), tuple(order))
    kept = [n for n in shape if n != 1]
    blocks = _blocks([old[k] for k in wide], kept)
    for before, _ in blocks:
        places = [order.index(k) for k in before]
        if places != list(range(places[0], places[0] + len(places))):
            last = max(places)
            after = [k for k in order[last + 1 :] if k not in before]
            order = [k for k in order[: last + 1] if k not in before] + before + after
    held = in_order(lib, held, order)
    of = {before[0]: new for before, new in blocks}
    new = [j for k in order for j in of.get(k, ())]
    out = Laid(lib.reshape(held.array, [kept[j] for j in new]), tuple(new))
    return _with_ones(lib, out, shape)


def _blocks(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return which axes become which: the shortest runs of equal size on both sides; no extent is 1."""
    out, i, j = [], 0, 0
    while i < len(old):
        before, after, a, b = [i], [j], old[i], new[j]
        while a != b:
            if a < b:
                i += 1
                before.append(i)
                a *= old[i]
            else:
                j += 1
                after.append(j)
                b *= new[j]
        out.append((before, after))
        i, j = i + 1, j + 1
    return out


def _with_ones(lib: Any, x: Laid, shape: Sequence[int]) -> Laid:
    """Return x with axes of extent 1 put in where `shape` has them, each behind the axis before it."""
    wide = [k for k, n in enumerate(shape) if n != 1]
    order = [wide[k] for k in x.order]
    for k, n in enumerate(shape):
        if n == 1:
            order.insert(order.index(k - 1) + 1 if k else 0, k)
    return Laid(lib.reshape(x.array, [shape[k] for k in order]), tuple(order))
