"""A CUDA device in this process: kernels run by the interpreter of the tile IR, a graph's in a random order that its
edges allow. What a card would leave to chance is a Fault: launches that touch one byte and that no edge orders, and
memory that nobody has set, that has been freed, or that is not the device's."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from einsmith.base.errors import OutOfMemoryError
from einsmith.codegen.triton.binary import Binary, TritonSource
from einsmith.cost.gpu import card
from einsmith.driver.cuda import Cuda
from einsmith.runtime.cuda.device import CudaDevice, DeviceCode, DeviceFacts, LaunchNode
from einsmith.tiles.ir import BYTES
from einsmith.tiles.verify import verify
from tests.tiles import interp
from tests.tiles.memory import NOBODY, Fault, Memory

FIRST = 0x7000_0000_0000
"""Where the device's memory begins: no address of this process."""


@dataclass
class Piece:
    """Allocated memory; `known`: the bytes that something has been stored into."""

    address: int
    raw: np.ndarray
    known: np.ndarray

    @property
    def end(self) -> int:
        return self.address + self.raw.size


@dataclass
class FakeGraph:
    nodes: list[LaunchNode]
    edges: list[tuple[int, int]]
    before: list[int] = field(default_factory=list)
    """For each node a bit for each node that comes before it."""
    checked: bool = False


