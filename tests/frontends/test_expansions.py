"""The series of einsmith/ops/expansions.py are those that their definitions give, and sum to the functions
that they stand for; and what is made of them gives Bessel's functions, Airy's and the quantiles."""

from __future__ import annotations

import numpy as np
import pytest

mp = pytest.importorskip("mpmath", reason="the series are computed with it")
import einsmith as es  # noqa: E402
from einsmith.frontends.aten import TABLE  # noqa: E402
from einsmith.ops import expansions  # noqa: E402
from einsmith.tracing.builder import as_value  # noqa: E402
from tests.frontends.expansions import DEFINITIONS, DIGITS, PATH, quantile, text  # noqa: E402


@pytest.mark.thinned(8)
@pytest.mark.parametrize("d", DEFINITIONS[::3], ids=lambda d: d.name)
def test_the_series_are_those_of_their_definitions(d):
    assert text(d) in PATH.read_text(), "python -m tests.frontends.expansions --update makes them anew"


def test_every_series_has_a_definition():
    found = [name for name, e in vars(expansions).items() if isinstance(e, expansions.Expansion)]
    assert found == [d.name for d in DEFINITIONS]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("d", DEFINITIONS, ids=lambda d: d.name)
def test_a_series_sums_to_its_function(d):
    """At points between those that it was made of."""
    points = np.linspace(d.low, d.high, 42)[1:-1]
    expansion = getattr(expansions, d.name)
    with mp.workdps(DIGITS):
        wanted = np.array([float(d.f(mp.mpf(u))) for u in points])
    size = np.abs(expansion.coefficients).sum()
    for dtype in (np.float64, np.float32):
        found = expansion(points.astype(dtype))
        assert found.dtype == dtype
        assert np.abs(found - wanted).max() < 3 * np.finfo(dtype).eps * size


_ABOVE = np.concatenate([np.logspace(-6, 0, 8), np.linspace(0.3, 21.3, 50), [40.0, 150.0]])
_BOTH = np.concatenate([-_ABOVE, _ABOVE])
_AIRY = np.concatenate([np.linspace(-12, 9, 48), np.array([-1, 1]) * 1e-6])


def _normal(p):
    """The quantile of the probability p."""
    tail = min(p, 1 - p)
    size = mp.sqrt(2) * mp.erfinv(1 - 2 * tail) if tail > 0.1 else quantile(mp.sqrt(-2 * mp.log(tail)))
    return size if p > 0.5 else -size


FUNCTIONS = {
    f"special_{name}": (lambda x, f=f, n=n: f(n, x), points)
    for n in (0, 1)
    for name, f, points in (
        (f"bessel_j{n}", mp.besselj, _BOTH), (f"bessel_y{n}", mp.bessely, _ABOVE),
        (f"modified_bessel_i{n}", mp.besseli, _BOTH), (f"modified_bessel_k{n}", mp.besselk, _ABOVE[::3]),
        (f"i{n}e", lambda n, x: mp.exp(-abs(x)) * mp.besseli(n, x), _BOTH),
        (f"scaled_modified_bessel_k{n}", lambda n, x: mp.exp(x) * mp.besselk(n, x), _ABOVE[::3]),
    )
} | {
    "special_airy_ai": (mp.airyai, _AIRY),
    "special_ndtri": (_normal, np.concatenate([np.logspace(-300, -1, 30), np.linspace(0.11, 0.9999, 30)])),
    "erfinv": (lambda y: _normal((1 + y) / 2) / mp.sqrt(2), np.linspace(-0.9999, 0.99, 46)),
}  # fmt: skip


@pytest.mark.thinned(5)
@pytest.mark.parametrize("mode", [es.interpret, es.jit])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_operator_gives_its_function(name, mode):
    """To what float64 tells, of the function's value or, where it swings, of its greatest; in float32 compiled."""
    f, points = FUNCTIONS[name]
    dtype = np.float64 if mode is es.interpret else np.float32
    points = points.astype(dtype)
    if dtype is np.float32:
        points = points[(np.abs(points) > np.finfo(dtype).tiny) & (np.abs(points) < 80)]
    with mp.workdps(DIGITS):
        near = [[f(mp.mpf(float(x)) * (1 + k * mp.mpf(10) ** -20)) for k in (-1, 0, 1)] for x in points]
        wanted = np.array([float(b) for _, b, _ in near])
        moved = np.array([float((c - a) * 10**20 / 2) for a, _, c in near])
    found = mode(lambda x: TABLE[f"{name}.default"].run(as_value(x)))(points)
    # What the rounding of x moves, and of a value that swings about 0 its size.
    size = np.abs(wanted) + np.abs(moved) + (0.3 if name.startswith(("special_bessel", "special_airy")) else 0.0)
    assert (np.abs(np.asarray(found) - wanted) / size).max() < 8 * np.finfo(dtype).eps
