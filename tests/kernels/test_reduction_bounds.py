"""Reductions whose terms a guard leaves between two ends of an axis: every configuration, and how much is walked."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.ir.functions import identity
from einsmith.ir.nodes import apply, cast
from einsmith.kernels import autoconfig
from einsmith.kernels.reduction.axes import MIN_BOUNDED_POINTS, boxes_of, choose_column_axis, find_bounds
from einsmith.kernels.reduction.reduction_pattern import Reduction
from tests import nest_interp
from tests.kernels.runner import WIDE, check, poisoned, random_array, sampled
from tests.kernels.samples import add, axes, both, le, lt, mul, num, over, plain, read, sub

PATTERN = Reduction()
SIZES = [MIN_BOUNDED_POINTS - 1, MIN_BOUNDED_POINTS, MIN_BOUNDED_POINTS + 1, 2 * MIN_BOUNDED_POINTS + 7]


def word(slot, *index):
    return read(slot, *index, dtype=dt.i32)


def guarded(combiner, guard, x):
    return apply("where", guard, x, num(identity(combiner, x.dtype)))


def sparse(combiner, rows, n):
    """Row r of a sparse matrix: what is stored from row[r] up to row[r + 1]."""
    r, k = axes(2)
    guard = both(le(word(0, r), k), lt(k, word(0, add(r, 1))))
    body = guarded(combiner, guard, mul(read(1, k), read(2, k)))
    return plain((rows,), [(dt.i32, (rows + 1,)), (dt.f32, (n,)), (dt.f32, (n,))], over(combiner, (n,), body))


def ends(rng, rows, n, how):
    if how == "sorted":
        return np.sort(np.concatenate([[0, 0], rng.integers(0, n + 1, rows - 2), [n]])).astype(np.int32)
    return rng.integers(-5, n + 6, rows + 1).astype(np.int32)  # some rows are empty, and some reach beyond


@sampled(3)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("how", ["sorted", "anywhere"])
@pytest.mark.parametrize("n", SIZES)
def test_rows_between_ends_from_data(n, how, rng):
    check(PATTERN, sparse("sum", 7, n), rng, inputs=[ends(rng, 7, n, how)])
    check(PATTERN, sparse("sum", 7, n), rng, inputs=[ends(rng, 7, n, how)], native=True)


@pytest.mark.parametrize("combiner", ["prod", "max", "min"])
def test_other_combiners(combiner, rng):
    check(PATTERN, sparse(combiner, 6, 71), rng, inputs=[ends(rng, 6, 71, "anywhere")])


@sampled(3)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("width", [0, 5])
@pytest.mark.parametrize("combiner", ["argmax", "argmin"])
def test_positions(combiner, width, rng):
    """The first of all places where a row has no term, or none that is better than the identity."""
    r, *d, k = axes(3 if width else 2)
    guard = both(le(word(0, r), k), lt(k, word(0, add(r, 1))))
    shape = (width,) * bool(width)
    params = [(dt.i32, (7,)), (dt.f32, (71, *shape))]
    kernel = plain((6, *shape), params, over(combiner, (71,), guarded(combiner, guard, read(1, k, *d))))
    x = rng.integers(-2, 3, (71, *shape)).astype(np.float32)
    x[20:40] = identity(combiner, dt.f32)
    x[50] = np.nan
    for rows in (ends(rng, 6, 71, "anywhere"), np.array([0, 3, 3, 25, 35, 48, 70], np.int32)):
        check(PATTERN, kernel, rng, inputs=[rows, x])
        check(PATTERN, kernel, rng, inputs=[rows, x], native=True)


@sampled(3)
@pytest.mark.parametrize("width", [1, 5, 17])
def test_several_columns(width, rng):
    """Lanes along the columns, for which a row's ends are the same."""
    r, d, k = axes(3)
    guard = both(le(word(0, r), k), lt(k, word(0, add(r, 1))))
    body = guarded("sum", guard, mul(read(1, k), read(2, k, d)))
    params = [(dt.i32, (6,)), (dt.f32, (71,)), (dt.f32, (71, width))]
    kernel = plain((5, width), params, over("sum", (71,), body))
    check(PATTERN, kernel, rng, inputs=[ends(rng, 5, 71, "anywhere")])


