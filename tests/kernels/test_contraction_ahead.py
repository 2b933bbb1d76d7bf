"""What is asked for before it is used, and what is stored past the caches or together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.codegen.ssa import If, Loop, Op
from einsmith.ir.nodes import apply
from einsmith.kernels.contraction import epilogue, search, traffic
from einsmith.kernels.contraction.config import Tiled
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION, Configs
from einsmith.kernels.contraction.emission.tile_epilogue import TileEpilogue
from einsmith.kernels.contraction.features import operand_plan
from einsmith.schedule.contraction_problem import problems
from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage
from tests.kernels.runner import check_exact as check
from tests.kernels.runner import host, sampled
from tests.kernels.samples import (
    biased,
    capsule,
    capsule_da,
    conv,
    conv_dw,
    depthwise,
    lin,
    load,
    num,
    product,
    strided_conv_dx,
    sum_of,
    times,
    updated,
)


@pytest.fixture(autouse=True)
def results_near(request, monkeypatch) -> None:
    """Epilogues prefetch nothing, except where a test is about that."""
    if "epilogue" not in request.node.name:
        monkeypatch.setattr(TileEpilogue, "prefetch", lambda self, t, x: None)


SMALL = replace(host(), l1=4 << 10, l2=14 << 10)
"""Small caches, so that small operands are far away."""


def operations(body: list) -> Iterator[Op]:
    for x in body:
        if isinstance(x, Op):
            yield x
        else:
            assert isinstance(x, (Loop, If))
            yield from operations(x.body)


def count(kernel: Kernel, config: Tiled, name: str, target=SMALL) -> int:
    pieces = len(kernel.root.parts)
    lowered = CONTRACTION.lower(kernel, Configs((config,) * pieces), target)
    return sum(1 for x in lowered.launches for op in operations(x.function.body) if op.name == name)


@sampled(8)
def test_tiles_ask_for_the_next_panel_of_n():
    panels = Tiled(mr=5, nv=2, a="inline", b="inline", order="n")
    images = conv(3, 9, 17, 17, 23, 1, 1, 0)  # rows of 289 points: panels cross images
    strided = conv(3, 9, 33, 33, 23, 1, 1, 0, 2)  # every other point of every other row
    for kernel, swap in (
        (product(23, 300, 40, "NN"), False),
        (product(300, 23, 40, "TT"), True),
        (images, True),
        (strided, True),
    ):
        configs = [
            replace(panels, swap=swap, b=b, tm=tm, tn=tn, split=split)
            for b in ("inline", "panel")
            for tm, tn, split in ((1, 1, 1), (2, 3, 1), (1, 2, 3))
        ]
        for c in configs:
            assert count(kernel, c, "prefetch") > 0
        check(kernel, [Configs((c,)) for c in configs], target=SMALL)
        alone = replace(panels, swap=swap, mr=23)
        assert (count(kernel, alone, "prefetch") > 0) == (kernel is not strided)
        check(kernel, [Configs((alone,))], target=SMALL)
        for other in (replace(panels, swap=swap, b="buffer"), replace(panels, swap=swap, order="m")):
            assert count(kernel, other, "prefetch") == 0
    # Groups of channels: the batch is in both operands.
    both = times(load(0, 0, lin((7, 1), (1, 4)), 3), load(1, 1, 2, 4))
    grouped = sum_of((2, 3, 11, 289), ((dt.f32, (2, 21, 289)), (dt.f32, (3, 11, 7))), (7,), both)
    swapped = replace(panels, swap=True)
    assert count(grouped, swapped, "prefetch") > 0
    check(grouped, [Configs((swapped,)), Configs((replace(swapped, b="panel", tn=2),))], target=SMALL)


@sampled(6)
def test_tiles_ask_for_every_tensor_that_an_operand_is_computed_of():
    """A scale for each point of K is few numbers; of two tensors as large as the operand both are asked for, unless
    they lie differently. Panels of N across K and along it."""
    panels = Tiled(mr=5, nv=2, a="inline", b="inline", order="n")
    blocks = Tiled(mr=8, nv=2, a="panel", b="panel", order="n", kc=64)
    for across, config in ((True, panels), (True, replace(panels, b="panel")), (False, blocks)):
        k, n = (40, 300) if across else (704, 40)
        x, y = ((load(slot, 2, 1) if across else load(slot, 1, 2)) for slot in (1, 2))
        shape = (k, n) if across else (n, k)
        turned = load(2, 1, 2) if across else load(2, 2, 1)

        def made(n_operand, other, m=23, k=k, n=n, shape=shape):
            body = times(load(0, 0, 2), apply("max", apply("mul", n_operand, load(3, 2)), num(0.5)))
            return sum_of((m, n), ((dt.f32, (m, k)), (dt.f32, shape), (dt.f32, other), (dt.f32, (k,))), (k,), body)

        one, two = made(x, shape), made(apply("sub", x, y), shape)
        apart = made(apply("sub", x, turned), shape[::-1])
        alone = count(one, config, "prefetch")
        assert alone > 0 and count(two, config, "prefetch") == 2 * alone and not count(apart, config, "prefetch")
        for kernel in (one, two, apart):
            check(kernel, [Configs((config,)), Configs((replace(config, tm=2, tn=2),))], target=SMALL)


def test_only_distant_rows_are_prefetched():
    far = traffic.Strides(4, 4096, True)

    def lines(s: traffic.Strides, points: int = 1 << 20) -> int:
        problem, target = SimpleNamespace(batch=()), SimpleNamespace(l2=1 << 20)
        return traffic.count_stream_lines(s, SimpleNamespace(p=problem, B=9, K=1, item=4, target=target), None, points)

    assert lines(far) and not lines(far, 1 << 18)
    assert not lines(far._replace(k=256)) and not lines(far._replace(even=False))
    assert lines(far._replace(streams=2)) == 1
    assert [lines(far._replace(side=s)) for s in (4, 8, 12)] == [1, 2, 0]
    cases = [
        (1, 64, 1024, 1),
        (1, 12, 1024, 1),
        (1, 24, 1024, 2),
        (1, 6, 1024, 1),
        (1, 64, 64, 1),
        (0, 64, 1024, 1),
        (2, 64, 1024, 1),
        (2, 12, 1024, 1),
    ]
    asks, m, n, tm = np.array(cases).T
    asked = traffic.count_prefetched_lines(asks, m, n, np.full(8, 6), np.full(8, 4), 16, tm)
    assert asked.tolist() == [1, 3, 3, 5, 0, 0, 1, 5]


def test_panels_beyond_l1_are_expensive():
    kernel, wide = product(120, 4096, 300, "NN"), Tiled(mr=6, nv=4, a="inline", b="inline", tn=8)
    narrow = replace(wide, mr=12, nv=2)

    def seconds(c: Tiled) -> float:
        return CONTRACTION.cost(kernel, Configs((c,)), replace(host(), l1=48 << 10, l2=1 << 20)).arithmetic

    assert seconds(narrow) < 0.9 * seconds(wide)


def far(kernel: Kernel) -> Kernel:
    """With an output too large for the caches."""
    return Kernel(kernel.stages, (*kernel.buffers[:-1], KernelBuffer(dt.f32, kernel.buffers[-1].shape, True)))


@sampled(4)
def test_large_results_are_stored_past_the_caches():
    c = Tiled(mr=4, nv=2, a="inline", b="inline")
    lanes = host().lanes()
    whole, ragged = far(product(9, 6 * lanes, 5, "NN")), far(product(9, 6 * lanes + 1, 5, "NN"))
    for kernel, streams in ((whole, True), (ragged, False)):
        assert (count(kernel, c, "stream") > 0) is streams
        check(kernel, [Configs((c,)), Configs((replace(c, split=2),)), Configs((replace(c, nv=4, tn=2),))])
    tail = far(conv(2, 3, 8, 7, 5, 1, 1, 0))  # 56 points an image: vectors cross from one to the next
    check(tail, [Configs((replace(c, swap=True),))])
    images = far(conv(2, 3, 8, 8, 5, 1, 1, 0))
    assert count(images, replace(c, swap=True), "stream") > 0
    check(images, [Configs((replace(c, swap=True, tn=3),))])
    check(far(depthwise(2, 3, 9, 2 * lanes, 3, 1, 1)))
    relu = Stage(whole.root, (("buffer", 0), ("buffer", 1)), (2,))
    check(Kernel((relu,), whole.buffers), [Configs((replace(c, a="panel", b="panel", kc=2),))])


@sampled(10)
def test_runs_of_rows_that_follow_each_other_are_stored_together():
    """Results in squares of 4 by 4: four rows of vectors along the channels make lines; with stages that read more, by
    way of scratch, and in tiles whose rows are no whole squares, which are stored run by run."""
    lanes = max(8, host().lanes())
    kernel = capsule(2, 3, 8, lanes // 2, 1)  # 288 rows, 2 * lanes columns
    c = Tiled(mr=8, nv=2, a="inline", b="buffer")
    configs = [
        replace(c, order=order, mr=mr, nv=nv, kc=kc, tm=tm, tn=tn)
        for order, mr, nv, kc, tm, tn in (
            ("n", 8, 2, 0, 1, 1),
            ("m", 12, 1, 0, 2, 2),
            ("n", 24, 1, 0, 3, 1),
            ("n", 8, 1, 12, 1, 2),
        )
    ]
    for k in (kernel, biased(kernel, 3), biased(kernel, 5, keep=True), updated(kernel)):
        check(k, [Configs((x,)) for x in (*configs, replace(c, mr=6), replace(c, split=3, b="panel"))])
    da = capsule_da(2, lanes // 2, 8, 3, 2)
    check(da, [Configs((x,) * 4) for x in (replace(c, a="panel"), replace(c, a="panel", mr=12, kc=4))])
    if host().lanes() > 4:
        assert count(kernel, c, "shuffle") > count(kernel, replace(c, mr=6), "shuffle")
        (p,) = problems(kernel.root) or ()
        s = operand_plan(kernel, p, c.windows, c.swap, c.rows, host())
        cycles = [epilogue.choose_form(s, p, mr, c.nv, c.split)[0] for mr in (8, 12, 6)]
        assert cycles[0] == cycles[1] < cycles[2] + (lanes == 8)  # two runs take as long stored together as alone
        assert epilogue.adjacent_rows(kernel, p, p.left, p.right, lanes) == lanes // 4
        assert epilogue.adjacent_rows(kernel, p, p.right, p.left, lanes) == 1
        ragged = capsule(2, 3, 8, lanes // 2 + 1, 1)  # a last vector of fewer lanes
        (p,) = problems(ragged.root) or ()
        assert epilogue.adjacent_rows(ragged, p, p.left, p.right, lanes) == 1


@sampled(12)
def test_tiles_ask_for_rows_along_k():
    blocks = Tiled(mr=8, nv=2, a="inline", b="panel", order="n")
    rows = product(23, 40, 700, "NT")
    images = conv_dw(3, 19, 16, 18, 13, 1, 1, 0)  # 288 points an image
    for kernel, swap in ((rows, False), (rows, True), (images, False), (images, True)):
        ways = ((0, 1, 1, 1), (64, 1, 1, 2), (48, 2, 1, 1), (33, 3, 2, 1), (0, 5, 1, 1), (96, 3, 1, 2), (304, 3, 2, 1))
        configs = [replace(blocks, swap=swap, kc=kc, split=split, tm=tm, tn=tn) for kc, split, tm, tn in ways]
        assert count(kernel, configs[1], "prefetch") > 1
        check(kernel, [Configs((c,)) for c in configs], target=SMALL)
        check(kernel, [Configs((replace(configs[1], b="buffer", split=1, mr=4, nv=2),))], target=SMALL)
    alone = replace(blocks, mr=23, nv=1)  # one tile
    assert count(rows, alone, "prefetch") == 0 < count(rows, replace(alone, mr=16), "prefetch")


def test_tiles_ask_for_rows_of_m_that_lie_side_by_side():
    """Of a batch of transposed products, which is beyond the caches though one of them is not: one line or two of every
    point of K; and for panels of N of such operands."""

    def batch(count: int, columns: int = 5) -> Kernel:
        body = times(load(0, 0, 3, 1), load(1, 0, 2, 3))
        return sum_of((count, 140, columns), ((dt.f32, (count, 17, 140)), (dt.f32, (count, columns, 17))), (17,), body)

    rows = Tiled(mr=28, nv=1, a="inline", b="inline", order="n")
    for c, lines in ((rows, 2), (replace(rows, b="panel"), 2), (replace(rows, mr=7), 1), (replace(rows, tm=2), 2)):
        assert count(batch(7), c, "prefetch") == lines and count(batch(1), c, "prefetch") == 0
    swapped = replace(rows, mr=5, swap=True)
    assert count(batch(7), swapped, "prefetch") > 0 == count(batch(1), swapped, "prefetch")
    panels = replace(rows, mr=4)  # of N: the first one asks, the others find M's rows near
    for kernel in (batch(7), batch(3, 2 * host().lanes() + 1)):
        check(kernel, [Configs((c,)) for c in (rows, replace(rows, b="panel", tm=2), swapped, panels)], target=SMALL)
    for other in (replace(rows, a="panel"), replace(rows, order="m"), replace(rows, mr=140)):
        assert count(batch(7), other, "prefetch") == 0


def test_tiles_ask_for_the_next_windows_of_several_channels():
    windows = conv(3, 9, 41, 41, 13, 2, 2, 0)  # of planes more than a page apart
    tiles = [
        Tiled(swap=True, mr=mr, nv=nv, a="inline", b="inline", order="n", tm=tm, tn=tn)
        for mr, nv, tm, tn in ((13, 2, 1, 1), (5, 4, 1, 2), (6, 3, 2, 1))
    ]
    for c in tiles:
        # A point of K has as many lines of the next panel as vectors; the two points of an axis share them.
        asked = count(windows, c, "prefetch")
        assert asked > 0 and asked % -(-c.nv // 2) == 0, c
    check(windows, [Configs((c,)) for c in tiles], target=SMALL)
    (c, *_) = tiles
    assert count(windows, c, "prefetch", host()) == 0  # near
    assert count(windows, replace(c, order="m"), "prefetch") == 0
    assert count(windows, replace(c, mr=7), "prefetch") == 0  # no room among so few products


@sampled(6)
def test_tiles_ask_for_what_the_next_panel_is_packed_of():
    """Along K, of blocks shorter than its rows. Tasks along both sides, more panels."""
    lanes = host().lanes()
    rows, images = product(23, 40, 48 * lanes, "NT"), conv_dw(3, 19, 8, 3 * lanes, 37, 1, 1, 0)
    blocks = Tiled(mr=8, nv=2, a="panel", b="panel", order="n", kc=4 * lanes)
    ways = ({}, {"split": 3}, {"tm": 2, "tn": 2}, {"kc": 3 * lanes + 5, "split": 2}, {"mr": 23, "nv": 1, "split": 2})
    for kernel, swap in ((rows, False), (images, True)):
        configs = [replace(blocks, swap=swap, **way) for way in ways]
        check(kernel, [Configs((c,)) for c in configs], target=SMALL)
        for c in configs:
            points = 2 * lanes if c.nv == 2 else lanes
            assert 0 < count(kernel, c, "prefetch") < points
        whole = replace(configs[0], kc=32 * lanes)  # blocks end in several rows, or there is but one
        assert count(kernel, whole, "prefetch") == 0


@sampled(6)
def test_whole_vectors_along_k_need_no_masks():
    """Where K, its parts and its blocks are whole vectors, and rows of it too."""
    lanes = host().lanes()
    blocks = Tiled(mr=4, nv=1, a="panel", b="panel", kc=4 * lanes, split=2)

    def masked(kernel: Kernel, c: Tiled) -> int:
        lowered = CONTRACTION.lower(kernel, Configs((c,)), host())
        every = (op for x in lowered.launches[:1] for op in operations(x.function.body))
        return sum(op.name == "load" and op.args[2] is not None for op in every)

    whole, ragged = conv_dw(6, 9, 3, 4 * lanes, 7, 1, 1, 0), conv_dw(lanes, 9, 3, 4 * lanes - 2, 7, 1, 1, 0)
    for kernel in (whole, ragged):
        cut = replace(blocks, kc=4 * lanes + 1)
        configs = [replace(blocks, swap=swap, order=order) for swap in (False, True) for order in "nm"]
        check(kernel, [Configs((c,)) for c in (*configs, replace(configs[0], split=1, b="buffer"), cut)])
        assert (masked(kernel, blocks) == 0) is (kernel is whole) and masked(kernel, cut) > 0


@sampled(10)
def test_vectors_along_k_cross_rows():
    """Every other element of every other row, and rows with a border; blocks and parts of K are whole rows or not."""
    row = 2 * max(8, host().lanes()) - 3
    blocks = Tiled(mr=4, nv=1, a="inline", b="panel", order="n")
    both = times(load(0, 2, 0, 3, 4), load(1, 2, 1, lin((2, 3)), lin((2, 4))))
    strided = sum_of((13, 19), ((dt.f32, (2, 13, 6, row)), (dt.f32, (2, 19, 12, 2 * row))), (2, 6, row), both)
    bordered = conv_dw(3, 9, 4, row, 7, 3, 3, 1)
    ways = ((0, 1), (2 * row, 1), (2 * row + 1, 1), (0, 3), (row, 2), (row + 3, 2), (2 * row, 3))
    for kernel, swap in ((strided, True), (strided, False), (bordered, False), (bordered, True)):
        a = "inline" if kernel is strided else "panel"
        configs = [replace(blocks, swap=swap, a=a, kc=kc, split=split) for kc, split in ways]
        check(kernel, [Configs((c,)) for c in (*configs, replace(configs[1], b="buffer"))])


def test_long_k_is_split_where_one_side_is_transposed():
    """In blocks as long as the second level holds the panels, where these are beyond the first."""
    points, lanes = 16 * 56 * 56, host().lanes()
    found = CONTRACTION.configs(conv_dw(16, 64, 56, 56, 64, 1, 1, 0), host())
    c = next(x.pieces[0] for x in found if isinstance(x.pieces[0], Tiled))
    assert (c.b, c.order) == ("panel", "n") and c.split > 1
    panel = (c.mr + c.nv * lanes) * 4
    assert c.kc % lanes == 0 and 512 <= c.kc <= points / c.split and c.kc * panel <= search.MAX_K_PANEL
    if 512 * c.nv * lanes * 4 > host().l1:
        assert 2 * c.kc * panel > search.MAX_K_PANEL


def test_rows_that_overlap_take_little_room():
    """25 taps of one image are hardly more than the image: blocks of K need not be short for the first level."""
    wide = replace(host(), vector_bytes=64, vector_registers=32, fma_per_second=133e9, l1=48 << 10, l2=1 << 20)
    kernel = conv_dw(256, 6, 14, 14, 16, 5, 5, 0)
    long, short = (Configs((Tiled(True, 25, 1, "inline", "panel", kc=kc, split=8),)) for kc in (512, 256))
    assert CONTRACTION.cost(kernel, long, wide).arithmetic < CONTRACTION.cost(kernel, short, wide).arithmetic


@sampled(6)
def test_elements_that_rows_of_a_tile_share_are_loaded_once():
    """Taps of one vector of filters, filters' gradients in blocks that cut rows, gradients whose taps run backwards."""
    tile = Tiled(mr=10, nv=1, a="inline", b="panel")
    forward, wide = conv(3, 4, 9, 14, 7, 3, 5, 0), conv(2, 3, 9, 23, 9, 2, 4, 0, 2)
    ways = ({}, {"kc": 20}, {"split": 3}, {"kc": 10, "split": 2}, {"tm": 2, "mr": 5}, {"b": "buffer", "order": "m"})
    turned = times(load(0, 0, 4, lin((1, 2), (-1, 5), const=2), lin((1, 3), (-1, 6), const=3)), load(1, 4, 1, 5, 6))
    backwards = sum_of((2, 5, 7, 10), ((dt.f32, (2, 3, 9, 13)), (dt.f32, (3, 5, 3, 4))), (3, 3, 4), turned)
    for kernel in (forward, wide, backwards):
        check(kernel, [Configs((replace(tile, **way),)) for way in ways])
    gradient = conv_dw(3, 2, 7, 12, 5, 3, 3, 0)
    cuts = ((0, 1), (20, 1), (30, 2), (8, 3), (25, 2), (7, 1))
    check(gradient, [Configs((replace(tile, swap=True, mr=9, kc=kc, split=split),)) for kc, split in cuts])
    together, apart = replace(tile, b="buffer"), replace(tile, b="inline")
    if host().sum_registers >= 19:
        x = CONTRACTION.lower(forward, Configs((together,)), host()).launches[-1]
        sums = [op.name for op in operations(x.function.body) if op.name in ("fma", "load")]
        assert sums.count("fma") > 5 * (sums.count("load") - 10) / 2
        assert count(forward, together, "fma") == 5 * count(forward, apart, "fma")


