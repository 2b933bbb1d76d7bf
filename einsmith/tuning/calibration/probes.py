"""Build small programs that each measure one coefficient of the machine, as functions of the loop nest.

Every probe runs through the code generator and run time that kernels use, so its figures hold for kernels. A control
buffer holds [elements of a task, repetitions], so that one function serves every size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import default_rng

from einsmith.codegen.cache import native
from einsmith.codegen.loopnest.dots import DOTS, TILE_ROWS, WORD, DotProduct
from einsmith.codegen.loopnest.nest import Builder, Function
from einsmith.codegen.ssa import SSAValue
from einsmith.cost.facts import Target
from einsmith.runtime import buffers
from einsmith.runtime.program import Program
from einsmith.runtime.steps import RunLaunch

BINARY = ("div", "pow", "floordiv", "mod")
"""Special functions of two arguments."""
PLAIN = "copy"
"""The probe of a load and a store alone, whose time is subtracted from a special function's time."""
UNROLL = 4
"""Vectors in one iteration of the loops over arrays."""
CHAIN_LENGTH = 8
"""Dependent multiply-adds in one iteration of the latency probe."""
SPECIAL_ELEMENTS = 2048
"""Elements (f32) of each array of a special function's probe."""
TILE_DEPTH = 128
"""Terms of each sum of the register tile's probe."""
MATRIX_DEPTH = 512
"""Words of K of the probe of tile registers, whose two panels are 64 KiB each."""
L1_ELEMENTS = 4096
"""Elements (f32) of an array that fits in L1: 16 KiB."""
LAUNCHES_PER_RUN = 16
"""Launches in a run of the launch probe."""
WHOLE_L3 = "whole l3"
"""The probe of arrays as large as L3, by whose time the part of them is known that L3 has held from sweep to sweep."""
RUN_SECONDS = 3e-5
"""Seconds that one run of a probe that fits a cache takes: long compared with the clock's resolution, short compared
with a time slice."""


TASK_TURNS = 6000
"""Iterations in a task of the launch probe: some microseconds, so that every thread has taken its share of a
launch."""


MIN_AGREEING_RUNS, MAX_RUN_SPREAD = 3, 0.1
"""Number of runs of a probe that must agree on its figure, and the relative spread within which they agree."""


@dataclass
class Probe:
    """A program that measures a coefficient; a step of it does `work` units (elements, bytes, ...). `slow`: it takes
    too long to be run in every round."""

    name: str
    program: Program
    work: float
    slow: bool = False
    keep: list[Any] = field(default_factory=list)
    runs: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Run the program once and record its shortest step, as a disturbance only lengthens a step."""
        self.runs.append(float(self.program.run_timed()[1].min()))

    @property
    def seconds(self) -> float:
        """Return the shortest run's seconds per unit of work."""
        return min(self.runs) / self.work

    @property
    def steady(self) -> bool:
        """Return whether AGREEING runs are as short as the shortest one: on a busy machine every run is disturbed
        differently."""
        runs = sorted(self.runs)
        return len(runs) >= MIN_AGREEING_RUNS and runs[MIN_AGREEING_RUNS - 1] <= (1 + MAX_RUN_SPREAD) * runs[0]


