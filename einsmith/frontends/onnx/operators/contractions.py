"""Products of matrices and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from einsmith import ops as F
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.frontends.aten.linalg import factorize
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.table import enter, onnx
from einsmith.ops.conv import _add_bias, _correlate
from einsmith.ops.sampling import read_linearly
from einsmith.ops.window import Window, apply_transpose
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

enter("MatMul", "sum[k](a[.., i, k]*b[.., k, j]), as in NumPy", builder.matmul, "contractions")


@onnx("Gemm")
def gemm(
    a: Value, b: Value, c: Any = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Value:
    """alpha*sum[k](a[i, k]*b[k, j]) + beta*c; a and b may be transposed"""
    a, b = a.T if transA else a, b.T if transB else b
    alpha, beta = (v if a.dtype.is_float else int(v) for v in (alpha, beta))
    y = builder.matmul(a, b)
    y = y if alpha == 1 else y * alpha
    return y if c is None or beta == 0 else y + (c if beta == 1 else c * beta)


@onnx("Einsum")
def einsum(*inputs: Value, equation: str) -> Value:
    """the sum of products given by the equation"""
    return F.einsum(equation.replace(" ", ""), *inputs)


# ------------------------------------------------------------------------------------------------------- convolutions


def read_windows(n: NodeCall, extents: Sequence[int], kernel: Sequence[int]) -> list[Window]:
    """Return a node's windows over dimensions of these extents, by strides, dilations, pads or auto_pad, ceil_mode."""
    rank = len(kernel)
    steps, gaps = n.per_dimension("strides", rank, 1), n.per_dimension("dilations", rank, 1)
    pads = _read_pads(n, extents, kernel, steps, gaps)
    return [
        Window(e, k, s, lo, hi, g, n.node.operator, bool(n.attr("ceil_mode", 0)))
        for e, k, s, (lo, hi), g in zip(extents, kernel, steps, pads, gaps, strict=True)
    ]


def _read_pads(
    n: NodeCall, extents: Sequence[int], kernel: Sequence[int], steps: Sequence[int], gaps: Sequence[int]
) -> list[tuple[int, int]]:
    """Return (before, after) of each dimension, by pads or auto_pad."""
    auto, rank = n.attr("auto_pad", "NOTSET"), len(kernel)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        sizes = zip(extents, kernel, steps, gaps, strict=True)
        return [_halve(max((ceil(e / s) - 1) * s + g * (k - 1) + 1 - e, 0), auto) for e, k, s, g in sizes]
    if auto == "VALID":
        return [(0, 0)] * rank
    pads = n.per_dimension("pads", 2 * rank, 0)
    return [(pads[d], pads[d + rank]) for d in range(rank)]


def _halve(total: int, auto: str) -> tuple[int, int]:
    """Divide a padding in two, the greater half at the end for SAME_UPPER."""
    less = total // 2
    return (less, total - less) if auto == "SAME_UPPER" else (total - less, less)


def convolve(n: NodeCall, x: Value, w: Value, bias: Value | None) -> Value:
    """Compute the convolution that a node's attributes define, in any type. Raises ShapeError."""
    rank = w.ndim - 2
    if x.ndim != w.ndim or rank < 1:
        raise ShapeError(f"x of shape {x.shape} and w of shape {w.shape} do not fit a convolution")
    kernel, groups = w.shape[2:], n.attr("group", 1)
    if tuple(n.attr("kernel_shape", kernel)) != kernel:
        raise ShapeError(f"kernel_shape {n.attr('kernel_shape')} is not that of w, {w.shape}")
    if x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        raise ShapeError(f"x of shape {x.shape} does not fit w of shape {w.shape} in {groups} groups")
    return _add_bias("Conv", _correlate(x, w, read_windows(n, x.shape[2:], kernel), groups), bias)


@onnx("Conv")
def conv(n: NodeCall, x: Value, w: Value, bias: Value | None = None) -> Value:
    """sum[c, r, ..](x[b, c, stride*p + dilation*r - pad, ..]*w[k, c, r, ..]) + bias[k]"""
    return convolve(n, x, w, bias)


