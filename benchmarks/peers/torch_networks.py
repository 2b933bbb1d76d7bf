"""Run training steps of networks in PyTorch."""

from __future__ import annotations

import numpy as np

from benchmarks.models import NetworkCase
from einsmith.bench.torch_steps import LAYOUTS, TorchStep


def variants(problem: NetworkCase, peer: str) -> tuple[str, ...]:
    return LAYOUTS if problem.is_of_images and peer != "reference" else ("",)


def build(problem: NetworkCase, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> TorchStep:
    return TorchStep(problem, arrays, peer, variant)
