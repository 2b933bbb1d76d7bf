"""Examples that train, at a small size."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import einsmith as es
from tests.training.small_bert import WORDS, write_bert

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_images_of_a_folder(rng, tmp_path, monkeypatch, capsys) -> None:
    for split, n in (("train", 12), ("test", 4)):
        for k, name in enumerate(("red", "green")):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 120, (9, 11, 3), dtype=np.uint8)
                pixels[..., k] += 100
                Image.fromarray(pixels).save(tmp_path / "data" / split / name / f"{i}.png")
    (tmp_path / "data" / "train" / "red" / "broken.png").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    example = load("image_folder")
    step = example.main("data", "2", size=8, batch=8)
    assert step.epoch == 2 and "1 skipped" in capsys.readouterr().out
    step = example.main("data", "10", size=8, batch=8)
    assert step.epoch == 10 and "going on after epoch 2" in capsys.readouterr().out
    assert step.history[-1]["loss"] < step.history[0]["loss"] and step.history[-1]["val_f1"] >= 0
    assert len((tmp_path / "runs" / "image_folder_example" / "log.csv").read_text().splitlines()) == 11


def test_cifar10_is_written_as_a_folder(rng, tmp_path, monkeypatch) -> None:
    example = load("image_folder")
    x, y = rng.integers(0, 256, (30, 3, 8, 8)).astype(np.float32) / 255, np.arange(30) % 10
    monkeypatch.setattr(es.data, "cifar10", lambda split, say: (x, y))
    example.write_cifar10(tmp_path / "pictures")
    found = es.data.image_folder(tmp_path / "pictures" / "train", 8)
    by_class = [x[y == label][k] for label in range(10) for k in range(3)]
    np.testing.assert_allclose(found.x[:], by_class, atol=1e-6)
    assert [p.name for p in tmp_path.iterdir()] == ["pictures"]


@pytest.mark.parametrize("name", ["image_folder", "layer_in_resnet"])
def test_failed_downloads_are_reported(name, tmp_path, monkeypatch) -> None:
    def absent(split, say):
        raise es.DataError("CIFAR-10 is not on this machine")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(es.data, "cifar10", absent)
    with pytest.raises(SystemExit, match="CIFAR-10 is not on this machine"):
        load(name).main()
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_layer_in_resnet(rng) -> None:
    """Its operator is an involution, which follows what each picture shows, and the network around it learns."""
    example = load("layer_in_resnet")
    example.check()
    k, x = rng.standard_normal((2, 1, 3, 3, 4, 5)), rng.standard_normal((2, 1, 7, 4, 5))
    wide = np.pad(x, ((0, 0), (0, 0), (0, 0), (1, 1), (1, 1)))
    want = sum(k[:, :, r, s][:, :, None] * wide[..., r : r + 4, s : s + 5] for r in range(3) for s in range(3))
    np.testing.assert_allclose(example.INVOLUTION(K=k, X=x), want, rtol=1e-12, atol=1e-12)
    y = rng.integers(0, 2, 40)
    x = rng.random((40, 3, 9, 9), np.float32)
    x[y == 1, 0] += 1
    step = example.train(x, y, x, y, 6, batch=16, width=4, depths=(1,))
    assert type(step.model.layer1[0].conv2) is example.Involution
    assert step.history[-1]["loss"] < 0.6 * step.history[0]["loss"] and "val_accuracy" in step.history[-1]


@pytest.fixture
def bert(rng, tmp_path) -> Path:
    """A folder of weights as they are published, and two texts of which each has words of its own."""
    write_bert(tmp_path, rng)
    return tmp_path


@pytest.mark.slow
def test_fine_tuning(bert, capsys) -> None:
    example = load("fine_tune")
    pieces = example.WordPieces(bert / "vocab.txt")
    assert [list(pieces.number)[n] for n in pieces("Unaffablé WHALE, unseen")] == [
        "un", "##aff", "##able", "whale", "[UNK]", "[UNK]",
    ]  # fmt: skip
    assert pieces.passages("sea", 3).shape == (3, 32)
    before = example.classifier(bert).bert.state_dict()
    step = example.train(bert, [str(bert / n) for n in WORDS], count=24, epochs=6, rate=5e-3)
    assert step.history[-1]["val_accuracy"] > 0.9
    after = step.model.bert.state_dict()
    kept = {n for n in before if np.array_equal(before[n], after[n])}
    assert kept == {n for n in before if n.startswith(("embeddings.", "pooler."))}
    assert "% before training" in capsys.readouterr().out


def test_failed_downloads_of_weights_are_reported(tmp_path, monkeypatch) -> None:
    example = load("fine_tune")
    monkeypatch.chdir(tmp_path)
    failed = SimpleNamespace(returncode=1, stderr="ERROR: no way\n")
    monkeypatch.setattr(example.subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(SystemExit, match="could not be fetched: ERROR: no way\nFrom elsewhere, put"):
        example.main()
