"""Sums, products, extremes and norms along dimensions; cumulative sums; selection of largest elements."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.frontends.aten import TABLE
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.operators.axes import axes_of, axis
from einsmith.frontends.onnx.table import enter, onnx
from einsmith.lang import builder
from einsmith.lang.builder import Value


def _empty(x: Value, dims: tuple[int, ...], keep: bool, value: Any) -> Value:
    shape = (1 if d in dims else e for d, e in enumerate(x.shape) if keep or d not in dims)
    return builder.full(tuple(shape), value, x.dtype)


def _least(x: Value, sign: int) -> Any:
    if x.dtype.is_bool:
        return sign > 0
    return sign * float("inf") if x.dtype.is_float else x.dtype.range[sign > 0]


def _maximum(x: Value, dims: tuple[int, ...], keep: bool) -> Value:
    return F.any(x, dims, keep) if x.dtype.is_bool else F.amax(x, dims, keep)


def _minimum(x: Value, dims: tuple[int, ...], keep: bool) -> Value:
    return F.all(x, dims, keep) if x.dtype.is_bool else F.amin(x, dims, keep)


def _mean(x: Value, dims: tuple[int, ...], keep: bool) -> Value:
    if x.dtype.is_float:
        return F.mean(x, dims, keep)
    return F.div(F.sum(x, dims, keep), prod(x.shape[d] for d in dims), rounding_mode="trunc")


def _sums(of: Callable[[Value], Value], then: Callable[[Value], Value] = lambda y: y) -> Callable[..., Value]:
    return lambda x, dims, keep: then(F.sum(of(x), dims, keep).astype(x.dtype))


def _root(y: Value) -> Value:
    return y.astype(dt.f64 if not y.dtype.is_float else y.dtype) if not y.size else TABLE["sqrt.default"].run(y)


def _reduce(name: str, formula: str, f: Callable[..., Value], nothing: Callable[[Value], Any]) -> None:
    def run(n: NodeCall, x: Value, given: Value | None = None) -> Value:
        dims = axes_of(n, given, x.ndim)
        if not dims:
            if n.attr("noop_with_empty_axes", 0):
                return _alone(name, x)
            dims = tuple(range(x.ndim))
        keep = bool(n.attr("keepdims", 1))
        if not dims:
            return f(x.reshape((1,)), (0,), False).reshape(()).astype(x.dtype)
        if not prod(x.shape[d] for d in dims):
            return _empty(x, dims, keep, nothing(x))
        return f(x, dims, keep).astype(x.dtype)

    enter(name, formula, run, static=(1,))


def _alone(name: str, x: Value) -> Value:
    """Apply a reduction over no dimension, that is, to each element by itself."""
    alone = {
        "ReduceSumSquare": lambda: x * x,
        "ReduceL1": lambda: TABLE["abs.default"].run(x),
        "ReduceL2": lambda: TABLE["abs.default"].run(x),
        "ReduceLogSum": lambda: TABLE["log.default"].run(x),
    }
    return alone[name]().astype(x.dtype) if name in alone else x


_ZERO, _INF = (lambda x: 0), (lambda x: float("-inf") if x.dtype.is_float else 0)
_reduce("ReduceSum", "sum[axes](x)", _sums(lambda x: x), _ZERO)
_reduce("ReduceSumSquare", "sum[axes](x*x)", _sums(lambda x: x * x), _ZERO)
_reduce("ReduceL1", "sum[axes](|x|)", _sums(lambda x: TABLE["abs.default"].run(x)), _ZERO)
_reduce("ReduceL2", "sqrt(sum[axes](x*x))", _sums(lambda x: x * x, _root), _ZERO)
_reduce("ReduceLogSum", "log(sum[axes](x))", _sums(lambda x: x, lambda y: TABLE["log.default"].run(y)), _INF)
_reduce(
    "ReduceLogSumExp",
    "log(sum[axes](exp(x))), without overflow",
    lambda x, dims, keep: F.logsumexp(x if x.dtype.is_float else x.astype(dt.f64), dims, keep),
    _INF,
)
_reduce("ReduceMean", "mean[axes](x)", _mean, lambda x: float("nan") if x.dtype.is_float else 0)
_reduce("ReduceProd", "prod[axes](x)", F.prod, lambda x: 1)
_reduce("ReduceMax", "max[axes](x); equal elements share the derivative", _maximum, lambda x: _least(x, -1))
_reduce("ReduceMin", "min[axes](x); equal elements share the derivative", _minimum, lambda x: _least(x, 1))


# ------------------------------------------------------------------------------------------------------------- places


def _place(name: str, f: Callable[..., Value]) -> None:
    def run(n: NodeCall, x: Value) -> Value:
        d, keep = axis(n.attr("axis", 0), x.ndim), bool(n.attr("keepdims", 1))
        if not n.attr("select_last_index", 0):
            return f(x, d, keep).astype(dt.i64)
        return (x.shape[d] - 1 - f(F.flip(x, d), d, keep)).astype(dt.i64)

    enter(name, f"{name.lower()}[axis](x), the first or the last of equal elements", run)


_place("ArgMax", F.argmax)
_place("ArgMin", F.argmin)


@onnx("TopK", static=(1,))
def topk(n: NodeCall, x: Value, count: Value | None = None) -> tuple[Value, Value]:
    """(the k largest or smallest elements along an axis, sorted, their indices); the first of equal elements"""
    k = n.attr("k") if count is None else n.integer(count, "k of TopK", 0)
    d = axis(n.attr("axis", -1), x.ndim)
    if not k:
        shape = (*x.shape[:d], 0, *x.shape[d + 1 :])
        return builder.full(shape, 0, x.dtype), builder.full(shape, 0, dt.i64)
    values, places = F.topk(x, int(k), d, bool(n.attr("largest", 1)))
    return values.astype(x.dtype), places.astype(dt.i64)


# -------------------------------------------------------------------------------------------------------- along rows


def _rows(n: NodeCall, x: Value) -> tuple[Value, int]:
    """Return x and the dimension of a softmax: before version 13 all dimensions from the axis on are one."""
    if n.version >= 13:
        return x, axis(n.attr("axis", -1), x.ndim)
    d = n.attr("axis", 1)
    d = x.ndim if d == x.ndim else axis(d, x.ndim)
    return x.reshape((prod(x.shape[:d]), prod(x.shape[d:]))), 1


def _softmax(name: str, formula: str, f: Callable[..., Value]) -> None:
    def run(n: NodeCall, x: Value) -> Value:
        rows, d = _rows(n, x)
        return f(rows, d).astype(x.dtype).reshape(x.shape)

    enter(name, formula, run)


_softmax("Softmax", "exp(x - max[axis](x))/sum[axis](exp(x - max[axis](x)))", F.softmax)
_softmax("LogSoftmax", "x - max[axis](x) - log(sum[axis](exp(x - max[axis](x))))", F.log_softmax)


@onnx("Hardmax")
def hardmax(n: NodeCall, x: Value) -> Value:
    """1 at the first largest element along an axis, 0 elsewhere"""
    rows, d = _rows(n, x)
    best = F.argmax(rows, d)

    def body(*i: Any) -> Any:
        at = (*i[:d], *i[d + 1 :])
        return builder.where((best[at] if at else best) == i[d], 1.0, 0.0)

    return builder.compute(rows.shape, body).astype(x.dtype).reshape(x.shape)


def _running(name: str, formula: str, f: Callable[..., Value], start: int) -> None:
    def run(n: NodeCall, x: Value, along: Value) -> Value:
        d = axis(n.integer(along, f"axis of {name}"), x.ndim)
        y = F.flip(x, d) if n.attr("reverse", 0) else x
        y = f(y, d).astype(x.dtype)
        if n.attr("exclusive", 0):
            m = x.shape[d]
            first = builder.full((*x.shape[:d], 1, *x.shape[d + 1 :]), start, x.dtype)
            y = F.cat([first, F.narrow(y, d, 0, m - 1)], d) if m > 1 else first
        return F.flip(y, d) if n.attr("reverse", 0) else y

    enter(name, formula, run, static=(1,))


_running("CumSum", "cumulative sum along an axis, optionally exclusive or reversed", F.cumsum, 0)
_running("CumProd", "cumulative product along an axis, optionally exclusive or reversed", F.cumprod, 1)
