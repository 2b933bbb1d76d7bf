"""Operators of PyTorch's backward graphs: pullbacks of the forward formulas, or formulas of the saved tensors.

Derivatives excluded by an output mask are not computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from einsmith import ops as F
from einsmith.api.transforms import vjp
from einsmith.base.errors import ArgumentError
from einsmith.frontends.aten.contractions import convolution
from einsmith.frontends.aten.promotion import convert, default_float
from einsmith.frontends.aten.table import TABLE, aten, enter
from einsmith.ops.common import each
from einsmith.tracing import builder, views
from einsmith.tracing.builder import Value

Ints = Sequence[int]


def _pullback(names: str, forward: str, arguments: Callable[..., tuple] = lambda grad, x, *options: options) -> None:
    """Enter operators of (gradient, input, *options) that are the pullback of `forward`.

    arguments: maps their operands to the options of `forward`.
    """

    def run(grad: Value, x: Value, *options: Any) -> Value:
        settings = arguments(grad, x, *options)
        return vjp(lambda v: TABLE[forward].run(v, *settings), x)[1](grad)[0]

    enter(names, f"the pullback of {forward.partition('.')[0]}", run)


for _n in (2, 3):
    _pullback(
        f"_adaptive_avg_pool{_n}d_backward.default",
        f"_adaptive_avg_pool{_n}d.default",
        lambda grad, x, n=_n: (grad.shape[-n:],),
    )
    _pullback(f"avg_pool{_n}d_backward.default", f"avg_pool{_n}d.default")
for _n in (1, 2, 3):
    for _way in ("reflection", "replication"):
        _pullback(f"{_way}_pad{_n}d_backward.default", f"{_way}_pad{_n}d.default")
# PyTorch's decomposition of it is 0 at NaN.
_pullback("smooth_l1_loss_backward.default", "smooth_l1_loss.default")


@aten("polygamma.default")
def polygamma(n: int, x: Value) -> Value:
    """the n-th derivative of digamma, up to the fourth"""
    if not 0 <= n <= 4:
        raise ArgumentError(f"polygamma of order {n} is not supported; 0 to 4 are")
    if n == 0:
        return F.digamma(x if x.dtype.is_float else x.astype(default_float()))
    value, pullback = vjp(lambda v: polygamma(n - 1, v), x if x.dtype.is_float else x.astype(default_float()))
    return pullback(F.ones_like(value))[0]


def _sampling(name: str) -> None:
    def run(
        grad: Value, x: Value, grid: Value, mode: int, padding: int, align_corners: bool, output_mask: Sequence[bool]
    ) -> tuple[Value | None, ...]:
        sampled = TABLE[f"{name}.default"].run
        gradients = vjp(lambda v, g: sampled(v, g, mode, padding, align_corners), x, grid)[1](grad)
        return tuple(v if wanted else None for v, wanted in zip(gradients, output_mask, strict=True))

    enter(f"{name}_backward.default", f"the pullback of {name} with respect to x and grid", run)


_sampling("grid_sampler_2d")
_sampling("grid_sampler_3d")


@aten("_cdist_backward.default")
def cdist_backward(grad: Value, a: Value, b: Value, p: float, cdist: Value) -> Value:
    """the pullback of _cdist_forward with respect to a"""
    lead = views.broadcast([a.shape[:-2], b.shape[:-2]])
    whole = F.broadcast_to(a, (*lead, *a.shape[-2:]))
    return vjp(lambda v: TABLE["_cdist_forward.default"].run(v, b, p), whole)[1](grad)[0]


_pullback("_pdist_backward.default", "_pdist_forward.default", lambda grad, x, p, pdist: (p,))


@aten("soft_margin_loss_backward.default")
def soft_margin_loss_backward(grad: Value, x: Value, target: Value, reduction: int = 1) -> Value:
    """-target*sigmoid(-target*x)*grad, without cancellation where the loss is small"""
    gradient = -target * F.sigmoid(-target * x) * grad
    return gradient / float(max(x.size, 1)) if reduction == 1 else gradient


@aten("convolution_backward.default")
def convolution_backward(
    grad: Value,
    x: Value,
    weight: Value,
    bias_sizes: Ints | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    """the pullback of convolution with respect to x, weight and bias"""
    options = stride, padding, dilation, transposed, output_padding, groups
    dx, dw = vjp(lambda v, w: convolution(v, w, None, *options), x, weight)[1](grad)
    db = F.sum(grad, tuple(d for d in range(grad.ndim) if d != 1))
    return tuple(v if wanted else None for v, wanted in zip((dx, dw, db), output_mask, strict=True))


def _at_maxima(name: str, n: int) -> None:
    """Return the backward of a max over n dimensions whose places are its last argument."""

    def run(grad: Value, x: Value, *options: Any) -> Value:
        lead, places = x.shape[:-n], options[-1]
        flat = F.zeros_like(x).reshape((*lead, -1))
        sums = F.scatter_add(flat, -1, places.reshape((*lead, -1)), grad.reshape((*lead, -1)))
        return sums.reshape(x.shape)

    enter(f"{name}.default", "grad accumulated at the indices that the forward pass returned", run)


for _n in (2, 3):
    _at_maxima(f"max_pool{_n}d_with_indices_backward", _n)
    _at_maxima(f"adaptive_max_pool{_n}d_backward", _n)
    _at_maxima(f"fractional_max_pool{_n}d_backward", _n)


@aten("embedding_dense_backward.default")
def embedding_backward(grad: Value, indices: Value, rows: int, padding_idx: int, scale_grad_by_freq: bool) -> Value:
    """grad accumulated at the rows that were read"""
    places = indices.reshape((-1,))
    source = grad.reshape((places.size, grad.shape[-1]))
    if scale_grad_by_freq:
        counts = F.index_add(builder.full((rows,), 0.0, grad.dtype), 0, places, F.ones_like(places, dtype=grad.dtype))
        source = source / F.index_select(counts, 0, places).reshape((-1, 1))
    if padding_idx >= 0:
        source = builder.where((places == padding_idx).reshape((-1, 1)), 0.0, source)
    return F.index_add(builder.full((rows, grad.shape[-1]), 0.0, grad.dtype), 0, places, source)


@aten("softshrink_backward.default hardshrink_backward.default")
def shrink_backward(grad: Value, x: Value, lambd: float) -> Value:
    """0 where -lambd <= x <= lambd, grad elsewhere"""
    bound = convert(lambd, x.dtype)
    return each((grad, x), lambda g, e: builder.where((e >= -bound) & (e <= bound), 0.0, g))


@aten("threshold_backward.default")
def threshold_backward(grad: Value, x: Value, threshold: float) -> Value:
    """0 where x <= threshold, grad elsewhere"""
    return each((grad, x), lambda g, e: builder.where(e <= threshold, 0.0, g)).astype(grad.dtype)
