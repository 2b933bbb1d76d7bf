"""Read and write NumPy's files of arrays, .npy and .npz; nothing in them is unpickled."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from einsmith.base import files


def _load(path: str | os.PathLike) -> Any:
    """Return the array or archive that NumPy reads from a plain file. Raises OSError where it cannot be opened,
    ValueError where it is damaged."""
    with files.reading(path) as f:
        try:
            content = np.load(f, allow_pickle=False)
            return content if isinstance(content, np.ndarray) else {name: content[name] for name in content.files}
        except Exception as e:  # zipfile, zlib and NumPy raise errors of many kinds for damaged files
            raise ValueError(str(e) or type(e).__name__) from e


def read_array(path: str | os.PathLike) -> np.ndarray:
    """Return the array of a .npy file. Raises OSError where it cannot be read, ValueError where it is not such a
    file."""
    content = _load(path)
    if not isinstance(content, np.ndarray):
        raise ValueError("it holds several arrays by name, not one")
    return content


def read_arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Return the arrays of a .npz file by name. Raises OSError where it cannot be read, ValueError where it is not such
    a file."""
    content = _load(path)
    if isinstance(content, np.ndarray):
        raise ValueError("it holds one array without a name")
    return content


def write_arrays(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name to a .npz file, whole or not at all. Raises OSError."""
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    files.write(path, content.getbuffer())
