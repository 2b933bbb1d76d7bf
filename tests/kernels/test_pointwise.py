"""The pointwise pattern against the evaluator, at awkward sizes, every configuration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.codegen.loopnest.nest_text import show
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Axis, Const, Piece, Read, Template, apply, cast, template
from einsmith.kernels import autoconfig
from einsmith.kernels.emit import boxes
from einsmith.kernels.pattern import Lowered
from einsmith.kernels.pointwise import Pointwise, PointwiseConfig, choose_vector_axis
from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage
from einsmith.schedule.layout.dimension_orders import strides
from tests import nest_interp
from tests.kernels.runner import NARROW, WIDE, check, random_array, sampled
from tests.kernels.samples import add, axes, both, div, kernel_of, le, lt, mod, mul, num, plain, read, sub

PATTERN = Pointwise()
SIZES = [1, 3, 4, 15, 16, 17, 37, 64, 131]


def relu(x):
    return apply("max", x, num(0.0))


@sampled(2)
@pytest.mark.parametrize("n", SIZES)
def test_one_axis(rng, n):
    i = Axis(0)
    check(PATTERN, plain((n,), [(dt.f32, (n,)), (dt.f32, (n,))], apply("mul", relu(read(0, i)), read(1, i))), rng)


def test_scalars(rng):
    check(PATTERN, plain((), [(dt.f32, ())], apply("exp", read(0))), rng)
    check(PATTERN, plain((1, 1), [(dt.f32, (1, 1))], apply("neg", read(0, Axis(0), Axis(1)))), rng)


def test_contiguous_axes_are_merged():
    b, c, h, w = axes(4)
    shape = (2, 3, 4, 5)
    (box,) = boxes.boxes(plain(shape, [(dt.f32, shape)], relu(read(0, b, c, h, w))))
    assert box.extents == (120,)
    biased = apply("add", read(0, b, c, h, w), read(1, c))
    (box,) = boxes.boxes(plain(shape, [(dt.f32, shape), (dt.f32, (3,))], biased))
    assert box.extents == (2, 3, 20)
    (box,) = boxes.boxes(plain((1, 3, 1, 5), [(dt.f32, (3, 5))], read(0, c, w)))
    assert box.extents == (15,)


@sampled(2)
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (3, 1, 17, 2), (1, 4, 3, 16)])
def test_broadcast(rng, shape):
    b, c, h, w = axes(4)
    body = apply("add", apply("mul", read(0, b, c, h, w), read(1, c)), read(2, h, w))
    params = [(dt.f32, shape), (dt.f32, shape[1:2]), (dt.f32, shape[2:])]
    check(PATTERN, plain(shape, params, body), rng)


@sampled(2)
@pytest.mark.parametrize("n", [1, 5, 16, 33])
def test_transpose_and_reverse(rng, n):
    i, j = axes(2)
    check(PATTERN, plain((n, 7), [(dt.f32, (7, n))], read(0, j, i)), rng)
    check(PATTERN, plain((3, n), [(dt.f32, (3, n))], read(0, i, sub(n - 1, j))), rng)


@sampled(2)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("stride", [2, 3, 4, 5])
@pytest.mark.parametrize("n", [1, 14, 16, 19])
def test_strided_reads(rng, stride, n):
    i, j = axes(2)
    for k in (0, stride - 1):
        body = read(0, i, add(mul(stride, j), k))
        check(PATTERN, plain((3, n), [(dt.f32, (3, stride * n))], body), rng)


def test_even_and_odd_share_their_loads():
    j = Axis(0)
    body = apply("max", read(0, mul(2, j)), read(0, add(mul(2, j), 1)))
    kernel = plain((64,), [(dt.f32, (128,))], body)
    text = show(PATTERN.lower(kernel, PointwiseConfig(4, 1, 1), NARROW).launches[0].function)
    assert text.count("= load(") == 2 and "gather" not in text


@sampled(2)
@pytest.mark.parametrize("n", [3, 10, 23, 31])
def test_rows_that_may_lie_over_an_operand_are_stored_without_masks(rng, n):
    """A masked store delays the loads of the row after it, where it overwrites an operand."""
    i, j = axes(2)
    for shape, x in (((5, n), read(0, i, j)), ((n, 5), read(0, j, i))):
        kernel = plain((5, n), [(dt.f32, shape), (dt.f32, (5,))], apply("mul", x, read(1, i)))
        text = show(PATTERN.lower(kernel, PointwiseConfig(16, 1, 1), WIDE).launches[0].function)
        is_masked = [x.count(",") == 3 for x in text.splitlines() if "store(" in x]  # address, value, mask
        assert any(is_masked) == (shape != (5, n))
        check(PATTERN, kernel, rng)


@sampled(2)
@pytest.mark.parametrize("h, w", [(4, 6), (28, 28), (6, 34), (2, 2)])
def test_max_pool_backward_needs_no_gather(rng, h, w):
    b, y, x = axes(3)
    params = [(dt.i32, (3, h // 2, w // 2)), (dt.f32, (3, h // 2, w // 2))]
    at = add(mul(mod(y, 2), 2), mod(x, 2))
    picked = apply("eq", read(0, b, div(y, 2), div(x, 2), dtype=dt.i32), at)
    body = apply("where", picked, read(1, b, div(y, 2), div(x, 2)), num(0.0))
    kernel = plain((3, h, w), params, body)
    arg = rng.integers(0, 4, params[0][1]).astype(np.int32)
    check(PATTERN, kernel, rng, inputs=[arg])
    text = show(PATTERN.lower(kernel, PointwiseConfig(16, 1, 1), WIDE).launches[0].function)
    assert "gather" not in text


@sampled(2)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 40])
def test_guarded_reads_stay_in_bounds(rng, n):
    """A halo of two on both sides: what lies outside is not touched (the interpreter would fault)."""
    i, j = axes(2)
    inside = both(le(2, j), lt(j, n + 2))
    body = apply("where", inside, read(0, i, sub(j, 2)), num(-1.0))
    check(PATTERN, plain((3, n + 4), [(dt.f32, (3, n))], body), rng)
    rows = apply("where", both(le(1, i), lt(i, 4), inside), read(0, sub(i, 1), sub(j, 2)), num(0.0))
    check(PATTERN, plain((5, n + 4), [(dt.f32, (3, n))], rows), rng)


def test_a_chain_of_conditions_reads_once(rng):
    """What both sides of a condition read is not read at each again: code doubles with each of them otherwise."""
    i = Axis(0)

    def kernel(count):
        x = read(0, sub(i, 2))
        for n in range(count):
            c, y = read(1, i), num(float(n))
            x = apply("where", lt(y, c), num(0.0), apply("where", apply("eq", c, y), apply("mul", x, num(0.5)), x))
        return plain((40,), [(dt.f32, (37,)), (dt.f32, (40,))], apply("where", both(le(2, i), lt(i, 39)), x, num(1.0)))

    def length(count):
        of = kernel(count)
        return sum(len(show(x.function)) for x in PATTERN.lower(of, PATTERN.configs(of, NARROW)[0], NARROW).launches)

    assert length(8) - length(4) < 1.2 * (length(4) - length(0))
    check(PATTERN, kernel(3), rng)


def test_concatenation_by_where(rng):
    i = Axis(0)
    body = apply("where", lt(i, 13), read(0, i), read(1, sub(i, 13)))
    check(PATTERN, plain((32,), [(dt.f32, (13,)), (dt.f32, (19,))], body), rng)


def test_guard_on_strided_and_computed_reads(rng):
    i = Axis(0)
    body = apply("where", lt(i, 11), read(0, mul(2, i)), num(5.0))
    check(PATTERN, plain((23,), [(dt.f32, (21,))], body), rng)
    label = read(1, i, dtype=dt.i32)
    ok = both(le(0, label), lt(label, 7))
    picked = apply("where", ok, read(0, label), num(0.0))
    params = [(dt.f32, (7,)), (dt.i32, (37,))]
    check(PATTERN, plain((37,), params, picked), rng, inputs=[None, rng.integers(-9, 20, 37).astype(np.int32)])


def test_divisors_of_zero_do_not_trap(rng):
    i = Axis(0)
    y = read(1, i, dtype=dt.i32)
    body = apply("where", apply("ne", y, Const(0, dt.i32)), apply("floordiv", read(0, i, dtype=dt.i32), y), y)
    kernel = plain((37,), [(dt.i32, (37,)), (dt.i32, (37,))], body)
    for native in (False, True):
        check(PATTERN, kernel, rng, native=native)


def test_gather_by_label(rng):
    i, j = axes(2)
    for dtype in (dt.i32, dt.i64):
        body = read(0, read(1, i, dtype=dtype), j)
        labels = rng.integers(0, 5, 9).astype(dtype.numpy)
        check(PATTERN, plain((9, 17), [(dt.f32, (5, 17)), (dtype, (9,))], body), rng, inputs=[None, labels])
        swapped = read(0, i, read(1, j, dtype=dtype))
        check(PATTERN, plain((4, 9), [(dt.f32, (4, 5)), (dtype, (9,))], swapped), rng, inputs=[None, labels])


def test_axes_as_values_and_types(rng):
    i, j = axes(2)
    number = cast(add(mul(i, 19), sub(j, 3)), dt.f32)
    check(PATTERN, plain((5, 19), [(dt.f32, (19,))], apply("mul", number, read(0, j))), rng)
    check(PATTERN, plain((5, 19), [], add(div(j, 3), mod(mul(5, j), 7))), rng)
    wide = apply("mul", cast(read(0, i, j), dt.f64), read(1, j, dtype=dt.f64))
    check(PATTERN, plain((5, 19), [(dt.f32, (5, 19)), (dt.f64, (19,))], wide), rng)
    flag = apply("lt", read(0, i, j), num(0.0))
    check(PATTERN, plain((5, 19), [(dt.f32, (5, 19))], flag), rng)
    chosen = apply("where", read(0, j, dtype=dt.bool_), cast(i, dt.f32), num(2.0))
    check(PATTERN, plain((5, 19), [(dt.bool_, (19,))], chosen), rng)


def test_pieces(rng):
    """out[2*i] = x[i], out[2*i + 1] = -y[i]: stride phases, and an interior with a border."""
    i = Axis(0)
    for n in (1, 8, 21):
        parts = (
            Piece((0,), (2,), (n,), read(0, i)),
            Piece((1,), (2,), (n,), apply("neg", read(1, i))),
        )
        check(PATTERN, kernel_of(Template((2 * n,), ((dt.f32, (n,)), (dt.f32, (n,))), parts)), rng)


@pytest.mark.parametrize(("tasks", "rows"), [(2, 4), (4, 2), (8, 1)])
def test_pieces_with_the_same_rows_share_tasks(tasks, rows, rng):
    """Each task has some rows of both pieces, so that cores keep to rows as they do in kernels of one piece."""
    i, j = axes(2)
    pieces = (
        Piece((0, 0), (1, 1), (8, 5), read(0, i, j)),
        Piece((0, 5), (1, 1), (8, 19), apply("neg", read(1, i, j))),
    )
    kernel = kernel_of(Template((8, 24), ((dt.f32, (8, 5)), (dt.f32, (8, 19))), pieces))
    x, y = (random_array(rng, b) for b in kernel.buffers[:2])
    (launch,) = PATTERN.lower(kernel, PointwiseConfig(4, 1, tasks), NARROW).launches
    assert launch.tasks == tasks
    out = np.full((8, 24), 9.0, np.float32)
    nest_interp.run(Lowered([replace(launch, tasks=1)]), kernel, [x, y, out])
    np.testing.assert_array_equal(out[:rows], np.concatenate([x, -y], 1)[:rows])
    assert (out[rows:] == 9).all()


@pytest.mark.parametrize("rows", [1, 5, 37])
def test_pieces_that_read_the_same_rows_take_them_in_blocks(rows, rng):
    """A block of rows goes through all pieces before the next one, where they do not fit the cache as a whole."""
    i, j = axes(2)
    pieces = tuple(Piece((0, 19 * n), (1, 1), (rows, 19), apply("mul", read(0, i, j), read(1, i, n))) for n in range(3))
    kernel = kernel_of(Template((rows, 57), ((dt.f32, (rows, 19)), (dt.f32, (rows, 3))), pieces))
    small = replace(NARROW, l2=8 * 4 * (57 + 19 + 3))  # of which a block takes a quarter: two rows
    check(PATTERN, kernel, rng, [small, replace(small, l2=1)])
    (launch,) = PATTERN.lower(kernel, PointwiseConfig(4, 1, 1), small).launches
    assert launch.tasks == {1: 1, 5: 2, 37: 13}[rows]  # equal runs of whole rows


def test_epilogue_on_pieces_and_several_results(rng):
    """Two stages after a root of two pieces; the first reads a bias at each position, both are stored."""
    n = 19
    i, j = axes(2)
    root = Template((4, n), ((dt.f32, (2, n)),), (
        Piece((0, 0), (2, 1), (2, n), read(0, i, j)),
        Piece((1, 0), (2, 1), (2, n), num(3.0)),
    ))  # fmt: skip
    first = template((4, n), ((dt.f32, (4, n)), (dt.f32, (4,))), apply("mul", read(0, i, j), read(1, i)))
    second = template((4, n), ((dt.f32, (4, n)), (dt.f32, (4, n))), apply("add", read(0, i, j), read(1, i, j)))
    stages = (
        Stage(root, (("buffer", 0),), (None,)),
        Stage(first, (("stage", 0, 0), ("buffer", 1)), (2,)),
        Stage(second, (("stage", 0, 0), ("stage", 1, 0)), (3,)),
    )
    buffers = (
        KernelBuffer(dt.f32, (2, n)),
        KernelBuffer(dt.f32, (4,)),
        KernelBuffer(dt.f32, (4, n)),
        KernelBuffer(dt.f32, (4, n)),
    )
    check(PATTERN, Kernel(stages, buffers), rng)


def test_in_place_update(rng):
    """p and v are each read and written: v' = 0.9 v + g; p' = p - lr v'."""
    n = 53
    i = Axis(0)
    param = (dt.f32, (n,))
    one = template((n,), (param, param), apply("add", apply("mul", num(0.9), read(0, i)), read(1, i)))
    two = template((n,), (param, (dt.f32, ()), param), apply("sub", read(0, i), apply("mul", read(1), read(2, i))))
    stages = (
        Stage(one, (("buffer", 0), ("buffer", 1)), (0,)),
        Stage(two, (("buffer", 2), ("buffer", 3), ("stage", 0, 0)), (2,)),
    )
    buffers = (
        KernelBuffer(dt.f32, (n,)),
        KernelBuffer(dt.f32, (n,)),
        KernelBuffer(dt.f32, (n,)),
        KernelBuffer(dt.f32, ()),
    )
    check(PATTERN, Kernel(stages, buffers), rng)


