"""Provide names of `torch` other than functions: element types, devices, limits of a type, `size()`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from einsmith.base import dtypes as dt
from einsmith.base.arguments import show
from einsmith.base.dtypes import DType, dtype_of
from einsmith.base.errors import ArgumentError, DtypeError, KindError, ShapeError

TYPES: dict[str, DType] = {
    "float16": dt.f16, "half": dt.f16, "bfloat16": dt.bf16, "float32": dt.f32, "float": dt.f32, "float64": dt.f64,
    "double": dt.f64, "uint8": dt.u8, "int8": dt.i8, "int16": dt.i16, "short": dt.i16, "int32": dt.i32, "int": dt.i32,
    "int64": dt.i64, "long": dt.i64, "bool": dt.bool_,
}  # fmt: skip
"""Element types by PyTorch's names."""


@dataclass(frozen=True)
class Device:
    """The place of a tensor's elements, as `torch.device`. All tensors are on the CPU."""

    type: str = "cpu"
    index: int | None = None

    def __post_init__(self) -> None:
        check_device("device", self.type)
        object.__setattr__(self, "type", "cpu")

    def __str__(self) -> str:
        return self.type


def is_device(x: Any) -> bool:
    """Return whether `x` names a device: a Device, torch's, or a string such as "cpu" or "cuda:0"."""
    names = ("cpu", "cuda", "mps", "xpu", "meta", "hip", "xla")
    return isinstance(x, Device) or isinstance(x, str) and x.partition(":")[0] in names


def check_device(name: str, device: Any) -> None:
    """Raise ArgumentError for a device other than the CPU; None means the CPU."""
    if device is not None and str(device).partition(":")[0] != "cpu":
        raise ArgumentError(f"{name}: device={show(device)} must be 'cpu', where all tensors are; leave device out")


class ElementCount(int):
    """The number of elements of a tensor, as NumPy's `size`; called, it returns extents, as PyTorch's `size()`."""

    _extents: tuple[int, ...]

    def __new__(cls, count: int, shape: tuple[int, ...]) -> ElementCount:
        new = super().__new__(cls, count)
        new._extents = shape
        return new

    def __call__(self, dim: int | None = None) -> Any:
        """Return the extents of all dimensions as a tuple, or that of dimension `dim`. Raises ShapeError."""
        if dim is None:
            return self._extents
        if isinstance(dim, bool) or not hasattr(dim, "__index__"):
            raise KindError(f"size: dim={show(dim)} must be an integer")
        if not -len(self._extents) <= dim < len(self._extents):
            raise ShapeError(f"size: dim={dim} is not a dimension of a tensor that has {len(self._extents)}")
        return self._extents[dim]


class FloatLimits(NamedTuple):
    """Limits of a float type: the least and the greatest finite number, the distance from 1 to the next number, the
    least positive normal number, and the bits of a number."""

    min: float
    max: float
    eps: float
    tiny: float
    bits: int


def finfo(dtype: Any = dt.f32) -> FloatLimits:
    """Return the limits of a float type, as in `finfo(x.dtype).min`. Raises DtypeError for another type."""
    kind = dtype_of(dtype)
    if not kind.is_float:
        raise DtypeError(f"finfo: {kind.name} is not a float type")
    return FloatLimits(-kind.max, kind.max, kind.eps, kind.tiny, kind.bits)
