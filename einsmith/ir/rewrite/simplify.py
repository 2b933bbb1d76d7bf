"""Simplify by the rules of `rules`, bottom-up until none applies, each side of a `where` under its guard.

before: where(0 <= i0 and i0 < 8, x[(2*i0 + r0)//2], 0.0)   with i0 < 8, r0 < 2
after:  x[i0]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.guarded import atomic_conditions, has_integer_comparison
from einsmith.ir.analysis.linear import LinearForm
from einsmith.ir.analysis.widths import widen
from einsmith.ir.functions import SELECTIONS
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Scatter,
    Template,
    Tensor,
    postorder,
    rank,
)
from einsmith.ir.rebuild import (
    map_bodies,
    map_templates,
    operands,
    prune_args,
    replace,
    substitute,
    with_args,
    without_twins,
)
from einsmith.ir.rewrite.free_axes import fold_free_axes, fold_scattered_axes
from einsmith.ir.rewrite.rules import MAX_PRUNED, RULES, RewriteRule, connect, parts_of

_MAX_REWRITES = 100_000
"""Most rewrites of one expression; a rule table that cycles stops there, with the value still right."""

_MAX_RENUMBERED = 1024
"""Most expressions that are simplified again to find a template's one numbering: enough for products of twelve factors,
whose cycles have up to 28 rounds. Templates of the benchmarks' networks take 8 rounds at most."""
_MIN_ROUNDS = 4
"""Fewest renumbering rounds of a template: the first simplifies it, the next ones show that it is a fixpoint."""

_MAX_CONTEXTS = 4
"""Most sets of facts that one expression is simplified under in one run. Paths to a shared expression are exponentially
many in its depth: beyond the limit, it is simplified by the facts that hold all over the box."""

_FACT_DEPENDENT = ("lt", "le", "eq", "ne", "and", "or", "not", "where", "floordiv", "mod", "min", "max", "abs", "sign")
"""Functions whose rules query the facts that hold at their position."""


def simplify(
    e: Expr, extents: Sequence[int], guards: Sequence[Expr] = (), rules: tuple[RewriteRule, ...] = RULES
) -> Expr:
    """Return an expression of equal value at every point of the box (axis i in [0, extents[i])) at which the guards
    hold.

    Canonical as far as the rules go, and idempotent. NaN, infinities and laziness are kept.
    """
    facts = Facts.of(extents, guards)
    return _Simplification(rules).simplify(e, facts) if facts.feasible else e


def restricted(
    piece: Piece, first: Sequence[int], extents: tuple[int, ...], stride: Sequence[int] | None = None
) -> Piece:
    """Return the part of a piece that begins at the point `first` and has `extents` points along each axis; stride:
    distances of these points, 1 if it is None."""
    if extents == piece.extents:
        return piece
    stride = stride or (1,) * len(extents)
    cuts = enumerate(zip(first, stride, extents, piece.extents, strict=True))
    at = {d: LinearForm(f, {Axis(d): k} if n > 1 else {}).expr() for d, (f, k, n, whole) in cuts if n < whole}
    offset = tuple(o + s * n for o, s, n in zip(piece.offset, piece.step, first, strict=True))
    step = tuple(s * k for s, k in zip(piece.step, stride, strict=True))
    domain = (*extents, *piece.domain[len(extents) :])
    bodies = tuple(simplify(substitute(x, at), domain) for x in piece.bodies)
    body = Reduce(piece.body.combiner, piece.body.extents, bodies) if isinstance(piece.body, Reduce) else bodies[0]
    return Piece(offset, step, extents, body)


def simplify_template(
    t: Template, rules: tuple[RewriteRule, ...] = RULES, boxes: dict[tuple[int, ...], Facts] | None = None
) -> Template:
    """Return the template with every body simplified over its own box, and integers in types that hold them (`widths`).

    Reductions over axes that bodies do not depend on get closed form (`free_axes`). Reduction axes of extent 1 are
    dropped; a sum, product, max or min of one body over no axes is replaced by the body; empty pieces are dropped.
    Arguments stay as they were. `boxes`: facts by box, shared by templates with mostly equal conditions, so that each
    is proven once.
    """
    if rules is not RULES:
        return _simplify_parts(t, rules, {})
    out = t.memo("simplify", lambda t: _simplify_parts(t, RULES, {} if boxes is None else boxes))
    out.memo("simplify", lambda t: t)
    return out


