"""Operators and losses under torch.nn.functional's names, and tensor functions under torch's. All of them are formulas.

Given arrays, each is compiled, run, and returns fresh NumPy arrays; given traced tensors it extends the trace.
"""

from einsmith.functional.activation import gelu, leaky_relu, log_softmax, relu, sigmoid, silu, softmax, tanh
from einsmith.functional.conv import avg_pool2d, conv1d, conv2d, linear, max_pool2d
from einsmith.functional.embedding import embedding
from einsmith.functional.loss import cross_entropy, mse_loss, nll_loss
from einsmith.functional.product import einsum, matmul
from einsmith.functional.random import dropout
from einsmith.functional.tensor import (
    abs,
    amax,
    amin,
    arange,
    argmax,
    argmin,
    cat,
    clamp,
    cos,
    erf,
    exp,
    flatten,
    floor,
    log,
    max,
    maximum,
    mean,
    min,
    minimum,
    one_hot,
    pad,
    permute,
    prod,
    reshape,
    rsqrt,
    sign,
    sin,
    sqrt,
    squeeze,
    stack,
    sum,
    transpose,
    unsqueeze,
    where,
)

__all__ = [
    "abs", "amax", "amin", "arange", "argmax", "argmin", "avg_pool2d", "cat", "clamp", "conv1d", "conv2d", "cos",
    "cross_entropy", "dropout", "einsum", "embedding", "erf", "exp", "flatten", "floor", "gelu", "leaky_relu",
    "linear", "log", "log_softmax", "matmul", "max", "max_pool2d", "maximum", "mean", "min", "minimum", "mse_loss",
    "nll_loss", "one_hot", "pad", "permute", "prod", "relu", "reshape", "rsqrt", "sigmoid", "sign", "silu", "sin",
    "softmax", "sqrt", "squeeze", "stack", "sum", "tanh", "transpose", "unsqueeze", "where",
]  # fmt: skip
