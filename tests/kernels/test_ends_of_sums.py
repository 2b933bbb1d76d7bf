"""Sums of products of which an axis of K ends at a number that is known when the kernel runs: what lies beyond changes
nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import product as product_of

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Apply, Axis, Const, Piece, Read, Template, apply, postorder
from einsmith.kernels import autoconfig
from einsmith.kernels.contraction.config import HaloBlock, Tiled
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION, Configs
from einsmith.kernels.contraction.search import halo_copies_of
from einsmith.schedule.contraction_problem import problems
from tests.kernels import runner
from tests.kernels.cover import each_value
from tests.kernels.runner import host, random_array, run_native, sampled
from tests.kernels.samples import (
    add,
    axes,
    both,
    inside,
    kernel_of,
    mul,
    num,
    over,
    plain,
    read,
    strided_conv_dx,
    zero_unless,
)
from tests.kernels.test_contraction_words import BF16, configs_in_words, narrowed, tile_machine
from tests.kernels.test_space import mutants

NUMBER = (dt.i32, ())
MUTANTS = 15
"""Configurations of a pattern with other genes, in which a kernel is compiled."""


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
    guards = [
        e for e in postorder(part.bodies) if isinstance(e, Apply) and e.fn == "lt" and isinstance(e.args[0], Axis)
    ]
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
