"""The log-gamma function and its derivatives, the Hurwitz zeta function, inverses of the error function and the normal
distribution.

Arguments are shifted into a range where a short series has full precision; negative arguments are reflected. Sources:
Abramowitz, Stegun 1964, 6.1.41, 6.3.18, 6.4.11, 23.2 and 26.2; Clenshaw 1955.
"""

from __future__ import annotations

from math import exp, inf, log, nan, pi, sqrt
from typing import Any

from einsmith.lang import builder
from einsmith.ops.expansions import QUANTILE, QUANTILE_FAR
from einsmith.ops.operator import pointwise_operator

SHIFT = 10
"""Smallest argument at which the asymptotic series are evaluated."""
BERNOULLI = tuple(
    a / b
    for a, b in (
        (1, 6),
        (-1, 30),
        (1, 42),
        (-1, 30),
        (5, 66),
        (-691, 2730),
        (7, 6),
        (-3617, 510),
        (43867, 798),
        (-174611, 330),
        (854513, 138),
        (-236364091, 2730),
    )
)
"""Bernoulli's numbers B(2), B(4), .."""
STIRLING = tuple(b / (2 * j * (2 * j - 1)) for j, b in enumerate(BERNOULLI[:7], 1))
HARMONIC = tuple(b / (2 * j) for j, b in enumerate(BERNOULLI[:7], 1))


def polynomial(x: Any, coefficients: Any) -> Any:
    """Evaluate the polynomial of x with `coefficients`, the highest power's first."""
    total = coefficients[0]
    for c in coefficients[1:]:
        total = total * x + c
    return total


# -------------------------------------------------------------------------------------------------- the gamma function


def _lgamma(x: Any) -> Any:
    def positive(a: Any) -> Any:
        small = a < SHIFT
        y = builder.where(small, a + SHIFT, a)
        product: Any = 1.0
        for k in range(SHIFT):
            product = product * builder.where(small, a + k, 1.0)
        series = polynomial(1 / (y * y), STIRLING[::-1]) / y
        return (y - 0.5) * builder.log(y) - y + log(2 * pi) / 2 + series - builder.log(product)

    below = x <= 0
    rest = builder.where(below, x - builder.floor(x), 0.5)
    # sin(pi*x) is computed from the fraction of x, whose digits the product with pi would lose.
    reflected = log(pi) - builder.log(builder.abs(builder.sin(pi * rest)))
    size = positive(builder.where(below, 1 - x, builder.where(x == inf, 1.0, x)))
    return builder.where((x == inf) | (x == -inf), inf, builder.where(below, reflected - size, size))


def _digamma(x: Any) -> Any:
    def positive(a: Any) -> Any:
        small = a < SHIFT
        y = builder.where(small, a + SHIFT, a)
        total = builder.log(y) - 0.5 / y - polynomial(1 / (y * y), HARMONIC[::-1]) / (y * y)
        for k in range(SHIFT):
            total = total - builder.where(small, 1 / builder.where(small, a + k, 1.0), 0.0)
        return total

    below = x < 0
    rest = builder.where(below, x - builder.floor(x), 0.5)
    turned = pi * builder.cos(pi * rest) / builder.sin(pi * rest)
    size = positive(builder.where(below, 1 - x, builder.where(x == 0, 1.0, x)))
    value = builder.where(below, builder.where(rest == 0, nan, size - turned), size)
    return builder.where(x == 0, -1 / x, value)


lgamma = pointwise_operator(
    "lgamma", "log|gamma(x)|: Stirling's series at x + 10, minus log(x*(x + 1)*..*(x + 9))", _lgamma, family="special"
)
digamma = pointwise_operator(
    "digamma",
    "the derivative of lgamma: its series at x + 10, minus 1/x + 1/(x + 1) + .. + 1/(x + 9)",
    _digamma,
    family="special",
)


