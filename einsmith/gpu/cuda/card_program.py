"""Run the steps of a program on a CUDA device, as one graph of launches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from einsmith.base.errors import ArgumentError
from einsmith.gpu.cuda.card import Card
from einsmith.gpu.cuda.device import CollectiveNode, CudaDevice, DeviceCode, LaunchNode, Node
from einsmith.gpu.cuda.executable_graph import ExecutableGraph
from einsmith.gpu.cuda.launches import (
    ByteRange,
    DeviceLaunch,
    DeviceSum,
    GuardWords,
    TileCode,
    edges,
    flatten,
    overlaps,
)
from einsmith.gpu.cuda.resident import DeviceMemory, Resident
from einsmith.gpu.tiles.triton_text import ALIGNED
from einsmith.ir.nodes import Leaf
from einsmith.runtime import buffers
from einsmith.runtime.arena import Block
from einsmith.runtime.assemble import Assembler
from einsmith.runtime.steps import AllReduce, Await, BeginLoop, CheckFinite, CheckZero, Notify, RunLaunch, StepTimes

PLACED = 64
"""Bytes at a multiple of which each input and output begins in the block of all of them on the device."""
MOST_NUMBERS = 4096
"""Most bytes of a bound array, of whose changes nothing tells, that each run uploads; larger ones are compared."""


IN_FLIGHT = 2
"""Most runs that have begun and not ended: one computes while the next one's inputs are copied."""


class _Passed(NamedTuple):
    """An input or output of each run: the word of the table that holds its address in this process, the offset that the
    word includes, where it begins in the block of all of them on the device, and its bytes."""

    word: int
    offset: int
    start: int
    nbytes: int

    def host(self, table: np.ndarray) -> np.ndarray:
        """Return its bytes in this process."""
        return buffers.bytes_at(int(table[self.word]) - self.offset, self.nbytes)


class _Numbers(NamedTuple):
    """A small bound array that each run uploads with its inputs: the array, and where it begins in their block."""

    array: np.ndarray
    start: int


class Flight:
    """A run in flight: the memory that its copies use, and what it stores where it ends.

    Args:
        device: the device.
        sent, received: bytes that a run uploads, and that it downloads.
    """

    def __init__(self, device: CudaDevice, memory: DeviceMemory, sent: int, received: int):
        self.sent, self.received = device.pinned(max(sent, ALIGNED)), device.pinned(max(received, ALIGNED))
        self.staged = memory.block(sent)
        self.uploaded, self.taken, self.done = device.event(), device.event(), device.event()
        self.outputs: list[tuple[np.ndarray, int]] = []
        """Arrays of this process and where their bytes begin in `received`."""
        self.is_open = self.was_used = False


