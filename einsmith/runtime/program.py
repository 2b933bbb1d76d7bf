"""A program: the steps of a training step behind one native call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einsmith.codegen import entry
from einsmith.runtime import buffers, pool


@dataclass(frozen=True)
class RunLaunch:
    """Calls the function at `address` for every task in 0 .. tasks-1, with these buffer addresses."""

    address: int
    tasks: int
    pointers: Sequence[int]


@dataclass(frozen=True)
class CheckZero:
    """Ends the run with status `code` (not 0) unless the i32 at `pointer` is 0."""

    pointer: int
    code: int


@dataclass(frozen=True)
class CheckFinite:
    """Ends the run with status `code` (not 0) if the float at `pointer` is infinite or NaN; `elem` is f32 or f64."""

    pointer: int
    elem: str
    code: int


Step = RunLaunch | CheckZero | CheckFinite


class Program:
    """Steps that run in order by one foreign call.

    threads: how many threads share a launch's tasks, None for the default; scratch_bytes: scratch of one thread, the
    largest that any launch needs. The memory behind the pointers belongs to the caller and must outlive the program.

    `table` holds every address as np.uint64; `slots[(step, i)]` is where pointer i of a step stands in it (for a check,
    i = 0), and `slots[(step, "function")]` is a launch's function. Writing there takes effect at the next run.
    """

    def __init__(self, steps: Sequence[Step], threads: int | None = None, scratch_bytes: int = 0):
        self.steps = tuple(steps)
        self.threads = pool.get_threads() if threads is None else threads
        if not 1 <= self.threads <= entry.MAX_THREADS:
            raise ValueError(f"threads must be between 1 and {entry.MAX_THREADS}, not {threads}")
        self.slots: dict[tuple[int, int | str], int] = {}
        self.table = self._layout()
        self._stride = -(-scratch_bytes // buffers.ALIGNMENT) * buffers.ALIGNMENT
        # An odd number of cache lines between threads' areas: equal offsets do not meet in one cache set.
        self._stride += buffers.ALIGNMENT * (1 - self._stride // buffers.ALIGNMENT % 2)
        self.scratch = buffers.empty((self._stride * self.threads,), np.uint8)
        self._run = pool.native_entry().run
        self._arguments = (self.table.ctypes.data, len(self.steps))
        self._scratch_arguments = (self.scratch.ctypes.data, self._stride)

    def _layout(self) -> np.ndarray:
        """The table: one record a step, then all launches' pointers."""
        width = entry.STEP_WORDS
        total = sum(len(s.pointers) for s in self.steps if isinstance(s, RunLaunch))
        table = buffers.zeros((len(self.steps) * width + total,), np.uint64)
        at = len(self.steps) * width
        for n, step in enumerate(self.steps):
            record = table[n * width : (n + 1) * width]
            if isinstance(step, RunLaunch):
                if not 0 <= step.tasks < 2**31:
                    raise ValueError(f"step {n} has {step.tasks} tasks; at most 2**31 - 1 are possible")
                record[:4] = entry.LAUNCH, step.address, step.tasks, table.ctypes.data + 8 * at
                self.slots[n, "function"] = n * width + 1
                for i, pointer in enumerate(step.pointers):
                    table[at + i] = pointer
                    self.slots[n, i] = at + i
                at += len(step.pointers)
                continue
            if step.code == 0:
                raise ValueError(f"step {n} is a check with code 0, which means success")
            if isinstance(step, CheckZero):
                kind = entry.CHECK_ZERO
            else:
                kind = {"f32": entry.CHECK_F32, "f64": entry.CHECK_F64}[step.elem]
            record[:2] = kind, step.pointer
            record[4] = step.code
            self.slots[n, 0] = n * width + 1
        return table

    def run(self) -> int:
        """Runs all steps: 0, or the code of the first check that fails, after which nothing is run.

        Waits while another thread runs a program. Denormal numbers count as zero inside.
        """
        return self._call(0)

    def run_timed(self) -> tuple[int, np.ndarray]:
        """`run`, and the seconds that each step took (zero for steps that were not reached)."""
        times = np.zeros(len(self.steps), np.int64)
        return self._call(times.ctypes.data), times * 1e-9

    def _call(self, times: int) -> int:
        with pool.owner() as held:
            if held is None or self.threads == 1:
                return self._run(*self._arguments, 0, 1, *self._scratch_arguments, times)
            held.grow(self.threads)
            return self._run(*self._arguments, held.address, self.threads, *self._scratch_arguments, times)
