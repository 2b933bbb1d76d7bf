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


class _CapsuleConv(nn.Module):
    """A capsule convolution, in windows; with iterations, its inputs route themselves to its capsules."""

    def __init__(self, inputs: int, capsules: int, stride: int, pose: int, iterations: int = 0):
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(capsules, inputs, 3, 3, pose, pose))
        self.stride, self.iterations = stride, iterations

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        windows = a.unfold(2, 3, self.stride).unfold(3, 3, self.stride)  # b c p q i m r s
        votes = torch.einsum("bcpqimrs,kcrsmj->bkcpqij", windows, self.weight)
        if not self.iterations:
            return squash(votes.sum(2).flatten(-2)).unflatten(-1, a.shape[-2:])
        told, b = votes.flatten(-2), torch.zeros(votes.shape[:5], dtype=a.dtype)
        for _ in range(self.iterations):
            v = squash((torch.softmax(b, 1).unsqueeze(-1) * told).sum(2))
            b = b + (told * v.unsqueeze(2)).sum(-1)
        return v.unflatten(-1, a.shape[-2:])


class TorchCapsuleConvNet(nn.Module):
    """Two layers of capsule convolutions with routing between; forward: the lengths of the class capsules."""

    def __init__(
        self, classes: int = 10, iterations: int = 3, capsules: int = 32, pose: int = 4, size: int = 28,
        channels: int = 1,
    ):  # fmt: skip
        super().__init__()
        self.stem = nn.Conv2d(channels, capsules * pose * pose, 5, 2)
        self.conv1 = _CapsuleConv(capsules, capsules, 2, pose)
        self.conv2 = _CapsuleConv(capsules, classes, 1, pose, iterations)
        self.shape = capsules, pose, pose

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x)).unflatten(1, self.shape).permute(0, 1, 4, 5, 2, 3)
        x = squash(x.flatten(-2)).unflatten(-1, self.shape[1:])
        return self.conv2(self.conv1(x)).mean((2, 3)).flatten(2).norm(dim=-1)


def margin_loss(lengths: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the margin loss of the lengths of class capsules [B, classes], a mean over the batch."""
    t = F.one_hot(target, lengths.shape[1]).to(lengths.dtype)
    low, high = F.relu(0.9 - lengths) ** 2, F.relu(lengths - 0.1) ** 2
    return (t * low + 0.5 * (1 - t) * high).sum(1).mean()
