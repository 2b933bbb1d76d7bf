"""Contractions compiled for this machine agree with the evaluator of the IR, in every configuration."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import cycle
from itertools import product as every

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.base.errors import CompileError
from einsmith.codegen.llvm import jit
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.loopnest.address import BufferMemory
from einsmith.codegen.loopnest.nest_text import show
from einsmith.ir.nodes import Apply, Axis, Const, Reduce, apply, postorder, template
from einsmith.kernels.contraction.config import MAX_HALO_BYTES, Direct, HaloBlock, Tiled, halo_blocks, with_halos
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION, Configs
from einsmith.kernels.contraction.emission.tile_epilogue import form_of
from einsmith.kernels.contraction.epilogue import results
from einsmith.kernels.contraction.geometry import Geometry
from einsmith.kernels.contraction.search import candidates
from einsmith.kernels.contraction.space import explain_illegal
from einsmith.kernels.emit.access import OperandAccess
from einsmith.schedule.contraction_problem import problems
from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage
from tests.kernels.cover import _candidates, each_value
from tests.kernels.runner import WIDE, compare, fresh, host, reference, run_native, sampled
from tests.kernels.runner import check_exact as check
from tests.kernels.samples import (
    F,
    batched,
    biased,
    both,
    capsule,
    capsule_da,
    conv,
    conv_dw,
    conv_dx,
    depthwise,
    depthwise_dw,
    depthwise_dx,
    inside,
    involution,
    involution_dk,
    involution_dx,
    lin,
    load,
    pointwise_dx,
    product,
    strided_conv_dx,
    strided_dx,
    sum_of,
    times,
    zero_unless,
)  # fmt: skip

SIZES = [1, 2, 15, 16, 17, 31, 33]


@sampled(4)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["NN", "NT", "TN", "TT"])
def test_products_at_awkward_sizes(kind):
    rng = np.random.default_rng(sum(map(ord, kind)))
    for m, n, k in [(13, 17, 5), (16, 32, 16), (1, 1, 7), (40, 40, 1)]:
        check(product(m, n, k, kind))
    for _ in range(2):
        m, n, k = (int(x) for x in rng.choice(SIZES, 3))
        check(product(m, n, k, kind))


@sampled(6)
def test_double_precision():
    for m, n, k in [(9, 17, 7), (8, 8, 8), (3, 33, 20)]:
        check(product(m, n, k, "NT", dt.f64))


all_or_some = pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.slow)])
"""All configurations where slow tests run, and few that have each value of each field otherwise."""


def check_some(kernel, full):
    configs = CONTRACTION.configs(kernel, host())
    check(kernel, configs if full else each_value(configs))


@all_or_some
def test_convolutions_forward(full):
    check_some(conv(3, 2, 8, 7, 5, 3, 3, 0), full)
    check_some(conv(2, 3, 9, 7, 4, 3, 3, 1, 2), full)
    check_some(conv(1, 1, 28, 28, 6, 5, 5, 2), full)
    check_some(conv(2, 3, 7, 7, 4, 1, 1, 0, 2), full)
    check_some(conv(2, 7, 9, 11, 13, 3, 3, 1), full)


@all_or_some
def test_convolutions_backward(full):
    check_some(conv_dx(2, 3, 7, 9, 4, 5, 5, 2), full)
    check_some(conv_dw(3, 2, 8, 7, 4, 3, 3, 1), full)
    check_some(conv_dw(2, 2, 14, 14, 5, 5, 5, 0), full)
    check_some(conv_dw(2, 5, 9, 11, 13, 3, 3, 1), full)


@sampled(6)
@pytest.mark.parametrize("stride", [1, 2])
def test_capsules(stride):
    check(capsule(2, 3, 7, 5, stride))


def test_pieces_of_a_strided_backward():
    check(strided_dx(3, 21, 5, 4))
    check(strided_dx(2, 40, 3, 2))


def test_constant_pieces_are_stored_with_the_sum():
    """Rows that end within a vector and at its end, strides of which vectors are stored whole and others, followed by
    an addition of what another branch sends back."""
    for case in ((2, 3, 14, 14, 5, 2), (1, 5, 6, 32, 3, 2), (2, 4, 9, 15, 3, 3), (17, 2, 4, 6, 3, 2, True)):
        kernel = pointwise_dx(*case)
        assert len(problems(kernel.root)[0].constant_pieces) == case[5] ** 2 - 1
        check(kernel, CONTRACTION.configs(kernel, host())[:6:2])
        shape, n, f = kernel.shape, len(kernel.buffers), dt.f32
        total = template(shape, ((f, shape), (f, shape)), apply("add", load(0, 0, 1, 2, 3), load(1, 0, 1, 2, 3)))
        first = Stage(kernel.root, kernel.stages[0].args, (None,))
        stage = Stage(total, (("stage", 0, 0), ("buffer", n)), kernel.stages[0].outputs)
        added = Kernel((first, stage), (*kernel.buffers, KernelBuffer(f, shape)))
        check(added, CONTRACTION.configs(added, host())[:1])


@sampled(8)
@pytest.mark.parametrize("stride", [1, 2])
def test_capsule_gradients(stride):
    check(capsule_da(2, 3, 7, 4, stride))


@sampled(6)
def test_loops_over_k_are_cut_by_guards():
    """Rows of a window and of the broadcast side, tiles that hold borders and tiles that hold none."""
    for kernel in (conv_dx(2, 3, 14, 14, 4, 5, 5, 0), conv(2, 2, 13, 13, 5, 5, 5, 2)):
        configs = []
        for nv in (1, 2, 3):
            for mr in (2, 5):
                base = Tiled(True, mr, nv, "inline", "inline", windows=((0, "side"),), rows=True)
                configs += [Configs((base,)), Configs((replace(base, a="panel"),))]
        for mr in (4, 7):
            configs.append(Configs((Tiled(False, mr, 1, "panel", "panel"),)))
            configs.append(Configs((Tiled(False, mr, 1, "panel", "buffer", windows=((0, "side"),)),)))
        check(kernel, configs)


@sampled(4)
def test_batches_and_depthwise():
    params = ((dt.f32, (3, 7, 6)), (dt.f32, (3, 6, 19)))
    check(sum_of((3, 7, 19), params, (6,), times(load(0, 0, 1, 3), load(1, 0, 3, 2))))
    at = lin((1, 2), (1, 4)), lin((1, 3), (1, 5))
    params = ((dt.f32, (2, 3, 8, 9)), (dt.f32, (3, 3, 3)))
    check(sum_of((2, 3, 6, 7), params, (3, 3), times(load(0, 0, 1, *at), load(1, 1, 4, 5))))


@sampled(6)
def test_factors_are_any_expression():
    zero = Const(0.0, dt.f32)
    x = load(0, 0, 2)
    positive = apply("where", apply("lt", zero, x), x, zero)
    params = ((dt.f32, (7, 33)), (dt.f32, (20, 33)), (dt.f32, (20,)), (dt.f32, (7,)))
    body = times(apply("neg", times(positive, load(1, 1, 2))), load(2, 1), Const(2.0, dt.f32), load(3, 0))
    check(sum_of((7, 20), params, (33,), body))
    half = apply("floordiv", Axis(2), Const(2, dt.i32))
    params = ((dt.f32, (9, 10)), (dt.f32, (5, 18)))
    check(sum_of((9, 18), params, (10,), times(load(0, 0, 2), load(1, half, 1))))
    axis = Apply("cast", (Axis(2),), dt.f32)
    check(sum_of((9, 18), params, (5,), times(load(0, 0, 2), load(1, 2, 1), axis)))


def test_three_factors():
    params = ((dt.f32, (5, 12)), (dt.f32, (12, 17)), (dt.f32, (12,)))
    check(sum_of((5, 17), params, (12,), times(load(0, 0, 2), load(1, 2, 1), load(2, 2))))


@sampled(4)
def test_guards_are_split_between_operands():
    body = times(load(0, 0, 2), load(1, 2, 1))
    guard = apply("and", apply("lt", Axis(0), Axis(2)), apply("le", Axis(2), Axis(1)))
    params = ((dt.f32, (11, 19)), (dt.f32, (19, 21)))
    check(sum_of((11, 21), params, (19,), zero_unless(guard, body)))
    mixed = apply("lt", lin((1, 0), (1, 1)), Axis(2))  # M, N and K at once
    assert not CONTRACTION.match(sum_of((11, 21), params, (19,), zero_unless(mixed, body)))
    free = apply("lt", Axis(0), Axis(1))  # of M and N alone: it follows the sum
    check(sum_of((11, 21), params, (19,), zero_unless(free, body)))


def test_kernels_that_are_no_contraction():
    params = ((dt.f32, (8, 9)),)
    assert not CONTRACTION.match(sum_of((8,), params, (9,), load(0, 0, 1)))
    x = load(0, 0, 1)
    assert not CONTRACTION.match(sum_of((8,), params, (9,), times(x, x)))


def test_splits_and_blocks_of_k():
    check(product(6, 25, 3001, "TN"))
    kernel = product(5, 40, 900, "NT")
    check(kernel, [Configs((Tiled(mr=5, nv=2, kc=128),)), Configs((Tiled(swap=True, mr=8, kc=100),))])
    blocked = Tiled(mr=4, nv=1, kc=48, split=3, a="panel", b="panel")
    check(product(9, 20, 500, "NN"), [Configs((blocked,)), Configs((replace(blocked, a="inline", b="inline"),))])


@pytest.mark.parametrize("kept", [{"a": "buffer"}, {"b": "buffer"}, {"a": "buffer", "b": "buffer"}])
def test_buffers_of_parts_of_k_that_are_no_whole_blocks_are_refused(kept):
    whole = Tiled(mr=6, nv=2, kc=25, split=2, **kept)
    check(product(20, 100, 40), [Configs((whole,))])
    with pytest.raises(CompileError, match="no whole blocks"):
        check(product(20, 100, 40), [Configs((replace(whole, kc=16),))])


@sampled(6)
def test_tasks_pack_a_few_points_of_k_of_many_tiles():
    """Rows of an operand that are longer and shorter than what a task packs of one; blocks of K; tiles that are left
    over; a task must leave alone what the others pack."""
    both = Tiled(mr=6, nv=2, a="buffer", b="buffer")
    for kernel in (product(9001, 21, 27, "TN"), product(21, 9001, 27, "TN"), product(70, 35, 1037, "TN")):
        swapped = replace(both, mr=4, order="m", swap=True)
        for c in (both, replace(both, mr=14, nv=1, kc=16), swapped, replace(both, mr=3, kc=13)):
            check(kernel, [Configs((c,))])


@sampled(4)
def test_masks_of_a_panel_are_made_once_for_all_channels():
    """Blocks and parts of K of whole channels, and ones that end within a channel's filter."""
    blocked = Tiled(swap=True, mr=4, nv=2, a="inline", b="panel", order="n")
    kernel = conv(2, 9, 6, 7, 5, 3, 3, 1)
    for kc, split in ((0, 1), (27, 1), (18, 2), (0, 3), (20, 1), (16, 2)):
        check(kernel, [Configs((replace(blocked, kc=kc, split=split),))])
    check(conv(2, 4, 6, 7, 5, 3, 3, 1, 2), [Configs((replace(blocked, b="buffer"),))])
    check(conv_dx(2, 4, 6, 7, 5, 3, 3, 1), [Configs((blocked,))])


