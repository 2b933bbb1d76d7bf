"""Plan the adjoint of one node: the contributions of its results' cotangents to each of its float arguments.

    before   C[i,j] = sum[k](A[i,k] * B[k,j])                 and dC
    after    dA[i,k] = sum[j](dC[i,j] * B[k,j])               dB[k,j] = sum[i](dC[i,j] * A[i,k])

The body is swept in reverse. Each read `A[f(x, r)]` then has an adjoint expression over the output axes x and the
reduction axes r. The index map f is inverted (`autodiff.inversion.preimage`), so that the contribution to dA[z] is a
sum over the points (x, r) with f(x, r) = z, or a Scatter if that costs less. A plan depends on the template and on the
arguments of `plan_adjoint` alone, not on the node, and is cached with the template.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod

from einsmith.autodiff.adjoint.gather import gather_adjoint
from einsmith.autodiff.adjoint.scatter import (
    CHOSEN_COST,
    SCATTER_COST,
    hold_somewhere,
    is_coupled,
    is_opaque,
    position,
    report_choice,
    row_major_position,
    select_attaining,
    substitute_position,
)
from einsmith.autodiff.adjoint.terms import (
    Guards,
    Terms,
    accumulate,
    apply_within_guards,
    conjuncts,
    exchange_factor,
    guard,
    merge_terms,
    split_common_guards,
)
from einsmith.autodiff.inversion.preimage import Fibre, affine_cases, invert
from einsmith.autodiff.inversion.quasi import Quasi
from einsmith.autodiff.plan import AdjointPlan
from einsmith.base import dtypes as dt
from einsmith.base.errors import GradientError
from einsmith.ir.adjoint_rules import Under, both, choose, constant, mul
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.in_bounds import inside, out_of_bounds, proven
from einsmith.ir.functions import FUNCTIONS
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Const,
    Expr,
    Piece,
    Read,
    Reduce,
    Scatter,
    Template,
    apply,
    axes_of,
    postorder,
    rank,
    reads,
    template,
)
from einsmith.ir.rebuild import substitute
from einsmith.ir.views import own_index

MAX_TERMS = 4
"""Most terms of one expression's adjoint, each under other guards, that the reverse sweep keeps apart.

