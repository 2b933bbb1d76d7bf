"""Compare the graphs that a function has at several sizes, node by node: they differ in numbers, or in more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import frexp
from typing import Any, NamedTuple

import numpy as np

from einsmith.base.captured import CapturedArray
from einsmith.base.dtypes import DType
from einsmith.base.symbolic import SymbolicFloat, SymbolicInt, is_symbolic
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
    Read,
    Recurrence,
    Template,
    apply,
)
from einsmith.ir.rebuild import (
    map_bodies,
    map_templates,
    rebuild,
    replace,
)
from einsmith.passes.analysis.index_checks import index_checks


class SizeDependentError(Exception):
    """A graph depends on a size in a way that needs a program for each size; the text says why."""


class Varying(NamedTuple):
    """A number of a graph that depends on the size for which a function is traced.

    dtype: the type of a constant; None for an extent. capacity: its value in the trace for the largest size that a
    program takes. probe: its value in a second trace, for another size, which shows that it depends on the size."""

    dtype: DType | None
    capacity: float | int
    probe: float | int

    @property
    def is_bounded(self) -> bool:
        """True of an integer constant that is largest at the capacity; its value at a size must be no larger."""
        return self.dtype is not None and self.dtype.is_int and self.capacity > self.probe


class TracedSize:
    """A traced graph, and the arrays that hold the values of captured leaves. live: those of them that may change.

    Decisions of the trace that depend on a size are undone: factors that are powers of two are divisors again, as a
    division by a power of two is traced as a product. All checks of indices are there, those that a program's
    compilation adds as well.
    """

    def __init__(self, graph: Graph, bind: Mapping[Leaf, np.ndarray], live: Iterable[np.ndarray] = ()):
        every = dict((*graph.checks, *index_checks(graph.roots)))
        graph = Graph(graph.inputs, graph.outputs, graph.updates, tuple(every.items()), graph.gradients)
        self.graph, self.bind, self.live = replace(graph, _divide), bind, set(map(id, live))


def _divide(node: Any) -> Any:
    def divide_bodies(t: Template) -> Template:
        return map_bodies(t, lambda body: rebuild([body], _divide_expr)[0])

    return map_templates(node, lambda t: t.memo("quotients", divide_bodies))


def _divide_expr(e: Any) -> Expr | None:
    """Return x/c for x*(1/c), which is the same number, where c is a power of two."""
    if not (isinstance(e, Apply) and e.fn == "mul" and e.dtype.is_float):
        return None
    for x, c in (e.args, e.args[::-1]):
        if isinstance(c, Const) and not is_symbolic(c.value) and 0 < abs(c.value) < 1 and abs(frexp(c.value)[0]) == 0.5:
            inverse = Const(1 / c.value, c.dtype)
            return apply("div", x, inverse) if 1 / inverse.value == c.value else None
    return None


# ---------------------------------------------------------------------------------------------------- comparison


_PLAIN: dict[type, type] = {SymbolicInt: int, SymbolicFloat: float}


def _kind(x: Any) -> type:
    """Return the type of a value; of a symbolic number that of a plain one."""
    return _PLAIN.get(type(x), type(x))


def is_equal(a: Any, b: Any) -> bool:
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


def walk_together(traces: tuple[TracedSize, ...], note: Callable[[tuple, DType | None], None]) -> Iterator[tuple]:
    """Yield the tuples of corresponding tensors and recurrences of several graphs, arguments ahead of users.

    `note(numbers, dtype)` is called with corresponding numbers; `dtype` is that of a constant, None of an extent.
    Raises SizeDependentError where the graphs differ in more than numbers.
    """
    graphs = [x.graph for x in traces]
    seen: set[tuple] = set()
    for leaves in zip_together([g.inputs for g in graphs], "the inputs"):
        if not _are_bound_alike(traces, leaves):
            raise SizeDependentError("it captures an array that is another one for each size")
        if any(y.after is not None for y in leaves) or any(y.dtype is not leaves[0].dtype for y in leaves):
            raise SizeDependentError("the inputs have other types, or come from a group of processes")
        _compare([y.shape for y in leaves], note, seen)
        seen.add(tuple(leaves))
        yield tuple(leaves)
    updated = zip_together([tuple(x for x, _ in g.updates) for g in graphs], "the updates")
    if any(x not in seen for x in updated):
        raise SizeDependentError("the updates differ")
    zip_together([g.checks for g in graphs], "the checks")
    zip_together([g.outputs for g in graphs], "the results")
    zip_together([g.gradients for g in graphs], "the gradients")
    for nodes in postorder_together(zip_together([(*g.roots, *g.gradients) for g in graphs], "the results"), seen):
        _compare_nodes(nodes, note, seen)
        yield nodes


def postorder_together(roots: Iterable[tuple], seen: set[tuple]) -> Iterator[tuple]:
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
                stack += reversed(zip_together([x.args for x in nodes], "the operands of a tensor"))


def zip_together(columns: Sequence[Sequence[Any]], what: str) -> list[tuple]:
    """Return the tuples of corresponding elements. Raises SizeDependentError where there are more of one than of
    another."""
    if any(len(x) != len(columns[0]) for x in columns):
        raise SizeDependentError(f"{what} differ in number")
    return list(zip(*columns, strict=True))


def _compare_nodes(nodes: tuple, note: Callable, seen: set) -> None:
    """Compare corresponding tensors without their arguments."""
    first = nodes[0]
    if isinstance(first, Compute):
        _compare([x.template for x in nodes], note, seen)
    elif isinstance(first, Recurrence):
        _compare([(x.steps, x.reverse, x.origins, x.members, x.options) for x in nodes], note, seen)
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
        if any(_kind(x) is not _kind(first) for x in items):
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
