"""Communicate through MPI, by mpi4py, between processes that mpirun, mpiexec or srun has started."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from mpi4py import MPI

from einsmith.distributed.transport import peers

_SHORTEST, _LONGEST = 20e-6, 1e-3
"""Seconds between two looks at an operation that is under way. MPI's own waiting keeps a core busy, which computes the
rest of the step; the pause grows from the shortest to the longest, and so by less than a tenth of an operation."""
_GROWTH = 1.1
"""Factor by which the pause grows from look to look."""


class MpiTransport:
    """The processes of MPI's world. See `Transport`.

    A process that ends by an error ends all others, by MPI's abort: without that, MPI's own end would wait for them."""

    name = "MPI"

    def __init__(self, world: Any = MPI.COMM_WORLD) -> None:
        self._world = world.Dup()
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        if self.size > 1:
            self._hook, sys.excepthook = sys.excepthook, self._report

    def _report(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._hook(kind, error, trace)
        self.fail()

    def fail(self) -> None:
        """End all processes of the group with this one."""
        if self.size > 1:
            atexit.register(_abort)  # called before MPI's own end, which was registered earlier

    def _finish(self, *requests: Any) -> None:
        pause = _SHORTEST
        while not MPI.Request.Testall(list(requests)):
            time.sleep(pause)
            pause = min(pause * _GROWTH, _LONGEST)

    def exchange(self, sent: Sequence[np.ndarray], received: Sequence[np.ndarray]) -> None:
        """Send array r of `sent` to rank r, and receive array r of `received` from it (`Transport`)."""
        others = peers(self.rank, self.size)
        pending = [self._world.Irecv(received[r], r) for r in reversed(others)]
        self._finish(*pending, *(self._world.Isend(sent[r], r) for r in others))

    def broadcast(self, array: np.ndarray, root: int) -> None:
        """Overwrite `array` [n] by that of the rank `root`."""
        self._finish(self._world.Ibcast(array, root))

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self._finish(self._world.Ibarrier())

    def duplicate(self) -> MpiTransport:
        """Return an engine between the same processes (`Transport`)."""
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise RuntimeError("this MPI library serves one thread at a time; it needs MPI_THREAD_MULTIPLE")
        return MpiTransport(self._world)

    def close(self) -> None:
        """Leave the engine."""
        if self.size > 1 and sys.excepthook == self._report:
            sys.excepthook = self._hook
        self._world.Free()


def _abort() -> None:
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a service may have neither
        stream.flush()
    MPI.COMM_WORLD.Abort(1)
