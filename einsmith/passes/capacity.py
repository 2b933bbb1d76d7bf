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

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import prod
from typing import Any, NamedTuple

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.symbolic import At, Scope, hint, is_same, is_symbolic
from einsmith.ir.nodes import (
    Compute,
    Graph,
    Item,
    Leaf,
    Recurrence,
    Tensor,
    leaf,
)
from einsmith.ir.rebuild import types_of
from einsmith.ir.verify import verify_graph, verify_recurrence
from einsmith.passes.size_traces import (
    SizeDependentError,
    TracedSize,
    Varying,
    is_equal,
    walk_together,
)
from einsmith.passes.sized_template import SizedTemplate, Steps, unproven
from einsmith.schedule.limited_positions import RowLimit


@dataclass(frozen=True)
class SizedGraph:
    """A graph for all sizes up to a capacity.

    Attributes:
        graph: the graph. Its inputs are those of the trace for the capacity, then the leaves of `numbers`.
        numbers: the 0-d leaf of each number that depends on the size
        capacity, probe: the traces from which the graph was made
        limits: limits of the extents of its tensors, and other integers that differ from them by little
        relations: how numbers follow from others at each size that fits
        is_by_rows: whether no tensor has the size in another dimension than the first, and one size varies
    """

    graph: Graph
    numbers: dict[Varying, Leaf]
    capacity: TracedSize
    probe: TracedSize
    limits: tuple[RowLimit, ...]
    relations: dict[Varying, Relation]
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
            if key.is_bounded and value > capacity:
                raise SizeDependentError(f"the number {value} is above {capacity}, its value at the capacity")

        for _ in walk_together((self.capacity, self.probe, traced), note):
            pass
        if not _are_related(self.relations, known):
            raise SizeDependentError("an extent is another sum or product of others than at the capacity")
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
        self._relations = graph.relations
        self._inputs = SymbolicShapes(x.shape for x in traced.graph.inputs if x not in traced.bind)
        self._outputs = SymbolicShapes(t.shape for t in traced.graph.outputs)

    def fit(self, at: At) -> SymbolicFit | None:
        """Return how the graph fits values of the symbols of its trace; None where an extent leaves the capacity."""
        try:
            values = [(key, at.value(x)) for key, x in self._numbers]
        except ArithmeticError:  # a division by 0, say
            return None
        if any(
            key.dtype is None and not 0 < x <= key.capacity or key.is_bounded and x > key.capacity for key, x in values
        ):
            return None
        if not _are_related(self._relations, dict(values)):
            return None
        numbers = tuple(_number(key, x) for key, x in values)
        return SymbolicFit(self._inputs.at(at), numbers, self._outputs.at(at))


class SymbolicShapes:
    """Shapes of arrays, of which some extents follow from symbols."""

    def __init__(self, shapes: Iterable[tuple[Any, ...]]):
        self._shapes = list(shapes)
        self._symbolic = [(n, s) for n, s in enumerate(self._shapes) if any(map(is_symbolic, s))]

    def at(self, at: At) -> tuple[tuple[int, ...], ...]:
        """Return the shapes for values of the symbols."""
        out = self._shapes.copy()
        for n, shape in self._symbolic:
            out[n] = tuple(map(at.value, shape))
        return tuple(out)


class SymbolicFit(NamedTuple):
    """Shapes of the arrays that a graph reads and gives at a size, and the values of its numbers."""

    inputs: tuple[tuple[int, ...], ...]
    numbers: tuple[np.ndarray, ...]
    outputs: tuple[tuple[int, ...], ...]


class Relation(NamedTuple):
    """How a number follows from extents: `times` their product, plus more. least: an extent that is no larger, and at
    most `times` twice below it, as that of a dimension which is padded to chunks."""

    times: int
    factors: tuple[Varying, ...]
    more: int
    least: Varying | None = None

    def holds(self, x: Any, values: Mapping[Varying, Any]) -> bool:
        """Return whether a number of a size is what this says of it."""
        is_padded = self.least is None or 0 <= x - values[self.least] <= 2 * self.times
        return is_padded and x == self.times * prod(values[f] for f in self.factors) + self.more


def _are_related(relations: Mapping[Varying, Relation], values: Mapping[Varying, Any]) -> bool:
    """Return whether numbers of a size are what relations of a graph say."""
    return all(relation.holds(values[x], values) for x, relation in relations.items())


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
    extents: dict[Varying, None] = {}
    for pair in walk_together((capacity, probe), lambda *_: None):
        new[pair] = rewriter.rewrite(pair, new)
        shapes = [[s for _, s in x.results] if isinstance(x, Recurrence) else [x.shape] for x in pair]
        varying = [x for a, b in zip(*shapes, strict=True) for x in _varying_extents(a, b).items()]
        is_by_rows &= not isinstance(pair[0], Recurrence) and not any(d for d, _ in varying)
        extents |= dict.fromkeys(x for _, x in varying)
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
    outputs = [_varying_extents(a.shape, b.shape) for a, b in zip(before.outputs, other.outputs, strict=True)]
    inputs = [_varying_extents(a.shape, b.shape) for a, b in zip(before.inputs, other.inputs, strict=True)]
    is_by_rows &= len({x for varying in (*inputs, *outputs) for x in varying.values()}) == 1
    for x in extents:
        rewriter.leaf_of(x)
    relations = _relate(numbers)
    limits = [
        RowLimit(
            x,
            int(key.capacity) if key.dtype is None else 0,
            frozenset((n, d) for n, varying in enumerate(outputs) for d, y in varying.items() if y == key),
            *_as_limit(key, relations, numbers),
        )
        for key, x in numbers.items()
        if key.dtype is None or key in relations
    ]
    graph = Graph((*before.inputs, *numbers.values()), *roots)
    verify_graph(graph)
    return SizedGraph(graph, numbers, capacity, probe, tuple(limits), relations, is_by_rows)