def _of_images(p, c: Tiled) -> Tiled:
    """The configuration with the operand that has images (axis 0) as M; without a window where it needs none."""
    image = 0 if 0 in p.operands[0].axes else 1
    windows = () if p.operands[image].plain else tuple((image, fixes) for _, fixes in c.windows)
    return replace(c, swap=bool(image), windows=windows, a=c.a if windows else "panel")


@sampled(6)
def test_tiles_are_transposed_where_results_lie_along_m():
    """Pixels as M, read in place from a window at any stride, channels as N: tiles of part of a row, of a row and of
    several, of more rows than lanes, and last tiles of fewer, blocks of K, and an epilogue that reads."""
    side = ((0, "side"),)
    for kernel, rows in (
        (conv(2, 3, 28, 28, 20, 3, 3, 1), (14, 28)), (conv(2, 4, 14, 14, 33, 3, 3, 1, 2), (14, 7)),
        (conv(2, 3, 9, 14, 16, 3, 3, 1), (14,)), (strided_conv_dx(2, 3, 28, 28, 5), (14,)),
    ):  # fmt: skip
        configs = []
        for mr in rows:
            for a, nv, kc, windows in (("inline", 1, 0, side), ("panel", 2, 12, ())):
                c = Tiled(False, mr, nv, a, "buffer", kc=kc, windows=windows)
                configs.append(Configs(tuple(_of_images(p, c) for p in problems(kernel.root))))
        first = problems(kernel.root)[0]
        assert form_of(Geometry(kernel, configs[0].pieces[0], host(), first)) == "turned"
        check(kernel, configs)
    kernel = conv(2, 3, 14, 14, 18, 3, 3, 1)
    f, shape, n = dt.f32, kernel.shape, len(kernel.buffers)
    more = times(apply("add", load(0, 0, 1, 2, 3), load(1, 1)), load(2, 0, 1, 2, 3))
    stage = Stage(
        template(shape, ((f, shape), (f, shape[1:2]), (f, shape)), more),
        (("stage", 0, 0), ("buffer", n), ("buffer", n + 1)), kernel.stages[0].outputs,
    )  # fmt: skip
    buffers = (*kernel.buffers, KernelBuffer(f, shape[1:2]), KernelBuffer(f, shape))
    first = Stage(kernel.root, kernel.stages[0].args, (None,))
    check(Kernel((first, stage), buffers), [Configs((Tiled(False, 14, 2, "inline", "buffer", windows=side),))])


