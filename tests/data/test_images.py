"""Folders of images, data sets under names, augmentation and batches made in background threads."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
import threading
import urllib.error

import numpy as np
import pytest
from PIL import Image

import einsmith as es
from einsmith.data import augment, cifar_files, fashion_files, fetch
from tests.data.test_mnist import idx_bytes
from tests.training.small import arrays, data, net, same


@pytest.fixture
def folder(rng, tmp_path):
    """Two classes of images of several sizes and kinds, and one file that is no image."""
    made = {}
    for name, kind, shape in (
        ("cat/a.png", "RGB", (8, 8)), ("cat/b.PNG", "RGB", (16, 24)), ("dog/deep/c.bmp", "RGB", (8, 8)),
        ("dog/d.png", "L", (8, 8)),
    ):  # fmt: skip
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (*shape, 3) if kind == "RGB" else shape, dtype=np.uint8)
        Image.fromarray(pixels).save(path, format=path.suffix[1:].upper())
        made[name] = pixels
    (tmp_path / "images" / "dog" / "readme.txt").write_text("x")
    (tmp_path / "images" / ".hidden").mkdir()
    return tmp_path / "images", made


def test_a_folder_of_images(folder) -> None:
    root, made = folder
    x, y = found = es.data.image_folder(root, 8)
    assert found.classes == ["cat", "dog"] and y.tolist() == [0, 0, 1, 1] and len(found) == len(x) == 4
    names = [p.relative_to(root).as_posix() for p in x.paths]
    assert names == ["cat/a.png", "cat/b.PNG", "dog/d.png", "dog/deep/c.bmp"]
    got = x[np.array([3, 0, 2])]
    assert got.dtype == np.float32 and got.shape == (3, 3, 8, 8)
    for image, name in zip(got, ("dog/deep/c.bmp", "cat/a.png"), strict=False):
        assert np.array_equal(np.rint(image * 255), made[name].transpose(2, 0, 1))
    assert np.array_equal(np.rint(got[2] * 255), np.repeat(made["dog/d.png"][None], 3, 0))
    # The middle square of 16 x 24, halved: close to means of 2 x 2 pixels for what changes slowly.
    slow = np.add.outer(np.arange(16), np.arange(24)).astype(np.uint8) * 4
    Image.fromarray(slow).save(root / "cat" / "b.PNG", format="PNG")
    want = slow[:, 4:20].reshape(8, 2, 8, 2).mean((1, 3))
    np.testing.assert_allclose(x[1:2][0, 0, 1:-1, 1:-1] * 255, want[1:-1, 1:-1], atol=2)
    gray = es.data.image_folder(root, (4, 6), channels=1)
    assert gray.x[:2].shape == (2, 1, 4, 6)


def test_images_that_do_not_decode(folder) -> None:
    root, _ = folder
    whole = (root / "dog" / "d.png").read_bytes()
    (root / "dog" / "d.png").write_bytes(whole[: len(whole) // 2])
    (root / "cat" / "e.jpg").write_bytes(b"no image")
    x, y = es.data.image_folder(root, 8)
    assert len(x) == 5
    with pytest.raises(es.DataError, match="d.png cannot be decoded"):
        x[3:4]
    model = es.nn.Sequential(es.nn.Flatten(), es.nn.Linear(192, 2))
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.1))
    for threads in (0, 2):
        with pytest.raises(es.DataError, match="e.jpg cannot be decoded"):
            step.fit(es.data.batches(x, y, 2, threads=threads), progress=False)
        assert (step.steps, step.position) == (1, 1)
    found = es.data.image_folder(root, 8, errors="skip")
    assert [p.name for p, _ in found.skipped] == ["e.jpg", "d.png"] and "2 skipped" in repr(found)
    assert len(found) == 3 and found.y.tolist() == [0, 0, 1] and found.x[:].shape == (3, 3, 8, 8)


def test_bad_folders_are_named(folder, tmp_path, monkeypatch) -> None:
    root, _ = folder
    for make, words in (
        (lambda: es.data.image_folder(tmp_path / "none", 8), "none is not a folder"),
        (lambda: es.data.image_folder(root / "cat", 8), "no image"),
        (lambda: es.data.image_folder(root, 0), "size=0"),
        (lambda: es.data.image_folder(root, 8, channels=4), "channels=4"),
        (lambda: es.data.image_folder(root, 8, errors="ignore"), "errors='ignore'"),
    ):
        with pytest.raises(es.EinsmithError, match=words):
            make()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(es.DataError, match="pip install pillow"):
        es.data.image_folder(root, 8)


def test_a_class_without_images_is_named(folder) -> None:
    root, _ = folder
    (root / "bird").mkdir()
    (root / "bird" / "a.heic").write_bytes(b"x")
    with pytest.raises(es.DataError, match="but bird has no image .known extensions: .png"):
        es.data.image_folder(root, 8)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_16_bits_keep_their_shades(rng, tmp_path, channels) -> None:
    """Pillow makes white of everything above 255 where it converts them."""
    pixels = rng.integers(0, 2**16, (15, 17), dtype=np.uint16)
    pixels[0, :3] = 0, 255, 2**16 - 1
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels).save(tmp_path / "a" / "x.png")
    x, _ = es.data.image_folder(tmp_path, (15, 17), channels=channels)
    for plane in x[:][0]:
        np.testing.assert_allclose(plane, pixels / (2**16 - 1), atol=1 / 255)
    assert x[:].max() == 1 and x[:].min() == 0


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_images_of_32_bits_are_refused(rng, tmp_path, kind) -> None:
    (tmp_path / "a").mkdir()
    Image.fromarray(rng.integers(0, 2**20, (8, 8)).astype(kind)).save(tmp_path / "a" / "x.tif")
    with pytest.raises(es.DataError, match="x.tif cannot be decoded: its pixels have 32 bits.*convert it"):
        es.data.image_folder(tmp_path, 8).x[:]
    with pytest.raises(es.DataError, match="no image that can be decoded .*32 bits"):
        es.data.image_folder(tmp_path, 8, errors="skip")


# ---------------------------------------------------------------------------------------------------------- columns


class Rows:
    """What Hugging Face's data sets are to a reader."""

    column_names = ["image", "other", "label"]

    def __init__(self, x, y):
        self.x, self.y, self.read = x, y, []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, chosen):
        assert isinstance(chosen, list)
        self.read += chosen
        return {"image": [self.x[i].tolist() for i in chosen], "label": [int(self.y[i]) for i in chosen]}


