"""A card that is not there: programs are compiled for it, and none runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from einsmith.base.errors import DeviceError
from einsmith.gpu.cuda.device import CudaDevice, DeviceCode, DeviceFacts, LaunchNode, Node

FIRST = 1 << 48
"""The first address of memory; no process has memory there."""


class OfflineDevice(CudaDevice):
    """A card that is not present. Memory has addresses and no content; machine code is stored and not loaded."""

    def __init__(self, facts: DeviceFacts):
        self.facts = facts
        self.stream, self.copies = 0, 1
        self._next = FIRST

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise DeviceError(
            f"programs are compiled for the {self.facts.name}, which is not in this machine, and cannot run; use "
            'device="cpu", or device="cuda" where there is a card'
        )

    download = copy = event = record = wait = await_event = elapsed = launch = run = check_sums = unique_id = join = (
        _refuse
    )

    def allocate(self, nbytes: int) -> int:
        address, self._next = self._next, self._next + -(-nbytes // 256) * 256
        return address

    def free(self, address: int) -> None:
        pass

    def pinned(self, nbytes: int) -> np.ndarray:
        return np.empty(nbytes, np.uint8)

    def upload(self, address: int, array: np.ndarray, stream: Any) -> None:
        pass

    def synchronize(self, stream: Any) -> None:
        pass

    def load(self, code: DeviceCode) -> Any:
        return code

    def graph(self, nodes: Sequence[Node], edges: Sequence[tuple[int, int]], events: Sequence[Any] = ()) -> Any:
        return list(nodes)

    def swap(self, graph: Any, number: int, node: LaunchNode) -> None:
        graph[number] = node