def test_a_side_without_axes():
    """A matrix times a vector, whichever side lanes lie along, in all configurations."""
    kernel = sum_of((5,), ((F, (5, 7)), (F, (7,))), (7,), times(load(0, 0, 1), load(1, 1)))
    found = [Configs((c,)) for p in problems(kernel.root) for c in _candidates(kernel, p, host())]
    sides = [Configs((Tiled(swap, 4, 1, a, "inline"),)) for swap in (False, True) for a in ("inline", "panel")]
    check(kernel, [*found, *sides])


def turned_filter(b: int, c: int, o: int, h: int, w: int, k: int, kind: str) -> Kernel:
    """A full convolution whose filter is read backwards along an output axis: along a row, a column or a channel."""
    y, x = lin((1, 2), (-1, 5)), lin((-1, 3), (1, 6), const=k - 1)
    index, shape = {"row": ((4, 1, y, x), (c, o, k, k)), "column": ((4, 1, x, y), (c, o, k, k)),
                    "channel": ((x, 4, 1, y), (k, c, o, k))}[kind]  # fmt: skip
    body = zero_unless(both(inside(y, k), inside(x, k)), times(load(0, 0, 4, 5, 6), load(1, *index)))
    return sum_of((b, o, h + k - 1, w + k - 1), ((F, (b, c, h, w)), (F, shape)), (c, h, w), body)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["row", "column", "channel"])
def test_windows_that_are_read_backwards(kind):
    """Lanes past the end of a row reach before its beginning, before that of the window for the first one."""
    kernel = turned_filter(2, 2, 3, 2, 11, 3, kind)
    base = fresh(kernel, 0)
    want = reference(kernel, base)
    found = [
        c
        for p in problems(kernel.root)
        for c in _candidates(kernel, p, WIDE)
        if isinstance(c, Tiled) and c.windows and c.rows
    ]
    assert found
    for c in found[::8]:
        compare(CONTRACTION.lower(kernel, Configs((c,)), WIDE), kernel, base, want, str(c), None, 0)


@sampled(8)
def test_windows_of_a_block_of_an_output_axis():
    """Rows of an image, images and channels, as M and as N, at any stride."""
    for kernel, cut, size in (
        (conv(2, 3, 28, 28, 20, 3, 3, 1), HaloBlock(1, 7), (14, 1)),
        (conv(1, 4, 16, 28, 9, 3, 3, 1, 2), HaloBlock(1, 2), (14, 2)),
        (conv(1, 3, 12, 32, 3, 3, 3, 1), HaloBlock(1, 4), (3, 4)),
        (conv_dx(2, 3, 8, 16, 4, 3, 3, 1), HaloBlock(1, 4), (3, 4)),
        (conv_dw(2, 6, 9, 8, 17, 3, 3, 1), HaloBlock(0, 2), (9, 2)),
        (conv(4, 3, 7, 7, 17, 3, 3, 1), HaloBlock(0, 2), (7, 2)),
    ):
        (p,) = problems(kernel.root)
        which = int(p.operands[0].plain)
        as_m = size[0] != 3
        parts = p.extents[(p.left, p.right)[which][cut.place]] // cut.points
        c = Tiled(bool(which) == as_m, *size, "inline", "buffer" if as_m else "inline", windows=((which, cut),))
        check(kernel, [Configs((replace(c, tm=parts if as_m else 1, tn=1 if as_m else parts),))])
    for kernel in (conv_dw(2, 3, 12, 16, 17, 3, 3, 1), conv_dw(3, 2, 9, 7, 5, 3, 3, 1)):
        (p,) = problems(kernel.root)
        which = int(p.operands[0].plain)
        for points, split, swap in ((3, 1, bool(which)), (1, 2, bool(which)), (3, 2, not which)):
            c = Tiled(swap, 3 if swap == which else 5, 1, "inline" if swap == which else "panel", "panel", split=split)
            c = replace(c, order="n" if swap == which else "m", windows=((which, HaloBlock(1, points, of_k=True)),))
            check(kernel, [Configs((c,))])
    for kernel in (conv(2, 12, 9, 11, 7, 3, 3, 1), conv_dw(6, 2, 5, 7, 3, 3, 3, 1)):
        (p,) = problems(kernel.root)
        which = int(p.operands[0].plain)
        for (points, split), rows, as_m in every(((2, 1), (3, 3)), (False, True), (False, True)):
            mr, a, b = (kernel.shape[-1], "inline", "panel") if as_m else (3, "panel", "inline")
            c = Tiled(bool(which) == as_m, mr, 2, a, b, split=split, rows=rows and not as_m)
            check(kernel, [Configs((replace(c, windows=((which, HaloBlock(0, points, of_k=True)),)),))])
    kernel = conv(2, 64, 56, 56, 64, 3, 3, 1)
    (p,) = problems(kernel.root)
    assert HaloBlock(1, 28) in halo_blocks(p, 0, MAX_HALO_BYTES)
    found = [c for c in candidates(kernel, (p,), host()) if c.windows == ((0, HaloBlock(1, 28)),)]
    assert {(c.tm, c.tn) for c in found} == {(2, 1), (1, 2)}


