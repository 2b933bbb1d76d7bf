"""Read the tensors of published safetensors files, a piece at a time, into the memory of a network, and write them."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from einsmith.base import files
from einsmith.base.arguments import show
from einsmith.base.errors import DataError, ShapeError, UnknownNameError
from einsmith.nn import KeptWeight, Module
from einsmith.nn.parameter import Stored

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TYPES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}
"""Bytes of an element of the types that are read, by their names in safetensors files."""
PIECE = 1 << 20
"""Elements that are read and widened at a time: beyond some MB a piece leaves the cache before it is widened."""
MAX_HEADER = 100_000_000
"""Most bytes of a file's table of tensors, the limit of the format itself."""
SHOWN = 6
"""Most tensors that a message lists."""
AGAIN = "download it again"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file: its element type, as the file names it, its shape, and its first byte in the file."""

    file: Path
    kind: str
    shape: tuple[int, ...]
    begin: int

    def read_into(self, place: Stored) -> None:
        """Copy the values into the memory of a parameter of the same shape, widened or narrowed to its type.

        Raises DataError where the file ends early or holds whole numbers."""
        if self.kind not in TYPES:
            raise DataError(f"{self.file}: a tensor has the type {self.kind}; only {', '.join(TYPES)} are read")
        kept = np.empty(self.shape, np.float32) if isinstance(place, KeptWeight) else None
        flat, size = (place.data if kept is None else kept).reshape(-1), TYPES[self.kind]
        with files.reading(self.file) as source:
            source.seek(self.begin)
            for start in range(0, flat.size, PIECE):
                count = min(PIECE, flat.size - start)
                flat[start : start + count] = _widen(source.read(count * size), self.kind, count, self.file)
        if kept is not None:
            place.store(kept)


def _widen(content: bytes, kind: str, count: int, file: Path) -> np.ndarray:
    """Return numbers of a file as floats that NumPy has."""
    if len(content) < count * TYPES[kind]:
        raise DataError(f"{file} is cut short; {AGAIN}")
    if kind == "BF16":
        return (np.frombuffer(content, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(content, f"<f{TYPES[kind]}")


def find_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return all tensors of a published folder by name: of model.safetensors, or of the files that its index lists.

    Raises DataError for a folder without weights, an index without its files, and files that are cut short."""
    if files.exists(folder / WEIGHTS):
        return read_header(folder / WEIGHTS)
    if not files.exists(folder / INDEX):
        others = [n for n in ("pytorch_model.bin", "pytorch_model.bin.index.json") if files.exists(folder / n)]
        hint = f"; convert {others[0]} with transformers: model.save_pretrained(FOLDER)" if others else ""
        raise DataError(f"{folder} has neither {WEIGHTS} nor {INDEX}{hint}")
    names = _read_index(folder / INDEX)
    shards = sorted(set(names.values()))
    if missing := [s for s in shards if not files.exists(folder / s)]:
        raise DataError(
            f"{folder / INDEX} lists {len(shards)} files; missing: {_listed(missing)}; download all files of the model"
        )
    headers = {s: read_header(folder / s) for s in shards}
    if absent := [n for n, s in names.items() if n not in headers[s]]:
        raise DataError(f"{folder / INDEX} lists {_listed(absent)}, which its files do not hold; {AGAIN}")
    return {n: headers[s][n] for n, s in names.items()}


def _read_index(file: Path) -> dict[str, str]:
    """Return the file of each tensor. Raises DataError."""
    try:
        names = json.loads(files.read_bytes(file))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        raise DataError(f"{file} is no index of safetensors files ({e}); {AGAIN}") from e
    if not isinstance(names, dict) or not all(isinstance(s, str) and Path(s).name == s for s in names.values()):
        raise DataError(f"{file} is no index of safetensors files: weight_map must map names to files beside it")
    return names


def read_header(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file by name. Raises DataError for a file that is damaged or cut short."""
    try:
        with files.reading(file) as source:
            size = source.seek(0, 2)
            source.seek(0)
            length = int.from_bytes(source.read(8), "little")
            if not 2 <= length <= min(size - 8, MAX_HEADER):
                raise DataError(f"{file} is no safetensors file, or is cut short; {AGAIN}")
            table = json.loads(source.read(length))
        out = {n: _entry(file, e, 8 + length, size) for n, e in table.items() if n != "__metadata__"}
    except DataError:
        raise
    except OSError as e:
        raise DataError(f"{file} cannot be read ({e.strerror or e})") from e
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise DataError(f"{file} is no safetensors file ({e}); {AGAIN}") from e
    return out


def _entry(file: Path, entry: Mapping[str, Any], start: int, size: int) -> StoredTensor:
    """Return a row of a file's table. start: first byte of all tensors; size: bytes of the file."""
    kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    numbers = (*shape, begin, end)
    if (
        not all(type(n) is int and n >= 0 for n in numbers)
        or kind in TYPES
        and end - begin != prod(shape) * TYPES[kind]
    ):
        raise DataError(f"{file}: a tensor of {kind} and shape {show(shape)} has the bytes {begin} to {end}; {AGAIN}")
    if start + end > size:
        raise DataError(f"{file} is cut short: it has {size} bytes of {start + end} or more; {AGAIN}")
    return StoredTensor(file, kind, shape, start + begin)


def load_tensors(model: Module, tensors: Mapping[str, StoredTensor], where: Path) -> None:
    """Read tensors into the parameters of a network by name. Nothing is read unless all fit.

    Raises UnknownNameError and ShapeError, which list names and shapes that do not fit, and DataError."""
    places = dict(model._persistent_state())
    missing, more = [n for n in places if n not in tensors], [n for n in tensors if n not in places]
    shapes = [
        f"{n}: {tensors[n].shape}, not {p.shape}"
        for n, p in places.items()
        if n in tensors and tensors[n].shape != p.shape
    ]
    faults = {"missing": missing, "superfluous": more, "other shapes": shapes}
    if any(faults.values()):
        text = "; ".join(f"{kind}: {_listed(names)}" for kind, names in faults.items() if names)
        error = UnknownNameError if missing or more else ShapeError
        raise error(f"the weights of {where} do not fit its config.json; {text}")
    for name, place in places.items():
        tensors[name].read_into(place)


def write_tensors(file: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write tensors to a file, and flush it to disk; transformers and PEFT read it. Raises OSError."""
    try:
        save_file({name: np.ascontiguousarray(a) for name, a in tensors.items()}, file, metadata={"format": "pt"})
    except SafetensorError as e:
        raise OSError(errno.EIO, str(e), str(file)) from e
    with files.reading(file) as written:
        os.fsync(written.fileno())


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
