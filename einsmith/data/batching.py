"""Batches of arrays, in an order that is a function of (seed, epoch), so that a run can be stopped and resumed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from einsmith.errors import ShapeError


class Batches:
    """Batches of `size` samples of x and y, which may be iterated any number of times; see `batches`.

    Attributes: `arrays` (the inputs, then y), `samples`, `size`, `seed`, `drop_last`, and `next_epoch`, the number of
    the epoch that the next plain iteration goes through (settable; it counts from 0).
    """

    def __init__(self, x: Any, y: Any, size: int, seed: int | None = None, drop_last: bool = False):
        inputs = tuple(x) if isinstance(x, (tuple, list)) else (x,)
        self.arrays: tuple[np.ndarray, ...] = tuple(np.asarray(a) for a in (*inputs, y))
        names = [f"input {k}" if len(inputs) > 1 else "x" for k in range(len(inputs))] + ["y"]
        for name, a in zip(names, self.arrays, strict=True):
            if a.ndim == 0:
                raise ShapeError(f"{name} is a single number; the first axis of every array counts the samples")
        self.samples = len(self.arrays[0])
        for name, a in zip(names, self.arrays, strict=True):
            if len(a) != self.samples:
                raise ShapeError(f"{name} has {len(a)} samples where {names[0]} has {self.samples}")
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise ShapeError(f"the batch size is {size!r}; it must be an integer of at least 1")
        if self.samples == 0:
            raise ShapeError("there are no samples: the first axis of x and y is empty")
        if drop_last and self.samples < size:
            raise ShapeError(f"{self.samples} samples fill no batch of {size}, and drop_last drops the partial one")
        self.size, self.seed, self.drop_last = int(size), seed, drop_last
        self.next_epoch = 0

    def __len__(self) -> int:
        """Batches an epoch, the partial last one included unless it is dropped."""
        return self.samples // self.size if self.drop_last else -(-self.samples // self.size)

    def order(self, epoch: int) -> np.ndarray | None:
        """The samples of an epoch in their order; None for the given order (no seed)."""
        if self.seed is None:
            return None
        return np.random.default_rng([self.seed, epoch]).permutation(self.samples)

    def epoch(self, n: int, start: int = 0) -> Iterator[tuple[np.ndarray, ...]]:
        """The batches of epoch `n` from batch number `start` on, as (x, y); `next_epoch` stays as it is."""
        if n < 0 or not 0 <= start <= len(self):
            raise IndexError(f"epoch {n}, batch {start}: an epoch has batches 0 to {len(self)}")
        return self._epoch(n, start)

    def _epoch(self, n: int, start: int) -> Iterator[tuple[np.ndarray, ...]]:
        order = self.order(n)
        for k in range(start, len(self)):
            chosen: Any = slice(k * self.size, (k + 1) * self.size)
            if order is not None:
                chosen = order[chosen]
            yield tuple(a[chosen] for a in self.arrays)

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        n, self.next_epoch = self.next_epoch, self.next_epoch + 1
        return self._epoch(n, 0)

    def __repr__(self) -> str:
        return f"Batches({self.samples} samples, {len(self)} batches of {self.size}, seed={self.seed})"


def batches(x: Any | Sequence[Any], y: Any, size: int, seed: int | None = None, drop_last: bool = False) -> Batches:
    """Batches of `size` samples, as pairs (x, y); for a tuple of inputs as (*inputs, y).

    x: an array whose first axis counts the samples, or a tuple of such arrays; y: likewise, the targets. With a seed,
    every epoch has an order of its own, a function of (seed, epoch); without one the order is the arrays' own. The last
    batch may be smaller; drop_last leaves it out. Raises ShapeError.
    """
    return Batches(x, y, size, seed, drop_last)
