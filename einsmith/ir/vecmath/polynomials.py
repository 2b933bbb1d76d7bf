"""Compute exp, log, tanh, sigmoid, erf and pow by straight-line polynomials over vectors (or scalars) of f32 and f64.

LLVM's own vector exp becomes one scalar call a lane, so these are spelled out. Each function is written against
`Arith`, a few operations on lanes, so that every backend shares them. The whole range is covered: infinities, NaN,
denormal inputs and results, log(0) = -inf, log(x < 0) = NaN, and every special case of C's pow. sin and cos are in
`trigonometric.py`.

Errors, measured by tests/codegen/test_vmath.py: f32 exp and log below 1.5 ULP, pow below 1.2, tanh and sigmoid below
2.5, erf below 2.7; f64 a few ULP. Sources: the argument reductions and f32 polynomials of the Cephes library (S.
Moshier), log in f64 from fdlibm (e_log.c), exp in f64 a Taylor polynomial; the other coefficients are minimax fits
made for this file (Remez exchange or Lawson's iteration), whose errors are given next to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Arith(Protocol):
    """Arithmetic on lanes of one float type (`elem`: f32 or f64) and integers of equal width. Operands are opaque.

    `fused`: fma rounds once. `wide()` is the f64 arithmetic of as many lanes; `extend` and `narrow` convert to it and
    back (`narrow` is a method of the narrow side). Conditions combine by `both`, `either` and `negate`.
    `replace_rare` replaces a value where a condition holds by the result of `slow` on the arguments, at no cost while
    it holds nowhere. `library` calls the C library, lane by lane.
    """

    elem: str
    fused: bool

    def f(self, value: float) -> Any:
        """Return a float constant."""

    def i(self, value: int) -> Any:
        """Return an integer constant."""

    def add(self, a: Any, b: Any) -> Any:
        """Return a + b of floats."""

    def sub(self, a: Any, b: Any) -> Any:
        """Return a - b of floats."""

    def mul(self, a: Any, b: Any) -> Any:
        """Return a*b of floats."""

    def div(self, a: Any, b: Any) -> Any:
        """Return a/b of floats."""

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Return a*b + c of floats, rounded once if `fused`."""

    def neg(self, x: Any) -> Any:
        """Return -x of a float."""

    def abs(self, x: Any) -> Any:
        """Return |x| of a float."""

    def copysign(self, magnitude: Any, sign: Any) -> Any:
        """Return the magnitude of one float with the sign of another."""

    def lt(self, a: Any, b: Any) -> Any:
        """Return the condition a < b of floats; false for NaN."""

    def eq(self, a: Any, b: Any) -> Any:
        """Return the condition a == b of floats; false for NaN."""

    def select(self, c: Any, a: Any, b: Any) -> Any:
        """Return the float a where the condition c holds, else b."""

    def bits(self, x: Any) -> Any:
        """Return the bits of a float as an integer."""

    def unbits(self, x: Any) -> Any:
        """Return the float that has these bits."""

    def from_int(self, x: Any) -> Any:
        """Return an integer converted to a float."""

    def iadd(self, a: Any, b: Any) -> Any:
        """Return a + b of integers; overflow wraps."""

    def isub(self, a: Any, b: Any) -> Any:
        """Return a - b of integers; overflow wraps."""

    def iand(self, a: Any, b: Any) -> Any:
        """Return the bitwise and of integers."""

    def shl(self, a: Any, n: int) -> Any:
        """Return an integer shifted left by n bits."""

    def ashr(self, a: Any, n: int) -> Any:
        """Return an integer shifted right by n bits, filled with its sign."""

    def lshr(self, a: Any, n: int) -> Any:
        """Return an integer shifted right by n bits, filled with zeros."""

    def imul(self, a: Any, b: Any) -> Any:
        """Return a*b of integers; overflow wraps."""

    def ior(self, a: Any, b: Any) -> Any:
        """Return the bitwise or of integers."""

    def ixor(self, a: Any, b: Any) -> Any:
        """Return the bitwise exclusive or of integers."""

    def ieq(self, a: Any, b: Any) -> Any:
        """Return the condition a == b of integers."""

    def iselect(self, c: Any, a: Any, b: Any) -> Any:
        """Return the integer a where the condition c holds, else b."""

    def floor(self, x: Any) -> Any:
        """Return the greatest whole number that is not above x, as a float."""

    def both(self, a: Any, b: Any) -> Any:
        """Return the condition that a and b hold."""

    def either(self, a: Any, b: Any) -> Any:
        """Return the condition that a or b holds."""

    def negate(self, a: Any) -> Any:
        """Return the condition that a does not hold."""

    def wide(self) -> Arith:
        """Return the f64 arithmetic of as many lanes."""

    def extend(self, x: Any) -> Any:
        """Return an f32 value as f64."""

    def narrow(self, x: Any) -> Any:
        """Return an f64 value rounded to this side's float type."""

    def extend_int(self, x: Any) -> Any:
        """Return an i32 value as i64, extended by zeros."""

    def narrow_int(self, x: Any) -> Any:
        """Return the low bits of an i64 value as this side's integer."""

    def replace_rare(self, where: Any, value: Any, name: str, slow: Callable[..., Any], *args: Any) -> Any:
        """Return `value`, where the condition `where` holds replaced by slow(arithmetic, *args).

        Args:
            where: the condition, which seldom holds
            value: the result elsewhere
            name: the name of the slow function, by which its code is shared
            slow: computes the result from an arithmetic and the arguments
            args: the arguments
        """

    def library(self, name: str, *args: Any) -> Any:
        """Return the result of a function of the C library, called lane by lane."""


