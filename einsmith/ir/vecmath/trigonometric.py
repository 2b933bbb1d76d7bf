"""Compute sin and cos over vectors (or scalars) of f32 and f64, written against `polynomials.Arith`.

x = n pi/2 + r with |r| <= pi/4; there is a polynomial in r for the sine and one for the cosine, and the quadrant n
selects one of them and its sign. In f32, r is found in three fused steps up to 71476; beyond, by 96 bits of the
product with 2/pi (Payne and Hanek), on integers. In f64, three parts of pi/2 with a correction term serve up to 1e6,
the C library beyond and where r nearly vanishes.

Errors, measured by tests/codegen/test_vmath.py: below 2 ULP in f32, for every argument; f64 below 1. Sources: f32
reduction and polynomials after N. Juffa; f64 from fdlibm (k_sin.c, k_cos.c, e_rem_pio2.c); the reduction of large
arguments as in ARM's optimized routines (sincosf.h).
"""

from __future__ import annotations

import math
from typing import Any

from einsmith.ir.vecmath.polynomials import Arith, poly

_LIMIT32, _LIMIT64 = 71476.0, 1e6
_PI32 = (1.57079601287841796875, 3.1391647326017846e-07, 5.390302529957764e-15)
# pi/2 in parts of 33 bits, and what remains after each.
_PI64 = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
_SIN32 = (2.86567956e-6, -1.98559923e-4, 8.33338592e-3, -1.66666672e-1)
_COS32 = (2.44677067e-5, -1.38877297e-3, 4.16666567e-2, -5.00000000e-1, 1.0)
_SIN64 = (
    1.58969099521155010221e-10,
    -2.50507602534068634195e-08,
    2.75573137070700676789e-06,
    -1.98412698298579493134e-04,
    8.33333333332248946124e-03,
)
_SIN64_FIRST = -1.66666666666666324348e-01
_COS64 = (
    -1.13596475577881948265e-11,
    2.08757232129817482790e-09,
    -2.75573143513906633035e-07,
    2.48015872894767294178e-05,
    -1.38888888888741095749e-03,
    4.16666666666666019037e-02,
)
_MAGIC = {"f32": 12582912.0, "f64": 6755399441055744.0}

# Words of 32 bits of 2/pi = 0.A2F9836E4E44..., each 8 bits further on; the first begins with zeros.
_TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041
_WORDS = tuple(_TWO_OVER_PI >> (192 - 8 * (k + 1)) & 0xFFFFFFFF for k in range(24))


def sin(v: Arith, x: Any) -> Any:
    """Compute the sine of x in radians; NaN for infinities."""
    return _shifted_sine(v, x, 0)


def cos(v: Arith, x: Any) -> Any:
    """Compute the cosine of x in radians; NaN for infinities."""
    return _shifted_sine(v, x, 1)


def _shifted_sine(v: Arith, x: Any, quarter: int) -> Any:
    """Compute sin(x + quarter * pi/2)."""
    name = "cos" if quarter else "sin"
    a = v.abs(x)
    if v.elem == "f64":
        n, r, tail = _near64(v, x)
        # Where r is tiny compared with x, r needs more bits of pi than the three parts have.
        cancels = v.both(v.lt(v.abs(r), v.f(2.0**-30)), v.lt(v.f(1.0), a))
        rare = v.either(cancels, v.lt(v.f(_LIMIT64), a))
        out = _quadrant(v, n, quarter, _sin64(v, r, tail), _cos64(v, r, tail))
        out = out if quarter else v.select(v.eq(x, v.f(0.0)), x, out)
        return v.replace_rare(rare, out, name, lambda w, y: w.library(name, y), x)
    n, r = _near32(v, x)
    out = _signed32(v, x, n, r, quarter)
    return v.replace_rare(v.lt(v.f(_LIMIT32), a), out, name, lambda w, y: _far32(w, y, quarter), x)


def _signed32(v: Arith, x: Any, n: Any, r: Any, quarter: int) -> Any:
    z = v.mul(r, r)
    sine = v.fma(poly(v, z, _SIN32), v.mul(z, r), r)
    out = _quadrant(v, n, quarter, sine, poly(v, z, _COS32))
    return out if quarter else v.select(v.eq(x, v.f(0.0)), x, out)  # -0 stays


