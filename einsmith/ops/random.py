"""Draw random numbers in formulas: uniform and normal ones, dropout, and the streams of their bits.

Bits are Threefry words of the key (seed, step) and the counter (element, stream): a mask depends neither on layout,
threads and tuning nor on what else is drawn. In a training step the seed and the step's number are the step's own;
elsewhere they are those of `manual_seed`, and every call of a compiled function is a step.
"""

from __future__ import annotations

import os
import zlib
from math import pi, prod
from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.arguments import Share
from einsmith.base.errors import ArgumentError, DtypeError, ShapeError, TraceError
from einsmith.ops.common import extents, pointwise, tensor
from einsmith.ops.operator import Floats, operator
from einsmith.ops.rank import by_rank
from einsmith.runtime.memory import Memory
from einsmith.tracing import builder
from einsmith.tracing.builder import Value
from einsmith.tracing.torch_types import check_device
from einsmith.tracing.trace import Trace, current_trace, provide_random_key

WORDS = 2**31
"""Number of seeds, and of elements of a tensor, that a 32-bit counter distinguishes."""


class _RandomState:
    """The seed and the number of calls so far, which compiled functions read and advance in place."""

    def __init__(self) -> None:
        self.memory = Memory((2,), np.dtype(np.int32))
        self.memory.store([int.from_bytes(os.urandom(4), "little") % WORDS, 0])


_state = _RandomState()


def _next_key() -> np.ndarray:
    return _state.memory.copy()


provide_random_key(_next_key)


def manual_seed(seed: int) -> None:
    """Restart the random numbers drawn outside training steps."""
    _state.memory.store([seed % WORDS, 0])


def _key(trace: Trace) -> tuple[Any, Any]:
    """Return the (seed, step) of a trace."""
    if trace.key is None:
        state = Value(trace.capture(_state, (2,), dt.i32))
        advanced = builder.compute((2,), lambda n: builder.where(n == 0, state[n], state[n] + 1))
        trace.update(_state, advanced.astype(dt.i32).tensor)
        trace.key = state[0], state[1]
    return trace.key


def _stream(trace: Trace, name: str) -> int:
    """Return a number for the stream `name`, a new one at every use of the name."""
    use = trace.streams[name] = trace.streams.get(name, -1) + 1
    return zlib.crc32(f"{name}#{use}".encode()) - WORDS


def random_bits(shape: tuple[int, ...], stream: str = "") -> Value:
    """Return uniform int32 words; inside a trace. stream: its name, as a layer's path; repeated names are numbered."""
    trace = current_trace()
    if trace is None:
        raise TraceError("random bits can be drawn only inside a traced function; pass the function to es.jit")
    if prod(shape) > WORDS:
        raise ShapeError(f"random bits of shape {shape}: {prod(shape)} elements are more than {WORDS}")
    seed, step = _key(trace)
    number = _stream(trace, stream)

    def word(*i: Any) -> Any:
        flat: Any = 0
        for n, at in zip(shape, i, strict=True):
            flat = flat * n + at
        return builder.random_bits(seed, step, flat, number)

    return builder.compute(shape, word)


SELU_FLOOR = -1.7580993408473766
"""Limit of SELU at minus infinity, -scale*alpha: the value of elements that alpha dropout drops."""


def drop(x: Value, p: Share, stream: str = "", *, whole: int = 0, alpha: bool = False) -> Value:
    """Set each element of x to zero with probability p and divide the others by 1 - p.

    whole: the last `whole` dimensions are kept or dropped as one. alpha: dropped elements become `SELU_FLOOR`, and all
    are then scaled and shifted, which preserves mean 0 and variance 1."""
    threshold = round(p * 2 * WORDS) - WORDS
    if threshold == -WORDS:
        return x
    if threshold == WORDS:
        return builder.where(x == x, 0.0, 0.0).astype(x.dtype)
    bits = random_bits(x.shape[: x.ndim - whole], stream)
    kept = builder.compute(bits.shape, lambda *i: (bits[i] if i else bits) >= threshold)
    scale = (1 - p + p * (1 - p) * SELU_FLOOR**2) ** -0.5 if alpha else 1 / (1 - p)
    shift = -scale * p * SELU_FLOOR if alpha else 0.0
    dropped = scale * SELU_FLOOR + shift if alpha else 0.0

    def body(*i: Any) -> Any:
        place = i[: x.ndim - whole]
        y = (x[i] if i else x) * scale
        return builder.where(kept[place] if place else kept, y + shift if alpha else y, dropped)

    return builder.compute(x.shape, body)