class CudaProgram:
    """A program on a device (`driver.backend.Runnable`). Its table holds addresses of this process for what lies in
    arrays, and addresses of the device for intermediate results.

    A graph is built for the addresses at hand, and again where the memory of intermediate results has moved. A run
    brings the copies of bound arrays up to date, uploads the inputs, launches the graph and downloads the outputs. Runs
    may overlap (`begin`): the inputs of the next one are copied while one computes.

    origin: a program that differs in some kernels. The two take turns on memory, and on the graph where their launches
    have the same edges.

    Raises:
        ArgumentError: the program waits for other threads, which a graph cannot.
    """

    def __init__(self, assembler: Assembler, card: Card, origin: CudaProgram | None = None):
        self.card, self.steps = card, tuple(assembler.steps)
        if any(isinstance(s, Notify | Await) for s in self.steps):
            raise ArgumentError(
                "a program on a card cannot wait for other threads within a step, as SyncBatchNorm and group_sum do; "
                'use BatchNorm and no group_sum, or device="cpu"'
            )
        self._places = dict(assembler.places)
        self.slots: dict[tuple[int, int | str], int] = {}
        words: list[int] = []
        for n, step in enumerate(self.steps):
            for key, word in _pointers(step).items():
                self.slots[n, key] = len(words)
                words.append(word)
        self.table = buffers.empty((len(words) + 1,), np.uint64)
        self.table[:-1] = words
        self._sent: Block
        self._received: Block
        self._spare: Block
        self._words_block: Block
        self._guards: GuardWords | None = None
        self.graph: ExecutableGraph | None = None
        self._timed: ExecutableGraph | None = None
        """The graph with events between the launches."""
        self.flights: deque[Flight] = deque()
        self._bind(assembler, origin)
        self.nodes: Sequence[Node] = ()
        self._communicators = {id(s.communicator): s.communicator for s in self.steps if isinstance(s, AllReduce)}
        self.launches: list[DeviceLaunch | DeviceSum] = []
        self.edges: list[tuple[int, int]] = []
        self._sent_numbers: list[bytes] = []
        self._build()

    # -- memory

    def _bind(self, assembler: Assembler, origin: CudaProgram | None) -> None:
        """Find out what each word of the table points to: a bound array, an input, an output, or the arena."""
        memory, arrays = self.card.memory, assembler.arrays
        copies: dict[Leaf, Resident] = {}
        spans: dict[Any, tuple[int, int]] = {}  # of what each run uploads and downloads: (start, bytes)
        sizes = {True: 0, False: 0}

        def add(owner: Any, nbytes: int, is_sent: bool) -> None:
            if owner not in spans:
                spans[owner] = sizes[is_sent], nbytes
                sizes[is_sent] += -(-nbytes // PLACED) * PLACED

        known = {at: place for at, place in self._places.items() if at in self.slots}
        updated = {place.owner for at, place in known.items() if at in assembler.values}
        for at, place in known.items():
            owner, word = place.owner, int(self.table[self.slots[at]])
            if owner in arrays:
                array, of = arrays[owner], assembler.memories.get(id(arrays[owner]))
                if of is None and array.nbytes <= MOST_NUMBERS and owner not in updated:
                    add(owner, array.nbytes, True)
                elif owner not in copies:
                    copies[owner] = self.card.residents.of(array, of)
            elif word == assembler.spare and not isinstance(owner, tuple):
                add(owner, place.nbytes, isinstance(owner, Leaf))
        sizes[False] += PLACED  # the status comes last
        self._sent_bytes, self._received_bytes = sizes[True], sizes[False]
        if origin is not None and (origin._sent_bytes, origin._received_bytes) == (sizes[True], sizes[False]):
            self._sent, self._received, self._spare = origin._sent, origin._received, origin._spare
            self.flights, self.graph, self._timed = origin.flights, origin.graph, origin._timed
            self._guards, self._words_block = origin._guards, origin._words_block
        else:
            self._sent, self._received = memory.block(sizes[True]), memory.block(sizes[False])
            self._spare = memory.block(ALIGNED)
            self._clear_status()
        self._on_device: dict[tuple[int, int | str], int] = {}
        """The address on the device of each word that points into memory of this process."""
        passed: dict[Any, _Passed] = {}
        for at, place in known.items():
            owner, word = place.owner, self.slots[at]
            if owner in copies:
                self._on_device[at] = copies[owner].address + place.offset
            elif owner in spans:
                is_sent = owner in arrays or isinstance(owner, Leaf)
                block = self._sent if is_sent else self._received
                start, nbytes = spans[owner]
                self._on_device[at] = block.address + start + place.offset
                if owner not in arrays:
                    passed.setdefault(owner, _Passed(word, place.offset, start, nbytes))
            elif int(self.table[word]) == assembler.spare:
                self._on_device[at] = self._spare.address
        self._copies = copies
        self._numbers = [_Numbers(arrays[x], spans[x][0]) for x in spans if x in arrays]
        self._inputs = [p for owner, p in passed.items() if isinstance(owner, Leaf)]
        self._outputs = [p for owner, p in passed.items() if not isinstance(owner, Leaf)]
        self._own = [self._sent.address + p.start for p in self._inputs]
        self._own += [self._received.address + p.start for p in self._outputs]
        """The addresses of inputs and outputs in the blocks that runs copy to and from."""
        moved = {w for at, w in self.slots.items() if at not in self._places}
        translated = {self.slots[at] for at in self._on_device} | moved
        self._fixed = np.array([w for w in self.slots.values() if w not in translated], np.intp)
        """Words with addresses of the device."""

    def _build(self) -> None:
        """Build the graph for the addresses at hand."""
        device, memory = self.card.device, self.card.memory
        self._built = self.table[self._fixed].copy()
        words = {at: int(self.table[w]) for at, w in self.slots.items()} | self._on_device
        status = self._received.address + self._received_bytes - PLACED
        guards = GuardWords.of(self.steps, status)
        if self._guards is None or replace(self._guards, address=0) != guards:
            self._words_block = memory.block(guards.nbytes)
            self._guards = replace(guards, address=self._words_block.address)
            staged = device.pinned(max(guards.nbytes, ALIGNED))
            self._guards.fill(staged[: guards.nbytes])
            device.upload(self._guards.address, staged[: guards.nbytes], device.stream)
        kept = [ByteRange(c.address, c.address + c.block.nbytes) for c in self._copies.values()]
        self.launches = flatten(self.steps, words, self._guards, overlaps(kept), device.facts.multiprocessors)
        stores = [r for launch in self.launches for r in launch.ranges()[1]]
        self._stored = [
            c
            for c in self._copies.values()
            if any(r.start < c.address + c.block.nbytes and c.address < r.end for r in stores)
        ]
        self.edges = edges(self.launches)
        codes = iter(self._code_of([x for x in self.launches if isinstance(x, DeviceLaunch)]))
        nodes: list[Node] = []
        for x in self.launches:
            if isinstance(x, DeviceSum):
                nodes.append(CollectiveNode(x.communicator, x.pointers, x.counts, x.elem))
                continue
            code, f = next(codes), x.code.function
            nodes.append(LaunchNode(device.load(code), code, f.programs, x.pointers, f.cooperative))
        self.nodes = nodes
        if self.graph is None or not self.graph.fits(nodes, self.edges):
            self.graph = ExecutableGraph(device, nodes, self.edges)
        self._addresses = list(self._own)
        self._relocations = self._find_relocations()
        device.synchronize(device.stream)

    def _find_relocations(self) -> list[dict[int, list[tuple[int, int]]]]:
        """Return, for each input and output, by the number of a launch the pointers into it, and how far into it."""
        out: list[dict[int, list[tuple[int, int]]]] = []
        for start, x in zip(self._own, (*self._inputs, *self._outputs), strict=True):
            by_launch: dict[int, list[tuple[int, int]]] = {}
            for n, launch in enumerate(self.launches):
                inside = [(i, at - start) for i, at in enumerate(launch.pointers) if start <= at < start + x.nbytes]
                if inside:
                    by_launch[n] = inside
            out.append(by_launch)
        return out

    def _relocate(self, addresses: Sequence[int]) -> None:
        """Let the launches access the inputs and outputs at these addresses."""
        if addresses == self._addresses:
            return
        nodes = list(self.nodes)
        for k, (now, at) in enumerate(zip(self._addresses, addresses, strict=True)):
            for n, pointers in self._relocations[k].items() if now != at else ():
                node = nodes[n]
                assert isinstance(node, LaunchNode)  # what is summed over cards is bound memory
                moved = list(node.pointers)
                for i, offset in pointers:
                    moved[i] = at + offset
                nodes[n] = node._replace(pointers=tuple(moved))
        self.nodes, self._addresses = nodes, list(addresses)

    def _clear_status(self) -> None:
        """Set the status to 0: no check has failed."""
        device, status = self.card.device, self._received.address + self._received_bytes - PLACED
        zeros = np.zeros(PLACED, np.uint8)
        device.upload(status, zeros, device.stream)
        device.synchronize(device.stream)

    def _code_of(self, launches: Sequence[DeviceLaunch]) -> list[DeviceCode]:
        """Return the machine code of each launch. Launches of one step share their code, which assumes alignment only
        of pointers that are aligned in all of them."""
        aligned: dict[tuple[int, TileCode], list[bool]] = {}
        for launch in launches:
            now = [at % ALIGNED == 0 for at in launch.pointers]
            known = aligned.setdefault((launch.step, launch.code), now)
            known[:] = [a and b for a, b in zip(known, now, strict=True)]
        kinds = [(x.code, tuple(aligned[x.step, x.code])) for x in launches]
        return self.card.codes(kinds)

    @property
    def codes(self) -> list[DeviceCode]:
        """The machine code of each launch."""
        return [node.code for node in self.nodes if isinstance(node, LaunchNode)]

    def describe(self, steps: Sequence[int]) -> list[str]:
        """Describe the machine code of some steps, one line for each function."""
        lines: dict[str, int] = {}
        for launch, node in zip(self.launches, self.nodes, strict=True):
            if isinstance(launch, DeviceLaunch) and isinstance(node, LaunchNode) and launch.step in steps:
                f, code = launch.code.function, node.code.binary
                spills = f"{code.stack} bytes of spills" if code.stack else "no spills"
                line = (
                    f"{f.name}: {f.programs} programs of {code.warps} warps, {code.registers} registers, "
                    f"{code.shared / 1024:.0f} KiB shared, {spills}"
                )
                lines[line] = lines.get(line, 0) + 1
        return [f"{line}, {count} times" if count > 1 else line for line, count in lines.items()]

    # -- runs

    def run(self) -> int:
        """Run all steps; return 0, or the code of the first check that fails."""
        self._fetch_others()
        with self.card.lock:
            return self.finish(self.begin())

    def _fetch_others(self) -> None:
        """Bring this process's memory up to date where another card has newer copies. That takes the guard of the
        memory, for which a thread must not wait with the card's lock."""
        for copy in self._copies.values():
            copy.fetch_other()

    def begin(self, launch: Callable[[], None] | None = None) -> Flight:
        """Begin a run of all steps, and return it; `finish` ends the runs in their order. The content of the inputs'
        memory may change meanwhile. At most IN_FLIGHT runs are under way at once; after a check has failed, runs that
        have begun change nothing.

        launch: launches the steps in another way than as one graph.
        """
        device, stream = self.card.device, self.card.device.stream
        with self.card.lock:
            self._prepare(stream)
            self._relocate(self._own)
            flight, self._sent_numbers = self._take_flight(), []
            for x in self._inputs:
                flight.sent[x.start : x.start + x.nbytes] = x.host(self.table)
            for number in self._numbers:
                raw = number.array.reshape(-1).view(np.uint8)
                flight.sent[number.start : number.start + raw.size] = raw
            if self._sent_bytes:
                if flight.was_used:
                    device.wait(device.copies, flight.taken)
                device.upload(flight.staged.address, flight.sent[: self._sent_bytes], device.copies)
                device.record(flight.uploaded, device.copies)
                device.wait(stream, flight.uploaded)
                device.copy(self._sent.address, flight.staged.address, self._sent_bytes, stream)
                device.record(flight.taken, stream)
            if launch is None:
                self.launch(stream)
            else:
                launch()
            for communicator in self._communicators.values():
                communicator.launched += 1
            flight.outputs = [(x.host(self.table), x.start) for x in self._outputs]
            device.download(flight.received[: self._received_bytes], self._received.address, stream)
            device.record(flight.done, stream)
            flight.is_open = flight.was_used = True
            for copy in self._stored:
                copy.note_begun()
        return flight

    def _prepare(self, stream: Any) -> None:
        """Bring the graph and the copies of bound arrays up to date, for a run in a stream."""
        if not np.array_equal(self.table[self._fixed], self._built):
            self._build()
        self.card.enter(stream)
        for copy in self._copies.values():
            copy.refresh(stream)

    def run_on(self, stream: Any) -> int:
        """Run all steps in a stream of the caller's, on memory of the device: the table has the addresses of inputs and
        outputs there. Return the result of `run`; a program without checks returns before its end.

        An input that begins at no multiple of ALIGNED bytes is copied; an output must not begin there."""
        device = self.card.device
        self._fetch_others()
        with self.card.lock:
            self._prepare(stream)
            addresses = [int(self.table[x.word]) - x.offset for x in (*self._inputs, *self._outputs)]
            for k, x in enumerate(self._inputs):
                if addresses[k] % ALIGNED:
                    device.copy(self._own[k], addresses[k], x.nbytes, stream)
                    addresses[k] = self._own[k]
            self._relocate(addresses)
            self._send_numbers(stream)
            self.launch(stream)
            for copy in self._stored:
                copy.note_begun()
            status = np.zeros(PLACED, np.uint8)
            if self._guards is not None and self._guards.codes:
                device.download(status, self._guards.status, stream)
                device.synchronize(stream)
                if status.any():
                    self._clear_status()
        return int(status[:4].view(np.int32)[0])

    def launch(self, stream: Any) -> None:
        """Launch the steps in a stream, on what inputs and bound arrays have on the device."""
        assert self.graph is not None
        self.graph.launch(self.nodes, stream)

    def copy_on(self, stream: Any, to: int, source: int, nbytes: int, is_here: bool) -> None:
        """Copy bytes to the device in a stream, from this process's memory (`is_here`) or from the device's."""
        if is_here:
            self.card.device.upload(to, buffers.bytes_at(source, nbytes), stream)
        else:
            self.card.device.copy(to, source, nbytes, stream)

    def _send_numbers(self, stream: Any) -> None:
        """Upload small bound arrays, where they have changed since the last such upload."""
        now = [number.array.tobytes() for number in self._numbers]
        if now != self._sent_numbers:
            for number in self._numbers:
                device_address = self._sent.address + number.start
                self.card.device.upload(device_address, np.ascontiguousarray(number.array), stream)
            self._sent_numbers = now

    def _take_flight(self) -> Flight:
        """Return memory for another run in flight."""
        if len(self.flights) < IN_FLIGHT and all(f.is_open for f in self.flights):
            self.flights.append(Flight(self.card.device, self.card.memory, self._sent_bytes, self._received_bytes))
        else:
            self.flights.rotate(-1)
        flight = self.flights[-1]
        if flight.is_open:
            raise RuntimeError("too many runs are in flight")
        return flight

    def finish(self, flight: Flight) -> int:
        """Wait for the end of a run that `begin` has returned; store its outputs, and return what `run` does."""
        device = self.card.device
        with self.card.lock:
            device.await_event(flight.done)
            for array, start in flight.outputs:
                array[:] = flight.received[start : start + array.size]
            status = int(flight.received[self._received_bytes - PLACED :][:4].view(np.int32)[0])
            flight.is_open, flight.outputs = False, []
            if not any(f.is_open for f in self.flights):
                if status:
                    self._clear_status()
                for copy in self._stored:
                    copy.note_store(device.stream)
        return status

    def run_timed(self) -> tuple[int, np.ndarray]:
        """Run all steps, each launch after the one before; return the result of `run` and the seconds of each step."""
        status, times = self.run_recorded()
        return status, times.seen / 1e9

    def run_recorded(self) -> tuple[int, StepTimes]:
        """Run all steps, each launch after the one before; return the result of `run`, and when each step was at
        work."""
        device = self.card.device
        begun = 0

        def launch() -> None:
            nonlocal begun
            if self._timed is None or not self._timed.fits(self.nodes, []):
                events = [device.event() for _ in range(len(self.nodes) + 1)]
                self._timed = ExecutableGraph(device, self.nodes, [], events)
            device.synchronize(device.stream)
            begun = perf_counter_ns()
            self._timed.launch(self.nodes, device.stream)

        self._fetch_others()
        with self.card.lock:
            status = self.finish(self.begin(launch))
        assert self._timed is not None
        events = self._timed.events
        seen = np.zeros(len(self.steps), np.int64)
        starts = np.zeros((len(self.steps), 1), np.int64)
        for x, first, last in zip(self.launches, events, events[1:], strict=False):
            if x.step >= 0:
                seen[x.step] += round(1e9 * device.elapsed(first, last))
                starts[x.step, 0] = starts[x.step, 0] or begun + round(1e9 * device.elapsed(events[0], first))
        return status, StepTimes(seen, starts, seen[:, None].copy())

    def move_scratch(self, address: int) -> None:
        """Do nothing: kernels on a card have no scratch memory."""


def _pointers(step: Any) -> Mapping[int | str, int]:
    """Return the pointers of a step, by their number or name (`Runnable.slots`)."""
    if isinstance(step, RunLaunch | AllReduce):
        return dict(enumerate(step.pointers))
    if isinstance(step, BeginLoop):
        return {**dict(enumerate(step.bases)), "stop": step.stop, "first": step.first}
    if isinstance(step, CheckZero | CheckFinite):
        return {0: step.pointer}
    return {}
