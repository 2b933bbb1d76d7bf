"""Read idx files, the format of MNIST and similar data sets: a big-endian header, then unsigned bytes."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from einsmith.base import files
from einsmith.base.errors import DataError

_GZIP = b"\x1f\x8b"


def read_bytes(path: Path, is_packed: bool = True) -> bytes:
    """Return the content of a file, unpacked where it is gzip, whatever its name, unless `is_packed` is False. Raises
    DataError."""
    try:
        content = files.read_bytes(path)
    except OSError as e:
        raise DataError(f"cannot read {path}: {e.strerror or e}") from e
    return unpack(content, str(path)) if is_packed else content


def unpack(content: bytes, name: str) -> bytes:
    """Return `content`, unpacked where it is gzip. Raises DataError, which contains `name`."""
    if not content.startswith(_GZIP):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as e:
        raise DataError(f"{name} is damaged: {e}") from e


def parse(content: bytes, rank: int, name: str) -> np.ndarray:
    """Return the array of an idx file of unsigned bytes with `rank` dimensions, a read-only view. Raises DataError."""
    if len(content) < 4 + 4 * rank or content[:4] != bytes([0, 0, 8, rank]):
        raise DataError(f"{name} is not an idx file of unsigned bytes with {rank} dimension{'s' if rank > 1 else ''}")
    shape = tuple(int.from_bytes(content[4 + 4 * k : 8 + 4 * k], "big") for k in range(rank))
    want = 4 + 4 * rank + int(np.prod(shape, dtype=object))
    if len(content) != want:
        raise DataError(f"{name} has {len(content)} bytes where its header, shape {shape}, asks for {want}")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)
