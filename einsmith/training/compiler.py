"""Trace and compile the programs of a training step, and drop those that a change makes invalid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from einsmith.base import recording
from einsmith.base.caches import Cache
from einsmith.base.dtypes import f16
from einsmith.base.environment import SHARED
from einsmith.base.errors import ArgumentError
from einsmith.base.sizes import size_of
from einsmith.cost.facts import Target
from einsmith.driver import registry
from einsmith.driver.backend import Backend
from einsmith.driver.binding import LeafSum, Notice, Reply
from einsmith.driver.derivations import Derivations
from einsmith.driver.executable import PROGRAMS, Executable
from einsmith.driver.sizes import SHARED_FUNCTIONS, Sizes, choose_sizes
from einsmith.ir.nodes import Graph
from einsmith.lang import trace
from einsmith.runtime.arena import Arena
from einsmith.runtime.thread_count import get_threads
from einsmith.schedule.row_clusters import MAX_STORED_BYTES
from einsmith.training import step_graph
from einsmith.training.accumulation import Accumulation
from einsmith.training.definition import StepDefinition
from einsmith.training.dependencies import Dependencies
from einsmith.training.exchanges import Exchanged
from einsmith.training.numbers import StepNumbers
from einsmith.training.reports import Reports
from einsmith.training.search import ProgramSearch
from einsmith.training.shards import Shard
from einsmith.training.state import AVERAGE, GRADIENT, WEIGHT, TrainingState
from einsmith.tuning.programs.online import Exploration

UPDATE_CORES = 8
"""Cores for which the programs of `find_or_compile_update` are chosen."""
_SHAPE = attrgetter("shape", "dtype")
"""Function of an array that returns its part of a program's key."""


class Note(NamedTuple):
    """A step's record of one of its programs.

    groups: the counts of the parameters that it updates; exploration: its exploration, if any; trained: names of the
    parameters whose gradients it computes or uses; exchanged: the tensors that it sums over a group."""

    groups: Sequence[Any]
    exploration: Exploration | None
    trained: tuple[str, ...]
    exchanged: Sequence[Exchanged] = ()