def test_a_task_has_one_block_of_a_window():
    """Also where the work is so little that one task would do it all."""
    kernel = conv_dx(1, 1, 420, 420, 1, 1, 1, 1)
    (p,) = problems(kernel.root)
    found = [
        c for c in candidates(kernel, (p,), host()) if isinstance(c, Tiled) and (0, HaloBlock(1, 210)) in c.windows
    ]
    assert found and {explain_illegal(kernel, p, c, host()) for c in found} == {""}
    with pytest.raises(CompileError, match=r"1 tasks .* 2 blocks"):
        CONTRACTION.lower(kernel, Configs((replace(found[0], tm=1, tn=1),)), host())


def test_a_window_of_a_block_of_k_may_be_larger():
    (p,) = problems(conv_dw(2, 64, 56, 56, 8, 3, 3, 1).root)
    found = with_halos(p, ((1, "k"),))
    assert found is not None and found.halo_k_blocks
    assert found.halos[0][1].buffer.nbytes > MAX_HALO_BYTES
    (p,) = problems(conv(2, 64, 56, 56, 8, 3, 3, 1).root)
    assert with_halos(p, ((0, "side"),)) is None


def _single_pixels(b, c, h, w, o, pad, stride) -> Kernel:
    """A convolution of single pixels."""
    p, q = (h + 2 * pad - 1) // stride + 1, (w + 2 * pad - 1) // stride + 1
    y, x = lin((stride, 2), const=-pad), lin((stride, 3), const=-pad)
    body = times(load(0, 0, 4, y, x), load(1, 1, 4))
    if pad:
        body = zero_unless(apply("and", inside(y, h), inside(x, w)), body)
    return sum_of((b, o, p, q), ((dt.f32, (b, c, h, w)), (dt.f32, (o, c))), (c,), body)


@sampled(4)
def test_windows_leave_out_what_a_stride_skips():
    """Every second and third pixel, with and without a border; nothing is gained where each is read, nor by vectors
    along K, which are turned from where they lie."""
    for kernel, pixels in (
        (_single_pixels(2, 5, 13, 28, 9, 0, 2), 7 * 14), (_single_pixels(3, 4, 20, 19, 7, 0, 3), 7 * 7),
        (_single_pixels(2, 3, 11, 31, 6, 1, 2), 7 * 17), (_single_pixels(2, 3, 8, 9, 5, 1, 3), 4 * 4),
    ):  # fmt: skip
        (p,) = problems(kernel.root)
        image = int(0 in p.right)
        found = with_halos(p, ((image, "side"),))
        assert found is not None and found.halos[0][1].buffer.size == p.count(p.k) * pixels
        base = Tiled(not image, 4, 2, "inline", "inline", windows=((image, "side"),))
        every = [base, replace(base, b="panel"), replace(base, swap=bool(image), nv=1), replace(base, mr=3, a="buffer")]
        check(kernel, [Configs((c,)) for c in every])
    (p,) = problems(_single_pixels(2, 5, 8, 8, 9, 0, 1).root)
    assert all(with_halos(p, ((i, "side"),)) is None for i in (0, 1))
    (p,) = problems(_single_pixels(2, 5, 8, 8, 9, 0, 2).root)
    assert all(with_halos(p, ((i, x),)) is None for i in (0, 1) for x in ("all", "k"))


@sampled(6)
def test_vectors_along_k():
    """Tiles of an axis of either side over parts of the outer axis of K, whose sums are added later."""
    shapes = [(5, 2, 14, 14, 6, 5, 5, 2), (4, 1, 13, 12, 3, 3, 3, 0), (7, 2, 28, 28, 5, 5, 5, 2)]
    for kernel in (conv_dw(*s) for s in shapes):
        configs = []
        for windows in ((), ((1, "all"),)):
            if windows and kernel.shape[0] == 3:
                continue  # no guards: nothing to gain from a window
            for tile, outer, split in ((((0, 3), (2, 3)), (), 3), (((0, 2), (3, 3)), (1,), 2)):
                configs.append(Configs((Direct(6, 1, tile, (), outer, (4,), 1, windows, split=split),)))
        check(kernel, configs)
    large = conv_dw(64, 1, 28, 28, 6, 5, 5, 2)
    assert any(isinstance(c.pieces[0], Direct) and c.pieces[0].split > 1 for c in CONTRACTION.configs(large, host()))
    f = dt.f32
    both = times(load(0, 2, 0, 3), load(1, 2, 1, 3))  # K = (batch, 37), contiguous in both operands
    kernel = sum_of((5, 7), ((f, (6, 5, 37)), (f, (6, 7, 37))), (6, 37), both)
    dot = Direct(3, 1, ((0, 4), (1, 3)), (), (), (2,))
    check(kernel, [Configs((replace(dot, split=n),)) for n in (1, 3)])
    # A batch of three groups: dW[g, k, c] = sum[b, h](dY[b, 5*g + k, h] * X[b, 7*g + c, h])
    both = times(load(0, 3, lin((5, 0), (1, 1)), 4), load(1, 3, lin((7, 0), (1, 2)), 4))
    grouped = sum_of((3, 5, 7), ((f, (6, 15, 37)), (f, (6, 21, 37))), (6, 37), both)
    dot = Direct(4, 1, ((1, 4), (2, 3)), (), (0,), (3,), 2)
    check(grouped, [Configs((replace(dot, split=n),)) for n in (2, 3)])
    both = times(load(0, 3, lin((8, 0), (1, 1)), 4), load(1, 3, lin((8, 0), (1, 2)), 4))
    large = sum_of((3, 8, 8), ((f, (16, 24, 784)), (f, (16, 24, 784))), (16, 784), both)
    assert any(isinstance(c.pieces[0], Direct) for c in CONTRACTION.configs(large, host()))


