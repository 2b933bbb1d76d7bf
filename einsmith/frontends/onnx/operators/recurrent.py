"""Recurrent layers. Each direction of a layer is one recurrent formula, which is not unrolled: compile time does not
depend on the number of steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.operators.indexing import check_lengths
from einsmith.frontends.onnx.operators.quantized import dynamic_quantize
from einsmith.frontends.onnx.table import onnx
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.lang.op import Operator, op
from einsmith.ops.call import recorded

_TEXTS = {
    "relu": "relu(@)",
    "tanh": "tanh(@)",
    "sigmoid": "sigmoid(@)",
    "affine": "({a}*@ + {b})",
    "leakyrelu": "where(@ < 0, {a}*@, @)",
    "thresholdedrelu": "where(@ > {a}, @, 0)",
    "scaledtanh": "({a}*tanh({b}*@))",
    "hardsigmoid": "min(max({a}*@ + {b}, 0), 1)",
    "elu": "where(@ < 0, {a}*(exp(@) - 1), @)",
    "softsign": "(@/(1 + abs(@)))",
    "softplus": "(max(@, 0) + log(1 + exp(-abs(@))))",
}
"""Activations of @ with their parameters."""

_RNN = """
    p[t,b,k] = sum[i](x[t,b,i]*W[k,i]) + Wb[k] + Rb[k]
    a[t,b,k] = clip(p[t,b,k] + sum[j](prev(h,j)*R[k,j]))
    h[t,b,k] = steps(h, f(a[t,b,k]))
    return h
"""
_GRU = """
    p[t,b,n] = sum[i](x[t,b,i]*W[n,i]) + Wb[n]
    az[t,b,k] = clip(p[t,b,0*H+k] + sum[j](prev(h,j)*R[0*H+k,j]) + Rb[0*H+k])
    ar[t,b,k] = clip(p[t,b,H+k] + sum[j](prev(h,j)*R[H+k,j]) + Rb[H+k])
    z[t,b,k] = f(az[t,b,k])
    r[t,b,k] = f(ar[t,b,k])
    ah[t,b,k] = clip(p[t,b,2*H+k] + INNER)
    h[t,b,k] = steps(h, (1 - z[t,b,k])*g(ah[t,b,k]) + z[t,b,k]*prev(h,k))
    return h
"""
_RESET = {
    False: "sum[j](r[t,b,j]*prev(h,j)*R[2*H+k,j]) + Rb[2*H+k]",
    True: "r[t,b,k]*(sum[j](prev(h,j)*R[2*H+k,j]) + Rb[2*H+k])",
}
"""Whether the reset gate is applied before the product, or after it (linear_before_reset)."""
_LSTM = """
    p[t,b,n] = sum[i](x[t,b,i]*W[n,i]) + Wb[n] + Rb[n]
    q[t,b,n] = p[t,b,n] + sum[j](prev(h,j)*R[n,j])
    ai[t,b,k] = clip(q[t,b,0*H+k] + P[0*H+k]*prev(c,k))
    af[t,b,k] = clip(q[t,b,2*H+k] + P[2*H+k]*prev(c,k))
    ag[t,b,k] = clip(q[t,b,3*H+k])
    gi[t,b,k] = f(ai[t,b,k])
    u[t,b,k] = FORGET*prev(c,k) + gi[t,b,k]*g(ag[t,b,k])
    ao[t,b,k] = clip(q[t,b,H+k] + P[H+k]*u[t,b,k])
    c[t,b,k] = steps(c, u[t,b,k])
    h[t,b,k] = steps(h, f(ao[t,b,k])*l(u[t,b,k]))
    return h, c
"""
_QUANTIZED = """
    p[t,b,n] = scale[0]*Ws[n]*f32(sum[i](x[t,b,i]*W[n,i])) + Wb[n] + Rb[n]
    low[t] = min(min[b,j](prev(h,j)), 0)
    top[t] = max(max[b,j](prev(h,j)), 0)
    s[t] = where(low[t] == top[t], 1, top[t] - low[t])/255
    z[t] = min(max(round(-low[t]/s[t]), 0), 255)
    d[t,b,j] = i32(min(max(round(prev(h,j)/s[t]) + z[t], 0), 255) - z[t])
    q[t,b,n] = p[t,b,n] + s[t]*Rs[n]*f32(sum[j](d[t,b,j]*R[n,j]))
