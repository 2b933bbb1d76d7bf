"""Programs that several threads run at one time."""

from __future__ import annotations

import functools
import signal
import threading

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.base import locks
from einsmith.codegen.entry import entry_program
from einsmith.runtime import interrupts, pool, queues
from tests.runtime.test_nested_runs import Threads, during, slow, until
from tests.threads import readers, waits


@pytest.fixture(autouse=True)
def two_queues(monkeypatch):
    monkeypatch.setattr(queues, "usable_cores", lambda: 2)
    monkeypatch.setattr(queues, "queues", [queues.FIRST])


def network():
    es.manual_seed(1)
    return es.nn.Sequential(es.nn.Linear(13, 37), es.nn.BatchNorm1d(37), es.nn.ReLU(), es.nn.Linear(37, 5)).eval()


def run_beside(threads, f):
    """Run f on another thread, and wait for it."""
    threads.start(f)
    threads.join()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["prediction", "function", "the same function"])
def test_a_run_begins_and_ends_within_a_run_of_another_thread(rng, kind):
    f, model, double = slow(), network(), es.jit(lambda v: v * 2)
    x = rng.uniform(0, 2, 3)
    batch = rng.standard_normal((6, 13)).astype(np.float32)
    call = {"prediction": lambda: model(batch), "function": lambda: double(x), "the same function": lambda: f(x)}[kind]
    wants, threads, found = (f(x), call()), Threads(), []

    def handler():
        threads.start(lambda: found.append(call())).join(60)

    with during(handler):
        np.testing.assert_array_equal(f(x), wants[0])
    threads.join()
    np.testing.assert_array_equal(found[0], wants[1])
    assert len(queues.queues) == 2 and not any(q.callers or q.depth for q in queues.queues)


def test_predictions_of_many_threads(rng):
    """Of two batch sizes, whose programs share memory, while a thread trains: each of one state of the weights."""
    model = es.nn.Linear(3, 2)
    x = rng.standard_normal((7, 3)).astype(np.float32)
    step = es.TrainStep(model, lambda y, t: (y * t).sum(), es.optim.SGD(lr=1.0))
    x1, t1 = np.ones((1, 3), np.float32), -np.ones((1, 2), np.float32)
    for parameter in model.parameters():
        parameter.data[...] = 0.0  # each step adds 1 to all of them
    step(x1, t1)
    threads, ended = Threads(), threading.Event()

    def predict(rows):
        states = set()
        while not ended.is_set() or not states:
            y = model(x[:rows])
            weights = y / (x[:rows].sum(1, keepdims=True, dtype=np.float64) + 1)
            assert np.ptp(weights) < 1e-3 and abs(weights.mean() - round(float(weights.mean()))) < 1e-3
            states.add(round(float(weights.mean())))

    try:
        for rows in (7, 7, 2, 2):
            threads.start(lambda rows=rows: predict(rows))
        for _ in range(60):
            step(x1, t1)
    finally:
        ended.set()
    threads.join()
    np.testing.assert_array_equal(model.weight.data, np.full((2, 3), 61))


def test_what_depends_on_weights_alone_is_computed_for_every_queue(rng):
    """Batch norm's scale is computed once, packed weights for each queue; both after every change."""
    model = network()
    x = rng.standard_normal((6, 13)).astype(np.float32)
    f, one = slow(), rng.uniform(0, 2, 3)
    f(one)
    for _ in range(3):
        model[1].running_var.data[...] = rng.uniform(0.5, 2, 37)
        model[0].weight.data[...] = rng.standard_normal((37, 13))
        plain = x.astype(np.float64) @ model[0].weight.numpy().T + model[0].bias.numpy()
        scaled = plain / np.sqrt(model[1].running_var.numpy() + 1e-5)
        want = np.maximum(scaled, 0) @ model[3].weight.numpy().T + model[3].bias.numpy()
        threads, others = Threads(), []
        predict = functools.partial(lambda others: others.append(model(x)), others)
        with during(functools.partial(run_beside, threads, predict)):
            f(one)
        for y in [*others, model(x)]:
            np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)


