"""transformers' Trainer, Accelerate and Lightning train with the backend as without it, and resume from checkpoints."""

from __future__ import annotations

import importlib.util
import logging
import math
import warnings
from pathlib import Path

import numpy as np
import pytest

from einsmith.base.errors import EinsmithWarning
from einsmith.driver.executable import Executable

torch = pytest.importorskip("torch", reason="its trainers are tested")

EXAMPLES = Path(__file__).parents[2] / "examples"
RTOL = 2e-4
"""Of losses in float32 after at most 8 steps; sums are added in another order."""


@pytest.fixture
def programs(monkeypatch):
    """A list that gets an entry for each program that is compiled; what runs in PyTorch instead is an error."""
    made, old = [], Executable.__init__

    def noted(self, *args, **kwargs):
        made.append(self)
        old(self, *args, **kwargs)

    monkeypatch.setattr(Executable, "__init__", noted)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", EinsmithWarning)
        yield made


def load_example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_losses(eager, whole, resumed, steps):
    assert len(eager) == len(whole) == steps and all(map(math.isfinite, eager)) and len(set(eager)) == steps
    np.testing.assert_allclose(whole, eager, rtol=RTOL)
    np.testing.assert_allclose(resumed, whole[-len(resumed) :], rtol=1e-6)


@pytest.mark.slow
def test_the_trainer_of_transformers(programs, tmp_path) -> None:
    pytest.importorskip("transformers", reason="its Trainer is tested")
    pytest.importorskip("accelerate", reason="the Trainer builds on it")
    example = load_example("transformers_trainer")
    eager = example.train(tmp_path / "eager", 6, None)
    assert not programs
    whole = example.train(tmp_path / "runs", 6)
    assert len(programs) == 2  # one forward, one backward
    resumed = example.train(tmp_path / "runs", 6, checkpoint=tmp_path / "runs" / "checkpoint-4")
    check_losses(eager, whole, resumed, 6)


@pytest.mark.slow
def test_a_loop_of_accelerate(programs, tmp_path) -> None:
    pytest.importorskip("accelerate", reason="it is tested")
    from accelerate.state import AcceleratorState

    example = load_example("accelerate_loop")

    def train(*args, **kwargs):
        AcceleratorState._reset_state(True)  # the first Accelerator of a process sets its backend
        return example.train(*args, **kwargs)

    eager = train(tmp_path / "eager", 2, "no")
    assert not programs
    whole = train(tmp_path / "whole", 2)
    assert len(programs) == 2
    train(tmp_path / "half", 1)
    resumed = train(tmp_path / "half", 2, resume=True)
    assert len(resumed) == 4
    check_losses(eager, whole, resumed, 8)


def test_accelerates_list_of_backends() -> None:
    pytest.importorskip("accelerate", reason="its list is tested")
    from accelerate.utils import DynamoBackend, TorchDynamoPlugin

    from einsmith.frontends.accelerate import add_backend

    for _ in range(2):
        add_backend()
        member = DynamoBackend("EINSMITH")
        assert DynamoBackend(member) is member and member.value == "EINSMITH" and member != DynamoBackend.NO
    assert TorchDynamoPlugin(backend="einsmith").to_kwargs()["backend"] == "einsmith"
    with pytest.raises(ValueError, match="is not a valid DynamoBackend"):
        TorchDynamoPlugin(backend="einsmiht")


@pytest.mark.slow
def test_a_module_of_lightning(programs, tmp_path) -> None:
    pytest.importorskip("lightning", reason="it is tested")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    example = load_example("lightning_module")
    eager = example.train(tmp_path / "eager", 2, None)
    assert not programs
    whole = example.train(tmp_path / "runs", 2)
    assert len(programs) == 2
    resumed = example.train(tmp_path / "runs", 2, checkpoint=tmp_path / "runs" / "epoch=0.ckpt")
    assert len(resumed) == 4
    check_losses(eager, whole, resumed, 8)
    names = torch.load(tmp_path / "runs" / "epoch=0.ckpt", weights_only=False)["state_dict"]
    assert set(names) == set(example.Moons(None).state_dict())
