"""Lower a graph to kernels in an order: tensors become stages of kernels.

before: A = sum[k](X[i,k]*W[k,j]);  B = A[i,j] + b[j];  C = where(B[i,j] <= 0, 0, B[i,j])
after:  one kernel of three stages, A and B in registers

`fusion` decides which tensors share a kernel, and `row_fusion` joins kernels that share their rows. The operands of
runtime checks are grouped separately, and a read at a data-dependent index follows the check of that index. Updates are
written into their parameter's memory, after every other read of it and after the checks. If no order allows that, the
update is computed into separate memory and copied.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from einsmith.base.errors import VerifyError
from einsmith.base.sizes import show_size
from einsmith.cost.facts import CPU, Target
from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.interned import Node
from einsmith.ir.loop import LoopSegment, LoweredLoop
from einsmith.ir.nodes import (
    Apply,
    Compute,
    Const,
    Graph,
    Item,
    Leaf,
    Piece,
    Reduce,
    Tensor,
    nbytes,
    postorder,
    read_whole,
    received,
    template,
)
from einsmith.ir.views import is_view, producer, storage
from einsmith.schedule.fusion import fusion_groups, maker, needs_check, reads_only_own_element
from einsmith.schedule.gradients_apart import compute_apart
from einsmith.schedule.graph_decisions import cut_nodes
from einsmith.schedule.kernel import Kernel, KernelBuffer, Rows, Stage
from einsmith.schedule.order import find_cycles, memory_greedy_order
from einsmith.schedule.plan import Cost, KernelCall, LoopCall, Plan
from einsmith.schedule.residency import calls_seconds, plan_seconds
from einsmith.schedule.row_clusters import (
    MAX_STORED_BYTES,
    UNJOINED,
    Refusal,
    clusters,
    freed,
    longest_time,
    smallest_unstored,
)
from einsmith.schedule.row_fusion import RowPart, common_rows, join
from einsmith.schedule.schedule import Copy, GroupSchedule, Refine, keep_all
from einsmith.schedule.slices import slice_kernel
from einsmith.schedule.sum_calls import SumJoiner, Unfused

MAX_STREAMED_TIME = 0.95
"""Largest predicted time of a row-block fusion with kernels that reuse operands, as a fraction of that of its parts,
whose prediction is the more certain one."""
MIN_STEPS_TO_HOIST = 4
"""Fewest steps of a loop for which loop-invariant work is moved in front of it."""


def _require_maker(t: Tensor) -> Compute | LoweredLoop:
    """Return the node that computes a tensor's storage; raise VerifyError for an input of the graph."""
    node = maker(t)
    if node is None:
        raise VerifyError("a computed tensor is needed here, not an input of the graph")
    return node


def copy_of(t: Tensor) -> Compute:
    """Return a tensor with the same elements in separate memory (the cast keeps it from being a view)."""
    body = Apply("cast", (read_whole(0, t.shape, t.dtype),), t.dtype)
    return Compute(template(t.shape, [(t.dtype, t.shape)], body), (t,))


class PlanOptions(NamedTuple):
    """How a graph and the steps of its loops are planned.

    target: the machine, whose caches row fusion is fitted to. on_lines: whether results begin on a cache line.
    cost: predicts kernels; long rows are fused, and sums joined, where that takes less time by it. most: most bytes of
    a result that is stored, where it need not be, because that takes less time. repeats: whether the backward pass
    repeats products of the forward pass. takes_sums: whether kernels may take sums of their results. decisions: what
    is decided otherwise than by `cost`, in words; cut: the nodes whose results pass through memory by decision.
    """

    target: Target
    on_lines: bool
    cost: Cost | None
    most: int
    repeats: bool
    takes_sums: bool
    decisions: frozenset[str]
    cut: frozenset[Node]


