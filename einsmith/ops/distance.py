"""Compute norms, distances and similarities, under torch's names. The derivative of a length is 0 where it is 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np

from einsmith.base.arguments import Magnitude
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.ops.common import dimension, dimensions, merge, pointwise, root, tensor, without
from einsmith.ops.operator import operator
from einsmith.ops.product import einsum
from einsmith.tracing import builder, views
from einsmith.tracing.builder import Value


def _exponent(name: str, p: Any) -> float:
    if isinstance(p, bool) or not isinstance(p, (int, float)) or p != p:
        raise ArgumentError(f"{name}: p={p!r} must be a number, or plus or minus infinity")
    return float(p)


def _length(shape: Sequence[int], over: Sequence[Any], p: float, element: Callable[..., Any]) -> Value:
    """Return the p-norm over the axes `over` of `element(*i)`, for each i of `shape`."""

    def total(formula: Callable[[Any], Any], fold: Callable[..., Any] = builder.sum) -> Value:
        return builder.compute(shape, lambda *i: fold(formula(element(*i)), over=tuple(over)))

    if not over:
        if p == 0:
            return builder.compute(shape, lambda *i: builder.where(element(*i) == 0, 0.0, 1.0))
        p = 1.0
    if p == 2:
        return root(total(lambda e: e * e))
    if p == 1:
        return total(builder.abs) if over else builder.compute(shape, lambda *i: builder.abs(element(*i)))
    if p == 0:
        return total(lambda e: builder.where(e == 0, 0.0, 1.0))
    if p in (inf, -inf):
        top = total(builder.abs, builder.max if p > 0 else builder.min)

        def attaining(value: Callable[[Any], Any]) -> Value:
            def body(*i: Any) -> Any:
                e = builder.abs(element(*i))
                best = top[i] if i else top
                return builder.sum(builder.where((e == best) | (e != e), value(e), 0.0), over=tuple(over))

            return builder.compute(shape, body)

        return builder.differentiate_as(top, attaining(lambda e: e) / attaining(lambda e: 1.0))
    none = 0.0 if p > 0 else inf  # what a 0 contributes; a sum of that is a length of 0
    # The derivative of a magnitude is 0 at NaN: NaN is its own power, so that it has a derivative of NaN.
    s = total(lambda e: builder.where(e == 0, none, builder.where(e == e, builder.abs(e) ** p, e)))
    return pointwise(s, lambda e: builder.where(e == none, 0.0, e ** (1 / p)))


@operator()
def norm(
    input: Any, p: float | str | None = "fro", dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Value:
    """Return (sum of |x|**p)**(1/p) over `dim`, or over all. p: a number, inf, -inf, or "fro", which is 2; 0 counts."""
    x = tensor(input, "norm", "input", kind="float")
    if p == "nuc":
        raise ArgumentError("norm: p='nuc' needs singular values, which no index formula gives; use NumPy's")
    order = 2.0 if p is None or p == "fro" else _exponent("norm", p)
    dims = dimensions(dim, x.ndim, "norm")
    over = builder.axes(*(x.shape[d] for d in dims))
    y = _length(without(x.shape, dims), over, order, lambda *i: x[merge(x.ndim, dims, over, i)] if x.ndim else x)
    y = y.astype(x.dtype)
    return y.reshape(tuple(1 if d in dims else n for d, n in enumerate(x.shape))) if keepdim else y


def _vectors(name: str, **vectors: Any) -> tuple[Value, Value]:
    a, b = (tensor(x, name, n, kind="float") for n, x in vectors.items())
    return a, b


def _read(x: Value, index: Sequence[Any]) -> Any:
    """Return x[index] with broadcasting: the index may be longer, and an extent of 1 is read at 0."""
    at = tuple(0 if n == 1 else i for n, i in zip(x.shape, index[len(index) - x.ndim :], strict=True))
    return x[at] if at else x


@operator()
def pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Value:
    """Return the p-norm of x1 - x2 + eps along the last dimension; the others broadcast."""
    a, b = _vectors("pairwise_distance", x1=x1, x2=x2)
    shape = views.broadcast([a.shape, b.shape])
    if not shape:
        raise ShapeError("pairwise_distance: 'x1' and 'x2' need a dimension of vectors")
    order = _exponent("pairwise_distance", p)
    over = builder.axes(shape[-1])
    y = _length(shape[:-1], over, order, lambda *i: _read(a, (*i, *over)) - _read(b, (*i, *over)) + eps)
    return y.reshape((*shape[:-1], 1)) if keepdim else y


@operator("CosineSimilarity")
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: Magnitude | Value = 1e-8) -> Value:
    """Return x1.x2/(max(|x1|, eps)*max(|x2|, eps)) along `dim`; the others broadcast."""
    a, b = _vectors("cosine_similarity", x1=x1, x2=x2)
    shape = views.broadcast([a.shape, b.shape])
    d = dimension(dim, len(shape), "cosine_similarity")
    rest = without(shape, (d,))
    over = builder.axes(shape[d])

    def read(x: Value, i: tuple) -> Any:
        return _read(x, merge(len(shape), (d,), over, i))

    dot = builder.compute(rest, lambda *i: builder.sum(read(a, i) * read(b, i), over=over))
    for x in (a, b):
        n = _length(rest, over, 2.0, lambda *i, x=x: read(x, i))
        dot = dot / (n + builder.stop_gradient(builder.where(n < eps, eps - n, 0.0)))
    return dot


@operator(aten="_cdist_forward.default")
def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: str | None = None) -> Value:
    """Return the distances of all pairs of rows in the p-norm: [..., P, M] and [..., R, M] -> [..., P, R].

    `compute_mode` is accepted without effect: the differences are always computed.
    """
    a, b = _vectors("cdist", x1=x1, x2=x2)
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-1]:
        raise ShapeError(f"cdist: 'x1' {a.shape} and 'x2' {b.shape} need rows of one length, [..., P, M], [..., R, M]")
    order = _exponent("cdist", p)
    if order < 0:
        raise ArgumentError(f"cdist: p={p!r} must not be negative")
    lead = views.broadcast([a.shape[:-2], b.shape[:-2]])
    over = builder.axes(a.shape[-1])

    def rows(x: Value, lead: Sequence[Any], r: Any) -> Any:
        at = tuple(0 if n == 1 else i for n, i in zip(x.shape[:-2], lead[len(lead) - x.ndim + 2 :], strict=True))
        return x[(*at, r, *over)]

    def element(*i: Any) -> Any:
        return rows(a, i[:-2], i[-2]) - rows(b, i[:-2], i[-1])

    return _length((*lead, a.shape[-2], b.shape[-2]), over, order, element)


@operator(aten="_pdist_forward.default")
def pdist(input: Any, p: float = 2.0) -> Value:
    """Return the distances of all pairs of rows i < j in the p-norm, in row-major order: [N, M] -> [N*(N - 1)/2]."""
    x = tensor(input, "pdist", "input", rank=2, kind="float")
    order = _exponent("pdist", p)
    if order < 0:
        raise ArgumentError(f"pdist: p={p!r} must not be negative")
    first, second = np.triu_indices(x.shape[0], 1)
    if not len(first):
        return builder.full((0,), 0.0, x.dtype)
    a, b = builder.as_value(first), builder.as_value(second)
    over = builder.axes(x.shape[1])
    return _length((len(first),), over, order, lambda i: x[(a[i], *over)] - x[(b[i], *over)])


@operator()
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Value:
    """Return x1 W x2 + b: [..., I], [..., J], weight [O, I, J], bias [O] -> [..., O]."""
    a, b = _vectors("bilinear", input1=input1, input2=input2)
    w = tensor(weight, "bilinear", "weight", rank=3, kind="float")
    if not a.ndim or a.shape[:-1] != b.shape[:-1] or (a.shape[-1], b.shape[-1]) != w.shape[1:]:
        raise ShapeError(
            f"bilinear: 'input1' {a.shape} and 'input2' {b.shape} do not fit each other and 'weight' {w.shape}"
        )
    y = einsum("...i,oij,...j->...o", a, w, b)
    if bias is None:
        return y
    c = tensor(bias, "bilinear", "bias")
    if c.shape != w.shape[:1]:
        raise ShapeError(f"bilinear: 'bias' has shape {c.shape}, needs {w.shape[:1]}")
    return y + c
