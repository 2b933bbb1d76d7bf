"""Declare what a communication engine provides, and the engine of a process that is alone."""

from __future__ import annotations

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

    def all_to_all(self, parts: np.ndarray, received: np.ndarray) -> None:
        """Send row r of `parts` [size, n] to rank r, and receive its row for this rank in row r of `received`."""
        ...

    def all_gather(self, part: np.ndarray, whole: np.ndarray) -> None:
        """Send `part` [n] to all, and receive that of rank r in row r of `whole` [size, n], which may contain it."""
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
        """See that all processes end when this one does, which ends by an error."""
        ...


class Alone:
    """The engine of a process that no launcher has started: every operation leaves arrays as they are."""

    name, rank, size = "none", 0, 1

    def all_to_all(self, parts: np.ndarray, received: np.ndarray) -> None:
        """Send row r of `parts` [size, n] to rank r (`Transport`)."""
        received[...] = parts

    def all_gather(self, part: np.ndarray, whole: np.ndarray) -> None:
        """Send `part` [n] to all (`Transport`)."""
        whole[0] = part

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
        """See that all processes end when this one does."""
        pass