@sampled(4)
def test_vectors_along_k_in_parts():
    """As many as the outer axis has points, fewer, more, and one, which is added like others."""
    lanes = host().lanes()
    for points in (5 * lanes, 5 * lanes + 3):
        both = times(load(0, 2, 0, 3), load(1, 2, 1, 3))
        kernel = sum_of((5, 7), ((dt.f32, (6, 5, points)), (dt.f32, (6, 7, points))), (6, points), both)
        dot = Direct(3, 1, ((0, 4), (1, 3)), (), (), (2,))
        check(kernel, [Configs((replace(dot, split=n),)) for n in (1, 2, 5, 6, 7)])
    rows = sum_of(
        (3, 4),
        ((dt.f32, (4, 3, 9, 15)), (dt.f32, (4, 4, 12, 18))),
        (4, 9, 15),
        times(load(0, 2, 0, 3, 4), load(1, 2, 1, 3, 4)),
    )
    dot = Direct(4, 1, ((0, 3), (1, 2)), (), (), (2,))
    check(rows, [Configs((replace(dot, split=n),)) for n in (1, 3, 4)])
    whole = sum_of(
        (3, 4),
        ((dt.f32, (4, 3, 9, 15)), (dt.f32, (4, 4, 9, 15))),
        (4, 9, 15),
        times(load(0, 2, 0, 3, 4), load(1, 2, 1, 3, 4)),
    )
    check(whole, [Configs((replace(dot, split=n, fused=(3,)),)) for n in (1, 3)])


@sampled(10)
@pytest.mark.parametrize("order", ["n", "m"])
def test_every_way_to_reach_operands(order):
    for n, kernel in enumerate((product(29, 70, 37, "NT"), conv(3, 2, 9, 9, 5, 3, 3, 1))):
        for swap in (False, True):
            ways = every(("panel", "buffer"), ("inline", "panel", "buffer"))
            tasks = cycle(((1, 1), (3, 2)) if n == swap else ((3, 2), (1, 1)))  # each way once with either, a kernel
            check(
                kernel,
                [
                    Configs((Tiled(swap, 5, 2, a, b, order, tm=tm, tn=tn),))
                    for (a, b), (tm, tn) in zip(ways, tasks, strict=False)
                ],
            )


@sampled(8)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("a,b,kc", [("inline", "inline", 8), ("inline", "panel", 16), ("buffer", "panel", 16),
                                    ("panel", "panel", 48), ("inline", "inline", 3)])  # fmt: skip
def test_blocks_of_k_outermost(a: str, b: str, kc: int):
    """The sums of all tiles of a task wait; with last tiles and blocks that are smaller, batches, images, an epilogue
    and NaN under a mask."""
    configs = [
        Configs((Tiled(False, mr, nv, a, b, "k", kc, 1, tm, tn),))
        for mr, nv in ((5, 1), (3, 2)) for tm, tn in ((1, 1), (2, 3))
    ]  # fmt: skip
    turned = [Configs((replace(x.pieces[0], swap=True),)) for x in configs[::2]]
    halves = cycle((configs[::3], configs[1:3]))  # a tile of either size, a number of tasks each
    for kernel in (
        product(17, 129, 67, "NN"),
        product(11, 67, 53, "TN"),
        batched(3, 13, 65, 37),
        biased(product(13, 69, 41), 1, True),
    ):
        check(kernel, next(halves), target=host())
    check(product(129, 17, 67, "NT"), turned, target=host())
    check(product(129, 17, 67, "TN"), turned, target=host())
    for kernel in (conv(2, 7, 9, 11, 13, 3, 3, 1), conv_dw(2, 5, 9, 11, 13, 3, 3, 1)) if a != "inline" else ():
        check(kernel, [*next(halves), *turned], target=host())


def test_epilogue_bias_activation_and_two_results():
    m, n, k = 13, 35, 9
    root = product(m, n, k).root
    f = dt.f32
    biased = template((m, n), ((f, (m, n)), (f, (n,))), apply("add", load(0, 0, 1), load(1, 1)))
    relu = template((m, n), ((f, (m, n)),), apply("max", load(0, 0, 1), Const(0.0, f)))
    buffers = (
        KernelBuffer(f, (m, k)),
        KernelBuffer(f, (k, n)),
        KernelBuffer(f, (n,)),
        KernelBuffer(f, (m, n)),
        KernelBuffer(f, (m, n)),
    )
    stages = (
        Stage(root, (("buffer", 0), ("buffer", 1)), (None,)),
        Stage(biased, (("stage", 0, 0), ("buffer", 2)), (3,)),
        Stage(relu, (("stage", 1, 0),), (4,)),
    )
    check(Kernel(stages, buffers))


def test_epilogue_updates_in_place():
    m, n, k = 10, 21, 300
    root = product(m, n, k, "TN").root
    f = dt.f32
    step = apply("sub", load(0, 0, 1), times(load(1), load(2, 0, 1)))
    update = template((m, n), ((f, (m, n)), (f, ()), (f, (m, n))), step)
    buffers = (KernelBuffer(f, (k, m)), KernelBuffer(f, (k, n)), KernelBuffer(f, (m, n)), KernelBuffer(f, ()))
    stages = (
        Stage(root, (("buffer", 0), ("buffer", 1)), (None,)),
        Stage(update, (("buffer", 2), ("buffer", 3), ("stage", 0, 0)), (2,)),
    )
    check(Kernel(stages, buffers))


