"""Define recurrent cells of four papers, each a formula of a few lines: MILSTM, SCRN, SubLSTM, LLTM.

All take [T, B, input_size] (batch_first: [B, T, input_size]; without a batch [T, input_size]) and an optional pair of
initial states [B, size], zeros where none is given, and return (output, (last state, last state)). checkpoint=S: every
S-th state is saved for the backward pass, which recomputes the others; 0: all are saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

from einsmith.base.arguments import Count, Share, Size
from einsmith.base.errors import KindError
from einsmith.lang.builder import Value
from einsmith.nn import init
from einsmith.nn.linear import empty
from einsmith.nn.module import Module
from einsmith.nn.recurrent import pair, recurrence, sequence, state

MILSTM_FORMULA = """
    u[t,b,n] = sum[i](x[t,b,i] * W_ih[n,i]) + b_ih[n]
    v[t,b,n] = sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W_hh[n,j]) + b_hh[n]
    a[t,b,n] = alpha[n] * u[t,b,n] * v[t,b,n] + beta1[n] * u[t,b,n] + beta2[n] * v[t,b,n]
    c[t,b,k] = sigmoid(a[t,b,H+k]) * where(t > 0, c[t-1,b,k], c0[b,k]) + sigmoid(a[t,b,0*H+k]) * tanh(a[t,b,3*H+k])
    h[t,b,k] = sigmoid(a[t,b,2*H+k]) * tanh(c[t,b,k])
    return h, c
"""
SCRN_FORMULA = """
    s[t,b,m] = (1 - alpha) * sum[i](x[t,b,i] * B[m,i]) + alpha * where(t > 0, s[t-1,b,m], s0[b,m])
    p[t,b,k] = sum[m](s[t,b,m] * W[k,0*S+m]) + sum[i](x[t,b,i] * W[k,S+i]) + b_h[k]
    h[t,b,k] = sigmoid(p[t,b,k] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W[k,S+x.shape[2]+j]))
    return h, s
"""
SUBLSTM_FORMULA = """
    p[t,b,n] = sum[i](x[t,b,i] * W_ih[n,i]) + b_ih[n] + b_hh[n]
    a[t,b,n] = p[t,b,n] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W_hh[n,j])
    d[t,b,k] = sigmoid(a[t,b,2*H+k]) - sigmoid(a[t,b,0*H+k])
    c[t,b,k] = sigmoid(a[t,b,H+k]) * where(t > 0, c[t-1,b,k], c0[b,k]) + d[t,b,k]
    h[t,b,k] = sigmoid(c[t,b,k]) - sigmoid(a[t,b,3*H+k])
    return h, c
"""
LLTM_FORMULA = """
    p[t,b,n] = sum[i](x[t,b,i] * W[n,H+i]) + bias[n]
    a[t,b,n] = p[t,b,n] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W[n,0*H+j])
    e[t,b,k] = where(a[t,b,2*H+k] > 0, a[t,b,2*H+k], exp(a[t,b,2*H+k]) - 1)
    c[t,b,k] = where(t > 0, c[t-1,b,k], c0[b,k]) + sigmoid(a[t,b,0*H+k]) * e[t,b,k]
    h[t,b,k] = tanh(c[t,b,k]) * sigmoid(a[t,b,H+k])
    return h, c
