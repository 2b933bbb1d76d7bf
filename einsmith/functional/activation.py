"""Activations, under torch.nn.functional's names."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

from einsmith.errors import ArgumentError
from einsmith.functional.call import traced
from einsmith.functional.common import dimension, merge, pointwise, tensor, without
from einsmith.lang import builder as fb
from einsmith.lang.builder import Value


@traced
def relu(input: Any, inplace: bool = False) -> Value:
    """max(x, 0); NaN stays NaN, and the gradient at 0 is 0. `inplace` is accepted: tensors have values, not places."""
    x = tensor(input, "relu", "input")
    return fb.relu(x)


@traced
def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    """x where x > 0, negative_slope*x elsewhere."""
    x = tensor(input, "leaky_relu", "input", kind="float")
    return pointwise(x, lambda e: fb.where(e > 0, e, e * negative_slope))


@traced
def tanh(input: Any) -> Value:
    """The hyperbolic tangent."""
    return fb.tanh(tensor(input, "tanh", "input", kind="float"))


@traced
def sigmoid(input: Any) -> Value:
    """1/(1 + exp(-x))."""
    return fb.sigmoid(tensor(input, "sigmoid", "input", kind="float"))


@traced
def silu(input: Any, inplace: bool = False) -> Value:
    """x*sigmoid(x)."""
    x = tensor(input, "silu", "input", kind="float")
    return pointwise(x, lambda e: e * fb.sigmoid(e))


@traced
def gelu(input: Any, approximate: str = "none") -> Value:
    """x times the normal distribution function at x; `approximate="tanh"`: its tanh form. Source: arXiv 1606.08415."""
    x = tensor(input, "gelu", "input", kind="float")
    if approximate == "none":
        return pointwise(x, lambda e: e * 0.5 * (1 + fb.erf(e * sqrt(0.5))))
    if approximate == "tanh":
        return pointwise(x, lambda e: 0.5 * e * (1 + fb.tanh(sqrt(2 / pi) * (e + 0.044715 * e * e * e))))
    raise ArgumentError(f"gelu: approximate={approximate!r} must be 'none' or 'tanh'")


def softmax_parts(x: Value, dim: int) -> tuple[Value, Value]:
    """Along `dim`: the largest element, as a constant (no result depends on it), and the sum of exp(x - it)."""
    (k,) = fb.axes(x.shape[dim])
    rest = without(x.shape, (dim,))

    def at(i: tuple, j: Any) -> tuple:
        return merge(x.ndim, (dim,), (j,), i)

    top = fb.compute(rest, lambda *i: fb.max(fb.stop_gradient(x[at(i, k)]), over=k))
    total = fb.compute(rest, lambda *i: fb.sum(fb.exp(x[at(i, k)] - top[i]), over=k))
    return top, total


@traced
def softmax(input: Any, dim: int) -> Value:
    """exp(x)/sum of exp(x) along `dim`, computed without overflow."""
    x = tensor(input, "softmax", "input", kind="float")
    d = dimension(dim, x.ndim, "softmax")
    top, total = softmax_parts(x, d)

    def body(*i: Any) -> Any:
        j = without(i, (d,))
        return fb.exp(x[i] - top[j]) / total[j]

    return fb.compute(x.shape, body)


@traced
def log_softmax(input: Any, dim: int) -> Value:
    """x - log(sum of exp(x)) along `dim`, computed without overflow."""
    x = tensor(input, "log_softmax", "input", kind="float")
    d = dimension(dim, x.ndim, "log_softmax")
    top, total = softmax_parts(x, d)
    scale = fb.log(total)  # of its own: one logarithm a row, not one an element

    def body(*i: Any) -> Any:
        j = without(i, (d,))
        return x[i] - top[j] - scale[j]

    return fb.compute(x.shape, body)
