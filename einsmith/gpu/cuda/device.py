"""Define the interface of a CUDA device for programs: memory, streams, events, machine code and graphs of launches.

`driver` implements it by the CUDA driver; tests implement it by an interpreter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from einsmith.gpu.tiles.ir import TileFunction
from einsmith.gpu.triton.binary import Binary


class DeviceFacts(NamedTuple):
    """Properties of a device, from the driver.

    name: the card's name; capability: compute capability, major and minor; multiprocessors: how many there are; memory,
    l2: bytes of memory and of the level 2 cache; shared: most bytes of shared memory of a block; driver: CUDA version
    that the driver supports, as 1000 times major plus 10 times minor
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory: int
    l2: int
    shared: int
    driver: int


@dataclass(frozen=True, eq=False)
class DeviceCode:
    """A function of the tile IR, and its machine code."""

    function: TileFunction
    binary: Binary


class LaunchNode(NamedTuple):
    """A launch in a graph.

    function: the handle of its code (`CudaDevice.load`); code: the code; programs: how many programs run; pointers: the
    addresses that its parameters get, in order; cooperative: whether all programs must be resident at once, because
    they wait for each other
    """

    function: Any
    code: DeviceCode
    programs: int
    pointers: tuple[int, ...]
    cooperative: bool = False


class Communicator(Protocol):
    """A group of devices that sum their arrays (a communicator). Every process, which has one of the devices, requests
    the same sums in the same order.

    handle: a number that is not an address of a device; launched: how many graphs with sums have been launched
    """

    handle: int
    launched: int

    def all_reduce(self, addresses: Sequence[int], counts: Sequence[int], elem: str, stream: Any) -> None:
        """Overwrite elements, `counts` of them at each address, by their sums over all devices, in a stream."""
        ...


class CollectiveNode(NamedTuple):
    """A sum over a group of devices in a graph: the arguments of `Communicator.all_reduce`."""

    communicator: Communicator
    addresses: tuple[int, ...]
    counts: tuple[int, ...]
    elem: str


Node = LaunchNode | CollectiveNode


class CudaDevice(ABC):
    """A device. Addresses are of its memory; streams, events, functions and graphs are handles of its own.

    Work in one stream is done in order. Every method raises DeviceError where the driver fails, OutOfMemoryError where
    memory does not suffice. `stream` is where programs run, `copies` another stream, in which batches are copied.
    """

    facts: DeviceFacts
    stream: Any
    copies: Any

    @abstractmethod
    def allocate(self, nbytes: int) -> int:
        """Allocate memory of the device, at a multiple of 256 bytes, and return its address."""

    @abstractmethod
    def free(self, address: int) -> None:
        """Free memory that `allocate` returned, once the work that is queued has been done."""

    @abstractmethod
    def pinned(self, nbytes: int) -> np.ndarray:
        """Allocate bytes of the host that copies need not stage; they are freed with the array and its views."""

    @abstractmethod
    def upload(self, address: int, array: np.ndarray, stream: Any) -> None:
        """Copy a C-contiguous array to the device, in a stream. Pinned memory must not change until that is done;
        other memory may."""

    @abstractmethod
    def download(self, array: np.ndarray, address: int, stream: Any) -> None:
        """Copy memory of the device to a C-contiguous array, in a stream; it is there once the stream has been waited
        for."""

    @abstractmethod
    def copy(self, to: int, source: int, nbytes: int, stream: Any) -> None:
        """Copy memory of the device within the device, in a stream."""

    @abstractmethod
    def event(self) -> Any:
        """Return a new event."""

    @abstractmethod
    def record(self, event: Any, stream: Any) -> None:
        """Let an event happen when the work that is queued in a stream has been done."""

    @abstractmethod
    def wait(self, stream: Any, event: Any) -> None:
        """Make work that is queued in a stream from now on wait for an event."""

    @abstractmethod
    def await_event(self, event: Any) -> None:
        """Wait, in this thread, until an event has happened."""

    @abstractmethod
    def elapsed(self, first: Any, second: Any) -> float:
        """Return the seconds between two events, which have happened."""

    @abstractmethod
    def synchronize(self, stream: Any) -> None:
        """Wait, in this thread, until the work that is queued in a stream has been done."""

    @abstractmethod
    def load(self, code: DeviceCode) -> Any:
        """Load machine code, once; return the handle of its function."""

    @abstractmethod
    def graph(self, nodes: Sequence[Node], edges: Sequence[tuple[int, int]], events: Sequence[Any] = ()) -> Any:
        """Return an executable graph of launches and sums; an edge (a, b) lets node b wait for node a, which comes
        before it. events: one more than nodes, of which the first happens before, and one after each node; the nodes
        then run in their order."""

    @abstractmethod
    def swap(self, graph: Any, number: int, node: LaunchNode) -> None:
        """Replace the launch of a number in an executable graph, from its next launch on."""

    @abstractmethod
    def launch(self, graph: Any, stream: Any) -> None:
        """Launch an executable graph in a stream."""

    @abstractmethod
    def run(self, node: Node, stream: Any) -> None:
        """Launch a node by itself in a stream."""

    @abstractmethod
    def check_sums(self) -> None:
        """Raise DeviceError where there is no library that sums over devices."""

    @abstractmethod
    def unique_id(self) -> bytes:
        """Return an identifier for a new group of devices, on one of them; `join` takes it."""

    @abstractmethod
    def join(self, unique_id: bytes, rank: int, size: int) -> Communicator:
        """Join a group of `size` devices as the one of number `rank`, and wait until all are there."""
