"""Compute reductions beyond sums and extremes, under torch's names and argument orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import ArgumentError
from einsmith.ops.common import dimensions, merge, root, tensor, without
from einsmith.ops.operator import Floats, operator
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

Dim = int | Sequence[int] | bool | None


def _keep_dims(y: Value, x: Value, dims: tuple[int, ...], keepdim: bool) -> Value:
    return y.reshape(tuple(1 if d in dims else n for d, n in enumerate(x.shape))) if keepdim else y


def _moments(
    name: str, x: Value, dim: Dim, unbiased: bool | None, correction: float | None, keepdim: bool
) -> tuple[Value, Value]:
    """Return (variance, mean) in float64, in one sweep over the differences from the first element.

    The variance is at least the square of that element's distance from the mean over the count, so that few digits
    cancel. In float32 the mean would be off by a part of the deviation where it is 1e6 times as large, and squares of
    1e20 would overflow; the derivatives are computed in the operand's type. Source: Chan, Golub and LeVeque 1983,
    section 3.
    """
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

    if not count:
        empty = _keep_dims(builder.full(rest, float("nan"), dt.f64), x, dims, keepdim)
        return empty, empty

    def at(i: tuple, place: Sequence[Any]) -> Any:
        return x[merge(x.ndim, dims, place, i)] if x.ndim else x

    def first(i: tuple) -> Any:
        return builder.stop_gradient(at(i, (0,) * len(dims)))

    def total(kind: DType, power: int) -> Value:
        def body(*i: Any) -> Any:
            e = (builder.cast(at(i, over), kind) - builder.cast(first(i), kind)) ** power
            return builder.sum(e, over=over) if over else e

        return builder.compute(rest, body)

    single = x.dtype.arithmetic
    s = builder.differentiate_as(total(dt.f64, 1), total(single, 1).astype(dt.f64))
    squares = builder.differentiate_as(total(dt.f64, 2), total(single, 2).astype(dt.f64)) - s * s * (1 / count)
    divisor = builder.full(rest, max(count - less, 0), dt.f64)
    mean = builder.compute(rest, lambda *i: builder.cast(first(i), dt.f64)) + s * (1 / count)
    variance = builder.where(squares < 0, 0.0, squares) / divisor
    return _keep_dims(variance, x, dims, keepdim), _keep_dims(mean, x, dims, keepdim)


def _of_moments(name: str, meaning: str, result: Callable[[Value, Value], tuple[Value, ...]]) -> Callable[..., Any]:
    """Add an operator of a variance and a mean in float64 to the table, and return it.

    Args:
        name: the operator's name
        meaning: its docstring without "Return"
        result: what it returns for (variance, mean), to be converted to the input's type; alone where it is one tensor
    """

    def call(
        input: Floats,
        dim: Dim = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: float | None = None,
    ) -> Any:
        values = result(*_moments(name, input, dim, unbiased, correction, keepdim))
        converted = tuple(x.astype(input.dtype) for x in values)
        return converted if len(converted) > 1 else converted[0]

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Return {meaning}"
    return operator(aten=f"{name}.correction", converts=False)(call)


var = _of_moments(
    "var",
    "the mean squared difference from the mean over `dim`, dividing by the count less `correction`, 1 if not given.\n\n"
    "unbiased=False means correction=0.",
    lambda variance, mean: (variance,),
)
std = _of_moments(
    "std",
    "the square root of `var`; its derivative is taken to be 0 where it is 0.",
    lambda variance, mean: (root(variance),),
)
var_mean = _of_moments("var_mean", "(`var`, the mean).", lambda variance, mean: (variance, mean))
std_mean = _of_moments("std_mean", "(`std`, the mean).", lambda variance, mean: (root(variance), mean))


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


@operator(aten="all.default all.dim all.dims", converts=False)
def all(input: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Value:
    """Return whether all elements over `dim` are true, or not 0."""
    return _count("all", input, dim, keepdim, False) == 0


@operator(aten="any.default any.dim any.dims", converts=False)
def any(input: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Value:
    """Return whether some element over `dim` is true, or not 0."""
    return _count("any", input, dim, keepdim, True) != 0


@operator()
def count_nonzero(input: Any, dim: int | Sequence[int] | None = None) -> Value:
    """Count the elements over `dim` that are not 0, as int64."""
    return _count("count_nonzero", input, dim, False, True)
