"""Define recurrent cells of four papers, each a formula of a few lines: MILSTM, SCRN, SubLSTM, LLTM.

All take [T, B, input_size] (batch_first: [B, T, input_size]; without a batch [T, input_size]) and an optional pair of
initial states [B, size], zeros where none is given, and return (output, (last state, last state)). checkpoint=S: every
S-th state is saved for the backward pass, which recomputes the others; 0: all are saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from einsmith.base.arguments import Count, Share, Size
from einsmith.nn import init
from einsmith.nn.linear import empty
from einsmith.nn.recurrence import recurrence
from einsmith.nn.recurrent import RecurrentModule
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

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


_GATED = {"weight_ih": "W_ih", "weight_hh": "W_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}


class _Cell(RecurrentModule):
    """Base of cells. Subclasses define `formula`, the names of the two `states`, `names` and `_shapes`.

    names: names of parameters -> names in the formula.
    """

    names: Mapping[str, str]

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
        for name, shape in self._shapes(hidden_size, input_size).items():
            setattr(self, name, empty(shape, dtype))
        self.reset_parameters()

    def _shapes(self, h: int, i: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters by name. h, i: hidden_size and input_size."""
        return {"weight_ih": (4 * h, i), "weight_hh": (4 * h, h), "bias_ih": (4 * h,), "bias_hh": (4 * h,)}

    def _settings(self) -> dict[str, Any]:
        """Return the numbers that the formula takes."""
        return {"H": self.hidden_size}

    def _run(self, x: Value, initial: list[Value | None]) -> tuple[Value, Sequence[Value]]:
        tensors = {formula: getattr(self, name) for name, formula in self.names.items()}
        for what, (size,), value in zip(self.states, self._state_shapes(), initial, strict=True):
            tensors[what] = builder.full((x.shape[1], size), 0.0, x.dtype) if value is None else value
        operator = recurrence(self.formula, name=type(self).__name__)
        states = operator(x=x, **tensors, **self._settings(), checkpoint=self.checkpoint)
        return self._output(*states), [s[x.shape[0] - 1] for s in states]

    def _output(self, h: Value, s: Value) -> Value:
        """Return the output for sequences of both states [T, B, size]."""
        return h


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
    names = _GATED | {n: n for n in ("alpha", "beta1", "beta2")}

    def _shapes(self, h: int, i: int) -> dict[str, tuple[int, ...]]:
        return super()._shapes(h, i) | dict.fromkeys(("alpha", "beta1", "beta2"), (4 * h,))

    def reset_parameters(self) -> None:
        """Draw new initial values; alpha is 1, beta1 and beta2 are 1/2."""
        super().reset_parameters()
        init.ones_(self.alpha)
        init.constant_(self.beta1, 0.5)
        init.constant_(self.beta2, 0.5)


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
    names = _GATED


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
    names = {"weight": "W", "bias": "bias"}

    def _shapes(self, h: int, i: int) -> dict[str, tuple[int, ...]]:
        return {"weight": (3 * h, h + i), "bias": (3 * h,)}


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
    names = {"B": "B", "weight": "W", "bias": "b_h"}

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
        self.context_size, self.alpha, self.output_size = context_size, alpha, output_size or hidden_size
        super().__init__(input_size, hidden_size, batch_first, dtype=dtype, checkpoint=checkpoint)

    def _shapes(self, h: int, i: int) -> dict[str, tuple[int, ...]]:
        s, out = self.context_size, self.output_size
        return {"B": (s, i), "weight": (h, s + i + h), "bias": (h,), "U": (out, h), "V": (out, s)}

    def _state_shapes(self) -> tuple[tuple[int, ...], ...]:
        return (self.hidden_size,), (self.context_size,)

    def _settings(self) -> dict[str, Any]:
        return {"alpha": self.alpha, "S": self.context_size}

    def output(self, h: Value, s: Value) -> Value:
        """Return U h + V s for hidden states h [..., hidden_size] and contexts s [..., context_size]."""
        return h @ self.U.T + s @ self.V.T

    _output = output

    def _sizes(self) -> tuple[Any, ...]:
        return self.input_size, self.hidden_size, self.context_size, f"alpha={self.alpha}"
