"""State spaces as transformers calls them: the convolution, the scan and the single step of Mamba-1 and Mamba-2."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import softplus
from transformers.activations import ACT2FN

import einsmith.functional as F
from einsmith.frontends.torch import operator
from einsmith.lang.op import op

__all__ = [
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "mamba_chunk_scan_combined",
    "selective_scan_fn",
    "selective_state_update",
]

_CONVOLUTION = """
a[b,t,c] = sum[w](where(t + w + 1 >= k.shape[1], x[b,t+w+1-k.shape[1],c], 0)*k[c,w]) + bias[c]
y[b,t,c] = a[b,t,c]*sigmoid(a[b,t,c])
return y"""
_SELECTIVE = """
d[b,t,c] = softplus(dt[b,t,c] + bias[c])
S[b,t,c,n] = where(t > 0, S[b,t-1,c,n], 0)*exp(A[c,n]*d[b,t,c]) + d[b,t,c]*x[b,t,c]*B[b,t,n]
y[b,t,c] = (sum[n](C[b,t,n]*S[b,t,c,n]) + D[c]*x[b,t,c])*z[b,t,c]*sigmoid(z[b,t,c])
last[b,c,n] = S[b,x.shape[1]-1,c,n]
return y, last"""
_STEP = """
d[b,h,p] = softplus(dt[b,h,p % dt.shape[2]] + bias[h,p % bias.shape[1]])
S[b,h,p,n] = state[b,h,p,n]*exp(A[h,p % A.shape[1],n % A.shape[2]]*d[b,h,p]) + (
    d[b,h,p]*x[b,h,p]*B[b,h // (x.shape[1]//B.shape[1]),n])
y[b,h,p] = (sum[n](C[b,h // (x.shape[1]//C.shape[1]),n]*S[b,h,p,n]) + D[h,p % D.shape[1]]*x[b,h,p]
    )*z[b,h,p]*sigmoid(z[b,h,p])
return y, S"""


def _variant(text: str, softens: bool, gates: bool) -> str:
    """Return a formula without the softplus of steps, or without the gate z."""
    if not softens:
        text = text.replace("softplus(", "(")
    for axes in () if gates else ("b,t,c", "b,h,p"):
        text = text.replace(f"*z[{axes}]*sigmoid(z[{axes}])", "")
    return text


def _convolution(text: str, has_bias: bool, is_silu: bool) -> str:
    text = text if has_bias else text.replace(" + bias[c]", "")
    return text if is_silu else text.replace("*sigmoid(a[b,t,c])", "")


def _scan(
    x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, bias: Any, *initial: Any, softens: bool, returns: bool
) -> Any:
    dt = F.softplus(dt + bias) if softens else dt + bias
    out = F.ssd(x, dt, A, B, C, initial[0] if initial else None, output_final_state=returns)
    skip = D.reshape(-1, 1) * x
    return (out[0] + skip, out[1]) if returns else out + skip


_PAIRS = [(first, second) for first in (False, True) for second in (False, True)]
_CONVOLUTIONS = {
    pair: operator(op(_convolution(_CONVOLUTION, *pair), name="causal_conv1d", extents={"t": "x.shape[1]"}))
    for pair in _PAIRS
}
"""(whether it has a bias, whether it has SiLU) -> operator."""
_SCANS = {pair: operator(_scan, softens=pair[0], returns=pair[1]) for pair in _PAIRS}
"""(whether steps have a softplus, whether the last state is returned) -> operator."""
_SELECTIVE_SCANS = {pair: operator(op(_variant(_SELECTIVE, *pair), name="selective_scan")) for pair in _PAIRS}
_STEPS = {pair: operator(op(_variant(_STEP, *pair), name="selective_step")) for pair in _PAIRS}
"""(whether steps have a softplus, whether there is a gate) -> operator."""


_NARROW = {"A": 1, "D": 1, "bias": 1, "dt": 2}
"""Inputs of a step -> the first dimension along which models expand them; the formula reads one element there."""


def _narrow(x: torch.Tensor, first: int) -> torch.Tensor:
    """Return a tensor without the copies that expanded dimensions from the first one on consist of."""
    for dim in range(first, x.ndim):
        x = x if x.stride(dim) or x.shape[dim] < 2 else x.narrow(dim, 0, 1)
    return x


def causal_conv1d_fn(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """Return the convolution by channel of [B, C, T] with weights [C, W], which sees no later steps."""
    dtype, is_silu = hidden_states.dtype, activation in ("silu", "swish")
    inputs = {"x": hidden_states.transpose(1, 2).to(weight.dtype), "k": weight}
    if bias is not None:
        inputs["bias"] = bias
    y = _CONVOLUTIONS[bias is not None, is_silu](**inputs).transpose(1, 2)
    return (y if is_silu or activation is None else ACT2FN[activation](y)).to(dtype)


def causal_conv1d_update(
    hidden_states: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """Return `causal_conv1d_fn` of steps that follow those of conv_state [B, C, W], which keeps the last W."""
    joined = torch.cat([conv_state, hidden_states], dim=-1)
    conv_state.copy_(joined[:, :, -conv_state.shape[-1] :])
    y = causal_conv1d_fn(joined, weight, bias, activation)
    return y[:, :, -hidden_states.shape[-1] :].to(hidden_states.dtype)


def mamba_chunk_scan_combined(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    chunk_size: int = 64,
    D: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    initial_states: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
) -> Any:
    """Return mamba_ssm's scan of inputs [B, T, H, P] in steps dt [B, T, H], with B and C [B, T, G, N]. chunk_size is
    the compiler's to choose."""
    del chunk_size
    x, dt = hidden_states.float(), dt.float()
    bias = A.new_zeros(A.shape).float() if dt_bias is None else dt_bias.float()
    softens = dt_softplus
    if not softens or tuple(dt_limit) != (0.0, float("inf")):
        dt = torch.clamp(softplus(dt + bias) if softens else dt + bias, min=dt_limit[0], max=dt_limit[1])
        bias, softens = torch.zeros_like(bias), False
    first = () if initial_states is None else (initial_states.float(),)
    skip = torch.zeros_like(bias) if D is None else D.float()
    return _SCANS[softens, return_final_states](x, dt, A.float(), B.float(), C.float(), skip, bias, *first)


def selective_scan_fn(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Any:
    """Return mamba_ssm's scan of inputs [B, C, T] in steps dt [B, C, T], with A [C, N], and B and C [B, N, T]."""
    wide = torch.promote_types(hidden_states.dtype, torch.float32)
    inputs = {"x": hidden_states, "dt": dt, "B": B, "C": C} | ({} if z is None else {"z": z})
    inputs = {name: x.transpose(1, 2).to(wide) for name, x in inputs.items()}
    for name, x in {"D": D, "bias": delta_bias}.items():
        inputs[name] = A.new_zeros(A.shape[0], dtype=wide) if x is None else x.to(wide)
    y, last = _SELECTIVE_SCANS[delta_softplus, z is not None](A=A.to(wide), **inputs)
    dtype = hidden_states.dtype
    for x in (D, z):
        dtype = dtype if x is None else torch.promote_types(dtype, x.dtype)
    y = y.transpose(1, 2).to(dtype)
    return (y, last) if return_last_state else y


def selective_state_update(
    state: torch.Tensor,
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
    z: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return mamba_ssm's step of inputs [B, H, P] (Mamba-2) or [B, P] (Mamba-1), and set the state [B, ..., P, N]."""
    wide = torch.promote_types(state.dtype, torch.float32)
    inputs = {"x": hidden_states, "dt": dt, "state": state, "A": A, "B": B, "C": C}
    none = hidden_states.new_zeros(hidden_states.shape[1:]).narrow(-1, 0, 1)
    inputs |= {"D": none if D is None else D, "bias": none if dt_bias is None else dt_bias}
    if z is not None:
        inputs["z"] = z
    for name, value in inputs.items():
        if hidden_states.ndim == 2:  # of Mamba-1: all channels are one head
            value = value.unsqueeze(0 if name in ("A", "D", "bias") else 1)
        inputs[name] = _narrow(value, _NARROW.get(name, value.ndim)).to(wide)
    y, new = _STEPS[dt_softplus, z is not None](**inputs)
    state.copy_(new.reshape(state.shape))
    return y.reshape(hidden_states.shape).to(hidden_states.dtype)
