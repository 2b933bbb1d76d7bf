"""Make tensors of elements of another one, and recognise views: templates that only rename addresses.

The template `Y[i, j] = X[(i*W + j)//V, (i*W + j) % V]` occupies X's own memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.linear import LinearForm, linear, moved
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
    template,
)
from einsmith.ir.rebuild import substitute
from einsmith.ir.rewrite.simplify import canonical, simplify


def own_index(shape: Sequence[int], first: int = 0) -> tuple[Expr, ...]:
    """Return the index of a tensor's own element, by axes from `first` on. Dimensions of one element have none."""
    return tuple(Axis(first + d) if n > 1 else Const(0, dt.i32) for d, n in enumerate(shape))


def read_at(t: Tensor, shape: Sequence[int], index: Sequence[Expr]) -> Tensor:
    """Return the tensor of this shape whose elements are those of another one at an index over its axes."""
    return canonical(template(shape, [(t.dtype, t.shape)], Read(0, tuple(index), t.dtype)), (t,))


def transposed(t: Tensor, order: Sequence[int]) -> Tensor:
    """Return a tensor with its dimensions in another order."""
    return read_at(t, [t.shape[d] for d in order], [Axis(order.index(d)) for d in range(len(order))])


def slice_of(t: Tensor, first: int, n: int) -> Tensor:
    """Return positions first .. first+n-1 of dimension 0 of a tensor."""
    shape = (n, *t.shape[1:])
    if (first, shape) == (0, t.shape):
        return t
    at, *rest = own_index(shape)
    return read_at(t, shape, [moved(at, first), *rest])


def element_of(t: Tensor, at: int) -> Tensor:
    """Return the element at a position of dimension 0 of a tensor."""
    return read_at(t, t.shape[1:], [Const(at, dt.i32), *own_index(t.shape[1:])])


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
    own = _flat(own_index(t.shape), t.shape)
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
