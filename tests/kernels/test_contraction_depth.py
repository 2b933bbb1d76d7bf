"""Vectors of N whose lanes hold several points of K of each of its points, added at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.base.errors import CompileError
from einsmith.codegen.loopnest.lanes import transpose
from einsmith.kernels.contraction.config import Tiled
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION, Configs
from einsmith.kernels.contraction.k_vectorization import choose_depth
from tests.kernels.runner import check_exact as check
from tests.kernels.runner import host, sampled
from tests.kernels.samples import biased, conv_dw, load, product, sum_of, times

DEEP = Tiled(mr=3, a="inline", b="panel", depth=2)


def deep(n: int, depth: int, item: int = 4, **fields) -> Configs:
    """The tile that holds all of n points."""
    return Configs((replace(DEEP, nv=-(-n * depth // host().lanes(item)), depth=depth, **fields),))


class Lanes(list):
    """A vector of values, with the one operation that turning takes."""

    def __init__(self, values, elem: str):
        super().__init__(values)
        self.type = SimpleNamespace(elem=elem)

    @staticmethod
    def shuffle(x: Lanes, y: Lanes, lanes: Iterable[int]) -> Lanes:
        both = [*x, *y]
        return Lanes([both[i] for i in lanes], x.type.elem)


def test_squares_of_wide_elements_are_transposed():
    every = (("f32", 1, 8), ("f32", 2, 16), ("f32", 4, 16), ("f32", 4, 4), ("f64", 2, 8), ("f64", 1, 2), ("i8", 1, 16),
             ("i8", 1, 64), ("f16", 2, 32), ("i32", 1, 2), ("i64", 1, 4))  # fmt: skip
    for elem, size, lanes in every:
        count = lanes // size
        x = np.arange(count * lanes).reshape(count, count, size)
        turned = transpose(Lanes, [Lanes(row.reshape(-1), elem) for row in x], size)
        assert np.array_equal(np.reshape(turned, x.shape), x.swapaxes(0, 1))


def test_as_few_lanes_stay_empty_as_can_be():
    assert [choose_depth(n, 16, 4) for n in (16, 24, 32, 40, 8, 20, 12, 6, 3)] == [1, 2, 1, 2, 2, 4, 4, 2, 4]
    assert [choose_depth(n, 8, 8) for n in (8, 12, 2, 7)] == [1, 2, 2, 1]


@sampled(4)
@pytest.mark.parametrize("depth", [2, 4])
def test_sums_agree_with_the_evaluator(depth):
    for m, n, k in ((23, 24, 96), (5, 3, 16), (11, 21, 200)):
        ways = ({}, {"kc": 32}, {"kc": 20, "mr": 4}, {"split": 2, "mr": 11}, {"split": 2, "kc": 16, "tm": 2})
        if n == 21:
            ways = ways[:4:3]
        for swap in (False, True):
            kernel = product(*((n, m) if swap else (m, n)), k, "NT")
            check(kernel, [deep(n, depth, swap=swap, **way) for way in ways])
            check(biased(kernel, 1), [deep(n, depth, swap=swap)])
    images = conv_dw(3, 13, 6, 8, 21, 1, 1, 0)
    check(images, [deep(13, depth, **way) for way in ({"split": 3}, {"split": 3, "kc": 24}, {"kc": 40, "tm": 2})])
    check(images, [deep(21, depth, swap=True, split=2, kc=48)])
    both = times(load(0, 0, 1, 3), load(1, 0, 2, 3))
    check(sum_of((3, 7, 9), ((dt.f32, (3, 7, 88)), (dt.f32, (3, 9, 88))), (88,), both), [deep(9, depth, kc=40)])


def test_double_precision():
    kernel = product(9, 6, 40, "NT", dt.f64)
    check(kernel, [deep(6, 2, 8), deep(6, 2, 8, split=2, kc=8)])


def test_k_vectorization_that_does_not_fit_is_rejected():
    odd, fits = product(8, 24, 97, "NT"), product(8, 24, 96, "NT")
    for kernel, c in (
        (odd, deep(24, 2)),
        (fits, deep(24, 2, kc=33)),
        (fits, deep(24, 2, b="inline")),
        (fits, deep(8, 2)),
        (fits, deep(24, 4, split=16)),
        (product(8, 24, 96, "TT"), deep(24, 2)),
    ):
        with pytest.raises(CompileError, match="points of K each"):
            CONTRACTION.lower(kernel, c, host())


def test_few_columns_and_a_long_k_are_chosen_so():
    """The gradient of 144 filters of 24 channels, whichever operand they stand in."""
    target = replace(host(), fma_per_second=133e9, l1=48 << 10, l2=1 << 20)
    if target.lanes() != 16:
        target = replace(target, vector_bytes=64, vector_registers=32)
    for o, c in ((24, 144), (144, 24)):
        (found,) = CONTRACTION.best(conv_dw(16, c, 56, 56, o, 1, 1, 0), target).pieces
        assert found.depth == 2 and found.nv == 3
        # Long blocks, of which the second level holds the panel beside what the next is packed of.
        assert 1024 <= found.kc and found.kc * (found.mr + 24) * 4 <= target.l2 // 4
    (found,) = CONTRACTION.best(conv_dw(16, 32, 56, 56, 96, 1, 1, 0), target).pieces
    assert found.depth == 1
