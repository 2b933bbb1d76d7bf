"""Compile a graph: run the passes over graphs and plans, and generate the kernels' code."""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING
from types import MappingProxyType

from einsmith.base import recording
from einsmith.base.caches import Once
from einsmith.base.errors import EinsmithWarning, MemoryLimitError, TraceError
from einsmith.base.locks import cached_property
from einsmith.base.numerics import PLAIN, Numerics
from einsmith.base.sizes import show_size
from einsmith.cost.facts import SHARED_L3_FRACTION, Target
from einsmith.driver import plans, registry
from einsmith.driver.backend import Backend
from einsmith.ir.graph_text import Dump, leaves_of, write_dump
from einsmith.ir.nodes import Graph, Leaf, Tensor, nbytes, postorder
from einsmith.kernels import autoconfig
from einsmith.kernels.autoconfig import predicted
from einsmith.kernels.contraction.rounding import is_product, round_operands
from einsmith.passes.analysis.index_checks import index_checks
from einsmith.passes.context import PassContext, Products
from einsmith.passes.listings import Changes, FileListing, Listing, listings
from einsmith.passes.pipeline import ALL, deciding, left_out, present_decisions, registered, run_passes
from einsmith.runtime.assemble import ArenaLayout, layout
from einsmith.schedule.arena import passing_bytes, whole_lines
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Beyond, Kernel
from einsmith.schedule.layout.apply import LeavesMovedError, leaf_orders
from einsmith.schedule.limited_positions import RowLimit
from einsmith.schedule.limits import UnlimitedError, find_short
from einsmith.schedule.pipeline import MemoryLimit, PlanContext, plan_graph
from einsmith.schedule.plan import Order, Plan, find_outside, output_tensors
from einsmith.schedule.row_clusters import MAX_STORED_BYTES
from einsmith.tracing import trace

PRODUCTS = Products(is_product, round_operands)
"""What passes know of products."""
_WARNED = Once("precisions that are stored only", 8)
_OVER_LIMIT = Once("recorded graph decisions that need more memory than a limit", 64)


@dataclass(frozen=True, eq=False)
class Compiled:
    """A graph compiled for a machine: a plan and the code of its kernels, whatever memory a run is given.

    source_graph: the graph before the passes
    plan: calls of kernels, in order
    code: the compiled kernel of each kernel of the plan
    places: the layout of the arena
    bound: leaves whose memory lives as long as the program; runs are given the other inputs
    constants: those of them whose values stay from run to run
    finite: tensor whose first element must be finite for a run to store into leaves, or None
    threads: threads that share the work
    numerics: how the program may round
    decisions: what is decided otherwise than by the cost model, as the program was measured to be faster
    changes: what each pass changed
    seconds: time of the passes over graphs (seconds)
    listings: receivers of the texts of the program when it is first bound to memory
    alternatives: second configurations of kernels, which run in addition to the program's own
    """

    source_graph: Graph
    plan: Plan
    code: Mapping[Kernel, CompiledKernel]
    places: ArenaLayout
    bound: frozenset[Leaf]
    constants: frozenset[Leaf]
    finite: Tensor | None
    threads: int
    target: Target
    numerics: Numerics
    backend: Backend
    decisions: frozenset[str]
    changes: Changes
    seconds: float
    listings: Sequence[Listing] = ()
    alternatives: Mapping[Kernel, CompiledKernel] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """Return the graph after the passes, of which the plan computes the roots."""
        return self.plan.graph

    @cached_property
    def inputs(self) -> list[Leaf]:
        """List the leaves that each run is given, in order."""
        return [x for x in self.graph.inputs if x not in self.bound]

    @cached_property
    def outputs(self) -> list[Tensor]:
        """List the tensors whose memory each run allocates for its outputs."""
        return output_tensors(self.plan)

    @property
    def batch_bytes(self) -> int:
        """Return the bytes of a run's inputs and outputs."""
        return sum(map(nbytes, (*self.inputs, *self.outputs)))

    @property
    def outside(self) -> set[Tensor]:
        """Return the tensors that do not lie in the arena."""
        return find_outside(self.plan, self.bound)

    @cached_property
    def kernels(self) -> list[CompiledKernel]:
        """List the compiled kernel of each call."""
        return [self.code[c.kernel] for _, c, _ in self.plan.kernel_calls()]

    @cached_property
    def short(self) -> set[Tensor]:
        """Return the inputs and outputs that need no memory beyond the limit of their rows."""
        codes = self.code, self.alternatives
        return find_short(self.plan, lambda k: all(x[k].beyond is Beyond.UNTOUCHED for x in codes if k in x))

    @property
    def scratch(self) -> int:
        """Return the bytes of scratch memory that a thread needs."""
        return max((k.scratch for k in (*self.kernels, *self.alternatives.values())), default=0)

    def with_decisions(self, texts: Mapping[Kernel, str], compare: bool = False) -> tuple[Compiled, int]:
        """Return the program with some kernels compiled by other decision texts, and the bytes of their code.

        Args:
            texts: decision text by kernel (`tuning.kernels.decisions`); empty: the cost model's choice.
            compare: keep the kernels, and run the others in addition (`alternatives`).
        Raises:
            CompileError: a text cannot be compiled.
        """
        replacements = self.backend.compile_as({k: text for k, text in texts.items() if k in self.code}, self.target)
        if compare:
            program = replace(self, alternatives=replacements, listings=())
        else:
            code = {**self.code, **replacements}
            places = layout(self.plan, self.outside, code, self.constants)
            program = replace(self, code=code, places=places, alternatives={}, listings=())
        return program, sum(k.nbytes for k in replacements.values())


