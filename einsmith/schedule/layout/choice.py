"""Choose the dimension order of each tensor of a plan, and copies in other orders, for the least predicted time.

A variable is a set of tensors that share one order (`folded_sets`), or a copy of a kernel's operand that might gain by
another order. A cost that has not been predicted yet is replaced by its lower bound. The cost model is queried for the
calls that the cheapest assignment depends on, the most promising first, until all of their costs are known. No
assignment is then cheaper by the model, unless the limit on queries is reached or a cut is too wide (`solve`). The
costs of the unchanged orders are always known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod
from typing import NamedTuple

import numpy as np

from einsmith.cost.facts import Target
from einsmith.ir.nodes import Tensor, nbytes
from einsmith.ir.views import storage
from einsmith.schedule.graph_decisions import ORDER, TensorNames, orders_of
from einsmith.schedule.kernel import Kernel
from einsmith.schedule.layout import forced
from einsmith.schedule.layout.apply import (
    LayoutCopy,
    LayoutDecision,
    converter,
    free_tensors,
    loop_invariant_operands,
)
from einsmith.schedule.layout.channels_last import all_channels_last
from einsmith.schedule.layout.dimension_orders import candidates, innermost
from einsmith.schedule.layout.folded import folded_sets
from einsmith.schedule.layout.price import Prices, Seconds
from einsmith.schedule.layout.solve import Factor, changes, minimize
from einsmith.schedule.plan import KernelCall, LayoutChoice, Order, Plan

QUERIES_PER_ROUND = 4
"""Most kernels that are queried before the cheapest assignment is recomputed."""
MIN_GAIN_FRACTION, MIN_GAIN_SECONDS = 0.002, 1e-5
"""Smallest possible gain of a kernel that is considered: a fraction of the plan's predicted time, and seconds."""
MAX_TABLE_ENTRIES = 1 << 12
"""Most entries of a call's cost table. Beyond it the call's operands are not copied; if the table is still too large,
the call's tensors keep their orders."""


@dataclass(eq=False)
class Variable:
    """A variable of the layout problem: tensors that get the same dimension order, one of the candidates.

    copied: whether the variable is the order of a copy; its value 0 then means that there is no copy."""

    tensors: list[Tensor]
    copied: bool = False

    @property
    def size(self) -> int:
        """The number of values: candidate orders of its tensors."""
        return len(candidates(self.tensors[0].shape))


OrderNumbers = tuple[int, ...]
"""The orders in which a call sees its tensors: for each of its `SeenTensors`, the number of a candidate."""


class SeenTensors(NamedTuple):
    """Tensors that a call sees in one order. `stored` is the variable of the tensors themselves, `copy` the variable of
    a copy of a single tensor; either is None if there is none."""

    tensors: tuple[Tensor, ...]
    stored: int | None
    copy: int | None = None


