"""Define the capsule network in PyTorch, and its loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def squash(x: torch.Tensor) -> torch.Tensor:
    """Scale the vectors along the last axis to lengths below 1."""
    n = x.norm(dim=-1, keepdim=True)
    return x * (n / (1 + n * n))


class _Routed(nn.Module):
    def __init__(self, inputs: int, width: int, classes: int, features: int, iterations: int, axis: int):
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(classes, inputs, width, features))
        self.iterations, self.axis = iterations, axis

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        told = torch.einsum("bik,jikf->bjif", u, self.weight)
        b = None
        for n in range(self.iterations):
            if b is None:  # equal couplings
                v = squash(told.sum(2) / told.shape[self.axis])
            else:
                v = squash((torch.softmax(b, self.axis).unsqueeze(2) @ told).squeeze(2))
            if n < self.iterations - 1:
                grown = (told @ v.unsqueeze(-1)).squeeze(-1)
                b = grown if b is None else b + grown
        return v


class TorchCapsuleNet(nn.Module):
    """A capsule network; forward: the lengths of the class capsules."""

    def __init__(
        self, classes: int = 10, routing: str = "inputs", iterations: int = 3, filters: int = 256, capsules: int = 32,
        width: int = 8, features: int = 16, size: int = 28, decoder: bool = False,
    ):  # fmt: skip
        super().__init__()
        side = (size - 15) // 2
        self.conv1, self.primary = nn.Conv2d(1, filters, 9), nn.Conv2d(filters, width * capsules, 9, 2)
        axis = 2 if routing == "inputs" else 1
        self.routed = _Routed(capsules * side * side, width, classes, features, iterations, axis)
        self.width = width
        if decoder:
            self.decoder = nn.Sequential(
                nn.Linear(classes * features, 512), nn.ReLU(), nn.Linear(512, 1024), nn.ReLU(),
                nn.Linear(1024, size * size), nn.Sigmoid(),
            )  # fmt: skip

    def both(self, x: torch.Tensor) -> torch.Tensor:
        """Return the class capsules [B, classes, features]; the paper's convolution of each feature is part of one."""
        x = self.primary(F.relu(self.conv1(x), inplace=True))
        return self.routed(squash(x.reshape(x.shape[0], self.width, -1).transpose(1, 2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.both(x).norm(dim=-1)


def margin_loss(lengths: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the margin loss of the lengths of class capsules [B, classes], a mean over the batch."""
    t = F.one_hot(target, lengths.shape[1]).to(lengths.dtype)
    low, high = F.relu(0.9 - lengths) ** 2, F.relu(lengths - 0.1) ** 2
    return (t * low + 0.5 * (1 - t) * high).sum(1).mean()
