"""Normalization: by statistics of a batch, of a sample, of groups of channels; by norms of neighbours or rows.

Variances are means of squared differences from the mean, in a second sweep: E[x^2] - E[x]^2 cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from einsmith.base.arguments import Count, Magnitude
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.ops.common import dimension, merge, tensor, without
from einsmith.ops.distance import norm
from einsmith.ops.group import group_sum, sums_over_group
from einsmith.ops.operator import operator
from einsmith.ops.tensor import cat
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def moments(x: Value, dims: Sequence[int]) -> tuple[Value, Value]:
    """Return mean and variance of x over `dims`."""
    shape = without(x.shape, dims)
    over = builder.axes(*(x.shape[d] for d in dims))

    def at(i: Sequence[Any]) -> Any:
        return x[merge(x.ndim, dims, over, i)]

    mean = builder.compute(shape, lambda *i: builder.mean(at(i), over=over))

    def square(*i: Any) -> Any:
        centred = at(i) - (mean[i] if i else mean)
        return builder.mean(centred * centred, over=over)

    return mean, builder.compute(shape, square)


def _vector(x: Any, name: str, what: str, shape: tuple[int, ...]) -> Value | None:
    if x is None:
        return None
    v = tensor(x, name, what)
    if v.shape != shape:
        raise ShapeError(f"{name}: {what!r} has shape {v.shape}, needs {shape}")
    return v


def _scale(variance: Value, weight: Value | None, eps: float) -> Value:
    """Return weight/sqrt(variance + eps), of vectors [C]."""
    scale = builder.rsqrt(variance + eps)
    return scale if weight is None else scale * weight


def _by_channel(x: Value, mean: Value, variance: Value, weight: Value | None, bias: Value | None, eps: float) -> Value:
    """Return (x - mean)*weight/sqrt(variance + eps) + bias, of x [B, C, ...] and vectors [C]."""
    scale = _scale(variance, weight, eps)

    def body(b: Any, c: Any, *p: Any) -> Any:
        y = (x[(b, c, *p)] - mean[c]) * scale[c]
        return y if bias is None else y + bias[c]

    return builder.compute(x.shape, body)


def _by_constants(
    x: Value, mean: Value, variance: Value, weight: Value | None, bias: Value | None, eps: float
) -> Value:
    """Return `_by_channel` of vectors that do not depend on x, which leave one multiply-add an element."""
    scale = _scale(variance, weight, eps)
    shift = -mean * scale if bias is None else bias - mean * scale
    return builder.compute(x.shape, lambda b, c, *p: x[(b, c, *p)] * scale[c] + shift[c])


def _update(running: Any, value: Value, momentum: Any) -> None:
    """Assign (1 - momentum)*buffer + momentum*value to a module's buffer when the step ends; ignore arrays."""
    if hasattr(running, "assign"):
        old = builder.as_value(running)
        running.assign(old * (1 - momentum) + value.astype(old.dtype) * momentum)


def _batch_norm(
    name: str,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any,
    bias: Any,
    training: bool,
    momentum: float | Value | None,
    eps: float,
    of_group: bool = False,
) -> Value:
    """Return what `batch_norm` does; of_group: with the statistics of all processes of the group."""
    x = tensor(input, name, "input", kind="float")
    if x.ndim < 2:
        raise ShapeError(f"{name}: 'input' needs 2 dimensions or more, got shape {x.shape}")
    shape = x.shape[1:2]
    w, v = _vector(weight, name, "weight", shape), _vector(bias, name, "bias", shape)
    means, variances = (
        _vector(y, name, n, shape) for n, y in (("running_mean", running_mean), ("running_var", running_var))
    )
    if not training:
        if means is None or variances is None:
            raise ArgumentError(f"{name}: evaluation needs 'running_mean' and 'running_var'")
        return _by_constants(x, means, variances, w, v, eps)
    if not x.size:
        return x
    mean, variance = moments(x, (0, *range(2, x.ndim)))
    own = x.size // shape[0]
    if of_group:
        mean, variance, unbiased = _group_moments(mean, variance, own)
    elif own == 1:
        raise ShapeError(f"{name}: more than one value per channel is needed in training, got shape {x.shape}")
    else:
        unbiased = variance * (own / (own - 1))
    _update(running_mean, mean, momentum)
    _update(running_var, unbiased, momentum)
    return _by_channel(x, mean, variance, w, v, eps)


def _group_moments(mean: Value, variance: Value, own: int) -> tuple[Value, Value, Value]:
    """Return mean, variance and unbiased variance [C] over all processes of the group, from those of this one's `own`
    values of each channel. They are put together in float64."""
    channels, kind = mean.shape[0], mean.dtype.arithmetic.name
    mean, variance = mean.astype("float64"), variance.astype("float64")
    total = group_sum(cat([mean * own, (variance + mean * mean) * own, builder.full((1,), float(own), "float64")]))
    count = total[2 * channels]
    mean = total[:channels] / count
    variance = builder.maximum(total[channels : 2 * channels] / count - mean * mean, 0.0)
    unbiased = variance * (count / builder.maximum(count - 1, 1.0))
    return mean.astype(kind), variance.astype(kind), unbiased


