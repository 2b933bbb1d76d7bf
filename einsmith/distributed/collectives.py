"""Sum and gather arrays over a group of processes, by the exchanges of its engine.

Sums are made here, in the order of the ranks: they depend neither on the engine nor on the size of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from einsmith.distributed.transport import Transport
from einsmith.runtime import buffers

Add = Callable[[Sequence[np.ndarray], np.ndarray], None]
"""A function that stores the sum of rows [n] in an array [n], which may be one of the first two."""
CARRIED_BYTES = 1 << 16
"""Bytes that a connection carries in the time of a message's latency: those of 10 Gb/s and 50 us."""
_LINE = buffers.ALIGNMENT


def is_sent_whole(nbytes: float, size: int) -> bool:
    """Return whether arrays of `nbytes` bytes are summed over `size` processes in one exchange.

    Every process then sends the whole to all others; otherwise it sends a part to each, adds up its own, and sends the
    sum to all, in two exchanges. One exchange carries more bytes, but for two processes."""
    return size <= 2 or nbytes * (size - 1) * (1 - 2 / size) <= CARRIED_BYTES


def _whole_lines(nbytes: int) -> int:
    """Return the bytes of whole cache lines that hold `nbytes`."""
    return -(-nbytes // _LINE) * _LINE


def add_in_order(rows: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Store the sum of rows in `out`, added from the first to the last."""
    np.add(rows[0], rows[1], out=out)
    for row in rows[2:]:
        np.add(out, row, out=out)


def add_in_pairs(rows: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Store the sum of 2**k rows in `out`, added up as a balanced binary tree."""
    while len(rows) > 1:
        rows = [np.add(a, b) for a, b in zip(rows[::2], rows[1::2], strict=True)]
    out[...] = rows[0]


class Collectives:
    """The collective operations of a group, which its thread calls.

    transport: the engine."""

    def __init__(self, transport: Transport):
        self.transport = transport
        self._sent, self._received = buffers.empty((0,), np.uint8), buffers.empty((0,), np.uint8)

    def all_reduce(self, *arrays: np.ndarray, add: Add = add_in_order) -> None:
        """Overwrite arrays [n] by their sums over all ranks. Several arrays, which should be small, share messages.

        add: the function that adds up."""
        if self.transport.size == 1:
            return
        if len(arrays) > 1 or is_sent_whole(arrays[0].nbytes, self.transport.size):
            self._exchange_wholes(arrays, add)
        else:
            self._exchange_parts(arrays[0], add)

    def _exchange_wholes(self, arrays: Sequence[np.ndarray], add: Add) -> None:
        """Sum arrays in one exchange: every rank receives those of all ranks."""
        starts = np.cumsum([0, *(_whole_lines(a.nbytes) for a in arrays)]).tolist()
        places = [slice(start, start + a.nbytes) for start, a in zip(starts, arrays, strict=False)]
        sent = arrays[0].view(np.uint8)
        if len(arrays) > 1:
            self._sent = sent = _grown(self._sent, starts[-1])[: starts[-1]]
            for a, place in zip(arrays, places, strict=True):
                sent[place] = a.view(np.uint8)
        rows = self._rows(sent.size, sent.dtype)
        self.transport.exchange([sent] * self.transport.size, list(rows))
        for a, place in zip(arrays, places, strict=True):
            self._add(rows[:, place].view(a.dtype), a, add)

    def _exchange_parts(self, array: np.ndarray, add: Add) -> None:
        """Sum an array in two exchanges, in which 2*(1 - 1/size) times its bytes cross each process's connection: the
        least possible (Patarasuk and Yuan 2009)."""
        size = self.transport.size
        count = -(-array.size // size)
        whole = array if array.size == count * size else np.zeros(count * size, array.dtype)
        if whole is not array:
            whole[: array.size] = array
        self.reduce_scatter(whole, add)
        self.all_gather(whole)
        if whole is not array:
            array[...] = whole[: array.size]

    def reduce_scatter(self, array: np.ndarray, add: Add = add_in_order) -> None:
        """Overwrite this rank's part of an array, one of `size` equal ones, by the sum of that part over all ranks."""
        if self.transport.size == 1:
            return
        parts = array.reshape(self.transport.size, -1)
        received = self._rows(parts.shape[1], array.dtype)
        self.transport.exchange(list(parts), list(received))
        self._add(received, parts[self.transport.rank], add)

    def _add(self, received: np.ndarray, own: np.ndarray, add: Add) -> None:
        """Overwrite this rank's array [n] by the sum of it and those of all other ranks [size, n]."""
        rows, rank = list(received), self.transport.rank
        if rank < 2:
            rows[rank] = own
        else:
            rows[rank][...] = own
        add(rows, own)

    def all_gather(self, array: np.ndarray) -> None:
        """Overwrite all other ranks' parts of an array, one of `size` equal ones, by theirs."""
        if self.transport.size > 1:
            parts = array.reshape(self.transport.size, -1)
            self.transport.exchange([parts[self.transport.rank]] * self.transport.size, list(parts))

    def gather_rows(self, row: np.ndarray) -> np.ndarray:
        """Return the arrays [n] of all ranks as rows [size, n]."""
        whole = np.empty((self.transport.size, row.size), row.dtype)
        whole[self.transport.rank] = row
        self.all_gather(whole)
        return whole

    def _rows(self, count: int, dtype: np.dtype) -> np.ndarray:
        """Return memory for an array of each rank [size, count], which the next exchange uses again."""
        nbytes = self.transport.size * count * dtype.itemsize
        self._received = _grown(self._received, nbytes)
        return self._received[:nbytes].view(dtype).reshape(self.transport.size, count)


def _grown(memory: np.ndarray, nbytes: int) -> np.ndarray:
    return memory if memory.size >= nbytes else buffers.empty((nbytes,), np.uint8)
