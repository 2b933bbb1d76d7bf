"""Run a compiled graph on arrays, and exchange its program for a faster one while it lives."""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import partial
from threading import get_ident
from time import perf_counter, perf_counter_ns
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from einsmith.base import environment, locks, messages, recording
from einsmith.base.caches import Bound
from einsmith.base.captured import CapturedArray
from einsmith.base.errors import IndexOutOfRange
from einsmith.base.html import Bar
from einsmith.base.numerics import PLAIN, Numerics
from einsmith.base.recording import Recorder
from einsmith.cost.facts import Target
from einsmith.driver.backend import Backend, Runnable
from einsmith.driver.binding import FINITE, Binding, LeafSum, Notice, Reply
from einsmith.driver.compile import Compiled, compile_graph
from einsmith.driver.describe import describe, list_bars
from einsmith.driver.timeline import RecordedRun, Timeline
from einsmith.ir.nodes import Graph, Leaf, Role, Tensor, nbytes, size
from einsmith.ir.origins import Origins
from einsmith.ir.views import storage
from einsmith.passes.analysis.index_checks import violation
from einsmith.passes.constants import split_constants
from einsmith.passes.listings import Changes
from einsmith.passes.pipeline import deciding
from einsmith.runtime import buffers, queues
from einsmith.runtime.arena import Arena
from einsmith.runtime.comparison import Comparison
from einsmith.runtime.memory import ChangeWatch, Clock, Memory
from einsmith.runtime.nested import check_run, under_way
from einsmith.runtime.signals import Deferred
from einsmith.runtime.steps import StepTimes
from einsmith.schedule.arena import Life
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Kernel
from einsmith.schedule.limits import RowLimit
from einsmith.schedule.pipeline import MemoryLimit
from einsmith.schedule.plan import KernelCall, Plan
from einsmith.schedule.row_clusters import MAX_STORED_BYTES

Result = TypeVar("Result")

PROGRAMS = Bound("programs", 512, 512 << 20)
"""Bound of the programs that all compiled functions and training steps keep together: 512 programs, 512 MiB by
`Executable.nbytes`."""
FEW_RUNS, MOST_VAIN = 4, 8
"""Constants that change after fewer runs than FEW_RUNS, more than MOST_VAIN times in a row, are none: to prepare them
takes up to four times as long as to read them as they are (a product of 2048x2048 and a vector)."""
OUTGROWN_RUNS = 500
"""Runs of a size in a program that others share, after which the time that the shared program takes more (2 to 18 %,
docs/sizes.md) is about that of compiling one for the size, which is that of 27 (ResNet) to 4600 (LeNet) runs."""
NODES_BYTES = 64 << 10
"""Estimated bytes of Python objects per kernel: its part of the graph, of the plan and of the steps."""

_POISON = {"f": np.nan, "i": 2**31 - 1}
"""What lies beyond the size in a checked run, by the kind of a type: no number, and no index."""


class SizeFit(NamedTuple):
    """How a program of a capacity (`passes.capacity`) runs for a smaller size.

    inputs, outputs: shapes of the arrays at this size; numbers: the values of the program's last inputs; explain:
    describes for arrays of this size which index leaves its tensor."""

    inputs: tuple[tuple[int, ...], ...]
    numbers: tuple[np.ndarray, ...]
    outputs: tuple[tuple[int, ...], ...]
    explain: Callable[[Sequence[np.ndarray]], str | None]


