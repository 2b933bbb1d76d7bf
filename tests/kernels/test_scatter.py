"""Deterministic accumulation at computed positions."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.base import dtypes as dt
from einsmith.base.errors import CompileError
from einsmith.ir.analysis.linear import LinearForm
from einsmith.ir.nodes import Axis, Piece, Scatter, Template, apply, cast, postorder, template
from einsmith.ir.rebuild import substitute
from einsmith.kernels import autoconfig
from einsmith.kernels.scatter import points, scatter_pattern
from einsmith.kernels.scatter.points import combine_at, owned_axes, terms_of
from einsmith.kernels.scatter.scatter_pattern import ScatterAdd, ScatterConfig, in_place
from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage
from einsmith.tuning.kernels.decisions import explain
from tests.kernels.runner import NARROW, WIDE, check
from tests.kernels.samples import add, axes, div, kernel_of, mod, mul, num, plain, read, sub
from tests.nest_interp import run

PATTERN = ScatterAdd()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("combiner", ["sum", "max", "min"])
@pytest.mark.parametrize("rows, tokens, width", [(1, 1, 1), (5, 9, 17), (7, 20, 4), (3, 40, 33)])
def test_embedding_gradient(rng, rows, tokens, width, combiner):
    t, d = axes(2)
    index = (read(0, t, dtype=dt.i32), d)
    s = Scatter(combiner, (tokens, width), index, read(1, t, d))
    kernel = kernel_of(Template((rows, width), ((dt.i32, (tokens,)), (dt.f32, (tokens, width))), (s,)))
    assert owned_axes(s) == ({1: 1} if width > 1 else {})
    check(PATTERN, kernel, rng, inputs=[rng.integers(0, rows, tokens).astype(np.int32)])


def test_histogram(rng):
    for n, bins in ((1, 1), (37, 5), (64, 200)):
        i = Axis(0)
        s = Scatter("sum", (n,), (read(0, i, dtype=dt.i32),), num(1.0))
        kernel = kernel_of(Template((bins,), ((dt.i32, (n,)),), (s,)))
        check(PATTERN, kernel, rng, inputs=[rng.integers(0, bins, n).astype(np.int32)])


def test_indexed_and_free_dimensions(rng):
    """The free dimension is the first one, longer than its axis; the rest stays zero."""
    i, j = axes(2)
    s = Scatter("sum", (3, 8), (i, div(j, 3)), read(0, i, j))
    kernel = kernel_of(Template((5, 4), ((dt.f32, (3, 8)),), (s,)))
    check(PATTERN, kernel, rng)
    check(PATTERN, kernel_of(Template((5, 4), ((dt.f32, (0, 8)),), (Scatter("sum", (0, 8), s.index, s.body),))), rng)


@pytest.mark.parametrize("tokens, width, sides", [(1, 1, (3,)), (9, 17, (2, 4)), (20, 33, (3,)), (4, 8, (3, 3))])
def test_short_last_axes_are_terms_of_a_point(rng, tokens, width, sides):
    """What they choose is known in each term, up to eight of them; the order is that of the points."""
    t, d, a = axes(3)
    b = Axis(3) if len(sides) > 1 else num(0, dt.i32)
    first = apply("lt", a, num(1, dt.i32))
    at = apply("where", first, read(0, t, dtype=dt.i32), add(read(0, t, dtype=dt.i32), add(a, b)))
    body = apply("where", first, read(1, t, d), mul(read(1, t, d), cast(add(a, mul(2, b)), dt.f32)))
    s = Scatter("sum", (tokens, width, *sides), (at, d), body)
    kernel = kernel_of(Template((12, width), ((dt.i32, (tokens,)), (dt.f32, (tokens, width))), (s,)))
    loops, terms = terms_of(kernel)
    assert len(terms) == {(3,): 3, (2, 4): 8, (3, 3): 3}[sides]
    every = postorder([e for index, x in terms for e in (*index.terms, x)])
    assert not any(isinstance(e, Axis) and e.position >= loops for e in every)
    where = rng.integers(0, 4, tokens).astype(np.int32)
    check(PATTERN, kernel, rng, inputs=[where])
    check(PATTERN, kernel, rng, inputs=[where], native=True)


def test_order_is_the_same_for_every_task_count(rng):
    """That of the points, row by row: bitwise what a loop over them gives."""
    for kernel, (where,) in windows(rng):
        x = rng.standard_normal((13, 21)).astype(np.float32)
        want = np.zeros(kernel.shape, np.float32)
        first = kernel.shape[0] == 13
        for (i, j), k in np.ndenumerate(where):
            want[(i, k) if first else (k, j)] += x[i, j]
        for target in (NARROW, WIDE):
            for config in PATTERN.configs(kernel, target):
                out = np.full(kernel.shape, np.nan, np.float32)
                run(PATTERN.lower(kernel, config, target), kernel, [where, x, out], reverse=True)
                assert out.tobytes() == want.tobytes(), config
    t, d = axes(2)
    s = Scatter("sum", (50, 9), (read(0, t, dtype=dt.i32), d), read(1, t, d))
    kernel = kernel_of(Template((2, 9), ((dt.i32, (50,)), (dt.f32, (50, 9))), (s,)))
    where = rng.integers(0, 2, 50).astype(np.int32)
    values = rng.standard_normal((50, 9)).astype(np.float32)
    want = np.zeros((2, 9), np.float32)
    for n in range(50):
        want[where[n]] += values[n]
    for target in (NARROW, WIDE):
        for config in PATTERN.configs(kernel, target):
            out = np.full((2, 9), np.nan, np.float32)
            run(PATTERN.lower(kernel, config, target), kernel, [where, values, out])
            assert out.tobytes() == want.tobytes(), config


def windows(rng):
    """(kernel, inputs): `S[i, a[i, j]] += x[i, j]`, and the same along the other dimension."""
    i, j = axes(2)
    for index, shape in (((i, read(0, i, j, dtype=dt.i32)), (13, 5)), ((read(0, i, j, dtype=dt.i32), j), (5, 21))):
        s = Scatter("sum", (13, 21), index, read(1, i, j))
        params = ((dt.i32, (13, 21)), (dt.f32, (13, 21)))
        yield kernel_of(Template(shape, params, (s,))), [rng.integers(0, 5, (13, 21)).astype(np.int32)]


def test_computed_positions_with_an_independent_axis(rng):
    for kernel, inputs in windows(rng):
        check(PATTERN, kernel, rng, targets=(NARROW,), inputs=inputs)


def test_strided_diagonal_and_folded_positions(rng):
    i, j = axes(2)
    cases = [
        ((9,), (i, i), (9, 9), read(0, i)),
        ((9,), (add(mul(i, 2), 1),), (20,), read(0, i)),
        ((4, 9), (add(i, j),), (12,), read(0, i, j)),
        ((4, 9), (mul(i, j),), (25,), read(0, i, j)),
        ((3, 4, 5), (mod(add(i, Axis(2)), 2), j), (2, 4), read(0, i, j, Axis(2))),
    ]
    for extents, index, shape, body in cases:
        check(PATTERN, kernel_of(Template(shape, ((dt.f32, extents),), (Scatter("sum", extents, index, body),))), rng)


def started(rows, width, tokens, body):
    """`out[r, d] = body, out[ids[t], d] += x[t, d]`."""
    t, d = axes(2)
    first = Piece((0, 0), (1, 1), (rows, width), body)
    s = Scatter("sum", (tokens, width), (read(0, t, dtype=dt.i32), d), read(1, t, d))
    params = ((dt.i32, (tokens,)), (dt.f32, (tokens, width)), (dt.f32, (rows, width)))
    return Template((rows, width), params, (first, s))


@pytest.mark.parametrize("rows, tokens, width", [(1, 1, 1), (5, 9, 17), (7, 20, 4)])
def test_initial_value(rng, rows, tokens, width):
    r, d = axes(2)
    kernel = kernel_of(started(rows, width, tokens, apply("exp", read(2, r, d))))
    assert not in_place(kernel)
    check(PATTERN, kernel, rng, inputs=[rng.integers(0, rows, tokens).astype(np.int32)])


def test_initial_value_in_pieces(rng):
    """Empty domains leave it as it is."""
    i = Axis(0)
    start = (Piece((0,), (2,), (4,), read(0, i)), Piece((1,), (2,), (3,), num(2.0)))
    for n in (0, 11):
        s = Scatter("sum", (n,), (mod(mul(i, 3), 7),), read(1, i))
        check(PATTERN, kernel_of(Template((7,), ((dt.f32, (4,)), (dt.f32, (n,))), (*start, s))), rng)


def test_elements_that_no_point_reaches_are_untouched(rng):
    """The initial value is the output's own memory: only the destinations are read and written."""
    r, d = axes(2)
    t = started(50, 17, 9, read(2, r, d))
    buffers = (KernelBuffer(dt.i32, (9,)), KernelBuffer(dt.f32, (9, 17)), KernelBuffer(dt.f32, (50, 17)))
    kernel = Kernel((Stage(t, (("buffer", 0), ("buffer", 1), ("buffer", 2)), (2,)),), buffers)
    assert in_place(kernel)
    assert not in_place(kernel_of(t))
    other = started(50, 17, 9, read(2, sub(49, r), d))
    assert not in_place(Kernel((Stage(other, kernel.stages[0].args, (2,)),), buffers))
    ids = rng.integers(0, 50, 9).astype(np.int32)
    check(PATTERN, kernel, rng, inputs=[ids])
    for target in (NARROW, WIDE):
        for config in PATTERN.configs(kernel, target):
            lowered = PATTERN.lower(kernel, config, target)
            assert len(lowered.launches) == 1
            cheap = PATTERN.cost(kernel, config, target).seconds
            assert cheap < PATTERN.cost(kernel_of(t), config, target).seconds


