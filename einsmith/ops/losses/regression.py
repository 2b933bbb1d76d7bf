"""Losses of numbers and of probabilities, element by element, under torch.nn.functional's names."""

from __future__ import annotations

from math import log, pi
from typing import Any

from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.ops.common import each, tensor
from einsmith.ops.losses.reduction import REDUCTIONS, check_reduction, equal_shapes, floats, positive, reduce
from einsmith.ops.operator import operator
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def _pair(name: str, input: Any, target: Any, reduction: str) -> tuple[Value, Value]:
    check_reduction(name, reduction)
    x, y = floats(name, input=input, target=target)
    equal_shapes(name, x, y)
    return x, y


def _weight_mean(name: str, loss: Value, weight: Any, reduction: str) -> Value:
    """Return the loss of each element times its weight; the mean divides by the sum of the weights."""
    if weight is None:
        return reduce(loss, reduction)
    w = tensor(weight, name, "weight", kind="float")
    if w.shape != loss.shape:
        raise ShapeError(f"{name}: 'weight' has shape {w.shape}, needs that of 'input', {loss.shape}")
    total = reduce(loss * w, "sum" if reduction == "mean" else reduction)
    return total / reduce(w, "sum") if reduction == "mean" else total


@operator("MSELoss", aten="mse_loss.default", settings="reduction")
def mse_loss(input: Any, target: Any, *, reduction: str = "mean", weight: Any = None) -> Value:
    """Return (input - target)**2, averaged over all elements, summed or unreduced. Both inputs have one shape.

    weight, of that shape too, scales each element; the mean divides by its sum.
    """
    x, y = _pair("mse_loss", input, target, reduction)

    def square(a: Any, b: Any) -> Any:
        d = a - b
        return d * d

    return _weight_mean("mse_loss", each((x, y), square), weight, reduction)


@operator("L1Loss", settings="reduction")
def l1_loss(input: Any, target: Any, *, reduction: str = "mean", weight: Any = None) -> Value:
    """Return |input - target|; reduction and weight as of `mse_loss`. The derivative at 0 is 0."""
    x, y = _pair("l1_loss", input, target, reduction)
    return _weight_mean("l1_loss", each((x, y), lambda a, b: builder.abs(a - b)), weight, reduction)


@operator("SmoothL1Loss", aten="smooth_l1_loss.default")
def smooth_l1_loss(input: Any, target: Any, *, reduction: str = "mean", beta: float = 1.0) -> Value:
    """Return d*d/(2*beta) where d = |input - target| is below beta, d - beta/2 elsewhere. Source: arXiv 1504.08083."""
    positive("smooth_l1_loss", zero=True, beta=beta)
    x, y = _pair("smooth_l1_loss", input, target, reduction)
    if beta == 0:
        return reduce(each((x, y), lambda a, b: builder.abs(a - b)), reduction)

    def loss(a: Any, b: Any) -> Any:
        d = a - b
        return builder.where(builder.abs(d) >= beta, builder.abs(d) - 0.5 * beta, d * d * (0.5 / beta))

    return reduce(each((x, y), loss), reduction)


@operator("HuberLoss", aten="huber_loss.default", settings="reduction delta")
def huber_loss(input: Any, target: Any, *, reduction: str = "mean", delta: float = 1.0, weight: Any = None) -> Value:
    """Return d*d/2 where d = |input - target| is below delta, delta*(d - delta/2) elsewhere. Source: Huber 1964.

    weight, of input's shape, scales each element; the mean divides by their number.
    """
    positive("huber_loss", delta=delta)
    x, y = _pair("huber_loss", input, target, reduction)

    def loss(a: Any, b: Any) -> Any:
        d = a - b
        return builder.where(builder.abs(d) >= delta, delta * (builder.abs(d) - 0.5 * delta), d * d * 0.5)

    losses = each((x, y), loss)
    w = None if weight is None else tensor(weight, "huber_loss", "weight", kind="float")
    if w is not None and w.shape != x.shape:
        raise ShapeError(f"huber_loss: 'weight' has shape {w.shape}, needs that of 'input', {x.shape}")
    return reduce(losses if w is None else losses * w, reduction)


def _scale(name: str, loss: Value, weight: Any, reduction: str) -> Value:
    """Return the loss of each element times its weight, which broadcasts; the mean is over the elements."""
    if weight is not None:
        w = tensor(weight, name, "weight", kind="float")
        wide = each((loss, w), lambda a, b: a * b)
        if wide.shape != loss.shape:
            raise ShapeError(f"{name}: 'weight' {w.shape} does not broadcast to 'input' {loss.shape}")
        loss = wide
    return reduce(loss, reduction)


