"""Find the positions of a graph's tensors that matter: along some dimensions, those below a limit alone.

A limit is a number that is known when a program runs (`RowLimit`). Positions below it alone matter where every reader
reads at its own position along an axis of its own, below a limit too, or under a condition that compares the position
with the limit. This is proven backward from the results. Steps of loops are graphs of their own, whose results have
the limits of the loop's members; these are assumed until a step reads more of a member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.bounds import Facts, bounds
from einsmith.ir.analysis.guarded import reads_under
from einsmith.ir.analysis.products import is_less, without_bounds
from einsmith.ir.loop import LoopSegment, LoweredLoop
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
    Reduce,
    Template,
    Tensor,
    apply,
    axes_of,
    cast,
    leaf,
    postorder,
    rank,
    reads,
)
from einsmith.ir.rebuild import map_bodies, rebuild, substitute

_FIRST_ATOM, _FIRST_STEP = 1 << 21, 1 << 22
"""First slots of the reads that stand for limits, and for numbers of steps, in proofs."""
_MOST_MORE = 2
"""Most initial values of a member of a loop."""
_MOST_NUMBERS = 4
"""Most numbers that follow from one another, as a loop's end from its first step and the last one."""
_MOST_CASES = 4
"""Most sets of conditions of which one holds in each step; beyond it, those of loops around a loop are left out."""


class RowLimit(NamedTuple):
    """A limit of rows and of other positions. leaf: the i32 that holds it in a run, given to the program or computed by
    it; extent: the capacity, the extent of dimensions that it limits, or 0; outputs: (output, dimension) of the graph's
    outputs of which only the positions below it are read; base: a number to which it adds `offset` in every run, itself
    by default; times, factors: the base is `times` the product of these extents, if there are any; least: a limit that
    the base is not below."""

    leaf: Tensor
    extent: int
    outputs: frozenset[tuple[int, int]]
    base: Tensor | None = None
    offset: int = 0
    times: int = 1
    factors: tuple[Tensor, ...] = ()
    least: Tensor | None = None

    @property
    def origin(self) -> Tensor:
        """The number to which the limit adds `offset`."""
        return self.leaf if self.base is None else self.base

    def of(self, holder: Tensor, outputs: frozenset[tuple[int, int]], extent: int = 0, more: int = 0) -> RowLimit:
        """Return a limit that is `more` above this one, for another graph or another extent (0: this one's). holder:
        the tensor that holds the new limit."""
        return self._replace(
            leaf=holder, extent=extent or self.extent, outputs=outputs, base=self.origin, offset=self.offset + more
        )

    def dimensions(self, t: Tensor) -> list[int]:
        """Return the dimensions of a tensor that the limit may limit. A limit that a graph computes is one of rows
        alone, as no conditions keep what lies beyond it from being an index."""
        shape = t.shape if isinstance(self.leaf, Leaf) else t.shape[:1]
        return [d for d, n in enumerate(shape) if n == self.extent]


Limited = set[tuple[Tensor, int]]
"""(tensor, dimension) pairs of which only the positions below a limit matter; of each member of a loop, too."""
_Positions = set[tuple[Tensor, int, int]]
"""(tensor, dimension, number of the limit)."""


def find_limits(graph: Graph) -> list[RowLimit]:
    """Return the limits that a graph computes: integers without dimensions of which an extent is the upper bound.

    None is of a single position: such an integer may be a flag, as the check of the label of one sample, which is 0 in
    every run, and would leave out all."""
    out = []
    for node in postorder(graph.roots):
        if isinstance(node, Compute) and not node.shape and node.template.dtypes == (dt.i32,):
            body = node.template.parts[0].body
            low, high = (None, None) if isinstance(body, Reduce) else bounds(body, ())
            if low is not None and high is not None and 0 <= low < high and high > 1:
                out.append(RowLimit(node, high, frozenset()))
    return out


def with_members(graph: Graph, limits: Sequence[RowLimit]) -> list[RowLimit]:
    """Return limits, and those of members of a graph's loops that are a little longer than what the limits limit: loops
    inside of a step have initial values at their ends, which may count or not. No tensor holds these."""
    out = list(limits)
    by_extent = {x.extent: x for x in limits if isinstance(x.leaf, Leaf) and x.extent}
    for n in _lengths_of_members(graph):
        near = next((by_extent[m] for m in range(n - 1, n - 1 - _MOST_MORE, -1) if m in by_extent), None)
        if n not in by_extent and near is not None:
            for more in range(n - near.extent + 1):
                out.append(near.of(leaf((), dt.i32), frozenset(), n, more))
    return out