class FakeDevice(CudaDevice):
    """memory: bytes that there are. `launches` counts the graphs that have run, `nodes` the launches in them; a node is
    looked at by `watch` before it runs."""

    def __init__(self, seed: int = 0, memory: int = 1 << 33):
        self.facts = DeviceFacts("Fake H100", (9, 0), 132, memory, 50 << 20, 227 << 10, 12090)
        self.stream, self.copies = 1, 2
        self.random = random.Random(seed)
        self.pieces: list[Piece] = []
        self.free_bytes, self._next = memory, FIRST
        self.launches = self.nodes = self.uploaded = self.downloaded = 0
        self.clock = 0.0
        self.events: dict[int, float] = {}

    # -- memory

    def allocate(self, nbytes: int) -> int:
        if nbytes > self.free_bytes:
            raise OutOfMemoryError(f"{nbytes} bytes are requested of the device, of which {self.free_bytes} are free")
        address, self._next = self._next, self._next + -(-nbytes // 256) * 256 + 256
        self.pieces.append(Piece(address, np.full(nbytes, 0xFF, np.uint8), np.zeros(nbytes, bool)))
        self.free_bytes -= nbytes
        return address

    def free(self, address: int) -> None:
        at = [p.address for p in self.pieces].index(address)
        self.free_bytes += self.pieces.pop(at).raw.size

    def piece(self, address: int, nbytes: int) -> tuple[Piece, int]:
        k = bisect_right([p.address for p in self.pieces], address) - 1
        if k < 0 or address + nbytes > self.pieces[k].end:
            raise Fault(f"{nbytes} bytes at {address:#x} are not the device's")
        return self.pieces[k], address - self.pieces[k].address

    def pinned(self, nbytes: int) -> np.ndarray:
        return np.full(nbytes, 0xFF, np.uint8)

    def upload(self, address: int, array: np.ndarray, stream: Any) -> None:
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        piece, at = self.piece(address, raw.size)
        piece.raw[at : at + raw.size] = raw
        piece.known[at : at + raw.size] = True
        self.uploaded += raw.size

    def download(self, array: np.ndarray, address: int, stream: Any) -> None:
        assert array.flags.c_contiguous
        piece, at = self.piece(address, array.nbytes)
        array.reshape(-1).view(np.uint8)[:] = piece.raw[at : at + array.nbytes]
        self.downloaded += array.nbytes

    def copy(self, to: int, source: int, nbytes: int, stream: Any) -> None:
        piece, at = self.piece(source, nbytes)
        self.upload(to, piece.raw[at : at + nbytes], stream)

    # -- events

    def event(self) -> int:
        self.events[len(self.events)] = 0.0
        return len(self.events) - 1

    def record(self, event: int, stream: Any) -> None:
        self.events[event] = self.clock

    def wait(self, stream: Any, event: Any) -> None:
        pass

    def await_event(self, event: Any) -> None:
        pass

    def elapsed(self, first: int, second: int) -> float:
        return self.events[second] - self.events[first]

    def synchronize(self, stream: Any) -> None:
        pass

    # -- code

    def load(self, code: DeviceCode) -> DeviceCode:
        verify(code.function)
        return code

    def graph(self, nodes: Sequence[LaunchNode], edges: Sequence[tuple[int, int]]) -> FakeGraph:
        out = FakeGraph(list(nodes), list(edges))
        waits: list[list[int]] = [[] for _ in nodes]
        for a, b in edges:
            assert a < b
            waits[b].append(a)
        for n in range(len(nodes)):
            above = 0
            for m in waits[n]:
                above |= out.before[m] | 1 << m
            out.before.append(above)
        return out

    def swap(self, graph: FakeGraph, number: int, node: LaunchNode) -> None:
        graph.nodes[number], graph.checked = node, False

    def launch(self, graph: FakeGraph, stream: Any) -> None:
        self.launches += 1
        waits = [0] * len(graph.nodes)
        after: list[list[int]] = [[] for _ in graph.nodes]
        for a, b in graph.edges:
            waits[b] += 1
            after[a].append(b)
        ready = [n for n, count in enumerate(waits) if not count]
        touched = None if graph.checked else Touched()
        while ready:
            n = ready.pop(self.random.randrange(len(ready)))
            self.execute(graph.nodes[n], n, touched)
            for m in after[n]:
                waits[m] -= 1
                if not waits[m]:
                    ready.append(m)
        if touched is not None:
            touched.check(graph)
            graph.checked = True

    def run(self, node: LaunchNode, stream: Any) -> None:
        self.execute(node, 0, None)

    def execute(self, node: LaunchNode, n: int, touched: Touched | None) -> None:
        self.nodes += 1
        self.clock += 1e-6
        f = node.function.function
        assert node.programs == f.programs and len(node.pointers) == len(f.parameters)
        memories, places = {}, []
        for p, at in zip(f.parameters, node.pointers, strict=True):
            assert at % BYTES[p.elem] == 0, f"{p.elem} at {at:#x}"
            piece, offset = self.piece(at, p.nbytes)
            raw = piece.raw[offset : offset + p.nbytes]
            known = piece.known[offset : offset + p.nbytes].reshape(-1, BYTES[p.elem])
            memory = Memory(raw, p.elem, f"{f.name} (launch {n}): the memory at {at:#x}")
            memory.known = known.all(1)
            memories[p] = memory
            places.append((at, p, known, memory))
        interp.run([f], memories.__getitem__)
        for at, p, known, memory in places:
            known[memory.known] = True
            if touched is not None:
                touched.note(n, at, BYTES[p.elem], memory.reader != NOBODY, False)
                touched.note(n, at, BYTES[p.elem], memory.writer != NOBODY, True)


class Touched:
    """The bytes that the launches of a graph have touched, as runs: first byte, end, launch, whether it is stored."""

    def __init__(self) -> None:
        self.runs: list[np.ndarray] = []

    def note(self, n: int, address: int, width: int, on: np.ndarray, stored: bool) -> None:
        at = np.flatnonzero(np.diff(np.concatenate([[False], on, [False]]).astype(np.int8))).reshape(-1, 2)
        self.runs.append(np.column_stack([address + at * width, np.full((len(at), 2), (n, stored))]))

    def check(self, graph: FakeGraph) -> None:
        """Raises a Fault where two launches that no edge orders touch one byte, and one of them stores it."""
        runs = np.concatenate([*self.runs, np.zeros((0, 4), np.int64)])
        ordered: set[tuple[int, int]] = set()
        active: list[tuple[int, int, int]] = []
        for start, end, n, stored in runs[np.argsort(runs[:, 0], kind="stable")].tolist():
            active = [x for x in active if x[0] > start]
            for _, m, other in active:
                pair = (m, n) if m < n else (n, m)
                if m != n and (stored or other) and pair not in ordered:
                    if not graph.before[pair[1]] >> pair[0] & 1:
                        a, b = (graph.nodes[k].code.function.name for k in pair)
                        raise Fault(f"no edge orders launches {pair} ({a}, {b}), which touch {start:#x}")
                    ordered.add(pair)
            active.append((end, n, stored))


def compiled(sources: Sequence[TritonSource], capability: tuple[int, int]) -> list[Binary]:
    """No machine code, which the interpreter does not need."""
    return [Binary(b"", s.name, s.warps, 0, 0, 0) for s in sources]


def backend(seed: int = 0, **options: Any) -> Cuda:
    return Cuda(FakeDevice(seed, **options), card("h100"), compiled)
