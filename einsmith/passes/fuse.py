"""Tensors become stages of kernels; kernels get an order.

before: A = sum[k](X[i,k]*W[k,j]);  B = A[i,j] + b[j];  C = where(B[i,j] <= 0, 0, B[i,j])
after:  one kernel of three stages, A and B in registers

A pointwise tensor joins the kernel of a tensor that it reads at the identity index, if the group stays convex: nothing
outside lies between two members. What the checks need is grouped apart, and a read at an index that comes from a tensor
follows the checks of that index. Updates write into their parameter's memory, after every other read of it and after
the checks; where no order allows that they are computed aside and copied.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from einsmith.errors import VerifyError
from einsmith.expr.kernel import Buffer, Kernel, Rows, Stage
from einsmith.expr.linear import Linear, linear
from einsmith.expr.loop import Loop, Segment
from einsmith.expr.nodes import (
    Apply,
    Axis,
    Compute,
    Graph,
    Item,
    Leaf,
    Node,
    Piece,
    Read,
    Reduce,
    Template,
    Tensor,
    postorder,
    reads,
    size,
    template,
)
from einsmith.passes.guards import has_read
from einsmith.passes.inline import pointwise_body
from einsmith.passes.rows import Part, clusters, join
from einsmith.passes.slices import sliced
from einsmith.passes.views import is_view, producer, storage
from einsmith.target.facts import Target

_BUFFERS = 24  # pointers of one kernel
_STAGES = 12
REPAID = 4
"""Steps of a loop from which on something is worth making once before it."""


@dataclass
class Call:
    """A kernel and the tensors in its buffers. `written[n]` tells whether buffer n is stored to; it begins `offsets[n]`
    bytes into its tensor (none: all begin where these do)."""

    kernel: Kernel | Rows
    tensors: tuple[Tensor, ...]
    written: tuple[bool, ...]
    nodes: tuple[Compute, ...]
    offsets: tuple[int, ...] = ()


@dataclass
class LoopCall:
    """A loop: the calls that fill its members' initial pieces, then the plan of a step for each segment. `tensors`,
    `written`, `nodes` are those of a Call, seen from outside."""

    loop: Loop
    before: list[Call]
    plans: list[Plan]
    tensors: tuple[Tensor, ...]
    written: tuple[bool, ...]
    nodes: tuple[Loop]


@dataclass
class Plan:
    """Kernels in order. `home` maps an update's tensor to the leaf whose memory it is written to. `checks` and `loss`
    tell after which call a check can be evaluated: (call number, tensor, message)."""

    graph: Graph
    calls: list[Call | LoopCall]
    home: dict[Tensor, Leaf]
    checks: list[tuple[int, Tensor, str]]
    first_write: int

    def kernel_calls(self) -> Iterator[tuple[int, Call, int]]:
        """(number in `calls`, call, how often it runs at most) of every kernel, those of loops in the order in which a
        program holds them."""
        for i, call in enumerate(self.calls):
            if isinstance(call, Call):
                yield i, call, 1
                continue
            yield from ((i, c, 1) for c in call.before)
            for segment, plan in zip(call.loop.segments, call.plans, strict=True):
                yield from ((i, c, turns * segment.steps) for _, c, turns in plan.kernel_calls())


@dataclass
class _Group:
    nodes: list[Compute | Loop] = field(default_factory=list)
    before: int = 0  # bitset of the groups that this one needs, directly or not


def _maker(t: Tensor) -> Compute | Loop | None:
    """The node that computes a tensor's storage; None for the graph's inputs."""
    p, _ = producer(t)
    return None if isinstance(p, Leaf) else p


def _made(t: Tensor) -> Compute | Loop:
    node = _maker(t)
    if node is None:
        raise VerifyError("an input of the graph stands where a computed tensor must")
    return node


def copy_of(t: Tensor) -> Compute:
    """A tensor with the same elements in memory of its own (the cast keeps it from being a view)."""
    index = tuple(Axis(d) for d in range(len(t.shape)))
    body = Apply("cast", (Read(0, index, t.dtype),), t.dtype)
    return Compute(template(t.shape, [(t.dtype, t.shape)], body), (t,))


def fuse(
    graph: Graph, finite: Tensor | None = None, target: Target | None = None, on_lines: bool = True
) -> Plan:
    """Groups, orders and lowers a graph to kernel calls. Writes into leaves come after `finite`, a tensor that the
    program checks before it commits anything. Kernels are joined by rows as suits the caches of `target`; results begin
    on a cache line, if `on_lines`."""
    target = target or Target()
    apart: set[Leaf] = set()
    while True:
        plan, stuck = _plan(graph, apart, finite, target, on_lines)
        if plan is not None:
            return plan
        if not stuck - apart:
            raise VerifyError("the updates of this graph cannot be ordered")
        apart |= stuck


def _reads_of(body_roots, slot: int) -> list[Read]:
    return [e for e in postorder(body_roots) if isinstance(e, Read) and e.slot == slot]


def _only_identity(node: Compute | Loop, pick) -> bool:
    """Whether every read of the arguments that `pick` accepts is, in a body without reductions, at the element that is
    being made."""
    slots = [s for s, a in enumerate(node.args) if pick(a)]
    if not slots:
        return True
    if isinstance(node, Loop):
        return False
    pieces = node.template.parts
    if node.template.is_scatter and len(pieces) == 2:
        start, added = pieces
        if start.domain != node.shape or any(e.slot in slots for body in added.bodies for e in reads(body)):
            return False
        pieces = (start,)
    elif node.template.is_scatter or any(isinstance(p.body, Reduce) for p in pieces):
        return False
    return all(node.args[s].shape == node.shape for s in slots) and all(
        _at_own(e, p) for p in pieces if isinstance(p, Piece) for s in slots for e in _reads_of(p.bodies, s)
    )


def _at_own(e: Read, p: Piece) -> bool:
    """Whether a piece reads the element that it makes."""
    for d, (i, o, s, n) in enumerate(zip(e.index, p.offset, p.step, p.extents, strict=True)):
        x = linear(i).without(Axis(d)) if n == 1 else linear(i)
        if x != Linear(o, {Axis(d): s} if n > 1 else {}):
            return False
    return True


def _needs_check(node: Compute | Loop) -> bool:
    """Whether the node, or one of the steps of a loop, reads or adds at an index that comes from a tensor."""
    if isinstance(node, Loop):
        inner = (n for s in node.segments for n in postorder(s.body.roots) if isinstance(n, (Compute, Loop)))
        return any(map(_needs_check, inner))

    def found(t: Template) -> bool:
        if t.is_scatter:
            return True
        return any(has_read(i) for p in t.parts for b in p.bodies for e in reads(b) for i in e.index)

    return node.template.memo("needs_check", found)


def _group(
    nodes: list[Compute | Loop], alone: set[Compute | Loop], early: set[Compute | Loop], gate: Compute | Loop | None
) -> tuple[list[_Group], dict[Compute | Loop, int]]:
    """Groups of nodes, some of them empty, and each node's group. `early`: what the checks are computed from, and
    themselves; `gate`: what decides whether anything is stored."""
    apart = alone | early | ({gate} if gate is not None else set())
    groups: list[_Group] = []
    of: dict[Compute | Loop, int] = {}
    users: dict[Compute | Loop, set[Compute | Loop]] = defaultdict(set)
    for node in nodes:
        for a in node.args:
            p, _ = producer(a)
            if not isinstance(p, Leaf):
                users[p].add(node)
    for node in nodes:
        needs: set[int] = set()
        for a in node.args:
            p, _ = producer(a)
            if not isinstance(p, Leaf):
                needs.add(of[p])
        best = None
        if isinstance(node, Compute) and pointwise_body(node.template) is not None and node not in alone:
            # What else reads a group must wait for all of it: the one that is read least is joined first.
            readers = {g: {u for n in groups[g].nodes for u in users[n]} - {node, *groups[g].nodes} for g in needs}
            for g in sorted(needs, key=lambda g: (len(readers[g]), -g)):
                group = groups[g]
                root = group.nodes[0]
                if isinstance(root, Loop) or root.shape != node.shape or len(group.nodes) >= _STAGES:
                    continue
                if root.template.is_scatter or any(n in alone for n in group.nodes):
                    continue
                if root in early and (node not in early or _needs_check(node)):
                    continue
                members: set[Compute | Loop | Leaf] = set(group.nodes)
                if not _only_identity(node, lambda a, m=members: producer(a)[0] in m):
                    continue
                if any(is_view(a.template) for a in node.args if isinstance(a, Compute) and producer(a)[0] in members):
                    continue
                if any(groups[h].before >> g & 1 for h in needs if h != g):
                    continue
                outside = {storage(a) for n in (*group.nodes, node) for a in n.args if producer(a)[0] not in members}
                if len(outside) + len(members) + 1 > _BUFFERS:
                    continue
                best = g
                break
        if best is None:
            best = len(groups)
            groups.append(_Group())
        group = groups[best]
        group.nodes.append(node)
        of[node] = best
        known = group.before
        for h in needs:
            if h != best:
                group.before |= groups[h].before | 1 << h
        for other in groups if len(group.nodes) > 1 and group.before != known else ():
            if other.before >> best & 1:
                other.before |= group.before
        if len(group.nodes) > 1 and isinstance(node, Compute):
            for h in sorted(needs - {best}):
                _take_in(groups, of, best, h, node, apart)
    return groups, of


def _take_in(
    groups: list[_Group], of: dict[Compute | Loop, int], g: int, h: int, node: Compute, apart: set[Compute | Loop]
) -> None:
    """Makes group h, of which `node`, the last of group g, reads results where it stands, a part of group g, if all of
    h is pointwise over the same box and neither needs the other. What both read is then read once.

    before: {v},  {m},  p = f(v, m) in v's group
    after:  {v, m, p}
    """
    ours, theirs = groups[g], groups[h]
    members = set(theirs.nodes)
    if any(not isinstance(n, Compute) or n in apart or n.shape != node.shape for n in theirs.nodes):
        return
    if any(n in apart for n in ours.nodes) or len(ours.nodes) + len(theirs.nodes) > _STAGES:
        return
    if any(pointwise_body(n.template) is None for n in (*ours.nodes, *members) if isinstance(n, Compute)):
        return
    # Read where it stands, so that a parameter may be updated in the kernel that reads it.
    if not all(_only_identity(n, lambda a: a.shape == node.shape) for n in members):
        return
    if not _only_identity(node, lambda a: producer(a)[0] in members):
        return
    if any(is_view(a.template) for a in node.args if isinstance(a, Compute) and producer(a)[0] in members):
        return
    # The node that has just joined made g need h; nothing else in between may.
    first = ours.nodes[:-1]
    before = 0
    for n in first:
        for a in n.args:
            p, _ = producer(a)
            if not isinstance(p, Leaf) and of[p] != g:
                before |= groups[of[p]].before | 1 << of[p]
    for a in node.args:
        p, _ = producer(a)
        if not isinstance(p, Leaf) and of[p] not in (g, h):
            before |= groups[of[p]].before | 1 << of[p]
    if (before | theirs.before) >> h & 1 or theirs.before >> g & 1 or before >> g & 1:
        return
    outside = {
        storage(a) for n in (*ours.nodes, *theirs.nodes) for a in n.args
        if producer(a)[0] not in members and of.get(producer(a)[0]) != g  # type: ignore[arg-type]
    }  # fmt: skip
    if len(outside) + len(ours.nodes) + len(theirs.nodes) > _BUFFERS:
        return
    ours.nodes[-1:] = [*theirs.nodes, node]
    theirs.nodes = []
    ours.before = before | theirs.before
    for n in members:
        of[n] = g
    for other in groups:
        if (other.before >> h | other.before >> g) & 1:
            other.before = (other.before & ~(1 << h)) | 1 << g | ours.before


def _plan(
    graph: Graph, apart: set[Leaf], finite: Tensor | None, target: Target, on_lines: bool
) -> tuple[Plan | None, set[Leaf]]:
    updates: list[tuple[Leaf, Tensor]] = []
    alone: set[Compute | Loop] = set()
    taken: set[Tensor] = set()
    for p, t in graph.updates:
        if isinstance(producer(t)[0], (Leaf, Loop)) or storage(t) is not t or t in graph.outputs:
            t = copy_of(t)
        if p in apart:
            t = copy_of(t)
        while t in taken:
            t = copy_of(t)
        if p in apart:
            alone.add(_made(t))
        taken.add(t)
        updates.append((p, t))
    stored = {p for p, _ in updates}
    outputs = tuple(copy_of(t) if producer(t)[0] in stored else t for t in graph.outputs)  # the old value
    graph = Graph(graph.inputs, outputs, tuple(updates), graph.checks)
    nodes = [n for n in postorder(graph.roots) if _is_work(n)]
    early = {n for n in postorder(t for t, _ in graph.checks) if isinstance(n, (Compute, Loop))}
    groups, of = _group(nodes, alone, early, _maker(finite) if finite is not None else None)

    after: dict[int, set[int]] = defaultdict(set)  # group -> groups that it needs
    readers: dict[Leaf, set[int]] = defaultdict(set)
    for g, group in enumerate(groups):
        for n in group.nodes:
            for a in n.args:
                source, _ = producer(a)
                if isinstance(source, Leaf):
                    readers[source].add(g)
                elif of[_made(a)] != g:
                    after[g].add(of[_made(a)])
    checking = [of[_made(t)] for t, _ in graph.checks]
    for g, group in enumerate(groups):
        for h in checking if any(map(_needs_check, group.nodes)) else ():
            if h == g or groups[h].before >> g & 1:
                break  # the checks of this read come before those that need it
            after[g].add(h)
    gated = [t for t, _ in graph.checks] + ([finite] if finite is not None else [])
    gates = {of[m] for m in map(_maker, gated) if m is not None}
    stuck: set[Leaf] = set()
    writers: dict[int, list[Leaf]] = defaultdict(list)
    for home_of, t in updates:
        g = of[_made(t)]
        writers[g].append(home_of)
        if g in gates or any(not _only_identity(n, lambda a, p=home_of: storage(a) is p) for n in groups[g].nodes):
            stuck.add(home_of)
        after[g] |= (readers[home_of] | gates) - {g}
    if stuck - apart:
        return None, stuck
    order = _order(len(groups), after)
    if order is None:
        around = _in_circles(len(groups), after)
        return None, {p for p, t in updates if of[_made(t)] in around}
    order = [g for g in order if groups[g].nodes]
    home = {t: p for p, t in updates}
    external = set(graph.outputs) | {t for t, _ in graph.checks} | ({finite} if finite is not None else set())
    kept = {storage(t) for t in external} | set(home)
    needed = set(kept)
    for g, group in enumerate(groups):
        for n in group.nodes:
            needed |= {storage(a) for a in n.args if (m := _maker(a)) is not None and of[m] != g}
    large = target.l3 // 2 if on_lines else None
    far = {t for t in needed - set(home) if large is not None and size(t.shape) * t.dtype.itemsize >= large}
    singles = [_call_of(groups[g].nodes, needed, home, far, target) for g in order]
    place = {g: i for i, g in enumerate(order)}
    # What a check needs, and what writes, stays a kernel of its own: their places in the order are decided here.
    fixed = {place[g] for g in (*checking, *writers)}
    fixed |= {i for i, c in enumerate(singles) if isinstance(c, LoopCall) or early & set(c.nodes)}
    needs = {place[g]: {place[h] for h in after[g]} for g in order}
    calls, rank = _by_rows(singles, needs, fixed, kept, target)
    calls = [_sliced(c) if isinstance(c, Call) else c for c in calls]
    checks = [(rank[place[of[_made(t)]]], t, m) for t, m in graph.checks]
    first = min((rank[place[g]] for g in writers), default=len(calls))
    return Plan(graph, calls, home, checks, first), set()


def _is_work(n: Node) -> bool:
    return isinstance(n, Loop) or (isinstance(n, Compute) and not is_view(n.template))


def _by_rows(
    singles: list[Call | LoopCall], needs: dict[int, set[int]], apart: set[int], kept: set[Tensor], target: Target
) -> tuple[list[Call | LoopCall], dict[int, int]]:
    """The calls with those that share their rows joined, and which call each of `singles` has become."""
    parts = [Part(c.kernel if isinstance(c, Call) else None, c.tensors, c.written) for c in singles]
    calls: list[Call | LoopCall] = []
    rank: dict[int, int] = {}
    for members in clusters(parts, needs, apart, target):
        rank |= dict.fromkeys(members, len(calls))
        call = singles[members[0]]
        if len(members) > 1:
            others = {s for i, p in enumerate(parts) if i not in members for s in p.read}
            joined = join([parts[i] for i in members], kept | others, target)
            call = Call(*joined, tuple(n for i in members for n in singles[i].nodes))  # type: ignore[misc]
        calls.append(call)
    return calls, rank


def _order(n: int, after: dict[int, set[int]]) -> list[int] | None:
    """A topological order that keeps the groups' own order where it can; None where there is a cycle."""
    users: dict[int, list[int]] = defaultdict(list)
    missing = [0] * n
    for g, needs in after.items():
        missing[g] = len(needs)
        for h in needs:
            users[h].append(g)
    ready = [g for g in range(n) if not missing[g]]
    heapq.heapify(ready)
    out = []
    while ready:
        g = heapq.heappop(ready)
        out.append(g)
        for u in users[g]:
            missing[u] -= 1
            if not missing[u]:
                heapq.heappush(ready, u)
    return out if len(out) == n else None


