"""Sum over cards by NCCL, through the bindings of nccl4py."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from nccl.bindings import nccl

from einsmith.base.errors import DeviceError

_TYPES = {"f16": 6, "f32": 7, "f64": 8, "bf16": 9}
"""NCCL's number of each element type (ncclDataType_t)."""
_SUM = 0
"""NCCL's number of the sum (ncclRedOp_t)."""
_ALONE = {"NCCL_RUNTIME_CONNECT": "0", "NCCL_GRAPH_REGISTER": "0"}
"""NCCL's variables by which cards connect when they join, and graphs register no memory. Otherwise a capture may wait
for other processes, which capture nothing where they have their programs already."""


def check() -> None:
    """Raise DeviceError where the library is not there."""
    with _checked("its start"):
        nccl.get_version()


def unique_id() -> bytes:
    """Return an identifier for a new group of cards. Raises DeviceError."""
    with _checked("a group of cards"):
        return bytes(memoryview(nccl.get_unique_id()))


class NcclCommunicator:
    """A group of cards (`device.Communicator`), left at the end of this object.

    Args:
        unique_id: the group's identifier, the same on all ranks.
        rank, size: number of this process, and of all, each with a card of its own.
        current: function that makes the card's context current, in a block; it is current already here.
    """

    def __init__(
        self, unique_id: bytes, rank: int, size: int, current: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        for name, value in _ALONE.items():
            os.environ.setdefault(name, value)
        with _checked(f"the group of {size} cards"):
            named = nccl.UniqueId.from_buffer(unique_id)  # whose memory is read by the call
            self.handle: int = nccl.comm_init_rank(size, named.ptr, rank)
        self.launched = 0
        weakref.finalize(self, _leave, self.handle, current).atexit = False  # the other processes may have ended

    def all_reduce(self, addresses: Sequence[int], counts: Sequence[int], elem: str, stream: int) -> None:
        """Overwrite elements, `counts` of them at each address, by their sums over all cards, in a stream. NCCL gives
        all cards the same bits. The context is current."""
        with _checked(f"a sum of {sum(counts):,} elements"):
            nccl.group_start()
            try:
                for address, count in zip(addresses, counts, strict=True):
                    nccl.all_reduce(address, address, count, _TYPES[elem], _SUM, self.handle, stream)
            finally:
                nccl.group_end()


def _leave(handle: int, current: Callable[[], AbstractContextManager[Any]]) -> None:
    with current():
        nccl.comm_destroy(handle)


@contextmanager
def _checked(what: str) -> Iterator[None]:
    """Raise DeviceError where NCCL fails in the block, or its library cannot be loaded."""
    try:
        yield
    except (nccl.NCCLError, RuntimeError) as e:  # the library is loaded at the first call
        reason = str(e).strip().partition("\n")[0]
        raise DeviceError(
            f"NCCL failed at {what}: {reason}; see that each process has a card of its own and reaches the others, "
            "and what NCCL_DEBUG=WARN prints"
        ) from e
