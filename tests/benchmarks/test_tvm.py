"""Apache TVM as a peer: what it computes, what its gradient pass lacks, and what tuning keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm", reason="Apache TVM is a peer of the benchmarks alone", exc_type=ImportError)
pytest.importorskip("torch", reason="PyTorch tells what is right")

from benchmarks import worker
from benchmarks.convolutions import Conv
from benchmarks.kernel_cases import convolution, kernel_case, product
from benchmarks.models import TRAINING
from benchmarks.peers import tvm_tuning
from benchmarks.peers.tvm_programs import Undifferentiable
from benchmarks.problem import Workload
from benchmarks.problems import _operator
from benchmarks.recurrent_steps import recurrent

ROWS = {"X": (8, 12), "bias": (12,)}
BOTH = {"A": (16, 32), "B": (32, 24)}
CAPSULES = {"A": (2, 4, 7, 7, 4, 4), "W": (3, 4, 3, 3, 4, 4)}
KERNELS = [
    kernel_case(
        "both", "product", BOTH, (16, 24), wrt=("A", "B"), with_forward=True, options={"ta": False, "tb": False}
    ),
    *convolution(Conv(8, 16, 3, 2, 1, 9), 2),
    *convolution(Conv(8, 8, 3, 1, 8, 8), 2),
    *convolution(Conv(4, 8, 3, 1, 1, 9, 2, 2), 2),
    _operator("capsule_conv", 1, CAPSULES, (2, 3, 3, 3, 4, 4), 3, stride=2),
]
STEPS = [TRAINING["mlp3-b1"], TRAINING["lenet5-b1"], recurrent("milstm", 2, 1, 16)]


def run(problem: Workload, peer: str, variant: str, steps: int) -> tuple[list[float], dict[str, np.ndarray]]:
    session = worker.build(problem, problem.arrays(), 2, peer, variant)
    losses = [session.step() for _ in range(steps)]
    return losses, {n: np.array(a) for n, a in session.results().items()}


@pytest.mark.parametrize("problem", [*KERNELS, *STEPS], ids=lambda p: p.name)
def test_every_formulation_computes_what_pytorch_does(problem: Workload) -> None:
    steps = 2 if problem.training else 1
    losses, wanted = run(problem, "torch", worker.variants(problem, "torch")[0], steps)
    for variant in worker.variants(problem, "tvm"):
        got, results = run(problem, "tvm", variant, steps)
        np.testing.assert_allclose(got, losses, rtol=1e-5, atol=1e-5)
        for name in problem.results:
            np.testing.assert_allclose(
                results[name], wanted[name], rtol=1e-4, atol=1e-5 * np.abs(wanted[name]).max(), err_msg=variant
            )


def test_operators_without_a_gradient_are_named() -> None:
    problem = kernel_case("gelu", "bias_gelu", ROWS, (8, 12), wrt=("X",))
    with pytest.raises(Undifferentiable, match=r"Relax has no gradient of relax\.nn\.gelu"):
        run(problem, "tvm", "library", 1)
    forward = kernel_case("gelu", "bias_gelu", ROWS, (8, 12))
    assert run(forward, "tvm", "library", 1)[1]["Y"].shape == (8, 12)


@pytest.mark.slow
@pytest.mark.skipif(tvm_tuning.crashes(), reason="this combination of TVM's packages crashes in tuning")
def test_a_program_is_tuned_once(monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.setenv(worker.TVM_FOLDER, str(tmp_path))
    monkeypatch.setenv(tvm_tuning.TRIALS, "2")
    problem = product(8, 8, 8)
    wanted = problem.arrays()["A"] @ problem.arrays()["B"]

    def tuned() -> dict[str, Any]:
        session = worker.build(problem, problem.arrays(), 2, "tvm-tuned", "library")
        session.step()
        np.testing.assert_allclose(session.results()["Y"], wanted, rtol=1e-5, atol=1e-5)
        return session.describe()

    first = tuned()
    assert first["trials"] == 2 and first["tasks"] == 1 and first["tuning_seconds"] > 0
    monkeypatch.setattr(tvm_tuning, "_tune", lambda *_: pytest.fail("it is tuned again"))
    assert tuned() == first
