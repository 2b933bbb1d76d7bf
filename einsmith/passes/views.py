"""Views: templates that only rename addresses. `Y[i, j] = X[(i*W + j)//V, (i*W + j) % V]` occupies X's own memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from einsmith import dtypes as dt
from einsmith.expr.linear import Linear, linear
from einsmith.expr.loop import Loop
from einsmith.expr.nodes import (
    Apply,
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
    postorder,
    size,
)

_NUMPY: dict[str, Callable] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "cast": lambda x: x,
    "floordiv": np.floor_divide, "mod": np.mod, "min": np.minimum, "max": np.maximum,
}  # fmt: skip


def is_view(t: Template) -> bool:
    """Whether the template reads its one argument so that element n of the output, in row-major order, is element n
    of the argument. Decided exactly, by enumeration where the normal form does not show it."""
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
    own: tuple[Expr, ...] = tuple(Axis(d) if n > 1 else Const(0, dt.i32) for d, n in enumerate(t.shape))
    if _flat(index, shape) == _flat(own, t.shape):
        return True
    flat = np.zeros((1,) * t.rank, np.int64)
    for e, n in zip(index, shape, strict=True):
        value = _enumerate(e, t.shape)
        if value is None:
            return False
        flat = flat * n + value
    want = np.arange(size(t.shape), dtype=np.int64).reshape(t.shape)
    return bool(np.array_equal(np.broadcast_to(flat, t.shape), want))


def _flat(index: tuple[Expr, ...], shape: tuple[int, ...]) -> Linear:
    """The number, in row-major order, of the element at an index."""
    out = Linear()
    for e, n in zip(index, shape, strict=True):
        out = out * n + linear(e)
    return out


def _enumerate(e: Expr, extents: tuple[int, ...]) -> np.ndarray | None:
    """The integer expression at every point of the box, broadcast along axes that it does not mention."""
    values: dict[Expr, np.ndarray] = {}
    for x in postorder([e]):
        if isinstance(x, Const):
            values[x] = np.asarray(x.value, np.int64)
        elif isinstance(x, Axis):
            n = extents[x.position]
            values[x] = np.arange(n).reshape([-1 if d == x.position else 1 for d in range(len(extents))])
        elif isinstance(x, Apply) and x.fn in _NUMPY:
            values[x] = _NUMPY[x.fn](*(values[a] for a in x.args))
        else:
            return None
    return values[e]


def storage(t: Tensor) -> Tensor:
    """The tensor whose memory `t` occupies: `t` itself, or what it is a view of."""
    while isinstance(t, Compute) and is_view(t.template):
        t = t.args[0]
    return t


def producer(t: Tensor) -> tuple[Compute | Loop | Leaf, int]:
    """(node, member) that makes a tensor's storage, recurrences being loops already."""
    t = storage(t)
    if isinstance(t, Item):
        return t.node, t.member
    return t, 0
