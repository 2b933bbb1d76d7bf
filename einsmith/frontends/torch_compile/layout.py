"""Express layouts of PyTorch's tensors as formulas: permuted dimensions, broadcast ones (stride 0), any strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.tracing import builder

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Placed:
    """A tensor's shape, strides (elements) and type, and how its memory is read.

    physical: the shape under which the memory from the first element on is read. dims: the dimensions that fill it
    densely, the outermost first; None if none do, and the memory is read as one row of elements. is_number: whether it
    is a Python float that a program reads when it runs. weight: the constant that programs read in the place of an
    argument (`frozen.FrozenWeight`).
    """

    shape: Ints
    strides: Ints
    dtype: DType
    physical: Ints
    dims: Ints | None
    is_number: bool = False
    weight: Any = None

    def view(self, memory: Any) -> Any:
        """Return the tensor as a formula of `memory`, a tensor of the shape `physical`."""
        if self.is_number:
            return builder.Value(builder.as_value(memory).tensor, weak=True)
        if self.dims == tuple(range(len(self.shape))):
            return memory
        if self.dims is None:
            steps = self.strides
            return builder.compute(
                self.shape, lambda *i: memory[sum(s * n for s, n in zip(steps, i, strict=True) if s)]
            )
        dims = self.dims
        return builder.compute(self.shape, lambda *i: memory[tuple(i[d] for d in dims)] if dims else memory)


NUMBER = Placed((), (), dt.f64, (), (), True)
"""A Python float that a program reads when it runs."""


def order_of(shape: Sequence[int], strides: Sequence[int]) -> Ints:
    """Return the dimensions by falling stride. Dimensions of equal stride, or of one element, keep their order."""
    last = 0
    keys = []
    for d in reversed(range(len(shape))):
        if shape[d] != 1:
            last = strides[d]
        keys.append((-last, d))
    return tuple(d for _, d in sorted(keys))


def strides(shape: Sequence[int], order: Sequence[int]) -> Ints:
    """Return the strides (elements) of a dense tensor whose dimensions in memory are `order`, the outermost first."""
    out, step = [0] * len(shape), 1
    for d in reversed(order):
        out[d], step = step, step * max(shape[d], 1)
    return tuple(out)


def logical(physical: Sequence[int], order: Sequence[int]) -> Ints:
    """Return the shape of a tensor whose dimensions in memory, in `order`, have the extents `physical`."""
    shape = [0] * len(physical)
    for n, d in zip(physical, order, strict=True):
        shape[d] = n
    return tuple(shape)


@lru_cache(4096)
def memory_order(shape: Ints, steps: Ints, dtype: DType) -> Placed:
    """Return how to read a tensor of a shape and strides (elements): densely if some order of dimensions allows it."""
    if 0 in shape:
        return Placed(shape, steps, dtype, shape, tuple(range(len(shape))))
    if fills(shape, steps, range(len(shape))):
        return Placed(shape, steps, dtype, shape, tuple(range(len(shape))))
    moving = [d for d in order_of(shape, steps) if shape[d] > 1 and steps[d] != 0]
    if fills(shape, steps, moving):
        return Placed(shape, steps, dtype, tuple(shape[d] for d in moving), tuple(moving))
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, steps, strict=True))
    return Placed(shape, steps, dtype, (reach,), None)


def fills(shape: Ints, steps: Ints, order: Sequence[int]) -> bool:
    """Return whether the dimensions in `order` fill memory densely. Strides of dimensions of extent 1 do not count."""
    step = 1
    for d in reversed(order):
        if shape[d] != 1 and steps[d] != step:
            return False
        step *= shape[d]
    return step == prod(n for d, n in enumerate(shape) if d in order)
