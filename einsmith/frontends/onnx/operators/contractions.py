"""Products of matrices and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.table import onnx
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.ops.conv import _add_bias, _correlate
from einsmith.ops.window import Window, apply_transpose


@onnx("MatMul")
def matmul(n: NodeCall, a: Value, b: Value) -> Value:
    """sum[k](a[.., i, k]*b[.., k, j]), as in NumPy"""
    return builder.matmul(a, b).astype(a.dtype)


@onnx("Gemm")
def gemm(n: NodeCall, a: Value, b: Value, c: Value | None = None) -> Value:
    """alpha*sum[k](a[i, k]*b[k, j]) + beta*c; a and b may be transposed"""
    a = a.T if n.attr("transA", 0) else a
    b = b.T if n.attr("transB", 0) else b
    alpha, beta = n.attr("alpha", 1.0), n.attr("beta", 1.0)
    y = builder.matmul(a, b)
    y = y if alpha == 1 else y * (alpha if a.dtype.is_float else int(alpha))
    if c is not None and beta != 0:
        y = y + (c if beta == 1 else c * (beta if a.dtype.is_float else int(beta)))
    return y.astype(a.dtype)


@onnx("Einsum")
def einsum(n: NodeCall, *inputs: Value) -> Value:
    """the sum of products given by the equation"""
    return F.einsum(n.attr("equation").replace(" ", ""), *inputs).astype(inputs[0].dtype)


# ------------------------------------------------------------------------------------------------------- convolutions


def pads_of(
    n: NodeCall, extents: Sequence[int], kernel: Sequence[int], steps: Sequence[int], gaps: Sequence[int]
) -> list[tuple[int, int]]:
    """Return (before, after) of each dimension, by pads or auto_pad."""
    auto, rank = n.attr("auto_pad", "NOTSET"), len(kernel)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        out = []
        for e, k, s, g in zip(extents, kernel, steps, gaps, strict=True):
            total = max((ceil(e / s) - 1) * s + g * (k - 1) + 1 - e, 0)
            less, more = total // 2, total - total // 2
            out.append((less, more) if auto == "SAME_UPPER" else (more, less))
        return out
    if auto == "VALID":
        return [(0, 0)] * rank
    pads = n.per_dimension("pads", 2 * rank, 0)
    return [(pads[d], pads[d + rank]) for d in range(rank)]


def convolve(n: NodeCall, x: Value, w: Value, bias: Value | None) -> Value:
    """Compute the convolution that a node's attributes define, in any type. Raises ShapeError."""
    rank = w.ndim - 2
    if x.ndim != w.ndim or rank < 1:
        raise ShapeError(f"x of shape {x.shape} and w of shape {w.shape} do not fit a convolution")
    kernel = w.shape[2:]
    if tuple(n.attr("kernel_shape", kernel)) != kernel:
        raise ShapeError(f"kernel_shape {n.attr('kernel_shape')} is not that of w, {w.shape}")
    steps, gaps = n.per_dimension("strides", rank, 1), n.per_dimension("dilations", rank, 1)
    groups = n.attr("group", 1)
    if x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        raise ShapeError(f"x of shape {x.shape} does not fit w of shape {w.shape} in {groups} groups")
    pads = pads_of(n, x.shape[2:], kernel, steps, gaps)
    windows = [
        Window(e, k, s, lo, hi, g, "Conv")
        for e, k, s, (lo, hi), g in zip(x.shape[2:], kernel, steps, pads, gaps, strict=True)
    ]
    return _add_bias("Conv", _correlate(x, w, windows, groups), bias)


@onnx("Conv")
def conv(n: NodeCall, x: Value, w: Value, bias: Value | None = None) -> Value:
    """sum[c, r, ..](x[b, c, stride*p + dilation*r - pad, ..]*w[k, c, r, ..]) + bias[k]"""
    return convolve(n, x, w, bias).astype(x.dtype)


