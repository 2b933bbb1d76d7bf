"""Networks that are trained through torch.compile(model, backend="einsmith") are those that eager execution trains."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")
from torch import nn  # noqa: E402
from torch.nn import functional as tf  # noqa: E402

from tests.frontends.torch_compiled import agree, compiled, fresh, randn  # noqa: E402, F401
from tests.models import twins  # noqa: E402

STEPS = 5


def trains_alike(model, batches, loss, optimizer, rtol=1e-8):
    """Losses, parameters and buffers of five steps are those of eager execution, by the same optimizer."""
    model = model.double()
    states = []
    for run in (model, copy.deepcopy(model)):
        made = compiled(run) if states else run
        step = optimizer(run.parameters())
        losses = []
        for *inputs, target in batches:
            step.zero_grad()
            value = loss(made(*inputs), target)
            value.backward()
            step.step()
            losses.append(value.detach())
        run.eval()
        with torch.no_grad():
            out = made(*batches[0][:-1])
        states.append((losses, run.state_dict(), out))
    (losses, want, out), (got_losses, got, got_out) = states
    agree(got_losses, losses, rtol)
    agree(dict(got), dict(want), rtol)
    agree(got_out, out, rtol)


class Images(nn.Module):
    """What image networks are made of."""

    def __init__(self):
        super().__init__()
        conv = nn.Conv2d(3, 6, 3, 2, 1, bias=False)
        self.stem = nn.Sequential(conv, nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.depthwise = nn.Sequential(nn.Conv2d(6, 6, 3, 1, 1, groups=6), nn.BatchNorm2d(6), nn.Hardswish())
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.depthwise(x)
        return self.head(tf.adaptive_avg_pool2d(x, 1).flatten(1))


SMALL = {"vocabulary": 50, "width": 8, "layers": 1, "heads": 2, "positions": 12, "inner": 12, "dropout": 0.0}


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=1e-3)


def adamw(parameters):
    return torch.optim.AdamW(parameters, 1e-2)


def test_images_train_as_in_eager():
    batches = [(randn(3, 3, 13, 17), torch.randint(0, 5, (3,))) for _ in range(STEPS)]
    trains_alike(Images(), batches, tf.cross_entropy, sgd)


@pytest.mark.slow
def test_a_transformer_trains_as_in_eager():
    batches = [(torch.randint(0, 50, (3, 7)), torch.randint(0, 50, (3, 7))) for _ in range(STEPS)]
    trains_alike(
        twins.get("gpt_small", **SMALL), batches, lambda out, y: tf.cross_entropy(out.flatten(0, 1), y.flatten()), adamw
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "mobilenet_v2", "shufflenet_v1", "squeezenet", "unet"])
def test_networks_train_as_in_eager(name):
    arguments = {
        "resnet18": {"depths": (1, 1), "width": 3, "classes": 5},
        "resnet50": {"depths": (1, 1), "width": 2, "classes": 5},
        "mobilenet_v2": {
            "width": 0.25, "classes": 5, "blocks": ((1, 4, 1, 1), (2, 8, 2, 2)), "dropout": 0.0, "last": 16
        },
        "shufflenet_v1": {"classes": 5, "groups": 3, "stages": ((24, 2), (48, 2)), "stem": 6},
        "squeezenet": {"classes": 5, "width": 0.125, "fires": 3, "dropout": 0.0},
    }  # fmt: skip
    if name == "unet":
        model, shape = twins.get(name), (1, 1, 32, 32)
        batches = [(randn(*shape), randn(*model(torch.zeros(shape)).shape)) for _ in range(2)]
        return trains_alike(model, batches, tf.mse_loss, sgd, 1e-6)
    batches = [(randn(3, 3, 33, 33), torch.randint(0, 5, (3,))) for _ in range(STEPS)]
    return trains_alike(twins.get(name, **arguments[name]), batches, tf.cross_entropy, sgd, 1e-7)


# -------------------------------------------------------------------------------------------- what is saved, optimizers


def test_less_is_saved_than_is_computed():
    """Of a chain of operators of elements, its beginning; the sums of batch norm; no copy of a weight."""
    kept = []
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Conv2d(4, 2, 1)).double()
    f, x = compiled(model), randn(5, 3, 9, 8)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = f(x)
    given = {t.data_ptr() for t in (x, *model.parameters(), *model.buffers())}
    made = sum(t.numel() for t in kept if t.data_ptr() not in given)
    assert 5 * 4 * 7 * 6 <= made <= 5 * 4 * 7 * 6 + 40
    y.sum().backward()


@pytest.mark.thinned(4)
@pytest.mark.parametrize("kind", ["Adam", "SGD", "Adagrad"])
def test_a_compiled_optimizer(kind):
    models = [nn.Linear(5, 3).double() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    x, steps = randn(4, 5), []
    for m, name in zip(models, ("aot_eager", "einsmith"), strict=True):
        optimizer = getattr(torch.optim, kind)(m.parameters(), 0.1)
        steps.append((m, optimizer, torch.compile(optimizer.step, backend=name)))
    for _ in range(3):
        for m, optimizer, step in steps:
            optimizer.zero_grad()
            m(x).square().sum().backward()
            step()
    agree(dict(models[1].state_dict()), dict(models[0].state_dict()))
