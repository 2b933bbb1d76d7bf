"""Define layers whose heads are linear recurrences: the blocks of delta rules, Mamba-2 and matrix LSTMs.

Names and shapes of their states are those of transformers' layers, so that weights move both ways by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log
from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base.arguments import Count, Magnitude
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.nn import init
from einsmith.nn.conv import Conv1d
from einsmith.nn.linear import Linear, empty
from einsmith.nn.module import Module
from einsmith.nn.norm import GroupNorm, RMSNorm
from einsmith.nn.parameter import Parameter
from einsmith.ops.common import tensor
from einsmith.tracing.builder import Value

DECAY_RATES = 1.0, 16.0
"""Range of the initial decay rates exp(A_log), as in the code of Mamba-2."""
STEP_SIZES = 1e-3, 0.1
"""Range of the initial step sizes softplus(dt_bias), as in the code of Mamba-2."""


class _SequenceMixer(Module):
    """Base of layers [B, T, embed_dim] -> [B, T, embed_dim]. `settings`: names of the arguments that are shown."""

    settings: tuple[str, ...]
    embed_dim: int

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        for layer in self.children():
            layer.reset_parameters()

    def _check_input(self, input: Any) -> Value:
        """Return the input as a tensor. Raises ShapeError, DtypeError."""
        name = type(self).__name__
        x = tensor(input, name, "input", rank=3, kind="float")
        if x.shape[2] != self.embed_dim or not x.shape[1]:
            raise ShapeError(f"{name}: 'input' has shape {x.shape}, needs [B, T, {self.embed_dim}] with T > 0")
        return x

    def extra_repr(self) -> str:
        return ", ".join(f"{n}={getattr(self, n)}" for n in self.settings)


def _check_multiple(layer: Module, **sizes: int) -> None:
    """Raise ArgumentError unless the first of two named sizes is a multiple of the second."""
    (name, size), (other, part) = sizes.items()
    if size % part:
        raise ArgumentError(f"{type(layer).__name__}: {name}={size} must be a multiple of {other}={part}")


def _convolve(conv: Conv1d, x: Value) -> Value:
    """Return SiLU of the causal convolution over the steps of x [B, T, channels]."""
    rows = F.pad(x.transpose(0, 2, 1), (conv.kernel_size[0] - 1, 0))
    return F.silu(conv(rows)).transpose(0, 2, 1)


def _normalize(x: Value) -> Value:
    """Return vectors along the last dimension divided by their lengths, as fla does."""
    return x * F.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def _mix(conv: Conv1d, rows: Sequence[Value], widths: Sequence[int]) -> list[Value]:
    """Return queries, keys and values [B, T, heads, width] of rows [B, T, channels], queries and keys of length 1.

    All pass the convolution and SiLU before they are normalized.

    Args:
        conv: the convolution over the channels of all rows, side by side
        rows: of queries, of keys and of values
        widths: of a query, a key and a value
    """
    parts = F.split(_convolve(conv, F.cat(rows, -1)), [p.shape[-1] for p in rows], -1)
    q, k, v = (p.reshape((*p.shape[:2], p.shape[-1] // n, n)) for p, n in zip(parts, widths, strict=True))
    return [_normalize(q), _normalize(k), v]


def _reset_decay(A_log: Parameter, dt_bias: Parameter) -> None:
    """Draw decay rates uniform in DECAY_RATES, and step sizes whose logarithms are uniform in STEP_SIZES."""
    init.uniform_(A_log, *DECAY_RATES)
    A_log.data = np.log(A_log.data)
    init.uniform_(dt_bias, *map(log, STEP_SIZES))
    steps = np.exp(dt_bias.data)
    dt_bias.data = steps + np.log(-np.expm1(-steps))  # softplus of it is the step size


class GatedDeltaNet(_SequenceMixer):
    """Gated delta net: [B, T, embed_dim] -> [B, T, embed_dim]. Source: Yang et al. 2024, arXiv 2412.06464, section 3.4.

    Queries, keys and values pass a causal convolution and SiLU; queries and keys of length 1 go, with decays
    -exp(A_log)*softplus(a + dt_bias) and beta = sigmoid(b), to `functional.gated_delta_rule`. The result is
    out_proj(norm(y)*silu(z)). Each of num_heads heads of queries and keys serves num_value_heads/num_heads heads of
    values in a row.

    With K = head_dim, V = value_head_dim, H = num_heads and R = num_value_heads/H: in_proj_qkvz.weight
    [H*(2*K + 2*R*V), embed_dim], the rows of q, k, v and z head by head; in_proj_ba.weight [H*2*R, embed_dim], those of
    b and a; conv1d.weight [2*H*K + H*R*V, 1, conv_size]; A_log and dt_bias [H*R]; norm.weight [V]; out_proj.weight
    [embed_dim, H*R*V]. These are the names and shapes of transformers' Qwen3NextGatedDeltaNet.

    Args:
        embed_dim: features of a step
        num_heads: heads of queries and keys
        head_dim: width of a query and of a key
        num_value_heads: heads of values, a multiple of num_heads; num_heads where not given
        value_head_dim: width of a value; head_dim where not given
        conv_size: taps of the convolution
        eps: added to mean squares by the norm
    """

    settings = ("embed_dim", "num_heads", "head_dim", "num_value_heads", "value_head_dim", "conv_size", "eps")

    def __init__(
        self,
        embed_dim: Count,
        num_heads: Count,
        head_dim: Count,
        num_value_heads: Count | None = None,
        value_head_dim: Count | None = None,
        conv_size: Count = 4,
        eps: Magnitude = 1e-6,
        *,
        dtype: Any = "float32",
    ):
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, head_dim
        self.num_value_heads = num_heads if num_value_heads is None else num_value_heads
        self.value_head_dim = head_dim if value_head_dim is None else value_head_dim
        self.conv_size, self.eps = conv_size, eps
        _check_multiple(self, num_value_heads=self.num_value_heads, num_heads=num_heads)
        keys, values = 2 * num_heads * head_dim, self.num_value_heads * self.value_head_dim
        channels = keys + values
        self.conv1d = Conv1d(channels, channels, conv_size, groups=channels, bias=False, dtype=dtype)
        self.in_proj_qkvz = Linear(embed_dim, keys + 2 * values, bias=False, dtype=dtype)
        self.in_proj_ba = Linear(embed_dim, 2 * self.num_value_heads, bias=False, dtype=dtype)
        self.dt_bias = empty((self.num_value_heads,), dtype)
        self.A_log = empty((self.num_value_heads,), dtype)
        self.norm = RMSNorm(self.value_head_dim, eps, dtype=dtype)
        self.out_proj = Linear(values, embed_dim, bias=False, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values: decays as Mamba-2's, others as in `Linear` and `Conv1d`."""
        super().reset_parameters()
        _reset_decay(self.A_log, self.dt_bias)

    def forward(self, input: Value) -> Value:
        x = self._check_input(input)
        steps, heads, ratio = x.shape[:2], self.num_heads, self.num_value_heads // self.num_heads
        k, v = self.head_dim, ratio * self.value_head_dim
        parts = F.split(self.in_proj_qkvz(x).reshape((*steps, heads, 2 * (k + v))), [k, k, v, v], -1)
        *rows, z = (p.reshape((*steps, heads * p.shape[-1])) for p in parts)
        q, key, value = _mix(self.conv1d, rows, [k, k, self.value_head_dim])
        q, key, z = *(F.repeat_interleave(p, ratio, 2) for p in (q, key)), z.reshape(value.shape)
        gates = F.split(self.in_proj_ba(x).reshape((*steps, heads, 2 * ratio)), ratio, -1)
        b, a = (p.reshape((*steps, self.num_value_heads)) for p in gates)
        decay = -F.exp(self.A_log) * F.softplus(a + self.dt_bias)
        y = F.gated_delta_rule(q, key, value, decay, F.sigmoid(b))
        return self.out_proj((self.norm(y) * F.silu(z)).reshape((*steps, heads * v)))


