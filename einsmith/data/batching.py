"""Make batches of arrays, in an order that is a function of (seed, epoch), so that a run can stop and resume."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.random import default_rng

from einsmith.base.arguments import Count, Size, check_arguments, show
from einsmith.base.arrays import as_numpy, is_array
from einsmith.base.errors import ArgumentError, IndexOutOfRange, ShapeError
from einsmith.base.threads import submit
from einsmith.distributed.group import ProcessGroup


class Batches:
    """Batches of `size` samples of x and y, which may be iterated any number of times; see `batches`.

    Attributes: `arrays` (the inputs, then the targets), `samples`, `size`, `seed`, `drop_last`, `transform`, `threads`,
    `group`, and `next_epoch`, the number of the epoch that the next plain iteration goes through (settable; it counts
    from 0).
    """

    @check_arguments
    def __init__(
        self,
        x: Any,
        y: Any,
        size: Count,
        seed: Size | None = None,
        drop_last: bool = False,
        transform: Callable[..., Any] | None = None,
        threads: Size = 0,
        group: ProcessGroup | None = None,
    ):
        inputs = tuple(x) if isinstance(x, (tuple, list)) else (x,)
        is_several = isinstance(y, tuple) and any(is_array(a) or _is_lazy(a) for a in y)
        targets = y if is_several else (y,)
        names = [f"input {k}" if len(inputs) > 1 else "x" for k in range(len(inputs))]
        names += [f"target {k}" if is_several else "y" for k in range(len(targets))]
        self.arrays: tuple[Any, ...] = tuple(
            a if _is_lazy(a) else as_numpy(a, n) for n, a in zip(names, (*inputs, *targets), strict=True)
        )
        self._targets = len(targets) if is_several else None
        for name, a in zip(names, self.arrays, strict=True):
            if not _is_lazy(a) and a.ndim == 0:
                raise ShapeError(f"{name} is a single number; the first axis of every array counts the samples")
        self.samples = len(self.arrays[0])
        for name, a in zip(names, self.arrays, strict=True):
            if len(a) != self.samples:
                raise ShapeError(f"{name} has {len(a)} samples where {names[0]} has {self.samples}")
        if self.samples == 0:
            raise ShapeError("there are no samples: the first axis of x and y is empty")
        if drop_last and self.samples < size:
            raise ShapeError(f"{self.samples} samples are fewer than one batch of {size}, which drop_last=True drops")
        if not isinstance(threads, int) or threads < 0:
            raise ArgumentError(f"threads={threads!r} must be an integer of at least 0")
        self.size, self.seed, self.drop_last = int(size), seed, drop_last
        self.transform, self.threads, self.group = transform, threads, group
        if group is not None and group.size > size:
            raise ShapeError(
                f"batches of {size} samples cannot be divided among the {group.size} processes of the group"
            )
        self.next_epoch = 0

    def __len__(self) -> int:
        """Return the number of batches per epoch, with a partial last one unless it is dropped."""
        return self.samples // self.size if self.drop_last else -(-self.samples // self.size)

    @check_arguments
    def order(self, epoch: Size) -> np.ndarray | None:
        """Return the order of the samples in an epoch as indices; None for the arrays' own order (no seed)."""
        if self.seed is None:
            return None
        return default_rng([self.seed, epoch]).permutation(self.samples)

    @check_arguments
    def epoch(self, n: int, start: int = 0) -> Iterator[tuple[np.ndarray, ...]]:
        """Return an iterator over the batches (x, y) of epoch `n` from batch number `start` on.

        `next_epoch` does not change. Raises IndexOutOfRange."""
        if n < 0 or not 0 <= start <= len(self):
            raise IndexOutOfRange(f"epoch {n}, batch {start}: an epoch has batches 0 to {len(self)}")
        return self._epoch(n, start)

    def _epoch(self, n: int, start: int) -> Iterator[tuple[np.ndarray, ...]]:
        order = self.order(n)
        numbers = iter(range(start, len(self)))
        if not self.threads:
            for k in numbers:
                yield self._batch(n, k, order)
            return
        # Batches are made ahead, in order: an error in a batch is raised when its turn comes.
        waiting: deque[Future] = deque()
        with ThreadPoolExecutor(self.threads, "einsmith-data") as pool:
            try:
                for k in numbers:
                    waiting.append(submit(pool, self._batch, n, k, order))
                    if len(waiting) > self.threads:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _batch(self, n: int, k: int, order: np.ndarray | None) -> tuple[np.ndarray, ...]:
        """Make batch k of epoch n, a function of (seed, n, k) alone. order: indices of the epoch, or None."""
        chosen: Any = slice(*self._divide(k * self.size, min((k + 1) * self.size, self.samples)))
        if order is not None:
            chosen = order[chosen]
        batch: tuple[Any, ...] = tuple(a[chosen] for a in self.arrays)
        if self._targets is not None:
            batch = (*batch[: -self._targets], batch[-self._targets :])
        if self.transform is None:
            return batch
        rng = default_rng([self.seed or 0, n, k, 1, *((self.group.rank,) if self.group is not None else ())])
        changed = self.transform(rng, *batch)
        if not isinstance(changed, (tuple, list)):
            raise ArgumentError(f"transform returned {show(changed)}; it must return a tuple of the batch's arrays")
        return tuple(changed)

    def _divide(self, start: int, end: int) -> tuple[int, int]:
        """Return the part of a batch, the samples from `start` to `end`, that is this process's."""
        if self.group is None:
            return start, end
        first, last = (start + (end - start) * r // self.group.size for r in (self.group.rank, self.group.rank + 1))
        return first, last

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        n, self.next_epoch = self.next_epoch, self.next_epoch + 1
        return self._epoch(n, 0)

    def __repr__(self) -> str:
        return f"Batches({self.samples} samples, {len(self)} batches of {self.size}, seed={self.seed})"


def _is_lazy(a: Any) -> bool:
    """Return whether an array-like is read by indices, batch by batch, instead of being loaded as a whole."""
    return not hasattr(a, "__array__") and not isinstance(a, (list, tuple)) and hasattr(a, "__getitem__")


class _Column:
    """A column of a data set whose rows are dictionaries, such as Hugging Face's."""

    def __init__(self, dataset: Any, name: str):
        self.dataset = dataset.select_columns([name]) if hasattr(dataset, "select_columns") else dataset
        self.name = name

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, chosen: Any) -> np.ndarray:
        indices = np.arange(len(self))[chosen].tolist()
        return np.stack([np.asarray(v) for v in self.dataset[indices][self.name]])