"""


class _Cell(Module):
    """Base of cells: one recurrence over a sequence. Subclasses define `formula`, the names of the two `states` and
    `_inputs`."""

    formula: str
    states: tuple[str, str] = ("h0", "c0")

    def __init__(self, input_size: Count, hidden_size: Count, batch_first: bool, checkpoint: Size):
        self.input_size, self.hidden_size, self.batch_first = input_size, hidden_size, batch_first
        self.checkpoint = checkpoint

    def _sizes(self) -> tuple[int, int]:
        """Return the sizes of the two states."""
        return self.hidden_size, self.hidden_size

    def _inputs(self) -> dict[str, Any]:
        """Return the inputs and parameters of the formula except x and the initial states."""
        raise KindError(f"{type(self).__name__} names no inputs")

    def reset_parameters(self) -> None:
        """Draw new initial values, uniform in +-1/sqrt(hidden_size)."""
        bound = 1 / sqrt(self.hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def _run(self, input: Any, hx: Any) -> tuple[tuple[Value, Value], bool]:
        """Return the sequences of both states [T, B, size], and whether the input has no batch axis."""
        name = type(self).__name__
        x, single = sequence(input, name, self.input_size, self.batch_first)
        initial = {}
        for what, size, given in zip(self.states, self._sizes(), pair(hx, name), strict=True):
            shape = (size,) if single else (x.shape[1], size)
            initial[what] = state(given, name, what, shape, x).reshape((x.shape[1], size))
        operator = recurrence(self.formula, name=name)
        return operator(x=x, **initial, **self._inputs(), checkpoint=self.checkpoint), single

    def _results(self, output: Value, last: Sequence[Value], single: bool) -> tuple[Value, tuple[Value, Value]]:
        a, b = last
        if single:
            return output.reshape((output.shape[0], output.shape[2])), (a.reshape((-1,)), b.reshape((-1,)))
        return output.transpose(1, 0, 2) if self.batch_first else output, (a, b)

    def forward(self, input: Value, hx: Any = None) -> tuple[Value, tuple[Value, Value]]:
        (h, c), single = self._run(input, hx)
        return self._results(h, [s[h.shape[0] - 1] for s in (h, c)], single)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + self._options()

    def _options(self) -> str:
        """Format the arguments that differ from their defaults, for extra_repr."""
        usual = (("batch_first", False), ("checkpoint", 0))
        return "".join(f", {n}={getattr(self, n)}" for n, v in usual if getattr(self, n) != v)


class MILSTM(_Cell):
    """LSTM with multiplicative integration: W x and U h are multiplied as well as added. Source: arXiv 1606.06630.

    As a formula; the rows of a weight are those of the gates i, f, o and the candidate one after another:

        u[t,b,n] = sum[i](x[t,b,i] * W_ih[n,i]) + b_ih[n]
        v[t,b,n] = sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W_hh[n,j]) + b_hh[n]
        a[t,b,n] = alpha[n] * u[t,b,n] * v[t,b,n] + beta1[n] * u[t,b,n] + beta2[n] * v[t,b,n]
        c[t,b,k] = sigmoid(a[t,b,H+k]) * where(t > 0, c[t-1,b,k], c0[b,k]) + sigmoid(a[t,b,0*H+k]) * tanh(a[t,b,3*H+k])
        h[t,b,k] = sigmoid(a[t,b,2*H+k]) * tanh(c[t,b,k])

    forward(input, (h0, c0)=None) -> (output, (h_n, c_n)). weight_ih [4*hidden_size, input_size], weight_hh
    [4*hidden_size, hidden_size]; bias_ih, bias_hh, alpha, beta1, beta2 [4*hidden_size]. alpha is 1 at first, beta1 and
    beta2 are 1/2.
    """

    formula = MILSTM_FORMULA

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        batch_first: bool = False,
        *,
        dtype: Any = "float32",
        checkpoint: Size = 0,
    ):
        super().__init__(input_size, hidden_size, batch_first, checkpoint)
        rows = 4 * hidden_size
        self.weight_ih, self.weight_hh = empty((rows, input_size), dtype), empty((rows, hidden_size), dtype)
        self.bias_ih, self.bias_hh = empty((rows,), dtype), empty((rows,), dtype)
        self.alpha, self.beta1, self.beta2 = (empty((rows,), dtype) for _ in range(3))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values; alpha is 1, beta1 and beta2 are 1/2."""
        super().reset_parameters()
        init.ones_(self.alpha)
        init.constant_(self.beta1, 0.5)
        init.constant_(self.beta2, 0.5)

    def _inputs(self) -> dict[str, Any]:
        return {
            "W_ih": self.weight_ih,
            "W_hh": self.weight_hh,
            "b_ih": self.bias_ih,
            "b_hh": self.bias_hh,
            "alpha": self.alpha,
            "beta1": self.beta1,
            "beta2": self.beta2,
            "H": self.hidden_size,
        }


class SubLSTM(_Cell):
    """LSTM whose gates subtract instead of multiplying. Source: Costa et al. 2017, arXiv 1711.02448.

    As a formula; the rows of a weight are those of i, f, z and o one after another:

        p[t,b,n] = sum[i](x[t,b,i] * W_ih[n,i]) + b_ih[n] + b_hh[n]
        a[t,b,n] = p[t,b,n] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W_hh[n,j])
        d[t,b,k] = sigmoid(a[t,b,2*H+k]) - sigmoid(a[t,b,0*H+k])
        c[t,b,k] = sigmoid(a[t,b,H+k]) * where(t > 0, c[t-1,b,k], c0[b,k]) + d[t,b,k]
        h[t,b,k] = sigmoid(c[t,b,k]) - sigmoid(a[t,b,3*H+k])

    forward(input, (h0, c0)=None) -> (output, (h_n, c_n)). weight_ih [4*hidden_size, input_size], weight_hh
    [4*hidden_size, hidden_size], bias_ih and bias_hh [4*hidden_size].
    """

    formula = SUBLSTM_FORMULA

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        batch_first: bool = False,
        *,
        dtype: Any = "float32",
        checkpoint: Size = 0,
    ):
        super().__init__(input_size, hidden_size, batch_first, checkpoint)
        rows = 4 * hidden_size
        self.weight_ih, self.weight_hh = empty((rows, input_size), dtype), empty((rows, hidden_size), dtype)
        self.bias_ih, self.bias_hh = empty((rows,), dtype), empty((rows,), dtype)
        self.reset_parameters()

    def _inputs(self) -> dict[str, Any]:
        return {
            "W_ih": self.weight_ih,
            "W_hh": self.weight_hh,
            "b_ih": self.bias_ih,
            "b_hh": self.bias_hh,
            "H": self.hidden_size,
        }


