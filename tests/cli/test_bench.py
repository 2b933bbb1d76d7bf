"""`einsmith bench`: Einsmith and PyTorch side by side from the package alone, verified before they are timed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.small_networks import SMALL, small
from einsmith import bench as package
from einsmith import models
from einsmith.base.workers import Lost
from einsmith.bench import compare
from einsmith.bench.networks import NETWORKS
from einsmith.bench.steps import EinsmithStep
from einsmith.bench.verify import Exact, step_error
from einsmith.cli import bench, main

RECURRENT = {"lltm", "lstm-lm", "milstm", "scrn", "sublstm"}


@pytest.mark.thinned(16)
@pytest.mark.parametrize("name", NETWORKS)
def test_pytorch_computes_the_same_step(name: str, torch) -> None:
    """The network has the state, the losses and the updates of the model's own in float64, as far as float32 tells."""
    from einsmith.bench.torch_steps import TorchStep

    problem = small(name)
    arrays = problem.arrays()
    ours, theirs = EinsmithStep(problem, arrays, 1), TorchStep(problem, arrays, "reference")
    parameters = {n: np.shape(p) for n, p in ours.model.named_parameters()}
    assert {n: tuple(p.shape) for n, p in theirs.module.network.named_parameters()} == parameters
    losses, exact_losses = [ours.step()], [theirs.step()]
    changes, exact = ({n: a - arrays[n] for n, a in x.results().items()} for x in (ours, theirs))
    assert set(exact) == {n for n, a in arrays.items() if a.dtype.kind == "f"} - {"x", "y"}
    assert not step_error(losses, changes, Exact(exact_losses, exact, arrays))
    assert step_error(losses, {n: 0 * a for n, a in changes.items()}, Exact(exact_losses, exact, arrays))


def test_networks_run_the_same_in_every_layout_and_compiled(torch) -> None:
    from einsmith.bench.in_torch import in_torch
    from einsmith.bench.torch_steps import LAYOUTS, TorchStep

    problem = small("shufflenet_v1")
    arrays = problem.arrays()
    losses = [TorchStep(problem, arrays, "torch", layout).step() for layout in LAYOUTS]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    whole = torch.compile(in_torch(small("capsulenet").make_network()), backend="eager", fullgraph=True)
    assert whole(torch.zeros(2, 1, 18, 18)).shape == (2, 3)


def test_layers_that_pytorch_lacks_are_named(torch) -> None:
    from einsmith.base.errors import ArgumentError
    from einsmith.bench.in_torch import in_torch

    with pytest.raises(ArgumentError, match="PyTorch has no layer MILSTM"):
        in_torch(models.get("milstm"))


def test_all_other_models_can_be_compared() -> None:
    assert {*NETWORKS, *RECURRENT} == set(models.names()) and set(SMALL) == set(NETWORKS)
    sizes = {n: bench.make_problem(n).batch for n in ("mlp3", "resnet18")}
    assert sizes == {"mlp3": 64, "resnet18": 4} and bench.make_problem("unet", 3).batch == 3


@pytest.mark.slow
def test_a_comparison(capsys, monkeypatch) -> None:
    """With what is missing named; nothing is timed here for long."""
    monkeypatch.setattr(compare, "ROUNDS", 1)
    monkeypatch.setattr(compare, "MIN_ROUNDS", 1)
    assert main.run(["bench", "mlp3", "--batch", "4", "--peers", "torch", "--threads", "1", "--json"]) == 0
    cell = json.loads(capsys.readouterr().out)
    assert list(cell["peers"]) == ["einsmith", "torch"] and cell["network"] == "mlp3" and cell["threads"] == 1
    assert cell["peers"]["einsmith"]["median"] > 0 and len(cell["peers"]["einsmith"]["rounds"]) == 1
    if cell["verified"]:
        assert cell["peers"]["torch"]["median"] > 0 and cell["best_peer"] == "torch" and cell["speedup"] > 0
    else:
        assert cell["peers"]["torch"]["status"] == "missing"


