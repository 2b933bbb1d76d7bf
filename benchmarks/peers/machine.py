"""Measure what the machine can do, which floors are counted from: multiply-adds, copies, and special functions."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.problem import Workload
from einsmith.codegen.cache.native import compile_functions
from einsmith.codegen.loopnest.nest import Builder, Function
from einsmith.cost.facts import host
from einsmith.tuning.calibration.probes import SPECIAL_ELEMENTS, special_function

REPEATS = 4
TURNS = 1 << 19


def chains_of(registers: int) -> int:
    """How many independent sums: latency times issue width of common cores is covered, and two constants fit beside."""
    return 12 if registers < 32 else 24


def peak_function(lanes: int, chains: int, turns: int = TURNS) -> Function:
    """x = x/2 + 1 in `chains` registers, over and over; the sum of all is stored, so that nothing is dead."""
    b = Builder("peak", 1)
    half, one = b.const(0.5, "f32", lanes), b.const(1.0, "f32", lanes)
    with b.loop(0, turns, init=[b.const(float(k), "f32", lanes) for k in range(chains)]) as loop:
        values = list(loop.carried)
        for _ in range(REPEATS):
            values = [b.fma(v, half, one) for v in values]
        loop.next = values
    total = loop.results[0]
    for v in loop.results[1:]:
        total = b.add(total, v)
    b.store(total, b.buffers[0], b.mul(b.task, b.const(lanes)))
    return b.finish()


class Peak:
    """One step runs the kernel once on every thread; `flops` is its work."""

    def __init__(self, threads: int):
        target = host()
        lanes = target.vector_bytes // 4
        chains = chains_of(target.vector_registers)
        self._address = compile_functions([peak_function(lanes, chains)], target)["peak"]
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(self._address)
        self._out = np.zeros(threads * lanes, np.float32)
        self._table = (ctypes.c_void_p * 2)(self._out.ctypes.data, self._out.ctypes.data)
        self._threads, self.chains = threads, chains
        self._pool = ThreadPoolExecutor(threads)
        self.flops = 2 * lanes * chains * REPEATS * TURNS * threads

    def step(self) -> float:
        """Run the kernel on every thread and return its operations."""
        # ctypes releases the interpreter lock during the call, so the threads run side by side.
        list(self._pool.map(lambda task: self._function(self._table, None, task), range(self._threads)))
        return float(self.flops)

    def results(self) -> dict[str, np.ndarray]:
        """Return what the kernel stores."""
        return {"out": self._out}


MOVED = 64 << 20
"""Bytes that a step moves at least, so that its start does not count; and at least twice its arrays."""


class Copy:
    """One step copies half of `nbytes` to the other half, several times over, each thread its own part: so small arrays
    are measured in the cache that holds them, as the problem finds them too."""

    def __init__(self, nbytes: int, threads: int):
        n = max(nbytes // (8 * threads), 1)
        self._parts = [(np.ones(n, np.float32), np.zeros(n, np.float32)) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads)
        self._repeats = max(2, min(256, MOVED // (threads * 8 * n)))
        self.nbytes = self._repeats * threads * 8 * n

    def _copy(self, part: tuple[np.ndarray, np.ndarray]) -> None:
        for _ in range(self._repeats):
            np.copyto(part[1], part[0])  # without the interpreter lock

    def step(self) -> float:
        list(self._pool.map(self._copy, self._parts))
        return float(self.nbytes)

    def results(self) -> dict[str, np.ndarray]:
        return {"out": np.concatenate([b for _, b in self._parts])}


SWEEPS = 256


class Special:
    """One step evaluates each function as many times as its part of the problem says, on one thread; its work is that
    of `threads` such threads, as cores do not disturb each other here."""

    def __init__(self, specials: tuple[tuple[str, int], ...], threads: int):
        least = min(n for _, n in specials)
        target = host()
        self._probes = []
        self.evaluations = 0
        for fn, n in specials:
            probe = special_function(target, fn, target.lanes())
            probe.keep[-1][1] = repeats = SWEEPS * max(1, round(n / least))
            self._probes.append(probe)
            self.evaluations += threads * repeats * SPECIAL_ELEMENTS

    def step(self) -> float:
        for probe in self._probes:
            probe.program.run()
        return float(self.evaluations)

    def results(self) -> dict[str, np.ndarray]:
        return {}


def build(
    problem: Workload, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str
) -> Peak | Copy | Special:
    """Return what measures the rate that a peer names. The loss of a step is its work."""
    if peer == "copy":
        return Copy(problem.nbytes, threads)
    return Special(problem.specials, threads) if peer == "special" else Peak(threads)
