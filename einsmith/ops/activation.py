"""Activations, under torch.nn.functional's names. `inplace` is accepted: tensors have values, not places."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

from einsmith.base.arguments import Magnitude
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.ops.common import dimension, merge, pointwise, root, tensor, without
from einsmith.ops.operator import AsFloats, Floats, Tensor, operator
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
"""The fixed point of zero mean and unit variance. Source: Klambauer et al. 2017, arXiv 1706.02515."""


def _nonzero(name: str, **values: Any) -> None:
    for what, x in values.items():
        if x == 0:
            raise ArgumentError(f"{name}: {what} must not be 0, as the formula divides by it")


@operator("ReLU", aten="relu.default", onnx="Relu")
def relu(input: Tensor, inplace: bool = False) -> Value:
    """Return max(x, 0); NaN stays NaN, and the gradient at 0 is 0."""
    return builder.relu(input)


@operator("LeakyReLU", aten="leaky_relu.default", onnx="LeakyRelu", attributes={"negative_slope": "alpha"})
def leaky_relu(input: Floats, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    """Return x where x > 0, negative_slope*x elsewhere."""
    return pointwise(input, lambda e: builder.where(e > 0, e, e * negative_slope))


@operator()
def prelu(input: Any, weight: Any) -> Value:
    """Return x where x > 0, weight*x elsewhere. weight: [1], [] or one number a channel, [C] where input is [B, C,
    ...]."""
    x, w = tensor(input, "prelu", "input", kind="float"), tensor(weight, "prelu", "weight", rank=(0, 1), kind="float")
    channels = x.shape[1] if x.ndim > 1 else 1
    if w.size not in (1, channels):
        raise ShapeError(f"prelu: 'weight' has shape {w.shape}; for 'input' {x.shape} it needs (1,) or ({channels},)")

    def body(*i: Any) -> Any:
        slope = w if not w.ndim else w[0] if w.size == 1 else w[i[1]]
        e = x[i] if i else x
        return builder.where(e > 0, e, slope * e)

    return builder.compute(x.shape, body)


@operator("Tanh", aten="tanh.default", onnx="Tanh")
def tanh(input: AsFloats) -> Value:
    """Return the hyperbolic tangent of x."""
    return builder.tanh(input)


@operator("Sigmoid", aten="sigmoid.default", onnx="Sigmoid")
def sigmoid(input: AsFloats) -> Value:
    """Return 1/(1 + exp(-x))."""
    return builder.sigmoid(input)


@operator("SiLU", aten="silu.default")
def silu(input: Floats, inplace: bool = False) -> Value:
    """Return x*sigmoid(x)."""
    return pointwise(input, lambda e: e * builder.sigmoid(e))


@operator("Mish", aten="mish.default", onnx="Mish")
def mish(input: Floats, inplace: bool = False) -> Value:
    """Return x*tanh(log(1 + exp(x))). Source: Misra 2019, arXiv 1908.08681."""
    return pointwise(input, lambda e: e * builder.tanh(builder.softplus(e)))


@operator("GELU", aten="gelu.default", onnx="Gelu")
def gelu(input: Floats, approximate: str = "none") -> Value:
    """Return x times the normal distribution function at x; `approximate="tanh"`: its tanh form. Source: arXiv
    1606.08415."""
    if approximate == "none":
        return pointwise(input, lambda e: e * 0.5 * (1 + builder.erf(e * sqrt(0.5))))
    if approximate == "tanh":
        return pointwise(input, lambda e: 0.5 * e * (1 + builder.tanh(sqrt(2 / pi) * (e + 0.044715 * e * e * e))))
    raise ArgumentError(f"gelu: approximate={approximate!r} must be 'none' or 'tanh'")


@operator("ELU", onnx="Elu")
def elu(input: Floats, alpha: float = 1.0, inplace: bool = False) -> Value:
    """Return x where x > 0, alpha*(exp(x) - 1) elsewhere. Source: Clevert et al. 2015, arXiv 1511.07289."""
    return pointwise(input, lambda e: builder.where(e > 0, e, alpha * builder.expm1(e)))


@operator("CELU", onnx="Celu")
def celu(input: Floats, alpha: float = 1.0, inplace: bool = False) -> Value:
    """Return x where x > 0, alpha*(exp(x/alpha) - 1) elsewhere. Source: Barron 2017, arXiv 1704.07483."""
    _nonzero("celu", alpha=alpha)
    return pointwise(input, lambda e: builder.where(e > 0, e, alpha * builder.expm1(e * (1 / alpha))))


@operator("SELU")
def selu(input: Floats, inplace: bool = False) -> Value:
    """Return scale*x where x > 0, scale*alpha*(exp(x) - 1) elsewhere, with the constants of arXiv 1706.02515."""
    below = SELU_SCALE * SELU_ALPHA
    return pointwise(input, lambda e: builder.where(e > 0, SELU_SCALE * e, below * builder.expm1(e)))


@operator("Softplus", aten="softplus.default", onnx="Softplus")
def softplus(input: Floats, beta: float = 1.0, threshold: float = 20.0) -> Value:
    """Return log(1 + exp(beta*x))/beta, without overflow; x itself where beta*x > threshold."""
    _nonzero("softplus", beta=beta)
    return pointwise(input, lambda e: builder.where(beta * e > threshold, e, builder.softplus(beta * e) * (1 / beta)))


@operator("LogSigmoid")
def logsigmoid(input: Floats) -> Value:
    """Return log(1/(1 + exp(-x))), without overflow."""
    return pointwise(input, lambda e: -builder.softplus(-e))


@operator("Softsign", onnx="Softsign")
def softsign(input: Floats) -> Value:
    """Return x/(1 + |x|)."""
    return pointwise(input, lambda e: e / (1 + builder.abs(e)))


@operator("Tanhshrink")
def tanhshrink(input: Floats) -> Value:
    """Return x - tanh(x)."""
    return pointwise(input, lambda e: e - builder.tanh(e))


@operator("Softshrink", aten="softshrink.default")
def softshrink(input: Floats, lambd: Magnitude = 0.5) -> Value:
    """Shrink x towards 0 by lambd; 0 where |x| <= lambd; NaN stays NaN."""
    return pointwise(
        input,
        lambda e: builder.where(
            e > lambd, e - lambd, builder.where(e < -lambd, e + lambd, builder.where(e == e, 0.0, e))
        ),
    )


@operator("Hardshrink")
def hardshrink(input: Floats, lambd: float = 0.5) -> Value:
    """Return 0 where -lambd <= x <= lambd, x elsewhere."""
    return pointwise(input, lambda e: builder.where((e >= -lambd) & (e <= lambd), 0.0, e))


@operator("Threshold", aten="threshold.default")
def threshold(input: Floats, threshold: float, value: float, inplace: bool = False) -> Value:
    """Return x where x > threshold, `value` elsewhere; NaN stays NaN."""
    return pointwise(input, lambda e: builder.where(e <= threshold, value, e))


@operator("ThresholdedReLU", onnx="ThresholdedRelu")
def thresholded_relu(input: Floats, alpha: float = 1.0) -> Value:
    """Return x where x > alpha, 0 elsewhere. Source: Konda et al. 2014, arXiv 1402.3337."""
    return pointwise(input, lambda e: builder.where(e > alpha, e, 0.0))


@operator("Hardtanh")
def hardtanh(input: Floats, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Value:
    """Return x within [min_val, max_val], the nearer bound outside; the derivative at the bounds is 0."""
    if min_val > max_val:
        raise ArgumentError(f"hardtanh: min_val={min_val!r} must not be above max_val={max_val!r}")
    return pointwise(input, lambda e: builder.where(e <= min_val, min_val, builder.where(e >= max_val, max_val, e)))


@operator("ReLU6")
def relu6(input: Floats, inplace: bool = False) -> Value:
    """Return min(max(x, 0), 6); the derivative at 0 and at 6 is 0."""
    return pointwise(input, lambda e: builder.where(e <= 0, 0.0, builder.where(e >= 6, 6.0, e)))


def _ramp(e: Any) -> Any:
    """Return min(max(x + 3, 0), 6), by 6."""
    return builder.where(e <= -3, 0.0, builder.where(e >= 3, 1.0, (e + 3) * (1 / 6)))


@operator("Hardsigmoid")
def hardsigmoid(input: Floats, inplace: bool = False) -> Value:
    """Return 0 where x <= -3, 1 where x >= 3, (x + 3)/6 between. Source: Courbariaux et al. 2015, arXiv 1511.00363."""
    return pointwise(input, _ramp)


@operator("Hardswish", onnx="HardSwish")
def hardswish(input: Floats, inplace: bool = False) -> Value:
    """Return x*hardsigmoid(x). Source: Howard et al. 2019, arXiv 1905.02244."""
    return pointwise(input, lambda e: builder.where(e <= -3, 0.0, builder.where(e >= 3, e, e * (e + 3) * (1 / 6))))


@operator("GLU")
def glu(input: Floats, dim: int = -1) -> Value:
    """Return a*sigmoid(b), where a and b are the halves of the input along `dim`. Source: arXiv 1612.08083."""
    x = input
    d = dimension(dim, x.ndim, "glu")
    half = x.shape[d] // 2
    if x.shape[d] % 2:
        raise ShapeError(f"glu: 'input' {x.shape} has the odd extent {x.shape[d]} along dim={dim}; it is cut in halves")
    shape = (*x.shape[:d], half, *x.shape[d + 1 :])
    return builder.compute(shape, lambda *i: x[i] * builder.sigmoid(x[(*i[:d], i[d] + half, *i[d + 1 :])]))


@operator()
def squash(input: Floats, dim: int = -1) -> Value:
    """Scale vectors along `dim` from length n to n*n/(1 + n*n); at 0 the result and its derivative are 0.

    Source: Sabour et al. 2017, arXiv 1710.09829, equation 1.
    """
    x = input
    d = dimension(dim, x.ndim, "squash")
    (k,) = builder.axes(x.shape[d])

    def squares(*i: Any) -> Any:
        e = x[merge(x.ndim, (d,), (k,), i)]
        return builder.sum(e * e, over=k)

    n2 = builder.compute(without(x.shape, (d,)), squares)
    scale = root(n2) / (1 + n2)
    return builder.compute(x.shape, lambda *i: x[i] * (scale[without(i, (d,))] if x.ndim > 1 else scale))
