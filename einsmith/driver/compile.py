"""Compile a graph: run the passes, fuse, choose layouts, meet a memory limit, and generate the kernels' code."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR
from functools import partial

from einsmith.base import recording
from einsmith.base.caches import Once
from einsmith.base.errors import EinsmithWarning, MemoryLimitError, TraceError
from einsmith.base.locks import cached_property
from einsmith.base.numerics import PLAIN, Numerics
from einsmith.base.sizes import show_size
from einsmith.cost.facts import SHARED_L3_FRACTION, Target
from einsmith.driver import plans, registry
from einsmith.driver.backend import Backend
from einsmith.ir.nodes import Graph, Leaf, Tensor, nbytes, postorder
from einsmith.ir.views import storage
from einsmith.kernels import autoconfig
from einsmith.kernels.contraction.rounding import is_product, round_operands
from einsmith.lang import trace
from einsmith.passes.analysis.index_checks import index_checks
from einsmith.passes.context import PassContext, Products
from einsmith.passes.listings import Changes, Listing, listings
from einsmith.passes.pipeline import (
    EPILOGUE_SUMS,
    LAYOUTS,
    TOGETHER,
    deciding,
    is_left_out,
    left_out,
    present_decisions,
    run_passes,
)
from einsmith.runtime.assemble import ArenaLayout, CompiledKernel, layout
from einsmith.schedule.arena import passing_bytes, whole_lines
from einsmith.schedule.kernel import Beyond, Kernel
from einsmith.schedule.layout.apply import apply_layouts
from einsmith.schedule.layout.choice import layouts_of
from einsmith.schedule.limits import RowLimit, UnlimitedError, check_limited, find_limits, find_short, limit_rows
from einsmith.schedule.plan import KernelCall, Plan
from einsmith.schedule.planner import fuse, mark_invariant
from einsmith.schedule.rematerialize import FitResult, KernelCost, fit
from einsmith.schedule.repeat_products import repeat_products
from einsmith.schedule.residency import plan_seconds
from einsmith.schedule.row_clusters import MAX_STORED_BYTES, smallest_unstored
from einsmith.schedule.together import Work, run_together

PRODUCTS = Products(is_product, round_operands)
"""What passes know of products."""
_WARNED = Once("precisions that are stored only", 8)
_OVER_LIMIT = Once("recorded graph decisions that need more memory than a limit", 64)
MORE_BYTES = 4096
"""Most bytes by which calls that run together may enlarge the arena; with a memory limit it may not grow."""

CALL_SECONDS = 1e-5
"""Seconds of a call outside of its kernels (measured: a function of one array of 4 numbers, 7 to 10 us)."""
MOST_COPYING = 0.1
"""Largest part of a call's time, at the capacity, in which arrays may be copied so that sizes share a program."""


def predicted(kernel: Kernel, target: Target) -> float:
    """Return the predicted seconds of a kernel under the configuration that it would be compiled with."""
    return autoconfig.choose(kernel, target).cost.seconds


@dataclass(frozen=True)
class MemoryLimit:
    """Most bytes that a run may hold. leaves: bytes that it holds for parameters, state and constants, at least."""

    bytes: int
    leaves: int


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
    seconds: time of passes and fusion (seconds)
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
        return _find_short(self.plan, self.code, self.alternatives)

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


def output_tensors(plan: Plan) -> list[Tensor]:
    """Return the tensors of a plan whose memory a run allocates for the graph's outputs."""
    storages = dict.fromkeys(storage(t) for t in plan.graph.outputs)
    return [t for t in storages if not isinstance(t, Leaf) and t not in plan.home]


def _find_short(plan: Plan, *codes: Mapping[Kernel, CompiledKernel]) -> set[Tensor]:
    """Return the tensors outside the arena that need no memory beyond the limit of their rows, if kernels have these
    codes."""
    beyond = Beyond.UNTOUCHED
    return find_short(plan, lambda k: all(code[k].beyond is beyond for code in codes if k in code))


