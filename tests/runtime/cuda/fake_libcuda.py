"""A stand-in for libcuda whose memory is the host's.

Its functions are C functions with the types of cuda.h, so that an argument of another width arrives as another value.
Work is done as late as streams and events allow, the last stream first: what is not ordered happens in the wrong order.
What a card would not report, such as an access to freed memory, is in `faults`.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections import deque
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import partial
from typing import Any, NamedTuple

PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuDriverGetVersion": (c_void_p,), "cuInit": (c_uint,), "cuGetErrorName": (c_int, c_void_p),
    "cuGetErrorString": (c_int, c_void_p), "cuDeviceGetCount": (c_void_p,), "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetName": (c_void_p, c_int, c_int), "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
    "cuDeviceTotalMem_v2": (c_void_p, c_int), "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxPushCurrent_v2": (c_void_p,), "cuCtxPopCurrent_v2": (c_void_p,), "cuCtxSynchronize": (),
    "cuMemGetInfo_v2": (c_void_p, c_void_p), "cuMemAllocAsync": (c_void_p, c_size_t, c_void_p),
    "cuMemFreeAsync": (c_uint64, c_void_p), "cuMemHostAlloc": (c_void_p, c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,), "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuPointerGetAttribute": (c_void_p, c_int, c_uint64), "cuStreamCreate": (c_void_p, c_uint),
    "cuStreamDestroy_v2": (c_void_p,), "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, c_void_p),
    "cuGraphAddChildGraphNode": (c_void_p, c_void_p, c_void_p, c_size_t, c_void_p),
    "cuStreamSynchronize": (c_void_p,), "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuEventCreate": (c_void_p, c_uint), "cuEventRecord": (c_void_p, c_void_p), "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (c_void_p, c_void_p, c_void_p), "cuEventDestroy_v2": (c_void_p,),
    "cuModuleLoadData": (c_void_p, c_void_p), "cuModuleGetFunction": (c_void_p, c_void_p, c_char_p),
    "cuModuleUnload": (c_void_p,), "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p), "cuGraphCreate": (c_void_p, c_uint),
    "cuGraphAddKernelNode_v2": (c_void_p, c_void_p, c_void_p, c_size_t, c_void_p),
    "cuGraphAddEventRecordNode": (c_void_p, c_void_p, c_void_p, c_size_t, c_void_p),
    "cuGraphKernelNodeSetAttribute": (c_void_p, c_int, c_void_p),
    "cuGraphInstantiateWithFlags": (c_void_p, c_void_p, c_uint64),
    "cuGraphExecKernelNodeSetParams_v2": (c_void_p, c_void_p, c_void_p), "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphExecDestroy": (c_void_p,), "cuGraphDestroy": (c_void_p,),
}  # fmt: skip
ANYWHERE = {"cuCtxPushCurrent_v2", "cuPointerGetAttribute"}
"""Functions besides those of devices that need no current context."""
NAMES = {1: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"), 2: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
         700: ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered")}  # fmt: skip
GONE = 0xDD
"""What freed memory is filled with."""


class Card(NamedTuple):
    """What attributes of a device say."""

    name: str = "Stand-in"
    capability: tuple[int, int] = (9, 0)
    memory: int = 1 << 20
    pools: int = 1


class Launch(NamedTuple):
    """A launch as the driver sees it."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    parameters: tuple[int, ...]
    cooperative: bool


class Function(NamedTuple):
    entry: str
    parameters: int
    most_shared: list[int]


def cubin(entry: str, parameters: int, architecture: int = 90) -> bytes:
    """An ELF header as machine code has it, the number of parameters and the entry."""
    head = struct.pack("<4s5B7xHHIQQQI12x", b"\x7fELF", 2, 1, 1, 51, 7, 2, 190, 1, 0, 0, 0, architecture)
    return head + struct.pack("<II", parameters, len(entry)) + entry.encode()


def write(kind: Any, address: int, value: Any) -> None:
    kind.from_address(address).value = value