def warn_of_storage(numerics: Numerics, target: Target) -> None:
    """Warn, once a process, where a precision halves memory and nothing else."""
    stored = numerics.stored
    if stored is not None and not target.dots_per_cycle(stored.name) and _WARNED(numerics.precision):
        warnings.warn(
            f"precision={numerics.precision!r}: this processor has no instruction that multiplies "
            f"{stored.name}; activations are stored in 16 bits, and products are computed in float32",
            EinsmithWarning,
            stacklevel=2,
        )


def compile_graph(
    graph: Graph,
    bound: Collection[Leaf],
    threads: int,
    finite: Tensor | None = None,
    target: Target | None = None,
    numerics: Numerics = PLAIN,
    backend: Backend | None = None,
    limit: MemoryLimit | None = None,
    max_stored: int = MAX_STORED_BYTES,
    constants: Collection[Leaf] = (),
    limits: Sequence[RowLimit] = (),
    all_limited: bool = False,
    names: Mapping[Leaf, str] = MappingProxyType({}),
    owners: Mapping[Leaf, Leaf] = MappingProxyType({}),
    placed: Mapping[Leaf, Order] = MappingProxyType({}),
    is_sparing: bool = False,
) -> Compiled:
    """Compile a graph.

    Args:
        graph: the graph.
        bound: leaves whose memory lives as long as the program.
        threads: threads that share the work.
        finite: an output whose first element must be finite for a run to store into leaves.
        target: the machine, if it is not this one.
        numerics: how the program may round.
        backend: the back end, if it is not the target's own.
        limit: most bytes that a run may hold.
        max_stored: most bytes of a result that is stored, where it need not be, because that is predicted to be faster.
        constants: bound leaves whose values stay from run to run; kernels pack them once.
        limits: limits of rows beyond which results do not matter.
        all_limited: whether each kernel must leave out rows beyond the limits.
        names: names of leaves, for a dump of the graph.
        owners: as in `Executable`.
        placed: as in `Executable`.
        is_sparing: as in `Executable`.

    Graph decisions that are recorded for the graph are ignored, with a warning, if only without them the limit is met.

    Raises:
        MemoryLimitError: a run needs more bytes than the limit.
        TraceError: the graph reads a tensor of another trace.
        UnlimitedError, LeavesMovedError, UnplacedError: as in `Executable`.
        ArgumentError: the machine cannot compute in the precision.
    """
    start = time.perf_counter()
    target = (target or registry.target_of(None, threads)).for_numerics(numerics)
    warn_of_storage(numerics, target)
    if passing_bytes(graph) > target.last_level:
        target = replace(target, kept=SHARED_L3_FRACTION)
    backend = backend or registry.backend_of(target)
    _check_leaves(graph, {*graph.inputs, *bound})
    context = PlanContext(
        target,
        predicted,
        autoconfig.floor,
        autoconfig.least_of_stages,
        GeneratedCode(frozenset(bound), frozenset(constants), target, backend, threads),
        frozenset(bound),
        frozenset(constants),
        graph.outputs.index(finite) if finite is not None else -1,
        max_stored,
        limit,
        tuple(limits),
        all_limited,
        placed=placed,
        is_sparing=is_sparing,
    )
    compilation = _Compilation(graph, tuple(bound), context, threads, numerics, backend, start, names)
    if (present := present_decisions()) is not None:
        return compilation.run(present)
    recorded = backend.find_graph_decisions(graph, target)
    if not (orders := leaf_orders(graph, owners, recorded)).keys() <= placed.keys():
        raise LeavesMovedError({**orders, **placed})
    return _run_recorded(compilation, recorded)