More terms are merged into one. Limits the size of adjoints: each term passes through the rules by itself.
"""


def plan_adjoint(
    t: Template,
    needed: frozenset[int],
    constants: tuple[float | bool | None, ...],
    sums: frozenset[int] = frozenset(),
) -> AdjointPlan:
    """Return the plan of a template's adjoint.

    Args:
        t: the template.
        needed: slots of the arguments whose adjoints are planned.
        constants: for each result, False if it has no cotangent, a number if its cotangent is this constant everywhere,
            None if its cotangent is any tensor.
        sums: slots of arguments that get sums only, no Scatter, whatever the costs.

    Raises:
        GradientError: the positions in a max or min exceed int32.
    """
    key = f"adjoint {sorted(needed)} {constants} {sorted(sums)}"
    return t.memo(key, lambda _: Adjoint(t, needed, constants, sums).plan())


def chooses(t: Template) -> bool:
    """Return whether a template has a max or min, whose gradient comes from the chosen points."""
    return any(isinstance(p.body, Reduce) and p.body.combiner in ("max", "min") for p in t.parts)


class Adjoint:
    """The plan of one template's adjoint under construction.

    Attributes:
        t, needed, constants, sums: see `plan_adjoint`.
        out: the plan. Its tensors are the arguments, the results, the results' cotangents, then those to be created.
        first_result: number of the first result in the plan.
        first_cotangent: number of the first cotangent in the plan.
        arg: for (piece, result) of a max or min, the number of the tensor of chosen positions.
        products: for (piece, result) of a product, the numbers of two tensors: the product of the factors that are not
            zero, and 2**(number of zeros).
        positions: for each condition that a point is the chosen one, the read of the chosen position.
        gathers: for each slot of `needed`, its contributions that are sums: fibres, with the expression to add up in
            each.
        scatters: for each slot of `needed`, its contributions that are scatters.
    """

    def __init__(
        self,
        t: Template,
        needed: frozenset[int],
        constants: tuple[float | bool | None, ...],
        sums: frozenset[int] = frozenset(),
    ):
        self.t, self.needed, self.constants, self.sums = t, needed, constants, sums
        results = [(d, t.shape) for d in t.dtypes]
        self.out = AdjointPlan([*t.params, *results, *((d.arithmetic, t.shape) for d in t.dtypes)])
        self.first_result = len(t.params)
        self.first_cotangent = len(t.params) + len(results)
        self.arg: dict[tuple[Piece, int], int] = {}
        self.products: dict[tuple[Piece, int], tuple[int, int]] = {}
        self.positions: dict[Expr, Read] = {}
        self.gathers: dict[int, list[tuple[list[Fibre], list[Expr]]]] = {s: [] for s in sorted(needed)}
        self.scatters: dict[int, list[Scatter]] = {s: [] for s in sorted(needed)}

    def plan(self) -> AdjointPlan:
        """Complete the plan with the contributions of all parts of the template, and return it."""
        for part in self.t.parts:
            self._seed_part(part)
        for slot, gathers in self.gathers.items():
            shape = self.t.params[slot][1]
            numbers = gather_adjoint(self.out, shape, gathers)
            for scatter in self.scatters[slot]:
                start = self.out.pieces(numbers.pop()) if numbers else []
                numbers.append(self.out.add(shape, [*start, scatter]))
            self.out.contributions.setdefault(slot, [])[:0] = numbers
        return self.out

    # ------------------------------------------------------------------------------------------------------- seeds

    def _seed_part(self, part: Piece | Scatter) -> None:
        """Give the bodies of a part their adjoints, from the cotangents of the results, and sweep the part."""
        at = position(part)
        if self.t.is_scatter:
            assert not isinstance(part.body, Reduce)
            g, best = self._cotangent(0, at), select_attaining(self.t, self.out, self.first_result, part)
            if g is not None:
                terms: Terms = {(): g} if best is None else {(best.here,): apply("div", g, best.points)}
                self._sweep(part, [(part.body, terms)], {})
            return
        assert isinstance(part, Piece)
        if not isinstance(part.body, Reduce):
            g = self._cotangent(0, at)
            values: dict[Expr, Expr] = {}
            if isinstance(part.body, Apply) and FUNCTIONS[part.body.fn].uses_value:
                values[part.body] = self.out.read(self.first_result, at)
            if g is not None:
                self._sweep(part, [(part.body, {(): g})], values, at)
            return
        r = part.body
        roots: list[tuple[Expr, Terms]] = []
        for member, body in enumerate(r.bodies):
            g = self._cotangent(member, at)
            if g is None:
                continue
            if r.combiner == "sum":
                roots.append((body, {(): g}))
            elif r.combiner == "prod":
                roots.append((body, {(): self._multiply_other_factors(part, member, at, g)}))
            else:
                roots.append((body, {(self._find_chosen_condition(part, member, at),): g}))
        self._sweep(part, roots, {})

    def _cotangent(self, member: int, at: Sequence[Expr]) -> Expr | None:
        """Return the cotangent of result `member` at output position `at`; None if it has none."""
        known = self.constants[member]
        if known is False or not self.t.dtypes[member].is_float:
            return None
        if known is not None:
            return Const(known, self.t.dtypes[member].arithmetic)
        return self.out.read(self.first_cotangent + member, at)

    def _find_chosen_condition(self, part: Piece, member: int, at: Sequence[Expr]) -> Expr:
        """Return the condition that a point of the reduction box is the one whose value is the max or min.

        The max or min is result `member` of a piece, at output position `at`. Of several such points, the first one in
        row-major order is meant.
        """
        assert isinstance(part.body, Reduce)
        combiner = part.body.combiner
        if combiner.startswith("arg"):
            return self._compare_position(self.out.read(self.first_result + 1, at), part)
        shape, parts, at = self._find_similar_pieces(part, at)
        if (part, member) not in self.arg:
            arg_pieces: list[Piece | Scatter] = []
            for p in parts:
                extents = p.body.extents if isinstance(p.body, Reduce) else (1,)
                if prod(extents) > 2**31:
                    raise GradientError(
                        f"the gradient of a {combiner} over {prod(extents)} elements needs their positions, which "
                        f"exceed int32; take the {combiner} over some of the axes, then over the others"
                    )
                arg_body = Reduce("arg" + combiner, extents, (p.bodies[member],))
                arg_pieces.append(Piece(p.offset, p.step, p.extents, arg_body))
            number = self.out.add(shape, arg_pieces, 1)
            if len(parts) == len(self.t.parts):
                self.out.replaced[member] = self.out.add(shape, arg_pieces, 0)
            self.arg |= {(p, member): number for p in (parts if len(parts) > 1 else [part])}
        return self._compare_position(self.out.read(self.arg[part, member], at), part)

    def _compare_position(self, position: Read, part: Piece) -> Expr:
        """Return the condition that a point of the reduction box is at a row-major position that a tensor holds."""
        condition = apply("eq", position, row_major_position(part))
        self.positions[condition] = position
        return condition

    def _multiply_other_factors(self, part: Piece, member: int, at: Sequence[Expr], g: Expr | None = None) -> Expr:
        """Return the product of all factors but the one at a point of the reduction box, times `g` if it is given.

        The product is result `member` of a piece, at output position `at`. If the factor is not zero, the value is the
        result divided by the factor. If the factor is the only zero, it is the product of the nonzero factors. If there
        are other zeros, it is zero. The value's derivatives are those of a product that omits the factor.
        """
        shape, parts, place = self._find_similar_pieces(part, at)
        body = part.bodies[member]
        one, two, zero = (constant(x, body) for x in (1.0, 2.0, 0.0))
        if (part, member) not in self.products:
            product_pieces: list[Piece | Scatter] = []
            whole = len(parts) == len(self.t.parts)
            for p in parts:
                assert isinstance(p.body, Reduce)
                b = p.bodies[member]
                nonzero = apply_within_guards(b, lambda x: choose(apply("eq", x, zero), one, x))
                two_if_zero = apply_within_guards(b, lambda x: choose(apply("eq", x, zero), two, one))
                bodies = (b, nonzero, two_if_zero)
                r = Reduce("prod", p.body.extents, bodies if whole else bodies[1:])
                product_pieces.append(Piece(p.offset, p.step, p.extents, r))
            last = len(r.bodies) - 1
            numbers = self.out.add(shape, product_pieces, last - 1), self.out.add(shape, product_pieces, last)
            if whole:
                self.out.replaced[member] = self.out.add(shape, product_pieces, 0)
            self.products |= {(p, member): numbers for p in (parts if len(parts) > 1 else [part])}
        nonzeros: Expr
        nonzeros, two_to_zeros = (self.out.read(n, place) for n in self.products[part, member])
        total: Expr = self.out.read(self.first_result + member, at)
        others: Expr = self.out.read(
            self.out.add(part.domain, [_build_product_of_others(part, member)]),
            [Axis(d) for d in range(len(part.domain))],
        )
        if g is not None:
            total, others, nonzeros = mul(g, total), mul(g, others), mul(g, nonzeros)
            if isinstance(total, Apply):
                number = self.out.add(part.extents, template(part.extents, (), total).parts)
                total = self.out.read(number, [Axis(d) for d in range(len(part.extents))])
        at_zero = choose(apply("eq", two_to_zeros, two), nonzeros, total)
        return apply("differentiate_as", choose(apply("eq", body, zero), at_zero, apply("div", total, body)), others)

    def _find_similar_pieces(
        self, part: Piece, at: Sequence[Expr]
    ) -> tuple[tuple[int, ...], list[Piece], Sequence[Expr]]:
        """Return (shape, pieces, index) of a new tensor that holds another reduction over the box that `part` reduces.

        `index` is where the tensor has the point of `part` whose output position is `at`. The pieces are all pieces of
        the template, so that one tensor serves all of them, or `part` alone where the others do not fit: they reduce by
        another combiner, or a product is next to a piece without a reduction.
        """
        assert isinstance(part.body, Reduce)
        combiner = part.body.combiner
        parts = [p for p in self.t.parts if isinstance(p, Piece)]
        if all(isinstance(p.body, Reduce) and p.body.combiner == combiner for p in parts):
            return self.t.shape, parts, at
        if combiner != "prod" and not any(isinstance(p.body, Reduce) and p.body.combiner != combiner for p in parts):
            return self.t.shape, parts, at
        alone = template(part.extents, (), part.body).parts
        return part.extents, [p for p in alone if isinstance(p, Piece)], own_index(part.extents)

    # ----------------------------------------------------------------------------------------------- reverse sweep

    def _sweep(
        self,
        part: Piece | Scatter,
        roots: list[tuple[Expr, Terms]],
        values: dict[Expr, Expr],
        at: tuple[Expr, ...] | None = None,
    ) -> None:
        """Compute the adjoints of the float reads in one part, and add a contribution from each.

        Args:
            part: the part.
            roots: (body, its adjoint) for each body that has one.
            values: for some expressions, a read of a tensor that holds the value; rules use it instead of computing it.
            at: output position of a point of the part if it is a piece without a reduction, else None.
        """
        order = list(postorder([body for body, _ in roots]))
        active: set[Expr] = set()
        for e in order:
            if isinstance(e, Read):
                if e.slot in self.needed and e.dtype.is_float:
                    active.add(e)
            elif isinstance(e, Apply) and e.dtype.is_float:
                if any(a in active and rule for a, rule in zip(e.args, FUNCTIONS[e.fn].adjoint, strict=True)):
                    active.add(e)
        adjoints: dict[Expr, Terms] = {}
        for body, terms in roots:
            if body in active:
                for guards, g in terms.items():
                    accumulate(adjoints.setdefault(body, {}), guards, g)
        quasi = Quasi(list(part.domain))
        memo: dict = {}
        # By (slot, index). Indices are normalized, so that different expressions of one index share an entry.
        read_adjoints: dict[tuple, Terms] = {}
        on_result: dict[Expr, Expr] = {}
        if at is not None:
            on_result = _find_conditions_on_result(part.body, self.out.read(self.first_result, at))
        for e in reversed(order):
            if e not in active or e not in adjoints:
                continue
            terms = adjoints.pop(e)
            if len(terms) > MAX_TERMS:
                opaque = any(reads(i) for r in reads(e) for i in r.index)
                terms = merge_terms(terms, opaque or _relies_on_guards(e, part.domain, self.t.params), opaque)
            if isinstance(e, Read):
                key = (e.slot, tuple(quasi.expr(i, {}, memo) for i in e.index))
                for guards, g in terms.items():
                    accumulate(read_adjoints.setdefault(key, {}), guards, g)
                continue
            assert isinstance(e, Apply)
            for a, rule in zip(e.args, FUNCTIONS[e.fn].adjoint, strict=True):
                if a not in active or rule is None:
                    continue
                for guards, g in terms.items():
                    new = rule(g, e.args, values.get(e, e))
                    if isinstance(new, Under):
                        condition = on_result.get(new.condition, new.condition)
                        guards = guards if condition in guards else (*guards, condition)
                        new = new.value
                    if new is not None:
                        accumulate(adjoints.setdefault(a, {}), guards, new)
        self._add_contributions(part, read_adjoints)

    def _add_contributions(self, part: Piece | Scatter, read_adjoints: dict[tuple, Terms]) -> None:
        """Add a contribution from each read of a part, given by (slot, index), with its adjoint."""
        groups = [(slot, index, *split_common_guards(terms)) for (slot, index), terms in read_adjoints.items()]
        # Contributions that may become scatters come last: they add to the tensor that holds the others.
        groups.sort(key=lambda g: (g[0], is_opaque(g[1]) or is_coupled(g[1]), [rank(i) for i in g[1]]))
        shared: dict[tuple[Guards, Expr], Read] = {}
        if isinstance(part, Piece) and not isinstance(part.body, Reduce) and part.extents == self.t.shape:
            # The adjoint of an argument that is read at the position written is a tensor of the output's shape. Other
            # contributions of the same value read this tensor.
            uses = Counter((guards, value) for _, _, guards, value in groups)
            for slot, index, guards, value in groups:
                if uses[guards, value] < 2 or (not guards and isinstance(value, (Read, Const))):
                    continue
                if _is_identity(index, self.t.shape, self.t.params[slot][1]):
                    body = guard(guards, value)
                    number = self.out.add(self.t.shape, [Piece(part.offset, part.step, part.extents, body)])
                    shared[guards, value] = self.out.read(number, [Axis(d) for d in range(len(self.t.shape))])
        for slot, index, guards, value in groups:
            if (guards, value) in shared:
                # The tensor is zero where the guards do not hold. They only keep an opaque index in bounds.
                guards, value = guards if is_opaque(index) else (), shared[guards, value]
            total = self._sum_by_result(part, index, guards, value)
            if total is not None:
                self._invert(part.domain[: len(self.t.shape)], slot, index, guards, total)
            elif not self._invert_at_chosen(part, slot, index, guards, value):
                self._invert(part.domain, slot, index, guards, value)

    def _sum_by_result(
        self, part: Piece | Scatter, index: tuple[Expr, ...], guards: Guards, value: Expr
    ) -> Expr | None:
        """Return the sum of `value` over the reduction axes of a part if it is the part's result times a factor.

        With the result Y[i] = sum[j](exp(x[i,j] - m[i])), sum[j](-g[i]*exp(x[i,j] - m[i])) is -g[i]*Y[i]. Returns None
        for another part, and if the index or the guards of the contribution mention the reduction axes.
        """
        if not (isinstance(part, Piece) and isinstance(part.body, Reduce) and part.body.combiner == "sum"):
            return None
        rank = len(part.extents)
        if any(p >= rank for e in (*index, *guards) for p in axes_of(e)):
            return None
        at = position(part)
        for member, body in enumerate(part.bodies):
            result: Expr = self.out.read(self.first_result + member, at)
            total = exchange_factor(value, body, result) if body.dtype is value.dtype else None
            if total is not None and all(p < rank for p in axes_of(total)):
                return total
        return None

    def _invert_at_chosen(
        self, part: Piece | Scatter, slot: int, index: tuple[Expr, ...], guards: Guards, value: Expr
    ) -> bool:
        """Add a contribution of a max or min by its chosen points alone if that costs less; return whether it does.

        The alternative visits all points of the reduction box and adds up the chosen ones. Costs are points visited.
        """
        is_chosen = next((g for g in guards if g in self.positions), None)
        if is_chosen is None or not isinstance(part, Piece):
            return False
        rest = tuple(g for g in guards if g is not is_chosen)
        chosen_index, chosen_guards, term = substitute_position(part, self.positions[is_chosen], index, rest, value)
        shape = self.t.params[slot][1]
        points = sum(f.points for fibres in self._fibres(slot, part.domain, index, guards) for f in fibres)
        if is_opaque(chosen_index) and slot in self.sums:
            return False
        if is_opaque(chosen_index):
            at_chosen = (0 if self._is_started(slot) else prod(shape)) + CHOSEN_COST * prod(part.extents)
        else:
            cases = self._fibres(slot, part.extents, chosen_index, chosen_guards)
            at_chosen = sum(f.points for fibres in cases for f in fibres)
        report_choice(f"argument {slot} at chosen points", points, at_chosen, at_chosen < points)
        if at_chosen < points:
            self._invert(part.extents, slot, chosen_index, chosen_guards, term, True)
        return at_chosen < points

    def _fibres(self, slot: int, domain: tuple[int, ...], index: tuple[Expr, ...], guards: Guards) -> list[list[Fibre]]:
        """Return the fibres of an index of argument `slot`, a list for each affine case of the index.

        `domain` holds the extents of the axes in the index, and `guards` restrict it.
        """
        shape = self.t.params[slot][1]
        return [invert(branch, domain, shape, (*conditions, *guards)) for branch, conditions in affine_cases(index)]

    def _is_started(self, slot: int) -> bool:
        """Return whether the argument already has contributions, to whose sum a Scatter can add in memory."""
        return bool(self.gathers[slot] or self.scatters[slot])

    def _invert(
        self,
        domain: tuple[int, ...],
        slot: int,
        index: tuple[Expr, ...],
        guards: Guards,
        value: Expr,
        decided: bool = False,
    ) -> None:
        """Add a contribution to an argument: as a sum over the fibres of its index, or as a Scatter if that costs less.

        A Scatter is considered for an opaque index, and for a coupled one if the argument has contributions already.

        Args:
            domain: extents of the axes that `index`, `guards` and `value` mention.
            slot: the argument.
            index: the element of the argument that a point of the domain contributes to.
            guards: conditions under which the point contributes.
            value: what the point contributes.
            decided: whether an opaque index (`is_opaque`) gets a Scatter without a comparison of costs.
        """
        shape = self.t.params[slot][1]
        opaque = is_opaque(index)
        if opaque and not decided and self._sum_before_scatter(domain, slot, index, guards, value):
            return
        cases = self._fibres(slot, domain, index, guards)
        started = self._is_started(slot)
        if slot not in self.sums and (opaque or (started and is_coupled(index))):
            gather_cost = sum(f.points for fibres in cases for f in fibres)
            scatter_cost = (0 if started else prod(shape)) + SCATTER_COST * prod(domain)
            use_scatter = scatter_cost < gather_cost or (opaque and decided)
            if not decided:
                report_choice(f"argument {slot}", gather_cost, scatter_cost, use_scatter)
            if use_scatter:
                facts = Facts.of(domain)
                in_bounds = tuple(
                    i if proven(i, n, facts) and self._is_readable(i, facts) else guard(guards, i, Const(0, i.dtype))
                    for i, n in zip(index, shape, strict=True)
                )
                self.scatters[slot].append(Scatter("sum", domain, in_bounds, guard(guards, value)))
                return
        for fibres in cases:
            self._gather(slot, fibres, value)

    def _is_readable(self, e: Expr, facts: Facts) -> bool:
        """Return whether all that an expression reads is in bounds."""
        return all(inside(i, n, facts) for r in reads(e) for i, n in zip(r.index, self._shape(r), strict=True))

    def _sum_before_scatter(
        self, domain: tuple[int, ...], slot: int, index: tuple[Expr, ...], guards: Guards, value: Expr
    ) -> bool:
        """Sum a contribution with an opaque index over the axes that the index does not mention, then add the sum.

        Returns whether this was done; it is not if there are no such axes. Guards that mention some stay inside the
        sum. If they keep the index in bounds, or a Scatter costs less than sums over fibres, the sum is added where
        they hold for some term, but not done if they mention all axes: each position may then have a single term.
        """
        used = sorted(frozenset[int]().union(*map(axes_of, index)))
        loops = [p for p in range(len(domain)) if p not in used and domain[p] > 1]
        if not loops:
            return False
        conditions = [p for g in guards for p in conjuncts(g)]
        outer = tuple(g for g in conditions if axes_of(g).isdisjoint(loops))
        dropped = [g for g in conditions if g not in outer]
        kept = [p for p in range(len(domain)) if p not in loops]
        move: dict[int, Expr] = {p: Axis(n) for n, p in enumerate(kept + loops)}
        box = tuple(domain[p] for p in kept)
        index, outer = (tuple(substitute(e, move) for e in es) for es in (index, outer))
        body = substitute(guard(guards, value), move)
        relies = any(reads(g) and not axes_of(g).isdisjoint(used) for g in dropped)
        if relies or (dropped and not self._is_gathered_unguarded(box, slot, index, outer)):
            if axes_of(*dropped).issuperset(loops):
                return False
            needed = dropped if all(self._is_readable_unguarded(g, domain) for g in dropped) else conditions
            moved = [substitute(g, move) for g in needed]
            outer = (*outer, hold_somewhere(self.out, [domain[p] for p in kept + loops], len(kept), moved))
        sums = template(box, (), Reduce("sum", tuple(domain[p] for p in loops), (body,))).parts
        total = self.out.read(self.out.add(box, sums), [Axis(n) for n in range(len(box))])
        self._invert(box, slot, index, outer, total)
        return True

    def _is_gathered_unguarded(self, box: tuple[int, ...], slot: int, index: tuple[Expr, ...], outer: Guards) -> bool:
        """Return whether sums over fibres cost at most as much as a Scatter, and `outer` keeps the index in bounds."""
        reads_by_data = any(reads(i) for e in index for r in reads(e) for i in r.index)
        if reads_by_data or not all(self._is_readable(e, Facts.of(box, outer)) for e in index):
            return False
        points = sum(f.points for fibres in self._fibres(slot, box, index, outer) for f in fibres)
        return points <= prod(self.t.params[slot][1]) + SCATTER_COST * prod(box)

    def _is_readable_unguarded(self, e: Expr, domain: tuple[int, ...]) -> bool:
        """Return whether all that an expression reads is in bounds all over a box, which no tensor decides."""
        return not any(reads(i) for r in reads(e) for i in r.index) and self._is_readable(e, Facts.of(domain))

    def _shape(self, r: Read) -> tuple[int, ...]:
        """Return the shape of the tensor of the plan that is read."""
        return self.out.params[r.slot][1]

    def _gather(self, slot: int, fibres: list[Fibre], value: Expr) -> None:
        """Add a contribution as sums over fibres: the axes in `value` become the expressions that the fibres give."""
        bodies: list[Expr] = []
        for f in fibres:
            if f.is_empty:
                bodies.append(constant(0.0, value))
                continue
            quasi = Quasi([*f.extents, *f.free])
            env = {k: quasi.linear(u, {}) for k, u in enumerate(f.axes)}
            bodies.append(guard(f.guards, quasi.expr(value, env)))
        if not all(f.is_empty for f in fibres):
            self.gathers[slot].append((fibres, bodies))


# ----------------------------------------------------------------------------------------------------------- helpers


def _build_product_of_others(part: Piece, member: int) -> Piece:
    """Return the product of all factors of result `member` but one: `out[i,k] = prod[l](where(l == k, 1, body(i,l)))`.

    i is a point of the piece's output box, k and l are points of its reduction box.
    """
    assert isinstance(part.body, Reduce)
    rank, n = len(part.extents), len(part.domain)
    body = substitute(part.bodies[member], {rank + k: Axis(n + k) for k in range(n - rank)})
    is_omitted: Expr = Const(True, dt.bool_)
    for k in range(n - rank):
        is_omitted = both(is_omitted, apply("eq", Axis(n + k), Axis(rank + k)))
    others = Reduce("prod", part.body.extents, (choose(is_omitted, constant(1.0, body), body),))
    return Piece((0,) * n, (1,) * n, part.domain, others)


def _find_conditions_on_result(body: Expr | Reduce, result: Read) -> dict[Expr, Expr]:
    """Map the condition of a body without a reduction, and its negation, to equivalent conditions on the body's result.

    `where(0 < x, x, 0)` is positive where x is, and so are `where(0 < x, x, x*0.1)` and `where(x <= 0, 0, x)`, also for
    NaN. With a condition on the result, the backward pass need not compute x or keep it. Returns an empty dictionary
    for other bodies.
    """
    if not isinstance(body, Apply) or body.fn != "where" or not body.dtype.is_float:
        return {}
    c, a, b = body.args
    if not isinstance(c, Apply) or c.fn not in ("lt", "le"):
        return {}
    zero, x = c.args if c.fn == "lt" else reversed(c.args)
    above, below = (a, b) if c.fn == "lt" else (b, a)  # the sides for x above and below zero
    if above is not x or not isinstance(zero, Const) or zero.value != 0.0:
        return {}
    scaled = isinstance(below, Apply) and below.fn == "mul" and x in below.args
    slope = [k.value for k in below.args if isinstance(k, Const)] if scaled else []
    if below is not zero and not (slope and slope[0] > 0):
        return {}
    on_result = apply("lt", zero, result) if c.fn == "lt" else apply("le", result, zero)
    return {c: on_result, apply("not", c): apply("not", on_result)}


def _is_identity(index: tuple[Expr, ...], shape: tuple[int, ...], argument: tuple[int, ...]) -> bool:
    """Return whether an output of extents `shape` reads an argument of the same extents at the position written."""
    return shape == argument and all(i is Axis(d) for d, i in enumerate(index))


def _relies_on_guards(e: Expr, domain: tuple[int, ...], params: Sequence) -> bool:
    """Return whether an expression over the box `domain` may read out of bounds without the guards around it.

    `params` holds the (element type, shape) of each argument that it reads.
    """
    return any(True for _ in out_of_bounds(template(domain, params, e)))
