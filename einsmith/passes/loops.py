"""Recurrences become loops over steps: a step is a graph of its own, in which time is no axis.

before: recurrence over t = 0 .. 27 of h[t+1, b, k] = tanh(x[t, b, k] + sum[j](h[t, b, j]*U[k, j])), h[0, b, k] = 0
after:  V[j, k] = U[k, j];  loop of 28 steps over the slices x[t], h[t], h[t+1]:
        h1[b, k] = tanh(x0[b, k] + sum[j](h0[b, j]*V[j, k]))

A read of an argument or a member at `c*t + d` in dimension 0 is a read of a slice, whose address moves from step to
step; one at `c*t + d` in another dimension has that dimension put first, outside. A member read at the step that makes
it is an ordinary tensor of the step. Every other read takes the whole tensor, and t from a table of the steps' numbers,
read through a slice too. So no kernel of a step knows the number of steps, unless it reads a whole tensor.

Where conditions on t alone divide the steps, each part is a segment with a body of its own, free of the condition. An
operand of a product that does not change from step to step is laid out once, before the loop, reduction axes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from einsmith import dtypes as dt
from einsmith.dtypes import DType
from einsmith.errors import VerifyError
from einsmith.expr.linear import linear
from einsmith.expr.loop import Loop, Place, Segment
from einsmith.expr.nodes import (
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
    Template,
    Tensor,
    apply,
    leaf,
    postorder,
    reads,
    size,
    template,
)
from einsmith.expr.rewrite import map_bodies, prune_args, rebuild, replace, substitute
from einsmith.expr.simplify import simplify, simplify_template
from einsmith.passes.fuse import REPAID, copy_of
from einsmith.passes.guards import axes_of
from einsmith.passes.views import producer, storage

Passes = Callable[[Graph], Graph]

_SEGMENTS = 4
"""Most parts into which conditions on t divide the steps; beyond, bodies compare the step's number."""

_TIME = Axis(0)


def lower_loops(graph: Graph, passes: Passes) -> Graph:
    """The graph with every recurrence as a loop; `passes` are run on the graph of a step."""
    if not any(isinstance(n, Recurrence) for n in postorder(graph.roots)):
        return graph
    read: dict[Recurrence, set[int]] = {}
    for node in postorder(graph.roots):
        if isinstance(node, Item) and isinstance(node.node, Recurrence):
            read.setdefault(node.node, set()).add(node.member)
    memo: dict = {}
    for node in postorder(graph.roots):
        if isinstance(node, Recurrence):
            args = tuple(rebuild(node.args, lambda n: None, memo))
            new = Recurrence(node.steps, node.reverse, node.origins, node.members, args)
            memo[node] = _Lowering(new, read[node], passes).loop()
    return replace(graph, lambda n: None, memo)


# ------------------------------------------------------------------------------------------------------- recurrences


@dataclass
class _Step:
    """A step that is being built: local time Axis(0) counts from 0 to steps-1."""

    first: int
    steps: int
    inputs: dict[Place, Leaf] = field(default_factory=dict)
    made: list[Tensor] = field(default_factory=list)

    def input(self, place: Place, dtype: DType, shape: tuple[int, ...]) -> Leaf:
        if place not in self.inputs:
            self.inputs[place] = leaf(shape if place.first is None else shape[1:], dtype)
        return self.inputs[place]


