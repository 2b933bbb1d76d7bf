"""Run networks in PyTorch: training steps, and outputs in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.models import NetworkCase
from einsmith.bench.in_torch import in_torch
from einsmith.bench.networks import LR
from einsmith.bench.steps import Session
from einsmith.bench.torch_steps import LAYOUTS, TorchStep


class TorchTask:
    """A part of a training step: its loss, or its loss and gradients.

    Args:
        whole: the training step
        loss: computes its loss
        parameters: what is trained, by name
        rate: learning rate; None for the loss alone
    """

    def __init__(
        self, whole: Session, loss: Callable[[], Any], parameters: Mapping[str, torch.Tensor], rate: float | None
    ):
        self.whole, self.loss, self.parameters, self.rate = whole, loss, parameters, rate

    def step(self) -> float:
        """Compute the loss, and the gradients where they are asked for."""
        for p in self.parameters.values():
            p.grad = None
        with torch.set_grad_enabled(self.rate is not None):
            loss = self.loss()
            if self.rate is not None:
                loss.backward()
        return float(loss.item())

    def results(self) -> dict[str, np.ndarray]:
        """Return the running statistics, and the parameters that an update would make."""
        out = self.whole.results()
        return out | {
            n: out[n] - (self.rate or 0.0) * p.grad.to_dense().numpy()
            for n, p in self.parameters.items()
            if p.grad is not None
        }


class TorchForward:
    """The output of a function of tensors without gradients, eager or compiled."""

    def __init__(self, f: Callable[..., torch.Tensor], inputs: Sequence[Any], peer: str):
        self.f = torch.compile(f) if peer == "compile" else f
        self.inputs = inputs

    def step(self) -> float:
        """Run the forward pass; there is no loss."""
        with torch.inference_mode():
            self.output = self.f(*self.inputs)
        return 0.0

    def results(self) -> dict[str, np.ndarray]:
        """Return the output."""
        return {"output": self.output.numpy()}


def _forward(problem: NetworkCase, arrays: dict[str, np.ndarray], peer: str, layout: str) -> TorchForward:
    network, x = in_torch(problem.make_network()).eval(), torch.from_numpy(arrays["x"])
    network.load_state_dict({n: torch.from_numpy(a) for n, a in arrays.items() if n not in ("x", "y")})
    if peer == "reference":
        network.double()
    if layout == LAYOUTS[0]:
        network.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    return TorchForward(network, (x,), peer)


def variants(problem: NetworkCase, peer: str) -> tuple[str, ...]:
    return LAYOUTS if problem.is_of_images and peer != "reference" else ("",)


def build(problem: NetworkCase, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> Session:
    if not problem.training:
        return _forward(problem, arrays, peer, variant)
    step = TorchStep(problem, arrays, peer, variant)
    if peer == "torchscript":
        step.loss = torch.jit.trace(step.module, (step.x, step.y), check_trace=False)
        step.restart(arrays)  # tracing has run the module, which changes its running statistics
    if problem.task == "step":
        return step
    rate = LR if problem.task == "gradients" else None
    return TorchTask(step, lambda: step.loss(step.x, step.y), dict(step.module.network.named_parameters()), rate)
