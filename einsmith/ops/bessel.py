"""Bessel and Airy functions: power series and Chebyshev series, with cosines where the functions oscillate. Sources:
Clenshaw 1955; Abramowitz, Stegun 1964, 9 and 10."""

from __future__ import annotations

from collections.abc import Callable
from math import factorial, inf, log, nan, pi, sqrt
from typing import Any

from einsmith.ops import expansions
from einsmith.ops.expansions import Expansion
from einsmith.ops.operator import pointwise_operator
from einsmith.ops.special import polynomial
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

# ---------------------------------------------------------------------------------------------- of the first and second

_NEAR = 8.0


def _split(x: Any) -> tuple[Any, Any, Any]:
    """Return (whether x <= 8, x there and 1 elsewhere, x beyond and 16 elsewhere), for x >= 0."""
    near = x <= _NEAR
    return near, builder.where(near, x, 1.0), builder.where(near, 2 * _NEAR, x)


def _magnitude(x: Any) -> Any:
    """Return |x| with the derivative 1 at 0, where that of abs is 0, and NaN at NaN: what is odd or even is smooth."""
    return builder.where(x < 0, -x, x)


def _swing(x: Any, order: int, second: bool) -> Any:
    """Return J, or Y if `second`, of order 0 or 1 for x > 8, by Hankel's asymptotic expansion (9.2.5, 9.2.6).

    P and Q are multiplied by the cosine and sine of x - pi/4 (order 0) or x - 3*pi/4 (order 1).
    """
    z = 1 / x
    square = z * z
    p, q = ((expansions.P0, expansions.Q0), (expansions.P1, expansions.Q1))[order]
    # Computed from sin(x) and cos(x), since the difference x - pi/4 would be rounded.
    up, down = builder.sin(x) + builder.cos(x), builder.sin(x) - builder.cos(x)
    c, s = (down, -up) if order else (up, down)
    even, odd = p(square), z * q(square)
    return (even * s + odd * c if second else even * c - odd * s) / builder.sqrt(pi * x)


def _j0(x: Any) -> Any:
    near, low, high = _split(_magnitude(x))
    return builder.where(near, expansions.J0(low * low), _swing(high, 0, False))


def _j1(x: Any) -> Any:
    near, low, high = _split(_magnitude(x))
    value = builder.where(near, low * expansions.J1(low * low), _swing(high, 1, False))
    return builder.where(x < 0, -value, value)


def _second(x: Any, order: int, near_: Callable[[Any], Any]) -> Any:
    """Return Y of order 0 or 1; `near_` computes it for 0 < x <= 8. It is minus infinity at 0 and NaN below."""
    near, low, high = _split(builder.where(x > 0, x, 1.0))
    value = builder.where(near, near_(low), _swing(high, order, True))
    return builder.where(x > 0, value, builder.where(x == 0, -inf, nan))


def _y0(x: Any) -> Any:
    return _second(x, 0, lambda a: expansions.Y0(a * a) + 2 / pi * builder.log(a) * expansions.J0(a * a))


def _y1(x: Any) -> Any:
    return _second(
        x, 1, lambda a: a * (expansions.Y1(a * a) + 2 / pi * builder.log(a) * expansions.J1(a * a)) - 2 / pi / a
    )


def _spherical(x: Any) -> Any:
    far = builder.abs(x) >= 0.5
    series = polynomial(x * x, (1 / 6227020800, -1 / 39916800, 1 / 362880, -1 / 5040, 1 / 120, -1 / 6, 1.0))
    value = builder.where(far, builder.sin(x) / builder.where(far, x, 1.0), series)
    return builder.where((x == inf) | (x == -inf), 0.0, value)


# ------------------------------------------------------------------------------------------------------------ modified

_TERMS = 26


def _modified_series(order: int) -> Callable[[Any], Any]:
    """Return a function of x: I(x)/x**order by its power series (9.6.10), exact to float64 for |x| <= 8.

    All terms are positive, so none cancel.
    """
    terms = [1 / (2**order * factorial(k) * factorial(k + order)) for k in reversed(range(_TERMS))]
    return lambda x: polynomial(0.25 * x * x, terms)


_I0, _I1 = _modified_series(0), _modified_series(1)


def _first(x: Any, near_: Callable[[Any], Any], far: Expansion, scaled: bool) -> Any:
    """Return I(x) for x >= 0, times exp(-x) if `scaled`; `near_` computes I(x) up to 8, `far` serves beyond."""
    near, low, high = _split(x)
    first, second = near_(low), far(1 / high) / builder.sqrt(high)
    if scaled:
        first = first * builder.exp(-low)
    else:  # the exponential overflows before the product with its factor does
        half = builder.exp(0.5 * high)
        second = second * half * half
    return builder.where(near, first, second)


