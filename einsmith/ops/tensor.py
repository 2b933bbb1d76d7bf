"""Change shapes of tensors and reduce them, under torch's names and argument orders."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from math import ceil, isfinite
from math import prod as product
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import promote
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.base.symbolic import count_steps
from einsmith.ir.nodes import Axis, Compute, Piece, Read, Template, cast
from einsmith.ir.rebuild import types_of
from einsmith.ops.common import dimension, dimensions, merge, tensor, without
from einsmith.ops.operator import operator
from einsmith.tracing import builder
from einsmith.tracing.builder import Value
from einsmith.tracing.torch_types import check_device

Dim = int | Sequence[int] | None

# ------------------------------------------------------------------------------------------------------------- shapes


@operator(aten="view.default reshape.default view_copy.default", converts=False)
def reshape(input: Any, shape: int | Sequence[int]) -> Value:
    """Give the elements, in row-major order, another shape; one extent may be -1."""
    return tensor(input, "reshape", "input").reshape((shape,) if isinstance(shape, int) else tuple(shape))


@operator("Flatten", defaults={"start_dim": 1})
def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Value:
    """Join dimensions start_dim to end_dim into one."""
    x = tensor(input, "flatten", "input")
    if x.ndim == 0:
        return x.reshape((1,))
    first, last = dimension(start_dim, x.ndim, "flatten"), dimension(end_dim, x.ndim, "flatten")
    if first > last:
        raise ShapeError(f"flatten: start_dim={start_dim} comes after end_dim={end_dim}")
    if first == last:
        return x
    return x.reshape((*x.shape[:first], product(x.shape[first : last + 1]), *x.shape[last + 1 :]))


@operator(aten="permute.default", converts=False)
def permute(input: Any, dims: Sequence[int]) -> Value:
    """Permute the dimensions: dimension n of the result is dimension dims[n] of the input."""
    x = tensor(input, "permute", "input")
    order = [dimension(d, x.ndim, "permute") for d in dims]
    if sorted(order) != list(range(x.ndim)):
        raise ShapeError(f"permute: dims={tuple(dims)!r} does not name each of {x.ndim} dimensions once")
    return x.transpose(tuple(order))


@operator()
def transpose(input: Any, dim0: int, dim1: int) -> Value:
    """Exchange dimensions dim0 and dim1."""
    x = tensor(input, "transpose", "input")
    a, b = dimension(dim0, x.ndim, "transpose"), dimension(dim1, x.ndim, "transpose")
    order = list(range(x.ndim))
    order[a], order[b] = b, a
    return x.transpose(tuple(order))


@operator()
def squeeze(input: Any, dim: Dim = None) -> Value:
    """Remove the dimensions of extent 1 (only those in `dim`, if given)."""
    x = tensor(input, "squeeze", "input")
    drop = [d for d in dimensions(dim, x.ndim, "squeeze") if x.shape[d] == 1]
    return x.reshape(without(x.shape, drop)) if drop else x


@operator(aten="unsqueeze.default", converts=False)
def unsqueeze(input: Any, dim: int) -> Value:
    """Insert a dimension of extent 1 at place `dim`."""
    x = tensor(input, "unsqueeze", "input")
    d = dimension(dim, x.ndim + 1, "unsqueeze")
    return x.reshape((*x.shape[:d], 1, *x.shape[d:]))


def _join(name: str, values: Sequence[Value], dim: int, shape: tuple[int, ...], extents: Sequence[int]) -> Value:
    """Concatenate tensors along `dim` as pieces of one tensor; value n takes the next `extents[n]` positions."""
    dtype = values[0].dtype
    for v in values[1:]:
        dtype = promote(dtype, v.dtype)
    pieces, start, rank = [], 0, len(shape)
    for slot, (v, n) in enumerate(zip(values, extents, strict=True)):
        axes = [Axis(d) for d in range(rank) if v.ndim == rank or d != dim]
        offset = tuple(start if d == dim else 0 for d in range(rank))
        box = tuple(n if d == dim else e for d, e in enumerate(shape))
        pieces.append(Piece(offset, (1,) * rank, box, cast(Read(slot, tuple(axes), v.dtype), dtype)))
        start += n
    return Value(Compute(Template(shape, types_of(values), tuple(pieces)), tuple(v.tensor for v in values)))


def _several(name: str, tensors: Sequence[Any]) -> list[Value]:
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise ShapeError(f"{name}: needs a list or tuple of at least one tensor")
    return [tensor(t, name, f"tensors[{n}]") for n, t in enumerate(tensors)]


@operator()
def cat(tensors: Sequence[Any], dim: int = 0) -> Value:
    """Concatenate tensors along `dim`; their other extents agree."""
    values = _several("cat", tensors)
    d = dimension(dim, values[0].ndim, "cat")
    for n, v in enumerate(values):
        if v.ndim != values[0].ndim or without(v.shape, (d,)) != without(values[0].shape, (d,)):
            raise ShapeError(
                f"cat: tensors[{n}] has shape {v.shape}, which differs from {values[0].shape} in more than dim={dim}"
            )
    values = [v for v in values if v.shape[d]] or values[:1]
    extents = [v.shape[d] for v in values]
    return _join("cat", values, d, (*values[0].shape[:d], builtins.sum(extents), *values[0].shape[d + 1 :]), extents)


@operator()
def stack(tensors: Sequence[Any], dim: int = 0) -> Value:
    """Stack tensors of one shape along a new dimension at place `dim`."""
    values = _several("stack", tensors)
    for n, v in enumerate(values):
        if v.shape != values[0].shape:
            raise ShapeError(f"stack: tensors[{n}] has shape {v.shape}, but tensors[0] has {values[0].shape}")
    d = dimension(dim, values[0].ndim + 1, "stack")
    shape = values[0].shape
    return _join("stack", values, d, (*shape[:d], len(values), *shape[d:]), [1] * len(values))


@operator()
def arange(start: float, end: float | None = None, step: float = 1, *, dtype: Any = None, device: Any = None) -> Value:
    """Return start, start + step, ... below `end`; from 0 if only one number is given. int64, or float32 for floats.

    `device` may name the CPU, where all tensors are.
    """
    check_device("arange", device)
    if end is None:
        start, end = 0, start
    floats = any(isinstance(v, float) for v in (start, end, step))
    if step == 0 or floats and not isfinite(start + end + step):
        raise ArgumentError(f"arange: start={start!r}, end={end!r} and step={step!r} must be finite, step not 0")
    kind = dt.dtype_of(dtype) if dtype is not None else dt.f32 if floats else dt.i64
    count = builtins.max(0, ceil((end - start) / step)) if floats else count_steps(start, end, step)  # type: ignore[arg-type]
    wide = dt.f64 if floats else dt.i64
    return builder.compute((count,), lambda i: builder.cast(builder.cast(i, wide) * step + start, kind))


@operator()
def one_hot(input: Any, num_classes: int) -> Value:
    """Return 1 at each class of an integer tensor [...] and 0 elsewhere: [..., num_classes], int64.

    Classes outside [0, num_classes) give rows of zeros.
    """
    x = tensor(input, "one_hot", "input", kind="int")
    if num_classes < 1:
        raise ShapeError("one_hot: num_classes must be a positive int, as shapes cannot depend on values")
    return builder.compute(
        (*x.shape, num_classes),
        lambda *i: builder.cast(builder.where(x[i[:-1]] == i[-1], 1, 0), dt.i64),
    )


# --------------------------------------------------------------------------------------------------------- reductions


_EXTREMES, _PLACES = ("max", "min", "amax", "amin"), ("argmax", "argmin")


def _reduce(name: str, combiner: Callable[..., Any], x: Value, dim: Dim, keepdim: bool) -> Value:
    """Reduce x over `dim` with `combiner`."""
    dims = dimensions(dim, x.ndim, name)
    if not dims:
        return builder.full((), 0, dt.i32) if name in _PLACES else x
    if name in (*_EXTREMES, *_PLACES, "mean") and any(x.shape[d] == 0 for d in dims):
        raise ShapeError(f"{name}: 'input' {x.shape} has no elements along dim={dim!r}")
    over = builder.axes(*(x.shape[d] for d in dims))
    numbers = x.astype(dt.i32) if x.dtype.is_bool and name in (*_EXTREMES, *_PLACES) else x
    y = builder.compute(without(x.shape, dims), lambda *i: combiner(numbers[merge(x.ndim, dims, over, i)], over=over))
    y = y if numbers is x or name in _PLACES else y.astype(x.dtype)
    return _keep(y, x, dims) if keepdim else y


def _convert(x: Value, dtype: Any) -> Value:
    return x if dtype is None else x.astype(dt.dtype_of(dtype))


def _keep(y: Value, x: Value, dims: Sequence[int]) -> Value:
    return y.reshape(tuple(1 if d in dims else n for d, n in enumerate(x.shape)))


@operator()
def sum(input: Any, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """Return the sum over `dim` (all dimensions where not given). Of integers and bools: int64; `dtype`: converted
    first."""
    x = _convert(tensor(input, "sum", "input"), dtype)
    if x.dtype.is_bool:
        x = x.astype(dt.i64)
    return _reduce("sum", builder.sum, x, dim, keepdim)


@operator()
def prod(input: Any, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """Return the product over `dim` (all dimensions where not given). `dtype`: converted first."""
    return _reduce("prod", builder.prod, _convert(tensor(input, "prod", "input"), dtype), dim, keepdim)


@operator()
def mean(input: Any, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """Return the mean over `dim` (all dimensions where not given). `dtype`: converted first."""
    x = tensor(input, "mean", "input", kind="float" if dtype is None else None)
    return _reduce("mean", builder.mean, _convert(x, dtype), dim, keepdim)


@operator()
def argmax(input: Any, dim: int | None = None, keepdim: bool = False) -> Value:
    """Return position of the first largest element along `dim`; without `dim`, in row-major order of all. int32."""
    return _reduce("argmax", builder.argmax, tensor(input, "argmax", "input"), dim, keepdim)


@operator()
def argmin(input: Any, dim: int | None = None, keepdim: bool = False) -> Value:
    """Return position of the first smallest element along `dim`; without `dim`, in row-major order of all. int32."""
    return _reduce("argmin", builder.argmin, tensor(input, "argmin", "input"), dim, keepdim)


def _extreme(name: str, x: Value, dim: Any, keepdim: bool) -> Any:
    best, where_ = (builder.max, builder.argmax) if name == "max" else (builder.min, builder.argmin)
    if dim is None:
        return _even(name, best, x, None, keepdim)
    if not isinstance(dim, int):
        return (builder.maximum if name == "max" else builder.minimum)(x, builder.as_value(dim))
    return _reduce(name, best, x, dim, keepdim), _reduce(f"arg{name}", where_, x, dim, keepdim)


@operator(aten="max.default max.dim", family="statistics")
def max(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the largest element; with an int `dim`, (values, int32 positions) along it; with a tensor there,
    `maximum`.

    Equal elements share the gradient evenly; with `dim`, it goes to the first of them.
    """
    return _extreme("max", tensor(input, "max", "input"), dim, keepdim)


