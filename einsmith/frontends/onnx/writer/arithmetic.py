"""Write divisions and conversions whose results in ONNX differ from those of formulas, or are left open there."""

from __future__ import annotations

from collections.abc import Callable

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.frontends.onnx.writer.onnx_graph import GraphWriter


def _nodes_of(graph: GraphWriter, dtype: DType) -> Callable[..., str]:
    """Return a function that adds a node of tensors' names, and of numbers of a type."""

    def op(operator: str, *operands: str | float) -> str:
        return graph.node(operator, *(x if isinstance(x, str) else graph.number(x, dtype) for x in operands))

    return op


def divide_integers(graph: GraphWriter, fn: str, a: str, b: str, dtype: DType, divisor: float | None) -> str:
    """Return a/b rounded towards minus infinity (floordiv), or its remainder (mod); 0 for a divisor of 0.

    Args:
        graph: the graph that is written
        fn: floordiv or mod
        a: name of the dividend
        b: name of the divisor
        dtype: type of both
        divisor: the divisor's value, None if it is not known
    """
    op, safe, zero, minus = _nodes_of(graph, dtype), b, "", ""
    if divisor in (None, 0, -1):
        # A division by zero, and that of the least integer by -1, may end the process.
        zero, minus = op("Equal", b, 0), op("Equal", b, -1) if dtype.signed else ""
        safe = op("Where", zero, 1, b)
        safe = op("Where", minus, 1, safe) if minus else safe
    rest = op("Mod", a, safe)
    if fn == "mod":
        return rest
    result = op("Div", a, safe)
    if dtype.signed:
        below = op("And", op("Not", op("Equal", rest, 0)), op("Xor", op("Less", a, 0), op("Less", safe, 0)))
        result = op("Sub", result, graph.cast(below, dtype))
    result = op("Where", minus, op("Neg", a), result) if minus else result
    return op("Where", zero, 0, result) if zero else result


def divide_floats(graph: GraphWriter, fn: str, a: str, b: str, dtype: DType) -> str:
    """Return a/b rounded towards minus infinity (floordiv), or its remainder (mod).

    They are computed as in `codegen.llvm.ops`, from the exact remainder, since a/b may be rounded up to
    the next whole number.

    Signs of zeros are multiplied, since onnxruntime's Where loses them.
    """
    op, rest = _nodes_of(graph, dtype), graph.node("Mod", a, b, fmod=1)
    # The remainder has the sign of a; where that is not the sign of b, b is added.
    differs = op("And", op("Xor", op("Less", b, 0.0), op("Less", rest, 0.0)), op("Not", op("Equal", rest, 0.0)))
    if fn == "mod":
        size = op("Abs", op("Where", differs, op("Add", rest, b), rest))
        return op("Mul", size, op("Where", op("Less", b, 0.0), -1.0, 1.0))
    near = op("Div", op("Sub", a, rest), b)  # a whole number but for its rounding
    near = op("Where", differs, op("Sub", near, 1.0), near)
    whole, quotient = op("Floor", near), op("Div", a, b)
    whole = op("Where", op("Greater", op("Sub", near, whole), 0.5), op("Add", whole, 1.0), whole)
    whole = op("Where", op("Equal", b, 0.0), quotient, whole)
    small = op("Equal", near, 0.0)  # the result is a zero with the sign of the quotient
    sign = op("Reciprocal", op("Where", small, op("Reciprocal", quotient), 1.0))
    return op("Mul", op("Where", small, 1.0, whole), op("Mul", sign, op("Where", small, 0.0, 1.0)))


def truncate(graph: GraphWriter, x: str, source: DType, to: DType) -> str:
    """Return floats as integers: truncated, 0 for NaN, and the nearest integer for those out of range."""
    wide = to if to.bits >= 32 else dt.i32  # onnxruntime lacks Where for some small integers
    op, result, (low, high) = _nodes_of(graph, source), _nodes_of(graph, wide), to.range
    under, over = op("Less", x, float(low)), op("GreaterOrEqual", x, float(high + 1))
    beyond = op("Or", op("Or", under, over), op("Not", op("Equal", x, x)))
    inside = graph.cast(op("Where", beyond, 0.0, x), wide)
    inside = result("Where", under, low, result("Where", over, high, inside))
    return inside if wide is to else graph.cast(inside, to)
