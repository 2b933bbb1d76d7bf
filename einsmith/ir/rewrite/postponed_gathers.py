"""Postpone gathers: sum what is gathered once per row of a table, and gather the sums.

before: Y[e, k] = sum[d]((x[dst[e], d] - x[src[e], d])*W[d, k])
after:  T[n, k] = sum[d](x[n, d]*W[d, k]);  Y[e, k] = T[dst[e], k] - T[src[e], k]

This is the reorganization by postponed propagation of Zhang et al. 2022 (Understanding GNN computational graph, MLSys).
Terms that are gathered at different indices, or that lack an axis of the result, have tables of their own: a difference
of rows is one of rows of T, rounded relative to these. Factors and conditions without axes of the sum stay outside of
the table. It has all rows, also those that no index names, and is computed only where that takes less time. Gradients
are first scattered to the rows of T, from which products compute those of x and W. These would multiply rows of x that
no index names by 0, which is NaN where x is infinite. Tables that are differentiated read only the rows that a scatter
of the indices marks:

        R[dst[e]] max= 1;  S[src[e]] max= 1;  T[n, k] = sum[d](where(R[n] > 0 or S[n] > 0, x[n, d]*W[d, k], 0))
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import prod
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.base import environment
from einsmith.base.symbolic import hint
from einsmith.ir import labels
from einsmith.ir.analysis.guarded import reads_under
from einsmith.ir.analysis.in_bounds import proven
from einsmith.ir.analysis.pointwise import float_body, pointwise_body
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Piece,
    Read,
    Reduce,
    Scatter,
    Template,
    Tensor,
    apply,
    axes_of,
    has_read,
    is_zero,
    outermost,
    postorder,
    reads,
    template,
)
from einsmith.ir.rebuild import clamp_index, exchange, guarded, rebuild, substitute, whole_sum
from einsmith.ir.rewrite.contraction_order import KERNEL_COST, LOAD_COST, TRANSFER_COST
from einsmith.ir.rewrite.factors import Factor, is_long, multiply, product_of
from einsmith.ir.rewrite.inlining import inline_arguments
from einsmith.ir.rewrite.sum_steps import apply_steps, may_leave

POSTPONED_GATHERS = "postponed gathers"
"""Name by which this rewrite can be left out."""
MAX_TERMS = 8
"""Most terms of a sum's body, and how deep its sums and products may be nested."""


def postpone_gathers(roots: Sequence[Tensor], kept: Collection[Tensor] = ()) -> list[Tensor]:
    """Return tensors that will be differentiated, whose sums are taken before their gathers; as they are where
    EINSMITH_WITHOUT leaves this out. kept: tensors that must be read where they are, as gradients by them are asked
    for."""
    return exchange(list(roots), postponed(roots, kept, is_differentiated=True))


def postponed(
    roots: Iterable[Tensor], kept: Collection[Tensor] = (), is_differentiated: bool = False
) -> dict[Tensor, Tensor]:
    """Return the replacements of `postpone_gathers`; those that read others come first. is_differentiated: whether
    they will be differentiated, so that rows of tables which are not gathered must not be read."""
    replaced: dict[Tensor, Tensor] = {}
    if POSTPONED_GATHERS in environment.WITHOUT.get():
        return replaced
    repeating: set[Tensor] = set()  # elementwise, of elements that occur repeatedly
    for node in postorder(roots):
        if not isinstance(node, Compute):
            continue
        if node not in kept and _is_elementwise(node.template):
            if not repeating.isdisjoint(node.args) or node.template.memo("repeats elements", _repeats):
                repeating.add(node)
        elif _long_sum(node.template) is not None:
            new = _postpone(node, is_differentiated)
            if new is None and not repeating.isdisjoint(node.args):
                new = _postpone(_inline(node, repeating), is_differentiated)
            if new is not None:
                replaced[node] = new
    labels.carry(replaced)
    return dict(reversed(replaced.items()))


def _is_elementwise(t: Template) -> bool:
    """Return whether a template is elementwise, of a type that is computed in, and short."""
    return (body := float_body(t)) is not None and not is_long(body)


