"""Where elements of PyTorch's tensors lie, as formulas: dimensions in another order, repeated ones, any strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from einsmith.dtypes import DType
from einsmith.lang import builder

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Placed:
    """A tensor of a shape and strides (in elements). physical: the shape of what is read, which is the memory from the
    first element on: of `dims`, the outermost first, where these fill it; else, `dims` being None, a row of elements.
    """

    shape: Ints
    strides: Ints
    dtype: DType
    physical: Ints
    dims: Ints | None

    def view(self, memory: Any) -> Any:
        """The tensor, of the physical one."""
        if self.dims == tuple(range(len(self.shape))):
            return memory
        if self.dims is None:
            steps = self.strides
            return builder.compute(
                self.shape, lambda *i: memory[sum(s * n for s, n in zip(steps, i, strict=True) if s)]
            )
        dims = self.dims
        return builder.compute(self.shape, lambda *i: memory[tuple(i[d] for d in dims)] if dims else memory)


def order_of(shape: Sequence[int], strides: Sequence[int]) -> Ints:
    """The dimensions by stride, the outermost first; of equal ones, and those of one element, in their order."""
    last = 0
    keys = []
    for d in reversed(range(len(shape))):
        if shape[d] != 1:
            last = strides[d]
        keys.append((-last, d))
    return tuple(d for _, d in sorted(keys))


def strides(shape: Sequence[int], order: Sequence[int]) -> Ints:
    """Strides of a tensor that fills its memory with the dimensions in this order."""
    found, step = [0] * len(shape), 1
    for d in reversed(order):
        found[d], step = step, step * max(shape[d], 1)
    return tuple(found)


def logical(physical: Sequence[int], order: Sequence[int]) -> Ints:
    """The shape of what has this one in memory."""
    shape = [0] * len(physical)
    for n, d in zip(physical, order, strict=True):
        shape[d] = n
    return tuple(shape)


def placed(shape: Ints, steps: Ints, dtype: DType) -> Placed:
    """How a tensor of this shape and these strides is read."""
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
    """Whether the dimensions, in this order, fill memory. Strides of one element do not count."""
    step = 1
    for d in reversed(order):
        if shape[d] != 1 and steps[d] != step:
            return False
        step *= shape[d]
    return step == prod(n for d, n in enumerate(shape) if d in order)
