"""Lower recurrences to loops over steps: a step is a separate graph, in which time is not an axis.

before: recurrence over t = 0 .. 27 of h[t+1, b, k] = tanh(x[t, b, k] + sum[j](h[t, b, j]*U[k, j])), h[0, b, k] = 0
after:  V[j, k] = U[k, j];  loop of 28 steps over the slices x[t], h[t], h[t+1]:
        h1[b, k] = tanh(x0[b, k] + sum[j](h0[b, j]*V[j, k]))

A read of an argument or a member at `c*t + d` in dimension 0 reads a slice, whose address moves from step to step. An
argument read at `c*t + d` in another dimension is first transposed, outside of the loop, so that this dimension is
first. A member read at the step that computes it is an ordinary tensor of the step. Every other read takes the whole
tensor, and t from a table of the steps' numbers, which is read through a slice too. A kernel of a step thus depends on
the number of steps only if it reads a whole tensor. Members that read each other within a step are a recurrence in the
step's graph, and so a nested loop.

Conditions on t alone divide the steps into segments, each with a body free of the condition. So do comparisons of t
with numbers from memory (`live_steps`); the boundary between their segments is then computed at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import VerifyError
from einsmith.ir.analysis.linear import linear
from einsmith.ir.analysis.predicates import cuts_of
from einsmith.ir.loop import InputPlace, LoopSegment, LoweredLoop
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
    axes_of,
    leaf,
    postorder,
    size,
    template,
)
from einsmith.ir.rebuild import prune_args, rebuild, replace, substitute, template_over
from einsmith.ir.recurrence.define import distances, recurrence, separate_reads, step_groups, step_parts
from einsmith.ir.recurrence.pieces import dims_first
from einsmith.ir.rewrite.simplify import canonical, simplified, simplify, simplify_template
from einsmith.ir.views import storage, transposed
from einsmith.passes.recurrence.accumulators import (
    Slots,
    find_positions_read,
    find_slots,
    initial_slots,
    is_total,
    read_slots,
)
from einsmith.passes.recurrence.copy_propagation import propagate_copies
from einsmith.passes.recurrence.live_steps import find_limit, find_members_read_beyond
from einsmith.passes.recurrence.loop_invariant import hoist_invariants
from einsmith.schedule.kernel_calls import copy_of
from einsmith.schedule.planner import MIN_STEPS_TO_HOIST

Passes = Callable[[Graph], Graph]

MAX_SEGMENTS = 4
"""Most segments into which conditions on t divide the steps; beyond, bodies compare the step's number."""

_TIME = Axis(0)


def lower_loops(graph: Graph, passes: Passes, circular: bool = True) -> Graph:
    """Return the graph with every recurrence as a loop; `passes` are run on the graph of a step. circular: whether
    members of which only the next few steps read the values are stored in circular buffers."""
    if not any(isinstance(n, Recurrence) for n in postorder(graph.roots)):
        return graph
    graph = propagate_copies(graph)
    nodes = list(postorder(graph.roots))
    read_outside: dict[Recurrence, set[int]] = {}
    for node in nodes:
        if isinstance(node, Item) and isinstance(node.node, Recurrence):
            read_outside.setdefault(node.node, set()).add(node.member)
    memo: dict = {}
    positions_read, slots = find_positions_read(graph), dict[Recurrence, Mapping[int, Slots]]()
    read_beyond = find_members_read_beyond(nodes, graph.roots)
    for node in nodes:
        if isinstance(node, Recurrence):
            args = tuple(rebuild(node.args, lambda n: None, memo))
            new = Recurrence(node.steps, node.reverse, node.origins, node.members, args)
            lowering = _Lowering(
                new, read_outside[node], read_beyond.get(node, set()), positions_read[node], passes, circular
            )
            memo[node], slots[node] = lowering.lower(), lowering.slots
        elif isinstance(node, Compute) and (reader := read_slots(node, slots, memo)) is not None:
            memo[node] = reader
    return replace(graph, lambda n: None, memo)


def find_cuts(node: Recurrence) -> frozenset[int]:
    """Return the steps at which conditions on t alone change."""
    pieces = [p for j in range(len(node.members)) for p in step_parts(node, j)]
    return frozenset(cut for p in pieces for e in postorder(p.bodies) for cut in cuts_of(e, _TIME, node.steps))