def simplified(t: Template, args: Sequence[Tensor]) -> Compute:
    """Apply a template to tensors, simplified: equal arguments merged, unread ones dropped, the rest numbered by first
    appearance."""
    node = prune_args(t, tuple(args))
    return prune_args(simplify_template(node.template), node.args)


def canonical(t: Template, args: Sequence[Tensor]) -> Compute:
    """Apply a template to tensors in canonical form: simplified, equal arguments merged, unread ones dropped, the rest
    numbered by first appearance.

    One formula gives one template, in whatever order its arguments were given.
    """
    node = prune_args(t, tuple(args))
    final, slots = canonical_template(node.template)
    return Compute(final, tuple(node.args[s] for s in slots))


def values_only(graph: Graph) -> Graph:
    """Return the graph without nodes that only derivatives need: `stop_gradient`, and the twins of
    `differentiate_as`."""

    def rule(node: Any) -> Any:
        if isinstance(node, Recurrence):
            return map_templates(node, lambda t: simplify_template(without_twins(t)))
        t = without_twins(node.template) if isinstance(node, Compute) else None
        return canonical(t, node.args) if t is not None and t is not node.template else None

    return replace(graph, rule)


def canonical_template(t: Template) -> tuple[Template, tuple[int, ...]]:
    """Return the template that `canonical` applies where no two arguments are equal, and the slot of `t` of each of its
    arguments."""
    return t.memo("canonical", _canonical)


