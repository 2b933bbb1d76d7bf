"""Select elements by their rank, for functions that sort."""

from __future__ import annotations

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Axis, Const, Expr, Read, Reduce, apply, cast, template
from einsmith.ir.rewrite.simplify import canonical
from einsmith.ops.common import at
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def select_positions(x: Value, d: int, first: int, count: int, descending: bool) -> Value:
    """Return the positions along dimension d of the elements of ranks `first` .. `first + count - 1`.

    Equal elements are in the order of their positions; NaN counts as largest.
    """

    def build(operands: list[Value]) -> tuple[Value, ...]:
        (x,) = operands
        shape, rank = at(x.shape, d, count), x.ndim
        key: Expr = Read(0, at(tuple(map(Axis, range(rank))), d, Axis(rank)), x.dtype)
        key = cast(key, dt.i32 if x.dtype.is_bool else x.dtype.arithmetic)
        of_rank = apply("add", Axis(d), Const(first, dt.i32)) if first else Axis(d)
        reduction = Reduce("argkmax" if descending else "argkmin", (x.shape[d],), (key, of_rank))
        return (Value(canonical(template(shape, [(x.dtype, x.shape)], reduction), (x.tensor,))),)

    x = builder.stop_gradient(x)
    return builder.trace_once(("select positions", d, first, count, descending), [x], build)[0]


def take_positions(x: Value, d: int, positions: Value) -> Value:
    """Return the elements of x at positions along dimension d, which are known to be within its extent."""
    top = x.shape[d] - 1
    return builder.compute(
        positions.shape, lambda *i: x[at(i, d, builder.minimum(builder.maximum(positions[i], 0), top))]
    )
