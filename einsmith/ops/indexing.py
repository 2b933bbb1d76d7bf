"""Gather and scatter elements by tensors of integers, under torch's names and argument orders.

An integer out of range is an IndexError at the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError, ShapeError, TraceError
from einsmith.lang.op import Operator, op
from einsmith.ops.common import all_of, at, dimension, tensor
from einsmith.ops.operator import operator
from einsmith.ops.selection import select_positions, take_positions
from einsmith.tracing import builder, views
from einsmith.tracing.builder import Value


def _fits(name: str, x: Value, index: Value, d: int) -> None:
    if x.ndim != index.ndim or any(n > e for k, (n, e) in enumerate(zip(index.shape, x.shape, strict=True)) if k != d):
        raise ShapeError(
            f"{name}: 'index' {index.shape} must have the rank of 'input' {x.shape} and no larger extents except along "
            f"dim={d}"
        )


def _sources(name: str, x: Value, index: Value, src: Value, d: int) -> Value:
    """Return the part of `src` that belongs to an index, cut to its shape. Raises ShapeError."""
    _fits(name, x, index, d)
    if src.ndim != index.ndim or any(n > e for n, e in zip(index.shape, src.shape, strict=True)):
        raise ShapeError(f"{name}: 'index' {index.shape} has larger extents than 'src' {src.shape}")
    return src[tuple(slice(0, n) for n in index.shape)]


def wrap(index: Value, n: int) -> Value:
    """Return indices of a dimension of extent n with negative ones counted from its end."""
    return builder.where(index < 0, index + n, index)


def select_by_tensors(x: Value, indices: Sequence[tuple[int, Value]]) -> Value:
    """Return the elements of x at tensors of integers, given as (dimension, integers); the others are read whole.

    The tensors broadcast, and their dimensions come first unless the indexed dimensions are adjacent, as in NumPy.
    """
    if not indices:
        return x
    shape = views.broadcast([i.shape for _, i in indices])
    dims = [d for d, _ in indices]
    others = [d for d in range(x.ndim) if d not in dims]
    neighbours = dims == list(range(dims[0], dims[0] + len(dims)))
    front = sum(d < dims[0] for d in others) if neighbours else 0
    whole = [builder.broadcast_to(wrap(i, x.shape[d]), shape) for d, i in indices]
    rest = [x.shape[d] for d in others]

    def body(*i: Any) -> Any:
        place = i[front : front + len(shape)]
        own = dict(zip(others, (*i[:front], *i[front + len(shape) :]), strict=True))
        own |= {d: (w[place] if shape else w) for d, w in zip(dims, whole, strict=True)}
        return x[tuple(own[d] for d in range(x.ndim))]

    out = (*rest[:front], *shape, *rest[front:])
    if not out:
        return builder.compute((1,), lambda n: body()).reshape(())
    return builder.compute(out, body)


def select_by_keys(x: Value, keys: Sequence[Any]) -> Value:
    """Return `x[keys]`, where tensors of integers are among the keys.

    Raises TraceError for masks, whose number of elements is not known, and where NumPy and PyTorch would order the
    dimensions of the result differently.
    """
    tensors = [k for k in keys if isinstance(k, Value) and (k.ndim or not k.dtype.is_int)]
    for k in tensors:
        if not k.dtype.is_int:
            what = "a mask" if k.dtype.is_bool else f"a tensor of {k.dtype.name}"
            remedy = "choose with es.functional.where(mask, a, b)" if k.dtype.is_bool else "convert it, as with .long()"
            reason = "the shape of the result would depend on values" if k.dtype.is_bool else "indices are integers"
            raise TraceError(f"a tensor is indexed with {what}: {reason}; {remedy}")
    chosen = [n for n, k in enumerate(keys) if any(k is t for t in tensors)]
    numbers = [n for n, k in enumerate(keys) if not isinstance(k, slice) and k is not None and k is not Ellipsis]
    if numbers[0] not in chosen and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise TraceError(
            "an integer and tensors index dimensions that are not adjacent, where NumPy and PyTorch order the result "
            "differently; select by the integer first, as in x[0][:, index]"
        )
    cut = x[tuple(slice(None) if n in chosen else k for n, k in enumerate(keys))]
    indices, d = [], 0
    full = len(keys) - sum(k is None or k is Ellipsis for k in keys)
    for n, k in enumerate(keys):
        if n in chosen:
            indices.append((d, k))
        if k is Ellipsis:
            d += x.ndim - full
        elif n in chosen or k is None or isinstance(k, slice):
            d += 1
    return select_by_tensors(cut, indices)


@operator()
def gather(input: Any, dim: int, index: Any) -> Value:
    """Return input[.., index[i], ..] along `dim`, for each i of the index, whose rank is input's."""
    x, k = tensor(input, "gather", "input"), tensor(index, "gather", "index", kind="int")
    if not x.ndim:
        return gather(x.reshape((1,)), 0, k.reshape((-1,))).reshape(k.shape)
    d = dimension(dim, x.ndim, "gather")
    _fits("gather", x, k, d)
    return builder.compute(k.shape, lambda *i: x[at(i, d, k[i])])


