from __future__ import annotations

import numpy as np
import pytest

from einsmith.base.errors import KindError, ShapeError
from einsmith.data import batches


def collect(it) -> np.ndarray:
    return np.concatenate([y for *_, y in it])


@pytest.mark.parametrize(("n", "size"), [(1, 1), (1, 16), (15, 16), (16, 16), (17, 16), (97, 13), (40, 8)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_sample_once(n: int, size: int, drop_last: bool) -> None:
    x, y = np.arange(3 * n).reshape(n, 3), np.arange(n)
    if drop_last and n < size:
        with pytest.raises(ShapeError, match="are fewer than one batch"):
            batches(x, y, size, seed=3, drop_last=True)
        return
    b = batches(x, y, size, seed=3, drop_last=drop_last)
    got = list(b)
    assert len(got) == len(b) == (n // size if drop_last else (n + size - 1) // size)
    seen = collect(got)
    assert len(set(seen)) == len(seen) == (n // size * size if drop_last else n)
    for xs, ys in got:
        assert np.array_equal(xs[:, 0], 3 * ys)


def test_order_is_a_function_of_seed_and_epoch() -> None:
    x = y = np.arange(101)
    a, b, other = batches(x, y, 10, seed=5), batches(x, y, 10, seed=5), batches(x, y, 10, seed=6)
    first, second = collect(a), collect(a)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, collect(b)) and np.array_equal(second, collect(b))
    assert np.array_equal(second, collect(b.epoch(1))) and np.array_equal(first, collect(b.epoch(0)))
    assert b.next_epoch == 2
    assert not np.array_equal(first, collect(other))


@pytest.mark.parametrize("start", [0, 1, 7, 11])
def test_an_epoch_can_be_entered_in_its_middle(start: int) -> None:
    b = batches(np.arange(101), np.arange(101), 10, seed=1)
    whole = [y for _, y in b.epoch(4)]
    rest = [y for _, y in b.epoch(4, start=start)]
    assert len(rest) == len(whole) - start
    assert all(np.array_equal(p, q) for p, q in zip(rest, whole[start:], strict=True))


def test_without_a_seed_the_order_is_kept() -> None:
    b = batches(np.arange(7), np.arange(7), 3)
    for _ in range(2):
        assert np.array_equal(collect(b), np.arange(7))


def test_several_inputs() -> None:
    got = list(batches((np.arange(5), 10 * np.arange(5)), -np.arange(5), 2, seed=0))
    for a, b, y in got:
        assert np.array_equal(b, 10 * a) and np.array_equal(y, -a)


@pytest.mark.parametrize(
    ("x", "y", "size", "message"),
    [
        (np.zeros(3), np.zeros(4), 1, "y has 4 samples where x has 3"),
        (np.zeros(0), np.zeros(0), 1, "no samples"),
        (np.zeros(3), np.zeros(3), 0, "size=0 must be an integer of at least 1"),
        (np.zeros(3), np.zeros(3), 2.5, "size=2.5 must be"),
        (np.float32(1), np.zeros(3), 1, "x is a single number"),
    ],
)
def test_bad_input(x, y, size, message: str) -> None:
    with pytest.raises((ShapeError, KindError), match=message):
        batches(x, y, size)


def test_an_epoch_out_of_range() -> None:
    b = batches(np.arange(7), np.arange(7), 3)
    with pytest.raises(IndexError):
        b.epoch(0, start=4)
