"""Winograd's form: every configuration against the evaluator, epilogues, and what they decline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.ir.template_evaluator import evaluate_template
from einsmith.kernels import autoconfig
from einsmith.kernels.composite.winograd import A, B, G, M
from tests.kernels.runner import check, host, run_native
from tests.kernels.samples import (
    axes,
    biased,
    capsule,
    conv,
    conv_dw,
    conv_dx,
    inside,
    lin,
    load,
    product,
    sum_of,
    times,
    zero_unless,
)  # fmt: skip
from tests.nest_interp import run

WINOGRAD = autoconfig.pattern_of("winograd")


def allowed():
    return replace(host(), winograd=True)


CONVOLUTIONS = {
    "forward": conv(2, 3, 9, 8, 5, 3, 3, 1),
    "no padding": conv(3, 2, 8, 7, 4, 3, 3, 0),
    "wide padding": conv(1, 2, 5, 6, 3, 3, 3, 2),
    "one pixel": conv(1, 1, 1, 1, 1, 3, 3, 1),
    "more than a vector of channels": conv(1, 17, 6, 5, 18, 3, 3, 1),
    "backward": conv_dx(2, 3, 7, 9, 4, 3, 3, 1),
    "capsules": capsule(2, 3, 7, 5, 1),
    "backward without padding": conv_dx(2, 17, 6, 5, 3, 3, 3, 0),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_agree_with_the_evaluator(name, rng):
    targets = [allowed()]
    if name == "backward":
        targets.append(replace(allowed(), vector_bytes=16, vector_registers=16))
    check(WINOGRAD, CONVOLUTIONS[name], rng, targets, tolerance=2e-4, native=name not in ("one pixel", "backward"))


def test_filters_are_taken_in_slices_that_the_last_level_holds(rng):
    small = replace(allowed(), l3=1 << 10)
    for kernel, slices in ((conv(1, 3, 6, 5, 5, 3, 3, 1), 1), (conv_dx(1, 40, 5, 5, 3, 3, 3, 1), 3)):
        configs_by_target = [(t, WINOGRAD.configs(kernel, t)[:1]) for t in (small, allowed())]
        few, once = (len(WINOGRAD.lower(kernel, *configs, t).launches) for t, configs in configs_by_target)
        assert few - once >= 3 * (slices - 1)
        check(WINOGRAD, kernel, rng, [small], tolerance=2e-4, configs=configs_by_target[0][1], native=True)


@pytest.mark.parametrize("keep", [False, True])
def test_stages_after_the_sum(keep, rng):
    kernel = biased(CONVOLUTIONS["forward"], 1, keep)
    check(WINOGRAD, kernel, rng, [allowed()], tolerance=2e-4, native=True)


def test_the_error_is_within_its_bound(rng):
    """For 40 channels of standard normal numbers, where the sum itself is not near the bound."""
    kernel = conv(1, 40, 11, 12, 6, 3, 3, 1)
    arrays = [rng.standard_normal(b.shape).astype(np.float32) for b in kernel.buffers]
    want = evaluate_template(kernel.root, arrays[:2])[0]
    x = np.pad(arrays[0], ((0, 0), (0, 0), (1, 7), (1, 7))).astype(np.float64)
    b_, g_, a_ = (np.abs(np.array(t)) for t in (B, G, A))
    u = np.einsum("ar,kcrs,bs->abkc", g_, np.abs(arrays[1]), g_)
    bound = np.zeros((*want.shape[:2], 16, 16))
    for i in range(0, want.shape[2], M):
        for j in range(0, want.shape[3], M):
            v = np.einsum("ai,ncij,bj->abnc", b_, np.abs(x[:, :, i : i + M + 2, j : j + M + 2]), b_)
            bound[:, :, i : i + M, j : j + M] = np.einsum("pa,abkc,abnc,qb->nkpq", a_, u, v, a_)
    bound = bound[:, :, : want.shape[2], : want.shape[3]] * (40 + 40) * np.finfo(np.float32).eps
    for config in WINOGRAD.configs(kernel, allowed()):
        got = [a.copy() for a in arrays]
        run(WINOGRAD.lower(kernel, config, allowed()), kernel, got)
        assert (np.abs(got[2] - want) <= bound).all()


@pytest.mark.filterwarnings("ignore:invalid value")
def test_infinities_stay_within_their_tiles(rng):
    """Results of tiles that see no infinity are as ever."""
    kernel = conv(1, 2, 15, 13, 3, 3, 3, 1)
    arrays = [rng.standard_normal(b.shape).astype(np.float32) for b in kernel.buffers]
    arrays[0][0, 1, 6, 7] = np.inf
    want = evaluate_template(kernel.root, arrays[:2])[0]
    got = [a.copy() for a in arrays]
    run_native(WINOGRAD.lower(kernel, WINOGRAD.configs(kernel, allowed())[0], allowed()), got, allowed())
    rows, columns = ({i // M for i in (at - 1, at, at + 1)} for at in (6, 7))
    reached = np.zeros(want.shape[2:], bool)
    for i, j in np.ndindex(reached.shape):
        reached[i, j] = i // M in rows and j // M in columns
    assert np.isfinite(want[:, :, ~reached]).all() and not np.isfinite(want).all()
    np.testing.assert_allclose(got[2][:, :, ~reached], want[:, :, ~reached], rtol=2e-4, atol=2e-4)
    assert not np.isfinite(got[2][~np.isfinite(want)]).any()


def test_it_is_off_unless_allowed():
    kernel = CONVOLUTIONS["forward"]
    assert not WINOGRAD.allowed(host())
    assert all(name != "winograd" for name, _, _ in autoconfig.choose(kernel, host()).alternatives)
    large = conv(16, 128, 28, 28, 128, 3, 3, 1)
    assert autoconfig.choose(large, allowed()).pattern.name == "winograd"


@pytest.mark.parametrize(
    "kernel",
    [conv(2, 3, 9, 7, 4, 3, 3, 1, 2), conv(2, 3, 9, 7, 4, 5, 5, 2), conv_dw(3, 2, 8, 7, 4, 3, 3, 1),
     product(5, 6, 7), capsule(2, 3, 7, 5, 2)],
    ids=["stride", "window", "weights' gradient", "product", "strided capsules"],
)  # fmt: skip
def test_convolutions_that_winograd_does_not_take(kernel):
    assert not WINOGRAD.match(kernel)


def test_a_guard_that_is_not_the_border_is_no_padding():
    b, k, _, _, c, r, s = axes(7)
    y, x = lin((1, 2), (1, 5)), lin((1, 3), (1, 6))
    body = zero_unless(inside(y, 5), times(load(0, b, c, y, x), load(1, k, c, r, s)))
    params = ((dt.f32, (2, 2, 7, 7)), (dt.f32, (3, 2, 3, 3)))
    assert not WINOGRAD.match(sum_of((2, 3, 5, 5), params, (2, 3, 3), body))