def layer_stream(layer: Any, part: str = "") -> str:
    """Return the name of the stream of a layer: its path in the model, and a part of it."""
    trace = current_trace()
    path = trace.paths.get(id(layer), type(layer).__name__) if trace is not None else ""
    return f"{path}/{part}"


def layer_drop(x: Value, p: Share, layer: Any, part: str = "", *, whole: int = 0, alpha: bool = False) -> Value:
    """Apply `drop` with a layer's stream."""
    return drop(x, p, layer_stream(layer, part), whole=whole, alpha=alpha)


def channel_dims(x: Value, n: int, name: str) -> int:
    """Return the number of last dimensions of x that form one channel, for dropout of channels of `n` dimensions.

    Raises ShapeError. Input of three dimensions is [B, C, L] to `dropout2d`, as in torch.
    """
    ranks = (2, 3) if n == 1 else (n + 1, n + 2)
    if x.ndim not in ranks:
        raise ShapeError(f"{name}: 'input' needs {ranks[0]} or {ranks[1]} dimensions, got shape {x.shape}")
    return 1 if n == 2 and x.ndim == 3 else n


def _uniform(shape: tuple[int, ...], stream: str) -> Value:
    """Return numbers between 0 and 1, both excluded, in float64."""
    bits = random_bits(shape, stream)
    return builder.compute(
        shape, lambda *i: (builder.cast(bits[i] if i else bits, dt.f64) + (WORDS + 0.5)) * (0.5 / WORDS)
    )


def _float_type(name: str, dtype: Any) -> dt.DType:
    kind = dt.f32 if dtype is None else dt.dtype_of(dtype)
    if not kind.is_float:
        raise DtypeError(f"{name}: dtype={kind.name} must be a float type")
    return kind