def poly(v: Arith, x: Any, coefficients: Sequence[float]) -> Any:
    """Evaluate the polynomial with these coefficients, highest power first (Horner)."""
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
    """Compute e**x from x = n ln 2 + r with |r| <= ln 2 / 2: a polynomial in r, times 2**n."""
    mantissa, bias, magic, low, high, ln2_high, ln2_low = _FORMAT[v.elem]
    x = v.select(v.lt(x, v.f(low)), v.f(low), x)  # a NaN passes both
    x = v.select(v.lt(v.f(high), x), v.f(high), x)
    shifted = v.fma(x, v.f(math.log2(math.e)), v.f(magic))
    n = v.sub(shifted, v.f(magic))
    r = v.fma(n, v.f(-ln2_low), v.fma(n, v.f(-ln2_high), x))
    p = poly(v, r, _EXP[v.elem])
    p = v.add(v.fma(v.mul(r, r), p, r), v.f(1.0))
    # 2**n in two factors, since n itself may leave the exponent's range while the product does not.
    whole = v.isub(v.bits(shifted), v.bits(v.f(magic)))
    half = v.ashr(whole, 1)
    for part in (half, v.isub(whole, half)):
        p = v.mul(p, v.unbits(v.shl(v.iadd(part, v.i(bias)), mantissa)))
    return p


_LOG32 = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_LOG64 = (
    1.479819860511658591e-01,
    1.531383769920937332e-01,
    1.818357216161805012e-01,
    2.222219843214978396e-01,
    2.857142874366239149e-01,
    3.999999999940941908e-01,
    6.666666666666735130e-01,
)


def log(v: Arith, x: Any) -> Any:
    """Compute the natural logarithm from x = 2**e m with m between sqrt(1/2) and sqrt(2): a polynomial in m - 1."""
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
        tail = v.mul(v.mul(poly(v, f, _LOG32), f), square)
        tail = v.fma(e, v.f(ln2_low), tail)
        tail = v.fma(square, v.f(-0.5), tail)
        out = v.fma(e, v.f(ln2_high), v.add(f, tail))
    else:
        s = v.div(f, v.add(f, v.f(2.0)))
        z = v.mul(s, s)
        series = v.mul(z, poly(v, z, _LOG64))
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
    """Compute tanh by an odd polynomial (f64: rational) below 0.625, else as 1 - 2 / (exp(2 |x|) + 1) with the sign of
    x."""
    a = v.abs(x)
    e = exp(v, v.add(a, a))
    far = v.sub(v.f(1.0), v.div(v.f(2.0), v.add(e, v.f(1.0))))
    z = v.mul(a, a)
    if v.elem == "f32":
        p = poly(v, z, _TANH32)
    else:
        p = v.div(poly(v, z, _TANH64_P), poly(v, z, _TANH64_Q))
    near = v.fma(v.mul(z, p), a, a)
    return v.copysign(v.select(v.lt(a, v.f(0.625)), near, far), x)


