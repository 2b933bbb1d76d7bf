"""What reading costs: cache sets that rows share, blocks of K, strips; and the forms that it makes the model choose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.cost.facts import Target
from einsmith.cost.memory_traffic import lines_kept
from einsmith.ir.nodes import Axis, Read, Reduce, apply, cast, template
from einsmith.kernels.autoconfig import predicted
from einsmith.kernels.contraction import contraction_cost, traffic
from einsmith.kernels.contraction.config import Direct, HaloSetting, Tiled, sides
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION, Configs
from einsmith.kernels.contraction.search import candidates
from einsmith.kernels.contraction.table import divide_for_cache, table_of
from einsmith.kernels.contraction.traffic import Strides
from einsmith.schedule.contraction_problem import problems
from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage
from tests.kernels.runner import check_exact as check
from tests.kernels.runner import host, sampled
from tests.kernels.samples import conv, conv_dw, load, product, sum_of, times

SERVER = Target(
    vector_bytes=64,
    vector_registers=32,
    l1=48 << 10,
    l2=1 << 20,
    l3=32 << 20,
    cores=2,
    fma_per_second=1.2e11,
    bytes_per_second=(5e11, 2e11, 8e10),
    l3_bandwidth=1.5e11,
)


@pytest.mark.parametrize("kind", ["NN", "TN"])
def test_few_rows_sweep_over_n_a_few_points_of_k_at_a_time(kind):
    for m, nv, split in ((1, 4, 3), (3, 2, 1), (2, 8, 2)):
        c = Tiled(False, m, nv, "inline", "inline", "m", 8, split)
        check(product(m, 100, 61, kind), [Configs((c,))])
        check(product(100, m, 61, "TN" if kind == "NN" else "TT"), [Configs((replace(c, swap=True),))])


@sampled(6)
def test_blocks_of_k_with_every_way_to_reach_operands():
    for kind in ("NN", "NT", "TN"):
        configs = [
            Tiled(False, 5, 2, a, b, "n", 32, 1, 1, 2)
            for a in ("inline", "panel", "buffer")
            for b in ("inline", "panel", "buffer")
        ]
        check(product(23, 70, 130, kind), [Configs((c,)) for c in configs])


def test_lines_at_powers_of_two_share_cache_sets():
    assert [lines_kept(48 << 10, s) for s in (64, 192, 2048, 4096, 1 << 20, 4096 + 64)] == [768, 768, 24, 12, 12, 768]
    fits = [traffic.rows_in_l1(Strides(side, 4), 48 << 10) for side in (4096, 4096 + 64)]
    slow = traffic.row_conflicts(np.array([28.0, 8.0, 28.0, 28.0]), np.array([fits[0], fits[0], fits[1], 0.0]))
    assert slow[0] == 1.0 and not slow[1:].any()


def test_strips_and_blocks_read_again():
    across = Strides(4, 16384)
    narrow, wide = traffic.strip_overhead(np.array([16.0, 128.0]), np.array([4096.0, 4096.0]), 4, 450.0)
    assert narrow > wide > 0 and traffic.reads_in_strips(across, 4096 * 1024, 4, 1 << 20)
    assert not traffic.reads_in_strips(Strides(4, 64), 16 * 1024, 4, 1 << 20)
    assert not traffic.reads_in_strips(across, 16 * 64, 4, 1 << 20)
    kernel = product(64, 1024, 4096, "NN")
    (p,) = problems(kernel.root)
    for kc, again in ((0, 7 * 1024 * 4096 * 4), (256, 0)):
        t = table_of(kernel, p, Tiled(mr=8, nv=4, kc=kc), SERVER)
        assert contraction_cost.refetched_bytes(contraction_cost.CostTerms(t, SERVER)) == again
    assert [traffic.choose_block_points(k) for k in (1, 256, 257, 1000)] == [1, 256, 129, 250]


def test_the_busiest_thread_has_whole_tiles_but_for_the_last():
    def share(m: int, n: int, c: Tiled) -> float:
        kernel = product(m, n, 64)
        (p,) = problems(kernel.root)
        target = replace(SERVER, cores=2)
        return float(contraction_cost.imbalance(contraction_cost.CostTerms(table_of(kernel, p, c, target), target))[0])

    by_panels = Tiled(mr=9, nv=3, tn=8)
    assert share(90, 16 * 49, by_panels) == pytest.approx((9 - 2 / 3) * 2 * 3 / 49)  # the last has one vector of three
    assert share(90, 16 * 48, by_panels) == 1
    assert share(90, 16 * 51, by_panels) == pytest.approx(9 * 2 / 17)
    assert share(80, 16 * 10, Tiled(mr=9, nv=3, tm=2, tn=4)) == pytest.approx(2 * 2 * 3 / 10)  # 3, 3 and 3, 1 vectors
    assert share(80, 16 * 10, Tiled(mr=7, nv=2, order="m", tm=8)) == pytest.approx(6 * 2 / (80 / 7))


def test_one_configuration_costs_what_it_does_among_all():
    for kernel in (product(64, 300, 257), conv(4, 16, 14, 14, 32, 3, 3, 1), product(3, 4096, 512)):
        (p,) = problems(kernel.root)
        found = candidates(kernel, (p,), SERVER)
        ranks = contraction_cost.predict(found.table, SERVER).rank(SERVER)
        for i in range(0, len(ranks), 7):
            config = found.table.config(i)
            assert CONTRACTION.cost(kernel, Configs((config,)), SERVER).rank == pytest.approx(ranks[i], rel=1e-12), (
                config
            )


def divide_tasks_for_cache(kernel, c: Tiled, target: Target) -> Tiled:
    """Return the configuration with tasks whose range of the inner side stays in L2."""
    (p,) = problems(kernel.root)
    tm, tn = divide_for_cache(table_of(kernel, p, c, target), np.array([0]), target)
    return replace(c, tm=int(tm[0]), tn=int(tn[0]))


def inner_bytes_of(kernel, c: Tiled) -> float:
    (p,) = problems(kernel.root)
    t = table_of(kernel, p, c, SERVER)
    return float(contraction_cost.inner_bytes(t, t.tm, t.tn)[0])


def choose_tiled(kernel, target=SERVER) -> Tiled:
    (config,) = CONTRACTION.configs(kernel, target)[0].pieces
    return config


def test_choices_follow_the_traffic():
    assert choose_tiled(product(64, 1024, 4096, "NN")).kc  # a panel over all of K would not stay in the second level
    assert not choose_tiled(product(64, 1024, 512, "NT")).kc
    rows = choose_tiled(product(1, 4096, 1024, "NN"))
    assert rows.order == "k" and rows.kc <= traffic.SWEEP_POINTS and rows.tm * rows.tn * rows.split > 1
    many = choose_tiled(product(64, 4096, 4096, "NN"))
    assert many.order == "k" and many.b == "panel" and many.kc
    rows = choose_tiled(product(4096, 1, 1024, "TN"), replace(SERVER, cores=1))
    assert rows.swap and rows.order == "k" and rows.split == 1
    many = choose_tiled(product(16, 4096, 1024, "NT"))
    assert many.a != "inline" or many.mr <= traffic.rows_in_l1(Strides(4096, 4), SERVER.l1)


def test_tasks_whose_inner_side_stays_in_the_second_level():
    for kind, m, n, k in (("TN", 4096, 1024, 1792), ("TN", 1024, 4096, 1792), ("TN", 2048, 512, 2000)):
        kernel = product(m, n, k, kind)
        c = choose_tiled(kernel)
        assert inner_bytes_of(kernel, c) <= SERVER.l2 or c.b != "buffer"
        for order in "nm":
            whole = Tiled(False, 6, 4, "buffer", "buffer", order, *((256, 1, 1, 8) if order == "n" else (0, 1, 8, 1)))
            parts = divide_tasks_for_cache(kernel, whole, SERVER)
            assert inner_bytes_of(kernel, parts) <= SERVER.l2 * SERVER.overheads.held < inner_bytes_of(kernel, whole)
            costs = [CONTRACTION.cost(kernel, Configs((x,)), SERVER).rank for x in (parts, whole)]
            assert order == "n" or costs[0] < costs[1]  # tiles of M are asked for ahead
            assert divide_tasks_for_cache(kernel, parts, SERVER) == parts
    small = replace(SERVER, l2=16 << 10)
    kernel = product(75, 70, 130, "TN")
    ways = [(b, order, kc) for b in ("buffer", "inline") for order, kc in (("n", 0), ("n", 32), ("m", 0))]
    parts = [divide_tasks_for_cache(kernel, Tiled(False, 5, 1, "buffer", *way, 1, 1, 1), small) for way in ways]
    assert all(c.tm * c.tn >= 3 for c in parts)
    check(kernel, [Configs((c,)) for c in parts])


def test_steps_and_choices_are_the_same_each_time():
    kernel = conv(2, 3, 9, 9, 4, 3, 3, 1)
    assert CONTRACTION.configs(kernel, host()) == CONTRACTION.configs(kernel, host())
    kernel = product(64, 1024, 4096, "NN")
    (p,) = problems(kernel.root)
    s = HaloSetting(kernel, p, (), False, False, SERVER)
    found = [traffic.address_steps(s, x) for x in sides(p, False)]
    assert found == [Strides(16384, 4, True), Strides(4, 4096, True)]


def test_large_results_of_many_rows_are_finished_row_by_row():
    """The weight gradient of a wide layer, whose strips share lines: rows begin within them."""
    best = CONTRACTION.best(product(4096, 2050, 16, "TN"), SERVER)
    assert best is not None and best.pieces[0].order == "m"


def test_distant_prefetched_rows_come_line_by_line():
    """Few rows of M, whose tiles are as soon done with a line as it comes; what is near comes at once."""
    narrow = Tiled(mr=8, nv=1, a="inline", b="inline", tn=8)
    for kernel, dear in ((product(8, 24000, 400, "NN"), True), (product(8, 240, 400, "NN"), False)):
        one, three = (CONTRACTION.cost(kernel, Configs((replace(narrow, nv=n),)), SERVER).seconds for n in (1, 3))
        assert (three > one) is dear


def test_boxes_wait_for_strips_of_far_rows():
    """A box of the direct form that reads a vector of every row of N, and one that reads a row at a time."""
    far, near = product(3, 40000, 400, "NN"), product(3, 400, 400, "NN")
    strip, row = Direct(1, 4, ((0, 3),), (), ()), Direct(1, 4, ((0, 3),), (), (), (2,))
    for kernel, waits in ((far, True), (near, False)):
        one, other = (CONTRACTION.cost(kernel, Configs((c,)), SERVER).special for c in (strip, row))
        assert (one > other) is waits


def test_boxes_of_many_rows_from_memory_wait():
    """All of K of eight images and of one: a vector each of 96 rows, and of twelve, more than hardware follows."""
    body = times(load(0, 0, 1, 4, 2, 3), load(1, 1, 4))
    for size, waits in ((126, True), (8, False)):
        kernel = sum_of((24, 15, size, size), ((dt.f32, (24, 15, 4, size, size)), (dt.f32, (15, 4))), (4,), body)
        boxes = ((0, 8), (2, 3)), ((1, 3),), ()
        costs = [CONTRACTION.cost(kernel, Configs((Direct(3, 1, box, ((4, 4),), ()),)), SERVER) for box in boxes]
        many, some, few = (c.special / c.memory for c in costs)
        assert (many > 1.5 and many > some > few == 0) if waits else many == some == few == 0


def test_many_masks_do_not_stay_in_registers():
    """Vectors of N that lie over the ends of four rows each: wide tiles load their masks and places again."""
    kernel = conv(11, 220, 10, 10, 4, 5, 5, 0)
    two, six = (arithmetic(kernel, Tiled(mr=4, nv=n, a="inline", b="inline", swap=True)) for n in (2, 6))
    assert six > 1.2 * two
    assert choose_tiled(kernel).nv <= 3


def test_packing_a_far_side_again_is_not_hidden():
    kernel, again = product(512, 4096, 1024, "NN"), Tiled(False, 6, 4, "panel", "panel", "n", 0, 1, 1, 8)

    def seconds(c: Tiled) -> float:
        return CONTRACTION.cost(kernel, Configs((c,)), SERVER).arithmetic

    assert seconds(again) > 1.03 * seconds(replace(again, a="buffer"))


def arithmetic(kernel, c: Tiled, target: Target = SERVER) -> float:
    return CONTRACTION.cost(kernel, Configs((c,)), target).arithmetic


def test_rows_on_pages_of_their_own_wait_for_addresses():
    """Read in place from beyond the second level, a row of M for every point of K: 1,568 bytes each, or a page; and
    rows of N, where they are more than all tables of addresses hold."""
    c = Tiled(False, 14, 2, "inline", "buffer", "n", 0, 1, 1, 8)
    for m, dear in ((392, 1.01), (1024, 1.2)):
        kernel = product(m, 512, 1024, "TN")
        assert arithmetic(kernel, c) > dear * arithmetic(kernel, replace(c, a="buffer"))
    c = Tiled(False, 14, 2, "panel", "inline", "n", 0, 1, 1, 8)
    few, many = (arithmetic(product(196, 1600, k, "NN"), c) / k for k in (24, 1400))
    assert many > few and arithmetic(product(196, 1600, 1400, "NN"), replace(c, b="panel")) / 1400 < many


@pytest.mark.parametrize("width", [64, 96])
def test_tiles_of_one_vector_do_not_sweep_a_side_that_the_second_level_does_not_hold(width):
    """Their loads take as long as their arithmetic: lines that arrive on the way delay them."""
    assert choose_tiled(conv_dw(16, width, 14, 14, 384, 1, 1, 0)).nv > 1


def test_rows_that_share_cache_sets_delay_arithmetic():
    """Rows of M 4096 bytes apart: a line of each stays in the first level only in tiles of few rows."""
    c = Tiled(False, 14, 2, "inline", "panel", "n", 0, 1, 1, 8)

    def seconds(k: int, c: Tiled) -> float:
        return CONTRACTION.cost(product(512, 3136, k, "NN"), Configs((c,)), SERVER).arithmetic / k

    assert seconds(1024, c) > 1.1 * seconds(1008, c)
    assert seconds(1024, replace(c, mr=8, nv=3)) < 1.03 * seconds(1008, replace(c, mr=8, nv=3))
    assert choose_tiled(product(512, 3136, 1024, "NN")).mr <= 10


def test_overheads_are_counted_in_cycles_of_the_clock():
    """A core that multiplies as often in twice as many cycles, each half as long, takes as long for large tiles, and
    less for what begins and ends many small ones."""
    slow = replace(SERVER, multiplies=1.0)
    large, small = product(512, 512, 512), product(3, 40, 5)
    for kernel, least, most in ((large, 0.9, 1.0), (small, 0.4, 0.75)):
        (config,) = CONTRACTION.configs(kernel, SERVER)[0].pieces
        half, whole = (CONTRACTION.cost(kernel, Configs((config,)), t).arithmetic for t in (slow, SERVER))
        assert least < half / whole < most, config


@pytest.mark.parametrize(("m", "n"), [(1536, 384), (1152, 384)])
def test_to_make_an_operand_is_no_cheaper_than_to_read_it(m, n):
    """A window whose elements one point each reads is a packed operand by another name: the other operand comes from
    as far as beside that."""
    k, (i, j, r) = 3152, map(Axis, range(3))
    shapes = [(k, n), (k, m), (k,), (n,)]
    x, g, mean, scale = (Read(q, at, dt.f32) for q, at in enumerate(((r, j), (r, i), (r,), (j,))))

    def seconds(factor, used):
        t = template((m, n), [(dt.f32, s) for s in shapes[:used]], Reduce("sum", (k,), (apply("mul", g, factor),)))
        stage = Stage(t, tuple(("buffer", q) for q in range(used)), (used,))
        return predicted(Kernel((stage,), tuple(KernelBuffer(dt.f32, s) for s in (*shapes[:used], (m, n)))), SERVER)

    assert seconds(apply("mul", apply("sub", x, mean), scale), 4) > 0.97 * seconds(x, 2)


def test_what_is_packed_once_is_read_as_it_is_packed():
    """A matrix of bfloat16 that is packed as float32 takes as many bytes to read in each run as one of float32."""

    def memory(dtype, marks):
        body = times(load(0, 0, 2), cast(load(1, 1, 2, dtype=dtype), dt.f32))
        kernel = sum_of((2, 4096), ((dt.f32, (2, 512)), (dtype, (4096, 512))), (512,), body)
        kernel = Kernel(kernel.stages, kernel.buffers, (1,) if marks else None)
        config = Tiled(False, 2, 8, "inline", "buffer", "n")
        return CONTRACTION.cost(kernel, Configs((config,)), SERVER).memory

    assert memory(dt.bf16, True) == pytest.approx(memory(dt.f32, True), rel=1e-3)
    assert memory(dt.bf16, True) < memory(dt.bf16, False)
