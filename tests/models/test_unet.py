"""U-Net against a PyTorch twin: with and without padding, with and without batch norm."""

import numpy as np
import pytest

import einsmith as es
from einsmith.errors import ArgumentError, ShapeError
from tests.models.twin import agree, images

torch = pytest.importorskip("torch", reason="the twin networks are PyTorch's")
from torch import nn as tnn  # noqa: E402


def double(before, after, padding, norm):
    return tnn.Sequential(
        tnn.Conv2d(before, after, 3, 1, padding, bias=not norm), *([tnn.BatchNorm2d(after)] if norm else []),
        tnn.ReLU(), tnn.Conv2d(after, after, 3, 1, padding, bias=not norm),
        *([tnn.BatchNorm2d(after)] if norm else []), tnn.ReLU(),
    )  # fmt: skip


class UNet(tnn.Module):
    def __init__(self, classes, depth, width, channels, padding, norm):
        super().__init__()
        w = [width << n for n in range(depth + 1)]
        self.down = tnn.ModuleList(double(w[n - 1] if n else channels, w[n], padding, norm) for n in range(depth + 1))
        self.up = tnn.ModuleList(tnn.ConvTranspose2d(w[n + 1], w[n], 2, 2) for n in reversed(range(depth)))
        self.merge = tnn.ModuleList(double(w[n + 1], w[n], padding, norm) for n in reversed(range(depth)))
        self.head = tnn.Conv2d(width, classes, 1)

    def forward(self, x):
        passed = []
        for block in self.down[:-1]:
            passed.append(block(x))
            x = tnn.functional.max_pool2d(passed[-1], 2)
        x = self.down[-1](x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x, skip = up(x), passed.pop()
            i, j = (skip.shape[2] - x.shape[2]) // 2, (skip.shape[3] - x.shape[3]) // 2
            x = merge(torch.cat([skip[:, :, i : i + x.shape[2], j : j + x.shape[3]], x], 1))
        return self.head(x)


CASES = {
    "padded, batch norm": ({"depth": 2, "width": 3, "channels": 2, "padding": 1}, True, (12, 8), (12, 8)),
    "as published": ({"depth": 1, "width": 4, "channels": 1, "padding": 0}, False, (18, 20), (2, 4)),
}


@pytest.mark.parametrize("case", CASES)
def test_trains_as_torch(case, steps, rng):
    arguments, norm, size, result = CASES[case]
    ours = es.models.unet(classes=3, **arguments, batch_norm=norm, dtype="float64")
    theirs = UNet(3, *arguments.values(), norm)
    batches = [(images(rng, 2, arguments["channels"], *size), rng.integers(0, 3, (2, *result))) for _ in range(steps)]
    agree(ours, theirs, batches, es.functional.cross_entropy, tnn.functional.cross_entropy)


def test_has_the_size_of_the_paper():
    model = es.models.unet(padding=0)
    assert sum(int(np.prod(p.shape)) for p in model.parameters()) == 31_030_658


def test_odd_maps_and_wrong_options_are_named():
    with pytest.raises(ShapeError, match="pooling 2"):
        es.models.unet(depth=2, width=2)(np.zeros((1, 1, 6, 8), np.float32))
    with pytest.raises(ArgumentError, match="padding=2"):
        es.models.unet(padding=2)
    with pytest.raises(ArgumentError, match="depth=0"):
        es.models.unet(depth=0)
