"""Rearrange elements: repeating, reversing, cutting and cutting out, under torch's names and argument orders."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from einsmith.base.arguments import show
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.base.symbolic import index
from einsmith.ops.common import all_of, dimension, dimensions, merge, tensor, without
from einsmith.ops.operator import operator
from einsmith.ops.tensor import cat
from einsmith.tracing import builder, views
from einsmith.tracing.builder import Value


def _numbers(name: str, what: str, value: Any) -> tuple[int, ...]:
    """Return integers that are given as one, as several or as a sequence."""
    listed = value[0] if len(value) == 1 and isinstance(value[0], (list, tuple)) else value
    try:
        if any(isinstance(n, bool) for n in listed):
            raise TypeError
        integers = tuple(index(n) for n in listed)
        if any(abs(n) >= 2**63 for n in integers):
            raise TypeError
        return integers
    except TypeError:
        raise ArgumentError(f"{name}: {what}={show(tuple(listed))} must be integers") from None


def _integers(name: str, what: str, positional: tuple, keyword: dict[str, Any]) -> tuple[int, ...]:
    """Return integers that are given as one, several, a sequence, or by name."""
    if keyword and (positional or set(keyword) != {what}):
        raise ArgumentError(f"{name}: give {what} once, and nothing else; got {', '.join(keyword)}")
    return _numbers(name, what, (keyword[what],) if keyword else positional)


def _slice(x: Value, d: int, start: int, stop: int) -> Value:
    return x[(*[slice(None)] * d, slice(start, stop))]


@operator(aten="roll.default", converts=False)
def roll(input: Any, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Value:
    """Shift elements by `shifts` along `dims`; elements that leave enter at the other end.

    Without dims, shift all elements in row-major order.
    """
    x = tensor(input, "roll", "input")
    if dims is None or (not isinstance(dims, int) and not len(dims)):
        if len(by := _numbers("roll", "shifts", (shifts,))) != 1:
            raise ShapeError(f"roll: shifts={shifts!r} must be one number where dims is not given")
        (n,) = by
        return roll(x.reshape((-1,)), n, 0).reshape(x.shape) if x.size else x
    by, at = _numbers("roll", "shifts", (shifts,)), _numbers("roll", "dims", (dims,))
    if len(by) != len(at):
        raise ShapeError(f"roll: shifts={shifts!r} and dims={dims!r} differ in number")
    for n, dim in zip(by, at, strict=True):
        d = dimension(dim, x.ndim, "roll")
        n = n % x.shape[d] if x.shape[d] else 0
        if n:
            x = cat([_slice(x, d, x.shape[d] - n, x.shape[d]), _slice(x, d, 0, x.shape[d] - n)], d)
    return x


@operator()
def flip(input: Any, *dims: Any, **keyword: Any) -> Value:
    """Reverse the order of the elements along `dims`."""
    x = tensor(input, "flip", "input")
    listed = _integers("flip", "dims", dims, keyword)
    at = dimensions(listed, x.ndim, "flip") if listed else ()
    return x[tuple(slice(None, None, -1) if d in at else slice(None) for d in range(x.ndim))] if at else x


def _triangle(name: str, input: Any, diagonal: int, lower: bool) -> Value:
    x = tensor(input, name, "input")
    if x.ndim < 2:
        raise ShapeError(f"{name}: 'input' has shape {x.shape}; it needs two dimensions or more")
    k = index(diagonal)
    zero: Any = False if x.dtype.is_bool else 0

    def body(*i: Any) -> Any:
        kept = i[-1] <= i[-2] + k if lower else i[-2] + k <= i[-1]
        return builder.where(kept, x[i], zero)

    return builder.compute(x.shape, body)


@operator(aten="tril.default", converts=False)
def tril(input: Any, diagonal: int = 0) -> Value:
    """Keep the elements of the last two dimensions on and below the diagonal, 0 above; `diagonal` counts upward."""
    return _triangle("tril", input, diagonal, True)


@operator(aten="triu.default", converts=False)
def triu(input: Any, diagonal: int = 0) -> Value:
    """Keep the elements of the last two dimensions on and above the diagonal, 0 below; `diagonal` counts upward."""
    return _triangle("triu", input, diagonal, False)


@operator(aten="diagonal.default", converts=False)
def diagonal(input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """Return the elements whose index along dim2 is the index along dim1 plus offset, as a last dimension."""
    x = tensor(input, "diagonal", "input")
    a, b = dimension(dim1, x.ndim, "diagonal"), dimension(dim2, x.ndim, "diagonal")
    if a == b:
        raise ShapeError(f"diagonal: dim1={dim1} and dim2={dim2} must be different dimensions")
    count = max(0, min(x.shape[a] + min(offset, 0), x.shape[b] - max(offset, 0)))
    row, column = max(0, -offset), max(0, offset)
    inner = (lambda n: (n + row, n + column)) if a < b else (lambda n: (n + column, n + row))
    dims = (min(a, b), max(a, b))
    return builder.compute((*without(x.shape, dims), count), lambda *i: x[merge(x.ndim, dims, inner(i[-1]), i[:-1])])


@operator()
def diag_embed(input: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    """Make matrices with the last dimension on a diagonal, else 0: [..., N] -> [..., N+|offset|, N+|offset|].

    Their rows and columns are the dimensions dim1 and dim2 of the result.
    """
    x = tensor(input, "diag_embed", "input")
    if not x.ndim:
        raise ShapeError("diag_embed: 'input' needs a dimension")
    n = x.shape[-1]
    row, column = max(0, -offset), max(0, offset)
    zero: Any = False if x.dtype.is_bool else 0

    def body(*i: Any) -> Any:
        p, q = i[-2] - row, i[-1] - column
        return builder.where(all_of([0 <= p, p < n, p == q]), x[(*i[:-2], p)], zero)

    size = n + abs(offset)
    y = builder.compute((*x.shape[:-1], size, size), body)
    a, b = dimension(dim1, y.ndim, "diag_embed"), dimension(dim2, y.ndim, "diag_embed")
    if a == b:
        raise ShapeError(f"diag_embed: dim1={dim1} and dim2={dim2} must be different dimensions")
    return movedim(y, (-2, -1), (a, b))


@operator()
def diag(input: Any, diagonal: int = 0) -> Value:
    """Return the matrix with a vector on its diagonal, or the diagonal of a matrix.

    diagonal: offset from the main diagonal, upward.
    """
    x = tensor(input, "diag", "input", rank=(1, 2))
    return diag_embed(x, diagonal) if x.ndim == 1 else _diagonal(x, diagonal)


_diagonal = diagonal


@operator()
def trace(input: Any) -> Value:
    """Return the sum of a matrix's diagonal."""
    return _diagonal(tensor(input, "trace", "input", rank=2)).sum()