def _repeats(t: Template) -> bool:
    """Return whether each term of an elementwise template is gathered or lacks an axis of the result."""
    body = pointwise_body(t)
    assert body is not None
    groups = GatheredSum(t, body, t.shape).groups(())
    return bool(groups) and all(len(g.rows) < t.rank or any(has_read(at) for at, _ in g.rows) for g in groups)


def _long_sum(t: Template) -> Piece | None:
    """Return the sum that a template is, if it takes longer than one more kernel."""
    part = whole_sum(t)
    dtype = t.dtypes[0]
    if part is None or not dtype.is_float or dtype.in_memory_only or is_long(part.bodies[0]):
        return None
    return part if hint(prod(part.domain)) > KERNEL_COST else None


def _inline(node: Compute, repeating: Collection[Tensor]) -> Compute:
    """Return a sum that computes its repeating arguments itself, as far as its body stays short."""
    for _ in range(MAX_TERMS):
        inlined = {a for a in node.args if a in repeating}
        new = inline_arguments(node, inlined) if inlined else node
        if new is node or _long_sum(new.template) is None:
            break
        node = new
    return node


def _postpone(node: Compute, is_differentiated: bool) -> Tensor | None:
    """Return a sum with its gathers after it; None where that takes no less time."""

    def plan(t: Template) -> tuple[Template, ...]:
        part = _long_sum(t)
        assert part is not None
        return GatheredSum(t, part.bodies[0], part.domain).postpone(is_differentiated)

    steps = node.template.memo(("postponed gathers", is_differentiated), plan)
    return apply_steps(steps, node) if steps else None


class GatheredTerm(NamedTuple):
    """A term of a sum: a product under guards, the outermost first; `minus`: whether it is subtracted."""

    guards: tuple[Expr, ...] = ()
    factors: tuple[Factor, ...] = ()
    minus: bool = False

    def times(self, other: GatheredTerm) -> GatheredTerm:
        """Return the product with another term."""
        return GatheredTerm(self.guards + other.guards, self.factors + other.factors, self.minus != other.minus)


class RowGroup(NamedTuple):
    """Terms that have a table in common.

    rows: the index of each dimension of the table where it is read, with its extent. guards, factors: conditions and
    factors that have no axis of the sum.
    """

    rows: tuple[tuple[Expr, int], ...]
    guards: tuple[Expr, ...]
    factors: tuple[Factor, ...]


class RowMark(NamedTuple):
    """A template that is positive at the rows that are read of a table.

    rows: the dimensions of the table that it has; without any, it has one element for all rows.
    """

    template: Template
    rows: tuple[int, ...]

    def is_set(self, slot: int) -> Expr:
        """Return the condition that the table's element is of a row that is read; the marks are in a slot."""
        zero = Const(0, dt.i32)
        return apply("lt", zero, Read(slot, tuple(map(Axis, self.rows)) or (zero,), dt.i32))


