"""Make one graph hold for all sizes up to a capacity: extents become limits, and constants become run-time numbers.

A function is traced for the capacity and for another size, the probe. Numbers that differ between the two graphs depend
on the size. The graph of the capacity is rewritten so that each is read from a 0-d input:

before: m[j] = sum[r](X[r, j]);  y[i, j] = X[i, j] - m[j]/64.0        (i, r < 64, the capacity)
after:  m[j] = sum[r](where(r < n, X[r, j], 0));  y[i, j] = X[i, j] - m[j]/c

Below the limit, the results are those of the graph of a smaller size; beyond it they are unspecified, and nothing that
lies below the limit reads them. A smaller size is proven, not assumed: `SizedGraph.fit` compares the function's graph
for that size with the other two, node by node, and takes the values of the numbers from it. Graphs that differ in
anything else do not fit, and need a program of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import frexp
from typing import Any, NamedTuple

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.captured import CapturedArray
from einsmith.base.dtypes import DType
from einsmith.base.errors import BoundsError, VerifyError
from einsmith.ir.functions import identity
from einsmith.ir.interned import Node
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Item,
    Leaf,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Scatter,
    Template,
    Tensor,
    apply,
    has_read,
    leaf,
    postorder,
    reads,
    template,
)
from einsmith.ir.rebuild import (
    clamp_index,
    map_bodies,
    map_templates,
    rebuild,
    replace,
    substitute,
    whole_sum,
    with_args,
)
from einsmith.ir.rewrite.simplify import simplify_template
from einsmith.ir.verify import out_of_bounds, verify_graph, verify_recurrence, verify_template
from einsmith.schedule.limits import RowLimit

_FIRST_NUMBER = 1 << 20
"""First slot of the run-time numbers while a template is rewritten."""


class SizeDependentError(Exception):
    """A graph depends on a size in a way that needs a program for each size; the text says why."""


class Varying(NamedTuple):
    """A number that depends on the size: its values for the capacity and for the probe. dtype: the type of a constant;
    None for an extent."""

    dtype: DType | None
    capacity: float | int
    probe: float | int


class TracedSize:
    """A traced graph, and the arrays that hold the values of captured leaves. live: those of them that may change.

    Decisions of the trace that depend on a size are undone: factors that are powers of two are divisors again, as a
    division by a power of two is traced as a product, and the axes of checks are in the order of their first reads, not
    by extents.
    """

    def __init__(self, graph: Graph, bind: Mapping[Leaf, np.ndarray], live: Iterable[np.ndarray] = ()):
        checks = tuple((_order_axes(t), message) for t, message in graph.checks)
        graph = Graph(graph.inputs, graph.outputs, graph.updates, checks, graph.gradients)
        self.graph, self.bind, self.live = replace(graph, _divide), bind, set(map(id, live))


def _order_axes(t: Tensor) -> Tensor:
    """Return a sum of integers with its axes in the order in which the body has them."""
    if not isinstance(t, Compute) or t.shape or not t.dtype.is_int:
        return t
    piece = whole_sum(t.template)
    if piece is None:
        return t
    axes = [e.position for e in postorder(piece.bodies) if isinstance(e, Axis)]
    axes += [n for n in range(len(piece.domain)) if n not in axes]
    body = substitute(piece.bodies[0], {a: Axis(n) for n, a in enumerate(axes)})
    extents = tuple(piece.domain[a] for a in axes)
    return Compute(simplify_template(template((), t.template.params, Reduce("sum", extents, (body,)))), t.args)


def _divide(node: Any) -> Any:
    return map_templates(node, lambda t: t.memo("quotients", lambda t: map_bodies(t, _rule(_divide_expr))))


def _divide_expr(e: Any) -> Expr | None:
    """Return x/c for x*(1/c), which is the same number, where c is a power of two."""
    if not (isinstance(e, Apply) and e.fn == "mul" and e.dtype.is_float):
        return None
    for x, c in (e.args, e.args[::-1]):
        if isinstance(c, Const) and 0 < abs(c.value) < 1 and abs(frexp(c.value)[0]) == 0.5:
            inverse = Const(1 / c.value, c.dtype)
            return apply("div", x, inverse) if 1 / inverse.value == c.value else None
    return None


@dataclass(frozen=True)
class SizedGraph:
    """A graph for all sizes up to a capacity.

    Attributes:
        graph: the graph. Its inputs are those of the trace for the capacity, then the leaves of `numbers`.
        numbers: the 0-d leaf of each number that depends on the size
        capacity, probe: the traces from which the graph was made
        limits: limits of the first extents of inputs and outputs
        is_by_rows: whether no tensor has the size in another dimension than the first, and one size varies
    """

    graph: Graph
    numbers: dict[Varying, Leaf]
    capacity: TracedSize
    probe: TracedSize
    limits: tuple[RowLimit, ...]
    is_by_rows: bool

    def fit(self, traced: TracedSize) -> list[np.ndarray]:
        """Return the values of the numbers for the size of a trace, in the order of `numbers`.

        Raises:
            SizeDependentError: the trace is not an instance of this graph.
        """
        known: dict[Varying, float | int] = {}

        def note(numbers: tuple, dtype: DType | None) -> None:
            capacity, probe, value = numbers
            if _is_equal(capacity, probe):
                if not _is_equal(capacity, value):
                    raise SizeDependentError(f"{value} at this size is {capacity} at others")
                return
            key = Varying(dtype, capacity, probe)
            if not _is_equal(known.setdefault(key, value), value):
                raise SizeDependentError(f"{known[key]} and {value} at this size are both {capacity} at the capacity")
            if dtype is None and not 0 < value <= capacity:
                raise SizeDependentError(f"the extent {value} is not between 1 and {capacity}")

        for _ in _walk((self.capacity, self.probe, traced), note):
            pass
        return [np.asarray(known[key], (dt.i32 if key.dtype is None else key.dtype).numpy) for key in self.numbers]


def size_graph(capacity: TracedSize, probe: TracedSize) -> SizedGraph:
    """Return the graph for all sizes up to a capacity.

    Args:
        capacity: the trace for the capacity.
        probe: the trace for another size.

    Raises:
        SizeDependentError: the function depends on the size in another way than by extents and constants, or in one
            that the rewriting does not support.
    """
    numbers: dict[Varying, Leaf] = {}
    new: dict[tuple, Any] = {}
    rewriter, is_by_rows = _CapacityRewriter(numbers), True
    for pair in _walk((capacity, probe), lambda *_: None):
        new[pair] = rewriter.rewrite(pair, new)
        is_by_rows &= not isinstance(pair[0], Recurrence) and pair[0].shape[1:] == pair[1].shape[1:]
    before, other = capacity.graph, probe.graph

    def image(a: Tensor, b: Tensor) -> Tensor:
        return new[a, b]

    roots = (
        tuple(map(image, before.outputs, other.outputs)),
        tuple((x, image(t, u)) for (x, t), (_, u) in zip(before.updates, other.updates, strict=True)),
        tuple((image(t, u), message) for (t, message), (u, _) in zip(before.checks, other.checks, strict=True)),
        tuple(map(image, before.gradients, other.gradients)),
    )
    pairs = [*zip(before.inputs, other.inputs, strict=True), *zip(before.outputs, other.outputs, strict=True)]
    rows = dict.fromkeys(x for a, b in pairs if (x := _first_extent(a, b)) is not None)
    outputs = [_first_extent(a, b) for a, b in zip(before.outputs, other.outputs, strict=True)]
    limits = [
        RowLimit(rewriter.leaf_of(x), int(x.capacity), frozenset(n for n, y in enumerate(outputs) if y == x))
        for x in rows
    ]
    graph = Graph((*before.inputs, *numbers.values()), *roots)
    verify_graph(graph)
    return SizedGraph(graph, numbers, capacity, probe, tuple(limits), is_by_rows and len(limits) == 1)


def _first_extent(a: Tensor, b: Tensor) -> Varying | None:
    """Return the first extent of a tensor, of the capacity and of the probe, if it depends on the size."""
    return Varying(None, a.shape[0], b.shape[0]) if a.shape[:1] != b.shape[:1] else None


# ---------------------------------------------------------------------------------------------------- comparison


def _is_equal(a: Any, b: Any) -> bool:
    """Return whether two numbers are one and the same: 0.0 is not -0.0, 1 is not True, and NaN is itself."""
    return type(a) is type(b) and (repr(a) == repr(b) if isinstance(a, float) else a == b)


def _are_bound_alike(traces: Sequence[TracedSize], leaves: Sequence[Leaf]) -> bool:
    """Return whether leaves of several traces have the same values, now and later: one array, or copies of equal bytes
    that nothing changes."""
    arrays = [x.bind.get(y) for x, y in zip(traces, leaves, strict=True)]
    first = arrays[0]
    if all(a is first for a in arrays):
        return True
    if isinstance(first, CapturedArray):  # others may change it
        source = first.source
        return all(isinstance(a, CapturedArray) and a.source is source for a in arrays)
    if any(a is None or isinstance(a, CapturedArray) or id(a) in x.live for x, a in zip(traces, arrays, strict=True)):
        return False
    return all(
        (a.shape, a.dtype) == (first.shape, first.dtype) and a.tobytes() == first.tobytes()
        for a in arrays
        if a is not None and first is not None
    )


def _walk(traces: tuple[TracedSize, ...], note: Callable[[tuple, DType | None], None]) -> Iterator[tuple]:
    """Yield the tuples of corresponding tensors and recurrences of several graphs, arguments ahead of users.

    `note(numbers, dtype)` is called with corresponding numbers; `dtype` is that of a constant, None of an extent.
    Raises SizeDependentError where the graphs differ in more than numbers.
    """
    graphs = [x.graph for x in traces]
    seen: set[tuple] = set()
    for leaves in _zip([g.inputs for g in graphs], "the inputs"):
        if not _are_bound_alike(traces, leaves):
            raise SizeDependentError("it captures an array that is another one for each size")
        if any(y.after is not None for y in leaves) or any(y.dtype is not leaves[0].dtype for y in leaves):
            raise SizeDependentError("the inputs have other types, or come from a group of processes")
        _compare([y.shape for y in leaves], note, seen)
        seen.add(tuple(leaves))
        yield tuple(leaves)
    updated = _zip([tuple(x for x, _ in g.updates) for g in graphs], "the updates")
    if any(x not in seen for x in updated):
        raise SizeDependentError("the updates differ")
    for message in _zip([tuple(m for _, m in g.checks) for g in graphs], "the checks"):
        if len(set(message)) > 1:
            raise SizeDependentError("an index that is read from a tensor points into an axis of this size")
    _zip([g.outputs for g in graphs], "the results")
    _zip([g.gradients for g in graphs], "the gradients")
    for nodes in _postorder(_zip([(*g.roots, *g.gradients) for g in graphs], "the results"), seen):
        _compare_nodes(nodes, note, seen)
        yield nodes


def _postorder(roots: Iterable[tuple], seen: set[tuple]) -> Iterator[tuple]:
    """Yield the tuples of corresponding nodes below tuples of roots that are not in `seen`, arguments ahead of users.

    Raises SizeDependentError where nodes are of other kinds.
    """
    for root in roots:
        stack: list[tuple | None] = [root]  # None is pushed above nodes whose arguments are done
        while stack:
            nodes = stack.pop()
            if nodes is None:
                done = stack.pop()
                assert done is not None
                if done not in seen:
                    seen.add(done)
                    yield done
            elif nodes not in seen:
                if any(type(x) is not type(nodes[0]) for x in nodes) or isinstance(nodes[0], Leaf):
                    raise SizeDependentError("other tensors are computed")
                stack += (nodes, None)
                stack += reversed(_zip([x.args for x in nodes], "the operands of a tensor"))


def _zip(columns: Sequence[Sequence[Any]], what: str) -> list[tuple]:
    if any(len(x) != len(columns[0]) for x in columns):
        raise SizeDependentError(f"{what} differ in number")
    return list(zip(*columns, strict=True))


def _compare_nodes(nodes: tuple, note: Callable, seen: set) -> None:
    """Compare corresponding tensors without their arguments."""
    first = nodes[0]
    if isinstance(first, Compute):
        _compare([x.template for x in nodes], note, seen)
    elif isinstance(first, Recurrence):
        _compare([(x.steps, x.reverse, x.origins, x.members, x.checkpoint) for x in nodes], note, seen)
    elif isinstance(first, Item):
        if any(x.member != first.member for x in nodes):
            raise SizeDependentError("other tensors are computed")
    else:
        raise SizeDependentError(f"the graph has a {type(first).__name__}")


def _compare(values: Sequence[Any], note: Callable, seen: set) -> None:
    """Compare corresponding fields of nodes; `seen` holds the nodes that were compared already."""
    stack = [tuple(values)]
    while stack:
        items = stack.pop()
        first = items[0]
        if any(type(x) is not type(first) for x in items):
            raise SizeDependentError("the formulas differ")
        if isinstance(first, tuple):
            if any(len(x) != len(first) for x in items):
                raise SizeDependentError("the formulas differ")
            stack += zip(*items, strict=True)
        elif isinstance(first, Node):
            if items in seen:
                continue
            seen.add(items)
            if isinstance(first, Const):
                if any(x.dtype is not first.dtype for x in items):
                    raise SizeDependentError("the formulas differ")
                note(tuple(x.value for x in items), first.dtype)
            elif isinstance(first, Axis):
                if any(x is not first for x in items):
                    raise SizeDependentError("the formulas differ")
            elif isinstance(first, Read) and any(x.slot != first.slot for x in items):
                raise SizeDependentError("the formulas differ")
            else:
                stack += [tuple(getattr(x, f) for x in items) for f in first.fields if f != "slot"]
        elif isinstance(first, (int, float)) and not isinstance(first, bool):
            note(items, None)
        elif any(x != first for x in items):
            raise SizeDependentError("the formulas differ")


# ----------------------------------------------------------------------------------------------------- rewriting


class _CapacityRewriter:
    """The rewriting of pairs of tensors, of the capacity and of the probe. numbers: the leaves made so far."""

    def __init__(self, numbers: dict[Varying, Leaf]):
        self._numbers = numbers

    def leaf_of(self, key: Varying) -> Leaf:
        """Return the leaf that holds a number."""
        if key not in self._numbers:
            self._numbers[key] = leaf((), dt.i32 if key.dtype is None else key.dtype)
        return self._numbers[key]

    def rewrite(self, pair: tuple, new: Mapping[tuple, Any]) -> Any:
        """Return the tensor or recurrence for a pair; `new` holds those of its arguments."""
        a, b = pair
        if isinstance(a, Leaf):
            return a
        args = tuple(new[x] for x in zip(a.args, b.args, strict=True))
        if isinstance(a, Item):
            return Item(args[0], a.member)
        if isinstance(a, Compute):
            work = _Template(a.template, b.template)
            slots = {s: len(args) + n for n, s in enumerate(work.keys.values())}
            params = (*a.template.params, *((self.leaf_of(k).dtype, ()) for k in work.keys))
            return Compute(work.finish(slots, params), (*args, *map(self.leaf_of, work.keys)))
        assert isinstance(a, Recurrence)
        return self._rewrite_recurrence(a, b, args)

    def _rewrite_recurrence(self, a: Recurrence, b: Recurrence, args: tuple[Tensor, ...]) -> Recurrence:
        if (a.steps, a.origins) != (b.steps, b.origins):
            raise SizeDependentError("it is the number of steps of a recurrence")
        members = [_Template(x, y) for x, y in zip(a.members, b.members, strict=True)]
        keys = list(dict.fromkeys(k for m in members for k in m.keys))
        numbers = tuple(map(self.leaf_of, keys))
        params = tuple((x.dtype, x.shape) for x in (*args, *numbers)) + a.results
        finished = []
        for m in members:
            slots = {s: len(args) + keys.index(k) for k, s in m.keys.items()}
            slots |= {len(args) + i: len(args) + len(keys) + i for i in range(len(members))}
            finished.append(m.finish(slots, params))
        new = Recurrence(a.steps, a.reverse, a.origins, tuple(finished), (*args, *numbers), a.checkpoint)
        with _unproven():  # conditions on the size prove no longer what is read at the same step
            verify_recurrence(new)
        return new


@contextmanager
def _unproven() -> Iterator[None]:
    """Raise SizeDependentError where a check of the IR's rules fails within."""
    try:
        yield
    except (BoundsError, VerifyError) as e:
        raise SizeDependentError(f"a formula is not proven for smaller sizes ({e})") from None