def _lengths_of_members(graph: Graph) -> list[int]:
    """Return the extents, along time, of members of a graph's loops and of those inside of them."""
    out: dict[int, None] = {}
    for node in postorder(graph.roots):
        if isinstance(node, LoweredLoop):
            out |= dict.fromkeys(shape[0] for _, shape in node.results)
            out |= dict.fromkeys(n for s in node.segments for n in _lengths_of_members(s.body))
    return sorted(out)


def find_limited(graph: Graph, limits: Sequence[RowLimit]) -> list[Limited]:
    """Return for each limit the (tensor, dimension) pairs of a graph of whose positions only those below it matter."""
    atoms: dict[Tensor, Expr] = {}
    values = [value_of(x, atoms) for x in limits]
    numbers: dict[Tensor, Expr] = dict(zip((x.leaf for x in limits), values, strict=True))
    positive = next((n for n, x in enumerate(limits) if not isinstance(x.leaf, Leaf)), len(limits))
    padded = [(x, v) for x, v in zip(limits, values, strict=True) if x.least in numbers and not x.offset]
    known = tuple(apply("le", numbers[x.least], v) for x, v in padded if x.least is not None)
    limited = _Analysis(limits, values, numbers, {}, [known], positive).run(graph)
    return [{(t, d) for t, d, k in limited if k == n and not isinstance(t, Leaf)} for n in range(len(limits))]


def limit_of_step(
    loop: LoweredLoop, segment: LoopSegment, limit: RowLimit, limited: Limited, holder: Tensor
) -> RowLimit:
    """Return the limit of the graph of a loop's step, in which `holder` holds it, that a limit of the loop's graph
    is."""
    outputs = frozenset((n, d) for n, d, at in _of_outputs(loop, segment) if at in limited)
    return limit.of(holder, outputs)


def limits_of_step(
    loop: LoweredLoop, segment: LoopSegment, limits: Sequence[RowLimit], limited: Sequence[Limited]
) -> dict[int, RowLimit]:
    """Return by its number each limit that a step's graph has as an input, as a limit of that graph.

    limits, limited: those of the graph of the loop (`find_limited`).
    """
    places = zip(segment.body.inputs, segment.places, strict=True)
    inputs = {loop.args[p.number]: x for x, p in places if p.kind == "argument" and p.first is None}
    return {
        k: limit_of_step(loop, segment, limit, positions, inputs[limit.leaf])
        for k, (limit, positions) in enumerate(zip(limits, limited, strict=True))
        if limit.leaf in inputs
    }


def _of_outputs(loop: LoweredLoop, segment: LoopSegment) -> Iterator[tuple[int, int, tuple[Tensor, int]]]:
    """Yield (output, dimension, (member, dimension)) of the results of a step."""
    for n, (j, _) in enumerate(segment.targets):
        # A step that has several positions has them in dimension 0.
        first = 1 if segment.rows else 0
        for d in range(first, len(segment.body.outputs[n].shape)):
            yield n, d, (Item(loop, j), d + 1 - first)


def _has_several_results(node: Any) -> bool:
    """Return whether a node's results are `Item`s."""
    return not isinstance(node, (Leaf, Item)) and not (isinstance(node, Compute) and len(node.template.dtypes) == 1)


def value_of(limit: RowLimit, atoms: dict[Tensor, Expr]) -> Expr:
    """Return the value of a limit as an expression of atoms, one for the base of each limit."""

    def atom(t: Tensor) -> Expr:
        return atoms.setdefault(t, Read(_FIRST_ATOM + len(atoms), (), dt.i32))

    value = atom(limit.origin) if not limit.factors else Const(limit.times, dt.i32)
    for x in limit.factors:
        value = apply("mul", value, atom(x))
    return _add(value, limit.offset)


class _SlicedInput(NamedTuple):
    """What an input of a step is of another tensor: from the position `first` of its dimension 0 on, one element (then
    the input does not have this dimension), or several."""

    source: Tensor
    first: Expr
    has_rows: bool

    def place(self, index: Sequence[Expr]) -> Expr:
        """Return the position along dimension 0 of the source of what is read at an index of the input."""
        return apply("add", self.first, cast(index[0], dt.i32)) if self.has_rows else self.first


_SLICED = -1
"""Stands for the dimension of its source along which an input of a step is a slice, in positions of the input."""


