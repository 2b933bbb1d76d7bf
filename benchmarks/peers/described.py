"""Describe the program of a training step: its kernels, its memory, and what tuning has tried."""

from __future__ import annotations

from typing import Any

from einsmith.training import TrainStep
from einsmith.tuning.programs.dynamic import Exploration
from einsmith.tuning.programs.graph_search import planned


def described(step: TrainStep) -> dict[str, Any]:
    """Return a training step's number of distinct kernels, their calls, the bytes of their code, of the code of those
    in loops and of the arena, the passes that changed the graph or the plan, and what dynamic mode explored."""
    (run,) = step.compiler.programs.values()
    return described_program(run) | {"explored": explored(run.note.exploration)}


def described_program(run: Any) -> dict[str, Any]:
    """Return the same of a compiled program, but for what dynamic mode explored."""
    calls = [call.kernel for _, call, _ in run.plan.kernel_calls()]
    loops = {k for k, turns in zip(run.kernels, run.turns, strict=True) if turns > 1}
    return {
        "kernels": len(set(calls)),
        "calls": len(calls),
        "code_bytes": sum(k.nbytes for k in set(run.kernels)),
        "loop_bytes": sum(k.nbytes for k in loops),
        "arena_bytes": run.arena_bytes,
        "passes": [*run.changes.tensors, *planned(run.plan)],
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