def fuse(
    graph: Graph,
    finite: Tensor | None = None,
    target: Target | None = None,
    on_lines: bool = True,
    refine: Refine = keep_all,
    cost: Cost | None = None,
    most: int = MAX_STORED_BYTES,
    repeats: bool = False,
    takes_sums: bool = True,
    decisions: frozenset[str] = frozenset(),
) -> Plan:
    """Group, order and lower a graph to kernel calls.

    Args:
        graph: the graph.
        finite: a tensor that the program checks before it commits anything; writes into leaves come after it.
        target: the machine, whose caches row fusion is fitted to.
        on_lines: whether results begin on a cache line.
        refine: may change the schedule, in which each node occurs once, before it is ordered.
        cost: predicts kernels; long rows are fused where that takes less time by it.
        most: most bytes of a result that is stored, where it need not be, because that takes less time.
        repeats: whether the backward pass repeats products of the forward pass (`repeat_products`): no kernel that
            reuses operands then belongs to both.
        takes_sums: whether kernels may take sums of their results (`sum_calls`).
        decisions: what is decided otherwise than by `cost` (`graph_decisions`).

    Raises:
        VerifyError: if the updates of the graph cannot be ordered.
    """
    target = target or Target()
    cut = cut_nodes(graph, decisions)
    options = PlanOptions(target, on_lines, cost, most, repeats, takes_sums, decisions, cut)

    def plan_with(apart: Collection[Compute]) -> Plan:
        copied: set[Leaf] = set()
        while True:
            plan, stuck = _plan(graph, copied, finite, refine, apart, options)
            if plan is not None:
                return plan
            if not stuck - copied:
                raise VerifyError("the updates of this graph cannot be ordered")
            copied |= stuck

    return (
        plan_with(()) if cost is None else compute_apart(plan_with, lambda plan: plan_seconds(plan, cost, target), most)
    )


def _plan(
    graph: Graph,
    copied: set[Leaf],
    finite: Tensor | None,
    refine: Refine,
    apart: Collection[Compute],
    options: PlanOptions,
) -> tuple[Plan | None, set[Leaf]]:
    """Return (the plan; None if the updates have no order, leaves whose updates have to be copied).

    copied: leaves whose updates are computed into separate memory and copied. apart: nodes that no pointwise node is
    fused with. The other arguments are those of `fuse`.
    """
    target = options.target
    updates: list[tuple[Leaf, Tensor]] = []
    returned = set(graph.outputs)
    alone: set[Compute | LoweredLoop] = set(apart)
    update_tensors: set[Tensor] = set()
    for p, t in graph.updates:
        if isinstance(producer(t)[0], (Leaf, LoweredLoop)) or storage(t) is not t or t in returned:
            t = copy_of(t)
        if p in copied:
            t = copy_of(t)
        while t in update_tensors:
            t = copy_of(t)
        if p in copied:
            alone.add(_require_maker(t))
        update_tensors.add(t)
        updates.append((p, t))
    stored = {p for p, _ in updates}
    outputs = tuple(copy_of(t) if producer(t)[0] in stored else t for t in graph.outputs)  # the old value
    graph = Graph(graph.inputs, outputs, tuple(updates), graph.checks, graph.gradients)
    nodes = [n for n in postorder(graph.roots) if _is_work(n)]
    early = {n for n in postorder(t for t, _ in graph.checks) if isinstance(n, (Compute, LoweredLoop))}
    home = {t: p for p, t in updates}
    stores = {_require_maker(t) for t in home}
    waits = received(graph.inputs)
    levels = _count_waits(nodes, waits) if waits else {}
    gate = maker(finite) if finite is not None else None
    groups, of = fusion_groups(nodes, alone, early, gate, stores, levels, options.cut)
    external = set(graph.outputs) | {t for t, _ in graph.checks} | ({finite} if finite is not None else set())
    kept = {storage(t) for t in external} | set(home)
    schedule = GroupSchedule(groups, of)
    refine(schedule)
    schedule.drop_unread(kept)

    written = dict(updates)
    sent = set(waits.values())
    after: dict[int, set[int]] = defaultdict(set)  # group -> groups that it needs
    readers: dict[Leaf, set[int]] = defaultdict(set)  # leaf -> groups that read it
    operands = [schedule.operands(g) for g in range(len(groups))]
    for g, args in enumerate(operands):
        for source, _ in map(producer, args):
            if isinstance(source, Leaf):
                readers[source].add(g)
                if source.after is not None:  # updates from which another thread stores it, and those before it
                    after[g] |= {of[_require_maker(written[s])] for x, s in waits.items() if x.id <= source.id}
            else:
                after[g].add(of[source])
    checking = [of[_require_maker(t)] for t, _ in graph.checks]
    for g in range(len(groups)):
        for h in checking if any(map(needs_check, schedule.nodes(g))) else ():
            if h == g or groups[h].before >> g & 1:
                break  # the remaining checks come later than this read
            after[g].add(h)
    gated = [t for t, _ in graph.checks] + ([finite] if finite is not None else [])
    gates = {of[m] for m in map(maker, gated) if m is not None}
    stuck: set[Leaf] = set()  # leaves whose updates have to be copied
    writers: dict[int, list[Leaf]] = defaultdict(list)  # group -> leaves that it writes into
    for leaf, t in updates:
        g = of[_require_maker(t)]
        writers[g].append(leaf)
        if leaf in sent:  # others wait for it, which the gates may follow
            continue
        if g in gates or not _can_replace(leaf, schedule.nodes(g)):
            stuck.add(leaf)
        after[g] |= (readers[leaf] | gates) - {g}
    if stuck - copied:
        return None, stuck
    read = {storage(a) for args in operands for a in args if maker(a) is not None}
    needed = kept | read
    sizes = {t: nbytes(t) for t in read - kept}
    produced = [0] * len(groups)
    for t, n in sizes.items():
        produced[of[_require_maker(t)]] += n
    order = memory_greedy_order(after, produced, [set(map(storage, args)) for args in operands], sizes)
    if order is None:
        cyclic = find_cycles(len(groups), after)
        return None, {p for p, t in updates if of[_require_maker(t)] in cyclic}
    order = [g for g in order if schedule.groups[g]]
    non_temporal: set[Tensor] = set()
    if options.on_lines:
        results = needed - set(map(storage, graph.inputs))
        moved = [sum(map(nbytes, args)) for args in operands]
        for t in results:
            moved[of[_require_maker(t)]] += nbytes(t)
        unread = {t for t in results - read if moved[of[_require_maker(t)]] > target.last_level}
        non_temporal = {t for t in results - set(home) if _is_non_temporal(t, t in unread, target)}
    singles = [_lower_group(schedule.groups[g], needed, home, non_temporal, options) for g in order]
    place = {g: i for i, g in enumerate(order)}
    # Operands of checks, and updates, are not fused by rows: their positions in the order are decided here.
    fixed = {place[g] for g in checking}
    fixed |= {i for i, c in enumerate(singles) if isinstance(c, LoopCall) or early & set(c.nodes)}
    unfused = Unfused(fixed, {place[g] for g in writers} - fixed, {place[g] for g in gates})
    needs = {place[g]: {place[h] for h in after[g]} for g in order}
    parts = _row_parts(singles, graph, options.repeats)
    sums = {
        place[g]: c.copies[0].node
        for g in writers
        if isinstance(c := singles[place[g]], KernelCall)
        and isinstance(c.copies[0].node, Compute)
        and pointwise_body(c.kernel.root) is None
    }
    unstored = freed(parts, needs, unfused.all, sums, kept, target)
    roots = frozenset(node for i, node in sums.items() if not unstored.isdisjoint(parts[i].operands))

    calls, rank, refusals = _fuse_rows(singles, parts, needs, unfused, kept, options)
    checks = [(rank[place[of[_require_maker(t)]]], t, m) for t, m in graph.checks]
    first = min((rank[place[g]] for g, leaves in writers.items() if sent.isdisjoint(leaves)), default=len(calls))
    plan = Plan(graph, calls, home, checks, first, apart=roots, refusals=refusals)
    return replace(plan, decisions=options.decisions), set()


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


