"""Lower scalar functions of the IR to instructions on tiles.

Divisions follow Python, conversions saturate, and special functions use the polynomials that CPUs use too
(`ir.vecmath`).
"""

from __future__ import annotations

from collections.abc import Callable

from einsmith.base.dtypes import DType
from einsmith.base.errors import CompileError
from einsmith.codegen.ssa import INTEGERS, SSAValue, elem_of
from einsmith.gpu.tiles.ir import TileBuilder
from einsmith.gpu.tiles.operations import FLOATS
from einsmith.ir.functions import FUNCTIONS
from einsmith.ir.random import threefry
from einsmith.ir.vecmath import polynomials

_IN_DOUBLE = ("sin", "cos", "pow")
"""Functions that are computed by f64 instructions, as no polynomial serves all arguments."""
_DIRECT = ("add", "sub", "mul", "div", "min", "max", "neg", "abs", "floor", "sqrt", "lt", "le", "eq", "ne", "and", "or",
           "not")  # fmt: skip


def apply(b: TileBuilder, fn: str, *a: SSAValue) -> SSAValue:
    """Emit a function of `ir.functions`, except `where` and `cast`."""
    if fn in ("stop_gradient", "differentiate_as"):
        return a[0]
    if fn in _DIRECT:
        return b.op(fn, *a)
    if fn == "sign":
        return sign(b, a[0])
    if fn == "round":
        return nearest(b, a[0])
    if fn == "rsqrt":
        return b.op("div", b.const(1.0, a[0].elem), b.op("sqrt", a[0]))
    if fn in ("floordiv", "mod"):
        return (float_division if a[0].elem in FLOATS else division)(b, fn, *a)
    if fn == "random_bits":
        return _random(b, *a)
    if a[0].elem == "f64" and fn in _IN_DOUBLE:
        return b.op(fn, *a)
    lanes = FUNCTIONS[fn].lanes if fn in FUNCTIONS else None
    if lanes is not None:
        return lanes(TileArithmetic(b, a[0].elem), *a)
    raise CompileError(f"there is no {fn} on tiles")


def nearest(b: TileBuilder, x: SSAValue) -> SSAValue:
    """Emit the nearest whole number, halves to the even one, with the sign of x."""
    low = b.op("floor", x)
    rest, half = b.op("sub", x, low), b.const(0.5, x.elem)
    is_odd = b.op("ne", b.op("mul", low, half), b.op("floor", b.op("mul", low, half)))
    up = b.op("or", b.op("lt", half, rest), b.op("and", b.op("eq", rest, half), is_odd))
    whole = b.select(up, b.op("add", low, b.const(1.0, x.elem)), low)
    return b.select(b.op("eq", whole, b.const(0.0, x.elem)), b.op("mul", x, b.const(0.0, x.elem)), whole)


def sign(b: TileBuilder, x: SSAValue) -> SSAValue:
    """Emit the sign: -1, 0 or 1; NaN for NaN, and +0 for a zero of either sign."""
    zero, one = (b.const(v, x.elem) for v in (0, 1))
    return b.select(b.op("lt", zero, x), one, b.select(b.op("lt", x, zero), b.op("neg", one), b.op("add", x, zero)))


def division(b: TileBuilder, fn: str, x: SSAValue, y: SSAValue, is_nonnegative: bool = False) -> SSAValue:
    """Emit `floordiv` or `mod` of integers, towards minus infinity; division by zero gives 0.

    is_nonnegative: x is not below 0 at any point. Lanes that are not points hold any value, for which a divisor that is
    not a literal must be defined too.
    """
    divisor = b.known(y)
    if divisor is not None and divisor > 0:
        q, r = b.op("quot", x, y), b.op("rem", x, y)
        if is_nonnegative:
            return q if fn == "floordiv" else r
        below = b.op("lt", r, 0)
        return b.select(below, b.op("sub", q, 1), q) if fn == "floordiv" else b.select(below, b.op("add", r, y), r)
    # No remainder is defined for a division by 0, and of the least integer by -1.
    none, minus = b.op("eq", y, 0), b.op("eq", y, -1)
    d = b.select(b.op("or", none, minus), 1, y)
    q, r = b.op("quot", x, d), b.op("rem", x, d)
    off = b.op("and", b.op("ne", r, 0), b.op("ne", b.op("lt", r, 0), b.op("lt", d, 0)))
    if fn == "mod":
        return b.select(off, b.op("add", r, d), r)
    q = b.select(off, b.op("sub", q, 1), q)
    return b.select(none, 0, b.select(minus, b.op("neg", x), q))


def float_division(b: TileBuilder, fn: str, x: SSAValue, y: SSAValue) -> SSAValue:
    """Emit `floordiv` or `mod` as NumPy defines them: from the exact remainder, which takes the sign of the
    divisor."""
    v = TileArithmetic(b, x.elem)
    m, zero, one = b.op("rem", x, y), v.f(0.0), v.f(1.0)
    off = b.op("and", b.op("ne", m, zero), b.op("ne", v.lt(y, zero), v.lt(m, zero)))
    if fn == "mod":
        return b.select(v.eq(m, zero), v.copysign(zero, y), b.select(off, v.add(m, y), m))
    whole = v.div(v.sub(x, m), y)
    whole = b.select(off, v.sub(whole, one), whole)
    down = v.floor(whole)
    down = b.select(v.lt(v.f(0.5), v.sub(whole, down)), v.add(down, one), down)
    plain = v.div(x, y)
    return b.select(v.eq(y, zero), plain, b.select(v.eq(whole, zero), v.copysign(zero, plain), down))


