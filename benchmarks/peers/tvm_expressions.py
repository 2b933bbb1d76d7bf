"""Operators as tensor expressions of TVM, whose gradients are further expressions, written by hand: Relax cannot
differentiate an expression, but its gradient pass calls what is registered for it (`call_te_with_grad`)."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx
from tvm.relax.training.utils import register_te_gradient

from benchmarks.peers.tvm_arrays import RelaxArray

CAPSULE = "benchmarks_capsule_conv"


def _capsule_conv(a: Any, w: Any, stride: int) -> Any:
    """C[b,k,p,q,i,j] = sum[c,r,s,m](A[b,c,stride*p+r,stride*q+s,i,m] * W[k,c,r,s,m,j])."""
    images, kinds, height, width, rows, inner = (int(n) for n in a.shape)
    kernels, _, down, across, _, columns = (int(n) for n in w.shape)
    c, r, s, m = (te.reduce_axis((0, n), x) for n, x in ((kinds, "c"), (down, "r"), (across, "s"), (inner, "m")))
    shape = (images, kernels, (height - down) // stride + 1, (width - across) // stride + 1, rows, columns)
    return te.compute(
        shape,
        lambda b, k, p, q, i, j: te.sum(
            a[b, c, stride * p + r, stride * q + s, i, m] * w[k, c, r, s, m, j], axis=[c, r, s, m]
        ),
        "capsule_conv",
    )


def _capsule_conv_gradients(g: Any, a: Any, w: Any, stride: int) -> list[Any]:
    """Return the gradients of both operands: of A as a sum over the windows that an element is in, from the output's
    gradient spread out by the stride and padded, and of W as a product over all windows."""
    stride = int(stride)
    images, kinds, height, width, rows, inner = (int(n) for n in a.shape)
    kernels, _, down, across, _, columns = (int(n) for n in w.shape)
    high, wide = int(g.shape[2]), int(g.shape[3])

    def spread(b: Any, k: Any, y: Any, x: Any, i: Any, j: Any) -> Any:
        p, q = y - (down - 1), x - (across - 1)
        inside = tirx.all(p >= 0, p < stride * high, q >= 0, q < stride * wide, p % stride == 0, q % stride == 0)
        return tirx.if_then_else(inside, g[b, k, p // stride, q // stride, i, j], tirx.const(0, g.dtype))

    far = te.compute((images, kernels, height + down - 1, width + across - 1, rows, columns), spread, "spread")
    k, r, s, j = (te.reduce_axis((0, n), x) for n, x in ((kernels, "k"), (down, "r"), (across, "s"), (columns, "j")))
    da = te.compute(
        a.shape,
        lambda b, c, y, x, i, m: te.sum(
            far[b, k, y + down - 1 - r, x + across - 1 - s, i, j] * w[k, c, r, s, m, j], axis=[k, r, s, j]
        ),
        "capsule_conv_da",
    )
    b, p, q, i = (te.reduce_axis((0, n), x) for n, x in ((images, "b"), (high, "p"), (wide, "q"), (rows, "i")))
    dw = te.compute(
        w.shape,
        lambda k, c, r, s, m, j: te.sum(
            a[b, c, stride * p + r, stride * q + s, i, m] * g[b, k, p, q, i, j], axis=[b, p, q, i]
        ),
        "capsule_conv_dw",
    )
    return [da, dw]


register_te_gradient(CAPSULE, _capsule_conv_gradients)


def capsule_conv(a: RelaxArray, w: RelaxArray, stride: int) -> RelaxArray:
    """Return the capsule convolution of `benchmarks.problems` by an expression."""
    bb = relax.BlockBuilder.current()
    more = {"stride": stride}
    call = bb.call_te_with_grad(
        _capsule_conv, a.value, w.value, stride=stride, te_grad_name=CAPSULE, te_grad_kwargs=more
    )
    return RelaxArray(call)
