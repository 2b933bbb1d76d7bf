"""`einsmith train` on a small data set of MNIST's file names, from options to the saved run."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from einsmith.base.sizes import size_of
from einsmith.cli import main
from tests.cli.digits import write_digits

TRAIN, TEST, BATCH = 70, 30, 16
STEPS = -(-TRAIN // BATCH)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("idx")
    write_digits(folder, TRAIN, TEST)
    return folder


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(data: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line in this process: (status, stdout, stderr)."""

    def call(*arguments: object, model: str = "mlp3") -> tuple[int, str, str]:
        words = ["train", model, "--data", data, "--batch", BATCH, *arguments]
        if "--resume" in arguments:
            words = ["train", model, *arguments]
        status = main.run([str(w) for w in words])
        out, err = capfd.readouterr()
        return status, out, err

    return call


def weights(folder: Path) -> dict[str, bytes]:
    from safetensors.numpy import load_file

    return {k: v.tobytes() for k, v in load_file(folder / "weights.safetensors").items()}


def rows(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.slow
def test_dynamic_mode(run: Run, tmp_path: Path) -> None:
    """Trains as ever, up to rounding; a resumed run may be in another mode."""
    status, plain, err = run("--epochs", 2, "--json")
    assert status == 0, err
    status, out, err = run("--epochs", 2, "--json", "--mode", "dynamic", "--save", tmp_path / "run")
    assert status == 0, err
    losses = [[row["loss"] for row in rows(text)] for text in (plain, out)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    for n, mode in enumerate((None, "static", None), start=3):
        told = () if mode is None else ("--mode", mode)
        status, out, err = run("--epochs", n, "--resume", tmp_path / "run", *told, "--json")
        assert status == 0 and rows(out)[-1]["epochs"] == n, err
        saved = json.loads((tmp_path / "run" / "step.json").read_text())
        assert saved["mode"] == ("dynamic" if n == 3 else "static"), "as it was, unless told otherwise"


def test_json_lines_and_what_is_saved(run: Run, tmp_path: Path) -> None:
    status, out, err = run("--epochs", 3, "--lr", 0.01, "--save", tmp_path / "run", "--json")
    assert status == 0, err
    *epochs, last = rows(out)
    assert [e["epoch"] for e in epochs] == [1, 2, 3]
    assert epochs[-1]["loss"] < epochs[0]["loss"] and epochs[-1]["accuracy"] > 0.3
    assert set(last) == {"loss", "accuracy", "epochs", "seconds"}
    assert last["epochs"] == 3 and last["accuracy"] == epochs[-1]["accuracy"] and last["seconds"] > 0
    assert (tmp_path / "run" / "loss.png").read_bytes().startswith(b"\x89PNG")
    saved = json.loads((tmp_path / "run" / "run.json").read_text())
    assert len(saved["losses"]) == 3 * STEPS and saved["history"] == epochs
    mean = np.average(saved["losses"][:STEPS], weights=[BATCH] * (STEPS - 1) + [TRAIN - BATCH * (STEPS - 1)])
    assert epochs[0]["loss"] == pytest.approx(mean)


def test_a_curve_that_is_not_drawn_loses_no_save(run: Run, tmp_path: Path, monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("no paper")

    monkeypatch.setattr("einsmith.cli.curve.draw", broken)
    status, _, err = run("--epochs", 1, "--save", tmp_path / "run")
    assert status == 0 and "the loss curve cannot be drawn: MemoryError: no paper" in err
    monkeypatch.undo()
    status, _, err = run("--epochs", 2, "--resume", tmp_path / "run")
    assert status == 0 and (tmp_path / "run" / "loss.png").exists(), err


def test_plain_lines(run: Run) -> None:
    status, out, err = run("--epochs", 2)
    assert status == 0, err
    lines = out.splitlines()
    assert len(lines) == 3 and lines[0].startswith("epoch 1/2  loss ") and "accuracy" in lines[0] and "left" in lines[0]
    assert lines[-1].startswith("mlp3: test accuracy")


def test_one_seed_one_result(run: Run, tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        status, _, err = run("--epochs", 1, "--seed", seed, "--save", tmp_path / name)
        assert status == 0, err
    assert weights(tmp_path / "a") == weights(tmp_path / "b") != weights(tmp_path / "c")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("stop_at", [2, STEPS, STEPS + 3])
def test_interrupt_and_resume_equal_one_run(run: Run, tmp_path: Path, monkeypatch, stop_at: int) -> None:
    from einsmith.cli.progress import TrainProgress

    whole, part = tmp_path / "whole", tmp_path / "part"
    status, _, err = run("--epochs", 2, "--save", whole)
    assert status == 0, err
    count = 0
    original = TrainProgress.step

    def step(self, *arguments) -> None:
        nonlocal count
        count += 1
        if count == stop_at:
            os.kill(os.getpid(), signal.SIGINT)
        original(self, *arguments)

    monkeypatch.setattr(TrainProgress, "step", step)
    status, out, err = run("--epochs", 2, "--save", part)
    assert status == 1 and f"interrupted after step {stop_at}" in err and f"--resume {part}" in err
    assert "Traceback" not in err
    status, out, err = run("--resume", part)
    assert status == 0, err
    assert weights(whole) == weights(part)
    a, b = (json.loads((p / "run.json").read_text()) for p in (whole, part))
    assert a["losses"] == b["losses"]
    assert [h["loss"] for h in a["history"]] == [h["loss"] for h in b["history"]]


def test_interrupt_without_save(run: Run, monkeypatch) -> None:
    from einsmith.cli.progress import TrainProgress

    monkeypatch.setattr(TrainProgress, "step", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    status, _, err = run("--epochs", 2)
    assert status == 1 and "nothing is saved" in err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_more_epochs_after_the_end(run: Run, tmp_path: Path) -> None:
    assert run("--epochs", 1, "--schedule", "constant", "--save", tmp_path / "r")[0] == 0
    status, out, err = run("--resume", tmp_path / "r", "--epochs", 2, "--json")
    assert status == 0 and [r.get("epoch") for r in rows(out)] == [2, None], err
    status, out, err = run("--resume", tmp_path / "r", "--json")
    assert status == 0 and "already" in err and rows(out)[-1]["epochs"] == 2


def test_a_loss_that_is_not_finite_keeps_the_last_save(run: Run, tmp_path: Path) -> None:
    assert run("--epochs", 1, "--save", tmp_path / "r")[0] == 0
    before = weights(tmp_path / "r")
    status, _, err = run("--epochs", 2, "--optimizer", "sgd", "--lr", 1e30, "--save", tmp_path / "r")
    assert status == 1 and "step" in err and "Traceback" not in err
    assert weights(tmp_path / "r") == before


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("lenet6", (), "did you mean lenet5"),
        ("mlp3", ("--optimizer", "adan"), "no optimizer is named"),
        ("mlp3", ("--batch", "0"), "--batch"),
        ("mlp3", ("--lr", "-1"), "--lr"),
        ("mlp3", ("--data", "cifar11"), "neither mnist nor fashion-mnist nor a folder"),
        ("mlp3", ("--mode", "fast"), "--mode"),
        ("mlp3", ("--schedule", "linear"), "--schedule"),
    ],
)
def test_wrong_use(run: Run, model: str, arguments: tuple, message: str) -> None:
    status, out, err = run(*arguments, model=model)
    assert status == 2 and message in err and not out


def test_missing_data(run: Run, tmp_path: Path) -> None:
    status, _, err = run("--data", tmp_path)
    assert status == 1 and "train-images-idx3-ubyte" in err and "Traceback" not in err


def test_debug_shows_the_trace(run: Run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("EINSMITH_DEBUG", "1")
    status, _, err = run("--data", tmp_path)
    assert status == 1 and "Traceback" in err


def test_a_folder_of_somebody_else(run: Run, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("chapter 1")
    status, _, err = run("--save", tmp_path)
    assert status == 1 and "not a saved run" in err and [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
    status, _, err = run("--resume", tmp_path)
    assert status == 1 and "not a saved step" in err


def test_resume_keeps_its_settings(run: Run, tmp_path: Path) -> None:
    assert run("--epochs", 1, "--save", tmp_path / "r")[0] == 0
    status, _, err = run("--resume", tmp_path / "r", "--optimizer", "sgd")
    assert status == 2 and "keeps its settings" in err
    status, _, err = run("--resume", tmp_path / "r", model="lenet5")
    assert status == 2 and "mlp3" in err


@pytest.mark.thinned(2)
@pytest.mark.parametrize("damage", ["truncate", "settings", "deep settings", "weights"])
def test_a_damaged_save(run: Run, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "r"
    assert run("--epochs", 1, "--save", folder)[0] == 0
    if damage == "truncate":
        (folder / "weights.safetensors").write_bytes((folder / "weights.safetensors").read_bytes()[:-5])
    elif damage == "settings":
        (folder / "run.json").write_text("{")
    elif damage == "deep settings":
        (folder / "run.json").write_text("[" * 100_000)
    else:
        (folder / "weights.safetensors").unlink()
    status, _, err = run("--resume", folder)
    assert status == 1 and "Traceback" not in err and str(folder) in err


@pytest.mark.slow
def test_clipping_accumulation_and_averages_resume_bitwise(run: Run, tmp_path: Path, monkeypatch) -> None:
    from einsmith.cli.progress import TrainProgress

    options = [
        "--optimizer",
        "muon",
        "--clip",
        0.5,
        "--accumulate",
        2,
        "--ema",
        0.9,
        "--seed",
        2,
        "--precision",
        "bf16",
    ]
    status, out, err = run("--epochs", 2, *options, "--save", tmp_path / "whole", "--json")
    assert status == 0, err
    assert len(json.loads((tmp_path / "whole" / "run.json").read_text())["losses"]) == 2 * STEPS
    count = 0
    original = TrainProgress.step

    def step(self, *arguments) -> None:
        nonlocal count
        count += 1
        if count == STEPS + 1:  # between the parts of an update
            os.kill(os.getpid(), signal.SIGINT)
        original(self, *arguments)

    monkeypatch.setattr(TrainProgress, "step", step)
    status, _, err = run("--epochs", 2, *options, "--save", tmp_path / "part")
    assert status == 1 and "interrupted" in err
    status, again, err = run("--resume", tmp_path / "part", "--json")
    assert status == 0, err
    assert weights(tmp_path / "part") == weights(tmp_path / "whole")
    last, before = rows(again)[-1], rows(out)[-1]
    assert (last["loss"], last["accuracy"]) == (before["loss"], before["accuracy"])
    losses = [json.loads((tmp_path / n / "run.json").read_text())["losses"] for n in ("whole", "part")]
    assert losses[0] == losses[1]
    status, _, err = run("--resume", tmp_path / "part", "--clip", 0.7)
    assert status == 2 and "--clip" in err


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", ["lion", "adafactor", "nadam"])
def test_other_optimizers(run: Run, name: str) -> None:
    status, out, err = run("--epochs", 1, "--optimizer", name, "--json")
    assert status == 0, err
    assert np.isfinite(rows(out)[-1]["loss"])


@pytest.mark.slow
def test_a_limit_of_memory(run: Run, tmp_path: Path) -> None:
    """Holds for a run and for what goes on with it; a limit that cannot be met says so before anything is saved."""
    status, free, _ = run("--epochs", 2, "--json", "--schedule", "constant", model="lenet5")
    assert status == 0
    given = ("--epochs", 1, "--json", "--schedule", "constant", "--save")
    status, out, err = run(*given, tmp_path / "none", "--memory-limit", "40kB", model="lenet5")
    assert status == 1 and not (tmp_path / "none" / "run.json").exists()
    least = err.split("is too little: at least ")[1].split(" are needed")[0]
    limit = int(size_of(least, "least") * 1.001)
    status, out, err = run(*given, tmp_path / "run", "--memory-limit", limit, model="lenet5")
    assert status == 0, err
    given = ("--epochs", 2, "--json", "--resume")
    status, more, err = run(*given, tmp_path / "run", "--memory-limit", limit, model="lenet5")
    assert status == 0, err
    assert [r["loss"] for r in rows(out)[:1] + rows(more)[:1]] == [r["loss"] for r in rows(free)[:2]]
    status, out, err = run("--memory-limit", "much")
    assert status == 2 and "is not a size; give bytes, or text such as '800MB'" in err
