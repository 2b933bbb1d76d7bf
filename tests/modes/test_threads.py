"""Python threads that trace and compile at the same time get right results."""

import sys
import threading

import numpy as np

import einsmith as es


def test_many_threads_trace_at_once():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    failures = []
    barrier = threading.Barrier(6)

    def work(seed):
        try:
            rng = np.random.default_rng(seed)
            barrier.wait()
            for n in (3, 5, 7):
                x, w = rng.standard_normal((n, 4)).astype(np.float32), rng.standard_normal((4, n)).astype(np.float32)
                f = es.value_and_grad(lambda x, w: es.functional.sum(es.tanh(x @ w)))
                value, g = f(x, w)
                t = np.tanh(x @ w)
                np.testing.assert_allclose(value, t.sum(), rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(g, (1 - t * t) @ w.T, rtol=1e-4, atol=1e-5)
        except Exception as e:  # an assertion in a thread is seen by nobody
            failures.append(e)

    try:
        threads = [threading.Thread(target=work, args=(s,)) for s in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures, failures[0]
