"""Launches that run together: every task of every member runs once, on any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.codegen.entry import entry_program
from einsmith.runtime import pool, queues, thread_count
from einsmith.runtime.program import Program
from einsmith.runtime.steps import BeginLoop, CheckZero, EndLoop, Move, RunLaunch, Together

from .test_program import affine, own_workers  # noqa: F401  (a fixture)


def count_launches(program: Program) -> int:
    """Return how many launches a run opens to other threads."""
    with queues.FIRST.lock:
        word = pool.pool_of(queues.FIRST).state[entry_program.WORDS["generation"] :][:4].view(np.int32)
        before = int(word[0])
    program.run()
    return int(word[0]) - before


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("tasks", [(1, 1), (1, 2, 1), (0, 1), (7, 0, 3), (1,) * 40, (64, 1, 1001), (1,), (0, 0)])
def test_every_task_of_every_member_runs_once(threads, tasks, rng):
    data = [rng.integers(0, 5, max(n, 1)) for n in tasks]
    scales = [int(s) for s in rng.integers(1, 4, len(tasks))]
    launches = [RunLaunch(affine(s), n, [x.ctypes.data]) for s, n, x in zip(scales, tasks, data, strict=True)]
    first, last = np.zeros(3, np.int64), np.zeros(3, np.int64)
    around = [RunLaunch(affine(2), 3, [x.ctypes.data]) for x in (first, last)]
    program = Program([around[0], Together(len(tasks)), *launches, around[1]], threads)
    for turn in range(1, 4):
        want = [x.copy() for x in data]
        for x, s, n in zip(want, scales, tasks, strict=True):
            x[:n] = x[:n] * s + 1
        assert program.run() == 0
        for x, y in zip(data, want, strict=True):
            np.testing.assert_array_equal(x, y)
        assert first.tolist() == last.tolist() == [2**turn - 1] * 3


def test_members_share_one_launch():
    data = np.zeros((3, 8), np.int64)
    members = [RunLaunch(affine(2), n, [x.ctypes.data]) for n, x in zip((1, 4, 2), data, strict=True)]
    alone, together = Program(members, 2), Program([Together(3), *members], 2)
    alone.run()  # starts the workers
    assert count_launches(alone) == 2 and count_launches(together) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_the_header_is_timed(threads):
    data = np.zeros((2, 4096), np.int64)
    members = [RunLaunch(affine(2), n, [x.ctypes.data]) for n, x in zip((4096, 1), data, strict=True)]
    status, seconds = Program([Together(2), *members, members[1]], threads).run_timed()
    assert status == 0 and seconds.shape == (4,) and seconds[3] > 0
    if threads == 1:
        assert (seconds[1:3] > 0).all()
    else:
        assert seconds[0] > 0 and not seconds[1:3].any()
    assert data[0].tolist() == [1] * 4096 and data[1, 0] == 3


@pytest.mark.parametrize("threads", [1, 2])
def test_pointers_and_functions_of_members_can_be_swapped(threads):
    one, two, three = (np.zeros(4, np.int64) for _ in range(3))
    program = Program(
        [Together(2), RunLaunch(affine(2), 4, [one.ctypes.data]), RunLaunch(affine(2), 1, [two.ctypes.data])], threads
    )
    program.run()
    program.table[program.slots[1, 0]] = three.ctypes.data
    program.table[program.slots[2, "function"]] = affine(5)
    program.run()
    assert one.tolist() == three.tolist() == [1] * 4 and two.tolist() == [6, 0, 0, 0]


def test_addresses_are_those_of_the_members():
    """Every word that is no address is a small number: a kind, a count, a code."""
    data = np.zeros(4, np.int64)
    program = Program([Together(2), *[RunLaunch(affine(2), 2, [data.ctypes.data])] * 2], 2)
    table, addresses = program.table.copy(), program.addresses()
    assert all(table[i] > 2**20 for i in addresses)
    table[addresses] = 0
    assert (table < 2**20).all()
    moved = Program(program.steps, 2)  # the table with other addresses of its own
    assert moved.addresses() == addresses


@pytest.mark.parametrize("threads", [1, 2])
def test_members_in_a_loop_and_after_a_check(threads):
    data, flag = np.zeros((6, 2), np.int64), np.zeros(1, np.int32)
    other = np.zeros(1, np.int64)
    moves = [Move(2, 0, 0, data.strides[0])]
    program = Program(
        [
            BeginLoop(6, False, moves, [data.ctypes.data]),
            Together(2),
            RunLaunch(affine(3), 2, [0]),
            RunLaunch(affine(1), 1, [other.ctypes.data]),
            EndLoop(),
            CheckZero(flag.ctypes.data, 7),
            Together(1),
            RunLaunch(affine(1), 1, [other.ctypes.data]),
        ],
        threads,
    )
    assert program.run() == 0
    assert data.tolist() == [[1, 1]] * 6 and other[0] == 7
    flag[0] = 1
    assert program.run() == 7 and other[0] == 13


def test_a_header_without_its_members_is_refused():
    launch = RunLaunch(affine(1), 1, [0])
    for steps in ([Together(1)], [Together(2), launch], [Together(2), launch, CheckZero(64, 1)]):
        with pytest.raises(ValueError, match="run together"):
            Program(steps, 2)
    with pytest.raises(ValueError, match="at most"):
        Program([Together(2), *[RunLaunch(affine(1), 2**31 - 1, [0])] * 2], 2)


def test_on_a_team_of_another_runtime(monkeypatch):
    pytest.importorskip("torch", reason="its OpenMP runtime runs programs")
    from einsmith.runtime.openmp import find_team

    team = find_team()
    if team is None:
        pytest.skip("no OpenMP runtime is loaded")
    monkeypatch.setattr(thread_count, "team", team)
    monkeypatch.setattr(thread_count, "team_unused_until", 0.0)
    monkeypatch.setattr(thread_count, "MAX_WAIT_NS", 1 << 62)
    data = np.zeros((2, 64), np.int64)
    members = [RunLaunch(affine(1), n, [x.ctypes.data]) for n, x in zip((64, 1), data, strict=True)]
    program = Program([Together(2), *members], 2)
    for _ in range(50):
        assert program.run() == 0
    assert data[0].tolist() == [50] * 64 and data[1, 0] == 50