class _Analysis:
    """The analysis that finds, for one graph, the dimensions of which only positions below a limit matter.

    Args:
        limits: the limits that dimensions may have.
        values: the value of each limit, as an expression over atoms (numbers known only when a program runs).
        numbers: the expression of each scalar integer tensor.
        slices: for the graph of a loop's step, the inputs that are slices of tensors outside the loop.
        known: sets of conditions on atoms; in each run, all conditions of one set hold.
        positive: number of limits known to be positive; they come first.
        depth: number of loops around the graph.
    """

    def __init__(
        self,
        limits: Sequence[RowLimit],
        values: Sequence[Expr],
        numbers: Mapping[Tensor, Expr],
        slices: Mapping[Tensor, _SlicedInput],
        known: Sequence[tuple[Expr, ...]],
        positive: int,
        depth: int = 0,
    ):
        self._limits, self._values, self._numbers, self._positive = limits, values, numbers, positive
        self._extents = [x for x in values[:positive] if isinstance(x, Read)]
        self._slices, self._known, self._depth = slices, known, depth
        self._tables: set[Tensor] = set()
        """Those that a template reads whose elements follow from the positions."""
        self._under: dict[Tensor, frozenset[tuple[Expr, bool]]] = {}
        """Conditions on numbers alone, each with its truth, that hold wherever a tensor is read."""

    def _dimensions(self, t: Tensor) -> Iterator[tuple[int, int]]:
        """Yield (dimension, limit) of the dimensions of a tensor that limits may limit."""
        sliced = self._slices.get(t)
        for k, limit in enumerate(self._limits):
            yield from ((d, k) for d in limit.dimensions(t))
            if sliced is not None and limit.dimensions(sliced.source)[:1] == [0]:
                yield _SLICED, k

    def run(self, graph: Graph) -> _Positions:
        """Return what is limited of a graph, its inputs included."""
        nodes = list(postorder((*graph.roots, *graph.gradients)))
        limited = {
            (t, d, k) for t in (*graph.inputs, *nodes) if not _has_several_results(t) for d, k in self._dimensions(t)
        }
        _keep_whole(limited, (*(t for t, _ in graph.checks), *(t for _, t in graph.updates)))
        self._under = dict.fromkeys(graph.roots, frozenset())
        for n, t in enumerate(graph.outputs):
            limited -= {(t, d, k) for d, k in self._dimensions(t) if (n, d) not in self._limits[k].outputs}
        whole: dict[Any, set[tuple[int, int]]] = {}  # of nodes of several results
        for node in reversed(nodes):
            if isinstance(node, Leaf):
                continue
            if isinstance(node, Item):
                matter = {(d, k) for d, k in self._dimensions(node) if (node, d, k) not in limited}
                whole.setdefault(node.node, set()).update(matter)
            elif isinstance(node, Compute):
                if _has_several_results(node):
                    extents = enumerate(node.template.shape)
                    own = {(d, k) for d, n in extents for k, x in enumerate(self._limits) if n == x.extent}
                    own -= whole.get(node, set())
                else:
                    own = {(d, k) for d, k in self._dimensions(node) if (node, d, k) in limited}
                under: frozenset = frozenset() if _has_several_results(node) else self._under.get(node, frozenset())
                limited.difference_update(self._find_whole_operands(node.template, node.args, own, under))
            elif isinstance(node, LoweredLoop):
                self._run_loop(node, limited, nodes)
            else:
                _keep_whole(limited, node.args)
            if not isinstance(node, Compute):
                self._under |= dict.fromkeys(node.args, frozenset())
        return limited

    # -- templates

    def _find_whole_operands(
        self,
        template: Template,
        args: Sequence[Tensor],
        own: set[tuple[int, int]],
        under: frozenset[tuple[Expr, bool]] = frozenset(),
    ) -> list[tuple[Tensor, int, int]]:
        """Return (operand, dimension, limit) where a template reads positions that may lie beyond the limit. own:
        (dimension, limit) of the results of which only the positions below it matter; under: conditions under which
        they do."""
        self._tables.clear()
        template = map_bodies(template, lambda e: rebuild([e], partial(self._replace_number, args))[0])
        # Elements of tables are known, and read all the same, in conditions too.
        out = [(t, d, k) for t in self._tables for d, k in self._dimensions(t)]
        for part in template.parts:
            steps = zip(count(), part.step, part.offset) if isinstance(part, Piece) else ()
            places = [_position(Axis(d), step, first) for d, step, first in steps]
            axes = {(d, k) for d, k in own if places and isinstance(places[d], Axis)}
            conditions: list[Expr] = [apply("lt", places[d], self._values[k]) for d, k in sorted(own) if places]
            conditions += [c if truth else apply("not", c) for c, truth in sorted(under, key=_order)]
            for read, facts in reads_under(part):
                if read.slot >= _FIRST_ATOM:
                    continue
                operand = args[read.slot]
                here = under | {x for x in facts.known if _is_of_numbers(x[0])}
                self._under[operand] = self._under.get(operand, here) & here
                for d, k in self._dimensions(operand):
                    place = self._slices[operand].place(read.index) if d == _SLICED else read.index[d]
                    is_own = isinstance(place, Axis) and (place.position, k) in axes
                    if not is_own and not self._is_below(place, k, facts, conditions):
                        out.append((operand, d, k))
        return out

    def _replace_number(self, args: Sequence[Tensor], e: Any) -> Expr | None:
        """Return the value of a read of a number of which that is known; None for other expressions (a `rebuild`
        rule)."""
        kept, low, high = without_bounds(e)
        if kept is not e:
            return cast(kept, e.dtype) if self._is_within(kept, low, high) else None
        if not isinstance(e, Read) or e.slot >= _FIRST_ATOM or not e.dtype.is_int:
            return None
        t = args[e.slot]
        value = self._value_of_number(t)
        if value is None:
            sliced = self._slices.get(t)
            table, place = (t, e.index[:1]) if sliced is None else (sliced.source, (sliced.place(e.index),))
            if len(table.shape) == 1:
                value = _element(table, place)
        if value is not None and (t.shape or t in self._slices):
            self._tables.add(t)
        return None if value is None else cast(value, e.dtype)

    def _is_below(self, place: Expr, k: int, facts: Facts, conditions: Sequence[Expr] = ()) -> bool:
        """Return whether a position lies below a limit under facts and conditions."""
        value = self._values[k]
        end = cast(value, place.dtype)
        some = [apply("le", Const(1, value.dtype), value)] if k < self._positive else []
        return all(
            is_less(place, end, facts.assume_all([*some, *conditions, *known]), self._extents) for known in self._known
        )

    # -- loops

    def _run_loop(self, loop: LoweredLoop, limited: _Positions, nodes: Sequence[Any]) -> None:
        """Leave out of `limited` what a loop reads of its arguments, and add what is limited of its members."""
        known = set(nodes)
        members = {
            (t, d, k)
            for t in (Item(loop, j) for j in range(len(loop.results)))
            for k, x in enumerate(self._limits)
            for d in x.dimensions(t)
            if t not in known or (t, d, k) in limited
        }
        limited |= members
        while True:
            whole = {x for s in loop.segments for x in self._find_whole_sources(loop, s, limited)}
            for j, template, slots in loop.initial:
                own = {(d, k) for t, d, k in members & limited if t is Item(loop, j)}
                whole.update(self._find_whole_operands(template, [loop.args[n] for n in slots], own))
            if not whole & members & limited:
                break
            limited -= whole & members
        limited -= whole

    def _find_whole_sources(
        self, loop: LoweredLoop, segment: LoopSegment, limited: _Positions
    ) -> Iterator[tuple[Tensor, int, int]]:
        """Yield (argument or member, dimension, limit) where a step reads positions that may lie beyond the limit."""
        by_limit = [{(t, d) for t, d, k in limited if k == n} for n in range(len(self._limits))]
        inner = limits_of_step(loop, segment, self._limits, by_limit)
        limits = [
            inner.get(k) or limit_of_step(loop, segment, x, by_limit[k], x.leaf) for k, x in enumerate(self._limits)
        ]
        time = Read(_FIRST_STEP + self._depth, (), dt.i32)
        numbers: dict[Tensor, Expr] = {}
        slices: dict[Tensor, _SlicedInput] = {}
        for x, place in zip(segment.body.inputs, segment.places, strict=True):
            source = loop.args[place.number] if place.kind == "argument" else Item(loop, place.number)
            if place.first is not None:
                slices[x] = _SlicedInput(source, _position(time, place.stride, place.first), bool(place.rows))
            elif (value := self._value_of_number(source)) is not None:
                numbers[x] = value
        rows = self._limits_of_rows(loop, segment, limited, time)
        limits, values = [*limits, *(x for x, _ in rows)], [*self._values, *(x for _, x in rows)]
        known = self._ranges_of(loop, segment, limited, time)
        step = _Analysis(limits, values, numbers, slices, known, self._positive, self._depth + 1)
        below = step.run(segment.body)
        for x, place in zip(segment.body.inputs, segment.places, strict=True):
            source = loop.args[place.number] if place.kind == "argument" else Item(loop, place.number)
            is_slice = place.first is not None
            more = 1 if is_slice and not place.rows else 0
            for d, k in step._dimensions(x):
                if (x, d, k) not in below:
                    if d == _SLICED:
                        yield source, 0, k
                    elif d or not place.rows:
                        yield source, d + more, k

    def _limits_of_rows(
        self, loop: LoweredLoop, segment: LoopSegment, limited: _Positions, time: Expr
    ) -> list[tuple[RowLimit, Expr]]:
        """Return limits of the positions along time that a step has, and their values."""
        outputs: dict[tuple[int, int], set[tuple[int, int]]] = {}
        for n, (j, at) in enumerate(segment.targets if segment.rows else ()):
            for k in sorted(k for t, d, k in limited if t is Item(loop, j) and not d):
                outputs.setdefault((k, at), set()).add((n, 0))
        return [
            (
                RowLimit(self._limits[k].leaf, segment.rows, frozenset(of_outputs)),
                apply("sub", self._values[k], _position(time, segment.rows, at)),
            )
            for (k, at), of_outputs in outputs.items()
        ]

    def _ranges_of(
        self, loop: LoweredLoop, segment: LoopSegment, limited: _Positions, time: Expr
    ) -> list[tuple[Expr, ...]]:
        """Return sets of conditions, one of which holds in each step that matters."""
        bounds: list[Expr] = [apply("le", Const(0, dt.i32), time), apply("lt", time, Const(segment.steps, dt.i32))]
        for n, is_end in ((segment.first, False), (segment.stop, True)):
            value = None if n is None else self._value_of_number(loop.args[n])
            if value is not None:
                x = cast(time, value.dtype)
                bounds.append(apply("lt", x, value) if is_end else apply("le", value, x))
        ends: dict[tuple[Expr, ...], None] = {}
        for j, at in segment.targets:
            members = sorted(k for t, d, k in limited if t is Item(loop, j) and d == 0)
            place = _position(time, max(1, segment.rows), at)
            ends[tuple(apply("lt", place, self._values[k]) for k in members)] = None
        if segment.body.updates or not ends:
            ends = {(): None}
        outer = self._known if len(self._known) * len(ends) <= _MOST_CASES else [()]
        return [(*bounds, *end, *known) for end in ends for known in outer]

    def _value_of_number(self, t: Tensor, depth: int = 0) -> Expr | None:
        """Return the value of a number that follows from known ones; None for others. depth: numbers that follow from
        it."""
        if t in self._numbers:
            return self._numbers[t]
        if not t.dtype.is_int or t.shape:
            return None
        sliced = self._slices.get(t)
        if sliced is not None:
            return _element(sliced.source, [sliced.first]) if len(sliced.source.shape) == 1 else None
        if not isinstance(t, Compute) or depth > _MOST_NUMBERS:
            return None
        values = {a: self._value_of_number(a, depth + 1) for a in t.args}
        x = _element(t, (), {a: v for a, v in values.items() if v is not None})
        if x is None:
            return None
        kept, low, high = without_bounds(x)
        return kept if kept is not x and self._is_within(kept, low, high) else x

    def _is_within(self, x: Expr, low: float, high: float) -> bool:
        """Return whether an integer is a limit of extents between two bounds."""
        ends = zip(self._limits[: self._positive], self._values, strict=False)
        return low <= 1 and any(limit.extent and limit.extent <= high and x is cast(v, x.dtype) for limit, v in ends)


