"""Compute linear layers and (transposed) convolutions, under torch.nn.functional's names and argument orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.base.arguments import Size
from einsmith.base.dtypes import promote
from einsmith.base.errors import ShapeError
from einsmith.ops.common import ints, tensor
from einsmith.ops.operator import operator
from einsmith.ops.rank import by_rank
from einsmith.ops.window import Ints, Window, apply_transpose, read
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


@operator()
def linear(input: Any, weight: Any, bias: Any = None) -> Value:
    """Multiply input [..., I] by weight [O, I] transposed and add bias [O]: [..., O]. A weight [I] gives [...]."""
    x, w = tensor(input, "linear", "input"), tensor(weight, "linear", "weight", rank=(1, 2))
    if x.ndim < 1 or x.shape[-1] != w.shape[-1]:
        raise ShapeError(f"linear: 'input' {x.shape} and 'weight' {w.shape} differ in their last extents")
    out = w.shape[:-1]
    lead = x.ndim - 1
    (k,) = builder.axes(w.shape[-1])
    y = builder.compute((*x.shape[:-1], *out), lambda *i: builder.sum(x[(*i[:lead], k)] * w[(*i[lead:], k)], over=k))
    if bias is None:
        return y
    c = tensor(bias, "linear", "bias")
    if c.shape != out:
        raise ShapeError(f"linear: 'bias' has shape {c.shape}, needs {out}")
    return builder.compute(y.shape, lambda *i: y[i] + c[i[lead:]])


def same_padding(kernel: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    """Return (before, after) of each dimension, with which a convolution at stride 1 keeps the extents."""
    total = [g * (k - 1) for g, k in zip(dilation, kernel, strict=True)]
    return [(t // 2, t - t // 2) for t in total]


def _groups(name: str, groups: int, channels: int, per_group: int, what: str) -> None:
    if groups < 1 or channels != per_group * groups:
        raise ShapeError(f"{name}: 'input' has {channels} channels, {what} in each of groups={groups!r}")


def _correlate(x: Value, w: Value, windows: Sequence[Window], groups: int) -> Value:
    """Cross-correlate x [B, C, *extents] with w [O, C/groups, *kernel]."""
    batch, out, inner = x.shape[0], w.shape[0], w.shape[1]
    space = tuple(v.count for v in windows)
    per = out // groups
    c, *r = builder.axes(inner, *w.shape[2:])
    if groups == 1:
        return builder.compute(
            (batch, out, *space),
            lambda b, k, *p: builder.sum(read(x, (b, c), windows, p, r, 0) * w[(k, c, *r)], over=(c, *r)),
        )
    # The group is an axis of its own, so that every index stays a sum of axes.
    z = builder.compute(
        (batch, groups, per, *space),
        lambda b, g, k, *p: builder.sum(
            read(x, (b, inner * g + c), windows, p, r, 0) * w[(per * g + k, c, *r)], over=(c, *r)
        ),
    )
    return z.reshape((batch, out, *space))


def _add_bias(name: str, y: Value, bias: Any) -> Value:
    if bias is None:
        return y
    v = tensor(bias, name, "bias")
    if v.shape != y.shape[1:2]:
        raise ShapeError(f"{name}: 'bias' has shape {v.shape}, needs {y.shape[1:2]}")
    return builder.compute(y.shape, lambda b, k, *p: y[(b, k, *p)] + v[k])


def _conv(
    name: str,
    n: int,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Value:
    """Cross-correlate input [B, C, {space}] (or [C, {space}]) with weight [O, C/groups, ...], which has the window's
    extents last, and add bias [O].

    `padding` is zeros on both sides: an int, an int for each dimension of space, 'valid' (none) or 'same' (the input's
    extents; stride 1).
    """
    x = tensor(input, name, "input", rank=(n + 1, n + 2))
    w = tensor(weight, name, "weight", rank=n + 2)
    if x.ndim == n + 1:
        y = _conv(name, n, x.reshape((1, *x.shape)), w, bias, stride, padding, dilation, groups)
        return y.reshape(y.shape[1:])
    kernel = w.shape[2:]
    steps = ints(stride, n, name, "stride")
    gaps = ints(dilation, n, name, "dilation")
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise ShapeError(f"{name}: padding={padding!r} must be 'same', 'valid' or ints")
        if padding == "same" and any(s != 1 for s in steps):
            raise ShapeError(f"{name}: padding='same' needs stride 1")
        pads = same_padding(kernel, gaps) if padding == "same" else [(0, 0)] * n
    else:
        pads = [(p, p) for p in ints(padding, n, name, "padding", least=0)]
    _groups(name, groups, x.shape[1], w.shape[1], f"'weight' {w.shape} takes {w.shape[1]}")
    if w.shape[0] % groups:
        raise ShapeError(f"{name}: 'weight' {w.shape} gives {w.shape[0]} channels, no multiple of groups={groups}")
    windows = [
        Window(e, k, s, lo, hi, g, name)
        for e, k, s, (lo, hi), g in zip(x.shape[2:], kernel, steps, pads, gaps, strict=True)
    ]
    return _add_bias(name, _correlate(x, w, windows, groups), bias)


conv1d, conv2d, conv3d = by_rank(_conv)


def _conv_transpose(
    name: str,
    n: int,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Value:
    """Return the transpose of a convolution as a function of its input, plus bias [O]: input [B, C, {space}] (or
    [C, {space}]) and weight [C, O/groups, ...], which has the window's extents last, give O channels of extents
    (extent - 1)*stride - 2*padding + dilation*(window - 1) + 1 + output_padding.

    Several inputs of a convolution have extents that give one extent of its output; `output_padding`, below stride or
    dilation, says by how much the result is larger than the smallest. Source: Dumoulin and Visin 2016, A guide to
    convolution arithmetic, section 4.
    """
    x = tensor(input, name, "input", rank=(n + 1, n + 2), kind="float")
    w = tensor(weight, name, "weight", rank=n + 2)
    if x.ndim == n + 1:
        x = x.reshape((1, *x.shape))
        y = _conv_transpose(name, n, x, w, bias, stride, padding, output_padding, groups, dilation)
        return y.reshape(y.shape[1:])
    x = x.astype(promote(x.dtype, w.dtype))
    kernel, space = w.shape[2:], x.shape[2:]
    steps = ints(stride, n, name, "stride")
    gaps = ints(dilation, n, name, "dilation")
    pads = ints(padding, n, name, "padding", least=0)
    more = ints(output_padding, n, name, "output_padding", least=0)
    if any(m >= max(s, g) for m, s, g in zip(more, steps, gaps, strict=True)):
        raise ShapeError(f"{name}: output_padding={output_padding!r} must be below stride={steps} or dilation={gaps}")
    if groups < 1 or w.shape[0] % groups:
        raise ShapeError(f"{name}: 'weight' {w.shape} takes {w.shape[0]} channels, no multiple of groups={groups!r}")
    if x.shape[1] != w.shape[0]:
        raise ShapeError(f"{name}: 'input' has {x.shape[1]} channels and 'weight' {w.shape} takes {w.shape[0]}")
    whole = [(e - 1) * s + g * (k - 1) + 1 + m for e, s, g, k, m in zip(space, steps, gaps, kernel, more, strict=True)]
    extents = [e - 2 * p for e, p in zip(whole, pads, strict=True)]
    if any(e < 1 for e in (*space, *extents)):
        raise ShapeError(f"{name}: 'input' {x.shape} with padding={padding!r} would give extents {tuple(extents)}")
    windows = [
        Window(e, k, s, p, p, g, name, count=c)
        for e, k, s, p, g, c in zip(extents, kernel, steps, pads, gaps, space, strict=True)
    ]
    shape = (x.shape[0], w.shape[1] * groups, *extents)
    return _add_bias(name, apply_transpose(lambda y: _correlate(y, w, windows, groups), shape, x), bias)


conv_transpose1d, conv_transpose2d, conv_transpose3d = by_rank(_conv_transpose)


@operator(aten="conv_tbc.default")
def conv_tbc(input: Any, weight: Any, bias: Any, pad: Size = 0) -> Value:
    """Return the correlation along the first dimension: input [T, B, C], weight [K, C, O], bias [O] -> [T', B, O]."""
    x = tensor(input, "conv_tbc", "input", rank=3, kind="float")
    w = tensor(weight, "conv_tbc", "weight", rank=3, kind="float")
    return conv1d(x.transpose(1, 2, 0), w.transpose(2, 1, 0), bias, padding=pad).transpose(2, 0, 1)
