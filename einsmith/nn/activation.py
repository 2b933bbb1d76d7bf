"""Define activations as layers, under torch.nn's names, arguments and defaults. `einsmith.ops` computes them."""

from __future__ import annotations

from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Count
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.lang.builder import Value, as_value
from einsmith.nn.init import constant_
from einsmith.nn.linear import empty
from einsmith.nn.module import Module
from einsmith.nn.operator_layer import OperatorLayer
from einsmith.ops.activation import random_relu
from einsmith.ops.common import tensor
from einsmith.ops.random import layer_stream


class ReLU(OperatorLayer, of=F.relu):
    """max(x, 0)."""


class ReLU6(OperatorLayer, of=F.relu6):
    """min(max(x, 0), 6)."""


class SiLU(OperatorLayer, of=F.silu):
    """x*sigmoid(x)."""


class Mish(OperatorLayer, of=F.mish):
    """x*tanh(log(1 + exp(x)))."""


class SELU(OperatorLayer, of=F.selu):
    """A scaled exponential unit; see `functional.selu`."""


class Hardswish(OperatorLayer, of=F.hardswish):
    """x*hardsigmoid(x)."""


class Hardsigmoid(OperatorLayer, of=F.hardsigmoid):
    """min(max(x + 3, 0), 6)/6."""


class Tanh(OperatorLayer, of=F.tanh):
    """The hyperbolic tangent."""


class Sigmoid(OperatorLayer, of=F.sigmoid):
    """1/(1 + exp(-x))."""


class Softsign(OperatorLayer, of=F.softsign):
    """x/(1 + |x|)."""


class LogSigmoid(OperatorLayer, of=F.logsigmoid):
    """log(1/(1 + exp(-x)))."""


class Tanhshrink(OperatorLayer, of=F.tanhshrink):
    """x - tanh(x)."""


class GELU(OperatorLayer, of=F.gelu):
    """x times the normal distribution function at x; see `functional.gelu`."""


class LeakyReLU(OperatorLayer, of=F.leaky_relu):
    """x where x > 0, negative_slope*x elsewhere."""


class ELU(OperatorLayer, of=F.elu):
    """x where x > 0, alpha*(exp(x) - 1) elsewhere."""


class CELU(OperatorLayer, of=F.celu):
    """x where x > 0, alpha*(exp(x/alpha) - 1) elsewhere."""


class Softplus(OperatorLayer, of=F.softplus):
    """log(1 + exp(beta*x))/beta; see `functional.softplus`."""


class Threshold(OperatorLayer, of=F.threshold):
    """x where x > threshold, `value` elsewhere."""


class GLU(OperatorLayer, of=F.glu):
    """a*sigmoid(b) of the halves a and b of the input along `dim`."""


class _Shrink(OperatorLayer):
    def extra_repr(self) -> str:
        return str(self.lambd)


class Softshrink(_Shrink, of=F.softshrink):
    """x drawn towards 0 by lambd."""


class Hardshrink(_Shrink, of=F.hardshrink):
    """0 where |x| <= lambd, x elsewhere."""


class Hardtanh(OperatorLayer, of=F.hardtanh):
    """x within [min_val, max_val], the nearer bound outside."""

    def check(self) -> None:
        if not self.min_val < self.max_val:
            raise ArgumentError(f"Hardtanh: min_val={self.min_val!r} must be below max_val={self.max_val!r}")


class PReLU(Module):
    """x where x > 0, weight*x elsewhere. weight [num_parameters], `init` at first: one, or one a channel."""

    def __init__(self, num_parameters: Count = 1, init: float = 0.25, *, dtype: Any = "float32"):
        self.num_parameters, self.init = num_parameters, init
        self.weight = empty((num_parameters,), dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to its initial value."""
        constant_(self.weight, self.init)

    def forward(self, input: Value) -> Value:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class RReLU(Module):
    """x where x > 0, a*x elsewhere: a drawn evenly from [lower, upper) in training, else (lower + upper)/2."""

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False):
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, input: Value) -> Value:
        return random_relu(as_value(input), self.lower, self.upper, self.training, layer_stream(self))

    def extra_repr(self) -> str:
        return f"lower={self.lower}, upper={self.upper}" + (", inplace=True" if self.inplace else "")


class Softmax(OperatorLayer, of=F.softmax, settings="dim"):
    """exp(x)/sum of exp(x) along `dim`."""


class LogSoftmax(OperatorLayer, of=F.log_softmax, settings="dim"):
    """The logarithm of the softmax along `dim`."""


class Softmin(OperatorLayer, of=F.softmin, settings="dim"):
    """The softmax of -x along `dim`."""


class Softmax2d(Module):
    """The softmax over the channels of [B, C, H, W] or [C, H, W]."""

    def forward(self, input: Value) -> Value:
        x = tensor(input, "Softmax2d", "input")
        if x.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: 'input' has shape {x.shape}; it needs [B, C, H, W] or [C, H, W]")
        return F.softmax(x, -3)