class _Fitting:
    """The arrays of a program of a capacity for a smaller size.

    Those whose rows beyond the size no kernel touches (`Compiled.short`) are passed as they are; others are copied into
    arrays of the capacity, with anything beyond the size.

    allocated: shape, type and bytes of the arrays that each run allocates for outputs; runs: how often it has run
    """

    def __init__(self, fit: SizeFit, binding: Binding):
        self.compiled, self._fit, self.runs = binding.compiled, fit, 0
        short = set() if binding.copies else self.compiled.short
        self._padded = [
            (n, x, tuple(map(slice, shape)))
            for n, (x, shape) in enumerate(zip(self.compiled.inputs, fit.inputs, strict=False))
            if shape != x.shape and not (x in short and shape[1:] == x.shape[1:])
        ]
        self._is_cut = not binding.copies
        self.allocated = []
        for t, k, known in zip(self.compiled.outputs, binding.written, binding.allocated, strict=True):
            shape, dtype, _ = known
            rows = fit.outputs[k] if k >= 0 else shape
            is_short = t in short and t.shape == shape and rows[1:] == shape[1:]
            self.allocated.append((rows, dtype, size(rows) * dtype.itemsize) if is_short else known)
            self._is_cut &= is_short or rows == shape

    def pad(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the program's inputs, the numbers included."""
        out = [*arrays, *self._fit.numbers]
        for n, x, part in self._padded:
            padded, _ = buffers.recycle(x.shape, out[n].dtype, nbytes(x))
            if environment.check_level():
                padded[...] = _POISON.get(padded.dtype.kind, 0)
            padded[part] = out[n]
            out[n] = padded
        return out

    def cut(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Return the part of each of the program's outputs that belongs to the size, C-contiguous."""
        if self._is_cut:
            return arrays
        return [
            a if a.shape == shape else np.ascontiguousarray(a[tuple(map(slice, shape))])
            for a, shape in zip(arrays, self._fit.outputs, strict=True)
        ]


class Executable:
    """A compiled graph with the memory of its leaves, ready to run. Its program may be exchanged between two runs.

    Args:
        graph: the graph.
        bind: arrays that live as long as the executable and hold leaves' values (parameters, state, constants); updates
            are stored into them. The other inputs are passed to each call, in the graph's order, as C-contiguous arrays
            of the leaf's shape and type.
        threads: threads that share the work.
        finite: a tensor whose first element must be finite for a run to store into leaves.
        target: the machine, if it is not this one.
        numerics: how the program may round.
        shared: memory for intermediate results that other executables also use, in other runs.
        memory: most bytes that a run may hold in all, including what is bound to leaves, inputs and outputs.
        backend: the back end that compiles, if it is not the target's own.
        other_bytes: bytes held elsewhere that count towards `memory`.
        guard: the lock of the parameters and the state in `bind`, held by every run.
        origins: origins of the graph's leaves and indices, for messages.
        max_stored: most bytes of a result that is stored where it need not be (`compile_graph`).
        notices: what every run tells other threads, waits for, and sums over devices, while it goes on.
        memories: the memory behind arrays in `bind`, as far as it is known. A run notes what it changes of it. Where
            the graph stores nothing and runs are not checked, what depends on it alone is computed again only after it
            may have changed.
        limits: limits of rows beyond which results do not matter (`schedule.limits`).
        all_limited: whether each kernel must leave out rows beyond the limits.
    Raises:
        MemoryLimitError: a run needs more than `memory` bytes.
        UnlimitedError: a kernel that must leave out rows beyond the limits does not.
    """

    def __init__(
        self,
        graph: Graph,
        bind: Mapping[Leaf, np.ndarray],
        threads: int,
        finite: Tensor | None = None,
        target: Target | None = None,
        numerics: Numerics = PLAIN,
        shared: Arena | None = None,
        memory: int | None = None,
        backend: Backend | None = None,
        other_bytes: int = 0,
        guard: locks.Guard | None = None,
        origins: Origins | None = None,
        max_stored: int = MAX_STORED_BYTES,
        notices: Sequence[Notice | Reply | LeafSum] = (),
        memories: Collection[Memory] = (),
        limits: Sequence[RowLimit] = (),
        all_limited: bool = False,
    ):
        start = perf_counter()
        self.note: Any = None  # set by the caller that had it compiled
        self._fit: SizeFit | None = None
        self.outgrown: Callable[[], object] | None = None
        """Called, of a program that sizes share, when one of them has run so often that a program of its own pays."""
        self._fitting: _Fitting | None = None
        self._index = graph.outputs.index(finite) if finite is not None else -1
        self._origins = origins or Origins()
        self.bound, self._other_bytes, self._memory = dict(bind), other_bytes, memory
        self._max_stored, self._notices = max_stored, tuple(notices)
        self._limits: tuple[RowLimit, ...] = ()
        if not environment.check_level():  # which compares all rows of a kernel's results
            self._limits = tuple(limits)
        self._whole, self._memories = graph, tuple(memories)
        self._watch: ChangeWatch | None = None
        self._first: Executable | None = None
        self._made: dict[Leaf, np.ndarray] = {}
        """Memory of what depends on constants alone."""
        self._since = self._vain = 0
        """Runs since the last preparation, and preparations in a row that hardly any run had a use of."""
        known_arrays = self._known_arrays = {id(m.host): m for m in memories}
        fixed: list[Leaf] = []
        if memories and not graph.updates and finite is None and not environment.check_level():
            self._watch = ChangeWatch(memories)
            fixed += [x for x, a in bind.items() if id(a) in known_arrays]
            first, graph = split_constants(graph, fixed)
            if first is not None:
                self._made = {x: buffers.empty(x.shape, x.dtype.numpy) for x, _ in first.updates}
                self.bound |= self._made
                fixed += self._made
                known = {x: self.bound[x] for x in first.inputs}
                self._first = Executable(first, known, threads, None, target, numerics, shared, backend=backend)
                # Nobody else reads what it stores, and no other run is under way meanwhile.
                self._first._changes_others, self._first._concurrent = False, True
        settings = threads, finite, target, numerics, backend, self._limit, max_stored
        compiled = compile_graph(graph, self.bound, *settings, fixed, self._limits, all_limited)
        stored = {p: self.bound[p] for p, _ in compiled.graph.updates if p in self.bound}
        self._stored = sorted((buffers.address(a), a.nbytes) for a in stored.values())
        self._changes = [known_arrays[id(a)] for a in stored.values() if id(a) in known_arrays]
        captured = {x: a for x, a in self.bound.items() if isinstance(a, CapturedArray)}
        for x, a in captured.items():
            if not a.is_copy and self._is_stored(buffers.address(a), a):  # a run stores into it, perhaps too early
                captured[x] = self.bound[x] = a.apart()
        self._copies = [a for a in captured.values() if a.is_copy]
        self._changes_others: bool = len(self._changes) < len(stored)
        self._guard = guard or (locks.Guard() if self._stored or memories else None)
        # A checked run looks at the memory between the kernels, and while others may run.
        self._arena = Arena() if shared is None or environment.check_level() else shared
        self._concurrent: bool = not (self._stored or notices or memory is not None or environment.check_level())
        """Whether threads may run the program at one time, each with intermediate results of its own."""
        with recording.phase("binding to memory"):
            self._binding = Binding(
                compiled, self.bound, self._arena, self._limit, notices=self._notices, memories=known_arrays
            )
        self._recorder = recording.recorder_of_process() if environment.TRACE.is_set() else None
        self._timelines: WeakKeyDictionary[Binding, Timeline] = WeakKeyDictionary()
        self.compile_seconds = perf_counter() - start
        if environment.debug() >= 1:
            messages.say(
                f"einsmith: {len(self.kernels)} kernels, passes {compiled.seconds * 1e3:.0f} ms, code "
                f"{(self.compile_seconds - compiled.seconds) * 1e3:.0f} ms, arena {self.arena_bytes / 2**20:.2f} MiB"
            )
        if environment.debug() >= 2:
            messages.say(self.describe())

    @property
    def _limit(self) -> MemoryLimit | None:
        return None if self._memory is None else MemoryLimit(self._memory, self._leaf_bytes)

    @property
    def _leaf_bytes(self) -> int:
        """Return the bytes that are bound to leaves or otherwise held."""
        return self._other_bytes + sum(a.nbytes for a in self.bound.values())

    # -- other programs for the same graph

    def with_decisions(self, texts: Mapping[Kernel, str], compare: bool = False) -> Executable:
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
        program = copy(self)
        more = self.program.table.nbytes + code_bytes
        program._binding = Binding(
            compiled, self.bound, self._arena, self._limit, more, self._notices, self._known_arrays, self.program
        )
        return program

    def fitted(self, fit: SizeFit) -> Executable:
        """Return this program, of a capacity, as one for a smaller size. The two share all memory."""
        program = copy(self)
        program._fit, program._fitting = fit, None
        return program

    @property
    def is_shared(self) -> bool:
        """True if other sizes share the program."""
        return self._fit is not None

    def compile_deciding(self, decisions: frozenset[str]) -> Executable:
        """Return the graph compiled anew by these decisions (`schedule.graph_decisions`). The two programs share one
        memory and take turns on it."""
        with deciding(decisions):
            program = self._compile_again(self._memories)
        program.note = self.note
        return program

    def _compile_again(self, memories: Collection[Memory]) -> Executable:
        """Return the graph compiled anew, for the same memory. memories: as the argument of that name."""
        compiled = self.compiled
        return Executable(
            self._whole,
            {x: a for x, a in self.bound.items() if x not in self._made},
            self.threads,
            None if self._index < 0 else self._whole.outputs[self._index],
            compiled.target,
            compiled.numerics,
            self._arena,
            self._memory,
            compiled.backend,
            self._other_bytes,
            self._guard,
            self._origins,
            self._max_stored,
            self._notices,
            memories,
            self._limits,
        )

    def swap(self, other: Executable) -> None:
        """Exchange the program, from the next run on, for that of an executable which `with_decisions` derived from
        this one (hot swap)."""
        with self._guard or nullcontext():
            self._binding = other._binding

    @property
    def _binding(self) -> Binding:
        """The program's binding in the first queue."""
        return self._bindings[0]

    @_binding.setter
    def _binding(self, binding: Binding) -> None:
        self._bindings = {0: binding}
        """By the number of a queue, the program bound to the memory of runs in it."""

    # -- the program at present

    @property
    def compiled(self) -> Compiled:
        """Return the compiled program."""
        return self._binding.compiled

    @property
    def source_graph(self) -> Graph:
        """Return the graph before the passes."""
        return self.compiled.source_graph

    @property
    def graph(self) -> Graph:
        """Return the graph after the passes."""
        return self.compiled.graph

    @property
    def plan(self) -> Plan:
        """Return the plan: calls of kernels, in order."""
        return self.compiled.plan

    @property
    def kernels(self) -> list[CompiledKernel]:
        """Return the compiled kernel of each call."""
        return self.compiled.kernels

    @property
    def target(self) -> Target:
        """Return the machine that the program is compiled for."""
        return self.compiled.target

    @property
    def backend(self) -> Backend:
        """Return the back end that compiled the program."""
        return self.compiled.backend

    @property
    def threads(self) -> int:
        """Return the number of threads that share the work."""
        return self.compiled.threads

    @property
    def decisions(self) -> frozenset[str]:
        """Return what is decided otherwise than by the cost model, because the program was measured to be faster."""
        return self.compiled.decisions

    @property
    def changes(self) -> Changes:
        """Return what each pass changed."""
        return self.compiled.changes

    @property
    def program(self) -> Runnable:
        """Return the table of steps behind one native call."""
        return self._binding.program

    @property
    def calls(self) -> list[KernelCall]:
        """Return the call of each kernel, those in loops included."""
        return self._binding.calls

    @property
    def turns(self) -> list[int]:
        """Return how often a run executes each kernel."""
        return self._binding.turns

    @property
    def roles(self) -> list[Role]:
        """Return the role of each kernel: forward, backward or update."""
        return self._binding.roles

    @property
    def lives(self) -> Callable[[], list[Life]]:
        """Return the function that gives live ranges in the arena: first and last call of the plan for each tensor."""
        return self._binding.lives

    @property
    def comparisons(self) -> Mapping[Kernel, Comparison]:
        """Return the kernels that run in a second configuration too."""
        return self._binding.comparisons

    def describe(self) -> str:
        """Describe the program, line by line (`driver.describe`)."""
        return describe(self._binding, self.held_bytes)

    def describe_code(self, call: int) -> list[str]:
        """Describe the machine code of the kernel call of a number, one line for each function."""
        return self.backend.describe_code(self.program, np.flatnonzero(self._binding.call_of_step == call).tolist())

    @property
    def bars(self) -> list[Bar]:
        """Return what each kernel computes, its role, and its predicted seconds, for a timeline."""
        return list_bars(self._binding)

    # -- memory

    def fixed_bytes(self) -> tuple[int, int]:
        """Return two sizes in bytes: memory bound to leaves or otherwise held, and memory of the other inputs and the
        outputs."""
        return self._leaf_bytes, self.compiled.batch_bytes

    @property
    def arena_bytes(self) -> int:
        """Return the bytes of intermediate results."""
        return self._binding.arena_bytes

    @property
    def held_bytes(self) -> int:
        """Return the bytes that a run holds in all: memory bound to leaves, inputs, outputs, intermediate results and
        the kernels' scratch memory."""
        return sum(self.fixed_bytes()) + self._binding.reserved + self._binding.kept.nbytes

    @property
    def arena(self) -> np.ndarray:
        """Return the memory of intermediate results as the back end's array; it may move until the next run."""
        return self._arena.reserve(self._binding.reserved, self.backend.allocate).array[: self.arena_bytes]

    @property
    def nbytes(self) -> int:
        """Return the approximate bytes freed with the executable: machine code, which others may share, Python objects,
        and what is kept of constants. Shared memory and bound arrays are not included."""
        if self._fit is not None:  # the rest belongs to the sizes that share the program
            return NODES_BYTES
        kept = sum(b.kept.nbytes for b in list(self._bindings.values())) + sum(a.nbytes for a in self._made.values())
        kept += 0 if self._first is None else self._first.nbytes
        return sum(k.nbytes + NODES_BYTES for k in self.kernels) + self.program.table.nbytes + kept

    @contextmanager
    def preserve(self) -> Iterator[None]:
        """Restore bound memory at the end of the block, undoing the stores of its runs. No other thread reads or
        changes it until then."""
        with self._guard or nullcontext():
            self._fetch()
            saved = [(a, a.copy()) for x, a in self.bound.items() if x not in self._made]
            try:
                yield
            finally:
                with Deferred():
                    self._fetch()
                    for a, old in saved:
                        a[...] = old
                    Clock.note_store()
                    for memory in self._memories:
                        memory.version = Clock.changed

    def _fetch(self) -> None:
        """Bring bound memory up to date, where programs on a device have stored into a copy."""
        if Memory.may_be_away:
            for memory in self._memories:
                memory.fetch()

    # -- runs

    def __call__(self, inputs: Sequence[np.ndarray]) -> tuple[int, list[np.ndarray]]:
        """Run the program and return (status, outputs): 0, or FINITE with nothing updated. Raises IndexOutOfRange where
        a check fails."""
        if self._vain > MOST_VAIN:
            self._prepare_no_more()
        return self._protected(self._call, inputs)

    def run_locked(self, inputs: Sequence[np.ndarray]) -> tuple[int, list[np.ndarray]]:
        """Run the program like a call, for a caller that holds the guard."""
        return self._in_queue(None if self._watch is None else self._refresh(), self._call, inputs)

    def begin_locked(self, inputs: Sequence[np.ndarray]) -> Callable[[], tuple[int, list[np.ndarray]]] | None:
        """Begin a run of a caller that holds the guard; return the function that waits for its end and returns what a
        call does. Runs end in the order of their beginnings. None where programs of the back end, or this one, run to
        their end at once."""
        program = self._binding.program
        if not self.backend.overlaps or self._fit is not None or self._binding.copies or self._recorder is not None:
            return None
        begun: list[Any] = []

        def begin() -> int:
            begun.append(program.begin())  # type: ignore[attr-defined]
            return 0

        _, outputs = self._in_queue(None if self._watch is None else self._refresh(), self._call, inputs, begin)
        binding = self._binding

        def end() -> tuple[int, list[np.ndarray]]:
            status = program.finish(begun[0])  # type: ignore[attr-defined]
            if status > FINITE:
                raise self._explain(IndexOutOfRange(binding.messages[status]), inputs)
            return status, outputs

        return end

    def run_timed(self, inputs: Sequence[np.ndarray]) -> tuple[int, list[np.ndarray], list[float]]:
        """Run the program and return (status, outputs, seconds of each kernel summed over all iterations of its
        loop)."""
        return self._protected(self._call_timed, inputs)

    def run_recorded(self, inputs: Sequence[np.ndarray]) -> RecordedRun:
        """Run the program; return when its steps took place, and on which threads."""
        return self._protected(self._call_recorded, inputs)

    def record(self, recorder: Recorder, inputs: Sequence[np.ndarray], repeats: int = 20) -> None:
        """Record the run of the median time among `repeats` runs; changes to bound memory are undone."""
        with self.preserve():
            self(inputs)
            runs = [self.run_recorded(inputs) for _ in range(repeats)]
        recorder.add_run(sorted(runs, key=lambda run: run.ended - run.begun)[len(runs) // 2])

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
        timeline = self._timelines.get(binding)
        if timeline is None:
            timeline = self._timelines[binding] = Timeline(binding)
        return timeline

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
        return self._protected(self._call_at, inputs, outputs, stream)

    def _protected(self, run: Callable[..., Result], *args: Any) -> Result:
        """Run in a queue, while no other thread changes parameters and state; return what `run` returns."""
        guard = self._guard
        if guard is None:
            return self._in_queue(None, run, *args)
        mark = guard.mark()
        try:
            if not self._concurrent:
                with guard:
                    return self._in_queue(self._refresh(), run, *args)
            guard.enter_beside_readers()
            try:
                time = self._refresh()
                guard.begin_reading()
            finally:
                guard.__exit__()
            try:
                return self._in_queue(time, run, *args)
            finally:
                guard.end_reading()
        except BaseException:
            guard.restore(mark)
            raise

    def _refresh(self) -> int | None:
        """Compute the tensors that depend on constants alone, if these may have changed; the caller holds the guard.
        Return the time (`ChangeWatch`) of the constants."""
        if self._watch is None or self._guard is None:
            return None
        time = self._watch.time()  # before they are read: a later change is noticed at the next run
        first = self._first
        if first is not None and first.note != time:
            self._guard.await_readers()
            first._in_queue(None, first._call, ())
            first.note = time
        return time

    def _in_queue(self, time: int | None, run: Callable[..., Result], *args: Any) -> Result:
        """Call `run` with the binding and `time`, then `args`, in a queue's turn. time: that of the constants."""
        me, holders = get_ident(), locks.RUNNING.holders
        outer = locks.RUNNING.queue_of(me) if holders else None
        if self._concurrent:  # within a run of this thread, in the run's queue
            queue = outer or queues.choose()
        else:
            queue = queues.FIRST
            queue.callers[me] = None
        try:
            with locks.RUNNING.awaited(queue.lock) if len(queue.callers) > 1 or queue.depth else queue.lock:
                for captured in self._copies:
                    captured.refresh()
                binding = self._bindings.get(queue.number) or self._bind(queue)
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
        arena = self._arena.of(queue.number)
        binding = self._bindings[queue.number] = Binding(
            self.compiled, self.bound, arena, self._limit, memories=self._known_arrays
        )
        return binding

    def _call(
        self,
        binding: Binding,
        time: int | None,
        inputs: Sequence[np.ndarray],
        run: Callable[[], int] | None = None,
    ) -> tuple[int, list[np.ndarray]]:
        """Run the program and return its status and its outputs as arrays."""
        given, allocated, fitting = inputs, binding.allocated, None
        if self._fit is not None:
            fitting = self._fitting
            if fitting is None or fitting.compiled is not binding.compiled:
                fitting = self._fitting = _Fitting(self._fit, binding)
            inputs, allocated = fitting.pad(inputs), fitting.allocated
        places = list(map(buffers.address, inputs))
        if self._stored and any(map(self._is_stored, places, inputs)):
            inputs = [x.copy() if self._is_stored(at, x) else x for at, x in zip(places, inputs, strict=True)]
            places = list(map(buffers.address, inputs))
        arrays: list[np.ndarray] = []
        for shape, dtype, count in allocated:
            array, at = buffers.recycle(shape, dtype, count)
            arrays.append(array)
            places.append(at)
        try:
            status = self._run(places, binding, time, run or binding.program.run)
        except IndexOutOfRange as e:
            raise self._explain(e, given) from None
        outputs = self._collect(inputs, arrays, binding)
        if fitting is None:
            return status, outputs
        fitting.runs += 1
        if fitting.runs >= OUTGROWN_RUNS and self.outgrown is not None:
            outgrown, self.outgrown = self.outgrown, None
            outgrown()
        return status, fitting.cut(outputs)

    def _call_timed(
        self, binding: Binding, time: int | None, inputs: Sequence[np.ndarray]
    ) -> tuple[int, list[np.ndarray], list[float]]:
        step_times: list[np.ndarray] = []

        def run() -> int:
            status, times = binding.program.run_timed()
            step_times.append(times)
            return status

        status, outputs = self._call(binding, time, inputs, run)
        seconds = np.bincount(binding.call_of_step, step_times[0], len(binding.calls) + 1)[:-1]
        return status, outputs, seconds.tolist()

    def _call_recorded(self, binding: Binding, time: int | None, inputs: Sequence[np.ndarray]) -> RecordedRun:
        times: list[StepTimes] = []

        def run() -> int:
            status, run_times = binding.program.run_recorded()
            times.append(run_times)
            return status

        timeline, begun = self._timeline_of(binding), perf_counter_ns()
        self._call(binding, time, inputs, run)
        return RecordedRun(timeline, begun, perf_counter_ns(), times[0])

    def _call_at(
        self, binding: Binding, time: int | None, inputs: Sequence[int], outputs: Sequence[int], stream: Any
    ) -> int:
        compiled, run = binding.compiled, binding.program.run
        if self._fit is not None:
            return self._fit_at(self._fit, binding, time, inputs, outputs)
        if stream is not None:
            run = partial(binding.program.run_on, stream)  # type: ignore[attr-defined]
        try:
            places = [*inputs, *(outputs[k] for k in binding.written)]
            status = self._run(places, binding, time, run)
        except IndexOutOfRange as e:
            if stream is not None:
                raise
            raise self._explain(e, list(map(buffers.array_at, inputs, compiled.inputs))) from None
        if binding.copies:
            self._fetch()
        for k, source, count in binding.copies:
            if source in self.bound:
                address = buffers.address(self.bound[source])
            elif isinstance(source, Leaf):
                address = inputs[compiled.inputs.index(source)]
            else:
                address = outputs[binding.written[compiled.outputs.index(source)]]
            if stream is None:
                ctypes.memmove(outputs[k], address, count)
            else:
                binding.program.copy_on(stream, outputs[k], address, count, source in self.bound)  # type: ignore[attr-defined]
        return status

    def _fit_at(
        self, fit: SizeFit, binding: Binding, time: int | None, inputs: Sequence[int], outputs: Sequence[int]
    ) -> int:
        """Run on the caller's memory, given by addresses, for a size below the capacity."""
        arrays = [
            buffers.array_at(at, Leaf(x.id, shape, x.dtype))
            for at, x, shape in zip(inputs, binding.compiled.inputs, fit.inputs, strict=False)
        ]
        status, results = self._call(binding, time, arrays)
        for at, a in zip(outputs, results, strict=True):
            ctypes.memmove(at, a.ctypes.data, a.nbytes)
        return status

    def _run(self, places: Sequence[int], binding: Binding, time: int | None, run: Callable[[], int]) -> int:
        """Run the program, in a queue's turn, on memory given by the addresses of the inputs and of the tensors
        allocated for outputs."""
        me = get_ident()
        outer = under_way.get(me) if under_way else None
        if outer is not None:
            check_run(outer, self._arena, self._guard, bool(self._stored))
        under_way[me] = self._arena, self._guard, outer
        try:
            words = binding.words
            block = binding.arena.block  # kept until the run ends
            if block.number != binding.block_number:
                block = binding.move()
            if Memory.may_be_away and self.backend.in_process:
                self._fetch()
            if time is not None:
                self._since += 1
                self._prepare(binding, time)
            for i, n, offset in binding.slots:
                words[i] = places[n] + offset
            status = run() if self._recorder is None else self._record(self._recorder, binding, run)
        finally:
            if self._stored:  # also where a signal raises after a run that has stored
                Clock.changed = now = next(Clock.times)
                for memory in self._changes:
                    memory.version = now
                if self._changes_others:
                    Clock.stored = now
            if outer is None:
                del under_way[me]
            else:
                under_way[me] = outer
        if status > FINITE:
            raise IndexOutOfRange(binding.messages[status])
        return status

    def _prepare(self, binding: Binding, time: int) -> None:
        """Prepare what kernels keep of constants, if these may have changed since. time: that of the constants."""
        if binding.prepared == time:
            return
        if binding is self._binding:
            self._vain = self._vain + 1 if self._since < FEW_RUNS else 0
            self._since = 0
        if binding.preparation is not None:
            binding.preparation.run()
        binding.prepared = time

    def _prepare_no_more(self) -> None:
        """Exchange the program for one that treats nothing as constant, as what is constant changes all the time."""
        plain = self._compile_again(())
        with self._guard or nullcontext():
            self._binding, self.bound, self._vain = plain._binding, plain.bound, 0
            self._watch, self._first, self._made = None, None, {}

    def _is_stored(self, at: int, x: np.ndarray) -> bool:
        """Return whether an input at this address overlaps memory that a run stores into, perhaps before its last read
        of the input."""
        n = bisect_left(self._stored, (at + x.nbytes,))
        return n > 0 and sum(self._stored[n - 1]) > at

    def _explain(self, error: IndexOutOfRange, inputs: Sequence[np.ndarray]) -> IndexOutOfRange:
        """Return the error with the user's own index and its value, where they can be found."""
        if self._fit is not None:
            message = self._fit.explain(inputs)
        else:
            known = self.bound | dict(zip(self.compiled.inputs, inputs, strict=True))
            message = violation(self.source_graph.roots, known, self._origins)
        return IndexOutOfRange(message or str(error))

    def _collect(self, inputs: Sequence[np.ndarray], arrays: list[np.ndarray], binding: Binding) -> list[np.ndarray]:
        """Return the graph's outputs: arrays that the run wrote, and copies of others."""
        if not binding.copies:
            return [arrays[i] for i in binding.order]
        self._fetch()
        compiled = binding.compiled
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
                array = (self.bound[home] if home in self.bound else input_arrays[home]).copy()  # type: ignore[index]
            used.add(s)
            out.append(array.reshape(t.shape))
        return out
