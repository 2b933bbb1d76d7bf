"""Recognise views: templates that only rename addresses.

The template `Y[i, j] = X[(i*W + j)//V, (i*W + j) % V]` occupies X's own memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.loop import LoweredLoop
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Const,
    Expr,
    Item,
    Leaf,
    Piece,
    Read,
    Template,
    Tensor,
    apply,
    size,
)
from einsmith.ir.rebuild import substitute
from einsmith.ir.rewrite.simplify import simplify


def is_view(t: Template) -> bool:
    """Return whether the template reads its only argument so that element n of the output, in row-major order, is
    element n of the argument. The simplifier recombines a number that the index splits into mixed-radix digits."""
    return t.memo("is_view", _is_view)


def _is_view(t: Template) -> bool:
    part = t.parts[0]
    if len(t.parts) != 1 or len(t.params) != 1 or not isinstance(part, Piece) or not isinstance(part.body, Read):
        return False
    shape = t.params[0][1]
    if size(shape) != size(t.shape) or part.extents != t.shape:
        return False
    index = part.body.index
    if shape == t.shape and all(isinstance(e, Axis) and e.position == d for d, e in enumerate(index)):
        return True
    own = _flat([Axis(d) if n > 1 else Const(0, dt.i32) for d, n in enumerate(t.shape)], t.shape)
    ones = {d: Const(0, dt.i32) for d, n in enumerate(t.shape) if n == 1}
    index = tuple(substitute(e, ones) for e in index)
    place = _flat(index, shape)
    if place == own or linear(simplify(place.expr(dt.i64), t.shape)) == own:
        return True
    return all(simplify(e, t.shape) is _digit(own, d, shape, t.shape) for d, e in enumerate(index))


def _digit(number: LinearForm, d: int, shape: Sequence[int], extents: Sequence[int]) -> Expr:
    """Return the index in dimension d of element `number`, in the simplified form in which reads occur."""
    dtype = dt.i32 if size(shape) <= dt.i32.range[1] else dt.i64
    whole = apply("floordiv", number.expr(dtype), Const(size(shape[d + 1 :]), dtype))
    return simplify(apply("mod", whole, Const(shape[d], dtype)), extents)


def _flat(index: Sequence[Expr], shape: Sequence[int]) -> LinearForm:
    """Return the row-major number of the element at an index."""
    out = LinearForm()
    for e, n in zip(index, shape, strict=True):
        out = out * n + linear(e)
    return out


def storage(t: Tensor) -> Tensor:
    """Return the tensor whose memory `t` occupies: `t` itself, or the tensor that it is a view of."""
    while isinstance(t, Compute) and is_view(t.template):
        t = t.args[0]
    return t


def producer(t: Tensor) -> tuple[Compute | LoweredLoop | Leaf, int]:
    """Return (node, member) that computes a tensor's storage; recurrences must be loops already."""
    t = storage(t)
    if isinstance(t, Item):
        return t.node, t.member
    return t, 0