@check_arguments
def columns(dataset: Any, inputs: str | Sequence[str], target: str | Sequence[str]) -> tuple[Any, Any]:
    """Return (x, y) for `batches` from a data set with named columns.

    dataset: a mapping of arrays, or rows read by a list of indices, dataset[[3, 5]] -> {name: values}, as Hugging
    Face's data sets. inputs, target: the name of x and of y, or several for a tuple. Raises ArgumentError for unknown
    names."""
    known = list(dataset) if isinstance(dataset, Mapping) else list(getattr(dataset, "column_names", ()))

    def column(name: str) -> Any:
        if name not in known:
            raise ArgumentError(f"the data set has no {name!r}, only {', '.join(map(repr, known)) or 'no names'}")
        return dataset[name] if isinstance(dataset, Mapping) else _Column(dataset, name)

    x, y = (column(n) if isinstance(n, str) else tuple(map(column, n)) for n in (inputs, target))
    return x, y


@check_arguments
def batches(
    x: Any | Sequence[Any],
    y: Any,
    size: Count,
    seed: Size | None = None,
    drop_last: bool = False,
    *,
    transform: Callable[..., Any] | None = None,
    threads: Size = 0,
    group: ProcessGroup | None = None,
) -> Batches:
    """Return batches of `size` samples, as pairs (x, y); for a tuple of inputs as (*inputs, y), for a tuple of targets
    as (x, (*targets)).

    x: an array whose first axis counts the samples, or a tuple of arrays; y: the targets, likewise. With a seed, every
    epoch has an order of its own, a function of (seed, epoch); without one the order is the arrays' own. The last batch
    may be smaller; drop_last leaves it out. transform: a function (rng, x, y) -> (x, y) of each batch, as in
    `es.data.augment`, whose rng depends on (seed, epoch, batch). threads: number of threads that make batches ahead of
    the training; 0 makes each batch on demand; the batches do not depend on it. group: the processes among which each
    batch is divided (`es.distributed.init`): each gets its part of the same batch, in the order of the ranks, and
    random numbers of its own; a small last batch may have no sample for some. Arrays may be lazy: an object with a
    length that returns an array for an array of indices is read batch by batch. Raises ShapeError.
    """
    return Batches(x, y, size, seed, drop_last, transform, threads, group)
