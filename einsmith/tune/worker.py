"""The process in which candidates are compiled, timed and compared: it may crash or hang without harm.

Started by `tune.bench`, which it talks to in pickles, each behind its length in 8 bytes: a request is the name of a
method of `Bench` and its arguments, an answer is True and what it returned, or False and the error in words.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from einsmith.check.kernel import Fault, Held, Source, Subject, check, evaluate
from einsmith.codegen.cache import native
from einsmith.errors import CompileError
from einsmith.kernels import choose as autoconfig
from einsmith.kernels.pattern import Lowered, Pattern
from einsmith.plan.kernel import Kernel, Rows
from einsmith.runtime import buffers
from einsmith.runtime.program import Program
from einsmith.target.facts import Target
from einsmith.tune import load, measure
from einsmith.tune.genetic import Candidate
from einsmith.tune.race import MOST, told_apart


class Bench:
    """One kernel at a time, in several configurations."""

    def begin(
        self, kernel: Kernel | Rows, target: Target, threads: int, cold: bool, patterns: Sequence[Pattern]
    ) -> None:
        """The kernel from now on. cold: what it touches is in no cache when it begins; patterns: a user's own."""
        self.kernel, self.target, self.threads = kernel, target, threads
        known = {p.name for p in autoconfig.PATTERNS}
        for p in patterns:
            if p.name not in known:
                autoconfig.register(p)
        self._arrays = measure.example_buffers(kernel)
        self._ready: dict[int, tuple[Candidate, Lowered, measure.Prepared]] = {}
        self._swept = buffers.zeros((2 * target.l3 if cold else 0,), np.uint8)

    def prepare(self, number: int, candidate: Candidate) -> str:
        """Compiles a candidate and runs it once; the reason where it cannot be, else nothing."""
        pattern = autoconfig.pattern_of(candidate.pattern)
        try:
            reason = pattern.legal(self.kernel, candidate.config, self.target)
            if reason:
                return reason
            lowered = pattern.lower(self.kernel, candidate.config, self.target)
            made = measure.prepare(self.kernel, pattern, candidate.config, self.target, self.threads, self._arrays)
        except CompileError as e:
            return str(e)
        self._ready[number] = candidate, lowered, made
        return ""

    def drop(self, numbers: Sequence[int]) -> None:
        """Forgets candidates."""
        for n in numbers:
            self._ready.pop(n, None)

    def race(self, numbers: Sequence[int], seconds: float) -> tuple[list[list[float]], str]:
        """Seconds of each candidate's runs, one a round, in turns, so that what slows the machine meets them all; and
        what else it did meanwhile (`load.Watch`). The first is who the others are compared with: one is out as soon as
        it is told apart from that one with confidence, or after `seconds` in all."""
        programs = [self._ready[n][2].program for n in numbers]
        times: list[list[float]] = [[] for _ in numbers]
        running = list(range(len(numbers)))
        watch = load.Watch()
        end = time.perf_counter() + seconds
        for done in range(MOST):
            for i in running if done % 2 == 0 else reversed(running):
                times[i].append(self._timed(programs[i]))
            running = [i for i in running if i == 0 or not told_apart(times[0], times[i])]
            if len(running) < 2 or (time.perf_counter() > end and done + 1 >= 3):
                break
        return times, watch.disturbance()

    def _timed(self, program: Program) -> float:
        """The shorter of two runs: the workers may sleep when the first one begins."""
        found = []
        for _ in range(2):
            if self._swept.size:
                np.add(self._swept, 1, out=self._swept)
            found.append(float(program.run_timed()[1].sum()))
        return min(found)

    def vet(self, number: int, seed: int) -> str:
        """Why a candidate may not be used: what it does on guarded memory in several ways, and how its results differ
        from the evaluator's in float64, on fresh random data; nothing where it is right."""
        candidate, lowered, _ = self._ready[number]
        functions = [x.function for x in lowered.launches]
        addresses = native.compile_functions(functions, self.target)
        launches = tuple((addresses[x.function.name], x.tasks) for x in lowered.launches)
        scratch = max((f.scratch_bytes for f in functions), default=0)
        subject = Subject(
            self.kernel, self.target, launches, scratch, lowered.workspace, candidate.pattern, str(candidate.config),
            lambda: Source("", (), 0, 0), self.threads,
        )  # fmt: skip
        arrays = measure.example_buffers(self.kernel, seed)
        pairs = zip(arrays, self.kernel.buffers, strict=True)
        held = [Held(a.ctypes.data, a.view(np.uint8)[: b.nbytes]) for a, b in pairs]
        try:
            evaluate(subject, held, check(subject, held), seed)
        except Fault as e:
            return e.text
        return ""


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answers until the input ends."""
    bench = Bench()
    while header := source.read(8):
        name, arguments = pickle.loads(source.read(int.from_bytes(header, "little")))
        try:
            answer: tuple[bool, Any] = True, getattr(bench, name)(*arguments)
        except Exception as e:  # told to whoever asked
            answer = False, f"{type(e).__name__}: {e}"
        data = pickle.dumps(answer)
        sink.write(len(data).to_bytes(8, "little") + data)
        sink.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this is asked to stop too, and closes the input
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a candidate or a pattern prints is no answer
    serve(sys.stdin.buffer, answers)
