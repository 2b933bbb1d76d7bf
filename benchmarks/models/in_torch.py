"""Training steps of networks in PyTorch, eager and through torch.compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.models import LR, Model
from benchmarks.models.export import trained

LAYOUTS = ("channels last", "channels first")
"""How images and filters lie in memory; which is faster depends on the machine and on eager or compiled."""


def variants(problem: Model, peer: str) -> tuple[str, ...] | None:
    return LAYOUTS if len(problem.sample) == 3 and problem.network != "mlp3" and peer != "reference" else None


class Training:
    def __init__(self, problem: Model, arrays: dict[str, np.ndarray], peer: str, last: bool):
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
        """Begins again from these values."""
        state = {n: torch.from_numpy(a) for n, a in arrays.items() if n not in ("x", "y")}
        self.module.network.load_state_dict(state)

    def step(self) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.x, self.y)
        loss.backward()
        self.update()
        return loss.item()

    def results(self) -> dict[str, np.ndarray]:
        state = self.module.network.state_dict()
        return {n: v.detach().numpy() for n, v in state.items() if v.is_floating_point()}