@sampled(8)
def test_epilogue_of_convolution_and_long_chain():
    kernel = conv(2, 2, 7, 9, 5, 3, 3, 1)
    f, shape = dt.f32, kernel.shape
    chain = apply("add", load(0, 0, 1, 2, 3), load(1, 1))
    for i in range(10):
        chain = apply("max", apply("mul", chain, Const(1.0 + i % 2, f)), Const(-50.0, f))
    later = template(shape, ((f, shape), (f, (5,))), chain)
    shifted = zero_unless(apply("lt", Const(0, dt.i32), Axis(3)), load(1, 0, 1, 2, lin((1, 3), const=-1)))
    other = template(shape, ((f, shape), (f, shape)), apply("add", load(0, 0, 1, 2, 3), shifted))
    n = len(kernel.buffers)
    buffers = (
        *kernel.buffers,
        KernelBuffer(f, (5,)),
        KernelBuffer(f, shape),
        KernelBuffer(f, shape),
        KernelBuffer(f, shape),
    )
    stages = (
        kernel.stages[0],
        Stage(later, (("stage", 0, 0), ("buffer", n)), (n + 1,)),
        Stage(other, (("stage", 1, 0), ("buffer", n + 2)), (n + 3,)),
    )
    check(Kernel(stages, buffers))


@sampled(10)
def test_narrow_vectors_and_one_core():
    """The same patterns with 8 lanes and 16 registers."""
    target = replace(host(1), vector_bytes=32, vector_registers=16)
    for kernel in (product(13, 35, 20, "NT"), conv(2, 2, 9, 9, 3, 3, 3, 1), conv_dw(2, 2, 8, 7, 4, 3, 3, 1)):
        check(kernel, target=target)


@sampled(4)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("size", [7, 9])
@pytest.mark.parametrize("stride", [1, 2])
def test_vectors_within_an_image_are_stored_whole(size, stride):
    """Images that no vector divides: without mask registers, only vectors that lie in two images are masked."""
    kernel = conv(3, 5, size * stride, size * stride, 16, 1, 1, 0, stride)
    branch = re.compile(r"if (%\d+):\n +store\(.*\)\n")

    def branches(target) -> list[str]:
        config = CONTRACTION.best(kernel, target, float("inf"))
        text = "\n".join(show(f) for f in CONTRACTION.lower(kernel, config, target).functions)
        return [x for x in branch.findall(text) if f"not({x})" in text]

    target = replace(host(1), vector_bytes=32, vector_registers=16)
    assert branches(target) and not branches(replace(target, vector_bytes=64, vector_registers=32))
    assert check(kernel, target=target)


@pytest.mark.parametrize("long", [False, True])
def test_no_accumulator_is_spilled(long):
    """The loop over K touches no vector on the stack, nor does it in tasks so long that they check for signals."""
    import llvmlite.binding as llvm

    target = host(1)
    if target.vector_bytes != 64:
        pytest.skip("needs AVX-512")
    trimmed = Tiled(mr=14, nv=2, a="inline", b="panel", windows=((0, "side"),))
    cases = [
        (k, CONTRACTION.configs(k, target)[0]) for k in (product(256, 512, 784, "NT"), conv(8, 1, 28, 28, 6, 5, 5, 2))
    ]
    cases.append((conv(2, 32, 14, 14, 32, 3, 3, 1), Configs((trimmed,))))
    pixels = Tiled(False, 14, 2, "inline", "buffer", windows=((0, "side"),))
    cases += [(conv(2, 32, 28, 28, 32, 3, 3, 1, stride), Configs((pixels,))) for stride in (1, 2)]
    wide = Tiled(False, 12, 2, "inline", "panel")  # runs of four points, which are short enough to be unrolled
    cases.append((capsule(2, 16, 14, 32, 1), Configs((wide,))))
    if long:  # so many points of K make a loop long
        cases = [(product(2048, 2048, 4608, "NN"), Configs((Tiled(False, 14, 2, "buffer", "panel"),)))]
        # With a correction of sums that are not numbers, in which long loops lie where the accumulators live.
        for channels, n, mr, nv in ((256, 56, 6, 4), (512, 28, 14, 2)):
            tiled = Configs((Tiled(True, mr, nv, "buffer", "panel"),))
            cases.append((conv_dx(16, 2 * channels, n, n, channels, 3, 3, 1), tiled))
    for kernel, config in cases:
        low = CONTRACTION.lower(kernel, config, target)
        machine = jit.machine(target.cpu, target.features, target.triple)
        for x in low.launches:
            function = replace(x.function, checks_signals=long)
            text = machine.emit_assembly(llvm.parse_assembly(emit_module([function], target)))
            assert text.count("einsmith_look") > 0 or not long or "pack" in function.name
            if config.pieces[0] == trimmed:  # and those around it move no more than half of them
                moved = [b.count("(%rsp), %zmm") for b in text.split("\n.LBB") if b.count("\n") < 100]
                assert max(moved) <= 14
            for block in text.split("\n.LBB"):
                loop = block.split("\n\tj")[0]
                if loop.count("vfmadd") >= 12:
                    assert not [line for line in loop.splitlines() if "rsp" in line and "zmm" in line]


def test_choosing_is_fast_and_costs_are_positive():
    target = host()
    kernel = product(64, 96, 128, "NT")
    configs = CONTRACTION.configs(kernel, target)
    assert 1 <= len(configs) <= 12 and len(set(configs)) == len(configs)
    costs = [CONTRACTION.cost(kernel, c, target) for c in configs]
    assert all(c.seconds > 0 for c in costs)
    assert [c.rank for c in costs] == pytest.approx(sorted(c.rank for c in costs))
    assert all(str(c) for c in configs)