def test_invariant_work_leaves_the_inner_loop():
    i, j = axes(2)
    body = apply("mul", read(0, i, j), apply("exp", read(1, i)))
    kernel = plain((6, 64), [(dt.f32, (6, 64)), (dt.f32, (6,))], body)
    text = show(PATTERN.lower(kernel, PointwiseConfig(16, 1, 1), WIDE).launches[0].function)
    inner = text[text.rindex("for ") :]
    assert "exp" in text and "exp" not in inner


def test_tasks_divide_the_work():
    i, j = axes(2)
    kernel = plain((2, 4096), [(dt.f32, (4096, 2))], read(0, j, i))
    (launch,) = PATTERN.lower(kernel, PointwiseConfig(16, 2, 8), WIDE).launches
    assert 4 <= launch.tasks <= 8
    (box,) = boxes.boxes(kernel)
    assert choose_vector_axis(box, 16) == 1


def test_launches_of_one_task_wake_no_worker():
    """A launch of one task runs on the caller alone, whatever it is made of."""
    i = Axis(0)
    parts = (Piece((0,), (2,), (9,), read(0, i)), Piece((1,), (2,), (8,), apply("neg", read(0, i))))
    kernel = kernel_of(Template((17,), ((dt.f32, (9,)),), parts))
    assert [x.tasks for x in PATTERN.lower(kernel, PointwiseConfig(16, 1, 1), WIDE).launches] == [1]
    assert [x.tasks for x in PATTERN.lower(kernel, PointwiseConfig(16, 1, 8), WIDE).launches] == [2]


