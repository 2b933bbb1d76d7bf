"""Functions of one number beside mpmath's, over their whole ranges: poles, tails, the smallest and largest numbers,
integers, halves, and what lies beside them."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.base import dtypes as dt
from tests.operators.accuracy import FUNCTIONS, ROUNDED

mp = pytest.importorskip("mpmath", reason="computes the functions in 40 digits")
torch = pytest.importorskip("torch", reason="has the values at infinities and outside of domains")
KINDS = (dt.f32, dt.f64, dt.f16, dt.bf16)


def arguments(kind, accuracy, rng, count):
    """Numbers of the type that are not denormal, at each scale and near integers."""
    bits = np.log2(kind.tiny), np.log2(kind.max)
    parts = [2.0 ** rng.uniform(*bits, count), 2.0 ** rng.uniform(-20, 12, count), np.arange(40) / 2,
             *(rng.uniform(0, top, count) for top in (2, 5, 30, 120, 800)),
             rng.integers(0, 12, count) + rng.choice([-1, 1], count) * 2.0 ** -rng.uniform(4, 24, count),
             [kind.tiny, kind.max, 1 - kind.eps / 2, 1 + kind.eps, 2 - kind.eps, 2 + 2 * kind.eps]]  # fmt: skip
    sizes = np.abs(np.concatenate(parts))
    x = np.unique(kind.rounded(np.concatenate([sizes, -sizes])))
    return x[(np.abs(x) >= kind.tiny) & np.isfinite(x) & (x >= accuracy.low) & (x <= accuracy.high)]


def error(kind, found, wanted, least):
    """|found - wanted| in units in the last place; results near the denormal ones may be flushed to zero."""
    size = abs(wanted)
    if size >= kind.max * (1 + mp.mpf(kind.eps) / 4):
        return 0.0 if found == np.copysign(np.inf, float(mp.sign(wanted))) else np.inf
    if not np.isfinite(found):
        return np.inf
    if size < 128 * kind.tiny and abs(found) < 129 * kind.tiny:
        return 0.0
    unit = mp.ldexp(kind.eps, int(mp.floor(mp.log(max(size, least, kind.tiny), 2))))
    return float(abs(mp.mpf(float(found)) - wanted) / unit)


def worst(name, kind, rng, count, function=None):
    """Return (greatest error, argument, result, exact result) of the function, or of another under its declaration."""
    accuracy = FUNCTIONS[name]
    x = arguments(kind, accuracy, rng, count)
    call = es.jit(function or getattr(es.functional, name))
    found = kind.wide(np.asarray(call(kind.narrow(x))))
    with mp.workdps(40):
        exact = [accuracy(mp, float(v)) for v in x]
        errors = [(error(kind, f, w, accuracy.least), v, f, float(w))
                  for v, f, w in zip(x, found, exact, strict=True) if w is not None]  # fmt: skip
    assert len(errors) > count
    return max(errors)


@pytest.mark.thinned(10)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy(rng, name, kind) -> None:
    accuracy = FUNCTIONS[name]
    bound = {"f32": accuracy.single, "f64": accuracy.double}.get(kind.name, ROUNDED)
    found = worst(name, kind, rng, 12)
    assert found[0] <= bound, found


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy_of_many(rng, name, kind) -> None:
    accuracy = FUNCTIONS[name]
    bound = {"f32": accuracy.single, "f64": accuracy.double}.get(kind.name, ROUNDED)
    found = worst(name, kind, rng, 150)
    assert found[0] <= bound, found


def test_lost_digits_are_seen(rng) -> None:
    assert worst("erfc", dt.f32, rng, 12)[0] <= FUNCTIONS["erfc"].single
    assert worst("erfc", dt.f32, rng, 12, lambda x: 1.0 - es.functional.erf(x))[0] > 1e6
    assert worst("exp2", dt.f32, rng, 12, lambda x: es.functional.exp(x * float(np.log(2))))[0] > 5


@pytest.mark.parametrize("kind", (dt.f32, dt.f64), ids=str)
def test_powers(kind) -> None:
    k = np.arange(-100, 101).astype(kind.numpy)
    two, ten = (
        kind.numpy.type(2) ** k,
        np.array([float(f"1e{n}") for n in range(23 if kind is dt.f64 else 11)], kind.numpy),
    )
    np.testing.assert_array_equal(es.jit(es.functional.exp2)(k), two)
    np.testing.assert_array_equal(es.jit(es.functional.log2)(two), k)
    np.testing.assert_array_equal(es.jit(es.functional.log10)(ten), np.arange(len(ten)))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_ends(name) -> None:
    """Zeros, infinities, NaN, and numbers outside of the domain."""
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, -2.0, 2.0, -3.5])
    places = (torch.nn.functional, torch, torch.special)
    wanted = next(getattr(p, name) for p in places if hasattr(p, name))(torch.tensor(x)).numpy()
    np.testing.assert_allclose(np.asarray(es.jit(getattr(es.functional, name))(x)), wanted, rtol=1e-9, atol=1e-15)
