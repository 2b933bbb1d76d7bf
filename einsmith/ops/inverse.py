"""Compute inverses of the sine, the tangent and their hyperbolic relatives from functions that formulas have.

atan(x) = 2*atan(x/(1 + sqrt(1 + x*x))) halves an angle, and atan(x) = pi/2 - atan(1/x) brings it below pi/4: after two
halvings it is below 0.2, where twelve terms of the series t - t**3/3 + t**5/5 - ... give all digits of float64.
"""

from __future__ import annotations

from math import pi
from typing import Any

from einsmith.ops.common import each
from einsmith.ops.operator import AsFloats, operator, pointwise_operator
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

TERMS = 12


def _half_angle_tangent(t: Any) -> Any:
    return t / (1 + builder.sqrt(1 + t * t))


def _small(x: Any) -> Any:
    """Return atan(x) for |x| <= 1."""
    t = _half_angle_tangent(_half_angle_tangent(x))
    square = t * t
    total: Any = 0.0
    for n in reversed(range(TERMS)):
        total = total * square + (-1) ** n / (2 * n + 1)
    return 4 * t * total


def _angle(x: Any) -> Any:
    return builder.where(x > 1, pi / 2 - _small(1 / x), builder.where(x < -1, -pi / 2 - _small(1 / x), _small(x)))


atan = pointwise_operator("atan", "the arc tangent of x, 4*(t - t**3/3 + ..) with t = tan(atan(x)/4)", _angle, "Atan")


def _arc(s: Any) -> Any:
    """Return asin(s) for |s| <= 1/2."""
    return _small(s / builder.sqrt(1 - s * s))


def _near(e: Any) -> Any:
    """Return acos(e) for 1/2 <= e <= 1, by the sine of half the angle.

    That loses no digits, and the derivative at 1 is infinite.
    """
    return 2 * _arc(builder.sqrt(0.5 * (1 - e)))


asin = pointwise_operator(
    "asin",
    "the arc sine of x, atan(x/sqrt(1 - x*x)), pi/2 - 2*asin(sqrt((1 - x)/2)) near 1",
    lambda e: builder.where(e > 0.5, pi / 2 - _near(e), builder.where(e < -0.5, _near(-e) - pi / 2, _arc(e))),
    "Asin",
)
acos = pointwise_operator(
    "acos",
    "the arc cosine of x, pi/2 - asin(x), 2*asin(sqrt((1 - x)/2)) near 1",
    lambda e: builder.where(e > 0.5, _near(e), builder.where(e < -0.5, pi - _near(-e), pi / 2 - _arc(e))),
    "Acos",
)


def _asinh(e: Any) -> Any:
    """Return asinh(e); above |e| = 1e8 as log(2*|e|), since e*e would overflow."""

    def positive(a: Any) -> Any:
        near = builder.log1p(a + a * a / (1 + builder.sqrt(1 + a * a)))
        return builder.where(a > 1e8, builder.log(a) + builder.log(2.0), near)

    return builder.where(e < 0, -positive(-e), positive(e))


def _acosh(e: Any) -> Any:
    t = e - 1
    near = builder.log1p(t + builder.sqrt(t) * builder.sqrt(t + 2))
    return builder.where(e > 1e8, builder.log(e) + builder.log(2.0), near)


asinh = pointwise_operator("asinh", "sign(x)*log1p(|x| + x*x/(1 + sqrt(1 + x*x)))", _asinh, "Asinh")
acosh = pointwise_operator("acosh", "log1p(t + sqrt(t)*sqrt(t + 2)) with t = x - 1", _acosh, "Acosh")
atanh = pointwise_operator(
    "atanh", "log1p(2*x/(1 - x))/2", lambda e: 0.5 * (builder.log1p(e) - builder.log1p(-e)), "Atanh"
)


@operator(aten="atan2.default")
def atan2(input: AsFloats, other: AsFloats) -> Value:
    """Return the angle of the point (other, input), in (-pi, pi]: atan(y/x), or -atan(x/y) where |y| > |x|, plus a
    constant for the quadrant.

    At the origin it is 0, or pi where x is minus zero.
    """

    def formula(b: Any, a: Any) -> Any:
        negative = (b < 0) | ((b == 0) & (1 / b < 0))
        left = (a < 0) | ((a == 0) & (1 / a < 0))
        turn = builder.where(left, builder.where(negative, -pi, pi), 0.0)
        diagonal = builder.where(negative, -1.0, 1.0) * builder.where(left, 0.75 * pi, 0.25 * pi)
        flat = _angle(b / a) + turn
        steep = builder.where(negative, -pi / 2, pi / 2) - _angle(a / b)
        infinite = (b - b != 0) & (a - a != 0) & (b == b) & (a == a)
        wide = (b <= a) & (-b <= a) | (b <= -a) & (-b <= -a)
        inside = builder.where((a == 0) & (b == 0), turn + 0 * a * b, builder.where(wide, flat, steep))
        return builder.where(infinite, diagonal, inside)

    return each((input, other), formula)
