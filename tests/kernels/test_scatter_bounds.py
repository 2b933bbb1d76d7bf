"""Scatters whose guard leaves terms between two ends of an axis: every configuration, and how much is walked."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Scatter, Template, apply, cast
from einsmith.kernels.scatter.points import find_bounds
from einsmith.kernels.scatter.scatter_pattern import ScatterAdd
from tests import nest_interp
from tests.kernels.runner import NARROW, WIDE, check, poisoned, random_array, sampled
from tests.kernels.samples import add, axes, both, inside, kernel_of, le, lt, mul, num, read, zero_unless
from tests.kernels.test_reduction_bounds import ends, word

PATTERN = ScatterAdd()


def row(r, n):
    return both(le(word(0, r), n), lt(n, word(0, add(r, 1))))


def gradient(rows, n, width, m, combiner="sum", other=0.0):
    """Of x[col[n], d] in the product of a sparse matrix: dx[col[n], d] += v[n]*g[r, d] of what row r stores; or with
    another combiner and what all that it does not store counts as."""
    r, d, k = axes(3)
    here = row(r, k)
    at = apply("where", here, word(1, k), num(0, dt.i32))
    body = mul(read(2, k), read(3, r, d))
    for c in (lt(k, word(0, add(r, 1))), le(word(0, r), k)):
        body = apply("where", c, body, num(other))
    params = ((dt.i32, (rows + 1,)), (dt.i32, (n,)), (dt.f32, (n,)), (dt.f32, (rows, width)))
    return kernel_of(Template((m, width), params, (Scatter(combiner, (rows, width, n), (at, d), body),)))


def counts(rows, n):
    """How many rows each place is in, and the sum of their numbers."""
    r, q, k = axes(3)
    value = apply("where", apply("eq", q, num(0, dt.i32)), num(1, dt.i32), r)
    body = apply("where", row(r, k), cast(value, dt.i32), num(0, dt.i32))
    return kernel_of(Template((2, n), ((dt.i32, (rows + 1,)),), (Scatter("sum", (rows, 2, n), (q, k), body),)))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("how", ["sorted", "anywhere"])
@pytest.mark.parametrize("rows, n, width, m", [(2, 40, 1, 3), (7, 71, 17, 5), (3, 1, 5, 1)])
def test_gradient_of_a_gathered_operand(rows, n, width, m, how, rng):
    kernel = gradient(rows, n, width, m)
    inputs = [ends(rng, rows, n, how), rng.integers(0, m, n).astype(np.int32)]
    check(PATTERN, kernel, rng, inputs=inputs)
    check(PATTERN, kernel, rng, inputs=inputs, native=True)


@sampled(8)
@pytest.mark.parametrize("combiner", ["max", "min"])
def test_only_what_is_neutral_is_left_out(combiner, rng):
    """A zero is as large as others: places between the ends alone are walked where the rest counts as an infinity."""
    for other in (0.0, float("-inf" if combiner == "max" else "inf")):
        kernel = gradient(5, 71, 17, 4, combiner, other)
        assert set(find_bounds(kernel, 1)) == ({2} if other else set())
        check(PATTERN, kernel, rng, inputs=[ends(rng, 5, 71, "sorted"), rng.integers(0, 4, 71).astype(np.int32)])


@pytest.mark.thinned(2)
@pytest.mark.parametrize("how", ["sorted", "anywhere"])
@pytest.mark.parametrize("n", [1, 31, 71, 256])
def test_lanes_along_the_axis_with_ends(n, how, rng):
    """Tasks and lanes along what is walked between the ends."""
    configs = [c for t in (NARROW, WIDE) for c in PATTERN.configs(counts(6, n), t)]
    assert n == 1 or any(c.axis == c.along == 2 and c.tasks > 1 for c in configs)
    check(PATTERN, counts(6, n), rng, inputs=[ends(rng, 6, n, how)])
    check(PATTERN, counts(6, n), rng, inputs=[ends(rng, 6, n, how)], native=True)


def stores(kernel, arrays) -> int:
    """How many vectors and elements the best configuration writes."""
    count = 0

    def observe(op, *_):
        nonlocal count
        count += op.name == "store"

    nest_interp.run(PATTERN.lower(kernel, PATTERN.best(kernel, WIDE), WIDE), kernel, arrays, observe=observe)
    return count


def test_points_that_add_nothing_are_left_out(rng):
    """Each stored element is added once, a row of the operand at a time."""
    rows, n = 20, 300
    kernel = gradient(rows, n, 16, 9)
    assert set(find_bounds(kernel, 1)) == {2}
    base = [random_array(rng, b) for b in kernel.buffers]
    base[0] = np.linspace(0, n, rows + 1).astype(np.int32)
    base[1] = rng.integers(0, 9, n).astype(np.int32)
    assert stores(kernel, poisoned(kernel, base, {})) <= n + 9 * 16


def test_ends_that_are_no_data_are_left_to_the_guard():
    i, j = axes(2)
    body = zero_unless(both(le(i, j), inside(add(i, j), 50)), read(1, i, j))
    params = ((dt.i32, (40,)), (dt.f32, (40, 40)))
    kernel = kernel_of(Template((9,), params, (Scatter("sum", (40, 40), (word(0, i),), body),)))
    assert not find_bounds(kernel, None)
