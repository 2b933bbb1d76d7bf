"""The orders in which a plan's tensors cost least by the model, with copies in other orders where those pay.

Variables are sets of tensors that lie alike (`folded`), and copies of what kernels read that might gain by another
order. What is not known yet of a kernel's costs is taken to be as little as it can be; the kernels that the cheapest
assignment rests on are asked for, the most promising ones first, until all that it rests on is known: then no
assignment costs less by the model, unless the limit on questions or a cut that is too wide (`solve`) comes before.
As it is, everything is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod
from typing import NamedTuple

import numpy as np

from einsmith.expr.nodes import Tensor, nbytes
from einsmith.passes.layout import forced
from einsmith.passes.layout.folded import folded
from einsmith.passes.layout.laid_out import Converted, Decided, converter, free, held
from einsmith.passes.layout.order import Order, candidates
from einsmith.passes.layout.price import Prices, Seconds
from einsmith.passes.layout.solve import Factor, changes, least
from einsmith.passes.pipeline import left_out
from einsmith.passes.schedule.plan import KernelCall, Laid, Plan
from einsmith.passes.schedule.views import storage
from einsmith.plan.kernel import Kernel
from einsmith.target.facts import Target

GAINS, LOSSES = 40, 24
"""Kernels of a plan that the cost model is asked for, at most, 1 to 20 ms each: of those that might gain by other
orders, and then of the others that what gains would have to change."""
AT_ONCE = 4
"""Of them, before the cheapest assignment is looked for again."""
WORTH, SECONDS = 0.002, 1e-5
"""The part of a plan's seconds that a kernel might gain, at least, and how many these are, for it to be looked at."""
SMALL = 8
"""A tensor that is so many times smaller than the largest one of a kernel is not copied for it."""
ENTRIES = 1 << 12
"""Of the table of a call; where it would have more, copies are not looked at, and then nothing of the call is."""


@dataclass(eq=False)
class Variable:
    """Tensors that have one of their candidates together; of a `copied` one, 0 says that there is no copy, and the
    others that there is one in that order."""

    tensors: list[Tensor]
    copied: bool = False

    @property
    def size(self) -> int:
        return len(candidates(self.tensors[0].shape))


Way = tuple[int, ...]
"""How a call sees what it touches: of each of its `Seen` the number of a candidate."""


class Seen(NamedTuple):
    """Tensors that a call sees in one order: as they are `stored`, or as the `copy` of a single one lies; each is a
    variable, None where there is none."""

    tensors: tuple[Tensor, ...]
    stored: int | None
    copy: int | None = None


