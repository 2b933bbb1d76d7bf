"""Files of data that are damaged anywhere, or that are no files, are errors that name the file, or still data."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.base import npz
from einsmith.data import idx, images, mnist_files, text_files

COPIES = 60
"""Damaged copies of each file; of one byte in three to all of them behind a place."""


def npz_bytes(rng: np.random.Generator, write: Callable) -> bytes:
    out = io.BytesIO()
    write(out, x=rng.standard_normal((5, 3)), y=np.arange(5))
    return out.getvalue()


def npy_bytes(rng: np.random.Generator) -> bytes:
    out = io.BytesIO()
    np.save(out, rng.standard_normal((4, 3)))
    return out.getvalue()


def idx_bytes(rng: np.random.Generator) -> bytes:
    shape = b"".join(n.to_bytes(4, "big") for n in (3, 5, 4))
    return bytes([0, 0, 8, 3]) + shape + rng.bytes(60)


def image_bytes(rng: np.random.Generator, form: str) -> bytes:
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.fromarray(rng.integers(0, 256, (9, 8, 3), np.uint8)).save(out, form)
    return out.getvalue()


def read_idx(path: Path) -> Any:
    return idx.parse(idx.read_bytes(path), 3, str(path))


FORMATS: dict[str, tuple[Callable[[np.random.Generator], bytes], Callable[[Path], Any], tuple]] = {
    "npz": (lambda rng: npz_bytes(rng, np.savez), npz.read_arrays, (ValueError,)),
    "npz, packed": (lambda rng: npz_bytes(rng, np.savez_compressed), npz.read_arrays, (ValueError,)),
    "npy": (npy_bytes, npz.read_array, (ValueError,)),
    "idx": (idx_bytes, read_idx, (es.DataError,)),
    "idx.gz": (lambda rng: gzip.compress(idx_bytes(rng)), read_idx, (es.DataError,)),
    **{
        form: (
            lambda rng, form=form: image_bytes(rng, form),  # type: ignore[misc]
            lambda path: images.decode(path, str(path), "RGB", (4, 4)),
            (es.DataError,),
        )
        for form in ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
    },
    "text": (lambda rng: "ä€x".encode() * 9, lambda path: text_files.text_folder(path.parent), (es.DataError,)),
}


def damage(content: bytes, n: int, rng: np.random.Generator) -> bytes:
    if not n:
        return b""
    if n % 3 == 0:
        return content[: rng.integers(len(content))]
    out = bytearray(content)
    places = rng.integers(len(out) if n % 3 == 1 else min(40, len(out)), size=1 + n % 5)  # the head more often
    for at in places:
        out[at] ^= rng.integers(1, 256)
    return bytes(out)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.filterwarnings("ignore")
def test_damaged_files_are_errors_or_data(tmp_path: Path, form: str) -> None:
    make, read, errors = FORMATS[form]
    rng = np.random.default_rng(len(form))
    whole, path = make(rng), tmp_path / "train.txt"
    path.write_bytes(whole)
    read(path)
    failures = 0
    for n in range(COPIES):
        path.write_bytes(damage(whole, n, rng))
        try:
            read(path)
        except errors as e:
            failures += 1
            assert str(path) in str(e) or errors == (ValueError,)
    assert failures, "a file that is cut is no data"


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_no_file_is_an_error(tmp_path: Path, form: str) -> None:
    read = FORMATS[form][1]
    path = tmp_path / "train.txt"
    for put in (lambda: None, lambda: os.mkfifo(path), path.mkdir, lambda: path.symlink_to("train.txt"),
                lambda: path.symlink_to("/dev/zero")):  # fmt: skip
        put()
        with pytest.raises(OSError):
            read(path)
        if os.path.lexists(path):
            path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize("kind", ["missing", "a file", "too long", "a loop", "null"])
def test_folders_that_are_none_are_errors(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    name = {"missing": "none", "a file": "file", "too long": "n" * 300, "a loop": "loop", "null": "a\0b"}[kind]
    for read in (
        lambda p: es.data.image_folder(p, 8),
        lambda p: es.data.mnist("test", p),
        lambda p: es.data.fashion_mnist("test", p),
        lambda p: es.data.cifar10("test", p),
        lambda p: es.data.text("sotu", "test", p),
        lambda p: es.data.text_folder(p, "test"),
        lambda p: mnist_files.idx_folder(p, "test"),
        es.load,
        es.load_library,
    ):
        with pytest.raises(es.EinsmithError):
            read(tmp_path / name)
