"""`einsmith train` on folders of colour images."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import einsmith as es
from einsmith.cli import main
from einsmith.models import _MODELS


class Tiny(es.nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.conv = es.nn.Conv2d(3, 4, 3, stride=2)
        self.fc = es.nn.Linear(4 * 7 * 7, num_classes)

    def forward(self, x):
        return self.fc(es.functional.relu(self.conv(x)).reshape(x.shape[0], -1))


@pytest.fixture
def folder(rng, tmp_path, monkeypatch):
    """Three classes that their colour tells, and a file that is no image."""
    monkeypatch.setitem(_MODELS, "tiny", Tiny)
    for split, n in (("train", 20), ("test", 6)):
        for k, name in enumerate("abc"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 100, (20, 20, 3), dtype=np.uint8)
                pixels[..., k] += 100
                Image.fromarray(pixels).save(tmp_path / "data" / split / name / f"{i}.png")
    (tmp_path / "data" / "train" / "b" / "broken.png").write_bytes(b"x")
    return tmp_path / "data"


def test_a_folder_is_learned(folder, tmp_path, capfd) -> None:
    options = ["--data", folder, "--size", 16, "--batch", 8, "--epochs", 6, "--augment", "--lr", 0.01, "--json"]
    for name in ("x", "y"):
        status = main.run([str(w) for w in ["train", "tiny", *options, "--save", tmp_path / name]])
        out, err = capfd.readouterr()
        assert status == 0, err
        assert "broken.png cannot be decoded and is left out" in err
        assert json.loads(out.splitlines()[-1])["accuracy"] > 0.9
    saves = [(tmp_path / n / "weights.safetensors").read_bytes() for n in "xy"]
    assert saves[0] == saves[1]
    assert main.run(["train", "tiny", "--resume", str(tmp_path / "x"), "--epochs", "7", "--json"]) == 0
    assert len(json.loads((tmp_path / "x" / "run.json").read_text())["history"]) == 7


@pytest.mark.parametrize(
    "arguments, words",
    [(["mlp3", "--augment"], "--augment is for networks of colour images"), (["mlp3", "--size", "8"], "--size is for"),
     (["tiny", "--data", "cifar10", "--size", "64"], "--size is for images of a folder; those of cifar10 have 32"),
     (["tiny", "--steps", "8"], "--steps is for language models"), (["tiny", "--data", "mnist"], "neither cifar10")],
)  # fmt: skip
def test_wrong_use(folder, capfd, arguments, words) -> None:
    assert main.run(["train", *arguments]) == 2
    assert words in capfd.readouterr().err


def test_test_images_are_numbered_as_those_to_learn_from(folder, capfd) -> None:
    """A class that is not tested leaves the numbers of those behind it; one that is not learned is refused."""
    for path in (folder / "test" / "b").iterdir():
        path.unlink()
    (folder / "test" / "b").rmdir()
    options = ["--data", folder, "--size", 16, "--batch", 8, "--epochs", 6, "--lr", 0.01, "--json"]
    assert main.run([str(w) for w in ["train", "tiny", *options]]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["accuracy"] > 0.9
    (folder / "test" / "c").rename(folder / "test" / "d")
    assert main.run([str(w) for w in ["train", "tiny", *options]]) == 1
    assert "has test images, but no training images, of d" in capfd.readouterr().err


NETWORKS = [
    pytest.param("resnet18_cifar", ["width=4"], marks=pytest.mark.slow),
    ("vit_small", ["width=12", "heads=2", "layers=1", "patch=8"]),
]
"""Networks of colour images, and their arguments."""


@pytest.mark.slow
@pytest.mark.parametrize("model, more", NETWORKS)
def test_networks_by_name_take_what_the_data_says(folder, tmp_path, capfd, model, more) -> None:
    """Classes, and the size of images; and explain shows a step of what is trained by default."""
    options = ["--data", folder, "--size", 16, "--batch", 30, "--epochs", 1, "--save", tmp_path / "x", "--json"]
    options += [word for setting in more for word in ("--set", setting)]
    status = main.run([str(w) for w in ["train", model, *options]])
    out, err = capfd.readouterr()
    assert status == 0, err
    assert es.load(tmp_path / "x").model.predict(np.zeros((1, 3, 16, 16), np.float32)).shape == (1, 3)


@pytest.mark.slow
def test_capsules_are_trained_by_their_loss_and_resumed(rng, tmp_path, capfd) -> None:
    for split, n in (("train", 12), ("t10k", 4)):
        arrays = {"images-idx3": rng.integers(0, 255, (n, 28, 28)), "labels-idx1": rng.integers(0, 10, n)}
        for name, array in arrays.items():
            array = array.astype(np.uint8)
            head = bytes([0, 0, 8, array.ndim]) + b"".join(d.to_bytes(4, "big") for d in array.shape)
            (tmp_path / f"{split}-{name}-ubyte").write_bytes(head + array.tobytes())
    options = ["--data", tmp_path, "--batch", 6, "--set", "filters=8", "--set", "capsules=2", "--epochs"]
    save = ["--save", tmp_path / "x"]
    assert main.run([str(w) for w in ["train", "capsulenet", *options, 1, *save]]) == 0, capfd.readouterr().err
    assert main.run(["train", "capsulenet", "--resume", str(tmp_path / "x"), "--epochs", "2"]) == 0
    step = es.load(tmp_path / "x")
    assert step.epoch == 2 and step.loss is es.functional.margin_loss


@pytest.mark.parametrize("model", ["unet", "bert_base"])
def test_networks_without_data_here_are_refused(capfd, model) -> None:
    for command in ("train", "explain"):
        assert main.run([command, model]) == 2
        assert "train it with es.TrainStep" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("model, more", NETWORKS)
def test_explain_shows_a_network_of_colour_images(capfd, model, more) -> None:
    arguments = [word for setting in (*more, "classes=3") for word in ("--set", setting)]
    assert main.run(["explain", model, *arguments, "--batch", "2"]) == 0
    assert "forward" in capfd.readouterr().out