def _row_parts(calls: Sequence[KernelCall | LoopCall], graph: Graph, repeats: bool) -> list[RowPart]:
    """Return the calls as row fusion sees them."""
    role = graph.role

    def kernel_of(c: KernelCall | LoopCall) -> Kernel | None:
        return c.kernel if isinstance(c, KernelCall) and not isinstance(c.kernel, Rows) else None

    late = [repeats and not any(role[n] == "forward" for n in c.nodes) for c in calls]
    return [RowPart(kernel_of(c), c.tensors, c.written, x) for c, x in zip(calls, late, strict=True)]


def _is_work(n: Node) -> bool:
    return isinstance(n, LoweredLoop) or (isinstance(n, Compute) and not is_view(n.template))


def _fuse_rows(
    singles: list[KernelCall | LoopCall],
    parts: Sequence[RowPart],
    needs: dict[int, set[int]],
    unfused: Unfused,
    kept: set[Tensor],
    options: PlanOptions,
) -> tuple[list[KernelCall | LoopCall], dict[int, int], dict[Tensor, Refusal]]:
    """Return (the calls after row fusion, for each of `singles` the index of the call that contains it, the reason for
    which each result is stored that a fused kernel might use up)."""
    target, cost = options.target, options.cost
    readers = Counter(s for p in parts for s in set(p.operands))
    stepped = {storage(t) for c in singles if isinstance(c, LoopCall) for t in c.tensors}
    refusals: dict[Tensor, Refusal] = {}
    cut = {t for p in parts for t in p.results if maker(t) in options.cut} if options.cut else set()

    @cache
    def join_members(*members: int) -> KernelCall:
        kernel_calls = [c for c in (singles[i] for i in members) if isinstance(c, KernelCall)]
        if len(kernel_calls) == 1:
            return _slice(kernel_calls[0])
        own = Counter(s for i in members for s in set(parts[i].operands))
        results = {t for i in members for t in parts[i].results}
        outside = {t for t in results if t in kept or readers[t] > own[t]}
        whole = join([parts[i] for i in members], outside, target)
        return _slice(KernelCall(*whole, tuple(c for x in kernel_calls for c in x.copies), parts=tuple(kernel_calls)))

    def pays(members: Sequence[int]) -> bool:
        """Return whether kernels take less time fused. They do if L1 holds a row. On a longer row, the stages after a
        reduction wait for it, while separate kernels need not; but separate kernels read operands from beyond the
        last-level cache once each. Rows of tensors that a loop steps through grow with the number of steps, which must
        not affect the decision, so they are always fused. Kernels that reuse their operands are fused only for results
        that take much of the last-level cache, are not stored, and exceed what is: a chain of reductions, not a
        network's layers."""
        whole = join_members(*members)
        kernel = whole.kernel
        if not isinstance(kernel, Rows):
            return True
        reuses = any(parts[n].kernel.reuses for n in members)
        if not reuses:
            if cost is None or kernel.row_bytes <= target.l1:
                return True
            if stepped.intersection(map(storage, whole.tensors)):
                return True
            apart = [join_members(n) for n in members]
            whole_seconds = calls_seconds([whole], cost, target, whole.tensors)
            return whole_seconds < calls_seconds(apart, cost, target, whole.tensors)
        if all(b.nbytes <= smallest_unstored(target) for b in kernel.local):
            return False
        if (passed := sum(map(nbytes, whole.tensors))) > (used_up := sum(b.nbytes for b in kernel.local)):
            taken = f"take {show_size(passed)}, more than the {show_size(used_up)} that it uses up"
            refuse(members, Refusal(f"the fused kernel's operands and results {taken}"))
            return False
        if cost is None:
            return True
        ratio = longest_time(map(nbytes, kernel.local), options.most, MAX_STREAMED_TIME)
        fused, separate = cost(kernel, target), separate_seconds(members, cost)
        if fused < ratio * separate:
            return True
        refuse(members, Refusal("storing it is predicted to be faster", fused, separate))
        return False

    def refuse(members: Sequence[int], refusal: Refusal) -> None:
        """Record the reason for which results of kernels are stored, unless one is known."""
        for t in (t for n in members for t in parts[n].results):
            if refusals.get(t) is UNJOINED:
                refusals[t] = refusal

    def separate_seconds(members: Sequence[int], cost: Cost) -> float:
        """Return the predicted seconds of kernels that reuse operands, each alone, and of the others, fused if they
        have common rows."""
        alone = [n for n in members if parts[n].kernel.reuses]
        rest = [n for n in members if n not in alone]
        if not alone or not rest or not common_rows([parts[n] for n in rest], target)[0]:
            alone, rest = [*members], []
        groups = [[n] for n in alone] + ([rest] if rest else [])
        return sum([cost(join_members(*group).kernel, target) for group in groups])

    def call_of(members: Sequence[int]) -> KernelCall | LoopCall:
        first = singles[members[0]]
        return first if isinstance(first, LoopCall) else join_members(*members)

    found = [*map(tuple, clusters(parts, needs, unfused.all, kept, target, pays, refusals, cut))]
    joined: dict[tuple[int, ...], KernelCall] = {}
    if cost is not None and options.takes_sums and target.backend == CPU:
        joiner = SumJoiner(found, singles, call_of, needs, unfused, kept, target, cost, options.cut)
        found, joined = joiner.run()
    calls: list[KernelCall | LoopCall] = []
    rank: dict[int, int] = {}
    for members in found:
        rank |= dict.fromkeys(members, len(calls))
        calls.append(_slice(joined[members]) if members in joined else call_of(members))
    stored = {t for c in calls for t in c.tensors} - kept
    refusals = {t: refusal for t, refusal in refusals.items() if t in stored}
    return calls, rank, refusals