@onnx("ConvTranspose")
def conv_transpose(n: NodeCall, x: Value, w: Value, bias: Value | None = None) -> Value:
    """the transpose of a convolution, plus bias[k]"""
    rank, groups = w.ndim - 2, n.attr("group", 1)
    kernel, space = w.shape[2:], x.shape[2:]
    steps, gaps = n.per_dimension("strides", rank, 1), n.per_dimension("dilations", rank, 1)
    more = n.per_dimension("output_padding", rank, 0)
    whole = [(e - 1) * s + g * (k - 1) + 1 + m for e, s, g, k, m in zip(space, steps, gaps, kernel, more, strict=True)]
    shape, auto = n.attr("output_shape"), n.attr("auto_pad", "NOTSET")
    if shape is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        shape = [e * s for e, s in zip(space, steps, strict=True)]
    if shape is not None:
        shape = tuple(shape)[-rank:]
        totals = [max(a - b, 0) for a, b in zip(whole, shape, strict=True)]
        whole = [max(a, b) for a, b in zip(whole, shape, strict=True)]
        pads = [(t // 2, t - t // 2) if auto == "SAME_UPPER" else (t - t // 2, t // 2) for t in totals]
    else:
        pads = pads_of(n, space, kernel, steps, gaps)
    extents = [e - lo - hi for e, (lo, hi) in zip(whole, pads, strict=True)]
    windows = [
        Window(e, k, s, lo, hi, g, "ConvTranspose", count=c)
        for e, k, s, (lo, hi), g, c in zip(extents, kernel, steps, pads, gaps, space, strict=True)
    ]
    full = (x.shape[0], w.shape[1] * groups, *extents)
    return _add_bias(
        "ConvTranspose", apply_transpose(lambda y: _correlate(y, w, windows, groups), full, x), bias
    ).astype(x.dtype)


@onnx("DeformConv")
def deform_conv(
    n: NodeCall, x: Value, w: Value, offset: Value, bias: Value | None = None, mask: Value | None = None
) -> Value:
    """a convolution that reads x at positions shifted by offsets, bilinearly interpolated and weighted by a mask

    Source: Dai et al. 2017, arXiv 1703.06211; Zhu et al. 2019, arXiv 1811.11168.
    """
    if x.ndim != 4:
        raise ArgumentError("DeformConv is built for two dimensions")
    steps, gaps = n.per_dimension("strides", 2, 1), n.per_dimension("dilations", 2, 1)
    groups, parts = n.attr("group", 1), n.attr("offset_group", 1)
    kernel = w.shape[2:]
    pads = pads_of(n, x.shape[2:], kernel, steps, gaps)
    (batch, channels, height, width), (p, q) = x.shape, offset.shape[2:]
    each = channels // parts
    o = offset.reshape((batch, parts, *kernel, 2, p, q))
    m = None if mask is None else mask.reshape((batch, parts, *kernel, p, q))

    def place(b: Any, g: Any, r: Any, s: Any, i: Any, j: Any, d: int) -> Any:
        at = (i * steps[0] - pads[0][0] + r * gaps[0]) if d == 0 else (j * steps[1] - pads[1][0] + s * gaps[1])
        return at + o[b, g, r, s, d, i, j]

    box = (batch, parts, *kernel, p, q)
    v = builder.compute(box, lambda b, g, r, s, i, j: place(b, g, r, s, i, j, 0))
    u = builder.compute(box, lambda b, g, r, s, i, j: place(b, g, r, s, i, j, 1))
    total: Any = None
    top, left = builder.stop_gradient(builder.floor(v)), builder.stop_gradient(builder.floor(u))
    for dv in (0, 1):
        for du in (0, 1):
            row, column = top + float(dv), left + float(du)
            inside = (row >= 0) & (row <= height - 1.0) & (column >= 0) & (column <= width - 1.0)
            weight = (1.0 - builder.abs(v - row)) * (1.0 - builder.abs(u - column))
            r_, c_ = (builder.where(inside, z, 0.0).astype(dt.i64) for z in (row, column))

            def term(
                b: Any,
                c: Any,
                r: Any,
                s: Any,
                i: Any,
                j: Any,
                w_: Any = weight,
                r_: Any = r_,
                c_: Any = c_,
                inside: Any = inside,
            ) -> Any:
                at = (b, c // each, r, s, i, j)
                return builder.where(inside[at], x[b, c, r_[at], c_[at]] * w_[at], 0.0)

            found = builder.compute((batch, channels, *kernel, p, q), term)
            total = found if total is None else total + found
    if m is not None:
        total = builder.compute(total.shape, lambda b, c, *i: total[(b, c, *i)] * m[(b, c // each, *i)])
    inner, per = w.shape[1], w.shape[0] // groups
    c, r, s = builder.axes(inner, *kernel)
    y = builder.compute(
        (batch, groups, per, p, q),
        lambda b, g, k, i, j: builder.sum(
            total[b, inner * g + c, r, s, i, j] * w[per * g + k, c, r, s], over=(c, r, s)
        ),
    ).reshape((batch, w.shape[0], p, q))
    return _add_bias("DeformConv", y, bias).astype(x.dtype)


@onnx("Det")
def det(n: NodeCall, x: Value) -> Value:
    """the determinant of each matrix, by elimination with partial pivoting"""
    size = x.shape[-1]
    rows = x.reshape((-1, size, size))
    total = builder.full((rows.shape[0],), 1.0, x.dtype)
    for _ in range(size):
        m = rows.shape[-1]
        best = F.argmax(builder.abs(builder.stop_gradient(rows[:, :, 0])), 1) if m > 1 else None
        if best is None:
            total = total * rows[:, 0, 0]
            break
        first = builder.compute((rows.shape[0], m), lambda b, j, z=rows, at=best: z[b, at[b], j])
        pivot = first[:, 0]
        total = total * builder.where(best == 0, pivot, -pivot)
        safe = builder.where(pivot == 0, 1.0, pivot)

        def rest(b: Any, i: Any, j: Any, z: Any = rows, at: Any = best, f: Any = first, p: Any = safe) -> Any:
            def row(col: Any) -> Any:  # the first row takes the pivot's place
                return builder.where(i + 1 == at[b], z[b, 0, col], z[b, i + 1, col])

            return row(j + 1) - row(0) / p[b] * f[b, j + 1]

        rows = builder.compute((rows.shape[0], m - 1, m - 1), rest)
    return total.reshape(x.shape[:-2]).astype(x.dtype)
