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
from einsmith.ops.activation import random_relu
from einsmith.ops.common import tensor
from einsmith.ops.random import layer_stream


class _Pointwise(Module):
    """`functional.<function>` of the input. `inplace` is accepted: tensors have values, not places."""

    function: str

    def __init__(self, inplace: bool = False):
        self.inplace = inplace

    def forward(self, input: Value) -> Value:
        return getattr(F, self.function)(input)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class _Plain(Module):
    """`functional.<function>` of the input."""

    function: str

    def forward(self, input: Value) -> Value:
        return getattr(F, self.function)(input)


class ReLU(_Pointwise):
    """max(x, 0)."""

    function = "relu"


class ReLU6(_Pointwise):
    """min(max(x, 0), 6)."""

    function = "relu6"


class SiLU(_Pointwise):
    """x*sigmoid(x)."""

    function = "silu"


class Mish(_Pointwise):
    """x*tanh(log(1 + exp(x)))."""

    function = "mish"


class SELU(_Pointwise):
    """A scaled exponential unit; see `functional.selu`."""

    function = "selu"


class Hardswish(_Pointwise):
    """x*hardsigmoid(x)."""

    function = "hardswish"


class Hardsigmoid(_Pointwise):
    """min(max(x + 3, 0), 6)/6."""

    function = "hardsigmoid"


class Tanh(_Plain):
    """The hyperbolic tangent."""

    function = "tanh"


class Sigmoid(_Plain):
    """1/(1 + exp(-x))."""

    function = "sigmoid"


class Softsign(_Plain):
    """x/(1 + |x|)."""

    function = "softsign"


class LogSigmoid(_Plain):
    """log(1/(1 + exp(-x)))."""

    function = "logsigmoid"


class Tanhshrink(_Plain):
    """x - tanh(x)."""

    function = "tanhshrink"


class GELU(Module):
    """x times the normal distribution function at x; see `functional.gelu`."""

    def __init__(self, approximate: str = "none"):
        self.approximate = approximate

    def forward(self, input: Value) -> Value:
        return F.gelu(input, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class LeakyReLU(Module):
    """x where x > 0, negative_slope*x elsewhere."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False):
        self.negative_slope, self.inplace = negative_slope, inplace

    def forward(self, input: Value) -> Value:
        return F.leaky_relu(input, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}" + (", inplace=True" if self.inplace else "")


class _Exponential(Module):
    function: str

    def __init__(self, alpha: float = 1.0, inplace: bool = False):
        self.alpha, self.inplace = alpha, inplace

    def forward(self, input: Value) -> Value:
        return getattr(F, self.function)(input, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}" + (", inplace=True" if self.inplace else "")


class ELU(_Exponential):
    """x where x > 0, alpha*(exp(x) - 1) elsewhere."""

    function = "elu"


class CELU(_Exponential):
    """x where x > 0, alpha*(exp(x/alpha) - 1) elsewhere."""

    function = "celu"


class Softplus(Module):
    """log(1 + exp(beta*x))/beta; see `functional.softplus`."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0):
        self.beta, self.threshold = beta, threshold

    def forward(self, input: Value) -> Value:
        return F.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class Softshrink(Module):
    """x drawn towards 0 by lambd."""

    def __init__(self, lambd: float = 0.5):
        self.lambd = lambd

    def forward(self, input: Value) -> Value:
        return F.softshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return str(self.lambd)


class Hardshrink(Softshrink):
    """0 where |x| <= lambd, x elsewhere."""

    def forward(self, input: Value) -> Value:
        return F.hardshrink(input, self.lambd)


class Threshold(Module):
    """x where x > threshold, `value` elsewhere."""

    def __init__(self, threshold: float, value: float, inplace: bool = False):
        self.threshold, self.value, self.inplace = threshold, value, inplace

    def forward(self, input: Value) -> Value:
        return F.threshold(input, self.threshold, self.value)

    def extra_repr(self) -> str:
        return f"threshold={self.threshold}, value={self.value}" + (", inplace=True" if self.inplace else "")


class Hardtanh(Module):
    """x within [min_val, max_val], the nearer bound outside."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False):
        if not min_val < max_val:
            raise ArgumentError(f"Hardtanh: min_val={min_val!r} must be below max_val={max_val!r}")
        self.min_val, self.max_val, self.inplace = min_val, max_val, inplace

    def forward(self, input: Value) -> Value:
        return F.hardtanh(input, self.min_val, self.max_val)

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}" + (", inplace=True" if self.inplace else "")


class GLU(Module):
    """a*sigmoid(b) of the halves a and b of the input along `dim`."""

    def __init__(self, dim: int = -1):
        self.dim = dim

    def forward(self, input: Value) -> Value:
        return F.glu(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


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


class Softmax(Module):
    """exp(x)/sum of exp(x) along `dim`."""

    function = "softmax"

    def __init__(self, dim: int | None = None):
        self.dim = dim

    def forward(self, input: Value) -> Value:
        return getattr(F, self.function)(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """The logarithm of the softmax along `dim`."""

    function = "log_softmax"


class Softmin(Softmax):
    """The softmax of -x along `dim`."""

    function = "softmin"


class Softmax2d(Module):
    """The softmax over the channels of [B, C, H, W] or [C, H, W]."""

    def forward(self, input: Value) -> Value:
        x = tensor(input, "Softmax2d", "input")
        if x.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: 'input' has shape {x.shape}; it needs [B, C, H, W] or [C, H, W]")
        return F.softmax(x, -3)