class LLTM(_Cell):
    """Long-long-term memory, the example of PyTorch's C++ extensions: no forget gate, and an ELU for the candidate.

    As a formula; the rows of the weight are those of the gates i, o and the candidate, its columns those of h and x:

        p[t,b,n] = sum[i](x[t,b,i] * W[n,H+i]) + bias[n]
        a[t,b,n] = p[t,b,n] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W[n,0*H+j])
        e[t,b,k] = where(a[t,b,2*H+k] > 0, a[t,b,2*H+k], exp(a[t,b,2*H+k]) - 1)
        c[t,b,k] = where(t > 0, c[t-1,b,k], c0[b,k]) + sigmoid(a[t,b,0*H+k]) * e[t,b,k]
        h[t,b,k] = tanh(c[t,b,k]) * sigmoid(a[t,b,H+k])

    forward(input, (h0, c0)=None) -> (output, (h_n, c_n)). weight [3*hidden_size, hidden_size + input_size], bias
    [3*hidden_size]. Source: https://docs.pytorch.org/tutorials/advanced/cpp_extension.html
    """

    formula = LLTM_FORMULA

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        batch_first: bool = False,
        *,
        dtype: Any = "float32",
        checkpoint: Size = 0,
    ):
        super().__init__(input_size, hidden_size, batch_first, checkpoint)
        self.weight = empty((3 * hidden_size, hidden_size + input_size), dtype)
        self.bias = empty((3 * hidden_size,), dtype)
        self.reset_parameters()

    def _inputs(self) -> dict[str, Any]:
        return {"W": self.weight, "bias": self.bias, "H": self.hidden_size}


class SCRN(_Cell):
    """Structurally constrained recurrent network: a hidden state and a slow context s. Source: arXiv 1412.7753.

    As a formula; the columns of W are those of the context, the input and the hidden state:

        s[t,b,m] = (1 - alpha) * sum[i](x[t,b,i] * B[m,i]) + alpha * where(t > 0, s[t-1,b,m], s0[b,m])
        p[t,b,k] = sum[m](s[t,b,m] * W[k,0*S+m]) + sum[i](x[t,b,i] * W[k,S+i]) + b_h[k]
        h[t,b,k] = sigmoid(p[t,b,k] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W[k,S+x.shape[2]+j]))

    and the output, U h_t + V s_t. forward(input, (h0, s0)=None) -> (output [T, B, output_size], (h_n, s_n)).
    B [context_size, input_size], weight [hidden_size, context_size + input_size + hidden_size], bias [hidden_size],
    U [output_size, hidden_size], V [output_size, context_size]. output_size: hidden_size where it is not given.
    """

    formula = SCRN_FORMULA
    states = ("h0", "s0")

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        context_size: Count,
        alpha: Share = 0.5,
        output_size: Count | None = None,
        batch_first: bool = False,
        *,
        dtype: Any = "float32",
        checkpoint: Size = 0,
    ):
        super().__init__(input_size, hidden_size, batch_first, checkpoint)
        self.context_size, self.alpha, self.output_size = context_size, alpha, output_size or hidden_size
        self.B = empty((context_size, input_size), dtype)
        self.weight = empty((hidden_size, context_size + input_size + hidden_size), dtype)
        self.bias = empty((hidden_size,), dtype)
        self.U, self.V = empty((self.output_size, hidden_size), dtype), empty((self.output_size, context_size), dtype)
        self.reset_parameters()

    def _sizes(self) -> tuple[int, int]:
        return self.hidden_size, self.context_size

    def _inputs(self) -> dict[str, Any]:
        return {"B": self.B, "W": self.weight, "b_h": self.bias, "alpha": self.alpha, "S": self.context_size}

    def output(self, h: Value, s: Value) -> Value:
        """Return U h + V s for hidden states h [..., hidden_size] and contexts s [..., context_size]."""
        return h @ self.U.T + s @ self.V.T

    def forward(self, input: Value, hx: Any = None) -> tuple[Value, tuple[Value, Value]]:
        (h, s), single = self._run(input, hx)
        return self._results(self.output(h, s), [v[h.shape[0] - 1] for v in (h, s)], single)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, {self.context_size}, alpha={self.alpha}" + self._options()
