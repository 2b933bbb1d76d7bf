"""Sums of products whose first axis of K ends at a number that is known when the kernel runs, and kernels of which only
the first rows count: what lies beyond changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product as product_of

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Apply, Axis, Const, Piece, Read, Template, apply, postorder
from einsmith.kernels import autoconfig
from einsmith.kernels.contraction.config import HaloBlock, Tiled
from einsmith.kernels.contraction.pattern import CONTRACTION, Configs
from einsmith.kernels.contraction.problem import problems
from einsmith.kernels.contraction.search import halo_copies_of
from einsmith.schedule.kernel import Beyond, Kernel, KernelBuffer, LimitedKernel, Stage, limits_of
from tests.kernels import runner
from tests.kernels.cover import each_value
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
    kernel_of,
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
from tests.kernels.test_contraction_words import BF16, configs_in_words, narrowed, tile_machine
from tests.kernels.test_space import mutants

NUMBER = (dt.i32, ())
MUTANTS = 15
"""Configurations of a pattern with other genes, in which a kernel is compiled."""
LARGE = "contraction", "stencil"
"""Patterns whose kernels take long to compile, of whose configurations a test that is `sampled` runs some."""


def below(axis, slot, x):
    return apply("where", apply("lt", axis, Read(slot, (), dt.i32)), x, num(0.0))


def outer_product(rows, m, n):
    i, j, r = axes(3)
    body = below(r, 2, mul(read(0, r, i), read(1, r, j)))
    return plain((m, n), [(dt.f32, (rows, m)), (dt.f32, (rows, n)), NUMBER], over("sum", (rows,), body))


def rows_product(m, n, rows):
    """K is contiguous in both operands."""
    i, j, r = axes(3)
    body = below(r, 2, mul(read(0, i, r), read(1, j, r)))
    return plain((m, n), [(dt.f32, (m, rows)), (dt.f32, (n, rows)), NUMBER], over("sum", (rows,), body))


def filter_gradient(rows, channels, filters, size):
    o, c, ky, kx, r, y, x = axes(7)
    params = [(dt.f32, (rows, filters, size, size)), (dt.f32, (rows, channels, size + 2, size + 2)), NUMBER]
    body = below(r, 2, mul(read(0, r, o, y, x), read(1, r, c, add(y, ky), add(x, kx))))
    return plain((filters, channels, 3, 3), params, over("sum", (rows, size, size), body))


def padded_filter_gradient(rows, channels, filters, size):
    """Guards leave out the borders."""
    o, c, ky, kx, r, y, x = axes(7)
    at = add(add(y, ky), -1), add(add(x, kx), -1)
    params = [(dt.f32, (rows, filters, size, size)), (dt.f32, (rows, channels, size, size)), NUMBER]
    body = zero_unless(both(*(inside(i, size) for i in at)), mul(read(0, r, o, y, x), read(1, r, c, *at)))
    return plain((filters, channels, 3, 3), params, over("sum", (rows, size, size), below(r, 2, body)))


def depthwise_gradient(rows, channels, size, across=None):
    """The gradient of the filters of a depthwise convolution."""
    c, ky, kx, r, y, x = axes(6)
    at = add(add(y, ky), -1), add(add(x, kx), -1)
    shape = (rows, channels, size, across or size)
    params = [(dt.f32, shape), (dt.f32, shape), NUMBER]
    guard = both(*(inside(i, n) for i, n in zip(at, shape[2:], strict=True)))
    body = mul(read(0, r, c, y, x), zero_unless(guard, read(1, r, c, *at)))
    return plain((channels, 3, 3), params, over("sum", (rows, *shape[2:]), below(r, 2, body)))


def drawn(kernel, rng, count):
    """Configurations of the tiled form, of every way in which operands reach the tiles."""
    found = []
    while len(found) < count:
        a, b = (str(x) for x in rng.choice(["inline", "panel", "buffer"], 2))
        swap, mr, nv, kc, split = (
            int(rng.choice(x)) for x in ((0, 1), (1, 4, 6), (1, 2), (0, 0, 16, 48), (1, 1, 2, 3))
        )
        c = Tiled(bool(swap), mr, nv, a, b, str(rng.choice(["n", "m"])), kc, split)
        if not CONTRACTION.legal(kernel, Configs((c,), ()), host()):
            found.append(Configs((c,), ()))
    return found


def in_parts(kernel):
    """Configurations of the tiled form whose last parts of K lie beyond the end, with packed operands."""
    for n, (a, b, nv) in enumerate(product_of(["panel", "buffer"], ["panel", "buffer"], [1, 2])):
        c = Configs((Tiled(n % 3 == 0, 4, nv, a, b, "n", 0, 3),), ())
        if not CONTRACTION.legal(kernel, c, host()):
            yield c


def in_copies(kernel):
    """Configurations that read halo copies: of a whole operand, of a point, or of blocks of an axis of K or of a side,
    with all of K and in three parts of it."""
    pieces = problems(kernel.root)
    if pieces is None or len(pieces) > 1:
        return
    (p,) = pieces
    cuts = [HaloBlock(place, n, of_k) for place, n, of_k in product_of((0, 1), (2, 3), (False, True))]
    every = [*filter(None, halo_copies_of(p)), *(((i, x),) for i, x in product_of((0, 1), cuts))]
    proposed = [c for (c,) in (x.pieces for x in CONTRACTION.configs(kernel, host())) if isinstance(c, Tiled)]
    proposed = [c for c in proposed if c.windows] or proposed[:3]
    for c, windows, split in product_of(proposed, every, (1, 3)):
        ((i, fixes),) = windows
        if isinstance(fixes, HaloBlock) and not fixes.of_k:  # a task has a block
            axes_ = p.right if i else p.left
            if len(axes_) <= fixes.place:
                continue
            blocks = p.extents[axes_[fixes.place]] // fixes.points
            c = replace(c, tm=blocks, tn=1) if i == int(c.swap) else replace(c, tm=1, tn=blocks)
        changed = Configs((replace(c, windows=windows, split=split),), ())
        if not CONTRACTION.legal(kernel, changed, host()):
            yield changed


def packed(kernel, rng):
    """Configurations of the tiled form: each way in which the rows reach the tiles, with three heights of tiles."""
    for a, swap, mr in product_of(["inline", "panel", "buffer"], [False, True], rng.choice(range(2, 13), 3, False)):
        c = Configs((Tiled(swap, int(mr), 1, a, "panel", "n", 0, 1),), ())
        if not CONTRACTION.legal(kernel, c, host()):
            yield c


SUMS = {
    "whole vectors of K": outer_product(48, 5, 33),
    "other K": outer_product(37, 17, 9),
    "contiguous K": rows_product(6, 33, 48),
    "long K": outer_product(1500, 8, 40),
    "filters": filter_gradient(24, 1, 4, 6),
    "more filters": filter_gradient(9, 3, 8, 4),
    "few filters": filter_gradient(13, 1, 6, 20),
    "filters and borders": padded_filter_gradient(11, 3, 5, 8),
    "more filters and borders": padded_filter_gradient(6, 17, 16, 4),
}


def sequences(batch, steps, m, n):
    """Sums over all steps of all sequences; steps end."""
    i, j, b, t = axes(4)
    params = [(dt.f32, (batch, steps, m)), (dt.f32, (batch, steps, n)), NUMBER]
    return plain((m, n), params, over("sum", (batch, steps), below(t, 2, mul(read(0, b, t, i), read(1, b, t, j)))))


def heights_gradient(rows, channels, filters, size):
    """The gradient of filters by images of which the first pixels along an axis count, that of rows."""
    o, c, ky, kx, r, y, x = axes(7)
    at = add(add(y, ky), -1), add(add(x, kx), -1)
    params = [(dt.f32, (rows, filters, size, 7)), (dt.f32, (rows, channels, size, 7)), NUMBER]
    guard = both(apply("lt", at[0], apply("min", Read(2, (), dt.i32), Const(size, dt.i32))), inside(at[1], 7))
    body = mul(read(0, r, o, y, x), zero_unless(both(apply("le", Const(0, dt.i32), at[0]), guard), read(1, r, c, *at)))
    return plain((filters, channels, 3, 3), params, over("sum", (rows, size, 7), below(y, 2, body)))


SUMS |= {
    "sequences": sequences(3, 37, 9, 33),
    "long sequences": sequences(2, 700, 5, 40),
    "heights": heights_gradient(3, 5, 6, 11),
}


def gathered(rows, m, n, guard):
    """A sum of products with rows of a table; `guard(r, i, number)` is the condition of a term."""
    i, j, r = axes(3)
    index = Read(3, (r,), dt.i32)
    body = apply("where", guard(r, i, Read(2, (), dt.i32)), mul(read(0, r, i), read(1, index, j)), num(0.0))
    params = [(dt.f32, (rows, m)), (dt.f32, (TABLE, n)), NUMBER, (dt.i32, (rows,))]
    return plain((m, n), params, over("sum", (rows,), body))


TABLE = 7
SUMS |= {
    "gathered rows": gathered(37, 24, 33, lambda r, i, number: apply("lt", r, number)),
    "gathered rows, whole vectors": gathered(48, 5, 64, lambda r, i, number: apply("lt", r, number)),
    "gathered rows below a diagonal": gathered(37, 24, 33, lambda r, i, number: apply("lt", add(r, i), number)),
}


def ending(kernel) -> int:
    """The extent of the axis of K that ends at the number in buffer 2."""
    part = kernel.root.parts[0]
    guards = (e for e in postorder(part.bodies) if isinstance(e, Apply) and e.fn == "lt")
    (axis,) = {e.args[0].position for e in guards if e.args[1] is Read(2, (), dt.i32)} or {len(part.extents)}
    return part.domain[axis]


def draw_up_to(kernel, end, is_nan, monkeypatch) -> None:
    """Have arrays drawn whose rows beyond `end` are NaN, or numbers and no index."""
    rows, draw = ending(kernel), random_array

    def draw_below(rng, b):
        if not b.shape:
            return np.asarray(end, np.int32)
        x = draw(rng, b) % TABLE if b.dtype.is_int else draw(rng, b)
        if rows in x.shape and (is_nan or b.dtype.is_int):
            beyond = tuple(slice(end if k == rows else 0, None) for k in x.shape)
            x[beyond] = np.nan if b.dtype.is_float else 2**31 - 1
        return x

    monkeypatch.setattr(runner, "random_array", draw_below)


STENCIL = autoconfig.pattern_of("stencil")
DEPTHWISE = {
    "wide": depthwise_gradient(11, 5, 20),
    "rows of half a vector": depthwise_gradient(10, 4, 5, 7),
    "rows of four": depthwise_gradient(12, 3, 4),
}


@pytest.mark.parametrize("is_nan", [False, True])
@pytest.mark.parametrize("case", DEPTHWISE)
def test_k_of_stencils_ends_at_a_number(case, is_nan, rng, monkeypatch) -> None:
    """Images that share a vector end at the number, too."""
    kernel = DEPTHWISE[case]
    rows = kernel.root.parts[0].body.extents[0]
    assert any(c.along_k for c in STENCIL.configs(kernel, host()))
    for end in (-1, 0, 1, 3, rows - 1, rows, rows + 1):
        draw_up_to(kernel, end, is_nan, monkeypatch)
        runner.check(STENCIL, kernel, rng, [host()], native=True)


@sampled(4)
@pytest.mark.parametrize("is_nan", [False, True])
@pytest.mark.parametrize("case", SUMS)
def test_k_ends_at_a_number(case, is_nan, rng, monkeypatch) -> None:
    """What lies beyond the end is NaN or a number, and no index."""
    kernel = SUMS[case]
    rows = ending(kernel)
    for end in (1, rows // 3 + 1, rows):
        draw_up_to(kernel, end, is_nan, monkeypatch)
        configs = [CONTRACTION.best(kernel, host()), *drawn(kernel, rng, 5), *in_parts(kernel), *in_copies(kernel)]
        configs += mutants(CONTRACTION, kernel, host(), rng, MUTANTS)
        runner.check(CONTRACTION, kernel, rng, [host()], configs=configs, native=True)


def test_panels_are_packed_up_to_a_number(rng, monkeypatch) -> None:
    """A panel of whole vectors ends within one of them: the sum takes all of its points."""
    draw_up_to(SUMS["filters"], 9, True, monkeypatch)
    config = Configs((Tiled(mr=1, nv=1, a="panel", b="inline", kc=16),))
    assert not CONTRACTION.legal(SUMS["filters"], config, host())
    runner.check(CONTRACTION, SUMS["filters"], rng, [host()], configs=[config], native=True)


def test_images_beyond_the_end_are_not_copied(rng) -> None:
    """There is no memory behind the last image that counts, where each is copied by itself."""
    kernel, tried = SUMS["filters and borders"], 0
    for config in in_copies(kernel):
        if config.pieces[0].windows != ((1, "k"),):
            continue
        lowered = CONTRACTION.lower(kernel, config, host())
        for end in (1, 4, 11):
            arrays = [random_array(rng, b) for b in kernel.buffers]
            arrays[2] = np.asarray(end, np.int32)
            want = runner.reference(kernel, arrays)[3]
            arrays[:2] = [x[:end].copy() for x in arrays[:2]]
            arrays[3][...] = np.nan
            run_native(lowered, arrays, host())
            np.testing.assert_allclose(arrays[3], want, rtol=1e-4, atol=1e-4, err_msg=str(config))
            tried += 1
    assert tried


@pytest.mark.parametrize("case", ["filters", "more filters", "sequences"])
def test_k_of_words_ends_at_a_number(case, rng, monkeypatch) -> None:
    kernel = narrowed(SUMS[case], *BF16)
    rows = ending(kernel)
    target = tile_machine()
    every = configs_in_words(kernel, target)
    configs = [Configs((c,)) for c in (*each_value(every)[:6], *[c for c in every if c.tiles][:2])]
    assert configs
    for end in (-1, 1, rows // 2, rows, rows + 1):
        draw_up_to(kernel, end, False, monkeypatch)
        runner.check(CONTRACTION, kernel, rng, [target], tolerance=1e-4, configs=configs, native=True)


@pytest.mark.parametrize("is_nan", [False, True])
def test_k_of_pieces_ends_at_a_number(is_nan, rng, monkeypatch) -> None:
    """Pieces whose results are interleaved, some of them computed together."""
    root = strided_conv_dx(2, 3, 6, 14, 17).root
    parts = tuple(
        replace_body(part, over("sum", part.body.extents, below(Axis(4), 2, part.body.bodies[0])))
        for part in root.parts
    )
    kernel = kernel_of(Template(root.shape, (*root.params, NUMBER), parts))
    configs = [*CONTRACTION.configs(kernel, host()), *mutants(CONTRACTION, kernel, host(), rng, MUTANTS)]
    assert any(c.joint for c in configs)
    for end in (-1, 1, 8, 17, 18):
        draw_up_to(kernel, end, is_nan, monkeypatch)
        runner.check(CONTRACTION, kernel, rng, [host()], configs=configs, native=True)


def replace_body(part, body):
    return Piece(part.offset, part.step, part.extents, body)


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
