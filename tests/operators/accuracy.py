"""The greatest errors of functions of one number, in units in the last place (ULP) of the result: `FUNCTIONS` declares
them, test_accuracy.py measures them against mpmath, and docs/semantics.md lists them.

float16 and bfloat16 are computed in float32, and rounded: their bound is `ROUNDED` for every function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

ROUNDED = 0.51
"""ULP of a result that was computed in a wider type and rounded."""


class Accuracy(NamedTuple):
    """A function's declaration.

    Attributes:
        exact: name of mpmath's function, or a function of mpmath and a number
        single: bound in float32 (ULP)
        double: bound in float64 (ULP)
        low: least argument for which the bounds hold
        high: greatest one
        least: results below this count as it: where others cancel to a zero, the absolute error is bounded
    """

    exact: str | Callable[[Any, Any], Any]
    single: float
    double: float
    low: float = -np.inf
    high: float = np.inf
    least: float = 0.0

    def __call__(self, mp: Any, x: float) -> Any:
        """Return the exact value, None at a pole and where the value is no real number."""
        number = mp.mpf(x)
        try:
            y = getattr(mp, self.exact)(number) if isinstance(self.exact, str) else self.exact(mp, number)
        except (ZeroDivisionError, ValueError):
            return None
        return None if isinstance(y, mp.mpc) or not mp.isfinite(y) else mp.mpf(y)


def _log_gamma(mp: Any, x: Any) -> Any:
    return mp.loggamma(x) if x > 0 else mp.log(mp.pi / abs(mp.sinpi(x))) - mp.loggamma(1 - x)


def _erfc(mp: Any, x: Any) -> Any:
    return mp.erfc(x) if x < 200 else mp.mpf(0)


def _quantile(mp: Any, p: Any) -> Any:
    with mp.workdps(40 + max(0, int(-mp.log10(p)))):
        return mp.sqrt(2) * mp.erfinv(2 * p - 1)


def _softplus(mp: Any, x: Any) -> Any:
    return mp.log1p(mp.exp(x)) if x < 2000 else x


def _exponential_unit(mp: Any, x: Any) -> Any:
    return x if x > 0 else mp.expm1(x)


SELU = 1.6732632423543772, 1.0507009873554805
FUNCTIONS: dict[str, Accuracy] = {
    "exp": Accuracy("exp", 1, 1), "expm1": Accuracy("expm1", 2.5, 2.5),
    "exp2": Accuracy(lambda mp, x: mp.mpf(2) ** x, 1, 1), "log": Accuracy("log", 1, 1, 0),
    "log1p": Accuracy("log1p", 2.5, 2.5, -1), "log2": Accuracy(lambda mp, x: mp.log(x, 2), ROUNDED, 2, 0),
    "log10": Accuracy("log10", ROUNDED, 3, 0), "sqrt": Accuracy("sqrt", 0.5, 0.5, 0),
    "rsqrt": Accuracy(lambda mp, x: 1 / mp.sqrt(x), 1.5, 1.5, 0), "reciprocal": Accuracy(lambda mp, x: 1 / x, 0.5, 0.5),
    "sin": Accuracy("sin", 1.6, 1), "cos": Accuracy("cos", 1.6, 1), "tan": Accuracy("tan", 3, 3),
    "sinc": Accuracy("sincpi", 3, 3, -1e6, 1e6), "sinh": Accuracy("sinh", 3.5, 3.5), "cosh": Accuracy("cosh", 3, 3),
    "tanh": Accuracy("tanh", 2.5, 2.5), "asin": Accuracy("asin", 4, 4, -1, 1), "acos": Accuracy("acos", 4, 4, -1, 1),
    "atan": Accuracy("atan", 4, 4), "asinh": Accuracy("asinh", 3, 3), "acosh": Accuracy("acosh", 3, 3, 1),
    "atanh": Accuracy("atanh", 3, 3, -1, 1), "erf": Accuracy("erf", 2.7, 2), "erfc": Accuracy(_erfc, ROUNDED, 4),
    "erfcx": Accuracy(lambda mp, x: mp.exp(x * x) * mp.erfc(x), ROUNDED, 4, -30, 1e4),
    "erfinv": Accuracy("erfinv", ROUNDED, 4, -1, 1),
    "ndtri": Accuracy(_quantile, ROUNDED, 4, 0, 1),
    "lgamma": Accuracy(_log_gamma, ROUNDED, 10, -1e6, least=1),
    "digamma": Accuracy("digamma", ROUNDED, 10, -1e6, least=1),
    "logit": Accuracy(lambda mp, p: mp.log(p / (1 - p)), 2, 2, 0, 1),
    "sigmoid": Accuracy(lambda mp, x: 1 / (1 + mp.exp(-x)), 2.5, 2.5),
    "logsigmoid": Accuracy(lambda mp, x: -_softplus(mp, -x), 2.5, 2.5),
    "softplus": Accuracy(_softplus, 2.5, 2.5, high=20),
    "silu": Accuracy(lambda mp, x: x / (1 + mp.exp(-x)), 3.5, 3.5),
    "gelu": Accuracy(lambda mp, x: x * _erfc(mp, -x / mp.sqrt(2)) / 2, 3, 3, least=1),
    "mish": Accuracy(lambda mp, x: x * mp.tanh(_softplus(mp, x)), 4, 4), "elu": Accuracy(_exponential_unit, 3, 3),
    "selu": Accuracy(lambda mp, x: (1 if x > 0 else SELU[0]) * mp.mpf(SELU[1]) * _exponential_unit(mp, x), 4, 4),
    "softsign": Accuracy(lambda mp, x: x / (1 + abs(x)), 2, 2),
    "tanhshrink": Accuracy(lambda mp, x: x - mp.tanh(x), 2, 2, least=1),
    "bessel_j0": Accuracy("j0", ROUNDED, 3, -1e4, 1e4, 1), "bessel_j1": Accuracy("j1", ROUNDED, 3, -1e4, 1e4, 1),
    "bessel_y0": Accuracy(lambda mp, x: mp.bessely(0, x), ROUNDED, 3, 0, 1e4, 1),
    "bessel_y1": Accuracy(lambda mp, x: mp.bessely(1, x), ROUNDED, 3, 0, 1e4, 1),
    "spherical_bessel_j0": Accuracy("sinc", ROUNDED, 2, -1e6, 1e6),
    "i0": Accuracy(lambda mp, x: mp.besseli(0, x), ROUNDED, 5, -800, 800),
    "i1": Accuracy(lambda mp, x: mp.besseli(1, x), ROUNDED, 5, -800, 800),
    "i0e": Accuracy(lambda mp, x: mp.besseli(0, x) * mp.exp(-abs(x)), ROUNDED, 4, -1e4, 1e4),
    "i1e": Accuracy(lambda mp, x: mp.besseli(1, x) * mp.exp(-abs(x)), ROUNDED, 4, -1e4, 1e4),
    "modified_bessel_k0": Accuracy(lambda mp, x: mp.besselk(0, x), ROUNDED, 20, 0, 800),
    "modified_bessel_k1": Accuracy(lambda mp, x: mp.besselk(1, x), ROUNDED, 10, 0, 800),
    "scaled_modified_bessel_k0": Accuracy(lambda mp, x: mp.exp(x) * mp.besselk(0, x), ROUNDED, 20, 0, 1e4),
    "scaled_modified_bessel_k1": Accuracy(lambda mp, x: mp.exp(x) * mp.besselk(1, x), ROUNDED, 10, 0, 1e4),
    "airy_ai": Accuracy("airyai", ROUNDED, 8, -10, 50, 1),
}  # fmt: skip


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield the lines of the documents' table: names, bounds, and where they hold."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, a in FUNCTIONS.items():
        groups.setdefault((a.single, a.double, a.low, a.high, a.least), []).append(f"`{name}`")
    for (single, double, low, high, least), names in groups.items():
        ends = [f"x >= {low:g}"] * (low > -np.inf) + [f"x <= {high:g}"] * (high < np.inf)
        where = ", ".join([*ends, *[f"results below {least:g} count as {least:g}"] * (least > 0)])
        yield ", ".join(names), f"{single:g}", f"{double:g}", where
