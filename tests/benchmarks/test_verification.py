"""Training steps are verified before they are timed, also where the float64 reference takes too long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks import report
from benchmarks.problem import Workload
from benchmarks.report import _untimed
from benchmarks.run import PeerResults, _Run
from benchmarks.worker import Allowance, WorkerError

STEPS, CAP = 5, 10.0


class Exact(Workload):
    exact = True


class Fake:
    """A worker whose first call, steps and results take seconds of its allowance by its own account."""

    alive, version = True, "1"

    def __init__(self, weights: np.ndarray, first: float, step: float):
        self.weights, self.costs, self.steps = weights, {"first": first, "steps": step}, 0

    def request(self, name: str, allowance: Allowance, *arguments: Any) -> dict[str, Any]:
        allowance.left -= self.costs.get(name, 0.0) * (arguments[0] if name == "steps" else 1)
        if allowance.left < 0:
            raise WorkerError("timeout", "over the time cap")
        if name == "results":
            return {"w": self.weights}
        count = {"first": 1, "steps": arguments[0] if name == "steps" else 0}.get(name, 0)
        losses = [1.0 / (self.steps + n + 1) for n in range(count)]
        self.steps += count
        return {"loss": losses[0] if losses else None, "losses": losses, "bytes": 0, "seconds": 0.0, "described": {}}


class Crew:
    def __init__(self, reference: Fake | None):
        self.reference, self.dropped = reference, list[str]()

    def start(self, peer: str) -> Fake:
        if self.reference is None:
            raise WorkerError("missing", "no module torch")
        return self.reference

    def drop(self, peer: str) -> None:
        self.dropped.append(peer)


@pytest.fixture
def verified(rng: np.random.Generator) -> Callable[..., dict]:
    """The cell after verification of peers whose change is right but for relative noise, or wrong."""
    start = rng.standard_normal((17, 13)).astype(np.float32)
    change = rng.standard_normal((17, 13))

    def run(reference: tuple[float, float] | None, peers: dict[str, float], losses: int = STEPS) -> dict:
        problem = Exact("net-b16", "net", 16, 1, ("w",), lambda: {"w": start})
        crew = Crew(None if reference is None else Fake(start.astype(np.float64) + change, *reference))
        cell: dict = {"peers": {p: {"status": "ok"} for p in peers}, "threads": 1}
        made = _Run(problem, CAP, crew, cell, lambda line: None)  # type: ignore[arg-type]
        right = [1.0 / (n + 1) for n in range(STEPS)]
        wrong = [*right[:losses], *(2 * x for x in right[losses:])]
        found = {
            p: PeerResults(wrong, {"w": (change * (1 + noise * rng.standard_normal(change.shape))).astype(np.float32)})
            for p, noise in peers.items()
        }
        made.workers = dict.fromkeys(peers)  # type: ignore[arg-type]
        made.verify(found, made.reference())
        return cell | {"timed": list(made.workers)}

    return run


PEERS = {"einsmith": 0.0, "torch": 0.01, "xla": 0.02}  # what float32 rounds in deep networks


def test_a_reference_that_is_quick_enough_decides(verified) -> None:
    cell = verified((1.0, 1.0), PEERS | {"jax": 2.0})
    assert cell["timed"] == list(PEERS) and cell["peers"]["jax"]["status"] == "wrong" and cell["verified"]
    assert "in float64" in cell["verification"] and "losses of 5" in cell["verification"]


def test_a_slow_reference_verifies_as_many_steps_as_it_can(verified) -> None:
    for cost, count in (((3.0, 3.0), 3), ((9.0, 2.0), 1)):
        cell = verified(cost, PEERS | {"jax": 2.0})
        assert cell["timed"] == list(PEERS) and cell["peers"]["jax"]["status"] == "wrong"
        assert f"losses of {count}" in cell["verification"]
        assert verified(cost, PEERS, losses=count)["timed"] == list(PEERS)
        assert verified(cost, PEERS, losses=count - 1)["timed"] == []


@pytest.mark.parametrize("reference, why", [
    ((11.0, 1.0), "the reference took longer than 10 s"), (None, "there is no reference: no module torch"),
])  # fmt: skip
def test_without_a_reference_no_peer_is_called_wrong(reference, why: str, verified) -> None:
    cell = verified(reference, PEERS)
    assert cell["timed"] == list(PEERS) and cell["verified"], "they agree as float32 lets deep networks agree"
    assert cell["verification"] == f"against each other in float32: {why}"
    cell = verified(reference, PEERS | {"jax": 2.0})
    assert cell["timed"] == list(PEERS) and cell["peers"]["jax"]["status"] == "unverified"
    assert cell["peers"]["jax"]["message"].startswith(f"not verified: {why}, and beside the other peers w differs by")
    assert _untimed("jax", cell["peers"]["jax"]) == "jax unverified"
    assert not report.finished(cell, ["jax"]), "it is run again with a larger cap"


def test_one_peer_without_a_reference_is_not_verified(verified) -> None:
    cell = verified((11.0, 1.0), {"einsmith": 0.0})
    assert not cell["verified"] and cell["verification"] == "not verified: the reference took longer than 10 s"
