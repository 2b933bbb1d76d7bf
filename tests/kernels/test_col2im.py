"""Products first, sums of them afterwards: against the evaluator, with infinities, and what is not taken apart so."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.codegen.loopnest.nest import Builder
from einsmith.ir.nodes import Reduce
from einsmith.ir.rewrite.simplify import simplify_template
from einsmith.ir.template_evaluator import evaluate_template
from einsmith.kernels import autoconfig
from einsmith.kernels.composite.parts import LaunchSequence
from einsmith.kernels.pattern import Launch, Lowered
from einsmith.schedule.contraction_problem import problems
from einsmith.schedule.kernel import Kernel
from tests.kernels.runner import check, host, run_native
from tests.kernels.samples import (
    axes,
    biased,
    capsule,
    conv,
    conv_dw,
    conv_dx,
    depthwise,
    inside,
    kernel_of,
    le,
    lin,
    load,
    pointwise_dx,
    product,
    strided_conv_dx,
    sum_of,
    times,
    zero_unless,
)  # fmt: skip

COL2IM = autoconfig.pattern_of("col2im")


def dilated_dx(b: int, c: int, n: int, o: int, taps: int, dilation: int) -> Kernel:
    """dX[b, c, y, x] of a filter whose taps stand apart, without padding: most of them meet nothing."""
    i, j, y, x, k, r, s = axes(7)
    out = n - dilation * (taps - 1)
    p, q = lin((1, 2), (-dilation, 5)), lin((1, 3), (-dilation, 6))
    body = zero_unless(inside(p, out), zero_unless(inside(q, out), times(load(0, k, j, r, s), load(1, i, k, p, q))))
    return sum_of((b, c, n, n), ((dt.f32, (o, c, taps, taps)), (dt.f32, (b, o, out, out))), (o, taps, taps), body)


def padded(kernel: Kernel) -> Kernel:
    """The guards of the terms as guards of the factors that they zero."""
    (p,) = problems(kernel.root)
    factors = [o.expr for o in p.operands]
    for i, o in enumerate(p.operands):
        for g in o.guards:
            factors[i] = zero_unless(g, factors[i])
    return sum_of(kernel.shape, kernel.root.params, tuple(p.extents[a] for a in p.k), times(*factors))


def several_images(groups: int, c: int, n: int, o: int) -> Kernel:
    """dX[b, g, c, x] = sum[o, r](W[g, o, c, r] * dY[b, g, o, x - r]): g is an axis of both factors and the results."""
    b, g, j, x, k, r = axes(6)
    at = lin((1, 3), (-1, 5))
    body = zero_unless(inside(at, n - 2), times(load(0, g, k, j, r), load(1, b, g, k, at)))
    return sum_of((2, groups, c, n), ((dt.f32, (groups, o, c, 3)), (dt.f32, (2, groups, o, n - 2))), (o, 3), body)


def local_dx(b: int, c: int, n: int, o: int, step: int = 1) -> Kernel:
    """dX[b, c, x] = sum[o, r](W[x - r, o, c, step*r] * dY[b, o, x - r]), whose filters differ from place to
    place; filters have a tap for each `step`-th of their elements."""
    i, j, x, k, r = axes(5)
    at = lin((1, 2), (-1, 4))
    body = zero_unless(inside(at, n - 2), times(load(0, at, k, j, lin((step, 4))), load(1, i, k, at)))
    taps = 2 * step + 1
    return sum_of((b, c, n), ((dt.f32, (n - 2, o, c, taps)), (dt.f32, (b, o, n - 2))), (o, 3), body)


def banded(n: int, o: int, c: int) -> Kernel:
    """Y[c, x] = sum[k, r](where(r <= x, W[k, r, c] * V[k, r, x + r])): r, which both factors have, stays apart."""
    j, x, k, r = axes(4)
    body = zero_unless(le(r, x), times(load(0, k, r, j), load(1, k, r, lin((1, 1), (1, 3)))))
    return sum_of((c, n), ((dt.f32, (o, 3, c)), (dt.f32, (o, 3, n + 2))), (o, 3), body)


def masked(n: int, o: int) -> Kernel:
    """Y[x] = sum[k, r](where(k <= x + r, W[k, r] * V[k, x + r])): a guard on the axis that would be summed first."""
    x, k, r = axes(3)
    body = zero_unless(le(k, lin((1, 0), (1, 2))), times(load(0, k, r), load(1, k, lin((1, 0), (1, 2)))))
    return sum_of((n,), ((dt.f32, (o, 3)), (dt.f32, (o, n + 2))), (o, 3), body)


def slanted(n: int, o: int) -> Kernel:
    """Y[x] = sum[k, r](W[k, r] * V[k, x + r + k]): the axis that would be summed first stands in another index too."""
    x, k, r = axes(3)
    body = times(load(0, k, r), load(1, k, lin((1, 0), (1, 1), (1, 2))))
    return sum_of((n,), ((dt.f32, (o, 3)), (dt.f32, (o, n + o + 1))), (o, 3), body)


def slanted_by_another(n: int, o: int) -> Kernel:
    """Y[c, x] = sum[k, j, r](W[k, j, r, c] * V[k, j, x + r + j]): of two such axes one may be summed first."""
    c, x, k, j, r = axes(5)
    body = times(load(0, k, j, r, c), load(1, k, j, lin((1, 1), (1, 3), (1, 4))))
    return sum_of((5, n), ((dt.f32, (o, 2, 3, 5)), (dt.f32, (o, 2, n + 3))), (o, 2, 3), body)


def along_diagonal(n: int, m: int, o: int) -> Kernel:
    """Y[i] = sum[k, r, s, t](A[r, k, i] * B[k, s, t, r, r]) of places that are not square: r is no axis of products."""
    i, k, r, s, t = axes(5)
    body = times(load(0, r, k, i), load(1, k, s, t, r, r))
    return sum_of((n,), ((dt.f32, (m, o, n)), (dt.f32, (o, 2, 3, m, m + 2))), (o, m, 2, 3), body)


KERNELS = {
    "a diagonal of one factor": along_diagonal(7, 5, 17),
    "an axis in two indices": slanted_by_another(19, 7),
    "stride": strided_conv_dx(2, 3, 6, 10, 17),
    "stride, phases of one tap": kernel_of(simplify_template(strided_conv_dx(2, 3, 6, 10, 17).root)),
    "dilation": dilated_dx(2, 5, 13, 7, 3, 3),
    "dilation, one image, a row": dilated_dx(1, 1, 17, 16, 4, 4),
    "groups": several_images(3, 5, 19, 7),
    "filters of each place": local_dx(3, 5, 11, 7),
    "filters of each place, dilated": local_dx(17, 16, 4, 8, 2),
    "filters of each place, one image": local_dx(1, 1, 17, 1),
    "a tap with a guard": banded(19, 7, 5),
    "backward": conv_dx(1, 2, 7, 9, 5, 3, 3, 1),
    "forward": conv(2, 17, 6, 5, 3, 3, 3, 1),
    "forward with a stride": conv(2, 3, 9, 7, 4, 3, 3, 1, 2),
    "capsules": capsule(2, 2, 5, 3, 2),
    "a stage that follows": biased(conv_dx(2, 3, 6, 5, 4, 3, 3, 1), 1, True),
    "a stage alone": biased(conv(2, 3, 6, 5, 4, 3, 3, 1), 1, False),
}


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", KERNELS)
def test_agrees_with_the_evaluator(name, rng):
    narrow = replace(host(), vector_bytes=16, vector_registers=16)
    check(COL2IM, KERNELS[name], rng, [host(), narrow], native=name != "capsules")


def test_products_that_no_result_has_do_not_show(rng):
    """Where a guard leaves a product out, its operands may be infinite."""
    kernel = dilated_dx(1, 2, 9, 3, 3, 3)
    arrays = [rng.standard_normal(b.shape).astype(np.float32) for b in kernel.buffers]
    arrays[0][1, 0, 0, 2] = np.inf
    arrays[1][0, 2, 1, 1] = np.nan
    want = evaluate_template(kernel.root, arrays[:2])[0]
    assert np.isfinite(want).any() and np.isnan(want).any() and np.isinf(want).any()
    (config, *_) = COL2IM.configs(kernel, host())
    run_native(COL2IM.lower(kernel, config, host()), arrays, host())
    np.testing.assert_allclose(arrays[2], want, rtol=1e-5, atol=1e-5)


def test_products_of_a_place_are_one_product_each():
    """The gradient of a layer with filters of its own at each place has a product per place, of images and filters."""
    ((products, sums),) = COL2IM.ways(local_dx(3, 5, 11, 7), host())
    (problem,) = problems(products.root)
    assert problem.sizes[0] == 9 and sorted(problem.sizes[1:3]) == [3, 15] and problem.sizes[3] == 7
    assert sorted(products.shape) == [3, 3, 5, 9] and sums.root.parts[0].body.extents == (3,)


def test_pieces_share_their_products():
    """The phases of a strided backward pass are one product, of as many rows as the filter has taps; also where one of
    them has a single tap, and no axis of it."""
    for name in ("stride", "stride, phases of one tap"):
        assert len(KERNELS[name].root.parts) == 4
        ((products, sums),) = COL2IM.ways(KERNELS[name], host())
        (piece,) = products.root.parts
        assert isinstance(piece.body, Reduce) and piece.body.extents == (17,)
        assert products.shape == (3, 3, 3, 2, 3, 5) and len(sums.root.parts) == 4


def test_contractions_that_stay_whole():
    """Nothing that would be added up afterwards; no axis of K that both have; a factor that is zero by itself, beside
    which the other may be infinite; a guard or an index that tells the products of a sum apart."""
    for kernel in (product(5, 6, 7), masked(9, 7), slanted(9, 4), pointwise_dx(2, 3, 6, 6, 4, 2),
                   depthwise(2, 3, 7, 9, 3, 1), padded(conv(2, 3, 9, 7, 4, 3, 3, 1))):  # fmt: skip
        assert not COL2IM.match(kernel)
    assert COL2IM.match(conv(2, 3, 9, 7, 4, 3, 3, 1))


def test_products_that_would_fill_the_memory_are_not_made():
    """The gradient of a filter has all pairs of pixels as products."""
    kernel = conv_dw(4, 5, 30, 30, 6, 3, 3, 1)
    small = replace(host(), l3=1 << 20)
    assert COL2IM.match(kernel) and COL2IM.bound(kernel, small) == inf
    assert COL2IM.configs(kernel, small) == [] and COL2IM.best(kernel, small) is None


def test_is_chosen_where_few_products_meet():
    """Of 16 taps that stand 3 apart over 7 pixels, results of 16 pixels have 3 on average."""
    kernel = dilated_dx(3, 170, 16, 330, 4, 3)
    assert autoconfig.choose(kernel, replace(host(), cores=2)).pattern is COL2IM


def test_loop_invariant_launches_run_once():
    """A launch of a part that a loop need run but once stays one: what it leaves in the workspace is nobody else's."""
    part = Lowered([Launch(Builder(f"part{n}", 1).finish(), 1, once) for n, once in enumerate((True, False))], 8)
    whole = LaunchSequence("whole", 2)
    whole.add(part, [])
    whole.add(part, [])
    assert [x.loop_invariant for x in whole.lowered.launches] == [True, False] * 2
    assert len({x.function.name for x in whole.lowered.launches}) == 4 and whole.lowered.workspace == 2 * 64
