"""Run a compiled graph on arrays, and exchange its program for a faster one while it lives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import numpy as np

from einsmith.base.caches import Bound
from einsmith.base.errors import IndexOutOfRange
from einsmith.base.recording import Recorder
from einsmith.driver.binding import Binding
from einsmith.driver.bound_memory import BoundMemory
from einsmith.driver.constants import MOST_VAIN, Constants
from einsmith.driver.fitting import SizeFit
from einsmith.driver.program_view import ProgramView
from einsmith.driver.runs import Runs
from einsmith.driver.timeline import RecordedRun
from einsmith.passes.pipeline import deciding
from einsmith.runtime.memory import Memory
from einsmith.runtime.steps import FINITE
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.programs.tunable_program import StepTuner

Result = TypeVar("Result")

PROGRAMS = Bound("programs", 512, 512 << 20)
"""Bound of the programs that all compiled functions and training steps keep together: 512 programs, 512 MiB by
`BoundProgram.nbytes`."""


class ProgramSource(Protocol):
    """What a program was compiled from."""

    def compile(self, program: BoundProgram, memories: Collection[Memory]) -> BoundProgram:
        """Return the graph of a program compiled anew, for the same memory. memories: those of it whose changes are
        followed."""


class BoundProgram(ProgramView):
    """A compiled graph with the memory of its leaves, ready to run. Its program may be exchanged between two runs.

    note: what the caller that had it compiled keeps with it. compile_seconds: time that compilation took. tuner: what
    runs the steps of a caller that holds the guard, while the program is tuned.

    Args:
        memory: the memory that runs read and change.
        runs: the program in its queues.
        constants: what depends on constants alone; None where nothing is constant.
        source: what it was compiled from.
    """

    def __init__(self, memory: BoundMemory, runs: Runs, constants: Constants | None, source: ProgramSource):
        self.memory, self.runs, self.constants, self.source = memory, runs, constants, source
        self.note: Any = None
        self.tuner: StepTuner | None = None
        self.compile_seconds = 0.0

    # -- other programs for the same graph

    def with_decisions(self, texts: Mapping[Kernel, str], compare: bool = False) -> BoundProgram:
        """Return this program with some kernels compiled by other decision texts; no pass is run again.

        The two programs share one memory and take turns on it.

        Args:
            texts: decision text by kernel (`tuning.kernels.decisions`); empty: the cost model's choice.
            compare: leave this program's kernels in place and run the given alternatives as well, into memory of their
                own (attribute `comparisons`, by kernel).
        Raises:
            CompileError: a text cannot be compiled.
            MemoryLimitError: both programs together exceed the memory limit.
        """
        compiled, code_bytes = self.compiled.with_decisions(texts, compare)
        memory, origin = self.memory, self.program
        more = origin.table.nbytes + code_bytes
        settings = memory.arena, memory.limit, more, memory.notices, memory.known, origin
        return self._derive({0: Binding(compiled, memory.arrays, *settings)}, self.runs.fit)

    def fitted(self, fit: SizeFit) -> BoundProgram:
        """Return this program, of a capacity, as one for a smaller size. The two share all memory."""
        return self._derive(self.runs.bindings, fit)

    def _derive(self, bindings: dict[int, Binding], fit: SizeFit | None) -> BoundProgram:
        runs = Runs(self.memory, bindings, self.constants, self.runs.origins, fit)
        program = BoundProgram(self.memory, runs, self.constants, self.source)
        program.note, program.compile_seconds = self.note, self.compile_seconds
        return program

    @property
    def is_shared(self) -> bool:
        """True if other sizes share the program."""
        return self.runs.fit is not None

    def compile_deciding(self, decisions: frozenset[str]) -> BoundProgram:
        """Return the graph compiled anew by these decisions (`schedule.graph_decisions`). The two programs share one
        memory, but for leaves that decisions store in another order, and take turns on it."""
        with deciding(decisions):
            program = self.source.compile(self, self.memory.memories)
        program.note = self.note
        return program

    def swap(self, other: BoundProgram) -> None:
        """Exchange the program, from the next run on, for one that `with_decisions` derived from this one (hot
        swap)."""
        with self.memory.guard or nullcontext():
            self.runs.bindings = {0: other.binding}

    def _forget_constants(self) -> None:
        """Exchange the program for one that treats nothing as constant, as what is constant changes all the time."""
        plain = self.source.compile(self, ())
        with self.memory.guard or nullcontext():
            self.memory, self.constants = plain.memory, None
            runs = self.runs
            runs.memory, runs.bindings, runs.constants = plain.memory, plain.runs.bindings, None

    # -- memory

    @property
    def nbytes(self) -> int:
        """Return the approximate bytes freed with the program (`Runs.nbytes`)."""
        return self.runs.nbytes

    def preserve(self) -> AbstractContextManager[None]:
        """Restore bound memory at the end of the block, undoing the stores of its runs. No other thread reads or
        changes it until then."""
        return self.memory.preserve()

    # -- runs

    def __call__(self, inputs: Sequence[np.ndarray]) -> tuple[int, list[np.ndarray]]:
        """Run the program and return (status, outputs): 0, or FINITE with nothing updated. Raises IndexOutOfRange where
        a check fails."""
        if self.constants is not None and self.constants.vain > MOST_VAIN:
            self._forget_constants()
        return self.run_protected(self.runs.call, inputs)

    def run_locked(self, inputs: Sequence[np.ndarray], is_tuned: bool = True) -> tuple[int, list[np.ndarray]]:
        """Run the program like a call, for a caller that holds the guard; itself and nothing else unless `is_tuned`."""
        if is_tuned and self.tuner is not None:
            return self.tuner.step(inputs)
        time = None if self.constants is None else self._refresh()
        return self.runs.in_queue(time, self.runs.call, inputs)

    def begin_locked(self, inputs: Sequence[np.ndarray]) -> Callable[[], tuple[int, list[np.ndarray]]] | None:
        """Begin a run of a caller that holds the guard; return the function that waits for its end and returns what a
        call does. Runs end in the order of their beginnings. None where programs of the back end, or this one, run to
        their end at once, and while it is tuned."""
        binding, runs = self.binding, self.runs
        program = binding.program
        if self.tuner is not None or not self.backend.overlaps or runs.fit is not None:
            return None
        if binding.copies or runs.recorder is not None:
            return None
        begun: list[Any] = []

        def begin() -> int:
            begun.append(program.begin())  # type: ignore[attr-defined]
            return 0

        _, outputs = runs.in_queue(self._refresh(), runs.call, inputs, begin)

        def end() -> tuple[int, list[np.ndarray]]:
            status = program.finish(begun[0])  # type: ignore[attr-defined]
            if status > FINITE:
                raise runs.explain(IndexOutOfRange(binding.messages[status]), binding, inputs)
            return status, outputs

        return end

    def run_timed(self, inputs: Sequence[np.ndarray]) -> tuple[int, list[np.ndarray], list[float]]:
        """Run the program and return (status, outputs, seconds of each kernel summed over all iterations of its
        loop)."""
        return self.run_protected(self.runs.call_timed, inputs)

    def run_recorded(self, inputs: Sequence[np.ndarray]) -> RecordedRun:
        """Run the program; return when its steps took place, and on which threads."""
        return self.run_protected(self.runs.call_recorded, inputs)

    def record(self, recorder: Recorder, inputs: Sequence[np.ndarray], repeats: int = 20) -> None:
        """Record the run of the median time among `repeats` runs; changes to bound memory are undone."""
        with self.preserve():
            self(inputs)
            runs = [self.run_recorded(inputs) for _ in range(repeats)]
        recorder.add_run(sorted(runs, key=lambda run: run.ended - run.begun)[len(runs) // 2])

    def time_calls(self, inputs: Sequence[np.ndarray], repeats: int = 10) -> list[float]:
        """Return the median seconds of each kernel inside whole runs, whose changes to bound memory are undone."""
        with self.preserve():
            self(inputs)
            times = np.array([self.run_timed(inputs)[2] for _ in range(repeats)])
        return [float(x) for x in np.median(times, 0)]

    def run_at(self, inputs: Sequence[int], outputs: Sequence[int], stream: Any = None) -> int:
        """Run on the caller's memory, given by the addresses of the inputs and of the graph's outputs.

        All are C-contiguous; the outputs are aligned to 64 bytes and overlap nothing else. Returns the status; raises
        as a call does. stream: of a program on a device, whose addresses are then those of its memory, the stream in
        which it runs; the call may return before its end.
        """
        return self.run_protected(self.runs.call_at, inputs, outputs, stream)

    def _refresh(self) -> int | None:
        """Compute what depends on constants alone, if these may have changed; the caller holds the guard. Return the
        time of the constants."""
        if self.constants is None or self.memory.guard is None:
            return None
        return self.constants.refresh(self.memory.guard)

    def run_protected(self, run: Callable[..., Result], *args: Any) -> Result:
        """Run in a queue, while no other thread changes parameters and state; return what `run` returns."""
        guard, in_queue = self.memory.guard, self.runs.in_queue
        if guard is None:
            return in_queue(None, run, *args)
        mark, constants = guard.mark(), self.constants
        try:
            if self.memory.is_concurrent and guard.try_reading():
                try:
                    time = None if constants is None else constants.known_time()
                    if time is not None or constants is None:
                        return in_queue(time, run, *args)
                finally:
                    guard.end_reading()
            if not self.memory.is_concurrent:
                with guard:
                    return in_queue(None if constants is None else constants.refresh(guard), run, *args)
            guard.enter_beside_readers()
            try:
                time = None if constants is None else constants.refresh(guard)
                guard.begin_reading()
            finally:
                guard.__exit__()
            try:
                return in_queue(time, run, *args)
            finally:
                guard.end_reading()
        except BaseException:
            guard.restore(mark)
            raise
