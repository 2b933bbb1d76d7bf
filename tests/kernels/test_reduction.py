"""The reduction pattern against the evaluator: every combiner, row, column, window, whole, split, with epilogues."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.codegen.loopnest.nest_text import show
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Axis, Piece, Reduce, Template, apply, cast, template
from einsmith.kernels.reduction.reduction_pattern import Reduction, ReductionConfig
from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage
from tests.kernels.runner import NARROW, WIDE, check, sampled
from tests.kernels.samples import add, axes, both, kernel_of, le, lt, mul, num, plain, product, read, sub

PATTERN = Reduction()
SIZES = [1, 3, 4, 15, 16, 17, 37, 71]


def over(combiner, extents, *bodies):
    return Reduce(combiner, tuple(extents), bodies)


@sampled(2)
@pytest.mark.thinned(6)
@pytest.mark.parametrize("combiner", ["sum", "prod", "max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("n", SIZES)
def test_rows_and_columns(rng, combiner, n):
    i, r = axes(2)
    check(PATTERN, plain((5,), [(dt.f32, (5, n))], over(combiner, (n,), read(0, i, r))), rng)
    check(PATTERN, plain((n,), [(dt.f32, (5, n))], over(combiner, (5,), read(0, r, i))), rng)


@sampled(2)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("combiner", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("dtype", [dt.i32, dt.f32])
def test_ties_and_nans(rng, combiner, dtype):
    """The first of equal elements is named; NaN wins, the first of several."""
    i, r = axes(2)
    n = 37
    x = rng.integers(0, 3, (9, n)).astype(dtype.numpy)
    x[0] = -7
    if dtype.is_float:
        x[1, [5, 30]] = np.nan
        x[2, :] = np.nan
        x[3, n - 1] = np.nan
        x[4, :] = -np.inf
        x[5, :] = np.inf
        x[6, 3:] = -np.inf
    check(PATTERN, plain((9,), [(dtype, (9, n))], over(combiner, (n,), read(0, i, r, dtype=dtype))), rng, inputs=[x])
    y = np.ascontiguousarray(x.T)
    check(PATTERN, plain((9,), [(dtype, (n, 9))], over(combiner, (n,), read(0, r, i, dtype=dtype))), rng, inputs=[y])


def test_argmax_over_two_axes_is_row_major(rng):
    i, r, s = axes(3)
    for shape in [(3, 4, 5), (3, 1, 17), (2, 16, 2)]:
        x = rng.integers(0, 4, shape).astype(np.float32)
        kernel = plain(shape[:1], [(dt.f32, shape)], over("argmax", shape[1:], read(0, i, r, s)))
        check(PATTERN, kernel, rng, inputs=[x])
        swapped = plain(shape[:1], [(dt.f32, shape)], over("argmax", shape[:0:-1], read(0, i, s, r)))
        check(PATTERN, swapped, rng, inputs=[x])


@sampled(2)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("h, w", [(4, 6), (28, 28), (2, 34), (6, 10)])
@pytest.mark.parametrize("combiner", ["max", "argmax", "sum"])
def test_pooling(rng, h, w, combiner):
    b, y, x, r, s = axes(5)
    body = read(0, b, add(mul(2, y), r), add(mul(2, x), s))
    batch = 3 if h * w < 100 else 1
    shape = (batch, h // 2, w // 2)
    kernel = plain(shape, [(dt.f32, (batch, h, w))], over(combiner, (2, 2), body))
    check(PATTERN, kernel, rng)
    config = ReductionConfig("column", 16, 1, 1, 1)
    assert "gather" not in show(PATTERN.lower(kernel, config, WIDE).launches[0].function)


@sampled(2)
@pytest.mark.thinned(4)
@pytest.mark.parametrize("w", [1, 3, 8, 9, 16, 17, 35])
@pytest.mark.parametrize("combiner", ["max", "sum"])
def test_windows_of_pairs(rng, w, combiner):
    """Every width of a row of results: each number is loaded once, whatever else the bodies read and follow."""
    y, x, r, s = axes(4)
    data = rng.standard_normal((6, 2 * w)).astype(np.float32)
    data[0, 0] = data[3, -1] = np.nan
    whole = read(0, add(mul(2, y), r), add(mul(2, x), s))
    body = apply("mul", apply("add", whole, read(1, y)), read(2, r))
    kernel = plain((3, w), [(dt.f32, (6, 2 * w)), (dt.f32, (3,)), (dt.f32, (2,))], over(combiner, (2, 2), body))
    check(PATTERN, kernel, rng, inputs=[data])
    one = plain((w,), [(dt.f32, (2 * w,))], over(combiner, (2,), read(0, add(mul(2, Axis(0)), Axis(1)))))
    check(PATTERN, one, rng, inputs=[data[1]])
    if w > 1:
        lowered = PATTERN.lower(one, ReductionConfig("column", 4, 1, 1, 1), NARROW).launches[0].function
        assert show(lowered).count("= load(") <= 2 + 2 and "gather" not in show(lowered)


def test_windows_that_are_no_pairs(rng):
    """Places that count otherwise than by the number read there, windows that overlap, and other steps."""
    x, s = axes(2)
    w = 19
    number = cast(add(x, s), dt.f32)
    at = read(0, add(mul(2, x), s))
    for body, size in [
        (apply("mul", at, number), 2 * w),
        (read(0, add(x, s)), w + 1),
        (read(0, add(mul(3, x), s)), 3 * w),
        (read(0, add(mul(4, x), mul(2, s))), 4 * w),
        (read(0, sub(2 * w - 1, add(mul(2, x), s))), 2 * w),
        (apply("add", at, read(0, x)), 2 * w),
    ]:
        check(PATTERN, plain((w,), [(dt.f32, (size,))], over("max", (2,), body)), rng)
    check(PATTERN, plain((w,), [(dt.f32, (2 * w,))], over("sum", (2,), at, apply("mul", at, at))), rng)
    check(PATTERN, plain((w,), [(dt.f32, (2 * w,))], over("argmax", (2,), at)), rng)


@sampled(2)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("shape", [(7, 3, 5), (33, 2, 11), (70, 1, 17), (2, 6, 80)])
def test_whole_and_few_outputs(rng, shape):
    """sum over b and p of x[b,c,p] for each c, and over everything: split into parts too."""
    c, b, p = axes(3)
    few = plain(shape[1:2], [(dt.f32, shape)], over("sum", (shape[0], shape[2]), read(0, b, c, p)))
    assert any(x.splits > 1 for x in PATTERN.configs(few, WIDE)) == (shape[0] * shape[2] >= 64)
    check(PATTERN, few, rng)
    i, j, k = axes(3)
    for combiner in ("sum", "max", "prod"):
        check(PATTERN, plain((), [(dt.f32, shape)], over(combiner, shape, read(0, i, j, k))), rng)


def test_split_columns_and_tuples(rng):
    """Two bodies in one sweep, outputs along the lanes, the long axis cut into parts."""
    i, r = axes(2)
    for n, k in [(3, 150), (17, 67), (1, 300)]:
        bodies = (read(0, r, i), apply("mul", read(0, r, i), read(0, r, i)))
        kernel = plain((n,), [(dt.f32, (k, n))], over("sum", (k,), *bodies))
        assert any(c.splits > 1 for c in PATTERN.configs(kernel, NARROW))
        check(PATTERN, kernel, rng)


def test_mixed_types_in_one_sweep(rng):
    i, r = axes(2)
    bodies = (read(0, i, r), cast(read(0, i, r), dt.f64))
    check(PATTERN, plain((3,), [(dt.f32, (3, 70))], over("sum", (70,), *bodies)), rng)
    count = cast(apply("lt", read(0, i, r), num(0.0)), dt.i64)
    check(PATTERN, plain((3,), [(dt.f32, (3, 70))], over("sum", (70,), count)), rng)
    check(PATTERN, plain((), [(dt.f32, (70,))], over("sum", (70,), cast(lt(read(0, Axis(0)), num(0.0)), dt.i32))), rng)


@sampled(2)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (3, 17, 5), (4, 15, 33), (5, 1, 70), (1, 37, 2)])
def test_products(rng, m, n, k):
    i, j, r = axes(3)
    params = [(dt.f32, (m, k)), (dt.f32, (k, n))]
    check(PATTERN, plain((m, n), params, over("sum", (k,), apply("mul", read(0, i, r), read(1, r, j)))), rng)
    transposed = over("sum", (k,), apply("mul", read(0, r, i), read(1, j, r)))
    check(PATTERN, plain((m, n), [(dt.f32, (k, m)), (dt.f32, (n, k))], transposed), rng)


@sampled(2)
@pytest.mark.parametrize("stride", [1, 2])
def test_padded_convolution(rng, stride):
    """Guarded reads under a reduction: nothing outside x is touched."""
    b, o, y, x, c, r, s = axes(7)
    h = 5
    iy, ix = sub(add(mul(stride, y), r), 1), sub(add(mul(stride, x), s), 1)
    inside = both(le(0, iy), lt(iy, h), le(0, ix), lt(ix, h))
    value = apply("where", inside, read(0, b, c, iy, ix), num(0.0))
    body = over("sum", (2, 3, 3), apply("mul", value, read(1, o, c, r, s)))
    out = (h - 1) // stride + 1
    kernel = plain((2, 3, out, out), [(dt.f32, (2, 2, h, h)), (dt.f32, (3, 2, 3, 3))], body)
    check(
        PATTERN,
        kernel,
        rng,
        configs=[ReductionConfig(m, 4, u, t, 1) for m in ("row", "column") for u, t in ((1, 1), (2, 3))],
    )


@sampled(2)
def test_epilogue(rng):
    """log of a row's sum of exponentials, minus the row's picked logit, both the loss and the sum being stored."""
    for n in (1, 10, 37):
        i, r = axes(2)
        shape = (11,)
        root = template(shape, [(dt.f32, (11, n))], over("sum", (n,), apply("exp", read(0, i, r))))
        log = template(
            shape,
            [(dt.f32, shape), (dt.f32, (11, n)), (dt.i32, shape)],
            apply("sub", apply("log", read(0, i)), read(1, i, read(2, i, dtype=dt.i32))),
        )
        stages = (
            Stage(root, (("buffer", 0),), (2,)),
            Stage(log, (("stage", 0, 0), ("buffer", 0), ("buffer", 1)), (3,)),
        )
        buffers = (
            KernelBuffer(dt.f32, (11, n)),
            KernelBuffer(dt.i32, shape),
            KernelBuffer(dt.f32, shape),
            KernelBuffer(dt.f32, shape),
        )
        labels = rng.integers(0, n, 11).astype(np.int32)
        check(PATTERN, Kernel(stages, buffers), rng, inputs=[None, labels])


def test_epilogue_after_a_split(rng):
    """A mean with a square root behind it: the second launch runs the epilogue, with a buffer read at each output."""
    c, b = axes(2)
    n = 200
    root = template((3,), [(dt.f32, (n, 3))], over("sum", (n,), apply("mul", read(0, b, c), read(0, b, c))))
    after = template(
        (3,),
        [(dt.f32, (3,)), (dt.f32, (3,))],
        apply("mul", apply("sqrt", apply("mul", read(0, c), num(1 / n))), read(1, c)),
    )
    stages = (Stage(root, (("buffer", 0),), (None,)), Stage(after, (("stage", 0, 0), ("buffer", 1)), (2,)))
    buffers = (KernelBuffer(dt.f32, (n, 3)), KernelBuffer(dt.f32, (3,)), KernelBuffer(dt.f32, (3,)))
    kernel = Kernel(stages, buffers)
    assert any(x.splits > 1 for x in PATTERN.configs(kernel, WIDE))
    check(PATTERN, kernel, rng)


@sampled(2)
def test_pieces_with_and_without_a_reduction(rng):
    """Stride phases of different extents, one of which nothing reaches."""
    i, j, r = axes(3)
    for n in (1, 9, 21):
        parts = (
            Piece((0, 0), (3, 1), (4, n), over("sum", (6,), read(0, i, r, j))),
            Piece((1, 0), (3, 1), (4, n), over("sum", (1,), read(0, i, 5, j))),
            Piece((2, 0), (3, 1), (4, n), over("sum", (2, 3), apply("neg", read(0, i, add(r, mul(2, Axis(3))), j)))),
        )
        check(PATTERN, kernel_of(Template((12, n), ((dt.f32, (4, 6, n)),), parts)), rng)
        mixed = (Piece((0,), (2,), (n,), over("sum", (7,), read(0, i, j))), Piece((1,), (2,), (n,), num(0.0)))
        check(PATTERN, kernel_of(Template((2 * n,), ((dt.f32, (n, 7)),), mixed)), rng)


@pytest.mark.parametrize("rows", [1, 5, 37])
def test_sums_of_the_same_rows_take_them_in_blocks(rows, rng):
    """A block of rows goes through all pieces before the next one, where they do not fit the cache as a whole."""
    i, r = Axis(0), Axis(2)
    sums = [Piece((0, n), (1, 1), (rows, 1), over("sum", (19,), read(0, i, add(r, n)))) for n in range(3)]
    none = Piece((0, 3), (1, 1), (rows, 1), num(0.0))
    kernel = kernel_of(Template((rows, 4), ((dt.f32, (rows, 21)),), (*sums, none)))
    check(PATTERN, kernel, rng, [replace(NARROW, l2=8 * 4 * (21 + 4)), replace(WIDE, l2=1)])


def test_empty_boxes(rng):
    i, r = axes(2)
    for combiner in ("sum", "prod"):
        kernel = plain((5,), [(dt.f32, (5, 0))], over(combiner, (0,), read(0, i, r)))
        check(PATTERN, kernel, rng)
    none = plain((0,), [(dt.f32, (0, 4))], over("sum", (4,), read(0, i, r)))
    assert PATTERN.lower(none, PATTERN.configs(none, WIDE)[0], WIDE).launches == []


def test_tasks_do_not_change_a_bit(rng):
    """Parts of the outputs are computed alike whatever the number of tasks."""
    from tests.nest_interp import run

    i, r = axes(2)
    kernel = plain((13,), [(dt.f32, (13, 150))], over("sum", (150,), read(0, i, r)))
    x = rng.standard_normal((13, 150)).astype(np.float32)
    seen = []
    for tasks in (1, 2, 5):
        out = np.zeros(13, np.float32)
        run(PATTERN.lower(kernel, ReductionConfig("row", 16, 2, tasks, 1), WIDE), kernel, [x, out])
        seen.append(out.tobytes())
    assert len(set(seen)) == 1


@sampled(2)
@pytest.mark.thinned(3)
@pytest.mark.parametrize("combiner", ["sum", "max", "argmin"])
@pytest.mark.parametrize("m, n, k", [(7, 21, 5), (13, 33, 1), (3, 70, 18), (6, 16, 4), (1, 17, 6)])
def test_register_tiles(rng, combiner, m, n, k):
    """Rows that share the vectors of the other operand: whole tiles, rows and columns left over, several tasks."""
    i, j, r, s = axes(4)
    params = [(dt.f32, (m, k)), (dt.f32, (k, n))]
    inputs = [rng.integers(-3, 4, shape).astype(np.float32) for _, shape in params]
    kernel = plain((m, n), params, over(combiner, (k,), apply("add", read(0, i, r), read(1, r, j))))
    tiles = [ReductionConfig("column", 4, u, t, 1, rows) for u, t, rows in ((1, 1, 4), (2, 3, 2), (4, 8, 3))]
    check(PATTERN, kernel, rng, inputs=inputs, configs=tiles)
    batched = plain(
        (2, n, m),
        [(dt.f32, (2, k, m)), (dt.f32, (2, n, k))],
        over(combiner, (k,), apply("abs", apply("sub", read(0, i, s, r), read(1, i, j, s)))),
    )
    check(PATTERN, batched, rng, configs=tiles)


def test_register_tiles_with_a_guard_two_sums_and_an_epilogue(rng):
    """Nothing is read past the last row of a tile, in the body or behind it."""
    i, j, r = axes(3)
    m, n, k = 7, 19, 6
    shape = (m, n)
    at = sub(add(i, r), 2)
    near = apply("where", both(le(0, at), lt(at, m)), read(0, at), num(1.0))
    bodies = (apply("mul", near, read(1, r, j)), apply("sub", read(0, i), read(1, r, j)))
    root = template(shape, [(dt.f32, (m,)), (dt.f32, (k, n))], over("sum", (k,), *bodies))
    after = template(
        shape,
        [(dt.f32, shape), (dt.f32, shape), (dt.f32, (m,))],
        apply("add", apply("mul", read(0, i, j), read(1, i, j)), read(2, i)),
    )
    stages = (
        Stage(root, (("buffer", 0), ("buffer", 1)), (None, 3)),
        Stage(after, (("stage", 0, 0), ("stage", 0, 1), ("buffer", 2)), (4,)),
    )
    sizes = ((m,), (k, n), (m,), shape, shape)
    kernel = Kernel(stages, tuple(KernelBuffer(dt.f32, s) for s in sizes))
    configs = [ReductionConfig("column", 4, u, t, 1, rows) for u, t, rows in ((1, 1, 2), (2, 3, 4), (1, 8, 6))]
    check(PATTERN, kernel, rng, configs=configs)


def test_register_tiles_do_not_change_a_bit(rng):
    from tests.nest_interp import run

    i, j, r = axes(3)
    kernel = plain(
        (7, 21), [(dt.f32, (7, 50)), (dt.f32, (50, 21))], over("sum", (50,), apply("sub", read(0, i, r), read(1, r, j)))
    )
    x, y = rng.standard_normal((7, 50)).astype(np.float32), rng.standard_normal((50, 21)).astype(np.float32)
    seen = set()
    for rows, tasks in ((1, 1), (2, 1), (4, 3), (6, 2)):
        out = np.zeros((7, 21), np.float32)
        config = ReductionConfig("column", 4, 2, tasks, 1, rows)
        run(PATTERN.lower(kernel, config, NARROW), kernel, [x, y, out])
        seen.add(out.tobytes())
    assert len(seen) == 1


def test_generic_products_take_a_register_tile():
    """The rows of a tile share the loads of the other operand; without one, nearly every operation has its own."""
    i, j, r = axes(3)
    n = 512
    body = apply("add", read(0, i, r), read(1, r, j))
    for combiner in ("max", "argmax"):
        kernel = plain((n, n), [(dt.f32, (n, n)), (dt.f32, (n, n))], over(combiner, (n,), body))
        configs = PATTERN.configs(kernel, WIDE)
        assert min(configs, key=lambda c: PATTERN.cost(kernel, c, WIDE).seconds).rows > 1
        plain_sum = plain((n,), [(dt.f32, (n, n))], over(combiner, (n,), read(0, r, i)))
        assert all(c.rows == 1 for c in PATTERN.configs(plain_sum, WIDE))


def test_long_columns_are_read_in_wide_pieces():
    i, r = axes(2)
    kernel = plain((1024,), [(dt.f32, (1024, 1024))], over("sum", (1024,), read(0, r, i)))
    configs = [c for c in PATTERN.configs(kernel, WIDE) if c.tasks == 1]
    best = min(configs, key=lambda c: PATTERN.cost(kernel, c, WIDE).seconds)
    assert best.mode == "column" and best.unroll >= 8
    i, r, q = axes(3)
    three = mul(read(0, r, q, i), mul(read(1, r, q, i), read(2, r, q, i)))
    kernel = plain((4096,), [(dt.f32, (28, 64, 4096))] * 3, over("sum", (28, 64), three))
    slow = replace(WIDE, l3=32 << 20, cores=2, memory_bandwidth=1e10, core_bandwidth=1e10)
    best = min(PATTERN.configs(kernel, slow), key=lambda c: PATTERN.cost(kernel, c, slow).rank)
    assert best.mode == "column"


@sampled(2)
@pytest.mark.thinned(3)
@pytest.mark.parametrize("combiner", ["sum", "max", "argmax"])
@pytest.mark.parametrize("m, n, k", [(1, 16, 4), (7, 21, 5), (3, 17, 16), (9, 4, 11)])
def test_transposed_tiles(rng, combiner, m, n, k):
    """Reads along the reduction, results along the lanes: squares of every size, with and without a register tile."""
    i, j, r, s = axes(4)
    x, y = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (n, k)))
    pair = plain(
        (m, n),
        [(dt.f32, (m, k)), (dt.f32, (n, k))],
        over(combiner, (k,), apply("abs", apply("sub", read(0, i, r), read(1, j, r)))),
    )
    rows = plain((n,), [(dt.f32, (n, 3, k))], over(combiner, (3, k), read(0, i, j, r)))
    both_ways = plain(
        (m, n),
        [(dt.f32, (3, n, k)), (dt.f32, (m, k))],
        over(combiner, (3, k), apply("mul", read(0, r, j, s), read(1, i, s))),
    )
    for lanes in (4, 8):
        configs = [ReductionConfig("column", lanes, u, t, 1, h, True) for u, t, h in ((1, 1, 1), (2, 3, 1), (1, 2, 4))]
        check(PATTERN, pair, rng, inputs=[x, y], configs=configs)
        check(PATTERN, rows, rng, configs=configs)
        check(PATTERN, both_ways, rng, configs=configs)


def test_transposed_tiles_with_an_epilogue_and_a_guard(rng):
    i, j = axes(2)
    n, k = 19, 10
    shape = (n,)
    kept = apply("where", lt(j, add(i, 1)), read(0, i, j), num(-1.0))
    root = template(shape, [(dt.f32, (n, k))], over("max", (k,), kept))
    total = template(shape, [(dt.f32, shape), (dt.f32, (n, k))], apply("mul", apply("exp", read(0, i)), read(1, i, 3)))
    stages = (Stage(root, (("buffer", 0),), (1,)), Stage(total, (("stage", 0, 0), ("buffer", 0)), (2,)))
    kernel = Kernel(stages, (KernelBuffer(dt.f32, (n, k)), KernelBuffer(dt.f32, shape), KernelBuffer(dt.f32, shape)))
    configs = [ReductionConfig("column", lanes, 1, t, 1, 1, True) for lanes in (4, 16) for t in (1, 2)]
    check(PATTERN, kernel, rng, configs=configs)


def test_differences_of_rows_take_transposed_tiles():
    """No operand of |x[i,k] - y[j,k]| is contiguous along the results: one is transposed in registers."""
    i, j, r = axes(3)
    target = Target(vector_bytes=64, vector_registers=32)
    body = apply("abs", apply("sub", read(0, i, r), read(1, j, r)))
    kernel = plain((256, 256), [(dt.f32, (256, 64)), (dt.f32, (256, 64))], over("sum", (64,), body))
    configs = PATTERN.configs(kernel, target)
    best = min(configs, key=lambda c: PATTERN.cost(kernel, c, target).seconds)
    assert best.turn and best.rows > 1
    assert "gather" not in show(PATTERN.lower(kernel, best, target).launches[0].function)


def test_many_rows_from_beyond_l2_are_read_one_after_the_other():
    """Of two products of matrices and a vector, a transposed tile would read 2 x 16 rows at once, too many streams."""
    i, k = axes(2)
    body = tuple(mul(read(n, i, k), read(2, k)) for n in range(2))
    matrix = (dt.f32, (1536, 576))
    kernel = plain((1536,), [matrix, matrix, (dt.f32, (576,))], over("sum", (576,), *body))
    target = replace(WIDE, l2=1 << 20, cores=1)
    row, turn = ReductionConfig("row", 16, 1, 1, 1), ReductionConfig("column", 16, 1, 1, 1, 1, True)
    assert PATTERN.cost(kernel, turn, target).seconds > 1.5 * PATTERN.cost(kernel, row, target).seconds


@sampled(2)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("combiner", ["sum", "max"])
@pytest.mark.parametrize("n", [1, 4, 17])
def test_diagonals_are_read_along_the_outputs(rng, combiner, n):
    """Sums over the diagonals of a matrix, by either variable: the guard gives the range of the other one."""
    i, h, r, s = axes(4)
    configs = [
        ReductionConfig("column", 16, 1, 1, 1),
        ReductionConfig("row", 4, 1, 3, 1),
        ReductionConfig("column", 4, 2, 2, 1),
    ]
    rest = num(0.0 if combiner == "sum" else -np.inf)
    for row in (sub(s, sub(i, n - 1)), add(sub(s, mul(2, i)), n)):
        inside = both(le(0, row), lt(row, n))
        body = apply("where", inside, read(0, r, h, row, s), rest)
        kernel = plain((2 * n - 1, 3), [(dt.f32, (2, 3, n, n))], over(combiner, (2, n), body))
        check(PATTERN, kernel, rng, configs=configs)
    inside = both(le(i, add(s, n - 1)), le(s, i), le(1, s))
    upper = apply("where", inside, read(0, r, h, sub(s, sub(i, n - 1)), s), rest)
    kernel = plain((2 * n - 1, 3), [(dt.f32, (2, 3, n, n))], over(combiner, (2, n), upper))
    check(PATTERN, kernel, rng, configs=configs)
    if n == 17:
        text = show(PATTERN.lower(kernel, ReductionConfig("column", 16, 1, 1, 1), WIDE).launches[0].function)
        assert "gather" not in text


def test_a_mask_is_read_within_its_bounds_along_diagonals(rng):
    """The window's condition keeps the mask's reads inside: the other variable has points beyond the mask."""
    i, h, r = axes(3)
    window = both(le(i, add(r, 5)), le(r, i), apply("not", read(1, r, i, dtype=dt.bool_)))
    body = apply("where", window, read(0, h, i, r), num(0.0))
    kernel = plain((43, 3), [(dt.f32, (3, 43, 64)), (dt.bool_, (64, 43))], over("sum", (64,), body))
    check(PATTERN, kernel, rng, configs=[ReductionConfig("column", 16, 2, 1, 1), ReductionConfig("row", 4, 1, 3, 1)])


def test_no_more_vectors_at_once_than_there_are():
    i, r = axes(2)
    kernel = plain((3,), [(dt.f32, (3, 17))], over("sum", (17,), read(0, i, r)))
    configs = PATTERN.configs(kernel, Target(vector_bytes=64, cores=1))
    modes = {(c.mode, c.unroll) for c in configs if c.lanes == 16}
    assert modes == {("row", 1), ("row", 2), ("column", 1)}


def test_strips_of_results_that_share_lines():
    """Rows of a register tile change within its vectors: columns of results are written one after the other."""

    def seconds(n: int, rows: int) -> float:
        config = ReductionConfig("column", 16, 4, 1, 1, rows)
        return PATTERN.cost(product(8192, n, 17), config, replace(WIDE, l2=1 << 20)).seconds

    assert seconds(4098, 4) / seconds(4098, 1) > 1.2 * seconds(4096, 4) / seconds(4096, 1)