def test_choice_and_refusal():
    i = Axis(0)
    t = Template((5,), ((dt.i32, (9,)),), (Scatter("sum", (9,), (read(0, i, dtype=dt.i32),), num(1.0)),))
    kernel = kernel_of(t)
    chosen = autoconfig.choose(kernel, WIDE)
    assert chosen.pattern.name == "scatter"
    assert chosen.cost.seconds == min(c.seconds for _, _, c in chosen.alternatives)
    after = template((5,), [(dt.f32, (5,))], apply("neg", read(0, i)))
    stages = (Stage(t, (("buffer", 0),), (None,)), Stage(after, (("stage", 0, 0),), (1,)))
    with pytest.raises(CompileError, match="scatter"):
        autoconfig.choose(Kernel(stages, (KernelBuffer(dt.i32, (9,)), KernelBuffer(dt.f32, (5,)))), WIDE)


def test_cost_picks_one_task_for_little_and_several_for_much():
    i = Axis(0)
    small = plain((100,), [(dt.f32, (100,))], apply("neg", read(0, i)))
    large = plain((1 << 24,), [(dt.f32, (1 << 24,))], apply("neg", read(0, i)))
    assert autoconfig.choose(small, WIDE).config.tasks == 1
    assert autoconfig.choose(large, WIDE).config.tasks > 1
    assert "pointwise" in explain(large, WIDE)