def _quadrant(v: Arith, n: Any, quarter: int, sine: Any, cosine: Any) -> Any:
    """Select the sine or cosine of the reduced argument by the quadrant n (integer lanes), and apply its sign."""
    n = v.iadd(n, v.i(quarter)) if quarter else n
    even = v.ieq(v.iand(n, v.i(1)), v.i(0))
    top = 30 if v.elem == "f32" else 62
    sign = v.shl(v.iand(n, v.i(2)), top)
    return v.unbits(v.ixor(v.bits(v.select(even, sine, cosine)), sign))


def _near32(v: Arith, x: Any) -> tuple[Any, Any]:
    """Reduce |x| up to the limit; return (n, r)."""
    if not v.fused:  # the products below would be rounded: f64 holds them
        w = v.wide()
        n, r, _ = _near64(w, v.extend(x))
        return v.narrow_int(n), v.narrow(r)
    magic = v.f(_MAGIC["f32"])
    shifted = v.fma(x, v.f(2 / math.pi), magic)
    n = v.sub(shifted, magic)
    r = x
    for part in _PI32:
        r = v.fma(n, v.f(-part), r)
    return v.bits(shifted), r


def _near64(v: Arith, x: Any) -> tuple[Any, Any, Any]:
    """Reduce |x| up to the limit; return (n, r, tail), where r + tail is the reduced argument. No product is rounded
    but the last."""
    magic = v.f(_MAGIC["f64"])
    shifted = v.add(v.mul(x, v.f(2 / math.pi)), magic)
    n = v.sub(shifted, magic)
    first = v.sub(x, v.mul(n, v.f(_PI64[0])))
    second = v.mul(n, v.f(_PI64[1]))
    near = v.sub(first, second)
    rest = v.sub(v.mul(n, v.f(_PI64[2])), v.sub(v.sub(first, near), second))
    r = v.sub(near, rest)
    return v.bits(shifted), r, v.sub(v.sub(near, r), rest)


def _sin64(v: Arith, r: Any, tail: Any) -> Any:
    z = v.mul(r, r)
    cube = v.mul(z, r)
    p = v.sub(v.mul(tail, v.f(0.5)), v.mul(cube, poly(v, z, _SIN64)))
    return v.sub(r, v.sub(v.sub(v.mul(z, p), tail), v.mul(cube, v.f(_SIN64_FIRST))))


def _cos64(v: Arith, r: Any, tail: Any) -> Any:
    z = v.mul(r, r)
    half = v.mul(z, v.f(0.5))
    w = v.sub(v.f(1.0), half)
    p = v.sub(v.mul(z, v.mul(z, poly(v, z, _COS64))), v.mul(r, tail))
    return v.add(w, v.add(v.sub(v.sub(v.f(1.0), w), half), p))


def _far32(v: Arith, x: Any, quarter: int) -> Any:
    """Compute the result for any f32 beyond 2**16: 96 bits of 2/pi, chosen by the exponent, times the mantissa, are n
    and r modulo 4."""
    w, a = v.wide(), v.abs(x)
    bits = v.bits(a)
    shift = v.iand(v.lshr(bits, 23), v.i(7))
    m = v.ior(v.iand(bits, v.i(0xFFFFFF)), v.i(0x800000))
    for n in (1, 2, 4):  # m << shift, below 2**31
        m = v.iselect(v.ieq(v.iand(shift, v.i(n)), v.i(0)), m, v.shl(m, n))
    which, words = v.iand(v.lshr(bits, 26), v.i(15)), [v.i(0)] * 3
    for k in range(1, 16):
        here = v.ieq(which, v.i(k))
        for n in range(3):
            words[n] = v.iselect(here, v.i(_to_signed(_WORDS[k + 4 * n])), words[n])
    m = v.extend_int(m)
    high, middle, low = (w.imul(m, v.extend_int(word)) for word in words)
    product = w.iadd(w.iadd(w.shl(high, 32), w.lshr(low, 32)), middle)  # n and 62 bits behind the point
    n = w.lshr(w.iadd(product, w.i(1 << 61)), 62)
    r = w.mul(w.from_int(w.isub(product, w.shl(n, 62))), w.f(math.ldexp(math.pi / 2, -62)))
    out = _signed32(v, a, v.narrow_int(n), v.narrow(r), quarter)
    out = v.select(v.lt(a, v.f(math.inf)), out, v.f(math.nan))
    return out if quarter else v.select(v.lt(x, v.f(0.0)), v.neg(out), out)


def _to_signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word
