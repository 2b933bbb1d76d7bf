"""Plan a graph: tensors become stages of kernels, in an order.

before: A = sum[k](X[i,k]*W[k,j]);  B = A[i,j] + b[j];  C = where(B[i,j] <= 0, 0, B[i,j])
after:  one kernel of three stages, A and B in registers

`fusion` decides which tensors share a kernel, and `row_joins` joins kernels that share their rows. The operands of
runtime checks are grouped separately, and a read at a data-dependent index follows the check of that index. Updates are
written into their parameter's memory, after every other read of it and after the checks. If no order allows that, the
update is computed into separate memory and copied.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from einsmith.base.errors import VerifyError
from einsmith.base.locks import cached_property
from einsmith.cost.facts import Target
from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.interned import Node
from einsmith.ir.loop import LoopSegment, LoweredLoop
from einsmith.ir.nodes import Compute, Graph, Item, Leaf, Tensor, nbytes, postorder, received
from einsmith.ir.views import is_view, producer, storage
from einsmith.schedule.fusion import FusionGroup, fusion_groups, maker, needs_check, reads_only_own_element
from einsmith.schedule.gradients_apart import compute_apart
from einsmith.schedule.graph_decisions import cut_nodes
from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage
from einsmith.schedule.kernel_calls import (
    copy_of,
    drop_idle,
    is_non_temporal,
    kernel_call,
    mark_invariant,
    smallest_non_temporal,
)
from einsmith.schedule.options import EPILOGUE_SUMS, FUSION, ROW_FUSION, UPDATE_FUSION, PlanOptions
from einsmith.schedule.order import find_cycles, memory_greedy_order
from einsmith.schedule.plan import AnyCall, Cost, KernelCall, LoopCall, Plan
from einsmith.schedule.residency import plan_seconds
from einsmith.schedule.row_clusters import MAX_STORED_BYTES, freed
from einsmith.schedule.row_joins import JoinedCalls, RowJoiner
from einsmith.schedule.slices import slice_call
from einsmith.schedule.sum_calls import Unfused

MIN_STEPS_TO_HOIST = 4
"""Fewest steps of a loop for which loop-invariant work is moved in front of it."""


def _require_maker(t: Tensor) -> Compute | LoweredLoop:
    """Return the node that computes a tensor's storage; raise VerifyError for an input of the graph."""
    node = maker(t)
    if node is None:
        raise VerifyError("a computed tensor is needed here, not an input of the graph")
    return node


def fuse(
    graph: Graph,
    finite: Tensor | None = None,
    target: Target | None = None,
    on_lines: bool = True,
    cost: Cost | None = None,
    most: int = MAX_STORED_BYTES,
    repeats: bool = False,
    without: Collection[str] = (),
    decisions: frozenset[str] = frozenset(),
) -> Plan:
    """Group, order and lower a graph to kernel calls.

    Args:
        graph: the graph.
        finite: a tensor that the program checks before it commits anything; writes into leaves come after it.
        target: the machine, whose caches row fusion is fitted to.
        on_lines: whether results begin on a cache line.
        cost: predicts kernels; rows are fused where that takes less time by it.
        most: most bytes of a result that is stored, where it need not be, because that takes less time.
        repeats: whether the backward pass repeats products of the forward pass (`repeat_products`): no kernel that
            reuses operands then belongs to both.
        without: names of parts of fusion that are left out (`options`).
        decisions: what is decided otherwise than by `cost` (`graph_decisions`).

    Raises:
        VerifyError: if the updates of the graph cannot be ordered.
    """
    target = target or Target()
    cut = cut_nodes(graph, decisions)
    options = PlanOptions(target, on_lines, cost, most, repeats, without, decisions, cut)

    def plan_with(apart: Collection[Compute]) -> Plan:
        copied: set[Leaf] = set()
        while True:
            plan, stuck = _plan(graph, copied, finite, apart, options)
            if plan is not None:
                return plan
            if not stuck - copied:
                raise VerifyError("the updates of this graph cannot be ordered")
            copied |= stuck

    return (
        plan_with(()) if cost is None else compute_apart(plan_with, lambda plan: plan_seconds(plan, cost, target), most)
    )