@pytest.mark.parametrize("corruption", ["order", "start", "place"])
def test_corruptions_are_noticed(corruption, rng, monkeypatch):
    """Points in another order, an initial value that is left out, another place."""
    t, d = axes(2)
    kernel = kernel_of(started(3, 5, 60, read(2, *axes(2))))
    inputs = [rng.integers(0, 3, 60).astype(np.int32)]
    config = ScatterConfig(None, None, 0, 1)
    if corruption == "order":
        values = rng.standard_normal((60, 5)).astype(np.float32)
        start = rng.standard_normal((3, 5)).astype(np.float32)
        seen = set()
        for k in (kernel, mirrored(kernel, 60)):
            out = np.zeros((3, 5), np.float32)
            run(PATTERN.lower(k, config, NARROW), k, [*inputs, values, start, out])
            seen.add(out.tobytes())
        assert len(seen) == 2, "sums of 20 floats in reverse are bitwise others"
        return
    if corruption == "start":
        monkeypatch.setattr(scatter_pattern, "_plan_initial_value", lambda kernel, target: None)
    else:
        monkeypatch.setattr(points, "combine_at", lambda em, fn, to, at, x: combine_at(em, fn, to, LinearForm(), x))
    with pytest.raises(AssertionError):
        check(PATTERN, kernel, rng, inputs=inputs, configs=[config])


def mirrored(kernel, n):
    """The kernel with its points from the last to the first."""
    stage = kernel.stages[0]
    *start, s = stage.template.parts
    turn = {0: sub(n - 1, Axis(0))}
    new = Scatter("sum", s.extents, tuple(substitute(i, turn) for i in s.index), substitute(s.body, turn))
    t = Template(stage.template.shape, stage.template.params, (*start, new))
    return Kernel((Stage(t, stage.args, stage.outputs),), kernel.buffers)


def test_threads_do_not_change_a_bit(rng):
    """Rows and single elements, compiled: bitwise what a loop over the points gives, on any number of threads."""
    ids, x = rng.integers(0, 300, 5000), rng.standard_normal((5000, 24)).astype(np.float32)
    want = np.zeros((300, 24), np.float32)
    for n, k in enumerate(ids):
        want[k] += x[n]
    rows = es.op("S[ids[i],k] += X[i,k]", extents={"S.shape[0]": 300})
    single = es.op("S[ids[i]] += X[i]", extents={"S.shape[0]": 300})
    try:
        for threads in (1, 2, 3, 8):
            es.set_threads(threads)
            assert es.jit(rows)(ids, x).tobytes() == want.tobytes()
            assert es.jit(single)(ids, x[:, 5].copy()).tobytes() == want[:, 5].tobytes()
    finally:
        es.set_threads(None)
