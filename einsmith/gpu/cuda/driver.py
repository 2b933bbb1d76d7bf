"""Use NVIDIA's cards through their driver: `devices` lists them, `device` returns the one of a number.

A card is used in its primary context, so that memory and streams can be shared with PyTorch in the same process. The
context is current in whatever thread calls, during the call; the thread's own one is restored. Streams are the driver's
handles as integers, 0 the legacy default stream: `torch.cuda.current_stream().cuda_stream` is one.

What the driver keeps for an object (pinned memory, events, graphs, machine code) is freed with the object. Nothing is
freed at the end of the process, in a forked child, or in a context that is lost: there is nothing left to free.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from ctypes import (
    c_float,
    c_int,
    c_size_t,
    c_uint64,
    c_void_p,
    create_string_buffer,
    pointer,
)
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from einsmith.base import locks
from einsmith.base.errors import DeviceError
from einsmith.gpu.cuda import libcuda
from einsmith.gpu.cuda.context import CardContext, DriverHandle
from einsmith.gpu.cuda.device import (
    CollectiveNode,
    Communicator,
    CudaDevice,
    DeviceCode,
    DeviceFacts,
    LaunchNode,
    Node,
)
from einsmith.gpu.cuda.graphs import WARP, CardGraphs, describe, kernel_params
from einsmith.gpu.cuda.libcuda import LaunchAttribute, LaunchConfig, LibCuda
from einsmith.runtime import buffers

LEAST_CAPABILITY = (8, 0)
"""Least compute capability: older cards copy nothing asynchronously to shared memory and have neither bf16 nor tf32."""


def devices() -> list[DeviceFacts]:
    """Return the driver's properties of each card, by number. Raises DeviceError where there is no driver or no
    card."""
    library = libcuda.library()
    return [_read_facts(library, n) for n in range(_count(library))]


_lock = locks.lock()
_devices: dict[int, CudaDriver] = {}


def device(ordinal: int) -> CudaDriver:
    """Return the card of a number, the same object each time. Raises DeviceError where it cannot be used."""
    with _lock:
        libcuda.library()  # refuses forked children
        if ordinal not in _devices:
            _devices[ordinal] = CudaDriver(ordinal)
        return _devices[ordinal]


def why_unusable(facts: DeviceFacts) -> str | None:
    """Return why programs cannot run on a card; None where they can."""
    if facts.capability < LEAST_CAPABILITY:
        return f"compute capability {spell_capability(facts.capability)} is below {spell_capability(LEAST_CAPABILITY)}"
    return None


def spell_capability(capability: tuple[int, int]) -> str:
    """Return a compute capability as people write it, as in "9.0"."""
    return ".".join(map(str, capability))


def _count(library: LibCuda) -> int:
    """Return how many cards there are, at least one."""
    count = library.new("cuDeviceGetCount", kind=c_int)
    if not count:
        library.check("cuDeviceGetCount", libcuda.NO_DEVICE)
    return count


def _read_facts(library: LibCuda, ordinal: int) -> DeviceFacts:
    handle = library.new("cuDeviceGet", ordinal, kind=c_int)

    def attribute(number: int) -> int:
        return library.new("cuDeviceGetAttribute", number, handle, kind=c_int)

    name = create_string_buffer(256)
    library.call("cuDeviceGetName", name, len(name), handle)
    return DeviceFacts(
        name.value.decode(errors="replace"),
        (attribute(libcuda.MAJOR), attribute(libcuda.MINOR)),
        attribute(libcuda.MULTIPROCESSORS),
        library.new("cuDeviceTotalMem_v2", handle, kind=c_size_t),
        attribute(libcuda.L2),
        attribute(libcuda.SHARED),
        library.version,
    )


class _PinnedMemory:
    """Memory that NumPy makes an array of, which keeps this object, as its views do."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, address: int, nbytes: int):
        self.__array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}


