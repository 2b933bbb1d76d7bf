"""Calls that are recognized by the types of their arguments alone give what other calls give."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import einsmith as es
from einsmith.api.plain_calls import plain_call_key
from einsmith.base import locks
from einsmith.base.errors import EinsmithError, TraceError

X = np.arange(5, dtype=np.float32)


def test_static_values_that_are_equal_are_different_settings():
    seen = []

    @es.jit(static_argnames="k")
    def f(x, k):
        seen.append((type(k), repr(k)))
        return x * k

    for _ in range(2):
        for k in (1, True, 1.0, 0.0, -0.0, 0):
            for result in (f(X, k=k), f(X, k)):
                assert np.array_equal(np.signbit(result), np.signbit(X * k))
    assert set(seen) == {(type(k), repr(k)) for k in (1, True, 1.0, 0.0, -0.0, 0)}


def test_static_values_in_containers_are_told_apart():
    f = es.jit(lambda x, k: x + k[0] if isinstance(k[0], int) else x - k[0], static_argnames="k")
    for _ in range(3):
        assert np.array_equal(f(X, k=(1,)), X + 1)
        assert np.array_equal(f(X, k=(1.0,)), X - 1)


def test_a_static_argument_without_a_hash_is_an_error_each_time():
    class Unhashable:
        __hash__ = None

    f = es.jit(lambda x, k: x, static_argnames="k")
    for _ in range(2):
        with pytest.raises(TraceError, match="cannot be hashed"):
            f(X, k=Unhashable())


def test_keywords_in_any_order():
    f = es.jit(lambda x, y, z=None: x - 2 * y + (0 if z is None else z))
    for _ in range(2):
        assert np.array_equal(f(x=X, y=X + 1), f(y=X + 1, x=X))
        assert np.array_equal(f(x=X, y=X + 1, z=3.0), f(z=3.0, y=X + 1, x=X))
        assert np.array_equal(f(X, y=X + 1, z=None), X - 2 * (X + 1))


def test_functions_and_strings_among_arguments():
    f = es.jit(lambda g, how, x: g(x) if how == "once" else g(g(x)))
    for _ in range(2):
        assert np.array_equal(f(es.functional.neg, "once", X), -X)
        assert np.array_equal(f(es.functional.neg, "twice", X), X)
        assert np.array_equal(f(es.functional.square, "once", X), X * X)


def test_arrays_in_another_order_of_bytes_or_memory_are_converted():
    f, swapped = es.jit(lambda x: 2 * x), X.astype(X.dtype.newbyteorder())
    for _ in range(3):
        assert np.array_equal(f(X), 2 * X)
        assert np.array_equal(f(swapped), 2 * X)
        assert np.array_equal(f(np.arange(10, dtype=np.float32)[::2]), 4 * X)


def test_keys_tell_kinds_of_arguments_apart():
    calls = [(X,), (X[:4],), (X[None],), (1.0,), (1,), (2**40,), (True,), (None,), ("a",), ((X,),), ([X],), ({"a": X},)]
    keys = [plain_call_key(args, {}, (), []) for args in calls]
    assert None not in keys and len(set(keys)) == len(calls)
    assert plain_call_key((object(),), {}, (), []) is None


@pytest.mark.parametrize("again", range(3))
def test_operators_sort_arguments_of_each_form(again):
    f, y = es.op("z[i] = a*x[i] - b*y[i]", b=2.0), X + 1
    for _ in range(3):
        for result in (f(X, y, a=3.0), f(y=y, x=X, a=3.0), f(X, a=3.0, y=y), f(X, y, b=2.0, a=3.0)):
            assert np.array_equal(result, 3 * X - 2 * y)
        assert np.array_equal(f(X, y, b=5, a=3.0), 3 * X - 5 * y)
        assert np.array_equal(f(X, y, a=True, b=5.0), X - 5 * y)
        assert np.array_equal(f(list(map(float, X)), y, a=1), X - 2 * y)
        for wrong in (lambda: f(X, a=1.0), lambda: f(X, y), lambda: f(X, y, y, a=1.0), lambda: f(X, y, a=1.0, x=X)):
            with pytest.raises(EinsmithError):
                wrong()
        with pytest.raises(EinsmithError):
            f(X, y, a=None)
        with pytest.raises(EinsmithError):
            f(X, y[:3], a=1.0)


def test_static_parameters_of_operators():
    f = es.op("y[i] = x[i + k]", extents={"i": "x.shape[0] - k"}, k=1)
    for _ in range(3):
        assert np.array_equal(f(X), X[1:])
        assert np.array_equal(f(X, k=2), X[2:])
        assert np.array_equal(f(x=X, k=0), X)


def test_a_traced_operator_extends_the_trace():
    f = es.op("y[i] = 2*x[i]")
    f(X)
    assert np.array_equal(es.jit(lambda x: f(x) + 1)(X), 2 * X + 1)


def test_predictions_of_one_batch_and_of_several():
    es.manual_seed(0)
    model = es.nn.Sequential(es.nn.Linear(5, 3), es.nn.Dropout(0.5))
    rows = np.random.default_rng(0).random((7, 5), np.float32)
    whole = model.predict(rows)
    for size in (1, 2, 6, 7, 8):
        assert np.allclose(model.predict(rows, batch_size=size), whole, atol=1e-6)
    again = model.predict(rows)
    assert again is not whole and np.array_equal(again, whole) and model.training
    model.append(es.nn.Linear(3, 2))
    assert model.predict(rows).shape == (7, 2)


def test_results_never_share_memory():
    f = es.jit(lambda x: (x + 1, x[0] + 2))
    kept = [f(X + n) for n in range(6)]
    for n, (whole, number) in enumerate(kept):
        assert np.array_equal(whole, X + n + 1) and number == n + 2
    views = [f(X + n)[0][1:3] for n in range(6)]
    for n, view in enumerate(views):
        assert np.array_equal(view, X[1:3] + n + 1)


def test_a_reader_without_the_lock_keeps_others_from_it():
    guard, order = locks.Guard(), []
    assert guard.try_reading() and not guard.try_reading()
    writer = threading.Thread(target=lambda: (guard.__enter__(), order.append("writer"), guard.__exit__()))
    writer.start()
    while not guard._lock._owner:  # it has the lock, and waits for the reader
        pass
    order.append("reader")
    guard.end_reading()
    writer.join()
    assert order == ["reader", "writer"]
    with guard:
        assert not guard.try_reading()
    assert guard.try_reading()
    guard.end_reading()


def test_a_guard_that_is_to_be_joined_is_not_read_without_the_lock():
    one = locks.Guard()
    both = locks.Guard([one])
    assert not both.try_reading()
    with both:
        assert not one.try_reading()
    assert both.try_reading() and not one.try_reading()
    both.end_reading()


def test_values_that_a_fork_has_left_incomplete_are_not_read():
    guard = locks.Guard()
    guard._lock._broken = True
    assert not guard.try_reading()


def test_parameters_that_change_between_calls():
    es.manual_seed(0)
    model = es.nn.Linear(5, 3, bias=False).eval()
    rows = np.random.default_rng(0).random((4, 5), np.float32)
    for n in range(4):
        model(rows)
        model.load_state_dict({"weight": np.full((3, 5), n, np.float32)})
        assert np.allclose(model(rows), rows.sum(1, keepdims=True) * n, rtol=1e-5)
        array = model.weight.data
        array[...] = n + 0.5
        assert np.allclose(model(rows), rows.sum(1, keepdims=True) * (n + 0.5), rtol=1e-5)
        del array
        assert np.allclose(model(rows), rows.sum(1, keepdims=True) * (n + 0.5), rtol=1e-5)
