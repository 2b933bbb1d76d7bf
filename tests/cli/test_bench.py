"""`einsmith bench`: peers side by side from the package alone, verified before they are timed."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from einsmith import models
from einsmith.bench import harness, table
from einsmith.bench.networks import NETWORKS
from einsmith.cli import bench, main
from tests.benchmarks.small_networks import small

MODULES = {"torch": "torch", "compile": "torch", "jax": "jax", "tensorflow": "tensorflow", "xla": "tensorflow"}


def session(peer: str, name: str):
    problem, module = table.find(name), importlib.import_module(table.PEERS[peer])
    return problem, module.build(problem, problem.arrays(), 1, peer)


@pytest.mark.parametrize("name", ["mlp3-b3", "lenet5-b3", "scrn-b2-t3"])
@pytest.mark.parametrize("peer", ["torch", "jax", "tensorflow"])
def test_peers_compute_the_same_step(peer: str, name: str) -> None:
    pytest.importorskip(MODULES[peer], reason=f"{peer} is not installed")
    problem, ours = session("einsmith", name)
    _, theirs = session(peer, name)
    start = problem.arrays()
    for _ in range(2):
        assert theirs.step() == pytest.approx(ours.step(), rel=1e-5)
    got, want = theirs.results(), ours.results()
    assert set(got) == set(want) and set(problem.results) <= set(got)
    for name in got:
        change = want[name] - start[name]
        assert got[name].shape == change.shape and np.abs(change).max() > 0
        np.testing.assert_allclose(got[name] - start[name], change, atol=1e-3 * np.abs(change).max(), err_msg=name)


@pytest.mark.parametrize("name", NETWORKS)
def test_twins_have_the_states_of_the_models(name: str) -> None:
    pytest.importorskip("torch", reason="the twins are PyTorch's")
    from einsmith.bench import twins

    problem = small(name)
    ours = {n: np.shape(v) for n, v in problem.network_of(models.get).state_dict().items()}
    twin = problem.network_of(twins.get)
    assert {n: tuple(v.shape) for n, v in twin.state_dict().items()} == ours
    counted = sum(np.size(v) for v in problem.network_of(models.get).parameters())
    assert sum(p.numel() for p in twin.parameters()) == counted > 0


def test_all_models_can_be_compared() -> None:
    assert set(table.COMPARED) == set(models.names()) and set(table.QUICK) <= set(table.COMPARED)
    for name in table.COMPARED:
        problem = table.make_problem(name, 3)
        assert problem.batch == 3 and table.find(problem.name).name == problem.name
        assert type(table.find(problem.name)) is type(problem)
    usual = {n: table.make_problem(n).batch for n in ("mlp3", "lstm-lm", "milstm", "resnet18")}
    assert usual == {"mlp3": 64, "lstm-lm": 20, "milstm": 16, "resnet18": 4}
    assert table.usual_cap("lenet5") < table.usual_cap("resnet50")


def test_a_recurrent_network_has_more_peers(capsys, monkeypatch) -> None:
    asked = []

    def fake(problem, peers, threads, pace, cap, *_, **__):
        asked.append((problem.name, peers, cap))
        return {"threads": 1, "verified": True, "peers": {"einsmith": {"status": "ok"}, "jax-unrolled": {
            "status": "missing"}}, "best_peer": None, "speedup": None}  # fmt: skip

    monkeypatch.setattr(harness, "run_problem", fake)
    assert main.run(["bench", "milstm", "--peers", "jax", "--cap", "7"]) == 0
    assert asked == [("milstm-b16-t28", ["einsmith", "jax", "jax-unrolled"], 7)]
    assert "not installed, and so not compared: jax\n" in capsys.readouterr().out


def test_a_comparison(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is missing named; nothing is timed here for long."""
    monkeypatch.setattr(bench, "ROUNDS", 1)
    monkeypatch.setattr(bench, "SECONDS", 0.01)
    chosen = ["einsmith", "torch", "jax"]
    assert main.run(["bench", "mlp3", "--batch", "4", "--peers", "torch,jax", "--threads", "1", "--json"]) == 0
    cell = json.loads(capsys.readouterr().out)
    assert list(cell["peers"]) == chosen and cell["network"] == "mlp3" and cell["threads"] == 1
    for peer in chosen:
        try:
            importlib.import_module(peer)
        except ImportError:
            assert cell["peers"][peer]["status"] == "missing"
        else:
            assert cell["peers"][peer]["status"] == "ok" and cell["peers"][peer]["median"] > 0
            assert cell["verified"] or peer == "einsmith"


def test_what_is_wrong_or_missing_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "einsmith": {"status": "ok", "median": 1e-3, "low": 1e-3, "high": 2e-3},
        "torch": {"status": "wrong", "message": "losses differ by 1.0e-01 relative"},
        "jax": {"status": "missing", "message": "No module named 'jax'"},
    }
    cell = {"threads": 1, "verified": True, "peers": found, "best_peer": None, "speedup": None}
    monkeypatch.setattr(harness, "run_problem", lambda *_, **__: cell)
    assert main.run(["bench", "lenet5"]) == 1
    shown, error = capsys.readouterr()
    assert "error: lenet5-b64: torch: wrong: losses differ by" in error
    assert "not installed, and so not compared: jax" in shown and "1.00" in shown
    found["torch"]["status"] = "failed"
    assert main.run(["bench", "lenet5"]) == 0
    found["einsmith"]["status"] = "failed"
    assert main.run(["bench", "lenet5"]) == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["resnet19"], "no model is named 'resnet19'; did you mean 'resnet18'?"),
        (["mlp3", "resnet19"], "did you mean 'resnet18'?"),
        (["--peers", "theano"], "there are torch, compile"),
        (["--batch", "0"], "--batch"),
    ],
)
def test_what_there_is_not(arguments: list[str], message: str, capsys, monkeypatch) -> None:
    monkeypatch.setattr(harness, "run_problem", None)  # nothing runs
    assert main.run(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_model_without_a_twin_is_named(capsys, monkeypatch) -> None:
    monkeypatch.setitem(models._MODELS, "own", models.maker("mlp3"))
    assert main.run(["bench", "own"]) == 2
    error = capsys.readouterr().err
    assert "'own' is written in Einsmith alone, so there is nothing to compare it with" in error and "resnet18" in error


def test_the_package_needs_no_checkout() -> None:
    folder = Path(harness.__file__).parent
    assert not [p for p in folder.rglob("*.py") if "from benchmarks" in p.read_text()]