def _in_circles(n: int, after: dict[int, set[int]]) -> set[int]:
    """The groups that need themselves, through others: what is left when those that need nothing that is left, and
    those that nothing left needs, are taken away."""
    left = set(range(n))
    needs = {g: set(after.get(g, ())) for g in left}
    users: dict[int, set[int]] = {g: set() for g in left}
    for g, hs in needs.items():
        for h in hs:
            users[h].add(g)
    for edges, back in ((needs, users), (users, needs)):
        todo = [g for g in left if not edges[g]]
        while todo:
            g = todo.pop()
            left.discard(g)
            for u in back[g]:
                edges[u].discard(g)
                if not edges[u] and u in left:
                    todo.append(u)
    return left


def _call_of(
    nodes: list[Compute | Loop], needed: set[Tensor], home: dict[Tensor, Leaf], far: set[Tensor], target: Target
) -> Call | LoopCall:
    first = nodes[0]
    if isinstance(first, Loop):
        return _loop_call(first, target)
    return _call(nodes, needed, home, far)  # type: ignore[arg-type]


def _loop_call(loop: Loop, target: Target) -> LoopCall:
    """The loop with the plans of its steps, and the calls of its initial pieces."""
    before = []
    members = {j for s in loop.segments for j, _ in s.targets}
    for j, t, slots in loop.initial:
        tensors = (*(loop.args[k] for k in slots), Item(loop, j))
        last = len(slots)
        stage = Stage(t, tuple(("buffer", i) for i in range(last)), (last,))
        kernel = Kernel((stage,), tuple(Buffer(x.dtype, x.shape) for x in tensors))
        node = Compute(t, tensors[:-1])
        before.append(_sliced(Call(kernel, tensors, (False,) * last + (True,), (node,))))
        members.add(j)
    results = tuple(Item(loop, j) for j in sorted(members))
    written = (False,) * len(loop.args) + (True,) * len(results)
    plans = [_step_plan(s, target) for s in loop.segments]
    return LoopCall(loop, before, plans, (*loop.args, *results), written, (loop,))