@operator()
def repeat(input: Any, *sizes: Any) -> Value:
    """Repeat the input `sizes[n]` times along dimension n; surplus sizes add dimensions in front."""
    x, counts = tensor(input, "repeat", "input"), _numbers("repeat", "sizes", sizes)
    if len(counts) < x.ndim or any(n < 0 for n in counts):
        raise ShapeError(f"repeat: sizes={counts!r} must be a non-negative number for each of {x.ndim} dimensions")
    return _tile(x, counts)


@operator()
def tile(input: Any, *dims: Any, **keyword: Any) -> Value:
    """Repeat the input like `repeat`, with 1 for leading dimensions that `dims` leaves out."""
    x, counts = tensor(input, "tile", "input"), _integers("tile", "dims", dims, keyword)
    if any(n < 0 for n in counts):
        raise ShapeError(f"tile: dims={counts!r} must not be negative")
    return _tile(x, (1,) * (x.ndim - len(counts)) + counts)


def _tile(x: Value, counts: tuple[int, ...]) -> Value:
    extents = (1,) * (len(counts) - x.ndim) + x.shape
    x = x.reshape(extents)
    shape = tuple(e * n for e, n in zip(extents, counts, strict=True))
    if 0 in shape:
        return builder.full(shape, 0, x.dtype)

    def body(*i: Any) -> Any:
        return x[tuple(0 if e == 1 else k if n == 1 else k % e for k, e, n in zip(i, extents, counts, strict=True))]

    return builder.compute(shape, body) if shape else x


