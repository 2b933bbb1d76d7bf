"""Define residual networks. Source: He et al. 2015, arXiv 1512.03385."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Count
from einsmith.base.errors import ArgumentError
from einsmith.nn import BatchNorm2d, Conv2d, Linear, MaxPool2d, Module, Sequential, init
from einsmith.tracing.builder import Value


class _Block(Module):
    """Convolutions, each with batch norm, added to the input, or to a 1x1 convolution of it where shapes differ.

    convolutions: (output channels, kernel size, stride) each.
    """

    def __init__(self, channels: int, convolutions: Sequence[tuple[int, int, int]]):
        self.count = len(convolutions)
        before, total = channels, 1
        for n, (out, kernel, stride) in enumerate(convolutions, 1):
            self.add_module(f"conv{n}", Conv2d(before, out, kernel, stride, kernel // 2, bias=False))
            self.add_module(f"bn{n}", BatchNorm2d(out))
            before, total = out, total * stride
        same = channels == before and total == 1
        shortcut = None if same else Sequential(Conv2d(channels, before, 1, total, bias=False), BatchNorm2d(before))
        self.add_module("downsample", shortcut)

    def forward(self, input: Value) -> Value:
        x = input
        for n in range(1, self.count + 1):
            x = getattr(self, f"bn{n}")(getattr(self, f"conv{n}")(x))
            x = F.relu(x) if n < self.count else x
        return F.relu(x + (input if self.downsample is None else self.downsample(input)))


def basic_block(channels: int, width: int, stride: int) -> tuple[Module, int]:
    """Return (a block of two 3x3 convolutions, its output channels)."""
    return _Block(channels, [(width, 3, stride), (width, 3, 1)]), width


def bottleneck(channels: int, width: int, stride: int) -> tuple[Module, int]:
    """Return (a block of 1x1, 3x3 and 1x1 convolutions, its output channels, 4*width); the 3x3 one has the stride."""
    return _Block(channels, [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]), 4 * width


class _ResNet(Module):
    """A stem, stages of residual blocks, each at half the resolution of the one before, the mean, a linear layer."""

    def _make(
        self, block: Any, depths: Sequence[int], classes: int, width: int, channels: int, small: bool, dtype: Any
    ) -> None:
        depths = tuple(depths)
        if not depths or any(not isinstance(d, int) or d < 1 for d in depths):
            raise ArgumentError(f"{type(self).__name__}: depths={depths!r} must be positive ints, one a stage")
        kernel, stride = (3, 1) if small else (7, 2)
        self.conv1 = Conv2d(channels, width, kernel, stride, kernel // 2, bias=False)
        self.bn1 = BatchNorm2d(width)
        self.add_module("maxpool", None if small else MaxPool2d(3, 2, 1))
        self.stages = len(depths)
        before = width
        for n, depth in enumerate(depths):
            blocks = []
            for k in range(depth):
                layer, before = block(before, width * 2**n, 2 if n and not k else 1)
                blocks.append(layer)
            self.add_module(f"layer{n + 1}", Sequential(*blocks))
        self.fc = Linear(before, classes)
        for m in self.modules():
            if isinstance(m, Conv2d):
                init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
        self.to(dtype)

    def forward(self, input: Value) -> Value:
        x = F.relu(self.bn1(self.conv1(input)))
        x = x if self.maxpool is None else self.maxpool(x)
        for n in range(1, self.stages + 1):
            x = getattr(self, f"layer{n}")(x)
        return self.fc(x.mean(axis=(2, 3)))


class ResNet18(_ResNet):
    """Images [B, channels, H, W] -> logits [B, classes]; torchvision's state names.

    depths: blocks of two 3x3 convolutions in each stage; width: channels of the first stage, doubled from stage to
    stage. The stem is a 7x7 convolution of stride 2 and a max pooling of stride 2, or where `small` a 3x3 convolution
    of stride 1 alone, for images of about 32 pixels. Source: arXiv 1512.03385, table 1; initial values as torchvision.
    """

    def __init__(
        self,
        classes: Count = 1000,
        depths: Sequence[int] = (2, 2, 2, 2),
        width: Count = 64,
        channels: Count = 3,
        small: bool = False,
        *,
        dtype: Any = "float32",
    ):
        self._make(basic_block, depths, classes, width, channels, small, dtype)


class CIFARResNet18(_ResNet):
    """ResNet18 for images of 32x32: its stem is one 3x3 convolution. [B, channels, H, W] -> logits [B, classes]."""

    def __init__(
        self,
        classes: Count = 10,
        depths: Sequence[int] = (2, 2, 2, 2),
        width: Count = 64,
        channels: Count = 3,
        *,
        dtype: Any = "float32",
    ):
        self._make(basic_block, depths, classes, width, channels, True, dtype)


class ResNet50(_ResNet):
    """Images [B, channels, H, W] -> logits [B, classes]; torchvision's state names.

    As ResNet18, its blocks being convolutions 1x1, 3x3 and 1x1, of which the last has four times the channels and the
    3x3 one the stride (torchvision's form; in the paper the first one has it).
    """

    def __init__(
        self,
        classes: Count = 1000,
        depths: Sequence[int] = (3, 4, 6, 3),
        width: Count = 64,
        channels: Count = 3,
        small: bool = False,
        *,
        dtype: Any = "float32",
    ):
        self._make(bottleneck, depths, classes, width, channels, small, dtype)