class CudaDriver(CudaDevice):
    """A card. Objects are made by `device`.

    All methods may be called by any thread; only an executable graph may not be launched by one thread and changed by
    another at a time. `free`, and the end of an object, raise nothing where the memory or handle exists no longer.
    """

    stream: int
    copies: int

    def __init__(self, ordinal: int):
        self._library = library = libcuda.library()
        count = _count(library)
        if not 0 <= ordinal < count:
            some = f"{count} cards, 0 to {count - 1}" if count > 1 else "one card, 0"
            raise DeviceError(f"there is no card {ordinal}: the driver finds {some}")
        self.ordinal, self.facts = ordinal, _read_facts(library, ordinal)
        if reason := why_unusable(self.facts):
            raise DeviceError(f"{self._name} cannot be used: its {reason}")
        handle = library.new("cuDeviceGet", ordinal, kind=c_int)
        if not library.new("cuDeviceGetAttribute", libcuda.POOLS, handle, kind=c_int):
            raise DeviceError(
                f"{self._name} cannot be used: its driver has no memory pools; a virtual GPU needs unified memory, "
                f"which its host enables"
            )
        self._context = context = CardContext(library, handle)
        self.stream, self.copies = context.stream, context.copies
        with context.current():
            self._allocations, self._frees = (library.new("cuStreamCreate", libcuda.NON_BLOCKING) for _ in range(2))
        self._graphs = CardGraphs(context)
        self._code: WeakKeyDictionary[DeviceCode, DriverHandle] = WeakKeyDictionary()
        self._loading = locks.lock()

    @property
    def _name(self) -> str:
        return f"card {self.ordinal} ({self.facts.name})"

    # -- memory

    def allocate(self, nbytes: int) -> int:
        """Allocate memory of the device, at a multiple of 256 bytes, and return its address."""
        library, address = self._library, c_uint64()
        with self._context.current() as call:
            arguments = address, max(nbytes, 1), self._allocations
            result = library.result("cuMemAllocAsync", *arguments)
            if result == libcuda.OUT_OF_MEMORY:
                call("cuStreamSynchronize", self._frees)  # what is being freed may suffice
                result = library.result("cuMemAllocAsync", *arguments)
            if result:
                library.check("cuMemAllocAsync", result, f"of {nbytes:,} bytes on {self._name}{self._room(result)}")
            call("cuStreamSynchronize", self._allocations)  # from now on all streams may use it
        return address.value

    def _room(self, result: int) -> str:
        if result != libcuda.OUT_OF_MEMORY:
            return ""
        free, total = c_size_t(), c_size_t()
        self._library.call("cuMemGetInfo_v2", free, total)
        return f", of whose {total.value:,} bytes {free.value:,} are free,"

    def free(self, address: int) -> None:
        """Free memory that `allocate` returned, once the work that is queued has been done."""
        calls = self._context.wait_for_work(self._frees)
        self._context.give_back(*calls, ("cuMemFreeAsync", address, self._frees))

    def pinned(self, nbytes: int) -> np.ndarray:
        """Allocate bytes of the host that copies need not stage; they are freed with the array and its views."""
        if not nbytes:
            return np.empty(0, np.uint8)
        address, library = c_void_p(), self._library
        with self._context.current():
            result = library.result("cuMemHostAlloc", address, nbytes, libcuda.PORTABLE)
            remedy = "the host cannot lock so much memory" if result == libcuda.OUT_OF_MEMORY else ""
            library.check("cuMemHostAlloc", result, f"of {nbytes:,} bytes", remedy)
        first = address.value or 0
        memory = _PinnedMemory(first, nbytes)
        weakref.finalize(memory, self._context.free_after_all, "cuMemFreeHost", first).atexit = False
        return np.asarray(memory)

    def upload(self, address: int, array: np.ndarray, stream: int) -> None:
        """Copy a C-contiguous array to the device, in a stream. Pinned memory must not change until that is done;
        other memory may: the copy is waited for."""
        self._copy_host(array, "cuMemcpyHtoDAsync_v2", address, _host_address(array), stream)

    def download(self, array: np.ndarray, address: int, stream: int) -> None:
        """Copy memory of the device to a C-contiguous array, in a stream; it is there once the stream has been waited
        for, and at once where the array is not pinned."""
        if not array.flags.writeable:
            raise DeviceError("memory of a card cannot be copied to an array that is read-only; pass a writable one")
        self._copy_host(array, "cuMemcpyDtoHAsync_v2", _host_address(array), address, stream)

    def _copy_host(self, array: np.ndarray, function: str, to: int, source: int, stream: int) -> None:
        if not array.nbytes:
            return
        with self._context.current() as call:
            is_pinned = self._context.memory_type(_host_address(array)) == libcuda.HOST
            call(function, to, source, array.nbytes, stream, about=f"of {array.nbytes:,} bytes")
            self._context.note(stream)
            if not is_pinned:  # the driver may read or write it until then, and the array may end before
                call("cuStreamSynchronize", stream)

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """Copy memory of the device within the device, in a stream."""
        if nbytes:
            with self._context.current() as call:
                call("cuMemcpyDtoDAsync_v2", to, source, nbytes, stream, about=f"of {nbytes:,} bytes")
                self._context.note(stream)

    # -- streams and events

    def event(self) -> Any:
        """Return a new event."""
        with self._context.current():
            return self._context.new_event()

    def record(self, event: Any, stream: int) -> None:
        """Let an event happen when the work that is queued in a stream has been done."""
        with self._context.current() as call:
            call("cuEventRecord", event, stream)

    def wait(self, stream: int, event: Any) -> None:
        """Let the work that is queued in a stream from now on wait for an event."""
        with self._context.current() as call:
            call("cuStreamWaitEvent", stream, event, 0)

    def await_event(self, event: Any) -> None:
        """Wait, in this thread, until an event has happened."""
        with self._context.current() as call:
            call("cuEventSynchronize", event)

    def elapsed(self, first: Any, second: Any) -> float:
        """Return the seconds between two events, which have happened."""
        milliseconds = c_float()
        with self._context.current() as call:
            call("cuEventElapsedTime", milliseconds, first, second)
        return milliseconds.value * 1e-3

    def synchronize(self, stream: int) -> None:
        """Wait, in this thread, until the work that is queued in a stream has been done."""
        with self._context.current() as call:
            call("cuStreamSynchronize", stream)

    # -- machine code and launches

    def load(self, code: DeviceCode) -> Any:
        """Load machine code, once; return the handle of its function. It is unloaded when neither the code nor a node
        refers to it."""
        with self._loading:
            function = self._code.get(code)
            if function is None:
                function = self._code[code] = self._load(code)
            return function

    def _load(self, code: DeviceCode) -> DriverHandle:
        binary, library = code.binary, self._library
        about = f"of the kernel {binary.name!r}"
        if binary.shared > self.facts.shared:
            raise DeviceError(
                f"the kernel {binary.name!r} needs {binary.shared:,} bytes of shared memory, but a program may have "
                f"{self.facts.shared:,} on {self._name}: compile it with smaller tiles or fewer stages"
            )
        with self._context.current() as call:
            module = c_void_p()
            result = library.result("cuModuleLoadData", module, binary.cubin)
            if result:
                compiled = libcuda.architecture(binary.cubin)
                card = "sm_{}{}".format(*self.facts.capability)
                library.check(
                    "cuModuleLoadData",
                    result,
                    f"{about}, compiled for {compiled or 'an unknown architecture'}, on {self._name}, which is {card},",
                    "" if compiled in (card, f"{card}a") else f"compile it for {card}",
                )
            function = DriverHandle(0, self._context.free_after_all, "cuModuleUnload", module.value or 0)
            function.value = library.new("cuModuleGetFunction", module, binary.name.encode(), about=about)
            if binary.shared > libcuda.UNASKED_SHARED:
                call("cuFuncSetAttribute", function, libcuda.DYNAMIC_SHARED, binary.shared, about=about)
        return function

    def graph(self, nodes: Sequence[Node], edges: Sequence[tuple[int, int]], events: Sequence[Any] = ()) -> Any:
        """Return an executable graph of launches and sums (`CardGraphs.build`)."""
        return self._graphs.build(nodes, edges, events)

    def swap(self, graph: Any, number: int, node: LaunchNode) -> None:
        """Replace the launch of a number in an executable graph, from its next launch on."""
        self._graphs.swap(graph, number, node)

    def launch(self, graph: Any, stream: int) -> None:
        """Launch an executable graph in a stream."""
        with self._context.current() as call:
            call("cuGraphLaunch", graph.executable, stream)
            self._context.note(stream)

    def run(self, node: Node, stream: int) -> None:
        """Launch a node by itself in a stream."""
        if isinstance(node, CollectiveNode):
            with self._context.current():
                node.communicator.all_reduce(node.addresses, node.counts, node.elem, stream)
                self._context.note(stream)
            return
        binary = node.code.binary
        table, _values = kernel_params(node)
        config = LaunchConfig(node.programs, 1, 1, WARP * binary.warps, 1, 1, binary.shared, stream)
        if node.cooperative:
            config.attrs = pointer(LaunchAttribute(id=libcuda.COOPERATIVE, value=1))
            config.count = 1
        with self._context.current() as call:
            call("cuLaunchKernelEx", config, node.function, table, None, about=describe(node))
            self._context.note(stream)

    # -- several cards

    def check_sums(self) -> None:
        """Raise DeviceError where NCCL is not installed."""
        _nccl().check()

    def unique_id(self) -> bytes:
        """Return an identifier for a new group of cards, on one of them; `join` takes it."""
        return _nccl().unique_id()

    def join(self, unique_id: bytes, rank: int, size: int) -> Communicator:
        """Join a group of `size` cards as the one of number `rank`, and wait until all are there."""
        with self._context.current():
            return _nccl().NcclCommunicator(unique_id, rank, size, self._context.current)


def _nccl() -> Any:
    with locks.IMPORTING:
        try:
            from einsmith.gpu.cuda import nccl
        except ImportError as e:
            raise DeviceError(f"sums over cards need NCCL: pip install 'einsmith[nccl]' ({e})") from None
    return nccl


def _host_address(array: np.ndarray) -> int:
    if not array.flags.c_contiguous:
        raise DeviceError("an array that is copied to or from a card must be C-contiguous; pass np.ascontiguousarray")
    return buffers.address(array)
