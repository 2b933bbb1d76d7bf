"""Define RNN, LSTM and GRU under torch.nn's names, arguments, initial distributions, state names, shapes and results.

A layer in one direction is one formula, whose carried tensors read themselves at the step before.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from einsmith.base.arguments import Count, Depth, Share, Size
from einsmith.base.errors import ArgumentError, KindError, ShapeError
from einsmith.nn.linear import empty, reset_all
from einsmith.nn.module import Module
from einsmith.nn.recurrence import (
    GRU_FORMULA,
    LSTM_FORMULA,
    LSTM_PROJECTED_FORMULA,
    RNN_FORMULA,
    recurrent_layer,
    run_layers,
)
from einsmith.ops.common import tensor
from einsmith.ops.random import layer_drop
from einsmith.tracing.builder import Value


class RecurrentModule(Module):
    """Base of modules that run a recurrence over a sequence. Subclasses define `formula`, the names of its `states`,
    and how they run it."""

    formula: str
    states: tuple[str, ...] = ("h0", "c0")

    def __init__(self, input_size: Count, hidden_size: Count, batch_first: bool, checkpoint: Size):
        self.input_size, self.hidden_size, self.batch_first = input_size, hidden_size, batch_first
        self.checkpoint = checkpoint

    def reset_parameters(self) -> None:
        """Draw new initial values, uniform in +-1/sqrt(hidden_size)."""
        reset_all(self, self.hidden_size)

    def _state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shape of each state without its batch, whose dimension is the last but one."""
        return ((self.hidden_size,), (self.hidden_size,))

    def _run(self, x: Value, initial: list[Value | None]) -> tuple[Value, Sequence[Value]]:
        """Return the output [T, B, features] for x [T, B, input_size], and the last states. initial: None for zeros."""
        raise KindError(f"{type(self).__name__} runs no recurrence")

    def forward(self, input: Value, hx: Any = None) -> tuple[Value, Any]:
        name = type(self).__name__
        x = check_input(input, name, (2, 3), self.input_size)
        single = x.ndim == 2
        if single:
            x = x.reshape((x.shape[0], 1, self.input_size))
        elif self.batch_first:
            x = x.transpose(1, 0, 2)
        if not x.shape[0]:
            raise ShapeError(f"{name}: 'input' has shape {tuple(input.shape)}; it needs at least one step")
        states = (hx,) if len(self.states) == 1 else _pair(hx, name)
        initial: list[Value | None] = []
        for what, (*lead, size), state in zip(self.states, self._state_shapes(), states, strict=True):
            shape = (*lead, size) if single else (*lead, x.shape[1], size)
            known = None if state is None else check_state(state, name, what, shape)
            initial.append(None if known is None else known.reshape((*lead, x.shape[1], size)))
        output, last = self._run(x, initial)
        if single:
            output, *last = (s.reshape((*s.shape[:-2], s.shape[-1])) for s in (output, *last))
        elif self.batch_first:
            output = output.transpose(1, 0, 2)
        return output, (last[0] if len(last) == 1 else tuple(last))

    def extra_repr(self) -> str:
        return ", ".join(map(str, (*self._sizes(), *self._options(batch_first=False, checkpoint=0))))

    def _sizes(self) -> tuple[Any, ...]:
        """Return the arguments that `extra_repr` always shows."""
        return self.input_size, self.hidden_size

    def _options(self, **usual: Any) -> list[str]:
        """Return the arguments that differ from their defaults, as `name=value`."""
        return [f"{n}={getattr(self, n)}" for n, v in usual.items() if getattr(self, n) != v]


def _pair(hx: Any, name: str) -> tuple[Any, Any]:
    """Return the two initial states, of which both may be None. Raises ArgumentError where they are not a pair."""
    if hx is None:
        return None, None
    if not isinstance(hx, (tuple, list)) or len(hx) != 2:
        raise ArgumentError(f"{name}: the initial state must be a pair of tensors, (h_0, c_0)")
    return hx[0], hx[1]


def check_input(input: Any, name: str, rank: tuple[int, int], size: int) -> Value:
    """Return an input of floats, whose last extent is `size`. Raises ShapeError, DtypeError."""
    x = tensor(input, name, "input", rank=rank, kind="float")
    if x.shape[-1] != size:
        raise ShapeError(f"{name}: 'input' has shape {x.shape}; its last extent must be input_size={size}")
    return x


