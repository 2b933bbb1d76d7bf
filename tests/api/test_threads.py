"""Python threads that trace and compile at the same time get right results; Python's search for cycles meanwhile."""

import gc
import sys
import threading
import traceback

import numpy as np
import pytest

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


@pytest.mark.thinned(2)
@pytest.mark.parametrize("on", [True, False])
def test_garbage_collection_is_off_during_compilation(on, rng):
    """Not even where the search comes with every few objects; afterwards it is on or off as it was."""
    before, seen = gc.get_threshold(), []

    def look(phase, info):
        seen.append(any("/einsmith/passes/" in f.filename for f in traceback.extract_stack()))

    gc.set_threshold(5, 1, 1)
    gc.callbacks.append(look)
    try:
        (gc.enable if on else gc.disable)()
        x = rng.standard_normal((3, 4))
        np.testing.assert_allclose(es.grad(lambda x: (es.tanh(x) * x).sum())(x), np.tanh(x) + x / np.cosh(x) ** 2)
        assert gc.isenabled() == on
        with pytest.raises(ZeroDivisionError):
            es.jit(lambda x: x * (1 // 0))(x)
        assert gc.isenabled() == on
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*before)
        gc.enable()
    assert bool(seen) == on and not any(seen)
