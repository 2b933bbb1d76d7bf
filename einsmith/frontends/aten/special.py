"""The Hurwitz zeta function and the derivatives of the logarithm of the gamma function."""

from __future__ import annotations

from math import factorial
from typing import Any

from einsmith import ops as F
from einsmith.base.errors import ArgumentError
from einsmith.frontends.aten.promotion import DEFAULT, promote, tensor
from einsmith.frontends.aten.table import aten
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.ops.common import each, in_double
from einsmith.ops.special import hurwitz


@aten("special_zeta.default special_zeta.other_scalar special_zeta.self_scalar")
def zeta(x: Any, q: Any) -> Value:
    """the sum over k >= 0 of (q + k)**-x"""
    (a, b), common = promote(x, q, floats=True)
    return each((tensor(a, common), tensor(b, common)), in_double(hurwitz, common))


@aten("polygamma.default")
def polygamma(n: int, x: Value) -> Value:
    """the n-th derivative of digamma: (-1)**(n + 1)*n!*sum[k]((x + k)**-(n + 1))"""
    y = x if x.dtype.is_float else x.astype(DEFAULT)
    if n == 0:
        return F.digamma(y)
    if n < 0 or n > 30:
        raise ArgumentError(f"polygamma of order {n} is not supported; 0 to 30 are")
    scale = (1.0 if n % 2 else -1.0) * factorial(n)
    order = builder.full((), float(n + 1), y.dtype)
    return each((order, y), in_double(lambda s, q: hurwitz(s, q) * scale, y.dtype))
