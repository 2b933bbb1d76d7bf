"""Stencils: borders, phases, strides, what follows the sum, infinities at guards; and what is declined."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_shapes
from einsmith.base import dtypes as dt
from einsmith.codegen.llvm import jit
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.ssa import Op
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Axis, Const, Piece, Read, Reduce, Template, apply
from einsmith.kernels import autoconfig
from einsmith.kernels.stencil.loads import PREFETCH_BYTES, can_share_row_loads, find_rotated_kinds, find_short_rows
from einsmith.kernels.stencil.match import stencils
from einsmith.kernels.stencil.stencil_pattern import StencilPattern
from einsmith.passes.pipeline import run_passes
from einsmith.schedule.kernel import Kernel, KernelBuffer
from einsmith.schedule.planner import fuse
from tests import nest_interp
from tests.kernels import samples as s
from tests.kernels.runner import NARROW, WIDE, check, compare, fresh, host, reference, sampled

STENCIL = StencilPattern()


def gradient_by_x(b, c, h, w, k, stride) -> Kernel:
    """dX of a depthwise convolution with the padding that keeps its rows, as the passes leave it."""
    out = [(n + 2 * (k // 2) - k) // stride + 1 for n in (h, w)]

    def pulled(x, weight, g):
        return es.vjp(lambda x: es.functional.conv2d(x, weight, None, stride, k // 2, 1, c), x)[1](g)

    shapes = [(b, c, h, w), (c, 1, k, k), (b, c, *out)]
    (call,) = fuse(run_passes(trace_shapes(pulled, [(x, dt.f32) for x in shapes]).graph)).calls
    return call.kernel


@sampled(6)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize(("h", "w"), [(7, 7), (9, 17), (16, 35)])
def test_depthwise_in_three_directions(h, w, taps, rng):
    for stride in (1, 2):
        kernels = [
            s.depthwise(2, 3, h, w, taps, taps // 2, stride), s.depthwise_dw(2, 3, h, w, taps, taps // 2, stride),
            gradient_by_x(2, 3, h, w, taps, stride),
        ]  # fmt: skip
        for kernel in kernels:
            check(STENCIL, kernel, rng, native=True)


@pytest.mark.parametrize("target", [NARROW, WIDE])
def test_no_read_outside_the_operands(target, rng):
    for kernel in (s.depthwise(1, 2, 5, 9, 3, 1, 2), s.depthwise_dw(2, 1, 6, 5, 3, 1), gradient_by_x(1, 2, 5, 7, 3, 2)):
        check(STENCIL, kernel, rng, [target])


@sampled(3)
@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    ("width", "taps", "pad", "stride"),
    [(5, 4, 0, 1), (6, 5, 0, 1), (6, 5, 0, 2), (5, 4, 1, 1), (2, 5, 3, 2), (1, 3, 2, 2), (9, 9, 3, 2)],
)
@pytest.mark.parametrize("target", [NARROW, WIDE, None])
def test_wide_filters_read_no_more_than_a_row(width, taps, pad, stride, target, rng):
    """Taps that move by more than half of a row, and taps that see nothing but padding."""
    for make in (s.depthwise, s.depthwise_dw):
        kernel = make(2, 2, width, width, taps, pad, stride)
        if STENCIL.match(kernel):
            check(STENCIL, kernel, rng, [target or host()], native=target is None)


@sampled(3)
@pytest.mark.thinned(4)
@pytest.mark.parametrize(("taps", "pad", "width"), [(11, 0, 27), (16, 0, 21), (24, 0, 49), (24, 11, 30), (23, 22, 31)])
@pytest.mark.parametrize("target", [NARROW, WIDE, None])
def test_more_taps_than_lanes(taps, pad, width, target, rng):
    """Of which every other element of a row is read."""
    column = s.lin((2, 1), (1, 2), const=-pad)
    body = s.times(s.zero_unless(s.inside(column, width), s.load(0, 0, column)), s.load(1, 2))
    results = (width + 2 * pad - taps) // 2 + 1
    kernel = s.sum_of((3, results), ((s.F, (3, width)), (s.F, (taps,))), (taps,), body)
    check(STENCIL, kernel, rng, [target or host()], native=target is None)


def test_taps_of_different_rows_are_distinguished():
    kernel = s.depthwise(2, 2, 5, 5, 4, 0)
    reads = {t.vector.read for t in stencils(kernel)[0].phases[0].terms}
    assert {(a.const - a.shift, a.shift) for a in reads} == {(5 * r, k) for r in range(4) for k in range(4)}


@pytest.mark.parametrize("target", [NARROW, WIDE, None])
def test_rows_that_lie_over_each_other(target, rng):
    """Where a guard of rows keeps taps within memory, no tap reads for another."""
    body = s.times(s.load(0, 0, s.lin((1, 1), (1, 2), (1, 3))), s.load(1, 3))
    whole = s.sum_of((2, 5, 4), ((s.F, (2, 10)), (s.F, (3,))), (3,), body)
    assert any(x.row is not None for x in stencils(whole))
    for kernel in (whole, s.slanted(2, 5, 4, 5, 1), s.slanted(2, 5, 4, 5, 2), s.slanted(1, 4, 17, 5, 2)):
        if STENCIL.match(kernel):
            check(STENCIL, kernel, rng, [target or host()], native=target is None)


def test_phases_of_a_strided_gradient_are_one_launch():
    """Also where a phase has one tap, and is no sum."""
    kernel = gradient_by_x(2, 3, 12, 12, 3, 2)
    (only,) = stencils(kernel)
    assert only.steps == (2, 2) and sorted(len(p.terms) for p in only.phases) == [1, 2, 2, 4]
    lowered = STENCIL.lower(kernel, STENCIL.configs(kernel, host())[0], host())
    assert len(lowered.launches) == 1


def gradient_of_max_pooling(b, c, h, w, k, stride, pad) -> Kernel:
    """dX of overlapping windows, given the place of the maximum in each window."""

    def pulled(x, g):
        return es.vjp(lambda x: es.functional.max_pool2d(x, k, stride, pad), x)[1](g)

    out = [(n + 2 * pad - k) // stride + 1 for n in (h, w)]
    graph = run_passes(trace_shapes(pulled, [((b, c, h, w), dt.f32), ((b, c, *out), dt.f32)]).graph)
    last = fuse(graph).calls[-1].kernel
    return last.parts[-1]


@sampled(3)
@pytest.mark.thinned(2)
@pytest.mark.parametrize(("h", "w", "stride", "pad"), [(7, 7, 2, 0), (8, 17, 2, 1), (4, 34, 2, 1), (5, 17, 1, 1)])
def test_gradients_of_overlapping_windows(h, w, stride, pad, rng):
    """Each term counts only where the maximum lies at its place in the window; elsewhere it may be infinite."""
    kernel = gradient_of_max_pooling(1, 3, h, w, 3, stride, pad)
    (only,) = stencils(kernel)
    assert only.steps == (stride, stride) and len(only.selections) == 9
    places = rng.integers(0, 9, kernel.buffers[0].shape).astype(np.int8)
    check(STENCIL, kernel, rng, native=True, inputs=[places])
    infinite = np.where(places == 4, np.float32(np.inf), np.float32(1.0))
    check(STENCIL, kernel, rng, [WIDE], inputs=[places, infinite])
    if (h, w) == (7, 7):
        check(STENCIL, kernel, rng, [NARROW], inputs=[places])


def test_a_phase_without_taps_is_zero(rng):
    whole = s.depthwise_dx(1, 2, 9, 11, 3, 1)
    first, *others = whole.root.parts
    parts = (Piece(first.offset, first.step, first.extents, s.num(0.0)), *others)
    kernel = s.kernel_of(Template(whole.shape, whole.root.params, parts))
    check(STENCIL, kernel, rng, native=True)


@sampled(6)
@pytest.mark.parametrize("keep", [False, True])
def test_epilogues_of_stencils(keep, rng):
    check(STENCIL, s.biased(s.depthwise(2, 3, 7, 18, 3, 1), 1, keep), rng, native=True)
    check(STENCIL, s.biased(s.depthwise(2, 3, 18, 7, 3, 1), 3, keep), rng, native=True)
    check(STENCIL, s.biased(s.depthwise_dx(2, 3, 12, 9, 3, 1), 2, keep), rng, native=True)
    check(STENCIL, s.biased(s.depthwise_dw(2, 3, 9, 7, 3, 1), 1, keep), rng, native=True)


@sampled(4)
@pytest.mark.parametrize("width", [5, 7])
def test_operands_of_a_tile_are_read_before_it_is_stored(width, rng):
    """Where a result overwrites an operand, a masked store delays the loads of the row after it."""
    kernel = s.updated(s.depthwise(2, 3, width, width, 3, 1))
    whole = [c for c in STENCIL.configs(kernel, WIDE) if c.tile == width and not c.pairs]
    (launch,) = STENCIL.lower(kernel, whole[0], WIDE).launches
    (names,) = (x for x in _names_by_block(launch.function.body) if "store" in x)
    assert "load" not in names[names.index("store") :]
    check(STENCIL, kernel, rng, [WIDE], native=True)


def test_rows_without_columns(rng):
    """One axis: the rows of the tile are taken from nothing."""
    h, n, r = 3, 37, 5
    body = s.times(s.load(0, 0, s.lin((1, 1), (1, 2))), s.load(1, 0, 2))
    kernel = s.sum_of((h, n), ((s.F, (h, n + r - 1)), (s.F, (h, r))), (r,), body)
    check(STENCIL, kernel, rng, native=True)


def test_doubles(rng):
    def read(slot, *index):
        return s.read(slot, *index, dtype=dt.f64)

    h, w, taps = 6, 11, s.axes(5)[2:]
    y, x = s.lin((1, 1), (1, 3), const=-1), s.lin((1, 2), (1, 4), const=-1)
    guard = s.both(s.inside(y, h), s.inside(x, w))
    c = s.axes(1)[0]
    body = s.times(s.zero_unless(guard, read(0, c, y, x)), read(1, c, *taps[1:]))
    root = s.sum_of((2, h, w), ((dt.f64, (2, h, w)), (dt.f64, (2, 3, 3))), (3, 3), body)
    kernel = Kernel(root.stages, tuple(KernelBuffer(dt.f64, b.shape) for b in root.buffers))
    check(STENCIL, kernel, rng, native=True, tolerance=1e-12)


@sampled(3)
@pytest.mark.parametrize(("taps", "pad", "width"), [(3, 1, 71), (5, 2, 70), (4, 0, 67), (5, 4, 66)])
def test_taps_share_rows_of_which_they_read_every_other_element(taps, pad, width, rng):
    """Also where borders are infinite, which no other tap must see."""
    target = replace(WIDE, vector_registers=32)
    kernel = s.depthwise(1, 1, 7, width, taps, pad, 2)
    (stencil,) = stencils(kernel)
    assert can_share_row_loads(stencil, 2, 32) and not can_share_row_loads(stencil, 12, 32)
    configs = [c for c in STENCIL.configs(kernel, target) if can_share_row_loads(stencil, c.tile, 32)]
    base = fresh(kernel, 0)
    base[0][..., [0, -1]] = np.inf
    with np.errstate(invalid="ignore"):
        want = reference(kernel, base)
    for config in configs[:2]:
        compare(STENCIL.lower(kernel, config, target), kernel, base, want, str(config), None)
    assert configs
    check(STENCIL, kernel, rng, native=True)


@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    ("width", "taps", "pad"), [(14, 5, 2), (15, 5, 2), (9, 5, 2), (13, 5, 0), (14, 7, 3), (12, 7, 2)]
)
def test_rows_of_two_points_are_transposed_for_many_taps(width, taps, pad, rng):
    """Also where the ends of one point's row are infinite, which the other one must not see."""
    target = replace(WIDE, vector_registers=32)
    kernel = s.depthwise(4, 2, 9, width, taps, pad, 2)
    stencil = next(x for x in stencils(kernel) if not x.along_k)
    assert find_rotated_kinds(stencil) and not find_rotated_kinds(stencils(s.depthwise(4, 2, 9, width, 3, 1, 2))[0])
    configs = [c for c in STENCIL.configs(kernel, target) if c.pairs]
    base = fresh(kernel, 0)
    base[0][::2, :, :, [0, -1]] = np.inf
    with np.errstate(invalid="ignore"):
        want = reference(kernel, base)
    for config in configs[:2]:
        compare(STENCIL.lower(kernel, config, target), kernel, base, want, str(config), None)
    assert configs
    check(STENCIL, kernel, rng, native=True)


