"""Compute connectionist temporal classification: the loss of a sequence with unknown alignment to its labels."""

from __future__ import annotations

from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.lang.op import op
from einsmith.ops.common import tensor
from einsmith.ops.losses.reduction import check_reduction
from einsmith.ops.operator import operator
from einsmith.tracing import builder
from einsmith.tracing.builder import Value
from einsmith.tracing.trace import current_trace

LEAST = -1e30
"""Logarithm of the probability of an impossible event; finite, so that the difference of two is not NaN."""

FORWARD = op("""
    e[t,b,s] = max(x[t,b,label[b,s]], -1e30)
    c[t,b,s] = where(t > 0, a[t-1,b,s], -1e30)
    d[t,b,s] = where(t > 0, where(s > 0, a[t-1,b,s-1], -1e30), -1e30)
    f[t,b,s] = where(t > 0, where(s > 1, where(skip[b,s], a[t-1,b,s-2], -1e30), -1e30), -1e30)
    m[t,b,s] = stop_gradient(max(c[t,b,s], max(d[t,b,s], f[t,b,s])))
    r[t,b,s] = m[t,b,s] + log(exp(c[t,b,s] - m[t,b,s]) + exp(d[t,b,s] - m[t,b,s]) + exp(f[t,b,s] - m[t,b,s]))
    n[t,b,s] = max(where(t > 0, r[t,b,s], where(s < 2, 0.0, -1e30)) + e[t,b,s], -1e30)
    a[t,b,s] = where(t > 0, where(t < steps[b], n[t,b,s], a[t-1,b,s]), n[t,b,s])
    return a
""")
"""a[t,b,s]: the logarithm of the probability of all ways to have gone through the first s+1 of the labels with blanks
between them after t+1 steps. Source: Graves et al. 2006, section 4.1."""


def _lengths(name: str, lengths: Any, what: str, batch: int) -> tuple[Value, tuple[int, ...] | None]:
    """Return lengths as a vector, and as numbers where they are known."""
    known = None
    if isinstance(lengths, (list, tuple)) and all(isinstance(n, int) for n in lengths):
        known = tuple(lengths)
    v = tensor(lengths, name, what, rank=(0, 1), kind="int").reshape((-1,))
    if v.shape != (batch,):
        raise ShapeError(f"{name}: {what!r} has shape {v.shape}, needs one length for each of {batch} sequences")
    return v.astype(dt.i32), known


@operator("CTCLoss")
def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Value:
    """Return -log of the probability of all alignments of a sequence with its labels. Source: Graves et al. 2006.

    log_probs [T, N, C] or [T, C], logarithms of probabilities; targets [N, S] or [S], or those of all sequences one
    after another, [sum of target_lengths]; input_lengths and target_lengths [N], or numbers. The mean is that of the
    losses divided by their target lengths. A sequence that has no alignment gives infinity, without a gradient;
    zero_infinity: 0. The gradient is that of the formula, with respect to log_probs; torch's takes log_probs to come
    from a log_softmax, behind which the two are equal.
    """
    name = "ctc_loss"
    check_reduction(name, reduction)
    x = tensor(log_probs, name, "log_probs", rank=(2, 3), kind="float")
    single = x.ndim == 2
    if single:
        x = x.reshape((x.shape[0], 1, x.shape[1]))
    time, batch, classes = x.shape
    if not 0 <= blank < classes:
        raise ArgumentError(f"{name}: blank={blank!r} must be one of the {classes} classes")
    y = tensor(targets, name, "targets", rank=(1, 2), kind="int")
    steps, known_steps = _lengths(name, input_lengths, "input_lengths", batch)
    lengths, known = _lengths(name, target_lengths, "target_lengths", batch)
    if known_steps is not None and any(not 0 <= n <= time for n in known_steps):
        raise ArgumentError(
            f"{name}: input_lengths={known_steps} must lie between 0 and {time}, the steps of log_probs"
        )
    if y.ndim == 2 and y.shape[0] != batch:
        raise ShapeError(f"{name}: 'targets' {y.shape} needs the {batch} sequences of 'log_probs'")
    most = max(known, default=0) if known is not None else y.shape[-1]
    if known is not None and (most > y.shape[-1] or min(known, default=0) < 0):
        raise ArgumentError(f"{name}: target_lengths={known} do not fit 'targets' {y.shape}")
    if not time:
        raise ShapeError(f"{name}: 'log_probs' needs at least one step")
    label, skip = _labels(y, lengths, most, blank)
    a = FORWARD(x=x.astype(x.dtype.arithmetic), label=label, skip=skip, steps=steps)  # 16 bits hold no LEAST
    end = lengths * 2
    under_way = current_trace()
    if under_way is not None:  # steps are only compared; this read makes one out of range an error
        read = builder.compute((batch,), lambda b: x[builder.where(steps[b] == 0, 0, steps[b] - 1), b, 0])
        under_way.checked.append(read.tensor)

    def ends(b: Any) -> Any:
        last = a[time - 1, b, end[b]]
        before = builder.where(end[b] > 0, a[time - 1, b, builder.maximum(end[b] - 1, 0)], LEAST)
        top = builder.stop_gradient(builder.maximum(last, before))
        return -(top + builder.log(builder.exp(last - top) + builder.exp(before - top)))

    loss = builder.compute((batch,), ends)
    impossible = 0.0 if zero_infinity else float("inf")
    loss = builder.where(loss > -0.5 * LEAST, impossible, loss)
    nothing = builder.where(lengths == 0, 0.0, impossible)  # the loss of a sequence without steps
    loss = builder.where(steps == 0, nothing, loss).astype(x.dtype)
    if reduction == "none":
        return loss.reshape(()) if single else loss
    if reduction == "sum":
        return loss.sum()
    return (loss / builder.maximum(lengths, 1)).mean().astype(x.dtype)


def _labels(y: Value, lengths: Value, most: int, blank: int) -> tuple[Value, Value]:
    """Return (labels with blanks before, between and after them [N, 2*most + 1], whether a label may follow the one
    before the blank in front of it)."""
    batch = lengths.shape[0]
    if not most:
        return builder.full((batch, 1), blank, dt.i32), builder.full((batch, 1), False, dt.bool_)
    if y.ndim == 2:
        listed = y
    else:
        (c,) = builder.axes(batch)
        start = builder.compute((batch,), lambda b: builder.sum(builder.where(c < b, lengths[c], 0), over=c)).astype(
            dt.i32
        )
        listed = builder.compute(
            (batch, most),
            lambda b, s: builder.where(s < lengths[b], y[start[b] + s], blank),
        )

    def extended(b: Any, s: Any) -> Any:
        k = builder.minimum(s // 2, most - 1)
        return builder.where((s % 2 == 1) & (k < lengths[b]), listed[b, k], blank)

    label = builder.compute((batch, 2 * most + 1), extended).astype(dt.i32)
    skip = builder.compute(
        label.shape,
        lambda b, s: builder.where(s > 1, (label[b, s] != blank) & (label[b, s] != label[b, s - 2]), False),
    )
    return label, skip
