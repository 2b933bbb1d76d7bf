"""Stencils whose rows have a prologue, applied as they are loaded: a normalisation, a clamp."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einsmith.ir.nodes import Apply, Expr, Piece, Read, apply
from einsmith.ir.rebuild import map_bodies, rebuild
from einsmith.kernels.stencil.loads import find_rotated_kinds, find_short_rows, pair_axis
from einsmith.kernels.stencil.match import stencils
from einsmith.kernels.stencil.stencil_pattern import StencilPattern
from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage
from tests.kernels import samples as s
from tests.kernels.runner import NARROW, WIDE, check, compare, fresh, host, reference, sampled

STENCIL = StencilPattern()


def clamped(x: Expr) -> Expr:
    high = apply("where", s.le(s.num(6.0), x), s.num(6.0), x)
    return apply("where", s.le(x, s.num(0.0)), s.num(0.0), high)


def with_prologue(kernel: Kernel, slot: int, axis: int | None = None) -> Kernel:
    """The kernel with clamp(x * scale + shift) for each x that it reads in a slot, of the numbers of one axis of that
    (its second one), or of an axis of the kernel."""
    root, n = kernel.root, len(kernel.buffers)
    (part,) = root.parts
    assert isinstance(part, Piece)

    def rule(e):
        if isinstance(e, Read) and e.slot == slot:
            at = e.index[1] if axis is None else s.axes(axis + 1)[axis]
            scale, shift = s.read(len(root.params), at), s.read(len(root.params) + 1, at)
            return clamped(apply("add", apply("mul", e, scale), shift))
        return None

    count = root.params[slot][1][1] if axis is None else part.domain[axis]
    t = map_bodies(root, lambda b: rebuild([b], rule)[0], (*root.params, *([(s.F, (count,))] * 2)))
    args = (*kernel.stages[0].args, ("buffer", n), ("buffer", n + 1))
    return Kernel((Stage(t, args, kernel.stages[0].outputs),), (*kernel.buffers, *[KernelBuffer(s.F, (count,))] * 2))


@sampled(6)
@pytest.mark.thinned(4)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("h", "w", "taps"), [(7, 7, 3), (9, 17, 3), (5, 35, 5), (1, 1, 3), (6, 14, 5), (4, 33, 3)])
def test_numbers_of_a_channel(h, w, taps, stride, rng):
    forward, gradient = (f(2, 3, h, w, taps, taps // 2, stride) for f in (s.depthwise, s.depthwise_dw))
    for plain, kernel in (
        (forward, with_prologue(forward, 0)),
        (gradient, with_prologue(gradient, 1)),
        (gradient, with_prologue(with_prologue(gradient, 0), 1)),
    ):
        assert STENCIL.match(kernel) == STENCIL.match(plain) or h == w == 1
        if STENCIL.match(kernel):
            check(STENCIL, kernel, rng, native=True)


@sampled(6)
@pytest.mark.parametrize("target", [NARROW, WIDE])
def test_other_machines(target, rng):
    for kernel in (
        with_prologue(s.depthwise(2, 2, 5, 9, 3, 1), 0),
        with_prologue(s.depthwise(2, 2, 6, 13, 5, 2, 2), 0),
        with_prologue(s.depthwise_dw(2, 2, 6, 5, 3, 1), 1),
    ):
        check(STENCIL, kernel, rng, [target])


def test_padding_is_zero_after_a_prologue(rng):
    """clamp(0*scale + shift) is not zero, and with infinite numbers not even a number."""
    kernel = with_prologue(s.depthwise(2, 2, 5, 7, 3, 1), 0)
    base = fresh(kernel, 0)
    base[-2][0], base[-1][0] = np.inf, -np.inf
    base[-1][1] = 5.0
    with np.errstate(invalid="ignore"):
        want = reference(kernel, base)
    assert np.isfinite(want[2][:, 1]).all() and (want[2][:, 1] != 0).any()
    target = host()
    for config in STENCIL.configs(kernel, target)[:3]:
        compare(STENCIL.lower(kernel, config, target), kernel, base, want, str(config), target)


def test_points_that_share_vectors_have_numbers_in_common(rng):
    """Not where the numbers are those of the axis whose points lie side by side."""
    assert pair_axis(stencils(with_prologue(s.depthwise(2, 3, 7, 7, 3, 1), 0))[0], 16) == 0
    own = with_prologue(s.depthwise(2, 3, 7, 7, 3, 1), 0, axis=0)
    assert pair_axis(stencils(own)[0], 16) is None
    check(STENCIL, own, rng, native=True)


def test_every_way_to_read_every_other_element(rng):
    target = replace(WIDE, vector_registers=32)
    many = with_prologue(s.depthwise(4, 2, 9, 14, 5, 2, 2), 0)
    assert find_rotated_kinds(stencils(many)[0])
    rows = with_prologue(s.depthwise_dw(3, 2, 8, 28, 3, 1, 2), 1)
    assert find_short_rows(stencils(rows)[0], 16, 64)
    for kernel in (many, rows):
        check(STENCIL, kernel, rng, [target], configs=STENCIL.configs(kernel, target)[:2])


def test_prologue_operands_that_vary_along_a_row():
    """Scales of columns, and an element read at two places."""
    assert not stencils(with_prologue(s.depthwise(2, 3, 7, 9, 3, 1), 0, axis=3))
    assert not stencils(with_prologue(s.depthwise(2, 3, 7, 9, 3, 1), 0, axis=2))
    kernel = s.depthwise(2, 3, 7, 9, 3, 0)

    def twice(e):
        return apply("mul", e, e) if isinstance(e, Read) and e.slot == 0 else None

    def two_places(e):
        if isinstance(e, Read) and e.slot == 0:
            return apply("max", e, Read(0, (*e.index[:3], s.num(0, e.index[3].dtype)), e.dtype))
        return None

    for rule, fits in ((twice, True), (two_places, False)):
        t = map_bodies(kernel.root, lambda b: rebuild([b], rule)[0])  # noqa: B023
        (stage,) = kernel.stages
        matches = stencils(Kernel((Stage(t, stage.args, stage.outputs),), kernel.buffers))
        assert bool(matches) == fits and all(isinstance(m.body, Apply) for x in matches for _, m in x.prologues)
