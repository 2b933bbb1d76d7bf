"""Reductions of the language: those of the IR, and those that are made of them, means and log-sum-exps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.errors import FormulaError
from einsmith.lang.formula import (
    AxisVar,
    Form,
    Index,
    Literal,
    fold,
    is_bool,
    is_integer,
    op,
    postorder,
    replace_args,
    show_extents,
)

__all__ = ["reduce"]


def reduce(combiner: str, axes: Sequence[AxisVar], body: Form, at: Any = None) -> Form:
    """Return the reduction of `body` over the box of `axes`: `fold`, or a mean, the sum divided by the number of
    elements, or a logsumexp, the logarithm of the sum of exponentials, which is -inf where all elements are.

    Raises what `fold` raises, and FormulaError for the mean of no elements.
    """
    if combiner not in ("mean", "logsumexp"):
        return fold(combiner, axes, body, at)
    if combiner == "mean" and is_bool(body.ty):
        body = op("where", body, Literal(1), Literal(0))
    terms = op("div", body, Literal(1.0)) if is_integer(body.ty) else body
    if combiner == "logsumexp":
        return _logsumexp(tuple(axes), terms, at)
    n = math.prod(a.extent for a in axes)
    if n == 0:
        raise FormulaError(f"mean over no elements: {show_extents(axes)}")
    return op("div", fold("sum", axes, terms, at), Literal(n))


def _logsumexp(axes: tuple[AxisVar, ...], body: Form, at: Any) -> Form:
    """Return the logarithm of the sum of exp(body), with the maximum taken out.

    The maximum has axes of its own, which stand beside those of the sum that reads it, and is finite there. A sum that
    has a finite maximum is 1 or more. Where all terms are -inf it is 0, and derivatives of any order are.
    """
    if any(a.extent == 0 for a in axes):
        return Literal(-math.inf)
    own = {a: AxisVar(a.name, a.extent) for a in axes}
    largest = Literal(float(np.finfo(np.float64 if body.ty is dt.f64 else np.float32).max))
    most = op("stop_gradient", fold("max", tuple(own.values()), _exchange_axes(body, own), at))
    finite = op("max", op("min", most, largest), op("neg", largest))
    total = fold("sum", axes, op("exp", op("sub", body, finite)), at)
    return op("add", op("log", op("max", total, Literal(0.5))), most)


def _exchange_axes(root: Form, axes: Mapping[AxisVar, AxisVar]) -> Form:
    """Return a formula over other axes, of the same extents: the values of `axes`."""
    new: dict[Form, Form] = {}
    for node in postorder(root):
        if isinstance(node, Index):
            new[node] = Index(axes.get(node.axis, node.axis))
        else:
            new[node] = replace_args(node, [new[a] for a in node.args])
    return new[root]
