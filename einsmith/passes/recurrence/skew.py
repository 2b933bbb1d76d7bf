"""Skew recurrences over two axes: a step computes the cells of a diagonal, which do not depend on each other.

before: recurrence over i, and within a step over j, of r[i, j] = f(d[i, j], r[i-1, j], r[i, j-1], r[i-1, j-1])
after:  D[n, i] = d[i, n-i];  recurrence over n of R[n, i] = f(D[n, i], R[n-1, i-1], R[n-1, i], R[n-2, i-1]) where
        0 <= n-i < J, else 0;  r[i, j] = R[i+j, i]

This is the hyperplane method (Lamport 1974, "The parallel execution of DO loops"). A diagonal is a vector, but the
steps are more and the cells outside of the grid are computed too, so the forms are priced, each as a program of its
own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.base.errors import RecurrenceError
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import (
    Axis,
    Const,
    Expr,
    Graph,
    Item,
    Leaf,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Tensor,
    apply,
    leaf,
    postorder,
    template,
)
from einsmith.ir.rebuild import rebuild, replace, template_over, with_args
from einsmith.ir.recurrence.define import recurrence, step_groups
from einsmith.ir.recurrence.members import boxes_meet
from einsmith.ir.recurrence.pieces import dims_first, restated
from einsmith.ir.rewrite.simplify import canonical
from einsmith.ir.views import read_at
from einsmith.passes.context import PassContext
from einsmith.passes.recurrence.lower_loops import Passes, lower_loops
from einsmith.schedule.planner import fuse
from einsmith.schedule.residency import plan_seconds

Results = dict[int, Tensor]
"""The tensor of each member of a recurrence that is read outside of it."""


def skew(graph: Graph, passes: Passes, context: PassContext) -> Graph:
    """Return the graph with those recurrences skewed for which that is predicted to be faster; `passes` are run on the
    graph of a step."""
    memo: dict = {}
    order = list(postorder(graph.roots))
    for node in order:
        if isinstance(node, Recurrence) and context.can_price and is_nested(node):
            leaves = tuple(leaf(a.shape, a.dtype) for a in node.args)
            read = [n.member for n in order if isinstance(n, Item) and n.node is node]
            new = _choose_form(with_args(node, leaves), read, passes, context)
            if new:
                args = dict(zip(leaves, rebuild(node.args, lambda n: None, memo), strict=True))
                memo |= {Item(node, j): rebuild([t], args.get, {})[0] for j, t in new.items()}
    return replace(graph, lambda n: None, memo) if memo else graph


def is_nested(node: Recurrence) -> bool:
    """Return whether members of a recurrence read each other in a cycle within a step."""
    return any(is_cyclic for _, is_cyclic in step_groups(node))


def _choose_form(node: Recurrence, read: Sequence[int], passes: Passes, context: PassContext) -> Results:
    """Return the results of the form that is predicted to be fastest, whose arguments are leaves; none if that is the
    recurrence itself."""

    def price(results: Results) -> float:
        lowered = lower_loops(Graph(node.args, tuple(results.values()), (), ()), passes)
        return plan_seconds(fuse(lowered, target=context.target, cost=context.cost), context.cost, context.target)

    forms: list[Results] = [{j: Item(node, j) for j in read}, *skewed_forms(node, read)]
    best = min(forms, key=price) if len(forms) > 1 else forms[0]
    return {} if best is forms[0] else best


def skewed_forms(node: Recurrence, read: Sequence[int]) -> Iterator[Results]:
    """Yield the results `read` of a recurrence over the first two dimensions of its members, with diagonals as steps in
    every direction in which the cells of a diagonal do not depend on each other."""
    shapes = [m.shape for m in node.members]
    parts = [p for m in node.members for p in m.parts]
    if any(len(s) < 2 or s[1] != shapes[0][1] for s in shapes):
        return
    if not all(isinstance(p, Piece) and not isinstance(p.body, Reduce) and set(p.step) == {1} for p in parts):
        return
    kept = min((0, 1), key=lambda d: max(s[d] for s in shapes))
    for sign in (1, -1):
        solved = _Skewing(node, Diagonals(sign, kept)).solve()
        if solved:
            yield {j: solved[j] for j in read}


class Diagonals(NamedTuple):
    """A numbering of the diagonals of grids: cell (i, j) of a grid of I by J is on diagonal i + j, or, if `sign` is -1,
    i - j + J-1. A grid as diagonals has the diagonal's number as its first dimension; its second one is that of the
    grid with the number `kept`."""

    sign: int
    kept: int

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape, as diagonals, of a tensor whose first two dimensions are those of a grid."""
        return (shape[0] + shape[1] - 1, shape[self.kept], *shape[2:])

    def number(self, cell: Iterable[LinearForm], columns: int) -> LinearForm:
        """Return the number of the diagonal of a cell."""
        i, j = cell
        return i + j * self.sign + self._first(columns)

    def cell(self, n: LinearForm, kept: LinearForm, columns: int) -> tuple[LinearForm, LinearForm]:
        """Return the cell of a diagonal at a position along the kept dimension; it may lie outside of the grid."""
        n = n - self._first(columns)
        return (kept, (n - kept) * self.sign) if self.kept == 0 else (n - kept * self.sign, kept)

    def is_inside(self, cell: tuple[LinearForm, LinearForm], offset: Sequence[int], extents: Sequence[int]) -> Expr:
        """Return the condition that a cell lies within a box along the dimension that is not kept."""
        d = 1 - self.kept
        at = (cell[d] - offset[d]).expr()
        return apply("and", apply("le", Const(0, dt.i32), at), apply("lt", at, Const(extents[d], dt.i32)))

    def _first(self, columns: int) -> int:
        return 0 if self.sign > 0 else columns - 1