def _run_recorded(compilation: _Compilation, decisions: frozenset[str]) -> Compiled:
    """Compile by recorded decisions, or, with a warning, without them if only then the limit of memory is met."""
    try:
        return compilation.run(decisions)
    except MemoryLimitError as e:
        if not decisions:
            raise
        least = e.needed
    compiled = compilation.run(frozenset())
    _warn_of_limit(compilation.backend.name_graph_record(compilation.graph), decisions, least)
    return compiled


def _check_leaves(graph: Graph, known: Collection[Leaf]) -> None:
    """Raise TraceError if a graph reads a leaf that is not known."""
    if any(isinstance(x, Leaf) and x not in known for x in postorder(graph.roots)):
        raise TraceError("a tensor of another trace is used; pass it as an argument, or return it from its trace")


def _warn_of_limit(record: str, decisions: Collection[str], least: int) -> None:
    """Warn, once for each record, that the limit of memory is met only without its decisions."""
    if _OVER_LIMIT(record):
        warnings.warn(
            f"the decisions {', '.join(sorted(decisions))}, which tuning has found to be faster, need "
            f"{show_size(least, ROUND_CEILING)}, more than memory_limit; they are ignored, and the cost model decides. "
            f"`einsmith tune --forget {record}` removes them",
            EinsmithWarning,
            stacklevel=2,
        )


class GeneratedCode:
    """The machine code of plans' kernels, and the layout of their arenas (`schedule.pipeline.PlanCode`).

    Those of the last plans are kept: passes over plans replace a plan by another one, or try it and keep the former.

    Args:
        bound: leaves whose memory lives as long as the program.
        constants: those of them whose values stay from run to run.
        target: the machine.
        backend: what compiles kernels.
        threads: threads that share the work.
    """

    def __init__(
        self, bound: Collection[Leaf], constants: Collection[Leaf], target: Target, backend: Backend, threads: int
    ):
        self._bound, self._constants = bound, constants
        self._target, self._backend, self._threads = target, backend, threads
        self._code: dict[Kernel, CompiledKernel] = {}
        self._places: list[tuple[Plan, ArenaLayout]] = []

    def kernels(self, plan: Plan) -> dict[Kernel, CompiledKernel]:
        """Return the machine code of each of a plan's kernels, in the order of its calls."""
        kernels = plan.kernels
        if kernels != list(self._code):
            with recording.phase("code generation", kernels=len(kernels)):
                self._code = dict(zip(kernels, self._backend.compile(kernels, self._target), strict=True))
        return self._code

    def requirements(self, plan: Plan) -> tuple[tuple[str, int, bool], ...]:
        """Return what the layout of the arena takes from the code of each kernel, in the order of the plan
        (`plans.StoredPlan`)."""
        code = self.kernels(plan).values()
        return tuple((x.decision, x.workspace, any(once for _, _, once in x.launches)) for x in code)

    def places(self, plan: Plan) -> ArenaLayout:
        """Return the layout of a plan's arena."""
        known = next((places for other, places in self._places if other is plan), None)
        return known or self.place(
            plan, layout(plan, find_outside(plan, self._bound), self.kernels(plan), self._constants)
        )

    def place(self, plan: Plan, places: ArenaLayout) -> ArenaLayout:
        """Keep the layout of a plan's arena, and return it."""
        self._places = [*self._places[-1:], (plan, places)]
        return places

    def arena_bytes(self, plan: Plan) -> int:
        """Return the bytes of a plan's intermediate results."""
        return self.places(plan).nbytes

    def held_bytes(self, plan: Plan) -> int:
        """Return the bytes of a plan's intermediate results, of packed constants, and of the scratch memory of all
        threads."""
        scratch = max((k.scratch for k in self.kernels(plan).values()), default=0)
        return (
            whole_lines(self.arena_bytes(plan))
            + self.places(plan).kept_end
            + self._backend.scratch_area(scratch, self._threads)
        )


