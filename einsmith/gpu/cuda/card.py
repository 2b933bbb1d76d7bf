"""Hold what the programs of a card share: its memory, machine code and groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from einsmith.base import locks
from einsmith.gpu.cuda.device import CollectiveNode, Communicator, CudaDevice, DeviceCode
from einsmith.gpu.cuda.launches import TileCode
from einsmith.gpu.cuda.resident import DeviceMemory, Residents
from einsmith.runtime.memory import Clock, Memory

BuildCode = Callable[[Sequence[tuple[TileCode, tuple[bool, ...]]]], list[DeviceCode]]
"""Function that makes machine code of each (code, whether each of its parameters is a multiple of ALIGNED bytes)."""


class Card:
    """A device with the resources that its programs share: its memory, the copies of arrays, the machine code, and the
    lock that one run at a time holds."""

    def __init__(self, device: CudaDevice, build: BuildCode):
        self.device, self._build = device, build
        self.memory = DeviceMemory(device)
        self.residents = Residents(self.memory)
        self.lock = locks.lock()
        self._codes: WeakKeyDictionary[TileCode, dict[tuple[bool, ...], DeviceCode]] = WeakKeyDictionary()
        self._tail: Any = None
        self._last: Any = device.stream

    def enter(self, stream: Any) -> None:
        """Let work that is queued in a stream from now on follow all work of programs in other streams: programs share
        memory."""
        if stream != self._last:
            if self._tail is None:
                self._tail = self.device.event()
            self.device.record(self._tail, self._last)
            self.device.wait(stream, self._tail)
            self._last = stream

    def all_reduce(self, communicator: Communicator, memories: Sequence[Memory], elem: str) -> None:
        """Overwrite memory of one element type by its sum over all devices, on the device. The caller holds the guard
        of the memory."""
        stream = self.device.stream
        with self.lock:
            copies = [self.residents.of(m.host, m) for m in memories]
            for copy in copies:
                copy.refresh(stream)
            addresses, counts = tuple(c.address for c in copies), tuple(m.host.size for m in memories)
            self.device.run(CollectiveNode(communicator, addresses, counts, elem), stream)
            for copy in copies:
                copy.note_begun()
            self.device.synchronize(stream)
            for copy in copies:
                copy.note_store(stream)
        now = Clock.note()
        for memory in memories:
            memory.version = now

    def codes(self, kinds: Sequence[tuple[TileCode, tuple[bool, ...]]]) -> list[DeviceCode]:
        """Return machine code of each (code, whether each of its parameters is a multiple of ALIGNED bytes); it is made
        once as long as the code lives. Raises CompileError."""
        absent = [k for k in dict.fromkeys(kinds) if k[1] not in self._codes.get(k[0], {})]
        for (code, aligned), device_code in zip(absent, self._build(absent) if absent else (), strict=True):
            self._codes.setdefault(code, {}).setdefault(aligned, device_code)
        return [self._codes[code][aligned] for code, aligned in kinds]
