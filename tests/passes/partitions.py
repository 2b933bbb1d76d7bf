"""The cheapest way to make kernels of a small graph: every legal one, priced by the cost model.

Readers make pointwise tensors again or read them, sums over the same points are one sum of several results or not, and
what is left is partitioned into kernels, and into kernels that share their rows. What may be one kernel is asked of the
functions that the passes ask; what pays is asked of the prices alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations
from math import inf

from einsmith.base.errors import CompileError
from einsmith.cost.facts import Target
from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.loop import LoweredLoop
from einsmith.ir.nodes import Compute, Graph, Item, Leaf, Tensor, postorder
from einsmith.ir.rebuild import exchanged, readers_of, whole_sum, with_args
from einsmith.ir.rewrite.inlining import inline_arguments
from einsmith.ir.views import is_view, storage
from einsmith.kernels.autoconfig import predicted
from einsmith.passes.algebra.horizontal_fusion import fuse_sums
from einsmith.passes.algebra.simplify import simplify
from einsmith.passes.context import PassContext
from einsmith.passes.pipeline import PASSES, run_passes
from einsmith.schedule.fusion import (
    MAX_STAGES,
    fits,
    maker,
    makers,
    needs_check,
    reads_in_place,
    reads_only_own_element,
)
from einsmith.schedule.kernel import Kernel
from einsmith.schedule.kernel_calls import kernel_call
from einsmith.schedule.plan import KernelCall, Plan
from einsmith.schedule.planner import fuse
from einsmith.schedule.row_fusion import MAX_MEMBERS, consistent_forms, join_forms, rows_of
from einsmith.schedule.slices import slice_kernel

VARIANTS = 64
"""Graphs of one that are looked at, which differ in what readers make again and in which sums are one."""
SPLIT = 4
"""Tensors of which every way to cut them into kernels that share their rows is looked at; of more, some ways are."""

FUSING = ("inline", "horizontal fusion", "recompute", "common subexpressions")
"""The passes that decide what of a graph is computed where."""

Price = Callable[[Kernel], float]


def chosen(graph: Graph, target: Target) -> Plan:
    """The plan that the passes choose."""
    return fuse(run_passes(graph, PassContext(target, predicted)), None, target, cost=predicted)


def seconds_of(plan: Plan, price: Price) -> float:
    """What a plan takes by the prices of its kernels."""
    return sum(price(call.kernel) * turns for _, call, turns in plan.kernel_calls())


def unfused(graph: Graph) -> Graph:
    """The graph after the passes that find other algebra for it, but none of those that fuse."""
    for p in PASSES:
        graph = graph if p.name in FUSING else p.run(graph, PassContext())
    return graph


class Best:
    """The partitions of graphs on a target, and what is known of their kernels."""

    def __init__(self, target: Target):
        self.target = target
        self.kernels: dict[Kernel, float] = {}
        self.clusters: dict[tuple, tuple[float, list[Kernel]]] = {}

    def price(self, kernel: Kernel) -> float:
        kernel = slice_kernel(kernel)[0]
        if kernel not in self.kernels:
            try:
                self.kernels[kernel] = predicted(kernel, self.target)
            except CompileError:
                self.kernels[kernel] = inf
        return self.kernels[kernel]

    def of(self, graph: Graph) -> tuple[float, list[Kernel]]:
        """The least seconds that any partition takes, and its kernels."""
        every = dict.fromkeys(v for g in (simplify(graph), unfused(graph)) for v in variants(g, VARIANTS))
        every[run_passes(graph, PassContext(self.target, predicted))] = None
        return min(map(self.partition, every), key=lambda x: x[0])

    def partition(self, graph: Graph) -> tuple[float, list[Kernel]]:
        """Of a graph whose tensors are all made as they are: a path of least cost over what has been made so far, a set
        that needs nothing outside of it."""
        nodes = [n for n in postorder(graph.roots) if isinstance(n, Compute) and not is_view(n.template)]
        number: dict[Compute | LoweredLoop | None, int] = {n: i for i, n in enumerate(nodes)}
        needs = [sum(1 << number[m] for m in set(makers(n))) for n in nodes]
        writes = {maker(t): p for p, t in graph.updates}
        for n, p in writes.items():  # what is read of a parameter is read before
            for i, r in enumerate(nodes):
                if r is not n and any(storage(a) is p for a in r.args):
                    needs[number[n]] |= 1 << i
        clusters = [(c, *self._cluster(graph, nodes, c, writes)) for c in _connected(nodes)]
        found = [(c, price, kernels) for c, price, kernels in clusters if price < inf]
        best: dict[int, tuple[float, list[Kernel]]] = {0: (0.0, [])}
        whole = (1 << len(nodes)) - 1
        for made in sorted(range(whole), key=int.bit_count):
            if made not in best:
                continue
            before, kernels = best[made]
            for c, price, own in found:
                after = made | c
                if made & c or any(needs[i] & ~after for i in _bits(c)):
                    continue
                if before + price < best.get(after, (inf,))[0]:
                    best[after] = before + price, [*kernels, *own]
        return best[whole]

    def _cluster(self, graph: Graph, nodes: Sequence[Compute], c: int, writes: dict) -> tuple[float, list[Kernel]]:
        """What the tensors of a set take in one launch at least, and that kernel; inf where they cannot be one."""
        inside = [nodes[i] for i in _bits(c)]
        stored = frozenset(_results(graph, nodes, inside))
        written = {p for n in inside if (p := writes.get(n)) is not None}
        if written and not all(reads_only_own_element(n, lambda a: storage(a) in written) for n in inside):
            return inf, []
        key = (frozenset(inside), stored, bool(written))
        if key not in self.clusters:
            kernels = [k for k in _kernels(inside, stored, not written) if self.price(k) < inf]
            best = min(kernels, key=self.price, default=None)
            self.clusters[key] = (inf, []) if best is None else (self.price(best), [best])
        return self.clusters[key]


def _bits(c: int) -> Iterator[int]:
    return (i for i in range(c.bit_length()) if c >> i & 1)


def _connected(nodes: Sequence[Compute]) -> list[int]:
    """The sets of tensors that hang together by what they read and make."""
    touched = [{n, *map(storage, n.args)} for n in nodes]
    touched = [{x.node if isinstance(x, Item) else x for x in t} for t in touched]
    near = [sum(1 << j for j, other in enumerate(touched) if j != i and own & other) for i, own in enumerate(touched)]
    found = {1 << i for i in range(len(nodes))}
    todo = list(found)
    while todo:
        c = todo.pop()
        reach = 0
        for i in _bits(c):
            reach |= near[i]
        for i in _bits(reach & ~c):
            if (new := c | 1 << i) not in found:
                found.add(new)
                todo.append(new)
    return sorted(found)


def _results(graph: Graph, nodes: Sequence[Compute], inside: Collection[Compute]) -> set[Tensor]:
    """What a set of tensors makes for others."""
    asked = {storage(a) for n in nodes if n not in inside for a in n.args} | {storage(t) for t in graph.roots}
    return {t for t in asked if maker(t) in inside}


def _kernels(inside: Sequence[Compute], stored: Collection[Tensor], rows: bool) -> Iterator[Kernel]:
    """Every kernel that makes tensors: stages of one, or kernels that share their rows."""
    if (group := _group(inside)) is not None:
        yield kernel_call(group, stored, {}, ()).kernel
    if not rows or len(inside) < 2:
        return
    for parts in _splits(inside):
        made = [_part(p, inside, stored) for p in parts]
        if len(made) > MAX_MEMBERS:
            continue
        for n in frozenset.intersection(*map(rows_of, made)):
            if (found := consistent_forms(made, n)) is not None:
                yield join_forms(made, n, found, stored).kernel


def _part(group: Sequence[Compute], inside: Sequence[Compute], stored: Collection[Tensor]) -> KernelCall:
    near = {storage(a) for n in inside if n not in group for a in n.args}
    return kernel_call(group, {*stored, *near}, {}, ())


def _group(nodes: Sequence[Compute]) -> list[Compute] | None:
    """The tensors in the order of a kernel's stages; None where they cannot be stages of one."""
    roots = [n for n in nodes if pointwise_body(n.template) is None]
    members = set(nodes)
    if len(roots) > 1 or len({n.shape for n in nodes}) > 1 or len(nodes) > MAX_STAGES or not fits(members):
        return None
    if len(nodes) > 1 and any(n.template.is_scatter or needs_check(n) for n in nodes):
        return None
    if any(m in members for n in roots for m in makers(n)):
        return None
    later = [n for n in nodes if n not in roots]
    return [*roots, *later] if all(reads_in_place(n, members) for n in later) else None