@dataclass(frozen=True)
class _Compilation:
    """A graph to compile, and everything that its program depends on but the graph decisions.

    start: when the compilation began (`time.perf_counter`).
    """

    graph: Graph
    bound: tuple[Leaf, ...]
    context: PlanContext
    threads: int
    numerics: Numerics
    backend: Backend
    start: float
    names: Mapping[Leaf, str]

    def run(self, decisions: frozenset[str]) -> Compiled:
        """Return the program by these graph decisions: from the plan on disk if it still fits, else planned now."""
        with trace.compiling(), deciding(decisions), recording.phase("compilation"):
            c = replace(self.context, decisions=decisions, without=left_out())
            code = self.context.code
            assert isinstance(code, GeneratedCode)
            changes = Changes()
            receivers: list[Listing] = [changes, *listings(self.graph)]
            # A stored plan does not tell what its nodes were made for.
            keeps = plans.is_kept() and len(receivers) == 1 and recording.current() is None
            store = self._store(c) if keeps else None
            plan = None if store is None else _read(store, code, changes)
            seconds = time.perf_counter() - self.start
            if plan is None:
                graph = self._run_passes(c, receivers)
                for receiver in receivers:
                    if isinstance(receiver, FileListing):
                        receiver.text("graph", self._dump(graph, c))
                seconds = time.perf_counter() - self.start
                try:
                    plan = plan_graph(graph, c)
                except UnlimitedError as e:
                    if store is not None:
                        store.refuse(str(e))
                    raise
                if store is not None:
                    store.write(plans.StoredPlan(plan, code.places(plan), code.requirements(plan), changes.tensors))
        return Compiled(
            self.graph,
            plan,
            code.kernels(plan),
            code.places(plan),
            c.bound,
            c.constants,
            plan.graph.outputs[c.finite] if c.finite >= 0 else None,
            self.threads,
            c.target,
            self.numerics,
            self.backend,
            decisions,
            changes,
            seconds,
            receivers[1:],
        )

    def _store(self, c: PlanContext) -> plans.PlanStore:
        """Return the place of the program's plan on disk."""
        without = c.without, registered()
        settings = c.finite, self.threads, c.memory, c.most, *without, sorted(c.decisions), c.all_limited, c.is_sparing
        leaves = self.bound, c.constants, c.limits, c.placed
        return plans.PlanStore(self.graph, *leaves, c.target, self.numerics, self.backend, *settings)

    def _dump(self, graph: Graph, c: PlanContext) -> str:
        """Return the graph after the passes, and how it is compiled, as text that `es.load_graph` reads."""
        kinds = {x: "constant" if x in c.constants else "state" for x in self.bound}
        settings = {
            "threads": self.threads,
            "finite": c.finite,
            **self.numerics.by_name(),
            "max_stored": c.most,
            "decisions": sorted(c.decisions),
        }
        leaves: list[tuple[str, str] | None] = []
        for n, x in enumerate(leaves_of(graph)):
            name = self.names.get(x, f"in{n}").split(", ")[-1].removeprefix("the ")  # "argument 1, the target"
            leaves.append((name, kinds.get(x, "input")) if x in kinds or x in graph.inputs else None)
        return write_dump(Dump(graph, leaves, settings))

    def _run_passes(self, c: PlanContext, receivers: Sequence[Listing]) -> Graph:
        """Return the graph, with checks of indices that tensors hold, after the passes over graphs."""

        def observe(name: str, before: Graph, after: Graph, seconds: float) -> None:
            if recorder is not None:
                now = time.perf_counter_ns()
                recorder.add_phase(name, now - int(seconds * 1e9), now, {"changed": after is not before})
            for receiver in receivers:
                receiver.graph(name, before, after, seconds)

        recorder, graph = recording.current(), self.graph
        if ALL in c.without:
            return graph
        checks = dict((*index_checks(graph.roots), *graph.checks))
        graph = Graph(graph.inputs, graph.outputs, graph.updates, tuple(checks.items()), graph.gradients)
        with recording.phase("passes"), self.numerics.allowing():
            return run_passes(graph, PassContext(c.target, c.cost, observe, self.numerics.stored, PRODUCTS, c.limits))


def _read(store: plans.PlanStore, code: GeneratedCode, changes: Changes) -> Plan | None:
    """Return the stored plan; None if there is none, or if its kernels would be compiled differently now.

    Raises UnlimitedError if it is stored that no plan can skip rows beyond the limits."""
    stored = store.read()
    if isinstance(stored, str):
        raise UnlimitedError(stored)
    if stored is None or code.requirements(stored.plan) != stored.requirements:
        return None
    code.place(stored.plan, stored.places)
    changes.tensors = stored.tensors
    return stored.plan