class _ForgetGate(Module):
    """Logarithms of decays, [B, T, embed_dim] -> [B, T, num_heads, head_dim]: -exp(A_log)*softplus(f + dt_bias), where
    f is a projection through head_dim features."""

    def __init__(self, embed_dim: Count, num_heads: Count, head_dim: Count, *, dtype: Any):
        self.f_a_proj = Linear(embed_dim, head_dim, bias=False, dtype=dtype)
        self.f_b_proj = Linear(head_dim, num_heads * head_dim, bias=False, dtype=dtype)
        self.dt_bias = empty((num_heads * head_dim,), dtype)
        self.A_log = empty((1, 1, num_heads, 1), dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        self.f_a_proj.reset_parameters()
        self.f_b_proj.reset_parameters()
        _reset_decay(self.A_log, self.dt_bias)

    def forward(self, input: Value) -> Value:
        steps = F.softplus(self.f_b_proj(self.f_a_proj(input)) + self.dt_bias)
        return -F.exp(self.A_log) * steps.reshape((*input.shape[:2], self.A_log.shape[2], self.f_a_proj.out_features))


class KimiDeltaAttention(_SequenceMixer):
    """Kimi delta attention: [B, T, embed_dim] -> [B, T, embed_dim].

    A gated delta net whose states decay by key. Queries, keys and values pass a causal convolution and SiLU; queries
    and keys of length 1 go, with decays -exp(A_log)*softplus(f + dt_bias) and beta = sigmoid(b), to
    `functional.gated_delta_rule`. The result is o_proj(o_norm(y)*sigmoid(g)). The projections to f and to g are
    products of two, through head_dim features. Source: Kimi team 2025, arXiv 2510.26692, section 4.

    With K = head_dim and H = num_heads: q_proj.weight, k_proj.weight and v_proj.weight [H*K, embed_dim]; conv1d.weight
    [3*H*K, 1, conv_size], the channels of q, k and v; forget_gate.f_a_proj.weight [K, embed_dim] and
    forget_gate.f_b_proj.weight [H*K, K]; forget_gate.A_log [1, 1, H, 1] and forget_gate.dt_bias [H*K]; b_proj.weight
    [H, embed_dim]; g_a_proj.weight [K, embed_dim] and g_b_proj.weight [H*K, K]; o_norm.weight [K]; o_proj.weight
    [embed_dim, H*K]. These are the names and shapes of transformers' KimiLinearDeltaAttention.

    Args:
        embed_dim: features of a step
        num_heads: heads
        head_dim: width of a query, of a key and of a value
        conv_size: taps of the convolution
        eps: added to mean squares by the norm

    Raises:
        ShapeError: an input is not [B, T, embed_dim] with T > 0
        DtypeError: an input has no floats
    """

    settings = ("embed_dim", "num_heads", "head_dim", "conv_size", "eps")

    def __init__(
        self,
        embed_dim: Count,
        num_heads: Count,
        head_dim: Count,
        conv_size: Count = 4,
        eps: Magnitude = 1e-5,
        *,
        dtype: Any = "float32",
    ):
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, head_dim
        self.conv_size, self.eps = conv_size, eps
        inner = num_heads * head_dim
        self.q_proj = Linear(embed_dim, inner, bias=False, dtype=dtype)
        self.k_proj = Linear(embed_dim, inner, bias=False, dtype=dtype)
        self.v_proj = Linear(embed_dim, inner, bias=False, dtype=dtype)
        self.conv1d = Conv1d(3 * inner, 3 * inner, conv_size, groups=3 * inner, bias=False, dtype=dtype)
        self.forget_gate = _ForgetGate(embed_dim, num_heads, head_dim, dtype=dtype)
        self.b_proj = Linear(embed_dim, num_heads, bias=False, dtype=dtype)
        self.g_a_proj = Linear(embed_dim, head_dim, bias=False, dtype=dtype)
        self.g_b_proj = Linear(head_dim, inner, bias=False, dtype=dtype)
        self.o_norm = RMSNorm(head_dim, eps, dtype=dtype)
        self.o_proj = Linear(inner, embed_dim, bias=False, dtype=dtype)
        self.reset_parameters()

    def forward(self, input: Value) -> Value:
        x = self._check_input(input)
        q, k, v = _mix(self.conv1d, [self.q_proj(x), self.k_proj(x), self.v_proj(x)], [self.head_dim] * 3)
        y = self.o_norm(F.gated_delta_rule(q, k, v, self.forget_gate(x), F.sigmoid(self.b_proj(x))))
        gate = self.g_b_proj(self.g_a_proj(x))
        return self.o_proj(y.reshape(gate.shape) * F.sigmoid(gate))


class _GroupedRMSNorm(RMSNorm):
    """RMS norm over each of `num_groups` equal parts of the last dimension, with a weight for all of them."""

    def __init__(self, num_groups: Count, num_features: Count, eps: Magnitude, *, dtype: Any):
        self.num_groups = num_groups
        super().__init__(num_features, eps, dtype=dtype)

    def forward(self, input: Value) -> Value:
        width = input.shape[-1] // self.num_groups
        y = F.rms_norm(input.reshape((*input.shape[:-1], self.num_groups, width)), width, None, self.eps)
        return y.reshape(input.shape) * self.weight


class Mamba2(_SequenceMixer):
    """Mamba-2: [B, T, embed_dim] -> [B, T, embed_dim]. Source: Dao and Gu 2024, arXiv 2405.21060, section 7.

    in_proj makes gates z, inputs x, B and C, and step sizes dt. x, B and C pass a causal convolution and SiLU, then
    `functional.ssd` with A = -exp(A_log) and dt = softplus(dt + dt_bias), within dt_limit. The result is
    out_proj(norm((y + D*x)*silu(z))), where the norm is over each of num_groups parts.

    With I = expand*embed_dim, H = I/head_dim heads and S = num_groups*state_dim: in_proj.weight
    [2*I + 2*S + H, embed_dim], the rows of z, x, B, C and dt; conv1d.weight [I + 2*S, 1, conv_size] and conv1d.bias;
    A_log, dt_bias and D [H]; norm.weight [I]; out_proj.weight [embed_dim, I]; in_proj.bias and out_proj.bias with
    `bias`. These are the names and shapes of transformers' Mamba2Mixer.

    Args:
        embed_dim: features of a step
        state_dim: width of B and of C
        head_dim: width of a head of x, a divisor of expand*embed_dim
        expand: features of x for each feature of a step
        num_groups: heads of B and C, a divisor of the heads of x
        conv_size: taps of the convolution
        conv_bias: whether the convolution has a bias
        bias: whether the projections have biases
        dt_limit: least and largest step size
        eps: added to mean squares by the norm
    """

    settings = ("embed_dim", "state_dim", "head_dim", "expand", "num_groups", "conv_size", "dt_limit", "eps")

    def __init__(
        self,
        embed_dim: Count,
        state_dim: Count = 128,
        head_dim: Count = 64,
        expand: Count = 2,
        num_groups: Count = 1,
        conv_size: Count = 4,
        conv_bias: bool = True,
        bias: bool = False,
        dt_limit: tuple[Magnitude, Magnitude] = (0.0, inf),
        eps: Magnitude = 1e-5,
        *,
        dtype: Any = "float32",
    ):
        self.embed_dim, self.state_dim, self.head_dim, self.expand = embed_dim, state_dim, head_dim, expand
        self.num_groups, self.conv_size, self.dt_limit, self.eps = num_groups, conv_size, tuple(dt_limit), eps
        if not dt_limit[0] < dt_limit[1]:
            raise ArgumentError(f"Mamba2: dt_limit={dt_limit} must be the least and a larger step size")
        inner = expand * embed_dim
        _check_multiple(self, **{"expand*embed_dim": inner, "head_dim": head_dim})
        self.num_heads = inner // head_dim
        _check_multiple(self, num_heads=self.num_heads, num_groups=num_groups)
        channels = inner + 2 * num_groups * state_dim
        self.in_proj = Linear(embed_dim, inner + channels + self.num_heads, bias, dtype=dtype)
        self.conv1d = Conv1d(channels, channels, conv_size, groups=channels, bias=conv_bias, dtype=dtype)
        for name in ("A_log", "dt_bias", "D"):
            self.register_parameter(name, empty((self.num_heads,), dtype))
        self.norm = _GroupedRMSNorm(num_groups, inner, eps, dtype=dtype)
        self.out_proj = Linear(inner, embed_dim, bias, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values: decay rates in [1, 16], step sizes in [0.001, 0.1], D = 1."""
        super().reset_parameters()
        _reset_decay(self.A_log, self.dt_bias)
        init.ones_(self.D)

    def forward(self, input: Value) -> Value:
        u = self._check_input(input)
        steps, inner, states = u.shape[:2], self.expand * self.embed_dim, self.num_groups * self.state_dim
        z, mixed, dt = F.split(self.in_proj(u), [inner, inner + 2 * states, self.num_heads], -1)
        x, B, C = F.split(_convolve(self.conv1d, mixed), [inner, states, states], -1)
        x = x.reshape((*steps, self.num_heads, self.head_dim))
        B, C = (p.reshape((*steps, self.num_groups, self.state_dim)) for p in (B, C))
        dt = F.clamp(F.softplus(dt + self.dt_bias), *self.dt_limit)
        y = F.ssd(x, dt, -F.exp(self.A_log), B, C) + x * self.D.reshape((self.num_heads, 1))
        return self.out_proj(self.norm(y.reshape((*steps, inner)) * F.silu(z)))


class MLSTM(_SequenceMixer):
    """Matrix LSTM: [B, T, embed_dim] -> [B, T, embed_dim]. Source: Beck et al. 2024, arXiv 2405.04517, section 2.3.

    The layer around the recurrence, `functional.mlstm`, is that of Beck et al. 2025, arXiv 2503.13427: projections of
    queries, keys and values, gates of a head that are capped softly, c*tanh(gate/c), and
    out_proj(sigmoid(ogate)*norm(y)), where the norm is layer norm over each head.

    q.weight and k.weight [key_dim, embed_dim]; v.weight and ogate_preact.weight [value_dim, embed_dim];
    igate_preact.weight and fgate_preact.weight [num_heads, embed_dim], with biases [num_heads]; multihead_norm.weight
    [value_dim]; out_proj.weight [embed_dim, value_dim]; with `bias` the others have biases, too. These are the names
    and shapes of transformers' xLSTMLayer, weight_mode="single".

    Args:
        embed_dim: features of a step
        num_heads: heads, a divisor of key_dim and value_dim
        key_dim: features of queries and of keys, of all heads; embed_dim/2 where not given
        value_dim: features of values, of all heads; embed_dim where not given
        gate_cap: c, the bound of the input and the forget gate; None for none
        bias: whether projections and norm have biases; input and forget gates always have
        norm_eps: added to variances by the norm
        eps: added to the normalizer of the recurrence
    """

    settings = ("embed_dim", "num_heads", "key_dim", "value_dim", "gate_cap", "norm_eps", "eps")

    def __init__(
        self,
        embed_dim: Count,
        num_heads: Count,
        key_dim: Count | None = None,
        value_dim: Count | None = None,
        gate_cap: Magnitude | None = 15.0,
        bias: bool = False,
        norm_eps: Magnitude = 1e-6,
        eps: Magnitude = 1e-6,
        *,
        dtype: Any = "float32",
    ):
        self.embed_dim, self.num_heads, self.gate_cap = embed_dim, num_heads, gate_cap
        self.key_dim = max(embed_dim // 2, 1) if key_dim is None else key_dim
        self.value_dim = embed_dim if value_dim is None else value_dim
        self.norm_eps, self.eps = norm_eps, eps
        _check_multiple(self, key_dim=self.key_dim, num_heads=num_heads)
        _check_multiple(self, value_dim=self.value_dim, num_heads=num_heads)
        if gate_cap == 0:
            raise ArgumentError("MLSTM: gate_cap=0 must be positive, or None")
        self.q = Linear(embed_dim, self.key_dim, bias, dtype=dtype)
        self.k = Linear(embed_dim, self.key_dim, bias, dtype=dtype)
        self.v = Linear(embed_dim, self.value_dim, bias, dtype=dtype)
        self.ogate_preact = Linear(embed_dim, self.value_dim, bias, dtype=dtype)
        self.igate_preact = Linear(embed_dim, num_heads, dtype=dtype)
        self.fgate_preact = Linear(embed_dim, num_heads, dtype=dtype)
        self.multihead_norm = GroupNorm(num_heads, self.value_dim, norm_eps, bias=bias, dtype=dtype)
        self.out_proj = Linear(self.value_dim, embed_dim, bias, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values: gates of biases alone, -10 for inputs, from 3 to 6 for forgetting."""
        super().reset_parameters()
        for gate in (self.igate_preact, self.fgate_preact):
            init.zeros_(gate.weight)
        init.constant_(self.igate_preact.bias, -10.0)
        self.fgate_preact.bias.data = np.linspace(3.0, 6.0, self.num_heads)

    def _cap(self, gate: Value) -> Value:
        return gate if self.gate_cap is None else self.gate_cap * F.tanh(gate / self.gate_cap)

    def forward(self, input: Value) -> Value:
        x = self._check_input(input)
        steps = x.shape[:2]
        rows = self.q(x), self.k(x), self.v(x)
        q, k, v = (p.reshape((*steps, self.num_heads, p.shape[2] // self.num_heads)) for p in rows)
        i, f = self._cap(self.igate_preact(x)), self._cap(self.fgate_preact(x))
        y = F.mlstm(q, k, v, i, f, eps=self.eps).reshape((steps[0] * steps[1], self.value_dim))
        y = self.multihead_norm(y).reshape((*steps, self.value_dim))
        return self.out_proj(F.sigmoid(self.ogate_preact(x)) * y)
