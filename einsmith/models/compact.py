"""Define networks of few parameters and operations: MobileNet, ShuffleNet, SqueezeNet, EfficientNet-Lite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from einsmith import ops as F
from einsmith.base.arguments import Count, Share
from einsmith.base.errors import ArgumentError
from einsmith.nn import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm2d,
    ChannelShuffle,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    MaxPool2d,
    Module,
    ReLU,
    ReLU6,
    Sequential,
    init,
)
from einsmith.ops.random import layer_drop
from einsmith.tracing.builder import Value

Width = Annotated[float, 0, 64]
"""Factor of the numbers of channels."""


def round_channels(channels: float, divisor: int) -> int:
    """Round a number of channels to a multiple of `divisor` that is at least `divisor` and 0.9 times the number."""
    near = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return near + divisor if near < 0.9 * channels else near


def _conv(channels: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> Conv2d:
    return Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)


def _conv_norm_activation(
    channels: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: Any = ReLU6
) -> Sequential:
    """Return a convolution without bias, batch norm, and an activation."""
    return Sequential(_conv(channels, out, kernel, stride, groups), BatchNorm2d(out), act())


def _draw(model: Module) -> None:
    """Draw He's initial values (fan out) for convolutions, and normal ones of deviation 0.01 for linear layers."""
    for m in model.modules():
        if isinstance(m, Conv2d):
            init.kaiming_normal_(m.weight, mode="fan_out")
            if m.bias is not None:
                init.zeros_(m.bias)
        elif isinstance(m, Linear):
            init.normal_(m.weight, 0.0, 0.01)
            init.zeros_(m.bias)


def _rows(name: str, what: str, table: Any, length: int) -> list[tuple[int, ...]]:
    rows = [tuple(row) for row in table]
    if not rows or any(len(row) != length or any(not isinstance(n, int) or n < 1 for n in row) for row in rows):
        raise ArgumentError(f"{name}: {what}={table!r} must be rows of {length} positive ints")
    return rows


class MobileNetV1(Module):
    """Images [B, channels, H, W] -> logits [B, classes]: convolutions split into depthwise and pointwise ones.

    blocks: (output channels, stride) of each pair; width: multiplies all channels. Source: Howard et al. 2017,
    arXiv 1704.04861, table 1.
    """

    BLOCKS = (
        (64, 1),
        (128, 2),
        (128, 1),
        (256, 2),
        (256, 1),
        (512, 2),
        *((512, 1),) * 5,
        (1024, 2),
        (1024, 1),
    )

    def __init__(
        self,
        classes: Count = 1000,
        width: Width = 1.0,
        blocks: Sequence[tuple[int, int]] = BLOCKS,
        channels: Count = 3,
        dropout: Share = 0.001,
        *,
        dtype: Any = "float32",
    ):
        before = max(1, int(32 * width))
        layers = [_conv_norm_activation(channels, before, 3, 2, act=ReLU)]
        for out, stride in _rows("MobileNetV1", "blocks", blocks, 2):
            out = max(1, int(out * width))
            depthwise = _conv_norm_activation(before, before, 3, stride, before, act=ReLU)
            layers.append(Sequential(depthwise, _conv_norm_activation(before, out, act=ReLU)))
            before = out
        self.features = Sequential(*layers)
        self.classifier = Sequential(Dropout(dropout), Linear(before, classes))
        _draw(self)
        self.to(dtype)

    def forward(self, input: Value) -> Value:
        return self.classifier(self.features(input).mean(axis=(2, 3)))


class _Inverted(Module):
    """Channels widened by a 1x1 convolution, a depthwise one, and a linear 1x1 one; added to the input if shapes agree.

    Without widening the first 1x1 convolution is absent. arXiv 1801.04381, figure 3.
    """

    def __init__(self, channels: int, out: int, stride: int, expansion: int):
        inner = channels * expansion
        layers: list[Module] = [_conv_norm_activation(channels, inner)] if expansion != 1 else []
        layers += [_conv_norm_activation(inner, inner, 3, stride, inner), _conv(inner, out), BatchNorm2d(out)]
        self.conv = Sequential(*layers)
        self.same = stride == 1 and channels == out

    def forward(self, input: Value) -> Value:
        x = self.conv(input)
        return input + x if self.same else x


