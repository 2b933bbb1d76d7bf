"""A CUDA device in this process: kernels run by the interpreter of the tile IR, a graph's in a random order that its
edges allow. What a card would leave to chance is a Fault: launches that touch one byte and that no edge orders, and
memory that nobody has set, that has been freed, or that is not the device's."""

from __future__ import annotations

import itertools
import os
import random
import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from einsmith.base.errors import DeviceError, OutOfMemoryError
from einsmith.codegen.ssa import BYTES
from einsmith.driver import registry
from einsmith.driver.backend import Backend
from einsmith.driver.cuda import Cuda
from einsmith.gpu import card_runner
from einsmith.gpu.cards import card
from einsmith.gpu.cuda.device import CollectiveNode, CudaDevice, DeviceCode, DeviceFacts, LaunchNode, Node
from einsmith.gpu.tiles.triton_text import triton_text
from einsmith.gpu.tiles.verify import verify
from einsmith.gpu.triton.binary import Binary, TritonSource
from einsmith.tuning.kernels import candidate_worker
from tests.cuda.planted import CRASH, PlantedTiles
from tests.tiles import interp, stand_in
from tests.tiles.memory import NOBODY, Fault, Memory

CARD = "cuda:0"
FIRST = 1 << 56
"""Where the device's memory begins: beyond all addresses of processes, whose mappings may lie near 1 << 47."""


def seconds_of(node: LaunchNode) -> float:
    return 1e-6 * node.code.binary.warps


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
    nodes: list[Node]
    edges: list[tuple[int, int]]
    before: list[int] = field(default_factory=list)
    """For each node a bit for each node that comes before it."""
    checked: bool = False
    events: Sequence[int] = ()