@operator()
def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float | Value | None = 0.1,
    eps: Magnitude = 1e-5,
) -> Value:
    """Return (x - mean)/sqrt(variance + eps)*weight + bias for each channel of input [B, C, ...]; the vectors are [C].

    In training mean and variance are the batch's, else `running_mean` and `running_var`. In training, running ones that
    are buffers of a module become (1 - momentum)*running + momentum*(the batch's mean, its unbiased variance) when the
    step ends; arrays have values, not places, and are not changed. momentum: a number or a 0-d tensor. Raises
    ShapeError in training for one value per channel. Source: Ioffe and Szegedy 2015, arXiv 1502.03167.
    """
    return _batch_norm("batch_norm", input, running_mean, running_var, weight, bias, training, momentum, eps)


@operator()
def sync_batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float | Value | None = 0.1,
    eps: Magnitude = 1e-5,
) -> Value:
    """Return `batch_norm` with the statistics of the batches of all processes of the group that train together.

    A layer takes one message in the forward pass and one in the backward pass. Every process sends the mean and the sum
    of squares of its batch in float64, from which the whole variance follows without cancellation (Chan, Golub and
    LeVeque 1979). Outside of training steps in a group this is `batch_norm`.
    """
    across = training and sums_over_group()
    name = "sync_batch_norm" if across else "batch_norm"
    return _batch_norm(name, input, running_mean, running_var, weight, bias, training, momentum, eps, across)


@operator()
def instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float | Value | None = 0.1,
    eps: Magnitude = 1e-5,
) -> Value:
    """Return (x - mean)/sqrt(variance + eps)*weight + bias for each sample and channel of input [B, C, ...].

    With `use_input_stats` mean and variance are those of the sample's channel, and running ones are updated, as
    `batch_norm` does, by their means over the batch; else they are `running_mean` and `running_var`. Raises ShapeError
    for one element per channel. Source: Ulyanov et al. 2016, arXiv 1607.08022.
    """
    x = tensor(input, "instance_norm", "input", kind="float")
    if x.ndim < 3:
        raise ShapeError(f"instance_norm: 'input' needs 3 dimensions or more, got shape {x.shape}")
    shape = x.shape[1:2]
    w, v = _vector(weight, "instance_norm", "weight", shape), _vector(bias, "instance_norm", "bias", shape)
    means = _vector(running_mean, "instance_norm", "running_mean", shape)
    variances = _vector(running_var, "instance_norm", "running_var", shape)
    if not use_input_stats:
        if means is None or variances is None:
            raise ArgumentError("instance_norm: without input statistics 'running_mean' and 'running_var' are needed")
        return _by_constants(x, means, variances, w, v, eps)
    if not x.size:
        return x
    count = prod(x.shape[2:])
    if count == 1:
        raise ShapeError(f"instance_norm: more than one element per channel is needed, got shape {x.shape}")
    mean, variance = moments(x, range(2, x.ndim))
    _update(running_mean, mean.mean(0), momentum)
    _update(running_var, variance.mean(0) * (count / (count - 1)), momentum)
    scale = builder.rsqrt(variance + eps)
    if w is not None:
        scale = scale * w

    def body(b: Any, c: Any, *p: Any) -> Any:
        y = (x[(b, c, *p)] - mean[b, c]) * scale[b, c]
        return y if v is None else y + v[c]

    return builder.compute(x.shape, body)