class _Lowering:
    """One recurrence; `outside`: the members that are read outside of it."""

    def __init__(self, node: Recurrence, outside: set[int], passes: Passes):
        self.node, self.outside, self.passes = node, outside, passes
        self.args: list[Tensor] = list(node.args)
        self.count = len(node.args)
        self.stored = set(outside)  # members that need memory

    def loop(self) -> Loop:
        node = self.node
        steps = [self._step(first, n) for first, n in self._ranges()]
        for step in steps:
            self.stored |= {p.number for p in step.inputs if p.kind == "member"}
        segments = [self._segment(step) for step in steps]
        if node.reverse:
            segments.reverse()
        initial = []
        for j in sorted(self.stored):
            pieces = tuple(p for p in node.members[j].parts if isinstance(p, Piece) and not self._in_window(j, p))
            if pieces:
                t = Template(node.members[j].shape, node.members[j].params, pieces)
                found = prune_args(t, (*node.args, *(leaf(s, d) for d, s in node.results)))
                initial.append((j, simplify_template(found.template), tuple(map(node.args.index, found.args))))
        return Loop(node.reverse, node.results, tuple(initial), tuple(segments), tuple(self.args))

    def _in_window(self, j: int, piece: Piece) -> bool:
        return piece.offset[0] == self.node.origins[j] and piece.extents[0] == self.node.steps and piece.step[0] == 1

    def _window(self, j: int) -> list[Piece]:
        return [p for p in self.node.members[j].parts if isinstance(p, Piece) and self._in_window(j, p)]

    def _ranges(self) -> list[tuple[int, int]]:
        """(first step, number of steps) of each part of the time in which every condition on t alone is constant."""
        steps = self.node.steps
        cuts: set[int] = set()
        for j in range(len(self.node.members)):
            for piece in self._window(j):
                for e in postorder(piece.bodies):
                    cuts.update(_cuts(e, steps))
        if len(cuts) >= _SEGMENTS:
            cuts = set()
        edges = [0, *sorted(cuts), steps]
        return [(a, b - a) for a, b in zip(edges, edges[1:], strict=False) if b > a]

    # -- one step

    def _step(self, first: int, steps: int) -> _Step:
        step = _Step(first, steps)
        for j, member in enumerate(self.node.members):
            parts = []
            found: list[Tensor] = []
            for piece in self._window(j):
                parts.append(self._piece(step, j, piece, found))
            params = tuple((a.dtype, a.shape) for a in found)
            t = Template(member.shape[1:], params, tuple(parts))
            out = prune_args(t, tuple(found))
            step.made.append(prune_args(simplify_template(out.template), out.args))
        return step

    def _piece(self, step: _Step, j: int, piece: Piece, found: list[Tensor]) -> Piece:
        """A piece at one step. Its reads are numbered by `found`, to which their tensors are added."""
        domain = (step.steps, *piece.domain[1:])
        time = apply("add", _TIME, Const(step.first, dt.i32)) if step.first else _TIME

        def slot(t: Tensor) -> int:
            if t not in found:
                found.append(t)
            return found.index(t)

        def read(e):
            if not isinstance(e, Read):
                return None
            tensor, index = self._source(step, j, e)
            return Read(slot(tensor), index, e.dtype)

        def body(x: Expr) -> Expr:
            x = simplify(substitute(x, {0: time}), domain)
            x = rebuild([x], read)[0]
            axes: dict[int, Expr] = {a: Axis(a - 1) for a in range(1, len(domain))}
            if 0 in axes_of(x):
                axes[0] = Read(slot(self._time(step)), (), dt.i32)
            return substitute(x, axes)

        inner: Expr | Reduce
        if isinstance(piece.body, Reduce):
            r = piece.body
            inner = Reduce(r.combiner, r.extents, tuple(map(body, r.bodies)))
        else:
            inner = body(piece.body)
        return Piece(piece.offset[1:], piece.step[1:], piece.extents[1:], inner)

    def _source(self, step: _Step, j: int, e: Read) -> tuple[Tensor, tuple[Expr, ...]]:
        """The step's tensor that a read takes, and its index there."""
        node = self.node
        i = e.slot - self.count
        dtype, shape = node.members[0].params[e.slot]
        if i >= 0:
            at = _moves(e.index[0], step.steps)
            if at is not None and at[0] == node.origins[i] + step.first and (at[1] == 1 or step.steps == 1):
                if i >= j:
                    raise VerifyError(f"member {j} of a recurrence reads member {i} at a step that is not done")
                return step.made[i], e.index[1:]
            if at is not None and _inside(at, step.steps, shape[0]):
                return step.input(Place("member", i, *at), dtype, shape), e.index[1:]
            return step.input(Place("member", i), dtype, shape), e.index
        for d, x in enumerate(e.index):
            at = _moves(x, step.steps)
            if at is None or not _inside(at, step.steps, shape[d]) or (d and not at[1]):
                continue
            place = Place("argument", self._turned(e.slot, d), *at)
            rest = (shape[d], *shape[:d], *shape[d + 1 :])
            return step.input(place, dtype, rest), (*e.index[:d], *e.index[d + 1 :])
        return step.input(Place("argument", e.slot), dtype, shape), e.index

    def _turned(self, slot: int, d: int) -> int:
        """The number of the argument with dimension d put first."""
        if d == 0:
            return slot
        x = self.node.args[slot]
        order = (d, *(k for k in range(len(x.shape)) if k != d))
        index: list[Expr] = [Axis(order.index(k)) for k in range(len(x.shape))]
        body = Read(0, tuple(index), x.dtype)
        return self._argument(Compute(template((x.shape[k] for k in order), [(x.dtype, x.shape)], body), (x,)))

    def _argument(self, t: Tensor) -> int:
        """The number of an argument of the loop, added where it is new."""
        if t not in self.args:
            self.args.append(t)
        return self.args.index(t)

    def _time(self, step: _Step) -> Leaf:
        """The step's number, counted from the segment's first: a slice of a table."""
        n = self.node.steps
        table = Compute(template((n,), (), _TIME), ())
        return step.input(Place("argument", self._argument(table), 0, 1), dt.i32, (n,))

    # -- a segment of steps

    def _segment(self, step: _Step) -> Segment:
        """The step's graph after the passes."""
        stored = sorted(self.stored)
        roots = tuple(step.made[j] for j in stored)
        body = self.passes(Graph(tuple(step.inputs.values()), roots, (), ()))
        if step.steps >= REPAID:
            body = self.passes(self._lay_out(step, body))
        outputs: list[Tensor] = []
        for t in body.outputs:
            own = storage(t) is t and not isinstance(producer(t)[0], Leaf) and t not in outputs
            outputs.append(t if own else copy_of(t))
        used = {x for x in postorder(outputs) if isinstance(x, Leaf)}
        places = {x: place for place, x in step.inputs.items() if x in used}
        body = Graph(tuple(places), tuple(outputs), (), ())
        targets = tuple((j, self.node.origins[j] + step.first) for j in stored)
        return Segment(step.steps, body, tuple(places.values()), targets)

    def _lay_out(self, step: _Step, body: Graph) -> Graph:
        """Sums of products whose unchanging operand lies badly, or has to be computed, read a copy made outside."""
        place = {x: p for p, x in step.inputs.items()}

        def constant(t: Tensor) -> bool:
            return isinstance(t, Leaf) and place[t].kind == "argument" and place[t].first is None

        def outside(node: Compute) -> Leaf:
            """The step's input in the place of a node that reads constants only."""
            made = prune_args(node.template, tuple(self.args[place[a].number] for a in node.args))  # type: ignore[index]
            made = prune_args(simplify_template(made.template), made.args)
            found = Place("argument", self._argument(made))
            x = step.input(found, made.dtype, made.shape)
            place[x] = found
            return x

        def rule(node):
            if not isinstance(node, Compute) or not any(map(constant, node.args)):
                return None
            if all(map(constant, node.args)) and len(node.template.dtypes) == 1:
                return outside(node)
            found = _operand(node, {s for s, a in enumerate(node.args) if constant(a)})
            if found is None:
                return None
            axes, factors, operand = found
            x = outside(prune_args(operand, node.args))
            new = Read(len(node.args), tuple(Axis(a) for a in axes), x.dtype)

            def swap(e):
                return new if e is factors[0] else Const(1, e.dtype) if e in factors[1:] else None

            params = (*node.template.params, (x.dtype, x.shape))
            t = map_bodies(node.template, lambda b: rebuild([b], swap)[0], params)
            out = prune_args(t, (*node.args, x))
            return prune_args(simplify_template(out.template), out.args)

        return replace(body, rule)


