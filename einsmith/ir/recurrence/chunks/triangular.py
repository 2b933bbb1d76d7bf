"""Solve triangular systems of many right sides by blocks of rows.

    before   x[i,v] = b[i,v] + sum[j](where(j < i, A[i,j]*x[j,v], 0))
    after    X[I,r,v] = sum[c](T[I,r,c]*(b[B*I+c,v] + sum[J,s](where(J < I, A[B*I+c,B*J+s]*X[J,s,v], 0))))

T[I] is the inverse of block I of the diagonal, a unit triangle of B rows. All inverses are computed at once, by the
same recurrence over B rows; what is left are C/B steps of products (Golub and Van Loan, "Matrix Computations", 3.1.4).
"""

from __future__ import annotations

from einsmith.ir.nodes import Axis, Const, Expr, Item, Read, Recurrence, Reduce, Tensor, apply, is_zero, size
from einsmith.ir.rebuild import substitute
from einsmith.ir.recurrence.chunks.affine import STATE, Affine, NotLinearError, affine, product
from einsmith.ir.recurrence.chunks.linear_recurrence import axes_of
from einsmith.ir.recurrence.chunks.sheet import PLACES, Sheet, choose, integer
from einsmith.ir.recurrence.define import step_parts

BLOCK, ROW, COLUMN, LEFT, INNER = range(PLACES, PLACES + 5)
"""Labels: a block of rows, a row of it, a column of its triangle, a block to its left, a row of a sum."""
ROWS = 16
"""Rows of a block."""
LEAST_COLUMNS = 16
"""Right sides below which rows are solved one after the other."""


def blocked(node: Recurrence) -> dict[Tensor, Tensor]:
    """Return the replacements of a recurrence that is a triangular solve; none for others, and for small ones."""
    try:
        system = _System(node)
    except NotLinearError:
        return {}
    if node.steps < 2 * ROWS or node.steps % ROWS or system.columns < LEAST_COLUMNS:
        return {}
    return {Item(node, system.solution): system.solve()}


class _System:
    """A triangular system: x[i,..] = right[i,..] + sum[j](left[i,j,..]*x[j,..]). Axes: i, others of x, j."""

    def __init__(self, node: Recurrence):
        self.node = node
        if len(node.members) != 2 or any(node.origins) or any(s[0] != node.steps for _, s in node.results):
            raise NotLinearError("it is no triangular system")
        bodies = []
        for j in range(2):
            (part, *others) = step_parts(node, j)
            if others or part.extents != node.results[j][1]:
                raise NotLinearError("it is no triangular system")
            bodies.append(part.body)
        sums = [j for j, b in enumerate(bodies) if isinstance(b, Reduce)]
        if len(sums) != 1:
            raise NotLinearError("it is no triangular system")
        (self.sum,) = sums
        self.solution = 1 - self.sum
        self.shape = node.results[self.solution][1]
        total, rest = bodies[self.sum], bodies[self.solution]
        assert isinstance(total, Reduce) and not isinstance(rest, Reduce)
        if total.combiner != "sum" or len(total.bodies) > 1 or node.results[self.sum][1] != self.shape:
            raise NotLinearError("it is no triangular system")
        own, zero = tuple(Axis(d) for d in range(len(self.shape))), Const(0, node.results[0][0])
        column = len(own)
        left = affine(total.bodies[0], self._form)
        reads = [r for r in left if r is not None]
        if total.extents != (node.steps,) or [r.index for r in reads] != [(Axis(column), *own[1:])]:
            raise NotLinearError("it is no triangular system")
        whole = affine(rest, self._form)
        weighted = [r for r in whole if r is not None]
        if [(r.slot, r.index) for r in weighted] != [(STATE - 1, own)] or not is_zero(left.get(None, zero)):
            raise NotLinearError("it is no triangular system")
        self.column, self.right = column, whole.get(None, zero)
        self.left = product(left[reads[0]], whole[weighted[0]])
        shared = axes_of(self.left)
        self.shared = [d for d in range(1, column) if d in shared]
        self.others = [d for d in range(1, column) if d not in shared]

    @property
    def columns(self) -> int:
        """The number of right sides."""
        return size(self.shape[d] for d in self.others)

    def _form(self, e: Read) -> Affine | None:
        j = e.slot - len(self.node.args)
        if j < 0:
            return None
        return {Read(STATE if j == self.solution else STATE - 1, e.index, e.dtype): Const(1, e.dtype)}

    def solve(self) -> Tensor:
        """Return the solution by blocks."""
        node, steps, dtype = self.node, self.node.steps, self.node.results[0][0]
        extents = dict(enumerate(self.shape))
        blocks = steps // ROWS
        sheet = Sheet(extents | {BLOCK: blocks, LEFT: blocks, ROW: ROWS, COLUMN: ROWS, INNER: ROWS})
        left, right = (sheet.taken(x, node.args) for x in (self.left, self.right))

        def place(block: int, row: int) -> Expr:
            at = apply("add", apply("mul", Axis(block), integer(ROWS)), Axis(row))
            return apply("sub", integer(steps - 1), at) if node.reverse else at

        below = apply("lt", Axis(COLUMN), Axis(ROW))
        inverse = sheet.placeholder((*self.shared, BLOCK, ROW, COLUMN), dtype)
        triangle = sheet.define(
            inverse.labels,
            choose(below, substitute(left, {0: place(BLOCK, ROW), self.column: place(BLOCK, COLUMN)}), 0.0),
        )
        pair = product(sheet.read(triangle, {COLUMN: Axis(INNER)}), sheet.read(inverse, {ROW: Axis(INNER)}))
        steps_of_row = sheet.define(inverse.labels, choose(apply("lt", Axis(INNER), Axis(ROW)), pair, 0.0), (INNER,))
        unit = choose(apply("eq", Axis(ROW), Axis(COLUMN)), Const(1.0, dtype), 0.0)
        inverse = sheet.solve(inverse, apply("add", sheet.read(steps_of_row), unit))
        x = sheet.placeholder((BLOCK, *self.shared, ROW, *self.others), dtype)
        known = sheet.define(x.labels, substitute(right, {0: place(BLOCK, ROW)}))
        outside = choose(
            apply("lt", Axis(LEFT), Axis(BLOCK)),
            product(
                substitute(left, {0: place(BLOCK, ROW), self.column: place(LEFT, INNER)}),
                sheet.read(x, {BLOCK: Axis(LEFT), ROW: Axis(INNER)}),
            ),
            0.0,
        )
        before = sheet.define(x.labels, outside, (LEFT, INNER))
        moved = sheet.define(x.labels, apply("add", sheet.read(known), sheet.read(before)))
        pair = product(sheet.read(inverse), sheet.read(moved, {ROW: Axis(COLUMN)}))
        rows = sheet.define(x.labels, pair, (COLUMN,))
        whole = sheet.solve(x, sheet.read(rows))
        at = apply("sub", integer(steps - 1), Axis(0)) if node.reverse else Axis(0)
        places = {BLOCK: apply("floordiv", at, integer(ROWS)), ROW: apply("mod", at, integer(ROWS))}
        return sheet.define(range(len(self.shape)), sheet.read(whole, places)).tensor