def sigmoid(v: Arith, x: Any) -> Any:
    """Compute 1 / (1 + exp(-x)) from exp(-|x|), which cannot overflow."""
    e = exp(v, v.neg(v.abs(x)))
    top = v.select(v.lt(x, v.f(0.0)), e, v.f(1.0))
    return v.div(top, v.add(e, v.f(1.0)))


# -log2(1 - erf(x)) / x for x in 0 .. 3.925 (where erf is 1 in f32), to 0.07 ULP of erf.
_ERF32 = (
    -1.327701556874672e-05,
    1.6911416605580598e-04,
    -9.111972758546472e-04,
    2.4025633465498686e-03,
    -2.299180196132511e-04,
    -2.763228490948677e-02,
    1.4827701449394226e-01,
    9.184476137161255e-01,
    1.6279070377349854,
)
# (2**r - 1) / r for |r| <= 1/2, to 0.1 ULP of erf.
_EXP2_LESS_1 = (
    1.5207819524221122e-04,
    1.339142327196896e-03,
    9.619012475013733e-03,
    5.5503588169813156e-02,
    2.4022641777992249e-01,
    6.931471824645996e-01,
)
# erf(x) / x - 1 in powers of x**2 up to x = 1, within 7.1e-18.
_ERF64_NEAR = (
    -7.801188874097751e-10,
    1.3722976265924504e-08,
    -1.6209175911748696e-07,
    1.6447517677871873e-06,
    -1.4924744663335489e-05,
    0.00012055295320494294,
    -0.0008548325989696758,
    0.005223977607423468,
    -0.02686617064327622,
    0.11283791670945253,
    -0.3761263890318355,
    0.12837916709551256,
)
# log(1 - erf(x)) for x in 1 .. 6, within 1.2e-18 of 1 - erf(x).
_ERF64_FAR = (
    1.0390364975582038e-12,
    -4.7516699976403596e-11,
    1.0170431278533035e-09,
    -1.3522210472241305e-08,
    1.2483091483190644e-07,
    -8.451942517553951e-07,
    4.301788900203548e-06,
    -1.6421515980714743e-05,
    4.476999837838689e-05,
    -6.975055863623622e-05,
    -4.5955872379215446e-05,
    0.0006428337503413695,
    -0.0017709255802357575,
    0.00028222877556692935,
    0.01907695535480243,
    -0.10274664269375507,
    -0.6366287036648968,
    -1.128377282417774,
    -1.8438259783521396e-07,
)


def erf(v: Arith, x: Any) -> Any:
    """Compute the error function. f32: 1 - 2**-q(|x|) with the sign of x, where -q = n + r, as (1 - 2**n) - 2**n r
    (2**r - 1)/r, which keeps its digits where n = 0. f64: an odd polynomial for small |x|, else 1 - exp(polynomial in
    |x|)."""
    a = v.abs(x)
    if v.elem == "f32":
        end = v.f(3.925)
        a = v.select(v.lt(end, a), end, a)
        q = v.neg(poly(v, a, _ERF32))
        magic = v.f(_FORMAT["f32"][2])
        shifted = v.fma(q, a, magic)
        r = v.fma(q, a, v.sub(magic, shifted))
        whole = v.unbits(v.iadd(v.shl(v.bits(shifted), 23), v.i(0x3F800000)))  # 2**n
        out = v.fma(v.neg(v.mul(whole, r)), poly(v, r, _EXP2_LESS_1), v.sub(v.f(1.0), whole))
        return v.copysign(out, x)
    z = v.mul(a, a)
    near = v.fma(poly(v, z, _ERF64_NEAR), a, a)
    end = v.f(6.0)  # erf is 1 from here on
    t = v.select(v.lt(end, a), end, a)
    far = v.sub(v.f(1.0), exp(v, poly(v, t, _ERF64_FAR)))
    return v.copysign(v.select(v.lt(a, v.f(1.0)), near, far), x)