class StepCompiler:
    """The compiler of a training step's programs, one for each batch shape, number of threads and state of the modules.

    A program trains on a batch, or (gather) only accumulates the gradients of one. A program is dropped when the
    optimizer, the loss, the structure of the settings, a parameter or captured memory is replaced.

    programs: the valid programs, by (shapes, threads, number of the modules' state, gather); updates: valid programs
    that only use accumulated gradients (`find_or_compile_update`); search: the
    search for faster programs; notices: what the programs that accumulate tell of while they run (`Executable`)."""

    def __init__(
        self,
        definition: StepDefinition,
        state: TrainingState,
        accumulation: Accumulation,
        numbers: StepNumbers,
        reports: Reports,
        search: ProgramSearch,
    ):
        self._definition, self._state, self._accumulation = definition, state, accumulation
        self._numbers, self._reports, self.search = numbers, reports, search
        self._arena = Arena()  # shared by the programs of all batch shapes
        self.programs: Cache[tuple, Executable] = Cache(PROGRAMS, lambda run: run.nbytes, self._arena.evicted)
        self.updates: Cache[tuple, Executable] = Cache(PROGRAMS, lambda run: run.nbytes, self._arena.evicted)
        self.notices: Callable[[step_graph.StepGraph], Sequence[Notice | Reply | LeafSum]] | None = None
        self.target: Target | None = None
        """The machine for which programs are compiled, if not this one as it was measured."""
        self.sizes: str | None = None
        """Whether batches of several sizes share a program (`driver.sizes`)."""
        self.ordinal = 0
        """The number of the card that "cuda" stands for."""
        self._device: str | None = None
        self._sizes: Cache[tuple, Sizes[step_graph.StepGraph]] = Cache(SHARED_FUNCTIONS)
        self._generation = 0
        """Counts invalidations of all programs; a program that was compiled in an older generation is not used."""
        self._memory_limit: int | None = None
        self._max_stored = MAX_STORED_BYTES
        self._dependencies = Dependencies()
        self._version: object = None  # trace version at the last `compare`
        self._optimizer, self._loss, self._structure = (
            definition.optimizer,
            definition.loss,
            definition.settings.structure,
        )
        self._numerics, self._precision = definition.numerics, definition.precision

    @property
    def memory_limit(self) -> int | None:
        """Limit of a step's memory, in bytes; None for no limit."""
        return self._memory_limit

    @memory_limit.setter
    def memory_limit(self, limit: int | str | None) -> None:
        with self._state.store.guard:
            self._memory_limit = None if limit is None else size_of(limit, "memory_limit")
            self.drop()
            self._arena.clear()  # it may be larger than the new limit

    @property
    def max_stored(self) -> int:
        """Most bytes of a result that is stored where it need not be."""
        return self._max_stored

    @max_stored.setter
    def max_stored(self, most: int | str) -> None:
        with self._state.store.guard:
            self._max_stored = size_of(most, "max_stored", 0)
            self.drop()

    @property
    def device(self) -> str | None:
        """Where programs run (`driver.registry.check_device`)."""
        return self._device

    @device.setter
    def device(self, device: str | None) -> None:
        with self._state.store.guard:
            self._device = registry.check_device(device, self.ordinal)
            self.drop()
            self._arena.clear()  # it is memory of the former device

    @property
    def overlaps(self) -> bool:
        """Whether a program's next run may begin before one has ended."""
        return self.backend.overlaps

    @property
    def backend(self) -> Backend:
        """The back end of the device. Raises DeviceError where the device is not there."""
        return registry.backend_for(self.device, self.ordinal)

    def find(self, arrays: list[np.ndarray], gather: bool) -> Executable | None:
        """Return the valid program for a batch, or None. The caller holds the guard of the parameters."""
        definition = self._definition
        self.compare_if_changed()
        threads = definition.threads or get_threads()
        return self.programs.get((tuple(map(_SHAPE, arrays)), threads, self._dependencies.number, gather))

    def compare_if_changed(self) -> None:
        """Drop what a change has made invalid (`compare`). The caller holds the guard of the parameters."""
        definition = self._definition
        if (
            self._version is not trace.version()
            or self._optimizer is not definition.optimizer
            or self._loss is not definition.loss
            or self._precision is not definition.precision
        ):
            self.compare()

    def find_or_compile(self, arrays: list[np.ndarray], gather: bool = False) -> Executable:
        """Return the program for a batch, compiled where there is none yet."""
        while True:
            with self._state.store.guard:
                run = self.find(arrays, gather)
            if run is not None:
                return run
            self.compile(arrays, gather)

    def compile(self, arrays: list[np.ndarray], gather: bool) -> None:
        """Compile the program for a batch. Steps of other shapes wait for the tracing, not for the code generation."""
        if gather and self._memory_limit is not None and self.notices is None:
            self.find_or_compile(arrays)  # it needs more memory: its error comes before anything is gathered
        guard = self._state.store.guard
        with guard:
            traced, options = self._trace_for_program(arrays, gather)
            threads, generation = options["threads"], self._generation
            key = tuple(map(_SHAPE, arrays)), threads, self._dependencies.number, gather
        is_tuned = not gather and self.search.can_tune()
        programs = [run for _, run in self.programs.items()]
        with self.search.preparing(options["target"], threads, programs) if is_tuned else nullcontext():
            run = None
            is_shared = choose_sizes(self.sizes, traced.graph) == SHARED
            if is_shared and not is_tuned and self._definition.is_alone:
                run = self._find_shared(arrays, gather, traced, key[1:], generation)
            if run is None:
                run = Executable(traced.graph, traced.bind, **options)
            exploration = None
            if is_tuned and self.search.mode == "dynamic":
                exploration = self.search.explore(run, threads, [run for _, run in self.programs.items()])
        run.note = Note(traced.groups, exploration, traced.trained, traced.exchanged)
        if is_tuned and self.search.mode == "static":
            with guard:
                self._numbers.set(arrays)
            run = self.search.search(run, arrays)
        with guard:
            self.compare()
            if generation == self._generation:  # else the program is outdated
                self.programs.put(key, run)

    def _find_shared(
        self, arrays: list[np.ndarray], gather: bool, traced: step_graph.StepGraph, key: tuple, generation: int
    ) -> Executable | None:
        """Return a program that batches of several sizes share for a batch; None where it needs its own.

        key: what programs depend on besides the batch; generation: that of the trace."""
        dtypes = [a.dtype for a in arrays]

        def trace_for(shapes: Sequence[tuple[int, ...]]) -> step_graph.StepGraph:
            batch = [np.broadcast_to(np.zeros((), d), s) for d, s in zip(dtypes, shapes, strict=True)]
            return self.trace(batch, gather)

        def compile_graph(graph: Graph, traced: step_graph.StepGraph, **limits: Any) -> Executable:
            return Executable(graph, traced.bind, **self._options_for(graph, traced, gather), **limits)

        kinds = tuple((d, a.ndim) for d, a in zip(dtypes, arrays, strict=True)), *key, generation
        sizes = self._sizes.setdefault(kinds, Sizes(trace_for, compile_graph, is_free=False))
        return sizes.find(tuple(a.shape for a in arrays), traced)

    def compile_apart(self, arrays: list[np.ndarray], gather: bool) -> Executable:
        """Return the program for a batch, compiled anew without a search; training does not use it."""
        with self._state.store.guard:
            traced, options = self._trace_for_program(arrays, gather)
        return Executable(traced.graph, traced.bind, **options)

    def _trace_for_program(self, arrays: list[np.ndarray], gather: bool) -> tuple[step_graph.StepGraph, dict[str, Any]]:
        """Return the traced graph of a step for a batch, and the options of its `Executable`. The caller holds the
        guard of the parameters."""
        traced = self.trace(arrays, gather)
        return traced, self._options_for(traced.graph, traced, gather)

    def _options_for(self, graph: Graph, traced: step_graph.StepGraph, gather: bool) -> dict[str, Any]:
        """Return the options of the `Executable` of a step's graph, which is the traced one or made from it."""
        definition = self._definition
        notices = self.notices(traced) if gather and self.notices is not None else ()  # they may bind further memory
        return {
            "threads": definition.threads or get_threads(),
            "finite": graph.outputs[0 if definition.numerics.stored is not f16 else -1],
            "numerics": definition.numerics,
            "shared": self._arena,
            "memory": self._memory_limit,
            "other_bytes": self._state.untouched_bytes(traced.bind.values()),
            "guard": self._state.store.guard,
            "origins": traced.origins,
            "max_stored": self._max_stored,
            "target": self._find_target(),
            "notices": notices,
            "memories": [*(m for _, m in traced.live), *(s.memory for s in self._state.store.state.values())],
        }

    def _find_target(self) -> Target:
        threads = self._definition.threads or get_threads()
        return self.target or registry.target_of(self.device, threads, self.ordinal)

    def find_or_compile_update(self, key: tuple, pieces: Sequence[Shard], norm: bool) -> Executable:
        """Return the program that updates pieces of parameters by their accumulated gradients, or (norm) sums the
        powers of these gradients. The caller holds the guard of the parameters. key: what the pieces follow from.

        Kernels are chosen for a fixed machine, or for the card, of which all processes of a group have one kind, so
        that sums in a rule are in one order on all of them."""
        threads = self._definition.threads or get_threads()
        run = self.updates.get((key, threads, norm))
        if run is not None:
            return run
        build = step_graph.build_norm if norm else step_graph.build_update
        with trace.compiling():
            traced = build(self._definition, self._state, self._numbers, pieces)
        self._dependencies.add(traced)
        self._state.store.protect(memory for _, memory in traced.live)
        if traced.divided:
            self.updates.clear()
        on_card = not self.backend.in_process
        states = (*self._state.store.state.values(),) if on_card else ()
        run = Executable(
            traced.graph,
            traced.bind,
            threads,
            target=self._find_target() if on_card else registry.DEFAULT.static_target(UPDATE_CORES),
            memories=[*(m for _, m in traced.live), *(s.memory for s in states)] if on_card else (),
            shared=self._arena,
            guard=self._state.store.guard,
            max_stored=self._max_stored,
        )
        run.note = Note(traced.groups, None, traced.trained)
        self.updates.put((key, threads, norm), run)
        return run

    def trace(self, arrays: list[np.ndarray], gather: bool = False) -> step_graph.StepGraph:
        """Trace the graph of a step for a batch; gather: the step only accumulates gradients and updates nothing."""
        with self._state.store.guard:
            self.compare()
            in_mode = self._definition.model.in_mode(training=True)
            with trace.compiling(), in_mode, recording.phase("tracing", of="a training step"):
                derivations = Derivations(f"{self._definition.outline} {list(map(_SHAPE, arrays))} {gather}")
                traced = step_graph.build(self._definition, self._state, self._numbers, arrays, gather)
                derivations.keep(traced.graph)
            self._dependencies.add(traced)
            # In a group, steps run programs that gather; otherwise these report less than those that update.
            if gather if self.notices is not None else not gather or not self._reports.names:
                self._reports.names = traced.reports
            self._reports.is_known = True
            if traced.divided:
                self.drop()
            self._state.store.protect(memory for _, memory in traced.live)
            self.compare()
            return traced

    def compare(self) -> None:
        """Drop invalid programs, and what is kept for them, after a change of anything that programs depend on.

        Raises ArgumentError where the model has the averages of its weights, or something that replaced a part of the
        definition is unfit."""
        if self._state.is_averaged:
            raise ArgumentError("the model holds the average of its weights; train and save after the `averaged` block")
        definition = self._definition
        definition.check_model_and_loss()
        self._version = trace.version()
        structure, is_ruled_anew = definition.settings.structure, self._optimizer is not definition.optimizer
        is_replaced = self._state.follow(definition, is_ruled_anew)
        if structure != self._structure:
            kinds = {GRADIENT, WEIGHT} | (set() if definition.settings.ema is not None else {AVERAGE})
            self._state.store.drop(kinds)
            self._accumulation.drop()
        is_moved = self._dependencies.is_moved()
        numerics = definition.numerics
        is_redefined = is_ruled_anew or self._loss is not definition.loss or structure != self._structure
        is_redefined |= numerics != self._numerics
        self._precision = definition.precision
        if is_replaced or is_moved or is_redefined:
            self.drop()
            for dependent in (self._dependencies, self._numbers, self._reports):
                dependent.clear()
        self._optimizer, self._loss, self._structure = definition.optimizer, definition.loss, structure
        self._numerics = numerics
        self._dependencies.update_number(definition.model)

    @property
    def version(self) -> tuple:
        """What tells the programs of one model, loss, settings and state of the modules from later ones."""
        return self._dependencies.number, self._generation

    def recheck(self) -> None:
        """Have the next step compare what programs depend on, whether or not the trace version tells of a change."""
        self._version = None

    def drop(self) -> None:
        """Drop all programs, those that are being compiled included."""
        self.programs.clear()
        self.updates.clear()
        self._sizes.clear()
        self._generation += 1
