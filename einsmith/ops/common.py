"""Share argument checks and index helpers between the functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.arguments import show
from einsmith.base.dtypes import DType
from einsmith.base.errors import ArgumentError, DtypeError, ShapeError, TraceError
from einsmith.base.symbolic import index
from einsmith.tracing import builder, views
from einsmith.tracing.builder import Value


def tensor(
    x: Any, function: str, name: str, *, rank: int | Sequence[int] | None = None, kind: str | None = None
) -> Value:
    """Return `x` as a Value, checked. rank: the allowed numbers of dimensions; kind: 'float' or 'int'.

    Raises ShapeError and DtypeError that name the function and the argument.
    """
    called = f"{function}: {name!r}"
    try:
        value = builder.as_value(x, called)
    except (TraceError, DtypeError) as e:
        raise type(e)(str(e) if str(e).startswith(called) else f"{called}: {e}") from None
    if isinstance(value.literal, int) and value.literal.bit_length() > 63:
        raise DtypeError(f"{function}: {name!r} is an integer of more than 64 bits; write a float, as in 1e20")
    ranks = () if rank is None else (rank,) if isinstance(rank, int) else tuple(rank)
    if ranks and value.ndim not in ranks:
        wanted = " or ".join(map(str, ranks))
        raise ShapeError(f"{function}: {name!r} needs {wanted} dimensions, got shape {value.shape}")
    if kind == "float" and not value.dtype.is_float:
        raise DtypeError(f"{function}: {name!r} needs floats, got {value.dtype.name}")
    if kind == "int" and not value.dtype.is_int:
        raise DtypeError(f"{function}: {name!r} needs integers, got {value.dtype.name}")
    return value


def dimension(dim: int, rank: int, function: str) -> int:
    """Return `dim` counted from the front. Raises ShapeError if a tensor of `rank` dimensions does not have it."""
    if not isinstance(dim, int) or not -rank <= dim < rank:
        raise ShapeError(f"{function}: dim={dim!r} is no dimension of a tensor that has {rank}")
    return dim % rank


def dimensions(dim: int | Sequence[int] | None, rank: int, function: str) -> tuple[int, ...]:
    """Return distinct dimensions in increasing order; None and () mean all, as do 0 and -1 of a 0-d tensor."""
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return tuple(range(rank))
    if rank == 0 and all(d in (0, -1) for d in ((dim,) if isinstance(dim, int) else dim)):
        return ()
    dims = [dimension(d, rank, function) for d in ((dim,) if isinstance(dim, int) else dim)]
    if len(set(dims)) != len(dims):
        raise ShapeError(f"{function}: dim={dim!r} names a dimension twice")
    return tuple(sorted(dims))


def merge(rank: int, dims: Sequence[int], inner: Sequence[Any], outer: Sequence[Any]) -> tuple[Any, ...]:
    """Return an index of `rank` places: `inner` at `dims`, `outer` at the others, each in order."""
    inside, outside = iter(inner), iter(outer)
    return tuple(next(inside) if d in dims else next(outside) for d in range(rank))


def without(shape: Sequence[Any], dims: Sequence[int]) -> tuple[Any, ...]:
    """Return `shape` (or an index) without its places `dims`."""
    return tuple(n for d, n in enumerate(shape) if d not in dims)


def read(x: Value, i: Sequence[Any]) -> Any:
    """Return element i of a tensor as an element of a formula; every index may be a number, or the tensor 0-d."""
    return (
        x[tuple(i)]
        if any(isinstance(k, builder.Ex) for k in i)
        else builder.Ex(builder.element(x[tuple(i)] if i else x, ()))
    )


def pointwise(x: Value, fn: Callable[[Any], Any]) -> Value:
    """Apply `fn` to each element, as one formula."""
    return builder.compute(x.shape, lambda *i: fn(read(x, i)))


def in_double(fn: Callable[..., Any], dtype: DType) -> Callable[..., Any]:
    """Return the function of elements that computes `fn` in float64 and converts its result to `dtype`."""
    return lambda *elements: builder.cast(fn(*(builder.cast(e, dt.f64) for e in elements)), dtype)


def each(values: Sequence[Value], formula: Callable[..., Any]) -> Value:
    """Apply `formula` to the elements of tensors that broadcast against each other."""
    shape = views.broadcast([v.shape for v in values])

    def at(v: Value, i: tuple) -> Any:
        index = tuple(0 if n == 1 else k for n, k in zip(v.shape, i[len(i) - v.ndim :], strict=True))
        return read(v, index)

    return builder.compute(shape, lambda *i: formula(*(at(v, i) for v in values)))


def root(x: Value) -> Value:
    """Return the square root of each element, with the derivative 0 at 0."""
    return pointwise(x, lambda e: builder.where(e == 0, 0.0, builder.sqrt(e)))


def all_of(conditions: Sequence[Any]) -> Any:
    """Return the conjunction of one condition or more."""
    out = conditions[0]
    for c in conditions[1:]:
        out = out & c
    return out


def ints(x: int | Sequence[int], n: int, function: str, name: str, least: int = 1) -> tuple[int, ...]:
    """Return an int for all `n` places, or `n` ints, each at least `least`. Raises ShapeError."""
    many = (x,) * n if isinstance(x, int) else tuple(x)
    if len(many) == 1:
        many = many * n
    if len(many) != n or any(not isinstance(v, int) or v < least for v in many):
        raise ShapeError(f"{function}: {name}={x!r} must be an int or {n} ints of at least {least}")
    return many


def extents(name: str, size: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the extents that a function was given one by one or as one sequence. Raises ArgumentError."""
    listed = size[0] if len(size) == 1 and isinstance(size[0], (list, tuple)) else size
    try:
        shape = tuple(index(n) for n in listed)
    except TypeError:
        shape = (-1,)
    if any(not 0 <= n < 2**63 for n in shape):
        raise ArgumentError(f"{name}: size={show(tuple(listed))} must be integers of at least 0")
    return shape


def at(i: Sequence[Any], d: int, place: Any) -> tuple[Any, ...]:
    """Return the index i with `place` at dimension d."""
    return (*i[:d], place, *i[d + 1 :])