def convert(b: TileBuilder, x: SSAValue, source: DType, to: DType) -> SSAValue:
    """Emit a cast of the IR. A float becomes an integer towards zero, the nearest one where it is out of range, and 0
    for NaN. A number becomes a condition by != 0."""
    if to.is_bool:
        return x if source.is_bool else b.op("ne", x, b.const(0, x.elem))
    if source.is_bool:
        return (
            b.select(x, b.const(1, to.name), b.const(0, to.name))
            if to.name in (*FLOATS, *INTEGERS)
            else b.cast(convert(b, x, source, to.arithmetic), to.name)
        )
    if source.is_float and to.is_int:
        return _saturate(b, x, to)
    if to.in_memory_only and source is not to.arithmetic:
        x = convert(b, x, source, to.arithmetic)
    if source.in_memory_only and source.arithmetic is not to:
        x = b.cast(x, source.arithmetic.name)
    return b.cast(x, elem_of(to))


def _saturate(b: TileBuilder, x: SSAValue, to: DType) -> SSAValue:
    x = b.cast(x, "f32") if x.elem not in FLOATS else x
    least, most = to.range
    wide = "i64" if to.bits == 64 else "i32"  # narrower ones go through i32
    low, end = b.const(float(least), x.elem), b.const(float(most + 1), x.elem)
    inside = b.op("and", b.op("le", low, x), b.op("lt", x, end))
    out = b.cast(b.select(inside, x, b.const(0.0, x.elem)), wide)
    out = b.select(b.op("lt", x, low), least, out)
    return b.cast(b.select(b.op("le", end, x), most, out), to.name)


def _random(b: TileBuilder, *words: SSAValue) -> SSAValue:
    def rotate(x: SSAValue, n: int) -> SSAValue:
        return b.op("or", b.shift("shl", x, n), b.shift("shr", x, 32 - n))

    return threefry(
        words,
        add=lambda x, y: b.op("add", x, y),
        xor=lambda x, y: b.op("xor", x, y),
        rotate=rotate,
        const=lambda n: b.const(n),
    )


def _emit(name: str) -> Callable[..., SSAValue]:
    """Return a method of TileArithmetic that is an operation of tiles."""
    return lambda self, *args: self.b.op(name, *args)


def _emit_shift(name: str) -> Callable[..., SSAValue]:
    """Return a method of TileArithmetic that shifts an integer by a number of bits."""
    return lambda self, a, n: self.b.shift(name, a, n)


class TileArithmetic(polynomials.Arith):
    """`ir.vecmath.polynomials.Arith` on tiles."""

    fused = True

    def __init__(self, b: TileBuilder, elem: str):
        self.b, self.elem = b, elem
        self.word = "i32" if elem == "f32" else "i64"

    def f(self, value: float) -> SSAValue:
        return self.b.const(float(value), self.elem)

    def i(self, value: int) -> SSAValue:
        return self.b.const(value, self.word)

    add, sub, mul, div = map(_emit, ("add", "sub", "mul", "div"))
    neg, abs, floor, lt, eq = map(_emit, ("neg", "abs", "floor", "lt", "eq"))
    iadd, isub, imul, iand, ior, ixor, ieq = map(_emit, ("add", "sub", "mul", "and", "or", "xor", "eq"))
    both, either, negate = map(_emit, ("and", "or", "not"))
    shl, ashr, lshr = map(_emit_shift, ("shl", "sar", "shr"))

    def fma(self, a: SSAValue, b: SSAValue, c: SSAValue) -> SSAValue:
        return self.b.fma(a, b, c)

    def copysign(self, magnitude: SSAValue, sign: SSAValue) -> SSAValue:
        top = self.i(1 << (31 if self.elem == "f32" else 63))
        return self.unbits(self.ior(self.bits(self.abs(magnitude)), self.iand(self.bits(sign), top)))

    def select(self, c: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.b.select(c, a, b)

    iselect = select

    def bits(self, x: SSAValue) -> SSAValue:
        return self.b.bitcast(x, self.word)

    def unbits(self, x: SSAValue) -> SSAValue:
        return self.b.bitcast(x, self.elem)

    def wide(self) -> TileArithmetic:
        return TileArithmetic(self.b, "f64")

    def extend(self, x: SSAValue) -> SSAValue:
        return self.b.cast(x, "f64")

    def narrow(self, x: SSAValue) -> SSAValue:
        return self.b.cast(x, self.elem)

    from_int = narrow

    def extend_int(self, x: SSAValue) -> SSAValue:
        """Extend a word to i64 by zeros, without the sign."""
        return self.b.op("and", self.b.cast(x, "i64"), self.b.const(0xFFFFFFFF, "i64"))

    def narrow_int(self, x: SSAValue) -> SSAValue:
        return self.b.cast(x, self.word)

    def replace_rare(
        self, where: SSAValue, value: SSAValue, name: str, slow: Callable[..., SSAValue], *args: SSAValue
    ) -> SSAValue:
        """Compute both sides and select: a GPU lane shares its branch with 31 others."""
        return self.b.select(where, slow(self, *args), value)

    def library(self, name: str, *args: SSAValue) -> SSAValue:
        return self.b.op(name, *args)
