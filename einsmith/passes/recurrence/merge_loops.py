"""Merge computations along time into the steps of a recurrence, so that their operands and results need no memory for
all steps.

before: O[t, k, v] = G[t, v]*Q[t, k];  recurrence of D[t, k, v] = O[t, k, v] + D[t+1, k, v]*f[t];
        K[t, k] = sum[v](D[t, k, v]*U[t, v]);  A[k, v] = sum[t](D[t, k, v]*S[t, k, v])
after:  recurrence of O[t, k, v] = G[t, v]*Q[t, k];  D[t, k, v] = O[t, k, v] + D[t+1, k, v]*f[t];
        K[t, k] = sum[v](D[t, k, v]*U[t, v]);  A[t, k, v] = A[t+1, k, v] + D[t, k, v]*S[t, k, v];  outside A[0, k, v]

Three kinds of tensors move:
- a reader of a member, or a sum of it over time (A), which evaluates about one point for each element of the member, so
  that nothing is lost when it is computed step by step;
- an argument that the recurrence alone reads, each step at one position, and that is larger than its operands (O);
- a cheap function of stored members of another recurrence: it is computed again instead of being stored there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from einsmith.cost.facts import Target
from einsmith.ir.analysis.linear import linear, moved
from einsmith.ir.analysis.reads import has_data_index
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
    Template,
    Tensor,
    apply,
    nbytes,
    postorder,
    size,
)
from einsmith.ir.rebuild import (
    guarded,
    readers_of,
    replace,
)
from einsmith.ir.recurrence.assembly import ARGS, Assembly
from einsmith.ir.recurrence.define import step_parts
from einsmith.ir.recurrence.pieces import dense_piece, dims_first, restated
from einsmith.ir.views import own_index, read_at
from einsmith.passes.context import PassContext
from einsmith.passes.recurrence.copy_propagation import propagate_copies
from einsmith.passes.recurrence.loop_operands import (
    StepOperands,
    count_elements,
    find_position,
    is_large,
    is_larger_than_operands,
    is_read,
    leaves_last_level,
)
from einsmith.passes.recurrence.lower_loops import MAX_SEGMENTS, ends_early, find_cuts
from einsmith.passes.recurrence.split_segments import MAX_POINTS_PER_ELEMENT, split_segments
from einsmith.schedule.planner import MIN_STEPS_TO_HOIST

_TIME = Axis(0)


def merge_loops(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with computations along time merged into recurrences, the last one first: what reads the states
    of a forward and of a backward pass is merged into the latter, which has more of them."""
    graph = split_segments(propagate_copies(graph), lambda step_bytes: is_large(step_bytes, context.target))
    done: set[Recurrence] = set()
    while True:
        nodes = list(postorder(graph.roots))
        node = next((n for n in reversed(nodes) if isinstance(n, Recurrence) and n not in done), None)
        if node is None:
            return graph
        done.add(node)
        if not _is_candidate(node, context.target) or ends_early(node, nodes, graph.roots):
            continue  # of a loop that ends early, what follows the end is not computed
        if (memo := _Merge(graph, nodes, node, context.target).run()) is not None:
            memo[node] = memo[Item(node, 0)].node
            graph = replace(graph, lambda n: None, memo)
            done = {memo.get(n, n) for n in done}


