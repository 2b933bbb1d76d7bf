"""MobileNet, ShuffleNet, SqueezeNet and EfficientNet-Lite against PyTorch twins, state names included."""

import numpy as np
import pytest

import einsmith as es
from einsmith.errors import ArgumentError
from tests.models.twin import agree, images, same_statistics

torch = pytest.importorskip("torch", reason="the twin networks are PyTorch's")
from torch import nn as tnn  # noqa: E402


def normed(before, after, kernel=1, stride=1, groups=1, act=tnn.ReLU6):
    conv = tnn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    return tnn.Sequential(conv, tnn.BatchNorm2d(after), act())


class Pooled(tnn.Module):
    """Features, their mean, a classifier."""

    def __init__(self, features, width, classes):
        super().__init__()
        self.features = tnn.Sequential(*features)
        self.classifier = tnn.Sequential(tnn.Dropout(0.0), tnn.Linear(width, classes))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


def mobilenet_v1():
    def pair(before, after, stride):
        return tnn.Sequential(normed(before, before, 3, stride, before, tnn.ReLU), normed(before, after, act=tnn.ReLU))

    return Pooled([normed(3, 4, 3, 2, act=tnn.ReLU), pair(4, 6, 1), pair(6, 8, 2)], 8, 5)


class Inverted(tnn.Module):
    def __init__(self, before, after, stride, expansion):
        super().__init__()
        mid = before * expansion
        self.conv = tnn.Sequential(
            *([normed(before, mid)] if expansion > 1 else []), normed(mid, mid, 3, stride, mid),
            tnn.Conv2d(mid, after, 1, bias=False), tnn.BatchNorm2d(after),
        )  # fmt: skip
        self.residual = before == after and stride == 1

    def forward(self, x):
        return x + self.conv(x) if self.residual else self.conv(x)


def mobilenet_v2():
    blocks = [Inverted(4, 4, 1, 1), Inverted(4, 8, 2, 3), Inverted(8, 8, 1, 3)]
    return Pooled([normed(3, 4, 3, 2), *blocks, normed(8, 24)], 24, 5)


