"""Every instruction of the loop nest against NumPy, on scalars and vectors of awkward lane counts."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from einsmith.codegen.cache.native import compile_functions
from einsmith.codegen.llvm import jit
from einsmith.codegen.loopnest.lanes import combine_lanes
from einsmith.codegen.loopnest.nest import Builder

CPU, FEATURES, TRIPLE = jit.host()
TARGET = SimpleNamespace(
    cpu=CPU, features=FEATURES, triple=TRIPLE, vector_bytes=64 if "+avx512f" in FEATURES.split(",") else 32
)
NUMPY = {
    "f32": np.float32, "f64": np.float64, "u8": np.uint8, "i8": np.int8, "i16": np.int16, "i32": np.int32,
    "i64": np.int64, "i1": np.bool_,
}  # fmt: skip
LANES = [0, 2, 3, 4, 7, 8, 15, 16, 17]
ELEMS = ["f32", "f64", "i8", "i16", "i32", "i64"]
signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def run(b: Builder, *arrays: np.ndarray, task: int = 0, target=TARGET) -> None:
    """Compiles the builder's function and runs one task on the arrays."""
    f = b.finish()
    address = compile_functions([f], target)[f.name]
    pointers = (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])
    raw = np.zeros(f.scratch_bytes + 64, np.uint8)
    scratch = raw.ctypes.data + (-raw.ctypes.data) % 64
    signature(address)(ctypes.cast(pointers, ctypes.c_void_p), scratch, task)