@operator(aten="min.default min.dim", family="statistics")
def min(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the smallest element; with an int `dim`, (values, int32 positions) along it; with a tensor there,
    `minimum`.

    Equal elements share the gradient evenly; with `dim`, it goes to the first of them.
    """
    return _extreme("min", tensor(input, "min", "input"), dim, keepdim)


def _even(name: str, best: Callable[..., Any], x: Value, dim: Dim, keepdim: bool) -> Value:
    """Return an extreme value, with the derivative of the mean of the elements that attain it.

    These are the elements equal to it or, if it is NaN, the NaN elements.
    """
    dims = dimensions(dim, x.ndim, name)
    top = _reduce(name, best, x, dim, False)
    if not dims or not x.dtype.is_float:
        return _keep(top, x, dims) if keepdim and dims else top
    over = builder.axes(*(x.shape[d] for d in dims))

    def attaining(i: tuple, value: Callable[[Any], Any]) -> Any:
        v = x[merge(x.ndim, dims, over, i)]
        return builder.sum(builder.where((v == top[i]) | (v != v), value(v), 0.0), over=over)

    count = builder.compute(top.shape, lambda *i: attaining(i, lambda v: 1.0))
    total = builder.compute(top.shape, lambda *i: attaining(i, lambda v: v))
    y = builder.differentiate_as(top, total / count)
    return _keep(y, x, dims) if keepdim else y


@operator(aten="amax.default", family="statistics")
def amax(input: Any, dim: Dim = (), keepdim: bool = False) -> Value:
    """Return the largest element over `dim` (default: all dimensions); equal elements share the gradient evenly."""
    return _even("amax", builder.max, tensor(input, "amax", "input"), dim, keepdim)


@operator(aten="amin.default", family="statistics")
def amin(input: Any, dim: Dim = (), keepdim: bool = False) -> Value:
    """Return the smallest element over `dim` (default: all dimensions); equal elements share the gradient evenly."""
    return _even("amin", builder.min, tensor(input, "amin", "input"), dim, keepdim)
