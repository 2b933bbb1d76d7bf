"""Functions on numbers that no sample has: exact indices, NaN and infinities, equal elements, labels, bad arguments."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith import functional as F
from einsmith.base.errors import DtypeError, EinsmithError, IndexOutOfRange, ShapeError


def test_conv_indices_are_exact(run) -> None:
    """Small integers: every index is off by nothing."""
    x = np.arange(30.0).reshape(1, 1, 5, 6)
    w = np.zeros((1, 1, 3, 3))
    w[0, 0, 2, 1] = 1
    found = run(lambda x, w: F.conv2d(x, w, stride=2, padding=1), x, w)
    assert found.tolist() == [[[[6, 8, 10], [18, 20, 22], [0, 0, 0]]]]


def test_max_pool_propagates_nan(run) -> None:
    x = np.zeros((1, 2, 2))
    x[0, 1, 0] = np.nan
    assert np.isnan(run(lambda x: F.max_pool2d(x, 2), x)).all()


@pytest.mark.parametrize("ignore_index", [None, -100])
@pytest.mark.parametrize("label", [-1, 5])
def test_labels_outside_the_classes(run, rng, label, ignore_index) -> None:
    with pytest.raises(IndexOutOfRange):
        run(
            lambda x, y: F.cross_entropy(x, y, ignore_index=ignore_index), rng.normal(size=(2, 5)), np.array([0, label])
        )


@pytest.mark.parametrize("name", ["argmax", "argmin", "max", "min"])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("keepdim", [False, True])
def test_the_first_of_equal_elements(run, rng, name, dim, keepdim) -> None:
    """torch does not promise which it is."""
    x = rng.integers(-3, 3, (4, 5, 3)).astype(float)
    places = getattr(np, f"arg{name[-3:]}")(x, dim, keepdims=keepdim)
    wanted = [places] if len(name) > 3 else [getattr(np, name)(x, dim, keepdims=keepdim), places]
    found = run(lambda x: getattr(F, name)(x, dim, keepdim), x)
    for a, b in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


def test_amax_of_infinite_elements(run) -> None:
    x = np.array([[np.inf, 1], [-np.inf, -np.inf], [np.nan, 0]])
    np.testing.assert_array_equal(run(lambda x: F.amax(x, 1), x), [np.inf, -np.inf, np.nan])


@pytest.mark.parametrize("numbers", [(5,), (2, 9), (0, 10, 3), (5, 0, -2), (0.5, 2.0, 0.25), (3, 3)])
def test_arange(run, numbers) -> None:
    np.testing.assert_array_equal(run(lambda: F.arange(*numbers)), np.arange(*numbers), strict=True)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda x: F.conv2d(x, np.ones((4, 2, 3, 3))), ShapeError, "conv2d.*3 channels.*groups=1"),
        (lambda x: F.conv2d(x, np.ones((4, 3, 9, 3))), ShapeError, "window of 9"),
        (lambda x: F.conv2d(x, np.ones((4, 3, 3, 3)), np.ones(3)), ShapeError, "'bias'"),
        (lambda x: F.conv2d(x, np.ones((4, 3, 3, 3)), stride=2, padding="same"), ShapeError, "stride 1"),
        (lambda x: F.conv2d(x, np.ones((4, 3, 3, 3)), stride=0), ShapeError, "stride"),
        (lambda x: F.linear(x, np.ones((4, 5))), ShapeError, "'input'.*'weight'"),
        (lambda x: F.cross_entropy(x, np.zeros((3, 2), np.int64)), ShapeError, "'target'"),
        (lambda x: F.nll_loss(x, np.zeros((2, 8, 8))), DtypeError, "'target'"),
        (lambda x: F.softmax(x, 4), ShapeError, "dim=4"),
        (lambda x: F.max_pool2d(x, 2, padding=2), ShapeError, "padding"),
        (lambda x: F.max_pool2d(F.one_hot(x > 0, 2), 2), EinsmithError, "one_hot"),
        (lambda x: F.cat([x, x[0]]), ShapeError, "cat.*tensors\\[1\\]"),
        (lambda x: F.einsum("ij,jk->ik", x, x), ShapeError, "einsum.*operands\\[0\\]"),
        (lambda x: F.permute(x, (0, 1, 2, 2)), ShapeError, "permute"),
        (lambda x: F.mse_loss(x, x[0]), ShapeError, "mse_loss"),
        (lambda x: F.grid_sample(x, np.ones((2, 4, 4, 3))), ShapeError, "grid_sample: 'grid'.*2 coordinates"),
        (lambda x: F.grid_sample(x, np.ones((2, 4, 4, 2)), "linear"), EinsmithError, "mode='linear'.*'bilinear'"),
        (lambda x: F.grid_sample(x, np.ones((2, 4, 4, 2)), padding_mode="wrap"), EinsmithError, "padding_mode='wrap'"),
        (lambda x: F.affine_grid(x[0], (3, 1, 4, 4)), ShapeError, "affine_grid: size.*theta"),
        (lambda x: F.fractional_max_pool2d(x, 2), EinsmithError, "give one of output_size"),
        (lambda x: F.fractional_max_pool2d(x, 2, 8), ShapeError, "8 windows of 2 elements.*from 1 to 7"),
        (lambda x: F.searchsorted(x, x[0]), ShapeError, "'sorted_sequence'"),
        (lambda x: F.searchsorted(x[0, 0, 0], x, side="middle"), EinsmithError, "side='middle'"),
        (lambda x: F.bucketize(x, x), ShapeError, "bucketize: 'boundaries' needs 1 dim"),
        (lambda x: F.bincount(np.arange(3)), ShapeError, "minlength must be the number of bins"),
        (lambda x: F.bincount(np.arange(3), minlength=2), IndexOutOfRange, "extent 2"),
        (lambda x: F.diff(x[0, 0, 0, 0]), ShapeError, "diff: 'input' needs a dimension"),
        (lambda x: F.pdist(x), ShapeError, "pdist: 'input' needs 2 dim"),
    ],
)
def test_errors_name_function_and_argument(run, call, error, words) -> None:
    with pytest.raises(error, match=words):
        run(call, np.ones((2, 3, 8, 8)))
