"""Kernels of which only the first points of axes count, up to numbers that are known when they run: what lies beyond
changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product as product_of

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Const, Piece, Read, Template, apply
from einsmith.kernels import autoconfig
from einsmith.kernels.contraction.config import Tiled
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION, Configs
from einsmith.schedule.kernel import Beyond, Kernel, KernelBuffer, LimitedKernel, Stage, limits_of
from tests.kernels import runner
from tests.kernels.runner import host, random_array, run_native, sampled
from tests.kernels.samples import (
    add,
    axes,
    biased,
    both,
    conv_dx,
    depthwise,
    div,
    inside,
    mod,
    mul,
    num,
    over,
    plain,
    pointwise_dx,
    read,
    strided_conv_dx,
    zero_unless,
)
from tests.kernels.test_ends_of_sums import in_copies
from tests.kernels.test_space import mutants

NUMBER = (dt.i32, ())
MUTANTS = 15
"""Configurations of a pattern with other genes, in which a kernel is compiled."""
LARGE = "contraction", "stencil"
"""Patterns whose kernels take long to compile, of whose configurations a test that is `sampled` runs some."""


def packed(kernel, rng):
    """Configurations of the tiled form: each way in which the rows reach the tiles, with three heights of tiles."""
    for a, swap, mr in product_of(["inline", "panel", "buffer"], [False, True], rng.choice(range(2, 13), 3, False)):
        c = Configs((Tiled(swap, int(mr), 1, a, "panel", "n", 0, 1),), ())
        if not CONTRACTION.legal(kernel, c, host()):
            yield c


def product(rows, m, k):
    i, j, r = axes(3)
    return plain(
        (rows, m), [(dt.f32, (rows, k)), (dt.f32, (m, k))], over("sum", (k,), mul(read(0, i, r), read(1, j, r)))
    )


def batched(rows, m, k):
    b, i, j, r = axes(4)
    body = mul(read(0, b, i, r), read(1, b, j, r))
    return plain((rows, m, m), [(dt.f32, (rows, m, k)), (dt.f32, (rows, m, k))], over("sum", (k,), body))


def matrices(rows, others, size):
    """Small matrices times others: rows of results, as many as the limit leaves, make whole vectors together."""
    b, o, i, j, r = axes(5)
    params = [(dt.f32, (rows, size, size)), (dt.f32, (others, size, size))]
    return plain((rows, others, size, size), params, over("sum", (size,), mul(read(0, b, i, r), read(1, o, r, j))))


def convolution(rows, channels, filters, size):
    n, o, y, x, c, ky, kx = axes(7)
    params = [(dt.f32, (rows, channels, size + 2, size + 2)), (dt.f32, (filters, channels, 3, 3))]
    body = mul(read(0, n, c, add(y, ky), add(x, kx)), read(1, o, c, ky, kx))
    return plain((rows, filters, size, size), params, over("sum", (channels, 3, 3), body))


def pointwise(*shape):
    index = axes(len(shape))
    return plain(shape, [(dt.f32, shape)], mul(read(0, *index), num(3.0)))


def pooling(rows, channels, size):
    n, c, y, x, ky, kx = axes(6)
    body = read(0, n, c, add(mul(y, 2), ky), add(mul(x, 2), kx))
    params = [(dt.f32, (rows, channels, 2 * size, 2 * size))]
    return plain((rows, channels, size, size), params, over("max", (2, 2), body))


def turned(rows, *shape):
    """Axis 0 of the results is the last one of the operand."""
    i, *rest = axes(1 + len(shape))
    return plain((rows, *shape), [(dt.f32, (*shape, rows))], mul(read(0, *rest, i), num(3.0)))


def turned_sums(rows, m, k):
    i, j, r = axes(3)
    body = mul(read(0, r, j, i), read(0, r, j, i))
    return plain((rows, m), [(dt.f32, (k, m, rows))], over("max", (k,), body))


def row_sums(rows, k):
    i, r = axes(2)
    return plain((rows,), [(dt.f32, (rows, k))], over("sum", (k,), read(0, i, r)))


def transposed(rows, channels, filters, n):
    """A transposed convolution of stride 2 by filters of 4, along a row: each tap of two meets every other result."""
    i, f, x, c, r = axes(5)
    at = add(div(add(x, 1), 2), r)
    body = mul(read(0, i, c, at), read(1, c, f, add(mul(r, 2), mod(x, 2))))
    params = [(dt.f32, (rows, channels, n + 2)), (dt.f32, (channels, filters, 4))]
    return plain((rows, filters, 2 * n), params, over("sum", (channels, 2), body))


ROWS = {
    "product": product(37, 20, 24),
    "tall product": product(300, 48, 64),
    "batched product": batched(9, 12, 16),
    "matrices": matrices(13, 8, 4),
    "convolution": convolution(5, 3, 8, 6),
    "convolution to points": convolution(20, 6, 17, 1),
    "pointwise": pointwise(37, 40),
    "pointwise vector": pointwise(301),
    "pointwise images": pointwise(11, 3, 5, 7),
    "row sums": row_sums(45, 70),
    "turned vectors": turned(37, 16),
    "turned images": turned(32, 3, 20),
    "turned": turned(48, 21),
    "turned sums": turned_sums(64, 5, 9),
    "depthwise": depthwise(9, 3, 20, 20, 3, 1),
    "depthwise rows": depthwise(7, 5, 9, 33, 3, 1),
    "pooling": pooling(9, 3, 20),
    "gradient": conv_dx(7, 5, 6, 9, 8, 3, 3, 1),
    "gradient and a stage": biased(conv_dx(9, 3, 6, 5, 4, 3, 3, 1), 1, True),
    "strided gradient": strided_conv_dx(9, 3, 6, 10, 5),
    "gradient of every other pixel": pointwise_dx(9, 3, 5, 6, 4, 2),
    "transposed convolution": transposed(7, 5, 6, 9),
}


def limited(kernel: Kernel, is_short: bool) -> LimitedKernel:
    buffers = (*kernel.buffers, KernelBuffer(dt.i32, ()))
    limits = ((0, len(kernel.buffers)),)
    return LimitedKernel(kernel.stages, buffers, kernel.loop_invariant, kernel.sums, limits, is_short)


def lower_all(kernel: Kernel, rng: np.random.Generator) -> Iterator[tuple]:
    """Yield (pattern, configuration, code) of a kernel: the best of each pattern, and some changed ones."""
    for pattern in autoconfig.PATTERNS:
        if not pattern.match(kernel):
            continue
        changed = [*mutants(pattern, kernel, host(), rng, MUTANTS)]
        if pattern is CONTRACTION:
            changed += [*packed(kernel, rng), *in_copies(kernel)]
        for config in [pattern.best(kernel, host()), *changed]:
            if config is None or pattern.name in LARGE and not runner.SAMPLE.includes_next():
                continue
            yield pattern, config, pattern.lower(kernel, config, host())


@sampled(4)
@pytest.mark.thinned(4)
@pytest.mark.parametrize("is_short", [True, False])
@pytest.mark.parametrize("case", ROWS)
def test_only_the_first_rows_are_needed(case, is_short, rng) -> None:
    kernel = limited(ROWS[case], is_short)
    result, rows, kept = kernel.stages[0].outputs[0], kernel.shape[0], set()
    for pattern, config, lowered in lower_all(kernel, rng):
        for end in {1, rows // 3 + 1, rows - 1, int(rng.integers(1, rows + 1)), rows}:
            arrays = [random_array(rng, b) for b in kernel.buffers[:-1]] + [np.asarray(end, np.int32)]
            by_row = [n for n in range(len(arrays)) if arrays[n].shape[:1] == (rows,)]
            arrays[0][(..., slice(end, None)) if case.startswith("turned") else slice(end, None)] = np.nan
            want = runner.reference(kernel, arrays)[result][:end]
            buffers = list(kernel.buffers)
            if lowered.beyond is Beyond.UNTOUCHED:  # memory ends at the limit
                kept.add(pattern.name)
                for n in by_row:
                    arrays[n] = arrays[n][:end].copy()
                    buffers[n] = KernelBuffer(buffers[n].dtype, arrays[n].shape)
            arrays[result][...] = np.nan
            run_native(lowered, arrays, host(), buffers=buffers)
            text = f"{pattern.name} {config}"
            np.testing.assert_allclose(arrays[result][:end], want, rtol=2e-5, atol=2e-5, err_msg=text)
    assert kept or len(kernel.shape) == 1 or not is_short or case.startswith("turned")


def axes_limited(kernel: Kernel, axes_: tuple[int, ...], is_short: bool = False) -> LimitedKernel:
    """The kernel with a limit of its own for each of some axes."""
    count = len(kernel.buffers)
    buffers = (*kernel.buffers, *(KernelBuffer(dt.i32, ()) for _ in axes_))
    limits = tuple((a, count + n) for n, a in enumerate(axes_))
    return LimitedKernel(kernel.stages, buffers, kernel.loop_invariant, kernel.sums, limits, is_short)


def shared_product(b, rows, m, k):
    """Rows of a batch times one matrix: batch and rows are one side."""
    p, i, j, r = axes(4)
    params = [(dt.f32, (b, rows, k)), (dt.f32, (k, m))]
    return plain((b, rows, m), params, over("sum", (k,), mul(read(0, p, i, r), read(1, r, j))))


def scores(b, heads, rows, k):
    p, h, i, j, r = axes(5)
    params = [(dt.f32, (b, heads, rows, k))] * 2
    body = mul(read(0, p, h, i, r), read(1, p, h, j, r))
    return plain((b, heads, rows, rows), params, over("sum", (k,), body))


def last_row_sums(b, rows, k):
    p, i, r = axes(3)
    return plain((b, rows), [(dt.f32, (b, rows, k))], over("sum", (k,), read(0, p, i, r)))


def padded_convolution(rows, channels, filters, size, numbers=()):
    """Rows of the image end at a number that is known when the kernel runs, if there is one; columns at another one."""
    n, o, y, x, c, ky, kx = axes(7)
    at = add(add(y, ky), -1), add(add(x, kx), -1)
    guards = [inside(i, size) for i in at]
    for slot, i in zip(numbers, at, strict=False):
        guards.append(apply("lt", i, apply("min", Read(slot, (), dt.i32), Const(size, dt.i32))))
    params = [(dt.f32, (rows, channels, size, size)), (dt.f32, (filters, channels, 3, 3)), *[NUMBER] * len(numbers)]
    body = mul(zero_unless(both(*guards), read(0, n, c, *at)), read(1, o, c, ky, kx))
    return plain((rows, filters, size, size), params, over("sum", (channels, 3, 3), body))


def stretches(rows, m, cuts, across):
    """Pieces that are stretches of an axis, of which each has a formula of its own."""
    i, j = axes(2)
    parts, ends = [], (0, *cuts, m if across else rows)
    for n, (low, high) in enumerate(zip(ends, ends[1:], strict=False)):
        place = (i, add(j, low)) if across else (add(i, low), j)
        offset, extents = ((0, low), (rows, high - low)) if across else ((low, 0), (high - low, m))
        parts.append(Piece(offset, (1, 1), extents, mul(read(0, *place), num(n + 2.0))))
    t = Template((rows, m), ((dt.f32, (rows, m)),), tuple(parts))
    buffer = KernelBuffer(dt.f32, (rows, m))
    return Kernel((Stage(t, (("buffer", 0),), (1,)),), (buffer, buffer))


AXES = {
    "stretches": (stretches(37, 21, (1, 20), False), (0, 1)),
    "stretches of columns": (stretches(9, 67, (1, 2, 65), True), (0, 1)),
    "stretches, some limited": (stretches(37, 40, (17,), False), (0,)),
    "rows of a batch": (shared_product(3, 37, 20, 24), (1,)),
    "rows of a batch and columns": (shared_product(3, 37, 40, 24), (1, 2)),
    "batch, rows and columns": (shared_product(5, 19, 33, 8), (0, 1, 2)),
    "scores": (scores(2, 3, 37, 16), (2, 3)),
    "heads": (scores(2, 5, 17, 16), (1, 3)),
    "columns": (product(37, 300, 24), (1,)),
    "tall columns": (product(300, 80, 64), (0, 1)),
    "batched": (batched(9, 33, 16), (1, 2)),
    "pointwise": (pointwise(5, 37, 40), (1,)),
    "pointwise vectors": (pointwise(5, 3, 267), (2,)),
    "pointwise narrow": (pointwise(5, 37, 3), (1, 2)),
    "pointwise images": (pointwise(11, 3, 15, 17), (0, 2, 3)),
    "row sums": (last_row_sums(3, 45, 70), (1,)),
    "pooling": (pooling(3, 9, 20), (1,)),
    "pooling images": (pooling(2, 3, 20), (2, 3)),
    "turned": (turned(48, 21), (1,)),
    "turned images": (turned(32, 3, 20), (0, 2)),
    "depthwise": (depthwise(3, 9, 20, 20, 3, 1), (1,)),
    "convolution": (convolution(3, 5, 8, 6), (1, 2)),
    "padded convolution": (padded_convolution(3, 5, 8, 6), (0, 2)),
    "convolution of rows": (padded_convolution(2, 5, 6, 12, (2,)), (2,)),
    "convolution of rows and columns": (padded_convolution(2, 3, 17, 9, (2, 3)), (2, 3)),
}
LEFT_OUT = {
    "stretches",
    "stretches of columns",
    "rows of a batch",
    "scores",
    "columns",
    "pointwise",
    "pointwise vectors",
    "row sums",
    "pooling",
    "tall columns",
    "batched",
}
"""Kernels of which the best code of each pattern leaves out whole tiles."""


@sampled(4)
@pytest.mark.thinned(4)
@pytest.mark.parametrize("case", AXES)
def test_only_the_first_points_of_axes_are_needed(case, rng) -> None:
    """What lies beyond a limit stays what it was in most places; below all limits, results are those of the whole."""
    whole, limited_axes = AXES[case]
    kernel = axes_limited(whole, limited_axes)
    result, shape, count = kernel.stages[0].outputs[0], kernel.shape, len(whole.buffers)
    ends = {1: [1] * len(limited_axes), 0: [shape[a] for a in limited_axes]}
    ends |= {n: [int(rng.integers(1, shape[a] + 1)) for a in limited_axes] for n in (2, 3, 4)}
    for pattern, config, lowered in lower_all(kernel, rng):
        for end in ends.values():
            arrays = [random_array(rng, b) for b in kernel.buffers[:count]] + [np.asarray(e, np.int32) for e in end]
            below = [slice(None)] * len(shape)
            for a, e in zip(limited_axes, end, strict=True):
                below[a] = slice(None, e)
            want = runner.reference(kernel, arrays)[result][tuple(below)]
            arrays[result][...] = np.nan
            run_native(lowered, arrays, host())
            text = f"{pattern.name} {config} {end}"
            np.testing.assert_allclose(arrays[result][tuple(below)], want, rtol=2e-5, atol=2e-5, err_msg=text)


@pytest.mark.parametrize("case", sorted(LEFT_OUT))
def test_points_beyond_limits_of_axes_are_left_out(case, rng) -> None:
    """At most a tile of each axis lies beyond its limit."""
    whole, limited_axes = AXES[case]
    kernel = axes_limited(whole, limited_axes)
    result, count = kernel.stages[0].outputs[0], len(whole.buffers)
    chosen = autoconfig.choose(kernel, host())
    lowered = chosen.pattern.lower(kernel, chosen.config, host())
    arrays = [random_array(rng, b) for b in kernel.buffers[:count]] + [np.asarray(1, np.int32)] * len(limited_axes)
    arrays[result][...] = np.nan
    run_native(lowered, arrays, host())
    written = np.mean(~np.isnan(arrays[result]))
    assert written <= 0.75, f"{written:.2f} of all points were computed by {chosen}"


def test_parts_of_a_kernel_end_at_its_limits() -> None:
    """Products end where all sums of them do: at the limit of the images, and not at that of rows, which are read at
    other rows."""
    col2im, whole = autoconfig.pattern_of("col2im"), conv_dx(7, 5, 6, 9, 8, 3, 3, 1)
    ((products, sums),) = col2im.limited_ways(axes_limited(whole, (0, 2)), host())
    assert limits_of(sums) == {0: 3, 2: 4}
    assert limits_of(products) == {products.shape.index(7): 3}
    ((products, sums),) = col2im.limited_ways(whole, host())
    assert not limits_of(sums) and not limits_of(products)


@pytest.mark.parametrize("case,name", [("gradient", "col2im"), ("transposed convolution", "by digits")])
def test_parts_leave_rows_out(case, name) -> None:
    pattern, kernel = autoconfig.pattern_of(name), limited(ROWS[case], False)
    lowered = pattern.lower(kernel, pattern.configs(kernel, host())[0], host())
    assert lowered.beyond is not Beyond.COMPUTED
