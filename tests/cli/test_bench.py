"""`einsmith bench`: peers side by side from the package alone, verified before they are timed."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from einsmith.bench import harness, table
from einsmith.bench.networks import LAYERS, network_step
from einsmith.bench.peers.images_last import ChannelsLast
from einsmith.cli import bench, main

MODULES = {"torch": "torch", "compile": "torch", "jax": "jax", "tensorflow": "tensorflow", "xla": "tensorflow"}


def session(peer: str, name: str):
    problem, module = table.find(name), importlib.import_module(table.PEERS[peer])
    return problem, module.build(problem, problem.arrays(), 1, peer)


@pytest.mark.parametrize("network", LAYERS)
@pytest.mark.parametrize("peer", ["torch", "jax", "tensorflow"])
def test_peers_compute_the_same_step(peer: str, network: str) -> None:
    pytest.importorskip(MODULES[peer], reason=f"{peer} is not installed")
    problem, ours = session("einsmith", f"{network}-b3")
    _, theirs = session(peer, f"{network}-b3")
    start = problem.arrays()
    for _ in range(2):
        assert theirs.step() == pytest.approx(ours.step(), rel=1e-5)
    got, want = theirs.results(), ours.results()
    assert set(got) == set(want) == set(problem.results)
    for name in got:
        change = want[name] - start[name]
        assert got[name].shape == change.shape and np.abs(change).max() > 0
        np.testing.assert_allclose(got[name] - start[name], change, atol=1e-3 * np.abs(change).max(), err_msg=name)


@pytest.mark.parametrize("network", LAYERS)
def test_layouts_lead_back(network: str) -> None:
    problem = network_step(network, 2)
    arrays = problem.arrays()
    order = ChannelsLast(problem, arrays)
    for name in problem.results:
        moved = order.to_peer(name, arrays[name])
        assert (order.from_peer(name, moved) == arrays[name]).all() and moved.flags.c_contiguous
    assert order.to_peer("x", arrays["x"]).shape == (2, 28, 28, 1)


def test_the_arithmetic_is_that_of_the_products() -> None:
    n, m = 784 * 512, 512 * 256 + 256 * 10
    assert network_step("mlp3", 5).flops == 5 * (4 * n + 6 * m)
    conv1, conv2, linear = 28 * 28 * 6 * 25, 100 * 16 * 6 * 25, 400 * 120 + 120 * 84 + 84 * 10
    assert network_step("lenet5", 2).flops == 2 * (4 * conv1 + 6 * (conv2 + linear))


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


@pytest.mark.parametrize("arguments", [["resnet18"], ["--peers", "theano"], ["--batch", "0"]])
def test_what_there_is_not(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert "there are mlp3, lenet5" in error or "there are torch, compile" in error or "--batch" in error


def test_the_package_needs_no_checkout() -> None:
    folder = Path(harness.__file__).parent
    assert not [p for p in folder.rglob("*.py") if "from benchmarks" in p.read_text()]
