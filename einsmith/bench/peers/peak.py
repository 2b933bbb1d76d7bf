"""The multiply-add peak of the machine, by a kernel of Einsmith's own: what the arithmetic floor is counted from."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from einsmith.bench.problem import Session, Workload
from einsmith.codegen.cache.native import compile_functions
from einsmith.codegen.loopnest.nest import Builder, Function
from einsmith.cost.facts import host

VERSION = "peak"

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


def build(problem: Workload, arrays: dict[str, np.ndarray], threads: int, peer: str) -> Session:
    """Return the session that runs the kernel."""
    return Peak(threads)
