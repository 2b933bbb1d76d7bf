"""The operators as formulas: by name, the formulations of each, the plainest first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import einsmith as es

CAPSULE_CONV = "C[b,k,p,q,i,j] = sum[c,r,s,m](A[b,c,stride*p+r,stride*q+s,i,m] * W[k,c,r,s,m,j])"

PAIRWISE = "D[i,j] = sqrt(sum[k]((X[i,k]-Y[j,k]) * (X[i,k]-Y[j,k])) + 1e-6)"

PAIRWISE_EXPANDED = """
    xx[i] = sum[k](X[i,k] * X[i,k])
    yy[j] = sum[k](Y[j,k] * Y[j,k])
    D[i,j] = sqrt(max(xx[i] + yy[j] - 2*sum[k](X[i,k] * Y[j,k]), 0) + 1e-6)
"""

GAUSSIAN_KERNEL = "O[i,v] = sum[j](exp(-sum[d]((X[i,d]-Y[j,d])**2)/2) * B[j,v])"

MAX_PLUS = "C[i,j] = max[k](A[i,k] + B[k,j])"

LOCAL_ATTENTION = """
    S[h,t,w] = where(0 <= t+w-64 and t+w-64 < size(t), sum[d](Q[h,t,d] * K[h,t+w-64,d])/8, -1e30)
    E[h,t,w] = exp(S[h,t,w] - stop_gradient(max[v](S[h,t,v])))
    O[h,t,d] = sum[w](where(0 <= t+w-64 and t+w-64 < size(t), E[h,t,w] * V[h,t+w-64,d], 0)) / sum[v](E[h,t,v])
"""

LOCAL_ATTENTION_BLOCKS = """
    S[h,n,i,c,j] = where(i <= 64*c+j and 64*c+j <= i+128 and 0 <= n+c-1 and n+c-1 < size(n),
                         sum[d](Q[h,n,i,d] * K[h,n+c-1,j,d])/8, -1e30)
    E[h,n,i,c,j] = exp(S[h,n,i,c,j] - stop_gradient(max[u,v](S[h,n,i,u,v])))
    Z[h,n,i] = sum[u,v](E[h,n,i,u,v])
    O[h,n,i,d] = sum[c,j](where(0 <= n+c-1 and n+c-1 < size(n), E[h,n,i,c,j] * V[h,n+c-1,j,d], 0)) / Z[h,n,i]
"""

RELATIVE_BIAS = """
    S[b,h,i,j] = sum[d](Q[b,h,i,d] * K[b,h,j,d])/8 + R[j-i+size(i)-1,h]
    E[b,h,i,j] = exp(S[b,h,i,j] - stop_gradient(max[k](S[b,h,i,k])))
    O[b,h,i,d] = sum[j](E[b,h,i,j] * V[b,h,j,d]) / sum[k](E[b,h,i,k])
"""

RELATIVE_KEYS = """
    S[b,h,i,j] = (sum[d](Q[b,h,i,d] * K[b,h,j,d]) + sum[d](Q[b,h,i,d] * R[j-i+size(i)-1,d])) / 8
    E[b,h,i,j] = exp(S[b,h,i,j] - stop_gradient(max[k](S[b,h,i,k])))
    O[b,h,i,d] = sum[j](E[b,h,i,j] * V[b,h,j,d]) / sum[k](E[b,h,i,k])
"""

DEPTHWISE = """
    Y[b,c,h,w] = sum[r,s](K[c,r,s] * where(0 <= h+r-3 and h+r-3 < size(h) and 0 <= w+s-3 and w+s-3 < size(w),
                                           X[b,c,h+r-3,w+s-3], 0))
"""

BILINEAR = "Y[b,o] = sum[i,j](x[b,i] * W[o,i,j] * y[b,j])"

BILINEAR_ORDERED = "Y[b,o] = sum[j](sum[i](x[b,i] * W[o,i,j]) * y[b,j])"

INVOLUTION = """
    Y[b,g,c,h,w] = sum[r,s](K[b,g,r,s,h,w] * where(0 <= h+r-3 and h+r-3 < size(h) and 0 <= w+s-3 and w+s-3 < size(w),
                                                   X[b,g,c,h+r-3,w+s-3], 0))
