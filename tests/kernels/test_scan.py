"""The scan pattern against the evaluator: combiners, directions, rows and columns, parts, epilogues, infinities."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Reduce, apply, cast, template
from einsmith.kernels.scan import Scan, ScanConfig
from einsmith.schedule.kernel import Kernel, KernelBuffer, LimitedKernel, Stage
from tests.kernels.runner import WIDE, check, host, random_array, reference, run_native, sampled
from tests.kernels.samples import add, axes, le, lt, mul, num, plain, read, scan, scanned, sub

PATTERN = Scan()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("n", [2, 3, 15, 16, 17, 37])
def test_rows_and_columns(rng, n, is_backward):
    for along in ("rows", "columns"):
        check(PATTERN, scan("sum", 5, n, along, is_backward), rng)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", [dt.f32, dt.f64, dt.i32, dt.i64])
def test_combiners_and_types(rng, combiner, dtype, is_backward):
    t, j = axes(2)
    body = scanned(37, read(0, j, dtype=dtype), t, j, combiner, is_backward)
    check(PATTERN, plain((37,), [(dtype, (37,))], body), rng, tolerance=1e-4)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("mode", ["row", "column"])
@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("n", [64, 131])
def test_parts_of_the_axis(rng, mode, is_backward, n):
    i, t, c, j = axes(4)
    kernel = plain((2, n, 5), [(dt.f32, (2, n, 5))], scanned(n, read(0, i, j, c), t, j, "sum", is_backward))
    configs = [ScanConfig(mode, 16, u, tasks, parts) for u, tasks in ((1, 3), (2, 1)) for parts in (2, 3, 4)]
    check(PATTERN, kernel, rng, [WIDE], configs=configs)


@sampled(8)
@pytest.mark.parametrize("is_backward", [False, True])
def test_infinities_reach_their_own_results_alone(is_backward):
    """Infinite and NaN elements reach the results that they are part of, and no others; guarded ones reach none."""
    i, t, j = axes(3)
    x = np.ones((3, 200), np.float32)
    x[:, 93], x[1, 150], x[2, 60] = np.inf, np.nan, -np.inf
    kernel = plain((3, 200), [(dt.f32, (3, 200))], scanned(200, read(0, i, j), t, j, is_backward=is_backward))
    check(PATTERN, kernel, 1, inputs=[x])
    for combiner in ("max", "min"):
        kernel = plain((3, 200), [(dt.f32, (3, 200))], scanned(200, read(0, i, j), t, j, combiner, is_backward))
        check(PATTERN, kernel, 1, inputs=[x])
    body = apply("where", lt(j, 90), read(0, i, j), num(0.0))
    check(
        PATTERN, plain((3, 200), [(dt.f32, (3, 200))], scanned(200, body, t, j, is_backward=is_backward)), 1, inputs=[x]
    )


@sampled(2)
@pytest.mark.parametrize("is_backward", [False, True])
def test_elements_that_a_guard_keeps_in_bounds(rng, is_backward):
    """A sum up to the element before: the first has none."""
    i, t, j = axes(3)
    for shift in (1, 5):
        before = apply("where", le(shift, j), read(0, i, sub(j, shift)), num(0.0))
        check(PATTERN, plain((4, 51), [(dt.f32, (4, 50))], scanned(51, before, t, j, is_backward=is_backward)), rng)
        after = apply("where", lt(j, 50 - shift), read(0, i, add(j, shift)), num(0.0))
        check(PATTERN, plain((4, 50), [(dt.f32, (4, 50))], scanned(50, after, t, j, is_backward=is_backward)), rng)


@sampled(2)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("n", [17, 64, 130])
def test_epilogues_and_conversions(rng, n, is_backward):
    """Elements are converted to float64, summed, scaled by an operand of the position, and stored in float32."""
    i, t, j = axes(3)
    root = template(
        (3, n),
        [(dt.f32, (3, n))],
        scanned(n, cast(mul(read(0, i, j), read(0, i, j)), dt.f64), t, j, "sum", is_backward),
    )
    later = template(
        (3, n), [(dt.f64, (3, n)), (dt.f32, (n,))], mul(cast(read(0, i, t, dtype=dt.f64), dt.f32), read(1, t))
    )
    buffers = (KernelBuffer(dt.f32, (3, n)), KernelBuffer(dt.f32, (n,)), KernelBuffer(dt.f32, (3, n)))
    stages = (Stage(root, (("buffer", 0),), (None,)), Stage(later, (("stage", 0, 0), ("buffer", 1)), (2,)))
    check(PATTERN, Kernel(stages, buffers), rng)


def test_what_is_no_scan():
    i, t, j = axes(3)
    x = [(dt.f32, (5, 40))]
    bodies = [
        scanned(40, mul(read(0, i, j), read(0, i, t)), t, j),
        Reduce("sum", (40,), (apply("where", le(j, t), read(0, i, j), num(1.0)),)),
        Reduce("sum", (40,), (apply("where", lt(j, t), read(0, i, j), num(0.0)),)),
        Reduce("sum", (40,), (apply("where", le(j, mul(2, t)), read(0, i, j), num(0.0)),)),
        Reduce("argmax", (40,), (apply("where", le(j, t), read(0, i, j), num(-np.inf)),)),
        scanned(40, read(0, i, j), i, j),
    ]
    for body in bodies:
        assert not PATTERN.match(plain((5, 40), x, body))


def test_long_axes_are_divided(rng):
    t, j = axes(2)
    kernel = plain((701,), [(dt.f32, (701,))], scanned(701, read(0, j), t, j))
    assert {c.parts for c in PATTERN.configs(kernel, WIDE)} >= {1, 2}
    check(PATTERN, kernel, rng, [WIDE], tolerance=1e-4)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scans_end_at_a_limit(rng, axis, is_backward, is_guarded):
    """Scans along and across the axis that ends. From the end, elements beyond it count unless a guard says they do
    not."""
    i, t, c, j = axes(4)
    shape = 3, 67, 21
    guards = (lt(j, read(1, dtype=dt.i32)),) if is_guarded and axis == 1 else ()
    element = read(0, i, j, c) if not guards else apply("where", *guards, read(0, i, j, c), num(0.0))
    whole = plain(shape, [(dt.f32, shape), (dt.i32, ())], scanned(67, element, t, j, "sum", is_backward))
    kernel = LimitedKernel(whole.stages, whole.buffers, None, (), ((axis, 1),), False)
    result = kernel.stages[0].outputs[0]
    lanes = host().lanes(4)
    configs = [ScanConfig(mode, lanes, u, tasks, 1) for mode in ("row", "column") for u in (1, 2) for tasks in (1, 3)]
    configs += [ScanConfig(mode, lanes, 1, 1, parts) for mode in ("row", "column") for parts in (2, 3)]
    for config in configs:
        lowered = PATTERN.lower(kernel, config, host())
        for end in (1, 2, shape[axis] // 2, shape[axis] - 1, shape[axis]):
            arrays = [random_array(rng, b) for b in kernel.buffers]
            arrays[1] = np.asarray(end, np.int32)
            beyond = (*[slice(None)] * axis, slice(end, None))
            if guards or axis != 1 or not is_backward:
                arrays[0][beyond] = np.nan
            below = (*[slice(None)] * axis, slice(None, end))
            want = reference(kernel, arrays)[result][below]
            arrays[result][...] = np.nan
            run_native(lowered, arrays, host())
            np.testing.assert_allclose(arrays[result][below], want, rtol=2e-5, atol=2e-5, err_msg=f"{config} {end}")
            ends = config.parts == 1 and (axis != 1 or not is_backward or is_guarded)
            if ends and end == 1 and (axis, config.mode) in ((0, "row"), (0, "column"), (1, "column"), (2, "row")):
                assert np.isnan(arrays[result]).mean() > 0.6, f"{config} computes all"
