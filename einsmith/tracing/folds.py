"""Reductions of the language: those of the IR, and those that are made of them, means and log-sum-exps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from functools import reduce as accumulate
from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base import environment
from einsmith.base.dtypes import DType
from einsmith.base.errors import FormulaError
from einsmith.base.numerics import SEPARATES
from einsmith.base.symbolic import hint
from einsmith.ir.rewrite.separate_exponentials import MAX_TERMS, SEPARATE_EXPONENTIALS, pays
from einsmith.tracing.formula import (
    AxisVar,
    Form,
    FormulaOp,
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
    may_separate = SEPARATES.get() and SEPARATE_EXPONENTIALS not in environment.WITHOUT.get()
    if may_separate and (parts := _separate(body)):
        return _logsumexp_of_parts(axes, parts, at)
    most, finite = _maximum(axes, body, at)
    return _log(fold("sum", axes, op("exp", op("sub", body, finite)), at), most)


def _maximum(axes: tuple[AxisVar, ...], body: Form, at: Any) -> tuple[Form, Form]:
    """Return the maximum over axes, which is no part of derivatives, and the nearest finite number to it."""
    own = {a: AxisVar(a.name, a.extent) for a in axes}
    return _stopped(fold("max", tuple(own.values()), _exchange_axes(body, own), at), body.ty)


def _stopped(most: Form, ty: Ty) -> tuple[Form, Form]:
    """Return a maximum of terms of type `ty` as a constant for derivatives, and the nearest finite number to it."""
    largest = Literal(float(np.finfo(np.float64 if ty is dt.f64 else np.float32).max))
    most = op("stop_gradient", most)
    return most, op("max", op("min", most, largest), op("neg", largest))


def add_exponentials(terms: Sequence[Form]) -> Form:
    """Return the logarithm of the sum of the exponentials of several forms, with one maximum taken out for all."""
    most, finite = _stopped(accumulate(partial(op, "max"), terms), join(t.ty for t in terms))
    return _log(accumulate(partial(op, "add"), (op("exp", op("sub", t, finite)) for t in terms)), most)


def _log(total: Form, most: Form) -> Form:
    """Return log(total) + most. A sum that has a finite maximum is 1 or more. Where all terms are -inf it is 0, and so
    are its derivatives of any order, which divide by 0.5 there."""
    return op("add", op("log", op("differentiate_as", op("max", total, Literal(0.5)), total)), most)


def _logsumexp_of_parts(axes: tuple[AxisVar, ...], parts: Sequence[Form], at: Any) -> Form:
    """Return the logarithm of the sum of products of exp(part), with the maximum of each part taken out.

    It is -inf where all products underflow; derivatives of any order are 0 there.
    """
    factors, maxima = [], []
    for part in parts:
        own = tuple(a for a in axes if a in part.free)
        most = part
        if own:
            most, finite = _maximum(own, part, at)
            factors.append(op("exp", op("sub", part, finite)))
        maxima.append(most)
    total = fold("sum", axes, accumulate(partial(op, "mul"), factors), at)
    return accumulate(partial(op, "add"), [op("log_of_total", total), *maxima])


def _separate(body: Form) -> list[Form]:
    """Return the parts of a sum of terms, by their axes, whose exponentials are fewer than those of the sum; none where
    that does not pay."""
    terms = _terms(body)
    if len(terms) < 2 or not all(isinstance(t.ty, DType) and t.ty.is_float for t in terms):
        return []
    widest = [t.free for t in terms if not any(t.free < other.free for other in terms)]
    parts: dict[frozenset[AxisVar], Form] = {}
    for t in terms:
        place = next(free for free in widest if t.free <= free)
        parts[place] = op("add", parts[place], t) if place in parts else t
    elements = [hint(math.prod(a.extent for a in free)) for free in (body.free, *parts)]
    return [*parts.values()] if len(parts) > 1 and pays(elements[0], elements[1:]) else []


def _terms(body: Form) -> list[Form]:
    """Return the terms of a sum; none where there are more than MAX_TERMS."""
    terms: list[Form] = []
    stack = [(body, False)]
    while stack:
        x, minus = stack.pop()
        if isinstance(x, FormulaOp) and x.fn in ("add", "sub", "neg"):
            stack += [(x.args[-1], minus != (x.fn != "add")), *((a, minus) for a in x.args[:-1])]
        else:
            terms.append(op("neg", x) if minus else x)
        if len(terms) + len(stack) > MAX_TERMS:
            return []
    return terms


def _exchange_axes(root: Form, axes: Mapping[AxisVar, AxisVar]) -> Form:
    """Return a formula over other axes, of the same extents: the values of `axes`."""
    new: dict[Form, Form] = {}
    for node in postorder(root):
        if isinstance(node, Index):
            new[node] = Index(axes.get(node.axis, node.axis))
        else:
            new[node] = replace_args(node, [new[a] for a in node.args])
    return new[root]