class FakeLibCuda:
    """The library. `failing` gives functions results that they return instead of doing anything."""

    def __init__(self, *cards: Card, version: int = 12080):
        self.cards, self.version = cards or (Card(),), version
        self.calls: list[tuple[str, tuple]] = []
        self.failing: dict[str, int] = {}
        self.fail_at = 0
        """Number, from 1 on, of the call that fails, without those for the names of errors."""
        self.lost = 0
        """What everything returns since the context was lost."""
        self.faults: list[str] = []
        self.executed: list[Launch] = []
        self.graphs: dict[int, dict[int, tuple[list[int], Any, Launch]]] = {}
        self.executables: dict[int, dict[int, tuple[list[int], Any, Launch]]] = {}
        self.modules: dict[int, dict[str, int]] = {}
        self.functions: dict[int, Function] = {}
        self.memory: dict[int, Any] = {}
        self.allocated: set[int] = set()
        """Addresses of the memory whose allocation has been done in its stream."""
        self.pinned: dict[int, Any] = {}
        self.streams: dict[int, deque] = {0: deque()}
        self.captures: dict[int, int] = {}
        self.events: dict[int, list] = {}
        self.contexts: dict[int, list[int]] = {}
        self._kept: list[Any] = []
        self._handles = 0x7F12_0000_0000  # wider than an int
        self._texts = {code: [ctypes.create_string_buffer(t.encode()) for t in texts] for code, texts in NAMES.items()}
        for name, types in PROTOTYPES.items():
            setattr(self, name, CFUNCTYPE(c_int, *types)(partial(self._enter, name)))

    def _enter(self, name: str, *arguments: Any) -> int:
        arguments = tuple(0 if a is None else a for a in arguments)
        if name.startswith("cuGetError"):
            return getattr(self, f"_{name}")(*arguments)
        self.calls.append((name, arguments))
        try:
            if len(self.calls) == self.fail_at:
                return 801
            if name in self.failing:
                return self.failing[name]
            if self.lost and not name.startswith("cuCtxP"):
                return self.lost
            needs = not name.startswith(("cuD", "cuInit")) and name not in ANYWHERE
            if needs and not self.contexts.get(threading.get_ident()):
                return 201
            return getattr(self, f"_{name}")(*arguments) or 0
        except BaseException as e:
            self.faults.append(f"{name}{arguments}: {e!r}")
            return 999

    def handle(self) -> int:
        self._handles += 16
        return self._handles

    def named(self, name: str) -> list[tuple]:
        return [arguments for called, arguments in self.calls if called == name]

    def _cuGetErrorName(self, code: int, to: int) -> int:
        return self._text(code, to, 0)

    def _cuGetErrorString(self, code: int, to: int) -> int:
        return self._text(code, to, 1)

    def _text(self, code: int, to: int, which: int) -> int:
        if code not in self._texts:
            return 1
        write(c_void_p, to, ctypes.addressof(self._texts[code][which]))
        return 0

    # -- devices and contexts

    def _cuDriverGetVersion(self, to: int) -> None:
        write(c_int, to, self.version)

    def _cuInit(self, flags: int) -> int:
        return 1 if flags else 0

    def _cuDeviceGetCount(self, to: int) -> None:
        write(c_int, to, len(self.cards))

    def _cuDeviceGet(self, to: int, ordinal: int) -> int:
        write(c_int, to, 40 + ordinal)
        return 0 if 0 <= ordinal < len(self.cards) else 101

    def _cuDeviceGetName(self, to: int, size: int, device: int) -> None:
        text = self.cards[device - 40].name.encode()[: size - 1] + b"\0"
        ctypes.memmove(to, text, len(text))

    def _cuDeviceGetAttribute(self, to: int, number: int, device: int) -> int:
        card = self.cards[device - 40]
        known = {16: 132, 38: 50 << 20, 75: card.capability[0], 76: card.capability[1], 97: 227 << 10, 115: card.pools}
        write(c_int, to, known[number])
        return 0

    def _cuDeviceTotalMem_v2(self, to: int, device: int) -> None:
        write(c_size_t, to, self.cards[device - 40].memory)

    def _cuDevicePrimaryCtxRetain(self, to: int, device: int) -> None:
        write(c_void_p, to, 0x7F11_0000_0000 + device)

    def _cuCtxPushCurrent_v2(self, context: int) -> None:
        self.contexts.setdefault(threading.get_ident(), []).append(context)

    def _cuCtxPopCurrent_v2(self, to: int) -> None:
        write(c_void_p, to, self.contexts[threading.get_ident()].pop())

    def _cuCtxSynchronize(self) -> None:
        self.finish()

    # -- streams: what is queued is a function, or an event's token that happens ("at") or is awaited ("for")

    def finish(self) -> None:
        for stream in reversed(list(self.streams)):
            self._run(stream)

    def _run(self, stream: int, until: Any = None) -> None:
        queue = self.streams[stream]
        while queue and not (until and until["done"]):
            kind, what = queue.popleft()
            if kind == "do":
                what()
            elif kind == "at":
                what["done"] = True
            elif not what["done"]:
                self._run(what["stream"], what)

    def _do(self, stream: int, what: Callable[[], None]) -> None:
        self.streams[stream].append(("do", what))

    def _cuStreamCreate(self, to: int, flags: int) -> int:
        write(c_void_p, to, stream := self.handle())
        self.streams[stream] = deque()
        return 0 if flags == 1 else 1

    def _cuStreamDestroy_v2(self, stream: int) -> int:
        self.captures.pop(stream, None)
        return 1 if self.streams.pop(stream) else 0

    def _cuStreamBeginCapture_v2(self, stream: int, mode: int) -> int:
        self.graphs[graph := self.handle()] = {}
        self.captures[stream] = graph
        return 0 if mode == 1 else 1

    def _cuStreamEndCapture(self, stream: int, to: int) -> None:
        write(c_void_p, to, self.captures.pop(stream))

    def launch_by_others(self, launch: Launch, stream: int) -> None:
        """Launch what another library has, or capture it."""
        if stream in self.captures:
            nodes = self.graphs[self.captures[stream]]
            nodes[self.handle()] = list(nodes)[-1:], None, launch
        else:
            self._do(stream, partial(self._execute, None, launch))

    def _cuStreamSynchronize(self, stream: int) -> None:
        self._run(stream)

    def _cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> int:
        if (token := self.events[event][-1]) is not None:
            self.streams[stream].append(("for", token))
        return 1 if flags else 0

    def _cuEventCreate(self, to: int, flags: int) -> None:
        write(c_void_p, to, event := self.handle())
        self.events[event] = [flags, None]

    def _cuEventRecord(self, event: int, stream: int) -> None:
        token = {"done": False, "stream": stream}
        self.events[event][-1] = token
        self.streams[stream].append(("at", token))

    def _cuEventSynchronize(self, event: int) -> None:
        token = self.events[event][-1]
        self._run(token["stream"], token)

    def _cuEventElapsedTime(self, to: int, first: int, second: int) -> int:
        if self.events[first][0] or self.events[second][0]:
            return 400
        write(c_float, to, 2.5)
        return 0 if self.events[first][-1]["done"] and self.events[second][-1]["done"] else 600

    def _cuEventDestroy_v2(self, event: int) -> None:
        del self.events[event]

    # -- memory

    def used(self) -> int:
        return sum(len(buffer) - 256 for buffer in self.memory.values())

    def _new(self, places: dict[int, Any], nbytes: int) -> int:
        buffer = (ctypes.c_uint8 * (nbytes + 256))()
        address = -(-ctypes.addressof(buffer) // 256) * 256
        places[address] = buffer
        return address

    def _lies_in(self, places: dict[int, Any], address: int) -> bool:
        return any(first <= address < first + len(buffer) - 256 for first, buffer in places.items())

    def _is_usable(self, address: int) -> bool:
        """Whether work that is done now may access memory of the card."""
        return any(a <= address < a + len(self.memory[a]) - 256 for a in self.allocated)

    def _cuMemGetInfo_v2(self, free: int, total: int) -> None:
        write(c_size_t, free, self.cards[0].memory - self.used())
        write(c_size_t, total, self.cards[0].memory)

    def _cuMemAllocAsync(self, to: int, nbytes: int, stream: int) -> int:
        if not nbytes:
            return 1
        if self.used() + nbytes > self.cards[0].memory:
            return 2
        write(c_uint64, to, address := self._new(self.memory, nbytes))
        self._do(stream, lambda: self.allocated.add(address))
        return 0

    def _cuMemFreeAsync(self, address: int, stream: int) -> int:
        if address not in self.memory:
            return 1

        def free() -> None:
            buffer = self.memory.pop(address)
            self.allocated.remove(address)
            ctypes.memset(buffer, GONE, len(buffer))
            self._kept.append(buffer)

        self._do(stream, free)
        return 0

    def _cuMemHostAlloc(self, to: int, nbytes: int, flags: int) -> int:
        write(c_void_p, to, self._new(self.pinned, nbytes))
        return 0 if flags == 1 else 1

    def _cuMemFreeHost(self, address: int) -> None:
        buffer = self.pinned.pop(address)
        ctypes.memset(buffer, GONE, len(buffer))
        self._kept.append(buffer)

    def _move(self, to: int, source: int, nbytes: int, stream: int, *on_card: int) -> int:
        hosts = [a for a in (to, source) if a not in on_card]
        pinned = [a for a in hosts if self._lies_in(self.pinned, a)]

        def move() -> None:
            missing = [a for a in on_card if not self._is_usable(a)]
            missing += [a for a in pinned if not self._lies_in(self.pinned, a)]
            if missing:
                self.faults.append(f"a copy accesses memory that is not allocated: {missing}")
            else:
                ctypes.memmove(to, source, nbytes)

        self._do(stream, move)
        return 0

    def _cuMemcpyHtoDAsync_v2(self, to: int, source: int, nbytes: int, stream: int) -> int:
        return self._move(to, source, nbytes, stream, to)

    def _cuMemcpyDtoHAsync_v2(self, to: int, source: int, nbytes: int, stream: int) -> int:
        return self._move(to, source, nbytes, stream, source)

    def _cuMemcpyDtoDAsync_v2(self, to: int, source: int, nbytes: int, stream: int) -> int:
        return self._move(to, source, nbytes, stream, to, source)

    def _cuPointerGetAttribute(self, to: int, attribute: int, address: int) -> int:
        type = 2 if self._lies_in(self.memory, address) else 1 if self._lies_in(self.pinned, address) else 0
        write(c_uint, to, type)
        return 0 if type and attribute == 2 else 1

    # -- machine code, launches and graphs

    def _cuModuleLoadData(self, to: int, image: int) -> int:
        head = ctypes.string_at(image, 72)
        if head[:4] != b"\x7fELF":
            return 200
        major, minor = self.cards[0].capability
        if head[48] != 10 * major + minor:
            return 209
        parameters, size = struct.unpack_from("<II", head, 64)
        entry = ctypes.string_at(image + 72, size).decode()
        write(c_void_p, to, module := self.handle())
        self.modules[module] = {entry: self.handle()}
        self.functions[self.modules[module][entry]] = Function(entry, parameters, [48 << 10])
        return 0

    def _cuModuleGetFunction(self, to: int, module: int, name: bytes) -> int:
        function = self.modules[module].get(name.decode())
        write(c_void_p, to, function)
        return 0 if function else 500

    def _cuModuleUnload(self, module: int) -> None:
        for function in self.modules.pop(module).values():
            del self.functions[function]

    def _cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> int:
        self.functions[function].most_shared[0] = value
        return 0 if attribute == 8 else 1

    def _read(self, function: int, numbers: tuple[int, ...], table: int, cooperative: bool) -> Launch:
        f = self.functions[function]
        if numbers[6] > f.most_shared[0]:
            raise ValueError(f"{f.entry} may not have {numbers[6]} bytes of shared memory")
        places = (c_void_p * f.parameters).from_address(table)
        parameters = tuple(c_uint64.from_address(p).value for p in places)
        return Launch(f.entry, numbers[:3], numbers[3:6], numbers[6], parameters, cooperative)

    def _execute(self, function: int | None, launch: Launch) -> None:
        if function is not None and function not in self.functions:
            self.faults.append(f"{launch.entry} was unloaded before it ran")
        missing = [a for a in launch.parameters if a and not self._is_usable(a)]
        if missing:
            self.faults.append(f"{launch.entry} accesses memory that is not allocated: {missing}")
        self.executed.append(launch)

    def _cuLaunchKernelEx(self, config: int, function: int, table: int, extra: int) -> int:
        *numbers, stream, attributes, count = struct.unpack("<7I4xQQI4x", ctypes.string_at(config, 56))
        found = [struct.unpack("<i4xi60x", ctypes.string_at(attributes + 72 * n, 72)) for n in range(count)]
        if extra or any(id != 2 for id, _ in found):
            return 1
        launch = self._read(function, tuple(numbers), table, any(value for _, value in found))
        self._do(stream, partial(self._execute, function, launch))
        return 0

    def _cuGraphCreate(self, to: int, flags: int) -> int:
        write(c_void_p, to, graph := self.handle())
        self.graphs[graph] = {}
        return 1 if flags else 0

    def _node(self, params: int) -> tuple[int, Launch]:
        function, *numbers, table, extra, kern, context = struct.unpack("<Q7I4xQQQQ", ctypes.string_at(params, 72))
        assert not (extra or kern or context)
        return function, self._read(function, tuple(numbers), table, False)

    def _cuGraphAddKernelNode_v2(self, to: int, graph: int, first: int, count: int, params: int) -> int:
        before = list((c_void_p * count).from_address(first)) if count else []
        if len(set(before)) != len(before) or not all(n in self.graphs[graph] for n in before):
            return 1
        write(c_void_p, to, node := self.handle())
        self.graphs[graph][node] = (before, *self._node(params))
        return 0

    def _cuGraphAddChildGraphNode(self, to: int, graph: int, first: int, count: int, child: int) -> int:
        (launch,) = [launch for _, _, launch in self.graphs[child].values()]
        before = list((c_void_p * count).from_address(first)) if count else []
        write(c_void_p, to, node := self.handle())
        self.graphs[graph][node] = before, None, launch
        return 0 if all(n in self.graphs[graph] for n in before) else 1

    def _cuGraphAddEventRecordNode(self, to: int, graph: int, first: int, count: int, event: int) -> int:
        before = list((c_void_p * count).from_address(first)) if count else []
        if not all(n in self.graphs[graph] for n in before) or event not in self.events:
            return 1
        write(c_void_p, to, node := self.handle())
        self.graphs[graph][node] = (before, event, None)
        return 0

    def _cuGraphKernelNodeSetAttribute(self, node: int, attribute: int, value: int) -> int:
        nodes = next(nodes for nodes in self.graphs.values() if node in nodes)
        before, function, launch = nodes[node]
        nodes[node] = before, function, launch._replace(cooperative=bool(c_int.from_address(value).value))
        return 0 if attribute == 2 else 1

    def _cuGraphInstantiateWithFlags(self, to: int, graph: int, flags: int) -> int:
        write(c_void_p, to, executable := self.handle())
        self.executables[executable] = dict(self.graphs[graph])
        return 1 if flags else 0

    def _cuGraphExecKernelNodeSetParams_v2(self, executable: int, node: int, params: int) -> int:
        if not any(node in nodes for nodes in self.graphs.values()):
            return 1  # the template is gone
        before, _, old = self.executables[executable][node]
        function, launch = self._node(params)
        self.executables[executable][node] = before, function, launch._replace(cooperative=old.cooperative)
        return 0

    def _cuGraphLaunch(self, executable: int, stream: int) -> None:
        left = dict(self.executables[executable])
        while left:  # the last node that is ready first
            node = next(n for n in reversed(left) if not any(b in left for b in left[n][0]))
            _, function, launch = left.pop(node)
            if launch is None:
                self._cuEventRecord(function, stream)
            else:
                self._do(stream, partial(self._execute, function, launch))

    def _cuGraphExecDestroy(self, executable: int) -> None:
        del self.executables[executable]

    def _cuGraphDestroy(self, graph: int) -> None:
        del self.graphs[graph]