class MobileNetV2(Module):
    """Images [B, channels, H, W] -> logits [B, classes]: inverted residuals; torchvision's state names.

    blocks: rows (expansion, output channels, repetitions, stride of the first); width: multiplies all channels, rounded
    to multiples of `divisor`, the last layer's only where above 1; last: channels of that layer. Source: Sandler et al.
    2018, arXiv 1801.04381, table 2; initial values as torchvision.
    """

    BLOCKS = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def __init__(
        self,
        classes: Count = 1000,
        width: Width = 1.0,
        blocks: Sequence[tuple[int, int, int, int]] = BLOCKS,
        channels: Count = 3,
        dropout: Share = 0.2,
        divisor: Count = 8,
        last: Count = 1280,
        *,
        dtype: Any = "float32",
    ):
        before = round_channels(32 * width, divisor)
        layers: list[Module] = [_conv_norm_activation(channels, before, 3, 2)]
        for expansion, out, count, stride in _rows("MobileNetV2", "blocks", blocks, 4):
            out = round_channels(out * width, divisor)
            for n in range(count):
                layers.append(_Inverted(before, out, 1 if n else stride, expansion))
                before = out
        end = round_channels(last * max(1.0, width), divisor)
        layers.append(_conv_norm_activation(before, end))
        self.features = Sequential(*layers)
        self.classifier = Sequential(Dropout(dropout), Linear(end, classes))
        _draw(self)
        self.to(dtype)

    def forward(self, input: Value) -> Value:
        return self.classifier(self.features(input).mean(axis=(2, 3)))


class _Shuffle(Module):
    """Grouped 1x1 convolution, channels shuffled between the groups, depthwise one, grouped 1x1 one.

    The result is added to the input, or at stride 2 concatenated after the input's means of 3x3 windows. first: groups
    of the first convolution. arXiv 1707.01083, figure 2.
    """

    def __init__(self, channels: int, out: int, stride: int, groups: int, first: int):
        inner = out // 4
        grown = out - channels if stride == 2 else out
        self.conv1, self.bn1 = _conv(channels, inner, groups=first), BatchNorm2d(inner)
        self.shuffle = ChannelShuffle(groups)
        self.conv2, self.bn2 = _conv(inner, inner, 3, stride, inner), BatchNorm2d(inner)
        self.conv3, self.bn3 = _conv(inner, grown, groups=groups), BatchNorm2d(grown)
        self.add_module("pool", AvgPool2d(3, 2, 1) if stride == 2 else None)

    def forward(self, input: Value) -> Value:
        x = self.shuffle(F.relu(self.bn1(self.conv1(input))))
        x = self.bn3(self.conv3(self.bn2(self.conv2(x))))
        return F.relu(input + x if self.pool is None else F.cat([self.pool(input), x], 1))


