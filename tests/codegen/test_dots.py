"""Dot products of words give the sums of the points' products, by instructions and point by point."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einsmith.base.dtypes import bf16
from einsmith.base.errors import CompileError
from einsmith.codegen.cache.native import host_target
from einsmith.codegen.llvm import jit
from einsmith.codegen.llvm.dot_products import find_instruction
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.loopnest.dots import DOTS
from einsmith.codegen.loopnest.nest import Builder
from einsmith.kernels.pattern import Launch, Lowered
from tests.kernels.runner import run_native

LANES = (0, 2, 4, 8, 16)


def function(name: str, lanes: int):
    """Words are packed from points in memory, and multiplied and added to a sum."""
    dot = DOTS[name]
    b = Builder(f"dot_{name}_{lanes}", 4)
    words = []
    for buffer, elem in ((b.buffers[0], dot.left), (b.buffers[1], dot.right)):
        rows = [b.load(buffer, n * max(1, lanes), elem, lanes) for n in range(dot.points)]
        words.append(b.pack(rows))
    b.store(b.dot(name, *words, b.load(b.buffers[2], 0, dot.sum, lanes)), b.buffers[2], 0)
    return b.finish()


def points(rng: np.random.Generator, elem: str, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Random points as they lie in memory, and their values."""
    if elem == "bf16":
        held = bf16.narrow(rng.integers(-200, 201, shape) / 8)
        return held, bf16.wide(held)
    limits = np.iinfo(elem.replace("i", "int").replace("u8", "uint8").replace("uintnt", "uint"))
    held = rng.integers(limits.min, limits.max + 1, shape).astype(limits.dtype)
    return held, held.astype(np.int64)


@pytest.mark.parametrize("features", ["host", ""])
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("name", DOTS)
def test_sums_of_products(name, lanes, features):
    dot, rng = DOTS[name], np.random.default_rng(lanes)
    (a, x), (b, y) = (points(rng, elem, (dot.points, max(1, lanes))) for elem in (dot.left, dot.right))
    c = rng.integers(-1000, 1000, max(1, lanes)).astype(np.float32 if dot.sum == "f32" else np.int32)
    wanted = c + (x * y).sum(0)
    target = host_target() if features else replace(host_target(), features="", cpu="generic")
    run_native(Lowered([Launch(function(name, lanes), 1)]), [a, b, c], target)
    np.testing.assert_array_equal(c, wanted.astype(c.dtype))


@pytest.mark.parametrize(
    "cpu, features, triple",
    [
        ("znver4", "+avx512bf16,+avx512vl,+avx512vnni,+avx512bw,+avx2,+sse2", "x86_64-unknown-linux-gnu"),
        ("alderlake", "+avxvnni,+avx2,+sse2", "x86_64-unknown-linux-gnu"),
        ("neoverse-v1", "+neon,+bf16,+i8mm,+dotprod", "aarch64-unknown-linux-gnu"),
    ],
)
def test_every_instruction_is_known_to_the_code_generator(cpu, features, triple):
    names = frozenset(x[1:] for x in features.split(","))
    target = replace(host_target(), cpu=cpu, features=features, triple=triple, vector_bytes=64)
    found = [(n, lanes) for n in DOTS for lanes in LANES if find_instruction(n, lanes, names)]
    assert found
    text = emit_module([function(*x) for x in found], target)
    assert all(find_instruction(*x, names).names[x[1]] in text for x in found)
    assert jit.emit_object(text, target)


def test_words_of_other_types_are_refused():
    b = Builder("wrong", 1)
    x = b.load(b.buffers[0], 0, "bf16", 4)
    with pytest.raises(CompileError, match="a word of"):
        b.pack([x])
    with pytest.raises(CompileError, match="dot product bf16 of"):
        b.dot("bf16", b.pack([x, x]), b.pack([x, x]), b.const(0, "i32", 4))
