"""Deterministic accumulation at computed positions."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith import dtypes as dt
from einsmith.errors import CompileError
from einsmith.expr.kernel import Buffer, Kernel, Stage
from einsmith.expr.nodes import Axis, Scatter, Template, apply, template
from einsmith.kernels import autoconfig
from einsmith.kernels.scatter import ScatterAdd, free_axis
from tests.kernels.kernel_check import NARROW, WIDE, axes, check, div, kernel_of, num, plain, read
from tests.nest_interp import run

PATTERN = ScatterAdd()


@pytest.mark.parametrize("rows, tokens, width", [(1, 1, 1), (5, 9, 17), (7, 20, 4), (3, 40, 33)])
def test_embedding_gradient(rng, rows, tokens, width):
    t, d = axes(2)
    index = (read(0, t, dtype=dt.i32), d)
    s = Scatter((tokens, width), index, read(1, t, d))
    kernel = kernel_of(Template((rows, width), ((dt.i32, (tokens,)), (dt.f32, (tokens, width))), (s,)))
    assert free_axis(s) == (1, 1)
    check(PATTERN, kernel, rng, inputs=[rng.integers(0, rows, tokens).astype(np.int32)])


def test_histogram(rng):
    for n, bins in ((1, 1), (37, 5), (64, 200)):
        i = Axis(0)
        s = Scatter((n,), (read(0, i, dtype=dt.i32),), num(1.0))
        kernel = kernel_of(Template((bins,), ((dt.i32, (n,)),), (s,)))
        check(PATTERN, kernel, rng, inputs=[rng.integers(0, bins, n).astype(np.int32)])


def test_indexed_and_free_dimensions(rng):
    """The free dimension is the first one, longer than its axis; the rest stays zero."""
    i, j = axes(2)
    s = Scatter((3, 8), (i, div(j, 3)), read(0, i, j))
    kernel = kernel_of(Template((5, 4), ((dt.f32, (3, 8)),), (s,)))
    check(PATTERN, kernel, rng)
    check(PATTERN, kernel_of(Template((5, 4), ((dt.f32, (0, 8)),), (Scatter((0, 8), s.index, s.body),))), rng)


def test_order_is_the_same_for_every_task_count(rng):
    t, d = axes(2)
    s = Scatter((50, 9), (read(0, t, dtype=dt.i32), d), read(1, t, d))
    kernel = kernel_of(Template((2, 9), ((dt.i32, (50,)), (dt.f32, (50, 9))), (s,)))
    where = rng.integers(0, 2, 50).astype(np.int32)
    values = rng.standard_normal((50, 9)).astype(np.float32)
    seen = set()
    for target in (NARROW, WIDE):
        for config in PATTERN.configs(kernel, target):
            out = np.full((2, 9), np.nan, np.float32)
            run(PATTERN.lower(kernel, config, target), kernel, [where, values, out])
            seen.add(out.tobytes())
    assert len(seen) == 1


def test_choice_and_refusal():
    i = Axis(0)
    t = Template((5,), ((dt.i32, (9,)),), (Scatter((9,), (read(0, i, dtype=dt.i32),), num(1.0)),))
    kernel = kernel_of(t)
    chosen = autoconfig.choose(kernel, WIDE)
    assert chosen.pattern.name == "scatter"
    assert chosen.cost.seconds == min(c.seconds for _, _, c in chosen.alternatives)
    after = template((5,), [(dt.f32, (5,))], apply("neg", read(0, i)))
    stages = (Stage(t, (("buffer", 0),), (None,)), Stage(after, (("stage", 0, 0),), (1,)))
    with pytest.raises(CompileError, match="scatter"):
        autoconfig.choose(Kernel(stages, (Buffer(dt.i32, (9,)), Buffer(dt.f32, (5,)))), WIDE)


def test_cost_picks_one_task_for_little_and_several_for_much():
    i = Axis(0)
    small = plain((100,), [(dt.f32, (100,))], apply("neg", read(0, i)))
    large = plain((1 << 24,), [(dt.f32, (1 << 24,))], apply("neg", read(0, i)))
    assert autoconfig.choose(small, WIDE).config.tasks == 1
    assert autoconfig.choose(large, WIDE).config.tasks > 1
    assert "pointwise" in autoconfig.explain(large, WIDE)
