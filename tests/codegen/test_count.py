"""Counted instructions against those that the interpreter of nests executes, for every pattern and configuration."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.codegen.loopnest.count import InstructionCounts, _kind, count_instructions
from einsmith.codegen.loopnest.nest import Builder
from einsmith.ir.nodes import Axis, apply
from einsmith.kernels import autoconfig
from einsmith.kernels.scalar import Scalar
from tests import nest_interp
from tests.kernels.runner import WIDE, host
from tests.kernels.samples import conv, plain, product, read, strided_conv_dx, sum_of

KERNELS = {
    "product": product(13, 17, 9),
    "transposed product": product(5, 33, 21, "TN"),
    "convolution": conv(2, 3, 7, 9, 5, 3, 3, 1),
    "phases": strided_conv_dx(1, 2, 6, 8, 3),
    "exponentials": plain((3, 37), [(dt.f32, (3, 37))], apply("exp", read(0, Axis(0), Axis(1)))),
    "sums": sum_of((9,), [(dt.f32, (9, 40))], (40,), read(0, Axis(0), Axis(1))),
}
"""Kernels of few points, whose functions have tails and guards."""


def executed(lowered, kernel) -> InstructionCounts:
    """The instructions that the interpreter executes, with those of all tasks of all launches."""
    total = Counter()
    arrays = [np.zeros(b.shape, b.dtype.numpy) for b in kernel.buffers]
    nest_interp.run(lowered, kernel, arrays, observe=lambda op, _: total.update([_kind(op)]))
    return InstructionCounts(total["floats"], total["moves"], total["special"])


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("target", [WIDE, host(1)], ids=["wide", "host"])
def test_counts_are_those_of_a_run(name, target):
    kernel = KERNELS[name]
    alternatives = autoconfig.choose(kernel, target).alternatives
    shown = [(autoconfig.pattern_of(n), c) for n, c, _ in alternatives[:: max(1, len(alternatives) // 8)]]
    for pattern, config in [*shown, (autoconfig.SCALAR, Scalar().configs(kernel, target)[0])]:
        lowered = pattern.lower(kernel, config, target)
        counts = count_instructions([(x.function, x.tasks) for x in lowered.launches])
        assert counts == executed(lowered, kernel), (pattern.name, config)


def test_the_formula_of_a_product():
    """The scalar form of an m x k by k x n product: m*n*k multiply-adds, two loads each, and a store a result."""
    kernel = product(5, 7, 11)
    (launch,) = Scalar().lower(kernel, Scalar().configs(kernel, host(1))[0], host(1)).launches
    assert count_instructions([(launch.function, 1)]) == InstructionCounts(5 * 7 * 11, 5 * 7 * (2 * 11 + 1), 0)


def test_bounds_from_data_have_no_count():
    b = Builder("f", 2)
    end = b.cast(b.load(b.buffers[0], 0, "i32"), "i64")
    with b.loop(0, end) as loop:
        b.store(b.const(1.0, "f32"), b.buffers[1], loop.var)
    assert count_instructions([(b.finish(), 1)]) is None