class CostNode:
    """A call, or the converter of a copy, and its costs by the orders of its tensors.

    Attributes:
        over: the variables that the cost depends on.
        now: predicted seconds with all orders unchanged.
        bound: least seconds with any other orders.
        costs: seconds for each tuple of orders; `bound` if the entry is not `known`.
        converts: whether this is a converter. It takes no time without a copy; it sees a tensor and, last, its copy.
    """

    def __init__(self, call: KernelCall, seen: Sequence[SeenTensors], now: float, bound: float, converts: bool = False):
        self.call, self.seen, self.now, self.bound, self.converts = call, seen, now, bound, converts
        self.over = tuple(dict.fromkeys(v for s in seen for v in (s.stored, s.copy) if v is not None))
        self.costs = np.full([len(candidates(s.tensors[0].shape)) for s in seen], bound)
        self.known = np.zeros(self.costs.shape, bool)
        as_it_is = (..., 0) if converts else (0,) * len(seen)
        self.costs[as_it_is], self.known[as_it_is] = now, True

    def cheapest(self, values: Sequence[int]) -> OrderNumbers:
        """Return the cheapest orders that the call may see."""
        return min(product(*self.options(values)), key=self.costs.__getitem__)

    def options(self, values: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the orders in which the call may get each tensor of `seen`: the order in memory, or that of a copy."""
        each: list[tuple[int, ...]] = []
        for s in self.seen:
            stored, copy = (0 if v is None else values[v] for v in (s.stored, s.copy))
            each.append((stored, copy) if copy else (stored,))
        return each

    def orders(self, numbers: OrderNumbers) -> dict[Tensor, Order]:
        """Return the order of each tensor under a choice of orders, except those in the first candidate."""
        return {t: candidates(t.shape)[k] for s, k in zip(self.seen, numbers, strict=True) if k for t in s.tensors}

    def learn(self, numbers: OrderNumbers, seconds: float) -> None:
        """Record the known cost (seconds) of a choice of orders."""
        self.costs[numbers], self.known[numbers] = seconds, True

    def exclude_unknown(self) -> None:
        """Exclude all orders whose costs are not known."""
        self.bound = inf
        self.costs[~self.known] = inf

    def table(self) -> Factor:
        """Return the call's cost as a function of its variables, of no variable if the orders make no difference."""
        costs, over = self.costs, list(self.over)
        if costs.min() == costs.max():
            return Factor((), costs.min())
        axes = [len(over) + n for n in range(len(self.seen))]
        for n, s in enumerate(self.seen):
            at = axes.index(len(over) + n)
            before = (slice(None),) * at
            axes[at : at + 1] = [over.index(v) for v in (s.stored, s.copy) if v is not None]
            if s.copy is not None and s.stored is not None:  # the cheaper of reading the tensor and reading its copy
                both = np.minimum(costs[(*before, slice(None), None)], costs[(*before, None)])
                both[(*before, slice(None), 0)] = costs
                costs = both
            elif s.copy is not None:
                costs = np.minimum(costs, costs[(*before, slice(1))])
            if len(set(axes)) < len(axes):  # several see the same variable
                costs, axes = np.einsum(costs, axes, list(dict.fromkeys(axes))), list(dict.fromkeys(axes))
        return Factor(self.over, costs.transpose([axes.index(n) for n in range(len(over))]))


def layouts_of(seconds: Seconds, bound: Callable[[Kernel], float], target: Target) -> Callable[[Plan], LayoutDecision]:
    """Return the function that decides the orders of a program's plans: by forced orders (`forced`) if there are any,
    else by the model.

    Args:
        seconds: predicts the seconds of a kernel.
        bound: gives a lower bound of the seconds of a kernel, whatever the orders of its tensors.
        target: the machine.
    """
    prices = Prices(seconds, target, bound)

    def decide(plan: Plan) -> LayoutDecision:
        decision = forced.decide(plan) or decide_orders(plan, prices)
        if decision.orders or decision.copies or forced.is_active():
            return decision
        return all_channels_last(plan, prices) or decision

    return decide


def decide_orders(plan: Plan, prices: Prices) -> LayoutDecision:
    """Return the orders of least predicted cost and their alternatives; an empty decision if no change pays. Orders
    that `plan.decisions` states are kept, as far as all kernels can have them."""
    problem = _Problem(plan, prices)
    if not problem.variables:
        return LayoutDecision()
    return problem.build_decision(problem.solve())


class _Problem:
    """The variables and cost nodes of a plan."""

    def __init__(self, plan: Plan, prices: Prices):
        self.prices = prices
        calls = [c for c in plan.calls if isinstance(c, KernelCall)]
        self.promising: list[KernelCall] = []
        self.variables: list[Variable] = []
        self.decided: dict[int, int] = {}  # the value that is decided for a variable
        now = [prices.now(c) for c in calls]
        least_gain = max(MIN_GAIN_SECONDS, MIN_GAIN_FRACTION * sum(now))
        is_decided = any(x.startswith(f"{ORDER} ") for x in plan.decisions)
        if max(now, default=0.0) <= least_gain and not is_decided:
            return
        bounds = [
            prices.lower_bound(c, n - prices.lower_bound(c) > least_gain) for c, n in zip(calls, now, strict=True)
        ]
        self.promising += [c for c, n, b in zip(calls, now, bounds, strict=True) if n - b > least_gain]
        if not self.promising and not is_decided:
            return
        self.variables += [Variable(x) for x in folded_sets(calls, free_tensors(plan))]
        self.of = {t: v for v, x in enumerate(self.variables) for t in x.tensors}
        self.copied: dict[Tensor, int] = {}
        self.nodes: list[CostNode] = []
        for call, seconds, b in zip(calls, now, bounds, strict=True):
            promising = any(call is c for c in self.promising)
            self._add(call, seconds, b if promising else max(b, seconds))
        self._decide(plan)

    def _decide(self, plan: Plan) -> None:
        """Fix the values of the variables whose orders are decided."""
        of = self.of | {n.call.tensors[1]: n.seen[-1].stored for n in self.nodes if n.converts}
        for t, order in orders_of(TensorNames(plan.graph), of, plan.decisions).items():
            v, options = of[t], candidates(t.shape)
            if v is not None and order in options:
                self.decided[v] = options.index(order)

    def _add(self, call: KernelCall, now: float, bound: float) -> None:
        """Add the node of a call, and variables for copies of its operands if it might gain by them."""
        touched = dict.fromkeys(map(storage, call.tensors))
        uncopied = loop_invariant_operands(call).union(call.results)
        stored = {t: self.of[t] for t in touched if t in self.of}
        entries = prod(self.variables[v].size for v in {*stored.values()})
        if entries > MAX_TABLE_ENTRIES:
            self.nodes += [
                CostNode(call, [SeenTensors((t,), v)], 0.0, inf) for t, v in stored.items()
            ]  # all orders unchanged
            return
        copies: dict[Tensor, int] = {}
        largest, rules = max(map(nbytes, touched), default=0), self.prices.target.layouts
        for t in touched if bound < now else ():
            size = len(candidates(t.shape))
            if (
                t not in uncopied
                and size > 1
                and nbytes(t) * (rules.small_filter if len(t.shape) > 3 else rules.small_operand) > largest
                and entries * size <= MAX_TABLE_ENTRIES
            ):
                entries *= size
                copies[t] = self._copy(t)
        by_variable: dict[int, list[Tensor]] = {}
        for t, v in stored.items():
            by_variable.setdefault(-1 - copies[t] if t in copies else v, []).append(t)
        seen = [SeenTensors(tuple(x), self.of.get(x[0]), copies.get(x[0])) for x in by_variable.values()]
        seen += [SeenTensors((t,), None, v) for t, v in copies.items() if t not in stored]
        self.nodes.append(CostNode(call, seen, now, bound))

    def _copy(self, t: Tensor) -> int:
        """Return the variable of a tensor's copy, which all readers of the tensor share."""
        if t not in self.copied:
            self.copied[t] = len(self.variables)
            self.variables.append(Variable([t], copied=True))
            move = converter(t)
            own = [SeenTensors((t,), self.of[t])] if t in self.of else []
            copy = SeenTensors((move.tensors[1],), self.copied[t])
            self.nodes.append(CostNode(move, [*own, copy], 0.0, self.prices.lower_bound(move), converts=True))
        return self.copied[t]

    def solve(self) -> tuple[int, ...]:
        """Return the cheapest assignment whose costs are all known. Once the limit on queries is reached, orders whose
        costs are not known are excluded. Values that are decided are kept, unless a kernel cannot have them."""
        try:
            return self._solve(self.decided)
        except ValueError:  # no assignment has these values
            return self._solve({})

    def _learn_channels_last(self) -> None:
        """Query the costs of all calls with all images, and all copies of images, channels last."""
        last = [innermost(x.tensors[0].shape, 1) for x in self.variables]
        options = [candidates(x.tensors[0].shape) for x in self.variables]
        values = [
            x.index(order) if len(order) >= 4 and order in x else 0 for x, order in zip(options, last, strict=True)
        ]
        for node in self.nodes:
            for numbers in product(*node.options(values)):
                if node.bound < inf and not node.known[numbers]:
                    node.learn(numbers, self.prices.query(node.call, node.orders(numbers)))

    def _solve(self, decided: Mapping[int, int]) -> tuple[int, ...]:
        if self.prices.target.layouts.tries_channels_last:
            self._learn_channels_last()
        sizes = [x.size for x in self.variables]
        tables = [n.table() for n in self.nodes]
        fixed = [Factor((v,), np.where(np.arange(sizes[v]) == k, 0.0, inf)) for v, k in decided.items()]
        rules, first = self.prices.target.layouts, self.prices.queries
        limits = [first + rules.gain_queries, first + rules.gain_queries + rules.loss_queries]
        while True:
            values = minimize(sizes, [f for f in (*tables, *fixed) if f.over]).values
            moved = {v for v, k in enumerate(values) if k}
            unknown = [
                (n.bound - n.now, i, numbers)
                for i, n in enumerate(self.nodes)
                if not moved.isdisjoint(n.over) and not n.known[numbers := n.cheapest(values)]
            ]
            if not unknown:
                return values
            unknown.sort(key=lambda x: x[:2])
            gains = [x for x in unknown if x[0] < 0]  # without them, nothing pays
            if self.prices.queries >= limits[0 if gains else 1]:
                for i, n in enumerate(self.nodes):
                    if n.bound < n.now or not gains:
                        n.exclude_unknown()
                        tables[i] = n.table()
                continue
            for _, i, numbers in (gains or unknown)[:QUERIES_PER_ROUND]:
                node = self.nodes[i]
                node.learn(numbers, self.prices.query(node.call, node.orders(numbers)))
                tables[i] = node.table()

    def build_decision(self, values: tuple[int, ...]) -> LayoutDecision:
        """Return the orders and copies of an assignment, with the additional cost of the next best value of each
        variable."""
        sizes = [x.size for x in self.variables]
        tables = [n.table() for n in self.nodes]
        orders: dict[Tensor, LayoutChoice] = {}
        unchanged: dict[Tensor, LayoutChoice] = {}
        copies: list[LayoutCopy] = []
        queried = {v for n in self.nodes if n.known.sum() > 1 for v in n.over}
        for v, (variable, value) in enumerate(zip(self.variables, values, strict=True)):
            if not value and (variable.copied or v not in queried):
                continue
            more = changes(values, v, tables, sizes[v])
            more[value] = inf
            if not value:
                more[[k for k in range(sizes[v]) if not self._is_known(values, v, k)]] = inf
            next_best = int(np.argmin(more))
            for t in variable.tensors:
                options = candidates(t.shape)
                known = more[next_best] < inf
                choice = (
                    LayoutChoice(options[value], options[next_best], float(more[next_best]))
                    if known
                    else LayoutChoice(options[value])
                )
                if variable.copied:
                    copies.append(self._convert(v, t, value, choice, values))
                elif value:
                    orders[t] = choice
                elif known:
                    unchanged[t] = choice
        return LayoutDecision(orders, tuple(copies), unchanged)

    def _is_known(self, values: tuple[int, ...], v: int, value: int) -> bool:
        """Return whether the cost is known of an assignment with another value of variable v."""
        other = (*values[:v], value, *values[v + 1 :])
        return all(n.known[n.cheapest(other)] for n in self.nodes if v in n.over)

    def _convert(self, v: int, t: Tensor, value: int, choice: LayoutChoice, values: tuple[int, ...]) -> LayoutCopy:
        """Return a copy with the calls that read it in the cheapest orders of the assignment."""
        (move,) = [n.call for n in self.nodes if n.converts and n.seen[-1].stored == v]
        readers = []
        for n in self.nodes:
            at = next((k for k, s in enumerate(n.seen) if s.copy == v), None)
            if at is not None and n.cheapest(values)[at] == value:
                readers.append(n.call)
        return LayoutCopy(move, choice, tuple(readers))