def test_ends_beyond_32_bits(rng):
    """Elements of int64, and of int32 that differ from a place by more than the type holds."""
    r, k = axes(2)
    place = cast(k, dt.i64)
    guard = both(le(read(0, r, dtype=dt.i64), place), lt(place, read(0, add(r, 1), dtype=dt.i64)))
    kernel = plain((4,), [(dt.i64, (5,)), (dt.f32, (71,))], over("sum", (71,), guarded("sum", guard, read(1, k))))
    check(PATTERN, kernel, rng, inputs=[np.array([-(2**40), 5, 2**32, 2**40 + 3, 2**40], np.int64)])
    guard = both(le(word(0, r), add(k, 5)), lt(word(1, r), sub(k, 5)))
    params = [(dt.i32, (4,)), (dt.i32, (4,)), (dt.f32, (71,))]
    kernel = plain((4,), params, over("sum", (71,), guarded("sum", guard, read(2, k))))
    low, high = -(2**31), 2**31 - 1
    check(PATTERN, kernel, rng, inputs=[np.array(x, np.int32) for x in ([low, low, high, 40], [low, high, low, 9])])


def test_places_beyond_32_bits(rng):
    """A row of 70,000 whose end is 61681 times its number."""
    r, k = axes(2)
    n, wide = 71, cast(r, dt.i64)
    end = apply("mul", wide, num(61681, dt.i64))
    kernel = plain((70_000,), [(dt.f32, (n,))], over("sum", (n,), guarded("sum", lt(cast(k, dt.i64), end), read(0, k))))
    check(PATTERN, kernel, 0, native=True)


def test_ends_read_under_another_guard(rng):
    """row[r - 1] is there only where 1 <= r; memory before a buffer is not to be read."""
    r, k = axes(2)
    inner = guarded("sum", both(le(word(0, sub(r, 1)), k), lt(k, word(0, r))), read(1, k))
    body = guarded("sum", le(num(1, dt.i32), r), inner)
    kernel = plain((7,), [(dt.i32, (7,)), (dt.f32, (71,))], over("sum", (71,), body))
    check(PATTERN, kernel, rng, inputs=[ends(rng, 6, 71, "sorted")])
    check(PATTERN, kernel, rng, inputs=[ends(rng, 6, 71, "sorted")], native=True)


def test_counts_of_all_rows(rng):
    """The ends depend on a reduction axis outside."""
    r, k = axes(2)
    guard = both(le(word(0, r), k), lt(k, word(0, add(r, 1))))
    body = apply("where", both(guard, lt(read(1, k), num(0.0))), cast(num(1), dt.i32), cast(num(0), dt.i32))
    kernel = plain((), [(dt.i32, (8,)), (dt.f32, (71,))], over("sum", (7, 71), body))
    check(PATTERN, kernel, rng, inputs=[ends(rng, 7, 71, "sorted")])


@sampled(3)
@pytest.mark.thinned(3)
@pytest.mark.parametrize("guard", [
    lambda i, k: le(k, i), lambda i, k: lt(i, k), lambda i, k: both(le(i, k), lt(k, add(i, 9))),
    lambda i, k: both(le(sub(i, 4), k), lt(read(1, k), num(0.5))),
], ids=["up to", "after", "band", "and another"])  # fmt: skip
@pytest.mark.parametrize("transposed", [False, True])
def test_ends_from_axes(guard, transposed, rng):
    i, k = axes(2)
    m, n = (n := 71), 45
    at = (k, i) if transposed else (i, k)
    body = guarded("sum", guard(i, k), mul(read(0, *at), read(1, k)))
    kernel = plain((n,), [(dt.f32, (m, n) if transposed else (n, m)), (dt.f32, (m,))], over("sum", (m,), body))
    check(PATTERN, kernel, rng)


def loads(kernel, config, arrays) -> int:
    """How many vectors and elements a configuration reads of buffer 1."""
    count = 0

    def observe(op, *_):
        nonlocal count
        count += op.name == "load"

    nest_interp.run(PATTERN.lower(kernel, config, WIDE), kernel, arrays, observe=observe)
    return count


