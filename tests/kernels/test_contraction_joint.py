"""Test pairs of pieces whose results interleave and whose tiles are computed together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einsmith.base import dtypes as dt
from einsmith.codegen.loopnest.nest import Builder
from einsmith.ir.nodes import apply
from einsmith.kernels.contraction.companions import companion_of, find_pairs
from einsmith.kernels.contraction.config import Tiled
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION, Configs
from einsmith.kernels.contraction.emission.blocked import Blocked
from einsmith.kernels.contraction.geometry import Geometry
from einsmith.schedule.contraction_problem import problems, with_companion
from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage
from tests.kernels.runner import check_exact as check
from tests.kernels.runner import host, sampled
from tests.kernels.samples import load, pointwise_dx, strided_conv_dx, template, times
from tests.kernels.test_contraction_exact import sprinkled


def join_pairs(kernel: Kernel, c: Tiled) -> Configs | None:
    """Return the configuration in which every pair of the kernel's pieces is computed together; None if one cannot be.

    The operand with the images (axis 0) is M where `c` is not swapped.
    """
    problems_of_pieces = problems(kernel.root)
    assert problems_of_pieces is not None
    pieces: list[Tiled] = [c] * len(problems_of_pieces)
    for first, second in find_pairs(problems_of_pieces):
        p = problems_of_pieces[second]
        image_operand = 0 if 0 in p.operands[0].axes else 1
        windows = tuple((image_operand, x) for _, x in c.windows)
        pieces[second] = replace(c, swap=c.swap != bool(image_operand), windows=windows)
        companion_config = companion_of(kernel, problems_of_pieces[first], p, pieces[second], host())
        if companion_config is None:
            return None
        pieces[first] = companion_config
    return Configs(tuple(pieces), find_pairs(problems_of_pieces))


SIDE = ((0, "side"),)
PIXELS = Tiled(False, 14, 2, "inline", "buffer", windows=SIDE)


def add_stage(kernel: Kernel, count: int) -> Kernel:
    """Return the kernel with a further stage, which reads a number per channel and a tensor like the result `count`
    times."""
    f, shape, n = dt.f32, kernel.shape, len(kernel.buffers)
    more = times(apply("add", load(0, 0, 1, 2, 3), load(1, 1)), load(2, 0, 1, 2, 3))
    for _ in range(count - 1):
        more = apply("sub", times(more, load(2, 0, 1, 2, 3)), load(1, 1))
    stage = Stage(
        template(shape, ((f, shape), (f, shape[1:2]), (f, shape)), more),
        (("stage", 0, 0), ("buffer", n), ("buffer", n + 1)), kernel.stages[0].outputs,
    )  # fmt: skip
    first = Stage(kernel.root, kernel.stages[0].args, (None,))
    return Kernel((first, stage), (*kernel.buffers, KernelBuffer(f, shape[1:2]), KernelBuffer(f, shape)))


@sampled(6)
def test_tiles_of_two_pieces():
    """Pixels as M, from windows of an image, turned; as N, which are not; last tiles of fewer rows and lanes; both
    orders of the loops and tasks along both sides; packed operands."""
    for shape, configs in (
        ((2, 3, 10, 28, 5), (PIXELS, replace(PIXELS, order="m", tm=3), replace(PIXELS, mr=7, nv=1, tn=1))),
        ((2, 37, 8, 56, 2), (PIXELS, replace(PIXELS, tn=2), replace(PIXELS, mr=28, nv=1, order="m", tm=2, tn=2))),
        ((2, 20, 6, 10, 4), (replace(PIXELS, mr=5), replace(PIXELS, mr=10, nv=1), replace(PIXELS, mr=5, b="inline"))),
        ((2, 7, 10, 6, 3), (Tiled(True, 4, 2, "buffer", "inline"), Tiled(True, 3, 1, "inline", "buffer", "m", tm=2))),
        ((3, 5, 8, 14, 4), (Tiled(False, 6, 2, "buffer", "buffer", tm=2, tn=1),
                            Tiled(True, 2, 3, "buffer", "inline", windows=SIDE))),
    ):  # fmt: skip
        kernel = strided_conv_dx(*shape)
        joined = [x for c in configs if (x := join_pairs(kernel, c)) is not None]
        assert len(joined) == len(configs) and all(len(x.joint) == 2 for x in joined)
        check(kernel, joined)


@sampled(4)
def test_epilogues_of_joint_sums():
    """Read beside them, from registers where it is short and wherever tiles are turned."""
    for count in (1, 5):
        kernel = add_stage(strided_conv_dx(2, 18, 28, 28, 3), count)
        config = join_pairs(kernel, PIXELS)
        assert config is not None
        check(kernel, [config])
    kernel = add_stage(strided_conv_dx(2, 6, 12, 8, 3), 1)
    config = join_pairs(kernel, Tiled(True, 3, 1, "buffer", "inline"))
    assert config is not None
    check(kernel, [config])


@pytest.mark.filterwarnings("ignore:invalid value")
def test_infinities_with_padding():
    kernel = strided_conv_dx(2, 17, 12, 14, 3)
    config = join_pairs(kernel, replace(PIXELS, mr=7))
    assert config is not None
    for arrays in sprinkled(kernel, 1):
        check(kernel, [config], arrays=arrays)


def test_windows_of_both_pieces():
    """Of which one reads what lies beyond the last column too."""
    kernel = strided_conv_dx(2, 17, 12, 56, 3)
    config = join_pairs(kernel, PIXELS)
    assert config is not None and all(config.pieces[n].windows for n in config.joint[1])
    check(kernel, [config])


def test_pairs_are_chosen_where_a_line_would_be_stored_to_twice():
    kernel = strided_conv_dx(16, 32, 56, 56, 128)
    target = replace(host(), l1=48 << 10, l2=1 << 20, l3=32 << 20)
    best = CONTRACTION.best(kernel, target)
    assert best is not None and best.joint == ((0, 1), (2, 3))
    assert best in CONTRACTION.configs(kernel, target)
    separate = next(c for c in CONTRACTION.configs(kernel, target) if not c.joint)
    # What the pair saves in stores its tiles of 8 sums, which the latency limits, may cost again: 20.8 ms, and 19.7
    # apart (two cores of a Zen 3).
    assert CONTRACTION.cost(kernel, best, target).rank <= 1.02 * CONTRACTION.cost(kernel, separate, target).rank
    pieces = problems(kernel.root)
    assert pieces is not None
    pair = with_companion(pieces[1], pieces[0])
    one, other = (Geometry(kernel, c, target, p) for c, p in zip(best.pieces, (pieces[0], pair), strict=False))
    b = Builder("probe", 4)
    blocked = Blocked(b, other, 0, Blocked(b, one))
    assert blocked.tile_epilogue.transposed and blocked.tile_epilogue.epilogue.interleaved
    assert not find_pairs(problems(pointwise_dx(2, 3, 8, 8, 4, 2).root) or ())
    assert companion_of(kernel, pieces[0], pieces[1], replace(best.pieces[1], kc=64), target) is None
