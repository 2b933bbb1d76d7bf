"""Run the passes from plan to plan in order: from a graph, after its own passes, to the plan that is bound to memory.

The passes from graph to graph (`passes.pipeline`) come before, binding to memory (`driver.binding`) after.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR
from typing import Generic, Protocol, TypeVar

from einsmith.base import recording
from einsmith.base.errors import MemoryLimitError
from einsmith.base.sizes import show_size
from einsmith.cost.facts import CPU, Target
from einsmith.ir.nodes import Graph, Leaf, Tensor, nbytes
from einsmith.schedule.coalesce import coalesce_copies, has_copies
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.join_updates import join_updates
from einsmith.schedule.kernel import Beyond, Kernel
from einsmith.schedule.kernel_calls import mark_invariant, unmark_invariant
from einsmith.schedule.layout.apply import apply_layouts, place_leaves
from einsmith.schedule.layout.choice import layouts_of
from einsmith.schedule.limited_positions import RowLimit, find_limited, find_limits
from einsmith.schedule.limits import UnlimitedError, check_limited, find_short, limit_rows
from einsmith.schedule.losses import LossSplitter
from einsmith.schedule.options import EPILOGUE_SUMS, FUSION_PARTS
from einsmith.schedule.plan import Cost, KernelCall, Order, Plan, StagesCost, find_outside, output_tensors
from einsmith.schedule.planner import fuse
from einsmith.schedule.rematerialize import KernelCost, fit
from einsmith.schedule.repeat_products import repeat_products
from einsmith.schedule.residency import plan_seconds
from einsmith.schedule.row_clusters import smallest_unstored
from einsmith.schedule.step_loops import join_steps
from einsmith.schedule.together import Work, run_together

LEAST_SAVED = 0.08
"""Part of a kernel's predicted time that packing a frozen weight once has to save in a training step, as it costs the
weight's bytes again: a LoRA step of 6 layers of 576 channels at 256 tokens in bfloat16, where products save 14 to 38 %,
takes 119 ms instead of 170; in float32, where they save 3 to 6 %, 460 instead of 490 (a core of a Sapphire Rapids)."""
MORE_BYTES = 4096
"""Most bytes by which calls that run together may enlarge the arena; with a memory limit it may not grow."""
CALL_SECONDS = 1e-5
"""Seconds of a call outside of its kernels (measured: a function of one array of 4 numbers, 7 to 10 us)."""
MOST_COPYING = 0.1
"""Largest part of a call's time, at the capacity, in which arrays may be copied so that sizes share a program."""

COPIES, LAYOUTS, LOSSES, STEPS, JOINED, TOGETHER = (
    "copy coalescing", "layouts", "losses", "joined steps", "joined updates", "together",
)  # fmt: skip
"""Names by which parts of planning after fusion can be left out: memory that the source and the result of a copy share,
orders of dimensions, the separation of kernels that are slower fused, short loops and short updates in one launch, and
kernels that run in one launch with others."""

Subject = TypeVar("Subject")
Context = TypeVar("Context")


@dataclass(frozen=True)
class Pass(Generic[Subject, Context]):
    """A function from graph to graph, or from plan to plan.

    needs: properties that passes before it must provide; provides: properties that hold from it on, if it is not left
    out; is_optional: False for a pass without which programs are not right or not compiled; parts: names of its parts
    that can be left out; on: kinds of expressions and nodes (`passes.occurrences`) where it may change something: it is
    not run on a graph in which none of them occurs. Empty for a pass that always runs. identity: digest of a pass that
    was registered from outside, for the keys of plans; "" for others.
    """

    name: str
    run: Callable[[Subject, Context], Subject]
    needs: frozenset[str] = frozenset()
    provides: frozenset[str] = frozenset()
    is_optional: bool = True
    parts: tuple[str, ...] = ()
    on: frozenset[str] = frozenset()
    identity: str = ""


def check_order(passes: Sequence[Pass[Subject, Context]]) -> tuple[Pass[Subject, Context], ...]:
    """Return the passes. Raises ValueError if one needs what none before it provides."""
    known: set[str] = set()
    for p in passes:
        missing = p.needs - known
        if missing:
            names = ", ".join(sorted(missing))
            raise ValueError(f"the pass {p.name!r} needs {names}, which no pass before it provides")
        known |= p.provides
    return tuple(passes)


