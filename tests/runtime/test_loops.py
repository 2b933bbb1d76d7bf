"""Loops of a program: turns, moving pointers, nesting, trip counts from memory."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.codegen.cache import native
from einsmith.codegen.loopnest.nest import Builder
from einsmith.runtime.program import Program
from einsmith.runtime.steps import BeginLoop, CheckZero, EndLoop, Move, RunLaunch


def code(name: str, buffers: int, emit) -> int:
    b = Builder(name, buffers)
    emit(b)
    f = b.finish()
    return native.compile_functions([f], native.host_target())[f.name]


def carry() -> int:
    """out[task] = 3*before[task] + x[task], of i64."""

    def emit(b: Builder) -> None:
        x = b.load(b.buffers[1], b.task, "i64")
        before = b.load(b.buffers[0], b.task, "i64")
        b.store(b.add(b.mul(before, b.const(3)), x), b.buffers[2], b.task)

    return code("carry", 3, emit)


def scan(x: np.ndarray, h: np.ndarray, reverse: bool, trips: int) -> Program:
    """h[t+1] = 3*h[t] + x[t] (reverse: h[t] = 3*h[t+1] + x[t])."""
    steps, width = x.shape
    row = 8 * width
    before, after = (row, 0) if reverse else (0, row)
    moves = [Move(1, 0, before, row), Move(1, 1, 0, row), Move(1, 2, after, row)]
    bases = [h.ctypes.data, x.ctypes.data, h.ctypes.data]
    return Program([BeginLoop(steps, reverse, moves, bases, trips), RunLaunch(carry(), width, [0, 0, 0]), EndLoop()], 2)


def expected(x: np.ndarray, h: np.ndarray, reverse: bool, trips: int) -> np.ndarray:
    h = h.copy()
    for t in range(trips)[::-1] if reverse else range(trips):
        if reverse:
            h[t] = 3 * h[t + 1] + x[t]
        else:
            h[t + 1] = 3 * h[t] + x[t]
    return h


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_scan_runs_twice_with_the_same_result(reverse, steps, rng):
    x, h = rng.integers(-9, 9, (steps, 5)), rng.integers(-9, 9, (steps + 1, 5))
    want = expected(x, h, reverse, steps)
    program = scan(x, h, reverse, 0)
    for _ in range(2):
        assert program.run() == 0
        np.testing.assert_array_equal(h, want)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cut", [-2, 0, 1, 4, 6, 8])
def test_a_loop_cut_in_two_by_a_number_in_memory(reverse, cut, rng):
    """Turns below the cut and turns from it on, as two loops in the order of the direction, are the whole loop."""
    x, h = rng.integers(-9, 9, (6, 3)), rng.integers(-9, 9, (7, 3))
    want = expected(x, h, reverse, 6)
    at = np.array(cut, np.int64)
    steps: list = []
    for part in ("after", "before") if reverse else ("before", "after"):
        (loop, launch, end) = scan(x, h, reverse, 0).steps
        n = len(steps)
        moves = [m._replace(step=n + 1) for m in loop.moves]
        bounds = {"stop": at.ctypes.data} if part == "before" else {"first": at.ctypes.data}
        steps += [BeginLoop(6, reverse, moves, loop.bases, **bounds), launch, end]
    assert Program(steps, 2).run() == 0
    np.testing.assert_array_equal(h, want)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("trips", [-1, 0, 1, 4, 6, 9])
def test_the_trip_count_is_read_when_the_loop_begins(reverse, trips, rng):
    x, h = rng.integers(-9, 9, (6, 3)), rng.integers(-9, 9, (7, 3))
    count = np.array(trips, np.int64)
    want = expected(x, h, reverse, min(max(trips, 0), 6))
    program = scan(x, h, reverse, count.ctypes.data)
    assert program.run() == 0
    np.testing.assert_array_equal(h, want)


def test_a_loop_in_a_loop_moves_the_pointers_of_both(rng):
    """out[i, j] = 3*first[i] + x[i, j], then out[i, j] = 3*out[i, j] + row[j]."""
    x, row, first = rng.integers(-9, 9, (4, 6)), rng.integers(-9, 9, 6), rng.integers(-9, 9, 4)
    out = np.zeros((4, 6), np.int64)
    to = out.ctypes.data
    inner = [Move(2, 1, 0, 8), Move(2, 2, 0, 8), Move(3, 0, 0, 8), Move(3, 1, 0, 8), Move(3, 2, 0, 8)]
    outer = [Move(2, 0, 0, 8), *(Move(1, i, 0, 48) for i in (0, 1, 2, 4))]
    program = Program([
        BeginLoop(4, False, outer, [first.ctypes.data, x.ctypes.data, to, to, to]),
        BeginLoop(6, True, inner, [0, 0, 0, row.ctypes.data, 0]),
        RunLaunch(carry(), 1, [0, 0, 0]),
        RunLaunch(carry(), 1, [0, 0, 0]),
        EndLoop(),
        EndLoop(),
    ], 1)  # fmt: skip
    for _ in range(2):
        assert program.run() == 0
        np.testing.assert_array_equal(out, 3 * (3 * first[:, None] + x) + row)


def test_steps_before_and_after_a_loop_run_once_and_a_failed_check_inside_ends_the_run(rng):
    def emit(b: Builder) -> None:
        b.store(b.add(b.load(b.buffers[0], b.const(0), "i64"), b.const(1)), b.buffers[0], b.const(0))

    count = code("count", 1, emit)
    a, b, c = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)
    flags = np.array([0, 0, 0, 0, 0], np.int32)
    steps = [
        RunLaunch(count, 1, [a.ctypes.data]),
        BeginLoop(5, False, [Move(4, 0, 0, 4)], [flags.ctypes.data]),
        RunLaunch(count, 1, [b.ctypes.data]),
        BeginLoop(3, True, [], []),
        CheckZero(flags.ctypes.data, 7),
        EndLoop(),
        EndLoop(),
        RunLaunch(count, 1, [c.ctypes.data]),
    ]
    program = Program(steps)
    assert program.run() == 0
    assert (a[0], b[0], c[0]) == (1, 5, 1)
    flags[2] = 1
    assert program.run() == 7
    assert (a[0], b[0], c[0]) == (2, 8, 1)
    flags[2] = 0
    status, seconds = program.run_timed()
    assert status == 0
    assert (a[0], b[0], c[0]) == (3, 13, 2)
    assert seconds[2] > 0


def test_loops_must_match():
    with pytest.raises(ValueError, match="no end"):
        Program([BeginLoop(2, False, [], [])])
    with pytest.raises(ValueError, match="none is open"):
        Program([EndLoop()])
