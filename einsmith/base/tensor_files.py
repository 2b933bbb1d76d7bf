"""Read and write files of tensors in the format of safetensors; bfloat16 is read as float32."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors
from safetensors.numpy import save_file

from einsmith.base import files

_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
    "BOOL": "?",
}  # fmt: skip
"""Element types of the format that NumPy has."""


def read(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a file, by name. Raises OSError, also for a damaged file and for other element types."""
    try:
        views = safetensors.deserialize(files.read_bytes(path))
        return {name: _array(name, view["dtype"], view["shape"], view["data"]) for name, view in views}
    except (safetensors.SafetensorError, ValueError) as e:
        raise OSError(errno.EINVAL, f"it is damaged: {e}", str(path)) from e


def _array(name: str, dtype: str, shape: list[int], content: bytes) -> np.ndarray:
    if dtype == "BF16":
        wide = np.frombuffer(content, "<u2").astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    if dtype not in _DTYPES:
        raise ValueError(f"{name} has the element type {dtype}, which is not read")
    return np.frombuffer(content, _DTYPES[dtype]).reshape(shape)


def write(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write tensors to a file, and flush it to disk; transformers and PEFT read it. Raises OSError."""
    try:
        save_file({name: np.ascontiguousarray(a) for name, a in tensors.items()}, path, metadata={"format": "pt"})
    except safetensors.SafetensorError as e:
        raise OSError(errno.EIO, str(e), str(path)) from e
    with files.reading(path) as f:
        os.fsync(f.fileno())
