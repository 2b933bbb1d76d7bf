"""Operators that rearrange elements."""

from __future__ import annotations

from math import prod
from typing import Any

from einsmith import ops as F
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.frontends.onnx.binding import Axes, Axis, Extents, Int, Ints, resolve_axes, resolve_axis
from einsmith.frontends.onnx.evaluate import NodeCall, Several
from einsmith.frontends.onnx.operators.indexing import check_lengths
from einsmith.frontends.onnx.table import onnx
from einsmith.ops.common import read
from einsmith.tracing import builder, views
from einsmith.tracing.builder import Value


@onnx("Reshape", static=(1,))
def reshape(n: NodeCall, x: Value, shape: Value, *, allowzero: int = 0) -> Value:
    """x reshaped, in row-major order; 0 keeps an extent, -1 infers one"""
    wanted = n.ints(shape, "the shape of Reshape", -1)
    if not allowzero:
        if any(e == 0 and d >= x.ndim for d, e in enumerate(wanted)):
            raise ShapeError(f"Reshape: {wanted} keeps a dimension that shape {x.shape} does not have")
        wanted = tuple(x.shape[d] if e == 0 else e for d, e in enumerate(wanted))
    rest = prod(e for e in wanted if e != -1)
    if -1 in wanted and not x.size:
        wanted = tuple((0 if not rest else x.size // rest) if e == -1 else e for e in wanted)
    return x.reshape(wanted)


@onnx("Transpose")
def transpose(x: Value, *, perm: Any = None) -> Value:
    """x with its dimensions in the order perm"""
    return x.transpose(*(perm or reversed(range(x.ndim)))) if x.ndim else x


@onnx("Flatten")
def flatten(n: NodeCall, x: Value) -> Value:
    """x as a matrix; dimensions before the axis become its rows"""
    d = n.attr("axis", 1)
    d = d if d == x.ndim else resolve_axis(d, x.ndim)
    return x.reshape((prod(x.shape[:d]), prod(x.shape[d:])))


@onnx("Squeeze")
def squeeze(x: Value, axes: Axes = None) -> Value:
    """x without dimensions of extent 1"""
    dims = tuple(d for d, e in enumerate(x.shape) if e == 1) if axes is None else axes
    if any(x.shape[d] != 1 for d in dims):
        raise ShapeError(f"Squeeze: axes {dims} of shape {x.shape} are not all of extent 1")
    return x.reshape(tuple(e for d, e in enumerate(x.shape) if d not in dims))


@onnx("Unsqueeze")
def unsqueeze(x: Value, axes: Ints) -> Value:
    """x with new dimensions of extent 1"""
    dims = resolve_axes(axes, x.ndim + len(axes))
    rest = iter(x.shape)
    return x.reshape(tuple(1 if d in dims else next(rest) for d in range(x.ndim + len(axes))))


@onnx("Concat")
def concat(*inputs: Value, axis: Axis) -> Value:
    """tensors concatenated along an axis"""
    kept = [x for x in inputs if x.shape[axis]] or [inputs[0]]
    return kept[0] if len(kept) == 1 else F.cat(kept, axis)


@onnx("Split")
def split(n: NodeCall, x: Value, split: Extents = None, *, axis: Axis = 0, num_outputs: int | None = None) -> Several:
    """x split into parts along an axis"""
    extent, outputs = x.shape[axis], len(n.node.outputs)
    count = len(split) if split is not None else num_outputs or outputs
    if outputs != count:
        raise ShapeError(f"Split: {count} parts for {outputs} outputs")
    each = -(-extent // count)
    sizes = split if split is not None else [max(min(each, extent - k * each), 0) for k in range(count)]
    if sum(sizes) != extent:
        raise ShapeError(
            f"Split: parts of {tuple(sizes)} do not add up to {extent}, the extent along axis {axis} of shape {x.shape}"
        )
    return Several(F.split(x, list(sizes), axis))


@onnx("Slice")
def slice_(x: Value, starts: Ints, ends: Ints, axes: Ints = None, steps: Ints = None) -> Value:
    """x[start:end:step] along axes"""
    dims = resolve_axes(range(len(starts)) if axes is None else axes, x.ndim)
    by = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(dims) == len(by):
        raise ShapeError(f"Slice: starts {starts}, ends {ends}, axes {dims} and steps {by} differ in number")
    if 0 in by:
        raise ArgumentError(f"Slice: steps {by} must not be 0")
    ranges = [range(e) for e in x.shape]
    for d, b, e, s in zip(dims, starts, ends, by, strict=True):
        m = x.shape[d]
        if s > 0:
            ranges[d] = range(*slice(b, e, s).indices(m))
        else:  # the standard clamps a start before the first element to that element
            b, e = (b + m if b < 0 else b), (e + m if e < 0 else e)
            ranges[d] = range(max(min(b, m - 1), 0 if m else -1), max(min(e, m - 1), -1), s)
    shape = tuple(map(len, ranges))
    if shape == x.shape and all(r.step == 1 for r in ranges):
        return x
    if 0 in shape:
        return builder.full(shape, 0, x.dtype)
    return builder.compute(shape, lambda *i: read(x, [_place(k, r) for k, r in zip(i, ranges, strict=True)]))


def _place(k: Any, r: range) -> Any:
    """Return element k of a range."""
    return k if (r.start, r.step) == (0, 1) else r.start + k * r.step


@onnx("Expand")
def expand(x: Value, shape: Extents) -> Value:
    """x broadcast with another shape"""
    return builder.broadcast_to(x, views.broadcast([x.shape, shape]))


@onnx("Tile")
def tile(x: Value, repeats: Extents) -> Value:
    """x[i % n], with extents multiplied by repeats"""
    if len(repeats) != x.ndim:
        raise ShapeError(f"Tile: {len(repeats)} repeats for shape {x.shape}")
    return F.tile(x, repeats) if repeats else x


@onnx("Pad")
def pad(x: Value, pads: Ints, value: Any = None, axes: Axes = None, *, mode: str = "constant") -> Value:
    """x padded with a constant, by reflection, with its first and last elements, or cyclically"""
    dims = tuple(range(x.ndim)) if axes is None else axes
    if len(pads) != 2 * len(dims):
        raise ShapeError(f"Pad: {pads} are not two amounts for each of {len(dims)} dimensions")
    amounts = dict.fromkeys(range(x.ndim), (0, 0)) | dict(
        zip(dims, zip(pads[: len(dims)], pads[len(dims) :], strict=True), strict=True)
    )
    if mode == "constant":
        flat = [v for d in reversed(range(x.ndim)) for v in amounts[d]]
        number = value.reshape(()) if isinstance(value, Value) else value or 0.0
        if not isinstance(value, Value) and not x.dtype.is_float:
            number = bool(number) if x.dtype.is_bool else int(number)
        return F.pad(x, flat, "constant", number) if flat else x
    for d, (lo, hi) in amounts.items():
        x = _around(x, d, lo, hi, mode)
    return x


def _around(x: Value, d: int, lo: int, hi: int, mode: str) -> Value:
    """Pad x along d with its own elements, repeatedly where the padding exceeds the extent."""
    m = x.shape[d]
    if lo < 0 or hi < 0:
        start = max(-lo, 0)
        x = F.narrow(x, d, start, max(m + min(hi, 0) - start, 0))
        lo, hi, m = max(lo, 0), max(hi, 0), x.shape[d]
    if not lo and not hi:
        return x
    if not m:
        raise ShapeError(f"Pad: axis {d} of shape {x.shape} has no elements to pad with")

    def place(h: Any) -> Any:
        if mode == "edge":
            return builder.minimum(builder.maximum(h, 0), m - 1)
        if mode == "wrap":
            return h % m
        if mode != "reflect":
            raise ArgumentError(f"Pad: mode {mode!r} is none of constant, reflect, edge, wrap")
        if m == 1:
            return h * 0
        turn = h % (2 * m - 2)
        return builder.where(turn < m, turn, 2 * m - 2 - turn)

    shape = (*x.shape[:d], m + lo + hi, *x.shape[d + 1 :])
    return builder.compute(shape, lambda *i: x[(*i[:d], place(i[d] - lo), *i[d + 1 :])])


@onnx("DepthToSpace")
def depth_to_space(x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    """channels rearranged to spatial blocks, in DCR or CRD order"""
    return F.pixel_shuffle(_exchange(x, blocksize**2, -1) if mode == "DCR" else x, blocksize)


def _exchange(x: Value, outer: int, inner: int) -> Value:
    """Return a tensor whose channels, [outer, inner], are [inner, outer]."""
    return x.reshape((x.shape[0], outer, inner, *x.shape[2:])).transpose(0, 2, 1, 3, 4).reshape(x.shape)


@onnx("SpaceToDepth")
def space_to_depth(x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    """spatial blocks rearranged to channels"""
    y = F.pixel_unshuffle(x, blocksize)
    return _exchange(y, -1, blocksize**2) if mode == "DCR" else y


@onnx("Trilu")
def trilu(x: Value, k: Int = 0, *, upper: int = 1) -> Value:
    """where(j - i >= k, x[i, j], 0) if upper, else where(j - i <= k, x[i, j], 0)"""
    return (F.triu if upper else F.tril)(x, k) if x.size else x


@onnx("ReverseSequence")
def reverse_sequence(n: NodeCall, x: Value, lengths: Value, *, time_axis: int = 0, batch_axis: int = 1) -> Value:
    """x with the first lengths[b] steps of each sequence reversed"""
    if x.ndim < 2 or time_axis == batch_axis or lengths.shape != (x.shape[batch_axis],):
        raise ShapeError(
            f"ReverseSequence: lengths of shape {lengths.shape}, time_axis={time_axis} and batch_axis={batch_axis} do "
            f"not fit a tensor of shape {x.shape}"
        )
    steps = x.shape[time_axis]
    lengths = check_lengths(n, lengths, steps, "sequence_lens")

    def body(*i: Any) -> Any:
        t, m = i[time_axis], lengths[i[batch_axis]]
        place = builder.minimum(builder.maximum(builder.where(t < m, m - 1 - t, t), 0), steps - 1)
        return x[(*i[:time_axis], place, *i[time_axis + 1 :])]

    return builder.compute(x.shape, body)
