"""What is cheap is made again by those who read it: for the backward pass, where that takes no longer than to hold it;
by all of them, where storing it takes longer.

before: T[b,c,p] = max(X[b,c,p]*s[c] + t[c], 0)
        Y[b,o,p] = sum[c](W[o,c]*T[b,c,p]);  dW[o,c] = sum[b,p](G[b,o,p]*T[b,c,p])
after:  Y[b,o,p] = sum[c](W[o,c]*T[b,c,p]);  dW[o,c] = sum[b,p](G[b,o,p]*max(X[b,c,p]*s[c] + ...))
or:     Y[b,o,p] = sum[c](W[o,c]*max(X[b,c,p]*s[c] + t[c], 0));  dW[o,c] = sum[b,p](G[b,o,p]*max(X[b,c,p]*s[c] + ...))

A normalisation or an activation stands between contractions, and its gradient needs what it is made of in any case. A
product makes it while it packs its operand, a stencil while it loads its rows, other kernels where they read it, of
what is stored for others; nobody keeps it for the backward pass, or nobody writes it. The prices of the kernels say
what each way costs, and a minimum cut (`passes.analysis.saved_set`) takes the best of all.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from einsmith.expr.nodes import (
    Apply,
    Compute,
    Expr,
    Graph,
    Leaf,
    Piece,
    Reduce,
    Tensor,
    is_zero,
    nbytes,
    postorder,
    size,
)
from einsmith.expr.rewrite.rebuild import exchanged, readers_of, with_args
from einsmith.passes.algebra.inline import inlined, points, pointwise_body, total_operations
from einsmith.passes.analysis.saved_set import Option, saved_set
from einsmith.passes.schedule.views import is_view, storage

if TYPE_CHECKING:
    from einsmith.passes.pipeline import PassContext

UNCERTAIN = 0.02
"""How far apart the prices of two kernels must be, as a part of one, for their difference to be one on the clock."""
ALIKE = 0.03
"""The part of a product's price up to which that of one that makes its operand is the same, as it packs it in any case:
of six such pairs, which took the same time to 2 %, the prices were 0 to 3 % apart."""
HELD = 1e-3
"""What it is worth that a byte is not held for the backward pass, in times of its read from memory: less than any time
that is told apart, so that memory falls where the step takes no longer."""
WORTHWHILE = 256
"""What is so many times smaller than the largest result is not looked at."""
FAR = 4
"""What is so many times smaller than the last level of cache is held there as well as what it is made of."""
SMALL = 16
"""What is so many times smaller than what is made of it may be stored for that."""
NEVER = 1e3
"""Seconds that nothing is worth."""
OPERATIONS = 120
"""What a kernel that reads each element once may compute of each point, with what it makes again."""


def recompute(graph: Graph, context: PassContext) -> Graph:
    """The graph with such tensors made by their readers."""
    if not context.prices:
        return graph
    nodes = list(postorder(graph.roots))
    again, unstored = _Choice(graph, nodes, context).best()
    if not again:
        return graph
    memo: dict[Tensor, Tensor] = {}
    early: set[Tensor] = set()  # what readers in the forward pass make
    late: set[Tensor] = set()
    for node in nodes:
        new = with_args(node, tuple([memo[a] for a in node.args])) if node.args else node
        made = early if graph.role[node] == "forward" else late
        while isinstance(new, Compute) and (todo := made.intersection(new.args)):
            new = inlined(new, todo)
        memo[node] = new
        if node in again:
            late.add(new)
        if node in unstored:
            early.add(new)
    return exchanged(graph, memo)


class _Choice:
    """The tensors of a graph that might be made again, and what that costs."""

    def __init__(self, graph: Graph, nodes: list[Tensor], context: PassContext):
        known = [n for n in nodes if isinstance(n, Compute) and len(n.template.dtypes) == 1]
        total, largest = sum(map(nbytes, known)), max(map(nbytes, known), default=0)
        self.target = target = context.target
        if total > target.l3:  # what waits for the backward pass comes from memory
            context = replace(context, target=replace(target, l3=min(target.l3, target.l2 * target.cores)))
        self.context = context
        self.readers = readers_of(nodes)
        self.role = graph.role
        self.kept = set(graph.roots)
        self.late = {storage(a) for n in nodes if self.role[n] != "forward" for a in n.args}
        self.prices: dict[object, float] = {}
        self.found: dict[Tensor, int] = {t: n for n, t in enumerate(t for t in known if self._is_cheap(t, largest))}

    def best(self) -> tuple[set[Tensor], set[Tensor]]:
        """What is made again for the backward pass, and what of it is never stored."""
        number = dict(self.found)
        for t in self.found:
            for s in map(storage, t.args):
                if not isinstance(s, Leaf):
                    number.setdefault(s, len(number))
        options = [self._option(t, number) for t in number]
        again, unstored = saved_set(options)
        tensors = list(number)
        return {tensors[i] for i in again}, {tensors[i] for i in unstored}

    def _is_cheap(self, t: Compute, largest: int) -> bool:
        """Whether a tensor is made element by element of what is stored for others in any case."""
        if self.role[t] != "forward" or t in self.kept or nbytes(t) * WORTHWHILE < largest or is_view(t.template):
            return False
        if pointwise_body(t.template) is None or not t.dtype.is_float:
            return False
        large = [a for a in t.args if not isinstance(a, Leaf) and nbytes(a) * SMALL > nbytes(t)]
        return bool(t.args) and all(len(self.readers[a]) > 1 for a in large)

    def _option(self, t: Tensor, number: dict[Tensor, int]) -> Option:
        held = HELD * self.target.seconds_for_bytes(nbytes(t), nbytes(t) + self.target.l3, self.target.cores)
        if t not in self.found:
            return Option((), t in self.late, held)
        sources = tuple(number[s] for s in dict.fromkeys(map(storage, t.args)) if s in number)
        again, unstored = self._prices(t, held)
        if nbytes(t) * FAR <= self.target.l3:  # it is made again only where nobody stores it
            again, unstored = (inf, inf) if unstored == inf else (NEVER, again + unstored - NEVER)
        return Option(sources, t in self.late, held, again, unstored)

    def _prices(self, t: Tensor, held: float) -> tuple[float, float]:
        """`again` and `unstored` of a tensor's Option."""
        users = self.readers[t]
        if not all(self._makes(r, t) for r in users if self.role[r] != "forward"):
            return inf, inf
        late = sorted((r for r in users if self.role[r] != "forward"), key=_is_product)  # those that are priced quickly
        early = [r for r in users if self.role[r] == "forward"]
        stored = self._stored(t) if all(self._makes(r, t) for r in early) else 0.0
        margin = sum(UNCERTAIN * self._price(r) for r in users) if stored else 0.0
        if margin >= stored:
            stored = 0.0
        again, more = self._nested(t), 0.0
        for r in late:
            if min(again, more) > max(held, stored):
                return inf, inf
            difference = self._more(r, t)
            again += difference
            more += max(0.0, difference)
        if not early:
            return again, 0.0
        if not stored:
            return again, inf
        more += margin
        for r in early:
            if more >= stored:
                return again, inf
            more += max(0.0, self._more(r, t))
        return again, more - again - stored

    def _stored(self, t: Tensor) -> float:
        """Seconds that are saved where nobody stores a tensor of one that is stored for others; 0 where that is not
        looked at."""
        source = max(t.args, key=nbytes)
        if nbytes(t) <= self.target.l2 * self.target.cores or sum(map(nbytes, t.args)) > 1.25 * nbytes(t):
            return 0.0  # what is in cache costs next to nothing to read there
        users = self.readers[t]
        if not any(map(_is_product, users)) or len(self.readers[source]) == 1:
            return 0.0
        # Its kernel reads what another one has just read, or made; and so do readers that stand beside others of that.
        read = self.target.seconds_for_bytes(nbytes(source), nbytes(source) + nbytes(t), self.target.cores)
        saved = self._price(t) - read
        if any(r in q.args and not _is_product(r) and not _is_product(q) for r in users for q in self.readers[source]):
            saved += read
        return max(0.0, saved)

    def _nested(self, t: Tensor) -> float:
        """Seconds that readers take to make a tensor where they make another one of it."""
        seconds = 0.0
        for u in self.readers[t]:
            if u in self.found and u in self.late:
                late = sum(self.role[r] != "forward" for r in self.readers[u])
                seconds += late * max(0.0, self._more(u, t)) if self._makes(u, t) else inf
        return seconds

    def _makes(self, r: Tensor, t: Tensor) -> bool:
        """Whether a reader can make a tensor, each element about once, or a product's operand."""
        if not isinstance(r, Compute) or is_view(r.template):
            return False
        if _is_product(r):
            return True
        assert isinstance(t, Compute)
        once = points(r.template) * sum(a is t for a in r.args) <= size(t.shape)
        return once and total_operations(r.template) + total_operations(t.template) <= OPERATIONS

    def _price(self, t: Tensor) -> float:
        assert isinstance(t, Compute)
        if t.template not in self.prices:
            self.prices[t.template] = self.context.price(t)
        return self.prices[t.template]

    def _more(self, r: Tensor, t: Tensor) -> float:
        """Seconds that a reader takes longer where it makes a tensor."""
        assert isinstance(r, Compute) and isinstance(t, Compute)
        key = r.template, t.template, tuple(n for n, a in enumerate(r.args) if a is t)
        if key not in self.prices:
            before = self._price(r)
            more = self.context.price(inlined(r, {t})) - before
            self.prices[key] = 0.0 if _is_product(r) and abs(more) <= ALIKE * before else more
        return self.prices[key]


def _is_product(t: Tensor) -> bool:
    """Whether a tensor is sums of products, whose kernels make an element of an operand a few times for all sums."""
    bodies = [p.body for p in t.template.parts if isinstance(p, Piece)] if isinstance(t, Compute) else []
    return any(isinstance(b, Reduce) and b.combiner == "sum" and _multiplies(b.bodies[0]) for b in bodies)


def _multiplies(x: Expr) -> bool:
    while isinstance(x, Apply) and x.fn == "where" and is_zero(x.args[2]):
        x = x.args[1]
    return isinstance(x, Apply) and x.fn == "mul"
