"""Split products into factors, and compare expressions independently of their slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from einsmith.ir.nodes import Apply, Axis, Expr, Read, Tensor, apply, postorder

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


def is_long(e: Expr) -> bool:
    """Return whether an expression has more than MAX_EXPRESSIONS subexpressions."""
    return sum(1 for _ in postorder([e])) > MAX_EXPRESSIONS


def multiply(factors: Sequence[Factor], minus: bool) -> Expr:
    """Return the product of factors, divisors last, the sign in front. At least one factor must not be a divisor."""
    numerator = [f for f, divides in factors if not divides]
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