def one_guard_in_another(rows, n):
    r, k = axes(2)
    body = guarded("sum", lt(k, word(0, add(r, 1))), mul(read(1, k), read(2, k)))
    body = guarded("sum", le(word(0, r), k), body)
    return plain((rows,), [(dt.i32, (rows + 1,)), (dt.f32, (n,)), (dt.f32, (n,))], over("sum", (n,), body))


@pytest.mark.parametrize("nested", [False, True])
def test_groups_without_terms_are_left_out(nested, rng):
    """Rows of a twentieth of all elements: a tenth of the loads, what begins and ends with a group being read too."""
    n = 40 * MIN_BOUNDED_POINTS
    kernel = one_guard_in_another(20, n) if nested else sparse("sum", 20, n)
    assert find_bounds(boxes_of(kernel)[0], 1) != ((), ())
    base = [random_array(rng, b) for b in kernel.buffers]
    config = PATTERN.best(kernel, WIDE)
    counts = []
    for row in (np.linspace(0, n, 21).astype(np.int32), np.where(np.arange(21) % 2, n, 0).astype(np.int32)):
        base[0] = row
        counts.append(loads(kernel, config, poisoned(kernel, base, {})))
    assert counts[0] < 0.25 * counts[1]


def segments_of_places(places, segments, width):
    """Few segments, each with a row: places have those of their own from low[i] up to high[i]."""
    i, k, u = axes(3)
    guard = both(le(word(0, i), k), lt(k, word(1, i)))
    body = guarded("sum", guard, mul(read(2, k, u), read(3, i, u)))
    params = [(dt.i32, (places,)), (dt.i32, (places,)), (dt.f32, (segments, width)), (dt.f32, (places, width))]
    return plain((places,), params, over("sum", (segments, width), body))


@sampled(3)
@pytest.mark.parametrize("width", [3, 4, 16, 17, 33])
def test_short_axis_around_others(width, rng):
    low = rng.integers(-2, 9, 7).astype(np.int32)
    for high in (low + 1, (low + rng.integers(-2, 7, 7)).astype(np.int32)):
        check(PATTERN, segments_of_places(7, 9, width), rng, inputs=[low, high])
        check(PATTERN, segments_of_places(7, 9, width), rng, inputs=[low, high], native=True)


def test_only_segments_of_a_place_are_read(rng):
    kernel = segments_of_places(20, 9, 32)
    base = [random_array(rng, b) for b in kernel.buffers]
    config, counts = PATTERN.best(kernel, WIDE), []
    for first, last in ((4, 5), (0, 9)):
        base[:2] = np.full(20, first, np.int32), np.full(20, last, np.int32)
        counts.append(loads(kernel, config, poisoned(kernel, base, {})))
    assert counts[0] < 0.3 * counts[1]


def test_lanes_leave_bounds_to_loops():
    """Along the rows, whose ends differ, every lane would walk all elements."""
    r, u, k = axes(3)
    guard = both(le(word(0, r), k), lt(k, word(0, add(r, 1))))
    params = [(dt.i32, (10,)), (dt.f32, (137,)), (dt.f32, (15, 32)), (dt.i32, (137,))]
    body = guarded("sum", guard, mul(read(1, k), read(2, word(3, k), u)))
    (box,) = boxes_of(plain((9, 32), params, over("sum", (137,), body)))
    assert choose_column_axis(box, 16) == 1


def test_sums_that_end_so_are_priced_so():
    """A row's share of all, where both its ends come from data, and half of them where ends are places."""

    def seconds(kernel):
        return autoconfig.choose(kernel, WIDE).cost.seconds

    r, k = axes(2)
    every = [(dt.i32, (1001,)), (dt.f32, (50_000,)), (dt.f32, (50_000,))]
    odd = both(le(word(0, r), mul(k, 3)), lt(mul(k, 3), word(0, add(r, 1))))
    other = plain((1000,), every, over("sum", (50_000,), guarded("sum", odd, mul(read(1, k), read(2, k)))))
    assert seconds(sparse("sum", 1000, 50_000)) < 0.02 * seconds(other)
