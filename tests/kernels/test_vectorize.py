"""The emitter: positions of axes, literal lane patterns, hoisting, guards; values against plain Python."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.base.errors import CompileError
from einsmith.codegen.loopnest.address import BufferMemory, address
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.nest_text import show
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import Axis, apply
from einsmith.kernels.emit.vector import LanePattern, VectorEmitter
from einsmith.kernels.pattern import Launch, Lowered
from einsmith.schedule.kernel import KernelBuffer
from tests.kernels.samples import add, axes, div, lt, mod, mul, num, read, sub
from tests.nest_interp import Fault, run

LANES = 8


def ramp(base, lanes: int, multiple: int = 1) -> LanePattern:
    """`base, base+1, ...`: one axis along the lanes."""
    return LanePattern(base, tuple(range(lanes)), multiple)


def execute(build, arrays, tasks=1):
    """Runs `build(builder)` on the arrays; returns the nest's text."""
    b = Builder("f", len(arrays) + 1)
    build(b)
    kernel = SimpleNamespace(buffers=[KernelBuffer(dt.dtype_of(a), a.shape) for a in arrays])
    f = b.finish()
    run(Lowered([Launch(f, tasks)]), kernel, arrays)  # type: ignore[arg-type]
    return show(f)


def memory(b: Builder, n: int, a: np.ndarray) -> BufferMemory:
    return BufferMemory(b.buffers[n], KernelBuffer(dt.dtype_of(a), a.shape))


def test_addresses():
    i, j = axes(2)
    assert address((add(i, 1), mul(2, j)), (7, 1)) == LinearForm(7, {i: 7, j: 2})
    assert address((), ()) == LinearForm()


