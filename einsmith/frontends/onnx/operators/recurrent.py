"""Recurrent layers. Each direction of a layer is one recurrent formula, which is not unrolled: compile time does not
depend on the number of steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.operators.indexing import check_lengths
from einsmith.frontends.onnx.operators.quantized import dynamic_quantize
from einsmith.frontends.onnx.table import onnx
from einsmith.nn.recurrence import run_directions
from einsmith.ops.call import recorded
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

_ACTIVATIONS: dict[str, tuple[str, float, float]] = {
    "relu": ("relu(@)", 0.0, 0.0),
    "tanh": ("tanh(@)", 0.0, 0.0),
    "sigmoid": ("sigmoid(@)", 0.0, 0.0),
    "affine": ("({a}*@ + {b})", 1.0, 0.0),
    "leakyrelu": ("where(@ < 0, {a}*@, @)", 0.01, 0.0),
    "thresholdedrelu": ("where(@ > {a}, @, 0)", 1.0, 0.0),
    "scaledtanh": ("({a}*tanh({b}*@))", 1.0, 1.0),
    "hardsigmoid": ("min(max({a}*@ + {b}, 0), 1)", 0.2, 0.5),
    "elu": ("where(@ < 0, {a}*(exp(@) - 1), @)", 1.0, 0.0),
    "softsign": ("(@/(1 + abs(@)))", 0.0, 0.0),
    "softplus": ("(max(@, 0) + log(1 + exp(-abs(@))))", 0.0, 0.0),
}
"""Activations of @ with their parameters, and the parameters' values where a node does not give them."""

# In the formulas below, clip(..) is the standard's clipping, and f, g, l are the node's activations.
_RNN = """
    p[t,b,k] = sum[i](x[t,b,i]*W_ih[k,i]) + b_ih[k] + b_hh[k]
    a[t,b,k] = clip(p[t,b,k] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j])*W_hh[k,j]))
    h[t,b,k] = f(a[t,b,k])
    return h
"""
_GRU = """
    p[t,b,n] = sum[i](x[t,b,i]*W_ih[n,i]) + b_ih[n]
    az[t,b,k] = clip(p[t,b,0*H+k] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j])*W_hh[0*H+k,j]) + b_hh[0*H+k])
    ar[t,b,k] = clip(p[t,b,H+k] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j])*W_hh[H+k,j]) + b_hh[H+k])
    z[t,b,k] = f(az[t,b,k])
    r[t,b,k] = f(ar[t,b,k])
    ah[t,b,k] = clip(p[t,b,2*H+k] + INNER)
    h[t,b,k] = (1 - z[t,b,k])*g(ah[t,b,k]) + z[t,b,k]*where(t > 0, h[t-1,b,k], h0[b,k])
    return h
"""
_RESET = (
    "sum[j](r[t,b,j]*where(t > 0, h[t-1,b,j], h0[b,j])*W_hh[2*H+k,j]) + b_hh[2*H+k]",
    "r[t,b,k]*(sum[j](where(t > 0, h[t-1,b,j], h0[b,j])*W_hh[2*H+k,j]) + b_hh[2*H+k])",
)
"""The reset gate, applied before the product, or after it (linear_before_reset)."""
_LSTM_PRODUCTS = """
    p[t,b,n] = sum[i](x[t,b,i]*W_ih[n,i]) + b_ih[n] + b_hh[n]
    q[t,b,n] = p[t,b,n] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j])*W_hh[n,j])
"""
_LSTM = """
    ai[t,b,k] = clip(q[t,b,0*H+k] + P[0*H+k]*where(t > 0, c[t-1,b,k], c0[b,k]))
    af[t,b,k] = clip(q[t,b,2*H+k] + P[2*H+k]*where(t > 0, c[t-1,b,k], c0[b,k]))
    ag[t,b,k] = clip(q[t,b,3*H+k])
    gi[t,b,k] = f(ai[t,b,k])
    gf[t,b,k] = f(af[t,b,k])
    u[t,b,k] = gf[t,b,k]*where(t > 0, c[t-1,b,k], c0[b,k]) + gi[t,b,k]*g(ag[t,b,k])
    ao[t,b,k] = clip(q[t,b,H+k] + P[H+k]*u[t,b,k])
    c[t,b,k] = u[t,b,k]
    h[t,b,k] = f(ao[t,b,k])*l(u[t,b,k])
    return h, c
"""
_QUANTIZED_PRODUCTS = """
    p[t,b,n] = scale[0]*Ws[n]*f32(sum[i](x[t,b,i]*W_ih[n,i])) + b_ih[n] + b_hh[n]
    v[t,b,j] = where(t > 0, h[t-1,b,j], h0[b,j])
    low[t] = min(min[b,j](v[t,b,j]), 0)
    top[t] = max(max[b,j](v[t,b,j]), 0)
    s[t] = where(low[t] == top[t], 1, top[t] - low[t])/255
    z[t] = min(max(round(-low[t]/s[t]), 0), 255)
    d[t,b,j] = i32(min(max(round(v[t,b,j]/s[t]) + z[t], 0), 255) - z[t])
    q[t,b,n] = p[t,b,n] + s[t]*Rs[n]*f32(sum[j](d[t,b,j]*W_hh[n,j]))
"""
"""The products of an LSTM with integer weights: x is quantized beforehand, h at every step."""
_ROUND = "(floor(@) + where(@-floor(@) > 0.5 or (@-floor(@) == 0.5 and floor(@) != 2*floor(floor(@)/2)), 1, 0))"
"""Rounding to the nearest integer, ties to even."""


