"""Linear recurrences by the names of their papers. Each is one formula, which the compiler runs in chunks of products.

Sequences are [B, T, H, width], as in the papers' own code: batch, time, heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from einsmith.base.errors import ShapeError
from einsmith.lang.op import op
from einsmith.ops.common import tensor
from einsmith.ops.operator import Floats, operator
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

_BEFORE = "p[b,t,h,k,v] = where(t > 0, S[b,t-1,h,k,v], first[b,h,k,v])"
_READ = """y[b,t,h,v] = scale*sum[k](S[b,t,h,k,v]*query[b,t,h,k])
last[b,h,k,v] = S[b,query.shape[1]-1,h,k,v]
return y, last"""
_ATTENTION = f"""{_BEFORE}
S[b,t,h,k,v] = p[b,t,h,k,v]*DECAY + key[b,t,h,k]*value[b,t,h,v]
{_READ}"""
_DELTA = f"""{_BEFORE}
r[b,t,h,k,v] = p[b,t,h,k,v]*DECAY
u[b,t,h,v] = beta[b,t,h]*(value[b,t,h,v] - sum[k](r[b,t,h,k,v]*key[b,t,h,k]))
S[b,t,h,k,v] = r[b,t,h,k,v] + key[b,t,h,k]*u[b,t,h,v]
{_READ}"""
_SPACE = """S[b,t,h,p,n] = where(t > 0, S[b,t-1,h,p,n], first[b,h,p,n])*exp(A[h]*dt[b,t,h]) + (
    dt[b,t,h]*x[b,t,h,p]*B[b,t,h // (A.shape[0]//B.shape[2]),n])
y[b,t,h,p] = sum[n](C[b,t,h // (A.shape[0]//B.shape[2]),n]*S[b,t,h,p,n])
last[b,h,p,n] = S[b,x.shape[1]-1,h,p,n]
return y, last"""
_RWKV = """p[b,t,h,v,k] = where(t > 0, S[b,t-1,h,v,k], first[b,h,v,k])
s[b,t,h,v] = sum[k](p[b,t,h,v,k]*a[b,t,h,k])
S[b,t,h,v,k] = p[b,t,h,v,k]*exp(w[b,t,h,k]) + s[b,t,h,v]*b[b,t,h,k] + value[b,t,h,v]*key[b,t,h,k]
y[b,t,h,v] = sum[k](S[b,t,h,v,k]*r[b,t,h,k])
last[b,h,v,k] = S[b,r.shape[1]-1,h,v,k]
return y, last""".replace("b[b,t,h,k]", "c[b,t,h,k]")
_MLSTM = """lf[b,t,h] = -softplus(-forget[b,t,h])
m[b,t,h] = max(lf[b,t,h] + where(t > 0, m[b,t-1,h], 0), input[b,t,h])
d[b,t,h] = exp(lf[b,t,h] + where(t > 0, m[b,t-1,h], 0) - m[b,t,h])
i[b,t,h] = exp(input[b,t,h] - m[b,t,h])
C[b,t,h,k,v] = d[b,t,h]*where(t > 0, C[b,t-1,h,k,v], 0) + i[b,t,h]*key[b,t,h,k]*value[b,t,h,v]
n[b,t,h,k] = d[b,t,h]*where(t > 0, n[b,t-1,h,k], 0) + i[b,t,h]*key[b,t,h,k]
z[b,t,h] = scale*sum[k](n[b,t,h,k]*query[b,t,h,k])
y[b,t,h,v] = scale*sum[k](C[b,t,h,k,v]*query[b,t,h,k])/(max(abs(z[b,t,h]), exp(-m[b,t,h])) + eps)
return y"""


@operator()
def linear_attention(
    query: Floats,
    key: Floats,
    value: Floats,
    decay: Any = None,
    initial_state: Any = None,
    scale: float | None = None,
    output_final_state: bool = False,
) -> Any:
    """Return the linear attention of queries and keys [B, T, H, K] with values [B, T, H, V]: [B, T, H, V].

    The state [B, H, K, V] is S[t] = exp(decay[t])*S[t-1] + key[t] value[t], and the output scale*query[t].S[t]. decay:
    logarithms, [B, T, H] (RetNet, Mamba-2), or [B, T, H, K] (gated linear attention); None for 0. scale: 1/sqrt(K)
    where not given. output_final_state: return (output, last state). Katharopoulos et al. 2020; Yang et al. 2023.
    """
    decays, text = _decay("linear_attention", decay, query)
    names = {"query": query, "key": key, "value": value, **decays}
    return _run("linear_attention", _ATTENTION.replace("*DECAY", text), names, initial_state, scale, output_final_state)


@operator()
def gated_delta_rule(
    query: Floats,
    key: Floats,
    value: Floats,
    decay: Any,
    beta: Floats,
    initial_state: Any = None,
    scale: float | None = None,
    output_final_state: bool = False,
) -> Any:
    """Return the gated delta rule of queries and keys [B, T, H, K] with values [B, T, H, V]: [B, T, H, V].

    The state [B, H, K, V] decays to R[t] = exp(decay[t])*S[t-1], and is corrected towards the value at its key:
    S[t] = R[t] + beta[t]*key[t] (value[t] - key[t].R[t]). decay: logarithms, [B, T, H] (gated delta net), [B, T, H, K]
    (Kimi delta attention), or None for 0 (delta net); beta: [B, T, H]. Other arguments as in `linear_attention`. Yang
    et al. 2024; Kimi team 2025.
    """
    decays, text = _decay("gated_delta_rule", decay, query)
    names = {"query": query, "key": key, "value": value, "beta": beta, **decays}
    return _run("gated_delta_rule", _DELTA.replace("*DECAY", text), names, initial_state, scale, output_final_state)


@operator()
def ssd(
    x: Floats,
    dt: Floats,
    A: Floats,
    B: Floats,
    C: Floats,
    initial_state: Any = None,
    output_final_state: bool = False,
) -> Any:
    """Return Mamba-2's state space dual of inputs [B, T, H, P] in steps dt [B, T, H]: [B, T, H, P] (Dao and Gu 2024).

    The state [B, H, P, N] is S[t] = exp(A*dt[t])*S[t-1] + dt[t]*x[t] B[t], and the output C[t].S[t]. A: [H], negative;
    B, C: [B, T, G, N], each for H/G heads. output_final_state: return (output, last state).
    """
    _check_sequences("ssd", {"x": x, "B": B, "C": C})
    if not B.shape[2] or x.shape[2] % B.shape[2]:
        raise ShapeError(f"ssd: the heads of 'x' {x.shape} are no multiple of the groups of 'B' {B.shape}")
    names = {"x": x, "dt": dt, "A": A, "B": B, "C": C}
    shape = (x.shape[0], x.shape[2], x.shape[3], B.shape[3])
    return _finish("ssd", _SPACE, names, initial_state, shape, {}, output_final_state)


@operator()
def rwkv7(
    r: Floats,
    w: Floats,
    key: Floats,
    value: Floats,
    a: Floats,
    b: Floats,
    initial_state: Any = None,
    output_final_state: bool = False,
) -> Any:
    """Return the time mixing of RWKV-7 of [B, T, H, K] each: [B, T, H, K] (Peng et al. 2025).

    The state [B, H, V, K] is S[t] = exp(w[t])*S[t-1] + (S[t-1] a[t]) b[t] + value[t] key[t], and the output S[t] r[t].
    w: logarithms of decays. output_final_state: return (output, last state).
    """
    _check_sequences("rwkv7", {"r": r, "w": w, "key": key, "value": value, "a": a, "b": b})
    names = {"r": r, "w": w, "key": key, "value": value, "a": a, "c": b}
    shape = (value.shape[0], value.shape[2], value.shape[-1], key.shape[-1])
    return _finish("rwkv7", _RWKV, names, initial_state, shape, {}, output_final_state)


@operator()
def mlstm(
    query: Floats,
    key: Floats,
    value: Floats,
    input: Floats,
    forget: Floats,
    scale: float | None = None,
    eps: float = 1e-6,
) -> Value:
    """Return the matrix LSTM of queries and keys [B, T, H, K] with values [B, T, H, V], as [B, T, H, V].

    input, forget: gates [B, T, H] ahead of exp and sigmoid. The state and its normalizer are stabilised by a running
    maximum. scale: 1/sqrt(K) where not given. Beck et al. 2024, "xLSTM".
    """
    _check_sequences("mlstm", {"query": query, "key": key, "value": value})
    names = {"query": query, "key": key, "value": value, "input": input, "forget": forget}
    width = query.shape[-1] ** -0.5 if scale is None else scale
    return op(_MLSTM, name="mlstm")(**names, scale=width, eps=eps)


def _decay(name: str, decay: Any, query: Value) -> tuple[dict[str, Value], str]:
    """Return the decay as an input, and the factor of the state in the formula."""
    if decay is None:
        return {}, ""
    x = tensor(decay, name, "decay", kind="float")
    if x.shape not in (query.shape, query.shape[:-1]):
        raise ShapeError(f"{name}: 'decay' {x.shape} is neither {query.shape} nor {query.shape[:-1]}")
    return {"decay": x}, "*exp(decay[b,t,h,k])" if x.ndim == query.ndim else "*exp(decay[b,t,h])"


def _check_sequences(name: str, inputs: Mapping[str, Value]) -> None:
    """Raise ShapeError for inputs that are no sequences."""
    for n, x in inputs.items():
        if x.ndim != 4 or not x.shape[1]:
            raise ShapeError(f"{name}: {n!r} {x.shape} is not [B, T, H, width] with T > 0")


def _run(
    name: str, text: str, inputs: Mapping[str, Value], initial: Any, scale: float | None, output_final_state: bool
) -> Any:
    query, value = inputs["query"], inputs["value"]
    _check_sequences(name, {n: inputs[n] for n in ("query", "key", "value")})
    shape = (query.shape[0], query.shape[2], query.shape[3], value.shape[3])
    width = query.shape[-1] ** -0.5 if scale is None else scale
    return _finish(name, text, inputs, initial, shape, {"scale": width}, output_final_state)


def _finish(
    name: str,
    text: str,
    inputs: Mapping[str, Value],
    initial: Any,
    shape: tuple[int, ...],
    numbers: Mapping[str, float],
    output_final_state: bool,
) -> Any:
    dtype = next(iter(inputs.values())).dtype
    first = builder.full(shape, 0.0, dtype) if initial is None else tensor(initial, name, "initial_state", kind="float")
    if first.shape != shape:
        raise ShapeError(f"{name}: 'initial_state' {first.shape} is not {shape}")
    y, last = op(text, name=name)(**inputs, first=first, **numbers)
    return (y, last) if output_final_state else y
