"""Factorizations and solutions by blocks against NumPy in float64, at sizes around those of blocks and panels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import einsmith as es
from einsmith import ops as F
from einsmith.frontends.aten import blocks, linalg

SIZES = [(1, 1), (31, 31), (2, 32, 32), (33, 33), (2, 3, 17, 17), (64, 64), (65, 65), (3, 50, 50), (131, 131)]


def positive(shape: tuple[int, ...], rng) -> np.ndarray:
    a = rng.standard_normal(shape)
    return a @ a.swapaxes(-1, -2) / shape[-1] + np.eye(shape[-1])


def check(f, reference, args, rng) -> None:
    """Compare values and gradients in float64 with PyTorch's."""
    ours = np.asarray(es.jit(f)(*args))
    tensors = [torch.tensor(x, requires_grad=True) for x in args]
    wanted = reference(*tensors)
    np.testing.assert_allclose(ours, wanted.detach().numpy(), rtol=1e-10, atol=1e-12)
    weights = rng.standard_normal(wanted.shape)
    (wanted * torch.tensor(weights)).sum().backward()
    grads = es.jit(es.grad(lambda *x: F.sum(f(*x) * weights), argnums=tuple(range(len(args)))))(*args)
    for got, t in zip(grads if isinstance(grads, tuple) else (grads,), tensors, strict=True):
        np.testing.assert_allclose(np.asarray(got), t.grad.numpy(), rtol=1e-8, atol=1e-10)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("shape", SIZES)
def test_cholesky(shape, upper, rng) -> None:
    def reference(x):
        return torch.linalg.cholesky((x + x.mT) / 2, upper=upper)

    check(lambda x: linalg.cholesky((x + F.transpose(x, -1, -2)) / 2, upper), reference, [positive(shape, rng)], rng)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("shape", SIZES)
def test_triangular_solutions(shape, upper, unit, rng) -> None:
    t = rng.standard_normal(shape) / shape[-1] + 2 * np.eye(shape[-1])
    b = rng.standard_normal((*shape[:-1], 17))

    def reference(t, b):
        return torch.linalg.solve_triangular(t, b, upper=upper, unitriangular=unit)

    check(lambda t, b: linalg.solve_triangular(t, b, upper, True, unit), reference, [t, b], rng)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("shape", SIZES)
def test_elimination(shape, rng) -> None:
    a, b = rng.standard_normal(shape) + 2 * np.eye(shape[-1]), rng.standard_normal((*shape[:-1], 17))
    check(lambda a, b: linalg.solve(a, b)[0], torch.linalg.solve, [a, b], rng)


@pytest.mark.parametrize(("lead", "left"), [((), False), ((2,), True)])
def test_right_sides_of_a_batch_and_from_the_right(lead, left, rng) -> None:
    a, b = rng.standard_normal((33, 33)) + 2 * np.eye(33), rng.standard_normal((*lead, 33, 33))
    check(
        lambda a, b: linalg.solve(a, b, left)[0],
        lambda a, b: torch.linalg.solve(a, b.contiguous(), left=left),
        [a, b],
        rng,
    )


@pytest.mark.parametrize("shape", [(33, 33), (70, 70)])
def test_derivatives_of_packed_factors(shape, rng) -> None:
    check(lambda a: linalg.lu_factor(a)[0], lambda a: torch.linalg.lu_factor(a)[0], [rng.standard_normal(shape)], rng)


@pytest.mark.parametrize(
    ("f", "reference"),
    [
        (lambda a: linalg.inverse(a)[0], torch.linalg.inv),
        (lambda a: linalg.cholesky(a + F.transpose(a, 0, 1)), lambda a: torch.linalg.cholesky(a + a.mT)),
    ],
)
def test_second_derivatives(f, reference, rng) -> None:
    a, weights = positive((35, 35), rng), rng.standard_normal((2, 35, 35))
    ours = es.grad(lambda x: F.sum(es.grad(lambda x: F.sum(f(x) * weights[0]))(x) * weights[1]))
    x = torch.tensor(a, requires_grad=True)
    (first,) = torch.autograd.grad((reference(x) * torch.tensor(weights[0])).sum(), x, create_graph=True)
    (wanted,) = torch.autograd.grad((first * torch.tensor(weights[1])).sum(), x)
    np.testing.assert_allclose(np.asarray(es.jit(ours)(a)), wanted.numpy(), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("shape", [(70, 40), (40, 70), (2, 67, 33)])
def test_pivots_of_oblong_matrices(shape, rng) -> None:
    a = rng.standard_normal(shape)
    packed, pivots, info = es.jit(linalg.lu_factor)(a)
    wanted = torch.linalg.lu_factor_ex(torch.tensor(a))
    np.testing.assert_allclose(np.asarray(packed), wanted[0].numpy(), rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(np.asarray(pivots), wanted[1].numpy())
    assert not np.asarray(info).any()


def test_what_is_not_positive_is_found_at_its_place(rng) -> None:
    a = np.stack([positive((70, 70), rng)] * 3)
    a[1, 40, 40], a[2, 0, 0] = -1.0, -1.0
    _, info = es.jit(linalg.cholesky_ex)(a)
    np.testing.assert_array_equal(np.asarray(info), torch.linalg.cholesky_ex(torch.tensor(a)).info.numpy())


@pytest.mark.parametrize("n", [32, 50, 64, 65, 300, 1000, 5000])
def test_blocks_cover_matrices(n) -> None:
    sizes = blocks.divide(n)
    count = sizes.whole // sizes.rows
    assert n <= sizes.whole < n + sizes.rows and sizes.whole % sizes.rows == 0 and sizes.rows % sizes.parts == 0
    assert count <= blocks.MOST and (sizes.rows <= blocks.BLOCK or n > blocks.BLOCK * blocks.MOST)