def values(rng, elem: str, n: int) -> np.ndarray:
    if elem in ("f32", "f64"):
        x = rng.normal(size=n) * 10.0 ** rng.integers(-3, 4, n)
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5]
        x[: min(n, 8)] = rng.permutation(special)[: min(n, 8)]
        return rng.permutation(x).astype(NUMPY[elem])
    if elem == "i1":
        return rng.integers(0, 2, n).astype(np.bool_)
    low, high = np.iinfo(NUMPY[elem]).min, np.iinfo(NUMPY[elem]).max
    x = np.concatenate([rng.integers(-9, 10, n - n // 3), rng.integers(low, high, n // 3, endpoint=True)])
    x[: min(n, 4)] = np.array([low, high, -1, 0])[: min(n, 4)]
    return rng.permutation(x).astype(NUMPY[elem])


def apply(fn: str, elem: str, lanes: int, inputs: list[np.ndarray], out: str) -> np.ndarray:
    """fn over whole arrays, `lanes` elements at a time (the length is a multiple)."""
    n, w = inputs[0].size, max(lanes, 1)
    result = np.zeros(n, NUMPY[out])
    b = Builder("k", len(inputs) + 1)
    with b.loop(0, n, w) as row:
        args = [
            b.load(p, row.var, "i1" if a.dtype == bool else elem, lanes)
            for p, a in zip(b.buffers, inputs, strict=False)
        ]
        b.store(b.op(fn, *args), b.buffers[-1], row.var)
    run(b, *inputs, result)
    return result


def _sigmoid(x):
    e = np.exp(-np.abs(x.astype(np.longdouble)))
    return np.where(x < 0, e / (1 + e), 1 / (1 + e)).astype(x.dtype)


BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "min": np.minimum,
    "max": np.maximum,
    "pow": np.power,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
UNARY = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "round": np.rint,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "sigmoid": _sigmoid,
    "rsqrt": lambda x: (1 / np.sqrt(x.astype(np.float64))).astype(x.dtype),
    "erf": lambda x: np.vectorize(__import__("math").erf)(x.astype(np.float64)).astype(x.dtype),
}


@pytest.mark.thinned(6)
@pytest.mark.parametrize("fn,elem", [(f, e) for f in BINARY for e in ELEMS if e[0] == "f" or f not in ("div", "pow")])
def test_binary(fn, elem):
    rng = np.random.default_rng()
    for lanes in LANES:
        n = 24 * max(lanes, 1)
        a, b = values(rng, elem, n), values(rng, elem, n)
        k = n // 4
        b[:k] = a[:k]
        out = "i1" if fn in ("lt", "le", "eq", "ne") else elem
        with np.errstate(all="ignore"):
            want = BINARY[fn](a, b)
        got = apply(fn, elem, lanes, [a, b], out)
        if fn == "pow":
            facts = np.finfo(NUMPY[elem])  # numbers below the normal ones have few digits
            np.testing.assert_allclose(got, want, rtol=4 * facts.eps, atol=4 * facts.smallest_subnormal)
        else:
            np.testing.assert_array_equal(got, want, err_msg=f"{fn} {elem} x{lanes}")


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    "fn,elem", [(f, e) for f in UNARY for e in ELEMS if e[0] == "f" or f in ("neg", "abs", "sign")]
)
def test_unary(fn, elem):
    rng = np.random.default_rng()
    for lanes in LANES:
        a = values(rng, elem, 8 * max(lanes, 1))
        with np.errstate(all="ignore"):
            want = UNARY[fn](a)
        got = apply(fn, elem, lanes, [a], elem)
        if elem[0] == "i" or fn in ("neg", "abs", "sign", "floor", "sqrt"):
            np.testing.assert_array_equal(got, want, err_msg=f"{fn} {elem} x{lanes}")
        else:
            tiny = np.finfo(NUMPY[elem]).smallest_subnormal
            np.testing.assert_allclose(
                got, want, rtol=8 * np.finfo(NUMPY[elem]).eps, atol=tiny, err_msg=f"{fn} {elem} x{lanes}"
            )


@pytest.mark.parametrize("fn", ["and", "or", "not", "eq", "ne", "lt"])
def test_logic(fn):
    rng = np.random.default_rng()
    table = {
        "and": np.logical_and,
        "or": np.logical_or,
        "not": np.logical_not,
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
    }
    for lanes in LANES:
        args = [values(rng, "i1", 4 * max(lanes, 1)) for _ in range(1 if fn == "not" else 2)]
        np.testing.assert_array_equal(apply(fn, "i1", lanes, args, "i1"), table[fn](*args))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("elem", ELEMS)
@pytest.mark.parametrize("fn", ["where", "fma"])
def test_ternary(fn, elem):
    rng = np.random.default_rng()
    for lanes in LANES:
        n = 6 * max(lanes, 1)
        a, b, c = (values(rng, elem, n) for _ in range(3))
        if fn == "where":
            m = values(rng, "i1", n)
            np.testing.assert_array_equal(apply(fn, elem, lanes, [m, a, b], elem), np.where(m, a, b))
        else:
            with np.errstate(all="ignore"):
                wide = a.astype(np.longdouble) * b + c if elem[0] == "f" else a * b + c
                want = wide.astype(NUMPY[elem])
            np.testing.assert_allclose(apply(fn, elem, lanes, [a, b, c], elem), want, rtol=1e-15)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 8, 64, 100, -1, -3, -4])
@pytest.mark.parametrize("elem", ["i8", "i16", "i32", "i64"])
def test_division_by_a_constant(elem, divisor):
    rng = np.random.default_rng()
    for lanes in (0, 5, 16):
        a = values(rng, elem, 6 * max(lanes, 1))
        for fn in ("floordiv", "mod"):
            out = np.zeros_like(a)
            b = Builder("k", 2)
            with b.loop(0, a.size, max(lanes, 1)) as row:
                x = b.load(b.buffers[0], row.var, elem, lanes)
                b.store(b.op(fn, x, b.const(divisor, elem)), b.buffers[1], row.var)
            run(b, a, out)
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(out, BINARY[fn](a, NUMPY[elem](divisor)))


