"""Define the rules of the simplifier as a table: pattern, result, and condition.

A rule is given one node, whose arguments are simplified already, and the facts that hold there; it returns a smaller or
more canonical expression of equal value, or None. Values keep their NaN, infinities and signs of zero, except for `x +
0 -> x` and `x - -0 -> x`, which keep a -0.0 that the addition would have made 0.0. Nothing moves out of the side of a
`where` that guards it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import copysign, frexp, isfinite
from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.symbolic import SymbolicFloat, hint, is_symbolic
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.functions import FUNCTIONS
from einsmith.ir.nodes import Apply, Const, Expr, Read, apply, cast, postorder, rank
from einsmith.ir.rebuild import operands
from einsmith.ir.rewrite.integer_rules import (
    SUMS,
    collect_terms,
    compare,
    decide,
    decide_cast,
    decide_extreme,
    decide_sign,
    divide,
    divide_by_negative,
    fits,
    narrow_indices,
)

Rewrite = Callable[[Any, Facts], "Expr | None"]


@dataclass(frozen=True)
class RewriteRule:
    """A rule `rewrite(node, facts)`, tried on nodes of the functions `fns` ("read" being a Read) whose type has a kind
    in `kinds`."""

    name: str
    fns: tuple[str, ...]
    rewrite: Rewrite
    kinds: str = "fib"


# ------------------------------------------------------------------------------------- patterns: rules without code


@dataclass(frozen=True)
class TermPattern:
    """A pattern: `fn` of patterns, of variables (strings), and of literals.

    A variable that starts with k matches constants only; a variable that occurs twice matches one and the same
    expression.
    """

    fn: str
    args: tuple[Any, ...]

    @property
    def variables(self) -> set[str]:
        """The names of the variables in the pattern."""
        out: set[str] = set()
        for a in self.args:
            out |= a.variables if isinstance(a, TermPattern) else {a} if isinstance(a, str) else set()
        return out


def p(fn: str, *args: Any) -> TermPattern:
    """Return the pattern of a function applied to patterns, variables and literals."""
    return TermPattern(fn, args)


def _match(pattern: Any, e: Expr, bindings: dict[str, Expr]) -> bool:
    if isinstance(pattern, str):
        if pattern.startswith("k") and not isinstance(e, Const):
            return False
        return bindings.setdefault(pattern, e) is e
    if isinstance(pattern, TermPattern):
        return (
            isinstance(e, Apply)
            and e.fn == pattern.fn
            and all(_match(q, a, bindings) for q, a in zip(pattern.args, e.args, strict=True))
        )
    return isinstance(e, Const) and e.value == pattern and copysign(1, e.value) == copysign(1, pattern)


def _build(pattern: Any, bindings: dict[str, Expr], dtype: DType) -> Expr:
    if isinstance(pattern, str):
        return bindings[pattern]
    if isinstance(pattern, TermPattern):
        return apply(pattern.fn, *(_build(q, bindings, dtype) for q in pattern.args))
    return Const(pattern, dt.bool_ if isinstance(pattern, bool) else dtype)


def rule(
    name: str, pattern: TermPattern, result: Any, kinds: str = "fib", when: Callable[..., bool] | None = None
) -> RewriteRule:
    """Return the rule `pattern -> result`, which applies where `when(**variables)` holds. Literals of the result have
    the type of the node."""

    def rewrite(e: Apply, facts: Facts) -> Expr | None:
        bindings: dict[str, Expr] = {}
        if not _match(pattern, e, bindings) or (when is not None and not when(**bindings)):
            return None
        return _build(result, bindings, e.dtype)

    return RewriteRule(name, (pattern.fn,), rewrite, kinds)


def _is_harmless(*conditions: Expr) -> bool:
    """Return whether expressions may be evaluated where a guard would have prevented it: no reads, no division by a
    non-constant."""
    for e in postorder(conditions):
        if isinstance(e, Read) or (isinstance(e, Apply) and e.fn in _DIVISIONS and not isinstance(e.args[1], Const)):
            return False
    return True


_DIVISIONS = ("floordiv", "mod")


# --------------------------------------------------------------------------------------------- order and constants

_COMMUTATIVE = ("add", "mul", "min", "max", "eq", "ne")
_FOLDABLE = ("add", "sub", "mul", "div", "floordiv", "mod", "neg", "min", "max", "sqrt", "abs", "sign", "floor",
             "round", "lt", "le", "eq", "ne", "and", "or", "not")  # fmt: skip


def _order(e: Apply, facts: Facts) -> Expr | None:
    a, b = e.args
    if a.dtype.is_int and (e.fn in ("add", "eq", "ne") or (e.fn == "mul" and isinstance(a, Const))):
        return None  # the linear form has its own order
    ka, kb = isinstance(a, Const), isinstance(b, Const)
    if (ka and not kb) or (ka == kb and rank(a) > rank(b)):
        return Apply(e.fn, (b, a), e.dtype)
    return None


def _fold(e: Apply, facts: Facts) -> Expr | None:
    """Fold constants: exactly for integers; for floats where double and the type itself give one and the same value."""
    if not all(isinstance(a, Const) for a in e.args):
        return None
    x = [a.value for a in e.args]  # type: ignore[union-attr]
    of = e.args[0].dtype
    if any(map(is_symbolic, x)):
        return _fold_symbolic(e, x)
    if not of.is_float:
        if e.fn in ("floordiv", "mod") and x[1] == 0:
            return None
        value = FUNCTIONS[e.fn].numpy(*(np.asarray(v, np.int64 if of.is_int else np.bool_) for v in x)).item()
        return Const(value, e.dtype) if fits(value, e.dtype) else None
    exact, same = _compute(e.fn, of, e.dtype, x)
    return Const(exact, e.dtype) if same else None


def _compute(fn: str, of: DType, to: DType, x: Sequence[float]) -> tuple[Any, bool]:
    """Return a function of floats of type `of`, and whether double and the type itself give one and the same finite
    value; if not, the type's own value."""
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[fn].numpy(*(np.float64(v) for v in x))
        rounded = FUNCTIONS[fn].numpy(*(of.numpy.type(v) for v in x))
        same = of.numpy.type(exact) == rounded and isfinite(exact) if to.is_float else exact == rounded
    return (exact if same else rounded), bool(same)


