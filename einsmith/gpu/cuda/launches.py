"""Turn the steps of a program into launches with final addresses, and find which of them must wait for which.

A loop becomes one cooperative launch where its programs wait for each other in less time than launches do. Other loops
are unrolled: a launch in a loop of 20 turns becomes 20 launches, each with the addresses of its turn. A launch waits
for an earlier one if both access a byte and one of them stores it. The arena gives one address to tensors that are
never alive together, so the bytes alone tell, and not the names of tensors.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from einsmith.base.locks import cached_property
from einsmith.codegen.ssa import BYTES, operations
from einsmith.gpu.cards import GpuTarget
from einsmith.gpu.tiles.guards import CHECKS, LaunchGuard, accessed, guarded
from einsmith.gpu.tiles.ir import TileFunction, TileParameter
from einsmith.gpu.tiles.persistent import Persistent, TurnLaunch, combine
from einsmith.gpu.tiles.triton_text import triton_text
from einsmith.runtime.steps import AllReduce, BeginLoop, CheckFinite, CheckZero, RunLaunch, Step, Together, end_of_loop

WORD = 16
"""Bytes between the words that guards read, which all begin where 16 bytes can be loaded at once."""
GRID_BARRIER = 0.8e-6
"""Seconds that a grid barrier takes, an estimate: an atomic addition at the level 2 cache, a load from there that sees
the last one, and what the slowest program lags behind."""
ROUND = 2e-6
"""Seconds that programs of a small function take, an estimate; on a multiprocessor, programs of a cooperative function
run one after the other, and those of a launch beside each other."""


@dataclass(eq=False)
class TileCode:
    """A function of the tile IR, with its warps and the turns of a loop that are loaded ahead."""

    function: TileFunction
    warps: int = 4
    stages: int = 3
    _guarded: dict[tuple[LaunchGuard, int], TileCode] = field(default_factory=dict)

    @cached_property
    def accessed(self) -> tuple[Sequence[bool], Sequence[bool]]:
        """Return, for each parameter, whether the function loads from it; and for each, whether it stores to it."""
        return accessed(self.function)

    def guarded(self, guard: LaunchGuard, buffers: int) -> TileCode:
        """Return the code that looks at the program's status first (`gpu.tiles.guards.guarded`)."""
        if not guard.elems:
            return self
        key = guard, buffers
        if key not in self._guarded:
            self._guarded[key] = TileCode(guarded(self.function, guard, buffers), self.warps, self.stages)
        return self._guarded[key]


_CHECKS = {elem: TileCode(f, 1, 1) for elem, f in CHECKS.items()}


class ByteRange(NamedTuple):
    """Addresses from `start` to before `end`."""

    start: int
    end: int


class DeviceLaunch(NamedTuple):
    """A launch of code: the addresses that its parameters get, and the number of the step that it belongs to."""

    code: TileCode
    pointers: tuple[int, ...]
    step: int

    def ranges(self) -> tuple[list[ByteRange], list[ByteRange]]:
        """Return the ranges of bytes that the launch may load, and of those that it may store."""
        loaded, stored = self.code.accessed
        places = [
            ByteRange(at, at + p.nbytes) for at, p in zip(self.pointers, self.code.function.parameters, strict=True)
        ]
        return (
            [r for r, yes in zip(places, loaded, strict=True) if yes and r.end > r.start],
            [r for r, yes in zip(places, stored, strict=True) if yes and r.end > r.start],
        )


class DeviceSum(NamedTuple):
    """A sum over devices (`AllReduce`), of elements at these addresses, and the number of its step."""

    communicator: Any
    pointers: tuple[int, ...]
    counts: tuple[int, ...]
    elem: str
    step: int

    def ranges(self) -> tuple[list[ByteRange], list[ByteRange]]:
        """Return the ranges of bytes loaded and of bytes stored, which are equal for a sum in place.

        The communicator counts as one more byte, so that its sums depend on each other and run in the program's order
        on every device.
        """
        width, handle = BYTES[self.elem], self.communicator.handle
        places = [ByteRange(at, at + width * n) for at, n in zip(self.pointers, self.counts, strict=True) if n]
        places.append(ByteRange(handle, handle + 1))
        return places, places


