"""A system that starts no more threads: fewer compute, with one warning, or an error says what to raise."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest

import einsmith as es
from einsmith.distributed.group import ProcessGroup
from einsmith.distributed.transport import Alone
from einsmith.runtime import pool, queues, thread_count
from tests.caches import forget


@pytest.fixture
def limit(monkeypatch):
    """A function that lets so many threads live at a time, besides those that do."""
    start, started, most = threading.Thread.start, [], [0]

    def limited(thread):
        if sum(t.is_alive() for t in started) >= most[0]:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    def set_limit(count):
        pool.stop()
        forget("numbers of threads that the system has not started")
        most[0] = count
        monkeypatch.setattr(threading.Thread, "start", limited)

    monkeypatch.setattr(thread_count, "current_team", lambda: None)
    yield set_limit
    monkeypatch.undo()
    pool.stop()


@pytest.mark.parametrize("allowed", [0, 1, 2, 5, 9])
def test_programs_run_on_the_threads_that_start(limit, allowed):
    f, x = es.op("y[i] = sum[j](x[i,j]*x[i,j])"), np.ones((4096, 512), np.float32)
    limit(allowed)
    with es.threads(32), pytest.warns(es.EinsmithWarning, match="of 32 threads: the system starts no more") as seen:
        for _ in range(3):
            np.testing.assert_array_equal(f(x), np.full(4096, 512.0))
    assert len(seen) == 1
    workers = pool.pool_of(queues.FIRST).workers
    assert len(workers) == max(1, (allowed + 1) // 2) - 1 and all(w.is_alive() for w in workers)


def test_as_many_threads_as_are_asked_for_say_nothing(limit):
    limit(3)
    with es.threads(4), warnings.catch_warnings():
        warnings.simplefilter("error")
        es.op("y[i] = sum[j](x[i,j] + 3)")(np.ones((4096, 512), np.float32))


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_batches_are_made_without_threads(limit, allowed):
    x = np.arange(40)
    limit(allowed)
    made = [a.tolist() for a, _ in es.data.batches(x, x, 3, threads=5)]
    assert made == [a.tolist() for a, _ in es.data.batches(x, x, 3)]


def test_a_group_says_what_to_raise(limit):
    class Two(Alone):
        size = 2

    limit(0)
    with pytest.raises(es.EinsmithError, match="ulimit -u"):
        ProcessGroup(Two())
