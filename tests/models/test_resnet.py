"""Residual networks against PyTorch twins with torchvision's state names."""

import pytest

import einsmith as es
from tests.models.twin import agree, images

torch = pytest.importorskip("torch", reason="the twin networks are PyTorch's")
from torch import nn as tnn  # noqa: E402

from tests.models import twins  # noqa: E402

CASES = {
    "resnet18": ({"depths": (1, 1), "width": 3, "classes": 5}, 17),
    "resnet18_cifar": ({"depths": (1, 1), "width": 4, "classes": 5}, 9),
    "resnet50": ({"depths": (2, 1), "width": 2, "classes": 5}, 17),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", CASES)
def test_trains_as_torch(name, steps, rng):
    arguments, size = CASES[name]
    ours, theirs = es.models.get(name, **arguments, dtype="float64"), twins.get(name, **arguments)
    batches = [(images(rng, 3, 3, size), rng.integers(0, 5, 3)) for _ in range(steps)]
    agree(ours, theirs, batches, es.functional.cross_entropy, tnn.functional.cross_entropy)