def check_nonlinearity(name: str, nonlinearity: str) -> str:
    """Return the name of a function of a plain recurrence. Raises ArgumentError for one that is not known."""
    if nonlinearity not in ("tanh", "relu"):
        raise ArgumentError(f"{name}: nonlinearity={nonlinearity!r} must be 'tanh' or 'relu'")
    return nonlinearity


def check_state(state: Any, name: str, what: str, shape: tuple[int, ...]) -> Value:
    """Return an initial state of the given shape. Raises ShapeError, ArgumentError."""
    if isinstance(state, (tuple, list)):
        raise ArgumentError(f"{name}: {what!r} must be one tensor of shape {shape}, not {len(state)} tensors")
    value = tensor(state, name, what, kind="float")
    if value.shape != shape:
        raise ShapeError(f"{name}: {what!r} has shape {value.shape}, needs {shape}")
    return value


class _Layers(RecurrentModule):
    """Layers of one recurrence, in one direction or two, with dropout between layers. Subclasses define `formula`,
    `gates` and `states`."""

    gates: int
    states: tuple[str, ...] = ("h0",)
    proj_size = 0

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        num_layers: Depth = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: Share = 0.0,
        bidirectional: bool = False,
        *,
        dtype: Any = "float32",
        checkpoint: Size = 0,
    ):
        if dropout and num_layers == 1:
            warnings.warn(
                f"{type(self).__name__}: dropout={dropout} has no effect, as it applies between layers and num_layers "
                "is 1",
                stacklevel=3,
            )
        super().__init__(input_size, hidden_size, batch_first, checkpoint)
        self.num_layers, self.bias = num_layers, bias
        self.dropout, self.bidirectional = float(dropout), bidirectional
        for layer in range(num_layers):
            for suffix in self._directions:
                n_in = input_size if layer == 0 else self.output_size * len(self._directions)
                rows = self.gates * hidden_size
                at = f"l{layer}{suffix}"
                setattr(self, f"weight_ih_{at}", empty((rows, n_in), dtype))
                setattr(self, f"weight_hh_{at}", empty((rows, self.output_size), dtype))
                if bias:
                    setattr(self, f"bias_ih_{at}", empty((rows,), dtype))
                    setattr(self, f"bias_hh_{at}", empty((rows,), dtype))
                if self.proj_size:
                    setattr(self, f"weight_hr_{at}", empty((self.proj_size, hidden_size), dtype))
        self.reset_parameters()

    @property
    def output_size(self) -> int:
        """Features of a step's output in one direction."""
        return self.proj_size or self.hidden_size

    @property
    def _directions(self) -> tuple[str, ...]:
        return ("", "_reverse") if self.bidirectional else ("",)

    def _state_shapes(self) -> tuple[tuple[int, ...], ...]:
        rows = self.num_layers * len(self._directions)
        return ((rows, self.output_size), (rows, self.hidden_size))[: len(self.states)]

    def _weights(self, at: str) -> dict[str, Any]:
        """Return the tensors of the layer and direction `at` by their names in the formula."""
        names = {"W_ih": "weight_ih", "W_hh": "weight_hh"}
        names |= {"b_ih": "bias_ih", "b_hh": "bias_hh"} if self.bias else {}
        names |= {"W_hr": "weight_hr"} if self.proj_size else {}
        return {n: getattr(self, f"{name}_{at}") for n, name in names.items()}

    def _run(self, x: Value, initial: list[Value | None]) -> tuple[Value, Sequence[Value]]:
        def layer(x: Value, weights: Any, initial: list[Value | None]) -> tuple[Value, list[Value]]:
            return recurrent_layer(
                self.formula, x, weights, dict(zip(self.states, initial, strict=True)), self.checkpoint
            )

        weights = [[self._weights(f"l{n}{suffix}") for suffix in self._directions] for n in range(self.num_layers)]
        p = self.dropout if self.training else 0.0
        return run_layers(layer, x, weights, initial, (lambda y, n: layer_drop(y, p, self, str(n))) if p else None)

    def extra_repr(self) -> str:
        usual = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0}
        return ", ".join(map(str, (*self._sizes(), *self._options(**usual, bidirectional=False, checkpoint=0))))


