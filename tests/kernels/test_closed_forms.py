"""Closed forms of what could be enumerated, against the enumeration, at small extents; at large ones, in few steps."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.codegen.loopnest.walk import divisors
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import Axis, apply
from einsmith.kernels.contraction import k_bounds
from einsmith.kernels.contraction.row_offsets import regular_rows, row_offsets
from einsmith.kernels.contraction.units import MAX_UNIT_POINTS, find_unit
from einsmith.kernels.rows.rows_cost import _divisor
from einsmith.kernels.stencil import emission
from einsmith.kernels.stencil.terms import Span
from einsmith.schedule.contraction_problem import problems
from tests.kernels.samples import F, conv, conv_dx, load, strided_dx, sum_of, times, zero_unless


def rows_of(groups):
    """Where each row of groups (extent, stride), outer first, lies."""
    at = np.zeros(1, np.int64)
    for extent, stride in groups:
        at = (at[:, None] + stride * np.arange(extent)).reshape(-1)
    return at


def same_in_all_tiles(groups, mr):
    """The places of a tile's rows, as many as there are, where all tiles have the same; else None."""
    at = rows_of(groups)
    first = at[:mr] - at[0]
    for start in range(0, len(at), mr):
        tile = at[start : start + mr]
        if (tile - tile[0] != first[: len(tile)]).any():
            return None
    return first.tolist()


def test_rows_at_fixed_distances(rng):
    found = {True: 0, False: 0}
    for _ in range(3000):
        n = rng.integers(0, 4)
        groups = tuple((int(rng.integers(2, 6)), int(rng.integers(-3, 30))) for _ in range(n))
        if n > 1 and rng.integers(3) == 0:  # groups that go on evenly
            (_, stride), (extent, inner) = groups[:2]
            groups = ((groups[0][0], extent * inner), *groups[1:])
        mr = int(rng.integers(1, 40))
        want, got = same_in_all_tiles(groups, mr), row_offsets(groups, mr)
        assert (want is None) == (got is None), (groups, mr)
        if want is not None:
            assert len(got) == mr and got[: len(want)] == want
        found[want is None] += n > 1
    assert min(found.values()) > 300