def find_outside(plan: Plan, bound: Iterable[Leaf]) -> set[Tensor]:
    """Return the tensors of a plan that do not lie in the arena; bound: leaves whose memory lives as long as the
    program."""
    return {*plan.graph.inputs, *bound, *output_tensors(plan)}


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

    Graph decisions that are recorded for the graph are ignored, with a warning, if only without them the limit is met.

    Raises:
        MemoryLimitError: a run needs more bytes than the limit.
        TraceError: the graph reads a tensor of another trace.
        UnlimitedError: a kernel that must leave out rows beyond the limits does not.
        ArgumentError: the machine cannot compute in the precision.
    """
    start = time.perf_counter()
    target = (target or registry.target_of(None, threads)).for_numerics(numerics)
    warn_of_storage(numerics, target)
    if passing_bytes(graph) > target.last_level:
        target = replace(target, kept=SHARED_L3_FRACTION)
    backend = backend or registry.backend_of(target)
    known = {*graph.inputs, *bound}
    if any(isinstance(x, Leaf) and x not in known for x in postorder(graph.roots)):
        raise TraceError("a tensor of another trace is used; pass it as an argument, or return it from its trace")

    def compile_by(decisions: frozenset[str]) -> Compiled:
        with trace.compiling(), deciding(decisions), recording.phase("compilation"):
            index = graph.outputs.index(finite) if finite is not None else -1
            changes = Changes()
            receivers: list[Listing] = [changes, *listings(graph)]
            store, kernels = None, None
            # A stored plan does not tell what its nodes were made for.
            if plans.is_kept() and len(receivers) == 1 and recording.current() is None:
                settings = index, threads, limit, max_stored, left_out(), sorted(decisions), all_limited
                store = plans.PlanStore(graph, bound, constants, limits, target, numerics, backend, *settings)
                stored, seconds = store.read(), time.perf_counter() - start
                if isinstance(stored, str):
                    raise UnlimitedError(stored)
                if stored is not None:
                    found = _Kernels(stored.plan, frozenset(bound), target, backend, constants, stored.places)
                    if found.requirements == stored.requirements:
                        kernels, changes.tensors = found, stored.tensors
            if kernels is None:
                plan_with = _Planner(graph, index, target, numerics, receivers, constants, decisions, limits)
                plan, seconds = plan_with(max_stored), time.perf_counter() - start
                kernels = _Kernels(plan, frozenset(bound), target, backend, constants)
                try:
                    if all_limited:  # before any code is generated
                        check_limited(limit_rows(plan, limits), limits, lambda k: True)
                    with recording.phase("schedule: layouts"):
                        kernels.choose_layouts()
                    if limit is not None:
                        with recording.phase("schedule: memory limit"):
                            kernels.fit(limit, threads, partial(plan_with, 0))
                    kernels.limit_rows((*limits, *find_limits(kernels.plan.graph)), all_limited)
                    with recording.phase("schedule: calls that run together"):
                        kernels.run_together(limit)
                except UnlimitedError as e:
                    if store is not None:
                        store.refuse(str(e))
                    raise
                if store is not None:
                    store.write(plans.StoredPlan(kernels.plan, kernels.places, kernels.requirements, changes.tensors))
        return Compiled(
            graph,
            kernels.plan,
            kernels.code,
            kernels.places,
            kernels.bound,
            frozenset(constants),
            kernels.plan.graph.outputs[index] if index >= 0 else None,
            threads,
            target,
            numerics,
            backend,
            decisions,
            changes,
            seconds,
            receivers[1:],
        )

    present = present_decisions()
    if present is not None:
        return compile_by(present)
    recorded = backend.find_graph_decisions(graph, target)
    try:
        return compile_by(recorded)
    except MemoryLimitError as e:
        if not recorded:
            raise
        least = e.needed
    compiled = compile_by(frozenset())
    _warn_of_limit(backend.name_graph_record(graph), recorded, least)
    return compiled


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


class _Planner:
    """The passes over a graph, and the plans of what they make of it.

    Args:
        graph: the graph.
        index: number of the output whose first element must be finite; -1: none.
        target: the machine.
        numerics: how the program may round.
        listings: receivers of the graph after each pass.
        constants: leaves whose values stay from run to run.
        decisions: what is decided otherwise than by the cost model.
        limits: limits of rows. Kernels that take sums of all of their results cannot leave out rows.
    """

    def __init__(
        self,
        graph: Graph,
        index: int,
        target: Target,
        numerics: Numerics,
        listings: Sequence[Listing],
        constants: Collection[Leaf],
        decisions: frozenset[str],
        limits: Sequence[RowLimit] = (),
    ):
        def observe(name: str, before: Graph, after: Graph, seconds: float) -> None:
            if recorder is not None:
                now = time.perf_counter_ns()
                recorder.add_phase(name, now - int(seconds * 1e9), now, {"changed": after is not before})
            for listing in listings:
                listing.graph(name, before, after, seconds)

        recorder = recording.current()
        checks = dict((*index_checks(graph.roots), *graph.checks))
        graph = Graph(graph.inputs, graph.outputs, graph.updates, tuple(checks.items()), graph.gradients)
        with recording.phase("passes"):
            leaves = frozenset(x.leaf for x in limits)
            self._graph = run_passes(graph, PassContext(target, predicted, observe, numerics.stored, PRODUCTS, leaves))
        self._index, self._target, self._decisions = index, target, decisions
        self._constants, self._smallest = constants, smallest_unstored(target)
        # A kernel that takes sums packs constants at each run.
        self._takes_sums = not is_left_out(EPILOGUE_SUMS) and not constants and not limits

    def __call__(self, most: int) -> Plan:
        """Return the plan in which a result that need not be stored is kept for the backward pass if it has at most
        `most` bytes."""
        target, smallest, takes_sums = self._target, self._smallest, self._takes_sums

        def fuse_graph(g: Graph, repeats: bool) -> Plan:
            finite = g.outputs[self._index] if self._index >= 0 else None
            return fuse(
                g,
                finite,
                target,
                cost=predicted,
                most=most,
                repeats=repeats,
                takes_sums=takes_sums,
                decisions=self._decisions,
            )

        with recording.phase("schedule: fusion"):
            plan = repeat_products(
                self._graph, fuse_graph, lambda plan: plan_seconds(plan, predicted, target), smallest, most
            )
        if self._constants:
            mark_invariant(plan, self._constants)
        return plan


def _kernels_of(plan: Plan) -> list[Kernel]:
    """Return the kernels of a plan, each once, in the order of its calls."""
    return list(dict.fromkeys(c.kernel for _, c, _ in plan.kernel_calls()))


class _Kernels:
    """A plan while it is still replaced by better ones, with the code of its kernels, which is generated when it is
    first needed."""

    def __init__(
        self,
        plan: Plan,
        bound: frozenset[Leaf],
        target: Target,
        backend: Backend,
        constants: Collection[Leaf] = (),
        places: ArenaLayout | None = None,
    ):
        self.bound, self.target, self.backend, self._constants = bound, target, backend, constants
        self.plan, self._places = plan, places
        self._code: dict[Kernel, CompiledKernel] | None = None

    @property
    def code(self) -> dict[Kernel, CompiledKernel]:
        """The compiled kernel of each kernel of the plan."""
        if self._code is None:
            kernels = _kernels_of(self.plan)
            with recording.phase("code generation", kernels=len(kernels)):
                self._code = dict(zip(kernels, self.backend.compile(kernels, self.target), strict=True))
        return self._code

    @property
    def requirements(self) -> tuple[tuple[str, int, bool], ...]:
        """What the layout of the arena takes from the code of each kernel, in the order of the plan (`plans`)."""
        every = self.code.values()
        return tuple((x.decision, x.workspace, any(once for _, _, once in x.launches)) for x in every)

    @property
    def places(self) -> ArenaLayout:
        """The layout of the arena."""
        if self._places is None:
            self._places = self._layout(self.plan)
        return self._places

    def _layout(self, plan: Plan) -> ArenaLayout:
        return layout(plan, find_outside(plan, self.bound), self.code, self._constants)

    def _replace(self, plan: Plan) -> None:
        if plan is self.plan:
            return
        if self._code is not None and _kernels_of(plan) != list(self._code):
            self._code = None
        self.plan, self._places = plan, None

    def _predictor(self, code: Mapping[Kernel, CompiledKernel]) -> Callable[[Kernel], float]:
        """Return a function from a kernel to its predicted seconds in the configuration that the cost model chooses.

        Kernels in `code` that were compiled without a decision carry that prediction. Decisions are ignored, so that
        they do not change which kernels a plan consists of.
        """

        def seconds(kernel: Kernel) -> float:
            compiled = code.get(kernel)
            return (
                compiled.seconds if compiled is not None and not compiled.decision else predicted(kernel, self.target)
            )

        return seconds

    def choose_layouts(self) -> None:
        """Replace the plan by the one whose tensor layouts the cost model prices lowest."""
        decide = layouts_of(
            self._predictor(self._code or {}),
            partial(autoconfig.floor, target=self.target),
            self.target,
            partial(is_left_out, LAYOUTS),
        )
        self._replace(apply_layouts(self.plan, decide))

    def limit_rows(self, limits: Sequence[RowLimit], all_limited: bool) -> None:
        """Have kernels leave out rows beyond the limits that no result depends on. Raises UnlimitedError where one does
        not, although all must (`all_limited`)."""
        if limits:
            self._replace(limit_rows(self.plan, limits))
        if all_limited:
            check_limited(self.plan, limits, lambda k: self.code[k].beyond is not Beyond.COMPUTED)
            self._check_copies(limits)

    def _check_copies(self, limits: Sequence[RowLimit]) -> None:
        """Raise UnlimitedError where a call takes long to copy arrays into memory of the capacity, or out of it."""
        short = _find_short(self.plan, self.code)
        arrays = {*self.plan.graph.inputs, *output_tensors(self.plan)} - self.bound - short
        count = sum(nbytes(t) for t in arrays if any(t.shape[:1] == (x.extent,) for x in limits))
        seconds = CALL_SECONDS + sum(self.code[c.kernel].seconds for _, c, _ in self.plan.kernel_calls())
        if self.target.seconds_for_bytes(2 * count, 2 * count, 1) > MOST_COPYING * seconds:
            raise UnlimitedError(f"{show_size(count)} of arrays are copied into memory of the capacity, or out of it")

    def run_together(self, limit: MemoryLimit | None) -> None:
        """Let independent calls run in one launch where that is predicted to be faster and the arena hardly grows."""
        if is_left_out(TOGETHER):
            return

        def work_of(call: KernelCall) -> Work | None:
            launches = [x for x in self.code[call.kernel].launches if not x[2]]
            return Work(self.code[call.kernel].seconds, launches[0][1]) if len(launches) == 1 else None

        plan = run_together(self.plan, work_of, self.target)
        if plan.together:
            places = self._layout(plan)
            if places.nbytes <= self.places.nbytes + (MORE_BYTES if limit is None else 0):
                self.plan, self._places = plan, places

    def fit(self, limit: MemoryLimit, threads: int, streaming: Callable[[], Plan] | None = None) -> None:
        """Replace the plan by one that recomputes results, so that a run holds no more bytes than the limit.

        `streaming` returns the plan that stores the fewest results between products. It is tried last, since
        its sums may be in another order: results are then not bitwise those without a limit.
        Raises MemoryLimitError, which names the least limit that can be met.
        """

        def measure(plan: Plan) -> int:
            self._replace(plan)
            scratch = max((k.scratch for k in self.code.values()), default=0)
            return whole_lines(self.places.nbytes) + self.backend.scratch_area(scratch, threads)

        batch = sum(map(nbytes, find_outside(self.plan, self.bound) - self.bound))

        def fitting() -> FitResult:
            first_code = self.code  # the search must not depend on which plans were compiled
            cost = KernelCost(self._predictor(first_code), lambda k: first_code[k].workspace if k in first_code else 0)
            return fit(
                self.plan, find_outside(self.plan, self.bound), limit.bytes - limit.leaves - batch, cost, measure
            )

        fitted = fitting()
        if fitted.plan is None and streaming is not None:
            self._replace(streaming())
            self.choose_layouts()
            fitted = fitting()
        if fitted.plan is None:
            least = limit.leaves + batch + fitted.least
            raise MemoryLimitError(
                f"memory_limit={show_size(limit.bytes, ROUND_FLOOR)} is too little: at least "
                f"{show_size(least, ROUND_CEILING)} are needed, {show_size(limit.leaves)} for parameters, buffers and "
                f"the optimizer's state, {show_size(batch)} for the batch and {show_size(fitted.least)} for "
                f"intermediate results, which take {show_size(fitted.without)} without recomputation; raise the "
                "limit, or use smaller batches",
                least,
            )
        self._replace(fitted.plan)
