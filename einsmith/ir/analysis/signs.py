"""Prove the signs of real expressions: of differences from a maximum, squares, and what is made of them.

    max[l](w[i,l]) is at least w[i,j], so that w[i,j] - max[l](w[i,l]) is never positive

NaN has no sign: what is proven holds of all other values.
"""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.nodes import Apply, Axis, Compute, Const, Expr, Piece, Read, Reduce, Tensor

_MAX_DEPTH = 24
"""Deepest nesting of expressions and of tensors made of others that is searched: a proof that fails takes the time of
all paths to this depth."""

_KEEPING = ("stop_gradient", "differentiate_as", "cast")
_POSITIVE = ("exp", "abs", "sigmoid", "sqrt", "relu", "softplus")


def is_never(sign: int, e: Expr, args: Sequence[Tensor], domain: Sequence[int], depth: int = _MAX_DEPTH) -> bool:
    """Return whether an expression is proven never to have a sign, 1 or -1.

    Args:
        sign: the sign.
        e: a real expression.
        args: the tensors that its slots read.
        domain: the extents of its axes.
        depth: how far below `e` the proof may reach.
    """
    if depth == 0 or not e.dtype.is_float:
        return False
    if isinstance(e, Const):
        return e.value * sign <= 0
    if isinstance(e, Read):
        return _is_read_never(sign, e, args, depth)
    if not isinstance(e, Apply):
        return False
    a, b = e.args[0], e.args[-1]

    def never(s: int, x: Expr) -> bool:
        return is_never(s, x, args, domain, depth - 1)

    if e.fn in _POSITIVE:
        return sign < 0
    if e.fn in _KEEPING:
        return never(sign, a)
    if e.fn == "neg":
        return never(-sign, a)
    if e.fn == "where":
        return never(sign, e.args[1]) and never(sign, b)
    if e.fn == "add":
        return never(sign, a) and never(sign, b)
    if e.fn == "sub":
        greater, less = (b, a) if sign > 0 else (a, b)
        return (never(sign, a) and never(-sign, b)) or _is_maximum_of(greater, less, args, domain)
    if e.fn in ("mul", "div"):
        if a is b:
            return sign < 0
        return any(never(s, a) and never(s * sign, b) for s in (1, -1))
    if e.fn in ("min", "max"):
        both = e.fn == ("max" if sign > 0 else "min")
        return (all if both else any)(never(sign, x) for x in e.args)
    return e.fn == "pow" and sign < 0 and isinstance(b, Const) and b.value % 2 == 0


def _is_read_never(sign: int, e: Read, args: Sequence[Tensor], depth: int) -> bool:
    tensor = args[e.slot]
    body = pointwise_body(tensor.template) if isinstance(tensor, Compute) else None
    return body is not None and is_never(sign, body, tensor.args, tensor.shape, depth - 1)


def _is_maximum_of(greater: Expr, less: Expr, args: Sequence[Tensor], domain: Sequence[int]) -> bool:
    """Return whether an expression reads the maximum of elements of which another one is one."""
    while isinstance(greater, Apply) and greater.fn in _KEEPING:
        greater = greater.args[0]
    if not isinstance(greater, Read):
        return False
    tensor = args[greater.slot]
    part = tensor.template.parts[0] if isinstance(tensor, Compute) else None
    if not isinstance(part, Piece) or not isinstance(part.body, Reduce) or part.extents != tensor.shape:
        return False
    if part.body.combiner != "max" or len(part.body.bodies) != 1:
        return False
    places: dict[int, Expr] = dict(enumerate(greater.index))
    if not _equals(part.bodies[0], tensor.args, less, args, places):
        return False
    summed = range(len(tensor.shape), len(part.domain))
    return all(_is_within(places[a], part.domain[a], domain) for a in summed if a in places)


def _is_within(place: Expr, extent: int, domain: Sequence[int]) -> bool:
    """Return whether an index is an axis, or a number, of an extent."""
    if isinstance(place, Axis):
        return bool(domain[place.position] <= extent)
    return isinstance(place, Const) and 0 <= place.value < extent


def _equals(e: Expr, own: Sequence[Tensor], x: Expr, args: Sequence[Tensor], places: dict[int, Expr]) -> bool:
    """Return whether x equals e, with the axes of e at `places`; axes that have none yet get one."""
    while isinstance(e, Apply) and e.fn in _KEEPING and e.dtype is e.args[0].dtype:
        e = e.args[0]
    if isinstance(e, Axis):
        return places.setdefault(e.position, x) is x
    if isinstance(e, Const) or type(e) is not type(x) or len(e.args) != len(x.args) or e.dtype is not x.dtype:
        return e is x
    if isinstance(e, Read) and isinstance(x, Read):
        if own[e.slot] is not args[x.slot]:
            return False
    elif e.fn != x.fn:  # type: ignore[union-attr]
        return False
    return all(_equals(a, own, b, args, places) for a, b in zip(e.args, x.args, strict=True))