@operator()
def take_along_dim(input: Any, indices: Any, dim: int | None = None) -> Value:
    """Gather elements like `gather`, but broadcast the other dimensions; without dim, of the flattened input.

    Negative integers count from the end.
    """
    x, k = tensor(input, "take_along_dim", "input"), tensor(indices, "take_along_dim", "indices", kind="int")
    if dim is None:
        x, k, dim = x.reshape((-1,)), k.reshape((-1,)), 0
    d = dimension(dim, x.ndim, "take_along_dim")
    if x.ndim != k.ndim:
        raise ShapeError(f"take_along_dim: 'input' {x.shape} and 'indices' {k.shape} differ in rank")
    k = builder.where(k < 0, k + x.shape[d], k)
    beside = views.broadcast([at(x.shape, d, 1), at(k.shape, d, 1)])
    return gather(
        builder.broadcast_to(x, at(beside, d, x.shape[d])), d, builder.broadcast_to(k, at(beside, d, k.shape[d]))
    )


@operator(aten="index_select.default", converts=False)
def index_select(input: Any, dim: int, index: Any) -> Value:
    """Return the slices along `dim` that a vector of integers names."""
    x, k = tensor(input, "index_select", "input"), tensor(index, "index_select", "index", rank=(0, 1), kind="int")
    d = dimension(dim, max(1, x.ndim), "index_select")
    k = k.reshape((-1,))
    if not x.ndim:
        return gather(x.reshape((1,)), 0, k).reshape(())
    return builder.compute(at(x.shape, d, k.shape[0]), lambda *i: x[at(i, d, k[i[d]])])


@lru_cache(maxsize=64)
def scattering(sign: str, rank: int, d: int, one: bool = False, most: int | None = None) -> Operator:
    """Return the operator that scatters `s` into `x` at the integers `k` along dimension d.

    sign: += adds, *= multiplies, max= and min= keep the larger or smaller one. one: `k` is a vector.
    most: the largest integer, if all are known to be of 0 .. most; they are not checked.
    """
    j = [f"j{n}" for n in range(rank)]
    axes, source = ",".join(f"i{n}" for n in range(rank)), ",".join(j)
    number = f"k[{j[d]}]" if one else f"k[{source}]"
    target = ",".join(at(j, d, number if most is None else f"min(max({number}, 0), {most})"))
    return op(f"z[{axes}] = x[{axes}]\nz[{target}] {sign} s[{source}]\nreturn z")


@lru_cache(maxsize=128)
def _products_of_runs(rank: int, d: int) -> Operator:
    """Return the operator of running products along dimension d, which begin anew where the key `q` changes."""
    i = [f"i{n}" for n in range(rank)]
    own, before = ",".join(i), ",".join(at(i, d, f"{i[d]}-1"))
    going_on = f"where({i[d]} > 0, where(q[{own}] == q[{before}], c[{before}], 1), 1)"
    return op(f"c[{own}] = {going_on} * s[{own}]", extents={i[d]: f"s.shape[{d}]"})


def multiply_at(shape: tuple[int, ...], d: int, k: Value, s: Value) -> Value:
    """Return, at each place of a tensor of this shape, the product of the s[i] whose index k[i] along dimension d it
    is; 1 where there is none.

    For derivatives the index is sorted, and running products of equal ones end with the whole product, which is exact
    at zeros.
    """
    n = k.shape[d]
    order = select_positions(k, d, 0, n, False)
    key, factor = (take_positions(x, d, order) for x in (k, s.astype(s.dtype.arithmetic)))
    products = _products_of_runs(k.ndim, d)(q=key, s=factor)

    def ends(*i: Any) -> Any:
        after = key[at(i, d, builder.minimum(i[d] + 1, n - 1))]
        return builder.where((i[d] == n - 1) | (after != key[i]), products[i], 0)

    nothing = builder.full(shape, 0, products.dtype)
    exact = scattering("+=", k.ndim, d, most=shape[d] - 1)(x=nothing, k=key, s=builder.compute(k.shape, ends))
    plain = builder.stop_gradient(s.astype(s.dtype.arithmetic))
    value = scattering("*=", k.ndim, d)(x=builder.full(shape, 1, products.dtype), k=k, s=plain)
    return builder.differentiate_as(value, exact) if products.dtype.is_float else value