def _positive_hurwitz(s: Any, q: Any) -> Any:
    """Return the sum over k >= 0 of (q + k)**-s, for s > 1 and q > 0, by Euler's and Maclaurin's formula."""
    total: Any = 0.0
    for k in range(SHIFT):
        total = total + (q + k) ** (-s)
    w = q + SHIFT
    last = w ** (-s)
    total = total + last * w / (s - 1.0) + last * 0.5
    term = s * last / w * (BERNOULLI[0] / 2)
    total = total + term
    for j in range(1, len(BERNOULLI)):
        ratio = BERNOULLI[j] / BERNOULLI[j - 1] / ((2 * j + 1) * (2 * j + 2))
        term = term * ((s + (2.0 * j - 1)) * (s + 2.0 * j) / (w * w) * ratio)
        total = total + term
    return total


def hurwitz(s: Any, q: Any) -> Any:
    """Return Hurwitz's zeta function of s and q.

    For q < 0 and integral s, the terms with a negative base are the difference of two series of positive terms.
    """
    below = q <= 0
    rest = builder.where(below, q - builder.floor(q), 0.5)
    away = builder.where(rest == 0, 0.5, rest)
    sign = builder.where(s % 2.0 == 0, 1.0, -1.0)
    order = builder.where(s > 1, s, 2.0)
    positive = _positive_hurwitz(order, builder.where(below, 1 - q, q))
    negative = _positive_hurwitz(order, away) + sign * (_positive_hurwitz(order, 1 - away) - positive)
    found = builder.where(
        below, builder.where(rest == 0, inf, builder.where(s == builder.floor(s), negative, nan)), positive
    )
    return builder.where(s > 1, found, builder.where(s == 1, inf, nan))


# -------------------------------------------------------------------------------------------------- the error function

_EDGE = exp(-2)
"""Largest probability whose normal quantile is computed by the series of the tail."""


def _from_middle(q: Any) -> Any:
    """Return the quantile of the normal distribution at probability 1/2 + q."""
    return q * QUANTILE(q * q)


def _from_end(p: Any) -> Any:
    """Return the x that a normal variable exceeds with probability p, at most exp(-2)."""
    r = builder.sqrt(-2.0 * builder.log(p))
    return r - QUANTILE_FAR(builder.log(r))


def _erfinv(y: Any) -> Any:
    size = builder.abs(y)
    far = size > 1 - 2 * _EDGE
    central = _from_middle(builder.where(far, 0.0, 0.5 * y)) * sqrt(0.5)
    tail = _from_end(builder.where(far & (size < 1), (1 - size) * 0.5, 0.1)) * sqrt(0.5)
    x = builder.where(far, builder.where(y < 0, -tail, tail), central)
    return builder.where(size < 1, x, builder.where(y == 1, inf, builder.where(y == -1, -inf, nan)))


def _quantile(p: Any) -> Any:
    upper = p > 1 - _EDGE
    y = builder.where(upper, 1 - p, p)
    middle = y > _EDGE
    inside = (p > 0) & (p < 1)
    inner = _from_middle(builder.where(middle, y - 0.5, 0.0))
    outer = _from_end(builder.where(inside & (y <= _EDGE), y, 0.1))
    found = builder.where(middle, inner, builder.where(upper, outer, -outer))
    return builder.where(inside, found, builder.where(p == 0, -inf, builder.where(p == 1, inf, nan)))


erfinv = pointwise_operator("erfinv", "the y with erf(y) = x", _erfinv, family="special")
ndtri = pointwise_operator(
    "ndtri",
    "the x-quantile of the standard normal distribution",
    _quantile,
    aten="special_ndtri.default",
    family="special",
)

LEVELS = 50


def _erfcx(x: Any) -> Any:
    """Return exp(x*x)*erfc(x), for |x| > 2 by Laplace's continued fraction."""
    size = builder.abs(x)
    far = size > 2
    near = builder.where(far, 0.0, size)
    away = builder.where(far, size, 2.0)
    fraction: Any = away
    for k in reversed(range(1, LEVELS)):
        fraction = away + (k / 2) / fraction
    value = builder.where(far, 1 / (sqrt(pi) * fraction), builder.exp(near * near) * (1 - builder.erf(near)))
    return builder.where(x < 0, 2 * builder.exp(builder.where(x < 0, x * x, 0.0)) - value, value)


erfcx = pointwise_operator(
    "erfcx", "exp(x*x)*(1 - erf(x)), without overflow", _erfcx, aten="special_erfcx.default", family="special"
)
