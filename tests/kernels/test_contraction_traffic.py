"""What reading costs: cache sets that rows share, blocks of K, strips; and the forms that it makes the model choose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einsmith import dtypes as dt
from einsmith.kernels.contraction import cost, traffic
from einsmith.kernels.contraction.config import Tiled, sides
from einsmith.kernels.contraction.features import analysis
from einsmith.kernels.contraction.pattern import PATTERN, Configs
from einsmith.kernels.contraction.problem import problems
from einsmith.kernels.contraction.search import candidates, in_cache, table_of
from einsmith.kernels.contraction.traffic import Steps
from einsmith.plan.kernel import Buffer, Kernel
from einsmith.target.facts import Target
from tests.kernels.runner import check_exact as check
from tests.kernels.runner import host
from tests.kernels.samples import conv, conv_dw, pointwise_dx, product

SERVER = Target(vector_bytes=64, vector_registers=32, l1=48 << 10, l2=1 << 20, l3=32 << 20, cores=2,
                fma_per_second=1.2e11, bytes_per_second=(5e11, 2e11, 8e10), l3_bandwidth=1.5e11)


@pytest.mark.parametrize("kind", ["NN", "TN"])
def test_few_rows_sweep_over_n_a_few_points_of_k_at_a_time(kind):
    for m, nv, split in ((1, 4, 3), (3, 2, 1), (2, 8, 2)):
        c = Tiled(False, m, nv, "inline", "inline", "m", 8, split)
        check(product(m, 100, 61, kind), [Configs((c,))])
        check(product(100, m, 61, "TN" if kind == "NN" else "TT"), [Configs((replace(c, swap=True),))])


def test_blocks_of_k_with_every_way_to_reach_operands():
    for kind in ("NN", "NT", "TN"):
        configs = [Tiled(False, 5, 2, a, b, "n", 32, 1, 1, 2) for a in ("inline", "panel", "buffer")
                   for b in ("inline", "panel", "buffer")]
        check(product(23, 70, 130, kind), [Configs((c,)) for c in configs])


def test_lines_at_powers_of_two_share_cache_sets():
    assert [traffic.held(48 << 10, s) for s in (64, 192, 2048, 4096, 1 << 20, 4096 + 64)] == [768, 768, 24, 12, 12, 768]
    fits = [traffic.rows_that_fit(Steps(side, 4), 48 << 10) for side in (4096, 4096 + 64)]
    slow = traffic.row_conflicts(np.array([28.0, 8.0, 28.0, 28.0]), np.array([fits[0], fits[0], fits[1], 0.0]))
    assert slow[0] > 1.0 and not slow[1:].any()


def test_strips_and_blocks_read_again():
    across = Steps(4, 16384)
    narrow, wide = traffic.strips(np.array([16.0, 128.0]), np.array([4096.0, 4096.0]), 4)
    assert narrow > wide > 0 and traffic.in_strips(across, 4096 * 1024, 4, 1 << 20)
    assert not traffic.in_strips(Steps(4, 64), 16 * 1024, 4, 1 << 20)
    assert not traffic.in_strips(across, 16 * 64, 4, 1 << 20)
    kernel = product(64, 1024, 4096, "NN")
    (p,) = problems(kernel.root)
    for kc, again in ((0, 7 * 1024 * 4096 * 4), (256, 0)):
        t = table_of(kernel, p, Tiled(mr=8, nv=4, kc=kc), SERVER)
        sizes = (np.array([x]) for x in (kc or 4096.0, 8.0, 16.0))
        assert cost.reread(t, t.numbers, *sizes, SERVER) == again
    assert [traffic.blocks_of_k(k) for k in (1, 256, 257, 1000)] == [1, 256, 129, 250]


def test_the_busiest_thread_has_whole_tiles_but_for_the_last():
    def share(m: int, n: int, c: Tiled) -> float:
        kernel = product(m, n, 64)
        (p,) = problems(kernel.root)
        t = table_of(kernel, p, c, SERVER)
        panels, tiles = np.array([-(-n // (c.nv * 16))]), np.array([-(-m // c.mr)])
        return float(cost.uneven(t, t.numbers, tiles, panels, np.array([2.0]))[0])

    by_panels = Tiled(mr=9, nv=3, tn=8)
    assert share(90, 16 * 49, by_panels) == pytest.approx((9 - 2 / 3) * 2 * 3 / 49)  # the last has one vector of three
    assert share(90, 16 * 48, by_panels) == 1
    assert share(90, 16 * 51, by_panels) == pytest.approx(9 * 2 / 17)
    assert share(80, 16 * 10, Tiled(mr=9, nv=3, tm=2, tn=4)) == pytest.approx(2 * 2 * 3 / 10)  # 3, 3 and 3, 1 vectors
    assert share(80, 16 * 10, Tiled(mr=7, nv=2, order="m", tm=8)) == pytest.approx(6 * 2 / (80 / 7))


def test_low_tiles_wait_for_rows_over_the_borders_of_lines():
    """Rows of N near each other, read in place from the second level again and again."""

    def cycles(mr: int, nv: int, b: str, order: str = "m", n: int = 160) -> float:
        c = Tiled(mr=mr, nv=nv, a="panel", b=b, order=order, tm=8 if order == "m" else 1)
        kernel = product(784, n, 960, "TN")
        return PATTERN.cost(kernel, Configs((c,)), SERVER).arithmetic / (784 * n)

    for order in ("m", "n"):
        assert cycles(7, 2, "inline", order) > 1.15 * cycles(14, 2, "inline", order)
    assert cycles(7, 2, "inline") > 1.15 * cycles(7, 2, "buffer")
    assert cycles(7, 1, "inline", "n", 16) < 1.15 * cycles(7, 1, "buffer", "n", 16)  # 60 kB


def test_one_configuration_costs_what_it_does_among_all():
    for kernel in (product(64, 300, 257), conv(4, 16, 14, 14, 32, 3, 3, 1), product(3, 4096, 512)):
        (p,) = problems(kernel.root)
        found = candidates(kernel, (p,), SERVER)
        ranks = cost.predict(found.table, SERVER).rank(SERVER)
        for i in range(0, len(ranks), 7):
            config = found.table.config(i)
            assert PATTERN.cost(kernel, Configs((config,)), SERVER).rank == pytest.approx(ranks[i], rel=1e-12), config


def cached(kernel, c: Tiled, target: Target) -> Tiled:
    """The configuration with tasks whose range of the inner side stays in the second level."""
    (p,) = problems(kernel.root)
    tm, tn = in_cache(table_of(kernel, p, c, target), np.array([0]), target)
    return replace(c, tm=int(tm[0]), tn=int(tn[0]))


def inner(kernel, c: Tiled) -> float:
    (p,) = problems(kernel.root)
    t = table_of(kernel, p, c, SERVER)
    return float(cost.inner_bytes(t, t.numbers, t.tm, t.tn)[0])


def chosen(kernel, target=SERVER) -> Tiled:
    (config,) = PATTERN.configs(kernel, target)[0].pieces
    return config


def test_what_is_chosen():
    assert chosen(product(64, 1024, 4096, "NN")).kc  # a panel over all of K would not stay in the second level
    assert not chosen(product(64, 1024, 512, "NT")).kc
    rows = chosen(product(1, 4096, 1024, "NN"))
    assert rows.order == "m" and rows.kc <= traffic.SWEEP and rows.split > 1
    rows = chosen(product(4096, 1, 1024, "TN"), replace(SERVER, cores=1))
    assert rows.swap and rows.order == "m" and rows.split == 1
    many = chosen(product(16, 4096, 1024, "NT"))
    assert many.a != "inline" or many.mr <= traffic.rows_that_fit(Steps(4096, 4), SERVER.l1)


def test_tasks_whose_inner_side_stays_in_the_second_level():
    for kind, m, n, k in (("TN", 4096, 1024, 1792), ("TN", 1024, 4096, 1792), ("TN", 2048, 512, 2000)):
        kernel = product(m, n, k, kind)
        c = chosen(kernel)
        assert inner(kernel, c) <= SERVER.l2 or c.b != "buffer"
        for order in "nm":
            whole = Tiled(False, 6, 4, "buffer", "buffer", order, *((256, 1, 1, 8) if order == "n" else (0, 1, 8, 1)))
            parts = cached(kernel, whole, SERVER)
            assert inner(kernel, parts) <= SERVER.l2 * traffic.HELD < inner(kernel, whole)
            costs = [PATTERN.cost(kernel, Configs((x,)), SERVER).rank for x in (parts, whole)]
            assert order == "n" or costs[0] < costs[1]  # tiles of M are asked for ahead
            assert cached(kernel, parts, SERVER) == parts
    small = replace(SERVER, l2=16 << 10)
    kernel = product(75, 70, 130, "TN")
    ways = [(b, order, kc) for b in ("buffer", "inline") for order, kc in (("n", 0), ("n", 32), ("m", 0))]
    parts = [cached(kernel, Tiled(False, 5, 1, "buffer", *way, 1, 1, 1), small) for way in ways]
    assert all(c.tm * c.tn >= 3 for c in parts)
    check(kernel, [Configs((c,)) for c in parts])


def test_steps_and_choices_are_the_same_each_time():
    kernel = conv(2, 3, 9, 9, 4, 3, 3, 1)
    assert PATTERN.configs(kernel, host()) == PATTERN.configs(kernel, host())
    kernel = product(64, 1024, 4096, "NN")
    (p,) = problems(kernel.root)
    at = analysis(kernel, p, SERVER)
    found = [traffic.address_steps(at.sampler(x.operand, (), (), 0), p, x, 4) for x in sides(p, False)]
    assert found == [Steps(16384, 4, True), Steps(4, 4096, True)]


def test_large_results_of_many_rows_are_finished_row_by_row():
    """The weight gradient of a wide layer: strips of its result would touch a page a row."""
    kernel = product(4096, 2048, 16, "TN")
    best = PATTERN.best(kernel, SERVER)
    assert best is not None and best.pieces[0].order == "m"
    c = Tiled(False, 6, 4, "inline", "inline", "n", 0, 1, 1, 8)
    strips, rows = (PATTERN.cost(kernel, Configs((x,)), SERVER) for x in (c, replace(c, order="m", tm=8, tn=1)))
    assert strips.seconds > 1.3 * rows.seconds
    for kernel in (product(256, 32768, 16, "TN"), product(4096, 2000, 16, "TN")):  # few rows; rows in all cache sets
        strips, rows = (PATTERN.cost(kernel, Configs((x,)), SERVER) for x in (c, replace(c, order="m", tm=8, tn=1)))
        assert strips.seconds < 1.3 * rows.seconds


def test_packing_a_far_side_again_is_not_hidden():
    kernel, again = product(512, 4096, 1024, "NN"), Tiled(False, 6, 4, "panel", "panel", "n", 0, 1, 1, 8)

    def seconds(c: Tiled) -> float:
        return PATTERN.cost(kernel, Configs((c,)), SERVER).arithmetic

    assert seconds(again) > 1.03 * seconds(replace(again, a="buffer"))


def test_columns_of_rows_apart_that_the_first_level_does_not_hold_are_dear():
    """Rows of M in place, a row of 784 bytes for every point of K, or packed."""
    kernel, c = product(196, 512, 1024, "TN"), Tiled(False, 14, 2, "inline", "buffer", "n", 0, 1, 1, 8)

    def seconds(c: Tiled) -> float:
        return PATTERN.cost(kernel, Configs((c,)), SERVER).arithmetic

    assert seconds(c) > 1.03 * seconds(replace(c, mr=6, nv=4))


def test_vectors_across_rows_of_pixels_are_read_in_place_by_wide_tiles():
    """14 x 14 pixels are no whole vectors: two masked loads for each, which broadcasts of many rows would wait for."""
    c = chosen(conv(16, 160, 14, 14, 40, 1, 1, 0))
    assert c.b == "inline" and c.nv > 1
    for kernel, pieces in ((conv(16, 16, 14, 14, 40, 1, 1, 0), True), (conv(16, 16, 16, 16, 40, 1, 1, 0), False),
                           (conv(16, 16, 14, 14, 40, 3, 3, 1), False)):  # fmt: skip
        (p,) = problems(kernel.root)
        t = table_of(kernel, p, Tiled(c.swap, 20, 1, "inline", "inline", "m", 0, 1, 2, 1), SERVER)
        assert bool(t.numbers.b_pieces[0]) is pieces


def test_packing_once_is_cheap_where_everything_stays_in_the_caches():
    """A weight gradient on 49 pixels an image: panels would be turned round again by every task."""
    c = chosen(conv_dw(16, 80, 7, 7, 320, 1, 1, 0))
    assert (c.a, c.b) == ("inline", "buffer")


def test_vectors_that_every_tile_takes_from_the_second_level_delay_it():
    kernel = conv(16, 384, 14, 14, 96, 1, 1, 0)
    wide, long = (Tiled(False, mr, nv, "inline", "buffer", "m", 0, 1, 8, 1) for mr, nv in ((6, 4), (14, 2)))

    def slower(c: Tiled) -> float:
        large = replace(SERVER, l1=SERVER.l2)
        costs = [PATTERN.cost(kernel, Configs((c,)), t).arithmetic for t in (SERVER, large)]
        return costs[0] / costs[1]

    assert slower(wide) > 1.005 > slower(long)


def test_small_tiles_wait_for_panels_and_lines_of_rows_apart():
    """A row of 196 bytes for every point of K, a part of which a tile takes, beside a panel: both from the second
    level, unless blocks of K keep them in the first one."""
    kernel = conv(16, 960, 7, 7, 160, 1, 1, 0)
    (p,) = problems(kernel.root)

    def slower(c: Tiled) -> float:
        large = replace(SERVER, l1=SERVER.l2)
        least, most = (cost.predict(table_of(kernel, p, c, SERVER), t).arithmetic[0] for t in (large, SERVER))
        return most / least

    small = Tiled(False, 7, 2, "inline", "buffer", "m", 0, 1, 8, 1)
    assert slower(small) > 1.08 and slower(replace(small, b="panel", order="n", kc=240, tm=1, tn=5)) > 1.08
    assert slower(replace(small, b="panel", order="n", kc=128, tm=1, tn=5)) < 1.01
    assert slower(Tiled(True, 14, 2, "inline", "inline", tn=8)) < 1.03
    c = chosen(kernel)
    assert c.mr * c.nv > 20


def test_rows_from_memory_that_nobody_asks_for_are_waited_for():
    """Blocks of K ask for nothing."""
    whole = Tiled(True, 14, 2, "inline", "inline", tn=8)
    for images, dear in ((16, True), (4, False)):
        kernel = conv(images, 512, 28, 28, 256, 1, 1, 0)
        least, most = (PATTERN.cost(kernel, Configs((c,)), SERVER).arithmetic for c in (whole, replace(whole, kc=256)))
        assert (most > 1.05 * least) is dear
    assert chosen(conv(16, 512, 28, 28, 256, 1, 1, 0)).kc == 0


@pytest.mark.parametrize("width", [64, 96])
def test_tiles_of_one_vector_do_not_sweep_a_side_that_the_second_level_does_not_hold(width):
    """Their loads take as long as their arithmetic: lines that arrive on the way delay them."""
    assert chosen(conv_dw(16, width, 14, 14, 384, 1, 1, 0)).nv > 1


def test_lines_beyond_the_caches_that_are_stored_to_in_parts():
    """Every other point of every other row: they are dear where nothing asks for them a few rows at a time. Whole lines
    are not, nor is what is stored in whole lines with the zeros beside it."""
    rows = Tiled(swap=True, mr=14, nv=2, a="inline", b="inline", tn=8)
    pixels = Tiled(mr=14, nv=2, a="inline", b="inline", order="m", tm=8)
    blocks = replace(rows, kc=128)
    for kernel, dear in ((pointwise_dx(16, 128, 56, 56, 256, 2), True), (conv(16, 256, 28, 28, 128, 1, 1, 0), False)):
        far = Kernel(kernel.stages, (*kernel.buffers[:-1], Buffer(dt.f32, kernel.buffers[-1].shape, True)))
        for c, waits in ((rows, False), (blocks, False), (pixels, dear)):
            c = c if dear else replace(c, swap=not c.swap)
            least, most = (PATTERN.cost(k, Configs((c,)), SERVER).arithmetic for k in (kernel, far))
            assert (most > 1.05 * least) is waits and most >= least


def test_rows_that_share_cache_sets_delay_arithmetic():
    """Rows of M 4096 bytes apart: a line of each stays in the first level only in tiles of few rows."""
    c = Tiled(False, 14, 2, "inline", "panel", "n", 0, 1, 1, 8)

    def seconds(k: int, c: Tiled) -> float:
        return PATTERN.cost(product(512, 3136, k, "NN"), Configs((c,)), SERVER).arithmetic / k

    assert seconds(1024, c) > 1.1 * seconds(1040, c)
    assert seconds(1024, replace(c, mr=8, nv=3)) < 1.03 * seconds(1040, replace(c, mr=8, nv=3))
    assert chosen(product(512, 3136, 1024, "NN")).mr <= 10
