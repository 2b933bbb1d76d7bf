"""Define RNNCell, LSTMCell and GRUCell, one step each, under torch.nn's names, arguments, state names and results."""

from __future__ import annotations

from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Count
from einsmith.base.errors import ArgumentError
from einsmith.nn.linear import empty, reset_all
from einsmith.nn.module import Module
from einsmith.nn.recurrent import check_input, check_nonlinearity, check_state
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


class _StepCell(Module):
    """One step of a recurrence. Parameters: weight_ih [gates*hidden_size, input_size], weight_hh [gates*hidden_size,
    hidden_size], and their biases."""

    gates: int

    def __init__(self, input_size: Count, hidden_size: Count, bias: bool, dtype: Any):
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = self.gates * hidden_size
        self.weight_ih, self.weight_hh = empty((rows, input_size), dtype), empty((rows, hidden_size), dtype)
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, empty((rows,), dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values, uniform in +-1/sqrt(hidden_size)."""
        reset_all(self, self.hidden_size)

    def _rows(self, input: Any, *states: Any) -> tuple[Value, list[Value], bool]:
        """Return input and states as [B, ..], states of zeros where None is given, and whether there is no batch.

        Raises ShapeError.
        """
        name = type(self).__name__
        x = check_input(input, name, (1, 2), self.input_size)
        shape = (*x.shape[:-1], self.hidden_size)
        hidden = [builder.full(shape, 0.0, x.dtype) if s is None else check_state(s, name, "hx", shape) for s in states]
        if x.ndim > 1:
            return x, hidden, False
        return x.reshape((1, self.input_size)), [h.reshape((1, self.hidden_size)) for h in hidden], True

    def _sums(self, x: Value, h: Value) -> tuple[Value, Value]:
        """Return what the input and the state add to the gates, [B, gates*hidden_size] each."""
        return F.linear(x, self.weight_ih, self.bias_ih), F.linear(h, self.weight_hh, self.bias_hh)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else f", bias={self.bias}")


class RNNCell(_StepCell):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh): input [B, input_size], hx [B, hidden_size] -> [B, hidden_size].

    nonlinearity: "tanh" or "relu". hx is zeros where it is not given. Without the batch, vectors. `RNN` runs all steps
    of a sequence.
    """

    gates = 1

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        bias: bool = True,
        nonlinearity: str = "tanh",
        *,
        dtype: Any = "float32",
    ):
        self.nonlinearity = check_nonlinearity("RNNCell", nonlinearity)
        super().__init__(input_size, hidden_size, bias, dtype)

    def forward(self, input: Value, hx: Value | None = None) -> Value:
        x, (h,), single = self._rows(input, hx)
        a, b = self._sums(x, h)
        y = builder.tanh(a + b) if self.nonlinearity == "tanh" else builder.relu(a + b)
        return y.reshape((self.hidden_size,)) if single else y

    def extra_repr(self) -> str:
        other = "" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity}"
        return super().extra_repr() + other


class LSTMCell(_StepCell):
    """A step of a long short-term memory: input [B, input_size], hx = (h, c) -> (h', c'), each [B, hidden_size].

    hx is zeros where it is not given. Without the batch, vectors. `LSTM` runs all steps of a sequence. Source:
    Hochreiter and Schmidhuber 1997.
    """

    gates = 4

    def __init__(self, input_size: Count, hidden_size: Count, bias: bool = True, *, dtype: Any = "float32"):
        super().__init__(input_size, hidden_size, bias, dtype)

    def forward(self, input: Value, hx: tuple[Value, Value] | None = None) -> tuple[Value, Value]:
        if hx is not None and (not isinstance(hx, (tuple, list)) or len(hx) != 2):
            raise ArgumentError("LSTMCell: hx must be None or the pair (h, c)")
        x, (h, c), single = self._rows(input, *(hx or (None, None)))
        a, b = self._sums(x, h)
        i, f, g, o = F.chunk(a + b, 4, 1)
        cell = builder.sigmoid(f) * c + builder.sigmoid(i) * builder.tanh(g)
        output = builder.sigmoid(o) * builder.tanh(cell)
        return tuple(v.reshape((self.hidden_size,)) if single else v for v in (output, cell))


class GRUCell(_StepCell):
    """A step of a gated recurrent unit: input [B, input_size], hx [B, hidden_size] -> [B, hidden_size].

    hx is zeros where it is not given. Without the batch, vectors. `GRU` runs all steps of a sequence. Source: Cho et
    al. 2014, arXiv 1406.1078.
    """

    gates = 3

    def __init__(self, input_size: Count, hidden_size: Count, bias: bool = True, *, dtype: Any = "float32"):
        super().__init__(input_size, hidden_size, bias, dtype)

    def forward(self, input: Value, hx: Value | None = None) -> Value:
        x, (h,), single = self._rows(input, hx)
        (a_r, a_z, a_n), (b_r, b_z, b_n) = (F.chunk(s, 3, 1) for s in self._sums(x, h))
        z = builder.sigmoid(a_z + b_z)
        n = builder.tanh(a_n + builder.sigmoid(a_r + b_r) * b_n)
        y = (1 - z) * n + z * h
        return y.reshape((self.hidden_size,)) if single else y