def _is_non_temporal(t: Tensor, unread: bool, target: Target) -> bool:
    """Return whether a result is stored with non-temporal stores, because no later kernel would find it in a cache, or
    because the store is faster. The limit is half of L3; a quarter for sums with constant pieces between them, which
    take longer to store than to compute; an eighth if the result is `unread`: no kernel reads it, and its own kernel
    moves more bytes than L3 holds, so that L3 keeps operands instead."""
    node = maker(t)
    bodies = [p.body for p in node.template.parts if isinstance(p, Piece)] if isinstance(node, Compute) else []
    sparse = any(isinstance(x, Const) for x in bodies) and any(isinstance(x, Reduce) for x in bodies)
    return nbytes(t) >= target.last_level // (8 if unread else 4 if sparse else 2)


def _lower_group(
    copies: list[Copy],
    needed: set[Tensor],
    home: dict[Tensor, Leaf],
    non_temporal: set[Tensor],
    options: PlanOptions,
) -> KernelCall | LoopCall:
    first = copies[0].node
    if isinstance(first, LoweredLoop):
        return _loop_call(first, options)
    return kernel_call(copies, needed, home, non_temporal)


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
        before.append(_slice(KernelCall(kernel, tensors, (False,) * last + (True,), (Copy(node),))))
        members.add(j)
    results = tuple(Item(loop, j) for j in sorted(members))
    written = (False,) * len(loop.args) + (True,) * len(results)
    plans = [_step_plan(loop, s, options) for s in loop.segments]
    return LoopCall(loop, before, plans, (*loop.args, *results), written, (loop,))


