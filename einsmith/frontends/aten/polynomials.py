"""Orthogonal polynomials whose degree is a tensor.

Chebyshev polynomials are cosines of multiples of acos(x), or hyperbolic cosines for |x| > 1. Hermite polynomials are
computed by their recurrence in the degree. Source: Abramowitz, Stegun 1964, 22.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from einsmith import ops as F
from einsmith.frontends.aten.promotion import promote, tensor
from einsmith.frontends.aten.table import enter
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.lang.op import op


def _t(n: Value, x: Value) -> Value:
    inside = builder.abs(x) <= 1
    angle, rise = F.acos(builder.where(inside, x, 0.0)), F.acosh(builder.where(inside, 1.0, builder.abs(x)))
    return builder.where(inside, F.cos(n * angle), _sign(n, x) * F.cosh(n * rise))


def _sign(n: Value, x: Value) -> Value:
    """Return the sign of x**n, which the polynomials have beyond [-1, 1]."""
    return builder.where((x < 0) & (n % 2.0 == 1), -1.0, 1.0)


def _u(n: Value, x: Value) -> Value:
    inside, one = builder.abs(x) < 1, builder.abs(x) == 1
    angle = F.acos(builder.where(inside, x, 0.0))
    rise = F.acosh(builder.where(inside | one, 2.0, builder.abs(x)))
    far = _sign(n, x) * F.sinh((n + 1) * rise) / F.sinh(rise)
    return builder.where(one, _sign(n, x) * (n + 1), builder.where(inside, F.sin((n + 1) * angle) / F.sin(angle), far))


def _v(n: Value, x: Value) -> Value:
    """Return cos((n + 1/2)*a)/cos(a/2) for a = acos(x); for x < 0 that is `_w` of -x with the sign of x**n."""
    return builder.where(x < 0, _sign(n, x) * _ratio(n, -x, False), _ratio(n, x, True))


def _w(n: Value, x: Value) -> Value:
    """Return sin((n + 1/2)*a)/sin(a/2) for a = acos(x)."""
    return builder.where(x < 0, _sign(n, x) * _ratio(n, -x, True), _ratio(n, x, False))


def _ratio(n: Value, x: Value, even: bool) -> Value:
    """Return cos((n + 1/2)*a)/cos(a/2) if `even`, else sin((n + 1/2)*a)/sin(a/2), of a = acos(x), for x >= 0."""
    inside, one = x < 1, x == 1
    angle = F.acos(builder.where(inside & (x >= 0), x, 0.0))
    rise = F.acosh(builder.where(inside | one, 2.0, x))
    if even:
        found = builder.where(
            inside, F.cos((n + 0.5) * angle) / F.cos(angle * 0.5), F.cosh((n + 0.5) * rise) / F.cosh(rise * 0.5)
        )
        return builder.where(one, 1.0, found)
    found = builder.where(
        inside, F.sin((n + 0.5) * angle) / F.sin(angle * 0.5), F.sinh((n + 0.5) * rise) / F.sinh(rise * 0.5)
    )
    return builder.where(one, 2 * n + 1, found)


def _on_unit_interval(f: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    return lambda n, x: f(n, x + x - 1.0)


def _enter(name: str, formula: str, f: Callable[[Value, Value], Value]) -> None:
    """Enter an operator of x and a degree n, which is truncated; the result is 0 where n is negative."""

    def run(x: Any, n: Any) -> Value:
        (a, b), common = promote(x, n, floats=True)
        value, degree = tensor(a, common), F.trunc(builder.stop_gradient(tensor(b, common)))
        found = f(builder.maximum(degree, 0.0), value)
        return builder.where(degree < 0, 0.0, found).astype(common)

    enter(" ".join(f"special_{name}.{way}" for way in ("default", "x_scalar", "n_scalar")), formula, run)


for _kind, _formula, _f in (
    ("t", "cos(n*a)", _t),
    ("u", "sin((n + 1)*a)/sin(a)", _u),
    ("v", "cos((n + 1/2)*a)/cos(a/2)", _v),
    ("w", "sin((n + 1/2)*a)/sin(a/2)", _w),
):
    _enter(f"chebyshev_polynomial_{_kind}", f"{_formula}, a = acos(x)", _f)
    _enter(f"shifted_chebyshev_polynomial_{_kind}", f"{_formula}, a = acos(2*x - 1)", _on_unit_interval(_f))

_STEPS = """
    p[k,i] = where(k > 0, b[k-1,i], 1)
    q[k,i] = where(k > 0, a[k-1,i], {first}*x[i])
    b[k,i] = where(k + 1 < n[i], q[k,i], p[k,i])
    a[k,i] = where(k + 1 < n[i], {first}*x[i]*q[k,i] - {factor}*p[k,i], q[k,i])
    return a
"""
_HERMITE = {
    "h": op(_STEPS.format(first="2", factor="(2*k + 2)"), extents={"k": "K"}),
    "he": op(_STEPS.format(first="1", factor="(k + 1)"), extents={"k": "K"}),
}
"""Recurrences of Hermite's polynomials: a[k] has the degree min(k + 2, n), b[k] is its predecessor."""


def _hermite(which: str) -> Callable[[Value, Value], Value]:
    def run(n: Value, x: Value) -> Value:
        most = 512 if x.dtype.bits == 64 else 128  # PyTorch gives NaN above this degree
        shape = builder.broadcast_to(n, (x + n).shape).shape
        flat, degree = (F.broadcast_to(v, shape).reshape((-1,)) for v in (x, n))
        if not flat.size:
            return flat.reshape(shape)
        last = _HERMITE[which](x=flat, n=degree, K=most)[most - 1].reshape(shape)
        found = builder.where(n == 0, 1.0, last)
        return builder.where(n > most, float("nan"), found)

    return run


_enter("hermite_polynomial_h", "2*x*h[n-1] - 2*(n - 1)*h[n-2], with h[0] = 1 and h[1] = 2*x", _hermite("h"))
_enter("hermite_polynomial_he", "x*h[n-1] - (n - 1)*h[n-2], with h[0] = 1 and h[1] = x", _hermite("he"))