def _sliced(call: Call) -> Call:
    """The call of a kernel that is given no more of its tensors than it touches (`passes.slices`)."""
    kernel, offsets = sliced(call.kernel)
    return replace(call, kernel=kernel, offsets=offsets)


def _step_plan(segment: Segment, target: Target) -> Plan:
    """The plan of a segment's step; its kernels know which of their buffers stay the same."""
    plan = fuse(segment.body, None, target, on_lines=False)
    if segment.idle:
        plan = replace(plan, calls=_without_idle(plan, segment.idle))
    same = {
        x for x, place in zip(segment.body.inputs, segment.places, strict=True)
        if place.kind == "argument" and place.first is None
    }  # fmt: skip
    if segment.steps >= REPAID or segment.rows:
        for call in plan.calls:
            if isinstance(call, Call) and isinstance(call.kernel, Kernel):
                fixed = tuple(n for n, t in enumerate(call.tensors) if storage(t) in same)
                call.kernel = Kernel(call.kernel.stages, call.kernel.buffers, fixed)
    return plan


def _without_idle(plan: Plan, idle: tuple[int, ...]) -> list[Call | LoopCall]:
    """The calls of a plan without those that only the idle outputs need."""
    needed = {storage(t) for n, t in enumerate(plan.graph.outputs) if n not in idle} | set(plan.home)
    kept: list[Call | LoopCall] = []
    for call in reversed(plan.calls):
        if any(w and storage(t) in needed for t, w in zip(call.tensors, call.written, strict=True)):
            kept.append(call)
            needed |= {storage(t) for t, w in zip(call.tensors, call.written, strict=True) if not w}
    return kept[::-1]


