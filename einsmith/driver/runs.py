"""Run a compiled program on arrays or on memory given by addresses, each run in a queue."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from einsmith.base import environment, locks, recording
from einsmith.base.errors import IndexOutOfRange
from einsmith.base.recording import Recorder
from einsmith.driver.binding import Binding
from einsmith.driver.bound_memory import BoundMemory
from einsmith.driver.fitting import Fitting, Padding, SizeFit
from einsmith.driver.timeline import RecordedRun, Timeline
from einsmith.ir.nodes import Leaf, Tensor
from einsmith.ir.origins import Origins
from einsmith.ir.views import storage
from einsmith.passes.analysis.index_checks import violation
from einsmith.runtime import buffers, queues
from einsmith.runtime.memory import Clock, Memory
from einsmith.runtime.nested import check_run, under_way
from einsmith.runtime.steps import FINITE, StepTimes

Result = TypeVar("Result")

OUTGROWN_RUNS = 500
"""Runs of a size in a program that others share, after which the time that the shared program takes more (2 to 18 %,
docs/sizes.md) is about that of compiling one for the size, which is that of 27 (ResNet) to 4600 (LeNet) runs."""
NODES_BYTES = 64 << 10
"""Estimated bytes of Python objects per kernel: its part of the graph, of the plan and of the steps."""


class Preparer(Protocol):
    """What prepares constants for kernels (`driver.constants.Constants`)."""

    @property
    def nbytes(self) -> int:
        """Return the approximate bytes of what is kept of constants."""

    def prepare(self, binding: Binding, time: int, is_first: bool) -> None:
        """Prepare what kernels keep of constants, if these may have changed since."""


class Runs:
    """Runs of a program that is bound to memory.

    bindings: by the number of a queue, the program bound to the memory of runs in it. fit: how the program, of a
    capacity, runs for a smaller size. outgrown: called, of a program that sizes share, when one of them has run so
    often that a program of its own pays.
    """

    def __init__(
        self,
        memory: BoundMemory,
        bindings: dict[int, Binding],
        constants: Preparer | None,
        origins: Origins,
        fit: SizeFit | None = None,
    ):
        self.memory, self.bindings, self.constants = memory, bindings, constants
        self.origins, self.fit = origins, fit
        self.outgrown: Callable[[], object] | None = None
        self.recorder = recording.recorder_of_process() if environment.TRACE.is_set() else None
        self.timelines: WeakKeyDictionary[Binding, Timeline] = WeakKeyDictionary()
        self._fitting: Fitting | None = None

    @property
    def nbytes(self) -> int:
        """Return the approximate bytes freed with the program: machine code, which others may share, Python objects,
        and what is kept of constants. Shared memory and bound arrays are not included."""
        if self.fit is not None:  # the rest belongs to the sizes that share the program
            return NODES_BYTES
        first = self.bindings[0]
        kept = sum(b.kept.nbytes for b in list(self.bindings.values()))
        kept += 0 if self.constants is None else self.constants.nbytes
        kernels = first.compiled.kernels
        return sum(k.nbytes + NODES_BYTES for k in kernels) + first.program.table.nbytes + kept

    def in_queue(self, time: int | None, run: Callable[..., Result], *args: Any) -> Result:
        """Call `run` with the binding and `time`, then `args`, in a queue's turn. time: that of the constants."""
        me, holders, memory = get_ident(), locks.RUNNING.holders, self.memory
        outer = locks.RUNNING.queue_of(me) if holders else None
        if not memory.is_concurrent or (outer is None and not queues.FIRST.callers):
            queue = queues.FIRST
            queue.callers[me] = None
        else:  # within a run of this thread, in the run's queue
            queue = outer or queues.choose()
        try:
            with locks.RUNNING.awaited(queue.lock) if len(queue.callers) > 1 or queue.depth else queue.lock:
                for captured in memory.captured:
                    captured.refresh()
                binding = self.bindings.get(queue.number) or self._bind(queue)
                if outer is not None:
                    return run(binding, time, *args)
                holders[me] = queue
                try:
                    return run(binding, time, *args)
                finally:
                    del holders[me]
        finally:
            if outer is not queue:
                queue.callers.pop(me, None)

    def _bind(self, queue: queues.RunQueue) -> Binding:
        """Bind the program to the memory of runs in a queue, whose lock the caller holds."""
        memory, compiled = self.memory, self.bindings[0].compiled
        arena = memory.arena.of(queue.number)
        binding = Binding(compiled, memory.arrays, arena, memory.limit, memories=memory.known)
        self.bindings[queue.number] = binding
        return binding

    def call(
        self,
        binding: Binding,
        time: int | None,
        inputs: Sequence[np.ndarray],
        run: Callable[[], int] | None = None,
    ) -> tuple[int, list[np.ndarray]]:
        """Run the program and return its status and its outputs as arrays."""
        memory, passed, run = self.memory, inputs, run or binding.program.run
        padding = None
        if self.fit is None:
            places = buffers.addresses(inputs)
        else:
            fitting = self._fitting_of(self.fit, binding)
            padding = fitting.take()
            inputs, places = fitting.pad(inputs, padding, binding)
        if memory.stored and any(map(memory.is_stored, places, inputs)):
            inputs = [x.copy() if memory.is_stored(at, x) else x for at, x in zip(places, inputs, strict=True)]
            places = buffers.addresses(inputs)
        arrays: list[np.ndarray] = []
        for array, at in [r.take() for r in binding.results] if padding is None else fitting.allocate(padding):
            arrays.append(array)
            places.append(at)
        try:
            status = self.run(places, binding, time, run)
        except IndexOutOfRange as e:
            raise self.explain(e, binding, passed) from None
        outputs = arrays if binding.is_in_order else self._collect(inputs, arrays, binding)
        if padding is not None:
            outputs = fitting.cut(outputs)
            self._end_fitted(fitting, padding)
        return status, outputs

    def _fitting_of(self, fit: SizeFit, binding: Binding) -> Fitting:
        fitting = self._fitting
        if fitting is None or fitting.compiled is not binding.compiled:
            fitting = self._fitting = Fitting(fit, binding)
        return fitting

    def _end_fitted(self, fitting: Fitting, padding: Padding) -> None:
        """Note that a run for a size below the capacity has ended."""
        fitting.give(padding)
        fitting.runs += 1
        if fitting.runs >= OUTGROWN_RUNS and self.outgrown is not None:
            outgrown, self.outgrown = self.outgrown, None
            outgrown()

    def call_timed(
        self, binding: Binding, time: int | None, inputs: Sequence[np.ndarray]
    ) -> tuple[int, list[np.ndarray], list[float]]:
        """Run the program and return (status, outputs, seconds of each kernel)."""
        step_times: list[np.ndarray] = []

        def run() -> int:
            status, times = binding.program.run_timed()
            step_times.append(times)
            return status

        status, outputs = self.call(binding, time, inputs, run)
        seconds = np.bincount(binding.call_of_step, step_times[0], len(binding.calls) + 1)[:-1]
        return status, outputs, seconds.tolist()

    def call_recorded(self, binding: Binding, time: int | None, inputs: Sequence[np.ndarray]) -> RecordedRun:
        """Run the program; return when its steps took place, and on which threads."""
        times: list[StepTimes] = []

        def run() -> int:
            status, run_times = binding.program.run_recorded()
            times.append(run_times)
            return status

        timeline, begun = self._timeline_of(binding), perf_counter_ns()
        self.call(binding, time, inputs, run)
        return RecordedRun(timeline, begun, perf_counter_ns(), times[0])

    def call_at(
        self, binding: Binding, time: int | None, inputs: Sequence[int], outputs: Sequence[int], stream: Any
    ) -> int:
        """Run the program on the caller's memory, given by addresses; return the status."""
        compiled, run, arrays = binding.compiled, binding.program.run, self.memory.arrays
        if self.fit is not None:
            return self._fit_at(self.fit, binding, time, inputs, outputs)
        if stream is not None:
            run = partial(binding.program.run_on, stream)  # type: ignore[attr-defined]
        try:
            places = [*inputs, *(outputs[k] for k in binding.written)]
            status = self.run(places, binding, time, run)
        except IndexOutOfRange as e:
            if stream is not None:
                raise
            values = [buffers.array_at(n, t.shape, t.dtype) for n, t in zip(inputs, compiled.inputs, strict=False)]
            raise self.explain(e, binding, values) from None
        if binding.copies:
            self.memory.fetch()
        for k, source, count in binding.copies:
            if source in arrays:
                address = buffers.address(arrays[source])
            elif isinstance(source, Leaf):
                address = inputs[compiled.inputs.index(source)]
            else:
                address = outputs[binding.written[compiled.outputs.index(source)]]
            if stream is None:
                ctypes.memmove(outputs[k], address, count)
            else:
                binding.program.copy_on(stream, outputs[k], address, count, source in arrays)  # type: ignore[attr-defined]
        return status

    def _fit_at(
        self, fit: SizeFit, binding: Binding, time: int | None, inputs: Sequence[int], outputs: Sequence[int]
    ) -> int:
        """Run on the caller's memory, given by addresses, for a size below the capacity."""

        def arrays() -> list[np.ndarray]:
            places = zip(inputs, fit.inputs, binding.compiled.inputs, strict=False)
            return [buffers.array_at(at, shape, x.dtype) for at, shape, x in places]

        if binding.copies:
            status, results = self.call(binding, time, arrays())
            for to, a in zip(outputs, results, strict=True):
                ctypes.memmove(to, buffers.address(a), a.nbytes)
            return status
        fitting = self._fitting_of(fit, binding)
        padding = fitting.take()
        places, whole = fitting.pad_at(inputs, padding, binding), fitting.outputs_of(padding)
        for k, kind in zip(binding.written, fitting.allocated, strict=True):
            places.append(next(whole)[1] if kind is None else outputs[k])
        try:
            status = self.run(places, binding, time, binding.program.run)
        except IndexOutOfRange as e:
            raise self.explain(e, binding, arrays()) from None
        fitting.cut_at(padding, outputs)
        self._end_fitted(fitting, padding)
        return status

    def run(self, places: Sequence[int], binding: Binding, time: int | None, run: Callable[[], int]) -> int:
        """Run the program, in a queue's turn, on memory given by the addresses of the inputs and of the tensors
        allocated for outputs."""
        me, memory = get_ident(), self.memory
        outer = under_way.get(me) if under_way else None
        if outer is not None:
            check_run(outer, memory.arena, memory.guard, bool(memory.stored))
        under_way[me] = memory.arena, memory.guard, outer
        try:
            block = binding.arena.block  # kept until the run ends
            if block.number != binding.block_number:
                block = binding.move()
            if Memory.may_be_away and binding.compiled.backend.in_process:
                memory.fetch()
            if time is not None and self.constants is not None:
                self.constants.prepare(binding, time, binding is self.bindings[0])
            if places != binding.places:
                binding.point(places)
            status = run() if self.recorder is None else self._record(self.recorder, binding, run)
        finally:
            if memory.stored:  # also where a signal raises after a run that has stored
                Clock.changed = now = next(Clock.times)
                for changed in memory.changed:
                    changed.version = now
                if memory.changes_others:
                    Clock.stored = now
            if outer is None:
                del under_way[me]
            else:
                under_way[me] = outer
        if status > FINITE:
            raise IndexOutOfRange(binding.messages[status])
        return status

    def _record(self, recorder: Recorder, binding: Binding, run: Callable[[], int]) -> int:
        """Run the program, and record the run. Of a run that measures otherwise only the whole is known."""
        timeline, times, begun = self._timeline_of(binding), None, perf_counter_ns()
        if run == binding.program.run:
            status, times = binding.program.run_recorded()
        else:
            status = run()
        recorder.add_run(RecordedRun(timeline, begun, perf_counter_ns(), times))
        return status

    def _timeline_of(self, binding: Binding) -> Timeline:
        timeline = self.timelines.get(binding)
        if timeline is None:
            timeline = self.timelines[binding] = Timeline(binding)
        return timeline

    def explain(self, error: IndexOutOfRange, binding: Binding, inputs: Sequence[np.ndarray]) -> IndexOutOfRange:
        """Return the error with the user's own index and its value, where they can be found."""
        if self.fit is not None:
            message = self.fit.explain(inputs)
        else:
            known = self.memory.arrays | dict(zip(binding.compiled.inputs, inputs, strict=True))
            message = violation(binding.compiled.source_graph.roots, known, self.origins)
        return IndexOutOfRange(message or str(error))

    def _collect(self, inputs: Sequence[np.ndarray], arrays: list[np.ndarray], binding: Binding) -> list[np.ndarray]:
        """Return the graph's outputs: arrays that the run wrote, and copies of others."""
        if not binding.copies:
            return [arrays[i] for i in binding.order]
        self.memory.fetch()
        compiled, bound = binding.compiled, self.memory.arrays
        written = dict(zip(compiled.outputs, arrays, strict=True))
        input_arrays = dict(zip(compiled.inputs, inputs, strict=True))
        out: list[np.ndarray] = []
        used: set[Tensor] = set()
        for t in compiled.graph.outputs:
            s = storage(t)
            if s in written:
                array = written[s].copy() if s in used else written[s]
            else:
                home = compiled.plan.home.get(s, s)
                array = (bound[home] if home in bound else input_arrays[home]).copy()  # type: ignore[index]
            used.add(s)
            out.append(array.reshape(t.shape))
        return out