def _splits(nodes: Sequence[Compute]) -> Iterator[list[list[Compute]]]:
    """Ways to cut tensors into two kernels or more, in an order that may run."""
    if len(nodes) > SPLIT:
        ways: Iterator[list[list[Compute]]] = iter([[[n] for n in nodes], _coarse(nodes)])
    else:
        ways = _all_splits(nodes)
    for parts in ways:
        groups = [g for p in parts if (g := _group(p)) is not None]
        if len(groups) == len(parts) > 1 and (order := _ordered(groups)) is not None:
            yield order


def _all_splits(nodes: Sequence[Compute]) -> Iterator[list[list[Compute]]]:
    if not nodes:
        yield []
        return
    *rest, last = nodes
    for parts in _all_splits(rest):
        yield [*parts, [last]]
        for i, p in enumerate(parts):
            yield [*parts[:i], [*p, last], *parts[i + 1 :]]


def _coarse(nodes: Sequence[Compute]) -> list[list[Compute]]:
    """Each tensor with the first ones that it may be one kernel with."""
    parts: list[list[Compute]] = []
    for n in nodes:
        for i, p in enumerate(parts):
            if _group([*p, n]) is not None and _ordered([*parts[:i], [*p, n], *parts[i + 1 :]]) is not None:
                p.append(n)
                break
        else:
            parts.append([n])
    return parts


