"""Run training steps of networks in Einsmith."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.models import NetworkCase
from benchmarks.peers.described import described
from einsmith.bench.steps import EinsmithStep

FORMS: dict[str, dict[str, Any]] = {
    "static-60": {"tune": 60.0}, "static-300": {"tune": 300.0}, "dynamic": {"mode": "dynamic"},
}  # fmt: skip
"""Ways to tune a training step, by the names of peers."""


class EinsmithTraining(EinsmithStep):
    """A training step that tells of its program."""

    def describe(self) -> dict[str, Any]:
        """Return what the program says of itself."""
        return described(self.trainer)


def build(
    problem: NetworkCase, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str = "", **options: Any
) -> EinsmithTraining:
    """Return the problem's session. options: those of TrainStep."""
    return EinsmithTraining(problem, arrays, threads, **FORMS.get(peer, {}), **options)