class Worker:
    """A process of a library whose steps are given: the factor on its updates, and the seconds of a step."""

    libraries = {"einsmith": (1.0, 1e-3), "torch": (1.0, 3e-3), "compile": (1.5, 1e-4), "reference": (1.0, 1.0)}

    def __init__(self, server: str, start: float):
        self.timed = 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...

    def set_up(self, name: str, *_: object) -> None:
        self.factor, self.seconds = self.libraries.get(name, (None, 0.0))

    def ask(self, name: str, *arguments, limit: float):
        if self.factor is None:
            raise Lost("it did not end within 10 s")
        if name == "open":
            self.start = arguments[0].arrays()
        if name == "time":
            self.timed += 1
            return [self.seconds] * arguments[0]
        results = {n: a + self.factor for n, a in self.start.items() if n not in "xy"}
        steps = {"losses": [1.0] * (arguments[0] if name == "steps" else 0), "bytes": 5}
        return {"first": {"seconds": 1.0}, "choose": {"variant": ""}, "steps": steps, "results": results}.get(name)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_steps_are_verified_before_they_are_timed(precision: str, monkeypatch) -> None:
    """In float32 where the reference takes too long."""
    if precision == "float32":
        monkeypatch.delitem(Worker.libraries, "reference")
    monkeypatch.setattr(compare, "Worker", Worker)
    monkeypatch.setattr(compare, "PAUSE", 0)
    problem = small("mlp3")
    cell = compare.compare(problem, ["einsmith", *compare.PEERS], 1, 10.0, lambda text: None)
    assert {p: r["status"] for p, r in cell["peers"].items()} == {"einsmith": "ok", "torch": "ok", "compile": "wrong"}
    assert not cell["peers"]["compile"]["rounds"] and "differs by" in cell["peers"]["compile"]["message"]
    assert cell["best_peer"] == "torch" and cell["speedup"] == pytest.approx(3) and cell["verified"]
    assert cell["verification"] == f"verified against PyTorch in {precision}"
    assert len(cell["peers"]["torch"]["rounds"]) == compare.ROUNDS


def test_what_is_wrong_or_missing_is_said(capsys, monkeypatch) -> None:
    rows = {
        "einsmith": {"status": "ok", "median": 1e-3, "low": 1e-3, "high": 2e-3},
        "torch": {"status": "wrong", "message": "losses differ by 1.0e-01 relative"},
        "compile": {"status": "missing", "message": "No module named 'torch'"},
    }
    cell = {"threads": 1, "verification": "", "peers": rows, "best_peer": None, "speedup": None}
    monkeypatch.setattr(compare, "compare", lambda *_: cell)
    assert main.run(["bench", "lenet5"]) == 1
    shown, error = capsys.readouterr()
    assert "error: lenet5-b64: torch: wrong: losses differ by" in error
    assert "not installed, and so not compared: torch" in shown and "1.00" in shown
    rows["torch"]["status"] = "failed"
    assert main.run(["bench", "lenet5"]) == 0
    rows["einsmith"] |= {"status": "failed", "message": "x"}
    assert main.run(["bench", "lenet5"]) == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["resnet19"], "no model is named 'resnet19'; did you mean 'resnet18'?"),
        (["mlp3", "resnet19"], "did you mean 'resnet18'?"),
        (["milstm"], "'milstm' has no program in PyTorch here"),
        (["milstm"], "python -m benchmarks.recurrent"),
        (["--peers", "theano"], "there are torch, compile"),
        (["--batch", "0"], "--batch"),
    ],
)
def test_what_there_is_not(arguments: list[str], message: str, capsys, monkeypatch) -> None:
    monkeypatch.setattr(compare, "compare", None)  # nothing runs
    assert main.run(["bench", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_the_package_needs_no_checkout() -> None:
    folder = Path(package.__file__).parent
    assert not [p for p in folder.rglob("*.py") if "benchmarks import" in p.read_text()]
