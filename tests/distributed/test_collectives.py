"""Sums take as few exchanges as they can, in whichever way with the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.distributed import collectives
from einsmith.distributed.collectives import CARRIED_BYTES, Collectives, add_in_pairs, is_sent_whole
from tests.distributed.world import Threads, ThreadTransport, calls_of, run


def test_wholes_are_sent_where_that_takes_no_longer():
    """One exchange saves a message's latency, and carries (size - 1)*n bytes instead of 2*(1 - 1/size)*n."""
    assert is_sent_whole(1 << 30, 1) and is_sent_whole(1 << 30, 2)
    for size in (3, 4, 8, 64):
        fits = [n for n in (1 << k for k in range(30)) if is_sent_whole(n, size)]
        more = [n * (size - 1) - 2 * (1 - 1 / size) * n for n in (fits[-1], 2 * fits[-1])]
        assert more[0] <= CARRIED_BYTES < more[1]


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("n", [1, 5, 16, 1031])
@pytest.mark.parametrize("whole", [True, False])
def test_both_ways_add_in_the_order_of_the_ranks(size, n, whole, rng, monkeypatch):
    monkeypatch.setattr(collectives, "is_sent_whole", lambda *_: whole)
    rows = (rng.standard_normal((size, n)) * 10.0 ** rng.integers(-6, 6, (size, n))).astype(np.float32)
    expected = rows[0].copy()
    for row in rows[1:]:
        expected += row
    before = rows.copy()

    def work(group):
        arrays = [rows[group.rank].copy() for _ in range(2)]
        for future in [group.all_reduce_flat(a) for a in arrays]:  # memory for messages is used again
            future.result()
        return arrays, calls_of(group)

    for arrays, calls in run(size, work):
        for array in arrays:
            np.testing.assert_array_equal(array, expected)
        assert calls == ["exchange"] * (2 if whole else 4)
    np.testing.assert_array_equal(rows, before)


def test_arrays_of_several_types_share_a_message(rng):
    floats, doubles = rng.standard_normal((3, 7)).astype(np.float32), rng.standard_normal((3, 2))
    counts = rng.integers(0, 9, (3, 1))

    def work(group):
        own = [a[group.rank].copy() for a in (floats, doubles, counts)]
        group.submit(lambda c: c.all_reduce(*own)).result()
        return own, calls_of(group)

    for (x, y, z), calls in run(3, work):
        np.testing.assert_array_equal(x, floats[0] + floats[1] + floats[2])
        np.testing.assert_array_equal(y, doubles[0] + doubles[1] + doubles[2])
        np.testing.assert_array_equal(z, counts.sum(0))
        assert calls == ["exchange"]


def test_another_order_of_sums(rng):
    rows = rng.standard_normal((4, 9)).astype(np.float32)

    def work(group):
        own = rows[group.rank].copy()
        group.submit(lambda c: c.all_reduce(own, add=add_in_pairs)).result()
        return own

    for found in run(4, work):
        np.testing.assert_array_equal(found, (rows[0] + rows[1]) + (rows[2] + rows[3]))


def test_a_process_that_is_alone_exchanges_nothing(rng):
    transport = ThreadTransport(Threads(1), 0)
    alone, array = Collectives(transport), rng.standard_normal(5)
    before = array.copy()
    alone.all_reduce(array)
    alone.reduce_scatter(array)
    alone.all_gather(array)
    np.testing.assert_array_equal(array, before)
    assert not transport.calls