@dataclass(frozen=True, eq=False)
class _Grouping:
    """A graph whose nodes are grouped into kernels.

    graph: the graph, in which every update can be written into the memory of its leaf. finite: see `fuse`. groups: the
    groups, of which some are empty. of: the group of each node. early: the runtime checks and the nodes that they are
    computed from. kept: storages that are stored in any case.
    """

    graph: Graph
    finite: Tensor | None
    groups: Sequence[FusionGroup]
    of: Mapping[Compute | LoweredLoop, int]
    early: set[Compute | LoweredLoop]
    kept: set[Tensor]

    def group_of(self, t: Tensor) -> int:
        """Return the group that computes a tensor; raise VerifyError for an input of the graph."""
        return self.of[_require_maker(t)]

    @cached_property
    def home(self) -> dict[Tensor, Leaf]:
        """Return the leaf into whose memory each update's tensor is written."""
        return {t: p for p, t in self.graph.updates}

    @cached_property
    def operands(self) -> list[set[Tensor]]:
        """Return the tensors that each group reads from memory."""
        return [{a for n in g.nodes for a in n.args if maker(a) not in g.nodes} for g in self.groups]

    @cached_property
    def read(self) -> set[Tensor]:
        """Return the storages that groups compute and others read."""
        return {storage(a) for args in self.operands for a in args if maker(a) is not None}

    @cached_property
    def sent(self) -> set[Leaf]:
        """Return the leaves from whose updates other threads store leaves that the graph reads."""
        return set(received(self.graph.inputs).values())

    @cached_property
    def checking(self) -> list[int]:
        """Return the group of each runtime check."""
        return [self.group_of(t) for t, _ in self.graph.checks]

    @cached_property
    def gates(self) -> set[int]:
        """Return the groups that decide whether a run stores into leaves."""
        gated = [t for t, _ in self.graph.checks] + ([self.finite] if self.finite is not None else [])
        return {self.of[m] for m in map(maker, gated) if m is not None}

    @cached_property
    def writers(self) -> dict[int, list[Leaf]]:
        """Return the leaves that each group writes into."""
        out: dict[int, list[Leaf]] = defaultdict(list)
        for leaf, t in self.graph.updates:
            out[self.group_of(t)].append(leaf)
        return out


def _plan(
    graph: Graph,
    copied: set[Leaf],
    finite: Tensor | None,
    apart: Collection[Compute],
    options: PlanOptions,
) -> tuple[Plan | None, set[Leaf]]:
    """Return (the plan; None if the updates have no order, leaves whose updates have to be copied).

    copied: leaves whose updates are computed into separate memory and copied. apart: nodes that no pointwise node is
    fused with. The other arguments are those of `fuse`.
    """
    grouping = _group(graph, copied, finite, apart, options)
    after, stuck = _find_dependences(grouping)
    if stuck - copied:
        return None, stuck
    order = _order(grouping, after)
    if order is None:
        cyclic = find_cycles(len(grouping.groups), after)
        return None, {p for p, t in grouping.graph.updates if grouping.group_of(t) in cyclic}
    non_temporal = _place_past_caches(grouping, options) if options.on_lines else set()
    needed = grouping.kept | grouping.read
    nodes = [grouping.groups[g].nodes for g in order]
    singles = [_lower_group(n, needed, grouping.home, non_temporal, options) for n in nodes]
    return _join(grouping, singles, order, after, options), set()


def _group(
    graph: Graph,
    copied: set[Leaf],
    finite: Tensor | None,
    apart: Collection[Compute],
    options: PlanOptions,
) -> _Grouping:
    """Group the nodes of a graph into kernels. The arguments are those of `_plan`."""
    graph = _separate_updates(graph, copied)
    alone = {*apart, *(_require_maker(t) for p, t in graph.updates if p in copied)}
    nodes = [n for n in postorder(graph.roots) if _is_work(n)]
    early = {n for n in postorder(t for t, _ in graph.checks) if isinstance(n, (Compute, LoweredLoop))}
    waits = received(graph.inputs)
    levels = _count_waits(nodes, waits) if waits else {}
    gate = maker(finite) if finite is not None else None
    stores = {_require_maker(t) for _, t in graph.updates}
    if FUSION in options.without:
        alone |= {n for n in nodes if isinstance(n, Compute)}
    elif UPDATE_FUSION in options.without:
        alone |= stores
    groups, of = fusion_groups(nodes, alone, early, gate, stores, levels, options.cut)
    external = {*graph.outputs, *(t for t, _ in graph.checks), *([finite] if finite is not None else [])}
    kept = {*map(storage, external), *(t for _, t in graph.updates)}
    return _Grouping(graph, finite, groups, of, early, kept)


def _separate_updates(graph: Graph, copied: set[Leaf]) -> Graph:
    """Return a graph of the same values, in which a kernel can write each update into its leaf: it is computed by a
    node of its own, and is no output. An output that is a leaf's old value is a copy. copied: leaves whose updates are
    computed into separate memory and copied."""
    if not graph.updates:
        return graph
    updates: list[tuple[Leaf, Tensor]] = []
    returned = set(graph.outputs)
    update_tensors: set[Tensor] = set()
    for p, t in graph.updates:
        if isinstance(producer(t)[0], (Leaf, LoweredLoop)) or storage(t) is not t or t in returned:
            t = copy_of(t)
        if p in copied:
            t = copy_of(t)
        while t in update_tensors:
            t = copy_of(t)
        update_tensors.add(t)
        updates.append((p, t))
    stored = {p for p, _ in updates}
    outputs = tuple(copy_of(t) if producer(t)[0] in stored else t for t in graph.outputs)
    return Graph(graph.inputs, outputs, tuple(updates), graph.checks, graph.gradients)


