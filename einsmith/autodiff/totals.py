"""Add tensors of one shape, and convert their types."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.autodiff.plan import constant_value
from einsmith.base.dtypes import DType
from einsmith.ir.nodes import Compute, Const, Expr, Read, Tensor, apply, cast, template
from einsmith.ir.rewrite.simplify import canonical
from einsmith.ir.views import own_index

_MAX_TERMS = 16
"""Most tensors that one kernel adds up: each takes one of its pointers."""


def add(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape, in their order, as one pointwise tensor. More than _MAX_TERMS tensors are
    added by several tensors, each of which adds the next ones to the previous sum: bodies stay bounded, and additions
    need not wait for all terms."""
    total, *rest = tensors
    for first in range(0, len(rest), _MAX_TERMS - 1):
        total = _sum([total, *rest[first : first + _MAX_TERMS - 1]])
    return total


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors as one tensor of one body."""
    shape, dtype = tensors[0].shape, tensors[0].dtype
    known = {t: constant_value(t) for t in tensors}
    slots = {t: n for n, t in enumerate(t for t in known if known[t] is None)}
    at = own_index(shape)
    body: Expr | None = None
    for t in tensors:
        value = known[t]
        x = Read(slots[t], at, dtype) if value is None else Const(value, dtype)
        body = x if body is None else apply("add", body, x)
    assert body is not None
    return canonical(template(shape, [(dtype, shape)] * len(slots), body), tuple(slots))


def convert(t: Tensor, dtype: DType) -> Tensor:
    """Return a tensor converted to another type; the tensor itself if it has that type."""
    if t.dtype is dtype:
        return t
    value = constant_value(t)
    if value is not None:
        return Compute(template(t.shape, (), Const(value, dtype)), ())
    at = own_index(t.shape)
    return canonical(template(t.shape, [(t.dtype, t.shape)], cast(Read(0, at, t.dtype), dtype)), (t,))


def zeros(shape: tuple[int, ...], dtype: DType) -> Tensor:
    """Return a tensor of zeros."""
    return Compute(template(shape, (), Const(0, dtype)), ())
