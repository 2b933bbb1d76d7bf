"""Define MobileNet, ShuffleNet, SqueezeNet and EfficientNet-Lite in PyTorch; names are torchvision's and timm's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

V1 = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))
V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
LITE0 = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)  # fmt: skip
SHUFFLE = ((240, 4), (480, 8), (960, 4))


def _conv(before: int, after: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)


def _normed(before: int, after: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: Any = nn.ReLU6):
    return nn.Sequential(_conv(before, after, kernel, stride, groups), nn.BatchNorm2d(after), act(inplace=True))


def _rounded(channels: float, divisor: int) -> int:
    near = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return near + divisor if near < 0.9 * channels else near


class _Pooled(nn.Module):
    """Features, their mean, a classifier."""

    def __init__(self, features: Sequence[nn.Module], width: int, classes: int, dropout: float):
        super().__init__()
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(width, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


class TorchMobileNetV1(_Pooled):
    """MobileNet: depthwise and 1x1 convolutions in turn."""

    def __init__(self, classes: int = 1000, width: float = 1.0, blocks: Sequence = V1, dropout: float = 0.001):
        before = int(32 * width)
        layers = [_normed(3, before, 3, 2, act=nn.ReLU)]
        for out, stride in blocks:
            wide, after = _normed(before, before, 3, stride, before, nn.ReLU), int(out * width)
            layers.append(nn.Sequential(wide, _normed(before, after, act=nn.ReLU)))
            before = after
        super().__init__(layers, before, classes, dropout)


class _Inverted(nn.Module):
    def __init__(self, before: int, after: int, stride: int, expansion: int):
        super().__init__()
        mid = before * expansion
        self.conv = nn.Sequential(
            *([_normed(before, mid)] if expansion > 1 else []), _normed(mid, mid, 3, stride, mid),
            _conv(mid, after), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.residual = before == after and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


class TorchMobileNetV2(_Pooled):
    """MobileNetV2: inverted residuals."""

    def __init__(
        self, classes: int = 1000, width: float = 1.0, blocks: Sequence = V2, dropout: float = 0.2, divisor: int = 8,
        last: int = 1280,
    ):  # fmt: skip
        before = _rounded(32 * width, divisor)
        layers: list[nn.Module] = [_normed(3, before, 3, 2)]
        for expansion, out, count, stride in blocks:
            after = _rounded(out * width, divisor)
            for n in range(count):
                layers.append(_Inverted(before, after, 1 if n else stride, expansion))
                before = after
        last = _rounded(last * max(1.0, width), divisor)
        super().__init__([*layers, _normed(before, last)], last, classes, dropout)


class _ShuffleUnit(nn.Module):
    def __init__(self, before: int, after: int, stride: int, groups: int, first: int):
        super().__init__()
        mid, grown = after // 4, after - before if stride == 2 else after
        self.conv1, self.bn1 = _conv(before, mid, groups=first), nn.BatchNorm2d(mid)
        self.conv2, self.bn2 = _conv(mid, mid, 3, stride, mid), nn.BatchNorm2d(mid)
        self.conv3, self.bn3 = _conv(mid, grown, groups=groups), nn.BatchNorm2d(grown)
        self.groups, self.stride, self.relu = groups, stride, nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        b, c, h, w = y.shape
        y = y.view(b, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(b, c, h, w)
        y = self.bn3(self.conv3(self.bn2(self.conv2(y))))
        return self.relu(x + y if self.stride == 1 else torch.cat([F.avg_pool2d(x, 3, 2, 1), y], 1))


class TorchShuffleNetV1(nn.Module):
    """ShuffleNet: grouped 1x1 convolutions whose channels are shuffled."""

    def __init__(self, classes: int = 1000, groups: int = 3, stages: Sequence = SHUFFLE, stem: int = 24):
        super().__init__()
        self.stem = nn.Sequential(_normed(3, stem, 3, 2, act=nn.ReLU), nn.MaxPool2d(3, 2, 1))
        before, parts = stem, []
        for n, (out, count) in enumerate(stages):
            units = [_ShuffleUnit(before, out, 2, groups, groups if n else 1)]
            units += [_ShuffleUnit(out, out, 1, groups, groups) for _ in range(count - 1)]
            parts.append(nn.Sequential(*units))
            before = out
        self.stages, self.fc = nn.Sequential(*parts), nn.Linear(before, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.stages(self.stem(x)).mean((2, 3)))


class _Fire(nn.Module):
    def __init__(self, before: int, few: int, many: int):
        super().__init__()
        self.squeeze = nn.Conv2d(before, few, 1)
        self.expand1x1, self.expand3x3 = nn.Conv2d(few, many, 1), nn.Conv2d(few, many, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.squeeze(x))
        return torch.cat([self.relu(self.expand1x1(x)), self.relu(self.expand3x3(x))], 1)


class TorchSqueezeNet(nn.Module):
    """SqueezeNet: fire modules."""

    def __init__(
        self, classes: int = 1000, version: str = "1_0", width: float = 1.0, fires: int = 8, dropout: float = 0.5
    ):
        super().__init__()
        out, kernel, pooled = (96, 7, (0, 3, 7)) if version == "1_0" else (64, 3, (0, 2, 4))
        before = int(out * width)
        layers: list[nn.Module] = [nn.Conv2d(3, before, kernel, 2), nn.ReLU(inplace=True)]
        for n, squeezed in enumerate((16, 16, 32, 32, 48, 48, 64, 64)[:fires]):
            layers += [nn.MaxPool2d(3, 2, ceil_mode=True)] if n in pooled else []
            many = int(4 * squeezed * width)
            layers.append(_Fire(before, int(squeezed * width), many))
            before = 2 * many
        self.features = nn.Sequential(*layers)
        last = nn.Conv2d(before, classes, 1)
        self.classifier = nn.Sequential(nn.Dropout(dropout), last, nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((1, 1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.flatten(self.classifier(self.features(x)), 1)


class _MobileBlock(nn.Module):
    def __init__(self, before: int, after: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        mid = before * expansion
        wide = _conv(mid, mid, kernel, stride, mid)
        if expansion == 1:
            self.conv_dw, self.bn1 = wide, nn.BatchNorm2d(mid)
            self.conv_pw, self.bn2 = _conv(mid, after), nn.BatchNorm2d(after)
        else:
            self.conv_pw, self.bn1 = _conv(before, mid), nn.BatchNorm2d(mid)
            self.conv_dw, self.bn2 = wide, nn.BatchNorm2d(mid)
            self.conv_pwl, self.bn3 = _conv(mid, after), nn.BatchNorm2d(after)
        self.plain, self.residual, self.act = expansion == 1, stride == 1 and before == after, nn.ReLU6(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.plain:
            y = self.bn2(self.conv_pw(self.act(self.bn1(self.conv_dw(x)))))
        else:
            y = self.act(self.bn2(self.conv_dw(self.act(self.bn1(self.conv_pw(x))))))
            y = self.bn3(self.conv_pwl(y))
        return x + y if self.residual else y


class TorchEfficientNetLite0(nn.Module):
    """EfficientNet-Lite0; dropout and drop_path must be 0."""

    def __init__(
        self, classes: int = 1000, blocks: Sequence = LITE0, stem: int = 32, last: int = 1280, dropout: float = 0.0,
        drop_path: float = 0.0,
    ):  # fmt: skip
        super().__init__()
        if dropout or drop_path:
            raise ValueError("this twin drops nothing")
        self.conv_stem, self.bn1 = _conv(3, stem, 3, 2), nn.BatchNorm2d(stem)
        before, stages = stem, []
        for expansion, out, count, stride, kernel in blocks:
            stage = []
            for n in range(count):
                stage.append(_MobileBlock(before, out, kernel, 1 if n else stride, expansion))
                before = out
            stages.append(nn.Sequential(*stage))
        self.blocks = nn.Sequential(*stages)
        self.conv_head, self.bn2 = _conv(before, last), nn.BatchNorm2d(last)
        self.classifier, self.act = nn.Linear(last, classes), nn.ReLU6(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.act(self.bn1(self.conv_stem(x))))
        return self.classifier(self.act(self.bn2(self.conv_head(x))).mean((2, 3)))