DIRECT = {
    "depthwise": [depthwise(*x) for x in ((3, 2, 13, 17, 3, 1), (2, 3, 16, 33, 7, 3), (17, 2, 15, 15, 5, 2))],
    "depthwise strided": [depthwise(*x, 2) for x in ((4, 3, 19, 35, 3, 1), (3, 2, 16, 34, 5, 2))],
    "depthwise strided weights": [depthwise_dw(*x, 2) for x in ((5, 2, 19, 35, 3, 1), (3, 2, 16, 66, 5, 2))],
    "depthwise strided inputs": [depthwise_dx(*x) for x in ((9, 4, 37, 35, 3, 1), (4, 2, 32, 66, 5, 2))],
    "depthwise weights": [depthwise_dw(*x) for x in ((3, 2, 13, 17, 3, 1), (2, 3, 16, 33, 7, 3), (5, 2, 31, 15, 5, 2))],
    "involution": [involution(*x) for x in ((2, 5, 13, 17, 3, 1), (2, 16, 9, 33, 5, 2), (3, 1, 16, 16, 3, 1))],
    "involution inputs": [involution_dx(*x) for x in ((2, 5, 13, 17, 3, 1), (2, 16, 9, 33, 5, 2))],
    "involution kernels": [involution_dk(*x) for x in ((2, 5, 13, 17, 3, 1), (2, 16, 9, 33, 5, 2))],
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "name,cores",
    [
        pytest.param(name, 1 + n % 2 * 2, marks=[pytest.mark.slow] * (name == "depthwise strided inputs"))
        for n, name in enumerate(DIRECT)
    ],
)
@all_or_some
def test_lanes_along_an_axis_of_both_operands(name, cores, full):
    """Depthwise convolutions and involutions, in every direction: boxes that divide an axis and boxes that do not."""
    proposed = 0
    for wide in (64, 32, 16):
        target = replace(host(cores), vector_bytes=wide, vector_registers=32 if wide == 64 else 16)
        if wide > host().vector_bytes:
            continue
        for i, kernel in enumerate(DIRECT[name]):
            found = _direct(kernel, target)
            proposed += len(found)
            if found:
                pieces = len(problems(kernel.root))
                chosen = found[::pieces] if full else each_value(found[::pieces])
                check(kernel, [Configs((c,) * pieces) for c in chosen], seed=i, target=target)
    assert proposed


def _direct(kernel: Kernel, target) -> list[Direct]:
    return [c for p in problems(kernel.root) for c in candidates(kernel, (p,), target) if isinstance(c, Direct)]


@sampled(10)
def test_boxes_of_the_direct_form():
    """Tiles and unrolled parts of K with remainders, in windows and under masks, by hand."""
    target = host()
    kernel = depthwise(5, 2, 13, 19, 5, 2)
    for windows in ((), ((0, "all"),)):
        for tile, unroll in ((((2, 4),), ((4, 5),)), (((2, 5),), ((4, 2),)), (((0, 3), (2, 13)), ()), ((), ((5, 2),))):
            for vectors in (1, 2):
                outer = (1,) if windows and dict(tile).get(0) else (0, 1)
                d = Direct(3, vectors, tile, unroll, tuple(a for a in outer if a not in dict(tile)))
                check(kernel, [Configs((replace(d, tasks=n, windows=windows),)) for n in (1, 2)], target=target)
    for w in (19, 33):
        kernel = conv(2, 5, 13, w, 3, 3, 3, 1)  # sums wait for channel after channel
        (p,) = problems(kernel.root)
        for tile, unroll in ((((1, 3), (2, 4)), ((5, 3), (6, 3))), (((2, 5),), ((6, 2),)), ((), ())):
            for vectors in (1, 2):
                outer = (0,) if dict(tile).get(1) else (0, 1)
                d = Direct(3, vectors, tile, unroll, outer, (4,), 2, ((int(p.operands[0].plain), "all"),))
                check(kernel, [Configs((d,))], target=target)
    kernel = depthwise_dw(5, 2, 13, 19, 5, 2)
    for tile, unroll in ((((1, 5),), ((4, 4),)), (((1, 2), (2, 3)), ()), ((), ((4, 13),))):
        for head in ((), (3,)):
            for windows in (((0, "all"),), ()):
                d = Direct(5, 1, tile, unroll, (0,), head)
                check(kernel, [Configs((replace(d, windows=windows),))], target=target)


@all_or_some
def test_parts_of_the_tiles_of_the_direct_form(full):
    """Tasks along an output axis of which a task has all points otherwise; with a last tile that is smaller, and sums
    that wait."""
    kernel, target = depthwise_dw(5, 2, 13, 19, 5, 2), host()
    configs = [
        Direct(5, 1, tile, ((4, 4),), (0,), head, tasks, windows, parts)
        for tile, parts in ((((1, 2),), 2), (((1, 2),), 3), (((1, 3), (2, 3)), 2), ((), 5), (((2, 5),), 4))
        for head in ((), (3,))
        for windows in (((0, "all"),), ())
        for tasks in (2, 1)
    ]
    check(kernel, [Configs((d,)) for d in (configs if full else each_value(configs))], target=target)
    kernel = conv(1, 3, 17, 21, 2, 3, 3, 1)
    configs = [
        Direct(3, vectors, tile, ((5, 3), (6, 3)), (0,), (), 1, (), parts)
        for tile, parts in ((((1, 2), (2, 4)), 2), (((2, 4),), 5), (((2, 17),), 1), (((2, 3), (1, 2)), 6))
        for vectors in (1, 2)
    ]
    check(kernel, [Configs((d,)) for d in (configs if full else each_value(configs))], target=target)
    found = _direct(conv_dw(2, 1, 40, 37, 2, 7, 7, 3), target)
    assert any(c.parts > 1 for c in found) and all(c.parts == 1 for c in found if c.tasks >= 4 * target.cores)


@all_or_some
def test_few_rows_share_what_is_loaded(full):
    """Convolutions from or to a few channels, whose images are wide, and their gradients."""
    size = 40, 37
    for kernel in (conv(2, 9, *size, 3, 3, 3, 1), conv_dx(2, 2, *size, 9, 3, 3, 1), conv_dw(2, 8, *size, 2, 3, 3, 1)):
        found = _direct(kernel, host())
        assert found and any(c.k_outer for c in found)
        check(kernel, [Configs((c,)) for c in (found if full else each_value(found))])