def test_data_sets_under_names() -> None:
    x, y = data(11)
    plain = list(es.data.batches(x, y, 4, seed=2))
    mapped = es.data.batches(*es.data.columns({"image": x, "label": y, "more": 3}, "image", "label"), 4, seed=2)
    rows = Rows(x, y)
    lazy = es.data.batches(*es.data.columns(rows, "image", "label"), 4, seed=2)
    assert rows.read == []
    for found in (mapped, lazy):
        for a, b in zip(plain, found, strict=True):
            assert np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1])
    two, _ = es.data.columns({"a": x, "b": y, "c": y}, ["a", "b"], "c")
    assert two[0] is x and two[1] is y
    with pytest.raises(es.ArgumentError, match="no 'lable', only 'image', 'label'"):
        es.data.columns({"image": x, "label": y}, "image", "lable")
    with pytest.raises(es.ArgumentError, match="'img'.*'other'"):
        es.data.columns(rows, "img", "label")


# ------------------------------------------------------------------------------------------------ background threads


def noise(rng, x, y):
    return x + rng.normal(size=x.shape), y


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing(threads) -> None:
    x, y = data(23)
    plain = es.data.batches(x, y, 4, seed=2, transform=noise)
    ahead = es.data.batches(x, y, 4, seed=2, transform=noise, threads=threads)
    for _ in range(2):
        for a, b in zip(plain, ahead, strict=True):
            assert np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1])
    late = list(ahead.epoch(1, start=4))
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(late, list(plain.epoch(1))[4:], strict=True))
    first = next(iter(plain.epoch(0)))[0], next(iter(plain.epoch(1)))[0]
    assert not np.array_equal(*first)


def test_batches_are_made_ahead_by_other_threads() -> None:
    made, here = [], threading.get_ident()

    def note(rng, x, y):
        made.append(threading.get_ident())
        return x, y

    it = iter(es.data.batches(*data(40), 4, transform=note, threads=2))
    for _ in range(3):
        next(it)
    it.close()
    assert 3 <= len(made) <= 6 and here not in made


def test_a_run_with_augmentation_resumes_bitwise(tmp_path) -> None:
    def make():
        return es.TrainStep(net(), es.functional.cross_entropy, es.optim.SGD(lr=0.2))

    def batches(threads):
        return es.data.batches(*data(23), 4, seed=2, transform=noise, threads=threads)

    class Stop(Exception):
        pass

    def stop(step, loss):
        if step.steps == 8:
            raise Stop

    whole, part = make(), make()
    whole.fit(batches(0), 3, progress=False)
    with pytest.raises(Stop):
        part.fit(batches(2), 3, progress=False, on_step=stop)
    es.save(part, tmp_path / "run")
    again = es.load(tmp_path / "run", model=net())
    again.fit(batches(1), 3, progress=False)
    same(arrays(whole), arrays(again))