def _write_formula(text: str, activations: Sequence[str], clip: float) -> str:
    """Return a formula with its activations, given as texts of @, and its clipping to [-clip, clip]; 0: none."""
    for name, activation in (*zip("fgl", activations, strict=False), ("round", _ROUND)):
        text = re.sub(rf"\b{name}\(([^()]*)\)", activation.replace("@", r"(\1)"), text)
    return re.sub(r"\bclip\((.*)\)$", rf"min(max(\1, {-clip!r}), {clip!r})" if clip else r"\1", text, flags=re.M)


def _read_activations(n: NodeCall, defaults: Sequence[str], directions: int) -> list[list[str]]:
    """Return the activations of each direction, as texts of @."""
    names = n.attr("activations") or tuple(defaults) * directions
    count = len(defaults)
    if len(names) != count * directions:
        raise ArgumentError(f"{len(names)} activations for {directions} directions, which have {count} each")
    alphas, betas = list(n.attr("activation_alpha", ())), list(n.attr("activation_beta", ()))
    if not np.isfinite([*alphas, *betas]).all():
        raise ArgumentError("activation_alpha and activation_beta must be finite")
    texts = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            raise ArgumentError(f"activation {name!r} is none of {', '.join(_ACTIVATIONS)}")
        text, a, b = _ACTIVATIONS[name.lower()]
        a = alphas.pop(0) if "{a}" in text and alphas else a
        b = betas.pop(0) if "{b}" in text and betas else b
        texts.append(text.format(a=repr(float(a)), b=repr(float(b))))
    return [texts[d * count : (d + 1) * count] for d in range(directions)]


def _run(
    n: NodeCall,
    text: str,
    gates: int,
    defaults: Sequence[str],
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None,
    lengths: Value | None,
    states: Mapping[str, Value | None],
    more: Mapping[str, Value] | None = None,
) -> tuple[Value, ...]:
    """Run a recurrent layer: (Y [T, D, B, H], the last value of each state [D, B, H]).

    Args:
        n: the node
        text: its formula, with f, g and l for its activations
        gates: number of rows of the weights for each feature
        defaults: its activations if it names none
        x: the input [T, B, I]; this and the further operands are those of the standard
        w: weights of the input
        r: weights of the state
        bias: biases of both
        lengths: numbers of steps of the sequences
        states: first values of the states by name
        more: further tensors [D, ..] of the formula by name
    """
    direction, more = n.attr("direction", "forward"), more or {}
    if n.attr("layout", 0):
        x = x.transpose(1, 0, 2)
        states = {name: None if v is None else v.transpose(1, 0, 2) for name, v in states.items()}
    directions, hidden = w.shape[0], r.shape[-1]
    (steps, batch, size), rows = x.shape, gates * hidden
    if direction not in ("forward", "reverse", "bidirectional") or directions != 1 + (direction == "bidirectional"):
        raise ArgumentError(f"direction {direction!r} and W of shape {w.shape} do not go together")
    if w.shape != (directions, rows, size) or r.shape != (directions, rows, hidden):
        raise ShapeError(f"W of shape {w.shape} and R of shape {r.shape} do not fit X of shape {x.shape}")
    if n.attr("hidden_size", hidden) != hidden:
        raise ArgumentError(f"hidden_size={n.attr('hidden_size')}, but R has the shape {r.shape}")
    if lengths is not None:
        if lengths.shape != (batch,):
            raise ShapeError(f"sequence_lens has the shape {lengths.shape}; a batch of {batch} needs {(batch,)}")
        lengths = check_lengths(n, lengths, steps, "sequence_lens").astype(dt.i32)
    for what, v, extents in (
        ("B", bias, (directions, 2 * rows)),
        ("P", more.get("P"), (directions, 3 * hidden)),
        *((f"the initial {name[0]}", v, (directions, batch, hidden)) for name, v in states.items()),
    ):
        if v is not None and v.shape != extents:
            raise ShapeError(
                f"{what} has the shape {v.shape}; X of shape {x.shape} and R of shape {r.shape} need {extents}"
            )
    tensors = {"W_ih": w, "W_hh": r, **more}
    tensors |= {} if bias is None else {"b_ih": bias[:, :rows], "b_hh": bias[:, rows:]}
    clip = float(n.attr("clip", 0.0))
    outputs, last = run_directions(
        [_write_formula(text, a, clip) for a in _read_activations(n, defaults, directions)],
        x,
        [{name: v[d] for name, v in tensors.items()} for d in range(directions)],
        states,
        (direction == "reverse", True),
        lengths=lengths,
    )
    y = F.stack(outputs, 1)
    if n.attr("layout", 0):
        return y.transpose(2, 0, 1, 3), *(v.transpose(1, 0, 2) for v in last)
    return y, *last


