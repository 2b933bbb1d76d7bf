"""Train so that the numbers do not depend on the number of processes, nor on that of their threads.

A batch is divided into PARTS parts, of which every process has as many. The gradients of each part are computed by
themselves and added up in a fixed binary tree over the parts: a process adds up the subtree of its own parts, and the
group the rest. Kernels are chosen for a fixed number of threads and by static figures of the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import methodcaller

import numpy as np

from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.distributed.collectives import add_in_pairs
from einsmith.distributed.group import ProcessGroup
from einsmith.driver import registry
from einsmith.driver.bound_program import BoundProgram
from einsmith.runtime.memory import Clock
from einsmith.runtime.signals import Deferred
from einsmith.runtime.steps import FINITE
from einsmith.training import parallel
from einsmith.training.compiler import UPDATE_CORES, StepCompiler
from einsmith.training.state import StepParts

PARTS = 8
"""Parts of a batch: the most processes that can share it."""


class DeterministicTraining(parallel.GroupTraining):
    """The steps of a training whose numbers are the same for 1, 2, 4 and 8 processes (`deterministic=True`)."""

    _divides_norm = False

    def __init__(self, parts: StepParts, compiler: StepCompiler, group: ProcessGroup, shards: bool):
        if PARTS % group.size:
            raise ArgumentError(
                f"deterministic=True divides a batch into {PARTS} parts, which {group.size} processes cannot share "
                "equally; use 1, 2, 4 or 8 processes"
            )
        super().__init__(parts, compiler, group, shards)
        self._parts.numbers.exchanges = None  # the parts are computed one after the other
        self._compiler.target = registry.DEFAULT.static_target(UPDATE_CORES)
        self._parts.numbers.ranks = PARTS  # parts draw different random numbers

    @property
    def _divisions(self) -> str:
        return f"{PARTS} parts"

    def _check_card(self) -> None:
        raise ArgumentError('deterministic=True computes the parts of a batch on CPUs only; use device="cpu"')

    def compile(self, arrays: list[np.ndarray]) -> None:
        """Compile the programs for the parts of a batch."""
        _, parts = self._divide(arrays)
        with self._state.store.guard:
            self._prepare()
        self._compile_or_trace(parts)

    def train(self, arrays: list[np.ndarray], samples: int | None = None, last: bool = False) -> float:
        """Train on this rank's part of a batch, and return the mean loss over all ranks."""
        self.check_gradients(arrays)
        if self._parts.definition.updates.accumulate > 1:
            raise ArgumentError("deterministic=True goes without accumulate; make the batches larger")
        first, parts = self._divide(arrays)
        shapes = {_shapes(part): part for part in parts if self._parts.definition.count_samples(part)}
        while True:
            with Deferred(), self._state.store.guard:
                self._prepare()
                runs = {shape: self._compiler.find(part, True) for shape, part in shapes.items()}
                if all(run is not None for run in runs.values()) and self._parts.reports.is_known:
                    return self._train_parts(first, parts, runs, arrays, samples is not None)
            self._compile_or_trace(parts)

    def _divide(self, arrays: list[np.ndarray]) -> tuple[int, list[list[np.ndarray]]]:
        """Return the number of this process's first part of the batch, and its parts. Raises ShapeError, on every rank,
        where the ranks' batches are no division of one batch."""
        group, count = self.group, self._parts.definition.count_samples(arrays)
        is_even = all(len(a) == count for a in arrays if a.ndim)
        counts = group.gather_numbers(count if is_even else -1).astype(int).tolist()
        if min(counts) < 0:
            raise ShapeError(
                "deterministic=True divides all arrays of a batch by samples, and their first extents differ in shapes "
                f"{', '.join(str(a.shape) for a in arrays)} (of this process)"
            )
        total, per_rank = sum(counts), PARTS // group.size
        bounds = [total * k // PARTS for k in range(PARTS + 1)]
        expected = [bounds[(r + 1) * per_rank] - bounds[r * per_rank] for r in range(group.size)]
        if counts != expected:
            raise ShapeError(
                f"the ranks have {counts} samples of a batch of {total}; deterministic=True needs {expected}, as "
                "es.data.batches(..., group=group) gives them"
            )
        first = group.rank * per_rank
        start = bounds[first]
        return first, [
            [a[bounds[k] - start : bounds[k + 1] - start] if a.ndim else a for a in arrays]
            for k in range(first, first + per_rank)
        ]

    def _train_parts(
        self,
        first: int,
        parts: Sequence[list[np.ndarray]],
        runs: Mapping[tuple, BoundProgram | None],
        arrays: list[np.ndarray],
        is_epoch: bool,
    ) -> float:
        buckets, names = self._buckets, self._parts.reports.names
        rows = np.zeros((len(parts), parallel.FIXED + len(names) + len(buckets.names)))
        gradients, statistics = PairwiseSum(), PairwiseSum()
        stored = self._statistics(runs.values())
        before = [array.copy() for array in stored]
        self._forget_batches()
        for number, (row, part) in enumerate(zip(rows, parts, strict=True), first):
            for array, values in zip(stored, before, strict=True):
                array[...] = values
            count = self._parts.definition.count_samples(part)
            run = runs[_shapes(part)] if count and self._failure is None else None
            buckets.clear_others(() if run is None else run.note.trained)
            if run is not None:
                self._parts.numbers.rank = number
                self._parts.set_numbers(part)
                buckets.completed.begin()
                try:
                    status, outputs = run.run_locked(part)
                    self._fill(row, run, count, status, outputs)
                except BaseException as e:
                    self._failure = e
                    row[parallel.FAILED] = 1
                buckets.completed.end()
                buckets.completed.await_end()
            gradients.add([bucket.flat for bucket in buckets.buckets])
            statistics.add([_weigh(array, count) for array in stored])
        for bucket, total in zip(buckets.buckets, gradients.result(), strict=True):
            bucket.flat[...] = total
        pending = [
            self.group.submit(methodcaller("all_reduce", bucket.flat, add=add_in_pairs)) for bucket in buckets.buckets
        ]
        sums = _sum_rows(self.group.gather_rows(rows.reshape(-1)).reshape(PARTS, -1))
        means = [
            _sum_rows(self.group.gather_rows(x.reshape(-1))).reshape(x.shape) / max(sums[parallel.SAMPLES], 1)
            for x in statistics.result()
        ]
        for future in pending:
            self.group.wait(future)
        self._waits.append(0.0)
        is_changed = sums[parallel.SAMPLES] and not sums[parallel.FAILED] and not sums[parallel.INFINITE]
        for array, values, mean in zip(stored, before, means, strict=True):
            array[...] = values if not is_changed else np.rint(mean) if array.dtype.kind in "iu" else mean
        Clock.note_store()
        return self._end_step(sums, arrays, is_epoch, pending[-1])

    def _statistics(self, runs: Iterable[BoundProgram | None]) -> list[np.ndarray]:
        """Return the memory of the buffers that these programs, and those of the other ranks, update."""
        updated = {
            id(run.bound[x]) for run in runs if run is not None for x, _ in run.source_graph.updates if x in run.bound
        }
        memories = {n: b.memory.physical for n, b in self._parts.definition.model.named_buffers()}
        mine = [n for n, array in memories.items() if id(array) in updated]
        known = dict.fromkeys(n for names in self.group.gather(mine) for n in names)
        return [memories[n] for n in known]

    def _fill(self, row: np.ndarray, run: BoundProgram, count: int, status: int, outputs: Sequence[np.ndarray]) -> None:
        """Store what a part adds to the sums of the step."""
        names = self._parts.reports.names
        row[parallel.SAMPLES] = row[parallel.LOSS_SAMPLES] = count
        if status == FINITE:
            row[parallel.INFINITE] = 1
        else:
            values = [float(x) * count for x in outputs]
            row[parallel.LOSS], row[parallel.FIXED : parallel.FIXED + len(names)] = values[0], values[1:]
        trained = set(run.note.trained)
        row[parallel.FIXED + len(names) :] = [n in trained for n in self._buckets.names]


class PairwiseSum:
    """The sum of lists of arrays, of which 2**n are added up in the order of a balanced binary tree.

    It holds the sums of complete subtrees, of which no two have one height: log2 of the number of lists."""

    def __init__(self) -> None:
        self._sums: list[tuple[int, list[np.ndarray]]] = []

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        """Add arrays, whose memory may be used for others afterwards."""
        height, carried = 0, [a.copy() for a in arrays]
        while self._sums and self._sums[-1][0] == height:
            _, left = self._sums.pop()
            carried = [np.add(a, b, out=a) for a, b in zip(left, carried, strict=True)]
            height += 1
        self._sums.append((height, carried))

    def result(self) -> list[np.ndarray]:
        """Return the sums. Their number of arrays that were added is a power of two."""
        ((_, total),) = self._sums
        return total


def _weigh(array: np.ndarray, count: int) -> np.ndarray:
    """Return an array times a number of samples, in float64; zeros for no samples, whatever the array holds."""
    return np.asarray(array.astype(np.float64) * count) if count else np.zeros(array.shape)


def _shapes(part: Sequence[np.ndarray]) -> tuple:
    return tuple((a.shape, a.dtype) for a in part)


def _sum_rows(rows: np.ndarray) -> np.ndarray:
    out = np.empty_like(rows[0])
    add_in_pairs(list(rows), out)
    return out
