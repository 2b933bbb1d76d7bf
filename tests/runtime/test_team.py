"""Programs on the threads of an OpenMP runtime: the same results, checks and forks as on workers of our own."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

import einsmith as es
from einsmith.runtime import pool, queues, thread_count
from einsmith.runtime.openmp import find_team

torch = pytest.importorskip("torch", reason="its OpenMP runtime runs programs")
TEAM = find_team()
pytestmark = pytest.mark.skipif(TEAM is None, reason="no OpenMP runtime is loaded")


@pytest.fixture
def team(monkeypatch):
    monkeypatch.setattr(thread_count, "is_team_final", True)
    monkeypatch.setattr(thread_count, "team", TEAM)
    monkeypatch.setattr(thread_count, "team_unused_until", 0.0)
    monkeypatch.setattr(thread_count, "MAX_WAIT_NS", 1 << 62)  # busy as the machine may be


def generations() -> tuple[int, int]:
    """Return how often workers of our own, and a team, have been told of a launch."""
    with queues.FIRST.lock:
        held = pool.pool_of(queues.FIRST)
        own, shared = (state[:4].view(np.int32) for state in (held.state, held.team_state))
        return int(own[0]), int(shared[0])


@pytest.fixture
def network():
    """A function of several parallel launches, one after the other, on two threads and on more than there are."""
    f = es.op("y[i,j] = tanh(sum[k](x[i,k]*w[k,j]))")

    def run(x, w):
        for _ in range(4):
            x = f(x, w)
        return x

    return run


@pytest.mark.parametrize("count", [1, 2, 5])
def test_results_are_those_of_own_workers(team, network, count, rng, monkeypatch):
    x, w = rng.standard_normal((257, 96)), rng.standard_normal((96, 96)) / 10
    want = x
    for _ in range(4):
        want = np.tanh(want @ w)
    es.set_threads(count)
    try:
        g = es.jit(network)
        for _ in range(20):
            torch.ones(200, 200).mm(torch.ones(200, 200))  # PyTorch's own regions between ours
            np.testing.assert_allclose(g(x, w), want, rtol=1e-9, atol=1e-12)
        monkeypatch.setattr(thread_count, "team", None)
        np.testing.assert_allclose(g(x, w), want, rtol=1e-9, atol=1e-12)
        monkeypatch.setattr(thread_count, "team", TEAM)
        np.testing.assert_allclose(g(x, w), want, rtol=1e-9, atol=1e-12)
    finally:
        es.set_threads(None)


def test_a_check_that_fails_ends_the_run(team, rng):
    table = rng.standard_normal((5000, 64))
    lookup = es.jit(es.op("y[i,k] = E[n[i],k]"))
    n = rng.integers(0, 5000, 3000)
    np.testing.assert_array_equal(lookup(table, n), table[n])
    with pytest.raises(IndexError):
        lookup(table, n + 4999)
    np.testing.assert_array_equal(lookup(table, n), table[n])


def test_several_threads_take_turns(team, network, rng):
    x, w = rng.standard_normal((130, 64)), rng.standard_normal((64, 64)) / 8
    g = es.jit(network)
    want, wrong = g(x, w), []

    def call():
        for _ in range(30):
            if not np.array_equal(g(x, w), want):
                wrong.append(1)

    others = [threading.Thread(target=call) for _ in range(3)]
    for t in others:
        t.start()
    call()
    for t in others:
        t.join()
    assert not wrong


def test_a_team_that_is_kept_from_its_processors_is_left_for_a_while(team, network, rng, monkeypatch):
    """Each program waits for a team's threads, and for no worker of our own."""
    now = [100.0]
    monkeypatch.setattr(thread_count.time, "monotonic", lambda: now[0])
    x, w = rng.standard_normal((257, 96)), rng.standard_normal((96, 96)) / 10
    es.set_threads(2)
    try:
        g = es.jit(network)
        want = g(x, w)
        first = generations()
        monkeypatch.setattr(thread_count, "MAX_WAIT_NS", -1)
        monkeypatch.setattr(thread_count, "RECENT_NS", 0)
        monkeypatch.setattr(thread_count, "MAX_WAIT_SHARE", 1e-9)  # every wait is too long
        for _ in range(20):
            assert np.array_equal(g(x, w), want)
            if thread_count.team_unused_until:
                break
        second = generations()
        assert second[0] == first[0] and second[1] > first[1]
        monkeypatch.setattr(thread_count, "MAX_WAIT_NS", 1 << 62)
        assert np.array_equal(g(x, w), want)
        third = generations()
        assert third[0] > second[0] and third[1] == second[1]
        assert now[0] < thread_count.team_unused_until
        now[0] = thread_count.team_unused_until
        assert np.array_equal(g(x, w), want)
        last = generations()
        assert last[0] == third[0] and last[1] > third[1]
    finally:
        es.set_threads(None)


@pytest.fixture
def waits(monkeypatch):
    monkeypatch.setattr(thread_count.time, "monotonic", lambda: 100.0)
    monkeypatch.setattr(thread_count, "team_unused_until", 0.0)
    monkeypatch.setattr(thread_count, "MAX_WAIT_NS", 1_000_000)
    return thread_count._TeamWaits()


MS = 1_000_000


@pytest.mark.parametrize("waited", [2 * MS, 30 * MS])
def test_a_wait_now_and_then_is_no_reason_to_leave_the_team(waits, waited):
    for n in range(1000):
        waits.note(waited if n % 100 == 0 else MS // 10, 4 * MS)
        assert not thread_count.team_unused_until


@pytest.mark.parametrize(
    ("waited", "span", "most"), [(30 * MS, 4 * MS, 2), (2 * MS, 4 * MS, 4), (40 * MS, 300 * MS, 12)]
)
def test_a_team_whose_programs_wait_again_and_again_is_left(waits, waited, span, most):
    count = 0
    while not thread_count.team_unused_until:
        waits.note(waited, span)
        count += 1
    assert 2 <= count <= most
    if count == 2 and span < 50 * MS:
        assert thread_count.team_unused_until == pytest.approx(100 + 2e-9 * waited / thread_count.MAX_LOST_SHARE)
    thread_count.team_unused_until = 0.0
    waits.note(waited, span)  # what was before is forgotten
    assert not thread_count.team_unused_until


def test_waits_are_compared_with_the_programs(waits):
    for _ in range(100):
        waits.note(2 * MS, 30 * MS)
    assert not thread_count.team_unused_until


def test_a_forked_child_has_workers_of_its_own(team, network, rng):
    x, w = rng.standard_normal((257, 96)), rng.standard_normal((96, 96)) / 10
    es.set_threads(2)
    try:
        g = es.jit(network)
        want = g(x, w)
        pid = os.fork()
        if not pid:
            os._exit(0 if thread_count.team is None and np.array_equal(g(x, w), want) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert np.array_equal(g(x, w), want)
    finally:
        es.set_threads(None)