def ends_early(node: Recurrence, nodes: Sequence[Any], roots: Collection[Tensor]) -> bool:
    """Return whether the loop of a recurrence among `nodes` has two parts whose boundary is computed at run time."""
    if find_limit(node, len(node.args)) is None:
        return False
    read_outside = {n.member for n in nodes if isinstance(n, Item) and n.node is node}
    read_beyond = find_members_read_beyond(nodes, roots).get(node, set())
    lowering = _Lowering(node, read_outside, read_beyond, [range(0)] * len(node.members), lambda graph: graph, False)
    return any(len(lowering.divide_at_limit(first, n)) > 1 for first, n in lowering.find_ranges())


# ------------------------------------------------------------------------------------------------------- recurrences


@dataclass
class _LoopStep:
    """A step under construction: local time Axis(0) counts from 0 to steps-1."""

    first: int
    steps: int
    inputs: dict[InputPlace, Leaf] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)  # of the members, by their numbers
    known: Mapping[Expr, Const] = field(default_factory=dict)  # conditions that are constant in these steps
    computed: set[int] | None = None  # the members that are computed; None: all
    bounds: tuple[int | None, int | None] = (None, None)  # numbers of the arguments: first step, stop

    def add_input(self, place: InputPlace, dtype: DType, shape: tuple[int, ...]) -> Leaf:
        if place not in self.inputs:
            self.inputs[place] = leaf(shape if place.first is None else shape[1:], dtype)
        return self.inputs[place]


