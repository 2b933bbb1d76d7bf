"""Operators that rearrange elements. Tensors are values without storage: a view is a tensor that reads another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith import ops as F
from einsmith.base.dtypes import DType
from einsmith.base.errors import ShapeError
from einsmith.base.symbolic import count_steps, slice_indices
from einsmith.frontends.aten.promotion import result_type
from einsmith.frontends.aten.table import aten, enter
from einsmith.ops.common import dimension
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def _dimension(d: int, rank: int) -> int:
    return dimension(d, max(rank, 1), "dim")


enter(
    "alias.default clone.default contiguous.default lift_fresh_copy.default lift_fresh.default "
    "_conj.default resolve_conj.default resolve_neg.default",
    "x",
    lambda x: x,
)
enter("detach.default", "stop_gradient(x)", builder.stop_gradient)


@aten("expand.default")
def expand(x: Value, size: Sequence[int], implicit: bool = False) -> Value:
    """x broadcast along dimensions of extent 1 and new leading ones; -1 keeps an extent"""
    lead = len(size) - x.ndim
    return F.broadcast_to(x, tuple(x.shape[d - lead] if n == -1 else n for d, n in enumerate(size)))


@aten("squeeze.dims")
def squeeze(x: Value, dim: Sequence[int]) -> Value:
    """x without the dimensions in dim that have extent 1"""
    gone = {_dimension(d, x.ndim) for d in dim}
    return x.reshape(tuple(n for d, n in enumerate(x.shape) if d not in gone or n != 1))


@aten("select.int")
def select(x: Value, dim: int, index: int) -> Value:
    """x at one index along dim"""
    d = _dimension(dim, x.ndim)
    if not -x.shape[d] <= index < x.shape[d]:
        raise ShapeError(f"select: {index} is out of range along dim={dim} of shape {x.shape}")
    return x[(*(slice(None),) * d, index)]


def _bounds(n: int, start: int | None, end: int | None, step: int) -> tuple[int, int]:
    begin, stop, _ = slice_indices(slice(start, end, step), n)
    return begin, max(stop, begin)


@aten("slice.Tensor")
def slice_(x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Value:
    """x[start:end:step] along dim"""
    d = _dimension(dim, x.ndim)
    begin, stop = _bounds(x.shape[d], start, end, step)
    return x if (begin, stop, step) == (0, x.shape[d], 1) else x[(*(slice(None),) * d, slice(begin, stop, step))]


def _set_slice(x: Value, src: Value, d: int, begin: int, stop: int, step: int) -> Value:
    """Return x with `src` at begin, begin + step, ... below stop along d."""
    src = F.broadcast_to(src.astype(x.dtype), (*x.shape[:d], count_steps(begin, stop, step), *x.shape[d + 1 :]))
    if not src.size:
        return x

    def body(*i: Any) -> Any:
        place = i[d] - begin
        inside = (i[d] >= begin) & (i[d] < stop)
        if step > 1:
            inside = inside & (place % step == 0)
        return builder.where(inside, src[(*i[:d], place // step if step > 1 else place, *i[d + 1 :])], x[i])

    return builder.compute(x.shape, body)


@aten("slice_scatter.default")
def slice_scatter(
    x: Value, src: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    """x with x[start:end:step] along dim replaced by src"""
    d = _dimension(dim, x.ndim)
    return _set_slice(x, src, d, *_bounds(x.shape[d], start, end, step), step)


@aten("diagonal_scatter.default")
def diagonal_scatter(x: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """x with its diagonal (i, i + offset) along dim1 and dim2 replaced by src"""
    a, b = _dimension(dim1, x.ndim), _dimension(dim2, x.ndim)

    def body(*i: Any) -> Any:
        place = i[a] if offset >= 0 else i[b]
        at = (*(i[d] for d in range(x.ndim) if d not in (a, b)), place)
        return builder.where(i[b] - i[a] == offset, src[at], x[i])

    return builder.compute(x.shape, body)


@aten("cat.default")
def cat(tensors: Sequence[Value], dim: int = 0) -> Value:
    """tensors concatenated along dim, in their common type"""
    common = result_type(*tensors)
    kept = [x for x in tensors if x.shape != (0,)] or [tensors[0]]  # an old form of "nothing"
    return kept[0].astype(common) if len(kept) == 1 else F.cat([x.astype(common) for x in kept], dim)


@aten("flip.default")
def flip(x: Value, dims: Sequence[int]) -> Value:
    """x[n - 1 - i] along dims"""
    return F.flip(x, tuple(dims)) if x.ndim and dims else x


@aten("repeat.default")
def repeat(x: Value, repeats: Sequence[int]) -> Value:
    """x[i % n], with extents multiplied by repeats"""
    return F.repeat(x, *repeats) if repeats else x


@aten("unfold.default")
def unfold(x: Value, dim: int, size: int, step: int) -> Value:
    """x[step*i + r] along dim, with r as the last dimension"""
    if not x.ndim:
        return x.reshape((1,))[:size]
    d = _dimension(dim, x.ndim)
    shape = (*x.shape[:d], (x.shape[d] - size) // step + 1, *x.shape[d + 1 :], size)
    return builder.compute(shape, lambda *i: x[(*i[:d], step * i[d] + i[-1], *i[d + 1 : -1])])


@aten("as_strided.default as_strided_copy.default")
def as_strided(x: Value, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Value:
    """elements of contiguous x at offset + sum of stride*i"""
    flat = x.reshape((-1,))

    def body(*i: Any) -> Any:
        place: Any = offset or 0
        for n, s in zip(i, stride, strict=True):
            place = place + n * s
        return flat[place]

    return builder.compute(tuple(size), body) if size else flat[offset or 0]


@aten("copy.default")
def copy(x: Value, src: Value, non_blocking: bool = False) -> Value:
    """src in the shape and type of x"""
    return F.broadcast_to(src.astype(x.dtype), x.shape)


# -------------------------------------------------------------------------------------------------------------- edges


@aten("constant_pad_nd.default")
def constant_pad(x: Value, pad: Sequence[int], value: Any = 0) -> Value:
    """x padded with `value`"""
    number = float(value) if x.dtype.is_float else bool(value) if x.dtype.is_bool else int(value)
    return F.pad(x, tuple(pad), "constant", number)


def _pad(way: str, mode: str, formula: str) -> None:
    enter(" ".join(f"{way}_pad{n}d.default" for n in (1, 2, 3)), formula, lambda x, pad: F.pad(x, tuple(pad), mode))


_pad("reflection", "reflect", "x padded by reflection at its first and last elements")
_pad("replication", "replicate", "x padded with its first and last elements")


@aten("view.dtype")
def view_dtype(x: Value, dtype: DType) -> Value:
    """x; its type must not change"""
    if x.dtype is not dtype:
        raise ShapeError(f"reinterpreting the bits of {x.dtype.name} as {dtype.name} is not supported")
    return x
