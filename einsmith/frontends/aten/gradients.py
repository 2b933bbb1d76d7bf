"""What PyTorch's graphs of gradients call: the forward formulas pulled back, or sums over what the forward kept.

Where a mask says that a derivative is not wanted it is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith import functional as F
from einsmith.frontends.aten.contractions import convolution
from einsmith.frontends.aten.pooling import avg_pool2d
from einsmith.frontends.aten.table import aten
from einsmith.lang import builder as fb
from einsmith.lang.builder import Value
from einsmith.transforms import vjp

Ints = Sequence[int]


@aten("_adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool2d_backward(grad: Value, x: Value) -> Value:
    """the pullback of _adaptive_avg_pool2d"""
    return vjp(lambda v: F.adaptive_avg_pool2d(v, grad.shape[-2:]), x)[1](grad)[0]


@aten("avg_pool2d_backward.default")
def avg_pool2d_backward(
    grad: Value, x: Value, kernel: Ints, stride: Ints, padding: Ints, ceil_mode: bool, count_include_pad: bool,
    divisor_override: int | None,
) -> Value:  # fmt: skip
    """the pullback of avg_pool2d"""
    options = kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
    return vjp(lambda v: avg_pool2d(v, *options), x)[1](grad)[0]


@aten("convolution_backward.default")
def convolution_backward(
    grad: Value, x: Value, weight: Value, bias_sizes: Ints | None, stride: Ints, padding: Ints, dilation: Ints,
    transposed: bool, output_padding: Ints, groups: int, output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    """the pullback of convolution by x, weight and bias"""
    options = stride, padding, dilation, transposed, output_padding, groups
    dx, dw = vjp(lambda v, w: convolution(v, w, None, *options), x, weight)[1](grad)
    db = F.sum(grad, tuple(d for d in range(grad.ndim) if d != 1))
    return tuple(v if wanted else None for v, wanted in zip((dx, dw, db), output_mask, strict=True))


@aten("max_pool2d_with_indices_backward.default")
def max_pool2d_backward(
    grad: Value, x: Value, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool, indices: Value
) -> Value:
    """grad added up at the places that the forward found"""
    lead = x.shape[:-2]
    flat = F.zeros_like(x).reshape((*lead, -1))
    sums = F.scatter_add(flat, -1, indices.reshape((*lead, -1)), grad.reshape((*lead, -1)))
    return sums.reshape(x.shape)


@aten("embedding_dense_backward.default")
def embedding_backward(grad: Value, indices: Value, rows: int, padding_idx: int, scale_grad_by_freq: bool) -> Value:
    """grad added up at the rows that were read"""
    places = indices.reshape((-1,))
    source = grad.reshape((places.size, grad.shape[-1]))
    if scale_grad_by_freq:
        counts = F.index_add(fb.full((rows,), 0.0, grad.dtype), 0, places, F.ones_like(places, dtype=grad.dtype))
        source = source / F.index_select(counts, 0, places).reshape((-1, 1))
    if padding_idx >= 0:
        source = fb.where((places == padding_idx).reshape((-1, 1)), 0.0, source)
    return F.index_add(fb.full((rows, grad.shape[-1]), 0.0, grad.dtype), 0, places, source)


def _normalized(
    grad: Value, x: Value, mean: Value, rstd: Value, dims: Ints, weight: Value | None
) -> tuple[Value, Value]:
    """(the derivative by x, the normalized x); statistics and weight broadcast."""
    unit = (x - mean) * rstd
    scaled = grad if weight is None else grad * weight
    middle, along = F.mean(scaled, tuple(dims), True), F.mean(scaled * unit, tuple(dims), True)
    return (scaled - middle - unit * along) * rstd, unit


@aten("native_layer_norm_backward.default")
def layer_norm_backward(
    grad: Value, x: Value, shape: Ints, mean: Value, rstd: Value, weight: Value | None, bias: Value | None,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    """rstd*(g - mean(g) - u*mean(g*u)) of g = grad*weight and the normalized u; the sums of grad*u and of grad"""
    lead = x.ndim - len(shape)
    dx, unit = _normalized(grad, x, mean, rstd, range(lead, x.ndim), weight)
    over = tuple(range(lead))
    dw, db = (F.sum(v, over) if over else v for v in (grad * unit, grad))
    return tuple(v if wanted else None for v, wanted in zip((dx, dw, db), output_mask, strict=True))


@aten("native_group_norm_backward.default")
def group_norm_backward(
    grad: Value, x: Value, mean: Value, rstd: Value, weight: Value | None, n: int, c: int, hxw: int, group: int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    """as native_layer_norm_backward, of each sample's groups of channels"""
    shape = n, group, c // group, hxw

    def grouped(v: Any) -> Any:
        return v.reshape((n, group, 1, 1))

    scale = None if weight is None else weight.reshape((1, group, c // group, 1))
    g = grad.reshape(shape)
    dx, unit = _normalized(g, x.reshape(shape), grouped(mean), grouped(rstd), (2, 3), scale)
    dw, db = (F.sum(v, (0, 3)).reshape((c,)) for v in (g * unit, g))
    return tuple(v if wanted else None for v, wanted in zip((dx.reshape(x.shape), dw, db), output_mask, strict=True))