@sampled(4)
def test_tiles_of_strided_results():
    """Beyond the second level: tiles of whole and of partial rows, across images, turned or not."""
    large = strided_conv_dx(17, 5, 8, 14, 3)
    panels = Tiled(mr=5, nv=1, a="panel", b="panel")
    configs = [
        replace(panels, swap=swap, mr=mr, order=order)
        for swap, mr, order in ((True, 5, "n"), (True, 3, "m"), (False, 8, "n"), (False, 14, "m"))
    ]
    check(large, [Configs((c,) * 4) for c in configs], target=SMALL)
    blocks = replace(panels, swap=True, kc=2)
    check(large, [Configs((blocks,) * 4), Configs((replace(panels, swap=True, split=2),) * 4)], target=SMALL)


@sampled(4)
def test_results_in_short_runs():
    """Of which a few follow each other, as many as a vector has being parts of several lines."""
    kernel, c = capsule_da(5, 8, 9, 3, 2), Tiled(mr=4, nv=2, a="panel", b="panel")
    check(kernel, [Configs((x,) * len(kernel.root.parts)) for x in (c, replace(c, swap=True))], target=SMALL)


def test_tiles_ask_for_the_next_tile_of_rows_that_are_gathered():
    """Windows of images that are read in place: by order, blocks and parts of K, with a last tile of fewer rows."""
    kernel = capsule(3, 5, 9, 4, 2)
    c = Tiled(mr=8, nv=2, a="inline", b="buffer")
    configs = [
        replace(c, order=order, tm=tm, tn=tn, mr=mr, nv=nv, kc=kc)
        for order, tm, tn, mr, nv, kc in (
            ("m", 2, 1, 8, 2, 0),
            ("n", 1, 1, 16, 1, 0),
            ("n", 2, 1, 8, 2, 36),
            ("m", 1, 2, 16, 1, 0),
        )
    ]
    split = replace(c, b="panel", split=3)
    for x in (*configs, split):
        assert count(kernel, x, "prefetch") > count(kernel, x, "prefetch", replace(SMALL, l2=1 << 20))
    check(kernel, [Configs((x,)) for x in (*configs, split)], target=SMALL)


