"""Compile a graph to a program: the driver of the whole pipeline."""

from __future__ import annotations

import ctypes
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR
from functools import partial
from threading import get_ident
from typing import Any

import numpy as np

from einsmith.base import environment, locks
from einsmith.base.caches import Bound
from einsmith.base.errors import IndexOutOfRange, MemoryLimitError, TraceError
from einsmith.base.sizes import show_size
from einsmith.cost.facts import KEPT_BESIDE, Target
from einsmith.driver import registry
from einsmith.driver.backend import Backend, Runnable, Watched
from einsmith.ir.nodes import Graph, Leaf, Tensor, nbytes, postorder, size
from einsmith.ir.origins import Origins
from einsmith.ir.views import producer, storage
from einsmith.kernels import autoconfig
from einsmith.lang import trace
from einsmith.passes.analysis.index_checks import index_checks, violation
from einsmith.passes.context import PassContext
from einsmith.passes.listings import Changes, Listing, listings
from einsmith.passes.pipeline import decided_out, leaving_out, left_out, run_passes
from einsmith.runtime import buffers
from einsmith.runtime.arena import Arena, Block
from einsmith.runtime.assemble import Assembler, At, CompiledKernel, PointerTarget, layout, show_kernels, show_steps
from einsmith.runtime.beside import Beside, bytes_beside
from einsmith.runtime.nested import check_run, taken, under_way
from einsmith.runtime.signals import Deferred
from einsmith.runtime.steps import CheckFinite, CheckZero
from einsmith.schedule.arena import passing_bytes, whole_lines
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.schedule.layout.choice import layouts_of
from einsmith.schedule.layout.laid_out import laid_out
from einsmith.schedule.plan import Plan, fuse
from einsmith.schedule.printer import label, layouts, namer, show_arena, show_plan
from einsmith.schedule.rematerialize import KernelCost, fit
from einsmith.schedule.roles import kernel_roles, saved

FINITE = 1  # the status of a program that stopped because its loss is not finite; checks have higher ones


def predicted(kernel: Kernel | Rows, target: Target) -> float:
    """Return the predicted seconds of a kernel under the configuration that it would be compiled with."""
    return autoconfig.choose(kernel, target).cost.seconds


PROGRAMS = Bound("programs", 512, 512 << 20)
"""Bound of the programs that all compiled functions and training steps keep together: 512 programs, 512 MiB by
`Executable.nbytes`."""
NODES_BYTES = 64 << 10
"""Estimated bytes of Python objects per kernel: its part of the graph, of the plan and of the steps."""


