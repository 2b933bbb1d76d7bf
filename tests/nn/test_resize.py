"""Interpolation along a line at many sizes and scales against torch, exact positions, single elements, and errors."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest

import einsmith as es
from einsmith import functional as F
from einsmith import nn
from einsmith.base.errors import ArgumentError, EinsmithError, ShapeError
from einsmith.ops.resize import _Positions

SCALES = [0.3, 0.5, 0.77, 1.0, 1.1, 1.5, 2, 2.3, 3.0, 3.7]


def close(found, wanted) -> None:
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-11, atol=1e-12)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "area"])
@pytest.mark.parametrize("extent", [1, 2, 5, 12])
def test_sizes_and_scales(torch, rng, mode, extent) -> None:
    x = rng.standard_normal((1, 2, extent))
    t = torch.tensor(x)
    for size in (1, 2, 3, 5, 7, 17, 24, 50):
        close(es.interpret(lambda x, n=size: F.interpolate(x, n, mode=mode))(x),
              torch.nn.functional.interpolate(t, size, mode=mode))  # fmt: skip
    for scale in (s for s in SCALES if extent * s >= 1):
        for again in (None, True):
            options = {"scale_factor": scale, "mode": mode, "recompute_scale_factor": again}
            close(es.interpret(lambda x, o=options: F.interpolate(x, **o))(x),
                  torch.nn.functional.interpolate(t, **options))  # fmt: skip


def test_positions_are_exact_and_their_fractions_small() -> None:
    """As an index of a formula, for every size: as rationals have it, by numbers that 32 bits hold."""
    for extent in (1, 3, 7, 12, 31):
        for count in (1, 2, 5, 12, 50, 61):
            for shift, offset in ((Fraction(0), Fraction(0)), (Fraction(1, 2), Fraction(0)), (Fraction(1, 2),) * 2):
                where = _Positions(Fraction(extent, count), shift, offset, count)
                for p in range(count):
                    assert where.at(p) == where.begins[p] == ((p + shift) * extent / count - offset) // 1
    odd = _Positions(Fraction(0.3), Fraction(1, 2), Fraction(1, 2), 100)
    assert odd._ratio[1] < 200 and [odd.at(p) for p in range(100)] == list(odd.begins)


def test_one_element_is_replicated_and_goes_round(torch) -> None:
    x = np.array([[[7.0]]])
    for mode in ("replicate", "circular"):
        close(F.pad(x, (1, 1), mode), torch.nn.functional.pad(torch.tensor(x), (1, 1), mode=mode))
    close(F.pad(x, (4, 5), "replicate"), torch.nn.functional.pad(torch.tensor(x), (4, 5), mode="replicate"))


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda x: F.interpolate(x), ArgumentError, "give one of size=None and scale_factor=None"),
        (lambda x: F.interpolate(x, 3, 2.0), ArgumentError, "give one of"),
        (lambda x: F.interpolate(x, 3, mode="cubic"), ArgumentError, "mode='cubic' is none of"),
        (lambda x: F.interpolate(x, 3, mode="linear"), ShapeError, "mode='linear' takes 3 dimensions"),
        (lambda x: F.interpolate(x, 3, align_corners=True), ArgumentError, "align_corners=True"),
        (lambda x: F.interpolate(x, (3, 3, 3)), ArgumentError, "size=(3, 3, 3)"),
        (lambda x: F.interpolate(x, 0), ArgumentError, "size=0"),
        (lambda x: F.interpolate(x, scale_factor=-1.0), ArgumentError, "scale_factor=-1.0"),
        (lambda x: F.interpolate(x, scale_factor=0.01), ShapeError, "would get the spatial shape (0, 0)"),
        (
            lambda x: F.interpolate(x, 3, mode="bilinear", antialias=True),
            ArgumentError,
            "antialias=True is not supported",
        ),
        (lambda x: F.interpolate(x, 3, recompute_scale_factor=True), ArgumentError, "recompute_scale_factor"),
        (lambda x: nn.Upsample(3, mode="cubic"), ArgumentError, "Upsample: mode='cubic'"),
        (lambda x: nn.Upsample(), ArgumentError, "Upsample: give one of"),
        (lambda x: F.pad(x, (1, 2, 3)), ShapeError, "must be pairs"),
        (lambda x: F.pad(x, (1, 2.0)), ArgumentError, "must be a sequence of integers"),
        (lambda x: F.pad(x, (1, 1), "mirror"), ArgumentError, "mode='mirror'"),
        (lambda x: F.pad(x, (1, 1), "reflect", 2.0), ArgumentError, "value=2.0"),
        (lambda x: F.pad(x, (8, 0), "reflect"), ShapeError, "'reflect' by (8, 0) is more than 7 along dimension 3"),
        (lambda x: F.pad(x, (0, 9), "circular"), ShapeError, "'circular' by (0, 9) is more than 8"),
        (lambda x: F.pad(x, (-5, -4)), ShapeError, "removes more"),
        (lambda x: nn.ZeroPad2d((1, 2)), ArgumentError, "ZeroPad2d: padding=(1, 2)"),
        (lambda x: nn.ReflectionPad3d(1)(x[0, 0]), ShapeError, "ReflectionPad3d: 'input' needs 3"),
        (lambda x: F.pixel_shuffle(x, 2), ShapeError, "needs a multiple of 4 channels"),
        (lambda x: F.pixel_unshuffle(x, 3), ShapeError, "must be multiples of 3"),
        (lambda x: F.pixel_shuffle(x, 0), ArgumentError, "upscale_factor=0"),
        (lambda x: F.channel_shuffle(x, 2), ShapeError, "groups=2"),
        (lambda x: F.fold(x[0], 8, 3), ShapeError, "needs a multiple of 9 rows and 36 columns"),
        (lambda x: F.unfold(x, 9), ShapeError, "unfold: a window of 9"),
    ],
)
def test_bad_input(call, error, message) -> None:
    with pytest.raises(error, match=re.escape(message)) as caught:
        call(np.ones((2, 3, 8, 8)))
    assert isinstance(caught.value, EinsmithError)
