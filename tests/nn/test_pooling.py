"""Layers that give positions of maxima and take them, and pooling of ties, infinities and windows of zeros."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith import functional as F
from einsmith import nn
from einsmith.base.errors import ArgumentError, DtypeError, IndexOutOfRange, ShapeError

SPACE = {1: (11,), 2: (7, 8), 3: (5, 4, 6)}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("options", [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}], ids=str)
def test_layers_of_positions(torch, rng, n, options) -> None:
    shape = (2, 2, *SPACE[n])
    x = rng.permutation(int(np.prod(shape))).reshape(shape) / 9
    pool, unpool = (
        [getattr(m, f"Max{kind}{n}d")(**more, **options) for m in (torch.nn, nn)]
        for kind, more in (("Pool", {"return_indices": True}), ("Unpool", {}))
    )
    assert repr(unpool[0]) == repr(unpool[1])
    wanted, (values, places) = pool[0](torch.tensor(x)), pool[1](x)
    np.testing.assert_array_equal(values, wanted[0].numpy(), strict=True)
    np.testing.assert_array_equal(places, wanted[1].numpy(), strict=True)
    for size in (None, shape, SPACE[n]):
        if size is None and options != {"kernel_size": 2}:
            continue
        again = unpool[0](*wanted, output_size=size).numpy()
        np.testing.assert_allclose(unpool[1](values, places, output_size=size), again, rtol=1e-15)


def test_maxima_that_are_equal_hand_the_first_the_gradient() -> None:
    c = np.array([[[3.0, 5.0]]])
    g = es.interpret(es.grad(lambda x: (F.max_pool2d(x, 2) * c).sum()))(np.zeros((1, 2, 4)))
    assert g.tolist() == [[[3, 0, 5, 0], [0, 0, 0, 0]]]


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


def test_second_order_through_pool_and_unpool(rng) -> None:
    x = rng.permutation(48).reshape(1, 2, 4, 6) / 9

    def f(x):
        y, places = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(y * y, places, 2) * x

    es.check_gradients(f, x)


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
