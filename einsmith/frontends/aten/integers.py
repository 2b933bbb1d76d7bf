"""Integer arithmetic: bit shifts and greatest common divisors."""

from __future__ import annotations

from typing import Any

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import DtypeError
from einsmith.frontends.aten.pointwise import POWERS
from einsmith.frontends.aten.promotion import promote, tensor
from einsmith.frontends.aten.table import aten
from einsmith.lang.op import op
from einsmith.tracing import builder, views
from einsmith.tracing.builder import Value


def _pair(x: Any, y: Any) -> tuple[Value, Value, DType]:
    """Return two operands as vectors of equal shape, and their common type."""
    (a, b), common = promote(x, y)
    if not common.is_int:
        raise DtypeError(f"integers are needed, not {common.name}")
    first, second = tensor(a, common), tensor(b, common)
    shape = views.broadcast([first.shape, second.shape])
    return F.broadcast_to(first, shape), F.broadcast_to(second, shape), common


def _power(n: Value) -> Value:
    """Return 2**n, with n clamped to [0, 62]."""
    kept = builder.minimum(builder.maximum(n.astype(dt.i64), 0), len(POWERS) - 1)
    return F.index_select(builder.as_value(POWERS), 0, kept.reshape((-1,))).reshape(n.shape)


def _shifts(way: str) -> str:
    """Return the names of the shifts to one side, with all overloads."""
    kinds = {f"bitwise_{way}_shift": "Tensor Tensor_Scalar Scalar_Tensor", f"__{way[0]}shift__": "Tensor Scalar"}
    return " ".join(f"{name}.{kind}" for name, every in kinds.items() for kind in every.split())


@aten(_shifts("left"))
def shifted_left(x: Any, n: Any) -> Value:
    """x*2**n, wrapped; 0 if n is negative or not below the number of bits"""
    a, b, common = _pair(x, n)
    product = a.astype(dt.i64) * _power(b)
    last = builder.where(a % 2 == 0, 0, -(2**62)).astype(dt.i64) * 2  # the highest of 64 bits is the sign
    whole = builder.where(b == 63, last, product).astype(dt.i64)
    return builder.where((b >= 0) & (b < common.bits), whole.astype(common), 0).astype(common)


@aten(_shifts("right"))
def shifted_right(x: Any, n: Any) -> Value:
    """floor(x/2**n); 0, or -1 for negative x, if n is negative or not below the number of bits"""
    a, b, common = _pair(x, n)
    whole = (a.astype(dt.i64) // _power(b)).astype(common)
    none = builder.where(a < 0, -1, 0).astype(common)
    return builder.where((b >= 0) & (b < min(common.bits, 63)), whole, none).astype(common)


_EUCLID = op(
    """
    p[k,i] = where(k > 0, a[k-1,i], x[i])
    q[k,i] = where(k > 0, b[k-1,i], y[i])
    a[k,i] = where(q[k,i] == 0, p[k,i], q[k,i])
    b[k,i] = where(q[k,i] == 0, 0, p[k,i] % where(q[k,i] == 0, 1, q[k,i]))
    return a
    """,
    extents={"k": "K"},
)
STEPS = 92
"""Most steps of Euclid's algorithm for 64-bit integers: Fibonacci numbers, its worst case, then exceed 2**63."""


@aten("gcd.default")
def gcd(x: Value, y: Value) -> Value:
    """the greatest common divisor, by Euclid's algorithm"""
    a, b, common = _pair(x, y)
    if not a.size:
        return a
    first, second = (builder.abs(v.astype(dt.i64)).reshape((-1,)) for v in (a, b))
    divisor = _EUCLID(x=first, y=second, K=STEPS)[STEPS - 1]
    return builder.abs(divisor).reshape(a.shape).astype(common)


@aten("lcm.default")
def lcm(x: Value, y: Value) -> Value:
    """the least common multiple; 0 if an operand is 0"""
    a, b, common = _pair(x, y)
    divisor = gcd(a, b)
    one = builder.where(divisor == 0, 1, divisor).astype(common)
    wide = common if common.bits > 32 else dt.i32  # in which C multiplies small integers
    return builder.abs((a // one).astype(wide) * b.astype(wide)).astype(common)
