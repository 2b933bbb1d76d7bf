"""Sum tensors over a group in the middle of a training step (`ops.group_sum`).

The program stores a tensor and tells so; a thread sums it over all processes, by a group of its own, since the buckets
of gradients have another order, and answers; then the program reads the sum.
"""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Mapping
from concurrent.futures import Future

import numpy as np

from einsmith.base.errors import ArgumentError
from einsmith.distributed.collectives import Collectives
from einsmith.distributed.group import ProcessGroup
from einsmith.driver.binding import Notice, Reply
from einsmith.ir.nodes import Leaf
from einsmith.runtime import buffers
from einsmith.training.notices import MOST, Notices, close


class Exchanges:
    """The tensors that the programs of a training step sum over a group while they run, in their order, which is the
    same in all programs and on all ranks."""

    def __init__(self, group: ProcessGroup):
        self._group = group
        self._notices = Notices()
        self._reader, self._writer = os.pipe()
        weakref.finalize(self, close, (self._reader, self._writer))
        self._memories: list[tuple[np.ndarray, np.ndarray]] = []
        self._count = 0
        self._pending: Future[np.ndarray]

    def restart(self) -> None:
        """Begin to list the tensors of a program."""
        self._count = 0

    def add(self, shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """Return memory for the next tensor that is summed, and for its sum. Programs share it."""
        number, self._count = self._count, self._count + 1
        if self._count > MOST:
            raise ArgumentError(f"a step sums at most {MOST} tensors over the group; cat some of them")
        if number == len(self._memories) or self._memories[number][0].shape != shape:
            self._memories[number : number + 1] = [(buffers.zeros(shape, dtype), buffers.zeros(shape, dtype))]
        return self._memories[number]

    def notices(self, bind: Mapping[Leaf, np.ndarray]) -> list[Notice | Reply]:
        """Return what a program tells, and waits for. bind: the memory of the program's leaves."""
        leaves = {id(array): x for x, array in bind.items()}
        out: list[Notice | Reply] = []
        for number, (sent, received) in enumerate(self._memories[: self._count]):
            out.append(Notice(frozenset({leaves[id(sent)]}), self._notices.writer, self._notices.message(number)))
            out.append(Reply(leaves[id(received)], self._reader))
        return out

    def begin(self) -> None:
        """Expect a run, in which this process takes part or (`end` at once) has no sample."""
        if not self._count:
            return
        self._notices.begin()
        while select.select([self._reader], [], [], 0)[0]:  # answers that an interrupted run has not read
            os.read(self._reader, 256)
        self._pending = self._group.submit(self._serve)

    def end(self) -> int | None:
        """Say that the run has ended, and wait for the sums of the other processes. Return the first of the ranks that
        have run, where not all have: the others lack what runs store, such as running statistics.

        Raises GroupError where the group is broken."""
        if not self._count:
            return None
        self._notices.end()
        present = self._pending.result()
        return int(present.argmax()) if present.any() and not present.all() else None

    def _serve(self, collectives: Collectives) -> np.ndarray:
        """Sum all tensors in turn; return which ranks have run, 1 or 0 [size]."""
        present, failure = np.zeros(self._group.size), None
        for number, (sent, received) in enumerate(self._memories[: self._count]):
            is_told = self._notices.await_number(number)
            received[...] = sent if is_told else 0
            present[self._group.rank] = is_told
            is_last = number == self._count - 1
            try:
                if failure is None:
                    collectives.all_reduce(received.reshape(-1), *[present] * is_last)
            except Exception as e:
                failure = e  # the program goes on to its end, whatever it reads
            if is_told:
                os.write(self._writer, b"\0")
        self._notices.await_end()
        if failure is not None:
            raise failure
        return present
