"""Programs of any length n and width d, each of which uses something again in a way of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import einsmith as es
from einsmith import functional as F

Program = tuple[Callable, list[np.ndarray]]
"""A function of arrays with a scalar result, and the arrays."""


def _arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(0.3 * rng.standard_normal(s)).astype("float32") for s in shapes]


def _chain(n: int, d: int, step: Callable[[Any, int, tuple], Any], *others: tuple[int, ...]) -> Program:
    """`x = step(x, k, others)` n times, summed."""

    def f(x: Any, *others: Any) -> Any:
        for k in range(n):
            x = step(x, k, others)
        return x.sum()

    return f, _arrays((4, d), *others)


def shared_weight(n: int, d: int = 8) -> Program:
    return _chain(n, d, lambda x, k, w: es.tanh(x @ w[0]), (d, d))


def own_weights(n: int, d: int = 8) -> Program:
    return _chain(n, d, lambda x, k, w: es.tanh(x @ w[2 * k] + w[2 * k + 1]), *[(d, d), (d,)] * n)


def residual(n: int, d: int = 8) -> Program:
    return _chain(n, d, lambda x, k, w: x + es.tanh(x @ w[k]), *[(d, d)] * n)


def elementwise(n: int, d: int = 8) -> Program:
    return _chain(n, d, lambda x, k, w: es.tanh(x * 0.5))


def square(n: int, d: int = 8) -> Program:
    return _chain(n, d, lambda x, k, w: x * x)


def double(n: int, d: int = 8) -> Program:
    return _chain(n, d, lambda x, k, w: x + x)


def diamond(n: int, d: int = 8) -> Program:
    return _chain(n, d, lambda x, k, w: es.tanh(x) + es.sigmoid(x))


def guarded(n: int, d: int = 8) -> Program:
    return _chain(n, d, lambda x, k, w: es.where(x > 0.1, x, x * 0.5))


def _sum(n: int, d: int, term: Callable[[int, Any], Any], *shapes: tuple[int, ...]) -> Program:
    """The sum of n terms."""

    def f(*arrays: Any) -> Any:
        total = term(0, arrays)
        for k in range(1, n):
            total = total + term(k, arrays)
        return total.sum()

    return f, _arrays((4, d), *shapes)


def shared_input(n: int, d: int = 8) -> Program:
    return _sum(n, d, lambda k, a: es.tanh(a[0] @ a[k + 1]).sum(), *[(d, d)] * n)


def terms(n: int, d: int = 8) -> Program:
    return _sum(n, d, lambda k, a: a[0])


def many_terms(n: int, d: int = 8) -> Program:
    return _sum(n, d, lambda k, a: a[k], *[(4, d)] * n)


def reductions(n: int, d: int = 8) -> Program:
    return _sum(n, d, lambda k, a: es.tanh(a[0] * float(k + 1)).sum())


def concatenated(n: int, d: int = 8) -> Program:
    return lambda *x: es.tanh(F.cat(x, 0)).sum(), _arrays(*[(4, d)] * n)


def stacked(n: int, d: int = 8) -> Program:
    return lambda *x: es.tanh(F.stack(x, 0)).sum(), _arrays(*[(6, d)] * n)


def nested_where(n: int, d: int = 8) -> Program:
    """n choices in one formula, each of which uses the one before in its condition and on both sides."""

    def f(x: Any) -> Any:
        def body(i: Any, j: Any) -> Any:
            e = x[i, j]
            for k in range(n):
                e = es.where(e > 0.05 * k - 0.3, es.sin(e), e * 0.5)
            return e

        return es.compute(x.shape, body).sum()

    return f, _arrays((4, d))


def nested_where_of_axes(n: int, d: int = 8) -> Program:
    """n choices by an axis, each of which uses the one before on both sides."""

    def f(x: Any) -> Any:
        def body(i: Any, j: Any) -> Any:
            e = x[i, j]
            for k in range(n):
                e = es.where(j > (7 * k) % d, es.sin(e), e * 0.5)
            return e

        return es.compute(x.shape, body).sum()

    return f, _arrays((4, d))


def nested_where_of_reads(n: int, d: int = 8) -> Program:
    """As `nested_where`, of an element that is gathered."""

    def f(x: Any, at: Any) -> Any:
        def body(i: Any, j: Any) -> Any:
            e = x[i, at[j]]
            for k in range(n):
                e = es.where(e > 0.05 * k - 0.3, e + 0.25 * x[i, at[j]], e * 0.5)
            return e

        return es.compute(x.shape, body).sum()

    return f, [*_arrays((4, d)), np.arange(d)[::-1].copy()]


def two_axis_recurrence() -> Program:
    """A dynamic program over two axes, weighted and summed."""
    table = es.op(
        "t[b,i,j] = sigmoid(x[b,i,j] + max(max(where(i > 0, t[b,i-1,j], -2), where(j > 0, t[b,i,j-1], 1)),"
        " where(i > 0 and j > 0, t[b,i-1,j-1], -2)))"
    )
    return lambda x, c: (table(x) * c).sum(), _arrays((5, 9, 7), (5, 9, 7))


NESTED = (nested_where, nested_where_of_axes, nested_where_of_reads)
ALL = (
    shared_weight, own_weights, residual, elementwise, square, double, diamond, guarded, shared_input, terms,
    many_terms, reductions, concatenated, stacked,
)  # fmt: skip

POINTWISE = (elementwise, square, double, guarded, terms)
"""Those that become bodies of some 60 operations: what that takes grows with the body until it is full."""

VARIED = (reductions, concatenated, stacked, shared_input)
"""Those whose parts differ in constants, as the offsets in joined products, and are kernels of their own."""