_MOST_MORE = 8
"""Largest difference of two numbers of which one is proven to follow from the other: as of labels and positions behind
them, or of extents that are one more than another."""


def _relate(numbers: Iterable[Varying]) -> dict[Varying, Relation]:
    """Return for integers the extent to which each is close, at the capacity and at the probe alike, or the extents of
    which it is the product, as that of merged dimensions is."""
    out: dict[Varying, Relation] = {}
    bases: dict[int, Varying] = {}  # by how much they differ between capacity and probe
    for key in sorted(numbers, key=lambda x: (x.dtype is not None, x.capacity)):
        if key.dtype is not None and not key.dtype.is_int:
            continue
        base = bases.get(int(key.capacity - key.probe))
        if base is not None and abs(key.capacity - base.capacity) <= _MOST_MORE:
            out[key] = Relation(1, (base,), int(key.capacity - base.capacity))
            continue
        product = _find_product(key, [x for x in bases.values() if x not in out])
        if product is not None:
            near = (x for x in bases.values() if x.dtype is None and x not in product.factors)
            padded = (
                x
                for x in near
                if all(0 <= a - b <= 2 * product.times for a, b in ((key.capacity, x.capacity), (key.probe, x.probe)))
            )
            out[key] = product._replace(least=next(padded, None))
        if key.dtype is None:
            bases.setdefault(int(key.capacity - key.probe), key)
    return out


def _find_product(key: Varying, extents: Collection[Varying]) -> Relation | None:
    """Return of which of some extents, one or two, a number is a multiple of the product at both sizes."""
    for factors in (*((x,) for x in extents), *combinations_with_replacement(extents, 2)):
        capacity, probe = prod(int(x.capacity) for x in factors), prod(int(x.probe) for x in factors)
        count, left = divmod(int(key.capacity), capacity)
        if count > 0 and not left and count * probe == key.probe:
            return Relation(count, factors, 0)
    return None


def _as_limit(key: Varying, relations: Mapping[Varying, Relation], numbers: Mapping[Varying, Leaf]) -> tuple:
    """Return the last fields of the limit of a number that follows from others."""
    base, more = key, 0
    relation = relations.get(key)
    if relation is not None and relation.times == len(relation.factors) == 1:
        (base,), more = relation.factors, relation.more
        relation = relations.get(base)
    if relation is None:
        return numbers[base], more
    least = None if relation.least is None else numbers[relation.least]
    return numbers[base], more, relation.times, tuple(numbers[x] for x in relation.factors), least


def _varying_extents(a: Sequence[int], b: Sequence[int]) -> dict[int, Varying]:
    """Return, by dimension, the extents of a tensor that depend on the size, from those at the capacity and at the
    probe."""
    pairs = enumerate(zip(a, b, strict=True))
    return {d: Varying(None, x, y) for d, (x, y) in pairs if x != y}


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
            work = SizedTemplate(a.template, b.template)
            slots = {s: len(args) + n for n, s in enumerate(work.keys.values())}
            params = (*a.template.params, *((self.leaf_of(k).dtype, ()) for k in work.keys))
            return Compute(work.finish(slots, params, len(params)), (*args, *map(self.leaf_of, work.keys)))
        assert isinstance(a, Recurrence)
        return self._rewrite_recurrence(a, b, args)

    def _rewrite_recurrence(self, a: Recurrence, b: Recurrence, args: tuple[Tensor, ...]) -> Recurrence:
        if a.origins != b.origins or a.options != b.options:
            raise SizeDependentError("a recurrence begins, or saves its states, elsewhere")
        windows = [None if a.steps == b.steps else Steps(origin, a.steps, b.steps) for origin in a.origins]
        members = [SizedTemplate(*x) for x in zip(a.members, b.members, windows, strict=True)]
        keys = list(dict.fromkeys(k for m in members for k in m.keys))
        numbers = tuple(map(self.leaf_of, keys))
        params = types_of((*args, *numbers)) + a.results
        finished = []
        for m in members:
            slots = {s: len(args) + keys.index(k) for k, s in m.keys.items()}
            slots |= {len(args) + i: len(args) + len(keys) + i for i in range(len(members))}
            finished.append(m.finish(slots, params, len(args) + len(keys)))
        new = Recurrence(a.steps, a.reverse, a.origins, tuple(finished), (*args, *numbers), a.options)
        with unproven():  # conditions on the size prove no longer what is read at the same step
            verify_recurrence(new)
        return new