@sampled(3)
@pytest.mark.thinned(2)
@pytest.mark.parametrize(("width", "taps", "pad"), [(28, 3, 1), (31, 3, 1), (29, 5, 2), (32, 2, 0), (20, 5, 3)])
def test_rows_that_two_vectors_hold_are_loaded_once_for_all_taps(width, taps, pad, rng):
    """Also where the ends of rows are infinite, which lanes beside them must not see."""
    target = replace(WIDE, vector_registers=32)
    kernel = s.depthwise_dw(3, 2, 8, width, taps, pad, 2)
    (stencil,) = stencils(kernel)
    assert find_short_rows(stencil, 16, 64) and not find_short_rows(stencil, 8, 32)
    base = fresh(kernel, 0)
    base[1][..., [0, -1]] = np.inf
    with np.errstate(invalid="ignore"):
        want = reference(kernel, base)
    for config in STENCIL.configs(kernel, target)[:3]:
        lowered = STENCIL.lower(kernel, config, target)
        compare(lowered, kernel, base, want, str(config), None)
        if config.tile == stencil.rows and config.passes == 1:
            assert _count(lowered.launches[0].function.body, "load") <= stencil.rows + 2 * 8
    check(STENCIL, kernel, rng, native=True)


def test_infinities_at_guards():
    """A padded place is zero before it is multiplied, a place that a gradient does not reach is zero afterwards."""
    for kernel, slot in ((s.depthwise(1, 2, 7, 9, 3, 1), 1), (gradient_by_x(1, 2, 7, 9, 3, 1), 0),
                         (gradient_by_x(1, 2, 8, 10, 5, 2), 0), (s.depthwise_dw(1, 2, 7, 9, 3, 1), 0)):  # fmt: skip
        base = fresh(kernel, 0)
        base[slot].reshape(-1)[[0, -1]] = np.inf
        with np.errstate(invalid="ignore"):
            want = reference(kernel, base)
        for config in STENCIL.configs(kernel, host()):
            compare(STENCIL.lower(kernel, config, host()), kernel, base, want, str(config), host())


