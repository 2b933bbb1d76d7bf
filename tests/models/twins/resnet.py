"""Define residual networks in PyTorch, with torchvision's state names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class _Block(nn.Module):
    def __init__(self, before: int, width: int, stride: int, deep: bool):
        super().__init__()
        out = 4 * width if deep else width
        if deep:
            self.conv1, self.bn1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
            self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        else:
            self.conv1, self.bn1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.deep, self.downsample, self.relu = deep, None, nn.ReLU(inplace=True)
        if stride != 1 or before != out:
            self.downsample = nn.Sequential(nn.Conv2d(before, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.deep:
            y = self.bn3(self.conv3(self.relu(y)))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class TorchResNet(nn.Module):
    """A residual network; deep: blocks with a bottleneck; small: a stem for images of 32x32."""

    def __init__(
        self, classes: int = 1000, depths: Sequence[int] = (2, 2, 2, 2), width: int = 64, deep: bool = False,
        small: bool = False,
    ):  # fmt: skip
        super().__init__()
        kernel, stride = (3, 1) if small else (7, 2)
        self.conv1 = nn.Conv2d(3, width, kernel, stride, kernel // 2, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        before, self.stages = width, len(depths)
        for n, depth in enumerate(depths):
            blocks = []
            for k in range(depth):
                blocks.append(_Block(before, width << n, 2 if n > 0 and k == 0 else 1, deep))
                before = (4 if deep else 1) * width << n
            setattr(self, f"layer{n + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(before, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for n in range(self.stages):
            x = getattr(self, f"layer{n + 1}")(x)
        return self.fc(x.mean((2, 3)))