class GatheredSum:
    """The sum that a template is, over the axes of `domain` that come after those of its result."""

    def __init__(self, t: Template, body: Expr, domain: tuple[int, ...]):
        self.t, self.body, self.domain, self.rank = t, body, domain, t.rank

    def postpone(self, is_differentiated: bool) -> tuple[Template, ...]:
        """Return the marks of rows that are read, the tables, then the template that reads them; none where that takes
        no less time, or where a table would read what conditions or indices keep in bounds. Only tables that are
        differentiated have marks."""
        groups = self.groups(range(self.rank, len(self.domain)))
        whole, work = hint(prod(self.t.shape)), 0.0
        if any(hint(prod(extent for _, extent in g.rows)) >= whole for g in groups):
            return ()
        tables: dict[Template, list[RowMark | None]] = {}
        of_group: list[Template] = []
        for group, terms in groups.items():
            table, products = self._table(group, [t._replace(minus=t.minus != terms[0].minus) for t in terms])
            if not _is_proven(table):
                return ()
            if table not in tables:
                work += _work(table, products)
            tables.setdefault(table, []).append(self._mark(group) if is_differentiated else None)
            of_group.append(table)
        marks = list(dict.fromkeys(m.template for ms in tables.values() if None not in ms for m in ms if m))
        work += sum(KERNEL_COST + LOAD_COST * hint(prod(m.parts[-1].domain)) for m in marks)
        if not groups or work + LOAD_COST * len(groups) * whole >= hint(prod(self.domain)):
            return ()
        params = (*self.t.params, *((m.dtypes[0], m.shape) for m in marks))
        masked = [_masked(table, params, marks, of_table) for table, of_table in tables.items()]
        total: Expr | None = None
        for (group, terms), table in zip(groups.items(), of_group, strict=True):
            at = Read(len(params) + list(tables).index(table), tuple(i for i, _ in group.rows), self.body.dtype)
            value = guarded(group.guards, multiply([(at, False), *group.factors], False))
            if total is None:
                total = apply("neg", value) if terms[0].minus else value
            else:
                total = apply("sub" if terms[0].minus else "add", total, value)
        assert total is not None
        last = template(self.t.shape, (*params, *((x.dtypes[0], x.shape) for x in tables)), total)
        return () if may_leave(last) else (*marks, *masked, last)

    # -- terms

    def groups(self, summed: Collection[int]) -> dict[RowGroup, list[GatheredTerm]]:
        """Return the terms by the rows that they read, without what has none of the summed axes; none where there are
        too many terms, or where the order of conditions matters."""
        out: dict[RowGroup, list[GatheredTerm]] = {}
        terms = self._terms_of(self.body)
        for t in terms if len(terms) <= MAX_TERMS else ():
            free = [not summed or axes_of(f).isdisjoint(summed) for f, _ in t.factors]
            outside = tuple(g for g in t.guards if axes_of(g).isdisjoint(summed))
            guards = tuple(g for g in t.guards if g not in outside)
            factors = tuple(f for f, is_free in zip(t.factors, free, strict=True) if is_free)
            own = tuple(f for f, is_free in zip(t.factors, free, strict=True) if not is_free)
            if guards and any(_data_indices(x) for x in (*outside, *(f for f, _ in factors))):
                return {}
            rows = self._rows([f for f, _ in (own if summed else factors)] + list(guards))
            if rows is None:
                return {}
            out.setdefault(RowGroup(rows, outside, factors), []).append(GatheredTerm(guards, own, t.minus))
        return out

    def _terms_of(self, x: Expr, depth: int = MAX_TERMS) -> list[GatheredTerm]:
        """Return the terms of an expression. One factor of a product is multiplied out: a sum of which not all terms
        read the same rows."""
        whole = [GatheredTerm(factors=((x, False),))]
        if not isinstance(x, Apply) or not x.dtype.is_float or not depth:
            return whole
        if x.fn in ("add", "sub"):
            second = GatheredTerm(minus=x.fn == "sub")
            return self._terms_of(x.args[0], depth - 1) + [
                second.times(t) for t in self._terms_of(x.args[1], depth - 1)
            ]
        if x.fn == "where":
            conditions = x.args[0], apply("not", x.args[0])
            sides = [(GatheredTerm((c,)), e) for c, e in zip(conditions, x.args[1:], strict=True) if not is_zero(e)]
            return [side.times(t) for side, e in sides for t in self._terms_of(e, depth - 1)]
        product = product_of(x) if x.fn in ("mul", "div", "neg") else None
        if product is None:
            return whole
        terms = [GatheredTerm(minus=product.minus)]
        is_single = True  # whether no factor is multiplied out
        for f, divides in product.factors:
            own = [] if divides else self._terms_of(f, depth - 1)
            if len(own) > 1 and is_single and len({self._rows([e for e, _ in t.factors]) for t in own}) > 1:
                is_single = False
            elif len(own) != 1:
                own = [GatheredTerm(factors=((f, divides),))]
            terms = [t.times(o) for t in terms for o in own]
        return terms

    def _rows(self, exprs: Sequence[Expr]) -> tuple[tuple[Expr, int], ...] | None:
        """Return the indices by which expressions depend on the axes of the result, with their extents: those that are
        read from tensors, and the axes themselves; None where a dimension of another extent has the same index."""
        gathered: dict[Expr, int] = {}
        for r in outermost(exprs, Read):
            for i, extent in zip(r.index, self.t.params[r.slot][1], strict=True):
                if has_read(i) and max(axes_of(i), default=self.rank) < self.rank:
                    if gathered.setdefault(i, extent) != extent:
                        return None
        rest = rebuild(exprs, lambda e: None, {i: Const(0, i.dtype) for i in gathered})
        rows = [*gathered.items(), *((Axis(a), self.domain[a]) for a in axes_of(*rest) if a < self.rank)]
        return tuple(sorted(rows, key=lambda row: (min(axes_of(row[0])), has_read(row[0]), row[0].digest)))

    # -- tables

    def _mark(self, group: RowGroup) -> RowMark | None:
        """Return the marks of the rows that a group reads; None if it surely reads all."""
        ties = axes_of(*group.guards, *(at for at, _ in group.rows if has_read(at)))
        if not ties and not group.guards:
            return None
        rows = tuple(n for n, (at, _) in enumerate(group.rows) if not axes_of(at).isdisjoint(ties))
        zero, one = Const(0, dt.i32), Const(1, dt.i32)
        index = [guarded(group.guards, clamp_index(*group.rows[n])) for n in rows] or [zero]
        axes = sorted(axes_of(*index, *group.guards))
        move: dict[int, Expr] = {a: Axis(n) for n, a in enumerate(axes)}
        *index, value = (substitute(e, move) for e in (*index, guarded(group.guards, one)))
        part = Scatter("max", tuple(self.domain[a] for a in axes) or (1,), tuple(index), value)
        return RowMark(Template(tuple(group.rows[n][1] for n in rows) or (1,), self.t.params, (part,)), rows)

    def _table(self, group: RowGroup, terms: Sequence[GatheredTerm]) -> tuple[Template, int]:
        """Return the sum of some terms for all rows, and of how many products it consists."""
        rank, summed = len(group.rows), self.domain[self.rank :]
        common = [f for f in terms[0].factors if all(f in t.factors and not t.guards for t in terms)]
        one: Factor = Const(1, self.body.dtype), False
        total: Expr | None = None
        for t in terms:
            rest = [f for f in t.factors if f not in common] or [one]
            value = guarded(t.guards, multiply(rest, t.minus))
            total = value if total is None else apply("add", total, value)
        assert total is not None
        total = multiply([*common, (total, False)], False)
        places: dict[Expr, Expr] = {at: Axis(n) for n, (at, _) in enumerate(group.rows)}
        places |= {Axis(self.rank + n): Axis(rank + n) for n in range(len(summed))}
        body = Reduce("sum", summed, (rebuild([total], lambda e: None, places)[0],))
        return template((extent for _, extent in group.rows), self.t.params, body), 1 if common else len(terms)