def test_large_results_go_past_the_caches(rng):
    kernel = s.depthwise(1, 2, 9, 64, 3, 1)
    far = Kernel(kernel.stages, (*kernel.buffers[:-1], KernelBuffer(s.F, kernel.shape, True)))
    lowered = STENCIL.lower(far, STENCIL.configs(far, host())[0], replace(host(), vector_bytes=64))
    assert "stream" in _operations(lowered.launches[0].function.body)
    check(STENCIL, far, rng, native=True)


@sampled(6)
@pytest.mark.thinned(3)
@pytest.mark.parametrize(("h", "w"), [(8, 6), (16, 21), (8, 36)])
def test_rows_that_are_no_lines_leave_in_lines(h, w, rng):
    """A plane is whole lines; every one is stored once, by one stream of whole vectors."""
    forward, after = s.depthwise(2, 3, h, w, 5, 2), s.updated(s.depthwise(2, 2, h, w, 3, 1))
    for kernel in (forward, gradient_by_x(2, 2, h, w, 3, 2), gradient_by_x(1, 3, h, w, 5, 1), after):
        kernel = s.non_temporal(kernel)
        for config in STENCIL.configs(kernel, host()):
            inside = _operations(STENCIL.lower(kernel, config, host()).launches[0].function.body)
            assert ("stream" in inside) == (not config.pairs)
        check(STENCIL, kernel, rng, native=True)
    check(STENCIL, kernel, rng)
    ragged = s.non_temporal(s.depthwise(2, 3, 7, w - w % 2 + 2, 3, 1))
    (launch,) = STENCIL.lower(ragged, STENCIL.configs(ragged, WIDE)[0], WIDE).launches
    assert "stream" not in _operations(launch.function.body)


