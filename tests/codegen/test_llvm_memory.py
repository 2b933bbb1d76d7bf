"""Loads, stores, masks, gathers and control flow of generated code; masked accesses beside a guard page."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from einsmith.base.errors import CompileError
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.llvm.jit import emit_assembly
from einsmith.codegen.loopnest.nest import Builder
from tests.codegen.test_llvm_ops import LANES, NUMPY, TARGET, run, values


class Guarded:
    """`n` elements that end at a page which must not be touched."""

    def __init__(self, data: np.ndarray):
        page = mmap.PAGESIZE
        self.map = mmap.mmap(-1, 2 * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(base + page), ctypes.c_size_t(page), 0):
            pytest.skip("no mprotect here")
        self.array = np.frombuffer(self.map, data.dtype, data.size, page - data.nbytes)
        self.array[:] = data


@pytest.mark.thinned(4)
@pytest.mark.parametrize("elem", ["f32", "f64", "u8", "i8", "i16", "i32", "i64", "i1"])
def test_masked_tails_next_to_a_guard_page(elem):
    rng = np.random.default_rng()
    for lanes in LANES[1:]:
        for live in {0, 1, lanes // 2, lanes - 1, lanes}:
            source, target = Guarded(values(rng, elem, live)), Guarded(values(rng, elem, live))
            whole = np.full(lanes, 1, NUMPY[elem])
            for known in (True, False):
                b = Builder("k", 3)
                limit = b.const(live) if known else b.task
                mask = b.op("lt", b.iota(lanes), b.splat(limit, lanes))
                x = b.load(b.buffers[0], b.const(0), elem, lanes, mask=mask)
                b.store(x, b.buffers[1], b.const(0), mask=mask)
                b.store(x, b.buffers[2], b.const(0))
                target.array[:] = 0
                run(b, source.array, target.array, whole, task=live)
                np.testing.assert_array_equal(target.array, source.array)
                np.testing.assert_array_equal(whole[:live], source.array)
                assert not whole[live:].any()


@pytest.mark.parametrize("elem", ["f32", "f64", "u8", "i8", "i16", "i32", "i64", "i1"])
def test_scattered_masks_leave_the_rest_alone(elem):
    rng = np.random.default_rng()
    for lanes in LANES[1:]:
        a, other, keep = values(rng, elem, lanes), values(rng, elem, lanes), values(rng, elem, lanes)
        m, loaded = values(rng, "i1", lanes), np.zeros(lanes, NUMPY[elem])
        stored = keep.copy()
        b = Builder("k", 5)
        mask = b.load(b.buffers[0], b.const(0), "i1", lanes)
        x = b.load(b.buffers[1], b.const(0), elem, lanes)
        y = b.load(
            b.buffers[1], b.const(0), elem, lanes, mask=mask, other=b.load(b.buffers[2], b.const(0), elem, lanes)
        )
        b.store(x, b.buffers[3], b.const(0), mask=mask)
        b.store(y, b.buffers[4], b.const(0))
        run(b, m, a, other, stored, loaded)
        np.testing.assert_array_equal(stored, np.where(m, a, keep))
        np.testing.assert_array_equal(loaded, np.where(m, a, other))


@pytest.mark.parametrize("elem", ["f32", "i8", "i64", "i1"])
def test_scalar_masks(elem):
    rng = np.random.default_rng()
    n = 12
    a, m, out = values(rng, elem, n), values(rng, "i1", n), values(rng, elem, n)
    want = np.where(m, a, out)
    copied = np.zeros(n, NUMPY[elem])
    other = NUMPY[elem](1)
    b = Builder("k", 4)
    with b.loop(0, n) as loop:
        mask = b.load(b.buffers[1], loop.var, "i1")
        x = b.load(b.buffers[0], loop.var, elem, mask=mask, other=b.const(1, elem))
        b.store(x, b.buffers[2], loop.var, mask=mask)
        b.store(x, b.buffers[3], loop.var)
    run(b, a, m, out, copied)
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(copied, np.where(m, a, other))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("index", ["i32", "i64"])
@pytest.mark.parametrize("elem", ["f32", "f64", "u8", "i8", "i16", "i32", "i64", "i1"])
def test_gather_and_scatter(elem, index):
    rng = np.random.default_rng()
    for lanes in LANES:
        w = max(lanes, 1)
        a = values(rng, elem, 40)
        at, to = rng.integers(0, 40, w), rng.permutation(40)[:w]
        m = rng.integers(0, 2, w).astype(bool)
        plain, masked, spread, partly = (np.zeros(40, NUMPY[elem]) for _ in range(4))
        b = Builder("k", 8)
        i, j = (b.load(p, b.const(0), index, lanes) for p in b.buffers[1:3])
        mask = b.load(b.buffers[3], b.const(0), "i1", lanes)
        x = b.gather(b.buffers[0], i, elem)
        b.store(x, b.buffers[4], b.const(0))
        b.store(
            b.gather(b.buffers[0], b.op("where", mask, i, b.const(2**30, index)), elem, mask), b.buffers[5], b.const(0)
        )
        b.scatter(x, b.buffers[6], j)
        b.scatter(x, b.buffers[7], b.op("where", mask, j, b.const(-(2**30), index)), mask)
        run(b, a, at.astype(NUMPY[index]), to.astype(NUMPY[index]), m, plain, masked, spread, partly)
        np.testing.assert_array_equal(plain[:w], a[at])
        np.testing.assert_array_equal(masked[:w], np.where(m, a[at], NUMPY[elem](0)))
        want = np.zeros(40, NUMPY[elem])
        want[to] = a[at]
        np.testing.assert_array_equal(spread, want)
        want = np.zeros(40, NUMPY[elem])
        want[to[m]] = a[at[m]]
        np.testing.assert_array_equal(partly, want)


def test_address_alloc_prefetch_stream_and_barrier():
    a = np.arange(100, dtype=np.float32)
    raw = np.zeros(64, np.float32)
    out = raw[(-raw.ctypes.data % 64) // 4 :][:32]
    b = Builder("k", 2)
    _, s = b.alloc("i1", 3), b.alloc("f32", 16)
    b.prefetch(b.buffers[0], b.const(64), "f32")
    b.store(b.load(b.address(b.buffers[0], b.const(5), "f32"), b.task, "f32", 16), s, b.const(0))
    b.barrier()
    b.stream(b.load(s, b.const(0), "f32", 16), b.buffers[1], b.const(0))
    b.stream(b.load(s, b.const(0), "f32", 16), b.buffers[1], b.const(16))
    run(b, a, out, task=2)
    np.testing.assert_array_equal(out, np.tile(a[7:23], 2))


LOOPS = [(0, 10, 1, 1), (3, 17, 2, 1), (0, 1, 1, 1), (5, 5, 1, 1), (7, 2, 3, 1), (0, 12, 1, 4), (1, 9, 2, 4),
         (-6, 6, 3, 2), (0, 12, 4, 3)]  # fmt: skip
"""From, to, step, points at once; those of several have literal bounds."""


@pytest.mark.parametrize("lo,hi,step,unroll,known", [(*x, k) for x in LOOPS for k in (True, False) if k or x[3] == 1])
def test_loops_with_carried_values(lo, hi, step, unroll, known):
    trips = list(range(lo, hi, step))
    a = np.arange(64, dtype=np.int64) ** 2
    bounds, out = np.array([lo, hi], np.int64), np.zeros(3, np.int64)
    b = Builder("k", 3)
    ends = [b.load(b.buffers[1], b.const(k), "i64") for k in (0, 1)]
    init = [b.const(5), b.const(1), b.const(0)]
    with b.loop(lo if known else ends[0], hi if known else ends[1], step, init, unroll) as loop:
        total, last, count = loop.carried
        x = b.load(b.buffers[0], b.add(loop.var, b.const(8)), "i64")
        loop.next = [b.add(total, x), b.mul(loop.var, loop.var), b.add(count, last)]
    for k, v in enumerate(loop.results):
        b.store(v, b.buffers[2], b.const(k))
    run(b, a, bounds, out)
    total, last, count = 5, 1, 0
    for i in trips:
        total, last, count = total + int(a[i + 8]), i * i, count + last
    assert out.tolist() == [total, last, count]


def test_nested_loops_swap_carried_vectors_under_a_condition():
    rng = np.random.default_rng()
    a, out = rng.normal(size=(6, 5, 8)).astype(np.float32), np.zeros((2, 8), np.float32)
    b = Builder("k", 2)
    zero, one = b.const(0.0, "f32", 8), b.const(1.0, "f32", 8)
    with b.loop(0, 6, init=[zero, one]) as outer:
        with b.loop(0, b.add(b.task, b.const(1)), init=outer.carried) as inner:
            x, y = inner.carried
            at = b.mul(b.add(b.mul(outer.var, b.const(5)), inner.var), b.const(8))
            with b.if_(b.op("eq", b.op("mod", inner.var, b.const(2)), b.const(1))):
                b.store(b.load(b.buffers[0], at, "f32", 8), b.buffers[1], b.const(8))
            inner.next = [y, b.op("fma", b.load(b.buffers[0], at, "f32", 8), b.const(0.5, "f32"), x)]
        outer.next = inner.results
    b.store(outer.results[0], b.buffers[1], b.const(0))
    run(b, a, out, task=4)
    x, y = np.zeros(8), np.ones(8)
    for i in range(6):
        for j in range(5):
            x, y = y, a[i, j] * 0.5 + x
    np.testing.assert_allclose(out[0], x, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(out[1], a[5, 3])


def test_buffers_may_be_one_memory():
    a = np.arange(64, dtype=np.float32)
    want = a * 2 + 1
    b = Builder("k", 2)
    with b.loop(0, 64, 16) as loop:
        x = b.load(b.buffers[0], loop.var, "f32", 16)
        b.store(b.fma(x, b.const(2.0, "f32", 16), b.const(1.0, "f32", 16)), b.buffers[1], loop.var)
    run(b, a, a)
    np.testing.assert_array_equal(a, want)


def test_unrolling_an_unknown_trip_count_is_refused():
    b = Builder("k", 1)
    with b.loop(0, b.task, unroll=2) as loop:
        b.store(loop.var, b.buffers[0], loop.var)
    with pytest.raises(CompileError, match="unrolled by 2"):
        emit_module([b.finish()], TARGET)
    b = Builder("k", 1)
    with b.loop(0, 7, unroll=2) as loop:
        b.store(loop.var, b.buffers[0], loop.var)
    with pytest.raises(CompileError, match="runs 7 times"):
        emit_module([b.finish()], TARGET)


@pytest.mark.skipif(TARGET.vector_bytes != 64 or "x86" not in TARGET.triple, reason="AVX-512")
def test_register_tile_has_no_spills_and_uses_wide_fused_products():
    """A 6 x 64 tile of a product: 24 accumulators stay in registers, broadcasts fold into the instruction."""
    m, n, k = 6, 4, 256
    b = Builder("tile", 3)
    zero = b.const(0.0, "f32", 16)
    with b.loop(0, k, init=[zero] * (m * n)) as loop:
        row = b.mul(loop.var, b.const(16 * n))
        panel = [b.load(b.buffers[1], b.add(row, b.const(16 * j)), "f32", 16) for j in range(n)]
        acc = []
        for i in range(m):
            x = b.splat(b.load(b.buffers[0], b.add(b.mul(loop.var, b.const(m)), b.const(i)), "f32"), 16)
            acc += [b.fma(x, panel[j], loop.carried[i * n + j]) for j in range(n)]
        loop.next = acc
    for i, v in enumerate(loop.results):
        b.store(v, b.buffers[2], b.const(16 * i))
    f = b.finish()
    lines = emit_assembly(emit_module([f], TARGET), TARGET).splitlines()
    assert not [x for x in lines if "zmm" in x and "(%rsp)" in x]
    assert sum("vfmadd" in x and "zmm" in x for x in lines) == m * n
    rng = np.random.default_rng()
    x, y = rng.integers(-4, 5, (k, m)).astype(np.float32), rng.integers(-4, 5, (k, 16 * n)).astype(np.float32)
    out = np.zeros((m, 16 * n), np.float32)
    run(b, x, y, out)
    np.testing.assert_array_equal(out, x.T @ y)
