"""Define FakeQuantize, which rounds numbers as integers of 8 bits would, for training that knows of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base.arguments import Count, show
from einsmith.base.errors import ArgumentError
from einsmith.nn.module import Module
from einsmith.runtime import buffers
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

LEAST_RANGE = 1e-8
"""Least range of numbers, which keeps scales above zero."""


def range_of(x: Value, channels: int | None) -> tuple[Value, Value]:
    """Return the least and the greatest number of a tensor, without a derivative: of each index of its first dimension,
    [channels], or (None) of all."""
    flat = builder.stop_gradient(x).reshape((1 if channels is None else channels, -1))
    shape = () if channels is None else (channels,)
    return F.amin(flat, 1).reshape(shape), F.amax(flat, 1).reshape(shape)


def round_within(x: Value, low: Value, high: Value, limits: tuple[int, int], symmetric: bool) -> Value:
    """Return the numbers of a tensor, quantized to integers within `limits` and dequantized again.

    low, high: the range of the numbers, for all or, [channels], for each index of the first dimension
    """
    least, most = limits
    if symmetric:
        zero: Any = float((least + most) // 2)
        scale = builder.maximum(builder.maximum(-low, high), LEAST_RANGE) / (most - zero)
    else:
        low, high = builder.minimum(low, 0.0), builder.maximum(high, 0.0)
        scale = builder.maximum(high - low, LEAST_RANGE) / (most - least)
        zero = builder.minimum(builder.maximum(builder.round(least - low / scale), float(least)), float(most))
    if low.ndim:
        shape = (*low.shape, *(1,) * (x.ndim - 1))
        scale, zero = scale.reshape(shape), zero if symmetric else zero.reshape(shape)
    whole = builder.round(x / scale) + zero
    q = builder.minimum(builder.maximum(whole, float(least)), float(most))
    is_inside = (whole >= float(least)) & (whole <= float(most))
    return builder.differentiate_as((q - zero) * scale, builder.where(is_inside, x, 0.0))


class FakeQuantize(Module):
    """Quantize numbers to integers from quant_min to quant_max and dequantize them again: (q - zero_point)*scale.

    The derivative is 1 within the range of the integers, and 0 outside (the straight-through estimator of Bengio et al.
    2013, as in Jacob et al. 2018, section 3). In training, the range of the numbers is observed: the first batch's,
    then a moving average with the weight `averaging_constant` of each batch's least and greatest number. In evaluation
    it is not changed.

    symmetric: the zero point is the middle of the integers. channels: the extent of the first dimension, each index of
    which has a range of its own; None for one range.
    """

    min_val: Any
    max_val: Any
    num_batches: Any

    def __init__(
        self,
        quant_min: int = 0,
        quant_max: int = 255,
        symmetric: bool = False,
        averaging_constant: float = 0.01,
        channels: Count | None = None,
    ):
        if quant_min >= quant_max:
            raise ArgumentError(f"FakeQuantize: quant_min={quant_min} must be below quant_max={quant_max}")
        if not 0 < averaging_constant <= 1:
            raise ArgumentError(f"FakeQuantize: averaging_constant={show(averaging_constant)} must be in (0, 1]")
        self.quant_min, self.quant_max, self.symmetric = quant_min, quant_max, symmetric
        self.averaging_constant, self.channels = averaging_constant, channels
        shape = () if channels is None else (channels,)
        self.register_buffer("min_val", buffers.zeros(shape, np.float32))
        self.register_buffer("max_val", buffers.zeros(shape, np.float32))
        self.register_buffer("num_batches", np.zeros((), np.int64))

    def _observe(self, x: Value) -> tuple[Value, Value]:
        """Return the range of the numbers after a batch, and keep it."""
        low, high = range_of(x, self.channels)
        before = builder.as_value(self.num_batches) > 0
        weight = builder.where(before, self.averaging_constant, 1.0).astype(x.dtype)
        low = self.min_val + weight * (low - self.min_val)
        high = self.max_val + weight * (high - self.max_val)
        self.min_val, self.max_val, self.num_batches = low, high, self.num_batches + 1
        return low, high

    def forward(self, input: Value) -> Value:
        """Return the numbers rounded; in training, after their range has been observed."""
        x = builder.as_value(input)
        low, high = self._observe(x) if self.training else (self.min_val, self.max_val)
        limits = self.quant_min, self.quant_max
        return round_within(x, builder.as_value(low), builder.as_value(high), limits, self.symmetric)

    def extra_repr(self) -> str:
        per = "" if self.channels is None else f", channels={self.channels}"
        return f"quant_min={self.quant_min}, quant_max={self.quant_max}, symmetric={self.symmetric}{per}"