class CostNode:
    """A call, or the converter of a copy, with the variables that its cost depends on, `over`. `now`: its seconds as
    everything is; `bound`: at least, otherwise. `costs`: the seconds of each way, `bound` where that is not `known`.
    Converters take none where there is no copy; what they see is a tensor and, last, its copy."""

    def __init__(self, call: KernelCall, seen: Sequence[Seen], now: float, bound: float, converts: bool = False):
        self.call, self.seen, self.now, self.bound, self.converts = call, seen, now, bound, converts
        self.over = tuple(dict.fromkeys(v for s in seen for v in (s.stored, s.copy) if v is not None))
        self.costs = np.full([len(candidates(s.tensors[0].shape)) for s in seen], bound)
        self.known = np.zeros(self.costs.shape, bool)
        as_it_is = (..., 0) if converts else (0,) * len(seen)
        self.costs[as_it_is], self.known[as_it_is] = now, True

    def cheapest(self, values: Sequence[int]) -> Way:
        """Of the ways in which it may see its tensors, as they are stored or as their copies lie."""
        each = []
        for s in self.seen:
            stored, copy = (0 if v is None else values[v] for v in (s.stored, s.copy))
            each.append((stored, copy) if copy else (stored,))
        return min(product(*each), key=self.costs.__getitem__)

    def orders(self, way: Way) -> dict[Tensor, Order]:
        return {t: candidates(t.shape)[k] for s, k in zip(self.seen, way, strict=True) if k for t in s.tensors}

    def learn(self, way: Way, seconds: float) -> None:
        self.costs[way], self.known[way] = seconds, True

    def forgo(self) -> None:
        """Takes what is not known not to be possible."""
        self.bound = inf
        self.costs[~self.known] = inf

    def table(self) -> Factor:
        """What the call costs by the values of its variables; of none where they make no difference."""
        costs, over = self.costs, list(self.over)
        if costs.min() == costs.max():
            return Factor((), costs.min())
        axes = [len(over) + n for n in range(len(self.seen))]
        for n, s in enumerate(self.seen):
            at = axes.index(len(over) + n)
            before = (slice(None),) * at
            axes[at : at + 1] = [over.index(v) for v in (s.stored, s.copy) if v is not None]
            if s.copy is not None and s.stored is not None:  # what costs less: as stored, or as the copy lies
                both = np.minimum(costs[(*before, slice(None), None)], costs[(*before, None)])
                both[(*before, slice(None), 0)] = costs
                costs = both
            elif s.copy is not None:
                costs = np.minimum(costs, costs[(*before, slice(1))])
            if len(set(axes)) < len(axes):  # several see the same variable
                costs, axes = np.einsum(costs, axes, list(dict.fromkeys(axes))), list(dict.fromkeys(axes))
        return Factor(self.over, costs.transpose([axes.index(n) for n in range(len(over))]))


def layouts_of(seconds: Seconds, bound: Callable[[Kernel], float], target: Target) -> Callable[[Plan], Decided]:
    """What decides how the tensors of a program's plans lie: what is forced here and now, else the model, which says
    how many seconds a kernel takes, and takes at least; nothing is decided where EINSMITH_WITHOUT names the layouts."""
    prices = Prices(seconds, target, bound)

    def decide(plan: Plan) -> Decided:
        found = forced.decided(plan)
        return found or (Decided() if left_out("layouts") else decided(plan, prices))

    return decide


def decided(plan: Plan, prices: Prices) -> Decided:
    """The orders that cost least, and why; nothing where all is best as it is."""
    problem = _Problem(plan, prices)
    if not problem.promising:
        return Decided()
    values = problem.solved()
    return problem.decision(values) if any(values) else Decided()