def test_empty_output():
    kernel = plain((0, 4), [(dt.f32, (0, 4))], Read(0, tuple(axes(2)), dt.f32))
    assert PATTERN.lower(kernel, PATTERN.configs(kernel, WIDE)[0], WIDE).launches == []


@sampled(2)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("m, n", [(1, 16), (5, 7), (16, 16), (17, 33), (4, 37), (40, 3)])
def test_transposed_tiles(rng, m, n):
    """Square tiles transposed in registers: whole ones, and what is left over on either side."""
    i, j, k = axes(3)
    plain_turn = plain((m, n), [(dt.f32, (n, m))], read(0, j, i))
    two = plain(
        (m, 3, n),
        [(dt.f32, (3, n, m)), (dt.i32, (n, 3, m)), (dt.f32, (n,))],
        apply("mul", apply("add", read(0, j, k, i), cast(read(1, k, j, i, dtype=dt.i32), dt.f32)), read(2, k)),
    )
    for kernel in (plain_turn, two):
        configs = [PointwiseConfig(n, 1, t, True) for n in (4, 16) for t in (1, 3)]
        check(PATTERN, kernel, rng, configs=configs)


def test_transposed_tiles_with_guards_strides_and_f64(rng):
    """A guarded read is not transposed; a read with an offset and a stride along the rows is."""
    i, j = axes(2)
    m, n = 19, 21
    kept = apply("where", both(le(1, i), lt(i, m)), read(1, j, sub(i, 1)), num(2.0))
    body = apply("add", read(0, add(mul(2, j), 1), add(i, 2)), kept)
    kernel = plain((m, n), [(dt.f32, (2 * n, m + 2)), (dt.f32, (n, m - 1))], body)
    check(PATTERN, kernel, rng, configs=[PointwiseConfig(w, 1, t, True) for w in (4, 8) for t in (1, 5)])
    wide = plain((m, n), [(dt.f64, (n, m))], apply("neg", read(0, j, i, dtype=dt.f64)))
    assert any(c.turn for c in PATTERN.configs(wide, NARROW))
    check(PATTERN, wide, rng)


