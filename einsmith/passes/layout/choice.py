"""The orders in which a plan's tensors cost least by the model, with copies in other orders where those pay.

Variables are sets of tensors that lie alike (`folded`), and copies of what kernels read that might gain by another
order. What is not known yet of a kernel's costs is taken to be as little as it can be; the kernels that the cheapest
assignment rests on are asked for, the most promising ones first, until all that it rests on is known: then no
assignment costs less by the model, unless the limit on questions or a cut that is too wide (`solve`) comes before.
As it is, everything is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf, prod

import numpy as np

from einsmith.expr.nodes import Tensor, nbytes
from einsmith.passes.layout import forced
from einsmith.passes.layout.folded import folded
from einsmith.passes.layout.laid_out import Converted, Decided, converter, free, held
from einsmith.passes.layout.order import Order, candidates
from einsmith.passes.layout.price import Prices, Seconds
from einsmith.passes.layout.solve import Factor, changes, least
from einsmith.passes.pipeline import left_out
from einsmith.passes.schedule.plan import Call, Laid, Plan
from einsmith.passes.schedule.views import storage
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


Way = tuple[tuple[Tensor, int], ...]
"""Of the tensors that a call touches, those that do not lie as they are, with the numbers of their candidates."""


@dataclass(eq=False)
class Node:
    """A call, or the converter of a copy, with the variables that its cost depends on. `now`: its seconds as everything
    is; `bound`: at least, otherwise; `known`: by way, where the model was asked."""

    call: Call
    over: tuple[int, ...]
    stored: dict[Tensor, int]
    copies: dict[Tensor, int]
    now: float
    bound: float
    known: dict[Way, float] = field(default_factory=dict)

    def ways(self, values: Mapping[int, int]) -> Iterator[Way]:
        """The orders in which a kernel may see its tensors: as they are stored, or as their copies lie."""
        touched = list(dict.fromkeys([*self.stored, *self.copies]))
        each = []
        for t in touched:
            own = values[self.stored[t]] if t in self.stored else 0
            copy = values[self.copies[t]] if t in self.copies else 0
            each.append(dict.fromkeys([own, copy] if copy else [own]))
        for found in product(*each):
            yield tuple((t, k) for t, k in zip(touched, found, strict=True) if k)

    def cost(self, way: Way) -> float:
        return self.known.get(way, self.bound) if way else self.now

    def cheapest(self, values: Mapping[int, int]) -> Way:
        return min(self.ways(values), key=self.cost)

    def table(self, sizes: Sequence[int]) -> Factor:
        costs = np.empty([sizes[v] for v in self.over])
        for at in np.ndindex(*costs.shape):
            values = dict(zip(self.over, at, strict=True))
            costs[at] = self.cost(self.cheapest(values))
        return Factor(self.over, costs)


@dataclass(eq=False)
class Converter(Node):
    """Node of a copy: its call reads a tensor as it is stored, and stores the copy."""

    def ways(self, values: Mapping[int, int]) -> Iterator[Way]:
        (t, made), (copy,) = self.call.tensors, self.copies.values()
        own = values[self.stored[t]] if t in self.stored else 0
        yield tuple((x, k) for x, k in ((t, own), (made, values[copy])) if k and values[copy])


def layouts_of(seconds: Seconds, target: Target) -> Callable[[Plan], Decided]:
    """What decides how the tensors of a program's plans lie: what is forced here and now, else the model, which says
    how many seconds a kernel takes; nothing is decided where EINSMITH_WITHOUT names the layouts."""
    prices = Prices(seconds, target)

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
        calls = [c for c in plan.calls if isinstance(c, Call)]
        now = [prices.now(c) for c in calls]
        least_gain = max(SECONDS, WORTH * sum(now))
        bounds = [prices.least(c) for c in calls]
        self.promising = [c for c, n, b in zip(calls, now, bounds, strict=True) if n - b > least_gain]
        if not self.promising:
            return
        self.variables = [Variable(x) for x in folded(calls, free(plan))]
        self.of = {t: v for v, x in enumerate(self.variables) for t in x.tensors}
        self.copied: dict[Tensor, int] = {}
        self.nodes: list[Node] = []
        for call, seconds, b in zip(calls, now, bounds, strict=True):
            promising = any(call is c for c in self.promising)
            self._add(call, seconds, b if promising else max(b, seconds))

    def _add(self, call: Call, now: float, bound: float) -> None:
        """The node of a call, and of the copies of what it reads, if it might gain by them."""
        touched = dict.fromkeys(map(storage, call.tensors))
        apart = held(call).union(storage(t) for t, w in zip(call.tensors, call.written, strict=True) if w)
        stored = {t: self.of[t] for t in touched if t in self.of}
        entries = prod(self.variables[v].size for v in {*stored.values()})
        if entries > ENTRIES:
            self.nodes += [Node(call, (v,), {t: v}, {}, 0.0, inf) for t, v in stored.items()]  # all stays as it is
            return
        copies: dict[Tensor, int] = {}
        largest = max(map(nbytes, touched), default=0)
        for t in touched if bound < now else ():
            size = len(candidates(t.shape))
            if t not in apart and size > 1 and nbytes(t) * SMALL > largest and entries * size <= ENTRIES:
                entries *= size
                copies[t] = self._copy(t)
        over = tuple(dict.fromkeys([*stored.values(), *copies.values()]))
        self.nodes.append(Node(call, over, stored, copies, now, bound))

    def _copy(self, t: Tensor) -> int:
        """The variable of a tensor's copy, which all that read the tensor may read."""
        if t not in self.copied:
            self.copied[t] = len(self.variables)
            self.variables.append(Variable([t], copied=True))
            move, own = converter(t), {t: self.of[t]} if t in self.of else {}
            over = (*own.values(), self.copied[t])
            self.nodes.append(Converter(move, over, own, {t: self.copied[t]}, 0.0, self.prices.least(move)))
        return self.copied[t]

    def solved(self) -> tuple[int, ...]:
        """The cheapest assignment, once all that it rests on is known. Where too much would have to be asked for, what
        is not known by then is taken not to be possible."""
        sizes = [x.size for x in self.variables]
        tables = [n.table(sizes) for n in self.nodes]
        first = self.prices.asked
        limits = [first + GAINS, first + GAINS + LOSSES]
        while True:
            values = least(sizes, tables).values
            unknown = [
                (n.bound - n.now, i, way) for i, n in enumerate(self.nodes)
                if (way := n.cheapest(_of(values, n))) and way not in n.known
            ]  # fmt: skip
            if not unknown:
                return values
            unknown.sort(key=lambda x: x[:2])
            gains = [x for x in unknown if x[0] < 0]  # without them, nothing pays
            if self.prices.asked >= limits[0 if gains else 1]:
                for i, n in enumerate(self.nodes):
                    if n.bound < n.now or not gains:
                        n.bound = inf
                        tables[i] = n.table(sizes)
                continue
            for _, i, way in (gains or unknown)[:AT_ONCE]:
                node = self.nodes[i]
                node.known[way] = self.prices.ask(node.call, _orders(way))
                tables[i] = node.table(sizes)

    def decision(self, values: tuple[int, ...]) -> Decided:
        """What an assignment says, with what the next best value of each variable would cost more."""
        sizes = [x.size for x in self.variables]
        tables = [n.table(sizes) for n in self.nodes]
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
        met = [n for n in self.nodes if n.copies.get(t) == v]
        (move,) = [n.call for n in met if isinstance(n, Converter)]
        readers = [n for n in met if not isinstance(n, Converter)]
        return Converted(
            move, laid, tuple(n.call for n in readers if dict(n.cheapest(_of(values, n))).get(t) == value)
        )


def _of(values: Sequence[int], node: Node) -> dict[int, int]:
    return {v: values[v] for v in node.over}


def _orders(way: Way) -> dict[Tensor, Order]:
    return {t: candidates(t.shape)[k] for t, k in way}