class _Problem:
    """The variables of a plan, and its nodes."""

    def __init__(self, plan: Plan, prices: Prices):
        self.prices = prices
        calls = [c for c in plan.calls if isinstance(c, KernelCall)]
        now = [prices.now(c) for c in calls]
        least_gain = max(SECONDS, WORTH * sum(now))
        bounds = [prices.least(c, n - prices.least(c) > least_gain) for c, n in zip(calls, now, strict=True)]
        self.promising = [c for c, n, b in zip(calls, now, bounds, strict=True) if n - b > least_gain]
        if not self.promising:
            return
        self.variables = [Variable(x) for x in folded(calls, free(plan))]
        self.of = {t: v for v, x in enumerate(self.variables) for t in x.tensors}
        self.copied: dict[Tensor, int] = {}
        self.nodes: list[CostNode] = []
        for call, seconds, b in zip(calls, now, bounds, strict=True):
            promising = any(call is c for c in self.promising)
            self._add(call, seconds, b if promising else max(b, seconds))

    def _add(self, call: KernelCall, now: float, bound: float) -> None:
        """The node of a call, and of the copies of what it reads, if it might gain by them."""
        touched = dict.fromkeys(map(storage, call.tensors))
        apart = held(call).union(storage(t) for t, w in zip(call.tensors, call.written, strict=True) if w)
        stored = {t: self.of[t] for t in touched if t in self.of}
        entries = prod(self.variables[v].size for v in {*stored.values()})
        if entries > ENTRIES:
            self.nodes += [CostNode(call, [Seen((t,), v)], 0.0, inf) for t, v in stored.items()]  # all stays as it is
            return
        copies: dict[Tensor, int] = {}
        largest = max(map(nbytes, touched), default=0)
        for t in touched if bound < now else ():
            size = len(candidates(t.shape))
            if t not in apart and size > 1 and nbytes(t) * SMALL > largest and entries * size <= ENTRIES:
                entries *= size
                copies[t] = self._copy(t)
        alike: dict[int, list[Tensor]] = {}
        for t, v in stored.items():
            alike.setdefault(-1 - copies[t] if t in copies else v, []).append(t)
        seen = [Seen(tuple(x), self.of.get(x[0]), copies.get(x[0])) for x in alike.values()]
        seen += [Seen((t,), None, v) for t, v in copies.items() if t not in stored]
        self.nodes.append(CostNode(call, seen, now, bound))

    def _copy(self, t: Tensor) -> int:
        """The variable of a tensor's copy, which all that read the tensor may read."""
        if t not in self.copied:
            self.copied[t] = len(self.variables)
            self.variables.append(Variable([t], copied=True))
            move = converter(t)
            own = [Seen((t,), self.of[t])] if t in self.of else []
            made = Seen((move.tensors[1],), self.copied[t])
            self.nodes.append(CostNode(move, [*own, made], 0.0, self.prices.least(move), converts=True))
        return self.copied[t]

    def solved(self) -> tuple[int, ...]:
        """The cheapest assignment, once all that it rests on is known. Where too much would have to be asked for, what
        is not known by then is taken not to be possible."""
        sizes = [x.size for x in self.variables]
        tables = [n.table() for n in self.nodes]
        first = self.prices.asked
        limits = [first + GAINS, first + GAINS + LOSSES]
        while True:
            values = least(sizes, [f for f in tables if f.over]).values
            moved = {v for v, k in enumerate(values) if k}
            unknown = [
                (n.bound - n.now, i, way) for i, n in enumerate(self.nodes)
                if not moved.isdisjoint(n.over) and not n.known[way := n.cheapest(values)]
            ]  # fmt: skip
            if not unknown:
                return values
            unknown.sort(key=lambda x: x[:2])
            gains = [x for x in unknown if x[0] < 0]  # without them, nothing pays
            if self.prices.asked >= limits[0 if gains else 1]:
                for i, n in enumerate(self.nodes):
                    if n.bound < n.now or not gains:
                        n.forgo()
                        tables[i] = n.table()
                continue
            for _, i, way in (gains or unknown)[:AT_ONCE]:
                node = self.nodes[i]
                node.learn(way, self.prices.ask(node.call, node.orders(way)))
                tables[i] = node.table()

    def decision(self, values: tuple[int, ...]) -> Decided:
        """What an assignment says, with what the next best value of each variable would cost more."""
        sizes = [x.size for x in self.variables]
        tables = [n.table() for n in self.nodes]
        orders: dict[Tensor, Laid] = {}
        copies: list[Converted] = []
        for v, (variable, value) in enumerate(zip(self.variables, values, strict=True)):
            if not value:
                continue
            more = changes(values, v, tables, sizes[v])
            more[value] = inf
            beside = int(np.argmin(more))
            for t in variable.tensors:
                found = candidates(t.shape)
                known = more[beside] < inf
                laid = Laid(found[value], found[beside], float(more[beside])) if known else Laid(found[value])
                if variable.copied:
                    copies.append(self._converted(v, t, value, laid, values))
                else:
                    orders[t] = laid
        return Decided(orders, tuple(copies))

    def _converted(self, v: int, t: Tensor, value: int, laid: Laid, values: tuple[int, ...]) -> Converted:
        """A copy, with the calls that read it as the assignment is cheapest."""
        (move,) = [n.call for n in self.nodes if n.converts and n.seen[-1].stored == v]
        readers = []
        for n in self.nodes:
            at = next((k for k, s in enumerate(n.seen) if s.copy == v), None)
            if at is not None and n.cheapest(values)[at] == value:
                readers.append(n.call)
        return Converted(move, laid, tuple(readers))
