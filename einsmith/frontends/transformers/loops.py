"""Recurrences that models of transformers run as loops of Python over steps: RWKV-4, xLSTM and RecurrentGemma.

Each function takes the model's original function and returns its replacement. The replacement calls the original for
tensors that are not on the CPU, and for options that it does not support.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from einsmith.frontends.torch import operator
from einsmith.lang.op import op

__all__ = ["gated_linear_unit", "matrix_lstm", "rwkv_linear_attention"]

_RWKV = """
w[c] = exp(decay[c])
p[b,t,c] = where(t > 0, m[b,t-1,c], m0[b,c])
m[b,t,c] = max(where(t > 0, m[b,t-1,c], m0[b,c]) - w[c], k[b,t,c])
e[b,t,c] = exp(p[b,t,c] - w[c] - m[b,t,c])
i[b,t,c] = exp(k[b,t,c] - m[b,t,c])
n[b,t,c] = e[b,t,c]*where(t > 0, n[b,t-1,c], n0[b,c]) + i[b,t,c]*v[b,t,c]
d[b,t,c] = e[b,t,c]*where(t > 0, d[b,t-1,c], d0[b,c]) + i[b,t,c]
o[b,t,c] = max(p[b,t,c], k[b,t,c] + u[c])
f[b,t,c] = exp(p[b,t,c] - o[b,t,c])
g[b,t,c] = exp(k[b,t,c] + u[c] - o[b,t,c])
num[b,t,c] = f[b,t,c]*where(t > 0, n[b,t-1,c], n0[b,c]) + g[b,t,c]*v[b,t,c]
den[b,t,c] = f[b,t,c]*where(t > 0, d[b,t-1,c], d0[b,c]) + g[b,t,c]
y[b,t,c] = num[b,t,c]/den[b,t,c]
nl[b,c] = n[b,k.shape[1]-1,c]
dl[b,c] = d[b,k.shape[1]-1,c]
ml[b,c] = m[b,k.shape[1]-1,c]
return y, nl, dl, ml"""
_MATRIX_LSTM = """
l[b,t,h] = min(f[b,t,h], 0) - log1p(exp(-abs(f[b,t,h])))
m[b,t,h] = max(l[b,t,h] + where(t > 0, m[b,t-1,h], m0[b,h]), i[b,t,h])
d[b,t,h] = exp(l[b,t,h] + where(t > 0, m[b,t-1,h], m0[b,h]) - m[b,t,h])
e[b,t,h] = exp(i[b,t,h] - m[b,t,h])
S[b,t,h,k,v] = d[b,t,h]*where(t > 0, S[b,t-1,h,k,v], S0[b,h,k,v]) + e[b,t,h]*K[b,t,h,k]*V[b,t,h,v]
n[b,t,h,k] = d[b,t,h]*where(t > 0, n[b,t-1,h,k], n0[b,h,k]) + e[b,t,h]*K[b,t,h,k]
z[b,t,h] = scale*sum[k](n[b,t,h,k]*Q[b,t,h,k])
y[b,t,h,v] = scale*sum[k](S[b,t,h,k,v]*Q[b,t,h,k])/(max(abs(z[b,t,h]), exp(-m[b,t,h])) + eps)
Sl[b,h,k,v] = S[b,Q.shape[1]-1,h,k,v]
nl[b,h,k] = n[b,Q.shape[1]-1,h,k]
ml[b,h] = m[b,Q.shape[1]-1,h]
return y, Sl, nl, ml"""
_GATED = """
h[b,t,c] = a[b,t,c]*where(t > 0, h[b,t-1,c], h0[b,c]) + x[b,t,c]
last[b,c] = h[b,x.shape[1]-1,c]
return h, last"""

_rwkv, _matrix_lstm, _gated = (
    operator(op(text, name=name))
    for text, name in ((_RWKV, "rwkv"), (_MATRIX_LSTM, "matrix_lstm"), (_GATED, "gated_linear_unit"))
)


def rwkv_linear_attention(own: Callable) -> Callable:
    """Return RWKV-4's time mixing of keys and values [B, T, C]; the state is (numerator, denominator, maximum)."""

    @wraps(own)
    def attention(
        time_decay: torch.Tensor,
        time_first: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        state: Any = None,
        return_state: bool = False,
    ) -> Any:
        if not key.is_cpu or key.shape[1] == 1:  # of one step the own one has no loop
            return own(time_decay, time_first, key, value, state, return_state)
        first = state
        if state is None:
            zero = torch.zeros_like(key[:, 0], dtype=torch.float32)
            first = zero, zero, zero - 1e38
        states = {name: x.float() for name, x in zip(("n0", "d0", "m0"), first, strict=True)}
        rows = {"decay": time_decay, "u": time_first, "k": key, "v": value}
        y, *last = _rwkv(**{name: x.float() for name, x in rows.items()}, **states)
        return y.to(key.dtype), last if return_state or state is not None else None

    return attention


