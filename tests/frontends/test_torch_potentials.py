"""Interatomic potentials of other packages, and other losses of derivatives, are trained as in eager execution."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")

from benchmarks.models_of_others import Trained  # noqa: E402
from benchmarks.potentials import MODELS, packages  # noqa: E402
from tests.frontends import potentials  # noqa: E402

ROOT = Path(__file__).parents[2]
BROKEN = {"SchNet", "PaiNN", "SchNet with forces", "ScaleShiftMACE with forces", "EquivariantTransformer"}
"""Those of which TorchDynamo makes several graphs: they read a size from a tensor's elements, or differentiate."""
QUICK = "MAML", "WGAN-GP"
"""Those that are compiled in few seconds, without packages."""


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.set_default_dtype(torch.float32)


def _check(name: str, dtype: str, *options: str) -> None:
    """Train a model in a process of its own, as its packages need other versions than those of other models."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.frontends.potentials", name, "--dtype", dtype, *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if not lines:
        pytest.fail(f"{name} ended with {run.returncode}:\n{run.stderr[-2000:]}")
    seen = json.loads(lines[-1])
    if "skipped" in seen:
        pytest.skip(seen["skipped"])
    assert max(seen["loss"], seen["weight"]) <= potentials.CLOSE[dtype], seen
    assert not seen["in_pytorch"], seen
    assert name in BROKEN or not seen["breaks"], seen


@pytest.mark.slow
@pytest.mark.parametrize("dtype", potentials.CLOSE)
@pytest.mark.parametrize("name", MODELS)
def test_a_potential_is_trained_as_in_eager(name: str, dtype: str) -> None:
    _check(name, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SchNet", "e3nn"])
def test_batches_have_edges_of_their_own(name: str) -> None:
    _check(name, "float64", "--changing", "--steps", "12")


@pytest.mark.parametrize("name", QUICK)
def test_losses_without_packages_are_trained_as_in_eager(name: str) -> None:
    seen = potentials.compare(name, "float64", 5, fallback="error")
    assert max(seen.loss, seen.weight) <= potentials.CLOSE["float64"] and not seen.breaks, seen


def test_the_comparison_detects_a_wrong_gradient() -> None:
    """A potential whose forces are a hundredth of a millionth off."""

    class Off(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.off = torch.nn.Parameter(torch.tensor([0.3, 0.7], dtype=torch.float64)), 0.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.weight * (1 + self.off) * x**3).sum()

    def loss(f: Any, batch: Any) -> torch.Tensor:
        x = batch["x"].requires_grad_()
        return torch.autograd.grad(f(x), x, create_graph=True)[0].square().sum()

    def run(off: float) -> tuple[list[float], list[torch.Tensor]]:
        model = Off()
        model.off = off
        trained = Trained(model, lambda seed: {"x": torch.tensor([1.0, 2.0], dtype=torch.float64) + seed}, loss)
        return potentials.train(trained, torch.float64, 3, lambda m: m)

    same = potentials.differences(run(0.0), run(0.0))
    assert same == (0.0, 0.0)
    assert potentials.differences(run(1e-8), run(0.0))[0] > potentials.CLOSE["float64"]
    weights = [torch.ones(3), torch.zeros(2)]
    assert potentials.differences(([1.0], [weights[0] * math.nan, weights[1]]), ([1.0], weights))[1] == math.inf


def test_a_package_that_pip_cannot_get_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(packages, "user_cache_dir", lambda *_, **__: str(tmp_path))
    monkeypatch.setitem(packages.PACKAGES, "e3nn", (str(tmp_path / "nothing.whl"),))
    with pytest.raises(ImportError, match="e3nn is a model of e3nn, which pip cannot get"):
        potentials.get("e3nn")
    assert not any((tmp_path / "potentials").iterdir())
