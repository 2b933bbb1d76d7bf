"""Declare the interface of communication engines, and the engine of a process without a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Transport(Protocol):
    """The collective operations of an engine, between `size` processes.

    Every process calls the same operations in the same order, with arrays of one size and type that are C-contiguous.
    Calls block until the arrays can be used, without Python's global lock; a `ProcessGroup` makes them on a thread of
    its own. An engine sums nothing: sums in the order of the ranks, which do not depend on it, are `Collectives`'. An
    exception of any kind means that the group is broken.

    name: the launcher or library, for messages; rank: number of this process, from 0.
    """

    name: str
    rank: int
    size: int

    def exchange(self, sent: Sequence[np.ndarray], received: Sequence[np.ndarray]) -> None:
        """Send array r of `sent` to rank r, and receive array r of `received` from it, each [n]. Those of this rank
        itself are left alone."""
        ...

    def broadcast(self, array: np.ndarray, root: int) -> None:
        """Overwrite `array` [n] by that of the rank `root`."""
        ...

    def barrier(self) -> None:
        """Wait until all processes are here."""
        ...

    def duplicate(self) -> Transport:
        """Return an engine between the same processes, whose messages do not meet those of this one. Every process
        calls it."""
        ...

    def close(self) -> None:
        """Leave the engine. Every process calls it."""
        ...

    def fail(self) -> None:
        """End all processes of the group; this one is about to end with an error."""
        ...


def peers(rank: int, size: int) -> list[int]:
    """Return the other ranks in the order in which `rank` sends to them, so that not all send to one at a time; it
    receives in the reverse order."""
    return [(rank + n) % size for n in range(1, size)]


class Alone:
    """The engine of a process that no launcher has started: every operation leaves arrays unchanged."""

    name, rank, size = "none", 0, 1

    def exchange(self, sent: Sequence[np.ndarray], received: Sequence[np.ndarray]) -> None:
        """Do nothing (`Transport`)."""
        pass

    def broadcast(self, array: np.ndarray, root: int) -> None:
        """Overwrite `array` [n] by that of the rank `root`."""
        pass

    def barrier(self) -> None:
        """Wait until all processes are here."""
        pass

    def duplicate(self) -> Alone:
        """Return another engine of this process."""
        return Alone()

    def close(self) -> None:
        """Leave the engine."""
        pass

    def fail(self) -> None:
        """End all processes of the group with this one."""
        pass