def _slice(call: KernelCall) -> KernelCall:
    """Return the call with each buffer narrowed to the part of its tensor that the kernel touches
    (`schedule.slices`)."""
    kernel, offsets = slice_kernel(call.kernel)
    return replace(call, kernel=kernel, offsets=offsets)


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
        takes_sums=False,
        decisions=options.decisions,
    )
    if segment.idle:
        plan = replace(plan, calls=_drop_idle(plan, segment.idle))
    if segment.steps >= MIN_STEPS_TO_HOIST or segment.rows:
        plan = mark_invariant(plan, loop.invariant_inputs(segment))
    return plan


def mark_invariant(plan: Plan, same: Collection[Tensor]) -> Plan:
    """Return a plan that is run many times, whose kernels mark which of their buffers hold tensors of `same`, whose
    values stay."""
    calls = list(plan.calls)
    for i, call in enumerate(calls):
        if isinstance(call, KernelCall) and not isinstance(call.kernel, Rows):
            fixed = tuple(n for n, t in enumerate(call.tensors) if storage(t) in same)
            calls[i] = replace(call, kernel=Kernel(call.kernel.stages, call.kernel.buffers, fixed))
    return replace(plan, calls=calls)


def _drop_idle(plan: Plan, idle: tuple[int, ...]) -> list[KernelCall | LoopCall]:
    """Return the calls of a plan without those that only idle outputs need."""
    needed = {storage(t) for n, t in enumerate(plan.graph.outputs) if n not in idle} | set(plan.home)
    kept: list[KernelCall | LoopCall] = []
    for call in reversed(plan.calls):
        if not needed.isdisjoint(call.results):
            kept.append(call)
            needed.update(call.operands)
    return kept[::-1]


def kernel_call(
    copies: Sequence[Copy], needed: Collection[Tensor], home: Mapping[Tensor, Leaf], non_temporal: Collection[Tensor]
) -> KernelCall:
    """Return the kernel of a group. Its buffers are the arguments in order of first use, then the stored results; those
    in `non_temporal` are too large for the caches. A scatter that starts from the old value of the parameter that it is
    stored to has one buffer for both."""
    nodes: list[Compute] = [c.node for c in copies]  # type: ignore[misc]
    place: dict[Compute, int] = {n: i for i, n in enumerate(nodes)}
    tensors: list[Tensor] = []
    written: list[bool] = []

    numbers: dict[tuple[Tensor, bool], int] = {}

    def buffer(t: Tensor, write: bool) -> int:
        if (t, write) not in numbers:
            numbers[t, write] = len(tensors)
            tensors.append(t)
            written.append(write)
        return numbers[t, write]

    stages = []
    for n, (_, number) in zip(nodes, copies, strict=True):
        args: list[tuple] = []
        for a in n.args:
            p, member = producer(a)
            if n.template.is_scatter and n in home and storage(a) is home[n]:
                args.append(("buffer", buffer(n, True)))
            else:
                args.append(("stage", place[p], member) if p in place else ("buffer", buffer(a, False)))
        count = len(n.template.dtypes)
        results: list[Tensor] = [n] if count == 1 else [Item(n, m) for m in range(count)]
        outputs = tuple(buffer(r, True) if r in needed and not number else None for r in results)
        stages.append(Stage(n.template, tuple(args), outputs))
    if nodes[0].template.is_scatter:
        non_temporal = set()  # it reads its own stores
    buffers = tuple(
        KernelBuffer(t.dtype, t.shape, w and t in non_temporal) for t, w in zip(tensors, written, strict=True)
    )
    return KernelCall(Kernel(tuple(stages), buffers), tuple(tensors), tuple(written), tuple(copies))
