"""Running statistics of batch norm and instance norm: training steps, evaluation, saves, against torch."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith import functional as F
from einsmith import nn
from einsmith.base.dtypes import f32
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.ir.nodes import Compute, Reduce, leaf, postorder
from einsmith.tracing.builder import Value
from einsmith.tracing.trace import Trace, tracing

SHAPES = {1: (7,), 2: (3, 5), 3: (2, 3, 2)}


class Network(nn.Module):
    """A convolution, a normalization, and a mean over places."""

    def __init__(self, norm: nn.Module, n: int):
        self.conv = getattr(nn, f"Conv{n}d")(2, 4, 1)
        self.norm = norm
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        y = self.norm(self.conv(x))
        return self.fc((y * y).mean(axis=tuple(range(2, x.ndim))))


def twin(torch, norm, n):
    class Twin(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = getattr(torch.nn, f"Conv{n}d")(2, 4, 1)
            self.norm = norm
            self.fc = torch.nn.Linear(4, 3)

        def forward(self, x):
            return self.fc(self.norm(self.conv(x)).square().mean(tuple(range(2, x.ndim))))

    return Twin().double()


@pytest.mark.thinned(12)
@pytest.mark.parametrize(
    "name, options",
    [
        ("BatchNorm1d", {}),
        ("BatchNorm1d", {"momentum": None, "affine": False}),
        ("BatchNorm2d", {"momentum": 0.3}),
        ("BatchNorm2d", {"momentum": None}),
        ("BatchNorm2d", {"track_running_stats": False}),
        ("BatchNorm3d", {"momentum": 1.0}),
        ("InstanceNorm1d", {"track_running_stats": True}),
        ("InstanceNorm2d", {"track_running_stats": True, "affine": True, "momentum": None}),
        ("InstanceNorm3d", {"track_running_stats": True, "momentum": 0.25}),
    ],
    ids=str,
)
def test_training_steps_equal_torch(torch, rng, name, options) -> None:
    """Losses, parameters and running statistics of four steps; then evaluation by the running statistics."""
    n = int(name[-2])
    theirs = twin(torch, getattr(torch.nn, name)(4, **options), n)
    ours = Network(getattr(nn, name)(4, **options), n).double()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    step = es.TrainStep(ours, F.mse_loss, es.optim.SGD(lr=0.05, momentum=0.9))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.9)
    for size in (3, 3, 5, 3):  # another batch size is another program on the same buffers
        x, y = rng.standard_normal((size, 2, *SHAPES[n])) * 3 + 1, rng.standard_normal((size, 3))
        loss = torch.nn.functional.mse_loss(theirs(torch.tensor(x)), torch.tensor(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert step(x, y) == pytest.approx(loss.item(), rel=1e-9)
        for (key, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
            np.testing.assert_allclose(a, b.numpy(), rtol=1e-8, atol=1e-10, err_msg=key)
    x = rng.standard_normal((2, 2, *SHAPES[n]))
    before = ours.state_dict()
    np.testing.assert_allclose(ours.predict(x), theirs.eval()(torch.tensor(x)).detach().numpy(), rtol=1e-8)
    assert ours.norm.training
    for key, value in ours.state_dict().items():
        np.testing.assert_array_equal(value, before[key])


def test_a_forward_in_training_mode_updates_and_a_gradient_too(torch, rng) -> None:
    ours, theirs = nn.BatchNorm1d(3).double(), torch.nn.BatchNorm1d(3).double()
    x = rng.standard_normal((6, 3))
    ours(x), theirs(torch.tensor(x))
    es.grad(lambda x: (ours(x) ** 3).sum())(x)
    theirs(torch.tensor(x))
    assert ours.num_batches_tracked.data == 2 and ours.num_batches_tracked.data.dtype == np.int64
    for key, value in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[key], value.numpy(), rtol=1e-12)
    ours.reset_running_stats()
    assert not ours.running_mean.data.any() and (ours.running_var.data == 1).all() and not ours.num_batches_tracked.data


def test_a_layer_met_twice_updates_twice(torch, rng) -> None:
    ours, theirs = nn.BatchNorm1d(3, momentum=0.5).double(), torch.nn.BatchNorm1d(3, momentum=0.5).double()
    x = rng.standard_normal((4, 3))
    found = es.jit(lambda x: ours(ours(x) * 2 + 1))(x)
    wanted = theirs(theirs(torch.tensor(x)) * 2 + 1)
    np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-10, atol=1e-12)
    for key, value in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[key], value.numpy(), rtol=1e-12)


def test_a_loss_that_is_not_finite_leaves_the_statistics(rng) -> None:
    model = Network(nn.BatchNorm2d(4), 2)
    step = es.TrainStep(model, F.mse_loss, es.optim.SGD(lr=0.1))
    x, y = rng.standard_normal((2, 2, 3, 5), np.float32), np.zeros((2, 3), np.float32)
    step(x, y)
    before = model.state_dict()
    with pytest.raises(es.NonFiniteError):
        step(x * np.inf, y)
    for key, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[key])


class Pooled(nn.Module):
    """The gradient of the pooling rewrites it, to share positions with it; the statistics are made behind it."""

    def __init__(self):
        after = [m for _ in range(2) for m in (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())]
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(3, 2, 1), *after, nn.Flatten())

    def forward(self, x):
        return self.body(x)


def test_statistics_share_the_forward_pass(rng) -> None:
    """A step has as many products as one without running statistics, and none of them is part of the update."""
    x = rng.standard_normal((2, 2, 12, 10), np.float32)
    counts = []
    for track in (True, False):
        model = Pooled()
        for norm in (model.body[3], model.body[6]):
            if not track:
                norm.track_running_stats = False
        step = es.TrainStep(model, lambda y, t: ((y - t) ** 2).sum(), es.optim.SGD(lr=0.1))
        rows = step.profile(x, np.zeros((2, 80), np.float32), repeats=1).rows
        counts.append(sum(pattern == "contraction" for _, _, pattern, *_ in rows))
        assert not any(part == "update" and pattern == "contraction" for part, _, pattern, *_ in rows)
    assert counts[0] == counts[1]
    with tracing(Trace()) as t:
        x = Value(leaf(x.shape, f32))
        value, gradient = es.value_and_grad(lambda x: (Pooled()(x) ** 2).sum())(x)
    forward = set(postorder([value.tensor, gradient.tensor]))
    stored = [n for n in postorder([new for _, new in t.updates.values()]) if isinstance(n, Compute)]
    assert len(t.updates) == 6
    assert not [n for n in stored if n not in forward and any(isinstance(p.body, Reduce) for p in n.template.parts)]


def test_a_saved_step_keeps_them(rng, tmp_path) -> None:
    def batch():
        return rng.standard_normal((3, 2, 3, 5), np.float32), rng.standard_normal((3, 3), np.float32)

    model = Network(nn.BatchNorm2d(4, momentum=None), 2)
    step = es.TrainStep(model, F.mse_loss, es.optim.SGD(lr=0.1))
    batches = [batch() for _ in range(4)]
    for b in batches[:2]:
        step(*b)
    es.save(step, tmp_path / "s")
    again = es.load(tmp_path / "s", model=Network(nn.BatchNorm2d(4, momentum=None), 2), loss=F.mse_loss)
    for b in batches[2:]:
        assert step(*b) == again(*b)
    assert again.model.norm.num_batches_tracked.data == 4
    for (key, a), b in zip(model.state_dict().items(), again.model.state_dict().values(), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=key)


def test_arrays_are_not_changed(torch, rng) -> None:
    x, mean, var = rng.standard_normal((5, 3)), np.zeros(3), np.ones(3)
    found = F.batch_norm(x, mean, var, training=True)
    wanted = torch.nn.functional.batch_norm(torch.tensor(x), None, None, training=True)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-10, atol=1e-12)
    assert not mean.any() and (var == 1).all()


def test_variances_do_not_cancel(torch, rng) -> None:
    """Channels whose mean is 10,000 deviations: E[x^2] - E[x]^2 in float32 would be noise."""
    x = (rng.standard_normal((64, 3, 9)) + 1e4).astype(np.float32)
    wanted = torch.nn.functional.batch_norm(torch.tensor(x.astype(np.float64)), None, None, training=True)
    np.testing.assert_allclose(nn.BatchNorm1d(3)(x), wanted.numpy(), atol=2e-2)
    np.testing.assert_allclose(nn.InstanceNorm1d(3)(x)[0].std(-1), 1, rtol=1e-2)


@pytest.mark.parametrize(
    "make, shape, error, message",
    [
        (lambda: nn.BatchNorm1d(3), (1, 3), ShapeError, "more than one value per channel.*\\(1, 3\\)"),
        (lambda: nn.BatchNorm2d(3), (1, 3, 1, 1), ShapeError, "more than one value per channel"),
        (lambda: nn.BatchNorm2d(3, track_running_stats=False).eval(), (1, 3, 1, 1), ShapeError, "more than one value"),
        (lambda: nn.BatchNorm2d(3), (2, 3, 4), ShapeError, "BatchNorm2d: 'input' needs 4 dimensions"),
        (lambda: nn.BatchNorm2d(3), (2, 4, 2, 2), ShapeError, "'weight' has shape \\(3,\\), needs \\(4,\\)"),
        (lambda: nn.BatchNorm1d(0), (2, 1), ArgumentError, "num_features=0"),
        (lambda: nn.InstanceNorm1d(3), (2, 3, 1), ShapeError, "more than one element per channel"),
        (lambda: nn.InstanceNorm2d(3), (3, 4), ShapeError, "needs 3 or 4 dimensions"),
        (lambda: nn.GroupNorm(3, 4), (2, 4), ArgumentError, "num_groups=3"),
        (lambda: nn.GroupNorm(2, 4), (2, 6, 3), ShapeError, "'weight' has shape"),
        (lambda: nn.GroupNorm(4, 4), (1, 4, 1), ShapeError, "more than one value per group"),
        (lambda: nn.LayerNorm((3, 4)), (2, 4, 3), ShapeError, "does not end with normalized_shape=\\(3, 4\\)"),
        (lambda: nn.LayerNorm(0), (2, 3), ArgumentError, "normalized_shape=0"),
        (lambda: nn.RMSNorm(4), (2, 3), ShapeError, "does not end"),
        (lambda: nn.LocalResponseNorm(0), (2, 3, 4), ArgumentError, "size=0"),
        (lambda: nn.LocalResponseNorm(2), (2, 3), ShapeError, "3 dimensions or more"),
    ],
)
def test_bad_input(make, shape, error, message) -> None:
    with pytest.raises(error, match=message):
        make()(np.ones(shape, np.float32))


def test_evaluation_of_one_value_is_right(torch) -> None:
    ours, theirs = nn.BatchNorm1d(3).eval(), torch.nn.BatchNorm1d(3).eval()
    x = np.arange(3, dtype=np.float32)[None]
    np.testing.assert_allclose(ours(x), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-6)
    with pytest.raises(ArgumentError, match="needs 'running_mean'"):
        F.batch_norm(x, None, None)
    with pytest.warns(UserWarning, match="has 2 channels, not 3"):
        nn.InstanceNorm1d(3)(np.ones((1, 2, 4), np.float32))