def _is_candidate(node: Recurrence, target: Target) -> bool:
    """Return whether it may pay to merge computations into a recurrence: it has large tensors."""
    tensors = [*node.args, *(Item(node, j) for j in range(len(node.members)))]
    return node.steps >= MIN_STEPS_TO_HOIST and any(is_large(nbytes(t) // node.steps, target) for t in tensors)


class _MemberPlace(NamedTuple):
    """Where a recurrence holds a tensor: position x of the tensor's dimension `dim` is position x + `by` of `member`,
    whose position at t = 0 is `origin`."""

    member: int
    dim: int
    by: int
    origin: int


class _Match(NamedTuple):
    """How a reader goes along time: step t computes what axis `axes[n]` of piece n, of `extent` positions, has at
    t - `shift`. `dim`: the dimension of its results; None for a sum over time."""

    axes: tuple[int, ...]
    extent: int
    shift: int
    dim: int | None


class _Merge:
    """The merging of computations into one recurrence."""

    def __init__(self, graph: Graph, nodes: Sequence[Any], node: Recurrence, target: Target):
        self.graph, self.nodes, self.node, self.target = graph, nodes, node, target
        self.users = readers_of(nodes)
        self.roots = set(graph.roots)
        self.operands = StepOperands(graph, self.users)
        self.kept: set[Tensor] = set()  # members of other recurrences from which others are computed again
        self.computed: set[Tensor] = set()  # arguments that have become members
        self.own_cuts = find_cuts(node)
        self.cuts = self.own_cuts

    def run(self) -> dict[Any, Any] | None:
        """Return the replacements of the recurrence's members and of what is merged; None if nothing is."""
        refused: set[Tensor] = set()
        streamed = self._find_streamed({})
        while True:
            readers = self._find_readers(refused, streamed)
            bad = self._find_useless(readers)
            more = self._find_streamed(readers)
            if not bad and more.keys() <= streamed.keys():
                break
            refused |= bad
            streamed = more | streamed
        self.assembly = Assembly.of(self.node)
        self.totals: dict[Compute, int] = {}
        for n, match in readers.items():
            self._add_reader(n, match)
        merged: set[Any] = {self.node, *readers}
        has_arguments = False
        while self._merge_argument(merged):
            has_arguments = True
        return self._finish(readers) if readers or has_arguments else None

    # ------------------------------------------------------------------------------------------------- which readers

    def _find_readers(
        self, refused: Collection[Tensor], streamed: Mapping[Tensor, _MemberPlace]
    ) -> dict[Compute, _Match]:
        """Return the nodes that can be merged, in order, and how they go along time. refused: those that are not merged
        although they can be; streamed: the arguments whose readers are merged, too."""
        node = self.node
        own = [(Item(node, j), _MemberPlace(j, 0, 0, at)) for j, at in enumerate(node.origins)]
        self.places: dict[Tensor, _MemberPlace] = dict(own)
        self.cuts = self.own_cuts
        below: set[Any] = {node}
        above = set(postorder([node]))
        readers: dict[Compute, _Match] = {}
        checks_wait = {node} & set(postorder(t for t, _ in self.graph.checks))
        for n in self.nodes:
            if n is not node and not below.isdisjoint(n.args):
                below.add(n)
            if not isinstance(n, Compute) or n in refused or n in above:
                continue
            if any(a in below and a not in self.places for a in n.args):
                continue
            match = self._match(n, self.places if n in below else streamed)
            if match is None or not self._is_cheap(n, match) or (checks_wait and has_data_index(n.template)):
                continue
            readers[n] = match
            below.add(n)
            self.cuts = self._cuts_with(match)
            if match.dim is not None:
                self.places[n] = _MemberPlace(-1, match.dim, match.shift, 0)
        return readers

    def _find_streamed(self, readers: Mapping[Compute, _Match]) -> dict[Tensor, _MemberPlace]:
        """Return the large arguments of which each step, or what `readers` compute in it, reads one position of a
        dimension, t + `origin`."""
        places: dict[Tensor, _MemberPlace] = {}
        for slot, a in enumerate(self.node.args):
            if is_large(nbytes(a) // self.node.steps, self.target):
                pieces = [p for j in range(len(self.node.members)) for p in step_parts(self.node, j)]
                at = find_position([e for p in pieces for e in postorder(p.bodies) if is_read(e, slot)], _TIME)
                if at is not None:
                    places[a] = _MemberPlace(-1, at[0], 0, at[1])
        for n, match in readers.items():
            for slot, a in enumerate(n.args):
                if a not in self.places and a not in places and a in self._find_large(n, match):
                    for p, axis in zip(n.template.parts, match.axes, strict=True):
                        at = find_position([e for e in postorder(p.bodies) if is_read(e, slot)], Axis(axis))
                        if at is not None:
                            places[a] = _MemberPlace(-1, at[0], 0, at[1] - match.shift)
        return places

    def _match(self, n: Compute, known_places: Mapping[Tensor, _MemberPlace]) -> _Match | None:
        """Return how a node goes along time that reads members, or arguments, at these places; None if its steps cannot
        be computed within those of the recurrence."""
        t, node = n.template, self.node
        if t.is_scatter or len(t.dtypes) != 1:
            return None
        places = {s: known_places[a] for s, a in enumerate(n.args) if a in known_places}
        axes: list[int | None] = []
        shifts: list[int] = []
        for p in t.parts:
            axis: int | None = None
            for e in postorder(p.bodies):
                if not isinstance(e, Read) or e.slot not in places:
                    continue
                _, d, by, origin = places[e.slot]
                form = linear(e.index[d])
                (atom,) = form.terms if len(form.terms) == 1 else (None,)
                if not isinstance(atom, Axis) or form.coefficient(atom) != 1 or axis not in (None, atom.position):
                    return None
                axis = atom.position
                shifts.append(form.const + by - origin)
            axes.append(axis)
        known = {a for a in axes if a is not None}
        if not known:
            return None
        rank = len(t.shape)
        dim = None if min(known) >= rank else min(known)
        if dim is not None and known != {dim}:
            return None
        if dim is None and (None in axes or not t.dtypes[0].is_float or t.dtypes[0].bits < 32):
            return None
        spans = {
            (0, 1, p.domain[a or 0]) if dim is None else (p.offset[dim], p.step[dim], p.extents[dim])
            for p, a in zip(t.parts, axes, strict=True)
            if isinstance(p, Piece)
        }
        if len(spans) != 1 or (dim is None and any(_combiner(p) != "sum" for p in t.parts)):
            return None
        ((first, step, extent),) = spans
        if (first, step) != (0, 1) or (dim is not None and extent != t.shape[dim]):
            return None
        shift = min(node.steps - extent, *shifts) if node.reverse else max(0, *shifts)
        if known_places is not self.places:
            shift = min(max(shift, 0), node.steps - extent)  # arguments have all positions before the first step
        match = _Match(tuple(a if a is not None else dim or 0 for a in axes), extent, shift, dim)
        return match if shift >= 0 and shift + extent <= node.steps and self._can_guard(t, match) else None

    def _can_guard(self, t: Template, match: _Match) -> bool:
        """Return whether a tensor with fewer positions along time than the loop has steps can be a member, guarded in
        the other steps."""
        if (
            2 * match.extent < self.node.steps
            or match.extent < 2
            or (cuts := self._cuts_with(match)) != self.cuts
            and len(cuts) >= MAX_SEGMENTS
        ):
            return False
        return match.extent == self.node.steps or all(_combiner(p) in (None, "sum") for p in t.parts)

    def _cuts_with(self, match: _Match) -> frozenset[int]:
        """Return the steps at which conditions on time change, with those of a match."""
        return self.cuts | {t for t in (match.shift, match.shift + match.extent) if 0 < t < self.node.steps}

    def _is_cheap(self, n: Compute, match: _Match) -> bool:
        """Return whether a reader evaluates about one point for each element that it reads of large tensors, and stores
        no more elements."""
        elements = sum(count_elements(n, a, match.axes) for a in self._find_large(n, match))
        points = sum(size(p.domain) for p in n.template.parts) // match.extent
        return points <= MAX_POINTS_PER_ELEMENT * elements and _count_stored(n, match) <= elements

    def _find_large(self, n: Compute, match: _Match) -> list[Tensor]:
        """Return the large operands that a node reads along time."""
        return [a for a in n.args if is_large(count_elements(n, a, match.axes) * a.dtype.itemsize, self.target)]

    def _find_useless(self, readers: Mapping[Compute, _Match]) -> set[Tensor]:
        """Return the readers that neither spare the memory of a tensor, all of whose readers are merged, nor the
        traffic of one that leaves the caches; and those whose results take as much."""
        merged = {self.node, *readers}

        def is_freed(a: Tensor) -> bool:
            return not isinstance(a, Leaf) and a not in self.roots and merged.issuperset(self.users[a])

        def spares(n: Compute, match: _Match) -> bool:
            spared = 0
            for a in self._find_large(n, match):
                elements = count_elements(n, a, match.axes)
                if is_freed(a) or leaves_last_level(elements * a.dtype.itemsize, self.target):
                    spared += elements
            is_small = match.dim is None or 2 * _count_stored(n, match) <= spared
            return spared > 0 and (is_small or is_freed(n))

        return {n for n, match in readers.items() if not spares(n, match)}

    # -------------------------------------------------------------------------------------------------- construction

    def _add_reader(self, n: Compute, match: _Match) -> None:
        """Add a reader as a member, or as a member that accumulates it."""
        steps, dim = self.node.steps, match.dim
        pieces = []
        for p, axis in zip(n.template.parts, match.axes, strict=True):
            assert isinstance(p, Piece)
            pieces.append(self._along_time(n, p, axis, moved(_TIME, -match.shift), match))
        if dim is not None:
            shape = (steps, *(x for d, x in enumerate(n.shape) if d != dim))
            number = self.assembly.add(n.dtype, shape, 0, pieces).number
            self.places[n] = self.places[n]._replace(member=number)
            return
        term = self.assembly.add(n.dtype, (steps, *n.shape), 0, pieces).number
        before, origin = (moved(_TIME, 1), 0) if self.node.reverse else (_TIME, 1)
        rest = own_index(n.shape, 1)
        sums = [Read(self.assembly.count, (before, *rest), n.dtype), Read(term, (_TIME, *rest), n.dtype)]
        step = dense_piece((steps, *n.shape), apply("add", *sums), origin)
        start = dense_piece((1, *n.shape), Const(0, n.dtype), steps if self.node.reverse else 0)
        self.totals[n] = self.assembly.add(n.dtype, (steps + 1, *n.shape), origin, [start, step]).number

    def _along_time(self, n: Compute, p: Piece, axis: int, at: Expr, match: _Match) -> Piece:
        """Return a piece of a node over the steps: `axis` becomes `at`, and time comes first."""
        rank, steps, places = len(p.extents), self.node.steps, self.places
        kept = [a for a in range(len(p.domain)) if a != axis]
        axes: dict[Expr, Expr] = {Axis(axis): at, **{Axis(a): Axis(k + 1) for k, a in enumerate(kept)}}
        guards = [apply("le", Const(match.shift, _TIME.dtype), _TIME)] if match.shift else []
        if match.shift + match.extent < steps:
            guards.append(apply("lt", _TIME, Const(match.shift + match.extent, _TIME.dtype)))
        slots = [None if a in places else self.assembly.arguments.slot(a) for a in n.args]

        def read(e: Read, new: Read) -> Read:
            if (slot := slots[e.slot]) is not None:
                return Read(slot, new.index, e.dtype)
            place = places[n.args[e.slot]]
            index = [new.index[d] for d in dims_first((place.dim,), len(new.index))]
            return Read(place.member, (moved(index[0], place.by), *index[1:]), e.dtype)

        own = [a for a in kept if a < rank]
        offset, step, extents = ([x[a] for a in own] for x in (p.offset, p.step, p.extents))
        bodies = tuple(guarded(guards, b) for b in restated(p, axes, read).bodies)
        sums = tuple(p.domain[a] for a in kept if a >= rank)
        new = Reduce(p.body.combiner, sums, bodies) if isinstance(p.body, Reduce) and sums else bodies[0]
        return Piece((0, *offset), (1, *step), (steps, *extents), new)

    # ----------------------------------------------------------------------------------------------------- arguments

    def _merge_argument(self, merged: set[Any]) -> bool:
        """Turn one argument that is better computed within the steps into a member; return whether there was one.

        merged: nodes that are part of the steps already. Only arguments that no other node reads are considered.
        """
        for slot, a in enumerate(self.assembly.arguments.tensors, ARGS):
            if (
                a in self.roots
                or a in self.kept
                or not is_large(nbytes(a) // self.node.steps, self.target)
                or not merged.issuperset(self.users[a])
            ):
                continue
            place = self._find_step_read(slot)
            source = self.operands.find_definition(a, self.node) if place is not None else None
            if place is None or source is None or self.computed.intersection(source.args):
                continue
            dim, by = place
            t, steps = source.template, self.node.steps
            parts = [p for p in t.parts if isinstance(p, Piece)]
            if any((p.offset[dim], p.step[dim], p.extents[dim]) != (0, 1, t.shape[dim]) for p in parts):
                continue
            if not isinstance(a, Item) and not is_larger_than_operands(source, dim, self.target):
                continue
            first = max(-by, 0)
            match = _Match((dim,) * len(parts), min(t.shape[dim] - by, steps) - first, first, dim)
            if not self._can_guard(t, match):
                continue
            self.cuts = self._cuts_with(match)
            self.computed.add(a)
            self.kept |= {x for x in source.args if isinstance(x, Item)}
            pieces = [self._along_time(source, p, dim, moved(_TIME, by), match) for p in parts]
            shape = (steps, *(x for d, x in enumerate(t.shape) if d != dim))
            number = self.assembly.add(source.dtype, shape, 0, pieces, is_first=True).number
            self.assembly.redirect(slot, number, dim, by)
            merged.add(a)
            return True
        return False

    def _find_step_read(self, slot: int) -> tuple[int, int] | None:
        """Return (dimension, d) if each step t reads an argument at position t + d of the dimension alone, and initial
        values do not read it."""
        reads = []
        for m in self.assembly.members:
            for p in m.pieces:
                own = [e for e in postorder(p.bodies) if is_read(e, slot)]
                if own and not m.origin <= p.offset[0] < m.origin + self.node.steps:
                    return None
                reads += own
        return find_position(reads, _TIME)

    # ------------------------------------------------------------------------------------------------------ the result

    def _finish(self, readers: Mapping[Compute, _Match]) -> dict[Any, Any]:
        """Return the new recurrence's tensors by those that they replace."""
        node = self.node
        new, at = self.assembly.build(node.steps, node.reverse, node.options)
        memo: dict[Any, Any] = {Item(node, j): Item(new, at[j]) for j in range(len(node.members))}
        for n, match in readers.items():
            index = [*own_index(n.shape)]
            if match.dim is None:
                item = Item(new, at[self.totals[n]])
                index.insert(0, Const(0 if node.reverse else node.steps, _TIME.dtype))
            else:
                item = Item(new, at[self.places[n].member])
                index = [index[d] for d in dims_first((match.dim,), len(index))]
                index[0] = moved(index[0], match.shift)
            memo[n] = item if match.dim == 0 and item.shape == n.shape else read_at(item, n.shape, index)
        return memo


def _count_stored(n: Compute, match: _Match) -> int:
    """Return the elements of a step's results; those of a total."""
    return size(n.shape) if match.dim is None else size(n.shape) // match.extent


def _combiner(p: Any) -> str | None:
    return p.body.combiner if isinstance(p.body, Reduce) else None
