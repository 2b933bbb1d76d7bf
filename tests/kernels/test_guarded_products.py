"""Sums of products whose factors, alone or together, stand under conditions: every pattern that takes them is right."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import apply
from einsmith.kernels import autoconfig
from tests.kernels.runner import WIDE, check, sampled
from tests.kernels.samples import add, axes, both, int_, le, lt, mul, num, over, plain, read, sub, zero_unless

FACTORS = 4


def condition(rng, every, extents):
    a, b = (int(x) for x in rng.choice(len(every), 2, replace=False))
    x, n = every[a], extents[a]
    kind = int(rng.integers(4))
    if kind == 0:
        return apply("eq", x, int_(int(rng.integers(n))))
    if kind == 1:
        return lt(x, int(rng.integers(1, n + 1)))
    if kind == 2:
        return le(x, add(every[b], int(rng.integers(-2, 2))))
    return both(le(0, sub(x, every[b])), lt(sub(x, every[b]), 3))


def drawn(rng):
    """A product of two to four factors over some of two output axes and one or two of K, zero under conditions, some
    with a number."""
    rank, summed = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    extents = [int(n) for n in rng.choice([1, 3, 5, 9, 17], rank + summed)]
    every, params, found = axes(rank + summed), [], []
    for _ in range(int(rng.integers(2, FACTORS + 1))):
        some = sorted(rng.choice(rank + summed, int(rng.integers(1, rank + summed + 1)), replace=False))
        params.append((dt.f32, tuple(extents[a] for a in some)))
        x = read(len(params) - 1, *(every[a] for a in some))
        while rng.random() < 0.4:
            x = zero_unless(condition(rng, every, extents), x)
        found.append(x)
    if rng.random() < 0.4:
        found.append(zero_unless(condition(rng, every, extents), num(float(rng.choice([1, -2])))))
    while len(found) > 1:
        x = mul(found.pop(), found.pop(int(rng.integers(len(found)))))
        found.append(zero_unless(condition(rng, every, extents), x) if rng.random() < 0.3 else x)
    return plain(tuple(extents[:rank]), params, over("sum", tuple(extents[rank:]), found[0]))


@sampled(6)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("part", range(4))
def test_every_pattern_keeps_every_condition(part, rng):
    taken = set()
    for _ in range(40):
        kernel = drawn(rng)
        for pattern in autoconfig.PATTERNS:
            if pattern.match(kernel) and (config := pattern.best(kernel, WIDE)) is not None:
                check(pattern, kernel, rng, [WIDE], configs=[config])
                taken.add(pattern.name)
    assert {"contraction", "reduction"} <= taken


def test_a_factor_of_the_results_under_a_condition_of_k(rng):
    """What is multiplied by a condition of K is no factor of the sum, though it is the same in all of its terms."""
    i, k = axes(2)
    first = zero_unless(apply("eq", k, int_(0)), read(2, i))
    kernel = plain((40,), [(dt.f32, (50, 40)), (dt.f32, (50,)), (dt.f32, (40,))],
                   over("sum", (50,), mul(mul(read(0, k, i), read(1, k)), first)))  # fmt: skip
    check(autoconfig.pattern_of("contraction"), kernel, rng)


def test_an_infinite_factor_of_a_sum_without_terms(rng):
    """Where a condition leaves no term the sum is zero, whatever would multiply it."""
    i, k = axes(2)
    term = mul(mul(read(0, k, i), read(1, k)), read(2, i))
    kernel = plain((20,), [(dt.f32, (30, 20)), (dt.f32, (30,)), (dt.f32, (20,))],
                   over("sum", (30,), zero_unless(lt(k, sub(i, 9)), term)))  # fmt: skip
    scale = rng.standard_normal(20).astype(np.float32)
    scale[:9] = np.inf
    check(autoconfig.pattern_of("contraction"), kernel, rng, inputs=[None, None, scale])


@sampled(2)
@pytest.mark.parametrize("number", [1.0, 3.0])
def test_a_number_under_a_condition(number, rng):
    """The condition, which reads an operand, holds no factor but the number, and zeroes the terms all the same."""
    i, j, k = axes(3)
    chosen = zero_unless(apply("lt", num(0.0), read(0, k, i)), num(number))
    kernel = plain((37, 16), [(dt.f32, (29, 37)), (dt.f32, (29,)), (dt.f32, (29, 16))],
                   over("sum", (29,), mul(chosen, mul(read(1, k), read(2, k, j)))))  # fmt: skip
    check(autoconfig.pattern_of("contraction"), kernel, rng)
