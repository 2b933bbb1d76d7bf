"""Operators and losses under torch.nn.functional's names, and tensor functions under torch's. All of them are formulas.

Given arrays, each is compiled, run, and returns fresh NumPy arrays; given traced tensors it extends the trace.
"""

from einsmith.functional.activation import gelu, leaky_relu, log_softmax, relu, sigmoid, silu, softmax, tanh
from einsmith.functional.conv import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    linear,
)
from einsmith.functional.embedding import embedding
from einsmith.functional.loss import cross_entropy, mse_loss, nll_loss
from einsmith.functional.normalization import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    normalize,
    rms_norm,
)
from einsmith.functional.padding import pad
from einsmith.functional.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    lp_pool1d,
    lp_pool2d,
    lp_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
    max_unpool1d,
    max_unpool2d,
    max_unpool3d,
)
from einsmith.functional.product import einsum, matmul
from einsmith.functional.random import (
    alpha_dropout,
    dropout,
    dropout1d,
    dropout2d,
    dropout3d,
    feature_alpha_dropout,
)
from einsmith.functional.resize import (
    channel_shuffle,
    fold,
    interpolate,
    pixel_shuffle,
    pixel_unshuffle,
    unfold,
)
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
    "abs", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "alpha_dropout", "amax", "amin", "arange", "argmax", "argmin",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "batch_norm", "cat", "channel_shuffle", "clamp", "conv1d", "conv2d",
    "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cos", "cross_entropy", "dropout",
    "dropout1d", "dropout2d", "dropout3d", "einsum", "embedding", "erf", "exp", "feature_alpha_dropout", "flatten",
    "floor", "fold", "gelu", "group_norm", "instance_norm", "interpolate", "layer_norm", "leaky_relu", "linear",
    "local_response_norm", "log", "log_softmax", "lp_pool1d", "lp_pool2d", "lp_pool3d", "matmul", "max", "max_pool1d",
    "max_pool2d", "max_pool3d", "max_unpool1d", "max_unpool2d", "max_unpool3d", "maximum", "mean", "min", "minimum",
    "mse_loss", "nll_loss", "normalize", "one_hot", "pad", "permute", "pixel_shuffle", "pixel_unshuffle", "prod",
    "relu", "reshape", "rms_norm", "rsqrt", "sigmoid", "sign", "silu", "sin", "softmax", "sqrt", "squeeze", "stack",
    "sum", "tanh", "transpose", "unfold", "unsqueeze", "where",
]  # fmt: skip
