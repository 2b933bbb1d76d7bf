"""Coefficients of products of harmonics are invariant under rotations, which act on harmonics by polynomials."""

import numpy as np
import pytest

from benchmarks.showpieces.clebsch_gordan import PATHS, coefficients, harmonics, wigner_3j


def _harmonics(points: np.ndarray) -> np.ndarray:
    """Real harmonics of degrees 0 to 2 at unit vectors, by their polynomials."""
    x, y, z = points.T
    r = np.sqrt(3)
    second = r * x * y, r * y * z, (3 * z * z - 1) / 2, r * x * z, r / 2 * (x * x - y * y)
    return np.stack([np.ones_like(x), y, z, x, *second], 1)


@pytest.fixture(scope="module")
def rotation() -> list[np.ndarray]:
    """Matrices of a rotation on the harmonics of each degree."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((50, 3))
    points /= np.linalg.norm(points, axis=1)[:, None]
    turn, _ = np.linalg.qr(rng.standard_normal((3, 3)))
    turn *= np.sign(np.linalg.det(turn))
    before, after = _harmonics(points), _harmonics(points @ turn.T)
    return [np.linalg.lstsq(before[:, harmonics(n)], after[:, harmonics(n)], rcond=None)[0].T for n in range(3)]


@pytest.mark.parametrize("path", PATHS)
def test_invariant(path: tuple[int, int, int], rotation: list[np.ndarray]) -> None:
    C = wigner_3j(*path)
    turned = np.einsum("ai,bj,ck,abc->ijk", *(rotation[n] for n in path), C)
    np.testing.assert_allclose(turned, C, atol=1e-14)
    assert abs(np.linalg.norm(C) - 1) < 1e-14


def test_products_of_vectors() -> None:
    """Two vectors have a product of degree 0, the scalar one, and one of degree 1, the vector product."""
    dot, cross = wigner_3j(1, 1, 0)[:, :, 0], wigner_3j(1, 1, 1)
    np.testing.assert_allclose(abs(dot), np.eye(3) / np.sqrt(3), atol=1e-15)
    np.testing.assert_allclose(cross, -cross.transpose(1, 0, 2), atol=1e-15)


def test_coefficients() -> None:
    C, P = coefficients()
    assert len(PATHS) == 15 and np.count_nonzero(C) == 137
    assert set(P[C != 0].tolist()) == set(range(15))
