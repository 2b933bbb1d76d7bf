"""Derived gradients of the functions against torch's, in float64, through the reference evaluator."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith import functional as F
from einsmith.autodiff.reverse import gradients
from einsmith.lang.builder import Value


def pulled(run, f, cotangent, *arrays):
    """(f(*arrays), gradient of sum(cotangent * f) for each float array)."""

    def both(c, *values):
        wrt = [v.tensor for v in values if v.dtype.is_float]
        outs, grads = gradients([f(*values).tensor], [c.tensor], wrt)
        return (Value(outs[0]), *map(Value, grads))

    return run(both, cotangent, *arrays)


def check(run, torch, rng, ours, theirs, *arrays) -> None:
    """Value and gradients of `ours` equal those of `theirs`, for a random cotangent."""
    peers = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    wanted = theirs(*peers)
    cotangent = rng.normal(size=tuple(wanted.shape))
    wanted.backward(torch.tensor(cotangent))
    value, *grads = pulled(run, ours, cotangent, *arrays)
    np.testing.assert_allclose(value, wanted.detach().numpy(), rtol=1e-11, atol=1e-12)
    for g, p in zip(grads, [p for p in peers if p.requires_grad], strict=True):
        np.testing.assert_allclose(g, p.grad.numpy(), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1},
        {"stride": (3, 1), "padding": (0, 2), "dilation": (1, 2)},
        {"stride": 4},
        {"padding": "same", "groups": 2},
        {"stride": 2, "padding": 1, "groups": 4},
    ],
    ids=str,
)
def test_conv2d(run, torch, rng, options) -> None:
    groups = options.get("groups", 1)
    arrays = rng.normal(size=(2, 4, 9, 7)), rng.normal(size=(4, 4 // groups, 3, 3)), rng.normal(size=4)
    check(
        run,
        torch,
        rng,
        lambda *a: F.conv2d(*a, **options),
        lambda *a: torch.nn.functional.conv2d(*a, **options),
        *arrays,
    )


@pytest.mark.parametrize("options", [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}], ids=str)
@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
def test_pooling(run, torch, rng, name, options) -> None:
    x = rng.permutation(2 * 3 * 7 * 8).reshape(2, 3, 7, 8) / 9
    check(
        run,
        torch,
        rng,
        lambda x: getattr(F, name)(x, **options),
        lambda x: getattr(torch.nn.functional, name)(x, **options),
        x,
    )


def test_max_pooling_gives_ties_to_the_first(run) -> None:
    _, g = pulled(run, lambda x: F.max_pool2d(x, 2), np.array([[[3.0, 5.0]]]), np.zeros((1, 2, 4)))
    assert g.tolist() == [[[3, 0, 5, 0], [0, 0, 0, 0]]]


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "tanh", "sigmoid", "silu", "gelu"])
def test_activations(run, torch, rng, name) -> None:
    x = np.concatenate([rng.normal(size=15) * 3, [0.0, -0.0] if "relu" in name else []])
    check(run, torch, rng, getattr(F, name), getattr(torch.nn.functional, name), x)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(run, torch, rng, name) -> None:
    x = rng.normal(size=(3, 5, 2)) * 10
    check(run, torch, rng, lambda x: getattr(F, name)(x, 1), lambda x: getattr(torch.nn.functional, name)(x, 1), x)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(run, torch, rng, reduction, smoothing) -> None:
    x, y = rng.normal(size=(7, 5)) * 10, rng.integers(0, 5, 7)
    y[3] = -100
    options = {"reduction": reduction, "label_smoothing": smoothing}
    check(
        run,
        torch,
        rng,
        lambda x, y: F.cross_entropy(x, y, **options),
        lambda x, y: torch.nn.functional.cross_entropy(x, y, **options),
        x,
        y,
    )


def test_cross_entropy_of_pixels(run, torch, rng) -> None:
    x, y = rng.normal(size=(2, 5, 3, 2)), rng.integers(0, 5, (2, 3, 2))
    check(run, torch, rng, lambda x, y: F.cross_entropy(x, y), torch.nn.functional.cross_entropy, x, y)


def test_losses(run, torch, rng) -> None:
    x, y, c = rng.normal(size=(7, 5)), rng.normal(size=(7, 5)), rng.integers(0, 5, 7)
    check(run, torch, rng, F.mse_loss, torch.nn.functional.mse_loss, x, y)
    check(run, torch, rng, F.nll_loss, torch.nn.functional.nll_loss, x, c)


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_ties_share_the_gradient(run, torch, rng, name) -> None:
    x = rng.integers(0, 3, (6, 4, 3)).astype(float)
    for dim in (0, 1, (0, 2)):
        check(run, torch, rng, lambda x, d=dim: getattr(F, name)(x, d), lambda x, d=dim: getattr(torch, name)(x, d), x)


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_along_a_dimension(run, torch, rng, name) -> None:
    x = rng.permutation(24).reshape(4, 6) / 7
    check(run, torch, rng, lambda x: getattr(F, name)(x, 1)[0], lambda x: getattr(torch, name)(x, 1)[0], x)


def test_shapes_and_products(run, torch, rng) -> None:
    x, y, z = rng.normal(size=(3, 4)), rng.normal(size=(4, 5)), rng.normal(size=(5, 3))
    check(run, torch, rng, F.matmul, torch.matmul, x, y)
    check(
        run,
        torch,
        rng,
        lambda *a: F.einsum("ab,bc,ca->ac", *a),
        lambda *a: torch.einsum("ab,bc,ca->ac", *a),
        x,
        y,
        z,
    )
    check(run, torch, rng, lambda x, y: F.cat([x, y.T], 0), lambda x, y: torch.cat([x, y.T], 0), x, y)
    check(run, torch, rng, lambda x, z: F.stack([x[:, :3], z.T[:, :3]], 1), lambda x, z: torch.stack([x[:, :3], z.T[:, :3]], 1), x, z)  # fmt: skip # noqa: E501
    check(run, torch, rng, lambda x: F.pad(x, (1, -1, 2, 0)), lambda x: torch.nn.functional.pad(x, (1, -1, 2, 0)), x)
    check(run, torch, rng, lambda x: F.permute(F.reshape(x, (2, 3, 2)), (2, 0, 1)), lambda x: x.reshape(2, 3, 2).permute(2, 0, 1), x)  # fmt: skip # noqa: E501
    check(run, torch, rng, lambda x: F.clamp(x, -0.5, 0.5), lambda x: x.clamp(-0.5, 0.5), x)
