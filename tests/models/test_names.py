"""The registry of networks: names, functions, documentation; saves that make a network again."""

import hashlib
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import einsmith as es

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
COUNTED = [
    *((n, {}) for n in ("mlp3", "lenet5", "resnet18", "resnet18_cifar", "mobilenet_v1", "mobilenet_v2", "shufflenet_v1",
                        "squeezenet", "efficientnet_lite0", "capsulenet",
                        "capsulenet_conv")),
    ("squeezenet", {"version": "1_1"}), ("capsulenet", {"decoder": True}),
    *(pytest.param(n, {}, marks=pytest.mark.slow)
      for n in ("resnet50", "unet", "vit_small", "bert_base", "gpt_small", "llama")),
]  # fmt: skip
"""Networks whose number of parameters the page has, and their arguments."""


@pytest.mark.parametrize("name", list(es.models.names()))
def test_a_name_is_a_function_and_is_documented(name):
    assert callable(getattr(es.models, name.replace("-", "_")))
    assert f"`{name}`" in PAGE.read_text()
    kind = es.models.maker(name)
    assert inspect.getdoc(kind) and "dtype" in inspect.signature(kind).parameters


@pytest.mark.parametrize("name, arguments", COUNTED)
def test_the_page_has_the_number_of_parameters(name, arguments):
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith("|") and f"`{name}`" in line)
    count = sum(int(np.prod(p.shape)) for p in es.models.get(name, **arguments).parameters())
    assert f"{count:,}" in re.findall(r"[\d,]+\d", row)


PUBLISHED = {
    "resnet18": ({}, 122, "84fb10d9c6905a1c"),
    "resnet50": ({}, 320, "d7e4f8bb0a536344"),
    "mobilenet_v2": ({}, 314, "37bbbce8932fd0c4"),
    "squeezenet": ({"version": "1_0"}, 52, "4654d26ad581241f"),
    "squeezenet 1_1": ({"version": "1_1"}, 52, "1d365589393f9c1e"),
    "vit_small": (
        {"size": 48, "patch": 16, "layers": 2, "heads": 4, "width": 32, "inner": 80, "classes": 7},
        32, "12c48268baeac97d",
    ),
    "efficientnet_lite0": ({}, 296, "ca9c76dafa191af4"),
}  # fmt: skip
"""Arguments, entries, and the beginning of the SHA-256 of the lines "name (shape)" of the states of torchvision 0.28's
networks (vit_small: its VisionTransformer) and timm 1.0's EfficientNet."""


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", PUBLISHED)
def test_states_have_the_published_names_shapes_and_order(name):
    arguments, count, digest = PUBLISHED[name]
    state = es.models.get(name.split()[0], **arguments).state_dict()
    told = "\n".join(f"{n} {v.shape}" for n, v in state.items())
    assert len(state) == count
    assert hashlib.sha256(told.encode()).hexdigest().startswith(digest), told


def test_a_save_makes_the_network_again(tmp_path, rng):
    model = es.models.resnet18_cifar(depths=(1, 1), width=2, classes=3)
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.1))
    x, y = rng.standard_normal((4, 3, 6, 6)).astype(np.float32), rng.integers(0, 3, 4)
    step(x, y)
    es.save(step, tmp_path / "run")
    again = es.load(tmp_path / "run")
    assert type(again.model) is type(model)
    assert again(x, y) == step(x, y)


def test_a_state_that_does_not_fit_changes_nothing():
    model = es.models.squeezenet(width=0.125, fires=1, classes=3)
    before = model.state_dict()
    wrong = {n: v + 1 for n, v in before.items()}
    del wrong["classifier.1.bias"]
    with pytest.raises(es.EinsmithError, match="classifier.1.bias"):
        model.load_state_dict(wrong)
    wrong = {n: v + 1 for n, v in before.items()} | {"classifier.1.bias": np.zeros(4, np.float32)}
    with pytest.raises(es.ShapeError, match="classifier.1.bias"):
        model.load_state_dict(wrong)
    assert all(np.array_equal(v, before[n]) for n, v in model.state_dict().items())
