"""Communicate through torch.distributed, by gloo, between processes that torchrun has started."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from einsmith.distributed.transport import peers

_PATIENCE = timedelta(hours=24)
"""Longest time that an operation waits for a process that lives; a process that dies closes its connections, which
ends an operation at once."""
_START = timedelta(minutes=30)
"""Longest time that the first processes wait for the last to start."""


class GlooTransport:
    """The processes of torchrun's world. See `Transport`.

    Arrays are exchanged by messages between all pairs of processes: gloo's own collective operations pass through a
    thread of theirs, which takes 0.1 ms more, and send from process to process in turn."""

    name = "torchrun"

    def __init__(self) -> None:
        self._began = not dist.is_initialized()
        """Whether the world ends with this engine."""
        if self._began:
            store, rank, size = next(dist.rendezvous("env://", timeout=_START))
            # torchrun keeps the store when it starts the processes again, with the addresses of those that have ended
            # (PyTorch 2.13).
            store = dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
            store.set_timeout(_START)
            dist.init_process_group("gloo", timeout=_PATIENCE, store=store, rank=rank, world_size=size)
        self._group = dist.new_group(backend="gloo", timeout=_PATIENCE)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def exchange(self, sent: Sequence[np.ndarray], received: Sequence[np.ndarray]) -> None:
        """Send array r of `sent` to rank r, and receive array r of `received` from it (`Transport`)."""
        others = peers(self.rank, self.size)
        pending = [dist.irecv(_bytes(received[r]), r, group=self._group) for r in reversed(others)]
        pending += [dist.isend(_bytes(sent[r]), r, group=self._group) for r in others]
        for message in pending:
            message.wait()

    def broadcast(self, array: np.ndarray, root: int) -> None:
        """Overwrite `array` [n] by that of the rank `root`."""
        dist.broadcast(_bytes(array), root, group=self._group)

    def barrier(self) -> None:
        """Wait until all processes are here."""
        dist.barrier(group=self._group)

    def duplicate(self) -> GlooTransport:
        """Return an engine between the same processes (`Transport`)."""
        return GlooTransport()

    def close(self) -> None:
        """Leave the engine."""
        group, self._group = self._group, None
        dist.destroy_process_group(None if self._began else group)

    def fail(self) -> None:
        """End all processes of the group with this one."""
        pass  # torchrun ends the others


def _bytes(array: np.ndarray) -> torch.Tensor:
    """Return an array's memory as a tensor of bytes: gloo lacks some element types."""
    return torch.from_numpy(array.reshape(-1).view(np.uint8))