def lines_touched_and_asked_for(kernel: Kernel, target: Target) -> list[list[tuple[str, int]]]:
    """("touch" or "ask", line) of every buffer in the order of a run, in the first configuration."""
    events: list[tuple[str, int, int]] = []

    def observe(x: Op, a: list) -> None:
        if x.name == "prefetch":
            events.append(("ask", a[0].memory.raw.ctypes.data, int(a[1]) // 16))
        if x.name not in ("load", "gather", "store", "stream", "scatter"):
            return
        offsets, mask = np.asarray(a[1]), a[2] if x.results else a[3] if len(a) > 3 else None
        if not offsets.ndim:
            offsets = offsets + np.arange(max(1, x.result.type.lanes if x.results else np.size(a[2])))
        on = np.broadcast_to(True if mask is None else mask, offsets.shape)
        events.extend(("touch", a[0].memory.raw.ctypes.data, int(at) // 16) for at in offsets[on])

    arrays = fresh(kernel, 0)
    nest_interp.run(STENCIL.lower(kernel, STENCIL.configs(kernel, target)[0], target), kernel, arrays, observe=observe)
    return [[(kind, n) for kind, at, n in events if at == x.ctypes.data] for x in arrays]


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("stride", "width", "channels"), [(1, 27, 2), (2, 40, 2), (2, 9, 24)])
def test_every_line_is_prefetched(stride, width, channels):
    """But for the first ones."""
    for target in (replace(NARROW, l2=256, cores=1), replace(WIDE, l2=256, cores=1)):
        for make in (s.depthwise, s.depthwise_dw):
            kernel = make(1, channels, 64, width, 3, 1, stride)
            touched = lines_touched_and_asked_for(kernel, target)
            for b, mine in zip(kernel.buffers, touched[:2], strict=False):
                asked: set[int] = set()
                first = min((n for kind, n in mine if kind == "ask"), default=0)
                assert 0 < first * 64 < 0.7 * 4 * prod(b.shape) or b.shape[-1] == 3
                for kind, n in mine:
                    asked |= {n} if kind == "ask" else set()
                    assert n <= first or n in asked or b.shape[-1] == 3, n


@pytest.mark.parametrize(("size", "stride"), [(14, 1), (7, 1), (14, 2)])
def test_a_gradient_of_filters_asks_for_the_images_that_come_next(size, stride):
    """After the last one, for the next channel of the first ones: only what is read at the very start is not asked for,
    less than a channel of all images."""
    kernel = s.depthwise_dw(16, 3, size, size, 3, 1, stride)
    for mine in lines_touched_and_asked_for(kernel, replace(WIDE, l2=256, cores=1))[:2]:
        asked, late = set(), set()
        for kind, n in mine:
            (asked if kind == "ask" else late).update({n} - asked)
        assert len(late) * 64 < 1.25 * PREFETCH_BYTES


def test_rows_that_are_far_from_each_other_are_not_prefetched(rng):
    """The row axis is an outer one: between two rows of 16 elements lie 72 that other points read."""
    f = es.op("Y[b,i,d] = sum[j,k](V[b,j,i,k] * W[j,i,d,k])")
    shapes = [(2, 10, 72, 16), (10, 72, 8, 16)]
    (call,) = fuse(run_passes(trace_shapes(f, [(x, dt.f32) for x in shapes]).graph)).calls
    target = replace(WIDE, l2=256, cores=1)
    config = STENCIL.configs(call.kernel, target)[0]
    text = emit_module(STENCIL.lower(call.kernel, config, target).functions, target)
    assert text.count("llvm.prefetch") < 100 and text.count("\n") < 2000
    check(STENCIL, call.kernel, rng, native=True)


def test_tiles_beyond_the_caches_touch_fewer_rows():
    """Where memory binds; a tile's rows are taller where arithmetic does."""
    kernel = s.depthwise(4, 8, 56, 56, 3, 1, 2)
    near, far = (replace(WIDE, vector_registers=32, l2=x, l3=4 * x) for x in (1 << 26, 1 << 14))
    tall, low = (STENCIL.configs(kernel, t)[0].tile for t in (near, far))
    assert tall > low > 1


def _count(block, name: str) -> int:
    return sum(_count(x.body, name) if hasattr(x, "body") else x.name == name for x in block)


def _names_by_block(block) -> list[list[str]]:
    """Return the names of the operations of a block, and of the blocks in it."""
    inner = [names for x in block if hasattr(x, "body") for names in _names_by_block(x.body)]
    return [[x.name for x in block if not hasattr(x, "body")], *inner]


def _operations(block) -> set[str]:
    out = set()
    for x in block:
        out |= _operations(x.body) if hasattr(x, "body") else {x.name}
    return out


def test_kernels_that_are_no_stencil():
    product = s.product(40, 40, 7)  # rows of a matrix share what is read
    assert not STENCIL.match(product)
    assert not STENCIL.match(s.involution(2, 3, 5, 7, 3, 1))  # both factors are vectors
    assert not STENCIL.match(s.conv(2, 9, 8, 8, 4, 3, 3, 1))  # as many terms as channels and taps


def test_it_is_chosen_for_depthwise_convolutions():
    target = replace(host(), vector_bytes=64, vector_registers=32, l2=1 << 20)
    for kernel in (s.depthwise(4, 32, 14, 14, 3, 1), s.depthwise_dw(4, 32, 14, 14, 3, 1),
                   gradient_by_x(4, 32, 14, 14, 3, 2)):  # fmt: skip
        assert autoconfig.choose(kernel, target).pattern.name == "stencil"


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ["znver5", "haswell", "neoverse-n1"])
def test_tiles_stay_in_registers(name):
    """Vectors on the stack, in the loop with the most multiply-adds: a few at most."""
    registers, width, word = {"znver5": (32, 64, "zmm"), "haswell": (16, 32, "ymm"), "neoverse-n1": (32, 16, "q")}[name]
    triple = "aarch64-unknown-linux-gnu" if name == "neoverse-n1" else "x86_64-unknown-linux-gnu"
    target = Target(cpu=name, features="", triple=triple, vector_bytes=width, vector_registers=registers, cores=2)
    for kernel in (s.depthwise(1, 8, 56, 56, 3, 1), s.depthwise_dw(1, 8, 56, 56, 3, 1), s.depthwise(1, 8, 56, 56, 5, 2),
                   s.depthwise(1, 8, 56, 56, 3, 1, 2), s.depthwise_dw(1, 8, 56, 56, 5, 2, 2),
                   gradient_by_x(1, 8, 56, 56, 3, 2)):  # fmt: skip
        (x,) = STENCIL.lower(kernel, STENCIL.configs(kernel, target)[0], target).launches
        text = jit.emit_assembly(emit_module([x.function], target), target)
        main = max(text.split("\n.LBB"), key=lambda block: block.count("vfmadd") + block.count("fmla"))
        stack = [x for x in main.splitlines() if re.search(r"rsp\)|\[sp", x) and re.search(rf"\b{word}\d", x)]
        assert len(stack) <= 12, (name, kernel.shape, len(stack))


@pytest.mark.parametrize(("width", "taps"), [(7, 3), (14, 5)])
def test_guarded_terms_are_one_instruction(width, taps):
    """A multiply-add under a mask, without copies and blends, where the columns of a row are known too."""
    target = Target("znver5", "", "x86_64-unknown-linux-gnu", vector_bytes=64, vector_registers=32, cores=2)
    kernel = gradient_by_x(2, 8, 14, width, taps, 1)
    (x,) = STENCIL.lower(kernel, STENCIL.configs(kernel, target)[0], target).launches
    text = jit.emit_assembly(emit_module([x.function], target), target)
    count = {name: len(re.findall(rf"\bv{name}\S*\s.*zmm", text)) for name in ("fmadd", "mova", "blend")}
    assert count["fmadd"] > 50 and count["mova"] + count["blend"] < count["fmadd"] / 2, count


def test_masked_reads_stay_inside():
    """Where weights wait in registers, a row's borders read nothing before or behind the image."""
    kernel = s.strided_dx(3, 42, 5, 4)
    base = fresh(kernel, 0)
    want = reference(kernel, base)
    for config in STENCIL.configs(kernel, host()):
        for backward in (False, True):
            compare(STENCIL.lower(kernel, config, host()), kernel, base, want, str(config), host(), 0, backward)


def test_a_guard_within_a_prologue_keeps_its_read():
    """An element that is guarded by a factor of a product, which the read is a part of, is not loaded without it."""
    i0, i1, i2, r0 = (Axis(n) for n in range(4))
    place = apply("add", apply("mul", i1, Const(3, dt.i32)), i2)
    guarded = apply("where", apply("lt", place, Const(17, dt.i32)), Read(1, (place, r0), dt.f64), Const(0.0, dt.f64))
    scaled = apply("mul", Read(0, (i2, i1), dt.f64), guarded)
    body = Reduce("sum", (4,), (apply("mul", scaled, Read(2, (i2, i0, i1, r0), dt.f64)),))
    for rows, is_stencil in ((17, False), (18, True)):  # of which the guard keeps the last one out of bounds, or none
        kernel = s.plain((30, 6, 3), [(dt.f64, (3, 6)), (dt.f64, (rows, 4)), (dt.f64, (3, 30, 6, 4))], body)
        configs = STENCIL.configs(kernel, host())
        assert bool(configs) == is_stencil
        base = fresh(kernel, 0)
        for config in configs:
            compare(
                STENCIL.lower(kernel, config, host()), kernel, base, reference(kernel, base), str(config), host(), 0
            )