def _find_dependences(grouping: _Grouping) -> tuple[dict[int, set[int]], set[Leaf]]:
    """Return (the groups that each group needs, leaves whose updates have to be copied)."""
    of, groups, waits = grouping.of, grouping.groups, received(grouping.graph.inputs)
    written = dict(grouping.graph.updates)
    after: dict[int, set[int]] = defaultdict(set)
    readers: dict[Leaf, set[int]] = defaultdict(set)
    for g, args in enumerate(grouping.operands):
        for source, _ in map(producer, args):
            if isinstance(source, Leaf):
                readers[source].add(g)
                if source.after is not None:  # updates from which another thread stores it, and those before it
                    after[g] |= {grouping.group_of(written[s]) for x, s in waits.items() if x.id <= source.id}
            else:
                after[g].add(of[source])
    for g, group in enumerate(groups):
        for h in grouping.checking if any(map(needs_check, group.nodes)) else ():
            if h == g or groups[h].before >> g & 1:
                break  # the remaining checks come later than this read
            after[g].add(h)
    gates, stuck = grouping.gates, set[Leaf]()
    for leaf, t in grouping.graph.updates:
        g = grouping.group_of(t)
        if leaf in grouping.sent:  # others wait for it, which the gates may follow
            continue
        if g in gates or not _can_replace(leaf, groups[g].nodes):
            stuck.add(leaf)
        after[g] |= (readers[leaf] | gates) - {g}
    return after, stuck


def _order(grouping: _Grouping, after: Mapping[int, Collection[int]]) -> list[int] | None:
    """Return the order of the groups that are not empty; None if there is none."""
    sizes = {t: nbytes(t) for t in grouping.read - grouping.kept}
    produced = [0] * len(grouping.groups)
    for t, n in sizes.items():
        produced[grouping.group_of(t)] += n
    order = memory_greedy_order(after, produced, [set(map(storage, args)) for args in grouping.operands], sizes)
    return None if order is None else [g for g in order if grouping.groups[g].nodes]


def _place_past_caches(grouping: _Grouping, options: PlanOptions) -> set[Tensor]:
    """Return the results that are stored past the caches (`kernel_calls.is_non_temporal`)."""
    results = (grouping.kept | grouping.read) - set(map(storage, grouping.graph.inputs))
    if all(nbytes(t) < smallest_non_temporal(options.target) for t in results):
        return set()
    moved = [sum(map(nbytes, args)) for args in grouping.operands]
    for t in results:
        moved[grouping.group_of(t)] += nbytes(t)
    last_level = options.target.last_level
    unread = {t for t in results - grouping.read if moved[grouping.group_of(t)] > last_level}
    return {t for t in results - set(grouping.home) if is_non_temporal(t, t in unread, options.target)}


def _join(
    grouping: _Grouping,
    singles: Sequence[KernelCall | LoopCall],
    order: Sequence[int],
    after: Mapping[int, Collection[int]],
    options: PlanOptions,
) -> Plan:
    """Return the plan of the calls of groups, in which kernels are joined that share their rows. singles: the call of
    each group of `order`. after: the groups that each group needs."""
    graph = grouping.graph
    place = {g: i for i, g in enumerate(order)}
    joined, apart = _join_calls(grouping, singles, place, after, options)
    checks = [(joined.rank[place[grouping.group_of(t)]], t, m) for t, m in graph.checks]
    storing = [g for g, leaves in grouping.writers.items() if grouping.sent.isdisjoint(leaves)]
    first = min((joined.rank[place[g]] for g in storing), default=len(joined.calls))
    return Plan(
        graph,
        joined.calls,
        grouping.home,
        checks,
        first,
        apart=apart,
        refusals=joined.refusals,
        decisions=options.decisions,
    )


