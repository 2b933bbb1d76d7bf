"""Operators that rearrange elements."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.frontends.onnx.evaluate import NodeCall, Several
from einsmith.frontends.onnx.operators.axes import axes, axes_of, axis
from einsmith.frontends.onnx.operators.indexing import check_lengths
from einsmith.frontends.onnx.table import onnx
from einsmith.lang import builder, views
from einsmith.lang.builder import Value
from einsmith.ops.common import read


@onnx("Reshape", static=(1,))
def reshape(n: NodeCall, x: Value, shape: Value) -> Value:
    """x reshaped, in row-major order; 0 keeps an extent, -1 infers one"""
    wanted = n.ints(shape, "the shape of Reshape", -1)
    if not n.attr("allowzero", 0):
        if any(e == 0 and d >= x.ndim for d, e in enumerate(wanted)):
            raise ShapeError(f"Reshape: {wanted} keeps a dimension that shape {x.shape} does not have")
        wanted = tuple(x.shape[d] if e == 0 else e for d, e in enumerate(wanted))
    rest = prod(e for e in wanted if e != -1)
    if -1 in wanted and not x.size:
        wanted = tuple((0 if not rest else x.size // rest) if e == -1 else e for e in wanted)
    return x.reshape(wanted)


@onnx("Transpose")
def transpose(n: NodeCall, x: Value) -> Value:
    """x with its dimensions in the order perm"""
    return x.transpose(*n.attr("perm", tuple(reversed(range(x.ndim))))) if x.ndim else x


@onnx("Flatten")
def flatten(n: NodeCall, x: Value) -> Value:
    """x as a matrix; dimensions before the axis become its rows"""
    d = n.attr("axis", 1)
    d = d if d == x.ndim else axis(d, x.ndim)
    return x.reshape((prod(x.shape[:d]), prod(x.shape[d:])))


@onnx("Squeeze", static=(1,))
def squeeze(n: NodeCall, x: Value, given: Value | None = None) -> Value:
    """x without dimensions of extent 1"""
    dims = axes_of(n, given, x.ndim)
    if dims is None:
        dims = tuple(d for d, e in enumerate(x.shape) if e == 1)
    if any(x.shape[d] != 1 for d in dims):
        raise ShapeError(f"Squeeze: axes {dims} of shape {x.shape} are not all of extent 1")
    return x.reshape(tuple(e for d, e in enumerate(x.shape) if d not in dims))


@onnx("Unsqueeze", static=(1,))
def unsqueeze(n: NodeCall, x: Value, given: Value | None = None) -> Value:
    """x with new dimensions of extent 1"""
    listed = n.attr("axes") if given is None else n.ints(given, "axes of Unsqueeze")
    rank = x.ndim + len(listed)
    dims = set(axes(listed, rank))
    rest = iter(x.shape)
    return x.reshape(tuple(1 if d in dims else next(rest) for d in range(rank)))


@onnx("Concat")
def concat(n: NodeCall, *inputs: Value) -> Value:
    """tensors concatenated along an axis"""
    d = axis(n.attr("axis"), inputs[0].ndim)
    kept = [x for x in inputs if x.shape[d]] or [inputs[0]]
    return kept[0] if len(kept) == 1 else F.cat(kept, d).astype(inputs[0].dtype)


def part(x: Value, d: int, start: int, stop: int) -> Value:
    """Return the elements start to stop of x along dimension d."""
    return x[(*(slice(None),) * d, slice(start, stop))]


@onnx("Split", static=(1,))
def split(n: NodeCall, x: Value, given: Value | None = None) -> Several:
    """x split into parts along an axis"""
    d = axis(n.attr("axis", 0), x.ndim)
    sizes = n.attr("split") if given is None else n.ints(given, "sizes of Split", 0)
    extent, count = x.shape[d], n.attr("num_outputs", len(n.node.outputs))
    if len(n.node.outputs) != (count if sizes is None else len(sizes)):
        raise ShapeError(f"Split: {count if sizes is None else len(sizes)} parts for {len(n.node.outputs)} outputs")
    if sizes is None:
        each = -(-extent // count)
        sizes = [max(min(each, extent - k * each), 0) for k in range(count)]
    if sum(sizes) != extent:
        raise ShapeError(
            f"Split: parts of {tuple(sizes)} do not add up to {extent}, the extent along axis {d} of shape {x.shape}"
        )
    ends = np.cumsum(sizes)
    return Several(part(x, d, int(e - s), int(e)) for s, e in zip(sizes, ends, strict=True))


@onnx("Slice", static=(1, 2, 3, 4))
def slice_(
    n: NodeCall,
    x: Value,
    starts: Value | None = None,
    ends: Value | None = None,
    along: Value | None = None,
    steps: Value | None = None,
) -> Value:
    """x[start:end:step] along axes"""
    if starts is None or ends is None:
        begin, stop, listed, by = n.attr("starts"), n.attr("ends"), n.attr("axes"), None
    else:
        begin, stop = n.ints(starts, "starts of Slice"), n.ints(ends, "ends of Slice")
        listed = None if along is None else n.ints(along, "axes of Slice")
        by = None if steps is None else n.ints(steps, "steps of Slice")
    dims = axes(range(len(begin)) if listed is None else listed, x.ndim)
    by = (1,) * len(begin) if by is None else by
    if not len(begin) == len(stop) == len(dims) == len(by):
        raise ShapeError(f"Slice: starts {begin}, ends {stop}, axes {dims} and steps {by} differ in number")
    if 0 in by:
        raise ArgumentError(f"Slice: steps {by} must not be 0")
    ranges = {d: range(*slice(b, e, s).indices(x.shape[d])) for d, b, e, s in zip(dims, begin, stop, by, strict=True)}
    # Backwards, the standard clamps a start before the first element to that element.
    for d, b, e, s in zip(dims, begin, stop, by, strict=True):
        if s < 0:
            m = x.shape[d]
            b, e = (b + m if b < 0 else b), (e + m if e < 0 else e)
            ranges[d] = range(max(min(b, m - 1), 0 if m else -1), max(min(e, m - 1), -1), s)
    shape = tuple(len(ranges[d]) if d in ranges else e for d, e in enumerate(x.shape))
    if shape == x.shape and all(r.step == 1 for r in ranges.values()):
        return x
    if 0 in shape:
        return builder.full(shape, 0, x.dtype)

    def body(*i: Any) -> Any:
        return read(x, [ranges[d].start + k * ranges[d].step if d in ranges else k for d, k in enumerate(i)])

    return builder.compute(shape, body)


@onnx("Expand", static=(1,))
def expand(n: NodeCall, x: Value, shape: Value) -> Value:
    """x broadcast with another shape"""
    return builder.broadcast_to(x, views.broadcast([x.shape, n.ints(shape, "the shape of Expand", 0)]))


@onnx("Tile", static=(1,))
def tile(n: NodeCall, x: Value, repeats: Value) -> Value:
    """x[i % n], with extents multiplied by repeats"""
    counts = n.ints(repeats, "repeats of Tile", 0)
    if len(counts) != x.ndim:
        raise ShapeError(f"Tile: {len(counts)} repeats for shape {x.shape}")
    return F.tile(x, counts) if counts else x


@onnx("Pad", static=(1, 3))
def pad(
    n: NodeCall, x: Value, pads: Value | None = None, value: Value | None = None, along: Value | None = None
) -> Value:
    """x padded with a constant, by reflection, with its first and last elements, or cyclically"""
    amounts = n.attr("pads") if pads is None else n.ints(pads, "pads of Pad")
    dims = tuple(range(x.ndim)) if along is None else axes(n.ints(along, "axes of Pad"), x.ndim)
    if len(amounts) != 2 * len(dims):
        raise ShapeError(f"Pad: {amounts} are not two amounts for each of {len(dims)} dimensions")
    mode = n.attr("mode", "constant")
    before, after = [0] * x.ndim, [0] * x.ndim
    for k, d in enumerate(dims):
        before[d], after[d] = amounts[k], amounts[k + len(dims)]
    if mode == "constant":
        flat = [v for d in reversed(range(x.ndim)) for v in (before[d], after[d])]
        number = n.attr("value", 0.0) if value is None else value.reshape(())
        if value is None and not x.dtype.is_float:
            number = bool(number) if x.dtype.is_bool else int(number)
        return F.pad(x, flat, "constant", number).astype(x.dtype) if flat else x
    for d in range(x.ndim):
        x = _around(x, d, before[d], after[d], mode)
    return x


def _around(x: Value, d: int, lo: int, hi: int, mode: str) -> Value:
    """Pad x along d with its own elements, repeatedly where the padding exceeds the extent."""
    m = x.shape[d]
    if lo < 0 or hi < 0:
        x = part(x, d, max(-lo, 0), m + min(hi, 0))
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
def depth_to_space(n: NodeCall, x: Value) -> Value:
    """channels rearranged to spatial blocks, in DCR or CRD order"""
    b, c, h, w = x.shape
    k = n.attr("blocksize")
    if n.attr("mode", "DCR") == "DCR":
        y = x.reshape((b, k, k, c // (k * k), h, w)).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape((b, c // (k * k), k, k, h, w)).transpose(0, 1, 4, 2, 5, 3)
    return y.reshape((b, c // (k * k), h * k, w * k))


@onnx("SpaceToDepth")
def space_to_depth(n: NodeCall, x: Value) -> Value:
    """spatial blocks rearranged to channels"""
    b, c, h, w = x.shape
    k = n.attr("blocksize")
    y = x.reshape((b, c, h // k, k, w // k, k))
    y = y.transpose(0, 3, 5, 1, 2, 4) if n.attr("mode", "DCR") == "DCR" else y.transpose(0, 1, 3, 5, 2, 4)
    return y.reshape((b, c * k * k, h // k, w // k))


@onnx("Trilu", static=(1,))
def trilu(n: NodeCall, x: Value, k: Value | None = None) -> Value:
    """where(j - i >= k, x[i, j], 0) if upper, else where(j - i <= k, x[i, j], 0)"""
    offset = 0 if k is None else n.integer(k, "k of Trilu")
    if not x.size:
        return x
    rows = x.ndim - 2

    def body(*i: Any) -> Any:
        kept = i[-1] - i[rows] >= offset if n.attr("upper", 1) else i[-1] - i[rows] <= offset
        return builder.where(kept, x[i], builder.full((), 0, x.dtype))

    return builder.compute(x.shape, body).astype(x.dtype)


@onnx("ReverseSequence")
def reverse_sequence(n: NodeCall, x: Value, lengths: Value) -> Value:
    """x with the first lengths[b] steps of each sequence reversed"""
    time, batch = n.attr("time_axis", 0), n.attr("batch_axis", 1)
    if x.ndim < 2 or time == batch or lengths.shape != (x.shape[batch],):
        raise ShapeError(
            f"ReverseSequence: lengths of shape {lengths.shape}, time_axis={time} and batch_axis={batch} do not fit a "
            f"tensor of shape {x.shape}"
        )
    lengths = check_lengths(n, lengths, x.shape[time], "sequence_lens")

    def body(*i: Any) -> Any:
        t, m = i[time], lengths[i[batch]]
        place = builder.minimum(builder.maximum(builder.where(t < m, m - 1 - t, t), 0), x.shape[time] - 1)
        return x[(*i[:time], place, *i[time + 1 :])]

    return builder.compute(x.shape, body)
