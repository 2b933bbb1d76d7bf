"""Products of matrices and convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from einsmith import ops as F
from einsmith.base.errors import ArgumentError
from einsmith.frontends.aten.promotion import convert
from einsmith.frontends.aten.table import aten, enter
from einsmith.ops.conv import conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d
from einsmith.ops.product import bmm, mm, mv
from einsmith.tracing.builder import Value


def _add_weighted(x: Value, product: Value, beta: float, alpha: float) -> Value:
    """Return beta*x + alpha*product, rounded once; for integers beta and alpha are truncated."""
    common = x.dtype
    if (beta, alpha) != (1, 1):
        x, product = x.astype(common.arithmetic), product.astype(common.arithmetic)
    beta, alpha = (convert(v, x.dtype) for v in (beta, alpha))
    product = product if alpha == 1 else product * alpha
    if beta == 0:  # beta = 0 ignores the input, which may be NaN
        return product.astype(common)
    return ((x if beta == 1 else x * beta) + product).astype(common)


def _add_product(name: str, formula: str, product: Callable[[Value, Value], Value]) -> None:
    def run(x: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1) -> Value:
        return _add_weighted(x, product(a, b), beta, alpha)

    enter(f"{name}.default", f"beta*x + alpha*{formula}", run)


_add_product("addmm", "sum[k](a[i, k]*b[k, j])", mm)
_add_product("addmv", "sum[k](a[i, k]*b[k])", mv)
_add_product("baddbmm", "sum[k](a[n, i, k]*b[n, k, j])", bmm)
_add_product("addbmm", "sum[n, k](a[n, i, k]*b[n, k, j])", lambda a, b: F.einsum("nik,nkj->ij", a, b))


@aten("_trilinear.default")
def trilinear(
    a: Value,
    b: Value,
    c: Value,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Value:
    """sum[sumdim](a*b*c), with new dimensions of extent 1 at expand1, expand2 and expand3"""
    rank = a.ndim + len(expand1)

    def widened(x: Value, at: Sequence[int]) -> Value:
        rest = iter(x.shape)
        return x.reshape(tuple(1 if d in at else next(rest) for d in range(rank)))

    product = widened(a, expand1) * widened(b, expand2) * widened(c, expand3)
    return F.sum(product, tuple(sumdim)) if sumdim else product


_PLAIN = {1: conv1d, 2: conv2d, 3: conv3d}
_TRANSPOSED = {1: conv_transpose1d, 2: conv_transpose2d, 3: conv_transpose3d}


@aten("convolution.default")
def convolution(
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    """sum[c, r, ..](x[b, c, stride*p + dilation*r - padding, ..]*weight[k, c, r, ..]) + bias[k], or its transpose"""
    n = weight.ndim - 2
    if n not in _PLAIN:
        raise ArgumentError(f"a convolution over {n} dimensions is not supported; one, two and three are")

    def each(v: Sequence[int]) -> Any:
        return tuple(v) * n if len(v) == 1 else tuple(v)

    if transposed:
        after = each(output_padding)
        return _TRANSPOSED[n](x, weight, bias, each(stride), each(padding), after, groups, each(dilation))
    return _PLAIN[n](x, weight, bias, each(stride), each(padding), each(dilation), groups)
