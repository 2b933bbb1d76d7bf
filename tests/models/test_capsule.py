"""The capsule network against PyTorch twins, with both axes of routing and the decoder; its loss and bad input."""

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import ArgumentError, ShapeError
from tests.models.twin import agree, close, images

torch = pytest.importorskip("torch", reason="the twin networks are PyTorch's")
from torch import nn as tnn  # noqa: E402

from tests.models import twins  # noqa: E402
from tests.models.twins.capsule import margin_loss as margin  # noqa: E402

SMALL = {"classes": 3, "filters": 4, "capsules": 2, "width": 3, "features": 5}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("routing,size", [("inputs", 19), ("classes", 20)])
def test_trains_as_torch(routing, size, steps, rng):
    ours = es.models.capsulenet(**SMALL, routing=routing, size=size, dtype="float64")
    theirs = twins.get("capsulenet", **SMALL, routing=routing, size=size)
    batches = [(images(rng, 3, 1, size), rng.integers(0, 3, 3)) for _ in range(steps)]
    agree(ours, theirs, batches, es.functional.margin_loss, margin)


@pytest.mark.parametrize(
    "arguments", [{"capsules": 3, "pose": 3, "size": 19}, {"capsules": 5, "pose": 2, "size": 18, "iterations": 1}]
)
def test_capsule_convolutions_train_as_torch(arguments, steps, rng):
    ours = es.models.capsulenet_conv(classes=3, **arguments, dtype="float64")
    theirs = twins.get("capsulenet_conv", classes=3, **arguments)
    batches = [(images(rng, 3, 1, arguments["size"]), rng.integers(0, 3, 3)) for _ in range(steps)]
    agree(ours, theirs, batches, es.functional.margin_loss, margin)


def test_the_decoder_sees_the_labelled_capsule(rng):
    ours = es.models.capsulenet(**SMALL, size=17, decoder=True, dtype="float64")
    theirs = twins.get("capsulenet", **SMALL, size=17, decoder=True).double()
    ours.load_state_dict(theirs.state_dict())
    x, labels = images(rng, 2, 1, 17), np.array([2, 0])
    image = es.jit(lambda x, y: ours.reconstruct(ours.capsules_of(x), y))(x, labels)
    with torch.no_grad():
        v = theirs.both(torch.tensor(x))
        kept = v * tnn.functional.one_hot(torch.tensor(labels), 3)[..., None]
        close(image, theirs.decoder(kept.flatten(1)).reshape(2, 1, 17, 17).numpy(), "reconstruction")


def test_the_margin_loss_and_its_gradient_are_torchs(rng):
    x, y = rng.random((7, 5)), rng.integers(0, 5, 7)
    t = torch.tensor(x, requires_grad=True)
    margin(t, torch.tensor(y)).backward()
    value, gradient = es.value_and_grad(es.functional.margin_loss)(x, y)
    close(value, margin(torch.tensor(x), torch.tensor(y)).numpy(), "loss", 1e-12)
    close(gradient, t.grad.numpy(), "gradient", 1e-12)
    with pytest.raises(IndexError):
        es.functional.margin_loss(x, y + 1 - y.min() + 4)
    with pytest.raises(ShapeError, match="margin_loss"):
        es.functional.margin_loss(x, y[:3])


@pytest.mark.parametrize(
    "wrong,said", [({"routing": "both"}, "both"), ({"size": 16}, "size=16"), ({"iterations": 0}, "iterations=0")]
)
def test_options_that_do_not_fit_are_named(wrong, said):
    with pytest.raises(ArgumentError, match=said):
        es.models.capsulenet(**wrong)


def test_capsules_of_other_shapes_are_named():
    with pytest.raises(ArgumentError, match="size=16"):
        es.models.capsulenet_conv(size=16)
    layer = es.models.CapsuleConv2d(3, 2, 3)
    for shape in ((1, 3, 5, 5, 4, 3), (1, 2, 5, 5, 4, 4), (1, 3, 2, 5, 4, 4), (3, 5, 5, 4, 4)):
        with pytest.raises(ShapeError, match=r"needs \[B, 3, H, W, 4, 4\] with H and W at least 3"):
            layer(np.zeros(shape, np.float32))


def test_images_of_another_size_and_a_missing_decoder_are_named():
    model = es.models.capsulenet(**SMALL)
    with pytest.raises(ShapeError, match="RoutedCapsules"):
        model(np.zeros((1, 1, 30, 30), np.float32))
    with pytest.raises(ArgumentError, match="decoder=True"):
        es.jit(model.reconstruct)(np.zeros((1, 3, 5), np.float32), np.zeros(1, np.int64))


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["inputs", "classes"])
def test_fresh_weights_learn(routing, rng):
    """Couplings that average over many inputs make capsules short, and short ones get hardly a gradient."""
    es.manual_seed(3)
    learns(es.models.capsulenet(classes=3, filters=8, capsules=8, width=4, features=6, size=20, routing=routing), rng)


@pytest.mark.slow
def test_fresh_capsule_convolutions_learn(rng):
    es.manual_seed(3)
    learns(es.models.capsulenet_conv(classes=3, capsules=8, size=20), rng)


def learns(model, rng) -> None:
    """A network with fresh weights learns to tell three noisy images of 20x20."""
    step = es.TrainStep(model, es.functional.margin_loss, es.optim.Adam(lr=3e-3))
    centers = rng.random((3, 1, 20, 20))
    losses = []
    for _ in range(40):
        y = rng.integers(0, 3, 8)
        losses.append(step((centers[y] + 0.1 * rng.standard_normal((8, 1, 20, 20))).astype(np.float32), y))
    assert np.mean(losses[-5:]) < 0.5 * losses[0], losses