@sampled(10)
def test_epilogue_of_the_direct_form():
    """An activation after a bias, and an update in place (each element once)."""
    kernel = depthwise(3, 3, 17, 21, 3, 1)
    f, shape = dt.f32, kernel.shape
    total = apply("add", apply("add", load(0, 0, 1, 2, 3), load(1, 1)), load(2, 0, 1, 2, 3))
    late = template(shape, ((f, shape), (f, (3,)), (f, shape)), apply("max", total, Const(0.0, f)))
    n = len(kernel.buffers)
    stages = (replace_outputs(kernel.stages[0]), Stage(late, (("stage", 0, 0), ("buffer", n), ("buffer", 2)), (2,)))
    both = Kernel(stages, (*kernel.buffers, KernelBuffer(f, (3,))))
    target = host()
    found = _direct(both, target)
    assert found
    check(both, [Configs((c,)) for c in found], target=target)


@sampled(8)
def test_long_epilogue_of_the_direct_form():
    """Rows of a tile finished in a loop: a chain with a guarded read, of vectors and of single results."""
    target = host()
    for kernel, where in ((depthwise(3, 3, 17, 21, 3, 1), 3), (depthwise_dw(4, 3, 16, 19, 3, 1), 2)):
        f, shape, rank = dt.f32, kernel.shape, len(kernel.shape)
        chain = load(0, *range(rank))
        for i in range(6):
            chain = apply("max", apply("mul", chain, Const(1.0 + i % 2, f)), Const(-50.0, f))
        at = [lin((1, a), const=-1) if a == where else Axis(a) for a in range(rank)]
        chain = apply("add", chain, zero_unless(apply("le", Const(1, dt.i32), Axis(where)), load(1, *at)))
        late = template(shape, ((f, shape), (f, shape)), chain)
        n = len(kernel.buffers)
        stages = (replace_outputs(kernel.stages[0]), Stage(late, (("stage", 0, 0), ("buffer", n)), (2,)))
        both = Kernel(stages, (*kernel.buffers, KernelBuffer(f, shape)))
        found = _direct(both, target)
        assert found
        check(both, [Configs((c,)) for c in found], target=target)


@sampled(6)
def test_repeated_guards_and_reads_in_bounds():
    """A read in bounds whatever the guard says has no mask; a guard of the root and of a stage stands once."""
    n, i, d = 9, 20, 7
    f = dt.f32
    at = lin((1, 0), (1, 2), const=-1)
    guard = inside(at, n)
    root = template(
        (n, i, 3, 16),
        ((f, (n, i, d)), (f, (n, 16, d))),
        Reduce("sum", (d,), (zero_unless(guard, times(load(0, 0, 1, 4), load(1, at, 3, 4))),)),
    )
    shape = (n, i, 3, 16)
    product = times(load(0, 0, 1, 2, 3), load(1, 0, 1, 2, 3))
    late = template(shape, ((f, shape), (f, shape)), zero_unless(guard, product))
    buffers = (KernelBuffer(f, (n, i, d)), KernelBuffer(f, (n, 16, d)), KernelBuffer(f, shape), KernelBuffer(f, shape))
    stages = (
        Stage(root, (("buffer", 0), ("buffer", 1)), (None,)),
        Stage(late, (("buffer", 2), ("stage", 0, 0)), (3,)),
    )
    kernel = Kernel(stages, buffers)
    check(kernel)
    (p,) = problems(kernel.root)
    (x,) = results(kernel, p).exprs
    assert sum(1 for e in postorder([x]) if isinstance(e, Apply) and e.fn == "where") == 1
    s = OperandAccess(None, [x], (), p.extents, {2: BufferMemory(None, KernelBuffer(f, shape))}, (3,), 16, (), (-1,))
    assert [r.slot for r in s.reads if s.is_safe(r)] == [2]


def replace_outputs(stage: Stage) -> Stage:
    return Stage(stage.template, stage.args, (None,))


@sampled(8)
def test_factors_of_the_direct_form_are_any_expression():
    """An activation of one operand, evaluated once an element into a window or once a load."""
    kernel = depthwise(3, 3, 17, 21, 3, 1)
    y, x = lin((1, 2), (1, 4), const=-1), lin((1, 3), (1, 5), const=-1)
    value = load(0, 0, 1, y, x)
    positive = apply("where", apply("lt", Const(0.0, dt.f32), value), value, times(value, value))
    body = zero_unless(apply("and", inside(y, 17), inside(x, 21)), times(positive, load(1, 1, 4, 5)))
    kernel = sum_of(kernel.shape, kernel.root.params, (3, 3), body)
    target = host()
    found = _direct(kernel, target)
    assert found
    check(kernel, [Configs((c,)) for c in found], target=target)


def test_lanes_past_the_end_do_not_reach_sums():
    """Infinities beside a row: what lies past its end in memory is not added."""
    kernel = depthwise_dw(4, 2, 16, 19, 3, 1)
    target = host()
    arrays = fresh(kernel, 3)
    arrays[1][:, 1] = np.inf
    want = reference(kernel, arrays)[2]
    for c in _direct(kernel, target):
        got = [a.copy() for a in arrays]
        run_native(CONTRACTION.lower(kernel, Configs((c,)), target), got, target)
        np.testing.assert_array_equal(got[2][0], want[0], err_msg=str(c))


def test_no_halo_copy_of_coordinates_that_a_guard_ties_together():
    """x[1 - k, k] for k < 2: all pairs of the coordinates -k and k would be copied, 1 - k below 0 among them."""
    read = zero_unless(inside(lin((1, 2)), 2), load(1, lin((-1, 2), const=1), lin((1, 2))))
    kernel = sum_of((3, 5), ((dt.f32, (3, 5, 16)), (dt.f32, (2, 16))), (16,), times(load(0, 0, 1, 2), read))
    (p,) = problems(kernel.root)
    assert all(with_halos(p, ((i, "all"),)) is None for i in (0, 1))