class _Skewing:
    """The skewing of one recurrence: step n computes diagonal n - late[j] of each member j.

    Members are padded before the first step, and arguments at both ends, so that steps read slices of them."""

    def __init__(self, node: Recurrence, diagonals: Diagonals):
        self.node, self.diagonals = node, diagonals
        last = max(node.origins)
        self.late = [last - origin for origin in node.origins]  # diagonals by which members are numbered later
        self.length = max(diagonals.shape(m.shape)[0] + late for m, late in zip(node.members, self.late, strict=True))
        self.lag = max(map(abs, self._find_lags()), default=0)
        self.front = 0 if node.reverse else self.lag
        self.tensors: list[Tensor] = []  # those that the members read: their own diagonals, then arguments

    def solve(self) -> list[Tensor]:
        """Return the members as grids; none if cells of a diagonal depend on each other."""
        members = self.node.members
        kept = [self.diagonals.shape(m.shape)[1:] for m in members]
        leaves = [leaf((self.length + self.lag, *k), m.dtypes[0]) for m, k in zip(members, kept, strict=True)]
        self.tensors = [*leaves]
        pieces = [self._skew_member(j) for j in range(len(members))]
        if any(boxes_meet(p[:3], q[:3]) for parts in pieces for p, q in combinations(parts, 2)):
            return []
        definitions: dict[Leaf, Tensor] = {
            x: canonical(template_over(self.tensors, x.shape, [Piece(*p) for p in parts]), self.tensors)
            for x, parts in zip(leaves, pieces, strict=True)
        }
        try:
            solved = recurrence(definitions)
        except RecurrenceError:
            return []
        if any(isinstance(n, Recurrence) and is_nested(n) for n in postorder(solved.values())):
            return []
        return [self._read_cells(j, solved[x]) for j, x in enumerate(leaves)]

    def _number(self, j: int, cell: Iterable[LinearForm]) -> LinearForm:
        """Return the number of the diagonal of a member's cell, without padding."""
        return self.diagonals.number(cell, self.node.members[j].shape[1]) + self.late[j]

    def _find_lags(self) -> Iterator[int]:
        """Yield the diagonals between each cell and those that it reads."""
        for j, m in enumerate(self.node.members):
            for p in m.parts:
                assert isinstance(p, Piece)
                own = self._number(j, (LinearForm(p.offset[d], {Axis(d): 1}) for d in (0, 1)))
                for e in postorder(p.bodies):
                    if isinstance(e, Read) and (grid := self._find_grid(e)):
                        lag = self._number_of_read(e, e, grid) - own
                        if not lag.terms:
                            yield lag.const

    def _find_grid(self, e: Read) -> tuple[int, ...]:
        """Return the two dimensions of a read tensor that run along the members' first two; none if there are not."""
        if e.slot >= len(self.node.args):
            return 0, 1
        along = [[d for d, x in enumerate(e.index) if linear(x).terms == {Axis(t): 1}] for t in (0, 1)]
        return (along[0][0], along[1][0]) if all(len(dims) == 1 for dims in along) else ()

    def _number_of_read(self, e: Read, new: Read, grid: Sequence[int]) -> LinearForm:
        """Return the number of the diagonal, without padding, that a read accesses at the index of `new`."""
        cell, j = [linear(new.index[d]) for d in grid], e.slot - len(self.node.args)
        return self._number(j, cell) if j >= 0 else self.diagonals.number(cell, self.node.args[e.slot].shape[grid[1]])

    def _skew_member(self, j: int) -> list[tuple]:
        """Return (offset, step, extents, body) of the pieces of a member as diagonals; slots number `self.tensors`."""
        t, k = self.node.members[j], self.diagonals.kept
        bodies: dict[tuple, Expr] = {}
        for p in t.parts:
            assert isinstance(p, Piece)
            box = ((self.front, p.offset[k], *p.offset[2:]), p.step, (self.length, p.extents[k], *p.extents[2:]))
            n, at = LinearForm(-self.late[j], {Axis(0): 1}), LinearForm(p.offset[k], {Axis(1): 1})
            cell = self.diagonals.cell(n, at, t.shape[1])
            value = restated(p, {Axis(d): (cell[d] - p.offset[d]).expr() for d in (0, 1)}, self._skew_read).body
            assert not isinstance(value, Reduce)
            otherwise = bodies.get(box, Const(0, value.dtype))
            bodies[box] = apply("where", self.diagonals.is_inside(cell, p.offset, p.extents), value, otherwise)
        out = [(*box, body) for box, body in bodies.items()]
        if self.lag:
            first = 0 if self.front else self.length
            box = ((first, *(0 for _ in t.shape[1:])), (1,) * t.rank, (self.lag, *self.diagonals.shape(t.shape)[1:]))
            out.append((*box, Const(0, t.dtypes[0])))
        return out

    def _skew_read(self, e: Read, new: Read) -> Expr:
        """Return a read at the index of `new`, of which `e` is the form in terms of cells, from diagonals."""
        grid, slot, front = self._find_grid(e), e.slot - len(self.node.args), self.front
        if slot < 0:
            order = dims_first(grid, len(e.index))
            a = self._skew_argument(self.node.args[e.slot], order) if grid else self.node.args[e.slot]
            if a not in self.tensors:
                self.tensors.append(a)
            slot, front = self.tensors.index(a), self.lag
        if not grid:
            return Read(slot, new.index, e.dtype)
        n = self._number_of_read(e, new, grid) + front
        rest = (x for d, x in enumerate(new.index) if d not in grid)
        return Read(slot, (n.expr(), new.index[grid[self.diagonals.kept]], *rest), e.dtype)

    def _skew_argument(self, a: Tensor, order: Sequence[int]) -> Tensor:
        """Return the diagonals of an argument, zero outside of it. Its dimensions in the given order begin with those
        of a grid."""
        shape = [a.shape[d] for d in order]
        diagonals, *rest = self.diagonals.shape(shape)
        n, at = LinearForm(-self.lag, {Axis(0): 1}), LinearForm(0, {Axis(1): 1})
        cell = self.diagonals.cell(n, at, shape[1])
        places = [*(x.expr() for x in cell), *map(Axis, range(2, len(shape)))]
        read = Read(0, tuple(places[order.index(d)] for d in range(len(shape))), a.dtype)
        body = apply("where", self.diagonals.is_inside(cell, (0, 0), shape), read, Const(0, a.dtype))
        length = self.lag + max(diagonals, self.length + self.lag)
        return canonical(template((length, *rest), [(a.dtype, a.shape)], body), (a,))

    def _read_cells(self, j: int, t: Tensor) -> Tensor:
        """Return the grid of a member's diagonals."""
        shape = self.node.members[j].shape
        n = self._number(j, (LinearForm(0, {Axis(0): 1}), LinearForm(0, {Axis(1): 1}))) + self.front
        at = (n.expr(), Axis(self.diagonals.kept), *map(Axis, range(2, len(shape))))
        return read_at(t, shape, at)
