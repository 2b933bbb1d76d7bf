"""Run training steps in PyTorch, eager and through torch.compile; the peer "reference" is PyTorch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from einsmith.bench.networks import LR, NetworkStep
from einsmith.bench.peers import torch_recurrent
from einsmith.bench.peers.torch_exporter import trained
from einsmith.bench.problem import Session
from einsmith.bench.recurrent import Recurrent

VERSION = f"PyTorch {torch.__version__}"
LAYOUTS = ("channels last", "channels first")
"""How images and filters lie in memory; which is faster depends on the machine and on eager or compiled."""


def variants(problem: NetworkStep | Recurrent, peer: str) -> tuple[str, ...] | None:
    """Return the formulations to choose from: layouts, of networks of images; None where there is one."""
    if isinstance(problem, Recurrent):
        return torch_recurrent.variants(problem.network, peer)
    return LAYOUTS if len(problem.sample) == 3 and problem.network != "mlp3" and peer != "reference" else None


class TorchTraining:
    """A training step by autograd and torch.optim.SGD."""

    def __init__(self, problem: NetworkStep, arrays: dict[str, np.ndarray], peer: str, last: bool):
        self.module = trained(problem)
        x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
        if peer == "reference":
            self.module.double()
        self.restart(arrays)
        if last:
            self.module.to(memory_format=torch.channels_last)
            x = x.contiguous(memory_format=torch.channels_last)
        self.x, self.y = x, y
        compiled, mode = peer.startswith("compile"), "max-autotune" if peer == "compile-max" else None
        self.loss: Any = torch.compile(self.module, mode=mode) if compiled else self.module
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=LR, foreach=True)
        self.update: Any = torch.compile(self.optimizer.step, mode=mode) if compiled else self.optimizer.step

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


def build(
    problem: NetworkStep | Recurrent, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str = ""
) -> Session:
    """Return the problem's session."""
    torch.set_num_threads(threads)
    if peer == "reference":
        arrays = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in arrays.items()}
    if isinstance(problem, Recurrent):
        return torch_recurrent.build(problem, arrays, peer, variant)
    return TorchTraining(problem, arrays, peer, variant == LAYOUTS[0])