"""


TENSOR_TRAIN = "Y[b,m,n,o] = sum[i,j,k,p,q](X[b,i,j,k] * A[i,m,p] * B[p,j,n,q] * C[q,k,o])"

RUNNING_SUM = "y[b,i] = sum[j](where(j <= i, x[b,j], 0))"


def _sampled(axes: str) -> str:
    """v[n,c,axes]: bilinear samples of x at p (down) and q (across), zero outside."""
    corners = []
    for dy in ("", "+1"):
        row = [f"t[n,{axes}]{dy}"] + [f"l[n,{axes}]{dx}" for dx in ("", "+1")]
        inside = [f"where(0 <= {row[0]} < x.shape[2] and 0 <= {at} < x.shape[3], x[n,c,{row[0]},{at}], 0)"
                  for at in row[1:]]  # fmt: skip
        corners.append(f"((1-fq[n,{axes}])*{inside[0]} + fq[n,{axes}]*{inside[1]})")
    return f"""
    t[n,{axes}] = i32(floor(p[n,{axes}]))
    l[n,{axes}] = i32(floor(q[n,{axes}]))
    fp[n,{axes}] = p[n,{axes}] - floor(p[n,{axes}])
    fq[n,{axes}] = q[n,{axes}] - floor(q[n,{axes}])
    v[n,c,{axes}] = (1-fp[n,{axes}])*{corners[0]} + fp[n,{axes}]*{corners[1]}
"""


GRID_SAMPLE = f"""
    p[n,h,w] = ((g[n,h,w,1] + 1)*x.shape[2] - 1)/2
    q[n,h,w] = ((g[n,h,w,0] + 1)*x.shape[3] - 1)/2
{_sampled("h,w")}
    return v
"""

DEFORMABLE = f"""
    p[n,k,h,w] = h + k//3 - 1 + o[n,k,0,h,w]
    q[n,k,h,w] = w + k%3 - 1 + o[n,k,1,h,w]
{_sampled("k,h,w")}
    Y[n,m,h,w] = sum[c,k](W[m,c,k]*v[n,c,k,h,w])
    return Y
"""


def by_name(text: str, order: str, extents: dict | None = None) -> Callable:
    """The operator with its inputs in the order of the problem, not of the formula."""
    op = es.op(text, extents=extents)
    names = order.split()
    return lambda *xs, **options: op(**dict(zip(names, xs, strict=True)), **options)


def local_attention_blocks() -> Callable:
    """Queries and keys in blocks of 64: each block of queries sees three blocks of keys, under the mask of the band."""
    op = es.op(LOCAL_ATTENTION_BLOCKS, extents={"c": 3})

    def attention(q, k, v):
        h, t, d = q.shape
        q, k, v = (x.reshape((h, t // 64, 64, d)) for x in (q, k, v))
        return op(Q=q, K=k, V=v).reshape((h, t, d))

    return attention


def capsule_composed(a: Any, w: Any, stride: int) -> Any:
    """Eight convolutions, of an eighth of the output's channels each, concatenated."""
    b, c, h, wd, i, m = a.shape
    k, _, r, s, _, j = w.shape
    x = a.transpose(0, 4, 1, 5, 2, 3).reshape((b * i, c * m, h, wd))
    f, n = w.transpose(0, 5, 1, 4, 2, 3).reshape((k * j, c * m, r, s)), k * j // 8
    y = es.functional.cat([es.functional.conv2d(x, f[at : at + n], stride=stride) for at in range(0, k * j, n)], 1)
    return y.reshape((b, i, k, j, *y.shape[2:])).transpose(0, 2, 4, 5, 1, 3)


IMAGE = {"h": "X.shape[2]", "w": "X.shape[3]"}

OPERATORS: dict[str, dict[str, Callable[[], Callable]]] = {
    "capsule_conv": {"formula": lambda: by_name(CAPSULE_CONV, "A W")},
    "capsule_composed": {"eight convolutions": lambda: capsule_composed},
    "pairwise": {
        "differences": lambda: by_name(PAIRWISE, "X Y"),
        "expanded square": lambda: by_name(PAIRWISE_EXPANDED, "X Y"),
    },
    "max_plus": {"formula": lambda: by_name(MAX_PLUS, "A B")},
    "local_attention": {
        "a window for each query": lambda: by_name(LOCAL_ATTENTION, "Q K V", {"w": 129}),
        "blocks of queries": local_attention_blocks,
    },
    "relative_bias": {"formula": lambda: by_name(RELATIVE_BIAS, "Q K V R")},
    "relative_keys": {"formula": lambda: by_name(RELATIVE_KEYS, "Q K V R")},
    "depthwise": {"formula": lambda: by_name(DEPTHWISE, "X K", IMAGE)},
    "bilinear": {
        "formula": lambda: by_name(BILINEAR, "x W y"),
        "ordered": lambda: by_name(BILINEAR_ORDERED, "x W y"),
    },
    "gaussian_kernel": {"formula": lambda: by_name(GAUSSIAN_KERNEL, "X Y B")},
    "involution": {"formula": lambda: by_name(INVOLUTION, "X K")},
    "tensor_train": {"formula": lambda: by_name(TENSOR_TRAIN, "X A B C")},
    "running_sum": {"formula": lambda: by_name(RUNNING_SUM, "x", {"i": "x.shape[1]"})},
    "grid_sample": {"formula": lambda: by_name(GRID_SAMPLE, "x g")},
    "deformable": {"formula": lambda: by_name(DEFORMABLE, "x o W")},
}
