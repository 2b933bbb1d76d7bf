"""Recompute cheap tensors in their readers instead of keeping or storing them.

A tensor is recomputed in the backward pass if that is no slower than keeping it, and in all readers if storing it is
slower.

before: T[b,c,p] = max(X[b,c,p]*s[c] + t[c], 0)
        Y[b,o,p] = sum[c](W[o,c]*T[b,c,p]);  dW[o,c] = sum[b,p](G[b,o,p]*T[b,c,p])
after:  Y[b,o,p] = sum[c](W[o,c]*T[b,c,p]);  dW[o,c] = sum[b,p](G[b,o,p]*max(X[b,c,p]*s[c] + ...))
or:     Y[b,o,p] = sum[c](W[o,c]*max(X[b,c,p]*s[c] + t[c], 0));  dW[o,c] = sum[b,p](G[b,o,p]*max(X[b,c,p]*s[c] + ...))

A normalisation or an activation lies between contractions, and its gradient needs its operands in any case. A product
recomputes it while packing its operand, a stencil while loading its rows, other kernels where they read it. It is then
not kept for the backward pass, or not written at all. The predicted kernel times give the cost of each alternative, and
a minimum cut (`schedule.recomputation`) selects the cheapest combination.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from einsmith.ir.analysis.pointwise import points, pointwise_body, total_operations
from einsmith.ir.nodes import (
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
from einsmith.ir.rebuild import exchanged, readers_of, with_args
from einsmith.ir.rewrite.inlining import inline_arguments
from einsmith.ir.views import is_view, storage
from einsmith.passes.context import PassContext
from einsmith.schedule.recomputation import Option, backward_target, is_cached, is_small, saved_set, seconds_to_free

MIN_RELATIVE_DIFFERENCE = 0.02
"""Smallest difference of two predicted kernel times, as a fraction of one, that is expected to show in measured
times."""
MAX_IGNORED_DIFFERENCE = 0.03
"""Largest change of a product's predicted time, as a fraction, that is ignored when the product recomputes an
operand, which it packs in any case. Measured: six such pairs took the same time within 2 %, their predicted times
differed by 0 to 3 %."""
MAX_SIZE_RATIO = 256
"""Largest ratio of the bytes of the graph's largest result to those of a tensor that is considered."""
PROHIBITIVE_SECONDS = 1e3
"""Cost (seconds) that exceeds any benefit; it excludes an alternative."""
MAX_OPERATIONS = 120
"""Most operations per point of a kernel that reads each element once, including those that it recomputes."""


