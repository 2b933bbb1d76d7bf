"""A ragged batch through a gated recurrent unit: the state stands still from a sequence's end on."""

from __future__ import annotations

from typing import Any

import einsmith as es

_GRU = """
    q[t,b,n] = sum[i](x[t,b,i] * W[i,n]){bias}
    p[t,b,k] = where({inside}, h[{before},b,k], h0[b,k])
    u[t,b,n] = sum[j](p[t,b,j] * U[j,n])
    z[t,b,k] = sigmoid(q[t,b,0*K+k] + u[t,b,0*K+k])
    m[t,b,k] = tanh(q[t,b,K+k] + z[t,b,k] * u[t,b,K+k])
    h[t,b,k] = where(t < lengths[b], (1-z[t,b,k])*m[t,b,k] + z[t,b,k]*p[t,b,k], p[t,b,k])
    return h
"""


def gru(width: int, reverse: bool, bias: bool = False) -> Any:
    """The operator of x[t,b,i], W[i,2*width], U[width,2*width], h0[b,width], lengths[b] and, if `bias`, c[2*width]."""
    inside, before = ("t < size(t)-1", "t+1") if reverse else ("t > 0", "t-1")
    text = _GRU.format(inside=inside, before=before, bias=" + c[n]" if bias else "")
    return es.op(text, K=width, extents={"k": "K"})
