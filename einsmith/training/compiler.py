"""Trace and compile the programs of a training step, search for faster ones within the given seconds, and drop those
that a change makes invalid."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from einsmith.api.library import called_modules
from einsmith.base import recording
from einsmith.base.caches import Bound, Cache
from einsmith.base.dtypes import f16
from einsmith.base.environment import AUTO, EACH
from einsmith.base.errors import ArgumentError
from einsmith.cost.facts import Target
from einsmith.driver import registry
from einsmith.driver.backend import Backend
from einsmith.driver.binding import LeafSum, Notice, Reply
from einsmith.driver.bound_program import PROGRAMS, BoundProgram
from einsmith.driver.derivations import Derivations
from einsmith.driver.executable import Executable
from einsmith.driver.sizes import SHARED_FUNCTIONS, Sizes, choose_sizes, drop_outgrown
from einsmith.ir.nodes import Graph, Leaf
from einsmith.runtime.arena import Arena
from einsmith.runtime.memory import DimensionOrder, Memory
from einsmith.runtime.thread_count import get_threads
from einsmith.schedule.layout.apply import LeavesMovedError, UnplacedError
from einsmith.schedule.plan import Order
from einsmith.tracing import trace
from einsmith.training import step_graph
from einsmith.training.exchanges import Exchanged
from einsmith.training.gradient_buckets import Shard
from einsmith.training.progress import SearchProgress
from einsmith.training.settings import TuningSettings
from einsmith.training.state import AVERAGE, GRADIENT, WEIGHT, StepParts
from einsmith.training.updates import StepGraph, build_norm, build_update
from einsmith.tuning.kernels.tuner import Workshop
from einsmith.tuning.programs import graph_search, kernel_search
from einsmith.tuning.programs.dynamic import Exploration


class ProgramSearch:
    """The search for faster programs of a training step: before their first step, or while they train.

    settings: how programs that are compiled from now on are tuned; the seconds are for all programs together."""

    def __init__(self, settings: TuningSettings):
        self.settings = settings
        self._spent_seconds = self._spent_graph_seconds = 0.0
        self._current: weakref.ref[Exploration] | None = None
        """The exploration of the program that is tuned while it trains: one at a time, as two would compete for
        processors."""

    @property
    def remaining_seconds(self) -> float:
        """Seconds left to search kernels."""
        return kernel_search.parse_tune(self.settings.tune)[0] - self._spent_seconds

    def can_tune(self) -> bool:
        """Return whether the next program is to be tuned. Warns where EINSMITH_CHECK or the system forbids it."""
        if self.settings.mode == "static" and self.remaining_seconds < 1:
            return False
        return kernel_search.can_measure(4)

    def prepare(self, backend: Backend, programs: Sequence[BoundProgram]) -> Workshop | None:
        """Return a workshop for a program that is compiled next, in dynamic mode. It starts while the program is
        compiled, so that starting it costs no steps. None where another one of `programs` is being explored."""
        if self.settings.mode != "dynamic" or self._is_exploring(programs):
            return None
        workshop = backend.workshop()
        workshop.prepare()
        return workshop

    def explore(
        self, run: BoundProgram, workshop: Workshop | None, programs: Sequence[BoundProgram]
    ) -> Exploration | None:
        """Begin to explore a program while it trains; None where another one of `programs` is being explored by now, or
        the mode has changed. An unused workshop is closed."""
        if workshop is None:
            return None
        if self.settings.mode != "dynamic" or self._is_exploring(programs):
            workshop.close()
            return None
        run.tuner = exploration = Exploration(run, workshop, self.remaining_seconds or inf)
        self._current = weakref.ref(exploration)
        return exploration

    def _is_exploring(self, programs: Sequence[BoundProgram]) -> bool:
        """Return whether one of `programs` is being explored. An exploration of another one ends."""
        current = None if self._current is None else self._current()
        if current is None or current.over:
            return False
        if not any(run is current.run for run in programs):
            current.end("its program is no longer used")
        return not current.over

    def search(self, run: BoundProgram, arrays: list[np.ndarray]) -> BoundProgram:
        """Search for faster graphs and kernels in the time that is left, and return the resulting program.

        The numbers that its runs of this batch read are set before."""
        graph_seconds = kernel_search.parse_tune(self.settings.tune)[1] - self._spent_graph_seconds
        run, remaining = graph_search.tune_graph(run, arrays, graph_seconds)
        self._spent_graph_seconds += graph_seconds - remaining
        seconds, effort = kernel_search.plan_search(self.settings.tune, run, self.remaining_seconds)
        with SearchProgress(seconds, kernel_search.predict_seconds(run)) as progress:
            report = kernel_search.tune(run, arrays, seconds, progress, self.settings.executor, effort)
        self._spent_seconds += report.seconds
        return report.run


UPDATE_CORES = 8
"""Cores for which the programs of `find_or_compile_update` are chosen."""
_SHAPE = attrgetter("shape", "dtype")
"""Function of an array that returns its part of a program's key."""
_STATES = Bound("states of modules in training steps", 1024)
"""Bound of the module states that all training steps keep together."""
_NUMBERS = count()
"""Numbers for the modules' states; a number is part of the programs' keys."""


