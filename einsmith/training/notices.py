"""Let a running program tell another thread what it has completed: it writes bytes, numbers, to a pipe."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence

import numpy as np

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
            for made, known in zip(os.pipe(), (self._reader, self.writer), strict=True):
                os.dup2(made, known)
                os.close(made)
            self._process = os.getpid()

    def end(self) -> None:
        """Say that the run has ended."""
        os.write(self.writer, bytes([_END]))

    def await_number(self, number: int) -> bool:
        """Wait until the run has told a number, or has ended; return whether it has told it."""
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
