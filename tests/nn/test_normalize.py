"""Norms of rows, and normalizations called as functions, against torch: values, gradients, second order, zeros."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith import functional as F
from einsmith.base.errors import ArgumentError, ShapeError


@pytest.mark.parametrize("dim", [0, 1, -1, (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("p", [2.0, 1.0, 3.0, 0.5, np.inf, -np.inf, 0])
def test_normalize(torch, rng, p, dim) -> None:
    x, c = rng.standard_normal((3, 4, 5)) + 0.1, rng.standard_normal((3, 4, 5))
    t = torch.tensor(x, requires_grad=True)
    wanted = torch.nn.functional.normalize(t, p, dim, eps=0.3)
    (g,) = torch.autograd.grad(wanted, t, torch.tensor(c), create_graph=True)
    found, pull = es.vjp(lambda x: F.normalize(x, p, dim, eps=0.3), x)
    np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(pull(c)[0], g.detach().numpy(), rtol=1e-9, atol=1e-11)
    if p in (2.0, 3.0):
        es.check_gradients(lambda x: F.normalize(x, p, dim), x)


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


def test_functions_take_arrays_and_defaults(torch, rng) -> None:
    f = torch.nn.functional
    x, w, b = rng.standard_normal((4, 6, 5)), rng.standard_normal(6), rng.standard_normal(6)
    mean, var = rng.standard_normal(6), rng.uniform(0.5, 2, 6)
    tx, tw, tb, tm, tv = map(torch.tensor, (x, w, b, mean, var))
    for found, wanted in [
        (F.batch_norm(x, mean, var), f.batch_norm(tx, tm, tv)),
        (F.batch_norm(x, mean, var, w, b, False, 0.1, 0.01), f.batch_norm(tx, tm, tv, tw, tb, False, 0.1, 0.01)),
        (F.batch_norm(x, None, None, w, training=True), f.batch_norm(tx, None, None, tw, training=True)),
        (F.instance_norm(x), f.instance_norm(tx)),
        (F.instance_norm(x, mean, var, w, b, False), f.instance_norm(tx, tm, tv, tw, tb, False)),
        (F.layer_norm(x, x.shape), f.layer_norm(tx, x.shape)),
        (F.layer_norm(x[0], (6, 5)), f.layer_norm(tx[0], (6, 5))),
        (F.layer_norm(x, (5,), bias=b[:5]), f.layer_norm(tx, (5,), bias=tb[:5])),
        (F.rms_norm(x, (6, 5)), f.rms_norm(tx, (6, 5))),
        (F.rms_norm(x.astype(np.float32), (5,), w[:5]), f.rms_norm(tx.float(), (5,), tw[:5].float())),
        (F.group_norm(x, 3, w), f.group_norm(tx, 3, tw)),
        (F.local_response_norm(x, 4, 0.5, 0.6, 0.7), f.local_response_norm(tx, 4, 0.5, 0.6, 0.7)),
    ]:
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-6 if wanted.dtype is torch.float32 else 1e-10)


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