def optional_names(passes: Iterable[Pass]) -> list[str]:
    """Return the names of the passes, and of their parts, that can be left out."""
    return list(dict.fromkeys(name for p in passes for name in (*p.parts, *[p.name] * p.is_optional)))


@dataclass(frozen=True)
class MemoryLimit:
    """Most bytes that a run may hold. leaves: bytes that it holds for parameters, state and constants, at least."""

    bytes: int
    leaves: int


class PlanCode(Protocol):
    """The machine code of plans' kernels, compiled when it is first needed, and the memory that plans take."""

    def kernels(self, plan: Plan) -> Mapping[Kernel, CompiledKernel]:
        """Return the machine code of each of a plan's kernels."""

    def arena_bytes(self, plan: Plan) -> int:
        """Return the bytes of a plan's intermediate results."""

    def held_bytes(self, plan: Plan) -> int:
        """Return the bytes of a plan's intermediate results, of packed constants, and of the scratch memory of all
        threads."""


@dataclass(frozen=True)
class PlanContext:
    """What passes over plans share.

    target: the machine. cost: predicted seconds of a kernel on it; floor: a lower bound of them, whatever the orders of
    the kernel's tensors. least: what its first stages are expected to take at least. code: the machine code of
    kernels. bound: leaves whose memory lives as long as the program; constants: those of them whose values stay from
    run to run. finite: number of the output whose first element must be
    finite for a run to store into leaves, or -1. most: most bytes of a result that is stored, where it need not be,
    because that takes less time. memory: most bytes that a run may hold. limits: limits of rows beyond which results do
    not matter; all_limited: whether each kernel must leave out rows beyond them. decisions: what is decided otherwise
    than by the cost model (`schedule.graph_decisions`). without: names of passes, and of parts, that are left out.
    placed: orders in which leaves are stored that are not row-major. is_sparing: whether constants are packed only
    where that saves much.
    """

    target: Target
    cost: Cost
    floor: Cost
    least: StagesCost
    code: PlanCode
    bound: frozenset[Leaf]
    constants: frozenset[Leaf]
    finite: int
    most: int
    memory: MemoryLimit | None
    limits: tuple[RowLimit, ...]
    all_limited: bool
    decisions: frozenset[str] = frozenset()
    without: Collection[str] = ()
    placed: Mapping[Leaf, Order] = field(default_factory=dict)
    is_sparing: bool = False


PlanPass = Pass[Plan, PlanContext]


def plan_graph(graph: Graph, context: PlanContext, until: str = "") -> Plan:
    """Return the plan of a graph after every pass that is not left out, or after those before the pass `until`.

    Raises:
        MemoryLimitError: a run needs more bytes than the limit.
        UnlimitedError: a kernel that must leave out rows beyond the limits does not.
        UnplacedError: a kernel cannot follow the order in which a leaf is stored.
    """
    plan = Plan(graph, [], {}, [], 0)
    for p in PLAN_PASSES:
        if p.name == until:
            break
        if p.name not in context.without:
            with recording.phase(f"schedule: {p.name}"):
                plan = p.run(plan, context)
    return plan


def _fuse(plan: Plan, c: PlanContext) -> Plan:
    """Fuse the graph's tensors into kernels, with products repeated in the backward pass where that pays."""
    # A kernel that takes sums packs constants at each run, and cannot leave out rows.
    packs_all = c.constants and not plan.graph.updates and not c.is_sparing
    without = {*c.without, EPILOGUE_SUMS} if packs_all or c.limits else c.without

    def fuse_graph(graph: Graph, repeats: bool) -> Plan:
        finite = graph.outputs[c.finite] if c.finite >= 0 else None
        return fuse(
            graph,
            finite,
            c.target,
            cost=c.cost,
            most=c.most,
            repeats=repeats,
            without=without,
            decisions=c.decisions,
        )

    smallest = smallest_unstored(c.target)
    return repeat_products(plan.graph, fuse_graph, lambda p: plan_seconds(p, c.cost, c.target), smallest, c.most)


