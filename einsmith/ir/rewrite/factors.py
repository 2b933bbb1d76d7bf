"""Split products, and sums with common factors, into factors; compare expressions independently of their slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from einsmith.ir.nodes import Apply, Axis, Const, Expr, Read, Tensor, apply, has_read, is_zero, postorder, reads

MAX_FACTORS = 16
"""Most factors of a product that is split."""
MAX_EXPRESSIONS = 64
"""Most subexpressions of a body that is compared factor by factor."""
Factor = tuple[Expr, bool]
"""An expression, and whether it is a divisor."""


class Product(NamedTuple):
    """The factors of a product. `minus`: whether the product is negated."""

    factors: tuple[Factor, ...]
    minus: bool


def product_of(e: Expr) -> Product | None:
    """Return the factors of an expression, one if it is not a product; None if there are more than MAX_FACTORS."""
    factors: list[Factor] = []
    minus = False
    stack = [(e, False)]
    while stack:
        x, divides = stack.pop()
        if isinstance(x, Apply) and x.dtype.is_float and x.fn in ("mul", "div"):
            a, b = x.args
            stack += [(b, divides != (x.fn == "div")), (a, divides)]
        elif isinstance(x, Apply) and x.dtype.is_float and x.fn == "neg":
            minus = not minus
            stack.append((x.args[0], divides))
        else:
            factors.append((x, divides))
        if len(factors) + len(stack) > MAX_FACTORS:
            return None
    return Product(tuple(factors), minus)


class SumBody(NamedTuple):
    """The body of a sum as a product under guards: zero where a guard fails.

    is_factored: whether common factors were taken out of a sum of terms."""

    guards: tuple[Expr, ...]
    product: Product
    is_factored: bool


def split_sum(body: Expr) -> SumBody | None:
    """Return the guards around a body and its factors, those that all of its terms have in common first; None if there
    are more than MAX_FACTORS. An index that reads a tensor stays below its guards, which keep it in bounds."""
    guards: list[Expr] = []
    minus = False
    while isinstance(body, Apply) and body.dtype.is_float:
        if body.fn == "neg":
            minus, body = not minus, body.args[0]
        elif body.fn == "where" and is_zero(body.args[2]) and not _has_data_index(body.args[1]):
            guards.append(body.args[0])
            body = body.args[1]
        else:
            break
    product = product_of(body)
    if product is None:
        return None
    factors: list[Factor] = []
    is_factored = False
    for f in product.factors:
        common = None if f[1] or is_long(f[0]) else _common_factors(f[0])
        is_factored |= common is not None
        factors += common or [f]
    if len(factors) > MAX_FACTORS:
        return None
    return SumBody(tuple(guards), Product(tuple(factors), minus != product.minus), is_factored)


def _common_factors(e: Expr) -> list[Factor] | None:
    """Return the factors that the two operands of a sum have in common, and the sum of what is left; None if there are
    none."""
    if not isinstance(e, Apply) or e.fn not in ("add", "sub") or not e.dtype.is_float:
        return None
    sides = []
    for a in e.args:
        product = product_of(a)
        if product is None:
            return None
        factors = [x for f in product.factors for x in ((None if f[1] else _common_factors(f[0])) or [f])]
        sides.append((factors, product.minus))
    (left, left_minus), (right, right_minus) = sides
    common = []
    for f in list(left):
        if f in right:
            common.append(f)
            left.remove(f)
            right.remove(f)
    if not common:
        return None
    rest = [multiply(x or [(Const(1, e.dtype), False)], False) for x in (left, right)]
    rest = [apply("neg", x) if minus else x for x, minus in zip(rest, (left_minus, right_minus), strict=True)]
    return [*common, (apply(e.fn, *rest), False)]


def _has_data_index(x: Expr) -> bool:
    return any(has_read(i) for r in reads(x) for i in r.index)


def is_long(e: Expr) -> bool:
    """Return whether an expression has more than MAX_EXPRESSIONS subexpressions."""
    return sum(1 for _ in postorder([e])) > MAX_EXPRESSIONS


def multiply(factors: Sequence[Factor], minus: bool) -> Expr:
    """Return the product of factors, divisors last, the sign in front."""
    numerator = [f for f, divides in factors if not divides] or [Const(1, factors[0][0].dtype)]
    out = numerator[0]
    for f in numerator[1:]:
        out = apply("mul", out, f)
    for f, divides in factors:
        if divides:
            out = apply("div", out, f)
    return apply("neg", out) if minus else out


def key_of(e: Expr, args: Sequence[Tensor], places: Mapping[int, Any] | None) -> Any:
    """Return a hashable form of an index that contains tensors in place of slots, and `places` in place of axes; two
    indices are equal if their forms are."""
    if isinstance(e, Axis):
        return e if places is None else places.get(e.position)
    if not e.args:
        return e
    head = args[e.slot] if isinstance(e, Read) else (e.fn, e.dtype)  # type: ignore[union-attr]
    return (head, *(key_of(a, args, places) for a in e.args))