def _draw_uniform(shape: tuple[int, ...], kind: dt.DType) -> Value:
    """Return multiples of 2**-24 from 0 to below 1, which every float type of 32 bits or more has exactly."""
    bits = random_bits(shape, "rand")
    return builder.compute(
        shape, lambda *i: builder.cast((bits[i] if i else bits) // 256 + 2**23, kind) * 2.0**-24
    ).astype(kind)


def _draw_normal(shape: tuple[int, ...], kind: dt.DType) -> Value:
    """Return normal numbers. Source: Box and Muller 1958."""
    radius, angle = _uniform(shape, "randn/radius"), _uniform(shape, "randn/angle")

    def body(*i: Any) -> Any:
        u, v = (radius[i], angle[i]) if i else (radius, angle)
        return builder.cast(builder.sqrt(-2.0 * builder.log(u)) * builder.cos(2 * pi * v), kind)

    return builder.compute(shape, body)


@operator()
def rand(*size: Any, dtype: Any = None, device: Any = None) -> Value:
    """Return random numbers that are uniform from 0 to below 1."""
    check_device("rand", device)
    return _draw_uniform(extents("rand", size), _float_type("rand", dtype))


@operator()
def rand_like(input: Any, *, dtype: Any = None, device: Any = None) -> Value:
    """Return random numbers that are uniform from 0 to below 1, in input's shape and type, or another type."""
    check_device("rand_like", device)
    x = tensor(input, "rand_like", "input")
    return _draw_uniform(x.shape, _float_type("rand_like", x.dtype if dtype is None else dtype))


@operator()
def randn(*size: Any, dtype: Any = None, device: Any = None) -> Value:
    """Return random numbers of the normal distribution with mean 0 and variance 1."""
    check_device("randn", device)
    return _draw_normal(extents("randn", size), _float_type("randn", dtype))


@operator()
def randn_like(input: Any, *, dtype: Any = None, device: Any = None) -> Value:
    """Return normal random numbers in input's shape and type, or another type."""
    check_device("randn_like", device)
    x = tensor(input, "randn_like", "input")
    return _draw_normal(x.shape, _float_type("randn_like", x.dtype if dtype is None else dtype))


@operator()
def bernoulli(input: Any) -> Value:
    """Return 1 with the probability that the input has at each place, else 0, in its type; the derivative is 0."""
    x = tensor(input, "bernoulli", "input", kind="float")
    share = _uniform(x.shape, "bernoulli")
    return builder.stop_gradient(builder.where(share < x, 1.0, 0.0)).astype(x.dtype)


@operator()
def dropout(input: Any, p: Share = 0.5, training: bool = True, inplace: bool = False) -> Value:
    """Set each element to zero with probability p and divide the others by 1 - p, if `training`; else return the input.

    `inplace` is accepted without effect: tensors are values. Source: Srivastava et al. 2014.
    """
    x = tensor(input, "dropout", "input", kind="float")
    return drop(x, p) if training else x


def _dropout(name: str, n: int, input: Any, p: Share = 0.5, training: bool = True, inplace: bool = False) -> Value:
    """Set each channel of input [B, C, {space}] to zero with probability p and divide the others by 1 - p, if
    `training`.

    Input of one dimension less is [C, {space}], but to `dropout2d` [B, C, L], as in torch. Source: Tompson et al. 2015,
    arXiv 1411.4280.
    """
    x = tensor(input, name, "input", kind="float")
    whole = channel_dims(x, n, name)
    return drop(x, p, whole=whole) if training else x


dropout1d, dropout2d, dropout3d = by_rank(_dropout)


@operator()
def alpha_dropout(input: Any, p: Share = 0.5, training: bool = False, inplace: bool = False) -> Value:
    """Set each element to SELU's floor with probability p, if `training`, then scale and shift all elements.

    Mean 0 and variance 1 of the input are preserved. Source: Klambauer et al. 2017, arXiv 1706.02515, section 3.
    """
    x = tensor(input, "alpha_dropout", "input", kind="float")
    return drop(x, p, alpha=True) if training else x


@operator()
def feature_alpha_dropout(input: Any, p: Share = 0.5, training: bool = False, inplace: bool = False) -> Value:
    """Apply `alpha_dropout` to whole channels of input [B, C, ...]."""
    x = tensor(input, "feature_alpha_dropout", "input", kind="float")
    if x.ndim < 2:
        raise ShapeError(f"feature_alpha_dropout: 'input' needs 2 dimensions or more, got shape {x.shape}")
    return drop(x, p, whole=x.ndim - 2, alpha=True) if training else x


@operator(family="activation")
def rrelu(
    input: Floats, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Value:
    """Return x where x > 0, a*x elsewhere: a drawn evenly from [lower, upper) in training, else (lower + upper)/2.

    The random bits of a are drawn as in dropout. Source: Xu et al. 2015, arXiv 1505.00853.
    """
    return random_relu(input, lower, upper, training, "")


def random_relu(x: Value, lower: float, upper: float, training: bool, stream: str) -> Value:
    """Compute `rrelu` with random bits of the named stream."""
    if lower > upper:
        raise ArgumentError(f"rrelu: lower={lower!r} must not be above upper={upper!r}")
    if not training:
        return pointwise(x, lambda e: builder.where(e > 0, e, e * ((lower + upper) / 2)))
    bits = random_bits(x.shape, stream)

    def body(*i: Any) -> Any:
        share = (builder.cast(bits[i] if i else bits, dt.f64) + WORDS) * (0.5 / WORDS)
        slope = builder.cast(share * (upper - lower) + lower, x.dtype)
        e = x[i] if i else x
        return builder.where(e > 0, e, e * slope)

    return builder.compute(x.shape, body)
