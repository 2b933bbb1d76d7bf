"""Clip gradients inside the step, as torch.nn.utils does: by the norm of all gradients together, and by value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

from einsmith.lang import builder
from einsmith.lang.builder import Value


def sum_powers(grads: Sequence[Value], norm_type: float) -> Value:
    """Return sum |g|**norm_type over all elements of all gradients, 0-d; max |g| for inf."""
    if norm_type == math.inf:
        return reduce(builder.maximum, (builder.max(builder.abs(g)) for g in grads))
    if norm_type == 2:
        return reduce(lambda a, b: a + b, (builder.sum(g * g) for g in grads))
    return reduce(lambda a, b: a + b, (builder.sum(builder.abs(g) ** norm_type) for g in grads))


def total_norm(grads: Sequence[Value], norm_type: float) -> Value:
    """Return the norm of all elements of all gradients, 0-d: (sum |g|**norm_type)**(1/norm_type), max |g| for inf."""
    powers = sum_powers(grads, norm_type)
    if norm_type == math.inf:
        return powers
    return builder.sqrt(powers) if norm_type == 2 else powers ** (1 / norm_type)


def clip_by_norm(grads: Sequence[Value], limit: Value, norm: Value) -> list[Value]:
    """Return the gradients times min(1, limit/(norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ does."""
    factor = builder.minimum(limit / (norm + 1e-6), 1.0)
    return [(g * factor).astype(g.dtype) for g in grads]


def clip_by_value(grads: Sequence[Value], limit: Value) -> list[Value]:
    """Clamp every element of the gradients to [-limit, limit]."""
    return [builder.maximum(builder.minimum(g, limit), -limit).astype(g.dtype) for g in grads]