@operator("BCELoss")
def binary_cross_entropy(input: Any, target: Any, weight: Any = None, *, reduction: str = "mean") -> Value:
    """Return -(t*log(x) + (1 - t)*log(1 - x)) of probabilities x and t; logarithms are at least -100.

    weight broadcasts to the input. By x the derivative is (x - t)/max(x*(1 - x), 1e-12), as torch has it, which is
    finite at 0 and 1.
    """
    x, y = _pair("binary_cross_entropy", input, target, reduction)

    def loss(p: Any, t: Any) -> Any:
        u, v = builder.log(p), builder.log1p(-p)
        u, v = builder.where(u < -100, -100.0, u), builder.where(v < -100, -100.0, v)
        still = builder.stop_gradient(t)
        edge = t * builder.stop_gradient(u - v) + (still * p - 0.5 * p * p) * 1e12
        twin = builder.where(p * (1 - p) < 1e-12, edge, t * u + (1 - t) * v)
        return -builder.differentiate_as(t * u + (1 - t) * v, twin)

    return _scale("binary_cross_entropy", each((x, y), loss), weight, reduction)


@operator("BCEWithLogitsLoss")
def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None
) -> Value:
    """Return the binary cross entropy of sigmoid(input), computed without overflow.

    weight broadcasts to the input; pos_weight, which broadcasts to it too, scales the term of the target alone.
    """
    name = "binary_cross_entropy_with_logits"
    x, y = _pair(name, input, target, reduction)
    if pos_weight is None:
        loss = each((x, y), lambda a, t: (1 - t) * a + builder.softplus(-a))
    else:
        q = tensor(pos_weight, name, "pos_weight", kind="float")
        loss = each((x, y, q), lambda a, t, w: (1 - t) * a + (1 + (w - 1) * t) * builder.softplus(-a))
        if loss.shape != x.shape:
            raise ShapeError(f"{name}: 'pos_weight' {q.shape} does not broadcast to 'input' {x.shape}")
    return _scale(name, loss, weight, reduction)


@operator("KLDivLoss")
def kl_div(input: Any, target: Any, *, reduction: str = "mean", log_target: bool = False) -> Value:
    """Return target*(log(target) - input) for log-probabilities `input`, 0 where the target is 0.

    log_target: the target is given as logarithms too. reduction="batchmean" divides the sum by the first extent; the
    mean is over all elements, which is not the divergence.
    """
    check_reduction("kl_div", reduction, (*REDUCTIONS, "batchmean"))
    x, y = floats("kl_div", input=input, target=target)
    if log_target:
        loss = each((x, y), lambda a, t: builder.exp(t) * (t - a))
    else:
        loss = each((x, y), lambda a, t: builder.where(t == 0, 0.0, t * builder.log(t)) - t * a)
    if reduction != "batchmean":
        return reduce(loss, reduction)
    return reduce(loss, "sum") / x.shape[0] if x.ndim else loss


@operator("PoissonNLLLoss", tensors="log_input target")
def poisson_nll_loss(
    input: Any, target: Any, log_input: bool = True, full: bool = False, *, eps: float = 1e-8, reduction: str = "mean"
) -> Value:
    """Return exp(input) - target*input, or input - target*log(input + eps) where not `log_input`.

    full: with Stirling's approximation of log(target!) for targets above 1.
    """
    check_reduction("poisson_nll_loss", reduction)
    x, y = floats("poisson_nll_loss", input=input, target=target)

    def loss(a: Any, t: Any) -> Any:
        base = builder.exp(a) - t * a if log_input else a - t * builder.log(a + eps)
        if not full:
            return base
        return base + builder.where(t > 1, t * builder.log(t) - t + 0.5 * builder.log(2 * pi * t), 0.0)

    return reduce(each((x, y), loss), reduction)


@operator("GaussianNLLLoss", settings="* full eps reduction")
def gaussian_nll_loss(
    input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Value:
    """Return (log(v) + (input - target)**2/v)/2, v being `var` and at least eps, to which no derivative answers.

    var: input's shape, that without its last extent or with 1 there, or a number. full: with log(2*pi)/2.
    """
    name = "gaussian_nll_loss"
    check_reduction(name, reduction)
    positive(name, eps=eps)
    if isinstance(var, (int, float)) and var < 0:
        raise ArgumentError(f"{name}: var={var!r} must not be negative")
    x, y = floats(name, input=input, target=target)
    v = builder.full(x.shape, var, x.dtype) if isinstance(var, (int, float)) else tensor(var, name, "var", kind="float")
    if v.shape != x.shape:
        if x.shape[:-1] == v.shape:
            v = v.reshape((*v.shape, 1))
        elif v.ndim != x.ndim or any(b not in (1, a) for a, b in zip(x.shape, v.shape, strict=True)):
            raise ShapeError(f"{name}: 'var' has shape {v.shape}, which does not fit 'input' {x.shape}")

    def loss(a: Any, t: Any, s: Any) -> Any:
        s = s + builder.stop_gradient(builder.where(s < eps, eps - s, 0.0))
        d = a - t
        return 0.5 * (builder.log(s) + d * d / s) + (0.5 * log(2 * pi) if full else 0.0)

    return reduce(each((x, y, v), loss), reduction)