def _join_calls(
    grouping: _Grouping,
    singles: Sequence[KernelCall | LoopCall],
    place: Mapping[int, int],
    after: Mapping[int, Collection[int]],
    options: PlanOptions,
) -> tuple[JoinedCalls, frozenset[Compute]]:
    """Return (the calls, joined where their kernels share rows; sums that would otherwise be joined with updates).

    place: the position of each group in `singles`. The other arguments are those of `_join`.
    """
    if len(singles) == 1:
        (call,) = singles
        return JoinedCalls([slice_call(call) if isinstance(call, KernelCall) else call], {0: 0}, {}), frozenset()
    graph, kept = grouping.graph, grouping.kept
    # Operands of checks, and updates, are not fused by rows: their positions in the order are decided here.
    fixed = {place[g] for g in grouping.checking}
    fixed |= {i for i, c in enumerate(singles) if isinstance(c, LoopCall) or grouping.early & set(c.nodes)}
    writers = {place[g] for g in grouping.writers}
    unfused = Unfused(fixed, writers - fixed, {place[g] for g in grouping.gates})
    needs = {i: {place[h] for h in after[g]} for g, i in place.items()}
    singles = _mark_late(singles, graph) if options.repeats else singles
    joins_rows = ROW_FUSION not in options.without
    sums = {i: node for i in writers if joins_rows and (node := _sum_of(singles[i])) is not None}
    unstored = freed(singles, needs, unfused.all, sums, kept, options.target, options.most)
    apart = frozenset(node for i, node in sums.items() if not unstored.isdisjoint(singles[i].operands))
    return RowJoiner(singles, needs, unfused, kept, options).run(), apart


def _sum_of(call: KernelCall | LoopCall) -> Compute | None:
    """Return the node of a call's root if it is not pointwise."""
    node = call.nodes[0] if isinstance(call, KernelCall) and pointwise_body(call.kernel.root) is None else None
    return node if isinstance(node, Compute) else None


def _count_waits(nodes: Sequence[Compute | LoweredLoop], waits: Iterable[Leaf]) -> dict[Compute | LoweredLoop, int]:
    """Return for each node, arguments before users, the number of the last of the leaves `waits`, from 1, that it
    depends on; 0 for none."""
    numbers = {leaf: n for n, leaf in enumerate(waits, 1)}
    levels: dict[Compute | LoweredLoop, int] = {}
    for node in nodes:
        sources = [producer(a)[0] for a in node.args]
        levels[node] = max((numbers.get(x, 0) if isinstance(x, Leaf) else levels[x] for x in sources), default=0)
    return levels


def _can_replace(leaf: Leaf, nodes: list[Compute | LoweredLoop]) -> bool:
    """Return whether a leaf may be overwritten by a kernel of these nodes: they read it, if at all, only at the element
    that they compute."""
    return all(reads_only_own_element(n, lambda a: storage(a) is leaf) for n in nodes)


def _mark_late(calls: Sequence[AnyCall], graph: Graph) -> list[AnyCall]:
    """Return the calls; kernels that the forward pass does not need are marked `is_late`."""
    role = graph.role
    return [
        replace(c, is_late=True) if isinstance(c, KernelCall) and all(role[n] != "forward" for n in c.nodes) else c
        for c in calls
    ]


def _is_work(n: Node) -> bool:
    return isinstance(n, LoweredLoop) or (isinstance(n, Compute) and not is_view(n.template))


def _lower_group(
    nodes: list[Compute | LoweredLoop],
    needed: set[Tensor],
    home: dict[Tensor, Leaf],
    non_temporal: set[Tensor],
    options: PlanOptions,
) -> KernelCall | LoopCall:
    if isinstance(nodes[0], LoweredLoop):
        return _loop_call(nodes[0], options)
    return kernel_call([n for n in nodes if isinstance(n, Compute)], needed, home, non_temporal)


def _loop_call(loop: LoweredLoop, options: PlanOptions) -> LoopCall:
    """Return the loop with the plans of its steps and the calls of its initial pieces."""
    before = []
    members = {j for s in loop.segments for j, _ in s.targets}
    for j, t, slots in loop.initial:
        tensors = (*(loop.args[k] for k in slots), Item(loop, j))
        last = len(slots)
        stage = Stage(t, tuple(("buffer", i) for i in range(last)), (last,))
        kernel = Kernel((stage,), tuple(KernelBuffer(x.dtype, x.shape) for x in tensors))
        node = Compute(t, tensors[:-1])
        before.append(slice_call(KernelCall(kernel, tensors, (False,) * last + (True,), (node,))))
        members.add(j)
    results = tuple(Item(loop, j) for j in sorted(members))
    written = (False,) * len(loop.args) + (True,) * len(results)
    plans = [_step_plan(loop, s, options) for s in loop.segments]
    return LoopCall(loop, before, plans, (*loop.args, *results), written, (loop,))


def _step_plan(loop: LoweredLoop, segment: LoopSegment, options: PlanOptions) -> Plan:
    """Return the plan of a segment's step; its kernels mark which of their buffers are loop-invariant."""
    # A kernel that takes sums would pack loop-invariant operands in every step.
    plan = fuse(
        segment.body,
        None,
        options.target,
        on_lines=False,
        cost=options.cost,
        most=options.most,
        without={EPILOGUE_SUMS, *options.without},
        decisions=options.decisions,
    )
    if segment.idle:
        plan = replace(plan, calls=drop_idle(plan, segment.idle))
    if segment.steps >= MIN_STEPS_TO_HOIST or segment.rows:
        plan = mark_invariant(plan, loop.invariant_inputs(segment))
    return plan
