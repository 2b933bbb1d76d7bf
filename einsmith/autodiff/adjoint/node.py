"""Plan the adjoint of one node: the contributions of its results' cotangents to each of its float arguments.

    before   C[i,j] = sum[k](A[i,k] * B[k,j])                 and dC
    after    dA[i,k] = sum[j](dC[i,j] * B[k,j])               dB[k,j] = sum[i](dC[i,j] * A[i,k])

The body is swept in reverse; each read `A[f(x, r)]` then has an adjoint expression over the axes (x, r). Its index map
is inverted (`autodiff.inversion.preimage`), so that the contribution is a sum over the points that read A[z], or a
Scatter if that takes fewer points. A plan depends on the template alone and is made once per template.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod

from einsmith.autodiff.adjoint.gather import gather_adjoint
from einsmith.autodiff.adjoint.rules import RULES, USES_VALUE, Under, both, choose, constant, mul
from einsmith.autodiff.adjoint.scatter import (
    CHOSEN_COST,
    SCATTER_COST,
    at_position,
    is_coupled,
    is_opaque,
    position,
    report,
    select_attaining,
)
from einsmith.autodiff.adjoint.terms import (
    Guards,
    Terms,
    accumulate,
    apply_within_guards,
    common,
    conjuncts,
    exchanged_factor,
    guard,
    merge_terms,
)
from einsmith.autodiff.inversion.preimage import Fibre, affine_cases, invert
from einsmith.autodiff.inversion.quasi import Quasi
from einsmith.autodiff.plan import AdjointPlan
from einsmith.base import dtypes as dt
from einsmith.base.errors import GradientError
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.linear import LinearForm
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
from einsmith.ir.verify import inside, out_of_bounds, proven

MAX_TERMS = 4
"""Most differently guarded terms of one adjoint that are kept separate; beyond it they are merged."""


def plan_adjoint(
    t: Template,
    wanted: frozenset[int],
    constants: tuple[float | bool | None, ...],
    sums: frozenset[int] = frozenset(),
) -> AdjointPlan:
    """Return the plan for the arguments in slots `wanted`. `constants` has an entry per result: False for no cotangent,
    None for any, a number if the cotangent is that constant. Arguments in `sums` get no Scatter, whatever the cost.
    Raises GradientError naming the read that has no adjoint."""
    key = f"adjoint {sorted(wanted)} {constants} {sorted(sums)}"
    return t.memo(key, lambda _: Adjoint(t, wanted, constants, sums).plan())


class Adjoint:
    """The plan of one template's adjoint under construction."""

    def __init__(
        self,
        t: Template,
        wanted: frozenset[int],
        constants: tuple[float | bool | None, ...],
        sums: frozenset[int] = frozenset(),
    ):
        self.t, self.wanted, self.constants, self.sums = t, wanted, constants, sums
        results = [(d, t.shape) for d in t.dtypes]
        self.out = AdjointPlan([*t.params, *results, *((d.arithmetic, t.shape) for d in t.dtypes)])
        self.first_result = len(t.params)
        self.first_cotangent = len(t.params) + len(results)
        self.arg: dict[tuple[Piece, int], int] = {}  # tensors of the chosen position, for max and min
        self.products: dict[tuple[Piece, int], tuple[int, int]] = {}  # products of the nonzeros, 2 ** (zeros)
        self.positions: dict[Expr, Read] = {}  # condition for a chosen point -> the position in it
        self.gathers: dict[int, list[tuple[list[Fibre], list[Expr]]]] = {s: [] for s in sorted(wanted)}
        self.scatters: dict[int, list[Scatter]] = {s: [] for s in sorted(wanted)}

    def plan(self) -> AdjointPlan:
        """Build the plan: the contributions of all parts to the adjoints of the inputs."""
        for part in self.t.parts:
            self._part(part)
        for slot, gathers in self.gathers.items():
            shape = self.t.params[slot][1]
            numbers = gather_adjoint(self.out, shape, gathers)
            for scatter in self.scatters[slot]:
                start = self.out.pieces(numbers.pop()) if numbers else []
                numbers.append(self.out.add(shape, [*start, scatter]))
            self.out.contributions.setdefault(slot, [])[:0] = numbers
        return self.out

    # ------------------------------------------------------------------------------------------------------- seeds

    def _part(self, part: Piece | Scatter) -> None:
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
            if isinstance(part.body, Apply) and part.body.fn in USES_VALUE:
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
                roots.append((body, {(): self._others(part, member, at, g)}))
            else:
                roots.append((body, {(self._chosen(part, member, at),): g}))
        self._sweep(part, roots, {})

    def _cotangent(self, member: int, at: Sequence[Expr]) -> Expr | None:
        known = self.constants[member]
        if known is False or not self.t.dtypes[member].is_float:
            return None
        if known is not None:
            return Const(known, self.t.dtypes[member].arithmetic)
        return self.out.read(self.first_cotangent + member, at)

    def _chosen(self, part: Piece, member: int, at: Sequence[Expr]) -> Expr:
        """Return the condition that a point of the reduction box is the one that max or min chose for position `at`."""
        assert isinstance(part.body, Reduce)
        combiner = part.body.combiner
        if combiner.startswith("arg"):
            return self._compare(self.out.read(self.first_result + 1, at), part)
        shape, parts, at = self._like(part, at)
        if (part, member) not in self.arg:
            args: list[Piece | Scatter] = []
            for p in parts:
                extents = p.body.extents if isinstance(p.body, Reduce) else (1,)
                if prod(extents) > 2**31:
                    raise GradientError(
                        f"the gradient of a {combiner} over {prod(extents)} elements needs their positions, which "
                        f"exceed int32; take the {combiner} over some of the axes, then over the others"
                    )
                args.append(Piece(p.offset, p.step, p.extents, Reduce("arg" + combiner, extents, (p.bodies[member],))))
            number = self.out.add(shape, args, 1)
            if len(parts) == len(self.t.parts):
                self.out.replaced[member] = self.out.add(shape, args, 0)
            self.arg |= {(p, member): number for p in (parts if len(parts) > 1 else [part])}
        return self._compare(self.out.read(self.arg[part, member], at), part)

    def _compare(self, position: Read, part: Piece) -> Expr:
        condition = apply("eq", position, _flat(part))
        self.positions[condition] = position
        return condition

    def _others(self, part: Piece, member: int, at: Sequence[Expr], g: Expr | None = None) -> Expr:
        """Return the product of all factors but this one (times g). It is the whole product divided by the factor if
        that is not zero, and the product of the nonzeros if the factor is the only zero. Its derivatives are those of
        the product written out."""
        shape, parts, place = self._like(part, at)
        body = part.bodies[member]
        one, two, zero = (constant(x, body) for x in (1.0, 2.0, 0.0))
        if (part, member) not in self.products:
            made: list[Piece | Scatter] = []
            whole = len(parts) == len(self.t.parts)
            for p in parts:
                assert isinstance(p.body, Reduce)
                b = p.bodies[member]
                nonzero = apply_within_guards(b, lambda x: choose(apply("eq", x, zero), one, x))
                zeros = apply_within_guards(b, lambda x: choose(apply("eq", x, zero), two, one))
                bodies = (b, nonzero, zeros)  # the last: 2 ** (number of zeros)
                r = Reduce("prod", p.body.extents, bodies if whole else bodies[1:])
                made.append(Piece(p.offset, p.step, p.extents, r))
            numbers = self.out.add(shape, made, len(r.bodies) - 2), self.out.add(shape, made, len(r.bodies) - 1)
            if whole:
                self.out.replaced[member] = self.out.add(shape, made, 0)
            self.products |= {(p, member): numbers for p in (parts if len(parts) > 1 else [part])}
        nonzeros: Expr
        nonzeros, count = (self.out.read(n, place) for n in self.products[part, member])
        total: Expr = self.out.read(self.first_result + member, at)
        others: Expr = self.out.read(
            self.out.add(part.domain, [_all_others(part, member)]), [Axis(d) for d in range(len(part.domain))]
        )
        if g is not None:
            total, others, nonzeros = mul(g, total), mul(g, others), mul(g, nonzeros)
            if isinstance(total, Apply):
                number = self.out.add(part.extents, template(part.extents, (), total).parts)
                total = self.out.read(number, [Axis(d) for d in range(len(part.extents))])
        lone = choose(apply("eq", count, two), nonzeros, total)
        return apply("differentiate_as", choose(apply("eq", body, zero), lone, apply("div", total, body)), others)

    def _like(self, part: Piece, at: Sequence[Expr]) -> tuple[tuple[int, ...], list[Piece], Sequence[Expr]]:
        """Return (shape, pieces that reduce as `part` does, position of `part`'s points in that shape): all pieces of
        the template, or this piece alone if the template mixes combiners."""
        assert isinstance(part.body, Reduce)
        combiner = part.body.combiner
        parts = [p for p in self.t.parts if isinstance(p, Piece)]
        if all(isinstance(p.body, Reduce) and p.body.combiner == combiner for p in parts):
            return self.t.shape, parts, at
        if combiner != "prod" and not any(isinstance(p.body, Reduce) and p.body.combiner != combiner for p in parts):
            return self.t.shape, parts, at
        alone = template(part.extents, (), part.body).parts
        axes = [Axis(d) if n > 1 else Const(0, dt.i32) for d, n in enumerate(part.extents)]
        return part.extents, [p for p in alone if isinstance(p, Piece)], axes

    # ----------------------------------------------------------------------------------------------- reverse sweep

    def _sweep(
        self,
        part: Piece | Scatter,
        roots: list[tuple[Expr, Terms]],
        values: dict[Expr, Expr],
        at: tuple[Expr, ...] | None = None,
    ) -> None:
        """Compute the adjoints of the float reads of one part, and add a contribution from each. `values` are reads
        that hold an expression's value; `at` is the output position of a pointwise part."""
        order = list(postorder([body for body, _ in roots]))
        active: set[Expr] = set()
        for e in order:
            if isinstance(e, Read):
                if e.slot in self.wanted and e.dtype.is_float:
                    active.add(e)
            elif isinstance(e, Apply) and e.dtype.is_float:
                if any(a in active and rule for a, rule in zip(e.args, RULES[e.fn], strict=True)):
                    active.add(e)
        adjoints: dict[Expr, Terms] = {}
        for body, terms in roots:
            if body in active:
                for guards, g in terms.items():
                    accumulate(adjoints.setdefault(body, {}), guards, g)
        quasi = Quasi(list(part.domain))
        memo: dict = {}
        found: dict[tuple, Terms] = {}
        signs = _signs(part.body, self.out.read(self.first_result, at)) if at is not None else {}
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
                    accumulate(found.setdefault(key, {}), guards, g)
                continue
            assert isinstance(e, Apply)
            value = values.get(e, e)
            for a, rule in zip(e.args, RULES[e.fn], strict=True):
                if a not in active or rule is None:
                    continue
                for guards, g in terms.items():
                    new = rule(g, e.args, value)
                    if isinstance(new, Under):
                        condition = signs.get(new.condition, new.condition)
                        guards = guards if condition in guards else (*guards, condition)
                        new = new.value
                    if new is not None:
                        accumulate(adjoints.setdefault(a, {}), guards, new)
        self._contributions(part, found)

    def _contributions(self, part: Piece | Scatter, found: dict[tuple, Terms]) -> None:
        groups = [(slot, index, *common(terms)) for (slot, index), terms in found.items()]
        # Contributions that can be added in memory come after the others.
        groups.sort(key=lambda g: (g[0], is_opaque(g[1]) or is_coupled(g[1]), [rank(i) for i in g[1]]))
        shared: dict[tuple[Guards, Expr], Read] = {}
        if isinstance(part, Piece) and not isinstance(part.body, Reduce) and part.extents == self.t.shape:
            # An argument read at the position that is written: its adjoint is a tensor that the others can read.
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
                # Guards of a data-dependent index keep it in bounds.
                guards, value = guards if is_opaque(index) else (), shared[guards, value]
            whole = self._of_result(part, index, guards, value)
            if whole is not None:
                self._invert(part.domain[: len(self.t.shape)], slot, index, guards, whole)
            elif not self._at_chosen(part, slot, index, guards, value):
                self._invert(part.domain, slot, index, guards, value)

    def _of_result(self, part: Piece | Scatter, index: tuple[Expr, ...], guards: Guards, value: Expr) -> Expr | None:
        """Return the sum of `value` over the loops of a sum if it equals the result times a factor, else None:
        sum[j](-g[i]*exp(x[i,j] - m[i])) is -g[i]*Y[i] if Y[i] = sum[j](exp(x[i,j] - m[i]))."""
        if not (isinstance(part, Piece) and isinstance(part.body, Reduce) and part.body.combiner == "sum"):
            return None
        rank = len(part.extents)
        if any(p >= rank for e in (*index, *guards) for p in axes_of(e)):
            return None
        at = position(part)
        for member, body in enumerate(part.bodies):
            result: Expr = self.out.read(self.first_result + member, at)
            whole = exchanged_factor(value, body, result) if body.dtype is value.dtype else None
            if whole is not None and all(p < rank for p in axes_of(whole)):
                return whole
        return None

    def _at_chosen(
        self, part: Piece | Scatter, slot: int, index: tuple[Expr, ...], guards: Guards, value: Expr
    ) -> bool:
        """Add a contribution from the chosen points of a max or min by these points alone if that takes fewer points
        than the whole box; return whether it was added."""
        chosen = next((g for g in guards if g in self.positions), None)
        if chosen is None or not isinstance(part, Piece):
            return False
        rest = tuple(g for g in guards if g is not chosen)
        new, kept, term = at_position(part, self.positions[chosen], index, rest, value)
        shape = self.t.params[slot][1]
        points = sum(f.points for fibres in self._fibres(slot, part.domain, index, guards) for f in fibres)
        if is_opaque(new) and slot in self.sums:
            return False
        if is_opaque(new):
            fewer = (0 if self._is_started(slot) else prod(shape)) + CHOSEN_COST * prod(part.extents)
        else:
            fewer = sum(f.points for fibres in self._fibres(slot, part.extents, new, kept) for f in fibres)
        report(f"argument {slot} at chosen points", points, fewer, fewer < points)
        if fewer < points:
            self._invert(part.extents, slot, new, kept, term, True)
        return fewer < points

    def _fibres(self, slot: int, domain: tuple[int, ...], index: tuple[Expr, ...], guards: Guards) -> list[list[Fibre]]:
        shape = self.t.params[slot][1]
        return [invert(branch, domain, shape, (*chosen, *guards)) for branch, chosen in affine_cases(index)]

    def _is_started(self, slot: int) -> bool:
        """Return whether the argument already has contributions that a Scatter can add to in memory."""
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
        """Add the contribution `value` to the elements `index`. If `decided`, an opaque index gets a Scatter without a
        comparison of costs."""
        shape = self.t.params[slot][1]
        opaque = is_opaque(index)
        if opaque and not decided and self._summed_first(domain, slot, index, guards, value):
            return
        found = self._fibres(slot, domain, index, guards)
        started = self._is_started(slot)
        if slot not in self.sums and (opaque or (started and is_coupled(index))):
            gather = sum(f.points for fibres in found for f in fibres)
            scatter = (0 if started else prod(shape)) + SCATTER_COST * prod(domain)
            scattered = scatter < gather or (opaque and decided)
            if not decided:
                report(f"argument {slot}", gather, scatter, scattered)
            if scattered:
                facts = Facts.of(domain)
                where = tuple(
                    i if proven(i, n, facts) else guard(guards, i, Const(0, i.dtype))
                    for i, n in zip(index, shape, strict=True)
                )
                self.scatters[slot].append(Scatter("sum", domain, where, guard(guards, value)))
                return
        for fibres in found:
            self._gather(slot, fibres, value)

    def _summed_first(
        self, domain: tuple[int, ...], slot: int, index: tuple[Expr, ...], guards: Guards, value: Expr
    ) -> bool:
        """Sum the adjoint of a data-dependent read over the loops that its index does not mention before it is
        scattered; return whether that was possible."""
        used = sorted(frozenset[int]().union(*map(axes_of, index)))
        loops = [p for p in range(len(domain)) if p not in used and domain[p] > 1]
        # A guard that mentions the loops does not protect the index outside of them.
        parts = [p for g in guards for p in conjuncts(g)]
        outer = tuple(g for g in parts if axes_of(g).isdisjoint(loops))
        dropped = [g for g in parts if g not in outer]
        if not loops or any(reads(g) and not axes_of(g).isdisjoint(used) for g in dropped):
            return False
        if dropped and any(reads(i) for e in index for r in reads(e) for i in r.index):
            return False
        kept = [p for p in range(len(domain)) if p not in loops]
        move: dict[int, Expr] = {p: Axis(n) for n, p in enumerate(kept + loops)}
        box = tuple(domain[p] for p in kept)
        index, outer = (tuple(substitute(e, move) for e in es) for es in (index, outer))
        body = substitute(guard(guards, value), move)
        if dropped:
            facts = Facts.of(box, outer)
            places = [(i, n) for e in index for r in reads(e) for i, n in zip(r.index, self._shape(r), strict=True)]
            if not all(inside(i, n, facts) for i, n in places):
                return False
            points = sum(f.points for fibres in self._fibres(slot, box, index, outer) for f in fibres)
            if points > prod(self.t.params[slot][1]) + SCATTER_COST * prod(box):
                return False
        whole = template(box, (), Reduce("sum", tuple(domain[p] for p in loops), (body,))).parts
        total = self.out.read(self.out.add(box, whole), [Axis(n) for n in range(len(box))])
        self._invert(box, slot, index, outer, total)
        return True

    def _shape(self, r: Read) -> tuple[int, ...]:
        return self.out.params[r.slot][1]

    def _gather(self, slot: int, fibres: list[Fibre], value: Expr) -> None:
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


