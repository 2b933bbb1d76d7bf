"""Run the steps of a program on a CUDA device, as one graph of launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from einsmith.base import locks
from einsmith.base.errors import ArgumentError
from einsmith.ir.nodes import Leaf
from einsmith.runtime import buffers
from einsmith.runtime.arena import Block
from einsmith.runtime.assemble import Assembler
from einsmith.runtime.cuda.device import CudaDevice, DeviceCode, LaunchNode
from einsmith.runtime.cuda.launches import (
    ByteRange,
    DeviceLaunch,
    GuardWords,
    TileCode,
    edges,
    flatten,
    overlaps,
)
from einsmith.runtime.cuda.resident import DeviceMemory, Resident, Residents
from einsmith.runtime.steps import Await, BeginLoop, CheckFinite, CheckZero, Notify, RunLaunch, StepTimes
from einsmith.tiles.triton_text import ALIGNED

BuildCode = Callable[[Sequence[tuple[TileCode, tuple[bool, ...]]]], list[DeviceCode]]
"""Function that makes machine code of each (code, whether each of its parameters is a multiple of ALIGNED bytes)."""


class Card:
    """A device with what programs on it share: its memory, the copies of arrays, the machine code, and the lock that
    one run at a time holds."""

    def __init__(self, device: CudaDevice, build: BuildCode):
        self.device, self.build = device, build
        self.memory = DeviceMemory(device)
        self.residents = Residents(self.memory)
        self.lock = locks.lock()


class _Passed(NamedTuple):
    """An input or output of each run: the word of the table that holds its address in this process, the offset that the
    word includes, the memory on the device, and its bytes."""

    word: int
    offset: int
    block: Block
    nbytes: int


class CudaProgram:
    """A program on a device (`driver.backend.Runnable`). Its table holds addresses of this process for what lies in
    arrays, and addresses of the device for intermediate results.

    A graph is built for the addresses at hand, and again where the memory of intermediate results has moved. A run
    brings the copies of bound arrays up to date, uploads the inputs, launches the graph and downloads the outputs.

    Raises:
        ArgumentError: the program waits for other threads, which a graph cannot.
    """

    def __init__(self, assembler: Assembler, card: Card):
        self.card, self.steps = card, tuple(assembler.steps)
        if any(isinstance(s, Notify | Await) for s in self.steps):
            raise ArgumentError("a program on a card cannot wait for other processes within a step")
        self._places = dict(assembler.places)
        self.slots: dict[tuple[int, int | str], int] = {}
        words: list[int] = []
        for n, step in enumerate(self.steps):
            for key, word in _pointers(step).items():
                self.slots[n, key] = len(words)
                words.append(word)
        self.table = buffers.empty((len(words) + 1,), np.uint64)
        self.table[:-1] = words
        self._bind(assembler)
        self._nodes: list[LaunchNode] = []
        self.launches: list[DeviceLaunch] = []
        self.edges: list[tuple[int, int]] = []
        self._graph: Any = None
        self._built = np.zeros(0, np.uint64)
        self._words_block: Block | None = None
        self._build()

    # -- memory

    def _bind(self, assembler: Assembler) -> None:
        """Find out what each word of the table points to: a bound array, an input, an output, or the arena."""
        copies: dict[Leaf, Resident] = {}
        passed: dict[Any, _Passed] = {}
        self._on_device: dict[tuple[int, int | str], int] = {}
        """The address on the device of each word that points into an array of this process."""
        moved = [w for (n, i), w in self.slots.items() if (n, i) not in self._places]
        spare = self.card.memory.block(ALIGNED)
        for at, place in self._places.items():
            if at not in self.slots:
                continue
            word = int(self.table[self.slots[at]])
            if place.owner in assembler.arrays:
                array = assembler.arrays[place.owner]
                if place.owner not in copies:
                    memory = assembler.memories.get(id(array))
                    copies[place.owner] = self.card.residents.of(array, memory)
                self._on_device[at] = copies[place.owner].address + place.offset
            elif word == assembler.spare and not isinstance(place.owner, tuple):
                if place.owner not in passed:
                    block = self.card.memory.block(place.nbytes)
                    passed[place.owner] = _Passed(self.slots[at], place.offset, block, place.nbytes)
                self._on_device[at] = passed[place.owner].block.address + place.offset
            elif word == assembler.spare:
                self._on_device[at] = spare.address
        self._spare = spare
        self._copies = copies
        self._inputs = [p for owner, p in passed.items() if isinstance(owner, Leaf)]
        self._outputs = [p for owner, p in passed.items() if not isinstance(owner, Leaf)]
        given = {self.slots[at] for at in self._on_device} | set(moved)
        self._fixed = np.array([w for w in self.slots.values() if w not in given], np.intp)
        """Words with addresses of the device."""

    def _build(self) -> None:
        """Build the graph for the addresses at hand."""
        device = self.card.device
        self._built = self.table[self._fixed].copy()
        words = {at: int(self.table[w]) for at, w in self.slots.items()} | self._on_device
        guards = GuardWords.of(self.steps)
        block = self._words_block or self.card.memory.block(guards.nbytes)
        guards = GuardWords.of(self.steps, block.address)
        staged = device.pinned(guards.nbytes)
        guards.fill(staged)
        device.upload(block.address, staged, device.stream)
        self._words_block, self._guards = block, guards
        kept = [ByteRange(c.address, c.address + c.block.nbytes) for c in self._copies.values()]
        self.launches = flatten(self.steps, words, guards, overlaps(kept))
        stores = [r for launch in self.launches for r in launch.ranges()[1]]
        self._stored = [
            c
            for c in self._copies.values()
            if any(r.start < c.address + c.block.nbytes and c.address < r.end for r in stores)
        ]
        self.edges = edges(self.launches)
        codes = self._code_of(self.launches)
        self._nodes = [
            LaunchNode(device.load(code), code, launch.code.function.programs, launch.pointers)
            for launch, code in zip(self.launches, codes, strict=True)
        ]
        self._graph = device.graph(self._nodes, self.edges)
        device.synchronize(device.stream)

    def _code_of(self, launches: Sequence[DeviceLaunch]) -> list[DeviceCode]:
        """Return the machine code of each launch. Launches of one step have the same, which promises of its pointers
        what holds for all of them."""
        aligned: dict[tuple[int, TileCode], list[bool]] = {}
        for launch in launches:
            now = [at % ALIGNED == 0 for at in launch.pointers]
            known = aligned.setdefault((launch.step, launch.code), now)
            known[:] = [a and b for a, b in zip(known, now, strict=True)]
        kinds = [(x.code, tuple(aligned[x.step, x.code])) for x in launches]
        distinct = list(dict.fromkeys(kinds))
        made = dict(zip(distinct, self.card.build(distinct), strict=True))
        return [made[kind] for kind in kinds]

    @property
    def codes(self) -> list[DeviceCode]:
        """The machine code of each launch."""
        return [node.code for node in self._nodes]

    def describe(self, steps: Sequence[int]) -> list[str]:
        """Describe the machine code of some steps, one line for each function."""
        lines: dict[str, int] = {}
        for launch, node in zip(self.launches, self._nodes, strict=True):
            if launch.step in steps:
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
        device = self.card.device
        return self._run(lambda: device.launch(self._graph, device.stream))

    def _run(self, launch: Callable[[], None]) -> int:
        device, stream = self.card.device, self.card.device.stream
        with self.card.lock:
            if not np.array_equal(self.table[self._fixed], self._built):
                self._build()
            for copy in self._copies.values():
                copy.refresh(stream)
            for x in self._inputs:
                device.upload(x.block.address, _host(self.table, x), stream)
            launch()
            for x in self._outputs:
                device.download(_host(self.table, x), x.block.address, stream)
            status = np.zeros(1, np.int32)
            if self._guards.codes:
                device.download(status, self._guards.status, stream)
            device.synchronize(stream)
            for copy in self._stored:
                copy.note_store(stream)
        return int(status[0])

    def run_timed(self) -> tuple[int, np.ndarray]:
        """Run all steps, each launch by itself; return the result of `run` and the seconds of each step."""
        status, times = self.run_recorded()
        return status, times.seen / 1e9

    def run_recorded(self) -> tuple[int, StepTimes]:
        """Run all steps, each launch by itself; return the result of `run`, and when each step was at work."""
        device = self.card.device
        events = [device.event() for _ in range(len(self._nodes) + 1)]
        begun = 0

        def launch() -> None:
            nonlocal begun
            device.synchronize(device.stream)
            begun = perf_counter_ns()
            device.record(events[0], device.stream)
            for node, event in zip(self._nodes, events[1:], strict=True):
                device.run(node, device.stream)
                device.record(event, device.stream)

        status = self._run(launch)
        seen = np.zeros(len(self.steps), np.int64)
        starts = np.zeros((len(self.steps), 1), np.int64)
        for x, first, last in zip(self.launches, events, events[1:], strict=False):
            if x.step >= 0:
                seen[x.step] += round(1e9 * device.elapsed(first, last))
                starts[x.step, 0] = starts[x.step, 0] or begun + round(1e9 * device.elapsed(events[0], first))
        return status, StepTimes(seen, starts, seen[:, None].copy())

    def move_scratch(self, address: int) -> None:
        """Do nothing: kernels on a card have no scratch memory."""


def _host(table: np.ndarray, x: _Passed) -> np.ndarray:
    """Return the bytes of an input or output in this process."""
    return buffers.bytes_at(int(table[x.word]) - x.offset, x.nbytes)


def _pointers(step: Any) -> Mapping[int | str, int]:
    """Return the pointers of a step, by their number or name (`Runnable.slots`)."""
    if isinstance(step, RunLaunch):
        return dict(enumerate(step.pointers))
    if isinstance(step, BeginLoop):
        return {**dict(enumerate(step.bases)), "stop": step.stop, "first": step.first}
    if isinstance(step, CheckZero | CheckFinite):
        return {0: step.pointer}
    return {}
