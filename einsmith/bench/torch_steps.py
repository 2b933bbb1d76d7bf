"""Set up training steps in PyTorch, eager, by torch.compile, and in float64 as a reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from einsmith.bench.in_torch import in_torch
from einsmith.bench.networks import LR, NetworkStep

LAYOUTS = ("channels last", "channels first")
"""How images and filters lie in memory; which is faster depends on the machine and on eager or compiled."""


def margin_loss(lengths: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the margin loss of the lengths of class capsules [B, classes], a mean over the batch."""
    t = functional.one_hot(target, lengths.shape[1]).to(lengths.dtype)
    low, high = functional.relu(0.9 - lengths) ** 2, functional.relu(lengths - 0.1) ** 2
    return (t * low + 0.5 * (1 - t) * high).sum(1).mean()


def cross_entropy(y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of logits [B, classes], or of tokens' [B, T, classes]."""
    return functional.cross_entropy(y.flatten(0, 1), t.flatten()) if y.ndim == 3 else functional.cross_entropy(y, t)


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cross_entropy": cross_entropy,
    "margin_loss": margin_loss,
    "mse_loss": functional.mse_loss,
}


class TorchWithLoss(torch.nn.Module):
    """The loss of a network's output. network: that of a problem, in PyTorch."""

    def __init__(self, problem: NetworkStep):
        super().__init__()
        self.network, self.loss = in_torch(problem.make_network()).train(), LOSSES[problem.loss]

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.loss(self.network(x), y)


class TorchStep:
    """A training step by autograd and torch.optim.SGD. peer: "torch", "compile", "compile-max" or "reference", which
    computes in float64. layout: of LAYOUTS."""

    def __init__(self, problem: NetworkStep, arrays: dict[str, np.ndarray], peer: str, layout: str = LAYOUTS[1]):
        self.module = TorchWithLoss(problem)
        if peer == "reference":
            self.module.double()
            arrays = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in arrays.items()}
        x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
        self.restart(arrays)
        if layout == LAYOUTS[0]:
            self.module.to(memory_format=torch.channels_last)
            x = x.contiguous(memory_format=torch.channels_last)
        self.x, self.y = x, y
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=LR, foreach=True)
        self.loss: Any = self.module
        self.update: Any = self.optimizer.step
        if peer.startswith("compile"):
            mode = "max-autotune" if peer == "compile-max" else None
            self.loss, self.update = torch.compile(self.loss, mode=mode), torch.compile(self.update, mode=mode)

    def restart(self, arrays: dict[str, np.ndarray]) -> None:
        """Begin again from these values."""
        state = {n: torch.from_numpy(a) for n, a in arrays.items() if n not in ("x", "y")}
        self.module.network.load_state_dict(state)

    def step(self) -> float:
        """Train on the batch and return the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.x, self.y)
        loss.backward()
        self.update()
        return loss.item()

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters and the running statistics."""
        state = self.module.network.state_dict()
        return {n: v.detach().numpy() for n, v in state.items() if v.is_floating_point()}