class ShuffleNetV1(Module):
    """Images [B, channels, H, W] -> logits [B, classes]: grouped pointwise convolutions with shuffled channels.

    groups: of the pointwise convolutions; stages: (output channels, units) of each stage, whose first unit halves the
    resolution; stem: channels of the first convolution, which a max pooling follows. The defaults are ShuffleNet 1x
    with 3 groups. The very first pointwise convolution is not grouped. Source: Zhang et al. 2017, arXiv 1707.01083,
    table 1.
    """

    STAGES = ((240, 4), (480, 8), (960, 4))

    def __init__(
        self,
        classes: Count = 1000,
        groups: Count = 3,
        stages: Sequence[tuple[int, int]] = STAGES,
        stem: Count = 24,
        channels: Count = 3,
        *,
        dtype: Any = "float32",
    ):
        self.stem = Sequential(_conv_norm_activation(channels, stem, 3, 2, act=ReLU), MaxPool2d(3, 2, 1))
        before, parts = stem, []
        for n, (out, count) in enumerate(_rows("ShuffleNetV1", "stages", stages, 2)):
            if out % (4 * groups) or out <= before or (out - before) % groups or (n and before % groups):
                raise ArgumentError(
                    f"ShuffleNetV1: a stage of {out} channels after {before} does not fit groups={groups}: channels "
                    f"must grow, by a multiple of {groups}, to a multiple of {4 * groups}"
                )
            units: list[Module] = [_Shuffle(before, out, 2, groups, groups if n else 1)]
            units += [_Shuffle(out, out, 1, groups, groups) for _ in range(count - 1)]
            parts.append(Sequential(*units))
            before = out
        self.stages = Sequential(*parts)
        self.fc = Linear(before, classes)
        _draw(self)
        self.to(dtype)

    def forward(self, input: Value) -> Value:
        return self.fc(self.stages(self.stem(input)).mean(axis=(2, 3)))


class _Fire(Module):
    """Few channels, squeezed from all, and expanded by 1x1 and by 3x3 convolutions. arXiv 1602.07360, figure 1."""

    def __init__(self, channels: int, squeezed: int, expanded: int):
        self.squeeze = Conv2d(channels, squeezed, 1)
        self.squeeze_activation = ReLU()
        self.expand1x1 = Conv2d(squeezed, expanded, 1)
        self.expand1x1_activation = ReLU()
        self.expand3x3 = Conv2d(squeezed, expanded, 3, padding=1)
        self.expand3x3_activation = ReLU()

    def forward(self, input: Value) -> Value:
        x = self.squeeze_activation(self.squeeze(input))
        narrow, wide = self.expand1x1(x), self.expand3x3(x)
        return F.cat([self.expand1x1_activation(narrow), self.expand3x3_activation(wide)], 1)


class SqueezeNet(Module):
    """Images [B, channels, H, W] -> logits [B, classes]: fire modules; torchvision's state names.

    version: "1_0", the paper's, or "1_1", which pools earlier; fires: how many of the eight fire modules there are;
    width: multiplies all channels. Source: Iandola et al. 2016, arXiv 1602.07360, table 1; initial values as
    torchvision.
    """

    def __init__(
        self,
        classes: Count = 1000,
        version: str = "1_0",
        width: Width = 1.0,
        fires: Count = 8,
        channels: Count = 3,
        dropout: Share = 0.5,
        *,
        dtype: Any = "float32",
    ):
        if version not in ("1_0", "1_1"):
            raise ArgumentError(f"SqueezeNet: version={version!r} must be '1_0' or '1_1'")
        if fires > 8:
            raise ArgumentError(f"SqueezeNet: fires={fires!r} must be an integer from 1 to 8")
        out, kernel, pooled = (96, 7, (0, 3, 7)) if version == "1_0" else (64, 3, (0, 2, 4))
        before = max(1, int(out * width))
        layers: list[Module] = [Conv2d(channels, before, kernel, 2), ReLU()]
        for n, squeezed in enumerate((16, 16, 32, 32, 48, 48, 64, 64)[:fires]):
            if n in pooled:
                layers.append(MaxPool2d(3, 2, ceil_mode=True))
            expanded = max(1, int(4 * squeezed * width))
            layers.append(_Fire(before, max(1, int(squeezed * width)), expanded))
            before = 2 * expanded
        self.features = Sequential(*layers)
        last = Conv2d(before, classes, 1)
        self.classifier = Sequential(Dropout(dropout), last, ReLU(), AdaptiveAvgPool2d(1), Flatten(1))
        for m in self.modules():
            if isinstance(m, Conv2d):
                if m is last:
                    init.normal_(m.weight, 0.0, 0.01)
                else:
                    init.kaiming_uniform_(m.weight)
                init.zeros_(m.bias)
        self.to(dtype)

    def forward(self, input: Value) -> Value:
        return self.classifier(self.features(input))