@pytest.mark.parametrize("fn", ["min", "max"])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("literal", [0.0, 1.5, np.nan, np.inf])
def test_extremum_with_a_constant(fn, side, literal):
    rng = np.random.default_rng()
    for elem in ("f32", "f64"):
        a, out = values(rng, elem, 16), np.zeros(16, NUMPY[elem])
        b = Builder("k", 2)
        x, c = b.load(b.buffers[0], b.const(0), elem, 16), b.const(literal, elem)
        b.store(b.op(fn, *((c, x) if side else (x, c))), b.buffers[1], b.const(0))
        run(b, a, out)
        np.testing.assert_array_equal(out, BINARY[fn](a, NUMPY[elem](literal)))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("source", NUMPY)
@pytest.mark.parametrize("to", NUMPY)
def test_cast(source, to):
    rng = np.random.default_rng()
    for lanes in LANES:
        n = 4 * max(lanes, 1)
        a = values(rng, source, n)
        out = np.zeros(n, NUMPY[to])
        b = Builder("k", 2)
        with b.loop(0, n, max(lanes, 1)) as row:
            b.store(b.cast(b.load(b.buffers[0], row.var, source, lanes), to), b.buffers[1], row.var)
        run(b, a, out)
        with np.errstate(all="ignore"):
            if source[0] == "f" and to[0] in "iu" and to != "i1":
                low, high = np.iinfo(NUMPY[to]).min, np.iinfo(NUMPY[to]).max
                want = np.array(
                    [0 if np.isnan(v) else high if v >= high else low if v <= low else int(v) for v in a], NUMPY[to]
                )
            else:
                want = a.astype(NUMPY[to])
        np.testing.assert_array_equal(out, want, err_msg=f"{source} to {to} x{lanes}")


@pytest.mark.parametrize("elem", NUMPY)
def test_lanes(elem):
    rng = np.random.default_rng()
    for lanes in (2, 3, 8, 16, 17):
        a, c = values(rng, elem, lanes), values(rng, elem, lanes)
        picked = [int(v) for v in rng.integers(0, 2 * lanes, lanes)]
        out, one, moved = (np.zeros(lanes, NUMPY[elem]) for _ in range(3))
        b = Builder("k", 5)
        x, y = (b.load(p, b.const(0), elem, lanes) for p in b.buffers[:2])
        b.store(b.shuffle(x, y, picked), b.buffers[2], b.const(0))
        b.store(b.splat(b.extract(x, lanes - 1), lanes), b.buffers[3], b.const(0))
        b.store(b.insert(y, b.extract(x, b.task), 1), b.buffers[4], b.const(0))
        run(b, a, c, out, one, moved, task=1)
        np.testing.assert_array_equal(out, np.concatenate([a, c])[picked])
        np.testing.assert_array_equal(one, np.full(lanes, a[-1]))
        want = c.copy()
        want[1] = a[1]
        np.testing.assert_array_equal(moved, want)


def test_any_iota_and_horizontal():
    rng = np.random.default_rng()
    for lanes in (2, 4, 16):
        a = rng.normal(size=lanes).astype(np.float32)
        sums, flags, counted = np.zeros(4, np.float32), np.zeros(2, np.bool_), np.zeros(lanes, np.int32)
        b = Builder("k", 4)
        x = b.load(b.buffers[0], b.const(0), "f32", lanes)
        for n, fn in enumerate(("add", "mul", "min", "max")):
            b.store(combine_lanes(b, fn, x), b.buffers[1], b.const(n))
        b.store(b.any(b.op("lt", x, b.const(float(a.min()), "f32"))), b.buffers[2], b.const(0))
        b.store(b.any(b.op("le", x, b.const(float(a.min()), "f32"))), b.buffers[2], b.const(1))
        b.store(b.iota(lanes, "i32"), b.buffers[3], b.const(0))
        run(b, a, sums, flags, counted)
        assert abs(sums[0] - a.sum(dtype=np.float64)) <= 1e-6 * np.abs(a).sum()  # terms may cancel
        np.testing.assert_allclose(sums[1:], [a.prod(), a.min(), a.max()], rtol=1e-5)
        assert flags.tolist() == [False, True]
        assert counted.tolist() == list(range(lanes))
