"""`einsmith export`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import einsmith as es
from einsmith.cli import main
from tests.export.common import compiler


@pytest.fixture(autouse=True)
def _tools() -> None:
    compiler()


def test_a_model_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main.run(["export", "mlp3", out, "--batch", "4", "--name", "net", "--threads", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "net"
    library = es.load_library(out)
    assert np.isfinite(library.step(np.zeros((4, 1, 28, 28), np.float32), np.zeros(4, np.int64)))
    assert main.run(["export", "mlp3", out, "--batch", "4"]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main.run(["export", "mlp3", out, "--batch", "8", "--overwrite"]) == 0
    shown = capsys.readouterr().out
    assert "mlp3_train(input, target)" in shown and "libmlp3.so" in shown


def test_a_saved_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, 4)
    schedule = es.optim.lr_scheduler.StepLR(0.1, step_size=3)
    step = es.TrainStep(es.models.mlp3(), es.functional.cross_entropy, es.optim.SGD(lr=schedule))
    step(x, y)
    es.save(step, tmp_path / "run")
    command = ["export", str(tmp_path / "run"), str(tmp_path / "out"), "--batch", "4"]
    assert main.run(command) == 1
    assert "schedule=N" in capsys.readouterr().err
    assert main.run([*command, "--set", "a=3"]) == 2
    assert main.run([*command, "--schedule", "10"]) == 0
    library = es.load_library(tmp_path / "out")
    assert library.steps == 1 and [library.step(x, y) for _ in range(3)] == [step(x, y) for _ in range(3)]


def test_neither_a_model_nor_a_saved_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["export", "nothing", str(tmp_path / "out")]) == 2
    assert "'nothing' is neither a saved run nor a model; the models are" in capsys.readouterr().err
    es.save(es.TrainStep(es.nn.Linear(3, 3), es.functional.cross_entropy, es.optim.SGD(lr=0.1)), tmp_path / "run")
    assert main.run(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 1
    assert "a model of your own class" in capsys.readouterr().err
