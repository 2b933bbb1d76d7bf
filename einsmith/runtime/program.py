"""Run the steps of a program, such as a training step, by one native call."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from threading import get_ident
from typing import NamedTuple

import numpy as np

from einsmith.base import locks
from einsmith.codegen.entry import entry_program
from einsmith.cost.facts import MAX_THREADS
from einsmith.runtime import buffers, interrupts, pool, queues, thread_count
from einsmith.runtime.steps import (
    AllReduce,
    Apart,
    Await,
    BeginLoop,
    CheckFinite,
    CheckZero,
    EndLoop,
    Notify,
    RunLaunch,
    Step,
    StepTimes,
    Together,
)
from einsmith.runtime.thread_count import get_threads

_POOL, _THREADS, _FORK, _NUMBER, _SPAN, _WAITED, _HANDLE, _COMMIT, _CLOCKS = (
    entry_program.RUN_WORDS.index(w)
    for w in ("pool", "threads", "fork", "number", "span", "waited", "handle", "commit", "clocks")
)
WATCHED_FROM = 1e-3
"""Predicted seconds of a run from which on it checks for signals, at 10 ns for each step and each task. A prediction
that is too low by a factor of a thousand does no harm."""
HOLDING_BELOW = 15e-6
"""Predicted seconds of a run below which it keeps the interpreter lock. Where other threads run Python code, to get it
back takes 15 microseconds (a call of 5 takes 14 so, and 28 where the lock is released, beside one such thread)."""
LEAST_SHARED = 8e-6
"""Predicted seconds that a run on the calling thread alone takes longer, from which on the pool's workers take part. To
call them takes 3 to 5 microseconds where they watch for work and 8 to 25 where they sleep. Products of n x n in a loop,
two threads, virtual Sapphire Rapids, 2026-11-30: n = 64 (2.6 us predicted, 0.9 more alone) takes 9.1 us alone, 13.1
shared out; n = 96 (6.3, 4.7) 25 and 38; n = 128 (13.9, 11.4) 52 and 40."""


class _Record(NamedTuple):
    """The words of one run (`entry_program.RUN_WORDS`) in memory, and their address."""

    words: memoryview
    address: ctypes.c_void_p


class Program:
    """Steps that run in order, loops in turns, by one foreign call.

    Args:
        threads: how many threads share a launch's tasks; None for the default
        scratch_bytes: scratch of one thread, the most that any launch needs
        scratch: the address of the caller's `scratch_area` bytes for it; None for memory of the program's own
        seconds: predicted seconds of a run
        commit: the first step that stores into parameters or state, before which a signal may end a run (None: at any
            step)
        shared: predicted seconds that a run on one thread takes longer

    The memory behind the pointers belongs to the caller and must outlive the program. The code behind the launches'
    addresses stays as long as the steps have them (see llvm.jit.Address).

    `table` holds every address as np.uint64. `slots[(step, i)]` is the position in it of pointer i of a step (a check
    has i = 0; a loop has its base i), `slots[(step, "function")]` that of a launch's function; "stop" and "first" are
    the pointers to a loop's bounds. A word written there takes effect at the next run, except pointers that a loop
    moves, which the loop sets itself. A caller that writes a function's address there must keep its code.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        threads: int | None = None,
        scratch_bytes: int = 0,
        scratch: int | None = None,
        seconds: float = 0.0,
        commit: int | None = None,
        shared: float = math.inf,
    ):
        self.steps = tuple(steps)
        self.seconds = seconds
        waits = any(isinstance(s, Await) for s in self.steps)
        self.watched = (waits or seconds >= WATCHED_FROM) and commit != 0
        self._commit = len(self.steps) + 1 if commit is None else commit
        self.threads = get_threads() if threads is None else threads
        if not 1 <= self.threads <= MAX_THREADS:
            raise ValueError(f"threads must be between 1 and {MAX_THREADS}, not {threads}")
        self.slots: dict[tuple[int, int | str], int] = {}
        self.table = self._layout()
        self._stride = _stride(scratch_bytes)
        self.scratch = buffers.empty((0 if scratch is not None else self._stride * self.threads,), np.uint8)
        self._scratch = self.scratch.ctypes.data if scratch is None else scratch
        entry = pool.native_entry()
        self._run, self._run_team = entry.run, entry.run_team
        has_tasks = any(isinstance(s, Together | Apart) or isinstance(s, RunLaunch) and s.tasks > 1 for s in self.steps)
        self._forks = has_tasks and self.threads > 1 and shared >= LEAST_SHARED
        if (
            not self._forks
            and 0 < seconds < HOLDING_BELOW
            and not any(isinstance(s, Await | Notify) for s in self.steps)
        ):
            self._run = entry.run_holding
        self._record = self._run_words(0)

    def _layout(self) -> np.ndarray:
        """Lay out the table: one record a step, then all pointers, then all moves of loops."""
        width = entry_program.STEP_WORDS
        at = len(self.steps) * width
        for n, step in enumerate(self.steps):
            pointers = _pointers(step)
            for i in range(len(pointers)):
                self.slots[n, i] = at + i
            if isinstance(step, (CheckZero, CheckFinite)):
                self.slots[n, 0] = n * width + 1
            elif isinstance(step, BeginLoop):
                self.slots[n, "stop"], self.slots[n, "first"] = n * width + 1, n * width + 5
            at += len(pointers)
        moves = [(n, step) for n, step in enumerate(self.steps) if isinstance(step, BeginLoop)]
        table = buffers.zeros((at + entry_program.MOVE_WORDS * sum(len(step.moves) for _, step in moves),), np.uint64)
        base = table.ctypes.data
        for n, step in enumerate(self.steps):
            for i, pointer in enumerate(_pointers(step)):
                table[self.slots[n, i]] = pointer
        ends = self._ends()
        for n, step in enumerate(self.steps):
            record = table[n * width : (n + 1) * width]
            if isinstance(step, RunLaunch):
                if not 0 <= step.tasks < 2**31:
                    raise ValueError(f"step {n} has {step.tasks} tasks; at most 2**31 - 1 are possible")
                record[:4] = entry_program.LAUNCH, step.code, step.tasks, base + 8 * self.slots.get((n, 0), 0)
                self.slots[n, "function"] = n * width + 1
            elif isinstance(step, Together):
                members = [s for s in self.steps[n + 1 : n + 1 + step.count] if isinstance(s, RunLaunch)]
                if len(members) != step.count:
                    raise ValueError(f"step {n} is not followed by the {step.count} launches that run together")
                tasks = sum(s.tasks for s in members)
                if tasks >= 2**31:
                    raise ValueError(f"step {n} has {tasks} tasks; at most 2**31 - 1 are possible")
                record[:3] = entry_program.TOGETHER, step.count, tasks
            elif isinstance(step, Apart):
                inside = self.steps[n + 1 : n + 1 + step.count]
                if step.count % step.parts or not all(isinstance(s, RunLaunch | BeginLoop | EndLoop) for s in inside):
                    raise ValueError(f"step {n} is not followed by {step.parts} loops of equally many steps")
                record[:6] = entry_program.APART, step.count, step.parts, step.count // step.parts, 0, n
            elif isinstance(step, BeginLoop):
                most_turns_address = base + 8 * (n * width + 2)  # the word with the most turns
                kind = entry_program.LOOP_DOWN if step.reverse else entry_program.LOOP
                record[:7] = (
                    kind,
                    step.stop or most_turns_address,
                    step.most,
                    base + 8 * at,
                    len(step.moves),
                    step.first,
                    ends[n] + 1,
                )
                for i, move in enumerate(step.moves):
                    target = base + 8 * self.slots[move.step, move.pointer]
                    words = [target, base + 8 * self.slots[n, i], move.offset, move.delta, move.ring, move.start]
                    table[at : at + entry_program.MOVE_WORDS] = np.array(words, np.int64).view(np.uint64)
                    at += entry_program.MOVE_WORDS
            elif isinstance(step, EndLoop):
                record[:2] = entry_program.LOOP_END, ends[n]
            elif isinstance(step, Notify):
                record[:3] = entry_program.NOTIFY, step.message, step.pipe
            elif isinstance(step, Await):
                record[:3] = entry_program.AWAIT, 0, step.pipe
            elif isinstance(step, AllReduce):
                raise NotImplementedError("a program on the CPU has no AllReduce")
            else:
                if step.code == 0:
                    raise ValueError(f"step {n} is a check with code 0, which means success")
                if isinstance(step, CheckZero):
                    kind = entry_program.CHECK_ZERO
                else:
                    kind = {"f32": entry_program.CHECK_F32, "f64": entry_program.CHECK_F64}[step.elem]
                record[:2] = kind, step.pointer
                record[4] = step.code
        return table

    def addresses(self) -> list[int]:
        """Return the indices of the table's words that are addresses and not 0."""
        width, base = entry_program.STEP_WORDS, self.table.ctypes.data
        words = set(self.slots.values())
        for n, step in enumerate(self.steps):
            if isinstance(step, (RunLaunch, BeginLoop)):
                words.add(n * width + 3)
            if isinstance(step, BeginLoop):
                first = (int(self.table[n * width + 3]) - base) // 8
                words.update(first + entry_program.MOVE_WORDS * k + i for k in range(len(step.moves)) for i in (0, 1))
        return sorted(words)

    def _ends(self) -> dict[int, int]:
        """Return the end of every loop by its beginning, and its beginning by its end."""
        ends: dict[int, int] = {}
        open_loops: list[int] = []
        for n, step in enumerate(self.steps):
            if isinstance(step, BeginLoop):
                open_loops.append(n)
            elif isinstance(step, EndLoop):
                if not open_loops:
                    raise ValueError(f"step {n} ends a loop, but none is open")
                begin = open_loops.pop()
                ends[begin], ends[n] = n, begin
        if open_loops:
            raise ValueError(f"the loop that begins at step {open_loops[-1]} has no end")
        return ends

    def _run_words(self, times: int, clocks: int = 0) -> _Record:
        """Return the words that the native entry reads for a run, without the pool, and for one thread. times: address
        of an i64 for each step that receives its nanoseconds, or 0; clocks: address of two i64 for each thread of each
        step (`entry_program.RUN_WORDS`), or 0."""
        words = buffers.zeros((len(entry_program.RUN_WORDS),), np.uint64)
        words[_COMMIT], words[_CLOCKS] = self._commit, clocks
        words[:7] = (self.table.ctypes.data, len(self.steps), 0, 1, self._scratch, self._stride, times)
        return _Record(memoryview(words), ctypes.c_void_p(words.ctypes.data))  # type: ignore[arg-type]

    def move_scratch(self, address: int) -> None:
        """Move the program's scratch memory to `address`, from the next run on."""
        self._scratch = address
        self._record = self._run_words(0)

    def run(self) -> int:
        """Run all steps; return 0, or the code of the first check that fails, after which no step runs.

        Waits while another thread runs a program in the same queue (runtime/queues.py). Denormal numbers count as zero
        inside. Raises the exception of a signal's handler that occurs before the run is over and before it has stored
        into parameters or state.
        """
        return self._call(self._record)

    def run_timed(self) -> tuple[int, np.ndarray]:
        """Run all steps; return the result of `run` and the seconds that each step took, summed over all turns (zero
        for steps not reached)."""
        times = np.zeros(len(self.steps), np.int64)
        return self._call(self._run_words(times.ctypes.data)), times * 1e-9

    def run_recorded(self) -> tuple[int, StepTimes]:
        """Run all steps; return the result of `run`, and when which thread was at work."""
        count = len(self.steps)
        times, clocks = np.zeros(count, np.int64), np.zeros(2 * count * self.threads, np.int64)
        record = self._run_words(times.ctypes.data, clocks.ctypes.data)
        status = self._call(record)
        threads = record.words[_THREADS]  # one, of a run inside another one
        starts, busy = clocks[: 2 * count * threads].reshape(count * threads, 2).T
        return status, StepTimes(times, starts.reshape(count, threads), busy.reshape(count, threads))

    def _call(self, record: _Record) -> int:
        # The lock is not wrapped in a Python class: an exception of a signal at the beginning of its `__exit__` would
        # leave the lock held.
        queue = locks.RUNNING.holders.get(get_ident(), queues.FIRST)
        with locks.RUNNING.awaited(queue.lock) if queue.depth else queue.lock:
            if not (self.watched or self._forks):
                # On the caller's thread alone, to the end: nothing distinguishes a nested run from another one.
                return self._run(record.address)
            before = queue.depth
            queue.depth = before + 1
            try:
                return self._turn(record, queue if before == 0 else None)
            finally:
                queue.depth = before

    def _turn(self, record: _Record, queue: queues.RunQueue | None) -> int:
        """Run in this thread's turn. queue: the queue in which it runs; None inside a run of the same thread."""
        words = record.words
        if self.watched:
            words[_HANDLE] = 0 if queue is None else interrupts.find_handler()
        if queue is None:
            words[_POOL], words[_THREADS] = 0, 1
        elif self._forks:
            own = pool.pool_of(queue)
            words[_THREADS] = threads = queues.divide(self.threads)
            team = thread_count.current_team() if queue is queues.FIRST and threads == self.threads else None
            if team is not None:
                words[_POOL], words[_FORK], words[_NUMBER] = own.team_address, team.fork, team.number
                status = self._run_team(record.address)
                thread_count.team_waits.note(words[_WAITED], words[_SPAN])
                return _end(status)
            words[_THREADS], words[_POOL] = own.grow(threads), own.address
        return _end(self._run(record.address))


def _end(status: int) -> int:
    """Return the status of a run that reached its end; raise the exception that stopped it otherwise."""
    if status == entry_program.INTERRUPTED:
        interrupts.raise_again()
    return status


def _stride(scratch_bytes: int) -> int:
    """Return the bytes from one thread's scratch to the next one's: an odd number of cache lines, so that equal
    offsets do not fall into one cache set."""
    lines = -(-scratch_bytes // buffers.ALIGNMENT)
    return buffers.ALIGNMENT * (lines + 1 - lines % 2)


def scratch_area(scratch_bytes: int, threads: int) -> int:
    """Return the bytes of scratch that a program needs for all threads."""
    return _stride(scratch_bytes) * threads


def _pointers(step: Step) -> Sequence[int]:
    return step.pointers if isinstance(step, RunLaunch) else step.bases if isinstance(step, BeginLoop) else ()
