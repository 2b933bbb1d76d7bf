"""Sums, products, extremes and norms along dimensions; cumulative sums; selection of largest elements."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.frontends.aten import TABLE
from einsmith.frontends.onnx.binding import Axes, Axis, Extent, resolve_axis
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.table import enter, onnx
from einsmith.ops import ordering, softmaxes, tensor
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def _unary(name: str) -> Callable[[Value], Value]:
    return TABLE[f"{name}.default"].run


_abs, _log, _sqrt = _unary("abs"), _unary("log"), _unary("sqrt")


def _least(x: Value, sign: int) -> Any:
    if x.dtype.is_bool:
        return sign > 0
    return sign * float("inf") if x.dtype.is_float else x.dtype.range[sign > 0]


def _mean(x: Value, dims: tuple[int, ...], keep: bool) -> Value:
    if x.dtype.is_float:
        return F.mean(x, dims, keep)
    return F.div(F.sum(x, dims, keep), prod(x.shape[d] for d in dims), rounding_mode="trunc")


def _sums(of: Callable[[Value], Value], then: Callable[[Value], Value] = lambda y: y) -> Callable[..., Value]:
    return lambda x, dims, keep: then(F.sum(of(x), dims, keep).astype(x.dtype))


def _root(y: Value) -> Value:
    return _sqrt(y) if y.size else y.astype(y.dtype if y.dtype.is_float else dt.f64)


def _same(x: Value) -> Value:
    return x


def _square(x: Value) -> Value:
    return x * x


def _reduce(
    name: str,
    formula: str,
    f: Callable[..., Value],
    nothing: Callable[[Value], Any],
    alone: Callable[[Value], Value] = _same,
) -> None:
    """Add a reduction f(x, dims, keep). nothing: its result where there are no elements; alone: its result over no
    dimension, that is, for each element by itself."""

    def run(x: Value, axes: Axes = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Value:
        if not axes and noop_with_empty_axes:
            return alone(x)
        dims = axes or tuple(range(x.ndim))
        if not dims:
            return f(x.reshape((1,)), (0,), False).reshape(())
        if not prod(x.shape[d] for d in dims):
            shape = (1 if d in dims else e for d, e in enumerate(x.shape) if keepdims or d not in dims)
            return builder.full(tuple(shape), nothing(x), x.dtype)
        return f(x, dims, bool(keepdims))

    enter(name, formula, run)


def _zero(x: Value) -> Any:
    return 0


def _log_of_zero(x: Value) -> Any:
    return float("-inf") if x.dtype.is_float else 0


_reduce("ReduceSum", "sum[axes](x)", _sums(_same), _zero)
_reduce("ReduceSumSquare", "sum[axes](x*x)", _sums(_square), _zero, _square)
_reduce("ReduceL1", "sum[axes](|x|)", _sums(_abs), _zero, _abs)
_reduce("ReduceL2", "sqrt(sum[axes](x*x))", _sums(_square, _root), _zero, _abs)
_reduce("ReduceLogSum", "log(sum[axes](x))", _sums(_same, _log), _log_of_zero, _log)
_reduce(
    "ReduceLogSumExp",
    "log(sum[axes](exp(x))), without overflow",
    lambda x, dims, keep: F.logsumexp(x if x.dtype.is_float else x.astype(dt.f64), dims, keep),
    _log_of_zero,
)
_reduce("ReduceMean", "mean[axes](x)", _mean, lambda x: float("nan") if x.dtype.is_float else 0)
_reduce("ReduceProd", "prod[axes](x)", tensor.prod, lambda x: 1)


def _extreme(name: str, f: Callable[..., Value], sign: int) -> None:
    formula = f"{name.lower()}[axes](x); equal elements share the derivative"
    _reduce(f"Reduce{name}", formula, f, lambda x: _least(x, sign))


_extreme("Max", tensor.amax, -1)
_extreme("Min", tensor.amin, 1)


# ------------------------------------------------------------------------------------------------------------- places


def _place(name: str, f: Callable[..., Value]) -> None:
    def run(x: Value, *, axis: Axis = 0, keepdims: int = 1, select_last_index: int = 0) -> Value:
        if not select_last_index:
            return f(x, axis, bool(keepdims))
        return x.shape[axis] - 1 - f(F.flip(x, axis), axis, bool(keepdims))

    enter(name, f"{name.lower()}[axis](x), the first or the last of equal elements", run)


_place("ArgMax", tensor.argmax)
_place("ArgMin", tensor.argmin)


@onnx("TopK")
def topk(x: Value, k: Extent, *, axis: Axis = -1, largest: int = 1) -> Any:
    """(the k largest or smallest elements along an axis, sorted, their indices); the first of equal elements"""
    if not k:
        shape = (*x.shape[:axis], 0, *x.shape[axis + 1 :])
        return builder.full(shape, 0, x.dtype), builder.full(shape, 0, dt.i64)
    return F.topk(x, int(k), axis, bool(largest))


# -------------------------------------------------------------------------------------------------------- along rows


def _rows(n: NodeCall, x: Value) -> tuple[Value, int]:
    """Return x and the dimension of a softmax: before version 13 all dimensions from the axis on are one."""
    if n.version >= 13:
        return x, resolve_axis(n.attr("axis", -1), x.ndim)
    d = n.attr("axis", 1)
    d = x.ndim if d == x.ndim else resolve_axis(d, x.ndim)
    return x.reshape((prod(x.shape[:d]), prod(x.shape[d:]))), 1


def _softmax(name: str, formula: str, f: Callable[..., Value]) -> None:
    def run(n: NodeCall, x: Value) -> Value:
        return f(*_rows(n, x)).astype(x.dtype).reshape(x.shape)

    enter(name, formula, run)


def _hardmax(x: Value, d: int) -> Value:
    best = F.argmax(x, d)

    def body(*i: Any) -> Any:
        at = (*i[:d], *i[d + 1 :])
        return builder.where((best[at] if at else best) == i[d], 1.0, 0.0)

    return builder.compute(x.shape, body)


_softmax("Softmax", "exp(x - max[axis](x))/sum[axis](exp(x - max[axis](x)))", softmaxes.softmax)
_softmax("LogSoftmax", "x - max[axis](x) - log(sum[axis](exp(x - max[axis](x))))", softmaxes.log_softmax)
_softmax("Hardmax", "1 at the first largest element along an axis, 0 elsewhere", _hardmax)


def _running(name: str, formula: str, f: Callable[..., Value], start: int) -> None:
    def run(x: Value, axis: Axis, *, exclusive: int = 0, reverse: int = 0) -> Value:
        y = F.flip(x, axis) if reverse else x
        y = f(y, axis).astype(x.dtype)
        if exclusive:
            m = x.shape[axis]
            first = builder.full((*x.shape[:axis], 1, *x.shape[axis + 1 :]), start, x.dtype)
            y = F.cat([first, F.narrow(y, axis, 0, m - 1)], axis) if m > 1 else first
        return F.flip(y, axis) if reverse else y

    enter(name, formula, run)


_running("CumSum", "cumulative sum along an axis, optionally exclusive or reversed", ordering.cumsum, 0)
_running("CumProd", "cumulative product along an axis, optionally exclusive or reversed", ordering.cumprod, 1)