@operator(aten="scatter_add.default", converts=False)
def scatter_add(input: Any, dim: int, index: Any, src: Any) -> Value:
    """Add src[i] to the input at [.., index[i], ..] along `dim`, for each i of the index; places may repeat."""
    x, k = tensor(input, "scatter_add", "input"), tensor(index, "scatter_add", "index", kind="int")
    s = tensor(src, "scatter_add", "src")
    if not x.ndim:
        return scatter_add(x.reshape((1,)), 0, k.reshape((-1,)), s.reshape((-1,))).reshape(())
    d = dimension(dim, x.ndim, "scatter_add")
    s = _sources("scatter_add", x, k, s, d)
    return scattering("+=", x.ndim, d)(x=x, k=k, s=s).astype(x.dtype) if k.size else x


def _put_one(x: Value, k: Value, s: Value, d: int) -> Value:
    """Return x with one element of each line along dimension d replaced by s: that at the position k of the line.

    It is an elementwise function, so that it fuses with kernels that compute x or read the result.
    """
    positions = builder.compute((x.shape[d],), lambda i: builder.cast(i, dt.i32))
    # Reading it at every index makes one out of range an error.
    place = builder.compute(k.shape, lambda *i: positions[k[i]])
    return builder.compute(x.shape, lambda *i: builder.where(place[at(i, d, 0)] == i[d], s[at(i, d, 0)], x[i]))


@operator()
def scatter(input: Any, dim: int, index: Any, src: Any, *, reduce: str | None = None) -> Value:
    """Return the input with src[i] in place of [.., index[i], ..] along `dim`, for each i of the index.

    Where places repeat, the last in order stays, and it alone has a gradient. src: a tensor, or one number for all.
    reduce: "add" adds to what is there, "multiply" multiplies it, places that repeat all counting.
    """
    name = "scatter"
    if reduce not in (None, "add", "multiply"):
        raise ArgumentError(f"{name}: reduce={reduce!r} must be None, 'add' or 'multiply'")
    x, k = tensor(input, name, "input"), tensor(index, name, "index", kind="int")
    s = tensor(src, name, "src")
    s = builder.broadcast_to(s, k.shape) if not s.ndim else s
    if not x.ndim:
        return scatter(x.reshape((1,)), 0, k.reshape((-1,)), s.reshape((-1,)), reduce=reduce).reshape(())
    if reduce == "add":
        return scatter_add(x, dim, k, s)
    d = dimension(dim, x.ndim, name)
    s = _sources(name, x, k, s, d)
    if not k.size:
        return x
    if reduce is None and k.shape[d] == 1 and k.size == x.size // x.shape[d]:
        return _put_one(x, k, s, d).astype(x.dtype)
    # This reads every index, so that one out of range is an error.
    own = builder.compute(k.shape, lambda *i: builder.cast(i[d], dt.i32))
    last = scattering("max=", x.ndim, d)(x=builder.full(x.shape, -1, dt.i32), k=k, s=own)

    def chosen(i: Sequence[Any], value: Callable[[], Any], other: Any) -> Any:
        """Return `value()` where i is inside the index, whose extents except along d may be smaller, else `other`."""
        inside = [i[n] < e for n, (e, whole) in enumerate(zip(k.shape, x.shape, strict=True)) if n != d and e < whole]
        return builder.where(all_of(inside), value(), other) if inside else value()

    if reduce == "multiply":
        return builder.where(last >= 0, x * multiply_at(x.shape, d, k, s), x).astype(x.dtype)
    put = builder.compute(
        x.shape,
        lambda *i: chosen(i, lambda: builder.where(last[i] >= 0, s[at(i, d, last[i])], x[i]), x[i]),
    )
    return put.astype(x.dtype)


@operator()
def index_add(input: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Value:
    """Return the input with slice n of alpha*source added to slice index[n] along `dim`."""
    x, s = tensor(input, "index_add", "input"), tensor(source, "index_add", "source")
    k = tensor(index, "index_add", "index", rank=(0, 1), kind="int").reshape((-1,))
    if not x.ndim:
        return index_add(x.reshape((1,)), dim, k, s.reshape((-1,)), alpha=alpha).reshape(())
    d = dimension(dim, x.ndim, "index_add")
    if s.shape != at(x.shape, d, k.shape[0]):
        raise ShapeError(f"index_add: 'source' has shape {s.shape}, needs {at(x.shape, d, k.shape[0])}")
    s = s if alpha == 1 else s * alpha
    return scattering("+=", x.ndim, d, True)(x=x, k=k, s=s).astype(x.dtype) if s.size else x
