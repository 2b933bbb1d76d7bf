"""Losses of classes, under torch.nn.functional's names: cross entropy."""

from __future__ import annotations

from typing import Any

from einsmith.base.arguments import Share
from einsmith.base.errors import ShapeError
from einsmith.ops.common import tensor
from einsmith.ops.conv import linear
from einsmith.ops.losses.reduction import check_reduction, class_weight
from einsmith.ops.operator import operator
from einsmith.ops.softmaxes import softmax_parts
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

IGNORED = -100
"""Label that is ignored by default."""


def _labels(name: str, x: Value, target: Any, weight: Any) -> tuple[Value, Value, Value | None]:
    """Return (x as [B, C, ...], labels as [B, ...], class weights), checked against each other."""
    y = tensor(target, name, "target", kind="int")
    wanted = x.shape[:1] + x.shape[2:] if x.ndim > 1 else ()
    if x.ndim == 0 or y.shape != wanted:
        raise ShapeError(f"{name}: 'target' has shape {y.shape}; for 'input' {x.shape} it needs {wanted}")
    classes = x.shape[1] if x.ndim > 1 else x.shape[0]
    w = class_weight(name, weight, classes)
    return (x.reshape((1, *x.shape)), y.reshape((1,)), w) if x.ndim == 1 else (x, y, w)


def _reduce(y: Value, w: Value | None, ignore: int | None, reduction: str, row: Any) -> Value:
    """Return `row(i, label)` times the label's weight, 0 where the label is ignored; reduced over all i.

    The mean divides by the sum of the weights of the labels that count.
    """

    def kept(i: tuple, e: Any) -> Any:
        return e if ignore is None else builder.where(y[i] != ignore, e, 0)

    def weighted(i: tuple) -> Any:
        e = row(i, y[i])
        return kept(i, e if w is None else w[y[i]] * e)

    if reduction == "none":
        return builder.compute(y.shape, lambda *i: weighted(i))
    over = builder.axes(*y.shape)
    if reduction == "mean" and w is None and ignore is None:
        return builder.compute((), lambda: builder.mean(weighted(over), over=over))
    total = builder.compute((), lambda: builder.sum(weighted(over), over=over))
    if reduction == "sum":
        return total
    return total / builder.compute((), lambda: builder.sum(kept(over, 1.0 if w is None else w[y[over]]), over=over))


@operator("CrossEntropyLoss")
def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int | None = IGNORED,
    reduction: str = "mean",
    label_smoothing: Share = 0.0,
) -> Value:
    """Return -log softmax(input) at the target class, averaged ("mean"), summed ("sum") or unreduced ("none").

    input: logits [B, C], [B, C, ...] or [C]; target: classes as integers [B], [B, ...] or [], or probabilities: floats
    of input's shape. Labels equal to `ignore_index` count for nothing (None: none is ignored); any other outside
    [0, C) is an IndexError at the call. weight [C] scales each class; the mean divides by the weights' sum.
    """
    check_reduction("cross_entropy", reduction)
    x = tensor(input, "cross_entropy", "input", kind="float")
    t = tensor(target, "cross_entropy", "target")
    if t.dtype.is_float:
        return _soft_cross_entropy(x, t, weight, reduction, label_smoothing)
    single = x.ndim == 1
    x, y, w = _labels("cross_entropy", x, t, weight)
    top, total = softmax_parts(x, 1)

    def negative_log(i: tuple, c: Any) -> Any:
        return builder.log(total[i]) - (
            x[(i[0], c, *i[1:])] - top[i]
        )  # exact differences: small losses keep their digits

    loss = _reduce(y, w, ignore_index, reduction, negative_log)
    if label_smoothing:
        (k,) = builder.axes(x.shape[1])
        spread = builder.compute(
            y.shape, lambda *i: builder.sum(negative_log(i, k) * (1.0 if w is None else w[k]), over=k)
        )
        even = _reduce(y, None, ignore_index, "none" if reduction == "none" else "sum", lambda i, c: spread[i])
        if reduction == "mean":
            even = even / _reduce(y, w, ignore_index, "sum", lambda i, c: 1.0)
        loss = loss * (1 - label_smoothing) + even * (label_smoothing / x.shape[1])
    return loss.reshape(()) if single and reduction == "none" else loss


def _soft_cross_entropy(x: Value, t: Value, weight: Any, reduction: str, label_smoothing: Share) -> Value:
    """Return cross entropy with class probabilities as the target; the mean is over all but the classes."""
    if t.shape != x.shape or x.ndim == 0:
        raise ShapeError(
            f"cross_entropy: 'target' {t.shape} holds probabilities and needs the shape of 'input', {x.shape}"
        )
    dim = 0 if x.ndim == 1 else 1
    classes = x.shape[dim]
    w = class_weight("cross_entropy", weight, classes)
    top, total = softmax_parts(x, dim)
    rest = x.shape[:dim] + x.shape[dim + 1 :]
    (k,) = builder.axes(classes)

    def row(i: tuple) -> Any:
        at = (*i[:dim], k, *i[dim:])
        p = t[at] if not label_smoothing else t[at] * (1 - label_smoothing) + label_smoothing / classes
        e = p * (builder.log(total[i]) - (x[at] - top[i]))
        return builder.sum(e if w is None else w[k] * e, over=k)

    losses = builder.compute(rest, lambda *i: row(i))
    return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()


@operator()
def linear_cross_entropy(
    input: Any,
    linear_weight: Any,
    target: Any,
    *,
    linear_bias: Any = None,
    weight: Any = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: Share = 0.0,
) -> Value:
    """Return the `cross_entropy` of input W^T + b and a target: input [B, I] or [I], W [C, I] or [C, ..., I].

    linear_bias: [C] or [C, ...]. ignore_index: None is -100 for classes, as in PyTorch. The other arguments are
    `cross_entropy`'s.
    """
    name = "linear_cross_entropy"
    x = tensor(input, name, "input", rank=(1, 2), kind="float")
    w = tensor(linear_weight, name, "linear_weight", kind="float")
    if w.ndim < 2 or w.shape[-1] != x.shape[-1]:
        raise ShapeError(
            f"{name}: 'linear_weight' has shape {w.shape}, needs [C, {x.shape[-1]}] or [C, ..., {x.shape[-1]}]"
        )
    b = None
    if linear_bias is not None:
        b = tensor(linear_bias, name, "linear_bias", kind="float")
        if b.shape != w.shape[:-1]:
            raise ShapeError(f"{name}: 'linear_bias' has shape {b.shape}, needs {w.shape[:-1]}")
        b = b.reshape((-1,))
    logits = linear(x, w.reshape((-1, w.shape[-1])), b).reshape((*x.shape[:-1], *w.shape[:-1]))
    ignored = IGNORED if ignore_index is None else ignore_index
    return cross_entropy(
        logits, target, weight, ignore_index=ignored, reduction=reduction, label_smoothing=label_smoothing
    )


@operator("NLLLoss")
def nll_loss(
    input: Any, target: Any, weight: Any = None, *, ignore_index: int | None = IGNORED, reduction: str = "mean"
) -> Value:
    """Return -input at the target class, for log-probabilities as input; shapes and options as for `cross_entropy`."""
    check_reduction("nll_loss", reduction)
    x = tensor(input, "nll_loss", "input", kind="float")
    single = x.ndim == 1
    x, y, w = _labels("nll_loss", x, target, weight)
    loss = _reduce(y, w, ignore_index, reduction, lambda i, c: -x[(i[0], c, *i[1:])])
    return loss.reshape(()) if single and reduction == "none" else loss