@pytest.mark.parametrize("base", [0, 8, 40])
def test_integer_expressions_along_the_lanes(base):
    """Every quotient and remainder, static and with a scalar base of a known multiple, equals Python's."""
    i = Axis(0)
    for c, k, d in product((1, 2, 3), (0, 1, 5), (2, 3, 4, 8)):
        e = add(mul(7, div(add(mul(c, i), k), d)), mod(add(mul(c, i), k), d))
        want = [7 * ((c * x + k) // d) + (c * x + k) % d for x in range(base, base + LANES)]
        for known in (True, False):
            out = np.zeros(LANES, np.int32)

            def build(b, known=known, e=e, out=out):
                em = VectorEmitter(b, (64,), LANES)
                em.place(0, memory(b, 0, out))
                em.bind(
                    0, ramp(base, LANES) if known else ramp(b.mul(b.add(b.task, b.const(1)), b.const(base)), LANES, 8)
                )
                b.store(em.splat(em.emit(e)), b.buffers[0], b.const(0))

            execute(build, [out])
            assert out.tolist() == want


def test_patterns_of_several_axes():
    """Two axes share the lanes: four columns of two rows."""
    i, j = axes(2)
    a = np.arange(60, dtype=np.float32).reshape(6, 10)
    out = np.zeros(LANES, np.float32)

    def build(b):
        em = VectorEmitter(b, (6, 10), LANES)
        em.place(0, memory(b, 0, a))
        em.bind(0, LanePattern(2, tuple(x // 4 for x in range(LANES))))
        em.bind(1, LanePattern(b.add(b.task, b.const(5)), tuple(x % 4 for x in range(LANES))))
        b.store(em.splat(em.emit(read(0, i, j))), b.buffers[1], b.const(0))

    execute(build, [a, out])
    assert out.tolist() == [*a[2, 5:9], *a[3, 5:9]]


def test_lanes_known_only_at_run_time():
    i, j = axes(2)
    a = np.arange(77, dtype=np.float32).reshape(7, 11)
    where = np.array([3, 1, 4, 1, 5, 0, 2, 6], np.int32)
    out = np.zeros(LANES, np.float32)

    def build(b):
        em = VectorEmitter(b, (7, 11), LANES)
        em.place(0, memory(b, 0, a))
        em.bind(0, b.load(b.buffers[1], b.const(0), "i32", LANES))
        em.bind(1, 4)
        b.store(em.splat(em.emit(read(0, i, add(j, 2)))), b.buffers[2], b.const(0))

    execute(build, [a, where, out])
    assert out.tolist() == a[where, 6].tolist()


@pytest.mark.parametrize(
    "values",
    [
        [0] * 8,
        [5] * 8,
        list(range(8)),
        [3 - 2 * x for x in range(8)],
        [0, 0, 1, 1, 2, 2, 3, 3],
        [9, -4, 100, 7, 0, 0, 3, 2],
    ],
)
def test_literal_vectors(values):
    out = np.zeros(LANES, np.int32)
    execute(lambda b: b.store(VectorEmitter(b, (), LANES).literal(values, "i32"), b.buffers[0], b.const(0)), [out])
    assert out.tolist() == values


@pytest.mark.parametrize("stride, count", [(2, 8), (3, 8), (4, 5), (-1, 8), (2, 3), (1, 5)])
def test_wide_loads_touch_no_more_than_there_is(stride, count):
    """The tensor ends right behind the last element that counts; the interpreter faults beyond it."""
    i = Axis(0)
    size = abs(stride) * (count - 1) + 1
    a = np.arange(size, dtype=np.float32)
    e = mul(stride, i) if stride > 0 else sub(count - 1, i)
    out = np.full(LANES, -1, np.float32)

    def build(b):
        em = VectorEmitter(b, (count,), LANES)
        em.place(0, memory(b, 0, a))
        em.place(1, memory(b, 1, out))
        em.bind(0, ramp(0, LANES))
        em.mask = count
        em.store(em.emit(read(0, e)), em.memory(1), linear(i))

    text = execute(build, [a, out])
    assert out.tolist() == [*a[::stride][:count], *[-1] * (LANES - count)]
    assert "gather" not in text


def test_the_interpreter_faults_where_a_mask_is_missing():
    a = np.zeros(5, np.float32)
    with pytest.raises(Fault):
        execute(lambda b: b.load(b.buffers[0], b.const(0), "f32", LANES), [a])


def test_uniform_read_under_a_guard_that_differs_between_lanes():
    """x[t] for lanes below t; no lane is, so x[t], which lies outside, is not touched."""
    t, i = axes(2)
    a = np.array([7.0, 8.0], np.float32)
    out = np.zeros(LANES, np.float32)
    body = apply("where", lt(add(i, 1), sub(2, t)), read(0, t), num(-1.0))
    for at, want in ((0, [7.0] + [-1.0] * 7), (5, [-1.0] * 8)):

        def build(b, at=at):
            em = VectorEmitter(b, (9, LANES), LANES)
            em.place(0, memory(b, 0, a))
            em.bind(0, b.add(b.task, b.const(at)))
            em.bind(1, ramp(0, LANES))
            b.store(em.splat(em.emit(body)), b.buffers[1], b.const(0))

        execute(build, [a, out])
        assert out.tolist() == want


def test_loop_invariant_code_moves_out_up_to_a_binding():
    i, j = axes(2)
    a, c = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([2, 3, 5], np.float32)
    out = np.zeros((3, 4), np.float32)

    def build(b):
        em = VectorEmitter(b, (3, 4), 0)
        for n, x in enumerate((a, c, out)):
            em.place(n, memory(b, n, x))
        with b.loop(0, 3) as rows:
            em.bind(0, rows.var)
            with b.loop(0, 4) as columns:
                em.bind(1, columns.var)
                value = em.emit(apply("mul", read(0, i, j), apply("exp", read(1, i))))
                em.store(value, em.memory(2), address((i, j), (4, 1)))
        with b.if_(b.op("lt", b.task, b.const(0))):
            # A position that is outside: nothing that depends on it may leave the branch.
            em.bind(0, b.const(1000))
            em.bind(1, b.const(0))
            em.store(em.emit(read(0, i, j)), em.memory(2), address((i, j), (4, 1)))

    text = execute(build, [a, c, out])
    np.testing.assert_allclose(out, a * np.exp(c)[:, None], rtol=1e-6)
    inner = text[text.rindex("for ") : text.index("if ")]
    assert "exp" not in inner and text.count("= exp(") == 1


def test_equal_work_is_emitted_once():
    i = Axis(0)
    a = np.arange(8, dtype=np.float32)
    x = apply("exp", read(0, i))
    deep = x
    for _ in range(400):  # deeper than Python's recursion would carry if each level took a few frames
        deep = apply("add", deep, x)

    def build(b):
        em = VectorEmitter(b, (8,), LANES)
        em.place(0, memory(b, 0, a))
        em.bind(0, ramp(0, LANES))
        em.emit(deep)
        em.emit(deep)

    text = execute(build, [a])
    assert text.count("= exp(") == 1 and text.count("= load(") == 1 and text.count("= add(") == 400


@pytest.mark.parametrize("step, offset", [(2, 0), (2, 3), (3, 1), (4, 0)])
@pytest.mark.parametrize("active", [None, 1, 5, "lanes"])
def test_lanes_that_lie_apart_are_stored_as_vectors_under_masks(step, offset, active):
    """What lies between them, behind the last one, and where lanes do not count is left alone."""
    i = Axis(0)
    a = np.arange(1, 2 * LANES + 1, dtype=np.float32)
    out = np.full(offset + step * (2 * LANES - 1) + 1, -1, np.float32)
    want = out.copy()
    for x in range(LANES):
        if active is None or (x % 3 if active == "lanes" else x < active):
            want[offset + step * (LANES + x)] = a[LANES + x]

    def build(b):
        em = VectorEmitter(b, (2 * LANES,), LANES)
        em.place(0, memory(b, 0, a))
        em.place(1, memory(b, 1, out))
        em.bind(0, ramp(b.const(LANES), LANES, LANES))
        on = b.literal([x % 3 != 0 for x in range(LANES)], "i1")
        em.mask = on if active == "lanes" else active
        em.store(em.emit(read(0, i)), em.memory(1), LinearForm(offset, {i: step}))

    text = execute(build, [a, out])
    np.testing.assert_array_equal(out, want)
    assert "scatter" not in text and text.count("store(") <= step


def test_lanes_far_apart_are_scattered():
    i = Axis(0)
    a, out = np.ones(LANES, np.float32), np.zeros(9 * LANES, np.float32)

    def build(b):
        em = VectorEmitter(b, (LANES,), LANES)
        em.place(0, memory(b, 0, a))
        em.place(1, memory(b, 1, out))
        em.bind(0, ramp(0, LANES))
        em.store(em.emit(read(0, i)), em.memory(1), LinearForm(0, {i: 9}))

    assert "scatter" in execute(build, [a, out])
    assert np.flatnonzero(out).tolist() == list(range(0, 9 * LANES, 9))


def test_lanes_are_not_stored_over_each_other():
    i, j = axes(2)
    a = np.zeros(8, np.float32)

    def build(b):
        em = VectorEmitter(b, (8, 8), LANES)
        em.place(0, memory(b, 0, a))
        em.bind(0, 3)
        em.bind(1, ramp(0, LANES))
        em.store(em.emit(read(0, j)), em.memory(0), linear(i))

    with pytest.raises(CompileError):
        execute(build, [a])
