"""Keep copies of parameters, state and other bound arrays on a device, and know which copy is the newest.

Parameters stay on the device from run to run. The process's memory is brought up to date when somebody asks for it
(`Memory.newest`). As long as somebody has an array of the elements, which may be read and changed without a word, every
run begins with its content and ends by storing into it, so that the array is as live as on the CPU.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from einsmith.base import locks
from einsmith.gpu.cuda.device import CudaDevice
from einsmith.runtime.arena import Block
from einsmith.runtime.memory import Memory

ALIGNED = 256
"""Bytes at a multiple of which each array begins on the device."""


class DeviceMemory:
    """Memory of a device that is freed with its owner."""

    def __init__(self, device: CudaDevice):
        self.device = device

    def block(self, nbytes: int) -> Block:
        """Allocate a block, which is freed with its last reference. Raises OutOfMemoryError."""
        address = self.device.allocate(max(nbytes, ALIGNED))
        return DeviceBlock(_Owned(self.device, address), address, nbytes)


class DeviceBlock(Block):
    """A block of a device's memory. Its bytes are copied outside of the stream of programs, which must have finished
    with them."""

    __slots__ = ()

    def read(self) -> np.ndarray:
        device, out = self.array.device, np.empty(self.nbytes, np.uint8)
        device.download(out, self.address, device.copies)
        device.synchronize(device.copies)
        return out

    def write(self, content: np.ndarray) -> None:
        device = self.array.device
        device.upload(self.address, content, device.copies)
        device.synchronize(device.copies)


class _Owned:
    """Memory of a device that is freed with this object."""

    def __init__(self, device: CudaDevice, address: int):
        self.device = device
        self.__finalizer = weakref.finalize(self, device.free, address)
        self.__finalizer.atexit = False


class Resident:
    """A copy of a bound array on a device.

    Args:
        device: the device.
        array: the array; it outlives this object.
        memory: the `Memory` that it is; None where nothing tells of its changes, so that each run compares it.
        block: the memory on the device.
    """

    def __init__(self, device: CudaDevice, array: np.ndarray, memory: Memory | None, block: Block):
        self.device, self.block = device, block
        self._array = weakref.ref(array)
        self._memory = None if memory is None else weakref.ref(memory)
        self._version = -1
        self._seen: np.ndarray | None = None

    @property
    def address(self) -> int:
        """Address of the copy in the device's memory."""
        return self.block.address

    def refresh(self, stream: Any) -> None:
        """Bring the copy up to date, in a stream."""
        array, memory = self._array(), None if self._memory is None else self._memory()
        if array is None or not array.nbytes:
            return
        if memory is None:
            self._compare(array, stream)
            return
        if memory.newest is self:
            return
        if self._version != memory.version or memory.is_shared():
            memory.physical  # noqa: B018 - fetches a newer copy from another device
            self._version = memory.version
            self.device.upload(self.address, array, stream)

    def fetch_other(self) -> None:
        """Bring the array up to date, where a copy on another device is newer."""
        memory = None if self._memory is None else self._memory()
        if memory is not None and memory.newest is not self:
            memory.fetch()

    def _compare(self, array: np.ndarray, stream: Any) -> None:
        """Upload an array if its bytes are others than those that were uploaded last."""
        raw = array.reshape(-1).view(np.uint8)
        if self._seen is None:
            self._seen = self.device.pinned(array.nbytes)
        elif np.array_equal(self._seen, raw):
            return
        else:
            self.device.synchronize(stream)  # the last copy of it may be under way
        self._seen[:] = raw
        self.device.upload(self.address, self._seen, stream)

    def note_begun(self) -> None:
        """Record that a run has begun that stores into the copy: readers of the array's memory then wait for its
        end."""
        memory = None if self._memory is None else self._memory()
        if memory is not None:
            memory.newest, Memory.may_be_away = self, True

    def note_store(self, stream: Any) -> None:
        """Note that a run has stored into the copy; its work in the stream is done."""
        array, memory = self._array(), None if self._memory is None else self._memory()
        if array is None or not array.nbytes:
            return
        if memory is not None and (memory.newest is not self or not memory.is_shared()):
            return  # somebody has fetched it meanwhile, or will
        self._download(array, stream)
        if memory is not None:
            memory.newest = None
            self._version = -1

    def _download(self, array: np.ndarray, stream: Any) -> None:
        self.device.download(array, self.address, stream)
        self.device.synchronize(stream)
        if self._seen is not None:
            self._seen[:] = array.reshape(-1).view(np.uint8)

    def fetch(self) -> None:
        """Copy the elements into the process's memory (`Memory.newest`)."""
        array, memory = self._array(), None if self._memory is None else self._memory()
        if array is not None:
            self._download(array, self.device.stream)
            self._version = -1 if memory is None else memory.version


class Residents:
    """The copies of all bound arrays on a device."""

    def __init__(self, memory: DeviceMemory):
        self._memory = memory
        self._known: dict[int, tuple[weakref.ref[np.ndarray], Resident]] = {}
        self._lock = locks.lock()

    def of(self, array: np.ndarray, memory: Memory | None) -> Resident:
        """Return the copy of an array on the device. Programs share it, and it is freed when the array is."""
        with self._lock:
            known = self._known.get(id(array))
            if known is not None and known[0]() is array:
                return known[1]
            copy = Resident(self._memory.device, array, memory, self._memory.block(array.nbytes))
            number, table = id(array), self._known
            self._known[number] = weakref.ref(array, lambda gone: _forget(table, number, gone)), copy
            return copy

    def __len__(self) -> int:
        return len(self._known)


def _forget(table: dict[int, tuple[weakref.ref[np.ndarray], Resident]], number: int, gone: weakref.ref) -> None:
    """Drop the copy of an array that is no longer there, unless another array has its number meanwhile."""
    known = table.get(number)
    if known is not None and known[0] is gone:
        del table[number]