@operator()
def repeat_interleave(input: Any, repeats: int | Sequence[int], dim: int | None = None) -> Value:
    """Repeat each element along `dim` `repeats` times: one number, or one for each element.

    Without dim, the input is flattened in row-major order. Raises ArgumentError for tensors: extents are static.
    """
    x = tensor(input, "repeat_interleave", "input")
    if dim is None:
        x, dim = x.reshape((-1,)), 0
    d = dimension(dim, x.ndim, "repeat_interleave")
    if not isinstance(repeats, (int, list, tuple)):
        raise ArgumentError("repeat_interleave: repeats must be ints, not a tensor: the result's extent is static")
    counts = _numbers("repeat_interleave", "repeats", (repeats,))
    if any(n < 0 for n in counts) or len(counts) not in (1, x.shape[d]):
        raise ShapeError(f"repeat_interleave: repeats={repeats!r} does not fit the extent {x.shape[d]}")
    if len(counts) == 1:
        shape = (*x.shape[:d], x.shape[d] * counts[0], *x.shape[d + 1 :])
        return builder.compute(shape, lambda *i: x[(*i[:d], i[d] // counts[0], *i[d + 1 :])])
    parts = [repeat_interleave(_slice(x, d, k, k + 1), n, d) for k, n in enumerate(counts) if n]
    return cat(parts, d) if parts else _slice(x, d, 0, 0)


@operator()
def expand(input: Any, *sizes: Any) -> Value:
    """Repeat dimensions of extent 1 to `sizes`, in which -1 keeps an extent; surplus sizes add dimensions in front."""
    x, wanted = tensor(input, "expand", "input"), _numbers("expand", "sizes", sizes)
    lead = len(wanted) - x.ndim
    if lead < 0 or any(n == -1 for n in wanted[:lead]):
        raise ShapeError(f"expand: sizes={wanted!r} does not fit shape {x.shape}")
    shape = tuple(x.shape[d - lead] if n == -1 else n for d, n in enumerate(wanted))
    return builder.broadcast_to(x, shape)


@operator()
def broadcast_to(input: Any, shape: Sequence[int]) -> Value:
    """Broadcast the input to `shape`."""
    return expand(input, tuple(shape))


@operator()
def narrow(input: Any, dim: int, start: int, length: int) -> Value:
    """Return elements start to start + length - 1 along `dim`."""
    x = tensor(input, "narrow", "input")
    d = dimension(dim, x.ndim, "narrow")
    begin = start + x.shape[d] if start < 0 else start
    if not 0 <= begin <= begin + length <= x.shape[d]:
        raise ShapeError(f"narrow: start={start}, length={length} is not within the extent {x.shape[d]}")
    return _slice(x, d, begin, begin + length)


@operator()
def select(input: Any, dim: int, index: int) -> Value:
    """Return the elements at `index` along `dim`, without that dimension."""
    x = tensor(input, "select", "input")
    return x[(*[slice(None)] * dimension(dim, x.ndim, "select"), index)]


@operator(aten="split_with_sizes.default", converts=False)
def split(tensor: Any, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Value, ...]:
    """Split along `dim` into parts of one size (the last may be smaller), or of given sizes that sum to the extent."""
    x = _tensor(tensor, "split", "tensor")
    d = dimension(dim, x.ndim, "split")
    n = x.shape[d]
    if isinstance(split_size_or_sections, int):
        size = split_size_or_sections
        if size < 1 and (size < 0 or n):
            raise ArgumentError(f"split: split_size_or_sections={size} must be positive")
        sizes = [min(size, n - k) for k in range(0, n, size)] if n else [0]
    else:
        sizes = list(_numbers("split", "split_size_or_sections", (split_size_or_sections,)))
        if sum(sizes) != n or any(s < 0 for s in sizes):
            raise ShapeError(f"split: sections {sizes} do not add up to the extent {n} along dim={dim}")
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    return tuple(_slice(x, d, e - s, e) for s, e in zip(sizes, ends, strict=True))


_tensor = tensor
dimension_of = dimension


@operator()
def chunk(input: Any, chunks: int, dim: int = 0) -> tuple[Value, ...]:
    """Split into at most `chunks` parts along `dim`, of equal size except for the last."""
    x = tensor(input, "chunk", "input")
    if chunks < 1:
        raise ArgumentError(f"chunk: chunks={chunks!r} must be a positive int")
    n = x.shape[dimension(dim, x.ndim, "chunk")]
    return split(x, max(1, -(-n // chunks)), dim) if n else split(x, [0] * chunks, dim)


@operator()
def unbind(input: Any, dim: int = 0) -> tuple[Value, ...]:
    """Return all slices along `dim`, without that dimension."""
    x = tensor(input, "unbind", "input")
    d = dimension(dim, x.ndim, "unbind")
    return tuple(x[(*[slice(None)] * d, n)] for n in range(x.shape[d]))


@operator()
def movedim(input: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Value:
    """Move the dimensions `source` to the places `destination`; the others keep their order."""
    x = tensor(input, "movedim", "input")
    numbers = _numbers("movedim", "source", (source,)), _numbers("movedim", "destination", (destination,))
    a, b = ([dimension(d, x.ndim, "movedim") for d in g] for g in numbers)
    if len(a) != len(b) or len(set(a)) != len(a) or len(set(b)) != len(b):
        raise ShapeError(
            f"movedim: source={source!r} and destination={destination!r} must be equally many dimensions, each once"
        )
    others = iter(d for d in range(x.ndim) if d not in a)
    places = dict(zip(b, a, strict=True))
    return x.transpose(tuple(places[d] if d in places else next(others) for d in range(x.ndim))) if x.ndim else x


@operator()
def unflatten(input: Any, dim: int, sizes: Sequence[int]) -> Value:
    """Split dimension `dim` into several, of the extents `sizes`; one of them may be -1."""
    x = tensor(input, "unflatten", "input")
    d = dimension(dim, x.ndim, "unflatten")
    return x.reshape((*x.shape[:d], *views.resolve_reshape((x.shape[d],), tuple(sizes)), *x.shape[d + 1 :]))


def windows(x: Value, dimension: int, size: int, step: int) -> Value:
    """Return the windows of `size` elements along a dimension, `step` apart, as a last dimension.

    This is `torch.Tensor.unfold`. Raises ShapeError where the dimension is shorter than a window.
    """
    d = dimension_of(dimension, x.ndim, "unfold")
    if size < 1 or step < 1 or size > x.shape[d]:
        raise ShapeError(
            f"unfold: size={size} and step={step} must be at least 1, and size at most the extent {x.shape[d]}"
        )
    shape = (*x.shape[:d], (x.shape[d] - size) // step + 1, *x.shape[d + 1 :], size)
    return builder.compute(shape, lambda *i: x[(*i[:d], i[d] * step + i[-1], *i[d + 1 : -1])])


@operator()
def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[Value, ...]:
    """Return coordinates of a grid of vectors: result n varies along dimension n; indexing="xy" swaps the first two."""
    values = list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else list(tensors)
    vectors = [tensor(t, "meshgrid", f"tensors[{n}]", rank=(0, 1)).reshape((-1,)) for n, t in enumerate(values)]
    if indexing is None:
        warnings.warn("meshgrid: indexing is not given and defaults to 'ij'; pass indexing='ij'", stacklevel=3)
    if indexing not in (None, "ij", "xy"):
        raise ArgumentError(f"meshgrid: indexing={indexing!r} must be 'ij' or 'xy'")
    order = list(range(len(vectors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = 1, 0
    shape = tuple(vectors[n].shape[0] for n in order)
    return tuple(builder.compute(shape, lambda *i, n=n, v=v: v[i[order.index(n)]]) for n, v in enumerate(vectors))


@operator()
def hstack(tensors: Sequence[Any]) -> Value:
    """Concatenate tensors along dimension 1, vectors along their only one."""
    values = [tensor(t, "hstack", f"tensors[{n}]") for n, t in enumerate(tensors)]
    values = [v if v.ndim else v.reshape((1,)) for v in values]
    return cat(values, 0 if values and values[0].ndim == 1 else 1)


@operator()
def vstack(tensors: Sequence[Any]) -> Value:
    """Concatenate tensors along dimension 0, vectors as rows."""
    values = [tensor(t, "vstack", f"tensors[{n}]") for n, t in enumerate(tensors)]
    return cat([v if v.ndim > 1 else v.reshape((1, v.size)) for v in values], 0)
