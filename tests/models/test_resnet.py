"""Residual networks against PyTorch twins with torchvision's state names."""

import numpy as np
import pytest

import einsmith as es
from tests.models.twin import agree, images

torch = pytest.importorskip("torch", reason="the twin networks are PyTorch's")
from torch import nn as tnn  # noqa: E402


class Block(tnn.Module):
    def __init__(self, before, width, stride, deep):
        super().__init__()
        out = 4 * width if deep else width
        if deep:
            self.conv1 = tnn.Conv2d(before, width, 1, bias=False)
            self.bn1 = tnn.BatchNorm2d(width)
            self.conv2 = tnn.Conv2d(width, width, 3, stride, 1, bias=False)
            self.bn2 = tnn.BatchNorm2d(width)
            self.conv3 = tnn.Conv2d(width, out, 1, bias=False)
            self.bn3 = tnn.BatchNorm2d(out)
        else:
            self.conv1 = tnn.Conv2d(before, width, 3, stride, 1, bias=False)
            self.bn1 = tnn.BatchNorm2d(width)
            self.conv2 = tnn.Conv2d(width, width, 3, 1, 1, bias=False)
            self.bn2 = tnn.BatchNorm2d(width)
        self.deep, self.downsample = deep, None
        if stride != 1 or before != out:
            self.downsample = tnn.Sequential(tnn.Conv2d(before, out, 1, stride, bias=False), tnn.BatchNorm2d(out))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        if self.deep:
            y = self.bn3(self.conv3(torch.relu(y)))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(tnn.Module):
    def __init__(self, depths, width, classes, deep=False, small=False):
        super().__init__()
        self.conv1 = tnn.Conv2d(3, width, 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=False)
        self.bn1 = tnn.BatchNorm2d(width)
        self.maxpool = tnn.Identity() if small else tnn.MaxPool2d(3, 2, 1)
        before, self.stages = width, len(depths)
        for n, depth in enumerate(depths):
            w = width << n
            blocks = []
            for k in range(depth):
                blocks.append(Block(before, w, 2 if n > 0 and k == 0 else 1, deep))
                before = 4 * w if deep else w
            setattr(self, f"layer{n + 1}", tnn.Sequential(*blocks))
        self.fc = tnn.Linear(before, classes)

    def forward(self, x):
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for n in range(self.stages):
            x = getattr(self, f"layer{n + 1}")(x)
        return self.fc(x.mean((2, 3)))


CASES = {
    "resnet18": ({"depths": (2, 1), "width": 3, "classes": 5}, {}, 17),
    "resnet18_cifar": ({"depths": (1, 1), "width": 4, "classes": 5}, {"small": True}, 9),
    "resnet50": ({"depths": (2, 1), "width": 2, "classes": 5}, {"deep": True}, 17),
}


@pytest.mark.parametrize("name", CASES)
def test_trains_as_torch(name, steps, rng):
    arguments, more, size = CASES[name]
    ours, theirs = es.models.get(name, **arguments, dtype="float64"), ResNet(**arguments, **more)
    batches = [(images(rng, 3, 3, size), rng.integers(0, 5, 3)) for _ in range(steps)]
    agree(ours, theirs, batches, es.functional.cross_entropy, tnn.functional.cross_entropy)


@pytest.mark.parametrize(
    "name,count", [("resnet18", 11_689_512), ("resnet18_cifar", 11_173_962), ("resnet50", 25_557_032)]
)
def test_has_the_published_number_of_parameters(name, count):
    assert sum(int(np.prod(p.shape)) for p in es.models.get(name).parameters()) == count
