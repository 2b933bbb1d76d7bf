"""Drop runtime checks of indices that earlier checks imply; in the others, evaluate guards only if an index is wrong.

before: check sum[e](id[e] < 0 or 9 <= id[e]);  check sum[e, p](where(exp(x[e, p]) < 2, id[e] < 0 or 9 <= id[e], 0))
after:  the first one

before: check sum[e, p](where(exp(x[e, p]) < 2, id[e] < 0 or 9 <= id[e], 0))                        (of 5 and 7 points)
after:  w[] = sum[e](id[e] < 0 or 9 <= id[e]);  n[] = where(0 < w[], 5, 0)
        check sum[e, p](where(e < n[], where(exp(x[e, p]) < 2, id[e] < 0 or 9 <= id[e], 0), 0))

A check counts the points of a box at which conditions hold: its guards, and that an index is too small or too large.
Check A implies check B if some substitution of positions for A's axes turns A's conditions into a subset of B's
(subsumption of clauses: Robinson, A machine-oriented logic based on the resolution principle, 1965). The gradient of a
guarded read has further guards, such as the condition that a `min` chose the read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.base.locks import cached_property
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.in_bounds import proven
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Read,
    Reduce,
    Tensor,
    apply,
    axes_of,
    has_read,
    postorder,
    reads,
    template,
)
from einsmith.ir.rebuild import exchanged, guarded, operands, prune_args, substitute
from einsmith.ir.rewrite.simplify import canonical
from einsmith.passes.context import PassContext

_MAX_VISITS = 128
"""Most expressions compared to find out whether a check implies another one, which bounds the depth of the recursion
(deformable attention, an index of three reads under four guards: 69)."""
_MIN_GAIN = 4e-6
"""Least predicted gain, in seconds, for which an index is counted apart, as predictions of short kernels are no closer;
the two kernels that this adds take less than 1 us (16 x 8 points: 10.8 us a call with them and without)."""

_ASSOCIATIVE = frozenset(["add", "mul", "and", "or", "min", "max"])
"""Functions of integers and truth values whose operands may be in any order and nesting."""

_Literal = tuple[Expr, bool]
"""A condition and its truth value."""


def implied_checks(graph: Graph, context: PassContext) -> Graph:
    """Return the graph without checks that earlier ones imply, and with cheap ones before others."""
    known: list[_Violation] = []
    checks: list[tuple[Tensor, str]] = []
    for t, message in graph.checks:
        check = _parse(t)
        if check is not None:
            violations = check.violations
            if all(any(_implies(k, v) for k in known) for v in violations):
                continue
            known += violations
            t = (_check_index_first(check, context) if context.can_price else None) or check.tensor
        checks.append((t, message))
    if tuple(checks) == graph.checks:
        return graph
    new = Graph(graph.inputs, graph.outputs, graph.updates, tuple(checks), graph.gradients)
    return exchanged(new, {t: t for t in postorder(new.roots)})


class _Violation(NamedTuple):
    """The points of a box at which all literals hold; they read `args`."""

    domain: tuple[int, ...]
    args: tuple[Tensor, ...]
    literals: tuple[_Literal, ...]


class _IndexCheck(NamedTuple):
    """A count of the points of a box at which guards hold, each evaluated where the preceding ones do, and an index is
    wrong."""

    tensor: Compute
    domain: tuple[int, ...]
    guards: tuple[_Literal, ...]
    wrong: Expr

    @property
    def violations(self) -> list[_Violation]:
        """Return the points that are counted, those for each side of the range apart."""
        guards = tuple(x for c, truth in self.guards for x in _conjuncts(c, truth))
        sides = [(c, not truth) for c, truth in _conjuncts(self.wrong, False)]
        return [_Violation(self.domain, self.tensor.args, (*guards, *_conjuncts(*side))) for side in sides]


def _parse(t: Tensor) -> _IndexCheck | None:
    """Return the guards and the condition that a check counts; None if it has another form."""
    if not isinstance(t, Compute) or t.shape or len(t.template.parts) > 1:
        return None
    part = t.template.parts[0]
    if len(part.bodies) > 1 or (isinstance(part.body, Reduce) and part.body.combiner != "sum"):
        return None
    body, guards = part.bodies[0], list[_Literal]()
    while isinstance(body, Apply) and body.fn == "where":
        condition, *sides = body.args
        zeros = [isinstance(x, Const) and not x.value for x in sides]
        if sum(zeros) != 1:
            return None
        guards.append((condition, zeros[1]))
        body = sides[zeros.index(False)]
    if not isinstance(body, Apply) or body.fn != "cast" or body.args[0].dtype is not dt.bool_:
        return None
    return _IndexCheck(t, part.domain, tuple(guards), body.args[0])


def _conjuncts(condition: Expr, truth: bool) -> list[_Literal]:
    """Return literals of which all hold where the condition has this truth value."""
    out: list[_Literal] = []
    stack = [(condition, truth)]
    while stack:
        c, holds = stack.pop()
        fn = c.fn if isinstance(c, Apply) else ""
        if fn == "not":
            stack.append((c.args[0], not holds))
        elif fn == ("and" if holds else "or"):
            stack += [(x, holds) for x in operands(c, fn)]
        elif fn in ("lt", "le") and not holds and c.args[0].dtype.is_int:
            out.append((apply("le" if fn == "lt" else "lt", *reversed(c.args)), True))
        else:
            out.append((c, holds))
    return out


def _implies(known: _Violation, other: _Violation) -> bool:
    """Return whether a violation of `other` is proven to imply one of `known`; a search that fails returns False."""
    if not set(known.args) <= set(other.args):
        return False
    return next(_ClauseMatcher(known, other).match_literals(0, {}), None) is not None


_Binding = dict[int, Expr]
"""The position, in terms of the axes of one violation, of each axis of another one."""


class _ClauseMatcher:
    """Finds positions of a violation at which all of its literals are literals of another one."""

    def __init__(self, known: _Violation, other: _Violation):
        self.known, self.other = known, other
        self.visits = 0

    @cached_property
    def facts(self) -> Facts:
        """Return what holds at the other violation's points."""
        facts = Facts(self.other.domain)
        for c, truth in self.other.literals:
            facts = facts.assume(c, truth)
        return facts

    def match_literals(self, first: int, bound: _Binding) -> Iterator[_Binding]:
        """Yield the bindings that extend `bound` to all literals from the first one on."""
        if first == len(self.known.literals):
            if all(n > 0 for a, n in enumerate(self.known.domain) if a not in bound):
                yield bound
            return
        pattern, truth = self.known.literals[first]
        for c, holds in self.other.literals:
            if truth is holds:
                for extended in self._match_stricter(pattern, c, bound):
                    yield from self.match_literals(first + 1, extended)

    def _match_stricter(self, pattern: Expr, c: Expr, bound: _Binding) -> Iterator[_Binding]:
        """Yield the bindings at which the pattern holds where c does: the two are equal, or c compares with a constant
        that is further away."""
        fn = c.fn if isinstance(c, Apply) and isinstance(pattern, Apply) and pattern.fn == c.fn else ""
        if fn in ("lt", "le") and c.args[0].dtype.is_int:  # these hold: see `_conjuncts`
            for side, sign in ((0, 1), (1, -1)):
                one, two = pattern.args[side], c.args[side]
                if isinstance(one, Const) and isinstance(two, Const) and sign * two.value >= sign * one.value:
                    yield from self._match(pattern.args[1 - side], c.args[1 - side], bound)
                    return
        yield from self._match(pattern, c, bound)

    def _match(self, pattern: Expr, e: Expr, bound: _Binding) -> Iterator[_Binding]:
        """Yield the bindings at which the pattern is the expression."""
        self.visits += 1
        if self.visits > _MAX_VISITS or pattern.dtype is not e.dtype:
            return
        if isinstance(pattern, Axis):
            if bound.get(pattern.position, e) is e and self._is_position(e, self.known.domain[pattern.position]):
                yield {**bound, pattern.position: e}
        elif isinstance(pattern, Const):
            if pattern is e:
                yield bound
        elif isinstance(pattern, Read):
            if isinstance(e, Read) and self.known.args[pattern.slot] is self.other.args[e.slot]:
                yield from self._match_all(pattern.index, e.index, bound)
        elif isinstance(pattern, Apply) and isinstance(e, Apply) and pattern.fn == e.fn:
            if e.fn in _ASSOCIATIVE and not e.dtype.is_float:
                yield from self._match_any_order(operands(pattern, e.fn), operands(e, e.fn), bound)
            elif e.fn in ("add", "mul", "eq", "ne"):  # sums of floats in another nesting differ
                yield from self._match_any_order(pattern.args, e.args, bound)
            else:
                yield from self._match_all(pattern.args, e.args, bound)

    def _is_position(self, e: Expr, extent: int) -> bool:
        """Return whether an expression is proven to be a position of an axis."""
        if isinstance(e, Axis):
            return self.other.domain[e.position] <= extent
        return not has_read(e) and proven(e, extent, self.facts)

    def _match_all(self, patterns: tuple[Expr, ...], es: tuple[Expr, ...], bound: _Binding) -> Iterator[_Binding]:
        if not patterns:
            yield bound
        elif len(patterns) == len(es):
            for extended in self._match(patterns[0], es[0], bound):
                yield from self._match_all(patterns[1:], es[1:], extended)

    def _match_any_order(self, patterns: Sequence[Expr], es: Sequence[Expr], bound: _Binding) -> Iterator[_Binding]:
        if not patterns:
            yield bound
        elif len(patterns) == len(es):
            for n, e in enumerate(es):
                for extended in self._match(patterns[0], e, bound):
                    yield from self._match_any_order(patterns[1:], (*es[:n], *es[n + 1 :]), extended)