def _coalesce_copies(plan: Plan, c: PlanContext) -> Plan:
    """Let the source and the result of copies share memory.

    Copies stay for tensors with a limit of rows, because kernels skip rows of whole tensors only, and under a memory
    limit, because a tensor that several kernels store cannot be rematerialized by a single kernel.
    """
    if c.memory is not None or c.limits or not has_copies(plan):
        return plan

    def limited() -> set[Tensor]:
        limits = find_limits(plan.graph)
        return {t for some in find_limited(plan.graph, limits) for t, _ in some} if limits else set()

    return coalesce_copies(plan, lambda k: c.cost(k, c.target), c.target, limited)


def _mark_constants(plan: Plan, c: PlanContext) -> Plan:
    """Have kernels mark the buffers that hold constants, which they pack once.

    What they pack stays in memory of its own. A program that trains others beside frozen weights packs these once where
    that saves much, and where a memory limit allows it (`fit_memory`).
    """
    if not c.constants:
        return plan

    def pays(call: KernelCall, marked: Kernel) -> bool:
        return c.cost(marked, c.target) <= (1 - LEAST_SAVED) * c.cost(call.kernel, c.target)

    return mark_invariant(plan, c.constants, pays if plan.graph.updates or c.is_sparing else None)


def _check_rows(plan: Plan, c: PlanContext) -> Plan:
    """Raise UnlimitedError, before any code is generated, where a kernel cannot leave out rows although all must."""
    if c.all_limited:
        check_limited(limit_rows(plan, c.limits), c.limits, lambda k: True)
    return plan


def _choose_layouts(plan: Plan, c: PlanContext) -> Plan:
    """Give tensors the orders of dimensions that the cost model prices lowest."""
    decide = layouts_of(lambda k: c.cost(k, c.target), lambda k: c.floor(k, c.target), c.target)
    return apply_layouts(plan, decide)


def _place_leaves(plan: Plan, c: PlanContext) -> Plan:
    """Have kernels follow the orders in which leaves are stored."""
    return place_leaves(plan, c.placed) if c.placed else plan


def _split_losses(plan: Plan, c: PlanContext) -> Plan:
    """Separate kernels that are slower fused, except on cards, which pay for each launch."""
    return LossSplitter(c.cost, c.least, c.target).split(plan) if c.target.backend == CPU else plan


def fit_memory(plan: Plan, c: PlanContext) -> Plan:
    """Recompute results, so that a run holds no more bytes than the limit.

    A plan that stores the fewest results between products is tried last, since its sums may be in another order:
    results are then not bitwise those without a limit. A program that trains packs frozen weights at each run where the
    limit leaves no room to pack them once. Raises MemoryLimitError, which names the least limit that can be met.
    """
    limit = c.memory
    if limit is None:
        return plan
    batch = sum(map(nbytes, find_outside(plan, c.bound) - c.bound))
    allowed = limit.bytes - limit.leaves - batch
    if plan.graph.updates and c.constants and c.code.held_bytes(plan) > allowed:
        plan, c = unmark_invariant(plan), replace(c, constants=frozenset())
    fitted = fit(plan, find_outside(plan, c.bound), allowed, _kernel_cost(plan, c), c.code.held_bytes)
    if fitted.plan is None:
        sparse = plan_graph(plan.graph, replace(c, most=0), until=MEMORY)
        if sparse.kernels != plan.kernels:
            again = fit(sparse, find_outside(sparse, c.bound), allowed, _kernel_cost(sparse, c), c.code.held_bytes)
            fitted = again if again.plan is not None else min(fitted, again, key=lambda x: x.least)
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
    return fitted.plan


def _kernel_cost(plan: Plan, c: PlanContext) -> KernelCost:
    """Return the costs by which a plan's results are recomputed.

    They must not depend on which other plans were compiled. Kernels compiled without a decision carry the cost model's
    prediction. Decisions are ignored, so that they do not change which kernels a plan consists of.
    """
    code = c.code.kernels(plan)

    def seconds(kernel: Kernel) -> float:
        known = code.get(kernel)
        return known.seconds if known is not None and not known.decision else c.cost(kernel, c.target)

    return KernelCost(seconds, lambda kernel: code[kernel].workspace if kernel in code else 0)


