"""Run training steps in PyTorch, eager and through torch.compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from einsmith.bench.networks import LR, NetworkStep
from einsmith.bench.problem import Session

VERSION = f"PyTorch {torch.__version__}"
LAYOUTS = ("channels last", "channels first")
"""How images and filters lie in memory; which is faster depends on the machine, and on eager or compiled."""


def variants(problem: NetworkStep, peer: str) -> tuple[str, ...] | None:
    """Return the layouts to choose from; None for a network without convolutions."""
    return LAYOUTS if any(x.kind == "conv" for x in problem.layers) else None


class TorchTraining:
    """A training step by autograd and torch.optim.SGD."""

    def __init__(self, problem: NetworkStep, arrays: dict[str, np.ndarray], compiled: bool, last: bool):
        self.layers, self.names = problem.layers, problem.results
        self.memory_format = torch.channels_last if last else torch.contiguous_format
        self.x, self.y = self._laid(torch.from_numpy(arrays["x"])), torch.from_numpy(arrays["y"])
        self.restart(arrays)
        self._loss: Any = torch.compile(self.loss) if compiled else self.loss
        self._update: Any = torch.compile(self.optimizer.step) if compiled else self.optimizer.step

    def _laid(self, t: torch.Tensor) -> torch.Tensor:
        return t.clone(memory_format=self.memory_format) if t.ndim == 4 else t.clone()

    def restart(self, arrays: dict[str, np.ndarray]) -> None:
        """Begin again from these values."""
        if not hasattr(self, "p"):
            self.p = {n: self._laid(torch.from_numpy(arrays[n])).requires_grad_() for n in self.names}
            self.optimizer = torch.optim.SGD(self.p.values(), lr=LR, foreach=True)
        with torch.no_grad():
            for n, p in self.p.items():
                p.copy_(torch.from_numpy(arrays[n]))

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        for layer in self.layers:
            if layer.kind == "linear":
                x = F.linear(x, self.p[f"{layer.name}.weight"], self.p[f"{layer.name}.bias"])
            elif layer.kind == "conv":
                weight, bias = self.p[f"{layer.name}.weight"], self.p[f"{layer.name}.bias"]
                x = F.conv2d(x, weight, bias, padding=layer.padding)
            elif layer.kind == "relu":
                x = F.relu(x)
            elif layer.kind == "pool":
                x = F.max_pool2d(x, 2)
            else:
                x = x.flatten(1)
        return F.cross_entropy(x, y)

    def step(self) -> float:
        """Train on the batch and return the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss(self.x, self.y)
        loss.backward()
        self._update()
        return loss.item()

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters."""
        return {n: p.detach().numpy() for n, p in self.p.items()}


def build(
    problem: NetworkStep, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str = LAYOUTS[1]
) -> Session:
    """Return the problem's session."""
    torch.set_num_threads(threads)
    return TorchTraining(problem, arrays, peer == "compile", variant == LAYOUTS[0])
