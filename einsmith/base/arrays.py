"""Convert arguments to NumPy arrays: lists, tensors of other libraries; raise errors that name what cannot be
converted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.ma import MaskedArray

from einsmith.base import dtypes as dt
from einsmith.base.arguments import describe
from einsmith.base.errors import DtypeError, GradientError, OutOfMemoryError, ShapeError, TraceError

SUPPORTED = tuple(d.numpy for d in dt.ALL)
"""The element types of arrays."""
_SUPPORTED = frozenset(SUPPORTED)
_NUMBERS = frozenset((int, float, bool))
_UNREADABLE = (TypeError, ValueError, RuntimeError, BufferError, NotImplementedError, AttributeError, OverflowError)
"""Exceptions that libraries raise for arrays that NumPy cannot read."""


def to_array(x: Any, name: str = "array") -> np.ndarray:
    """Return a C-contiguous NumPy array with x's elements; x itself if it is such an array.

    Raises:
        DtypeError: x cannot be converted, or has elements of an unsupported type; the message begins with `name`.
        ShapeError: x is a list whose rows differ in length.
        GradientError: x is a tensor of another library whose gradient would be lost.
    """
    array = x if type(x) is np.ndarray else as_numpy(x, name)
    if array.dtype not in _SUPPORTED:
        if array.dtype.name == "bfloat16":  # ml_dtypes gives NumPy such a type
            array = array.view(dt.BFLOAT16)
        if array.dtype.newbyteorder("=") not in _SUPPORTED:
            raise _unsupported_error(array, name)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    try:
        return np.array(array, order="C")
    except MemoryError:  # a small array, broadcast
        size = array.nbytes / 2**30
        raise OutOfMemoryError(
            f"{name} has shape {array.shape}; a copy takes {size:.3g} GiB, more than is available"
        ) from None


def is_array(x: Any) -> bool:
    """Return whether x is an array of NumPy or of another library, and not a number."""
    return hasattr(x, "__array__") and not isinstance(x, np.generic) or hasattr(x, "__dlpack__")


def as_numpy(x: Any, name: str = "array") -> np.ndarray:
    """Return x as a NumPy array of any element type and layout, a view where there is one. Raises as `to_array`."""
    if isinstance(x, np.ndarray):
        array = x
    elif hasattr(x, "__einsmith_array__"):
        array = x.__einsmith_array__()
    elif hasattr(x, "__array__") or hasattr(x, "__dlpack__"):
        array = _foreign(x, name)
    elif isinstance(x, (list, tuple)):
        array = _from_lists(x, name)
    elif isinstance(x, (int, float)):
        array = np.asarray(x)
    else:
        raise DtypeError(f"{name} is {describe(x)}; pass an array or a number")
    if isinstance(array, MaskedArray):
        raise _masked_error(name)
    return array


def detached(x: Any) -> Any:
    """Return a tensor of PyTorch apart from its gradient, for calls that read shape and type alone; others as they
    are."""
    return x.detach() if getattr(x, "requires_grad", False) and hasattr(x, "__dlpack__") else x


def _masked_error(name: str) -> DtypeError:
    return DtypeError(f"{name} is a masked array, whose mask would be lost; pass .filled(value) or .data")


def _unsupported_error(array: np.ndarray, name: str) -> DtypeError:
    kinds = {
        "O": "an array of Python objects",
        "V": "a structured array",
        "M": "an array of dates",
        "m": "an array of durations",
        "U": "an array of strings",
        "S": "an array of bytes",
    }
    known = ", ".join(str(d) for d in SUPPORTED if d != dt.BFLOAT16)
    return DtypeError(
        f"{name} is {kinds.get(array.dtype.kind, 'an array')}, of element type {str(array.dtype)!r}, which is not "
        f"supported; convert it to one of {known}"
    )


# ------------------------------------------------------------------------------------------------------------- lists


def _from_lists(x: list | tuple, name: str) -> np.ndarray:
    """Convert nested lists to an array."""
    parts = list(_parts(x))
    for part in parts:
        if hasattr(part, "tensor"):
            raise TraceError(
                f"{name} is a list that contains a traced tensor; join the elements by es.functional.stack"
            )
        if isinstance(part, MaskedArray):
            raise _masked_error(name)
    try:
        return np.asarray(x)
    except _UNREADABLE as e:
        lost = [part for part in parts if getattr(part, "requires_grad", False)]
        if lost:
            raise _losing(name) from e
        if "inhomogeneous" in str(e):
            raise ShapeError(
                f"{name} is a list whose rows differ in length or depth, so it is not an array; "
                "pad the rows, or pass them one by one"
            ) from e
        raise DtypeError(f"{name} is {describe(x)} that cannot be converted to a NumPy array: {_first_line(e)}") from e


def _parts(x: list | tuple) -> Iterator[Any]:
    """Yield the elements of nested lists that are neither numbers nor lists."""
    stack: list[Any] = [x]
    while stack:
        listed = stack.pop()
        if not _NUMBERS.issuperset(map(type, listed)):
            for part in listed:
                if isinstance(part, (list, tuple)):
                    stack.append(part)
                elif type(part) not in _NUMBERS:
                    yield part


# --------------------------------------------------------------------------------------------------- other libraries


def _foreign(x: Any, name: str) -> np.ndarray:
    """Return the elements of another library's array, where NumPy can read them."""
    original = x
    try:
        for view in ("resolve_conj", "resolve_neg"):  # conjugated or negated lazily by torch
            x = getattr(x, view)() if hasattr(x, view) else x
        return np.asarray(x) if hasattr(x, "__array__") else np.from_dlpack(x)
    except _UNREADABLE as e:
        remedy = _remedy(original)
        if remedy is None and getattr(original, "requires_grad", False):  # torch refuses while recording gradients
            raise _losing(name) from e
        raise DtypeError(
            f"{name} is {describe(original)} that cannot be converted to a NumPy array: {remedy or _first_line(e)}"
        ) from e


def _losing(name: str) -> GradientError:
    return GradientError(
        f"{name} is a torch tensor that requires a gradient, which would be lost. For gradients that PyTorch records, "
        "call einsmith.frontends.torch.operator(f) instead of f; for values alone pass .detach(), or call it under "
        "torch.no_grad()"
    )


def _first_line(e: Exception) -> str:
    return str(e).partition("\n")[0]


def _remedy(x: Any) -> str | None:
    """Return how to convert a tensor that has no NumPy equivalent, by its device, layout and dtype; None if there is no
    advice."""
    device, layout, dtype = (str(getattr(x, a, "")) for a in ("device", "layout", "dtype"))
    if getattr(x, "is_nested", False):
        return "it is nested, so its rows differ in length; pass them padded, .to_padded_tensor(0.0)"
    if layout not in ("", "torch.strided"):
        return f"its layout is {layout}; pass .to_dense()"
    if device == "meta":
        return "it lies on the meta device and has no elements"
    if getattr(x, "is_quantized", False):
        return "it is quantized; pass .dequantize()"
    if device.partition(":")[0] not in ("", "cpu"):
        return f"it lies on the device {device}; pass .cpu()"
    if dtype.startswith(("torch.bfloat16", "torch.float8")):
        return f"its element type is {dtype}; pass .float()"
    return None
