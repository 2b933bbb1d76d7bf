"""Reductions of the language: those of the IR, and those that are made of them, means and log-sum-exps."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.errors import FormulaError
from einsmith.lang.formula import (
    AxisVar,
    Form,
    Index,
    Literal,
    Ty,
    fold,
    is_bool,
    is_integer,
    join,
    op,
    postorder,
    replace_args,
    show_extents,
)

__all__ = ["add_exponentials", "reduce"]


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
    """Return the logarithm of the sum of exp(body), with the maximum taken out. The maximum has axes of its own, which
    stand beside those of the sum that reads it."""
    if any(a.extent == 0 for a in axes):
        return Literal(-math.inf)
    own = {a: AxisVar(a.name, a.extent) for a in axes}
    most = fold("max", tuple(own.values()), _exchange_axes(body, own), at)
    return _take_out(most, body.ty, lambda finite: fold("sum", axes, op("exp", op("sub", body, finite)), at))


def add_exponentials(terms: Sequence[Form]) -> Form:
    """Return the logarithm of the sum of the exponentials of several forms, with one maximum taken out for all."""
    return _take_out(
        functools.reduce(functools.partial(op, "max"), terms),
        join(t.ty for t in terms),
        lambda finite: functools.reduce(functools.partial(op, "add"), (op("exp", op("sub", t, finite)) for t in terms)),
    )


def _take_out(most: Form, ty: Ty, total: Callable[[Form], Form]) -> Form:
    """Return log(total(m)) + m for a maximum m, of type `ty`, which `total` takes out of the terms that it sums.

    There it is finite. A sum that has a finite maximum is 1 or more. Where all terms are -inf it is 0, and derivatives
    of any order are.
    """
    largest = Literal(float(np.finfo(np.float64 if ty is dt.f64 else np.float32).max))
    most = op("stop_gradient", most)
    finite = op("max", op("min", most, largest), op("neg", largest))
    return op("add", op("log", op("max", total(finite), Literal(0.5))), most)


def _exchange_axes(root: Form, axes: Mapping[AxisVar, AxisVar]) -> Form:
    """Return a formula over other axes, of the same extents: the values of `axes`."""
    new: dict[Form, Form] = {}
    for node in postorder(root):
        if isinstance(node, Index):
            new[node] = Index(axes.get(node.axis, node.axis))
        else:
            new[node] = replace_args(node, [new[a] for a in node.args])
    return new[root]