def probes(target: Target, memory_bytes: int) -> Iterator[Probe]:
    """Yield compiled probes, those that matter most first, so that a caller may stop in between.

    memory_bytes: bytes that the probes of main memory may take; 0 leaves them out. Raises CompileError, MemoryError.
    """
    lanes = target.lanes()
    yield tile(target)
    yield _chain(target)
    for name, _ in target.dots:
        yield tile(target, DOTS[name])
    for name, _ in target.tiles:
        yield matrix_tile(target, name)
    levels = [("l1", target.l1 // 2), ("l2", target.l2 // 2), ("l3", _third(target))]
    if memory_bytes > target.l3:
        levels.append((WHOLE_L3, target.l3))
    levels.append(("memory", memory_bytes))
    for level, nbytes in levels:
        if nbytes:
            yield from _bandwidth(target, level, nbytes)
    yield from _launches(target)
    yield _load(target, "load", 0)
    yield _load(target, "unaligned", 1)
    for name, make in (("store", _store), ("broadcast", _broadcast), ("gather", _gather)):
        yield make(target, name)
    for fn in (PLAIN, *(name for name, _ in target.special_seconds)):
        yield special_function(target, fn, lanes)


def _third(target: Target) -> int:
    """Return a number of bytes that fits the shared L3 and no smaller cache."""
    return max(min(target.l3 // 4, 16 << 20), min(3 * target.l2 * target.cores, target.l3 // 2))


def _compile(function: Function, target: Target) -> int:
    return native.compile_functions([function], target)[function.name]


def _control(elements: int, repeats: int) -> np.ndarray:
    out = buffers.empty((2,), np.int64)
    out[:] = elements, max(1, repeats)
    return out


def _random(n: int) -> np.ndarray:
    """Return random numbers between 0.25 and 2.25, where every special function takes its general path."""
    out = buffers.empty((n,), np.float32)
    some = default_rng(0).random(min(n, L1_ELEMENTS), np.float32) * 2 + 0.25
    full = n // len(some) * len(some)
    out[:full].reshape(-1, len(some))[:] = some
    out[full:] = some[: n - full]
    return out


def _launch(function: Function, target: Target, arrays: list[np.ndarray], tasks: int = 1) -> RunLaunch:
    pointers = [a.ctypes.data for a in arrays]
    return RunLaunch(_compile(function, target), tasks, [*pointers, pointers[-1]])


def probe(name: str, f: Function, target: Target, arrays: list[np.ndarray], work: float) -> Probe:
    """Return a probe that runs `f` as one task on one thread, with `work` units a run. `f` has a buffer for each
    array, and one more, which is the last array again. Raises CompileError."""
    return Probe(name, Program([_launch(f, target, arrays)], 1), work, keep=arrays)


def _sweep(
    name: str,
    arrays: int,
    step: int,
    body: Callable[[Builder, SSAValue, list[SSAValue]], list[SSAValue]],
    sums: Sequence[tuple[float, int]] = (),
) -> Function:
    """Build a function that runs `body(b, offset, sums)` for every `step`-th element of the task, as often as the
    control buffer says. The last buffer is the control. `sums` are carried, and stored into the first buffer at the
    end."""
    b = Builder(name, arrays + 2)
    control = b.buffers[arrays]
    size = b.load(control, b.const(0), "i64")
    repeats = b.load(control, b.const(1), "i64")
    lo = b.mul(b.task, size)
    start = [b.const(x, "f32", lanes) for x, lanes in sums]
    with b.loop(0, repeats, init=start) as turns:
        with b.loop(lo, b.add(lo, size), step, init=turns.carried) as loop:
            loop.next = body(b, loop.var, list(loop.carried))
        turns.next = list(loop.results)
    for i, v in enumerate(turns.results):
        b.store(v, b.buffers[0], b.const(i * v.type.lanes))
    return b.finish()


def dot_probe(name: str) -> str:
    """Return the name of the probe of a dot product of words."""
    return f"dot {name}"


def tile_probe(name: str) -> str:
    """Return the name of the probe of a dot product in tile registers."""
    return f"tiles {name}"


def matrix_tile(target: Target, name: str) -> Probe:
    """Return a probe of the loop of a product in tile registers, two by two of them, on panels that L2 holds."""
    words, size, repeats = MATRIX_DEPTH, 2 * TILE_ROWS, 64
    b = Builder("probe_tiles", 4)
    left, right, out = b.buffers[:3]
    with b.loop(0, repeats):
        for register in range(4):
            b.tile_zero(register)
        with b.loop(0, words, step=TILE_ROWS) as loop:
            for n in range(2):
                b.tile_load(6 + n, right, b.add(b.mul(loop.var, size), n * TILE_ROWS), size)
                b.tile_load(4 + n, left, b.add(loop.var, n * TILE_ROWS * words), words)
            for register in range(4):
                b.tile_dot(name, register, 4 + register // 2, 6 + register % 2)
        for register in range(4):
            b.tile_store(register, out, register * TILE_ROWS, 4 * TILE_ROWS)
    arrays = [_random(size * words), _random(size * words), _random(4 * TILE_ROWS * TILE_ROWS)]
    return probe(tile_probe(name), b.finish(), target, arrays, float(repeats * words * size * size))


def tile(target: Target, dot: DotProduct | None = None) -> Probe:
    """Return a probe of the inner loop of a matrix product: one register tile, read from packed panels.

    It measures multiply-adds of float32 elements, or, with `dot`, of the words of a dot-product instruction."""
    lanes, nv = target.lanes(), 2
    elem, sums = ("f32", "f32") if dot is None else (WORD, dot.sum)
    mr = 12 if target.vector_registers >= 32 else 6
    repeats = 48
    b = Builder("probe_tile", 4)

    def multiply_add(x: SSAValue, y: SSAValue, total: SSAValue) -> SSAValue:
        return b.fma(x, y, total) if dot is None else b.dot(dot.name, x, y, total)

    left, right, out = b.buffers[:3]
    with b.loop(0, repeats):
        zeros = [b.const(0.0, sums, lanes)] * (mr * nv)
        with b.loop(0, TILE_DEPTH, init=zeros) as loop:
            at = b.mul(loop.var, b.const(nv * lanes))
            row = [b.load(right, b.add(at, b.const(j * lanes)), elem, lanes) for j in range(nv)]
            first = b.mul(loop.var, b.const(mr))
            total = list(loop.carried)
            for i in range(mr):
                x = b.splat(b.load(left, b.add(first, b.const(i)), elem), lanes)
                for j in range(nv):
                    total[i * nv + j] = multiply_add(x, row[j], total[i * nv + j])
            loop.next = total
        for i, v in enumerate(loop.results):
            b.store(v, out, b.const(i * lanes))
    arrays = [_random(TILE_DEPTH * mr), _random(TILE_DEPTH * nv * lanes), _random(mr * nv * lanes)]
    name = "fma" if dot is None else dot_probe(dot.name)
    return probe(name, b.finish(), target, arrays, float(repeats * TILE_DEPTH * mr * nv * lanes))


def _chain(target: Target) -> Probe:
    """Return a probe of the latency of vector multiply-adds, a chain in which each waits for the one before."""
    lanes, repeats = target.lanes(), 512
    b = Builder("probe_chain", 2)
    factor, more = (b.splat(b.load(b.buffers[0], b.const(i), "f32"), lanes) for i in range(2))
    with b.loop(0, repeats, init=[b.const(1.0, "f32", lanes)]) as loop:
        x = loop.carried[0]
        for _ in range(CHAIN_LENGTH):
            x = b.fma(x, factor, more)
        loop.next = [x]
    b.store(loop.results[0], b.buffers[0], b.const(2))
    out = buffers.zeros((2 + lanes,), np.float32)
    out[:2] = 0.5, 1.0
    return probe("chain", b.finish(), target, [out], float(repeats * CHAIN_LENGTH))


def _bandwidth(target: Target, level: str, nbytes: int) -> Iterator[Probe]:
    """Yield probes of z = x + y on three arrays of `nbytes` in all: on one core, and on all cores where the level is
    shared."""
    lanes = target.lanes()
    step = lanes * UNROLL
    cores = target.cores if level in ("l3", "memory") else 1
    size = max(step, nbytes // 12 // (step * cores) * step)

    def body(b: Builder, at: SSAValue, _: list[SSAValue]) -> list[SSAValue]:
        x, y, z, *_ = b.buffers
        places = [b.add(at, b.const(u * lanes)) for u in range(UNROLL)]
        sums = [b.add(b.load(x, p, "f32", lanes), b.load(y, p, "f32", lanes)) for p in places]
        for p, v in zip(places, sums, strict=True):
            b.store(v, z, p)
        return []

    f = _sweep("probe_triad", 3, step, body)
    arrays = [buffers.zeros((size * cores,), np.float32) for _ in range(3)]
    moved = 12.0 * size * cores
    slow = level in (WHOLE_L3, "memory")
    repeats = 1 if slow else round(RUN_SECONDS / (moved / target.bytes_per_second[("l1", "l2", "l3").index(level)]))
    one, every = _control(size * cores, repeats), _control(size, repeats)
    work = moved * max(1, repeats)
    # Several sweeps in one run: from the second on, data that other probes have evicted from the shared cache is back,
    # and workers that slept between two runs are awake.
    sweeps = {"l3": 8, WHOLE_L3: 3}.get(level, 1)
    yield Probe(level, Program([_launch(f, target, [*arrays, one])] * sweeps, 1), work, slow, [*arrays, one])
    if cores > 1:
        program = Program([_launch(f, target, [*arrays, every], cores)] * max(2, sweeps), cores)
        yield Probe(f"{level} all", program, work, slow, [*arrays, every])


def _launches(target: Target) -> Iterator[Probe]:
    """Yield probes of one task on one thread, and of one task on every thread; the difference of their times is the
    launch."""
    b = Builder("probe_task", 2)
    with b.loop(0, TASK_TURNS, init=[b.const(1.0, "f32")]) as loop:
        loop.next = [b.mul(loop.carried[0], b.const(0.5, "f32"))]
    b.store(loop.results[0], b.buffers[0], b.mul(b.task, b.const(16)))
    out = _random(16 * target.cores)
    f = b.finish()
    for name, tasks in (("task", 1), ("launch", target.cores)):
        yield Probe(name, Program([_launch(f, target, [out], tasks)] * LAUNCHES_PER_RUN, tasks), 1.0, keep=[out])


def _small(target: Target, name: str, f: Function, arrays: list[np.ndarray], elements: int, units: int) -> Probe:
    repeats = 64
    return probe(name, f, target, [*arrays, _control(elements, repeats)], float(units * repeats))


def _load(target: Target, name: str, first: int) -> Probe:
    """Return a probe of loads of consecutive vectors, from element `first` of an aligned buffer on."""
    lanes, count = target.lanes(), 8

    def body(b: Builder, at: SSAValue, sums: list[SSAValue]) -> list[SSAValue]:
        places = [b.add(at, b.const(first + u * lanes)) for u in range(count)]
        return [b.add(v, b.load(b.buffers[1], p, "f32", lanes)) for v, p in zip(sums, places, strict=True)]

    f = _sweep(f"probe_{name}", 2, count * lanes, body, [(0.0, lanes)] * count)
    return _small(
        target, name, f, [_random(count * lanes), _random(L1_ELEMENTS + lanes)], L1_ELEMENTS, L1_ELEMENTS // lanes
    )


def _broadcast(target: Target, name: str) -> Probe:
    lanes, count = target.lanes(), 8

    def body(b: Builder, at: SSAValue, sums: list[SSAValue]) -> list[SSAValue]:
        scalars = [b.load(b.buffers[1], b.add(at, b.const(u)), "f32") for u in range(count)]
        return [b.add(v, b.splat(x, lanes)) for v, x in zip(sums, scalars, strict=True)]

    f = _sweep(f"probe_{name}", 2, count, body, [(0.0, lanes)] * count)
    return _small(target, name, f, [_random(count * lanes), _random(L1_ELEMENTS)], 512, 512)


def _store(target: Target, name: str) -> Probe:
    lanes, count = target.lanes(), 8

    def body(b: Builder, at: SSAValue, _: list[SSAValue]) -> list[SSAValue]:
        for u in range(count):
            b.store(b.const(1.0, "f32", lanes), b.buffers[0], b.add(at, b.const(u * lanes)))
        return []

    return _small(
        target,
        name,
        _sweep(f"probe_{name}", 1, count * lanes, body),
        [_random(L1_ELEMENTS)],
        L1_ELEMENTS,
        L1_ELEMENTS // lanes,
    )


def _gather(target: Target, name: str) -> Probe:
    lanes, count = target.lanes(), 2

    def body(b: Builder, at: SSAValue, sums: list[SSAValue]) -> list[SSAValue]:
        places = [b.load(b.buffers[2], b.add(at, b.const(u * lanes)), "i32", lanes) for u in range(count)]
        return [b.add(v, b.gather(b.buffers[1], p, "f32")) for v, p in zip(sums, places, strict=True)]

    f = _sweep(f"probe_{name}", 3, count * lanes, body, [(0.0, lanes)] * count)
    places = buffers.empty((512,), np.int32)
    places[:] = default_rng(1).integers(0, L1_ELEMENTS, 512)
    return _small(target, name, f, [_random(count * lanes), _random(L1_ELEMENTS), places], 512, 512)


def special_function(target: Target, fn: str, lanes: int) -> Probe:
    """Return a probe of y = fn(x), or fn(x, x') of two arrays, on vectors."""

    def body(b: Builder, at: SSAValue, _: list[SSAValue]) -> list[SSAValue]:
        x, other, y, *_ = b.buffers
        places = [b.add(at, b.const(u * lanes)) for u in range(UNROLL)]
        values = [b.load(x, p, "f32", lanes) for p in places]
        if fn in BINARY:
            values = [b.op(fn, v, b.load(other, p, "f32", lanes)) for v, p in zip(values, places, strict=True)]
        elif fn != PLAIN:
            values = [b.op(fn, v) for v in values]
        for v, p in zip(values, places, strict=True):
            b.store(v, y, p)
        return []

    f = _sweep(f"probe_{fn}", 3, UNROLL * lanes, body)
    repeats = max(1, round(RUN_SECONDS / (SPECIAL_ELEMENTS * max(target.special(fn), 2.5e-11))))
    arrays = [_random(SPECIAL_ELEMENTS), _random(SPECIAL_ELEMENTS)[::-1].copy(), _random(SPECIAL_ELEMENTS)]
    return probe(fn, f, target, [*arrays, _control(SPECIAL_ELEMENTS, repeats)], float(SPECIAL_ELEMENTS * repeats))
