"""Sum tensors over a group in the middle of a training step (`ops.group_sum`), and await what a running program tells.

The program stores a tensor and tells so: it writes a byte, a number, to a pipe. A thread sums the tensor over all
processes, by a group of its own, since the buckets of gradients have another order, and answers; then the program reads
the sum.
"""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from einsmith.base.errors import ArgumentError, GroupError
from einsmith.base.system.processes import can_wait_for_pipes
from einsmith.distributed.collectives import Collectives
from einsmith.distributed.group import ProcessGroup
from einsmith.driver.binding import Notice, Reply
from einsmith.ir.nodes import Leaf
from einsmith.runtime import buffers

_END = 255
"""The byte that is written when the program has ended."""
MOST = 200
"""Most numbers that a program tells."""


class Notices:
    """The notices of one run at a time, which one other thread awaits.

    writer: descriptor of the pipe's end to which the program writes."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        self._messages = np.arange(256, dtype=np.uint8)
        self._seen: set[int] = set()
        self._process = os.getpid()
        weakref.finalize(self, close, (self._reader, self.writer))

    def message(self, number: int) -> int:
        """Return the address of the byte that tells a number."""
        return self._messages.ctypes.data + number

    def begin(self) -> None:
        """Expect the notices of another run."""
        self._seen.clear()
        if self._process != os.getpid():  # a forked process needs a pipe of its own, under the numbers in programs
            for opened, known in zip(os.pipe(), (self._reader, self.writer), strict=True):
                os.dup2(opened, known)
                os.close(opened)
            self._process = os.getpid()

    def end(self) -> None:
        """Say that the run has ended."""
        os.write(self.writer, bytes([_END]))

    def await_number(self, number: int) -> bool:
        """Wait until the run has reported a number, or has ended; return whether it has reported it."""
        while number not in self._seen and _END not in self._seen:
            self._read()
        return number in self._seen

    def await_end(self) -> None:
        """Wait until the run has ended, after which the pipe is empty."""
        while _END not in self._seen:
            self._read()

    def _read(self) -> None:
        self._seen.update(os.read(self._reader, 256))


def close(descriptors: Sequence[int]) -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


class Exchanged(NamedTuple):
    """Memory of a tensor that a program stores, and of its sum over the group, which it reads."""

    sent: np.ndarray
    received: np.ndarray


class Exchanges:
    """The tensors that the programs of a training step sum over a group while they run, in their order, which is the
    same in all programs and on all ranks."""

    def __init__(self, group: ProcessGroup):
        if not can_wait_for_pipes():
            raise GroupError(
                "steps of a group and deterministic ones wait for pipes, which Windows cannot; use Linux or macOS"
            )
        self._group = group
        self._notices = Notices()
        self._reader, self._writer = os.pipe()
        weakref.finalize(self, close, (self._reader, self._writer))
        self._memories: dict[tuple, Exchanged] = {}
        self._pending: Future[np.ndarray] | None = None

    def add(self, number: int, shape: tuple[int, ...], dtype: np.dtype) -> Exchanged:
        """Return memory for tensor `number` of a program, from 0, and for its sum. Programs share it where they can."""
        if number >= MOST:
            raise ArgumentError(f"a step sums at most {MOST} tensors over the group; cat some of them")
        key = number, shape, dtype.str
        if key not in self._memories:
            self._memories[key] = Exchanged(buffers.zeros(shape, dtype), buffers.zeros(shape, dtype))
        return self._memories[key]

    def notices(self, bind: Mapping[Leaf, np.ndarray], tensors: Sequence[Exchanged]) -> list[Notice | Reply]:
        """Return what a program that sums these tensors tells, and waits for. bind: the memory of its leaves."""
        leaves = {id(array): x for x, array in bind.items()}
        out: list[Notice | Reply] = []
        for number, (sent, received) in enumerate(tensors):
            out.append(Notice(frozenset({leaves[id(sent)]}), self._notices.writer, self._notices.message(number)))
            out.append(Reply(leaves[id(received)], self._reader))
        return out

    def begin(self, tensors: Sequence[Exchanged]) -> None:
        """Expect a run of a program that sums these tensors; of none, where this process has no sample (`end` at
        once)."""
        self._pending = None
        if tensors:
            self._notices.begin()
            self._pending = self._group.submit(lambda collectives: self._serve(collectives, tensors))

    def end(self) -> int | None:
        """Say that the run has ended, and wait for the sums of the other processes. Return the first of the ranks that
        have run, where not all have: the others lack what runs store, such as running statistics.

        Raises GroupError where the group is broken."""
        if self._pending is None:
            return None
        self._notices.end()
        try:
            present = self._group.wait(self._pending)
        finally:
            while self._pending.done() and select.select([self._reader], [], [], 0)[0]:
                os.read(self._reader, 256)  # answers that an interrupted run has not read
        return int(present.argmax()) if present.any() and not present.all() else None

    def _serve(self, collectives: Collectives, tensors: Sequence[Exchanged]) -> np.ndarray:
        """Sum all tensors in turn; return which ranks have run, 1 or 0 [size]."""
        present, failure = np.zeros(self._group.size), None
        for number, (sent, received) in enumerate(tensors):
            has_run = self._notices.await_number(number)
            try:
                if failure is None:
                    received[...] = sent if has_run else 0
                    present[self._group.rank] = has_run
                    is_last = number == len(tensors) - 1
                    collectives.all_reduce(received.reshape(-1), *[present] * is_last)
            except Exception as e:
                failure = e  # the program goes on to its end, whatever it reads
            if has_run:
                os.write(self._writer, b"\0")
        self._notices.await_end()
        if failure is not None:
            raise failure
        return present
