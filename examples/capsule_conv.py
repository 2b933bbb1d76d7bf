"""A new operator is a formula: the capsule convolution, its gradients derived, both compiled.

python examples/capsule_conv.py
"""

from __future__ import annotations

import numpy as np

import einsmith as es

capsule_conv = es.op("""
    C[b,k,p,q,i,j] = sum[c,r,s,m](A[b,c,stride*p+r,stride*q+s,i,m] * W[k,c,r,s,m,j])
""")


def main() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((2, 8, 14, 14, 4, 4), np.float32)
    w = rng.standard_normal((16, 8, 3, 3, 4, 4), np.float32)

    print("the operator:   ", capsule_conv.signature)
    c, pullback = es.vjp(lambda a, w: capsule_conv(a, w, stride=2), a, w)
    print("C has the shape ", c.shape)

    # The same by hand, one output element: what the formula says, read as a loop.
    by_hand = np.einsum("crsm,crsm->", a[1, :, 4:7, 6:9, 2, :], w[5, :, :, :, :, 3])
    print("one element:    ", c[1, 5, 2, 3, 2, 3], "by hand", by_hand)
    assert np.isclose(c[1, 5, 2, 3, 2, 3], by_hand, rtol=1e-4)

    da, dw = pullback(np.ones_like(c))
    print("the gradients:  ", da.shape, dw.shape)
    print("\nthe gradient by A, as it was derived:")
    print(capsule_conv.gradient("A", A=a.shape, W=w.shape, stride=2))

    # Central differences in float64 along random directions, to be sure.
    small = (a[:1, :2, :6, :6].astype(np.float64), w[:3, :2].astype(np.float64))
    es.check_gradients(lambda a, w: capsule_conv(a, w, stride=2).sum(), *small, order=1)
    print("\nthe gradients agree with central differences")


if __name__ == "__main__":
    main()
