"""The selection pattern against the evaluator: types, orders, ties, NaN, ranges of ranks, reduced axes, limits."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.base.errors import VerifyError
from einsmith.ir.nodes import Expr, Reduce, apply
from einsmith.ir.verify import verify_template
from einsmith.kernels.selection import RankSelection, SelectionConfig
from einsmith.schedule.kernel import Kernel
from tests.kernels.runner import WIDE, check, host
from tests.kernels.samples import add, axes, int_, plain, read

PATTERN = RankSelection()
ALL = [SelectionConfig(bits, narrow, 16, tasks) for bits in (8, 11) for narrow in (False, True) for tasks in (1, 3)]


def select(combiner: str, extents, key: Expr, of_rank: Expr) -> Reduce:
    return Reduce(combiner, tuple(extents), (key, int_(of_rank)))


def rows(combiner: str, n: int, dtype: dt.DType, count: int, first: int = 0, height: int = 4) -> Kernel:
    """The positions of `count` ranks from `first` on of each row of n elements."""
    i, k, j = axes(3)
    body = select(combiner, [n], read(0, i, j, dtype=dtype), add(k, first))
    return plain((height, count), [(dtype, (height, n))], body)


def keys(rng: np.random.Generator, shape, dtype: dt.DType) -> np.ndarray:
    """Keys with ties; floats have NaN of both signs, infinities and zeros of both signs."""
    if not dtype.is_float:
        low, high = dtype.range
        return rng.choice([low, high, 0, -1, 1, 7, 300, -300], shape).astype(dtype.numpy)
    x = rng.choice([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, *rng.standard_normal(20)], shape)
    return x.astype(dtype.numpy)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("combiner", ["argkmin", "argkmax"])
@pytest.mark.parametrize("dtype", [dt.f32, dt.f64, dt.i32, dt.i64])
@pytest.mark.parametrize("n", [2, 15, 16, 17, 131])
def test_types_orders_and_ties(rng, combiner, dtype, n):
    check(PATTERN, rows(combiner, n, dtype, n), rng, [host()], [keys(rng, (4, n), dtype)], configs=ALL, native=True)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("combiner", ["argkmin", "argkmax"])
@pytest.mark.parametrize("dtype", [dt.f32, dt.i64])
@pytest.mark.parametrize("first, count", [(0, 1), (0, 7), (60, 1), (59, 40), (112, 1)])
def test_some_ranks(rng, combiner, dtype, first, count):
    for x in (keys(rng, (4, 113), dtype), rng.permuted(np.tile(np.arange(113), (4, 1)), axis=1).astype(dtype.numpy)):
        check(PATTERN, rows(combiner, 113, dtype, count, first), rng, [host()], [x], configs=ALL, native=True)


def test_equal_keys_keep_their_order(rng):
    for value in (0.0, np.nan, -np.inf):
        check(
            PATTERN,
            rows("argkmax", 37, dt.f32, 37),
            rng,
            [host()],
            [np.full((4, 37), value, np.float32)],
            configs=ALL,
            native=True,
        )


def test_several_reduced_axes(rng):
    i, k, r, s = axes(4)
    kernel = plain((3, 95), [(dt.f32, (5, 3, 19))], select("argkmin", [5, 19], read(0, r, i, s), k))
    check(PATTERN, kernel, rng, native=True)
    check(PATTERN, kernel, rng, [WIDE], configs=[SelectionConfig(8, False, 16, 1)])


def test_keys_and_ranks_are_expressions(rng):
    """The distance of points is a key; the rank is read from a tensor, within bounds."""
    i, k, j = axes(3)
    key = apply("abs", apply("sub", read(0, j), read(1, i)))
    wanted = apply("min", apply("max", read(2, i, k, dtype=dt.i32), int_(0)), int_(28))
    kernel = plain((6, 3), [(dt.f32, (29,)), (dt.f32, (6,)), (dt.i32, (6, 3))], select("argkmin", [29], key, wanted))
    ranks = rng.integers(-2, 31, (6, 3)).astype(np.int32)
    check(PATTERN, kernel, rng, inputs=[None, None, ranks], native=True)


def test_one_rank_for_each_row(rng):
    i, j = axes(2)
    kernel = plain((9,), [(dt.f32, (9, 41))], select("argkmax", [41], read(0, i, j), int_(20)))
    check(PATTERN, kernel, rng, native=True)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", [dt.f32, dt.f64, dt.i32])
@pytest.mark.parametrize("height", [1, 2])
@pytest.mark.parametrize("n", [2, 1000])
def test_parts_of_a_row(rng, dtype, height, n):
    configs = [SelectionConfig(bits, False, 16, 1, parts) for bits, parts in ((11, 2), (8, 3), (11, 7))]
    for combiner in ("argkmin", "argkmax"):
        kernel = rows(combiner, n, dtype, n, height=height)
        check(PATTERN, kernel, rng, [host()], [keys(rng, (height, n), dtype)], configs=configs, native=True)
    i, k, r, s = axes(4)
    kernel = plain((2, 35), [(dt.f32, (5, 2, 7))], select("argkmin", [5, 7], read(0, r, i, s), k))
    check(PATTERN, kernel, rng, [host()], configs=configs, native=True)


def test_ranks_beyond_the_elements_are_refused():
    for first, count in ((1, 13), (-1, 3)):
        with pytest.raises(VerifyError, match="a rank of argkmin may leave"):
            verify_template(rows("argkmin", 13, dt.f32, count, first).root)
    i, k, j = axes(3)
    kernel = plain((4, 13), [(dt.f32, (4, 13))], select("argkmin", [13], read(0, i, k), j))
    with pytest.raises(VerifyError, match="depends on the axes that are reduced"):
        verify_template(kernel.root)