class _Shaped(NamedTuple):
    """An array of a batch without values."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Note(NamedTuple):
    """A step's record of one of its programs.

    groups: the counts of the parameters that it updates; exploration: its exploration, if any; trained: names of the
    parameters whose gradients it computes or uses; exchanged: the tensors that it sums over a group."""

    groups: Sequence[Any]
    exploration: Exploration | None
    trained: tuple[str, ...]
    exchanged: Sequence[Exchanged] = ()


class Dependencies:
    """The objects that graphs of a step have captured, with their memory, and the modules met while tracing them.

    number: number of the modules' present state, part of the key of programs. Equal states have equal numbers."""

    def __init__(self) -> None:
        self.number = 0
        self._captured: dict[int, tuple[Any, Memory]] = {}
        self._modules: dict[int, Any] = {}
        self._states: Cache[tuple, int] = Cache(_STATES)

    def add(self, graph: StepGraph) -> None:
        """Add what a graph has captured and the modules that it has met."""
        self._captured |= {id(o): (o, memory) for o, memory in graph.live}
        self._modules |= graph.depends

    def is_moved(self) -> bool:
        """Return whether a captured object has other memory than when a graph captured it."""
        return any(o.memory is not memory for o, memory in self._captured.values())

    def clear(self) -> None:
        """Forget captured objects and states of modules, after the programs that depend on them."""
        self._states.clear()
        self._captured.clear()

    def update_number(self, model: Any) -> None:
        """Set `number` to that of the present state of the model's modules, and of others met while tracing."""
        modules = {id(m): m for m in model.modules()} | self._modules
        state = tuple(m.trace_key(modes=False) for m in modules.values())
        number = self._states.get(state)
        if number is None:
            number = next(_NUMBERS)
            self._states.put(state, number)
        self.number = number


