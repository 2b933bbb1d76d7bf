"""Operations of tile registers: natively where the machine has them, and as functions elsewhere."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.base.errors import CompileError
from einsmith.base.system import processors
from einsmith.codegen.cache.native import compile_functions, host_target
from einsmith.codegen.llvm import jit
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.loopnest.nest import Builder

WORDS = 32
"""Of a row of the left matrix."""
SPR = replace(
    host_target(), cpu="sapphirerapids", features="+amx-tile,+amx-bf16,+amx-int8", triple="x86_64-unknown-linux-gnu",
    vector_bytes=64,
)  # fmt: skip


def product(dot: str, is_reversed: bool):
    """out[16, 16] += left[16, WORDS] right[WORDS, 16], all in rows that are three words longer."""
    b = Builder("tiles", 3)
    left, right, out = b.buffers
    b.tile_load(0, out, 0, 19)
    with b.loop(0, WORDS, step=16) as loop:
        b.tile_load(1, left, loop.var, WORDS + 3)
        b.tile_load(2, right, b.mul(loop.var, 19), 19)
        b.tile_dot(dot, 0, 1, 2, is_reversed)
    b.tile_store(0, out, 0, 19)
    b.tile_zero(0)
    b.tile_store(0, out, 16 * 19, 19)
    return b.finish()


def words_of(points: np.ndarray, kind: dt.DType) -> np.ndarray:
    """[rows, words, points] as words."""
    return np.ascontiguousarray(kind.narrow(points)).view(np.uint8).reshape(*points.shape[:2], 4).view(np.int32)[..., 0]


@pytest.mark.parametrize("dot, is_reversed", [("bf16", False), ("u8i8", False), ("u8i8", True)])
def test_products(dot, is_reversed, rng):
    kinds = (dt.bf16, dt.bf16) if dot == "bf16" else (dt.i8, dt.u8) if is_reversed else (dt.u8, dt.i8)
    points = 2 if dot == "bf16" else 4
    low, high = ((-128, 128), (0, 256)) if is_reversed else ((0, 256), (-128, 128))
    a, b = rng.integers(*low, (16, WORDS, points)), rng.integers(*high, (16, WORDS, points))
    if dot == "bf16":
        a, b = a % 7 - 3, b % 5 - 2
    sums = np.float32 if dot == "bf16" else np.int32
    left, right, out = np.zeros((16, WORDS + 3), np.int32), np.zeros((WORDS, 19), np.int32), np.full((32, 19), 5, sums)
    left[:, :WORDS], right[:, :16] = words_of(a, kinds[0]), words_of(b, kinds[1]).T
    address = compile_functions([product(dot, is_reversed)], host_target())["tiles"]
    table = (ctypes.c_void_p * 3)(*(x.ctypes.data for x in (left, right, out)))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)(table, None, 0)
    np.testing.assert_array_equal(out[:16, :16], 5 + np.einsum("ikp,jkp->ij", a, b))
    np.testing.assert_array_equal(out[16:, :16], 0)
    assert (out[:, 16:] == 5).all()


@pytest.mark.parametrize(
    "dot, is_reversed, wanted",
    [("bf16", False, "tdpbf16ps"), ("u8i8", False, "tdpbusd"), ("u8i8", True, "tdpbsud")],
)
def test_instructions(dot, is_reversed, wanted):
    text = jit.emit_assembly(emit_module([product(dot, is_reversed)], SPR), SPR)
    assert [text.count(x) for x in ("ldtilecfg", wanted, "tilezero", "tilerelease")] == [1, 1, 1, 1]
    assert text.count("tileloadd") == 3 and text.count("tilestored") == 2


@pytest.mark.parametrize("is_permitted", [False, True])
def test_a_machine_has_tiles_where_the_system_permits_them(is_permitted, monkeypatch):
    known = frozenset({"amx-tile", "amx-int8", "avx512vnni", "avx512vl"})
    monkeypatch.setattr(jit, "list_features", lambda machine: known)
    monkeypatch.setattr(processors, "permit_tile_registers", lambda: is_permitted)
    found = host_target.__wrapped__()
    assert dict(found.tiles).keys() == ({"u8i8"} if is_permitted else set())
    assert found.tile_dots_per_cycle("bf16") == 0


def test_what_handles_a_signal_may_use_tile_registers():
    """They are configured again after a check for signals, which no loop with sums in them makes, and released where a
    run is stopped."""
    b = Builder("tiles", 3)
    left, right, out = b.buffers
    with b.loop(0, b.task) as rows:
        b.tile_zero(0)
        with b.loop(0, b.task) as loop:
            b.tile_load(1, left, loop.var, 64)
            b.tile_load(2, right, loop.var, 64)
            b.tile_dot("bf16", 0, 1, 2)
        b.tile_store(0, out, rows.var, 64)
    f = b.finish()
    f.checks_signals = True
    text = emit_module([f], SPR)
    calls = [text.count(f" @{name}(") - 1 for name in ("einsmith_look", "llvm.x86.ldtilecfg", "llvm.x86.tilerelease")]
    assert calls == [1, 2, 2]  # less the declarations
    after = text[text.index("call i32 @einsmith_look") :]
    assert after.index("ldtilecfg") < after.index("br i1")


def test_a_function_has_one_dot_product_of_tile_registers():
    b = Builder("tiles", 1)
    b.tile_dot("bf16", 0, 1, 2)
    b.tile_dot("u8i8", 0, 1, 2)
    with pytest.raises(CompileError, match="two dot products"):
        emit_module([b.finish()], SPR)
    b = Builder("tiles", 1)
    b.tile_zero(0)
    with pytest.raises(CompileError, match="no dot product"):
        emit_module([b.finish()], SPR)


def test_registers_that_do_not_exist_are_refused():
    b = Builder("tiles", 1)
    for registers in ((8, 0, 1), (0, 0, 1), (0, 1, -1)):
        with pytest.raises(CompileError, match="tile registers"):
            b.tile_dot("bf16", *registers)