def _element(t: Tensor, place: Sequence[Expr], numbers: Mapping[Tensor, Expr] = MappingProxyType({})) -> Expr | None:
    """Return the element of a tensor at a position, where it follows from the position and from numbers alone."""
    if not isinstance(t, Compute) or len(t.template.parts) > 1 or any(a not in numbers for a in t.args):
        return None
    (part,) = t.template.parts
    if not isinstance(part, Piece) or isinstance(part.body, Reduce):
        return None
    return substitute(part.body, dict(enumerate(place)), {n: numbers[a] for n, a in enumerate(t.args)})


def _order(condition: tuple[Expr, bool]) -> tuple[Any, bool]:
    return rank(condition[0]), condition[1]


def _is_of_numbers(condition: Expr) -> bool:
    """Return whether a condition depends on no axes, and on no tensors but known numbers."""
    return not axes_of(condition) and all(x.slot >= _FIRST_ATOM for x in reads(condition))


def _add(x: Expr, more: int) -> Expr:
    return apply("add", x, Const(more, x.dtype)) if more else x


def _position(x: Expr, step: int, first: int) -> Expr:
    """Return step*x + first."""
    return _add(x if step == 1 else apply("mul", x, Const(step, dt.i32)), first)


def _keep_whole(limited: _Positions, tensors: Iterable[Tensor]) -> None:
    """Remove from `limited` all dimensions of the given tensors, because all their positions matter."""
    whole = set(tensors)
    limited -= {x for x in limited if x[0] in whole}
