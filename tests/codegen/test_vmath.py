"""Accuracy of the vector functions, in units in the last place, over random and special arguments."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.loops.nest import Builder
from tests.codegen.test_llvm_ops import NUMPY, _cache, run  # noqa: F401

LIMIT = {"exp": 1.5, "log": 1.5, "tanh": 2.5, "sigmoid": 2.5}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, -1e-45, 1e-39, -1e-39, 5e-324, 2.5e-310, 88.72, 88.73,
           -87.3, -87.4, -103.9, -104.1, -88.5, 709.78, 709.79, -745.1, -745.2, -708.4, 1e30, -1e30, 3e38, 1e300,
           0.625, 0.6249999, 0.7071067, 0.7071068, 1.4142135, 1.4142137, 9.0, 20.0]  # fmt: skip


def arguments(fn: str, elem: str) -> np.ndarray:
    rng, n = np.random.default_rng(), 1 << 18
    top = 88.8 if elem == "f32" else 709.9
    parts = [np.array(SPECIAL), rng.normal(size=n), rng.uniform(-1.3 * top, 1.3 * top, n), rng.uniform(0.5, 2.0, n),
             rng.uniform(-2, 2, n)]  # fmt: skip
    with np.errstate(all="ignore"):
        x = np.concatenate(parts).astype(NUMPY[elem])
    words = rng.integers(0, 2 ** (32 if elem == "f32" else 64), 4 * n, dtype=np.uint64)  # every bit pattern
    patterns = words.astype(np.uint32).view(np.float32) if elem == "f32" else words.view(np.float64)
    x = np.concatenate([x, patterns, (1 + np.arange(-999, 999) * np.finfo(NUMPY[elem]).eps).astype(NUMPY[elem])])
    return np.resize(x, -(-x.size // 240) * 240)


def exact(fn: str, x: np.ndarray) -> np.ndarray:
    """The value in more bits than x has (f64: the 64-bit mantissa of longdouble, where the machine has it)."""
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)
        if fn == "sigmoid":
            e = np.exp(-np.abs(wide))
            return np.where(wide < 0, e / (1 + e), 1 / (1 + e))
        return getattr(np, fn)(wide)


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """|got - want| in units in the last place of the rounded exact value; special values must be the same."""
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
    special = ~np.isfinite(rounded)
    np.testing.assert_array_equal(got[special], rounded[special])
    assert np.isfinite(got[~special]).all()
    out = np.zeros(got.size)
    live = ~special
    spacing = np.spacing(np.abs(rounded[live])).astype(want.dtype)
    out[live] = (np.abs(got[live].astype(want.dtype) - want[live]) / spacing).astype(np.float64)
    return out


@pytest.mark.parametrize("lanes", [0, 3, 16])
@pytest.mark.parametrize("elem", ["f32", "f64"])
@pytest.mark.parametrize("fn", LIMIT)
def test_accuracy(fn, elem, lanes, capsys):
    if elem == "f64" and np.finfo(np.longdouble).nmant < 60:
        pytest.skip("longdouble is no wider than double here")
    x = arguments(fn, elem)
    if lanes != 16:
        x = x[: 240 * 400].copy()
    out = np.zeros_like(x)
    b = Builder("k", 2)
    with b.loop(0, x.size, max(1, lanes)) as row:
        b.store(b.op(fn, b.load(b.buffers[0], row.var, elem, lanes)), b.buffers[1], row.var)
    run(b, x, out)
    errors = ulps(out, exact(fn, x))
    worst = int(errors.argmax())
    with capsys.disabled():
        print(f"\n  {fn} {elem} x{lanes}: {errors[worst]:.2f} ULP at {x[worst]!r}", end="")
    assert errors[worst] <= LIMIT[fn] if elem == "f32" else errors[worst] <= 3.0
    assert np.array_equal(np.signbit(out[x == 0]), np.signbit(exact(fn, x[x == 0])))


@pytest.mark.slow
@pytest.mark.parametrize("fn", LIMIT)
def test_every_single(fn):
    """All 2**32 arguments, in blocks."""
    n = 1 << 22
    out, worst = np.zeros(n, np.float32), 0.0
    for block in range(0, 2**32, n):
        x = np.arange(block, block + n, dtype=np.uint64).astype(np.uint32).view(np.float32)
        b = Builder("k", 2)
        with b.loop(0, n, 16) as row:
            b.store(b.op(fn, b.load(b.buffers[0], row.var, "f32", 16)), b.buffers[1], row.var)
        run(b, x, out)
        worst = max(worst, float(ulps(out, exact(fn, x)).max()))
    assert worst <= LIMIT[fn]