@dataclass(frozen=True)
class GuardWords:
    """The words that guards and checks read.

    status: address of the status; address: where the codes of checks begin, after them the numbers of turns, and the
    word of grid barriers
    """

    status: int
    codes: Sequence[int]
    turns: int
    address: int = 0

    @staticmethod
    def of(steps: Sequence[Step], status: int) -> GuardWords:
        """Return the words that steps need. status: address of the status."""
        codes = dict.fromkeys(s.code for s in steps if isinstance(s, CheckZero | CheckFinite))
        bounded = [s.most for s in steps if isinstance(s, BeginLoop) and (s.first or s.stop)]
        return GuardWords(status, tuple(codes), max(bounded, default=0))

    @property
    def nbytes(self) -> int:
        """The bytes of all words."""
        return WORD * (len(self.codes) + self.turns + 1)

    def fill(self, words: np.ndarray) -> None:
        """Set the words but the status, in an array of `nbytes` bytes."""
        words.view(np.int64)[:: WORD // 8] = [*self.codes, *range(self.turns), 0]

    def code(self, code: int) -> int:
        """Return the address of a check's code."""
        return self.address + WORD * self.codes.index(code)

    def turn(self, number: int) -> int:
        """Return the address of the number of a turn."""
        return self.address + WORD * (len(self.codes) + number)

    @property
    def barrier(self) -> int:
        """The address of the word of grid barriers. All launches with barriers share the word, so that they run one
        after the other: two launches that are only partly resident would deadlock."""
        return self.address + WORD * (len(self.codes) + self.turns)


Word = tuple[int, int | str]
"""A pointer's position in a program: number of the step, number of the pointer (see `Runnable.slots`)."""


def flatten(
    steps: Sequence[Step],
    words: Mapping[Word, int],
    guards: GuardWords,
    is_kept: Callable[[ByteRange], bool],
    multiprocessors: int,
) -> list[DeviceLaunch | DeviceSum]:
    """Return the launches and the sums of a program, in order.

    Args:
        steps: its steps.
        words: the device's address that each pointer of a step begins with.
        guards: the words of its guards and checks.
        is_kept: whether a run must not store into bytes once a check has failed, as they outlive it.
        multiprocessors: how many the device has; each holds a program of any cooperative launch.
    """
    return list(_Flattening(steps, dict(words), guards, is_kept, multiprocessors).launches())


def pays(loop: Persistent, turns: int) -> bool:
    """Return whether a loop as one cooperative launch takes less time than unrolled, where launches that need not wait
    for each other run side by side. What a program computes takes the same time in both."""
    gap = GpuTarget.launch_gap
    unrolled = turns * len(loop.rounds) * gap
    return gap + turns * sum(GRID_BARRIER + (rounds - 1) * ROUND for rounds in loop.rounds) < unrolled


def _code_of(f: TileFunction, launches: Sequence[DeviceLaunch]) -> TileCode:
    """Return the code of the function into which launches were combined. Loops prefetch as many turns as fit into
    shared memory with the tiles of every dot."""
    dots = [x.code.stages for x in launches if any(op.name == "dot" for op in operations(x.code.function.body))]
    stages = min(dots, default=max(x.code.stages for x in launches))
    return TileCode(f, max(x.code.warps for x in launches), stages)


class _Flattening:
    """`flatten`, while it goes through the steps. `is_checked`: a check has been passed, after which kernels must not
    run (of an index), or must not store what is kept (of a number)."""

    def __init__(
        self,
        steps: Sequence[Step],
        words: dict[Word, int],
        guards: GuardWords,
        is_kept: Callable[[ByteRange], bool],
        multiprocessors: int,
    ):
        self.steps, self.words, self.guards, self.is_kept = steps, words, guards, is_kept
        self.multiprocessors = multiprocessors
        self.must_not_run = self.must_not_store = False
        self._codes: dict[tuple[str, tuple[TileParameter, ...]], TileCode] = {}
        """Code of loops by its text and parameters: a loop in another one has the same in each turn of that."""

    def launches(self) -> Iterator[DeviceLaunch | DeviceSum]:
        yield from self._part(0, len(self.steps), ())

    def _part(self, n: int, end: int, bounds: tuple[tuple[int, int, int], ...]) -> Iterator[DeviceLaunch | DeviceSum]:
        """Yield the launches of steps n .. end-1.

        bounds: for each enclosing loop whose bounds are known at run time only, the addresses of the turn's number,
        of the first turn and of the end; 0 for a bound that the loop does not have."""
        while n < end:
            step = self.steps[n]
            if isinstance(step, RunLaunch):
                if step.tasks:
                    yield self._launch(n, step, bounds)
            elif isinstance(step, BeginLoop):
                last = end_of_loop(self.steps, n)
                yield from self._loop(n, step, last, bounds)
                n = last
            elif isinstance(step, CheckZero | CheckFinite):
                elem = "i32" if isinstance(step, CheckZero) else step.elem
                checked = self.words[n, 0], self.guards.code(step.code), self.guards.status
                yield DeviceLaunch(_CHECKS[elem], checked, n)
                self.must_not_run |= isinstance(step, CheckZero)
                self.must_not_store = True
            elif isinstance(step, AllReduce):  # also after a failed check: the other devices wait for it
                pointers = tuple(self.words[n, i] for i in range(len(step.pointers)))
                yield DeviceSum(step.communicator, pointers, tuple(step.counts), step.elem, n)
            elif not isinstance(step, Together):
                raise NotImplementedError(f"a graph of launches has no {type(step).__name__}")
            n += 1

    def _launch(self, n: int, step: RunLaunch, bounds: tuple[tuple[int, int, int], ...]) -> DeviceLaunch:
        code: TileCode = step.code
        pointers = [self.words[n, i] for i in range(len(step.pointers))]
        plain = DeviceLaunch(code, tuple(p.address(pointers) for p in code.function.parameters), n)
        return self._guarded(plain, len(pointers), self._looks(plain.ranges()[1]), bounds)

    def _looks(self, stored: Iterable[ByteRange]) -> bool:
        """Return whether a launch that stores these bytes has to check the status."""
        return self.must_not_run or (self.must_not_store and any(map(self.is_kept, stored)))

    def _guarded(
        self, plain: DeviceLaunch, buffers: int, looks: bool, bounds: tuple[tuple[int, int, int], ...]
    ) -> DeviceLaunch:
        """Return a launch with a guard before it. buffers: of its code; looks: whether it looks at the status."""
        guard = LaunchGuard(looks, tuple((first != 0, stop != 0) for _, first, stop in bounds))
        words = [self.guards.status] * looks + [at for group in bounds for at in group if at]
        return DeviceLaunch(plain.code.guarded(guard, buffers), (*plain.pointers, *words), plain.step)

    def _loop(
        self, n: int, step: BeginLoop, last: int, bounds: tuple[tuple[int, int, int], ...]
    ) -> Iterator[DeviceLaunch | DeviceSum]:
        whole = self._persistent(n, step, last, bounds)
        if whole is not None:
            yield whole
            return
        for turn in reversed(range(step.most)) if step.reverse else range(step.most):
            for k, move in enumerate(step.moves):
                self.words[move.step, move.pointer] = self.words[n, k] + move.bytes_in_turn(turn)
            first, stop = (self.words.get((n, name), 0) for name in ("first", "stop"))
            here = ((self.guards.turn(turn), first, stop),) if first or stop else ()
            yield from self._part(n + 1, last, (*bounds, *here))

    def _persistent(
        self, n: int, step: BeginLoop, last: int, bounds: tuple[tuple[int, int, int], ...]
    ) -> DeviceLaunch | None:
        """Return a loop as one cooperative launch, which counts as the loop's first launch; None where that is not
        possible or does not pay. `last`, `bounds`: see `_part`."""
        inside = range(n + 1, last)
        if step.most < 2 or any(not isinstance(self.steps[k], RunLaunch | Together) for k in inside):
            return None
        if any(m.ring for m in step.moves):
            return None
        moves = {(m.step, m.pointer): (self.words[n, k] + m.offset, m.delta) for k, m in enumerate(step.moves)}
        launches: list[DeviceLaunch] = []
        deltas: list[list[int]] = []
        looks: set[bool] = set()
        for k in inside:
            run = self.steps[k]
            if not isinstance(run, RunLaunch) or not run.tasks:
                continue
            places = [moves.get((k, i)) or (self.words[k, i], 0) for i in range(len(run.pointers))]
            parameters = run.code.function.parameters
            addresses = [p.address([at for at, _ in places]) for p in parameters]
            deltas.append([places[-1 if p.buffer is None else p.buffer][1] for p in parameters])
            launches.append(DeviceLaunch(run.code, tuple(addresses), k))
            end = [at + delta * (step.most - 1) for at, delta in zip(addresses, deltas[-1], strict=True)]
            ranges = zip(launches[-1].ranges()[1], DeviceLaunch(run.code, tuple(end), k).ranges()[1], strict=True)
            looks.add(self._looks(ByteRange(min(a.start, b.start), max(a.end, b.end)) for a, b in ranges))
        if len(looks) != 1:
            return None
        whole = combine(
            "loop",
            [TurnLaunch(x.code.function, x.pointers, d) for x, d in zip(launches, deltas, strict=True)],
            step.most,
            step.reverse,
            self.multiprocessors,
            self.guards.barrier,
            *(self.words.get((n, name), 0) for name in ("first", "stop")),
        )
        if whole is None or not pays(whole, step.most):
            return None
        key = triton_text([whole.function]), whole.function.parameters
        code = self._codes.setdefault(key, _code_of(whole.function, launches))
        return self._guarded(
            DeviceLaunch(code, whole.addresses, launches[0].step), len(whole.addresses), looks.pop(), bounds
        )


class _Touched:
    """The launches that have stored and loaded each byte last: segments of addresses, in order. Segment k reaches from
    `starts[k]` to `starts[k + 1]`."""

    def __init__(self) -> None:
        self.starts: list[int] = [0]
        self.writers: list[int] = [-1]
        self.readers: list[list[int]] = [[]]

    def _split(self, at: int) -> int:
        """Let a segment begin at an address, and return its number."""
        k = bisect_left(self.starts, at)
        if k == len(self.starts) or self.starts[k] != at:
            self.starts.insert(k, at)
            self.writers.insert(k, self.writers[k - 1])
            self.readers.insert(k, list(self.readers[k - 1]))
        return k

    def load(self, n: int, r: ByteRange) -> Iterator[int]:
        """Note that launch n loads bytes; yield the launches that have stored them."""
        first, end = self._split(r.start), self._split(r.end)
        for k in range(first, end):
            if self.writers[k] >= 0:
                yield self.writers[k]
            self.readers[k].append(n)

    def store(self, n: int, r: ByteRange) -> Iterator[int]:
        """Note that launch n stores bytes; yield the launches that have accessed them since they were last stored."""
        first, end = self._split(r.start), self._split(r.end)
        for k in range(first, end):
            if self.writers[k] >= 0:
                yield self.writers[k]
            yield from self.readers[k]
        del self.starts[first + 1 : end], self.writers[first + 1 : end], self.readers[first + 1 : end]
        self.writers[first], self.readers[first] = n, []


def edges(launches: Sequence[DeviceLaunch | DeviceSum]) -> list[tuple[int, int]]:
    """Return the pairs (a, b) of launches of which b must wait for a: it loads bytes that a stores, or stores bytes
    that a loads or stores. Pairs that follow from others are left out."""
    touched = _Touched()
    before: list[int] = []  # by launch, a bit for each launch that comes before it
    out: list[tuple[int, int]] = []
    for n, launch in enumerate(launches):
        loaded, stored = launch.ranges()
        waits = {m for r in loaded for m in touched.load(n, r)} | {m for r in stored for m in touched.store(n, r)}
        waits.discard(n)
        above = 0
        for m in sorted(waits, reverse=True):
            if not above >> m & 1:
                out.append((m, n))
                above |= before[m] | 1 << m
        before.append(above)
    return out


def overlaps(ranges: Sequence[ByteRange]) -> Callable[[ByteRange], bool]:
    """Return whether bytes overlap any of some ranges, which overlap each other nowhere, as a function."""
    known = sorted(r for r in ranges if r.end > r.start)
    starts = [r.start for r in known]

    def overlap(r: ByteRange) -> bool:
        k = bisect_right(starts, r.start) - 1
        return (k >= 0 and known[k].end > r.start) or (k + 1 < len(known) and starts[k + 1] < r.end)

    return overlap
