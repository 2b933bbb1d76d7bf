"""Sums, products, extremes, moments and norms along dimensions; cumulative reductions; sorting."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.frontends.aten.promotion import default_float
from einsmith.frontends.aten.table import aten, enter
from einsmith.frontends.aten.views import select
from einsmith.ops.attention import softmax_of_some
from einsmith.ops.common import dimensions
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

Dims = Sequence[int] | int | None


def _whole(x: Value, dtype: DType | None) -> Value:
    """Convert x to the type of its sum: `dtype` if given, int64 for integers and bools."""
    return x.astype(dtype or (x.dtype if x.dtype.is_float else dt.i64))


@aten("sum.dim_IntList")
def total(x: Value, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Value:
    """sum[dim](x), over all dimensions if dim is empty; for integers, in int64"""
    y = _whole(x, dtype)
    return F.sum(y, dim, keepdim).astype(y.dtype)


@aten("mean.default")
def mean_all(x: Value, dtype: DType | None = None) -> Value:
    """mean[all](x)"""
    return mean(x, dtype=dtype)


@aten("mean.dim")
def mean(x: Value, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Value:
    """mean[dim](x), over all dimensions if dim is empty"""
    x = x.astype(dtype or x.dtype)
    if any(x.shape[d] == 0 for d in dimensions(dim, x.ndim, "dim")):
        return F.sum(x, dim, keepdim) / 0.0
    return F.mean(x, dim, keepdim)


def _place(name: str) -> None:
    place = getattr(F, name)

    def run(x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        return place(x, dim, keepdim).astype(dt.i64)

    enter(f"{name}.default", f"{name}[dim](x), the first of equal elements", run)


_place("argmax")
_place("argmin")


@aten("prod.default")
def prod_all(x: Value, dtype: DType | None = None) -> Value:
    """prod[all](x); for integers, in int64"""
    return prod(x, None, dtype=dtype)


@aten("prod.dim_int")
def prod(x: Value, dim: int | None, keepdim: bool = False, dtype: DType | None = None) -> Value:
    """prod[dim](x); for integers, in int64"""
    y = _whole(x, dtype)
    return F.prod(y, dim, keepdim).astype(y.dtype)


@aten("linalg_vector_norm.default")
def vector_norm(x: Value, ord: float = 2, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Value:
    """(sum[dim](|x|**ord))**(1/ord); the derivative at 0 is 0; for ord inf and -inf, max and min of |x|"""
    return F.norm(x.astype(dtype or x.dtype), float(ord), dim, keepdim)


@aten("logsumexp.default")
def logsumexp(x: Value, dim: Dims, keepdim: bool = False) -> Value:
    """log(sum[dim](exp(x))), without overflow"""
    y = x if x.dtype.is_float else x.astype(default_float())
    return F.logsumexp(y, dimensions(dim, y.ndim, "dim"), keepdim) if y.ndim else y


@aten("kthvalue.default")
def kthvalue(x: Value, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """(the k-th smallest element along dim, its index)"""
    if not x.ndim:
        return x, builder.full((), 0, dt.i64)
    first, second = (select(v, dim, k - 1) for v in F.sort(x, dim))
    d, second = dim % x.ndim, second.astype(dt.i64)
    return (F.unsqueeze(first, d), F.unsqueeze(second, d)) if keepdim else (first, second)


@aten("_softmax.default")
def softmax(x: Value, dim: int, half_to_float: bool = False) -> Value:
    """exp(x - max[dim](x))/sum[dim](exp(x - max[dim](x)))"""
    return F.softmax(x, dim).astype(dt.f32 if half_to_float else x.dtype) if x.ndim else F.ones_like(x)


@aten("_safe_softmax.default")
def safe_softmax(x: Value, dim: int, dtype: DType | None = None) -> Value:
    """softmax along dim; 0 in rows of minus infinities"""
    y = x.astype(dtype or x.dtype)
    if not y.ndim:
        return F.ones_like(y)
    return F.transpose(softmax_of_some(F.transpose(y, dim, -1)), dim, -1).astype(y.dtype)


@aten("_log_softmax.default")
def log_softmax(x: Value, dim: int, half_to_float: bool = False) -> Value:
    """x - max[dim](x) - log(sum[dim](exp(x - max[dim](x))))"""
    return F.log_softmax(x, dim).astype(dt.f32 if half_to_float else x.dtype) if x.ndim else F.zeros_like(x)
