"""Weights of 8 bits that replace a layer's parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Axis, Compute, Const, Expr, Read, Tensor, apply, cast, template
from einsmith.nn.parameter import Buffer
from einsmith.tracing.builder import Value


class QuantizedWeight(Buffer):
    """A weight of int8 with a scale for each index of its first dimension, or one for all.

    In a traced function it is the float32 tensor values*scale; products read the integers themselves. The integers of a
    convolution's weight [out, in, ...] lie as [out, ..., in]: words of a sum over input channels are neighbours.

    scale: the scales. sums: the sums of the integers over input channels (int32), [out, ...]
    """

    def __init__(self, values: np.ndarray, scale: Buffer, sums: Buffer):
        super().__init__(np.moveaxis(values, 1, -1))
        self.scale, self.sums = scale, sums

    def __einsmith_value__(self) -> Value:
        return Value(self.tensor)

    @property
    def values(self) -> Tensor:
        """The integers in the current trace, as they lie."""
        return super().__einsmith_value__().tensor

    @property
    def scales(self) -> Tensor:
        """The scales in the current trace."""
        return self.scale.__einsmith_value__().tensor

    @property
    def tensor(self) -> Tensor:
        """The float32 tensor in the current trace."""
        values, scales = self.values, self.scales
        first, *inner, last = values.shape
        shape = (first, last, *inner)
        axes = tuple(map(Axis, range(len(shape))))
        whole = cast(Read(0, self.value_index(axes), dt.i8), dt.i32)
        body = apply("mul", cast(whole, dt.f32), Read(1, self.scale_index(axes), dt.f32))
        params = [(dt.i8, values.shape), (dt.f32, scales.shape)]
        return Compute(template(shape, params, body), (values, scales))

    def value_index(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return where the integer of the element at an index is."""
        return (index[0], *index[2:], index[1])

    def scale_index(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return where the scale of the element at an index is."""
        return (index[0] if self.scale.size > 1 else Const(0, dt.i32),)


def replace_weight(layer: Any, name: str, values: np.ndarray, scale: np.ndarray) -> QuantizedWeight:
    """Replace a layer's parameter by integers, their scales and their sums; return the integers."""
    layer.register_buffer(f"{name}_scale", scale)
    layer.register_buffer(f"{name}_sums", values.sum(1, dtype=np.int32))
    weight = QuantizedWeight(values, getattr(layer, f"{name}_scale"), getattr(layer, f"{name}_sums"))
    layer.register_buffer(name, weight)
    return weight