def test_a_training_step_waits_for_reads(rng):
    model = network()
    step = es.TrainStep(model, F.mse_loss, es.optim.SGD(lr=0.1))
    x, t = rng.standard_normal((4, 13)).astype(np.float32), rng.standard_normal((4, 5)).astype(np.float32)
    step(x, t)
    guard, threads, order = step.store.guard, Threads(), []

    def read():
        with guard:
            guard.begin_reading()
        try:
            until(lambda: len(waits()) == 1)
            order.append("read")
        finally:
            guard.end_reading()

    reader = threads.start(read)
    until(lambda: reader.ident in readers(guard))
    step(x, t)
    order.append("trained")
    threads.join()
    assert order == ["read", "trained"] and not readers(guard)


def test_a_change_that_waits_for_a_read_which_waits_for_its_run(rng, monkeypatch):
    """The change of a signal's handler; it gets an error, the others go on."""
    monkeypatch.setattr(queues, "usable_cores", lambda: 1)
    model, f = network(), slow()
    x, batch = rng.uniform(0, 2, 3), rng.standard_normal((6, 13)).astype(np.float32)
    wants, threads, found = (f(x), model(batch)), Threads(), []

    def handler():
        thread = threads.start(lambda: found.append(model(batch)))
        until(lambda: locks.RUNNING.is_awaited_by(thread.ident))
        with pytest.raises(es.EinsmithError, match="flag"):
            model.load_state_dict(model.state_dict())

    with during(handler):
        np.testing.assert_array_equal(f(x), wants[0])
    threads.join()
    np.testing.assert_array_equal(found[0], wants[1])
    assert not waits()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("whose", ["another thread's", "its own"])
def test_a_stopped_run_stops_no_other(rng, whose):
    """The words by which Ctrl-C stops the run of the main thread hold for its own threads alone."""
    words = {name: n for n, name in enumerate(entry_program.WATCH_WORDS)}
    f, x = slow(), rng.uniform(0, 2, 3)
    with es.threads(2):
        want = f(x)
        f(x + 1)  # what a stopped run leaves unwritten in memory is not the result
    threads, found = Threads(), []

    def run():
        with queues.FIRST.lock:
            state = pool.pool_of(queues.FIRST).address
        mine = whose == "its own"
        interrupts.WORDS[words["thread"]] = threading.get_ident() if mine else threading.get_ident() + 64
        interrupts.WORDS[words["pool"]], interrupts.WORDS[words["threads"]] = state if mine else 0, 2
        interrupts.WORDS[words["stopped"]] = 1
        try:
            with es.threads(2):
                found.append(f(x))
        finally:
            interrupts.WORDS[words["stopped"]] = 0

    threads.start(run)
    threads.join()
    assert np.array_equal(found[0], want) == (whose != "its own")


def test_ctrl_c_ends_the_run_of_the_main_thread_alone(rng):
    f, x = slow(), rng.uniform(0, 2, 5)
    want, threads, found = f(x), Threads(), []

    def stop():
        threads.start(lambda: found.append(f(x)))
        until(lambda: len(queues.queues) == 2 and queues.queues[1].depth)
        raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt), during(stop):
            f(x)
    threads.join()
    assert len(found) == 3
    for y in found:
        np.testing.assert_array_equal(y, want)
    assert signal.getsignal(signal.SIGALRM) != stop


def test_at_most_as_many_queues_as_cores(rng):
    f, x = slow(10**4), rng.uniform(0, 2, 5)
    want, threads, found = f(x), Threads(), []
    for _ in range(7):
        threads.start(lambda: [found.append(f(x)) for _ in range(20)])
    threads.join()
    assert len(found) == 140 and all(np.array_equal(y, want) for y in found)
    assert len(queues.queues) <= 2


def test_each_program_gets_its_part_of_the_threads():
    first, second = queues.FIRST, queues.RunQueue(1)
    queues.queues.append(second)
    assert queues.divide(8) == 8
    first.callers[-1] = second.callers[-2] = None
    try:
        assert queues.divide(8) == 4 and queues.divide(1) == 1 and queues.divide(3) == 1
    finally:
        first.callers.clear()
    assert queues.divide(8) == 8
