"""Positions of maxima, unpooling, and what pooling does with ties, infinities and windows of zeros."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith import functional as F
from einsmith import nn
from einsmith.base.errors import ArgumentError, DtypeError, IndexOutOfRange, ShapeError

SPACE = {1: (11,), 2: (7, 8), 3: (5, 4, 6)}


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
        {"kernel_size": 2, "stride": 3, "padding": 1, "dilation": 2},
    ],
    ids=str,
)
def test_positions(torch, rng, n, options) -> None:
    x = rng.permutation(2 * 3 * int(np.prod(SPACE[n]))).reshape(2, 3, *SPACE[n]) / 9
    theirs = getattr(torch.nn, f"MaxPool{n}d")(return_indices=True, **options)
    ours = getattr(nn, f"MaxPool{n}d")(return_indices=True, **options)
    wanted = theirs(torch.tensor(x))
    for f in (es.interpret(ours), ours):
        values, places = f(x)
        np.testing.assert_array_equal(values, wanted[0].numpy())
        np.testing.assert_array_equal(places, wanted[1].numpy())
        assert places.dtype == np.int64
    single = ours(x[0])
    np.testing.assert_array_equal(single[1], wanted[1].numpy()[0])


@pytest.mark.parametrize("n, sizes", [(1, 4), (2, (3, 8)), (2, (9, 1)), (3, (2, None, 5))])
def test_adaptive_positions(torch, rng, n, sizes) -> None:
    x = rng.permutation(2 * int(np.prod(SPACE[n]))).reshape(1, 2, *SPACE[n]) / 9
    wanted = getattr(torch.nn.functional, f"adaptive_max_pool{n}d")(torch.tensor(x), sizes, return_indices=True)
    for a, b in zip(getattr(F, f"adaptive_max_pool{n}d")(x, sizes, return_indices=True), wanted, strict=True):
        np.testing.assert_array_equal(a, b.numpy())


def test_positions_lie_inside_where_all_is_minus_infinity(torch) -> None:
    x = np.full((1, 1, 5, 4), -np.inf)
    options = {"kernel_size": 3, "stride": 2, "padding": 1}
    wanted = torch.nn.functional.max_pool2d(torch.tensor(x), **options, return_indices=True)
    values, places = F.max_pool2d(x, **options, return_indices=True)
    np.testing.assert_array_equal(values, wanted[0].numpy())
    np.testing.assert_array_equal(places, wanted[1].numpy())
    values, places = F.max_pool2d(x, 3, 2, 1, dilation=2, return_indices=True)
    wanted = torch.nn.functional.max_pool2d(torch.tensor(x), 3, 2, 1, dilation=2, return_indices=True)
    np.testing.assert_array_equal(places, wanted[1].numpy())


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("options", [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}], ids=str)
def test_unpooling(torch, rng, n, options) -> None:
    """Of windows that overlap too, whose maxima are named several times; gradients as well."""
    shape = (2, 2, *SPACE[n])
    x = rng.permutation(int(np.prod(shape))).reshape(shape) / 9
    pool = getattr(torch.nn, f"MaxPool{n}d")(return_indices=True, **options)
    theirs, ours = (getattr(m, f"MaxUnpool{n}d")(**options) for m in (torch.nn, nn))
    assert repr(ours) == repr(theirs)
    values, places = pool(torch.tensor(x))
    values = values.clone().requires_grad_()
    for size in (shape, SPACE[n]):
        wanted = theirs(values, places, output_size=size)
        found, pull = es.vjp(lambda v, size=size: ours(v, places.numpy(), output_size=size), values.detach().numpy())
        np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-15)
        np.testing.assert_array_equal(ours(values.detach().numpy(), places.numpy(), size), found)
        c = rng.standard_normal(found.shape)
        (grad,) = torch.autograd.grad(wanted, values, torch.tensor(c))
        np.testing.assert_allclose(pull(c)[0], grad.numpy(), rtol=1e-12)
    if options == {"kernel_size": 2} and all(e % 2 == 0 for e in SPACE[n]):
        np.testing.assert_array_equal(ours(values.detach().numpy(), places.numpy()), found)


def test_second_order_through_pool_and_unpool(rng) -> None:
    x = rng.permutation(48).reshape(1, 2, 4, 6) / 9

    def f(x):
        y, places = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(y * y, places, 2) * x

    es.check_gradients(f, x)


@pytest.mark.parametrize("norm", [2.0, 1.0, 3.0, np.inf, -np.inf])
def test_power_means(torch, rng, norm) -> None:
    x = rng.uniform(0.1, 2, (1, 2, 5, 6))
    wanted = torch.nn.functional.lp_pool2d(torch.tensor(x), norm, 2)
    np.testing.assert_allclose(F.lp_pool2d(x, norm, 2), wanted.numpy(), rtol=1e-12)


def test_a_window_of_zeros_has_the_gradient_zero() -> None:
    g = es.grad(lambda x: F.lp_pool2d(x, 2.0, 2).sum())(np.array([[[0.0, 0.0, 3.0, 0.0], [0.0, 0.0, 4.0, 0.0]]]))
    np.testing.assert_allclose(g, [[[0, 0, 0.6, 0], [0, 0, 0.8, 0]]])


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda x: F.max_pool1d(x, 2), ShapeError, "max_pool1d: 'input' needs 2 or 3 dimensions"),
        (lambda x: F.max_pool2d(x, 9), ShapeError, "window of 9"),
        (lambda x: F.max_pool2d(x, (2, 2, 2)), ShapeError, "kernel_size=\\(2, 2, 2\\)"),
        (lambda x: F.avg_pool2d(x, 2, divisor_override=0), ShapeError, "divisor_override=0"),
        (lambda x: F.avg_pool3d(x, 2, padding=2), ShapeError, "avg_pool3d: padding=2"),
        (lambda x: F.adaptive_avg_pool2d(x, 0), ShapeError, "output_size=0"),
        (lambda x: F.adaptive_max_pool2d(x, (1, 2, 3)), ShapeError, "output_size=\\(1, 2, 3\\)"),
        (lambda x: F.lp_pool2d(x, 0, 2), ArgumentError, "norm_type=0"),
        (lambda x: F.max_unpool2d(x, np.zeros((2, 3, 8, 8)), 2), DtypeError, "'indices' needs integers"),
        (lambda x: F.max_unpool2d(x, np.zeros((2, 3, 8), np.int64), 2), ShapeError, "'indices' has shape"),
        (lambda x: F.max_unpool2d(x, np.zeros(x.shape, np.int64), 2, output_size=(30, 16)), ShapeError, "output_size"),
        (lambda x: F.max_unpool2d(x, np.full(x.shape, 256), 2), IndexOutOfRange, "is 256, which is no index"),
        (lambda x: nn.MaxPool2d(0), ArgumentError, "MaxPool2d: kernel_size=0"),
        (lambda x: nn.AvgPool3d((1, 2)), ArgumentError, "AvgPool3d: kernel_size=\\(1, 2\\)"),
        (lambda x: nn.MaxPool1d(2)(x), ShapeError, "max_pool1d"),
    ],
)
def test_bad_input(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call(np.ones((2, 3, 8, 8)))
