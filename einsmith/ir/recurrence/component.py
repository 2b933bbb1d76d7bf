"""Turn a cycle of tensors that read each other into one Recurrence: choose the time axis, direction and initial values.

    before   u[b,t,k] = sum[j](where(t > 0, h[b,t-1,j], h0[b,j]) * U[j,k]);  h[b,t,k] = tanh(x[b,t,k] + u[b,t,k])
    after    U'[t,b,k] = sum[j](H[t,b,j] * U[j,k]);  H[0,b,k] = h0[b,k];  H[t+1,b,k] = tanh(x'[t,b,k] + U'[t,b,k])
             outside: x'[t,b,k] = x[b,t,k];  h[b,t,k] = H[t+1,b,k]

Positions along time are counted in the direction of evaluation: `sign` is 1, or -1 where time runs downward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.guarded import reads_under
from einsmith.ir.analysis.in_bounds import inside, is_compared_with_data, proven
from einsmith.ir.analysis.linear import linear, moved
from einsmith.ir.nodes import (
    DEFAULT_STEPS,
    Axis,
    Compute,
    Expr,
    Item,
    Piece,
    Read,
    Recurrence,
    StepOptions,
    Tensor,
    apply,
    reads,
)
from einsmith.ir.rebuild import map_bodies, rebuild, substitute
from einsmith.ir.recurrence.assembly import ARGS, Arguments
from einsmith.ir.recurrence.drafts import (
    Draft,
    Edge,
    find_edges,
    find_offending_edge,
    insert_carries,
    potentials,
    split_free_ends,
)
from einsmith.ir.recurrence.members import Members, schedule
from einsmith.ir.recurrence.pieces import dims_first, map_piece
from einsmith.ir.views import own_index, read_at


class Illegal(Exception):
    """Raised where the axes tried give no recurrence: `edge` is an offending read, in nodes whose first dimension is
    time."""

    def __init__(self, edge: Edge, order: tuple[int, ...]):
        self.edge, self.order = edge, order


@dataclass(frozen=True)
class BuiltRecurrence:
    """The recurrence of a component, and each node's tensor in terms of it."""

    node: Recurrence
    tensors: tuple[Tensor, ...]