def _trailing(x: Value, name: str, normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return `normalized_shape`, which are the last extents of x. Raises ShapeError where they are not."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or x.shape[-len(shape) :] != shape:
        raise ShapeError(f"{name}: 'input' {x.shape} does not end with normalized_shape={shape}")
    if 0 in shape:
        raise ShapeError(f"{name}: normalized_shape={shape} has no elements")
    return shape


@operator()
def layer_norm(
    input: Any, normalized_shape: int | Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Value:
    """Return (x - mean)/sqrt(variance + eps)*weight + bias over the last dimensions, whose extents are
    `normalized_shape`, as are those of weight and bias. Source: Ba et al. 2016, arXiv 1607.06450."""
    x = tensor(input, "layer_norm", "input", kind="float")
    shape = _trailing(x, "layer_norm", normalized_shape)
    w, v = _vector(weight, "layer_norm", "weight", shape), _vector(bias, "layer_norm", "bias", shape)
    lead = x.ndim - len(shape)
    mean, variance = moments(x, range(lead, x.ndim))
    scale = builder.rsqrt(variance + eps)

    def body(*i: Any) -> Any:
        y = (x[i] - mean[i[:lead]]) * scale[i[:lead]] if lead else (x[i] - mean) * scale
        y = y if w is None else y * w[i[lead:]]
        return y if v is None else y + v[i[lead:]]

    return builder.compute(x.shape, body)


@operator()
def rms_norm(input: Any, normalized_shape: int | Sequence[int], weight: Any = None, eps: float | None = None) -> Value:
    """Return x/sqrt(mean(x^2) + eps)*weight over the last dimensions, whose extents are `normalized_shape`. eps: by
    default the spacing of the input's floats at 1. Source: Zhang and Sennrich 2019, arXiv 1910.07467."""
    x = tensor(input, "rms_norm", "input", kind="float")
    shape = _trailing(x, "rms_norm", normalized_shape)
    if eps is None:
        eps = float(np.finfo(x.dtype.numpy).eps)
    w = _vector(weight, "rms_norm", "weight", shape)
    lead = x.ndim - len(shape)
    over = builder.axes(*shape)

    def inverse(*i: Any) -> Any:
        return builder.rsqrt(builder.mean(x[(*i, *over)] * x[(*i, *over)], over=over) + eps)

    scale = builder.compute(x.shape[:lead], inverse)

    def body(*i: Any) -> Any:
        y = x[i] * (scale[i[:lead]] if lead else scale)
        return y if w is None else y * w[i[lead:]]

    return builder.compute(x.shape, body)


@operator()
def group_norm(input: Any, num_groups: Count, weight: Any = None, bias: Any = None, eps: Magnitude = 1e-5) -> Value:
    """Return (x - mean)/sqrt(variance + eps)*weight + bias of input [B, C, ...], where mean and variance are those of
    the sample and of the group of C/num_groups channels; weight and bias are [C]. Source: Wu and He 2018, arXiv
    1803.08494."""
    x = tensor(input, "group_norm", "input", kind="float")
    if x.ndim < 2:
        raise ShapeError(f"group_norm: 'input' needs 2 dimensions or more, got shape {x.shape}")
    channels = x.shape[1]
    if channels % num_groups:
        raise ShapeError(f"group_norm: num_groups={num_groups!r} does not divide the {channels} channels")
    shape = x.shape[1:2]
    w, v = _vector(weight, "group_norm", "weight", shape), _vector(bias, "group_norm", "bias", shape)
    if not x.size:
        return x
    per = channels // num_groups
    if x.shape[0] * per * prod(x.shape[2:]) <= 1:
        raise ShapeError(f"group_norm: more than one value per group is needed, got shape {x.shape}")
    split = x.reshape((x.shape[0], num_groups, per, *x.shape[2:]))
    mean, variance = moments(split, range(2, split.ndim))
    scale = builder.rsqrt(variance + eps)

    def body(b: Any, g: Any, c: Any, *p: Any) -> Any:
        y = (split[(b, g, c, *p)] - mean[b, g]) * scale[b, g]
        y = y if w is None else y * w[per * g + c]
        return y if v is None else y + v[per * g + c]

    return builder.compute(split.shape, body).reshape(x.shape)


@operator()
def local_response_norm(input: Any, size: Count, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Value:
    """Return x/(k + alpha*s)**beta for input [B, C, ...], s being the sum of the squares of the `size` neighbouring
    channels (size//2 before, (size - 1)//2 after) over `size`. Source: Krizhevsky et al. 2012, section 3.3."""
    x = tensor(input, "local_response_norm", "input", kind="float")
    if x.ndim < 3:
        raise ShapeError(f"local_response_norm: 'input' needs 3 dimensions or more, got shape {x.shape}")
    (r,) = builder.axes(size)

    def neighbours(b: Any, c: Any, *p: Any) -> Any:
        h = c + r - size // 2
        y = x[(b, h, *p)]
        return builder.sum(builder.where((0 <= h) & (h < x.shape[1]), y * y, 0), over=r)

    s = builder.compute(x.shape, neighbours)
    return builder.compute(x.shape, lambda *i: x[i] * (k + alpha / size * s[i]) ** -beta)


@operator()
def normalize(input: Any, p: float = 2.0, dim: int | Sequence[int] = 1, eps: Magnitude = 1e-12) -> Value:
    """Return x divided by its p-norm over `dim`, an int or several; norms below `eps` count as the constant `eps`."""
    x = tensor(input, "normalize", "input", kind="float")
    dims = [dimension(d, x.ndim, "normalize") for d in ((dim,) if isinstance(dim, int) else tuple(dim))]
    if not dims or len(set(dims)) != len(dims):
        raise ShapeError(f"normalize: dim={dim!r} must name dimensions, each once")
    if not x.size:
        return x
    norms = norm(x, p, dims)
    kept = [d for d in range(x.ndim) if d not in dims]

    def body(*i: Any) -> Any:
        n = norms[tuple(i[d] for d in kept)] if kept else norms
        return builder.where(n < eps, x[i] * (1 / eps), x[i] / n) if eps else x[i] / n

    return builder.compute(x.shape, body)