def test_wrong_arguments_of_batches() -> None:
    with pytest.raises(es.ArgumentError, match="transform=3"):
        es.data.batches(*data(4), 2, transform=3)
    with pytest.raises(es.ArgumentError, match="threads=-1"):
        es.data.batches(*data(4), 2, threads=-1)


# ----------------------------------------------------------------------------------------------------- augmentation


def test_crops_and_flips_move_pixels(rng) -> None:
    x, y = rng.random((50, 3, 6, 7), np.float32) + 1, np.arange(50)
    out, kept = augment.random_crop(2)(np.random.default_rng(1), x, y)
    assert out.shape == x.shape and out.dtype == x.dtype and kept is y
    wide = np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)))
    seen = set()
    for k in range(50):
        every = [(a, b) for a in range(5) for b in range(5)]
        places = [(a, b) for a, b in every if np.array_equal(out[k], wide[k, :, a : a + 6, b : b + 7])]
        assert len(places) == 1
        seen |= set(places)
    assert len(seen) > 12
    out, _ = augment.random_flip(0.5)(np.random.default_rng(1), x, y)
    flipped = [np.array_equal(o, a[..., ::-1]) for o, a in zip(out, x, strict=True)]
    assert all(f or np.array_equal(o, a) for f, o, a in zip(flipped, out, x, strict=True)) and 10 < sum(flipped) < 40
    same_again, _ = augment.random_flip(0.5)(np.random.default_rng(1), x, y)
    assert np.array_equal(out, same_again)


def test_colours(rng) -> None:
    x, y = rng.random((20, 3, 4, 4)).astype(np.float32), np.arange(20)
    out, _ = augment.color_jitter(brightness=0.3)(np.random.default_rng(1), x * 0.5, y)
    factors = (out / (x * 0.5)).reshape(20, -1)
    assert np.allclose(factors, factors[:, :1], rtol=1e-4) and 0.69 < factors.min() < 0.9 and 1.1 < factors.max() < 1.31
    out, _ = augment.color_jitter(saturation=1.0)(np.random.default_rng(1), 0.4 + x * 0.1, y)
    np.testing.assert_allclose(out.mean(1), (0.4 + x * 0.1).mean(1), rtol=1e-5)
    out, _ = augment.color_jitter(contrast=1.0)(np.random.default_rng(1), 0.4 + x * 0.1, y)
    np.testing.assert_allclose(out.mean((1, 2, 3)), (0.4 + x * 0.1).mean((1, 2, 3)), rtol=1e-5)
    out, _ = augment.color_jitter(1.0, 1.0, 1.0)(np.random.default_rng(1), x, y)
    assert out.min() >= 0 and out.max() <= 1 and out.dtype == np.float32
    out, _ = augment.normalize([0.5, 0.4, 0.3], [0.1, 0.2, 0.3])(rng, x, y)
    np.testing.assert_allclose(out[:, 1], (x[:, 1] - 0.4) / 0.2, rtol=1e-5)


def test_mixup_trains(rng, torch) -> None:
    x, y = data(12)
    both = augment.compose(noise, augment.mixup(0.4, 5))
    mixed, soft = both(np.random.default_rng(3), x, y)
    assert soft.shape == (12, 5) and soft.dtype == np.float32
    np.testing.assert_allclose(soft.sum(1), 1, rtol=1e-6)
    draws = np.random.default_rng(3)
    noisy, _ = noise(draws, x, y)
    share, other = draws.beta(0.4, 0.4), draws.permutation(12)
    np.testing.assert_allclose(mixed, share * noisy + (1 - share) * noisy[other])
    np.testing.assert_allclose(soft[np.arange(12), y] >= min(share, 1) - 1e-6, True)
    step = es.TrainStep(net("float32"), es.functional.cross_entropy, es.optim.SGD(lr=0.2))
    loss = step(mixed.astype(np.float32), soft)
    want = torch.nn.functional.cross_entropy(
        torch.tensor(net("float32").predict(mixed.astype(np.float32))), torch.tensor(soft)
    )
    assert loss == pytest.approx(want.item(), rel=1e-5)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: augment.random_crop(-1), "padding=-1"), (lambda: augment.random_flip(1.5), "p=1.5"),
        (lambda: augment.color_jitter(contrast=2), "contrast=2"), (lambda: augment.mixup(0, 3), "alpha=0"),
        (lambda: augment.normalize([0.5], [0.0]), "std"),
        (lambda: augment.normalize([0.5], [1.0])(None, np.zeros((1, 3, 2, 2))), "3"),
        (lambda: augment.random_flip()(None, np.zeros((3, 4))), r"float images .*float64\[3, 4\]"),
        (lambda: augment.mixup(1.0, 3)(None, np.zeros((2, 2)), np.array([0, 3])), "3 classes.*is 3"),
        (lambda: augment.mixup(1.0, 3)(None, np.zeros((2, 2)), np.zeros((2, 3))), "integer targets"),
    ],
)  # fmt: skip
def test_wrong_augmentation_is_named(make, words) -> None:
    with pytest.raises(es.EinsmithError, match=words):
        make()


