"""What GPUs leave to chance is a fault: programs that meet in an element, lanes of one program that do, what nobody has
written or nothing defines."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from einsmith.gpu.tiles.ir import TileBuilder, TileFunction, TileParameter
from einsmith.gpu.tiles.verify import verify
from tests.tiles.memory import Fault, Memory
from tests.tiles.test_ir import WATCHED, memory, run


def faulty(make: Callable[[TileBuilder], int]) -> TileFunction:
    b = TileBuilder("f")
    return b.finish(make(b))


def _out(b: TileBuilder, size: int = 8) -> int:
    return b.parameter(TileParameter("i32", size, 0))


def _two_lanes(b: TileBuilder) -> int:
    b.store(_out(b), b.op("quot", b.arange(8), 2), b.arange(8))
    return 1


def _two_programs(b: TileBuilder) -> int:
    b.store(_out(b), b.arange(8), b.full((8,), 3, "i32"))
    return 2


def _outside(b: TileBuilder) -> int:
    b.store(_out(b), b.op("add", b.arange(8), 1), b.arange(8))
    return 1


def _no_barrier(b: TileBuilder) -> int:
    b.store(_out(b), b.arange(8), b.arange(8))
    b.store(_out(b), b.arange(8), b.op("add", b.load(_out(b), b.arange(8)), 1))
    return 1


def _of_another(b: TileBuilder) -> int:
    at = b.op("add", b.op("mul", b.program(), 4), b.arange(4))
    b.store(_out(b), at, at)
    b.barrier()
    b.load(_out(b), b.arange(4))
    return 2


def _read_before(b: TileBuilder) -> int:
    at = b.op("add", b.op("mul", b.program(), 4), b.arange(4))
    b.store(_out(b), at, b.load(_out(b), b.arange(4)))
    return 2


def _unwritten(b: TileBuilder) -> int:
    p = b.parameter(TileParameter("i32", 8, None, 64))
    b.store(_out(b), b.arange(8), b.load(p, b.arange(8)))
    return 1


def _overwritten(b: TileBuilder) -> int:
    b.store(_out(b), b.arange(8), b.load(_out(b), b.op("sub", b.const(7), b.arange(8))))
    return 1


def _overwritten_beside(b: TileBuilder) -> int:
    """A column read by all lanes of its row."""
    row, column = b.expand(b.arange(4), 1), b.expand(b.arange(2), 0)
    first = b.load(_out(b), b.op("mul", row, 2))
    b.store(_out(b), b.op("add", b.op("mul", row, 2), column), b.op("add", first, column))
    return 1


def _overwritten_in_a_loop(b: TileBuilder) -> int:
    with b.loop(0, 8, 4, [b.full((4,), 0, "i32")]) as loop:
        last = b.load(_out(b), b.op("sub", b.const(7), b.arange(4)))
        b.store(_out(b), b.op("add", loop.var, b.arange(4)), loop.carried[0])
        loop.next = [last]
    return 1


def _divided(b: TileBuilder) -> int:
    b.store(_out(b), b.arange(8), b.op("quot", b.full((8,), 3, "i32"), b.arange(8)))
    return 1


def _out_of_range(b: TileBuilder) -> int:
    b.store(_out(b), b.arange(8), b.cast(b.full((8,), 3e9, "f32"), "i32"))
    return 1


OF_LANES = {f.__name__[1:]: f for f in (_overwritten, _overwritten_beside, _overwritten_in_a_loop)}
"""What the interpreter alone finds: a text has no lanes whose loads could be followed."""
FAULTS = {f.__name__[1:]: f for f in (
    _two_lanes, _two_programs, _outside, _no_barrier, _of_another, _read_before, _unwritten, _divided, _out_of_range
)}  # fmt: skip


@pytest.mark.parametrize("way", WATCHED)
@pytest.mark.parametrize("order", [range, lambda n: reversed(range(n))], ids=["forward", "backward"])
@pytest.mark.parametrize("name", FAULTS)
def test_nondeterminism_is_a_fault(way: str, name: str, order) -> None:
    f = faulty(FAULTS[name])
    verify(f)
    raw, work = np.zeros(8, np.int32), np.zeros(32, np.uint8)
    held = {0: memory(raw, "i32"), None: Memory(work, "i32", "the workspace", known=False)}
    with pytest.raises(Fault):
        WATCHED[way]([f], lambda p: held[p.buffer], order)


@pytest.mark.parametrize("name", OF_LANES)
def test_a_lane_that_writes_what_another_one_reads(name: str) -> None:
    f = faulty(OF_LANES[name])
    verify(f)
    with pytest.raises(Fault, match="what another lane of it reads|since the last barrier"):
        run("interpreter", f, np.zeros(8, np.int32))


def _in_place(b: TileBuilder) -> int:
    b.store(_out(b), b.arange(8), b.op("add", b.load(_out(b), b.arange(8)), 1))
    return 1


def _of_sums(b: TileBuilder) -> int:
    """The lanes of a row meet in its sum, which takes the place of its first element."""
    row, column = b.expand(b.arange(4), 1), b.expand(b.arange(2), 0)
    (total,) = b.reduce("sum", 1, b.load(_out(b), b.op("add", b.op("mul", row, 2), column)))
    b.store(_out(b), b.op("mul", b.arange(4), 2), total)
    return 1


def _one_column(b: TileBuilder) -> int:
    """A column is read by all lanes of its row, of which one writes."""
    row, column = b.expand(b.arange(4), 1), b.expand(b.arange(2), 0)
    x = b.broadcast(b.load(_out(b), row), (4, 2))
    b.store(_out(b), b.op("add", row, column), x, b.op("lt", column, 1))
    return 1


def _after_a_barrier(b: TileBuilder) -> int:
    x = b.load(_out(b), b.op("sub", b.const(7), b.arange(8)))
    b.barrier()
    b.store(_out(b), b.arange(8), x)
    return 1


@pytest.mark.parametrize("make", [_in_place, _of_sums, _one_column, _after_a_barrier])
def test_a_lane_may_write_what_has_been_read(make: Callable[[TileBuilder], int]) -> None:
    run("interpreter", faulty(make), np.zeros(8, np.int32))


def test_a_barrier_helps() -> None:
    b = TileBuilder("f")
    b.store(_out(b), b.arange(8), b.arange(8))
    b.barrier()
    b.store(b.parameter(TileParameter("i32", 8, 1)), b.arange(8), b.load(_out(b), b.op("sub", b.const(7), b.arange(8))))
    for way in WATCHED:
        out = np.zeros(8, np.int32)
        run(way, b.finish(1), np.zeros(8, np.int32), out)
        np.testing.assert_array_equal(out, np.arange(8)[::-1])