class StochasticDepth(Module):
    """Dropout of samples: in training each is zero with probability p, or divided by 1 - p. arXiv 1603.09382."""

    def __init__(self, p: Share):
        self.p = p

    def forward(self, input: Value) -> Value:
        return layer_drop(input, self.p, self, whole=input.ndim - 1) if self.training and self.p else input


class _MobileBlock(Module):
    """EfficientNet's block: as MobileNetV2's, with stochastic depth. Its parts have the names of timm's."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int, expansion: int, dropped: float):
        inner = channels * expansion
        wide = _conv(inner, inner, kernel, stride, inner)
        if expansion == 1:
            parts = {"conv_dw": wide, "bn1": BatchNorm2d(inner), "conv_pw": _conv(inner, out)}
        else:
            parts = {"conv_pw": _conv(channels, inner), "bn1": BatchNorm2d(inner), "conv_dw": wide}
            parts |= {"bn2": BatchNorm2d(inner), "conv_pwl": _conv(inner, out)}
        parts[f"bn{len(parts) // 2 + 1}"] = BatchNorm2d(out)
        for name, part in parts.items():
            self.add_module(name, part)
        self.order = tuple(parts)
        self.drop_path = StochasticDepth(dropped)
        self.same = stride == 1 and channels == out

    def forward(self, input: Value) -> Value:
        x = input
        for name in self.order:
            x = getattr(self, name)(x)
            if name.startswith("bn") and name != self.order[-1]:
                x = F.relu6(x)
        return input + self.drop_path(x) if self.same else x


class EfficientNetLite0(Module):
    """Images [B, channels, H, W] -> logits [B, classes]: EfficientNet-B0 without squeeze and excitation, with ReLU6.

    blocks: rows (expansion, output channels, repetitions, stride of the first, kernel size); stem, last: channels of
    the first and the last convolution; drop_path: the probability of dropping the last block, rising evenly from 0.
    Padding is half of the kernel size on all sides. State names, and what batch norms add and average by, are those of
    timm's efficientnet_lite0, whose published weights load. Sources: Tan and Le 2019, arXiv 1905.11946, table 1; Liu
    2020, "Higher accuracy on vision models with EfficientNet-Lite".
    """

    BLOCKS = (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )

    def __init__(
        self,
        classes: Count = 1000,
        blocks: Sequence[tuple[int, int, int, int, int]] = BLOCKS,
        stem: Count = 32,
        last: Count = 1280,
        channels: Count = 3,
        dropout: Share = 0.2,
        drop_path: Share = 0.2,
        *,
        dtype: Any = "float32",
    ):
        rows = _rows("EfficientNetLite0", "blocks", blocks, 5)
        self.conv_stem, self.bn1 = _conv(channels, stem, 3, 2), BatchNorm2d(stem)
        before, done, total = stem, 0, sum(row[2] for row in rows)
        stages = []
        for expansion, out, count, stride, kernel in rows:
            stage = []
            for n in range(count):
                rate = drop_path * done / total
                stage.append(_MobileBlock(before, out, kernel, 1 if n else stride, expansion, rate))
                before, done = out, done + 1
            stages.append(Sequential(*stage))
        self.blocks = Sequential(*stages)
        self.conv_head, self.bn2 = _conv(before, last), BatchNorm2d(last)
        self.dropout = Dropout(dropout)
        self.classifier = Linear(last, classes)
        _draw(self)
        self.to(dtype)

    def forward(self, input: Value) -> Value:
        x = self.blocks(F.relu6(self.bn1(self.conv_stem(input))))
        x = F.relu6(self.bn2(self.conv_head(x)))
        return self.classifier(self.dropout(x.mean(axis=(2, 3))))