# ------------------------------------------------------------------------------------------------------- small parts


def _all_others(part: Piece, member: int) -> Piece:
    """Return the piece `out[i,k] = prod[l](where(l == k, 1, body(i,l)))`."""
    assert isinstance(part.body, Reduce)
    rank, n = len(part.extents), len(part.domain)
    body = substitute(part.bodies[member], {rank + k: Axis(n + k) for k in range(n - rank)})
    same: Expr = Const(True, dt.bool_)
    for k in range(n - rank):
        same = both(same, apply("eq", Axis(n + k), Axis(rank + k)))
    others = Reduce("prod", part.body.extents, (choose(same, constant(1.0, body), body),))
    return Piece((0,) * n, (1,) * n, part.domain, others)


def _flat(part: Piece) -> Expr:
    """Return the row-major position of a point of the reduction box."""
    out, stride = LinearForm(), 1
    rank = len(part.extents)
    for k, extent in reversed(list(enumerate(part.domain[rank:]))):
        out = out + LinearForm(0, {Axis(rank + k): stride} if extent > 1 else {})
        stride *= extent
    return out.expr()


def _signs(body: Expr | Reduce, result: Read) -> dict[Expr, Expr]:
    """Map conditions of a pointwise body to equivalent conditions on its result: `where(0 < x, x, 0)` is positive where
    x is, as are `where(0 < x, x, x*0.1)` and `where(x <= 0, 0, x)`, NaN included. The backward sweep then needs the
    result alone, not its operands."""
    if not isinstance(body, Apply) or body.fn != "where" or not body.dtype.is_float:
        return {}
    c, a, b = body.args
    if not isinstance(c, Apply) or c.fn not in ("lt", "le"):
        return {}
    zero, x = c.args if c.fn == "lt" else reversed(c.args)
    kept, other = (a, b) if c.fn == "lt" else (b, a)
    if kept is not x or not isinstance(zero, Const) or zero.value != 0.0:
        return {}
    shrunk = isinstance(other, Apply) and other.fn == "mul" and x in other.args
    slope = [k.value for k in other.args if isinstance(k, Const)] if shrunk else []
    if other is not zero and not (slope and slope[0] > 0):
        return {}
    told = apply("lt", zero, result) if c.fn == "lt" else apply("le", result, zero)
    return {c: told, apply("not", c): apply("not", told)}


def _is_identity(index: tuple[Expr, ...], shape: tuple[int, ...], argument: tuple[int, ...]) -> bool:
    return shape == argument and all(i is Axis(d) for d, i in enumerate(index))


def _relies_on_guards(e: Expr, domain: tuple[int, ...], params: Sequence) -> bool:
    """Return whether a part of a body may read out of bounds without the guards around it."""
    return any(True for _ in out_of_bounds(template(domain, params, e)))