class ShuffleUnit(tnn.Module):
    def __init__(self, before, after, stride, groups, first):
        super().__init__()
        mid, grown = after // 4, after - before if stride == 2 else after
        self.conv1 = tnn.Conv2d(before, mid, 1, groups=first, bias=False)
        self.bn1 = tnn.BatchNorm2d(mid)
        self.conv2 = tnn.Conv2d(mid, mid, 3, stride, 1, groups=mid, bias=False)
        self.bn2 = tnn.BatchNorm2d(mid)
        self.conv3 = tnn.Conv2d(mid, grown, 1, groups=groups, bias=False)
        self.bn3 = tnn.BatchNorm2d(grown)
        self.groups, self.stride = groups, stride

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        b, c, h, w = y.shape
        y = y.view(b, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(b, c, h, w)
        y = self.bn3(self.conv3(self.bn2(self.conv2(y))))
        if self.stride == 1:
            return torch.relu(x + y)
        return torch.relu(torch.cat([tnn.functional.avg_pool2d(x, 3, 2, 1), y], 1))


class ShuffleNet(tnn.Module):
    def __init__(self):
        super().__init__()
        self.stem = tnn.Sequential(normed(3, 6, 3, 2, act=tnn.ReLU), tnn.MaxPool2d(3, 2, 1))
        first = tnn.Sequential(ShuffleUnit(6, 24, 2, 3, 1), ShuffleUnit(24, 24, 1, 3, 3))
        self.stages = tnn.Sequential(first, tnn.Sequential(ShuffleUnit(24, 36, 2, 3, 3)))
        self.fc = tnn.Linear(36, 5)

    def forward(self, x):
        return self.fc(self.stages(self.stem(x)).mean((2, 3)))


class Fire(tnn.Module):
    def __init__(self, before, few, many):
        super().__init__()
        self.squeeze = tnn.Conv2d(before, few, 1)
        self.expand1x1 = tnn.Conv2d(few, many, 1)
        self.expand3x3 = tnn.Conv2d(few, many, 3, padding=1)

    def forward(self, x):
        x = self.squeeze(x).relu()
        return torch.cat([self.expand1x1(x), self.expand3x3(x)], 1).relu()


class SqueezeNet(tnn.Module):
    def __init__(self, version):
        super().__init__()
        if version == "1_0":
            self.features = tnn.Sequential(
                tnn.Conv2d(3, 12, 7, 2), tnn.ReLU(), tnn.MaxPool2d(3, 2, ceil_mode=True),
                Fire(12, 2, 8), Fire(16, 2, 8),
            )  # fmt: skip
        else:
            self.features = tnn.Sequential(
                tnn.Conv2d(3, 8, 3, 2), tnn.ReLU(), tnn.MaxPool2d(3, 2, ceil_mode=True), Fire(8, 2, 8),
                Fire(16, 2, 8), tnn.MaxPool2d(3, 2, ceil_mode=True), Fire(16, 4, 16),
            )  # fmt: skip
        last = tnn.Conv2d(16 if version == "1_0" else 32, 5, 1)
        self.classifier = tnn.Sequential(tnn.Dropout(0.0), last, tnn.ReLU(), tnn.AdaptiveAvgPool2d((1, 1)))

    def forward(self, x):
        return torch.flatten(self.classifier(self.features(x)), 1)


class MobileBlock(tnn.Module):
    def __init__(self, before, after, kernel, stride, expansion):
        super().__init__()
        mid = before * expansion

        wide = tnn.Conv2d(mid, mid, kernel, stride, kernel // 2, groups=mid, bias=False)
        if expansion == 1:
            self.conv_dw, self.bn1 = wide, tnn.BatchNorm2d(mid)
            self.conv_pw, self.bn2 = tnn.Conv2d(mid, after, 1, bias=False), tnn.BatchNorm2d(after)
        else:
            self.conv_pw, self.bn1 = tnn.Conv2d(before, mid, 1, bias=False), tnn.BatchNorm2d(mid)
            self.conv_dw, self.bn2 = wide, tnn.BatchNorm2d(mid)
            self.conv_pwl, self.bn3 = tnn.Conv2d(mid, after, 1, bias=False), tnn.BatchNorm2d(after)
        self.plain, self.residual = expansion == 1, stride == 1 and before == after

    def forward(self, x):
        act = tnn.functional.relu6
        if self.plain:
            y = self.bn2(self.conv_pw(act(self.bn1(self.conv_dw(x)))))
        else:
            y = act(self.bn2(self.conv_dw(act(self.bn1(self.conv_pw(x))))))
            y = self.bn3(self.conv_pwl(y))
        return x + y if self.residual else y


class EfficientNetLite(tnn.Module):
    def __init__(self):
        super().__init__()
        self.conv_stem = tnn.Conv2d(3, 4, 3, 2, 1, bias=False)
        self.bn1 = tnn.BatchNorm2d(4)
        self.blocks = tnn.Sequential(
            tnn.Sequential(MobileBlock(4, 4, 3, 1, 1)),
            tnn.Sequential(MobileBlock(4, 6, 5, 2, 3), MobileBlock(6, 6, 5, 1, 3)),
        )
        self.conv_head = tnn.Conv2d(6, 16, 1, bias=False)
        self.bn2 = tnn.BatchNorm2d(16)
        self.classifier = tnn.Linear(16, 5)

    def forward(self, x):
        x = self.blocks(tnn.functional.relu6(self.bn1(self.conv_stem(x))))
        return self.classifier(tnn.functional.relu6(self.bn2(self.conv_head(x))).mean((2, 3)))


CASES = {
    "mobilenet_v1": ("mobilenet_v1", {"width": 0.125, "blocks": [(48, 1), (64, 2)], "dropout": 0.0}, mobilenet_v1, 9),
    "mobilenet_v2": (
        "mobilenet_v2",
        {"width": 0.125, "blocks": [(1, 32, 1, 1), (3, 64, 2, 2)], "dropout": 0.0, "divisor": 4, "last": 24},
        mobilenet_v2, 9,
    ),
    "shufflenet_v1": ("shufflenet_v1", {"stages": [(24, 2), (36, 1)], "stem": 6}, ShuffleNet, 17),
    "squeezenet 1.0": (
        "squeezenet", {"width": 0.125, "fires": 2, "dropout": 0.0}, lambda: SqueezeNet("1_0"), 25,
    ),
    "squeezenet 1.1": (
        "squeezenet", {"width": 0.125, "fires": 3, "dropout": 0.0, "version": "1_1"}, lambda: SqueezeNet("1_1"), 20,
    ),
    "efficientnet_lite0": (
        "efficientnet_lite0",
        {"blocks": [(1, 4, 1, 1, 3), (3, 6, 2, 2, 5)], "stem": 4, "last": 16, "dropout": 0.0, "drop_path": 0.0},
        EfficientNetLite, 13,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_trains_as_torch(case, steps, rng):
    name, arguments, twin, size = CASES[case]
    ours = es.models.get(name, classes=5, **arguments, dtype="float64")
    batches = [(images(rng, 3, 3, size), rng.integers(0, 5, 3)) for _ in range(steps)]
    agree(ours, twin(), batches, es.functional.cross_entropy, tnn.functional.cross_entropy)


@pytest.mark.parametrize(
    "case", ["squeezenet 1.1", *(pytest.param(c, marks=pytest.mark.slow) for c in ("mobilenet_v1", "mobilenet_v2"))]
)
def test_dropout_has_torchs_statistics(case, rng):
    name, arguments, twin, size = CASES[case]
    theirs = twin()
    theirs.classifier[0].p = 0.3
    ours = es.models.get(name, **arguments | {"classes": 5, "dropout": 0.3}, dtype="float64")
    same_statistics(ours, theirs, images(rng, 1, 3, size))


@pytest.mark.parametrize(
    "name,arguments,count",
    [
        ("mobilenet_v1", {}, 4_231_976), ("mobilenet_v2", {}, 3_504_872), ("squeezenet", {}, 1_248_424),
        ("squeezenet", {"version": "1_1"}, 1_235_496), ("efficientnet_lite0", {}, 4_652_008),
    ],
)  # fmt: skip
def test_has_the_published_number_of_parameters(name, arguments, count):
    assert sum(int(np.prod(p.shape)) for p in es.models.get(name, **arguments).parameters()) == count


def test_stages_of_shufflenet_are_those_of_the_paper():
    model = es.models.shufflenet_v1()
    assert [len(list(stage)) for stage in model.stages] == [4, 8, 4]
    assert [stage[1].conv3.weight.shape for stage in model.stages] == [
        (240, 20, 1, 1), (480, 40, 1, 1), (960, 80, 1, 1),
    ]  # fmt: skip
    assert model.stages[0][0].conv1.groups == 1 and model.stages[1][0].conv1.groups == 3


def test_stochastic_depth_drops_samples_and_keeps_the_mean():
    layer = es.models.StochasticDepth(0.25)
    x = np.ones((4000, 2, 3, 1), np.float32)
    y = layer(x)
    kept = y[:, 0, 0, 0] != 0
    assert abs(kept.mean() - 0.75) < 0.03
    np.testing.assert_array_equal(y, np.where(kept[:, None, None, None], x / 0.75, 0))
    np.testing.assert_array_equal(layer.eval()(x), x)


@pytest.mark.parametrize(
    "name,wrong,said",
    [
        ("squeezenet", {"version": "2_0"}, "1_0"), ("squeezenet", {"fires": 9}, "fires=9"),
        ("shufflenet_v1", {"stages": [(250, 4)]}, "250"), ("shufflenet_v1", {"groups": 7}, "groups=7"),
        ("mobilenet_v2", {"blocks": [(1, 16)]}, "blocks"), ("mobilenet_v1", {"blocks": []}, "blocks"),
        ("resnet18", {"depths": (2, 0)}, "depths"), ("resnet50", {"depths": ()}, "depths"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_named(name, wrong, said):
    with pytest.raises(ArgumentError, match=said):
        es.models.get(name, **wrong)