"""
"""The two products of an LSTM with integer weights: x is quantized beforehand, h at every step."""
_ROUND = "(floor(@) + where(@-floor(@) > 0.5 or (@-floor(@) == 0.5 and floor(@) != 2*floor(floor(@)/2)), 1, 0))"
"""Rounding to the nearest integer, ties to even."""


def _calls(text: str, name: str) -> tuple[str, list[str], str] | None:
    """Find the first call of `name` in a text: (text before, arguments, text after), None if there is none."""
    for n in range(len(text)):
        if text.startswith(f"{name}(", n) and (n == 0 or not (text[n - 1].isalnum() or text[n - 1] == "_")):
            depth, begin, args = 0, n + len(name) + 1, []
            for m in range(begin, len(text)):
                c = text[m]
                if c in "([":
                    depth += 1
                elif c in ")]" and depth:
                    depth -= 1
                elif c == ")" or (c == "," and not depth):
                    args.append(text[begin:m].strip())
                    begin = m + 1
                    if c == ")":
                        return text[:n], args, text[m + 1 :]
    return None


def _expand(text: str, name: str, make: Any) -> str:
    """Replace every call of `name` in a text by the result of `make` for its arguments."""
    out = ""
    while (found := _calls(text, name)) is not None:
        before, args, text = found
        out += before
        text = make(*args) + text
    return out + text


@lru_cache(maxsize=64)
def _operator(text: str, activations: tuple[str, ...], clip: float, lengths: bool, reverse: bool) -> Operator:
    """Return the operator of one direction."""
    begins, before = ("t < x.shape[0]-1", "t+1") if reverse else ("t > 0", "t-1")

    def held(state: str, value: str) -> str:
        return f"where(t < lengths[b], {value}, {previous(state, 'k')})" if lengths else f"({value})"

    def previous(state: str, k: str) -> str:
        return f"where({begins}, {state}[{before},b,{k}], {state}0[b,{k}])"

    for name, activation in zip(("f", "g", "l"), activations, strict=False):
        text = _expand(text, name, lambda e, a=activation: a.replace("@", f"({e})"))
    text = _expand(text, "round", lambda e: _ROUND.replace("@", f"({e})"))
    text = _expand(text, "steps", held)
    text = _expand(text, "prev", previous)
    text = _expand(text, "clip", lambda e: f"min(max({e}, {-clip!r}), {clip!r})" if clip else f"({e})")
    return op(text)


DEFAULTS = {
    "LeakyRelu": (0.01, 0.0),
    "ThresholdedRelu": (1.0, 0.0),
    "HardSigmoid": (0.2, 0.5),
    "Elu": (1.0, 0.0),
    "Affine": (1.0, 0.0),
    "ScaledTanh": (1.0, 1.0),
}
"""alpha and beta of an activation where a node does not give them."""


def _activations(n: NodeCall, count: int, defaults: Sequence[str], d: int) -> tuple[str, ...]:
    """Return the activations of direction d, as texts of @."""
    directions = 1 + (n.attr("direction", "forward") == "bidirectional")
    names = n.attr("activations") or tuple(defaults) * directions
    if len(names) != count * directions:
        raise ArgumentError(f"{len(names)} activations for {directions} directions, which have {count} each")
    alphas, betas = list(n.attr("activation_alpha", ())), list(n.attr("activation_beta", ()))
    if not np.isfinite([*alphas, *betas]).all():
        raise ArgumentError("activation_alpha and activation_beta must be finite")
    found = []
    known = {k.lower(): v for k, v in DEFAULTS.items()}
    for m, name in enumerate(names):
        low = name.lower()
        if low not in _TEXTS:
            raise ArgumentError(f"activation {name!r} is none of {', '.join(_TEXTS)}")
        a, b = known.get(low, (0.0, 0.0))
        if "{a}" in _TEXTS[low] and alphas:
            a = alphas.pop(0)
        if "{b}" in _TEXTS[low] and betas:
            b = betas.pop(0)
        if d * count <= m < (d + 1) * count:
            found.append(_TEXTS[low].format(a=repr(float(a)), b=repr(float(b))))
    return tuple(found)


def _run(
    n: NodeCall,
    text: str,
    gates: int,
    defaults: Sequence[str],
    states: Sequence[str],
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None,
    lengths: Value | None,
    initial: Sequence[Value | None],
    peepholes: Value | None = None,
    scales: tuple[Value, Value, Value] | None = None,
) -> tuple[Value, ...]:
    """Run a recurrent layer: (Y [T, D, B, H], the last value of each state [D, B, H]).

    scales: of x [1], w and r [D, gates*H], if these are integers.
    """
    layout, direction = n.attr("layout", 0), n.attr("direction", "forward")
    if layout:
        x = x.transpose(1, 0, 2)
        initial = [None if v is None else v.transpose(1, 0, 2) for v in initial]
    directions, hidden = w.shape[0], r.shape[-1]
    (steps, batch, size), kind = x.shape, dt.f32 if scales else x.dtype
    if direction not in ("forward", "reverse", "bidirectional") or directions != 1 + (direction == "bidirectional"):
        raise ArgumentError(f"direction {direction!r} and W of shape {w.shape} do not go together")
    if w.shape != (directions, gates * hidden, size) or r.shape != (directions, gates * hidden, hidden):
        raise ShapeError(f"W of shape {w.shape} and R of shape {r.shape} do not fit X of shape {x.shape}")
    if n.attr("hidden_size", hidden) != hidden:
        raise ArgumentError(f"hidden_size={n.attr('hidden_size')}, but R has the shape {r.shape}")
    if lengths is not None:
        if lengths.shape != (batch,):
            raise ShapeError(f"sequence_lens has the shape {lengths.shape}; a batch of {batch} needs {(batch,)}")
        lengths = check_lengths(n, lengths, steps, "sequence_lens")
    for v, what, extents in (
        (bias, "B", (directions, 2 * gates * hidden)),
        (peepholes, "P", (directions, 3 * hidden)),
        *((v, f"the initial {name}", (directions, batch, hidden)) for v, name in zip(initial, states, strict=True)),
    ):
        if v is not None and v.shape != extents:
            raise ShapeError(
                f"{what} has the shape {v.shape}; X of shape {x.shape} and R of shape {r.shape} need {extents}"
            )
    outputs: list[Value] = []
    last: list[list[Value]] = [[] for _ in states]
    for d in range(directions):
        reverse = direction == "reverse" or d == 1
        run = _operator(
            text, _activations(n, len(defaults), defaults, d), float(n.attr("clip", 0.0)), lengths is not None, reverse
        )
        both = builder.full((2 * gates * hidden,), 0.0, kind) if bias is None else bias[d]
        given: dict[str, Any] = {
            "x": x,
            "W": w[d],
            "R": r[d],
            "Wb": both[: gates * hidden],
            "Rb": both[gates * hidden :],
        }
        for name, v in zip(states, initial, strict=True):
            given[f"{name}0"] = builder.full((batch, hidden), 0.0, kind) if v is None else v[d]
        if "P[" in text:
            given["P"] = builder.full((3 * hidden,), 0.0, kind) if peepholes is None else peepholes[d]
        if scales is not None:
            given |= {"scale": scales[0], "Ws": scales[1][d], "Rs": scales[2][d]}
        if lengths is not None:
            given["lengths"] = lengths.astype(dt.i32)
        if gates > 1:
            given["H"] = hidden
        out = run(**given)
        sequences = out if isinstance(out, tuple) else (out,)
        y = sequences[0]
        if lengths is not None:
            y = builder.compute(y.shape, lambda t, b, k, y=y: builder.where(t < lengths[b], y[t, b, k], 0.0))
        outputs.append(y)
        for found, s, name in zip(last, sequences, states, strict=True):
            found.append(s[0 if reverse else steps - 1] if steps else given[f"{name}0"])
    ys, ends = F.stack(outputs, 1), [F.stack(found, 0) for found in last]
    if layout:
        ys, ends = ys.transpose(2, 0, 1, 3), [e.transpose(1, 0, 2) for e in ends]
    return tuple(v.astype(kind) for v in (ys, *ends))


@onnx("RNN")
@recorded
def rnn(
    n: NodeCall,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None = None,
    lengths: Value | None = None,
    h0: Value | None = None,
) -> tuple[Value, ...]:
    """h[t] = f(W*x[t] + Wb + R*h[t-1] + Rb)"""
    return _run(n, _RNN, 1, ("Tanh",), ("h",), x, w, r, bias, lengths, (h0,))


@onnx("GRU")
@recorded
def gru(
    n: NodeCall,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None = None,
    lengths: Value | None = None,
    h0: Value | None = None,
) -> tuple[Value, ...]:
    """h[t] = (1 - z)*g(p + r*q) + z*h[t-1], where z, r = f(W*x[t] + R*h[t-1] + b); the reset gate applies before or
    after its product"""
    text = _GRU.replace("INNER", _RESET[bool(n.attr("linear_before_reset", 0))])
    return _run(n, text, 3, ("Sigmoid", "Tanh"), ("h",), x, w, r, bias, lengths, (h0,))


def _lstm(n: NodeCall, *arguments: Value | None, peepholes: Value | None, **more: Any) -> tuple[Value, ...]:
    forget = n.attr("input_forget", 0)
    text = _LSTM.replace("FORGET", "(1 - gi[t,b,k])" if forget else "f(af[t,b,k])")
    lines = [line for line in text.split("\n") if not (forget and "af[" in line)]
    if "scales" in more:
        lines = [*_QUANTIZED.split("\n"), *(line for line in lines if line.lstrip()[:2] not in ("p[", "q["))]
    text = "\n".join(lines)
    if peepholes is None:
        for gate in ("0*H+k", "2*H+k", "H+k"):
            for state in ("prev(c,k)", "u[t,b,k]"):
                text = text.replace(f" + P[{gate}]*{state}", "")
    x, w, r, bias, lengths, *states = arguments
    assert x is not None and w is not None and r is not None
    return _run(n, text, 4, ("Sigmoid", "Tanh", "Tanh"), ("h", "c"), x, w, r, bias, lengths, states, peepholes, **more)


@onnx("LSTM")
@recorded
def lstm(
    n: NodeCall,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None = None,
    lengths: Value | None = None,
    h0: Value | None = None,
    c0: Value | None = None,
    peepholes: Value | None = None,
) -> tuple[Value, ...]:
    """c[t] = f(af)*c[t-1] + f(ai)*g(ag), h[t] = f(ao)*l(c[t]), where ai, ao, af, ag = W*x[t] + R*h[t-1] + b, with
    peepholes P*c"""
    return _lstm(n, x, w, r, bias, lengths, h0, c0, peepholes=peepholes)


@onnx("com.microsoft.DynamicQuantizeLSTM")
def dynamic_quantize_lstm(
    n: NodeCall,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None,
    lengths: Value | None,
    h0: Value | None,
    c0: Value | None,
    peepholes: Value | None,
    sw: Value,
    zw: Value,
    sr: Value,
    zr: Value,
) -> tuple[Value, ...]:
    """LSTM with quantized W and R; x, and h[t-1] at every step, are quantized as by DynamicQuantizeLinear"""

    def columns(v: Value, m: Value) -> Value:
        """Broadcast v, one number a direction [D] or a column [D, K], to every column [D, K] of m."""
        return builder.compute((m.shape[0], m.shape[2]), lambda d, k: v[d, k] if v.ndim == 2 else v[d])

    def whole(m: Value, zero: Value) -> Value:
        zeros = columns(zero.astype(dt.i32), m)
        return builder.compute(
            (m.shape[0], m.shape[2], m.shape[1]), lambda d, k, i: m.astype(dt.i32)[d, i, k] - zeros[d, k]
        )

    q, s, z = dynamic_quantize(n, x)
    return _lstm(
        n,
        q.astype(dt.i32) - z.astype(dt.i32),
        whole(w, zw),
        whole(r, zr),
        bias,
        lengths,
        h0,
        c0,
        peepholes=peepholes,
        scales=(s.reshape((1,)), columns(sw, w), columns(sr, r)),
    )