@sampled(4)
def test_tasks_of_pieces_take_turns():
    """In any numbers, even or not; short pieces of one task each are a single task."""
    kernel, c = strided_conv_dx(9, 4, 8, 14, 3), Tiled(swap=True, mr=2, nv=1, a="panel", b="panel")
    for shares in ((8, 8, 16, 24), (8, 4, 4, 4), (1, 1, 1, 1), (9, 9, 9, 9)):
        configs = Configs(tuple(replace(c, tn=n) for n in shares))
        assert CONTRACTION.lower(kernel, configs, host()).launches[-1].tasks == (1 if max(shares) == 1 else sum(shares))
        check(kernel, [configs])


def test_an_epilogue_asks_for_what_it_reads_and_writes() -> None:
    """While the tile multiplies, if it lies beyond L2: the line of each vector of results and of an operand."""
    kernel = product(23, 600, 40, "NN")
    tile = Tiled(mr=5, nv=2, a="inline", b="buffer", order="n")
    near = replace(SMALL, l2=1 << 20)
    far, none = count(kernel, tile, "prefetch"), count(kernel, tile, "prefetch", near)
    assert far > none == 0
    check(kernel, [Configs((tile,))], target=SMALL)
    blocked = replace(tile, b="panel", kc=16)
    assert count(kernel, blocked, "prefetch") > count(kernel, blocked, "prefetch", near)
    check(kernel, [Configs((blocked,))], target=SMALL)
    assert count(kernel, replace(tile, b="panel", split=2), "prefetch", near) == 0