class StepCompiler:
    """The compiler of a training step's programs, one for each batch shape, number of threads and state of the modules.

    A program trains on a batch, or (gather) only accumulates the gradients of one. A program is dropped when the
    optimizer, the loss, the structure of the settings, a parameter or captured memory is replaced.

    programs: the valid programs, by (shapes, threads, number of the modules' state, gather); updates: valid programs
    that only use accumulated gradients (`find_or_compile_update`); search: the search for faster programs; notices:
    what the programs that accumulate tell of while they run (`Executable`); target: the machine for which programs are
    compiled, if not this one as it was measured.

    ordinal: number of the card that "cuda" stands for."""

    def __init__(self, parts: StepParts, ordinal: int = 0):
        self._parts, self._state, self._ordinal = parts, parts.state, ordinal
        definition = self._definition = parts.definition  # at the last `compare`
        self._numerics = definition.numerics
        self.search = ProgramSearch(definition.tuning)
        self.arena = Arena()  # shared by the programs of all batch shapes
        self.programs: Cache[tuple, BoundProgram] = Cache(PROGRAMS, lambda run: run.nbytes, self.arena.evicted)
        self.updates: Cache[tuple, BoundProgram] = Cache(PROGRAMS, lambda run: run.nbytes, self.arena.evicted)
        self.notices: Callable[[StepGraph], Sequence[Notice | Reply | LeafSum]] | None = None
        self.target: Target | None = None
        self._sizes: Cache[tuple, Sizes[StepGraph]] = Cache(SHARED_FUNCTIONS)
        self._generation = 0
        """Counts invalidations of all programs; a program that was compiled in an older generation is not used."""
        self._dependencies = Dependencies()
        self._version: object = None  # trace version at the last `compare`

    def change(self, values: Mapping[str, Any]) -> None:
        """Change parts of the definition and settings by name. Raises ArgumentError for values that are not allowed."""
        with self._state.store.guard:
            before, after = self._parts.definition, self._parts.definition.changed(values)
            self._parts.definition, self.search.settings = after, after.tuning
            old, new = before.compilation, after.compilation
            limits = new.memory_limit != old.memory_limit, new.device != old.device
            if any((*limits, new.max_stored != old.max_stored, new.sizes != old.sizes)):
                self.drop()
            if any(limits):
                self.arena.clear()  # it is memory of the former device, or larger than the new limit

    @property
    def overlaps(self) -> bool:
        """True if a program's next run may begin before the previous one has ended."""
        return self.backend.overlaps

    @property
    def backend(self) -> Backend:
        """The back end of the device. Raises DeviceError where the device is not there."""
        device = registry.check_device(self._parts.definition.compilation.device, self._ordinal)
        return registry.backend_for(device, self._ordinal)

    def find(self, arrays: list[np.ndarray], gather: bool) -> BoundProgram | None:
        """Return the valid program for a batch, or None. The caller holds the guard of the parameters."""
        self.compare_if_changed()
        return self.programs.get(self._key_of(arrays, gather))

    def compare_if_changed(self) -> None:
        """Drop what a change has made invalid (`compare`). The caller holds the guard of the parameters."""
        if self._version is not trace.version() or self._definition is not self._parts.definition:
            self.compare()

    def find_or_compile(self, arrays: list[np.ndarray], gather: bool = False) -> BoundProgram:
        """Return the program for a batch, compiled where there is none yet."""
        while True:
            with self._state.store.guard:
                run = self.find(arrays, gather)
            if run is not None:
                return run
            self.compile(arrays, gather)

    def compile(self, arrays: list[np.ndarray], gather: bool) -> None:
        """Compile the program for a batch. Steps of other shapes wait for the tracing, not for the code generation.

        Where the program would be faster if parameters were stored in other orders, they are moved first; where it
        cannot follow the orders in which they are stored, they are row-major again."""
        while True:
            try:
                return self._compile(arrays, gather)
            except UnplacedError:
                with self._state.store.guard:
                    for p in self._state.store.parameters.values():
                        p.release_order()

    def _move(self, traced: StepGraph, orders: Mapping[Leaf, Order]) -> None:
        """Move parameters of a graph to memory of other orders. Their state follows when the step is traced again."""
        with self._state.store.guard:
            leaves = {id(a): x for x, a in traced.bind.items() if traced.owners.get(x) is x}
            for p in self._state.store.parameters.values():
                x = leaves.get(id(p.memory.host))
                if x is not None and orders.get(x) != traced.placed.get(x):
                    p.store_as(DimensionOrder(orders[x]) if x in orders else None)

    def _compile(self, arrays: list[np.ndarray], gather: bool) -> None:
        """Compile the program for a batch. Raises UnplacedError where it cannot follow the orders of parameters."""
        if gather and self._parts.definition.compilation.memory_limit is not None and self.notices is None:
            self.find_or_compile(arrays)  # it needs more memory: its error comes before anything is gathered
        guard = self._state.store.guard
        is_tuned = not gather and self.search.can_tune()
        is_shared = self._sizes_choice != EACH and not is_tuned and self._parts.definition.is_alone
        with guard:
            if is_shared and self._predict(arrays, gather):
                return
            traced, options = self._trace_for_program(arrays, gather)
            if traced.placed and not self.backend.in_process:
                raise UnplacedError
            generation = self._generation
            key = self._key_of(arrays, gather)
        target, run, moved = options["target"], None, None
        backend = registry.DEFAULT if target is None else registry.backend_of(target)
        programs = [run for _, run in self.programs.items()]
        workshop = self.search.prepare(backend, programs) if is_tuned else None
        if is_shared:
            sizes = self._sizes_of(arrays, gather, key[1:], generation)
            run = sizes.find(tuple(a.shape for a in arrays), traced)
        try:
            if run is None:
                owners = traced.owners if self.backend.in_process else {}
                run = Executable(traced.graph, traced.bind, owners=owners, **options)
        except BaseException as e:  # Ctrl-C, too
            if workshop is not None:
                workshop.close()
            if not isinstance(e, LeavesMovedError):
                raise
            moved = e.orders
        if run is None:
            assert moved is not None
            self._move(traced, moved)
            return self._compile(arrays, gather)
        exploration = self.search.explore(run, workshop, [run for _, run in self.programs.items()])
        run.note = Note(traced.groups, exploration, traced.trained, traced.exchanged)
        if is_tuned and self.search.settings.mode == "static":
            with guard:
                self._parts.set_numbers(arrays)
            run = self.search.search(run, arrays)
            if run.memory.placed != traced.placed:  # it has parameters in memory of its own
                self._move(traced, run.memory.placed)
                return self._compile(arrays, gather)
        with guard:
            self.compare()
            if generation == self._generation:  # else the program is outdated
                self._put(key, run)

    @property
    def _sizes_choice(self) -> str:
        return choose_sizes(self._parts.definition.compilation.sizes)

    def _put(self, key: tuple, run: BoundProgram) -> None:
        self.programs.put(key, run)
        drop_outgrown(run, partial(self.programs.drop, key))

    def _key_of(self, arrays: list[np.ndarray], gather: bool) -> tuple:
        """Return the key of the program for a batch. The caller holds the guard of the parameters."""
        threads = self._parts.definition.compilation.threads or get_threads()
        return tuple(map(_SHAPE, arrays)), threads, self._dependencies.number, gather

    def _predict(self, arrays: list[np.ndarray], gather: bool) -> bool:
        """Look for a program shared with other batch sizes that is right for this batch without a trace, and keep it
        for the batch's shapes. Return whether there is one. The caller holds the guard of the parameters."""
        self.compare_if_changed()
        key = self._key_of(arrays, gather)
        known = self._sizes_of(arrays, gather, key[1:], self._generation).predict_traced(tuple(a.shape for a in arrays))
        if known is None:
            return False
        run, traced = known
        run.note = Note(traced.groups, None, traced.trained, traced.exchanged)
        self._put(key, run)
        return True

    def _sizes_of(self, arrays: list[np.ndarray], gather: bool, key: tuple, generation: int) -> Sizes[StepGraph]:
        """Return the sizes of batches that differ from this one in extents alone.

        key: what programs depend on besides the batch; generation: that of the programs."""
        dtypes = [a.dtype for a in arrays]

        def trace_for(shapes: Sequence[tuple[int, ...]]) -> StepGraph:
            return self.trace([_Shaped(s, d) for s, d in zip(shapes, dtypes, strict=True)], gather)

        def compile_graph(graph: Graph, traced: StepGraph, **limits: Any) -> BoundProgram:
            return Executable(graph, traced.bind, **self._options_for(graph, traced, gather), **limits)

        choice = self._sizes_choice
        kinds = tuple((d, a.ndim) for d, a in zip(dtypes, arrays, strict=True)), *key, generation, choice
        sizes = self._sizes.get(kinds)
        if sizes is None:
            definition = self._parts.definition
            state = called_modules((definition.model, definition.loss))
            new: Sizes[StepGraph] = Sizes(trace_for, compile_graph, False, state, choice == AUTO)
            sizes = self._sizes.setdefault(kinds, new)
        return sizes

    def compile_apart(self, arrays: list[np.ndarray], gather: bool) -> BoundProgram:
        """Return the program for a batch, compiled anew without a search; training does not use it."""
        with self._state.store.guard:
            traced, options = self._trace_for_program(arrays, gather)
        return Executable(traced.graph, traced.bind, **options)

    def _trace_for_program(self, arrays: list[np.ndarray], gather: bool) -> tuple[StepGraph, dict[str, Any]]:
        """Return the traced graph of a step for a batch, and the options of its `Executable`. The caller holds the
        guard of the parameters."""
        traced = self.trace(arrays, gather)
        return traced, self._options_for(traced.graph, traced, gather)

    def _options_for(self, graph: Graph, traced: StepGraph, gather: bool) -> dict[str, Any]:
        """Return the options of the `Executable` of a step's graph, which is the traced one or made from it."""
        definition, compilation = self._parts.definition, self._parts.definition.compilation
        notices = self.notices(traced) if gather and self.notices is not None else ()  # they may bind further memory
        return {
            "threads": compilation.threads or get_threads(),
            "finite": graph.outputs[0 if definition.numerics.stored is not f16 else -1],
            "numerics": definition.numerics,
            "shared": self.arena,
            "memory": compilation.memory_limit,
            "other_bytes": self._state.untouched_bytes(traced.bind.values()),
            "guard": self._state.store.guard,
            "origins": replace(traced.origins, names=traced.origins.names | self._parts.names_of(traced.bind)),
            "max_stored": compilation.max_stored,
            "target": self._find_target(),
            "notices": notices,
            "placed": traced.placed,
            "memories": [*(m for _, m in traced.live), *(s.memory for s in self._state.store.state.values())],
            "frozen": traced.frozen,
        }

    def _find_target(self) -> Target:
        compilation = self._parts.definition.compilation
        return self.target or compilation.target(compilation.threads or get_threads(), self._ordinal)

    def find_or_compile_update(self, key: tuple, pieces: Sequence[Shard], norm: bool) -> BoundProgram:
        """Return the program that updates pieces of parameters by their accumulated gradients, or (norm) sums the
        powers of these gradients. The caller holds the guard of the parameters. key: what the pieces follow from.

        Kernels are chosen for a fixed machine, or for the card, of which all processes of a group have one kind, so
        that sums in a rule are in one order on all of them."""
        compilation = self._parts.definition.compilation
        threads = compilation.threads or get_threads()
        run = self.updates.get((key, threads, norm))
        if run is not None:
            return run
        with trace.compiling():
            traced = (build_norm if norm else build_update)(self._parts, pieces)
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
            shared=self.arena,
            guard=self._state.store.guard,
            max_stored=int(compilation.max_stored),
        )
        run.note = Note(traced.groups, None, traced.trained)
        self.updates.put((key, threads, norm), run)
        return run

    def trace(self, arrays: Sequence[Any], gather: bool = False) -> StepGraph:
        """Trace the graph of a step for a batch, given by arrays or by what has their shapes and types; gather: the
        step only accumulates gradients and updates nothing."""
        with self._state.store.guard:
            self.compare()
            in_mode = self._parts.definition.model.in_mode(training=True)
            with trace.compiling(), in_mode, recording.phase("tracing", of="a training step"):
                derivations = Derivations(f"{self._parts.definition.outline} {gather}", list(map(_SHAPE, arrays)))
                traced = step_graph.build(self._parts, arrays, gather)
                derivations.keep(traced.graph)
            self._dependencies.add(traced)
            # In a group, steps run programs that gather; otherwise these report less than those that update.
            reports = self._parts.reports
            if gather if self.notices is not None else not gather or not reports.names:
                reports.names = traced.reports
            reports.is_known = True
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
        before, definition, state = self._definition, self._parts.definition, self._state
        definition.check_model_and_loss()
        self._version = trace.version()
        structure, is_ruled_anew = definition.updates.structure, before.optimizer is not definition.optimizer
        is_replaced = state.follow(definition, is_ruled_anew)
        is_restructured = structure != before.updates.structure
        if is_restructured:
            state.store.drop({GRADIENT, WEIGHT} | (set() if definition.updates.ema is not None else {AVERAGE}))
            self._parts.accumulation.drop()
        is_redefined = is_ruled_anew or is_restructured or before.loss is not definition.loss
        numerics = definition.numerics
        if is_replaced or is_redefined or self._dependencies.is_moved() or numerics != self._numerics:
            self.drop()
            for dependent in (self._dependencies, self._parts.numbers, self._parts.reports):
                dependent.clear()
        self._definition, self._numerics = definition, numerics
        self._dependencies.update_number(definition.model)

    @property
    def version(self) -> tuple:
        """A token that distinguishes the programs of this model, loss, settings and state of the modules from later
        ones."""
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