def _call(nodes: list[Compute], needed: set[Tensor], home: dict[Tensor, Leaf], far: set[Tensor]) -> Call:
    """The kernel of a group: arguments first, in order of appearance, then the stored results; those in `far` are too
    large for the caches. A scatter that starts from the old value of the parameter that it is stored to has one buffer
    for both."""
    place: dict[Compute, int] = {n: i for i, n in enumerate(nodes)}
    tensors: list[Tensor] = []
    written: list[bool] = []

    def buffer(t: Tensor, write: bool) -> int:
        for i, (other, w) in enumerate(zip(tensors, written, strict=True)):
            if other is t and w == write:
                return i
        tensors.append(t)
        written.append(write)
        return len(tensors) - 1

    stages = []
    for n in nodes:
        args: list[tuple] = []
        for a in n.args:
            p, member = producer(a)
            if n.template.is_scatter and n in home and storage(a) is home[n]:
                args.append(("buffer", buffer(n, True)))
            else:
                args.append(("stage", place[p], member) if p in place else ("buffer", buffer(a, False)))
        count = len(n.template.dtypes)
        results: list[Tensor] = [n] if count == 1 else [Item(n, m) for m in range(count)]
        outputs = tuple(buffer(r, True) if r in needed else None for r in results)
        stages.append(Stage(n.template, tuple(args), outputs))
    if nodes[0].template.is_scatter:
        far = set()  # it reads what it has stored
    buffers = tuple(Buffer(t.dtype, t.shape, w and t in far) for t, w in zip(tensors, written, strict=True))
    return Call(Kernel(tuple(stages), buffers), tuple(tensors), tuple(written), tuple(nodes))