# ------------------------------------------------------------------------------------------------ data sets by name


@pytest.fixture
def offline(monkeypatch, tmp_path):
    def fail(url, timeout):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    monkeypatch.setattr(fetch.shutil, "which", lambda name: None)
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("EINSMITH_DATA_DIR", raising=False)
    monkeypatch.setattr(fashion_files, "DEBIAN", tmp_path / "debian")


def test_fashion_mnist(rng, monkeypatch, tmp_path, offline) -> None:
    import hashlib

    content = {
        "t10k-images-idx3-ubyte": idx_bytes(rng.integers(0, 256, (7, 28, 28), np.uint8)),
        "t10k-labels-idx1-ubyte": idx_bytes(rng.integers(0, 10, 7, np.uint8)),
    }
    with pytest.raises(es.DataError, match="dataset-fashion-mnist"):
        es.data.fashion_mnist("test")
    for place in (tmp_path / "mine", tmp_path / "debian", tmp_path / "data" / "FashionMNIST" / "raw"):
        place.mkdir(parents=True)
        for name, file in content.items():
            (place / f"{name}.gz").write_bytes(gzip.compress(file))
    with pytest.raises(es.DataError, match="another file"):
        es.data.fashion_mnist("test")
    monkeypatch.setattr(fashion_files, "CHECKSUMS", {n: hashlib.sha256(c).hexdigest() for n, c in content.items()})
    monkeypatch.setenv("EINSMITH_DATA_DIR", str(tmp_path / "data"))
    for given in (None, tmp_path / "mine"):
        x, y = es.data.fashion_mnist("test", given)
        assert x.shape == (7, 1, 28, 28) and x.dtype == np.float32 and x.max() <= 1 and y.dtype == np.int64
    with pytest.raises(es.DataError, match="lacks train-images"):
        es.data.fashion_mnist("train", tmp_path / "mine")
    with pytest.raises(es.DataError, match="splits"):
        es.data.fashion_mnist("all")


def test_cifar10(rng, monkeypatch, tmp_path, offline) -> None:
    monkeypatch.setattr(cifar_files, "RECORDS", 4)
    pixels = {n: rng.integers(0, 256, (4, 3, 32, 32), np.uint8) for s in cifar_files.FILES.values() for n in s}
    labels = {n: rng.integers(0, 10, 4) for n in pixels}
    with pytest.raises(es.DataError, match=r"(?s)Name or service.*npm client is not installed.*data_batch_1.bin"):
        es.data.cifar10()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:

        def add(name, content):
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))

        for name, p in pixels.items():
            image = io.BytesIO()
            Image.fromarray(p.transpose(0, 2, 3, 1).reshape(4, 1024, 3)).save(image, format="PNG")
            add(name.replace(".bin", ".png"), image.getvalue())
        for split, names in cifar_files.FILES.items():
            add(f"{split}_lables.json", json.dumps([int(n) for f in names for n in labels[f]]).encode())
    monkeypatch.setattr(fetch.shutil, "which", lambda name: "/usr/bin/npm")
    monkeypatch.setattr(fetch, "_npm_archive", lambda npm, package: packed.getvalue())
    x, y = es.data.cifar10("train")
    assert x.shape == (20, 3, 32, 32) and x.dtype == np.float32 and y.dtype == np.int64
    names = cifar_files.FILES["train"]
    assert np.array_equal(np.rint(x * 255), np.concatenate([pixels[n] for n in names]))
    assert y.tolist() == [n for f in names for n in labels[f]]
    monkeypatch.setattr(fetch, "_npm_archive", None)
    again, _ = es.data.cifar10("test")  # of the cache
    assert np.array_equal(np.rint(again * 255), pixels["test_batch.bin"])
    mine = tmp_path / "cache" / "data" / "cifar-10"
    assert np.array_equal(es.data.cifar10("train", mine)[0], x)
    (mine / "data_batch_3.bin").write_bytes(b"123")
    with pytest.raises(es.DataError, match="data_batch_3.bin has 3 bytes"):
        es.data.cifar10("train", mine)
    with pytest.raises(es.DataError, match="lacks"):
        es.data.cifar10("train", tmp_path)