# log2((1 + s) / (1 - s)) / s in powers of s**2 for mantissas between sqrt(1/2) and sqrt(2), within 7.8e-14.
_LOG2 = (
    0.2829175400260188,
    0.3199044803232388,
    0.41220928210890484,
    0.5770779420690869,
    0.9617966941143694,
    2.8853900817778495,
)
# 2**r for |r| <= 1/2, within 1.9e-9.
_EXP2 = (
    0.00015478019963601473,
    0.0013400435017544418,
    0.009617994523496473,
    0.055503272057880526,
    0.24022651504968717,
    0.6931472067151588,
    0.9999999999190616,
)


def pow(v: Arith, x: Any, y: Any) -> Any:
    """Compute x**y with the special cases of C's pow. f32: exp2(y log2 |x|) in f64; f64: the C library's pow."""
    if v.elem != "f32":
        return v.library("pow", x, y)
    mantissa = _FORMAT["f32"][0]
    one, infinity = v.f(1.0), v.f(math.inf)
    a, b = v.abs(x), v.abs(y)
    unit = v.either(v.eq(x, one), v.both(v.eq(a, one), v.eq(b, infinity)))
    flat = v.either(unit, v.eq(y, v.f(0.0)))  # 1, whatever the other operand
    base, power = v.select(flat, one, a), v.select(flat, v.f(0.0), y)
    tiny = v.lt(base, v.f(2.0**-126))
    scaled = v.select(tiny, v.mul(base, v.f(2.0**mantissa)), base)
    root = 0x3F3504F3  # the bits of sqrt(1/2)
    shifted = v.isub(v.bits(scaled), v.i(root))
    e = v.from_int(v.ashr(shifted, mantissa))
    e = v.select(tiny, v.sub(e, v.f(float(mantissa))), e)
    e = v.select(v.eq(base, v.f(0.0)), v.f(-math.inf), e)
    e = v.select(v.lt(base, infinity), e, base)  # infinity and NaN
    f = v.sub(v.unbits(v.iadd(v.iand(shifted, v.i((1 << mantissa) - 1)), v.i(root))), one)

    w = v.wide()
    f = v.extend(f)
    s = w.div(f, w.add(f, w.f(2.0)))
    log2 = w.fma(s, poly(w, w.mul(s, s), _LOG2), v.extend(e))
    t = w.mul(log2, v.extend(power))
    t = w.select(w.lt(t, w.f(-200.0)), w.f(-200.0), t)  # a NaN passes both
    t = w.select(w.lt(w.f(200.0), t), w.f(200.0), t)
    mantissa, bias, magic = _FORMAT["f64"][:3]
    rounded = w.add(t, w.f(magic))
    p = poly(w, w.sub(t, w.sub(rounded, w.f(magic))), _EXP2)
    whole = w.isub(w.bits(rounded), w.bits(w.f(magic)))
    out = v.narrow(w.mul(p, w.unbits(w.shl(w.iadd(whole, w.i(bias)), mantissa))))

    integer, half = v.eq(v.floor(y), y), v.mul(y, v.f(0.5))
    odd = v.both(integer, v.negate(v.eq(v.floor(half), half)))
    out = v.select(odd, v.copysign(out, x), out)
    wrong = v.both(v.both(v.lt(x, v.f(0.0)), v.lt(a, infinity)), v.negate(integer))
    return v.select(wrong, v.f(math.nan), out)
