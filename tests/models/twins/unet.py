"""Define U-Net in PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def _double(before: int, after: int, padding: int, norm: bool) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, 1, padding, bias=not norm), *([nn.BatchNorm2d(after)] if norm else []),
        nn.ReLU(inplace=True), nn.Conv2d(after, after, 3, 1, padding, bias=not norm),
        *([nn.BatchNorm2d(after)] if norm else []), nn.ReLU(inplace=True),
    )  # fmt: skip


class TorchUNet(nn.Module):
    """A U-Net."""

    def __init__(
        self, classes: int = 2, depth: int = 4, width: int = 64, channels: int = 1, padding: int = 1,
        batch_norm: bool = False,
    ):  # fmt: skip
        super().__init__()
        w = [width << n for n in range(depth + 1)]
        self.down = nn.ModuleList(
            _double(w[n - 1] if n else channels, w[n], padding, batch_norm) for n in range(depth + 1)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(w[n + 1], w[n], 2, 2) for n in reversed(range(depth)))
        self.merge = nn.ModuleList(_double(w[n + 1], w[n], padding, batch_norm) for n in reversed(range(depth)))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        passed = []
        for block in list(self.down)[:-1]:
            passed.append(block(x))
            x = F.max_pool2d(passed[-1], 2)
        x = self.down[-1](x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x, skip = up(x), passed.pop()
            i, j = (skip.shape[2] - x.shape[2]) // 2, (skip.shape[3] - x.shape[3]) // 2
            x = merge(torch.cat([skip[:, :, i : i + x.shape[2], j : j + x.shape[3]], x], 1))
        return self.head(x)