def _masked(table: Template, params: tuple, marks: Sequence[Template], of_table: Sequence[RowMark | None]) -> Template:
    """Return a table that reads its operands in rows that some mark has; in all where a mark is None. `marks` are the
    arguments after the table's own. The condition is within the sum, so that the gradients of all factors are under
    it."""
    body = table.parts[0].body
    assert isinstance(body, Reduce)
    is_read: Expr | None = None
    for mark in dict.fromkeys(of_table):
        if mark is None or None in of_table:
            return template(table.shape, params, body)
        here = mark.is_set(len(table.params) + marks.index(mark.template))
        is_read = here if is_read is None else apply("or", is_read, here)
    assert is_read is not None
    return template(table.shape, params, Reduce("sum", body.extents, (guarded((is_read,), body.bodies[0]),)))


def _work(table: Template, products: int) -> float:
    """Return the work of a table, in multiply-adds of a register tile (`ir.rewrite.contraction_order`). Of 15 sums over
    5e5 to 1e8 points, values alone and with gradients, those that it has taken from tables are 0.96 to 13 times as fast
    on one thread."""
    part = table.parts[0]
    return float(products * hint(prod(part.domain)) + TRANSFER_COST * hint(prod(table.shape)) + KERNEL_COST)


def _is_proven(table: Template) -> bool:
    """Return whether every read of a table is in bounds whatever the elements of integer tensors are."""
    return all(
        not has_read(i) and proven(i, n, known)
        for read, known in reads_under(table.parts[0])
        for i, n in zip(read.index, table.params[read.slot][1], strict=True)
    )


def _data_indices(x: Expr) -> bool:
    """Return whether an expression has an index that is read from a tensor."""
    return any(has_read(i) for r in reads(x) for i in r.index)
