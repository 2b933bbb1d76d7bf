"""The adjoint of one node: what the cotangents of its results give to each of its float arguments.

    before   C[i,j] = sum[k](A[i,k] * B[k,j])                 and dC
    after    dA[i,k] = sum[j](dC[i,j] * B[k,j])               dB[k,j] = sum[i](dC[i,j] * A[i,k])

The body is swept in reverse; each read `A[f(x, r)]` then has an adjoint expression over the axes (x, r). Its index
map is inverted (autodiff.affine), so that the contribution is a sum over the points that read A[z], or, where counting
points says that this is dearer, a Scatter. A plan depends on the template alone and is made once per template.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from einsmith import dtypes as dt
from einsmith.autodiff.affine import Fibre, invert
from einsmith.autodiff.quasi import Quasi, axes_of
from einsmith.autodiff.rules import RULES, USES_VALUE, Under, both, choose, constant, mul, negate
from einsmith.errors import GradientError
from einsmith.expr.linear import Linear
from einsmith.expr.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Item,
    Node,
    Piece,
    Read,
    Reduce,
    Scatter,
    Template,
    Tensor,
    apply,
    postorder,
    reads,
    template,
)
from einsmith.expr.printer import show
from einsmith.expr.rewrite import map_bodies, rebuild, substitute
from einsmith.expr.simplify import canonical, canonical_template

SCATTER_COST = 4
"""What a point of a Scatter costs, in points of a sum: its destination is looked up, sorted and added to in memory."""

MAX_CASES = 16
"""Affine branches of one index at most."""

MAX_TERMS = 4
"""Differently guarded terms of one adjoint that are kept apart."""

Guards = tuple[Expr, ...]
Terms = dict[Guards, Expr]
"""An adjoint: the sum of the values, each where its guards hold."""


@dataclass
class Plan:
    """Tensors to make, in order. Numbers below len(params) are the node's arguments, results and cotangents; number
    len(params) + k is step k: (template, arguments, which result). `contributions[slot]` are to be added up.
    `replaced[member]` is a tensor equal to that result of the node, made by the plan, to be used in its place."""

    params: list[tuple[dt.DType, tuple[int, ...]]]
    steps: list[tuple[Template, tuple[int, ...], int]] = field(default_factory=list)
    contributions: dict[int, list[int]] = field(default_factory=dict)
    replaced: dict[int, int] = field(default_factory=dict)

    def add(self, shape: tuple[int, ...], parts: Sequence[Piece | Scatter], member: int = 0) -> int:
        """The number of a new tensor whose bodies read the plan's tensors by number; of an old one if it is equal."""
        slots: dict[int, int] = {}
        for part in parts:
            for body in part.bodies:
                for r in reads(body):
                    slots.setdefault(r.slot, len(slots))
        sources = tuple(slots)
        t = map_bodies(
            Template(shape, tuple(self.params[s] for s in sources), tuple(parts)), lambda b: substitute(b, {}, slots)
        )
        t, order = canonical_template(t)
        sources = tuple(sources[s] for s in order)
        if (same := _copy_of(t)) is not None:
            return sources[same]
        step = (t, sources, member)
        if step in self.steps:
            return len(self.params) - len(self.steps) + self.steps.index(step)
        self.steps.append(step)
        self.params.append((t.dtypes[member], shape))
        return len(self.params) - 1

    def read(self, number: int, index: Sequence[Expr]) -> Read:
        return Read(number, tuple(index), self.params[number][0])

    def tensors(self, node: Compute, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The plan carried out for one node."""
        several = len(node.template.dtypes) > 1
        results = [Item(node, m) for m in range(len(node.template.dtypes))] if several else [node]
        out: list[Tensor | None] = [*node.args, *results, *cotangents]
        for t, sources, member in self.steps:
            args = tuple(a for s in sources if (a := out[s]) is not None)
            made = canonical(t, args) if len(set(args)) < len(args) else Compute(t, args)
            out.append(Item(made, member) if len(t.dtypes) > 1 else made)
        return out


def _copy_of(t: Template) -> int | None:
    """The slot that a template copies whole, if it does nothing else."""
    part = t.parts[0]
    if len(t.parts) == 1 and isinstance(part, Piece) and isinstance(part.body, Read):
        r = part.body
        at = tuple(Axis(d) if n > 1 else Const(0, dt.i32) for d, n in enumerate(t.shape))
        plain = tuple(i if n > 1 else a for i, a, n in zip(r.index, at, t.shape, strict=False))
        if t.params[r.slot][1] == t.shape and plain == at:
            return r.slot
    return None


def constant_value(tensor: Tensor | None) -> float | None:
    """The value of a tensor that is the same constant everywhere; None for others."""
    if isinstance(tensor, Compute) and len(tensor.template.parts) == 1:
        body = tensor.template.parts[0].body
        if isinstance(body, Const):
            return float(body.value)
    return None


def plan_adjoint(t: Template, wanted: frozenset[int], constants: tuple[float | bool | None, ...]) -> Plan:
    """The plan for the arguments `wanted`. `constants` has an entry per result: False for no cotangent, None for any,
    a number for a cotangent that is this constant. Raises GradientError naming the read that has no adjoint."""
    key = f"adjoint {sorted(wanted)} {constants}"
    return t.memo(key, lambda _: Adjoint(t, wanted, constants).plan())


class Adjoint:
    """The plan of one template's adjoint under construction."""

    def __init__(self, t: Template, wanted: frozenset[int], constants: tuple[float | bool | None, ...]):
        self.t, self.wanted, self.constants = t, wanted, constants
        results = [(d, t.shape) for d in t.dtypes]
        self.out = Plan([*t.params, *results, *results])
        self.first_result = len(t.params)
        self.first_cotangent = len(t.params) + len(results)
        self.arg: dict[tuple[Piece, int], int] = {}  # tensors of the chosen position, for max and min
        self.products: dict[tuple[Piece, int], tuple[int, int]] = {}  # products of the nonzeros, counts of the zeros
        self.gathers: dict[int, list[tuple[list[Fibre], list[Expr]]]] = {s: [] for s in sorted(wanted)}

    def plan(self) -> Plan:
        for part in self.t.parts:
            self._part(part)
        for slot, found in self.gathers.items():
            self.out.contributions.setdefault(slot, [])[:0] = self._gathered(self.t.params[slot][1], found)
        return self.out

    # ------------------------------------------------------------------------------------------------------- seeds

    def _part(self, part: Piece | Scatter) -> None:
        if isinstance(part, Scatter):
            seeds = [(part.body, self._cotangent(0, part.index))]
            self._sweep(part, [(b, {(): g}) for b, g in seeds if g is not None], {})
            return
        at = tuple(
            Linear(o, {Axis(d): s} if n > 1 else {}).expr()
            for d, (o, s, n) in enumerate(zip(part.offset, part.step, part.extents, strict=True))
        )
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
                roots.append((body, {(): mul(g, self._others(part, member, at))}))
            else:
                roots.append((body, {(self._chosen(part, member, at),): g}))
        self._sweep(part, roots, {})

    def _cotangent(self, member: int, at: Sequence[Expr]) -> Expr | None:
        known = self.constants[member]
        if known is False or not self.t.dtypes[member].is_float:
            return None
        if known is not None:
            return Const(known, self.t.dtypes[member])
        return self.out.read(self.first_cotangent + member, at)

    def _chosen(self, part: Piece, member: int, at: Sequence[Expr]) -> Expr:
        """Whether a point of the reduction box is the one that max or min chose for position `at`."""
        assert isinstance(part.body, Reduce)
        combiner = part.body.combiner
        if combiner.startswith("arg"):
            return apply("eq", self.out.read(self.first_result + 1, at), _flat(part))
        shape, parts, at = self._like(part, at)
        if (part, member) not in self.arg:
            args: list[Piece | Scatter] = []
            for p in parts:
                extents = p.body.extents if isinstance(p.body, Reduce) else (1,)
                args.append(Piece(p.offset, p.step, p.extents, Reduce("arg" + combiner, extents, (p.bodies[member],))))
            number = self.out.add(shape, args, 1)
            if len(parts) == len(self.t.parts):
                self.out.replaced[member] = self.out.add(shape, args, 0)
            self.arg |= {(p, member): number for p in (parts if len(parts) > 1 else [part])}
        return apply("eq", self.out.read(self.arg[part, member], at), _flat(part))

    def _others(self, part: Piece, member: int, at: Sequence[Expr]) -> Expr:
        """The product of all factors but this one, from the product of the nonzeros and the count of the zeros."""
        shape, parts, at = self._like(part, at)
        body = part.bodies[member]
        one, zero = constant(1.0, body), constant(0.0, body)
        if (part, member) not in self.products:
            nonzeros: list[Piece | Scatter] = []
            zeros: list[Piece | Scatter] = []
            for p in parts:
                b = p.bodies[member]
                extents = p.body.extents if isinstance(p.body, Reduce) else ()
                is_zero = apply("eq", b, zero)
                factors, count = choose(is_zero, one, b), choose(is_zero, one, zero)
                nonzeros.append(Piece(p.offset, p.step, p.extents, Reduce("prod", extents, (factors,))))
                zeros.append(Piece(p.offset, p.step, p.extents, Reduce("sum", extents, (count,))))
            numbers = self.out.add(shape, nonzeros), self.out.add(shape, zeros)
            self.products |= {(p, member): numbers for p in (parts if len(parts) > 1 else [part])}
        product, count = (self.out.read(n, at) for n in self.products[part, member])
        lone = choose(apply("eq", count, one), product, zero)
        none = choose(apply("eq", count, zero), apply("div", product, body), zero)
        return choose(apply("eq", body, zero), lone, none)

    def _like(self, part: Piece, at: Sequence[Expr]) -> tuple[tuple[int, ...], list[Piece], Sequence[Expr]]:
        """The pieces that reduce as `part` does, the shape that they make and the place of `part`'s points in it: all
        of the template's, or, where it mixes combiners, this piece alone."""
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
        """The adjoints of the float reads of one part, and from each a contribution. `values` are reads that hold an
        expression's value; `at` the output position of a pointwise part."""
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
                    _accumulate(adjoints.setdefault(body, {}), guards, g)
        quasi = Quasi(list(part.domain))
        memo: dict = {}
        found: dict[tuple, Terms] = {}
        signs = _signs(part.body, self.out.read(self.first_result, at)) if at is not None else {}
        for e in reversed(order):
            if e not in active or e not in adjoints:
                continue
            terms = adjoints.pop(e)
            if len(terms) > MAX_TERMS:
                terms = {(): _total(terms)}
            if isinstance(e, Read):
                key = (e.slot, tuple(quasi.expr(i, {}, memo) for i in e.index))
                for guards, g in terms.items():
                    _accumulate(found.setdefault(key, {}), guards, g)
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
                        _accumulate(adjoints.setdefault(a, {}), guards, new)
        self._contributions(part, found)

    def _contributions(self, part: Piece | Scatter, found: dict[tuple, Terms]) -> None:
        groups = [(slot, index, *_common(terms)) for (slot, index), terms in found.items()]
        groups.sort(key=lambda g: (g[0], [i.digest for i in g[1]]))
        shared: dict[tuple[Guards, Expr], Read] = {}
        if isinstance(part, Piece) and not isinstance(part.body, Reduce) and part.extents == self.t.shape:
            # An argument read at the position that is written: its adjoint is a tensor that the others can read.
            uses = Counter((guards, value) for _, _, guards, value in groups)
            for slot, index, guards, value in groups:
                if uses[guards, value] < 2 or (not guards and isinstance(value, (Read, Const))):
                    continue
                if _is_identity(index, self.t.shape, self.t.params[slot][1]):
                    body = _guarded(guards, value)
                    number = self.out.add(self.t.shape, [Piece(part.offset, part.step, part.extents, body)])
                    shared[guards, value] = self.out.read(number, [Axis(d) for d in range(len(self.t.shape))])
        for slot, index, guards, value in groups:
            if (guards, value) in shared:
                guards, value = (), shared[guards, value]
            self._invert(part, slot, index, guards, value)

    def _invert(self, part: Piece | Scatter, slot: int, index: tuple[Expr, ...], guards: Guards, value: Expr) -> None:
        shape = self.t.params[slot][1]
        cases = affine_cases(index)
        found = [invert(branch, part.domain, shape, (*chosen, *guards)) for branch, chosen in cases]
        opaque = any(isinstance(e, Read) or _is_product(e) for i in index for e in postorder([i]))
        if opaque:
            gather = sum(f.points for fibres in found for f in fibres)
            if gather > prod(shape) + SCATTER_COST * prod(part.domain):
                where = tuple(_guarded(guards, i, Const(0, i.dtype)) for i in index)
                number = self.out.add(shape, [Scatter(part.domain, where, _guarded(guards, value))])
                self.out.contributions.setdefault(slot, []).append(number)
                return
        for fibres in found:
            self._gather(slot, fibres, value)

    def _gather(self, slot: int, fibres: list[Fibre], value: Expr) -> None:
        bodies: list[Expr] = []
        for f in fibres:
            if f.is_empty:
                bodies.append(constant(0.0, value))
                continue
            quasi = Quasi([*f.extents, *f.free])
            env = {k: quasi.linear(u, {}) for k, u in enumerate(f.axes)}
            bodies.append(_guarded(f.guards, quasi.expr(value, env)))
        if not all(f.is_empty for f in fibres):
            self.gathers[slot].append((fibres, bodies))

    # --------------------------------------------------------------------------------------------- gathered tensors

    def _gathered(self, shape: tuple[int, ...], found: list[tuple[list[Fibre], list[Expr]]]) -> list[int]:
        """The tensors of one argument. Contributions without loops over the same parts are added in one body."""
        merged: dict[tuple, tuple[list[Fibre], list[Expr]]] = {}
        out = []
        for fibres, bodies in found:
            if any(f.free for f in fibres):
                out.append(self._sum(shape, fibres, bodies))
                continue
            key = tuple((f.offset, f.step, f.extents) for f in fibres)
            if key in merged:
                bodies = [_add(a, b) for a, b in zip(merged[key][1], bodies, strict=True)]
            merged[key] = (fibres, bodies)
        for fibres, bodies in merged.values():
            out.append(self._sum(shape, fibres, bodies))
        return out

    def _sum(self, shape: tuple[int, ...], fibres: list[Fibre], bodies: list[Expr]) -> int:
        parts: list[Piece] = []
        n = len(shape)
        for f, body in zip(fibres, bodies, strict=True):
            used = axes_of(body)
            loops = [k for k in range(len(f.free)) if n + k in used]
            repeat = prod(e for k, e in enumerate(f.free) if k not in loops)
            if len(loops) < len(f.free):
                body = substitute(body, {n + k: Axis(n + new) for new, k in enumerate(loops)})
                body = mul(constant(float(repeat), body), body) if repeat > 1 else body
            whole: Expr | Reduce = Reduce("sum", tuple(f.free[k] for k in loops), (body,)) if loops else body
            idle = [d for d in range(n) if shape[d] > 1 and d not in used]
            if isinstance(whole, Reduce) and idle and len(fibres) == 1:
                return self._broadcast(shape, whole, idle)
            parts.append(Piece(f.offset, f.step, f.extents, whole))
        return self.out.add(shape, parts)

    def _broadcast(self, shape: tuple[int, ...], r: Reduce, idle: list[int]) -> int:
        """A sum that is the same along some output axes: a tensor without them, and a copy along them."""
        kept = [d for d in range(len(shape)) if d not in idle]
        move: dict[int, Expr] = {d: Axis(k) for k, d in enumerate(kept)}
        move |= {len(shape) + k: Axis(len(kept) + k) for k in range(len(r.extents))}
        body = substitute(r.bodies[0], move)
        small = tuple(shape[d] for d in kept)
        number = self.out.add(small, template(small, (), Reduce("sum", r.extents, (body,))).parts)
        at = [Axis(d) for d in kept]
        return self.out.add(shape, template(shape, (), self.out.read(number, at)).parts)


# ------------------------------------------------------------------------------------------------------- small parts


def _accumulate(terms: Terms, guards: Guards, g: Expr) -> None:
    terms[guards] = _add(terms[guards], g) if guards in terms else g


def _add(a: Expr, b: Expr) -> Expr:
    if isinstance(b, Apply) and b.fn == "neg":
        return apply("sub", a, b.args[0])
    return apply("add", a, b)


def _guarded(guards: Guards, value: Expr, otherwise: Expr | None = None) -> Expr:
    """`where(guards, value, 0)`. A guard that reads stands inside those before it and those that do not read, whose
    truth keeps it in bounds."""
    otherwise = constant(0.0, value) if otherwise is None else otherwise
    for g in reversed([g for g in guards if reads(g)]):
        value = choose(g, value, otherwise)
    plain = [g for g in guards if not reads(g)]
    if plain:
        condition = plain[0]
        for g in plain[1:]:
            condition = both(condition, g)
        value = choose(condition, value, otherwise)
    return value


def _total(terms: Terms) -> Expr:
    out: Expr | None = None
    for guards, g in terms.items():
        x = _nested(guards, g)
        out = x if out is None else _add(out, x)
    assert out is not None
    return out


def _nested(guards: Guards, value: Expr) -> Expr:
    """Guards from a body, in their order: each may rely on the ones before it."""
    for g in reversed(guards):
        value = choose(g, value, 0.0)
    return value


def _common(terms: Terms) -> tuple[Guards, Expr]:
    """The guards that all terms share, and the sum under them."""
    shared = tuple(g for g in next(iter(terms)) if all(g in guards for guards in terms))
    return shared, _total({tuple(g for g in guards if g not in shared): v for guards, v in terms.items()})


def _flat(part: Piece) -> Expr:
    """The row-major position of a point of the reduction box."""
    out, stride = Linear(), 1
    rank = len(part.extents)
    for k, extent in reversed(list(enumerate(part.domain[rank:]))):
        out = out + Linear(0, {Axis(rank + k): stride} if extent > 1 else {})
        stride *= extent
    return out.expr()


def _signs(body: Expr | Reduce, result: Read) -> dict[Expr, Expr]:
    """Conditions of a pointwise body that its result tells as well: `where(0 < x, x, 0)` is positive where x is, and so
    is `where(0 < x, x, x*0.1)`; `where(x <= 0, 0, x)` likewise, NaN included. The backward sweep then needs the result
    alone, not what it was made from."""
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


def affine_cases(index: tuple[Expr, ...]) -> list[tuple[tuple[Expr, ...], Guards]]:
    """An index with abs, min, max and where in it as branches that have none, each with the conditions under which it is
    the index: `abs(i-3)` is `i-3` where `3 <= i` and `3-i` where `i < 3`. A function of what reads a tensor, and what is
    left when there are MAX_CASES branches, stays as it is."""
    done: list[tuple[tuple[Expr, ...], Guards]] = []
    todo: list[tuple[tuple[Expr, ...], Guards]] = [(index, ())]
    while todo:
        branch, chosen = todo.pop(0)
        e = next((e for e in postorder(branch) if _is_piecewise(e)), None)
        if e is None or len(done) + len(todo) + 2 > MAX_CASES:
            done.append((branch, chosen))
            continue
        for condition, piece in _branches(e):
            new = tuple(rebuild(branch, {e: piece}.get))
            guards = tuple(rebuild([*chosen, condition], {e: piece}.get))
            todo.append((new, guards))
    return done


def _is_piecewise(e: Node) -> bool:
    return isinstance(e, Apply) and e.dtype.is_int and e.fn in ("abs", "min", "max", "where") and not reads(e)


def _branches(e: Apply) -> list[tuple[Expr, Expr]]:
    if e.fn == "where":
        return [(e.args[0], e.args[1]), (negate(e.args[0]), e.args[2])]
    if e.fn == "abs":
        (x,) = e.args
        zero = Const(0, x.dtype)
        return [(apply("le", zero, x), x), (apply("lt", x, zero), apply("neg", x))]
    a, b = e.args
    first, second = (a, b) if e.fn == "min" else (b, a)  # a <= b: min takes a, max takes b
    return [(apply("le", a, b), first), (apply("lt", b, a), second)]


def _is_product(e: Node) -> bool:
    return isinstance(e, Apply) and e.fn not in ("add", "sub", "neg", "cast") and not _is_scaled(e)


def _is_scaled(e: Apply) -> bool:
    """A product with, or a division by, a constant."""
    return e.fn in ("mul", "floordiv", "mod") and any(isinstance(a, Const) for a in e.args)