class _Lowering:
    """The lowering of one recurrence.

    Attributes:
        node: the recurrence.
        read_outside: the members that are read outside of it.
        read_beyond: the members whose values at steps from its limit on are read (`passes.recurrence.live_steps`).
        positions_read: the positions at which each member is read outside (`passes.recurrence.accumulators`).
        totals: the members that are stored in one slot.
        slots: those of the members that are stored in fewer than they have positions.
        passes: the passes over the graph of a step.
        args: arguments of the loop: the recurrence's, and those added during the lowering.
        arg_count: number of arguments of the recurrence.
        stored: members that need memory.
    """

    def __init__(
        self,
        node: Recurrence,
        read_outside: set[int],
        read_beyond: set[int],
        positions_read: Sequence[range],
        passes: Passes,
        circular: bool,
    ):
        self.node, self.read_outside, self.read_beyond, self.passes = node, read_outside, read_beyond, passes
        self.positions_read, self.circular = positions_read, circular
        self.totals = frozenset(
            j
            for j, positions in enumerate(positions_read)
            if positions in (range(0), self._last(j)) and is_total(node, j)
        )
        self.slots = {j: Slots(1, positions_read[j].start) for j in self.totals}
        self.args: list[Tensor] = list(node.args)
        self.arg_count = len(node.args)
        self.stored = set(read_outside)

    def lower(self) -> LoweredLoop:
        """Return the recurrence as a loop."""
        node = self.node
        steps = [step for first, n in self.find_ranges() for step in self.divide_at_limit(first, n)]
        for step in steps:
            self.stored |= {p.number for p in step.inputs if p.kind == "member"}
        circular = self._find_circular(steps) if self.circular else {}
        self.slots |= circular
        segments = [s for step in steps for s in self._split_idle(self._lower_segment(step), step)]
        if node.reverse:
            segments.reverse()
        initial = []
        for j in sorted(self.stored):
            steps_of = step_parts(node, j)
            pieces = tuple(p for p in node.members[j].parts if isinstance(p, Piece) and p not in steps_of)
            if pieces:
                t = Template(node.members[j].shape, node.members[j].params, pieces)
                t = initial_slots(node, j, self.slots[j].number) if j in self.slots else t
                start_value = prune_args(t, (*node.args, *(leaf(s, d) for d, s in node.results)))
                initial.append(
                    (j, simplify_template(start_value.template), tuple(map(node.args.index, start_value.args)))
                )
        results = (
            (d, (self.slots[j].number if j in self.slots else s[0], *s[1:])) for j, (d, s) in enumerate(node.results)
        )
        return LoweredLoop(
            node.reverse, tuple(results), tuple(initial), tuple(segments), tuple(self.args), tuple(circular)
        )

    def _last(self, j: int) -> range:
        """Return the position of the last step of a member."""
        at = self.node.origins[j] + (0 if self.node.reverse else self.node.steps - 1)
        return range(at, at + 1)

    def _find_circular(self, steps: Sequence[_LoopStep]) -> dict[int, Slots]:
        """Return the slots of the members that are stored in a circular buffer: only the next few steps read them, and
        outside only the values of the last few steps are read."""
        reach = {j: 1 for j in self.stored - self.totals}
        for step in steps:
            for p in (p for p in step.inputs if p.kind == "member" and p.number in reach):
                if p.first is None or (p.stride != 1 and step.steps > 1):
                    del reach[p.number]
                else:
                    distance = abs(self.node.origins[p.number] + step.first - p.first)
                    reach[p.number] = max(reach[p.number], distance)
        slots = ((j, find_slots(self.node, j, n, self.positions_read[j])) for j, n in sorted(reach.items()))
        return {j: x for j, x in slots if x is not None}

    def find_ranges(self) -> list[tuple[int, int]]:
        """Return (first step, number of steps) of each part of the time in which every condition on t alone is
        constant."""
        steps = self.node.steps
        cuts = find_cuts(self.node)
        if len(cuts) >= MAX_SEGMENTS:
            cuts = frozenset()
        edges = [0, *sorted(cuts), steps]
        return [(a, b - a) for a, b in zip(edges, edges[1:], strict=False) if b > a]

    def divide_at_limit(self, first: int, n: int) -> list[_LoopStep]:
        """Return a range of steps as one or two parts. Two parts, whose boundary is computed at run time, pay if
        conditions that limit t by a number from memory leave the later part little work (a batch of sequences of
        different lengths)."""
        whole = self._compute_step(_LoopStep(first, n))
        limit = find_limit(self.node, self.arg_count) if n > 1 else None
        if limit is None:
            return [whole]
        boundary = limit.step
        late = self._drop_unread(self._compute_step(_LoopStep(first, n, known=limit.known)))
        kept = self.read_outside | {p.number for p in whole.inputs if p.kind == "member"}
        if 2 * _count_points(late, late.computed or set()) > _count_points(whole, kept):
            return [whole]
        if limit.before:
            whole = self._compute_step(_LoopStep(first, n, known=limit.before))
        body = apply("sub", Read(0, (), dt.i64), Const(first, dt.i64)) if first else Read(0, (), dt.i64)
        cut = self._add_argument(canonical(template((), [(dt.i64, ())], body), (boundary,)) if first else boundary)
        whole.bounds, late.bounds = (None, cut), (cut, None)
        return [whole, late]

    def _drop_unread(self, step: _LoopStep) -> _LoopStep:
        """Return the step without the members that are not read from the limit on."""
        computed, inputs = set(self.read_beyond), {x: p for p, x in step.inputs.items()}
        while True:
            used = {x: inputs[x] for x in postorder(step.values[j] for j in computed) if x in inputs}
            more = {p.number for p in used.values() if p.kind == "member"} - computed
            if not more:
                break
            computed |= more
        step.computed, step.inputs = computed, {p: x for x, p in used.items()}
        return step

    # -- one step

    def _compute_step(self, step: _LoopStep) -> _LoopStep:
        """Return the step with the values of all members."""
        for group, cyclic in step_groups(self.node):
            if not cyclic:
                step.values[group[0]] = self._compute_member(step, group[0])
                continue
            # Members that read each other within a step are a recurrence themselves, along another axis.
            own = {j: leaf(self.node.members[j].shape[1:], self.node.members[j].dtypes[0]) for j in group}
            step.values |= own
            inner = recurrence({own[j]: self._compute_member(step, j) for j in group})
            step.values |= {j: inner[own[j]] for j in group}
        return step

    def _compute_member(self, step: _LoopStep, j: int) -> Compute:
        """Return the value of a member at a step."""
        tensors: list[Tensor] = []
        parts = tuple(self._lower_piece(step, j, piece, tensors) for piece in step_parts(self.node, j))
        return simplified(template_over(tensors, self.node.members[j].shape[1:], parts), tensors)

    def _lower_piece(self, step: _LoopStep, j: int, piece: Piece, tensors: list[Tensor]) -> Piece:
        """Return a piece at one step. Its reads are numbered by `tensors`, to which the tensors read are appended."""
        domain = (step.steps, *piece.domain[1:])
        time = apply("add", _TIME, Const(step.first, dt.i32)) if step.first else _TIME

        def slot_of(t: Tensor) -> int:
            if t not in tensors:
                tensors.append(t)
            return tensors.index(t)

        def lower_read(e):
            if not isinstance(e, Read):
                return None
            tensor, index = self._resolve_read(step, j, e)
            return Read(slot_of(tensor), index, e.dtype)

        def lower_body(x: Expr) -> Expr:
            x = rebuild([separate_reads(self.node, j, x)], step.known.get)[0]
            x = simplify(substitute(x, {0: time}), domain)
            x = rebuild([x], lower_read)[0]
            axes: dict[int, Expr] = {a: Axis(a - 1) for a in range(1, len(domain))}
            if 0 in axes_of(x):
                axes[0] = Read(slot_of(self._read_time(step)), (), dt.i32)
            return substitute(x, axes)

        inner: Expr | Reduce
        if isinstance(piece.body, Reduce):
            r = piece.body
            inner = Reduce(r.combiner, r.extents, tuple(map(lower_body, r.bodies)))
        else:
            inner = lower_body(piece.body)
        return Piece(piece.offset[1:], piece.step[1:], piece.extents[1:], inner)

    def _resolve_read(self, step: _LoopStep, j: int, e: Read) -> tuple[Tensor, tuple[Expr, ...]]:
        """Return (the step's tensor that a read accesses, its index there)."""
        node = self.node
        i = e.slot - self.arg_count
        dtype, shape = node.members[0].params[e.slot]
        if i >= 0:
            at = _parse_time_index(e.index[0], step.steps)
            if at is not None and at[0] == node.origins[i] + step.first and (at[1] == 1 or step.steps == 1):
                if i not in step.values:
                    raise VerifyError(f"member {j} of a recurrence reads member {i} at a step that has not run yet")
                return step.values[i], e.index[1:]
            if i in self.totals:
                return step.add_input(InputPlace("member", i, 0, 0), dtype, shape), e.index[1:]
            if at is not None and _is_inside(at, step.steps, shape[0]):
                return step.add_input(InputPlace("member", i, *at), dtype, shape), e.index[1:]
            return step.add_input(InputPlace("member", i), dtype, shape), e.index
        for d, x in enumerate(e.index):
            at = _parse_time_index(x, step.steps)
            if at is None or not _is_inside(at, step.steps, shape[d]) or (d and not at[1]):
                continue
            place = InputPlace("argument", self._transpose_argument(e.slot, d), *at)
            rest = (shape[d], *shape[:d], *shape[d + 1 :])
            return step.add_input(place, dtype, rest), (*e.index[:d], *e.index[d + 1 :])
        return step.add_input(InputPlace("argument", e.slot), dtype, shape), e.index

    def _transpose_argument(self, slot: int, d: int) -> int:
        """Return the number of the argument with dimension d transposed to the front."""
        if d == 0:
            return slot
        x = self.node.args[slot]
        return self._add_argument(transposed(x, dims_first((d,), len(x.shape))))

    def _add_argument(self, t: Tensor) -> int:
        return add_argument(self.args, t)

    def _read_time(self, step: _LoopStep) -> Leaf:
        """Return the step's number, counted from the segment's first step: a slice of a table."""
        n = self.node.steps
        table = Compute(template((n,), (), _TIME), ())
        return step.add_input(InputPlace("argument", self._add_argument(table), 0, 1), dt.i32, (n,))

    # -- a segment of steps

    def _lower_segment(self, step: _LoopStep) -> LoopSegment:
        """Return the segment of a step: its graph after the passes, with its slices and targets."""
        updated = self.stored if step.computed is None else self.stored & step.computed
        stored = sorted(updated - self.totals)
        roots = tuple(step.values[j] for j in stored)
        updates = []
        for j in sorted(updated & self.totals):
            dtype, shape = self.node.results[j]
            updates.append((step.add_input(InputPlace("member", j, 0, 0), dtype, shape), step.values[j]))
        body = self.passes(Graph(tuple(step.inputs.values()), roots, tuple(updates), ()))
        if step.steps >= MIN_STEPS_TO_HOIST:
            body = self.passes(self._hoist_invariants(step, body))
        targets = tuple((j, self.node.origins[j] + step.first) for j in stored)
        return LoopSegment(step.steps, *bind_inputs(body, step.inputs), targets, *step.bounds)

    def _split_idle(self, segment: LoopSegment, step: _LoopStep) -> list[LoopSegment]:
        """Split off the last steps of a segment if they compute values that are never read, such as the cotangent of an
        initial state without a gradient; return the segments in the order of time."""
        node = self.node
        unread = {
            n: self._count_unread_steps(j) for n, (j, _) in enumerate(segment.targets) if j not in self.read_outside
        }
        last = min((n for n in unread.values() if n), default=0)
        ends = step.first == 0 if node.reverse else step.first + step.steps == node.steps
        if not ends or not 0 < last < step.steps or step.bounds != (None, None):
            return [segment]
        idle = tuple(n for n, d in unread.items() if d >= last)
        cut = last if node.reverse else step.steps - last
        early = _slice_segment(segment, 0, cut, idle if node.reverse else ())
        return [early, _slice_segment(segment, cut, step.steps - cut, () if node.reverse else idle)]

    def _count_unread_steps(self, j: int) -> int:
        """Return the number of last steps whose value of member j is read by no step."""
        slot, unread = self.arg_count + j, self.node.steps
        for i in range(len(self.node.members)):
            for read, low, _ in distances(self.node, i).values():
                if read == slot:
                    unread = min(unread, 0 if low is None else max(low, 0))
        return unread

    def _hoist_invariants(self, step: _LoopStep, body: Graph) -> Graph:
        """Return the step with loop-invariant computations moved in front of the loop
        (`passes.recurrence.loop_invariant`)."""
        place = {x: p for p, x in step.inputs.items()}

        def is_invariant(t: Tensor) -> bool:
            return isinstance(t, Leaf) and place[t].kind == "argument" and place[t].first is None

        def move_out(node: Compute) -> Leaf:
            """Return the step's input that replaces a node of loop-invariant inputs."""
            value = simplified(node.template, [self.args[place[a].number] for a in node.args])  # type: ignore[index]
            new_place = InputPlace("argument", self._add_argument(value))
            x = step.add_input(new_place, value.dtype, value.shape)
            place[x] = new_place
            return x

        new = hoist_invariants(body, is_invariant, move_out)
        return Graph(tuple(step.inputs.values()), new.outputs, new.updates, ())


