"""Compute reductions beyond sums and extremes, under torch's names and argument orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.ops.common import dimensions, merge, root, tensor, without
from einsmith.ops.operator import operator

Dim = int | Sequence[int] | bool | None


def _keep_dims(y: Value, x: Value, dims: tuple[int, ...], keepdim: bool) -> Value:
    return y.reshape(tuple(1 if d in dims else n for d, n in enumerate(x.shape))) if keepdim else y


def _moments(
    name: str, input: Any, dim: Dim, unbiased: bool | None, correction: float | None, keepdim: bool
) -> tuple[Value, Value]:
    """Return (variance, mean), by two passes over the elements, so that a large mean costs no digits."""
    x = tensor(input, name, "input", kind="float")
    if isinstance(dim, bool):  # torch's second form: var(x, unbiased)
        dim, unbiased = None, dim
    if unbiased is not None and correction is not None:
        raise ArgumentError(f"{name}: give correction or unbiased, not both")
    less = correction if correction is not None else 0 if unbiased is False else 1
    dims = dimensions(dim, x.ndim, name)
    over = builder.axes(*(x.shape[d] for d in dims))
    count = 1
    for d in dims:
        count *= x.shape[d]
    rest = without(x.shape, dims)

    def at(i: tuple) -> Any:
        return x[merge(x.ndim, dims, over, i)] if x.ndim else x

    def total(body: Any) -> Value:
        return builder.compute(rest, lambda *i: builder.sum(body(i), over=over) if over else body(i))

    mean = total(at) * (1 / count if count else float("nan"))

    def squared(i: tuple) -> Any:
        e = at(i) - (mean[i] if i else mean)
        return e * e

    scale = 1 / (count - less) if count > less else None
    s = total(squared)
    variance = s * scale if scale is not None else s / builder.full(rest, 0.0, x.dtype)
    return _keep_dims(variance, x, dims, keepdim), _keep_dims(mean, x, dims, keepdim)


@operator()
def var(
    input: Any,
    dim: Dim = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Value:
    """Return the mean squared difference from the mean over `dim`, dividing by the count less `correction`, 1 if not
    given.

    unbiased=False means correction=0.
    """
    return _moments("var", input, dim, unbiased, correction, keepdim)[0]


@operator()
def std(
    input: Any,
    dim: Dim = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Value:
    """Return the square root of `var`; its derivative is taken to be 0 where it is 0."""
    return root(_moments("std", input, dim, unbiased, correction, keepdim)[0])


@operator()
def var_mean(
    input: Any,
    dim: Dim = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Value, Value]:
    """Return (`var`, the mean)."""
    return _moments("var_mean", input, dim, unbiased, correction, keepdim)


@operator()
def std_mean(
    input: Any,
    dim: Dim = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Value, Value]:
    """Return (`std`, the mean)."""
    variance, mean = _moments("std_mean", input, dim, unbiased, correction, keepdim)
    return root(variance), mean


def _count(name: str, input: Any, dim: Dim, keepdim: bool, wanted: bool) -> Value:
    """Count the elements over `dim` that are true, or false if `wanted` is False, as int64."""
    x = tensor(input, name, "input")
    dims = dimensions(dim, x.ndim, name)
    over = builder.axes(*(x.shape[d] for d in dims))

    def holds(i: tuple) -> Any:
        e = x[merge(x.ndim, dims, over, i)] if x.ndim else x
        truth = e if x.dtype.is_bool else e != 0
        one = builder.where(truth, 1, 0) if wanted else builder.where(truth, 0, 1)
        return builder.sum(one, over=over) if over else one

    y = builder.compute(without(x.shape, dims), lambda *i: holds(i)).astype(dt.i64)
    return _keep_dims(y, x, dims, keepdim)


@operator()
def all(input: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Value:
    """Return whether all elements over `dim` are true, or not 0."""
    return _count("all", input, dim, keepdim, False) == 0


@operator()
def any(input: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Value:
    """Return whether some element over `dim` is true, or not 0."""
    return _count("any", input, dim, keepdim, True) != 0


@operator()
def count_nonzero(input: Any, dim: int | Sequence[int] | None = None) -> Value:
    """Count the elements over `dim` that are not 0, as int64."""
    return _count("count_nonzero", input, dim, False, True)
