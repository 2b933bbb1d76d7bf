"""PyTorch, eager and through torch.compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.kernel_cases import Case
from benchmarks.peers import torch_kernels, torch_recurrent
from benchmarks.peers.torch_operators import COMPILED, EAGER
from benchmarks.problems import LR, Problem, Session
from benchmarks.recurrent_problems import Recurrent

VERSION = f"PyTorch {torch.__version__}"
LAYOUTS = {"lenet5": ("channels last", "channels first")}
"""How images and filters lie in memory; which is faster depends on the machine and on eager or compiled."""


def formulations(peer: str) -> dict[str, dict]:
    return COMPILED if peer == "compile" else EAGER


def variants(problem: Problem, peer: str) -> tuple[str, ...] | None:
    if isinstance(problem, Case):
        names = torch_kernels.variants(problem)
        return names[:1] if peer == "reference" else names
    if isinstance(problem, Recurrent):
        return torch_recurrent.variants(problem.network, peer)
    return LAYOUTS.get(problem.network) or tuple(formulations(peer).get(problem.network, ())) or None


def mlp3(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    h = torch.relu(F.linear(x, p["fc1.weight"], p["fc1.bias"]))
    h = torch.relu(F.linear(h, p["fc2.weight"], p["fc2.bias"]))
    return F.linear(h, p["fc3.weight"], p["fc3.bias"])


def lenet5(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    h = F.max_pool2d(torch.relu(F.conv2d(x, p["conv1.weight"], p["conv1.bias"], padding=2)), 2)
    h = F.max_pool2d(torch.relu(F.conv2d(h, p["conv2.weight"], p["conv2.bias"])), 2)
    return mlp3(p, h.flatten(1))


NETWORKS = {"mlp3": mlp3, "lenet5": lenet5}


def to_peer(a: np.ndarray, last: bool) -> torch.Tensor:
    t = torch.from_numpy(a)
    return t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 and last else t


class Training:
    def __init__(self, problem: Problem, arrays: dict[str, np.ndarray], compiled: bool, last: bool):
        self.x, self.y = to_peer(arrays["x"], last), torch.from_numpy(arrays["y"])
        self.p = {n: to_peer(arrays[n], last).clone().requires_grad_() for n in problem.results}
        network = NETWORKS[problem.network]

        def loss(p: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(network(p, x), y)

        self.loss = torch.compile(loss) if compiled else loss
        self.optimizer = torch.optim.SGD(list(self.p.values()), lr=LR, foreach=True)
        self.update: Any = torch.compile(self.optimizer.step) if compiled else self.optimizer.step

    def step(self) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.p, self.x, self.y)
        loss.backward()
        self.update()
        return loss.item()

    def results(self) -> dict[str, np.ndarray]:
        return {n: v.detach().numpy() for n, v in self.p.items()}


class Operator:
    def __init__(self, problem: Problem, arrays: dict[str, np.ndarray], peer: str, variant: str):
        operator = formulations(peer)[problem.network][variant]
        self.inputs = [torch.from_numpy(arrays[n]).clone().requires_grad_() for n in problem.inputs]
        self.g, self.names = torch.from_numpy(arrays["G"]), problem.results

        def loss(xs: list[torch.Tensor], g: torch.Tensor) -> torch.Tensor:
            return (operator(*xs, **problem.options) * g).sum()

        self.loss = torch.compile(loss) if peer == "compile" else loss
        self.grads: tuple[torch.Tensor, ...] = ()

    def step(self) -> float:
        loss = self.loss(self.inputs, self.g)
        self.grads = torch.autograd.grad(loss, self.inputs)
        return loss.item()

    def results(self) -> dict[str, np.ndarray]:
        return {n: g.numpy() for n, g in zip(self.names, self.grads, strict=True)}


def build(
    problem: Problem, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str = "channels last"
) -> Session:
    torch.set_num_threads(threads)
    if peer == "reference":
        arrays = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in arrays.items()}
    if isinstance(problem, Case):
        return torch_kernels.build(problem, arrays, peer, variant)
    if isinstance(problem, Recurrent):
        return torch_recurrent.build(problem, arrays, peer, variant)
    if not problem.training:
        return Operator(problem, arrays, peer, variant)
    return Training(problem, arrays, peer == "compile", variant == "channels last")