def add_argument(args: list[Tensor], t: Tensor) -> int:
    """Return the number of an argument of a loop; append it if it is new."""
    if t not in args:
        args.append(t)
    return args.index(t)


def bind_inputs(body: Graph, inputs: Mapping[InputPlace, Leaf]) -> tuple[Graph, tuple[InputPlace, ...]]:
    """Return (graph of a step, the places of its inputs).

    The graph's inputs are those of `inputs` that it reads; each of its outputs has separate memory.
    """
    outputs = separate_outputs(body.outputs)
    used = set(postorder([*outputs, *(t for pair in body.updates for t in pair)]))
    places = {x: place for place, x in inputs.items() if x in used}
    return Graph(tuple(places), outputs, body.updates, ()), tuple(places.values())


def separate_outputs(outputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return the outputs of a step, each with separate memory."""
    separate: list[Tensor] = []
    for t in map(storage, outputs):
        while isinstance(t, Leaf) or t in separate:  # a third use is a copy of the copy: equal copies are one tensor
            t = copy_of(t)
        separate.append(t)
    return tuple(separate)


def _slice_segment(segment: LoopSegment, first: int, steps: int, idle: tuple[int, ...]) -> LoopSegment:
    """Return steps first .. first+steps-1 of a segment."""
    places = (p if p.first is None else p._replace(first=p.first + first * p.stride) for p in segment.places)
    targets = tuple((j, at + first) for j, at in segment.targets)
    return segment.replaced(steps=steps, places=tuple(places), targets=targets, idle=idle)


def _count_points(step: _LoopStep, members: set[int]) -> int:
    """Return the points of all bodies that a step evaluates for these members, without loop-invariant ones."""
    moving = {x for p, x in step.inputs.items() if p.kind == "member" or p.first is not None}
    varying: set = set()
    for n in postorder(step.values[j] for j in members):
        if n in moving or any(a in varying for a in n.args):
            varying.add(n)
    return sum(size(p.domain) for n in varying if isinstance(n, Compute) for p in n.template.parts)


def _parse_time_index(index: Expr, steps: int) -> tuple[int, int] | None:
    """Return (d, c) of an index that is c*t + d, c being 0 only if there is one step; None for any other index."""
    form = linear(index)
    if any(a is not _TIME for a in form.terms):
        return None
    c = form.coefficient(_TIME)
    return (form.const, c) if c or steps == 1 else None


def _is_inside(at: tuple[int, int], steps: int, extent: int) -> bool:
    """Return whether d + c*t is within a dimension at the first and the last step."""
    first, last = at[0], at[0] + at[1] * (steps - 1)
    return 0 <= min(first, last) and max(first, last) < extent