def _leave_out_rows(plan: Plan, c: PlanContext) -> Plan:
    """Have kernels leave out rows beyond the limits that no result depends on. Raises UnlimitedError where one does
    not, although all must."""
    limits = (*c.limits, *find_limits(plan.graph))
    if limits:
        plan = limit_rows(plan, limits)
    if c.all_limited:
        code = c.code.kernels(plan)
        check_limited(plan, limits, lambda k: code[k].beyond is not Beyond.COMPUTED)
        _check_copies(plan, code, limits, c)
    return plan


def _check_copies(
    plan: Plan, code: Mapping[Kernel, CompiledKernel], limits: Sequence[RowLimit], c: PlanContext
) -> None:
    """Raise UnlimitedError where a call takes long to copy arrays into memory of the capacity, or out of it."""
    short = find_short(plan, lambda k: code[k].beyond is Beyond.UNTOUCHED)
    arrays = {*plan.graph.inputs, *output_tensors(plan)} - c.bound - short
    count = sum(nbytes(t) for t in arrays if any(t.shape[:1] == (x.extent,) for x in limits))
    seconds = CALL_SECONDS + sum(code[call.kernel].seconds for _, call, _ in plan.kernel_calls())
    if c.target.seconds_for_bytes(2 * count, 2 * count, 1) > MOST_COPYING * seconds:
        raise UnlimitedError(f"{show_size(count)} of arrays are copied into memory of the capacity, or out of it")


def _join_steps(plan: Plan, c: PlanContext) -> Plan:
    """Let short loops run in one launch where that is predicted to be faster."""
    return plan if c.limits or c.memory is not None else join_steps(plan, c.cost, c.target)


def _join_updates(plan: Plan, c: PlanContext) -> Plan:
    """Let short updates run in one launch where that is predicted to be faster and a memory limit is still met."""
    joined = plan if c.limits else join_updates(plan, c.cost, c.target)
    grows = joined is not plan and c.memory is not None and c.code.held_bytes(joined) > c.code.held_bytes(plan)
    return plan if grows else joined


def _run_together(plan: Plan, c: PlanContext) -> Plan:
    """Let independent calls run in one launch where that is predicted to be faster and the arena hardly grows."""
    code = c.code.kernels(plan)

    def work_of(call: KernelCall) -> Work | None:
        launches = [x for x in code[call.kernel].launches if not x[2]]
        return Work(code[call.kernel].seconds, launches[0][1]) if len(launches) == 1 else None

    joined = run_together(plan, work_of, c.target)
    if joined is plan:
        return plan
    allowed = c.code.arena_bytes(plan) + (MORE_BYTES if c.memory is None else 0)
    return joined if c.code.arena_bytes(joined) <= allowed else plan


def _plan_pass(
    name: str,
    run: Callable[[Plan, PlanContext], Plan],
    needs: str = "",
    provides: str = "",
    is_optional: bool = False,
    parts: tuple[str, ...] = (),
) -> PlanPass:
    """Return a pass. needs, provides: words separated by spaces."""
    return Pass(name, run, frozenset(needs.split()), frozenset(provides.split()), is_optional, parts)


MEMORY = "memory limit"
PLAN_PASSES = check_order(
    (
        _plan_pass("kernels", _fuse, provides="kernels", parts=FUSION_PARTS),
        _plan_pass(COPIES, _coalesce_copies, needs="kernels", is_optional=True),
        _plan_pass("constants", _mark_constants, needs="kernels"),
        _plan_pass("rows that can be left out", _check_rows, needs="kernels"),
        _plan_pass("orders of leaves", _place_leaves, needs="kernels"),
        _plan_pass(LAYOUTS, _choose_layouts, needs="kernels", is_optional=True),
        _plan_pass(LOSSES, _split_losses, needs="kernels", is_optional=True),
        _plan_pass(MEMORY, fit_memory, needs="kernels", provides="calls"),
        _plan_pass("row limits", _leave_out_rows, needs="calls", provides="limits"),
        _plan_pass(STEPS, _join_steps, needs="calls limits", is_optional=True),
        _plan_pass(JOINED, _join_updates, needs="calls limits", is_optional=True),
        _plan_pass(TOGETHER, _run_together, needs="calls limits", is_optional=True),
    )
)
"""Recomputation for a memory limit adds calls. Which calls run together is decided last, when all calls are known."""