def _check_index_first(check: _IndexCheck, context: PassContext) -> Compute | None:
    """Return a check in two stages: count wrong indices under the cheap guards, and evaluate the expensive guards only
    if there are any. None where this is not predicted to pay.

    Guards are expensive if they depend on axes that the index does not have, or on floats.
    """
    params, args = check.tensor.template.params, check.tensor.args
    facts, index_axes = Facts(check.domain), axes_of(check.wrong)

    def is_readable(e: Expr) -> bool:
        places = (x for r in reads(e) for x in zip(r.index, params[r.slot][1], strict=True))
        return all(not has_read(i) and proven(i, n, facts) for i, n in places)

    def is_cheap(c: Expr) -> bool:
        return axes_of(c) <= index_axes and not any(e.dtype.is_float for e in postorder([c])) and is_readable(c)

    cheap = [(c, truth) for c, truth in check.guards if is_cheap(c)]
    if not index_axes or len(cheap) == len(check.guards) or not is_readable(check.wrong):
        return None
    axes = sorted(index_axes)
    new_axes: dict[int, Expr] = {a: Axis(n) for n, a in enumerate(axes)}
    conditions = [substitute(c if truth else apply("not", c), new_axes) for c, truth in cheap]
    wrong = guarded(conditions, Apply("cast", (substitute(check.wrong, new_axes),), dt.i32))
    count = canonical(template((), params, Reduce("sum", tuple(check.domain[a] for a in axes), (wrong,))), args)
    if context.price(check.tensor) - context.price(count) < _MIN_GAIN:
        return None
    read = Read(0, (), dt.i32)
    outermost = Const(check.domain[0], dt.i32)
    points = apply("where", apply("lt", Const(0, dt.i32), read), outermost, Const(0, dt.i32))
    end = canonical(template((), [(dt.i32, ())], points), [count])
    body = check.tensor.template.parts[0].bodies[0]
    first = apply("lt", Axis(0), Read(len(params), (), dt.i32))
    all_points = Reduce("sum", check.domain, (apply("where", first, body, Const(0, dt.i32)),))
    return prune_args(template((), [*params, (dt.i32, ())], all_points), (*args, end))
