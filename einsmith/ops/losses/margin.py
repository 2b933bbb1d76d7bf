"""Losses with a margin, under torch.nn.functional's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.ops.common import each, tensor
from einsmith.ops.distance import pairwise_distance
from einsmith.ops.losses.reduction import check_reduction, class_weight, equal_shapes, floats, positive, reduce
from einsmith.ops.operator import operator
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def _above(x: Any) -> Any:
    """Return max(x, 0), the hinge, with derivative 1 at 0 as `clamp` and torch have it."""
    return builder.where(x < 0, 0.0, x)


@operator("MarginRankingLoss")
def margin_ranking_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0.0, *, reduction: str = "mean"
) -> Value:
    """Return max(0, -target*(input1 - input2) + margin): target 1 wants input1 above input2, -1 below."""
    check_reduction("margin_ranking_loss", reduction)
    a, b, y = floats("margin_ranking_loss", input1=input1, input2=input2, target=target)
    if not a.ndim == b.ndim == y.ndim:
        raise ShapeError(
            f"margin_ranking_loss: 'input1' {a.shape}, 'input2' {b.shape} and 'target' {y.shape} differ in rank"
        )
    return reduce(each((a, b, y), lambda p, q, t: _above(margin - t * (p - q))), reduction)


@operator("HingeEmbeddingLoss")
def hinge_embedding_loss(input: Any, target: Any, margin: float = 1.0, *, reduction: str = "mean") -> Value:
    """Return input where the target is 1, max(0, margin - input) where it is -1."""
    check_reduction("hinge_embedding_loss", reduction)
    x, y = floats("hinge_embedding_loss", input=input, target=target)

    def loss(a: Any, t: Any) -> Any:
        return builder.where(t == 1, 0.0, _above(margin - a)) + builder.where(t == -1, 0.0, a)

    return reduce(each((x, y), loss), reduction)


@operator("SoftMarginLoss")
def soft_margin_loss(input: Any, target: Any, *, reduction: str = "mean") -> Value:
    """Return log(1 + exp(-target*input)), the target being 1 or -1; without overflow."""
    check_reduction("soft_margin_loss", reduction)
    x, y = floats("soft_margin_loss", input=input, target=target)
    return reduce(each((x, y), lambda a, t: builder.softplus(-(t * a))), reduction)


def _classes(name: str, x: Value) -> Value:
    """Return the input as [B, C]. Raises ShapeError."""
    if x.ndim not in (1, 2) or not x.shape[-1]:
        raise ShapeError(f"{name}: 'input' has shape {x.shape}; it needs [B, C] or [C]")
    return x.reshape((-1, x.shape[-1])) if x.ndim == 2 else x.reshape((1, *x.shape))


@operator("MultiMarginLoss")
def multi_margin_loss(
    input: Any, target: Any, p: int = 1, margin: float = 1.0, weight: Any = None, *, reduction: str = "mean"
) -> Value:
    """Sum max(0, margin - x[y] + x[c])**p over the classes c other than y, divided by their number C.

    input [B, C] or [C], target: classes [B] or []; weight [C] scales the terms of a target class.
    """
    name = "multi_margin_loss"
    check_reduction(name, reduction)
    if p not in (1, 2):
        raise ArgumentError(f"{name}: p={p!r} must be 1 or 2")
    scores = tensor(input, name, "input", kind="float")
    x = _classes(name, scores)
    y = tensor(target, name, "target", kind="int")
    if y.shape not in (scores.shape[:-1], *([(1,)] if scores.ndim == 1 else [])):
        raise ShapeError(
            f"{name}: 'target' has shape {y.shape}; for 'input' {scores.shape} it needs {scores.shape[:-1]}"
        )
    single = not y.ndim
    y = y.reshape((x.shape[0],))
    w = class_weight(name, weight, x.shape[1], [()])
    (c,) = builder.axes(x.shape[1])

    def row(b: Any) -> Any:
        h = _above(margin - x[b, y[b]] + x[b, c])
        h = h * h if p == 2 else h
        return builder.sum(builder.where(c == y[b], 0.0, h if w is None else w[y[b]] * h), over=c) * (1 / x.shape[1])

    loss = reduce(builder.compute((x.shape[0],), row), reduction)
    return loss.reshape(()) if single else loss


def _ended(t: Value) -> Value:
    """Return how many negative numbers rows of classes [B, C] have up to each place."""
    (q,) = builder.axes(t.shape[1])
    return builder.compute(t.shape, lambda b, k: builder.sum(builder.where((q <= k) & (t[b, q] < 0), 1, 0), over=q))


def listed_classes(t: Value) -> Value:
    """Return how often rows [B, C] list each class before their first negative number."""
    (q,) = builder.axes(t.shape[1])
    ended = _ended(t)
    return builder.compute(
        t.shape, lambda b, k: builder.sum(builder.where((ended[b, q] == 0) & (t[b, q] == k), 1, 0), over=q)
    )


@operator("MultiLabelMarginLoss", settings="reduction")
def multilabel_margin_loss(input: Any, target: Any, *, reduction: str = "mean") -> Value:
    """Sum max(0, 1 - (x[y] - x[c])) over the target classes y and the other classes c, divided by C.

    target, of input's shape [B, C] or [C], lists classes; the first -1 ends a row's list.
    """
    name = "multilabel_margin_loss"
    check_reduction(name, reduction)
    scores = tensor(input, name, "input", kind="float")
    t = tensor(target, name, "target", kind="int")
    equal_shapes(name, scores, t)
    x = _classes(name, scores)
    t = t.reshape(x.shape)
    batch, classes = x.shape
    j, c = builder.axes(classes, classes)
    ended, listed = _ended(t), listed_classes(t)

    def row(b: Any) -> Any:
        term = _above(1 - (x[b, t[b, j]] - x[b, c]))
        return builder.sum(builder.where((ended[b, j] == 0) & (listed[b, c] == 0), term, 0.0), over=(j, c)) * (
            1 / classes
        )

    loss = reduce(builder.compute((batch,), row), reduction)
    return loss.reshape(()) if scores.ndim == 1 else loss


@operator("MultiLabelSoftMarginLoss")
def multilabel_soft_margin_loss(input: Any, target: Any, weight: Any = None, *, reduction: str = "mean") -> Value:
    """Return the mean over the classes of the binary cross entropy of sigmoid(input). weight [C] scales each class."""
    name = "multilabel_soft_margin_loss"
    check_reduction(name, reduction)
    x, y = floats(name, input=input, target=target)
    equal_shapes(name, x, y)
    if not x.ndim:
        raise ShapeError(f"{name}: 'input' needs a dimension of classes")
    loss = each((x, y), lambda a, t: (1 - t) * a + builder.softplus(-a))
    w = None if weight is None else tensor(weight, name, "weight", kind="float")
    if w is not None:
        loss = each((loss, w), lambda a, b: a * b)
        if loss.shape != x.shape:
            raise ShapeError(f"{name}: 'weight' {w.shape} does not broadcast to 'input' {x.shape}")
    (c,) = builder.axes(x.shape[-1])
    return reduce(builder.compute(x.shape[:-1], lambda *i: builder.mean(loss[(*i, c)], over=c)), reduction)


def _triplet(
    name: str, anchor: Any, near: Any, far: Any, distance: Callable, margin: float, swap: bool, reduction: str
) -> Value:
    check_reduction(name, reduction)
    positive(name, margin=margin)
    a, p, n = (tensor(x, name, s, kind="float") for x, s in ((anchor, "anchor"), (near, "positive"), (far, "negative")))
    if not a.ndim == p.ndim == n.ndim:
        raise ShapeError(f"{name}: 'anchor' {a.shape}, 'positive' {p.shape} and 'negative' {n.shape} differ in rank")

    def between(x: Value, y: Value) -> Value:
        return tensor(distance(x, y), name, "distance_function")

    other = between(a, n)
    if swap:
        other = builder.minimum(other, between(p, n))
    return reduce(each((between(a, p), other), lambda u, v: _above(margin + u - v)), reduction)


@operator("TripletMarginLoss")
def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    *,
    reduction: str = "mean",
) -> Value:
    """Return max(0, |anchor - positive| - |anchor - negative| + margin) for vectors [B, D] or [D], in the p-norm.

    swap: with the smaller of the negative's distances to the anchor and to the positive. Source: Balntas et al. 2016.
    """
    return _triplet(
        "triplet_margin_loss",
        anchor,
        positive,
        negative,
        lambda x, y: pairwise_distance(x, y, p, eps),
        margin,
        swap,
        reduction,
    )


@operator("TripletMarginWithDistanceLoss")
def triplet_margin_with_distance_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    *,
    distance_function: Callable | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Value:
    """Return `triplet_margin_loss` with another distance: a function of two tensors, by default pairwise_distance."""
    return _triplet(
        "triplet_margin_with_distance_loss",
        anchor,
        positive,
        negative,
        distance_function or pairwise_distance,
        margin,
        swap,
        reduction,
    )


@operator("CosineEmbeddingLoss")
def cosine_embedding_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0.0, *, reduction: str = "mean"
) -> Value:
    """Return 1 - cos(input1, input2) where the target is 1, max(0, cos - margin) where it is -1. [B, D] or [D]; target
    [B]."""
    name = "cosine_embedding_loss"
    check_reduction(name, reduction)
    a, b = floats(name, input1=input1, input2=input2)
    y = tensor(target, name, "target")
    if a.ndim not in (1, 2) or a.ndim != b.ndim or y.ndim != a.ndim - 1:
        raise ShapeError(
            f"{name}: 'input1' {a.shape} and 'input2' {b.shape} need [B, D] or [D], and 'target' {y.shape} [B] or []"
        )
    e = 1e-12  # as in torch: gives the root of a zero vector a derivative

    def total(u: Value, v: Value) -> Value:
        return builder.sum(u * v, axis=-1)

    cosine = total(a, b) / builder.sqrt((total(a, a) + e) * (total(b, b) + e))
    loss = each((cosine, y), lambda c, t: builder.where(t == 1, 1 - c, builder.where(t == -1, _above(c - margin), 0.0)))
    return reduce(loss, reduction)


@operator()
def margin_loss(lengths: Any, target: Any, present: float = 0.9, absent: float = 0.1, weight: float = 0.5) -> Value:
    """Return the loss of capsule networks, 0-d, for lengths [B, C] and the samples' classes [B].

    It is the mean over samples of max(0, present - n)**2 for the class's length n, plus `weight` times the sum of
    max(0, n - absent)**2 over the other lengths n. Source: Sabour et al. 2017, arXiv 1710.09829, equation 4.
    """
    name = "margin_loss"
    x, y = tensor(lengths, name, "lengths", kind="float"), tensor(target, name, "target", kind="int")
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise ShapeError(f"{name}: 'lengths' {x.shape} and 'target' {y.shape} need [B, C] and [B]")
    b, c = builder.axes(*x.shape)

    def missing(e: Any) -> Any:
        short = builder.relu(present - e)
        return short * short

    def exceeding(e: Any) -> Any:
        long = builder.relu(e - absent)
        return weight * long * long

    # The label is used as an index, so that one out of range is an error, as in `cross_entropy`.
    own = builder.compute((), lambda: builder.sum(missing(x[b, y[b]]) - exceeding(x[b, y[b]]), over=b))
    return (own + builder.compute((), lambda: builder.sum(exceeding(x[b, c]), over=(b, c)))) * (1.0 / x.shape[0])