def gated_linear_unit(own: Callable) -> Callable:
    """Return RecurrentGemma's recurrence of [B, T, C]: the state is multiplied by the gate, 0 at a reset."""

    @wraps(own)
    def scan(
        self: Any,
        hidden_states: torch.Tensor,
        recurrent_gate: torch.Tensor,
        reset: torch.Tensor,
        recurrent_states: torch.Tensor | None,
        acc_dtype: torch.dtype = torch.float32,
    ) -> Any:
        if not hidden_states.is_cpu or hidden_states.shape[1] == 1 or acc_dtype is not torch.float32:
            return own(self, hidden_states, recurrent_gate, reset, recurrent_states, acc_dtype)
        x, gate = hidden_states.float(), (recurrent_gate * ~reset).float()
        first = torch.zeros_like(x[:, 0]) if recurrent_states is None else recurrent_states.float()
        y, last = _gated(a=gate, x=x, h0=first)
        return y.to(hidden_states.dtype), last

    return scan


def matrix_lstm(own: Callable) -> Callable:
    """Return xLSTM's backend of queries and keys [B, H, T, K] with values [B, H, T, V] and gates [B, H, T]."""

    @wraps(own)
    def forward(
        self: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        igate: torch.Tensor,
        fgate: torch.Tensor,
        c_initial: torch.Tensor | None = None,
        n_initial: torch.Tensor | None = None,
        m_initial: torch.Tensor | None = None,
        return_last_states: bool | None = None,
        mode: str | None = None,
    ) -> Any:
        states, length = (c_initial, n_initial, m_initial), query.shape[2]
        kind = self.config.mode if mode is None else mode
        tensors = [x for x in (query, key, value, igate, fgate, *states) if x is not None]
        if (
            any(not x.is_cpu or x.dtype is not torch.float32 for x in tensors)
            or self.config.inference_state_dtype != "float32"
            or len({x is None for x in states}) > 1
            or kind not in ("inference", "train", "train_with_padding")
            or (kind == "train" and length % self.config.chunk_size)
            or (kind == "train_with_padding" and (return_last_states or self.config.return_last_states))
            or length < 2  # of one step the own one has no loop
        ):
            return own(self, query, key, value, igate, fgate, *states, return_last_states, mode)
        if c_initial is None or n_initial is None or m_initial is None:
            batch, heads, _, width = key.shape
            c_initial, n_initial, m_initial = (
                key.new_zeros(batch, heads, *rest) for rest in ((width, value.shape[3]), (width,), (1,))
            )
        rows = {"Q": query, "K": key, "V": value, "i": igate, "f": fgate}
        y, *last = _matrix_lstm(
            **{name: x.transpose(1, 2) for name, x in rows.items()},
            S0=c_initial, n0=n_initial, m0=m_initial[..., 0], scale=query.shape[3] ** -0.5, eps=self.config.eps,
        )  # fmt: skip
        y, last = y.transpose(1, 2), (last[0], last[1], last[2][..., None])
        returns = self.config.return_last_states if return_last_states is None else return_last_states
        return (y, last) if kind == "inference" or returns else y

    return forward
