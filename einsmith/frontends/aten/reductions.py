"""Sums, products, extremes, moments and norms along dimensions; cumulative reductions; sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.frontends.aten.promotion import DEFAULT
from einsmith.frontends.aten.table import aten, enter
from einsmith.frontends.aten.views import select, unsqueeze
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.ops.attention import softmax_of_some
from einsmith.ops.common import dimensions

Dims = Sequence[int] | int | None


def _whole(x: Value, dtype: DType | None) -> Value:
    """Convert x to the type of its sum: `dtype` if given, int64 for integers and bools."""
    return x.astype(dtype or (x.dtype if x.dtype.is_float else dt.i64))


def _sum(x: Value, dims: Dims, keepdim: bool) -> Value:
    return x if not x.ndim else F.sum(x, _all(dims, x), keepdim)


def _all(dims: Dims, x: Value) -> Sequence[int]:
    """Return the dimensions that an operator reduces: all if none are given."""
    return dimensions(dims, x.ndim, "dim")


@aten("sum.dim_IntList")
def total(x: Value, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Value:
    """sum[dim](x), over all dimensions if dim is empty; for integers, in int64"""
    return _sum(_whole(x, dtype), dim, keepdim).astype(_whole(x, dtype).dtype)


@aten("mean.default")
def mean_all(x: Value, dtype: DType | None = None) -> Value:
    """mean[all](x)"""
    return mean(x, None, False, dtype)


@aten("mean.dim")
def mean(x: Value, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Value:
    """mean[dim](x), over all dimensions if dim is empty"""
    x = x.astype(dtype or x.dtype)
    dims = _all(dim, x)
    count = 1
    for d in dims:
        count *= x.shape[d]
    if not dims:
        return x
    return F.mean(x, dims, keepdim) if count else _sum(x, dims, keepdim) / 0.0


def _extreme(name: str, of_bools: Callable[[Value, Any, bool], Value]) -> None:
    best = getattr(F, name)

    def run(x: Value, dim: Dims = (), keepdim: bool = False) -> Value:
        return of_bools(x, dim, keepdim) if x.dtype.is_bool else best(x, _all(dim, x), keepdim)

    enter(f"{name}.default", f"{name[1:]}[dim](x); equal elements share the derivative", run)


def any_(x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """Return whether an element is nonzero along dim (None: of all elements)."""
    return F.any(x, _all(dim, x), keepdim)


def all_(x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """Return whether all elements are nonzero along dim (None: of all elements)."""
    return F.all(x, _all(dim, x), keepdim)


_extreme("amax", any_)
_extreme("amin", all_)
enter("any.default any.dim any.dims", "true if an element along dim is not 0", any_)
enter("all.default all.dim all.dims", "true if no element along dim is 0", all_)


def _first(name: str) -> None:
    best, place = getattr(F, name), getattr(F, f"arg{name}")

    def along(x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        if x.dtype.is_bool:
            values, places = best(x.astype(dt.i32), dim, keepdim) if x.ndim else (x, builder.full((), 0, dt.i64))
            return values.astype(dt.bool_), places.astype(dt.i64)
        if not x.ndim:
            return x, builder.full((), 0, dt.i64)
        values, places = best(x, dim, keepdim)
        return values, places.astype(dt.i64)

    def position(x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if not x.ndim:
            return builder.full((), 0, dt.i64)
        flat = x.reshape((-1,)) if dim is None else x
        found = place(flat, 0 if dim is None else dim, keepdim and dim is not None).astype(dt.i64)
        return found.reshape((1,) * x.ndim) if dim is None and keepdim else found

    def whole(x: Value) -> Value:
        if x.dtype.is_bool:
            return whole(x.astype(dt.i32)).astype(dt.bool_)
        return best(x) if x.ndim else x

    enter(f"{name}.dim", f"({name}[dim](x), its first index)", along)
    enter(f"{name}.default", f"{name}[all](x); equal elements share the derivative", whole)
    enter(f"arg{name}.default", f"arg{name}[dim](x), the first of equal elements", position)


_first("max")
_first("min")


@aten("prod.default")
def prod_all(x: Value, dtype: DType | None = None) -> Value:
    """prod[all](x); for integers, in int64"""
    y = _whole(x, dtype)
    return (F.prod(y) if y.ndim else y).astype(y.dtype)


@aten("prod.dim_int")
def prod(x: Value, dim: int, keepdim: bool = False, dtype: DType | None = None) -> Value:
    """prod[dim](x); for integers, in int64"""
    y = _whole(x, dtype)
    return (F.prod(y, dim, keepdim) if y.ndim else y).astype(y.dtype)


def _moments(name: str, formula: str) -> None:
    f = getattr(F, name)

    def run(x: Value, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> Any:
        return f(x, _all(dim, x), None, keepdim, correction=1 if correction is None else correction)

    enter(f"{name}.correction", formula, run)


_moments("var", "sum[dim]((x - mean(x))**2)/(count - correction)")
_moments("std", "sqrt(var(x)); the derivative at 0 is 0")
_moments("var_mean", "(var(x), mean(x))")
_moments("std_mean", "(sqrt(var(x)), mean(x))")


@aten("linalg_vector_norm.default")
def vector_norm(x: Value, ord: float = 2, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Value:
    """(sum[dim](|x|**ord))**(1/ord); the derivative at 0 is 0; for ord inf and -inf, max and min of |x|"""
    return F.norm(x.astype(dtype or x.dtype), float(ord), _all(dim, x), keepdim)


@aten("logsumexp.default")
def logsumexp(x: Value, dim: Dims, keepdim: bool = False) -> Value:
    """log(sum[dim](exp(x))), without overflow"""
    y = x if x.dtype.is_float else x.astype(DEFAULT)
    return F.logsumexp(y, tuple(_all(dim, y)), keepdim) if y.ndim else y


# -------------------------------------------------------------------------------------------------------- along rows


def _running(name: str, formula: str) -> None:
    f = getattr(F, name)

    def run(x: Value, dim: int, dtype: DType | None = None) -> Value:
        y = _whole(x, dtype)
        return f(y, dim).astype(y.dtype) if y.ndim else y

    enter(f"{name}.default", formula, run)


_running("cumsum", "cumulative sum along dim; for integers, in int64")
_running("cumprod", "cumulative product along dim; for integers, in int64")


def _running_extreme(name: str) -> None:
    f = getattr(F, name)

    def run(x: Value, dim: int) -> tuple[Value, Value]:
        if not x.ndim:
            return x, builder.full((), 0, dt.i64)
        values, places = f(x, dim)
        return values, places.astype(dt.i64)

    enter(f"{name}.default", f"(cumulative {name[3:]} along dim, its last index)", run)


_running_extreme("cummax")
_running_extreme("cummin")


@aten("logcumsumexp.default")
def logcumsumexp(x: Value, dim: int) -> Value:
    """log of the cumulative sum of exp(x) along dim, without overflow"""
    return F.logcumsumexp(x, dim).astype(x.dtype) if x.ndim else x


@aten("median.dim")
def median(x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """(the lower median along dim, its index); NaN if an element is NaN"""
    values, places = F.median(x, dim, keepdim)
    return values, places.astype(dt.i64)


@aten("median.default")
def median_all(x: Value) -> Value:
    """the lower median of all elements"""
    return F.median(x)


@aten("kthvalue.default")
def kthvalue(x: Value, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """(the k-th smallest element along dim, its index)"""
    if not x.ndim:
        return x, builder.full((), 0, dt.i64)
    values, places = sort(x, dim)
    found = (select(v, dim, k - 1) for v in (values, places))
    first, second = ((unsqueeze(v, dim % x.ndim) if keepdim else v) for v in found)
    return first, second


@aten("sort.default")
def sort(x: Value, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:
    """(sorted elements along dim, their indices); an element's rank is the number of elements before it"""
    numbers = x.astype(dt.i32) if x.dtype.is_bool else x
    values, places = F.sort(numbers, dim, descending)
    return values.astype(x.dtype), places.astype(dt.i64)


@aten("sort.stable")
def sort_stable(x: Value, stable: bool | None = None, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:
    """sort.default, preserving the order of equal elements"""
    return sort(x, dim, descending)


@aten("topk.default")
def topk(x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Value, Value]:
    """(the k largest or smallest elements along dim, their indices); the first of equal elements"""
    values, places = F.topk(x, k, dim, largest)
    return values, places.astype(dt.i64)


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
