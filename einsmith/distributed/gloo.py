"""Communicate through torch.distributed, by gloo, between processes that torchrun has started."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

_PATIENCE = timedelta(days=7)
"""Longest time that an operation waits for a process that lives; a process that dies closes its connections, which
ends an operation at once."""


_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""The gather into one tensor, which PyTorch 2.13 renames."""


class GlooTransport:
    """The processes of torchrun's world. See `Transport`."""

    name = "torchrun"

    def __init__(self) -> None:
        self._began = not dist.is_initialized()
        """Whether the world ends with this engine."""
        if self._began:
            dist.init_process_group("gloo", timeout=_PATIENCE)
        self._group = dist.new_group(backend="gloo", timeout=_PATIENCE)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def all_to_all(self, parts: np.ndarray, received: np.ndarray) -> None:
        """Send row r of `parts` [size, n] to rank r (`Transport`)."""
        dist.all_to_all_single(_bytes(received), _bytes(parts), group=self._group)

    def all_gather(self, part: np.ndarray, whole: np.ndarray) -> None:
        """Send `part` [n] to all (`Transport`)."""
        _all_gather(_bytes(whole), _bytes(part), group=self._group)

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
        """See that all processes end when this one does."""
        pass  # torchrun ends the others


def _bytes(array: np.ndarray) -> torch.Tensor:
    """Return an array's memory as a tensor of bytes: gloo lacks some element types."""
    return torch.from_numpy(array.reshape(-1).view(np.uint8))
