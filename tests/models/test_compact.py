"""MobileNet, ShuffleNet, SqueezeNet and EfficientNet-Lite against PyTorch twins, state names included."""

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import ArgumentError
from tests.models.twin import agree, images, same_statistics

torch = pytest.importorskip("torch", reason="the twin networks are PyTorch's")
from torch import nn as tnn  # noqa: E402

from tests.models import twins  # noqa: E402

CASES = {
    "mobilenet_v1": ("mobilenet_v1", {"width": 0.125, "blocks": [(48, 1), (64, 2)], "dropout": 0.0}, 9),
    "mobilenet_v2": (
        "mobilenet_v2",
        {"width": 0.125, "blocks": [(1, 32, 1, 1), (3, 64, 2, 2)], "dropout": 0.0, "divisor": 4, "last": 24},
        9,
    ),
    "shufflenet_v1": ("shufflenet_v1", {"stages": [(24, 2), (36, 1)], "stem": 6}, 17),
    "squeezenet 1.0": (
        "squeezenet", {"width": 0.125, "fires": 2, "dropout": 0.0}, 25
    ),
    "squeezenet 1.1": (
        "squeezenet", {"width": 0.125, "fires": 3, "dropout": 0.0, "version": "1_1"}, 20
    ),
    "efficientnet_lite0": (
        "efficientnet_lite0",
        {"blocks": [(1, 4, 1, 1, 3), (3, 6, 2, 2, 5)], "stem": 4, "last": 16, "dropout": 0.0, "drop_path": 0.0},
        13,
    ),
}  # fmt: skip


@pytest.mark.thinned(6)
@pytest.mark.parametrize("case", CASES)
def test_trains_as_torch(case, steps, rng):
    name, arguments, size = CASES[case]
    ours = es.models.get(name, classes=5, **arguments, dtype="float64")
    batches = [(images(rng, 3, 3, size), rng.integers(0, 5, 3)) for _ in range(steps)]
    theirs = twins.get(name, classes=5, **arguments)
    agree(ours, theirs, batches, es.functional.cross_entropy, tnn.functional.cross_entropy)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["squeezenet 1.1", "mobilenet_v1", "mobilenet_v2"])
def test_dropout_has_torchs_statistics(case, rng):
    name, arguments, size = CASES[case]
    arguments = arguments | {"classes": 5, "dropout": 0.3}
    ours = es.models.get(name, **arguments, dtype="float64")
    same_statistics(ours, twins.get(name, **arguments), images(rng, 1, 3, size))


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