class RNN(_Layers):
    """h_t = tanh(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh), or relu of it: [T, B, input_size] -> [T, B, D*hidden_size].

    As a formula, in each layer and direction (D = 2 where bidirectional):

        p[t,b,k] = sum[i](x[t,b,i] * W_ih[k,i]) + b_ih[k] + b_hh[k]
        h[t,b,k] = tanh(p[t,b,k] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W_hh[k,j]))

    forward(input, hx=None) -> (output, h_n), the states [num_layers*D, B, hidden_size]; batch_first: input and output
    [B, T, ...]; without a batch [T, input_size] and states [num_layers*D, hidden_size]. weight_ih_l0, weight_hh_l0,
    bias_ih_l0, bias_hh_l0, and so on for each layer, with _reverse for the second direction. checkpoint=S: every S-th
    state is saved for the backward pass, which recomputes the others; 0: all are saved.
    """

    gates = 1

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        num_layers: Depth = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: Share = 0.0,
        bidirectional: bool = False,
        *,
        dtype: Any = "float32",
        checkpoint: Size = 0,
    ):
        self.nonlinearity = check_nonlinearity("RNN", nonlinearity)
        options: dict[str, Any] = {"dtype": dtype, "checkpoint": checkpoint}
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, **options)

    @property
    def formula(self) -> str:  # type: ignore[override]
        """The formula of a layer, with the chosen nonlinearity."""
        return RNN_FORMULA.replace("tanh(", f"{self.nonlinearity}(")


class GRU(_Layers):
    """Gated recurrent units: [T, B, input_size] -> [T, B, D*hidden_size]. Source: Cho et al. 2014, arXiv 1406.1078.

    As a formula, in each layer and direction; the rows of a weight are those of r, z and n one after another:

        p[t,b,n] = sum[i](x[t,b,i] * W_ih[n,i]) + b_ih[n]
        q[t,b,n] = sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W_hh[n,j]) + b_hh[n]
        z[t,b,k] = sigmoid(p[t,b,H+k] + q[t,b,H+k])
        m[t,b,k] = tanh(p[t,b,2*H+k] + sigmoid(p[t,b,0*H+k] + q[t,b,0*H+k]) * q[t,b,2*H+k])
        h[t,b,k] = (1 - z[t,b,k]) * m[t,b,k] + z[t,b,k] * where(t > 0, h[t-1,b,k], h0[b,k])

    Arguments (with checkpoint), states and results are those of RNN.
    """

    gates = 3
    formula = GRU_FORMULA


class LSTM(_Layers):
    """Long short-term memory: [T, B, input_size] -> [T, B, D*hidden_size]. Source: Hochreiter, Schmidhuber 1997.

    As a formula, in each layer and direction; the rows of a weight are those of i, f, g and o one after another:

        p[t,b,n] = sum[i](x[t,b,i] * W_ih[n,i]) + b_ih[n] + b_hh[n]
        a[t,b,n] = p[t,b,n] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W_hh[n,j])
        c[t,b,k] = sigmoid(a[t,b,H+k]) * where(t > 0, c[t-1,b,k], c0[b,k]) + sigmoid(a[t,b,0*H+k]) * tanh(a[t,b,2*H+k])
        h[t,b,k] = sigmoid(a[t,b,3*H+k]) * tanh(c[t,b,k])

    forward(input, (h0, c0)=None) -> (output, (h_n, c_n)); otherwise as RNN. proj_size: the hidden state, and with it
    the output, is projected to that many features by weight_hr_l0 (arXiv 1402.1128).
    """

    gates = 4
    states = ("h0", "c0")

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        num_layers: Depth = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: Share = 0.0,
        bidirectional: bool = False,
        proj_size: Size = 0,
        *,
        dtype: Any = "float32",
        checkpoint: Size = 0,
    ):
        if proj_size >= hidden_size and proj_size:
            raise ArgumentError(f"LSTM: proj_size={proj_size} must be smaller than hidden_size={hidden_size}")
        self.proj_size = proj_size
        options: dict[str, Any] = {"dtype": dtype, "checkpoint": checkpoint}
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, **options)

    @property
    def formula(self) -> str:  # type: ignore[override]
        """The formula of a layer, with or without a projection."""
        return LSTM_PROJECTED_FORMULA if self.proj_size else LSTM_FORMULA
