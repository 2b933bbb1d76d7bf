"""Training steps of networks in Einsmith, as any user writes them."""

from __future__ import annotations

from typing import Any

import numpy as np

import einsmith as es
from benchmarks.models import LR, Model
from einsmith.tuning.programs.graph_search import planned
from einsmith.tuning.programs.online import Exploration

LOSSES = {
    "cross_entropy": lambda y, t: es.functional.cross_entropy(
        *((es.functional.flatten(y, 0, 1), t.reshape((-1,))) if len(y.shape) == 3 else (y, t))
    ),
    "margin_loss": es.functional.margin_loss,
    "mse_loss": es.functional.mse_loss,
}


class Training:
    def __init__(self, problem: Model, arrays: dict[str, np.ndarray], threads: int, **options: Any):
        self.model = problem.network_of(es.models.get)
        self.model.load_state_dict({n: a for n, a in arrays.items() if n not in ("x", "y")})
        self.x, self.y = arrays["x"], arrays["y"]
        optimizer = es.optim.SGD(lr=LR)
        self._step = es.TrainStep(self.model, LOSSES[problem.loss], optimizer, seed=0, threads=threads, **options)

    def step(self) -> float:
        return self._step(self.x, self.y)

    def results(self) -> dict[str, np.ndarray]:
        found = {n: np.asarray(v) for n, v in self.model.state_dict().items()}
        return {n: v for n, v in found.items() if v.dtype.kind == "f"}

    def describe(self) -> dict[str, Any]:
        return described(self._step)


def described(step: es.TrainStep) -> dict[str, Any]:
    """How many distinct kernels a training step has, how often they are called, the bytes of their code, of the code of
    those in loops and of the arena, the passes that changed the graph or the plan, and what dynamic mode explored."""
    (run,) = step._programs.values()
    calls = [call.kernel for _, call, _ in run.plan.kernel_calls()]
    loops = {k for k, turns in zip(run.kernels, run.turns, strict=True) if turns > 1}
    return {
        "kernels": len(set(calls)),
        "calls": len(calls),
        "code_bytes": sum(k.nbytes for k in set(run.kernels)),
        "loop_bytes": sum(k.nbytes for k in loops),
        "arena_bytes": run.arena_bytes,
        "passes": [*run.changes.tensors, *planned(run.plan)],
        "explored": explored(run.note.exploration),
    }


def explored(exploration: Exploration | None) -> dict[str, Any]:
    """Return how many configurations dynamic mode has tried and how many kernels are faster, the part of the time that
    this has cost, and how it stands."""
    if exploration is None:
        return {}
    budget = exploration.budget
    return {
        "tried": exploration.tried,
        "kept": len(exploration.kept),
        "cost": budget.lost_seconds / budget.total if budget.total else 0.0,
        "state": exploration.over or exploration.status,
    }