def _canonical(t: Template) -> tuple[Template, tuple[int, ...]]:
    # Operands are ordered by rank, which depends on the numbering, which depends on the order. Where this
    # cycles, the cycle's least ranks decide. A cycle is as long as the order of a permutation of the operands
    # may be, exponential in their number: if it is not closed in time, the least ranks so far decide.
    boxes: dict[tuple[int, ...], Facts] = {}
    seen: dict[Template, tuple[int, ...]] = {}
    current, slots = _number_slots(t, tuple(range(len(t.params))))
    most = _MIN_ROUNDS
    while current not in seen and len(seen) < most:
        seen[current] = slots
        if len(seen) == _MIN_ROUNDS:
            size = sum(1 for _ in postorder(b for p in t.parts for b in p.bodies))
            most = max(_MIN_ROUNDS, _MAX_RENUMBERED // (size + 1))
        current, slots = _number_slots(simplify_template(current, boxes=boxes), slots)
    circle = list(seen)
    circle = circle[circle.index(current) :] if current in seen else circle[1:]
    # Where these are equal, the operands' extents decide, which are in the same order at other sizes.
    final = min(
        circle,
        key=lambda f: (
            [rank(b)[0] for p in f.parts for b in p.bodies],
            [(dtype.name, shape) for dtype, shape in f.params],
            f.digest,
        ),
    )
    slots = seen[final]
    final.memo("canonical", lambda f: (f, tuple(range(len(f.params)))))
    return final, slots


def _number_slots(t: Template, slots: tuple[int, ...]) -> tuple[Template, tuple[int, ...]]:
    """Renumber a template's slots by first appearance and drop unread ones. `slots` gives the caller's number of each
    slot of `t`."""
    order: dict[int, int] = {}
    for part in t.parts:
        for e in postorder(part.bodies):
            if isinstance(e, Read):
                order.setdefault(e.slot, len(order))
    if list(order) == list(range(len(t.params))):
        return t, slots
    params = tuple(t.params[s] for s in order)
    return map_bodies(t, lambda b: substitute(b, {}, order), params), tuple(slots[s] for s in order)


def _simplify_parts(t: Template, rules: tuple[RewriteRule, ...], boxes: dict[tuple[int, ...], Facts]) -> Template:
    run = _Simplification(rules)
    parts: list[Piece | Scatter] = []
    for part in t.parts:
        if isinstance(part, Piece):
            body = _drop_unit_axes(part.body, len(part.extents)) if isinstance(part.body, Reduce) else part.body
            step = tuple(s if n > 1 else 1 for s, n in zip(part.step, part.extents, strict=True))
            part = Piece(part.offset, step, part.extents, body)
        if part.domain not in boxes:
            boxes[part.domain] = Facts(part.domain)
        facts = boxes[part.domain]
        if not facts.feasible:
            parts.append(part)
        elif isinstance(part, Scatter):
            index = tuple(run.simplify(i, facts) for i in part.index)
            scatter = Scatter(part.combiner, part.extents, index, run.simplify(part.body, facts))
            folded = fold_scattered_axes(scatter)
            if folded is not scatter:
                facts = Facts(folded.extents)
                scatter = Scatter(scatter.combiner, folded.extents, folded.index, run.simplify(folded.body, facts))
            parts.append(scatter)
        elif isinstance(part.body, Reduce):
            r = part.body
            body = _simplify_reduction(
                r.combiner, r.extents, tuple(run.simplify(b, facts) for b in r.bodies), part.extents, run
            )
            parts.append(Piece(part.offset, part.step, part.extents, body))
        else:
            parts.append(Piece(part.offset, part.step, part.extents, run.simplify(part.body, facts)))
    if isinstance(parts[-1], Scatter) and all(_is_constant(part, parts[-1].neutral) for part in parts[:-1]):
        parts = parts[-1:]  # the scatter starts from the identity element anyway
    full = [part for part in parts if 0 not in part.extents or (isinstance(part, Scatter) and len(parts) == 1)]
    return widen(Template(t.shape, t.params, tuple(full or parts[:1])))


def _is_constant(part: Piece | Scatter, number: float | int | bool) -> bool:
    """Return whether a piece's body is this constant; -0.0 is not 0.0."""
    return isinstance(part.body, Const) and str(part.body.value) == str(number)


def _simplify_reduction(
    combiner: str, extents: tuple[int, ...], bodies: tuple[Expr, ...], outer: tuple[int, ...], run: _Simplification
) -> Expr | Reduce:
    """Return a reduction of simplified bodies, without the axes over which it has a closed form."""
    body: Expr | Reduce = Reduce(combiner, extents, bodies)
    while isinstance(body, Reduce):
        folded = fold_free_axes(body, outer)
        if folded is body:
            break
        facts = Facts((*outer, *folded.extents))
        bodies = tuple(run.simplify(b, facts) for b in folded.bodies)
        body = _drop_unit_axes(Reduce(combiner, folded.extents, bodies), len(outer))
    return body


def _drop_unit_axes(r: Reduce, rank: int) -> Expr | Reduce:
    kept = [k for k, n in enumerate(r.extents) if n != 1]
    if len(kept) != len(r.extents):
        axes: dict[int, Expr] = {rank + k: Const(0, Axis.dtype) for k in range(len(r.extents))}
        axes |= {rank + k: Axis(rank + n) for n, k in enumerate(kept)}
        bodies = tuple(substitute(b, axes) for b in r.bodies)
        r = Reduce(r.combiner, tuple(r.extents[k] for k in kept), bodies)
    if r.combiner in SELECTIONS and not r.extents:
        return Const(0, dt.i32)
    return r.bodies[0] if not r.extents and len(r.bodies) == 1 and not r.combiner.startswith("arg") else r


def _group_by_function(rules: tuple[RewriteRule, ...]) -> dict[tuple[str, str], list[RewriteRule]]:
    """Return the rules that may apply to a node, by its function and the kind of its type."""
    table: dict[tuple[str, str], list[RewriteRule]] = defaultdict(list)
    for rule in rules:
        for fn in rule.fns:
            for kind in rule.kinds:
                table[fn, kind].append(rule)
    return dict(table)


_TABLE = _group_by_function(RULES)


@dataclass(frozen=True, eq=False)
class _Assumption:
    """A condition that is known to hold, or not to.

    It also holds the conditions that it decides by itself, as bits; -1: it is about integers, and may decide others.
    """

    condition: Expr
    truth: bool
    bits: int


class _Simplification:
    """One simplification: results are cached by (expression, facts), so that shared expressions are simplified once."""

    def __init__(self, rules: tuple[RewriteRule, ...]):
        self.rules = _TABLE if rules is RULES else _group_by_function(rules)
        self.results: dict[tuple[Expr, Facts], Expr] = {}
        self.dependent: dict[Expr, bool] = {}
        self.base = Facts(())
        self.assumed: dict[Facts, tuple[_Assumption, ...]] = {}  # conditions beyond the base's, outermost first
        self.relevant_facts: dict[tuple[Expr, Facts], Facts] = {}
        self.contexts: dict[Expr, set[Facts]] = defaultdict(set)
        self.condition_bits: dict[Expr, int] = {}
        self.bits: dict[Expr, int] = {}
        self.quotients: dict[Expr, bool] = {}
        self.rewrites_left = _MAX_REWRITES

    def depends_on_facts(self, e: Expr) -> bool:
        """Return whether the result of simplifying an expression may depend on the facts."""
        if e not in self.dependent:
            for x in postorder([e], self.dependent):
                here = x.dtype.is_bool or (isinstance(x, Apply) and x.fn in _FACT_DEPENDENT)
                self.dependent[x] = here or any(self.dependent[a] for a in x.args)
        return self.dependent[e]

    def conditions(self, e: Expr) -> int:
        """Return the conditions in an expression, as bits."""
        if e not in self.condition_bits:
            for x in postorder([e], self.condition_bits):
                bits = self.bits.setdefault(x, 1 << len(self.bits)) if x.dtype.is_bool else 0
                for a in x.args:
                    bits |= self.condition_bits[a]
                self.condition_bits[x] = bits
        return self.condition_bits[e]

    def restrict_facts(self, e: Expr, known: Facts) -> Facts:
        """Return the subset of the facts that simplifying an expression may depend on.

        A condition that says nothing about integers matters only where it occurs, so that paths that differ only in
        such conditions share one result.
        """
        assumed = self.assumed.get(known)
        if not assumed:
            return known
        relevant = self.relevant_facts.get((e, known))
        if relevant is None:
            relevant = self.base
            if self.depends_on_facts(e):
                inside = self.conditions(e)
                chain = tuple(a for a in assumed if a.bits < 0 or a.bits & inside)
                relevant = known if len(chain) == len(assumed) else self.assume_chain(chain)
            contexts = self.contexts[e]
            if len(contexts) < _MAX_CONTEXTS:
                contexts.add(relevant)
            elif relevant not in contexts:
                relevant = self.base
            self.relevant_facts[e, known] = relevant
        return relevant

    def assume_chain(self, chain: tuple[_Assumption, ...]) -> Facts:
        known = self.base
        for a in chain:
            known = known.assume(a.condition, a.truth)
        self.assumed[known] = chain
        return known

    def under(self, known: Facts, c: Expr, truth: bool, original: Expr, side: Expr) -> Facts:
        """Return the facts on a side of a `where` whose condition `original` has become c."""
        if not self.depends_on_facts(side):
            return self.base
        under = known.assume(c, truth)
        if under not in self.assumed and known in self.assumed:
            bits = -1 if has_integer_comparison(c) or has_integer_comparison(original) else 0
            for x in (*atomic_conditions(c), *atomic_conditions(original)):
                bits |= self.conditions(x) & self.bits[x]
            self.assumed[under] = (*self.assumed[known], _Assumption(c, truth, bits))
        return self.restrict_facts(side, under) if under.feasible else under

    def divides(self, e: Expr) -> bool:
        """Return whether a condition without reads contains a quotient or remainder of integers."""
        if e not in self.quotients:
            nodes = list(postorder([e]))
            has_division = any(isinstance(x, Apply) and x.fn in ("floordiv", "mod") and x.dtype.is_int for x in nodes)
            self.quotients[e] = has_division and not any(isinstance(x, Read) for x in nodes)
        return self.quotients[e]

    def simplify(self, root: Expr, facts: Facts) -> Expr:
        results = self.results
        if facts is not self.base:
            self.base = facts
            self.assumed[facts] = ()
            self.contexts.clear()
        # (expression, facts, result of a rule); an expression waits on the stack below those it needs first.
        stack: list[tuple[Expr, Facts, Expr | None]] = [(root, facts, None)]
        while stack:
            e, known, result = stack.pop()
            if (e, known) in results:
                continue
            if result is not None:
                results[e, known] = results[result, known]
                continue
            fn = e.fn if isinstance(e, Apply) else ""
            if fn == "where":
                new, missing = self._simplify_where(e, known)  # type: ignore[arg-type]
            elif fn in ("and", "or"):
                new, missing = self._simplify_connected(e, known)  # type: ignore[arg-type]
            else:
                new, missing = self._simplify_args(e, known)
            if missing:
                stack.append((e, known, None))
                stack += [(x, f, None) for x, f in missing]
                continue
            assert new is not None
            out = self._rewrite(new, known)
            if out is None:
                results[e, known] = results[new, known] = new
            else:
                stack.append((e, known, out))
                stack.append((out, known, None))
        return results[root, facts]

    def _simplify_args(self, e: Expr, known: Facts) -> tuple[Expr | None, list[tuple[Expr, Facts]]]:
        if not e.args:
            return e, []
        needed = [(a, known if known is self.base else self.restrict_facts(a, known)) for a in e.args]
        missing = [w for w in needed if w not in self.results]
        return (None, missing) if missing else (with_args(e, tuple(self.results[w] for w in needed)), [])

    def _simplify_connected(self, e: Apply, known: Facts) -> tuple[Expr | None, list[tuple[Expr, Facts]]]:
        """Simplify all operands of nested `and` or `or` first, so that the rule orders and prunes them once, not once
        for each prefix."""
        parts = operands(e, e.fn)
        needed = [(a, known if known is self.base else self.restrict_facts(a, known)) for a in parts]
        missing = [w for w in needed if w not in self.results]
        return (None, missing) if missing else (connect(e.fn, (self.results[w] for w in needed)), [])

    def _simplify_where(self, e: Apply, known: Facts) -> tuple[Expr | None, list[tuple[Expr, Facts]]]:
        """Simplify a `where`: its condition, and each side under the condition, or only the side that is chosen."""
        first = e.args[0], self.restrict_facts(e.args[0], known)
        if first not in self.results:
            return None, [first]
        c, pending = self._simplify_condition(self.results[first], known)
        if pending is not None:
            return None, [pending]
        sides = []
        for truth, side in ((True, e.args[1]), (False, e.args[2])):
            if isinstance(c, Const):
                if bool(c.value) != truth:
                    continue
                under = self.restrict_facts(side, known)
            else:
                under = self.under(known, c, truth, e.args[0], side)
            sides.append((side, under))
        if len(sides) == 2 and not all(under.feasible for _, under in sides):
            sides = [(side, self.restrict_facts(side, known)) for side, under in sides if under.feasible][:1] or sides[
                :1
            ]
        missing = [s for s in sides if s not in self.results]
        if missing:
            return None, missing
        if len(sides) == 1:
            return self.results[sides[0]], []
        return Apply("where", (c, self.results[sides[0]], self.results[sides[1]]), e.dtype), []

    def _simplify_condition(self, c: Expr, known: Facts) -> tuple[Expr, tuple[Expr, Facts] | None]:
        """Simplify the quotients and remainders in each part of a condition under the other parts.

        They are simplified so on the side that the condition guards, and both then have the same expression. Returns
        the condition, and the (expression, facts) that must be simplified first, if any.
        """
        if not (isinstance(c, Apply) and c.fn == "and"):
            return c, None
        parts = parts_of(c)
        if len(parts) > MAX_PRUNED:
            return c, None
        for n, x in enumerate(parts):
            if not self.divides(x):
                continue
            under = known.assume_all(other for m, other in enumerate(parts) if m != n)
            if not under.feasible:
                return c, None
            if (x, under) not in self.results:
                return c, (x, under)
            parts[n] = self.results[x, under]
        out = connect("and", parts)
        if out is c:
            return c, None
        return (c, (out, known)) if (out, known) not in self.results else (self.results[out, known], None)

    def _rewrite(self, e: Expr, known: Facts) -> Expr | None:
        """Apply the first applicable rule to a node with simplified arguments and return the result; None if no rule
        applies or the limit of rewrites is reached."""
        fn = e.fn if isinstance(e, Apply) else "read" if isinstance(e, Read) else ""
        for rule in self.rules.get((fn, e.dtype.kind), ()):
            out = rule.rewrite(e, known)
            if out is not None and out is not e:
                self.rewrites_left -= 1
                return out if self.rewrites_left > 0 else None
        return None
