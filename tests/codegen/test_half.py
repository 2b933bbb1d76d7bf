"""float16 and bfloat16 to and from float32: every value of the formats, every place where float32 rounds to another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.codegen.cache.native import host_target
from einsmith.codegen.llvm import half, jit
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.loopnest.nest import Builder
from tests.codegen.test_llvm_ops import run

CPU, FEATURES, TRIPLE = jit.host()
TARGETS = {"host": host_target()}
if TRIPLE.startswith("x86_64") and "+avx2" in FEATURES.split(","):
    TARGETS |= {
        "AVX2": replace(host_target(), cpu="haswell", features="", vector_bytes=32, vector_registers=16),
        "no F16C": replace(host_target(), cpu="x86-64-v2", features="", vector_bytes=16, vector_registers=16),
        "AVX2 without F16C": replace(
            host_target(), cpu="haswell", features="-f16c", vector_bytes=32, vector_registers=16
        ),
    }
TYPES = {"f16": dt.f16, "bf16": dt.bf16}


def converted(target, bits: np.ndarray, of: str, to: str, lanes: int) -> np.ndarray:
    """Numbers given and returned by their bits."""
    width = max(lanes, 1)
    n = -(-bits.size // width) * width
    source = np.zeros(n, bits.dtype)
    source[: bits.size] = bits
    size = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "i32": 4, "i64": 8, "i1": 1}[to]
    out = np.zeros(n, f"u{size}")
    b = Builder("k", 2)
    with b.loop(0, n, width) as loop:
        b.store(b.cast(b.load(b.buffers[0], loop.var, of, lanes), to), b.buffers[1], loop.var)
    run(b, source, out, target=target)
    return out[: bits.size]


def single_of(bits: np.ndarray, elem: str) -> np.ndarray:
    if elem == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def around_every_boundary(elem: str) -> np.ndarray:
    """Every value of the format, the middle between it and the next, the floats beside both; and random floats."""
    finite = np.arange({"f16": 0x7C00, "bf16": 0x7F80}[elem], dtype=np.uint16)
    values = np.append(single_of(finite, elem), np.float32(2.0 ** {"f16": 16, "bf16": 127}[elem]))
    with np.errstate(over="ignore"):
        middles = values[:-1] + (values[1:] - values[:-1]) / 2
    bits = np.concatenate([values, middles]).view(np.uint32)
    bits = np.concatenate([bits, bits + 1, np.maximum(bits, 1) - 1, np.arange(0x7F7FFF00, 0x7F800010, dtype=np.uint32)])
    bits = np.concatenate([bits, np.random.default_rng().integers(0, 2**32, 100_000, np.uint32)])
    return np.concatenate([bits, bits ^ 0x80000000])


def reference(x: np.ndarray, elem: str) -> np.ndarray:
    """The nearest number of the format, by exact arithmetic in float64."""
    digits, least, most = {"f16": (11, -24, 65504.0), "bf16": (8, -133, float(dt.bf16.max))}[elem]
    wide = np.where(np.isnan(x), np.float32(np.nan), x).astype(np.float64)
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(wide)
        unit = np.ldexp(1.0, np.maximum(exponent - digits, least))
        rounded = np.rint(wide / unit) * unit
        return np.where(np.abs(rounded) > most, np.copysign(np.inf, wide), rounded)


@pytest.mark.parametrize("elem", TYPES)
@pytest.mark.parametrize("lanes", [0, 3, 8, 16, 17])
@pytest.mark.parametrize("name", TARGETS)
def test_every_value_is_widened(name, lanes, elem):
    bits = np.arange(2**16, dtype=np.uint16)
    got = converted(TARGETS[name], bits, elem, "f32", lanes).view(np.float32)
    want = single_of(bits, elem)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    number = ~np.isnan(want)
    np.testing.assert_array_equal(got[number].view(np.uint32), want[number].view(np.uint32))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("elem", TYPES)
@pytest.mark.parametrize("lanes", [0, 3, 8, 16, 17])
@pytest.mark.parametrize("name", TARGETS)
def test_floats_are_rounded_to_the_nearest(name, lanes, elem):
    bits = around_every_boundary(elem)
    x = bits.view(np.float32)
    got = single_of(converted(TARGETS[name], bits, "f32", elem, lanes), elem)
    want = reference(x, elem)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(x))
    number = ~np.isnan(x)
    np.testing.assert_array_equal(got[number], want[number])
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(x[number]))


@pytest.mark.parametrize("elem", TYPES)
def test_arrays_are_rounded_alike(elem):
    x = around_every_boundary(elem).view(np.float32)
    got, want = TYPES[elem].wide(TYPES[elem].narrow(x)), reference(x, elem)
    number = ~np.isnan(x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(x))
    np.testing.assert_array_equal(got[number], want[number])


@pytest.mark.thinned(2)
@pytest.mark.parametrize("elem", TYPES)
@pytest.mark.parametrize("name", TARGETS)
def test_other_types_go_by_way_of_float32(name, elem):
    rng = np.random.default_rng()
    x = np.concatenate([rng.standard_normal(500) * 10.0 ** rng.integers(-8, 8, 500), [np.inf, -np.inf, 0.0, -0.0]])
    for lanes in (0, 8, 17):
        got = single_of(converted(TARGETS[name], x.view(np.uint64), "f64", elem, lanes), elem)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(got, reference(x.astype(np.float32), elem))
        i = rng.integers(-(2**31), 2**31, 500).astype(np.int32) >> rng.integers(0, 31, 500)
        got = single_of(converted(TARGETS[name], i.astype(np.int32).view(np.uint32), "i32", elem, lanes), elem)
        np.testing.assert_array_equal(got, reference(i.astype(np.float32), elem))
        bits = TYPES[elem].narrow(i.astype(np.float64)).view(np.uint16)
        wide = single_of(bits, elem).astype(np.float64)
        got = converted(TARGETS[name], bits, elem, "f64", lanes).view(np.float64)
        np.testing.assert_array_equal(got, wide)
        want = np.clip(wide, -(2**31), 2**31 - 1).astype(np.int64).astype(np.int32)
        np.testing.assert_array_equal(converted(TARGETS[name], bits, elem, "i32", lanes).view(np.int32), want)
        np.testing.assert_array_equal(converted(TARGETS[name], bits, elem, "i1", lanes), wide != 0)


@pytest.mark.parametrize("elem", TYPES)
def test_no_library_is_called(elem):
    """Its conversions need not be there when kernels are linked."""
    for lanes in (0, 3, 16):
        b = Builder("k", 2)
        x = b.cast(b.load(b.buffers[0], b.const(0), elem, lanes), "f32")
        b.store(b.cast(b.mul(x, x), elem), b.buffers[1], b.const(0))
        f = b.finish()
        for name, target in TARGETS.items():
            text = jit.emit_assembly(emit_module([f], target), jit.resolve(target))
            assert not [x for x in text.splitlines() if "hf2" in x or "bf2" in x or "call" in x.split()], name


def test_literals():
    for elem, value, bits in (
        ("f16", 1.0, 0x3C00), ("f16", -2.0, 0xC000), ("f16", 1e9, 0x7C00), ("f16", 2.0**-24, 1), ("f16", -0.0, 0x8000),
        ("bf16", 1.0, 0x3F80), ("bf16", float("-inf"), 0xFF80), ("bf16", 0.1, 0x3DCD),
    ):  # fmt: skip
        assert half.bits_of(value, elem) == bits