class _Template:
    """The rewriting of a template. keys: the numbers that it reads, each with its slot while it is rewritten."""

    def __init__(self, a: Template, b: Template):
        self._a, self._b = a, b
        self.keys: dict[Varying, int] = {}
        if any(0 in shape for _, shape in (*a.params, *b.params)) or 0 in a.shape or 0 in b.shape:
            raise SizeDependentError("a tensor is empty")
        self._varying = {d for d, (n, m) in enumerate(zip(a.shape, b.shape, strict=True)) if n != m}
        self._new: dict[tuple, Expr] = {}
        self._parts = [self._rewrite_part(p, q) for p, q in zip(a.parts, b.parts, strict=True)]

    def finish(self, slots: Mapping[int, int], params: tuple) -> Template:
        """Return the rewritten template, with some slots renumbered, in which every read is proven in bounds."""

        def renumber(e: Any) -> Expr | None:
            return Read(slots[e.slot], e.index, e.dtype) if isinstance(e, Read) and e.slot in slots else None

        def clamp(e: Any) -> Expr | None:
            if not isinstance(e, Read) or e not in outside:
                return None
            extents = params[e.slot][1]
            return Read(e.slot, tuple(map(clamp_index, e.index, extents)), e.dtype)

        t = map_bodies(Template(self._a.shape, self._a.params, tuple(self._parts)), _rule(renumber), params)
        while outside := {x.read for x in out_of_bounds(t) if x.read is not None}:
            # A condition that was a constant one proves nothing any more; where it holds, the index is in bounds.
            clamped = map_bodies(t, _rule(clamp))
            if clamped is t:
                break
            t = clamped
        with _unproven():
            verify_template(t)
        return t

    def _number(self, key: Varying) -> Read:
        slot = self.keys.setdefault(key, _FIRST_NUMBER + len(self.keys))
        return Read(slot, (), dt.i32 if key.dtype is None else key.dtype)

    def _rewrite_part(self, p: Piece | Scatter, q: Piece | Scatter) -> Piece | Scatter:
        self._refuse_computed(p, q)
        axes = [(n, a, b) for n, (a, b) in enumerate(zip(p.domain, q.domain, strict=True))]
        bodies = [self._rewrite_expr(x, y) for x, y in zip(p.bodies, q.bodies, strict=True)]
        if isinstance(p, Scatter):
            guards = self._below(axes)
            # An index of axes alone is in bounds at the capacity, too.
            index = tuple(_guarded(guards, x, 0) if has_read(x) else x for x in bodies[:-1])
            return Scatter(p.combiner, p.extents, index, _guarded(guards, bodies[-1], p.neutral))
        assert isinstance(q, Piece)
        rank = len(p.extents)
        for d, a, b in axes[:rank]:
            is_whole = (p.offset[d], p.step[d], a) == (0, 1, self._a.shape[d]) and b == self._b.shape[d]
            if p.step != q.step or p.offset != q.offset or (d in self._varying and not is_whole):
                raise SizeDependentError("tensors are joined or padded along an axis of this size")
        # What lies beyond a limit is not an index; elsewhere it is left to be anything.
        is_gather = any(has_read(i) for e in bodies for x in reads(e) for i in x.index)
        guards = self._below(axes if is_gather else axes[rank:])
        if not isinstance(p.body, Reduce):
            return Piece(p.offset, p.step, p.extents, _guarded(guards, bodies[0], 0))
        combiner = p.body.combiner
        if combiner.startswith("arg") and any(a != b for _, a, b in axes[rank + 1 :]):
            raise SizeDependentError(f"{combiner} counts positions along an axis of this size")
        bodies = [_guarded(guards, x, identity(combiner, x.dtype)) for x in bodies]
        return Piece(p.offset, p.step, p.extents, Reduce(combiner, p.body.extents, tuple(bodies)))

    def _below(self, axes: Iterable[tuple[int, int, int]]) -> list[Expr]:
        """Return the conditions that axes lie below their limits; axes: (position, extent for the capacity, extent for
        the probe)."""
        return [apply("lt", Axis(n), self._number(Varying(None, a, b))) for n, a, b in axes if a != b]

    def _rewrite_expr(self, a: Expr, b: Expr) -> Expr:
        """Return an expression in which constants that depend on the size are read."""
        new = self._new
        seen = set(new)
        for pair in _postorder([(a, b)], seen):
            x, y = pair
            args = tuple(new[z] for z in zip(x.args, y.args, strict=True))
            new[pair] = with_args(x, args) if args else x
            if isinstance(x, Const) and not _is_equal(x.value, y.value):
                if x.dtype.is_bool:
                    raise SizeDependentError("a condition has another value")
                new[pair] = self._number(Varying(x.dtype, x.value, y.value))
            elif isinstance(x, Read) and args != x.index:
                extents = self._a.params[x.slot][1]
                pairs = zip(x.index, args, extents, strict=True)
                new[pair] = Read(x.slot, tuple(i if i is j else clamp_index(j, n) for i, j, n in pairs), x.dtype)
        return new[a, b]

    def _refuse_computed(self, p: Piece | Scatter, q: Piece | Scatter) -> None:
        """Refuse an index that is read from a tensor into an axis of this size: its check would be for the capacity."""
        indices = [
            (i, n != m)
            for x in reads_of(p.bodies)
            for i, n, m in zip(x.index, self._a.params[x.slot][1], self._b.params[x.slot][1], strict=True)
        ]
        if isinstance(p, Scatter):
            indices += [(i, d in self._varying) for d, i in enumerate(p.index)]
        if any(varies and has_read(i) for i, varies in indices):
            raise SizeDependentError("an index that is read from a tensor points into an axis of this size")


def reads_of(exprs: Iterable[Expr]) -> list[Read]:
    """Return every Read in expressions, each once."""
    return list(dict.fromkeys(x for e in exprs for x in reads(e)))


def _rule(rule: Callable[[Any], Any]) -> Callable[[Expr], Expr]:
    return lambda body: rebuild([body], rule)[0]


def _guarded(guards: Sequence[Expr], x: Expr, otherwise: float | int | bool) -> Expr:
    """Return x where all guards hold, elsewhere a constant."""
    for g in reversed(guards):
        x = apply("where", g, x, Const(otherwise, x.dtype))
    return x
