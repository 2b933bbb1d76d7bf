"""Products as their factors, and what expressions are whichever slots they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from einsmith.expr.nodes import Apply, Axis, Expr, Read, Tensor, apply, postorder

FACTORS = 16
"""Of a product: one of more is left as it is."""
LENGTH = 64
"""Expressions in what is compared factor by factor: what is longer is left as it is."""
Factor = tuple[Expr, bool]
"""An expression, and whether it divides."""


class Product(NamedTuple):
    """`minus`: whether the product is the negative of its factors'."""

    factors: tuple[Factor, ...]
    minus: bool


def product_of(e: Expr) -> Product | None:
    """The factors of an expression, one if it is no product; None if they are too many."""
    found: list[Factor] = []
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
            found.append((x, divides))
        if len(found) + len(stack) > FACTORS:
            return None
    return Product(tuple(found), minus)


def is_long(e: Expr) -> bool:
    return sum(1 for _ in postorder([e])) > LENGTH


def multiplied(factors: Sequence[Factor], minus: bool) -> Expr:
    """Their product, the dividing ones last, the sign before all. One at least does not divide."""
    over = [f for f, divides in factors if not divides]
    out = over[0]
    for f in over[1:]:
        out = apply("mul", out, f)
    for f, divides in factors:
        if divides:
            out = apply("div", out, f)
    return apply("neg", out) if minus else out


def key_of(e: Expr, args: Sequence[Tensor], places: Mapping[int, Any] | None) -> Any:
    """What an index is, with the tensors that it reads in the place of their slots, where axes stand at `places`."""
    if isinstance(e, Axis):
        return e if places is None else places.get(e.position)
    if not e.args:
        return e
    head = args[e.slot] if isinstance(e, Read) else (e.fn, e.dtype)  # type: ignore[union-attr]
    return (head, *(key_of(a, args, places) for a in e.args))
