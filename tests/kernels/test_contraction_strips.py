"""Convolutions of few filters in the direct form: inner strips without guards, rows that are prefetched, prices."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from einsmith.codegen.loopnest.nest_text import show
from einsmith.kernels.contraction import direct_boxes
from einsmith.kernels.contraction.config import Direct
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION, Configs
from einsmith.kernels.contraction.direct_cost import DirectCost
from einsmith.kernels.contraction.direct_loads import BoxLoads, find_inner_strips
from einsmith.kernels.contraction.words import operand_memories
from einsmith.kernels.emit.access import OperandAccess
from einsmith.schedule.contraction_problem import problems
from tests.kernels.runner import check_exact as check
from tests.kernels.runner import host, sampled
from tests.kernels.samples import conv, conv_dx, depthwise, padded_conv


def _text(kernel, d: Direct, target) -> str:
    return "\n".join(show(f) for f in CONTRACTION.lower(kernel, Configs((d,)), target).functions)


def _direct(kernel, target) -> list[Direct]:
    return [c.pieces[0] for c in CONTRACTION.configs(kernel, target) if isinstance(c.pieces[0], Direct)]


def test_inner_strips_are_those_whose_guards_hold_at_every_point_of_k():
    """The borders of images, along rows and columns, at any stride, and in gradients."""
    for kernel, tile, want in (
        (conv(1, 2, 40, 70, 3, 3, 3, 1), 4, {2: (4, 36), 3: (16, 64)}),
        (padded_conv(1, 2, 40, 70, 3, 3, 3, 1), 4, {2: (4, 36), 3: (16, 64)}),
        (conv(1, 2, 40, 96, 3, 5, 5, 2), 1, {2: (2, 38), 3: (16, 80)}),
        (conv(1, 2, 41, 161, 3, 3, 3, 1, stride=2), 2, {2: (2, 20), 3: (16, 80)}),
        (conv_dx(1, 3, 40, 70, 2, 3, 3, 1), 4, {2: (4, 36), 3: (16, 64)}),
        (conv_dx(1, 3, 40, 70, 2, 3, 3, 0), 4, {2: (4, 36), 3: (16, 64)}),
        (conv(1, 2, 40, 70, 3, 3, 3, 0), 4, {}),
        (conv(1, 2, 40, 40, 3, 3, 3, 1), 20, {}),
    ):
        (p,) = problems(kernel.root)
        found = find_inner_strips(p, Direct(3, 1, ((2, tile),), (), (0,)), 16)
        assert {a: (x.lo, x.hi) for a, x in found.items()} == want


@sampled(4)
@pytest.mark.parametrize("width", [15, 16, 17, 31, 33, 47, 48, 49, 67, 97])
def test_strips_of_every_kind(width):
    """First, inner and last strips, along rows and columns, of widths around those of vectors."""
    target = host()
    for make in (
        lambda: conv(2, 3, 11, width, 5, 3, 3, 1),
        lambda: padded_conv(1, 2, 13, width, 3, 5, 3, 2),
        lambda: conv_dx(1, 5, 12, width, 3, 3, 5, 1),
        lambda: conv(1, 2, 23, 2 * width + 1, 3, 3, 3, 1, stride=2),
    ):
        kernel = make()
        filters = kernel.shape[1]
        for tile, unroll in ((((1, filters), (2, 2)), ((5, 3),)), (((1, 2), (2, 3)), ((6, 3),)), (((1, filters),), ())):
            for vectors in (1, 2):
                d = Direct(3, vectors, tile, unroll, (0,) if kernel.shape[0] > 1 else ())
                check(kernel, [Configs((d,))], target=target)


@sampled(4)
def test_strips_of_parts():
    """Tasks whose ranges of tiles begin and end anywhere among first, inner and last strips."""
    for kernel in (conv(1, 3, 29, 50, 4, 3, 3, 1), conv_dx(1, 4, 30, 53, 2, 5, 3, 2)):
        for tile, parts in ((((1, 4), (2, 2)), 15), (((1, 4), (2, 3)), 4), (((1, 4),), 7), (((1, 4), (2, 4)), 3)):
            d = Direct(3, 1, tile, ((5, 3),), (), (), 1, (), parts)
            check(kernel, [Configs((d,))], target=host())


def test_inner_strips_load_without_masks():
    """The four rows that a tile of inner strips reads; borders read theirs under masks."""
    kernel = conv(1, 3, 40, 67, 4, 3, 3, 1)
    text = _text(kernel, Direct(3, 1, ((1, 4), (2, 2)), ((5, 3),), ()), host())
    assert len(re.findall(r": f32x\d+ = load\(%0, %\d+\)", text)) == 4
    assert len(re.findall(r": f32x\d+ = load\(%0, %\d+, %\d+\)", text)) >= 16


def test_rows_of_the_next_tile_are_prefetched_where_the_image_exceeds_l2():
    """Two new rows for a tile of two; none where the image fits L2, is copied, or lanes lie along K."""
    kernel = conv(1, 3, 40, 64, 4, 3, 3, 0)
    d = Direct(3, 1, ((1, 4), (2, 2)), ((5, 3),), ())
    small = replace(host(1), l2=16 << 10)
    assert "prefetch" not in _text(kernel, d, replace(host(1), l2=1 << 20))
    assert "prefetch" in _text(kernel, d, small)
    body = next(x for x in _text(kernel, d, small).split("for ") if "prefetch" in x)
    assert body.count("prefetch(") == 2
    check(kernel, [Configs((d,))], target=small)
    dw = depthwise(1, 2, 40, 64, 3, 1)
    assert "prefetch" not in _text(dw, Direct(3, 1, ((2, 2),), ((4, 3),), (1,), (), 1, ((0, "all"),)), small)


def test_few_filters_are_computed_in_place():
    """Boxes of all filters and several rows are chosen for images of many pixels, not for many filters."""
    target = replace(host(1), vector_bytes=64, vector_registers=32)
    (first, *_) = _direct(conv(1, 40, 116, 116, 8, 3, 3, 1), target)
    assert dict(first.tile)[1] == 8 and dict(first.tile)[2] > 1 and first.vector == 3
    assert not _direct(conv(1, 40, 116, 116, direct_boxes.MAX_FILTERS + 1, 3, 3, 1), target)


def test_masks_that_no_loop_over_k_changes_are_computed_before_it():
    """Guards of rows whose taps are unrolled cost a conjunction a load; others are computed in their loop."""
    kernel, target = conv(1, 40, 116, 116, 8, 3, 3, 1), replace(host(1), vector_bytes=64)
    (p,) = problems(kernel.root)
    memories = operand_memories(kernel)
    (image,) = (o for o in p.operands if o.guards)
    access = OperandAccess(None, [image.expr], image.guards, p.extents, memories)
    loads = BoxLoads(access, 3, 16, target)
    moving, box = {2, 3, 4, 6}, [(2, 2), (5, 3)]
    # Two guards of columns, which the loop over taps changes, and those of four rows once in all; four loads of both.
    assert loads.masks(box, 3, 1, moving, {4: 40, 6: 3}) == 2 + 2 * 4 + 2 * 4 / 120
    assert loads.masks(box, 3, 1, moving, {}) > 8


def test_images_beyond_l2_are_fetched_once_for_each_tile_of_filters():
    """Eight filters in two tiles read the image twice; in one tile, once."""
    kernel, target = conv(1, 40, 116, 116, 8, 3, 3, 1), replace(host(1), l2=1 << 20)
    (p,) = problems(kernel.root)
    twice, once = (
        DirectCost(kernel, p, Direct(3, 1, ((1, n), (2, 2)), ((5, 3),), ()), target).refetched_bytes() for n in (4, 8)
    )
    assert twice == 40 * 116 * 116 * 4 and once == 0