def _ordered(groups: Sequence[list[Compute]]) -> list[list[Compute]] | None:
    of = {n: i for i, g in enumerate(groups) for n in g}
    needs = [{of[m] for n in g for m in makers(n) if m in of} - {i} for i, g in enumerate(groups)]
    done: list[int] = []
    while len(done) < len(groups):
        ready = [i for i, x in enumerate(needs) if i not in done and x <= set(done)]
        if not ready:
            return None
        done.append(ready[0])
    return [groups[i] for i in done]


def variants(graph: Graph, most: int) -> list[Graph]:
    """The graphs that compute the same in which readers make pointwise tensors, or sums are one, `most` at most."""
    seen, todo = {graph: None}, [graph]
    while todo:
        g = todo.pop(0)
        for new in (*_inlined_once(g), *_summed_once(g)):
            if new not in seen and len(seen) < most:
                seen[new] = None
                todo.append(new)
    return list(seen)


def _inlined_once(graph: Graph) -> Iterator[Graph]:
    """One reader makes one tensor."""
    nodes = list(postorder(graph.roots))
    readers = readers_of(nodes)
    for t in nodes:
        if not isinstance(t, Compute) or is_view(t.template) or pointwise_body(t.template) is None or needs_check(t):
            continue
        for r in readers[t]:
            if isinstance(r, Compute) and not is_view(r.template) and len(r.template.dtypes) == 1:
                yield _with(graph, nodes, {r: inline_arguments(r, {t})})


def _summed_once(graph: Graph) -> Iterator[Graph]:
    """Two sums or three become one of several results."""
    nodes = list(postorder(graph.roots))
    sums = [n for n in nodes if isinstance(n, Compute) and n not in graph.roots and whole_sum(n.template) is not None]
    for count in (2, 3):
        for group in combinations(sums, count):
            kinds = {(n.shape, n.template.parts[0].body.extents, n.dtype) for n in group}  # type: ignore[union-attr]
            if len(kinds) == 1 and not any(a in set(postorder(b.args)) for a in group for b in group):
                whole = fuse_sums(list(group))
                yield _with(graph, nodes, {n: Item(whole, m) for m, n in enumerate(group)})


def _with(graph: Graph, nodes: Sequence[Tensor], new: dict) -> Graph:
    """The graph with some tensors exchanged."""
    memo: dict = {}

    def of(t: Tensor) -> Tensor:
        if t not in memo:
            t_new = new.get(t, t)
            memo[t] = t_new if isinstance(t_new, Leaf) else with_args(t_new, tuple(map(of, t_new.args)))
        return memo[t]

    for n in nodes:
        of(n)
    return exchanged(graph, memo)
