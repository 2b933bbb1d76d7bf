"""PyTorch, eager and through torch.compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.problems import LR, Problem, Session

VERSION = f"PyTorch {torch.__version__}"
VARIANTS = dict.fromkeys(("lenet5", "capsule_conv"), ("channels last", "channels first"))
"""How images and filters lie in memory; which is faster depends on the machine and on eager or compiled."""


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


def capsule_conv(a: torch.Tensor, w: torch.Tensor, stride: int, last: bool) -> torch.Tensor:
    """One convolution: (b, i) are its batch, (c, m) its input channels, (k, j) its output channels."""
    b, c, h, wd, i, m = a.shape
    k, _, r, s, _, j = w.shape
    if last:
        x = a.permute(0, 4, 2, 3, 1, 5).reshape(b * i, h, wd, c * m).permute(0, 3, 1, 2)
        f = w.permute(0, 5, 2, 3, 1, 4).reshape(k * j, r, s, c * m).permute(0, 3, 1, 2)
        y = F.conv2d(x, f, stride=stride).permute(0, 2, 3, 1)
        return y.reshape(b, i, y.shape[1], y.shape[2], k, j).permute(0, 4, 2, 3, 1, 5)
    x = a.permute(0, 4, 1, 5, 2, 3).reshape(b * i, c * m, h, wd)
    f = w.permute(0, 5, 1, 4, 2, 3).reshape(k * j, c * m, r, s)
    y = F.conv2d(x, f, stride=stride)
    return y.reshape(b, i, k, j, y.shape[2], y.shape[3]).permute(0, 2, 4, 5, 1, 3)


class Operator:
    def __init__(self, problem: Problem, arrays: dict[str, np.ndarray], compiled: bool, last: bool):
        self.a, self.w = (torch.from_numpy(arrays[n]).clone().requires_grad_() for n in ("A", "W"))

        def loss(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            c = capsule_conv(a, w, problem.stride, last)
            return (c * c).mean() / 2

        self.loss = torch.compile(loss) if compiled else loss
        self.grads: tuple[torch.Tensor, ...] = ()

    def step(self) -> float:
        loss = self.loss(self.a, self.w)
        self.grads = torch.autograd.grad(loss, (self.a, self.w))
        return loss.item()

    def results(self) -> dict[str, np.ndarray]:
        return {n: g.numpy() for n, g in zip(("dA", "dW"), self.grads, strict=True)}


def build(
    problem: Problem, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str = "channels last"
) -> Session:
    torch.set_num_threads(threads)
    last = variant == "channels last"
    return (Training if problem.training else Operator)(problem, arrays, peer == "compile", last)