def test_transposes_happen_in_registers():
    i, j, k = axes(3)
    target = Target(vector_bytes=64, vector_registers=32)
    sum_of_two = apply("add", read(0, k, i, j), read(1, i, j, k))
    for kernel in (
        plain((64, 48), [(dt.f32, (48, 64))], read(0, j, i)),
        plain((3, 64, 48), [(dt.f32, (48, 3, 64)), (dt.f32, (3, 64, 48))], sum_of_two),
    ):
        best = min(PATTERN.configs(kernel, target), key=lambda c: PATTERN.cost(kernel, c, target).seconds)
        assert best.turn
        assert "gather" not in show(PATTERN.lower(kernel, best, WIDE).launches[0].function)
    straight = plain((64, 48), [(dt.f32, (64, 48))], read(0, i, j))
    assert not any(c.turn for c in PATTERN.configs(straight, target))


@pytest.mark.parametrize("target", [WIDE, NARROW, replace(WIDE, cores=4)], ids=["wide", "narrow", "four"])
def test_no_order_of_dimensions_costs_less_than_the_floor(rng, target):
    i, j, k = axes(3)
    shape, params = (6, 40, 16), [(dt.f32, (6, 40, 16)), (dt.f32, (6, 16)), (dt.f32, (40, 6)), (dt.f32, (16, 40, 6))]
    sums = apply("add", mul(read(0, i, j, k), read(1, i, k)), read(2, j, i))
    bodies = [sums, apply("tanh", sums), relu(add(read(3, k, j, i), read(0, i, j, k))), read(1, i, k)]
    for kernel in (plain(shape, params, body) for body in bodies):
        floor, costs = PATTERN.floor(kernel, target), []
        for _ in range(30):
            orders = [tuple(map(int, rng.permutation(len(b.shape)))) for b in kernel.buffers]
            laid = zip(kernel.buffers, orders, strict=True)
            buffers = tuple(KernelBuffer(b.dtype, b.shape, strides=strides(b.shape, o)) for b, o in laid)
            moved = Kernel(kernel.stages, buffers)
            assert PATTERN.floor(moved, target) == floor
            costs += [PATTERN.cost(moved, c, target).seconds for c in PATTERN.configs(moved, target)]
        assert 0 < floor <= min(costs)
        assert autoconfig.floor(kernel, target) <= min(costs)
