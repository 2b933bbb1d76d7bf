"""The log-gamma function and its derivative, inverses of the error function and the normal distribution.

Arguments are shifted into a range where a short series has full precision; negative arguments are reflected.
Everything is computed in float64, whatever the type of the operand. Sources: Abramowitz, Stegun 1964, 6.1.41, 6.3.18
and 26.2; Clenshaw 1955.
"""

from __future__ import annotations

from math import exp, inf, log, nan, pi, sqrt
from typing import Any

from einsmith.ops.expansions import LOG_GAMMA, QUANTILE, QUANTILE_FAR, TAIL, TAIL_START
from einsmith.ops.operator import pointwise_operator
from einsmith.tracing import builder

SHIFT = 10
"""Smallest argument at which the asymptotic series are evaluated."""
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
"""Bernoulli's numbers B(2), B(4), .. B(14)."""
STIRLING = tuple(b / (2 * j * (2 * j - 1)) for j, b in enumerate(BERNOULLI, 1))
HARMONIC = tuple(b / (2 * j) for j, b in enumerate(BERNOULLI, 1))


def polynomial(x: Any, coefficients: Any) -> Any:
    """Evaluate the polynomial of x with `coefficients`, the highest power's first."""
    total = coefficients[0]
    for c in coefficients[1:]:
        total = total * x + c
    return total


# -------------------------------------------------------------------------------------------------- the gamma function


def _turn(x: Any) -> Any:
    """Return x minus the nearest integer, exactly: tan(pi*x) and |sin(pi*x)| have the same values there, and the digits
    that the product with pi would lose."""
    return x - builder.round(x)


def _lgamma(x: Any) -> Any:
    below = x <= 0
    a = builder.where(below, 1 - x, builder.where(x == inf, 1.0, x))
    # gamma(n + z) is gamma(2 + z) times the factors between: the logarithm vanishes with z at 2, and with log1p at 1.
    near = a < SHIFT
    n = builder.where(near, builder.round(a), 2.0)
    z = builder.where(near, a, 2.0) - n
    product: Any = 1.0
    for k in range(2, SHIFT):
        product = product * builder.where(n > k, z + k, 1.0)
    fewer = builder.log1p(z) + builder.log(builder.where(n == 0, z, 1.0))
    close = z * LOG_GAMMA(z) + builder.where(n < 2, -fewer, builder.log(product))
    far = builder.where(near, 1.0 * SHIFT, a)
    series = polynomial(1 / (far * far), STIRLING[::-1]) / far
    away = (far - 0.5) * (builder.log(far) - 1) + (log(2 * pi) / 2 - 0.5) + series
    size = builder.where(near, close, away)
    sine = builder.sin(pi * _turn(builder.where(below, x, 0.5)))
    reflected = log(pi) - builder.log(builder.where(sine < 0, -sine, sine)) - size  # abs has the derivative 0 at 0
    return builder.where((x == inf) | (x == -inf), inf, builder.where(below, reflected, size))


def _digamma(x: Any) -> Any:
    def positive(a: Any) -> Any:
        small = a < SHIFT
        y = builder.where(small, a + SHIFT, a)
        w = 1 / y
        total = builder.log(y) - 0.5 * w - polynomial(w * w, HARMONIC[::-1]) * w * w
        for k in range(SHIFT):
            total = total - builder.where(small, 1 / builder.where(small, a + k, 1.0), 0.0)
        return total

    below = x < 0
    rest = _turn(builder.where(below, x, 0.5))
    turned = pi * builder.cos(pi * rest) / builder.sin(pi * rest)
    size = positive(builder.where(below, 1 - x, builder.where(x == 0, 1.0, x)))
    value = builder.where(below, builder.where(rest == 0, x * nan, size - turned), size)
    return builder.where(x == 0, -1 / x, value)


lgamma = pointwise_operator(
    "lgamma",
    "log|gamma(x)|: Stirling's series from 10 on, a series at 2 and the logarithm of a product below",
    _lgamma,
    family="special",
)
digamma = pointwise_operator(
    "digamma",
    "the derivative of lgamma: its series at x + 10, minus 1/x + 1/(x + 1) + .. + 1/(x + 9)",
    _digamma,
    family="special",
)


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
    # Quotients and products with the argument, so that derivatives are infinite or NaN there, too.
    end = builder.where(y == 1, 1 / (1 - y), builder.where(y == -1, -1 / (1 + y), y * nan))
    return builder.where(size < 1, x, end)


def _quantile(p: Any) -> Any:
    upper = p > 1 - _EDGE
    y = builder.where(upper, 1 - p, p)
    middle = y > _EDGE
    inside = (p > 0) & (p < 1)
    inner = _from_middle(builder.where(middle, y - 0.5, 0.0))
    outer = _from_end(builder.where(inside & (y <= _EDGE), y, 0.1))
    value = builder.where(middle, inner, builder.where(upper, outer, -outer))
    end = builder.where(p == 0, builder.log(p), builder.where(p == 1, 1 / (1 - p), p * nan))
    return builder.where(inside, value, end)


erfinv = pointwise_operator("erfinv", "the y with erf(y) = x", _erfinv, family="special")
ndtri = pointwise_operator(
    "ndtri",
    "the x-quantile of the standard normal distribution",
    _quantile,
    aten="special_ndtri.default",
    family="special",
)


def _square_exponential(x: Any, sign: int) -> Any:
    """Return exp(sign*x*x) for 0 <= x <= 30. The square of a part of x is exact; the rounding of x*x would be amplified
    by its size."""
    part = builder.floor(x * 16) * (1 / 16)
    return builder.exp(sign * part * part) * builder.exp(sign * (x - part) * (x + part))


def _scaled_tail(x: Any) -> Any:
    """Return exp(x*x)*erfc(x) for x >= 0. Source: Shepherd and Laframboise 1981."""
    return TAIL(1 / (x + TAIL_START)) / (1 + 2 * x)


def _erfc(x: Any) -> Any:
    near = x < 0.5
    far = builder.where(near, 0.5, builder.where(x > 30, 30.0, x))  # beyond 30 no type holds the tail
    tail = _square_exponential(far, -1) * _scaled_tail(far)
    return builder.differentiate_as(builder.where(near, 1 - builder.erf(x), tail), -builder.erf(x))


def _erfcx(x: Any) -> Any:
    near = x < 0.5
    size = builder.where(near, builder.where(x < -30, 30.0, builder.abs(x)), 0.0)
    complement = 1 - builder.erf(builder.where(near, x, 0.0))
    return builder.where(near, _square_exponential(size, 1) * complement, _scaled_tail(builder.where(near, 0.5, x)))


erfc = pointwise_operator(
    "erfc", "1 - erf(x): exp(-x*x) times a series, so that all digits stay", _erfc, family="special"
)
erfcx = pointwise_operator(
    "erfcx", "exp(x*x)*erfc(x), without overflow", _erfcx, aten="special_erfcx.default", family="special"
)


def _log_ndtr(x: Any) -> Any:
    below = x < 1
    t = builder.where(below, x, 1.0) * sqrt(0.5)
    low = builder.log(_erfcx(-t) / 2) - t * t
    high = builder.log1p(_erfc(builder.where(below, 1.0, x) * sqrt(0.5)) / -2)
    return builder.where(below, low, high)


log_ndtr = pointwise_operator(
    "log_ndtr",
    "the logarithm of the standard normal distribution up to x",
    _log_ndtr,
    aten="special_log_ndtr.default",
    family="special",
)
