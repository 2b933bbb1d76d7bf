"""U-Net against a PyTorch twin: with and without padding, with and without batch norm."""

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import ArgumentError, ShapeError
from tests.models.twin import agree, images

torch = pytest.importorskip("torch", reason="the twin networks are PyTorch's")
from torch import nn as tnn  # noqa: E402

from tests.models import twins  # noqa: E402

CASES = {
    "padded, batch norm": ({"depth": 1, "width": 3, "channels": 2, "padding": 1}, True, (6, 10), (6, 10)),
    "as published": ({"depth": 1, "width": 4, "channels": 1, "padding": 0}, False, (18, 20), (2, 4)),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("case", CASES)
def test_trains_as_torch(case, steps, rng):
    arguments, norm, size, result = CASES[case]
    ours = es.models.unet(classes=3, **arguments, batch_norm=norm, dtype="float64")
    theirs = twins.get("unet", classes=3, **arguments, batch_norm=norm)
    batches = [(images(rng, 2, arguments["channels"], *size), rng.integers(0, 3, (2, *result))) for _ in range(steps)]
    agree(ours, theirs, batches, es.functional.cross_entropy, tnn.functional.cross_entropy)


def test_odd_maps_and_wrong_options_are_named():
    with pytest.raises(ShapeError, match="pooling 2"):
        es.models.unet(depth=2, width=2)(np.zeros((1, 1, 6, 8), np.float32))
    with pytest.raises(ArgumentError, match="padding=2"):
        es.models.unet(padding=2)
    with pytest.raises(ArgumentError, match="depth=0"):
        es.models.unet(depth=0)