class FakeDevice(CudaDevice):
    """memory: bytes that there are; way: how kernels run ("interpreter" or, printed, "text"); lazy: a graph runs once,
    and later launches of it take time and do nothing. A launch takes a microsecond for each warp of a program.
    `launches` counts the graphs that have run, `nodes` the launches in them, `graphs` the graphs that were made, and
    `swaps` the nodes of theirs that were replaced."""

    def __init__(
        self,
        seed: int = 0,
        memory: int = 1 << 33,
        multiprocessors: int = 132,
        way: str = "interpreter",
        lazy: bool = False,
    ):
        self.way = way
        self.facts = DeviceFacts("Fake H100", (9, 0), multiprocessors, memory, 50 << 20, 227 << 10, 12090)
        self.stream, self.copies = 1, 2
        self.random, self.lazy = random.Random(seed), lazy
        self.lock = threading.RLock()
        self.pieces: list[Piece] = []
        self.free_bytes, self._next = memory, FIRST
        self.launches = self.nodes = self.graphs = self.swaps = self.uploaded = self.downloaded = 0
        self.clock = 0.0
        self.events: dict[int, float] = {}
        self.missing = ""
        """Why the device can sum with no other one."""

    # -- memory

    def allocate(self, nbytes: int) -> int:
        with self.lock:
            if nbytes > self.free_bytes:
                raise OutOfMemoryError(
                    f"{nbytes} bytes are requested of the device, of which {self.free_bytes} are free"
                )
            address, self._next = self._next, self._next + -(-nbytes // 256) * 256 + 256
            self.pieces.append(Piece(address, np.full(nbytes, 0xFF, np.uint8), np.zeros(nbytes, bool)))
            self.free_bytes -= nbytes
        return address

    def free(self, address: int) -> None:
        with self.lock:
            at = [p.address for p in self.pieces].index(address)
            self.free_bytes += self.pieces.pop(at).raw.size

    def piece(self, address: int, nbytes: int) -> tuple[Piece, int]:
        with self.lock:
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
        there, start = self.piece(to, nbytes)
        there.raw[start : start + nbytes] = piece.raw[at : at + nbytes]
        there.known[start : start + nbytes] = piece.known[at : at + nbytes]

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

    def graph(self, nodes: Sequence[Node], edges: Sequence[tuple[int, int]], events: Sequence[int] = ()) -> FakeGraph:
        self.graphs += 1
        assert len(events) in (0, len(nodes) + 1)
        out = FakeGraph(list(nodes), list(edges), events=events)
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
        self.swaps += 1
        graph.nodes[number], graph.checked = node, False

    def launch(self, graph: FakeGraph, stream: Any) -> None:
        self.last = graph
        self.launches += 1
        if self.lazy and graph.checked:
            self.clock += sum(seconds_of(node) for node in graph.nodes)
            return
        if graph.events:
            self.record(graph.events[0], stream)
            for n, node in enumerate(graph.nodes):
                self.execute(node, n, None)
                self.record(graph.events[n + 1], stream)
            return
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

    def run(self, node: Node, stream: Any) -> None:
        self.execute(node, 0, None)

    # -- several devices

    def check_sums(self) -> None:
        if self.missing:
            raise DeviceError(self.missing)

    def unique_id(self) -> bytes:
        WORLDS.append(World())
        return (len(WORLDS) - 1).to_bytes(8, "little")

    def join(self, unique_id: bytes, rank: int, size: int) -> FakeCommunicator:
        return FakeCommunicator(WORLDS[int.from_bytes(unique_id, "little")], self, rank, size)

    def sum(self, node: CollectiveNode, n: int, touched: Touched | None) -> None:
        places = [
            (*self.piece(at, count * BYTES[node.elem]), count)
            for at, count in zip(node.addresses, node.counts, strict=True)
        ]
        for piece, offset, count in places:
            on = np.ones(count, bool)
            if not piece.known[offset : offset + count * BYTES[node.elem]].all():
                raise Fault(f"a sum reads memory at {piece.address:#x} that nobody has set")
            if touched is not None:
                touched.note(n, piece, offset, BYTES[node.elem], on, False)
                touched.note(n, piece, offset, BYTES[node.elem], on, True)
        node.communicator.all_reduce(node.addresses, node.counts, node.elem, self.stream)

    def execute(self, node: Node, n: int, touched: Touched | None) -> None:
        self.nodes += 1
        if isinstance(node, CollectiveNode):
            self.clock += 1e-6
            self.sum(node, n, touched)
            return
        self.clock += seconds_of(node)
        f = node.function.function
        if f.name.startswith(CRASH):
            os.abort()
        assert node.cooperative == f.cooperative
        assert not f.cooperative or f.programs <= self.facts.multiprocessors
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
            places.append((piece, offset, p, known, memory))
        shuffled = lambda count: self.random.sample(range(count), count)  # noqa: E731
        if self.way == "text":
            stand_in.run(triton_text([f]), [f], memories.__getitem__, shuffled)
        else:
            interp.run([f], memories.__getitem__, shuffled)
        for piece, offset, p, known, memory in places:
            known[memory.known] = True
            if touched is not None:
                touched.note(n, piece, offset, BYTES[p.elem], memory.was_loaded, False)
                touched.note(n, piece, offset, BYTES[p.elem], memory.was_stored, True)


class Touched:
    """The elements that the launches of a graph have touched, and whether they are loaded or stored."""

    def __init__(self) -> None:
        self.notes: dict[int, list[tuple[Piece, np.ndarray, bool]]] = {}

    def note(self, n: int, piece: Piece, offset: int, width: int, on: np.ndarray, stored: bool) -> None:
        if on.any():
            at = (offset + np.flatnonzero(on)[:, None] * width + np.arange(width)).reshape(-1)
            self.notes.setdefault(n, []).append((piece, at, stored))

    def check(self, graph: FakeGraph) -> None:
        """Raises a Fault where two launches that no edge orders touch one byte, and one of them stores it."""
        writers: dict[int, np.ndarray] = {}
        readers: dict[int, np.ndarray] = {}  # by byte the number of a set of launches that have loaded it since
        sets: dict[frozenset[int], int] = {frozenset(): 0}
        ordered: set[tuple[int, int]] = set()

        def expect(m: int, n: int, piece: Piece) -> None:
            if m not in (NOBODY, n) and (m, n) not in ordered:
                if not graph.before[n] >> m & 1:
                    a, b = (name_of(graph.nodes[k]) for k in (m, n))
                    raise Fault(f"no edge orders launches {m} and {n} ({a}, {b}), which touch {piece.address:#x}")
                ordered.add((m, n))

        for n, notes in sorted(self.notes.items()):
            for piece, at, stored in sorted(notes, key=lambda x: x[2]):
                last = writers.setdefault(piece.address, np.full(piece.raw.size, NOBODY, np.int32))
                since = readers.setdefault(piece.address, np.zeros(piece.raw.size, np.int32))
                for m in np.unique(last[at]).tolist():
                    expect(m, n, piece)
                known = {number: launches for launches, number in sets.items()}
                numbers = np.unique(since[at])
                if stored:
                    for number in numbers.tolist():
                        for m in known[number]:
                            expect(m, n, piece)
                    last[at], since[at] = n, 0
                else:
                    more = [sets.setdefault(known[k] | {n}, len(sets)) for k in numbers.tolist()]
                    since[at] = np.array(more, np.int32)[np.searchsorted(numbers, since[at])]


def name_of(node: Node) -> str:
    return "a sum" if isinstance(node, CollectiveNode) else node.code.function.name


class World:
    """A group of devices: the sum under way, and all that have been made, each as (counts, element type)."""

    def __init__(self) -> None:
        self.handle = next(_handles)
        self.lock = threading.Lock()
        self.barrier: threading.Barrier | None = None
        self.given: dict[int, tuple[Any, list[np.ndarray]]] = {}
        self.sums: list[tuple[tuple[int, ...], str]] = []


WORLDS: list[World] = []
_handles = itertools.count(1)
PATIENCE = 30.0
"""Seconds after which a device that waits for the others gives up."""


class FakeCommunicator:
    """One device of a group; each is used by a thread of its own. Sums are in the order of the ranks."""

    def __init__(self, world: World, device: FakeDevice, rank: int, size: int):
        self.world, self.device, self.rank, self.size = world, device, rank, size
        self.handle, self.launched = world.handle, 0
        with world.lock:
            world.barrier = world.barrier or threading.Barrier(size, timeout=PATIENCE)

    def all_reduce(self, addresses: Sequence[int], counts: Sequence[int], elem: str, stream: Any) -> None:
        world, form = self.world, (tuple(counts), elem)
        dtype = {"f32": np.float32, "f64": np.float64}[elem]
        mine = []
        for at, count in zip(addresses, counts, strict=True):
            piece, offset = self.device.piece(at, count * BYTES[elem])
            mine.append(piece.raw[offset : offset + count * BYTES[elem]].view(dtype))
        world.given[self.rank] = form, mine
        if world.barrier.wait() == 0:
            world.sums.append(form)
        given = [world.given[rank] for rank in range(self.size)]
        if any(other != form for other, _ in given):
            raise Fault(f"the devices sum {[other for other, _ in given]} at one time")
        totals = [sum(arrays[1:], arrays[0].copy()) for arrays in zip(*(arrays for _, arrays in given), strict=True)]
        world.barrier.wait()
        for array, total in zip(mine, totals, strict=True):
            array[:] = total
        world.barrier.wait()


def compiled(sources: Sequence[TritonSource], capability: tuple[int, int]) -> list[Binary]:
    """No machine code, which the interpreter does not need."""
    return [Binary(b"", s.name, s.warps, 0, 0, 0) for s in sources]


def backend(seed: int = 0, planted: bool = False, name: str = "h100", ordinal: int = 0, **options: Any) -> Cuda:
    """planted: kernels have the configurations of `planted.PlantedTiles` instead of real ones."""
    described = replace(card(name), device=f"cuda:{ordinal}")
    made = Cuda(FakeDevice(seed, **options), described, compiled, partial(find, planted, name))
    if planted:
        made.patterns = (PlantedTiles(),)
    return made


def find(planted: bool, name: str) -> Backend:
    """The same card, in a process that measures."""
    candidate_worker.MAX_COPIES = card_runner.MIN_RUNS = 2
    if CARD not in registry.BACKENDS:
        registry.register(backend(0, planted, name, lazy=True))
    return registry.BACKENDS[CARD]