_OF_SYMBOLIC: dict[str, Callable[..., int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod,
    "neg": operator.neg, "min": min, "max": max, "abs": abs, "lt": operator.lt, "le": operator.le, "eq": operator.eq,
    "ne": operator.ne,
}  # fmt: skip


def _fold_symbolic(e: Apply, x: list) -> Expr | None:
    """Fold numbers that follow from sizes."""
    of = e.args[0].dtype
    if of.is_float:
        value, same = _compute(e.fn, of, e.dtype, list(map(hint, x)))
        if not same or not e.dtype.is_float or e.dtype.in_memory_only:
            return None
        scope = next(v.scope for v in x if is_symbolic(v))
        return Const(SymbolicFloat(scope, _compute_number, (e.fn, of, e.dtype, *x), float(value)), e.dtype)
    if e.fn not in _OF_SYMBOLIC or (e.fn in ("floordiv", "mod") and x[1] == 0):
        return None
    value = _OF_SYMBOLIC[e.fn](*x)
    return Const(value, e.dtype) if fits(value, e.dtype) else None


def _compute_number(fn: str, of: DType, to: DType, *x: float) -> float:
    return float(_compute(fn, of, to, x)[0])


# ------------------------------------------------------------------------------------------------------ conditions


def _compare_itself(e: Apply, facts: Facts) -> Expr | None:
    return Const(e.fn == "eq", dt.bool_) if e.args[0] is e.args[1] and not e.args[0].dtype.is_float else None


def _decide(e: Expr, facts: Facts) -> Expr | None:
    """Replace a condition that an enclosing `where` has decided by a constant."""
    for truth in (True, False):
        if (e, truth) in facts.known:
            return Const(truth, dt.bool_)
    return None


def parts_of(e: Apply) -> list[Expr]:
    """Return the operands of nested `and`s (or `or`s), each once, in canonical order."""
    return sorted(set(operands(e, e.fn)), key=rank)


def connect(fn: str, parts: Iterable[Expr]) -> Expr:
    """Join conditions by `and` or `or`; without conditions, return the neutral constant."""
    out: Expr | None = None
    for x in parts:
        out = x if out is None else apply(fn, out, x)
    return Const(fn == "and", dt.bool_) if out is None else out


def _simplify_connective(e: Apply, facts: Facts) -> Expr | None:
    """Flatten and order `and` and `or`, and drop operands that the others imply; False or True where they
    contradict."""
    unit = e.fn == "and"  # the identity operand; operands are examined while the others have this truth
    parts = [x for x in parts_of(e) if not (isinstance(x, Const) and bool(x.value) == unit)]
    if any(isinstance(x, Const) for x in parts):
        return Const(not unit, dt.bool_)
    if len(parts) > 1:
        n = 0
        while n < min(len(parts), MAX_PRUNED):
            rest = parts[:n] + parts[n + 1 : MAX_PRUNED]
            if facts.sampled.is_undecided(parts[n], rest, unit):
                n += 1
                continue
            others = facts.assume_all(rest, unit)
            if others.prove(parts[n], not unit) or not others.feasible:
                return Const(not unit, dt.bool_)
            if others.prove(parts[n], unit):
                del parts[n]
            else:
                n += 1
    return connect(e.fn, parts)


MAX_PRUNED = 8
"""Most operands of an `and` or `or` that are examined for being implied by each other, the first ones that remain; each
takes a proof."""


def _push_not_inward(e: Apply, facts: Facts) -> Expr | None:
    x = e.args[0]
    if not isinstance(x, Apply):
        return None
    if x.fn == "not":
        return x.args[0]
    if x.fn in ("and", "or"):
        return connect("or" if x.fn == "and" else "and", [apply("not", a) for a in parts_of(x)])
    if x.fn in ("eq", "ne"):
        return apply("ne" if x.fn == "eq" else "eq", *x.args)
    if x.fn in ("lt", "le") and x.args[0].dtype.is_int:  # with NaN, not (a < b) is not b <= a
        return apply("le" if x.fn == "lt" else "lt", x.args[1], x.args[0])
    return None


# ----------------------------------------------------------------------------------------------------------- casts


def _is_exact(a: DType, b: DType) -> bool:
    """Return whether every value of type a is a value of type b."""
    if a is b or a.is_bool:
        return True
    if a.is_int and b.is_int:
        return b.range[0] <= a.range[0] and a.range[1] <= b.range[1]
    return b.is_float and a.digits <= b.digits and (a.is_int or a.max <= b.max)


def _cast(e: Apply, facts: Facts) -> Expr | None:
    x = e.args[0]
    if x.dtype is e.dtype:
        return x
    if isinstance(x, Const):
        if x.dtype.is_float and not e.dtype.is_float:
            rounded = x.dtype.arithmetic.numpy.type(x.value)
            if not isfinite(rounded) or int(rounded) != int(x.value):
                return None
        out = cast(x, e.dtype)
        ok = isinstance(out, Const) and fits(out.value, e.dtype) and (e.dtype is not dt.f32 or x.dtype is not dt.f64)
        return out if ok else None
    if e.dtype.is_bool:
        return apply("ne", x, Const(0, x.dtype))
    if isinstance(x, Apply) and x.fn == "cast" and _is_exact(x.args[0].dtype, x.dtype):
        direct = cast(x.args[0], e.dtype)
        return None if direct is e else direct
    if isinstance(x, Apply) and x.fn == "where" and all(isinstance(a, Const) for a in x.args[1:]):
        sides = [_cast(Apply("cast", (a,), e.dtype), facts) for a in x.args[1:]]
        return None if None in sides else Apply("where", (x.args[0], *sides), e.dtype)
    return None


def _compare_cast_condition(e: Apply, facts: Facts) -> Expr | None:
    """Simplify a condition cast to a number and compared with 0 or 1."""
    x, k = e.args
    if not (isinstance(x, Apply) and x.fn == "cast" and x.args[0].dtype.is_bool and isinstance(k, Const)):
        return None
    if k.value in (0, 1):
        return x.args[0] if (k.value == 1) == (e.fn == "eq") else apply("not", x.args[0])
    return None


def _is_power_of_two(x: str = "", **bindings: Expr) -> bool:
    k = bindings["k"]
    assert isinstance(k, Const)
    if is_symbolic(k.value):
        return False
    mantissa, exponent = frexp(k.value)
    return abs(mantissa) == 0.5 and abs(exponent) < (120 if k.dtype.bits == 32 else 1000)


def _multiply_by_inverse(e: Apply, facts: Facts) -> Expr | None:
    k = e.args[1]
    if isinstance(k, Const) and _is_power_of_two(k=k):
        return apply("mul", e.args[0], Const(1 / k.value, k.dtype))
    return None


def _move_sign_into_constant(e: Apply, facts: Facts) -> Expr | None:
    """Move the sign into the constant in x * k with x = -y, and in -(x * k)."""
    product = e.args[0] if e.fn == "neg" else e
    if not (isinstance(product, Apply) and product.fn == "mul" and isinstance(product.args[1], Const)):
        return None
    x, k = product.args
    assert isinstance(k, Const)
    if e.fn == "mul":
        if not (isinstance(x, Apply) and x.fn == "neg"):
            return None
        x = x.args[0]
    return apply("mul", x, Const(-k.value, k.dtype))


def _merge_clamps(e: Apply, facts: Facts) -> Expr | None:
    """Merge clamps: max(max(x, k), l) -> max(x, max(k, l)), and likewise min."""
    x, k = e.args
    if not (isinstance(x, Apply) and x.fn == e.fn and isinstance(k, Const) and isinstance(x.args[1], Const)):
        return None
    both = [x.args[1].value, k.value]
    if any(v != v for v in both) or both == [0, 0]:
        return None
    return apply(e.fn, x.args[0], Const(max(both) if e.fn == "max" else min(both), k.dtype))


# ----------------------------------------------------------------------------------------------------------- table

RULES: tuple[RewriteRule, ...] = (
    RewriteRule("fold constants", _FOLDABLE, _fold),
    RewriteRule("order operands", _COMMUTATIVE, _order),
    # integers
    RewriteRule("linear form", SUMS, collect_terms, "i"),
    RewriteRule("divide by a negative", ("floordiv", "mod"), divide_by_negative, "i"),
    RewriteRule("divide", ("floordiv", "mod"), divide, "i"),
    RewriteRule("decided integer", ("floordiv", "mod", "min", "max", "where", "abs", "sign"), decide, "i"),
    RewriteRule("decided cast", ("cast",), decide_cast, "i"),
    RewriteRule("decided extreme", ("min", "max"), decide_extreme, "i"),
    RewriteRule("decided sign", ("abs",), decide_sign, "i"),
    RewriteRule("plain index", ("read",), narrow_indices),
    # conditions
    RewriteRule("known condition", ("lt", "le", "eq", "ne", "read", "cast", "where"), _decide, "b"),
    RewriteRule("compare itself", ("eq", "ne"), _compare_itself),
    RewriteRule("condition as a number", ("eq", "ne"), _compare_cast_condition),
    RewriteRule("compare integers", ("lt", "le", "eq", "ne"), compare),
    RewriteRule("and, or", ("and", "or"), _simplify_connective),
    RewriteRule("not", ("not",), _push_not_inward),
    # where
    rule("where of equal sides", p("where", "c", "x", "x"), "x"),
    rule("where not", p("where", p("not", "c"), "x", "y"), p("where", "c", "y", "x")),
    rule("where differs", p("where", p("ne", "a", "b"), "x", "y"), p("where", p("eq", "a", "b"), "y", "x")),
    rule("where is its condition", p("where", "c", True, False), "c", "b"),
    rule("where is not its condition", p("where", "c", False, True), p("not", "c"), "b"),
    rule("where as and", p("where", "c", "d", False), p("and", "c", "d"), "b", lambda c, d: _is_harmless(d)),
    rule("where as or", p("where", "c", True, "d"), p("or", "c", "d"), "b", lambda c, d: _is_harmless(d)),
    rule(
        "merge guards",
        p("where", "c", p("where", "d", "x", "y"), "y"),
        p("where", p("and", "c", "d"), "x", "y"),
        when=lambda c, d, x, y: _is_harmless(d),
    ),
    rule(
        "merge guards, other side",
        p("where", "c", "y", p("where", "d", "y", "x")),
        p("where", p("or", "c", "d"), "y", "x"),
        when=lambda c, d, x, y: _is_harmless(d),
    ),
    # floats; forbidden: x*0 -> 0, x-x -> 0, x/x -> 1
    rule("x * 1", p("mul", "x", 1.0), "x", "f"),
    rule("x * -1", p("mul", "x", -1.0), p("neg", "x"), "f"),
    rule("x / 1", p("div", "x", 1.0), "x", "f"),
    rule("x + 0", p("add", "x", 0.0), "x", "f"),
    rule("x + -0", p("add", "x", -0.0), "x", "f"),
    rule("x - 0", p("sub", "x", 0.0), "x", "f"),
    rule("x - -0", p("sub", "x", -0.0), "x", "f"),
    rule("- - x", p("neg", p("neg", "x")), "x", "f"),
    rule("x - -y", p("sub", "x", p("neg", "y")), p("add", "x", "y"), "f"),
    rule("x + -y", p("add", "x", p("neg", "y")), p("sub", "x", "y"), "f"),
    rule("-x + y", p("add", p("neg", "x"), "y"), p("sub", "y", "x"), "f"),
    rule("-x * -y", p("mul", p("neg", "x"), p("neg", "y")), p("mul", "x", "y"), "f"),
    RewriteRule("-x * k", ("mul", "neg"), _move_sign_into_constant, "f"),
    rule("-x * y", p("mul", p("neg", "x"), "y"), p("neg", p("mul", "x", "y")), "f"),
    rule("x * -y", p("mul", "x", p("neg", "y")), p("neg", p("mul", "x", "y")), "f"),
    rule("-x / -y", p("div", p("neg", "x"), p("neg", "y")), p("div", "x", "y"), "f"),
    rule("-x / y", p("div", p("neg", "x"), "y"), p("neg", p("div", "x", "y")), "f"),
    rule("x / -y", p("div", "x", p("neg", "y")), p("neg", p("div", "x", "y")), "f"),
    rule(
        "x * k / k", p("div", p("mul", "x", "k"), "k"), "x", "f", lambda x, k: k.value != 0 and isfinite(hint(k.value))
    ),
    RewriteRule("x / 2**n", ("div",), _multiply_by_inverse, "f"),
    rule("x ** 1", p("pow", "x", 1.0), "x", "f"),
    rule("x ** 2", p("pow", "x", 2.0), p("mul", "x", "x"), "f"),
    rule("x ** -1", p("pow", "x", -1.0), p("div", 1.0, "x"), "f"),
    rule("exp 0", p("exp", 0.0), 1.0, "f"),
    rule("log 1", p("log", 1.0), 0.0, "f"),
    rule("max of itself", p("max", "x", "x"), "x"),
    rule("min of itself", p("min", "x", "x"), "x"),
    RewriteRule("max of max", ("max", "min"), _merge_clamps),
    rule("abs of abs", p("abs", p("abs", "x")), p("abs", "x")),
    rule("abs of -x", p("abs", p("neg", "x")), p("abs", "x")),
    rule("stop_gradient twice", p("stop_gradient", p("stop_gradient", "x")), p("stop_gradient", "x")),
    RewriteRule("cast", ("cast",), _cast),
)