def _even(scaled: bool) -> Callable[[Any], Any]:
    def size(x: Any) -> Any:  # with exp(-x) there is a kink at 0
        return builder.where(x == x, builder.abs(x), x) if scaled else _magnitude(x)

    return lambda x: _first(size(x), _I0, expansions.I0_FAR, scaled)


def _odd(scaled: bool) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        value = _first(_magnitude(x), lambda a: a * _I1(a), expansions.I1_FAR, scaled)
        return builder.where(x < 0, -value, value)

    return run


def _third(near_: Callable[[Any], Any], far: Expansion, scaled: bool) -> Callable[[Any], Any]:
    """Return a function of x: K(x), times exp(x) if `scaled`; infinity at 0, NaN below."""

    def run(x: Any) -> Any:
        near = x <= 2.0
        low = builder.where(near & (x > 0), x, 1.0)
        high = builder.where(near, 4.0, builder.where(x == x, x, 4.0))
        first, second = near_(low), far(1 / high) / builder.sqrt(high)
        first, second = (first * builder.exp(low), second) if scaled else (first, second * builder.exp(-high))
        value = builder.where(near, first, second)
        return builder.where((x < 0) | (x != x), nan, builder.where(x == 0, inf, value))

    return run


def _k0(scaled: bool) -> Callable[[Any], Any]:
    return _third(lambda a: expansions.K0_NEAR(a * a) - (builder.log(a) - log(2.0)) * _I0(a), expansions.K0_FAR, scaled)


def _k1(scaled: bool) -> Callable[[Any], Any]:
    return _third(
        lambda a: (builder.log(a) - log(2.0)) * (a * _I1(a)) + expansions.K1_NEAR(a * a) / a, expansions.K1_FAR, scaled
    )


# ---------------------------------------------------------------------------------------------------------------- Airy


def _airy(x: Any) -> Any:
    """Return Ai(x): asymptotic expansions outside of `AIRY`'s range (10.4.59, 10.4.60), a Chebyshev series inside.

    To the left it oscillates, to the right it decays.
    """
    back, far = x < expansions.AIRY.low, x > expansions.AIRY.high
    low = builder.where(back, -x, 4.0)
    rise = low * builder.sqrt(low) * (2 / 3)
    z = 1 / rise
    square = z * z
    # The sine and cosine of rise + pi/4, by the square root of two.
    up, down = builder.sin(rise) + builder.cos(rise), builder.cos(rise) - builder.sin(rise)
    swinging = (expansions.AIRY_F(square) * up - z * expansions.AIRY_G(square) * down) / (
        sqrt(2 * pi) * builder.sqrt(builder.sqrt(low))
    )
    seen = far & (x < 104.0)  # beyond, Ai(x) is 0 in float64
    high = builder.where(seen, x, 4.0)
    rise = high * builder.sqrt(high) * (2 / 3)
    fading = expansions.AIRY_FAR(1 / rise) / (builder.sqrt(builder.sqrt(high)) * builder.exp(rise))
    middle = expansions.AIRY(builder.where(back | far, 0.0, x))
    value = builder.where(back, swinging, builder.where(far, builder.where(seen, fading, 0.0), middle))
    return builder.where((x == inf) | (x == -inf) | (x != x), nan, value)


def _special(name: str, meaning: str, formula: Callable[[Any], Any], aten: str = "") -> Callable[..., Value]:
    return pointwise_operator(name, meaning, formula, aten=f"special_{name}.default {aten}", family="special")


bessel_j0 = _special("bessel_j0", "J0(x)", _j0)
bessel_j1 = _special("bessel_j1", "J1(x)", _j1)
bessel_y0 = _special("bessel_y0", "Y0(x)", _y0)
bessel_y1 = _special("bessel_y1", "Y1(x)", _y1)
spherical_bessel_j0 = _special("spherical_bessel_j0", "sin(x)/x", _spherical)
i0 = pointwise_operator(
    "i0", "I0(x)", _even(False), aten="i0.default special_modified_bessel_i0.default", family="special"
)
i0e = _special("i0e", "exp(-|x|)*I0(x)", _even(True))
i1 = _special("i1", "I1(x)", _odd(False), "special_modified_bessel_i1.default")
i1e = _special("i1e", "exp(-|x|)*I1(x)", _odd(True))
modified_bessel_k0 = _special("modified_bessel_k0", "K0(x)", _k0(False))
modified_bessel_k1 = _special("modified_bessel_k1", "K1(x)", _k1(False))
scaled_modified_bessel_k0 = _special("scaled_modified_bessel_k0", "exp(x)*K0(x)", _k0(True))
scaled_modified_bessel_k1 = _special("scaled_modified_bessel_k1", "exp(x)*K1(x)", _k1(True))
airy_ai = _special("airy_ai", "Ai(x)", _airy)