@onnx("ConvTranspose")
def conv_transpose(n: NodeCall, x: Value, w: Value, bias: Value | None = None) -> Value:
    """the transpose of a convolution, plus bias[k]"""
    rank, groups, auto = w.ndim - 2, n.attr("group", 1), n.attr("auto_pad", "NOTSET")
    kernel, space = w.shape[2:], x.shape[2:]
    steps, gaps = n.per_dimension("strides", rank, 1), n.per_dimension("dilations", rank, 1)
    more = n.per_dimension("output_padding", rank, 0)
    whole = [(e - 1) * s + g * (k - 1) + 1 + m for e, s, g, k, m in zip(space, steps, gaps, kernel, more, strict=True)]
    shape = n.attr("output_shape")
    if shape is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        shape = [e * s for e, s in zip(space, steps, strict=True)]
    if shape is not None:
        pads = [_halve(max(a - b, 0), auto) for a, b in zip(whole, shape[-rank:], strict=True)]
        whole = [max(a, b) for a, b in zip(whole, shape[-rank:], strict=True)]
    else:
        pads = _read_pads(n, space, kernel, steps, gaps)
    extents = [e - lo - hi for e, (lo, hi) in zip(whole, pads, strict=True)]
    windows = [
        Window(e, k, s, lo, hi, g, "ConvTranspose", count=c)
        for e, k, s, (lo, hi), g, c in zip(extents, kernel, steps, pads, gaps, space, strict=True)
    ]
    full = (x.shape[0], w.shape[1] * groups, *extents)
    return _add_bias("ConvTranspose", apply_transpose(lambda y: _correlate(y, w, windows, groups), full, x), bias)


@onnx("DeformConv")
def deform_conv(
    n: NodeCall,
    x: Value,
    w: Value,
    offset: Value,
    bias: Value | None = None,
    mask: Value | None = None,
    *,
    group: int = 1,
    offset_group: int = 1,
) -> Value:
    """a convolution that reads x at positions shifted by offsets, bilinearly interpolated and weighted by a mask

    Source: Dai et al. 2017, arXiv 1703.06211; Zhu et al. 2019, arXiv 1811.11168.
    """
    if x.ndim != 4:
        raise ArgumentError("DeformConv is built for two dimensions")
    kernel, (batch, channels), (p, q) = w.shape[2:], x.shape[:2], offset.shape[2:]
    windows = read_windows(n, x.shape[2:], kernel)
    rows, box = batch * offset_group, (*kernel, p, q)
    o = offset.reshape((rows, *kernel, 2, p, q))

    def place(d: int) -> Value:
        w = windows[d]
        return builder.compute((rows, *box), lambda b, *i: w.position(i[2 + d], i[d]) + o[(b, *i[:2], d, *i[2:])])

    images = x.reshape((rows, channels // offset_group, *x.shape[2:]))
    taken = read_linearly(images, [place(0), place(1)])
    if mask is not None:
        taken = taken * mask.reshape((rows, 1, *box))
    taken = taken.reshape((batch, channels, *box))
    inner, per = w.shape[1], w.shape[0] // group
    c, r, s = builder.axes(inner, *kernel)
    y = builder.compute(
        (batch, group, per, p, q),
        lambda b, g, k, i, j: builder.sum(
            taken[b, inner * g + c, r, s, i, j] * w[per * g + k, c, r, s], over=(c, r, s)
        ),
    )
    return _add_bias("DeformConv", y.reshape((batch, w.shape[0], p, q)), bias)


@onnx("Det")
def det(x: Value) -> Value:
    """the determinant of each matrix, by elimination with partial pivoting"""
    packed, rows = factorize(x)
    signs = builder.where(rows == F.arange(x.shape[-1]), 1.0, -1.0)
    return F.prod(F.diagonal(packed, 0, -2, -1) * signs, -1).astype(x.dtype)
