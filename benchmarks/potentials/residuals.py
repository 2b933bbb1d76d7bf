"""Losses of derivatives other than forces: a differential equation's, a critic's slope, and a learner's steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as tf

from benchmarks.models_of_others import Batch, Trained

INNER_STEPS, INNER_RATE = 3, 0.1
"""Steps of gradient descent inside of a step of model-agnostic meta-learning, and their rate."""


def _derivative(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


def korteweg_de_vries(small: bool) -> Trained:
    """A network u(x, t) with the residual u_t + 6 u u_x + u_xxx and random initial values: derivatives of three orders
    and, for the weights, of a fourth one."""
    width, points = (16, 40) if small else (64, 2000)
    layers = [nn.Linear(2, width), nn.Tanh(), *[m for _ in range(2) for m in (nn.Linear(width, width), nn.Tanh())]]
    model = nn.Sequential(*layers, nn.Linear(width, 1))

    def batch(seed: int) -> Batch:
        g = torch.Generator().manual_seed(seed)
        start = torch.rand(points // 4, 2, generator=g) * torch.tensor([2.0, 0.0])
        return {
            "x": 2 * torch.rand(points, 1, generator=g), "t": torch.rand(points, 1, generator=g),
            "start": start, "values": torch.sin(3 * start[:, :1]),
        }  # fmt: skip

    def loss(f: Callable, batch: Batch) -> torch.Tensor:
        x, t = batch["x"].detach().requires_grad_(), batch["t"].detach().requires_grad_()
        u = f(torch.cat([x, t], 1))
        first = _derivative(u, x)
        residual = _derivative(u, t) + 6 * u * first + _derivative(_derivative(first, x), x)
        return (residual**2).mean() + tf.mse_loss(f(batch["start"]), batch["values"])

    return Trained(model, batch, loss)


def gradient_penalty(small: bool) -> Trained:
    """The critic of WGAN-GP, with LayerNorm as its authors advise."""
    width, size, count = (4, 8, 3) if small else (32, 32, 32)
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 3, 2, 1), nn.GroupNorm(1, 2 * width), nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 4 * width, 3, 2, 1), nn.GroupNorm(1, 4 * width), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(4 * width * (size // 8) ** 2, 1),
    )  # fmt: skip

    def batch(seed: int) -> Batch:
        g = torch.Generator().manual_seed(seed)
        images = {n: torch.randn(count, 3, size, size, generator=g) for n in ("real", "fake")}
        return {**images, "part": torch.rand(count, 1, 1, 1, generator=g)}

    def loss(f: Callable, batch: Batch) -> torch.Tensor:
        real, fake, part = batch["real"], batch["fake"], batch["part"]
        between = (part * real + (1 - part) * fake).requires_grad_()
        slope = _derivative(f(between), between).flatten(1).norm(dim=1)
        return f(fake).mean() - f(real).mean() + 10 * ((slope - 1) ** 2).mean()

    return Trained(model, batch, loss)


class Learner(nn.Module):
    """A network of two layers whose weights are arguments of its loss; its parameters are the weights to begin with."""

    def __init__(self, inputs: int, width: int):
        super().__init__()
        layers = nn.Linear(inputs, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.weights = nn.ParameterList(p for layer in layers for p in layer.parameters())

    def forward(self, x: torch.Tensor, y: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        """Return the mean squared error."""
        for k in (0, 2):
            x = torch.tanh(tf.linear(x, weights[k], weights[k + 1]))
        return tf.mse_loss(tf.linear(x, *weights[4:]), y)


def meta_learning(small: bool) -> Trained:
    """Model-agnostic meta-learning of sines, as in its paper, on a batch of tasks."""
    width, points, tasks = (8, 5, 2) if small else (40, 10, 25)
    model = Learner(1, width)

    def batch(seed: int) -> Batch:
        g = torch.Generator().manual_seed(seed)
        x = 10 * torch.rand(2, tasks, points, 1, generator=g) - 5
        height, phase = 0.1 + 4.9 * torch.rand(tasks, 1, 1, generator=g), 3 * torch.rand(tasks, 1, 1, generator=g)
        return {"x": x, "y": height * torch.sin(x + phase)}

    def loss(f: Callable, batch: Batch) -> torch.Tensor:
        (x, later), (y, wanted) = batch["x"], batch["y"]
        total = x.new_zeros(())
        for k in range(tasks):
            weights = list(model.weights)
            for _ in range(INNER_STEPS):
                gradients = torch.autograd.grad(f(x[k], y[k], *weights), weights, create_graph=True)
                weights = [w - INNER_RATE * g for w, g in zip(weights, gradients, strict=True)]
            total = total + f(later[k], wanted[k], *weights)
        return total / tasks

    return Trained(model, batch, loss)
