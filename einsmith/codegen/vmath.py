"""exp, log, tanh and sigmoid as straight-line polynomials over vectors (or scalars) of f32 and f64.

LLVM's own vector exp becomes one scalar call a lane, so these are spelled out. Each function is written against
`Arith`, a dozen operations on lanes, so that every backend shares them. The whole range is covered: infinities, NaN,
denormal inputs and results, log(0) = -inf, log(x < 0) = NaN.

Errors, measured by tests/codegen/test_vmath.py: f32 exp and log below 1.5 ULP, tanh and sigmoid below 2.5 ULP; f64 a
few ULP. Sources: the argument reductions and f32 polynomials of the Cephes library (S. Moshier), log in f64 from fdlibm
(e_log.c), exp in f64 a Taylor polynomial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol


class Arith(Protocol):
    """Lanes of one float type (`elem`: f32 or f64) and integers of the same width. Operands are opaque."""

    elem: str

    def f(self, value: float) -> Any: ...
    def i(self, value: int) -> Any: ...
    def add(self, a: Any, b: Any) -> Any: ...
    def sub(self, a: Any, b: Any) -> Any: ...
    def mul(self, a: Any, b: Any) -> Any: ...
    def div(self, a: Any, b: Any) -> Any: ...
    def fma(self, a: Any, b: Any, c: Any) -> Any: ...
    def neg(self, x: Any) -> Any: ...
    def abs(self, x: Any) -> Any: ...
    def copysign(self, magnitude: Any, sign: Any) -> Any: ...
    def lt(self, a: Any, b: Any) -> Any: ...
    def eq(self, a: Any, b: Any) -> Any: ...
    def select(self, c: Any, a: Any, b: Any) -> Any: ...
    def bits(self, x: Any) -> Any: ...
    def unbits(self, x: Any) -> Any: ...
    def from_int(self, x: Any) -> Any: ...
    def iadd(self, a: Any, b: Any) -> Any: ...
    def isub(self, a: Any, b: Any) -> Any: ...
    def iand(self, a: Any, b: Any) -> Any: ...
    def shl(self, a: Any, n: int) -> Any: ...
    def ashr(self, a: Any, n: int) -> Any: ...


def _poly(v: Arith, x: Any, coefficients: Sequence[float]) -> Any:
    """The polynomial with these coefficients, highest power first (Horner)."""
    out = v.f(coefficients[0])
    for c in coefficients[1:]:
        out = v.fma(out, x, v.f(c))
    return out


# Per type: mantissa bits, exponent bias, the number whose last bit is worth 1 (rounds to an integer when added), the
# range outside of which exp is 0 or infinite, ln 2 in two parts (the first with trailing zeros: n times it is exact).
_FORMAT = {
    "f32": (23, 127, 12582912.0, -104.0, 89.0, 0.693359375, -2.12194440e-4),
    "f64": (52, 1023, 6755399441055744.0, -746.0, 710.0, 6.93147180369123816490e-01, 1.90821492927058770002e-10),
}
_EXP = {
    "f32": (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
    "f64": tuple(1 / math.factorial(k) for k in range(13, 1, -1)),
}


def exp(v: Arith, x: Any) -> Any:
    """e**x: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial in r, times 2**n."""
    mantissa, bias, magic, low, high, ln2_high, ln2_low = _FORMAT[v.elem]
    x = v.select(v.lt(x, v.f(low)), v.f(low), x)  # a NaN passes both
    x = v.select(v.lt(v.f(high), x), v.f(high), x)
    shifted = v.fma(x, v.f(math.log2(math.e)), v.f(magic))
    n = v.sub(shifted, v.f(magic))
    r = v.fma(n, v.f(-ln2_low), v.fma(n, v.f(-ln2_high), x))
    p = _poly(v, r, _EXP[v.elem])
    p = v.add(v.fma(v.mul(r, r), p, r), v.f(1.0))
    # 2**n in two factors, since n itself may leave the exponent's range while the product does not.
    whole = v.isub(v.bits(shifted), v.bits(v.f(magic)))
    half = v.ashr(whole, 1)
    for part in (half, v.isub(whole, half)):
        p = v.mul(p, v.unbits(v.shl(v.iadd(part, v.i(bias)), mantissa)))
    return p


_LOG32 = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
          2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)
_LOG64 = (1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01, 2.222219843214978396e-01,
          2.857142874366239149e-01, 3.999999999940941908e-01, 6.666666666666735130e-01)


def log(v: Arith, x: Any) -> Any:
    """The natural logarithm: x = 2**e m with m between sqrt(1/2) and sqrt(2), a polynomial in m - 1."""
    mantissa, _, _, _, _, ln2_high, ln2_low = _FORMAT[v.elem]
    single = v.elem == "f32"
    tiny = v.lt(x, v.f(2.0**-126 if single else 2.0**-1022))
    scaled = v.select(tiny, v.mul(x, v.f(2.0**mantissa)), x)
    root = 0x3F3504F3 if single else 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)
    shifted = v.isub(v.bits(scaled), v.i(root))
    e = v.from_int(v.ashr(shifted, mantissa))
    e = v.select(tiny, v.sub(e, v.f(float(mantissa))), e)
    f = v.sub(v.unbits(v.iadd(v.iand(shifted, v.i((1 << mantissa) - 1)), v.i(root))), v.f(1.0))
    square = v.mul(f, f)
    if single:
        tail = v.mul(v.mul(_poly(v, f, _LOG32), f), square)
        tail = v.fma(e, v.f(ln2_low), tail)
        tail = v.fma(square, v.f(-0.5), tail)
        out = v.fma(e, v.f(ln2_high), v.add(f, tail))
    else:
        s = v.div(f, v.add(f, v.f(2.0)))
        z = v.mul(s, s)
        series = v.mul(z, _poly(v, z, _LOG64))
        half = v.mul(square, v.f(0.5))
        tail = v.sub(half, v.fma(s, v.add(half, series), v.mul(e, v.f(ln2_low))))
        out = v.sub(v.mul(e, v.f(ln2_high)), v.sub(tail, f))
    out = v.select(v.lt(x, v.f(0.0)), v.f(math.nan), out)
    out = v.select(v.eq(x, v.f(0.0)), v.f(-math.inf), out)
    out = v.select(v.eq(x, v.f(math.inf)), x, out)
    return v.select(v.eq(x, x), out, x)


_TANH32 = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
_TANH64_P = (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
_TANH64_Q = (1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)


def tanh(v: Arith, x: Any) -> Any:
    """Odd polynomial (f64: rational) below 0.625, else 1 - 2 / (exp(2 |x|) + 1) with the sign of x."""
    a = v.abs(x)
    e = exp(v, v.add(a, a))
    far = v.sub(v.f(1.0), v.div(v.f(2.0), v.add(e, v.f(1.0))))
    z = v.mul(a, a)
    if v.elem == "f32":
        p = _poly(v, z, _TANH32)
    else:
        p = v.div(_poly(v, z, _TANH64_P), _poly(v, z, _TANH64_Q))
    near = v.fma(v.mul(z, p), a, a)
    return v.copysign(v.select(v.lt(a, v.f(0.625)), near, far), x)


def sigmoid(v: Arith, x: Any) -> Any:
    """1 / (1 + exp(-x)), from exp(-|x|), which cannot overflow."""
    e = exp(v, v.neg(v.abs(x)))
    top = v.select(v.lt(x, v.f(0.0)), e, v.f(1.0))
    return v.div(top, v.add(e, v.f(1.0)))


FUNCTIONS = {"exp": exp, "log": log, "tanh": tanh, "sigmoid": sigmoid}


def expand(name: str, v: Arith, x: Any) -> Any:
    """The named function of FUNCTIONS on `x`, as operations of `v`."""
    return FUNCTIONS[name](v, x)
