"""Loops that run at the same time: every turn of every loop runs once and in order, on any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.runtime.program import Program
from einsmith.runtime.steps import Apart, BeginLoop, CheckZero, EndLoop, Move, RunLaunch

from .test_program import affine, own_workers  # noqa: F401  (a fixture)
from .test_together import count_launches

TURNS, TASKS = 7, 5


def loops(data, stop=0, reverse=False):
    """The header and loops of programs in which loop p multiplies and adds along data[p, turn, :TASKS], and in a loop
    within it, twice each turn, in data[p, -1, 0]."""
    steps: list = []
    for rows in data:
        n = len(steps) + 2  # after the header, and one step before
        row, last = rows.strides[0], rows[-1].ctypes.data
        steps += [
            BeginLoop(TURNS, reverse, [Move(n + 1, 0, 0, row)], [rows.ctypes.data], stop),
            RunLaunch(affine(3), TASKS, [0]),
            BeginLoop(2, False, [], []),
            RunLaunch(affine(2), 1, [last]),
            EndLoop(),
            EndLoop(),
        ]
    return [Apart(len(steps), len(data)), *steps]


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("parts", [1, 2, 3, 9])
@pytest.mark.parametrize("reverse", [False, True])
def test_every_turn_of_every_loop_runs_once(threads, parts, reverse):
    data, around = np.zeros((parts, TURNS + 1, TASKS), np.int64), np.zeros(1, np.int64)
    other = RunLaunch(affine(2), 1, [around.ctypes.data])
    program = Program([other, *loops(data, reverse=reverse), other], threads)
    for run in (1, 2):
        assert program.run() == 0
        assert (data[:, :-1] == (1, 4)[run - 1]).all()
        assert (data[:, -1, 0] == 2 ** (2 * TURNS * run) - 1).all() and not data[:, -1, 1:].any()
        assert around[0] == 4**run - 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("stop", [0, 1, 3, 100])
def test_loops_end_at_a_value_in_memory(threads, stop):
    data, end = np.zeros((2, TURNS + 1, TASKS), np.int64), np.full(1, stop)
    around = np.zeros(1, np.int64)
    other = RunLaunch(affine(2), 1, [around.ctypes.data])
    program = Program([other, *loops(data, end.ctypes.data), other], threads)
    assert program.run() == 0 and around[0] == 3
    turns = min(stop, TURNS)
    assert (data[:, :turns] == 1).all() and not data[:, turns:-1].any()


def test_loops_share_one_launch():
    data = np.zeros((2, TURNS + 1, TASKS), np.int64)
    program = Program([RunLaunch(affine(1), 2, [data.ctypes.data]), *loops(data)], 2)
    program.run()  # starts the workers
    assert count_launches(program) == 2


def test_times():
    """Added up, the time of each step is known; when threads are told apart, the header has that of all loops."""
    data = np.zeros((2, TURNS + 1, TASKS), np.int64)
    program = Program([RunLaunch(affine(1), 1, [data.ctypes.data]), *loops(data)], 2)
    status, seconds = program.run_timed()
    launches = [n for n, s in enumerate(program.steps) if isinstance(s, RunLaunch)]
    assert status == 0 and (seconds[launches] > 0).all()
    status, times = program.run_recorded()
    assert status == 0 and times.seen[1] > 0 and not times.seen[2:].any() and times.busy[1].sum() > 0
    assert (data[:, 1:-1] == 4).all()


def test_a_header_without_its_loops_is_refused():
    data = np.zeros((2, TURNS + 1, TASKS), np.int64)
    header, *steps = loops(data)
    for wrong in ([Apart(5, 2), *steps], [header, *steps[:-1], CheckZero(64, 1)]):
        with pytest.raises(ValueError, match="equally many steps|no end"):
            Program(wrong, 2)