def _moves(index: Expr, steps: int) -> tuple[int, int] | None:
    """(d, c) of an index that is c*t + d, c being 0 only where there is one step; None for any other."""
    form = linear(index)
    if any(a is not _TIME for a in form.terms):
        return None
    c = form.coefficient(_TIME)
    return (form.const, c) if c or steps == 1 else None


def _inside(at: tuple[int, int], steps: int, extent: int) -> bool:
    """Whether d + c*t lies in a dimension at the first and the last step."""
    first, last = at[0], at[0] + at[1] * (steps - 1)
    return 0 <= min(first, last) and max(first, last) < extent


def _cuts(e: Expr, steps: int) -> Iterable[int]:
    """The steps at which a comparison of t with a constant changes."""
    if not isinstance(e, Apply) or e.fn not in ("lt", "le", "eq", "ne") or not e.args[0].dtype.is_int:
        return
    form = linear(e.args[0]) - linear(e.args[1])
    c = form.coefficient(_TIME)
    if not c or len(form.terms) != 1:
        return
    k = form.const if e.fn != "le" else form.const - 1  # a < b: c*t + k < 0
    if e.fn in ("eq", "ne"):
        if k % c == 0:
            yield from (t for t in (-k // c, -k // c + 1) if 0 < t < steps)
        return
    cut = -(k // c) if c > 0 else k // -c + 1  # the first t with c*t + k >= 0, or < 0 where c is negative
    if 0 < cut < steps:
        yield cut


def _operand(node: Compute, constant: set[int]) -> tuple[tuple[int, ...], list[Expr], Template] | None:
    """(axes, factors, template) of the part of a product's body that reads only `constant` slots and depends on an axis
    of the sum: the template evaluates it over those axes, an operand's own output axes last. None where there is none,
    or where it lies like that already."""
    part = node.template.parts[0]
    body = part.body
    if len(node.template.parts) != 1 or not isinstance(body, Reduce) or body.combiner != "sum" or len(body.bodies) != 1:
        return None
    assert isinstance(part, Piece)
    rank = len(part.extents)
    found: list[Expr] = []
    others: set[int] = set()
    stack = [body.bodies[0]]
    while stack:
        e = stack.pop()
        if isinstance(e, Apply) and e.fn in ("mul", "neg"):
            stack += e.args
            continue
        if isinstance(e, Apply) and e.fn == "where" and isinstance(e.args[2], Const) and e.args[2].value == 0:
            return None
        slots = {r.slot for r in reads(e)}
        if slots and slots <= constant and any(a >= rank for a in axes_of(e)):
            found.append(e)
        else:
            others |= axes_of(e)
    if not found or not others:
        return None
    own = axes_of(*found)
    batch = sorted(a for a in own if a < rank and a in others)
    inner = sorted(a for a in own if a >= rank)
    outer = sorted(a for a in own if a < rank and a not in others)
    axes = (*batch, *inner, *outer)
    if len(found) == 1 and isinstance(found[0], Read):
        if all(isinstance(i, Axis) for i in found[0].index) and tuple(i.position for i in found[0].index) == axes:  # type: ignore[union-attr]
            return None
    shape = tuple(part.domain[a] for a in axes)
    if size(shape) > 2 * max(size(node.template.params[s][1]) for s in constant):
        return None
    product = found[0]
    for e in found[1:]:
        product = apply("mul", product, e)
    product = substitute(product, {a: Axis(n) for n, a in enumerate(axes)})
    return axes, found, template(shape, node.template.params, product)
