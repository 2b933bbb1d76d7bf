"""Clebsch-Gordan coefficients of real spherical harmonics, and the paths of tensor products of them."""

from __future__ import annotations

from math import factorial, sqrt

import numpy as np
from numpy import ndarray

PATHS = tuple(
    (a, b, c) for a in range(3) for b in range(3) for c in range(3) if abs(a - b) <= c <= a + b
)  # degrees of both factors and of the product, each at most 2


def harmonics(degree: int) -> slice:
    """Return where the harmonics of a degree stand among those of degrees 0, 1, 2."""
    return slice(degree**2, (degree + 1) ** 2)


def _complex(a: int, b: int, c: int) -> ndarray:
    """Return the coefficients <a m, b n | c m+n>, by Racah's formula (Varshalovich et al. 1988, section 8.2.1)."""
    out = np.zeros((2 * a + 1, 2 * b + 1, 2 * c + 1))
    f = factorial
    triangle = (2 * c + 1) * f(c + a - b) * f(c - a + b) * f(a + b - c) / f(a + b + c + 1)
    for m in range(-a, a + 1):
        for n in range(-b, b + 1):
            if abs(k := m + n) > c:
                continue
            scale = triangle * f(c + k) * f(c - k) * f(a - m) * f(a + m) * f(b - n) * f(b + n)
            total = 0.0
            for z in range(a + b + c + 1):
                parts = z, a + b - c - z, a - m - z, b + n - z, c - b + m + z, c - a - n + z
                if min(parts) >= 0:
                    total += (-1) ** z / np.prod([float(f(x)) for x in parts])
            out[a + m, b + n, c + k] = sqrt(scale) * total
    return out


def _to_real(degree: int) -> ndarray:
    """Return the unitary matrix from real harmonics to complex ones (Condon-Shortley phase), times (-i)^degree."""
    q = np.zeros((2 * degree + 1, 2 * degree + 1), complex)
    q[degree, degree] = 1
    for m in range(1, degree + 1):
        q[degree - m, degree + m], q[degree - m, degree - m] = sqrt(0.5), -1j * sqrt(0.5)
        q[degree + m, degree + m], q[degree + m, degree - m] = (-1) ** m * sqrt(0.5), 1j * (-1) ** m * sqrt(0.5)
    return (-1j) ** degree * q


def wigner_3j(a: int, b: int, c: int) -> ndarray:
    """Return the tensor of unit norm that three real representations of rotations leave invariant."""
    real = np.einsum("ij,kl,mn,ikm->jln", _to_real(a), _to_real(b), _to_real(c).conj(), _complex(a, b, c)).real
    return real / np.linalg.norm(real)


def coefficients() -> tuple[ndarray, ndarray]:
    """Return coefficients C[i,j,k] of all products of harmonics of degrees 0 to 2, and the path P[i,j,k] of each."""
    C, P = np.zeros((9, 9, 9)), np.zeros((9, 9, 9), np.int64)
    for n, (a, b, c) in enumerate(PATHS):
        at = harmonics(a), harmonics(b), harmonics(c)
        C[at], P[at] = wigner_3j(a, b, c) * sqrt(2 * c + 1), n
    return C, P
