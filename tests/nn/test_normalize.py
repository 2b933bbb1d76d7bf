"""Normalizations of rows of zeros and of empty batches, and bad input."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith import functional as F
from einsmith.base.errors import ArgumentError, ShapeError


@pytest.mark.parametrize("p", [2.0, 1.0, 3.0, np.inf])
def test_rows_of_zeros_have_a_finite_gradient(torch, p) -> None:
    """Their norm counts as eps; the square root of zero has no part in it."""
    x = np.array([[0.0, 0.0, 0.0], [3.0, 0.0, 4.0]])
    t = torch.tensor(x, requires_grad=True)
    c = np.array([[1.0, 2.0, 3.0], [1.0, -1.0, 2.0]])
    torch.nn.functional.normalize(t, p, eps=1e-6).backward(torch.tensor(c))
    found, pull = es.vjp(lambda x: F.normalize(x, p, eps=1e-6), x)
    assert not found[0].any()
    np.testing.assert_allclose(pull(c)[0], t.grad.numpy(), rtol=1e-10)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0)])
def test_empty_batches(shape) -> None:
    x = np.zeros(shape, np.float32)
    for y in (F.batch_norm(x, None, None, training=True), F.instance_norm(x), F.group_norm(x, 3), F.normalize(x)):
        assert y.shape == shape
    if shape[-1]:
        assert F.layer_norm(x, 4).shape == F.rms_norm(x, 4).shape == shape


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda x: F.normalize(x, dim=3), ShapeError, "dim=3"),
        (lambda x: F.normalize(x, dim=(1, 1)), ShapeError, "each once"),
        (lambda x: F.normalize(x, p="fro"), ArgumentError, "p='fro'"),
        (lambda x: F.batch_norm(x, None, None, eps="small"), ArgumentError, "eps='small'"),
        (lambda x: F.batch_norm(x, np.zeros(4), np.ones(3)), ShapeError, "'running_mean' has shape"),
        (lambda x: F.instance_norm(x, use_input_stats=False), ArgumentError, "'running_mean' and 'running_var'"),
        (lambda x: F.layer_norm(x, (3, 5)), ShapeError, r"does not end with normalized_shape=\(3, 5\)"),
        (lambda x: F.layer_norm(x, (4,), np.ones(3)), ShapeError, "'weight' has shape"),
        (lambda x: F.group_norm(x, 2), ShapeError, "num_groups=2 does not divide the 3 channels"),
        (lambda x: F.local_response_norm(x, 2, beta=None), ArgumentError, "beta=None"),
    ],
)
def test_bad_input(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call(np.ones((2, 3, 4)))
