"""Accuracy of the vector functions, in units in the last place, over random and special arguments."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from einsmith.base.system import processors
from einsmith.codegen.llvm import jit
from einsmith.codegen.loopnest.nest import Builder
from tests.codegen.test_llvm_ops import NUMPY, run

LIMIT = {"exp": 1.5, "log": 1.5, "tanh": 2.5, "sigmoid": 2.5, "erf": 2.7, "sin": 1.6, "cos": 1.6}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, -1e-45, 1e-39, -1e-39, 5e-324, 2.5e-310, 88.72, 88.73,
           -87.3, -87.4, -103.9, -104.1, -88.5, 709.78, 709.79, -745.1, -745.2, -708.4, 1e30, -1e30, 3e38, 1e300,
           0.625, 0.6249999, 0.7071067, 0.7071068, 1.4142135, 1.4142137, 9.0, 20.0]  # fmt: skip


def arguments(fn: str, elem: str) -> np.ndarray:
    rng, n = np.random.default_rng(), 1 << 16
    top = 88.8 if elem == "f32" else 709.9
    parts = [np.array(SPECIAL), rng.normal(size=n), rng.uniform(-1.3 * top, 1.3 * top, n), rng.uniform(0.5, 2.0, n),
             rng.uniform(-2, 2, n)]  # fmt: skip
    with np.errstate(all="ignore"):
        x = np.concatenate(parts).astype(NUMPY[elem])
    words = rng.integers(0, 2 ** (32 if elem == "f32" else 64), 4 * n, dtype=np.uint64)  # every bit pattern
    patterns = words.astype(np.uint32).view(np.float32) if elem == "f32" else words.view(np.float64)
    if fn in ("sin", "cos"):  # the multiples of pi/2, where the result is near 0 or 1, and each range of reduction
        turns = np.concatenate([rng.integers(-50000, 50000, n), rng.integers(-(2**40), 2**40, n // 4)]) * (np.pi / 2)
        x = np.concatenate([x, turns.astype(x.dtype), (rng.uniform(0.9, 1.1, n) * 71476).astype(x.dtype),
                            (rng.uniform(0.99, 1.01, n // 4) * 1e6).astype(x.dtype)])  # fmt: skip
        near = x[-5 * n :: 7]
        x = np.concatenate([x, np.nextafter(near, np.inf, dtype=x.dtype), np.nextafter(near, -np.inf, dtype=x.dtype)])
    if fn == "erf" and elem == "f64":
        x = x[:: 1 if x.size < n else 5]
    x = np.concatenate([x, patterns, (1 + np.arange(-999, 999) * np.finfo(NUMPY[elem]).eps).astype(NUMPY[elem])])
    return np.resize(x, -(-x.size // 240) * 240)


def exact(fn: str, x: np.ndarray) -> np.ndarray:
    """The value in more bits than x has (f64: the 64-bit mantissa of longdouble, where the machine has it)."""
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)
        if fn == "erf":
            return _erf(wide)
        if fn == "sigmoid":
            e = np.exp(-np.abs(wide))
            return np.where(wide < 0, e / (1 + e), 1 / (1 + e))
        return getattr(np, fn)(wide)


def _erf(x: np.ndarray) -> np.ndarray:
    """2/sqrt(pi) exp(-x**2) (x + 2 x**3 / 3 + 4 x**5 / 15 + ...): all terms have one sign."""
    a = np.where(np.abs(x) < 7, x, np.where(np.isnan(x), x, np.copysign(x.dtype.type(7), x)))
    term = total = a
    for k in range(1, 260):
        term = term * (2 * a * a / (2 * k + 1))
        total = total + term
        if np.nanmax(np.abs(term) - np.abs(total) * 1e-22) <= 0:
            break
    two_over_root_pi = 2 / np.sqrt(np.arctan2(x.dtype.type(0), x.dtype.type(-1)))
    return np.where(np.abs(a) < 7, total * np.exp(-a * a) * two_over_root_pi, np.sign(a))


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """|got - want| in units in the last place of the rounded exact value; special values must be the same."""
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
    special = ~np.isfinite(rounded)
    np.testing.assert_array_equal(got[special], rounded[special])
    assert np.isfinite(got[~special]).all()
    out = np.zeros(got.size)
    live = ~special
    with np.errstate(over="ignore"):  # the spacing of the largest number
        spacing = np.spacing(np.abs(rounded[live])).astype(want.dtype)
    out[live] = (np.abs(got[live].astype(want.dtype) - want[live]) / spacing).astype(np.float64)
    return out


@pytest.mark.thinned(6)
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


def pairs(elem: str) -> tuple[np.ndarray, np.ndarray]:
    """Bases and exponents: every pair of special values, results over the whole range, bases near 1, integers."""
    rng, n = np.random.default_rng(), 1 << 18
    kinds = NUMPY[elem]
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1.5, -1.5, 1e-40, -1e-40,
               2.0**24, 2.0**24 + 2, 2.0**31, 2.0**53, -(2.0**53), 16777215.0, 1e38, -1e38, 127.0, 128.0, -126.0,
               -149.0, -150.0, 1 / 3, -1 / 3, np.finfo(kinds).tiny, np.finfo(kinds).max,
               1 + np.finfo(kinds).eps]  # fmt: skip
    a, b = (m.reshape(-1) for m in np.meshgrid(special, special))
    top = 128 if elem == "f32" else 1024
    base = 2.0 ** rng.uniform(-top, top, n)
    close = 1 + rng.normal(size=n) * 2.0 ** rng.integers(-23, 0, n)
    with np.errstate(all="ignore"):
        tuned = rng.uniform(-1.2 * top, 1.2 * top, n) / np.log2(base)  # results anywhere between 0 and infinity
        tuned2 = rng.uniform(-1.2 * top, 1.2 * top, n) / np.log2(np.abs(close))
        whole = rng.integers(-40, 41, n)
        x = np.concatenate([a, base, close, rng.normal(size=n), rng.integers(-30, 31, n), base])
        y = np.concatenate([b, tuned, tuned2, rng.normal(size=n) * 10, whole, whole / 2]).astype(kinds)
        words = rng.integers(0, 2 ** (32 if elem == "f32" else 64), 2 * n, dtype=np.uint64)
        bits = words.astype(np.uint32).view(np.float32) if elem == "f32" else words.view(np.float64)
        x, y = np.concatenate([x.astype(kinds), bits[:n]]), np.concatenate([y, bits[n:]])
    size = -(-x.size // 240) * 240
    return np.resize(x, size), np.resize(y, size)


def power_errors(elem: str, lanes: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """ULP of x**y; zeros must have the right sign."""
    out = np.zeros_like(x)
    b = Builder("k", 3)
    with b.loop(0, x.size, max(1, lanes)) as row:
        u, w = (b.load(p, row.var, elem, lanes) for p in b.buffers[:2])
        b.store(b.op("pow", u, w), b.buffers[2], row.var)
    run(b, x, y, out)
    wide = np.float64 if elem == "f32" else np.longdouble
    with np.errstate(all="ignore"):
        want = np.power(x.astype(wide), y.astype(wide))
        if elem == "f32":  # out of the range of f64 even
            want = np.where(np.isinf(want) & np.isfinite(x) & np.isfinite(y) & (x != 0), np.sign(want) * 1e300, want)
    zero = out == 0
    assert np.array_equal(np.signbit(out[zero]), np.signbit(want[zero]))
    return ulps(out, want)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("lanes", [0, 3, 16])
@pytest.mark.parametrize("elem", ["f32", "f64"])
def test_pow(elem, lanes, capsys):
    if elem == "f64" and np.finfo(np.longdouble).nmant < 60:
        pytest.skip("longdouble is no wider than double here")
    x, y = pairs(elem)
    if lanes != 16:
        x, y = x[: 240 * 400].copy(), y[: 240 * 400].copy()
    errors = power_errors(elem, lanes, x, y)
    worst = int(errors.argmax())
    with capsys.disabled():
        print(f"\n  pow {elem} x{lanes}: {errors[worst]:.2f} ULP at {x[worst]!r}, {y[worst]!r}", end="")
    assert errors[worst] <= 1.0


@pytest.mark.slow
def test_pow_at_fifty_million_pairs():
    for _ in range(32):
        assert power_errors("f32", 16, *pairs("f32")).max() <= 1.0


@pytest.mark.thinned(4)
@pytest.mark.parametrize("fn", ["sin", "cos", "erf", "pow", "mod"])
@pytest.mark.parametrize("cpu", ["x86-64", "haswell"])
def test_without_fused_products_or_wide_vectors(fn, cpu):
    """Older processors: the same functions, a little less exact where a product is rounded."""
    if not jit.host()[2].startswith("x86_64"):
        pytest.skip("runs on x86-64 only")
    if cpu == "haswell" and not {"avx2", "fma"} <= processors.flags():
        pytest.skip("this processor has no AVX2")
    target = SimpleNamespace(cpu=cpu, features="", triple=jit.host()[2], vector_bytes=16)
    rng = np.random.default_rng()
    if fn in ("pow", "mod"):
        x, y = pairs("f32")
    else:
        x = arguments(fn, "f32")
        y = np.zeros_like(x)
    out = np.zeros_like(x)
    b = Builder("k", 3)
    with b.loop(0, x.size, 8) as row:
        u, w = (b.load(p, row.var, "f32", 8) for p in b.buffers[:2])
        b.store(b.op(fn, u, w) if fn in ("pow", "mod") else b.op(fn, u), b.buffers[2], row.var)
    run(b, x, y, out, target=target)
    if fn == "mod":
        picked = rng.permutation(x.size)[:200000]
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(out[picked], np.mod(x[picked], y[picked]))
        return
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64)) if fn == "pow" else exact(fn, x)
        want = np.where(np.isinf(want), want, np.clip(want, -1e300, 1e300))
    assert ulps(out, want).max() <= (2.7 if cpu == "haswell" else 4.0)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("elem", ["f32", "f64"])
@pytest.mark.parametrize("fn", ["mod", "floordiv"])
def test_float_division_is_exact(fn, elem):
    """Quotients just below and above integers, huge quotients, infinities: what NumPy gives, bit for bit."""
    rng, n, kinds = np.random.default_rng(), 1 << 16, NUMPY[elem]
    x, y = pairs(elem)
    small = rng.integers(1, 2**20, n) * rng.uniform(1e-3, 1, n)
    with np.errstate(all="ignore"):
        multiples = (rng.integers(-(2**24), 2**24, n) * small.astype(kinds)).astype(kinds)
        x = np.concatenate([x[: 4 * n], multiples, np.nextafter(multiples, -np.inf, dtype=kinds)])
        y = np.concatenate([y[: 4 * n], small.astype(kinds), small.astype(kinds)])
    out = np.zeros_like(x)
    b = Builder("k", 3)
    with b.loop(0, x.size, 16) as row:
        u, w = (b.load(p, row.var, elem, 16) for p in b.buffers[:2])
        b.store(b.op(fn, u, w), b.buffers[2], row.var)
    run(b, x, y, out)
    with np.errstate(all="ignore"):
        want = np.mod(x, y) if fn == "mod" else np.floor_divide(x, y)
    np.testing.assert_array_equal(out, want)
    zero = (out == 0) & (want == 0)
    np.testing.assert_array_equal(np.signbit(out[zero]), np.signbit(want[zero]))


@pytest.mark.slow
@pytest.mark.parametrize("fn", LIMIT)
def test_every_single(fn):
    """All 2**32 arguments, in blocks; for erf, whose exact values take long, a sixteenth of them."""
    n, stride = 1 << 22, 16 if fn == "erf" else 1
    out, worst = np.zeros(n, np.float32), 0.0
    first = int(np.random.default_rng().integers(0, stride))
    for block in range(first, 2**32, n * stride):
        x = np.arange(block, block + n * stride, stride, dtype=np.uint64).astype(np.uint32).view(np.float32)
        b = Builder("k", 2)
        with b.loop(0, n, 16) as row:
            b.store(b.op(fn, b.load(b.buffers[0], row.var, "f32", 16)), b.buffers[1], row.var)
        run(b, x, out)
        worst = max(worst, float(ulps(out, exact(fn, x)).max()))
    assert worst <= LIMIT[fn]
