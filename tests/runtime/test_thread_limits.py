"""The number of threads by `es.threads`, and by threadpoolctl."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import einsmith as es
from einsmith.runtime.thread_count import get_threads
from tests.programs import programs_of


@pytest.fixture(autouse=True)
def default():
    yield
    es.set_threads(None)


def test_a_scope():
    es.set_threads(3)
    seen = []
    with es.threads(5):
        with es.threads(2):
            assert get_threads() == 2
            thread = threading.Thread(target=lambda: seen.append(get_threads()))
            thread.start()
            thread.join()
        assert get_threads() == 5
        es.set_threads(4)
        assert get_threads() == 5
    assert get_threads() == 4 and seen == [3]
    with pytest.raises(ZeroDivisionError), es.threads(2):
        raise ZeroDivisionError
    assert get_threads() == 4


def test_a_scope_that_cannot_be():
    for n in (0, -1, 4097, None, 1.5):
        with pytest.raises(es.KindError if n is None or isinstance(n, float) else es.ArgumentError):
            es.threads(n)


def test_programs_of_a_scope_have_its_threads(rng):
    f = es.jit(lambda x: x @ x)
    x = rng.standard_normal((65, 65)).astype(np.float32)
    for n in (1, 2):
        with es.threads(n):
            np.testing.assert_allclose(f(x), x @ x, rtol=1e-4, atol=1e-4)
        assert sorted(run.threads for run in programs_of(f)) == [1, 2][:n]


def test_threadpoolctl():
    threadpoolctl = pytest.importorskip("threadpoolctl", reason="threadpoolctl is not installed")
    es.jit(lambda x: x + 1)(1.0)  # it is told of Einsmith when the first program runs
    before = get_threads()

    def listed():
        return [n["num_threads"] for n in threadpoolctl.threadpool_info() if n["user_api"] == "einsmith"]

    assert listed() == [before]
    with threadpoolctl.threadpool_limits(7, user_api="einsmith"):
        assert listed() == [7] and get_threads() == 7
    assert listed() == [before] and get_threads() == before
    with threadpoolctl.threadpool_limits(1):
        assert get_threads() == 1
    es.set_threads(3)
    with threadpoolctl.threadpool_limits(1):
        assert get_threads() == 1
    assert get_threads() == 3