@onnx("RNN")
@recorded
def rnn(n: NodeCall, x: Value, w: Value, r: Value, bias: Any = None, lengths: Any = None, h0: Any = None) -> Any:
    """h[t] = f(W*x[t] + Wb + R*h[t-1] + Rb)"""
    return _run(n, _RNN, 1, ("Tanh",), x, w, r, bias, lengths, {"h0": h0})


@onnx("GRU")
@recorded
def gru(n: NodeCall, x: Value, w: Value, r: Value, bias: Any = None, lengths: Any = None, h0: Any = None) -> Any:
    """h[t] = (1 - z)*g(p + r*q) + z*h[t-1], where z, r = f(W*x[t] + R*h[t-1] + b); the reset gate applies before or
    after its product"""
    text = _GRU.replace("INNER", _RESET[n.attr("linear_before_reset", 0)])
    return _run(n, text, 3, ("Sigmoid", "Tanh"), x, w, r, bias, lengths, {"h0": h0})


def _lstm(
    n: NodeCall, x: Value, w: Value, r: Value, bias: Any, lengths: Any, states: Mapping[str, Any], more: dict[str, Any]
) -> tuple[Value, ...]:
    """Run an LSTM. more: its peepholes "P", or None, and scales of integer weights."""
    text = (_QUANTIZED_PRODUCTS if "scale" in more else _LSTM_PRODUCTS) + _LSTM
    if n.attr("input_forget", 0):
        text = re.sub(r"(?m)^ *af\[.*\n", "", text).replace("f(af[t,b,k])", "1 - gi[t,b,k]")
    if more["P"] is None:
        text = re.sub(r" \+ P\[[^]]*\]\*(where\([^()]*\)|u\[t,b,k\])", "", text)
    present = {name: v for name, v in more.items() if v is not None}
    return _run(n, text, 4, ("Sigmoid", "Tanh", "Tanh"), x, w, r, bias, lengths, states, present)


@onnx("LSTM")
@recorded
def lstm(
    n: NodeCall,
    x: Value,
    w: Value,
    r: Value,
    bias: Any = None,
    lengths: Any = None,
    h0: Any = None,
    c0: Any = None,
    peepholes: Any = None,
) -> tuple[Value, ...]:
    """c[t] = f(af)*c[t-1] + f(ai)*g(ag), h[t] = f(ao)*l(c[t]), where ai, ao, af, ag = W*x[t] + R*h[t-1] + b, with
    peepholes P*c"""
    return _lstm(n, x, w, r, bias, lengths, {"h0": h0, "c0": c0}, {"P": peepholes})


@onnx("com.microsoft.DynamicQuantizeLSTM")
def dynamic_quantize_lstm(n: NodeCall, x: Value, w: Value, r: Value, *others: Any) -> tuple[Value, ...]:
    """LSTM with quantized W and R; x, and h[t-1] at every step, are quantized as by DynamicQuantizeLinear"""
    bias, lengths, h0, c0, peepholes, sw, zw, sr, zr = others

    def columns(v: Value, m: Value) -> Value:
        """Broadcast v, one number a direction [D] or a column [D, K], to every column [D, K] of m."""
        return builder.compute((m.shape[0], m.shape[2]), lambda d, k: v[d, k] if v.ndim == 2 else v[d])

    def whole(m: Value, zero: Value) -> Value:
        zeros = columns(zero.astype(dt.i32), m)
        shape = m.shape[0], m.shape[2], m.shape[1]
        return builder.compute(shape, lambda d, k, i: m.astype(dt.i32)[d, i, k] - zeros[d, k])

    q, s, z = dynamic_quantize(n, x)
    directions, hidden, batch = r.shape[0], r.shape[1], x.shape[0 if n.attr("layout", 0) else 1]
    shape = (batch, directions, hidden) if n.attr("layout", 0) else (directions, batch, hidden)
    states = {"h0": h0, "c0": c0}
    states = {name: builder.full(shape, 0.0, dt.f32) if v is None else v for name, v in states.items()}
    scales = {
        "scale": builder.broadcast_to(s.reshape((1, 1)), (directions, 1)),
        "Ws": columns(sw, w),
        "Rs": columns(sr, r),
    }
    whole_x = q.astype(dt.i32) - z.astype(dt.i32)
    return _lstm(n, whole_x, whole(w, zw), whole(r, zr), bias, lengths, states, {"P": peepholes, **scales})
