"""The benchmark of accuracies, on a small network: its twin sees the batches and weights of the run, or is refused."""

import json

import numpy as np
import pytest

pytest.importorskip("torch", reason="the twins are PyTorch's")
from benchmarks import accuracy  # noqa: E402
from tests.models.twins import get  # noqa: E402
from tests.models.twins.capsule import margin_loss  # noqa: E402


@pytest.fixture
def tiny(rng, tmp_path, monkeypatch):
    """12 images, two batches an epoch."""
    images, labels = rng.integers(0, 255, (16, 1, 28, 28)) / 255, rng.integers(0, 10, 16)
    monkeypatch.setattr(accuracy, "mnist", lambda split, say: (images.astype(np.float32), labels))
    sizes = [word for size in ("filters=8", "capsules=2") for word in ("--set", size)]
    network = accuracy.Network(
        1, lambda folder: ["--data", str(accuracy.digits(folder, 12)), "--batch", "6", "--lr", "0.001", *sizes],
        lambda arguments: (get("capsulenet", filters=8, capsules=2), margin_loss),
    )  # fmt: skip
    monkeypatch.setitem(accuracy.NETWORKS, "capsulenet", network)

    def run(*words):
        given = ["accuracy", "--network", "capsulenet", "--folder", str(tmp_path), "--threads", "1", *words]
        monkeypatch.setattr("sys.argv", given)
        return accuracy.main()

    return run


@pytest.mark.slow
def test_both_sides_see_the_same(tiny, tmp_path, capsys):
    assert tiny("--epochs", "2") in (0, 1)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(found["history"]) == len(found["twin"]) == 2
    for mine, peer in zip(found["history"], found["twin"], strict=True):
        assert mine["loss"] == pytest.approx(peer["loss"], rel=1e-4)
        assert mine["test_loss"] == pytest.approx(peer["test_loss"], rel=1e-4)
    again = tiny("--epochs", "2", "--only", "pytorch")
    assert again in (0, 1) and json.loads(capsys.readouterr().out)["twin"] == found["twin"]


@pytest.mark.slow
def test_a_twin_resumes_within_an_epoch(tiny, monkeypatch, capsys):
    monkeypatch.setattr(accuracy, "EVERY", 1)
    said = accuracy.say

    def interrupted(line):
        if line == "PyTorch: epoch 2, batch 1 of 2":
            raise KeyboardInterrupt
        said(line)

    monkeypatch.setattr(accuracy, "say", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tiny("--epochs", "2")
    capsys.readouterr()
    lines = []
    monkeypatch.setattr(accuracy, "say", lines.append)
    assert tiny("--epochs", "2", "--only", "pytorch") in (0, 1)
    assert [x for x in lines if "batch" in x] == ["PyTorch: epoch 2, batch 2 of 2"]
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    for mine, peer in zip(found["history"], found["twin"], strict=True):
        assert mine["loss"] == pytest.approx(peer["loss"], rel=1e-4)
        assert mine["test_loss"] == pytest.approx(peer["test_loss"], rel=1e-4)


def test_a_twin_carries_its_states(tmp_path, monkeypatch, capsys):
    """From one batch of a text to the next, in training and in the evaluation."""
    for split, count in (("train", 60), ("test", 20)):
        (tmp_path / f"{split}.txt").write_text("a text that is read in order, word by word. " * count)
    sizes = [word for size in ("width=6", "layers=1") for word in ("--set", size)]
    words = ["--data", str(tmp_path), "--optimizer", "sgd", "--lr", "0.2", "--batch", "4", "--steps", "5", *sizes]
    monkeypatch.setitem(accuracy.NETWORKS, "lstm-lm", accuracy.Network(2, lambda folder: words, accuracy.lstm))
    monkeypatch.setattr("sys.argv", ["x", "--network", "lstm-lm", "--folder", str(tmp_path / "out"), "--threads", "1"])
    assert accuracy.main() == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    for mine, peer in zip(found["history"], found["twin"], strict=True):
        assert mine["loss"] == pytest.approx(peer["loss"], rel=1e-4)
        assert mine["perplexity"] == pytest.approx(peer["perplexity"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["batch", "weights"])
def test_a_twin_that_sees_something_else_is_refused(tiny, tmp_path, wrong):
    assert tiny("--only", "einsmith") == 0
    folder = tmp_path / "capsulenet-1"
    if wrong == "batch":
        path = folder / "batches.jsonl"
        first, second = map(json.loads, path.read_text().splitlines())
        path.write_text(json.dumps(first) + "\n" + json.dumps([*second[:2], first[2]]) + "\n")
    else:
        path = folder / "run" / "run.json"
        run = json.loads(path.read_text())
        path.write_text(json.dumps(run | {"losses": [1.01 * run["losses"][0], *run["losses"][1:]]}))
    with pytest.raises(SystemExit, match="batch 1 of epoch 0" if wrong == "batch" else "weights are not the same"):
        tiny("--only", "pytorch")


def test_the_accuracy_criterion():
    assert accuracy.compared([{"accuracy": 0.700}], [{"accuracy": 0.7025}])[1]
    assert not accuracy.compared([{"accuracy": 0.700}], [{"accuracy": 0.704}])[1]
    assert accuracy.compared([{"perplexity": 5.0}], [{"perplexity": 4.96}])[1]
    assert not accuracy.compared([{"perplexity": 5.0}], [{"perplexity": 4.9}])[1]
    rows = [{"accuracy": 0.5}, {"accuracy": 0.9}]
    assert accuracy.compared(rows, [{"accuracy": 0.6}])[0]["einsmith"] == 0.5
