"""`einsmith train` and `explain` of networks of sequences on small data: rows of images, and text."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path

import numpy as np
import pytest

import einsmith as es
from einsmith.cli import main
from einsmith.cli.tasks import token_loss
from einsmith.data import mnist_files

SMALL = ("--set", "width=12", "--set", "layers=1", "--batch", "3", "--steps", "5", "--lr", "0.02")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "train.txt").write_text("the quick brown fox jumps over the lazy dog . " * 12)
    (folder / "test.txt").write_text("the lazy fox jumps over the quick cat . " * 3)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(7)
    folder = tmp_path_factory.mktemp("idx")
    for split, n in (("train", 48), ("test", 20)):
        labels = rng.integers(0, 10, n).astype(np.uint8)
        rows = rng.integers(0, 60, (n, 12, 9)).astype(np.uint8)
        for image, label in zip(rows, labels, strict=True):
            image[label] = 255
        for name, a in zip(mnist_files.FILES[split], (rows, labels), strict=True):
            head = bytes([0, 0, 8, a.ndim]) + b"".join(k.to_bytes(4, "big") for k in a.shape)
            (folder / name).write_bytes(head + a.tobytes())
    return folder


def run(capfd: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main.run([str(w) for w in words])
    out, err = capfd.readouterr()
    return status, out, err


def test_a_language_model(texts: Path, tmp_path: Path, capfd) -> None:
    folder = tmp_path / "run"
    status, out, err = run(
        capfd, "train", "lstm-lm", "--data", texts, *SMALL, "--epochs", 3, "--save", folder, "--json"
    )
    assert status == 0, err
    *epochs, last = [json.loads(line) for line in out.splitlines()]
    assert [e["perplexity"] for e in epochs] == [pytest.approx(math.exp(e["test_loss"])) for e in epochs]
    assert epochs[-1]["perplexity"] < epochs[0]["perplexity"] < 20 and "accuracy" not in epochs[0]
    assert set(last) == {"loss", "perplexity", "epochs", "seconds"}
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    step = es.load(folder)
    assert step.model.embedding.weight.shape == (10, 12) and step.model.hidden.data.any()
    status, out, err = run(capfd, "train", "lstm-lm", "--resume", folder, "--epochs", 4)
    assert status == 0 and "perplexity" in out.splitlines()[-1], err
    status, _, err = run(capfd, "train", "lstm-lm", "--resume", folder, "--set", "width=13")
    assert status == 2 and "keeps its settings" in err


@pytest.mark.slow
def test_an_interrupted_text_resumes_with_its_states(texts: Path, tmp_path: Path, monkeypatch, capfd) -> None:
    from safetensors.numpy import load_file

    from einsmith.cli.progress import TrainProgress

    words = ("train", "lstm-lm", "--data", texts, *SMALL, "--epochs", 2)
    assert run(capfd, *words, "--save", tmp_path / "whole")[0] == 0
    original, count = TrainProgress.step, 0

    def step(self, *arguments) -> None:
        nonlocal count
        count += 1
        if count == 3:
            os.kill(os.getpid(), signal.SIGINT)
        original(self, *arguments)

    monkeypatch.setattr(TrainProgress, "step", step)
    assert run(capfd, *words, "--save", tmp_path / "part")[0] == 1
    assert run(capfd, "train", "lstm-lm", "--resume", tmp_path / "part")[0] == 0
    a, b = (load_file(tmp_path / p / "weights.safetensors") for p in ("whole", "part"))
    assert {"hidden", "cell"} < set(a) and all(np.array_equal(a[n], b[n]) for n in a)


def test_characters(texts: Path, capfd) -> None:
    status, out, err = run(
        capfd, "train", "lstm-lm", "--data", texts, *SMALL, "--unit", "character", "--vocabulary", 9, "--epochs", 1
    )
    assert status == 0 and "perplexity" in out, err


GPT = ("--set", "width=8", "--set", "layers=1", "--set", "heads=2")


@pytest.mark.slow
def test_a_transformer_learns_characters(texts: Path, tmp_path: Path, capfd) -> None:
    """552 characters are 78 windows of 7 and what follows them: 12 batches an epoch, the last of one window."""
    folder = tmp_path / "run"
    options = ("--data", texts, *GPT, "--steps", 7, "--batch", 7, "--lr", 0.02)
    status, out, err = run(capfd, "train", "gpt_small", *options, "--epochs", 3, "--save", folder, "--json")
    assert status == 0, err
    epochs = [json.loads(line) for line in out.splitlines()][:-1]
    assert epochs[-1]["perplexity"] < 0.7 * epochs[0]["perplexity"] and "accuracy" not in epochs[0]
    saved = json.loads((folder / "run.json").read_text())
    assert saved["unit"] == "character" and len(saved["losses"]) == 3 * 12
    status, out, err = run(capfd, "train", "gpt_small", "--resume", folder, "--epochs", 4)
    assert status == 0 and "perplexity" in out.splitlines()[-1], err
    model = es.load(folder, loss=token_loss).model.eval()
    characters = len(set((texts / "train.txt").read_text())) + 1
    assert model.wpe.weight.shape == (7, 8) and model.wte.weight.shape == (characters, 8)
    # What is reported is what the saved weights give on the test text, window by window.
    train, test = ((texts / f"{split}.txt").read_text() for split in ("train", "test"))
    x, y = es.data.windows(es.data.Vocabulary.of(train, "character").encode(test), 7)
    logits = np.asarray(model(x), np.float64)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    told = np.exp(-np.log(np.take_along_axis(p, y[..., None], -1)).mean())
    assert json.loads((folder / "run.json").read_text())["history"][-1]["perplexity"] == pytest.approx(told, rel=1e-4)


@pytest.mark.slow
def test_rows_of_images(images: Path, capfd) -> None:
    status, out, err = run(
        capfd, "train", "milstm", "--data", images, "--set", "hidden_size=16", "--batch", 16, "--epochs", 4,
        "--lr", 0.02, "--json",
    )  # fmt: skip
    assert status == 0, err
    epochs = [json.loads(line) for line in out.splitlines()]
    assert epochs[-2]["loss"] < epochs[0]["loss"] and "accuracy" in epochs[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "milstm", "--data", "sotu"), "neither mnist-rows nor mnist nor a folder"),
        (("train", "lstm-lm", "--data", "mnist"), "neither sotu nor moby-dick nor a folder"),
        (("train", "milstm", "--steps", "4"), "--steps is for language models"),
        (("train", "lstm-lm", "--set", "depth=3"), "no argument depth; it has vocabulary, width"),
        (("train", "lstm-lm", "--set", "width"), "NAME=VALUE"),
        (("train", "lstm-lm", "--set", "width=wide"), "takes a number"),
        (("train", "gpt_small", "--data", "mnist"), "neither moby-dick nor sotu nor a folder"),
        (("train", "gpt_small", "--size", "8"), "--size is for networks of colour images"),
        (("explain", "lstm-lm", "--set", "depth=3"), "no argument depth"),
        (("explain", "lstm-lm", "--shape", "x=3"), "--shape is for a file"),
    ],
)
def test_wrong_use(words: tuple, message: str, capfd) -> None:
    status, out, err = run(capfd, *words)
    assert status == 2 and message in err and not out


@pytest.mark.parametrize("model", ["lstm-lm", "gpt_small"])
def test_missing_and_short_text(model: str, tmp_path: Path, capfd) -> None:
    status, _, err = run(capfd, "train", model, "--data", tmp_path)
    assert status == 1 and "train.txt" in err and "Traceback" not in err
    for split in ("train", "test"):
        (tmp_path / f"{split}.txt").write_text("a b c d e f")
    status, _, err = run(capfd, "train", model, "--data", tmp_path, "--steps", 11)
    assert status == 1 and "11 steps and the token after" in err and "Traceback" not in err


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "words",
    [
        ("milstm", "--set", "hidden_size=16"),
        ("lstm-lm", "--set", "width=16"),
        pytest.param(("gpt_small", *GPT), marks=pytest.mark.slow),
    ],
)
def test_explain(words: tuple, capfd) -> None:
    small = () if words[0] == "milstm" else ("--set", "vocabulary=50")
    status, out, err = run(capfd, "explain", *words, *small, "--batch", 4, "--json")
    assert status == 0, err
    assert len(json.loads(out)["kernels"]) > 5