def recompute(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with the selected tensors inlined into their readers."""
    if not context.can_price:
        return graph
    nodes = list(postorder(graph.roots))
    selected, unstored = _Selection(graph, nodes, context).choose()
    if not selected:
        return graph
    memo: dict[Tensor, Tensor] = {}
    recomputed_forward: set[Tensor] = set()  # tensors that readers in the forward pass recompute
    recomputed_backward: set[Tensor] = set()
    for node in nodes:
        new = with_args(node, tuple([memo[a] for a in node.args])) if node.args else node
        recomputed = recomputed_forward if graph.role[node] == "forward" else recomputed_backward
        while isinstance(new, Compute) and (inlined := recomputed.intersection(new.args)):
            new = inline_arguments(new, inlined)
        memo[node] = new
        if node in selected:
            recomputed_backward.add(new)
        if node in unstored:
            recomputed_forward.add(new)
    return exchanged(graph, memo)


class _Selection:
    """The tensors of a graph that can be recomputed, and the cost of recomputing each."""

    def __init__(self, graph: Graph, nodes: list[Tensor], context: PassContext):
        known = [n for n in nodes if isinstance(n, Compute) and len(n.template.dtypes) == 1]
        total, largest = sum(map(nbytes, known)), max(map(nbytes, known), default=0)
        self.target = target = context.target
        self.context = replace(context, target=backward_target(target, total))
        self.readers = readers_of(nodes)
        self.role = graph.role
        self.kept = set(graph.roots)
        self.late = {storage(a) for n in nodes if self.role[n] != "forward" for a in n.args}
        self.prices: dict[object, float] = {}
        self.candidates: dict[Tensor, int] = {
            t: n for n, t in enumerate(t for t in known if self._is_cheap(t, largest))
        }

    def choose(self) -> tuple[set[Tensor], set[Tensor]]:
        """Return (tensors that are recomputed for the backward pass, those of them that are never stored)."""
        number = dict(self.candidates)
        for t in self.candidates:
            for s in map(storage, t.args):
                if not isinstance(s, Leaf):
                    number.setdefault(s, len(number))
        options = [self._build_option(t, number) for t in number]
        again, unstored = saved_set(options)
        tensors = list(number)
        return {tensors[i] for i in again}, {tensors[i] for i in unstored}

    def _is_cheap(self, t: Compute, largest: int) -> bool:
        """Return whether a tensor is pointwise in operands that are stored in any case."""
        if self.role[t] != "forward" or t in self.kept or nbytes(t) * MAX_SIZE_RATIO < largest or is_view(t.template):
            return False
        if pointwise_body(t.template) is None or not t.dtype.is_float:
            return False
        large = [a for a in t.args if not isinstance(a, Leaf) and not is_small(nbytes(a), nbytes(t))]
        return bool(t.args) and all(len(self.readers[a]) > 1 for a in large)

    def _build_option(self, t: Tensor, number: dict[Tensor, int]) -> Option:
        """Return the alternatives of a tensor with their costs; `number` gives the tensors their numbers."""
        keep_seconds = seconds_to_free(nbytes(t), self.target)
        if t not in self.candidates:
            return Option((), t in self.late, keep_seconds)
        sources = tuple(number[s] for s in dict.fromkeys(map(storage, t.args)) if s in number)
        again, unstored = self._price_alternatives(t, keep_seconds)
        if is_cached(nbytes(t), self.target):  # recompute it only if it is not stored at all
            again, unstored = (
                (inf, inf) if unstored == inf else (PROHIBITIVE_SECONDS, again + unstored - PROHIBITIVE_SECONDS)
            )
        return Option(sources, t in self.late, keep_seconds, again, unstored)

    def _price_alternatives(self, t: Tensor, keep_seconds: float) -> tuple[float, float]:
        """Return the costs `recompute_seconds` and `unstore_seconds` of a tensor's Option."""
        users = self.readers[t]
        if not all(self._can_recompute(r, t) for r in users if self.role[r] != "forward"):
            return inf, inf
        late = sorted((r for r in users if self.role[r] != "forward"), key=_is_product)  # products, priced slowly, last
        early = [r for r in users if self.role[r] == "forward"]
        stored = self._price_savings(t) if all(self._can_recompute(r, t) for r in early) else 0.0
        margin = sum(MIN_RELATIVE_DIFFERENCE * self._price(r) for r in users) if stored else 0.0
        if margin >= stored:
            stored = 0.0
        again, extra, computes = self._price_nested(t), 0.0, self._find_pointwise_reader(t)
        for r in late:
            if min(again, extra) > max(keep_seconds, stored):
                return inf, inf
            change = self._price_recomputation(r, t)
            again += change
            extra += max(0.0, change)
        if not early:
            return again, 0.0
        if not stored:
            return again, inf
        extra += margin
        for r in early:
            if extra >= stored:
                return again, inf
            extra += 0.0 if r is computes else max(0.0, self._price_recomputation(r, t))
        return again, extra - again - stored

    def _find_pointwise_reader(self, t: Tensor) -> Tensor | None:
        """Return a pointwise reader in the forward pass that may compute a tensor instead of the tensor's own kernel;
        None where a product reads it."""
        users = self.readers[t]
        if any(map(_is_product, users)):
            return None
        early = (r for r in users if self.role[r] == "forward" and isinstance(r, Compute) and r.shape == t.shape)
        return next((r for r in early if pointwise_body(r.template) is not None), None)

    def _price_savings(self, t: Tensor) -> float:
        """Return the seconds saved if a tensor is not stored and its readers read its operand, which is stored for
        other readers; 0 if that alternative is not considered. A pointwise reader that computes it instead saves the
        store alone."""
        source = max(t.args, key=nbytes)
        if self.target.fits_l2(nbytes(t)) or sum(map(nbytes, t.args)) > 1.25 * nbytes(t):
            return 0.0  # a cached tensor is read at almost no cost
        if self._find_pointwise_reader(t) is not None:
            return self.target.seconds_for_bytes(nbytes(t), 2 * nbytes(t), self.target.cores)
        users = self.readers[t]
        if not any(map(_is_product, users)) or len(self.readers[source]) == 1:
            return 0.0
        # Its kernel reads an operand that another kernel has just touched; so do readers next to other readers of it.
        read = self.target.seconds_for_bytes(nbytes(source), nbytes(source) + nbytes(t), self.target.cores)
        saved = self._price(t) - read
        if any(r in q.args and not _is_product(r) and not _is_product(q) for r in users for q in self.readers[source]):
            saved += read
        return max(0.0, saved)

    def _price_nested(self, t: Tensor) -> float:
        """Return the seconds that readers take to recompute a tensor inside another tensor that they recompute."""
        seconds = 0.0
        for u in self.readers[t]:
            if u in self.candidates and u in self.late:
                late = sum(self.role[r] != "forward" for r in self.readers[u])
                seconds += late * max(0.0, self._price_recomputation(u, t)) if self._can_recompute(u, t) else inf
        return seconds

    def _can_recompute(self, r: Tensor, t: Tensor) -> bool:
        """Return whether a reader can recompute a tensor: it computes each element about once, or packs it as an
        operand of a product."""
        if not isinstance(r, Compute) or is_view(r.template):
            return False
        if _is_product(r):
            return True
        assert isinstance(t, Compute)
        computed_once = points(r.template) * sum(a is t for a in r.args) <= size(t.shape)
        return computed_once and total_operations(r.template) + total_operations(t.template) <= MAX_OPERATIONS

    def _price(self, t: Tensor) -> float:
        assert isinstance(t, Compute)
        if t.template not in self.prices:
            self.prices[t.template] = self.context.price(t)
        return self.prices[t.template]

    def _price_recomputation(self, r: Tensor, t: Tensor) -> float:
        """Return the additional seconds of a reader that recomputes a tensor."""
        assert isinstance(r, Compute) and isinstance(t, Compute)
        key = r.template, t.template, tuple(n for n, a in enumerate(r.args) if a is t)
        if key not in self.prices:
            before = self._price(r)
            extra = self.context.price(inline_arguments(r, {t})) - before
            self.prices[key] = 0.0 if _is_product(r) and abs(extra) <= MAX_IGNORED_DIFFERENCE * before else extra
        return self.prices[key]


def _is_product(t: Tensor) -> bool:
    """Return whether a tensor is made of sums of products, whose kernels compute an element of an operand a few times
    for all sums."""
    bodies = [p.body for p in t.template.parts if isinstance(p, Piece)] if isinstance(t, Compute) else []
    return any(isinstance(b, Reduce) and b.combiner == "sum" and _is_multiplication(b.bodies[0]) for b in bodies)


def _is_multiplication(x: Expr) -> bool:
    while isinstance(x, Apply) and x.fn == "where" and is_zero(x.args[2]):
        x = x.args[1]
    return isinstance(x, Apply) and x.fn == "mul"