class Component:
    """A cyclic component of the graph of tensors.

    number: node number by tensor; outside: returns the final tensor of one that is not in the component; exposed:
    numbers of the nodes that are read outside the component.
    """

    def __init__(
        self,
        nodes: Sequence[Compute],
        number: Mapping[Tensor, int],
        outside: Callable[[Tensor], Tensor],
        exposed: set[int],
        options: StepOptions = DEFAULT_STEPS,
    ):
        self.nodes, self.exposed, self.options = nodes, exposed, options
        self.args = Arguments()
        self.drafts: list[Draft] = []
        for node in nodes:
            sources = {s: number[a] if a in number else self._source(outside(a)) for s, a in enumerate(node.args)}
            t = map_bodies(node.template, partial(_rewrite, rule=partial(_redirect_read, sources)))
            parts = [p for p in t.parts if isinstance(p, Piece)]
            self.drafts.append(Draft(node.shape, node.dtype, tuple(parts)))
        self.outside_args = len(self.args.tensors)

    def _source(self, a: Tensor) -> tuple[int, tuple[Expr, ...]]:
        """Return the slot and index of the tensor that `a` is a slice or a transposition of; of `a` itself for
        others."""
        at: tuple[Expr, ...] = tuple(Axis(d) for d in range(len(a.shape)))
        while isinstance(a, Compute) and len(a.template.parts) == 1:
            part = a.template.parts[0]
            if not isinstance(part, Piece) or part.extents != a.shape or not isinstance(part.body, Read):
                break
            if not all(_is_plain(i) for i in part.body.index):
                break
            at = tuple(substitute(i, dict(enumerate(at))) for i in part.body.index)
            a = a.args[part.body.slot]
        return self.args.slot(a), at

    def find_unproven_index(self) -> tuple[int, int] | None:
        """Return (reader, source of the index) of a read whose index is not proven in bounds, and that no check before
        the first step covers; None if there is none."""
        shapes = {n: d.shape for n, d in enumerate(self.drafts)}
        shapes |= {ARGS + s: a.shape for s, a in enumerate(self.args.tensors)}
        for n, draft in enumerate(self.drafts):
            for part in draft.parts:
                for read, facts in reads_under(part):
                    for i, extent in zip(read.index, shapes[read.slot], strict=True):
                        sources = [r.slot for r in reads(i) if r.slot < ARGS]
                        if sources:
                            low, high = facts.bounds(i)
                            if low is None or low < 0 or high is None or high >= extent:
                                return n, sources[0]
                        elif is_compared_with_data(i, facts) and not proven(i, extent, facts):
                            known, inner = [], []
                            for c, truth in facts.known:
                                own = [r.slot for r in reads(c) if r.slot < ARGS]
                                known += [] if own else [c if truth else apply("not", c)]
                                inner += own
                            if inner and not inside(i, extent, Facts.of(part.domain, known)):
                                return n, inner[0]
        return None

    # ------------------------------------------------------------------------------------------------ which axis

    def propose_time_axes(self) -> Iterator[tuple[int, ...]]:
        """Yield assignments of the time dimension to every node, as the reads suggest."""
        member_reads = [
            (n, part, r)
            for n, d in enumerate(self.drafts)
            for part in d.parts
            for r in dict.fromkeys(r for r, _ in reads_under(part))
            if r.slot < ARGS
        ]
        first = next((n for n, _, r in member_reads if r.slot == n), 0)
        stack: list[dict[int, int]] = [{first: d} for d in reversed(range(len(self.drafts[first].shape)))]
        while stack:
            known = stack.pop()
            if len(known) == len(self.drafts):
                yield tuple(known[n] for n in range(len(known)))
                continue
            options = [
                self._candidates(n, p, r, known) for n, p, r in member_reads if (n in known) != (r.slot in known)
            ]
            other = next(n for n in range(len(self.drafts)) if n not in known)
            options = options or [(other, list(range(len(self.drafts[other].shape))))]
            node, dims = min(options, key=lambda o: len(o[1]))
            stack += [{**known, node: d} for d in reversed(dims)]

    def _candidates(self, n: int, part: Piece, r: Read, known: Mapping[int, int]) -> tuple[int, list[int]]:
        """Return the end of a read whose time dimension is unknown, and its dimensions that run along with the other
        end's time."""
        if n in known:
            axis, step = Axis(known[n]), part.step[known[n]]
            dims = [d for d, i in enumerate(r.index) if linear(i).coefficient(axis) == step]
            return r.slot, dims or list(range(len(r.index)))
        form = linear(r.index[known[r.slot]])
        dims = [d for d, s in enumerate(part.step) if form.coefficient(Axis(d)) == s]
        return n, dims or list(range(len(part.step)))

    def carries(self, axes: Sequence[int]) -> bool:
        """Return whether any read of a node is at another position than the reader's along these axes. Along axes that
        carry nothing, positions are independent of each other."""
        return any((e.low, e.high) != (0, 0) for e in find_edges(self.reorder_drafts(self.order_dims([axes]))))

    def order_dims(self, axes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """Return the order of each node's dimensions that begins with the given axes, one after the other."""
        return [dims_first([a[n] for a in axes], len(d.shape)) for n, d in enumerate(self.drafts)]

    def reorder_drafts(self, orders: Sequence[tuple[int, ...]]) -> list[Draft]:
        """Return the nodes with their dimensions in these orders."""
        out = []
        for draft, order in zip(self.drafts, orders, strict=True):
            places: dict[int, Expr] = {d: Axis(p) for p, d in enumerate(order)}

            def rule(e, places=places):
                if isinstance(e, Axis):
                    return places.get(e.position)
                if isinstance(e, Read) and e.slot < ARGS:
                    return Read(e.slot, tuple(e.index[d] for d in orders[e.slot]), e.dtype)
                return None

            parts = []
            for p in draft.parts:
                p = map_piece(p, partial(_rewrite, rule=rule))
                move = [tuple(x[d] for d in order) for x in (p.offset, p.step, p.extents)]
                parts.append(Piece(*move, p.body))
            out.append(Draft(tuple(draft.shape[d] for d in order), draft.dtype, tuple(parts)))
        return out

    # --------------------------------------------------------------------------------------------------- building

    def build(self, axes: Sequence[int], inner: Sequence[Sequence[int]] = ()) -> BuiltRecurrence:
        """Return the recurrence along these axes. Raises Illegal. Cycles within a step are not examined.

        inner: axes of the recurrences within a step, whose dimensions follow that of time."""
        orders = self.order_dims([axes, *inner])
        drafts = self.reorder_drafts(orders)
        edges = find_edges(drafts)
        sign = next((s for s in (1, -1) if potentials(edges, [0] * len(drafts), s) is not None), None)
        if sign is None:
            raise Illegal(find_offending_edge(edges), tuple(axes))
        del self.args.tensors[self.outside_args :]  # those of an earlier attempt
        drafts, front = insert_carries(drafts, sign)
        drafts = [split_free_ends(d) for d in drafts]
        layout = schedule(drafts, find_edges(drafts), sign)
        node, places = Members(self.args, self.exposed, drafts, layout, self.options, 1 + len(inner)).build()
        tensors = []
        for n, (old, order) in enumerate(zip(self.nodes, orders, strict=True)):
            member, base = places[n]
            own = own_index(old.shape)
            first, *rest = (own[d] for d in order)
            item = Item(node, member)
            whole = order == tuple(range(len(order))) and item.shape == old.shape and front[n] == base
            tensors.append(item if whole else read_at(item, old.shape, [moved(first, front[n] - base), *rest]))
        return BuiltRecurrence(node, tuple(tensors))


def _rewrite(body: Expr, rule: Callable[[Any], Any]) -> Expr:
    return rebuild([body], rule)[0]


def _is_plain(index: Expr) -> bool:
    """Return whether an index is an axis plus a constant, or a constant."""
    form = linear(index)
    return not form.terms or (
        len(form.terms) == 1 and all(isinstance(a, Axis) and c == 1 for a, c in form.terms.items())
    )


def _redirect_read(sources: Mapping[int, Any], e: Expr) -> Expr | None:
    """Rewrite a read of an argument as one of its source: a slot, or a slot and an index over the argument's axes."""
    if not isinstance(e, Read):
        return None
    source = sources[e.slot]
    if isinstance(source, int):
        return Read(source, e.index, e.dtype)
    slot, at = source
    index = []
    for i in at:
        form = linear(i)
        own = [e.index[a.position] for a in form.terms if isinstance(a, Axis)]
        index.append(moved(own[0], form.const) if own else i)
    return Read(slot, tuple(index), e.dtype)