class Executable:
    """A graph compiled for this machine, with the memory it runs in.

    Args:
        bind: arrays that live as long as the executable and hold leaves' values (parameters, state, constants); updates
            are stored into them. The other inputs are passed to each call, in the graph's order, as C-contiguous arrays
            of the leaf's shape and type.
        finite: a tensor whose first element must be finite for a run to store into leaves.
        winograd: whether convolutions may be computed in Winograd's form (see `kernels.composite.winograd`).
        shared: memory for intermediate results that other executables also use, in other runs.
        memory: most bytes that a run may hold in all, including what is bound to leaves, inputs and outputs.
        backend: the back end that compiles, if it is not the target's own.
        apart: bytes held elsewhere that count towards `memory`.
        guard: the lock of the parameters and the state in `bind`, held by every run.
        origins: origins of the graph's leaves and indices, for messages.
    Raises:
        MemoryLimitError: a run needs more than `memory` bytes.
    """

    def __init__(
        self,
        graph: Graph,
        bind: Mapping[Leaf, np.ndarray],
        threads: int,
        finite: Tensor | None = None,
        target: Target | None = None,
        winograd: bool = False,
        shared: Arena | None = None,
        memory: int | None = None,
        backend: Backend | None = None,
        apart: int = 0,
        guard: locks.Guard | None = None,
        origins: Origins | None = None,
    ):
        start = time.perf_counter()
        self.note: Any = None  # set by the caller that had it compiled
        self.threads = threads
        self._origins = origins or Origins()
        self.target = replace(target or registry.DEFAULT.target(threads), winograd=winograd)
        if passing_bytes(graph) > self.target.l3:
            self.target = replace(self.target, kept=KEPT_BESIDE)
        self.backend = backend or registry.backend_of(self.target)
        known = {*graph.inputs, *bind}
        if any(isinstance(x, Leaf) and x not in known for x in postorder(graph.roots)):
            raise TraceError(
                "a tensor of another trace is used; pass the tensor as an argument, or return it from its trace"
            )
        decided = decided_out()
        self.without = self.backend.without(graph, self.target) if decided is None else decided
        """Passes that are left out because the program was measured to be faster without them."""
        with trace.compiling(), leaving_out(self.without):
            self._index = index = graph.outputs.index(finite) if finite is not None else -1
            self._roots, self.given = graph.roots, graph
            checks = dict((*index_checks(graph.roots), *graph.checks))
            graph = Graph(graph.inputs, graph.outputs, graph.updates, tuple(checks.items()), graph.gradients)
            self.changes = Changes()
            told = [self.changes, *listings(graph)]

            def observe(name: str, before: Graph, after: Graph, seconds: float) -> None:
                for listing in told:
                    listing.graph(name, before, after, seconds)

            graph = run_passes(graph, PassContext(self.target, predicted, observe))
            finite = graph.outputs[index] if finite is not None else None
            self.plan: Plan = fuse(graph, finite, self.target, cost=predicted)
            self.graph = self.plan.graph
            middle = time.perf_counter()
            self.bound, self._apart = dict(bind), apart
            self._compile()
            self._lay_out()
            if memory is not None:
                self._fit(memory)
        self._inputs = [x for x in graph.inputs if x not in self.bound]
        stored = {p: self.bound[p] for p, _ in graph.updates if p in self.bound}
        self._stored = sorted((buffers.address(a), a.nbytes) for a in stored.values())
        # The memory of a run is written before it is read; what a run stores is not.
        self._lock = guard or (locks.Guard() if self._stored else locks.lock())
        self._guarded = isinstance(self._lock, locks.Guard)
        # A checked run looks at the memory between the kernels, and while others may run.
        self._shared = Arena() if shared is None or environment.CHECK.get() else shared
        self._finite, self._memory = finite, memory
        self._build(finite, told, {}, 0)
        self.compile_seconds = time.perf_counter() - start
        if environment.debug() >= 1:
            print(
                f"einsmith: {len(self.kernels)} kernels, passes {(middle - start) * 1e3:.0f} ms, "
                f"code {(time.perf_counter() - middle) * 1e3:.0f} ms, arena {self._own / 2**20:.2f} MiB",
                file=sys.stderr,
            )
        if environment.debug() >= 2:
            print(self.describe(), file=sys.stderr)

    def _compile(self) -> None:
        kernels = list(dict.fromkeys(c.kernel for _, c, _ in self.plan.kernel_calls()))
        self._take(dict(zip(kernels, self.backend.compile(kernels, self.target), strict=True)))

    def _take(self, compiled: dict[Kernel | Rows, CompiledKernel]) -> None:
        self._compiled = compiled
        self.kernels = [compiled[c.kernel] for _, c, _ in self.plan.kernel_calls()]
        self._scratch = max((k.scratch for k in self.kernels), default=0)

    def with_decisions(self, texts: Mapping[Kernel | Rows, str], beside: bool = False) -> Executable:
        """Return this program with some kernels compiled by other decision texts; no pass is run again.

        The two programs share one memory and take turns on it.

        Args:
            texts: decision text by kernel (`decisions`); an empty text selects the cost model's choice.
            beside: leave this program's kernels in place and run the given alternatives as well, into memory of their
                own (attribute `beside`, by kernel).
        Raises:
            CompileError: a text cannot be compiled.
            MemoryLimitError: both programs together exceed the memory limit.
        """
        other = self.backend.compile_as({k: text for k, text in texts.items() if k in self._compiled}, self.target)
        made = copy(self)
        made._take(self._compiled if beside else self._compiled | other)
        made._scratch = max([made._scratch, *(x.scratch for x in other.values())])
        more = self.program.table.nbytes + sum(x.nbytes for x in other.values())
        made._build(made._finite, (), other if beside else {}, more)
        return made

    def compiled_without(self, passes: frozenset[str]) -> Executable:
        """Return the graph compiled anew without these passes. The two programs share one memory and take turns on
        it."""
        with leaving_out(passes):
            made = Executable(
                self.given, self.bound, self.threads, None if self._index < 0 else self.given.outputs[self._index],
                self.target, self.target.winograd, self._shared, self._memory, self.backend, self._apart, self._lock,
                self._origins,
            )  # fmt: skip
        made.note = self.note
        return made

    def become(self, other: Executable) -> None:
        """Replace this program, from its next run on, by another one that `with_decisions` derived from it (hot
        swap)."""
        with self._lock:
            self.__dict__.update(other.__dict__)

    def _predicted(self, kernel: Kernel | Rows) -> float:
        """Return a kernel's predicted seconds under the cost model's choice, read from the compiled kernel where it
        follows that choice. The set of kernels does not depend on decisions about some of them."""
        made = self._compiled.get(kernel)
        return made.seconds if made is not None and not made.decision else predicted(kernel, self.target)

    def _lay_out(self) -> None:
        """Replace the plan by the one whose tensor layouts the cost model prices lowest."""
        decide = layouts_of(
            self._predicted, partial(autoconfig.floor, target=self.target), self.target, partial(left_out, "layouts")
        )
        plan = laid_out(self.plan, decide)
        if plan is not self.plan:
            self.plan = plan
            self._compile()

    def _scratch_area(self) -> int:
        return self.backend.scratch_area(self._scratch, self.threads)

    def _outputs(self) -> list[Tensor]:
        """Return the tensors whose memory a run allocates for its outputs."""
        found = dict.fromkeys(storage(t) for t in self.graph.outputs)
        return [t for t in found if not isinstance(t, Leaf) and t not in self.plan.home]

    def fixed_bytes(self) -> tuple[int, int]:
        """Return two sizes in bytes: memory bound to leaves or otherwise held, and memory of the other inputs and the
        outputs."""
        others = [*(x for x in self.graph.inputs if x not in self.bound), *self._outputs()]
        return self._apart + sum(a.nbytes for a in self.bound.values()), sum(map(nbytes, others))

    def _fit(self, memory: int) -> None:
        """Replace the plan by one that recomputes results, so that a run holds at most `memory` bytes.

        Raises MemoryLimitError, which names the least limit that can be met.
        """
        arrays, batch = self.fixed_bytes()
        outside = {*self.graph.inputs, *self.bound, *self._outputs()}
        given = self._compiled  # the search must not depend on which plans were compiled
        cost = KernelCost(self._predicted, lambda k: given[k].workspace if k in given else 0)

        def measure(plan: Plan) -> int:
            if plan is not self.plan:
                self.plan = plan
                self._compile()
            return whole_lines(layout(plan, outside, self._compiled).nbytes) + self._scratch_area()

        found = fit(self.plan, outside, memory - arrays - batch, cost, measure)
        if found.plan is None:
            least = arrays + batch + found.least
            raise MemoryLimitError(
                f"memory_limit={show_size(memory, ROUND_FLOOR)} is too little: at least "
                f"{show_size(least, ROUND_CEILING)} are needed, {show_size(arrays)} for parameters, buffers and the "
                f"optimizer's state, {show_size(batch)} for the batch and {show_size(found.least)} for "
                f"intermediate results, which take {show_size(found.without)} without recomputation; raise the "
                "limit, or use smaller batches",
                least,
            )
        if found.plan is not self.plan:
            self.plan = found.plan
            self._compile()

    def _build(
        self, finite: Tensor | None, told: Sequence[Listing], beside: Mapping[Kernel | Rows, CompiledKernel], more: int
    ) -> None:
        """Lay out the arena, check the memory limit and bind the compiled kernels into a program.

        `beside` maps kernels to their alternatives that run in addition. `more` is the number of bytes needed beyond
        those of a single program.
        """
        plan, graph = self.plan, self.graph
        outputs = [storage(t) for t in graph.outputs]
        fresh = self._outputs()
        outside = {*graph.inputs, *self.bound, *fresh}
        compiled = self._compiled
        places = layout(plan, outside, compiled)
        self.lives = places.lives
        """Live ranges in the arena: first and last call of the plan for each tensor."""
        self._own = whole_lines(places.nbytes)
        self._reserved = self._own + self._scratch_area()
        more += sum(bytes_beside(k, compiled[k], x) for k, x in beside.items())
        if more and self._shared.block.nbytes < self._reserved:
            more += self._shared.block.nbytes  # a run may hold it until it ends
        if self._memory is not None and self.held_bytes + more > self._memory:
            needed = self.held_bytes + more
            limit = show_size(self._memory, ROUND_FLOOR)
            raise MemoryLimitError(
                f"the program needs {show_size(needed, ROUND_CEILING)}, more than memory_limit={limit}", needed
            )
        self.beside = {k: Beside(k, compiled[k], x) for k, x in beside.items()}
        block = self._shared.reserve(self._reserved, self.backend.allocate)
        base = block.address
        self._fresh = fresh
        index = {t: i for i, t in enumerate(fresh)}
        inputs = {t: i for i, t in enumerate(self._inputs)}
        spare = buffers.empty((64,), np.uint8)
        self._keep = spare
        in_slots: list[list[tuple[At, int]]] = [[] for _ in self._inputs]
        out_slots: list[list[tuple[At, int]]] = [[] for _ in fresh]

        def pointer(t: Tensor, at: At, offset: int) -> int:
            own = storage(t)
            s = plan.home.get(own, own)
            made.places[at] = PointerTarget(s, offset, size(s.shape) * s.dtype.itemsize)
            if s is not own:
                made.values[at] = own
            if s in self.bound:
                return buffers.address(self.bound[s]) + offset
            if s in inputs:
                in_slots[inputs[s]].append((at, offset))
                return spare.ctypes.data
            if s in index:
                out_slots[index[s]].append((at, offset))
                return spare.ctypes.data
            return base + places.offsets[s] + offset

        after: dict[int, list[tuple[Tensor, int]]] = {}
        self._messages: dict[int, str] = {}
        for code, (at, t, message) in enumerate(plan.checks, start=FINITE + 1):
            after.setdefault(at, []).append((t, code))
            self._messages[code] = message
        gate = self._call_of(finite)
        made = Assembler(compiled, spare.ctypes.data, {k: x.ways for k, x in self.beside.items()})

        def checks(i: int) -> None:
            for t, code in after.get(i, ()):
                made.steps.append(CheckZero(pointer(t, (len(made.steps), 0), 0), code))
            if gate == i and finite is not None:
                made.steps.append(CheckFinite(pointer(finite, (len(made.steps), 0), 0), finite.dtype.name, FINITE))

        made.plan(plan, places, base, pointer, checks)
        for listing in told:
            listing.text("plan", show_plan(plan))
            listing.text("arena", show_arena(plan, outside, places.offsets, places.nbytes))
            listing.text("program", show_steps(made, namer(plan)))
        self.calls = [call for call, _ in made.kernels]
        self.turns = [turns for _, _, turns in plan.kernel_calls()]
        self.roles = kernel_roles(plan)
        self._call_of_step = made.calls_of_steps()
        self.program: Runnable
        if environment.CHECK.get():
            watched = Watched(
                self.given, self.bound, self._inputs, [plan.home.get(s, s) for s in outputs], self.calls,
                [label(call) for call in self.calls], self.kernels, self.target, block, self._own,
            )  # fmt: skip
            self.program = self.backend.checked(made, watched, self.threads, self._scratch)
        else:
            self.program = self.backend.program(made, self.threads, self._scratch, base + self._own)
        slots = self.program.slots
        pointers = np.fromiter(slots.values(), np.intp)
        places_of = self.program.table[pointers]
        self._inside = pointers[(places_of >= base) & (places_of < base + self._own)]
        """Positions in the table of pointers into the arena."""
        self._offsets = self.program.table[self._inside] - np.uint64(base)
        self._seen = block.number
        self._slots = [
            (slots[s], n, offset) for n, at in enumerate((*in_slots, *out_slots)) for s, offset in at
        ]  # a pointer, which of the inputs and fresh tensors it lies in, and how far in
        self._words = memoryview(self.program.table)  # type: ignore[arg-type]
        self._find_outputs()

    def _find_outputs(self) -> None:
        """Determine which outputs the program writes itself (`_written`: one for each fresh tensor) and which are
        copied."""
        fresh = {t: i for i, t in enumerate(self._fresh)}
        self._written: list[int] = [-1] * len(fresh)
        self._copies: list[tuple[int, Tensor, int]] = []  # output, where its elements are, bytes
        for k, t in enumerate(self.graph.outputs):
            s = storage(t)
            if s in fresh and self._written[fresh[s]] < 0:
                self._written[fresh[s]] = k
            else:
                self._copies.append((k, self.plan.home.get(s, s), size(t.shape) * t.dtype.itemsize))
        written = {k: i for i, k in enumerate(self._written)}
        self._order = [written[k] for k in range(len(self.graph.outputs)) if k in written]
        self._made: list[tuple[tuple[int, ...], np.dtype, int]] = []
        for t, k in zip(self._fresh, self._written, strict=True):
            shape = self.graph.outputs[k].shape if k >= 0 else t.shape
            self._made.append((shape, np.dtype(t.dtype.numpy), size(shape) * t.dtype.itemsize))

    def _call_of(self, t: Tensor | None) -> int | None:
        node = None if t is None else producer(t)[0]
        return next((i for i, call in enumerate(self.plan.calls) if node in call.own), None)

    def __call__(self, inputs: Sequence[np.ndarray]) -> tuple[int, list[np.ndarray]]:
        """Run the program and return (status, outputs): 0, or FINITE with nothing updated. Raises IndexOutOfRange where
        a check fails."""
        if not self._guarded:
            with taken(self._lock) if under_way else self._lock:
                return self._call(inputs, self.program.run)
        lock = self._lock
        mark = lock.mark()
        try:
            with lock:
                return self._call(inputs, self.program.run)
        except BaseException:
            lock.restore(mark)
            raise

    def run_locked(self, inputs: Sequence[np.ndarray]) -> tuple[int, list[np.ndarray]]:
        """Run the program like a call, for a caller that holds the guard."""
        return self._call(inputs, self.program.run)

    def _call(self, inputs: Sequence[np.ndarray], run: Callable[[], int]) -> tuple[int, list[np.ndarray]]:
        """Run the program, with its lock held by the caller, and return its outputs as arrays."""
        places = list(map(buffers.address, inputs))
        if self._stored and any(map(self._is_stored, places, inputs)):
            inputs = [x.copy() if self._is_stored(at, x) else x for at, x in zip(places, inputs, strict=True)]
            places = list(map(buffers.address, inputs))
        arrays: list[np.ndarray] = []
        for shape, dtype, bytes_made in self._made:
            array, at = buffers.recycled(shape, dtype, bytes_made)
            arrays.append(array)
            places.append(at)
        try:
            status = self._run(places, run)
        except IndexOutOfRange as e:
            raise self._explained(e, inputs) from None
        return status, self._collect(inputs, arrays)

    def _explained(self, error: IndexOutOfRange, inputs: Sequence[np.ndarray]) -> IndexOutOfRange:
        known = self.bound | dict(zip(self._inputs, inputs, strict=True))
        return IndexOutOfRange(violation(self._roots, known, self._origins) or str(error))

    def timed(self, inputs: Sequence[np.ndarray]) -> tuple[int, list[np.ndarray], list[float]]:
        """Run the program and return (status, outputs, seconds of each kernel summed over all iterations of its
        loop)."""
        found: list[np.ndarray] = []

        def run() -> int:
            status, times = self.program.run_timed()
            found.append(times)
            return status

        with self._lock:
            status, outputs = self._call(inputs, run)
            return status, outputs, np.bincount(self._call_of_step, found[0], len(self.calls) + 1)[:-1].tolist()

    def _is_stored(self, at: int, x: np.ndarray) -> bool:
        """Whether an input at this address overlaps memory that a run stores into, perhaps before its last read of the
        input."""
        n = bisect_left(self._stored, (at + x.nbytes,))
        return n > 0 and sum(self._stored[n - 1]) > at

    def run_at(self, inputs: Sequence[int], outputs: Sequence[int]) -> int:
        """Run on the caller's memory, given by the addresses of the inputs and of the graph's outputs.

        All are C-contiguous; the outputs are aligned to 64 bytes and overlap nothing else. Returns the status; raises
        as a call does.
        """
        with taken(self._lock) if under_way and not self._guarded else self._lock:
            try:
                status = self._run([*inputs, *(outputs[k] for k in self._written)], self.program.run)
            except IndexOutOfRange as e:
                raise self._explained(e, list(map(buffers.array_at, inputs, self._inputs))) from None
            for k, source, count in self._copies:
                if source in self.bound:
                    address = buffers.address(self.bound[source])
                elif isinstance(source, Leaf):
                    address = inputs[self._inputs.index(source)]
                else:
                    address = outputs[self._written[self._fresh.index(source)]]
                ctypes.memmove(outputs[k], address, count)
            return status

    def _run(self, places: Sequence[int], run: Callable[[], int]) -> int:
        """Run the program, with its lock held by the caller, on memory given by the addresses of the inputs and of the
        fresh tensors."""
        me = get_ident()
        outer = under_way.get(me) if under_way else None
        if outer is not None:
            check_run(outer, self._shared, self._lock, bool(self._stored))
        under_way[me] = self._shared, self._lock, outer
        try:
            words = self._words
            block = self._shared.block  # kept until the run ends
            if block.number != self._seen:
                block = self._move()
            for i, n, offset in self._slots:
                words[i] = places[n] + offset
            status = run()
        finally:
            if outer is None:
                del under_way[me]
            else:
                under_way[me] = outer
        if status > FINITE:
            raise IndexOutOfRange(self._messages[status])
        return status

    def _move(self) -> Block:
        """Point the program at the arena's current block and return the block, which the caller must keep alive during
        the run."""
        block = self._shared.reserve(self._reserved, self.backend.allocate)
        # Marked as seen last: a signal or a fork in between makes the next run repeat the move.
        self.program.table[self._inside] = self._offsets + np.uint64(block.address)
        self.program.move_scratch(block.address + self._own)
        self._seen = block.number
        return block

    @property
    def arena_bytes(self) -> int:
        """Return the bytes of intermediate results."""
        return self._own

    @property
    def held_bytes(self) -> int:
        """Return the bytes that a run holds in all: memory bound to leaves, inputs, outputs, intermediate results and
        the kernels' scratch memory."""
        return sum(self.fixed_bytes()) + self._reserved

    @property
    def arena(self) -> np.ndarray:
        """Return the memory of intermediate results as the back end's array; it may move until the next run."""
        return self._shared.reserve(self._reserved, self.backend.allocate).array[: self._own]

    def _collect(self, inputs: Sequence[np.ndarray], arrays: list[np.ndarray]) -> list[np.ndarray]:
        if not self._copies:
            return [arrays[i] for i in self._order]
        made = dict(zip(self._fresh, arrays, strict=True))
        given = dict(zip(self._inputs, inputs, strict=True))
        out: list[np.ndarray] = []
        used: set[Tensor] = set()
        for t in self.graph.outputs:
            s = storage(t)
            if s in made:
                array = made[s].copy() if s in used else made[s]
            else:
                home = self.plan.home.get(s, s)
                array = (self.bound[home] if home in self.bound else given[home]).copy()  # type: ignore[index]
            used.add(s)
            out.append(array.reshape(t.shape))
        return out

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Restore bound memory at the end of the block, undoing the stores of its runs. No other thread reads or
        changes it until then."""
        with self._lock:
            saved = [(a, a.copy()) for a in self.bound.values()]
            try:
                yield
            finally:
                with Deferred():
                    for a, old in saved:
                        a[...] = old

    @property
    def nbytes(self) -> int:
        """Return the approximate bytes freed with the executable: machine code, which others may share, and Python
        objects. Shared memory and bound arrays are not included."""
        return sum(k.nbytes + NODES_BYTES for k in self.kernels) + self.program.table.nbytes

    # -- for people

    def describe(self) -> str:
        """Describe the program, line by line: the passes that changed the graph and by how many tensors; tensors saved
        for the backward pass; changed layouts; each kernel's role, pattern, configuration, tasks, predicted time (of
        one iteration of its loop) and formula; the predicted time of each part of a training step."""
        again = sum(call.again for call in self.calls)
        lines = [
            f"{len(self.kernels)} kernels{f', {again} of them recomputations' if again else ''}, arena "
            f"{self._own / 2**20:.2f} MiB of {show_size(self.held_bytes)} in all, {self.threads} threads"
        ]
        if self.changes.tensors:
            lines.append(f"passes: {self.changes}")
        if self.without:
            lines.append(f"without {', '.join(sorted(self.without))}, which tuning has found to be faster")
        if held := saved(self.plan):
            lines.append(f"held for the backward pass: {len(held)} tensors, {sum(map(nbytes, held)) / 2**20:.2f} MiB")
        lines += map(str, layouts(self.plan))
        return "\n".join([*lines, *show_kernels(self.roles, self.calls, self.kernels, self.turns)])

    def time_calls(self, inputs: Sequence[np.ndarray], repeats: int = 10) -> list[float]:
        """Return the median seconds of each kernel inside whole runs, whose changes to bound memory are undone."""
        with self.preserved():
            self(inputs)
            times = np.array([self.timed(inputs)[2] for _ in range(repeats)])
        return [float(x) for x in np.median(times, 0)]
