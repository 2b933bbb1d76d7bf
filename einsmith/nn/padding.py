"""Define padding layers, under torch.nn's names and arguments."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith import ops as F
from einsmith.base.errors import ShapeError
from einsmith.nn.conv import repeat
from einsmith.nn.module import Variant
from einsmith.ops.common import tensor
from einsmith.tracing.builder import Value


class _Pad(Variant):
    dims: int
    mode = "constant"
    value: float | None = None

    def __init__(self, padding: int | Sequence[int]):
        self.padding = repeat(self, "padding", padding, 2 * self.dims)

    def forward(self, input: Value) -> Value:
        name = type(self).__name__
        x = tensor(input, name, "input")
        if x.ndim < self.dims:
            raise ShapeError(f"{name}: 'input' needs {self.dims} dimensions or more, got shape {x.shape}")
        return F.pad(x, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    def __init__(self, padding: int | Sequence[int], value: float):
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ZeroPad1d(_Pad, dims=1):
    """Padding of the last dimension with zeros; see `functional.pad`."""


class ZeroPad2d(_Pad, dims=2):
    """Padding of the last two dimensions with zeros; see `functional.pad`."""


class ZeroPad3d(_Pad, dims=3):
    """Padding of the last three dimensions with zeros; see `functional.pad`."""


class ReflectionPad1d(_Pad, dims=1, mode="reflect"):
    """Padding of the last dimension by mirroring at the first and the last element; see `functional.pad`."""


class ReflectionPad2d(_Pad, dims=2, mode="reflect"):
    """Padding of the last two dimensions by mirroring at the first and the last element; see `functional.pad`."""


class ReflectionPad3d(_Pad, dims=3, mode="reflect"):
    """Padding of the last three dimensions by mirroring at the first and the last element; see `functional.pad`."""


class ReplicationPad1d(_Pad, dims=1, mode="replicate"):
    """Padding of the last dimension with the first and the last element; see `functional.pad`."""


class ReplicationPad2d(_Pad, dims=2, mode="replicate"):
    """Padding of the last two dimensions with the first and the last element; see `functional.pad`."""


class ReplicationPad3d(_Pad, dims=3, mode="replicate"):
    """Padding of the last three dimensions with the first and the last element; see `functional.pad`."""


class CircularPad1d(_Pad, dims=1, mode="circular"):
    """Padding of the last dimension with the elements of the other end; see `functional.pad`."""


class CircularPad2d(_Pad, dims=2, mode="circular"):
    """Padding of the last two dimensions with the elements of the other end; see `functional.pad`."""


class CircularPad3d(_Pad, dims=3, mode="circular"):
    """Padding of the last three dimensions with the elements of the other end; see `functional.pad`."""


class ConstantPad1d(_ConstantPad, dims=1):
    """Padding of the last dimension with `value`; see `functional.pad`."""


class ConstantPad2d(_ConstantPad, dims=2):
    """Padding of the last two dimensions with `value`; see `functional.pad`."""


class ConstantPad3d(_ConstantPad, dims=3):
    """Padding of the last three dimensions with `value`; see `functional.pad`."""