def test_rows_of_long_axes():
    """Of 2^40 rows no more is looked at than of few."""
    assert row_offsets(((1 << 20, 1 << 21), (1 << 20, 1)), 8) == [*range(8)]
    assert row_offsets(((1 << 20, 1 << 21), (7, 3)), 14) == [3 * (i % 7) + (i // 7 << 21) for i in range(14)]
    assert row_offsets(((1 << 20, 1 << 21), (7, 3)), 8) is None
    assert regular_rows(((1 << 20, 1 << 21), (7, 3)), 30) == 28


def segments_one_by_one(count, step, whole):
    out = []
    for first in range(0, count, step):
        if out and whole(first) and whole(out[-1].first):
            out[-1] = emission.PointRange(out[-1].first, first + step, step)
        else:
            out.append(emission.PointRange(first, first + step, step))
    return out


def test_segments(rng):
    lengths = set()
    for _ in range(3000):
        count, step = int(rng.integers(1, 60)), int(rng.integers(1, 9))
        lo, hi = int(rng.integers(0, 20)), int(rng.integers(-1, 70))
        want = segments_one_by_one(count, step, lambda x, n=step, lo=lo, hi=hi: lo <= x and x + n - 1 <= hi)
        assert emission.cut_segments(count, step, Span(lo, hi)) == want, (count, step, lo, hi)
        lengths.add(len(want))
    assert len(lengths) > 10
    assert len(emission.cut_segments(1 << 40, 16, Span(3, (1 << 40) - 9))) == 3


def test_divisors():
    for n in range(1, 400):
        assert divisors(n) == tuple(d for d in range(1, n + 1) if n % d == 0)
        for most in range(1, n + 1):
            assert _divisor(n, most) == next((d for d in range(most, most // 2, -1) if n % d == 0), most)
    assert divisors((1 << 31) - 1) == (1, (1 << 31) - 1)


def test_units_are_no_longer_looked_for_than_they_may_be():
    class Length(int):  # an extent that tells how often it is divided
        asked = 0

        def __mod__(self, other):
            Length.asked += 1
            return int(self) % other

    assert find_unit([0, 0], [LinearForm.of_axes(n, {0: 3}) for n in (0, 7)], (Length(1 << 30),), (0,), 16) is None
    assert 0 < Length.asked < MAX_UNIT_POINTS


# ------------------------------------------------------------------------------------------------- guards of K


def ends_by_rows(p, found, axes):
    """How many rows the trailing axes have that share looks at, and, by axis of K, the first point that guards leave
    each of them and the end."""
    total, seen = 1, []
    for a in reversed([a for a in axes if p.extents[a] > 1]):
        seen.insert(0, a)
        total *= p.extents[a]
        if total >= 512:
            break
    digits = dict(zip(seen, np.unravel_index(np.arange(total), [p.extents[a] for a in seen]), strict=True))
    low, high = {}, {}
    for t in found:
        if t.axes - {*seen}:
            continue
        form = linear(t.guard.args[0]) - linear(t.guard.args[1])
        v = form.const + sum(c * digits[a.position] for a, c in form.terms.items() if a.position in digits)
        if t.sign > 0:
            end = (1 if t.guard.fn == "le" else 0) - v
            high[t.axis] = np.minimum(high.get(t.axis, p.extents[t.axis]), end)
        else:
            start = v + 1 if t.guard.fn == "lt" else v
            low[t.axis] = np.maximum(low.get(t.axis, 0), start)
    none = np.zeros(total, int)
    return total, {k: (low.get(k, none), high.get(k, none + p.extents[k])) for k in {*low, *high}}


def share_by_rows(p, found, axes, points):
    total, ends = ends_by_rows(p, found, axes)
    starts, left = np.arange(0, total, points), 1.0
    for low, high in ends.values():
        left = left * np.maximum(np.maximum.reduceat(high, starts) - np.minimum.reduceat(low, starts), 0)
    return float(np.sum(left * np.ones(len(starts)))) / (len(starts) * p.count(ends))


def triangle(n: int, m: int = 3):
    """out[h, i, d] = sum of P[h, i, k] * V[h, k, d] over k <= i"""
    body = times(load(0, 0, 1, 3), load(1, 0, 3, 2))
    guard = apply("le", Axis(3), Axis(1))
    return sum_of((m, n, m), ((F, (m, n, n)), (F, (m, n, m))), (n,), zero_unless(guard, body))


def kernels(rng, long: int = 1, wide: int = 1):
    """Convolutions and a triangle, their outer axes so many times as long, their inner ones as wide."""
    n = [int(x) for x in rng.integers(3, 24, 6) * ((long, wide) * 3)]
    few = [int(x) for x in rng.integers(2, 6, 4)]
    k, pad = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    yield conv(few[0], few[1], n[0], n[1], few[2], k, k + 1, pad, int(rng.integers(1, 3)))
    yield conv_dx(few[0], few[1], n[2], n[3], few[2], k, k, pad)
    yield strided_dx(few[0], n[4] + 3, 3, few[1])
    yield triangle(n[0])


def guarded_sides(kernel):
    """(problem, guards that bound K, axes) of each side that has some."""
    for p in problems(kernel.root) or ():
        for which, axes in enumerate((p.left, p.right)):
            found = k_bounds.restrict_bounds(p, which, (*p.batch, *axes))
            if axes and found:
                yield p, found, axes


def test_shares_of_k(rng):
    seen = set()
    for _ in range(40):
        for kernel in kernels(rng):
            for p, found, axes in guarded_sides(kernel):
                sizes = 1, 2, 6, 16, 48, 5000
                for points, got in zip(sizes, k_bounds.k_fractions(p, found, axes, sizes), strict=True):
                    want = share_by_rows(p, found, axes, points)
                    assert got == pytest.approx(want, rel=1e-12), (kernel, points)
                    seen.add(want)
    assert len(seen) > 100


@pytest.mark.slow
def test_shares_of_k_by_sampled_tiles(rng):
    """Of images of many rows of less and of more than 512 points, and long axes."""
    found_by: dict[int, int] = {}
    for long, wide in ((2000, 7), (500, 20), (15000, 15000)):
        for kernel in kernels(rng, long, wide):
            for p, found, axes in guarded_sides(kernel):
                if ends_by_rows(p, found, axes)[0] > 2 * k_bounds.MAX_SAMPLED_ROWS:
                    sizes = 1, 48, 80
                    for points, got in zip(sizes, k_bounds.k_fractions(p, found, axes, sizes), strict=True):
                        want = share_by_rows(p, found, axes, points)
                        assert got == pytest.approx(want, rel=1e-3), (kernel, points)
                        found_by[wide] = found_by.get(wide, 0) + (want < 1)
    assert len(found_by) == 3 and min(found_by.values()) > 0
