"""Memory for results: aligned, and lent again only when nothing sees it any more."""

import math
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from einsmith.runtime import buffers


def recycled(shape):
    array, at = buffers.recycle(shape, np.dtype(np.float32), 4 * math.prod(shape))
    assert at == array.ctypes.data
    return array


def test_memory_is_lent_again_when_no_view_is_left():
    shape = (buffers.RECYCLED_FROM // 4 + 5,)
    a = recycled(shape)
    assert buffers.is_aligned(a) and a.shape == shape and a.flags.writeable and a.flags.c_contiguous
    where, view = a.ctypes.data, a[3:7]
    view[:] = 1
    del a
    other = recycled(shape)
    assert other.ctypes.data != where
    other[:] = 2
    assert (view == 1).all()
    del view
    again = recycled(shape)
    assert again.ctypes.data == where
    assert recycled(shape).ctypes.data != other.ctypes.data


def kept_bytes():
    return sum(x.nbytes for blocks in buffers._blocks.values() for x in blocks)


def test_little_is_kept():
    held = [recycled((buffers.MAX_KEPT_BYTES // 16,)) for _ in range(6)]
    del held
    assert kept_bytes() <= buffers.MAX_KEPT_BYTES


def test_buffers_in_use_are_kept(monkeypatch):
    """Memory of a size that was met first is lent again, too, when others since have filled what is kept."""
    monkeypatch.setattr(buffers, "_blocks", {})
    size = buffers.RECYCLED_FROM  # numbers; four times as many bytes
    result = recycled((size,))
    for n in range(2, 6):
        recycled((n * size,))
    held = kept_bytes()
    monkeypatch.setattr(buffers, "MAX_KEPT_BYTES", held + size)  # no room for one more
    made = []
    for _ in range(6):  # each result lives until the next one is there
        result = recycled((size,))
        made.append(weakref.ref(result.base))
    assert made[2]() is made[4]() is not None and made[3]() is made[5]() is not None
    assert kept_bytes() <= buffers.MAX_KEPT_BYTES


def test_addresses_are_those_that_numpy_tells():
    whole = np.zeros((6, 7), np.float32)
    arrays = [whole, whole[2:, 3:], whole.T, whole[::-1], np.zeros((0, 3)), np.full((), 2.0)]
    arrays.append(whole.view(np.memmap))
    arrays.append(recycled((buffers.RECYCLED_FROM // 4,)))
    for x in arrays:
        assert buffers.address(x) == x.__array_interface__["data"][0] == x.ctypes.data


def test_addresses_are_read_from_the_object_where_they_are_known_to_be_there(monkeypatch):
    assert buffers.choose_address() is buffers.read_address
    monkeypatch.setattr(buffers, "_HEAD", buffers._HEAD + 8)  # of a build whose objects look otherwise
    assert buffers.choose_address() is buffers.ask_address
    assert buffers.ask_address(x := np.zeros((4, 5))[1:, 2:]) == x.ctypes.data


def test_other_interpreters_are_asked_for_addresses(monkeypatch):
    monkeypatch.setattr(sys, "implementation", SimpleNamespace(name="pypy", cache_tag=sys.implementation.cache_tag))
    assert buffers.choose_address() is buffers.ask_address


def test_arrays_in_one_block_are_apart_and_aligned() -> None:
    kinds = [((3, 5), np.dtype(np.float32), 60), ((), np.dtype(np.int64), 8), ((0, 4), np.dtype(np.float64), 0)]
    kinds += [((1000,), np.dtype(np.float32), 4000)] * 3
    arrays = buffers.recycle_together(kinds)
    for k, ((a, at), (shape, dtype, count)) in enumerate(zip(arrays, kinds, strict=True)):
        assert (a.shape, a.dtype, a.nbytes, at % buffers.ALIGNMENT) == (shape, dtype, count, 0)
        assert not count or a.ctypes.data == at
        a[...] = k
    assert all((a == k).all() for k, (a, _) in enumerate(arrays))


def test_many_small_arrays_in_one_block_are_recycled() -> None:
    kinds = [((buffers.RECYCLED_FROM // 16,), np.dtype(np.uint8), buffers.RECYCLED_FROM // 16)] * 20
    first = buffers.recycle_together(kinds)[0][1]
    assert buffers.recycle_together(kinds)[0][1] == first


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (buffers.SMALL_RESULT // 4 + 1,)], ids=str)
def test_memory_of_a_result_is_lent_again_when_no_view_is_left(shape):
    memory = buffers.ResultMemory(shape, np.dtype(np.float32), 4 * math.prod(shape))

    def take():
        array, at = memory.take()
        assert at == array.ctypes.data and at % buffers.ALIGNMENT == 0 and array.shape == shape
        assert array.flags.writeable and array.flags.c_contiguous
        return array

    held = [take() for _ in range(4)]
    for n, array in enumerate(held):
        array[...] = n
    assert all((array == n).all() for n, array in enumerate(held))
    views = [array[...] for array in held]
    del held, array
    more = take()
    more[...] = 9
    assert all((view == n).all() for n, view in enumerate(views))


def test_little_memory_of_a_result_is_kept():
    memory = buffers.ResultMemory((8,), np.dtype(np.float32), 32)
    owners = [weakref.ref(memory.take()[0].base) for _ in range(1)]
    held = [memory.take()[0] for _ in range(5)]
    owners += [weakref.ref(x.base) for x in held]
    del held
    assert sum(owner() is not None for owner in owners) == buffers.SMALL_BLOCKS
    first, second = memory.take()[0].ctypes.data, memory.take()[0].ctypes.data
    assert first == second
