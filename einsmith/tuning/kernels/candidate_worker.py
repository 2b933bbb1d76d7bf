"""Compile, time and check candidates in a process of its own, which may crash or hang without harm.

`tuning.kernels.bench` starts the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from einsmith.base.errors import CompileError
from einsmith.checking.expected import written_buffers
from einsmith.checking.kernel_check import (
    BufferState,
    CheckedKernel,
    KernelFault,
    check,
    elements,
    evaluate,
)
from einsmith.checking.others import mask_differences
from einsmith.cost.facts import Target
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import Pattern
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels import measure
from einsmith.tuning.kernels.bench import CHOICE, register
from einsmith.tuning.kernels.genetic import Candidate
from einsmith.tuning.kernels.verdict import FINAL_ROUNDS, MAX_ROUNDS, MIN_ROUNDS, judge, pair_ratios

MAX_COPIES = 64
"""Most copies of a kernel's data; with the smallest kernels, some copies stay in a cache all the same."""
WARMUP_SECONDS = 2e-3
"""Seconds for which each candidate runs before a race. Without it the choice, which runs first, seemed 20 % slower in
the first race of a process than in all later ones."""


class Ready(NamedTuple):
    """A candidate, its machine code, and its timed run, which uses another copy of the data each time."""

    candidate: Candidate
    code: measure.MachineCode
    run: measure.TimedRun


class Bench:
    """The measurement of one kernel at a time, in several configurations. There are several copies of its data, and
    every run uses the next copy: inside a program, too, a kernel finds little of its data in the caches of its core,
    as other kernels ran before it."""

    def begin(
        self,
        kernel: Kernel,
        target: Target,
        threads: int,
        cold: bool,
        patterns: Sequence[Pattern],
        make: Callable[[], measure.KernelRunner],
    ) -> None:
        """Set the kernel that later requests are about. cold: its data is not even in the last-level cache; patterns:
        the user's own; make: function that returns what runs kernels."""
        self.kernel, self.target, self.threads, self._runner = kernel, target, threads, make()
        register(patterns)
        arrays = measure.example_buffers(kernel)
        each = sum(a.nbytes for a in arrays)
        copies = min(MAX_COPIES, 1 + 2 * (target.last_level if cold else target.l2 * target.cores) // max(1, each))
        self._data = [self._runner.place(arrays) for _ in range(copies)]
        self._ready: dict[int, Ready] = {}

    def compile_ahead(self, candidates: Sequence[Candidate]) -> None:
        """Compile candidates that may be prepared next, if several at once take less time."""
        able = {p.name: p for p in autoconfig.eligible_patterns(self.kernel, self.target)}
        pairs = [(able[c.pattern], c.config) for c in candidates if c.pattern in able]
        self._runner.compile_ahead(self.kernel, pairs, self.target)

    def prepare(self, number: int, candidate: Candidate) -> str:
        """Compile a candidate and run it; return the reason where it cannot be run, else an empty string."""
        if candidate.pattern not in {p.name for p in autoconfig.eligible_patterns(self.kernel, self.target)}:
            return f"no other process can import the pattern {candidate.pattern!r}; define its class in a module"
        pattern = autoconfig.pattern_of(candidate.pattern)
        try:
            reason = pattern.legal(self.kernel, candidate.config, self.target)
            if reason:
                return reason
            code = self._runner.compile(self.kernel, pattern, candidate.config, self.target)
        except CompileError as e:
            return str(e)
        self._ready[number] = Ready(candidate, code, self._runner.prepare(code, self._data, self.threads))
        return ""

    def drop(self, numbers: Sequence[int]) -> None:
        """Forget candidates."""
        for n in numbers:
            self._ready.pop(n, None)

    def race(self, numbers: Sequence[int], seconds: float, final: bool) -> tuple[list[list[float]], str]:
        """Race candidates; return each one's seconds, one run a round, and what else the machine did meanwhile
        (`KernelRunner.watch`).

        Runs alternate, so that a disturbance meets all candidates. Every candidate is compared with the first one, and
        stops as soon as the comparison is decided with confidence (`verdict.judge`). The race ends after `seconds`
        in all. final: no candidate stops early, and the race ends after FINAL_ROUNDS rounds or `seconds`, as repeated
        tests find differences that do not exist.
        """
        runs = [self._ready[n].run for n in numbers]
        times: list[list[float]] = [[] for _ in numbers]
        running = list(range(len(numbers)))
        for run in runs:  # the first runs after a pause are slow for any candidate
            end = time.perf_counter() + WARMUP_SECONDS
            while time.perf_counter() < end:
                run()
        disturbance = self._runner.watch()
        end = time.perf_counter() + seconds
        for rounds in range(FINAL_ROUNDS if final else MAX_ROUNDS):
            for i in running if rounds % 2 == 0 else reversed(running):
                times[i].append(runs[i]())
            if not final:
                running = [i for i in running if i == 0 or judge(pair_ratios(times[0], times[i])) is None]
            if len(running) < 2 or (time.perf_counter() > end and rounds + 1 >= (MIN_ROUNDS if final else 3)):
                break
        return times, disturbance()

    def vet(self, number: int, seed: int) -> str:
        """Return why a candidate may not be used; empty where it is correct (`fault_of`)."""
        candidate, code, _ = self._ready[number]
        subject = self._runner.subject(
            self.kernel, self.target, self.threads, code, candidate.pattern, str(candidate.config)
        )
        choice = self._ready.get(CHOICE)
        return fault_of(subject, None if choice is None else choice.code, seed)


def fault_of(subject: CheckedKernel, choice: measure.MachineCode | None, seed: int) -> str:
    """Return what is wrong with a kernel's machine code; empty where it is correct. Faults are that it accesses memory
    that it must not, gives different results in several runs on guarded memory, or differs on random data from the
    evaluator in float64 or, where that would take too long, from the model's choice."""
    kernel = subject.kernel
    arrays = measure.example_buffers(kernel, seed)
    pairs = zip(arrays, kernel.buffers, strict=True)
    memories = [BufferState(a.ctypes.data, a.view(np.uint8)[: b.nbytes]) for a, b in pairs]
    try:
        results = check(subject, memories)
        if evaluate(subject, memories, results, seed):
            return ""
        if choice is None:
            return "there are no results to compare its results with"
        launches = tuple((address, tasks) for address, tasks, _ in choice.launches)
        choice_subject = replace(subject, launches=launches, scratch=choice.scratch, workspace=choice.workspace)
        choice_results = check(choice_subject, memories, compare=False)
    except KernelFault as e:
        return e.text
    for n, mask in written_buffers(kernel).items():
        b = kernel.buffers[n]
        x, y = (elements(v.values[n].view(b.dtype.numpy), b) for v in (results, choice_results))
        wrong = mask_differences(x, y, b.dtype, kernel) & (True if mask is None else mask)
        if wrong.any():
            return f"{int(wrong.sum())} of {wrong.size} elements of buffer {n} differ from those of the model's choice"
    return ""
