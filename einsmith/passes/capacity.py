"""Make one graph hold for all sizes up to a capacity: extents become limits, and constants become run-time numbers.

A function is traced for the capacity and for another size, the probe. Numbers that differ between the two graphs depend
on the size. The graph of the capacity is rewritten so that each is read from a 0-d input:

before: m[j] = sum[r](X[r, j]);  y[i, j] = X[i, j] - m[j]/64.0        (i, r < 64, the capacity)
after:  m[j] = sum[r](where(r < n, X[r, j], 0));  y[i, j] = X[i, j] - m[j]/c

Below the limit, the results are those of the graph of a smaller size; beyond it they are unspecified, and nothing that
lies below the limit reads them. A smaller size is proven, not assumed: `SizedGraph.fit` compares the function's graph
for that size with the other two, node by node, and takes the values of the numbers from it. Graphs that differ in
anything else do not fit, and need a program of their own. Where the function is a formula, one trace on symbolic
extents tells for which sizes the graph holds, with which numbers (`SymbolicSizes`), and no further size is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import BoundsError, VerifyError
from einsmith.base.symbolic import At, Scope, hint, is_same, is_symbolic
from einsmith.ir.functions import identity
from einsmith.ir.nodes import (
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
    reads,
)
from einsmith.ir.rebuild import (
    clamp_index,
    map_bodies,
    rebuild,
    substitute,
    with_args,
)
from einsmith.ir.rewrite.rules import connect
from einsmith.ir.verify import out_of_bounds, verify_graph, verify_recurrence, verify_template
from einsmith.passes.size_traces import (
    SizeDependentError,
    TracedSize,
    Varying,
    is_equal,
    postorder_together,
    walk_together,
)
from einsmith.schedule.limits import RowLimit

_FIRST_NUMBER = 1 << 20
"""First slot of the run-time numbers while a template is rewritten."""


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
            if is_equal(capacity, probe):
                if not is_equal(capacity, value):
                    raise SizeDependentError(f"{value} at this size is {capacity} at others")
                return
            key = Varying(dtype, capacity, probe)
            if not is_equal(known.setdefault(key, value), value):
                raise SizeDependentError(f"{known[key]} and {value} at this size are both {capacity} at the capacity")
            if dtype is None and not 0 < value <= capacity:
                raise SizeDependentError(f"the extent {value} is not between 1 and {capacity}")

        for _ in walk_together((self.capacity, self.probe, traced), note):
            pass
        return [_number(key, known[key]) for key in self.numbers]


class SymbolicSizes:
    """How the numbers of a graph follow from sizes, where a trace on symbolic extents proves it: no other size need be
    traced.

    Args:
        graph: the graph.
        traced: the trace on the symbols of `scope`, which have their values at the capacity.
        probe: the values of the symbols at the graph's probe.

    Raises:
        SizeDependentError: the trace is not the graph's, or does not say how a number follows from the sizes.
    """

    def __init__(self, graph: SizedGraph, traced: TracedSize, scope: Scope, probe: Sequence[int]):
        known: dict[Varying, Any] = {}

        def note(numbers: tuple, dtype: DType | None) -> None:
            capacity, other, x = numbers
            if is_equal(capacity, other):
                if not is_equal(capacity, x.fixed() if is_symbolic(x) else x):
                    raise SizeDependentError(f"{x} is {capacity} at two sizes")
            elif not is_same(known.setdefault(Varying(dtype, capacity, other), x), x):
                raise SizeDependentError(f"{capacity} follows from the size in two ways")

        for _ in walk_together((graph.capacity, graph.probe, traced), note):
            pass
        at = scope.at(probe)
        if at is None:
            raise SizeDependentError("the probe is decided otherwise")
        for key, x in known.items():
            if not (is_equal(hint(x), key.capacity) and is_equal(at.value(x), key.probe)):
                raise SizeDependentError(f"how {key.capacity} follows from the size is not known")
        self._numbers = [(key, known[key]) for key in graph.numbers]
        self._inputs = [x.shape for x in traced.graph.inputs if x not in traced.bind]
        self._outputs = [t.shape for t in traced.graph.outputs]

    def fit(self, at: At) -> SymbolicFit | None:
        """Return how the graph fits values of the symbols of its trace; None where an extent leaves the capacity."""
        values = [(key, at.value(x)) for key, x in self._numbers]
        if any(key.dtype is None and not 0 < x <= key.capacity for key, x in values):
            return None
        inputs, outputs = (
            tuple(tuple(map(at.value, shape)) for shape in shapes) for shapes in (self._inputs, self._outputs)
        )
        return SymbolicFit(inputs, tuple(_number(key, x) for key, x in values), outputs)


class SymbolicFit(NamedTuple):
    """Shapes of the arrays that a graph reads and gives at a size, and the values of its numbers."""

    inputs: tuple[tuple[int, ...], ...]
    numbers: tuple[np.ndarray, ...]
    outputs: tuple[tuple[int, ...], ...]


def _number(key: Varying, value: float | int) -> np.ndarray:
    return np.asarray(value, (dt.i32 if key.dtype is None else key.dtype).numpy)


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
    for pair in walk_together((capacity, probe), lambda *_: None):
        new[pair] = rewriter.rewrite(pair, new)
        is_by_rows &= not isinstance(pair[0], Recurrence) and pair[0].shape[1:] == pair[1].shape[1:]
    before, other = capacity.graph, probe.graph

    def image(a: Tensor, b: Tensor) -> Tensor:
        return new[a, b]

    if any(x.shape != y.shape for (x, _), (y, _) in zip(before.updates, other.updates, strict=True)):
        raise SizeDependentError("an array that changes in place has this size")
    roots = (
        tuple(map(image, before.outputs, other.outputs)),
        tuple((x, image(t, u)) for (x, t), (_, u) in zip(before.updates, other.updates, strict=True)),
        # An index into an axis of a fixed extent is checked as the compilation checks it.
        tuple((image(t, u), m) for (t, m), (u, n) in zip(before.checks, other.checks, strict=True) if m != n),
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
        pairs = list(zip(a.parts, b.parts, strict=True))
        if all(isinstance(p, Scatter) or self._is_whole(p, q) for p, q in pairs):
            self._parts = [self._rewrite_part(p, q) for p, q in pairs]
        else:
            self._parts = [self._join(pairs)]

    def finish(self, slots: Mapping[int, int], params: tuple) -> Template:
        """Return the rewritten template, with some slots renumbered, in which every read is proven in bounds."""

        def renumber(e: Any) -> Expr | None:
            return Read(slots[e.slot], e.index, e.dtype) if isinstance(e, Read) and e.slot in slots else None

        def clamp(e: Any) -> Expr | None:
            if not isinstance(e, Read) or e not in outside:
                return None
            extents = params[e.slot][1]
            inside = [apply("lt", i, Const(n, i.dtype)) for i, n in zip(e.index, extents, strict=True) if i in beyond]
            return _guarded(inside, Read(e.slot, tuple(map(clamp_index, e.index, extents)), e.dtype), 0)

        t = map_bodies(Template(self._a.shape, self._a.params, tuple(self._parts)), _rule(renumber), params)
        while places := [x for x in out_of_bounds(t) if x.read is not None]:
            # A condition that was a constant one proves nothing any more; where it holds, the index is in bounds.
            outside, beyond = {x.read for x in places}, {x.index for x in places if isinstance(x.index, Axis)}
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
        axes = [(n, a, b) for n, (a, b) in enumerate(zip(p.domain, q.domain, strict=True))]
        bodies = [self._rewrite_expr(x, y) for x, y in zip(p.bodies, q.bodies, strict=True)]
        if isinstance(p, Scatter):
            guards = self._below(axes)
            # An index of axes alone is in bounds at the capacity, too.
            index = tuple(_guarded(guards, x, 0) if has_read(x) else x for x in bodies[:-1])
            return Scatter(p.combiner, p.extents, index, _guarded(guards, bodies[-1], p.neutral))
        assert isinstance(q, Piece)
        rank = len(p.extents)
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

    def _is_whole(self, p: Any, q: Any) -> bool:
        """Return whether a piece has all of each axis that varies, and one and the same part of the others."""
        return (p.step, p.offset) == (q.step, q.offset) and all(
            (p.offset[d], p.step[d], q.offset[d], q.step[d]) == (0, 1, 0, 1)
            and (p.extents[d], q.extents[d]) == (self._a.shape[d], self._b.shape[d])
            for d in self._varying
        )

    def _join(self, pairs: Sequence[tuple[Any, Any]]) -> Piece:
        """Return one piece for pieces whose ends depend on the size: a condition on the position chooses among them."""
        joined: Expr | None = None
        for p, q in reversed(pairs):
            if isinstance(p.body, Reduce) or isinstance(q.body, Reduce) or {*p.step, *q.step} - {1}:
                raise SizeDependentError("sums, or every other element, are joined along an axis of this size")
            shift: dict[int, Expr] = {}
            inside: list[Expr] = []
            for d, extents in enumerate(zip(self._a.shape, self._b.shape, strict=True)):
                place: Expr = Axis(d)
                if (first := (p.offset[d], q.offset[d])) != (0, 0):
                    inside.append(apply("le", self._extent(*first), place))
                    place = shift[d] = apply("sub", place, self._extent(*first))
                if (p.extents[d] + first[0], q.extents[d] + first[1]) != extents:
                    inside.append(apply("lt", place, self._extent(p.extents[d], q.extents[d])))
            body = substitute(self._rewrite_expr(p.bodies[0], q.bodies[0]), shift)
            joined = body if joined is None else _chosen(inside, body, joined)
        assert joined is not None
        axes = [(d, n, m) for d, (n, m) in enumerate(zip(self._a.shape, self._b.shape, strict=True))]
        rank = len(axes)
        guards = self._below(axes) if any(has_read(i) for x in reads(joined) for i in x.index) else []
        return Piece((0,) * rank, (1,) * rank, self._a.shape, _guarded(guards, joined, 0))

    def _extent(self, a: int, b: int) -> Expr:
        """Return an extent that is `a` at the capacity and `b` at the probe."""
        return Const(a, dt.i32) if a == b else self._number(Varying(None, a, b))

    def _below(self, axes: Iterable[tuple[int, int, int]]) -> list[Expr]:
        """Return the conditions that axes lie below their limits; axes: (position, extent for the capacity, extent for
        the probe)."""
        return [apply("lt", Axis(n), self._number(Varying(None, a, b))) for n, a, b in axes if a != b]

    def _rewrite_expr(self, a: Expr, b: Expr) -> Expr:
        """Return an expression in which constants that depend on the size are read."""
        new = self._new
        seen = set(new)
        for pair in postorder_together([(a, b)], seen):
            x, y = pair
            args = tuple(new[z] for z in zip(x.args, y.args, strict=True))
            new[pair] = with_args(x, args) if args else x
            if isinstance(x, Const) and not is_equal(x.value, y.value):
                if x.dtype.is_bool:
                    raise SizeDependentError("a condition has another value")
                new[pair] = self._number(Varying(x.dtype, x.value, y.value))
            elif isinstance(x, Read) and args != x.index:
                extents = self._a.params[x.slot][1]
                pairs = zip(x.index, args, extents, strict=True)
                new[pair] = Read(x.slot, tuple(i if i is j else clamp_index(j, n) for i, j, n in pairs), x.dtype)
        return new[a, b]


def reads_of(exprs: Iterable[Expr]) -> list[Read]:
    """Return every Read in expressions, each once."""
    return list(dict.fromkeys(x for e in exprs for x in reads(e)))


def _rule(rule: Callable[[Any], Any]) -> Callable[[Expr], Expr]:
    return lambda body: rebuild([body], rule)[0]


def _chosen(conditions: Sequence[Expr], x: Expr, otherwise: Expr) -> Expr:
    """Return x where all conditions hold, elsewhere another expression."""
    return apply("where", connect("and", conditions), x, otherwise) if conditions else x


def _guarded(guards: Sequence[Expr], x: Expr, otherwise: float | int | bool) -> Expr:
    """Return x where all guards hold, elsewhere a constant."""
    for g in reversed(guards):
        x = apply("where", g, x, Const(otherwise, x.dtype))
    return x
