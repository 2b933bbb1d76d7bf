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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from einsmith.ir.verify import verify_graph, verify_recurrence
from einsmith.passes.size_traces import (
    SizeDependentError,
    TracedSize,
    Varying,
    is_equal,
    walk_together,
)
from einsmith.passes.sized_template import SizedTemplate, Steps, unproven
from einsmith.schedule.limits import RowLimit


@dataclass(frozen=True)
class SizedGraph:
    """A graph for all sizes up to a capacity.

    Attributes:
        graph: the graph. Its inputs are those of the trace for the capacity, then the leaves of `numbers`.
        numbers: the 0-d leaf of each number that depends on the size
        capacity, probe: the traces from which the graph was made
        limits: limits of the extents of inputs and outputs
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
        try:
            values = [(key, at.value(x)) for key, x in self._numbers]
        except ArithmeticError:  # a division by 0, say
            return None
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
    outputs = [_varying_extents(a, b) for a, b in zip(before.outputs, other.outputs, strict=True)]
    inputs = [_varying_extents(a, b) for a, b in zip(before.inputs, other.inputs, strict=True)]
    extents = dict.fromkeys(x for varying in (*inputs, *outputs) for x in varying.values())
    limits = [
        RowLimit(
            rewriter.leaf_of(x),
            int(x.capacity),
            frozenset((n, d) for n, varying in enumerate(outputs) for d, y in varying.items() if y == x),
        )
        for x in extents
    ]
    graph = Graph((*before.inputs, *numbers.values()), *roots)
    verify_graph(graph)
    return SizedGraph(graph, numbers, capacity, probe, tuple(limits), is_by_rows and len(limits) == 1)


def _varying_extents(a: Tensor, b: Tensor) -> dict[int, Varying]:
    """Return, by dimension, the extents of a tensor, of the capacity and of the probe, that depend on the size."""
    pairs = enumerate(zip(a.shape, b.shape, strict=True))
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
        if a.origins != b.origins or a.checkpoint != b.checkpoint:
            raise SizeDependentError("a recurrence begins, or saves its states, elsewhere")
        windows = [None if a.steps == b.steps else Steps(origin, a.steps, b.steps) for origin in a.origins]
        members = [SizedTemplate(*x) for x in zip(a.members, b.members, windows, strict=True)]
        keys = list(dict.fromkeys(k for m in members for k in m.keys))
        numbers = tuple(map(self.leaf_of, keys))
        params = tuple((x.dtype, x.shape) for x in (*args, *numbers)) + a.results
        finished = []
        for m in members:
            slots = {s: len(args) + keys.index(k) for k, s in m.keys.items()}
            slots |= {len(args) + i: len(args) + len(keys) + i for i in range(len(members))}
            finished.append(m.finish(slots, params, len(args) + len(keys)))
        new = Recurrence(a.steps, a.reverse, a.origins, tuple(finished), (*args, *numbers), a.checkpoint)
        with unproven():  # conditions on the size prove no longer what is read at the same step
            verify_recurrence(new)
        return new
