"""Programs that are called in the middle of a run of the same thread, as a signal's handler may do."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.base import locks
from einsmith.codegen.entry import entry_program
from einsmith.runtime import interrupts, nested, queues, signals
from tests.programs import program_of
from tests.threads import waits


def slow(points=4 * 10**6):
    """A function of a few elements whose run takes several times `OFTEN` of the processor's time."""
    return es.op("y[i] = sum[j](sin(x[i]*j))", extents={"j": points})


OFTEN = 0.002
"""Seconds between two signals."""


@contextmanager
def during(handler):
    """Call a handler once in the middle of the first long run within, which looks for signals all the time: signals
    come until one of them falls into the run, however fast or busy the machine is. Those that come before it may wait
    for the end of a step, as `signals.Deferred` lets them."""
    came = []

    def called(number, frame):
        if signals.is_handling() and not came:
            signal.setitimer(signal.ITIMER_REAL, 0)
            came.append(True)
            handler()

    interval = entry_program.WATCH_WORDS.index("interval")
    interrupts.WORDS[interval] = 0
    before = signal.signal(signal.SIGALRM, called)
    signal.setitimer(signal.ITIMER_REAL, OFTEN, OFTEN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        interrupts.WORDS[interval] = entry_program.INTERVAL
    assert came
    assert threading.get_ident() not in nested.under_way


def swallowed(f):
    with pytest.raises(es.EinsmithError, match="flag"):
        f()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("extent", [3, 1, 5])
def test_a_program_does_not_run_within_itself(rng, extent):
    """Neither does one of another shape, which has the same memory for intermediate results."""
    f = slow()
    x, other = rng.uniform(0, 2, 3), rng.uniform(0, 2, extent)
    want, others = f(x), f(other)
    with during(lambda: f(other)), pytest.raises(es.EinsmithError, match="in the middle of a run"):
        f(x)
    with during(lambda: swallowed(lambda: f(other))):
        np.testing.assert_array_equal(f(x), want)
    np.testing.assert_array_equal(f(other), others)


def test_short_runs_too(rng, monkeypatch):
    """Between the placing of its arguments and the run a handler may be called, whatever the length of the run."""
    f = es.jit(lambda x: x * 2 + 1)
    x, other = rng.standard_normal((2, 17))
    f(x)
    run = program_of(f)
    plain = run.program.run

    def interrupted():
        swallowed(lambda: f(other))
        return plain()

    monkeypatch.setattr(run.program, "run", interrupted)
    np.testing.assert_array_equal(f(x), x * 2 + 1)
    assert not nested.under_way


class Slow(es.nn.Module):
    def __init__(self):
        self.own = es.nn.Linear(3, 2)
        self.term = slow()

    def forward(self, x):
        return self.own(x).astype("float64") + self.term(self.own(x)[:, 0])[:, None] * 1e-6


def trained(rng):
    model = Slow()
    step = es.TrainStep(model, lambda y, t: F.mse_loss(y, t), es.optim.Adam(lr=0.01), accumulate=1, clip_grad_norm=1.0)
    x, t = rng.uniform(0, 1, (9, 3)).astype(np.float32), rng.standard_normal((9, 2))
    step(x, t)
    return model, step, x, t


def state_of(model, step):
    state = {n: s.data for n, s in step.store.state.items()}
    return {n: v.tobytes() for n, v in {**model.state_dict(), **state}.items()}


def test_a_step_does_not_run_within_a_step(rng):
    model, step, x, t = trained(rng)
    step.compile(x[:5], t[:5])
    before = state_of(model, step)
    for batch in ((x, t), (x[:5], t[:5])):
        with during(lambda batch=batch: step(*batch)), pytest.raises(es.EinsmithError, match="in the middle of a run"):
            step(x, t)
        assert state_of(model, step) == before and step.steps == 1
    saved = model.state_dict()
    with during(lambda: swallowed(lambda: step(x[:5], t[:5]))):
        found = step(x, t)
    after = state_of(model, step)
    assert step.steps == 2
    model.load_state_dict(saved)
    assert found == pytest.approx(float(((model(x) - t) ** 2).mean()), rel=1e-6) and after != before


def test_weights_do_not_change_within_a_run(rng):
    model, step, x, t = trained(rng)
    before, want = model.state_dict(), model.predict(x)
    others = {n: v + 1 for n, v in before.items()}
    changes = {
        "loading": lambda: model.load_state_dict(others),
        "assigning": lambda: setattr(model.own.weight, "data", others["own.weight"]),
        "moving": lambda: model.double(),
        "training": lambda: step(x, t),
    }
    for change in changes.values():
        with during(lambda change=change: swallowed(change)):
            np.testing.assert_array_equal(model.predict(x), want)
        assert all(np.array_equal(v, before[n]) for n, v in model.state_dict().items())


def test_reading_is_right_within_a_step(rng, tmp_path):
    """A run that is interrupted has stored nothing yet."""
    model, step, x, t = trained(rng)
    quick = es.jit(lambda v: model.own(v))
    want, before = quick(x), state_of(model, step)
    found = []

    def look():
        found.append((quick(x), state_of(model, step), step.steps))
        es.save(step, tmp_path / "save")

    with during(look):
        step(x, t)
    ((out, state, steps),) = found
    np.testing.assert_array_equal(out, want)
    assert state == before and steps == 1 and step.steps == 2
    other = es.load(tmp_path / "save", model=Slow(), loss=step.loss)
    assert other.steps == 1 and state_of(other.model, other) == before


def test_a_child_knows_its_own_runs_alone():
    entered, leave = threading.Event(), threading.Event()

    def run():
        nested.under_way[threading.get_ident()] = (object(), None, None)
        entered.set()
        leave.wait()
        del nested.under_way[threading.get_ident()]

    thread = threading.Thread(target=run)
    thread.start()
    entered.wait()
    child = os.fork()
    if not child:
        os._exit(len(nested.under_way))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    leave.set()
    thread.join()


class Threads:
    """Functions on threads of their own, whose errors are kept."""

    def __init__(self):
        self.errors, self.threads = [], []

    def start(self, f):
        def caught():
            try:
                f()
            except BaseException as e:
                self.errors.append(e)

        thread = threading.Thread(target=caught, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def join(self):
        for thread in self.threads:
            thread.join(60)
        assert not any(t.is_alive() for t in self.threads), "threads wait for ever"
        assert not self.errors


def until(condition):
    while not condition():
        time.sleep(0.001)


@pytest.mark.parametrize("through", [0, 1, 2])
@pytest.mark.parametrize("first", ["handler", "thread"])
def test_who_waits_in_the_middle_of_a_run_gets_the_error(rng, through, first, monkeypatch):
    """Another thread has what it waits for, and waits for the run to end, itself or through others: these go on."""
    f = es.jit(lambda v: v * 2)
    x = rng.standard_normal(17)
    f(x)
    guards = [locks.Guard() for _ in range(through + 1)]
    held, go, done = [threading.Event() for _ in guards], threading.Event(), []
    threads = Threads()

    def run():
        with guards[0]:
            held[0].set()
            go.wait()
            done.append(f(x))

    def wait(n):
        with guards[n]:
            held[n].set()
            go.wait()
            with guards[n - 1]:
                done.append(n)

    def release():
        if first == "handler":
            until(lambda: threading.main_thread().ident in waits())
        go.set()

    monkeypatch.setattr(queues, "usable_cores", lambda: 1)
    monkeypatch.setattr(queues, "queues", [queues.FIRST])
    queues.choose()
    with queues.FIRST.lock:
        locks.RUNNING.holders[threading.get_ident()] = queues.FIRST  # as in the middle of a run
        threads.start(run)
        for n in range(1, through + 1):
            threads.start(lambda n=n: wait(n))
        for event in held:
            event.wait()
        releasing = Threads()
        releasing.start(release)
        if first == "thread":
            until(lambda: all(t.ident in waits() for t in threads.threads))
        with pytest.raises(es.EinsmithError, match="flag"), guards[-1]:
            raise AssertionError("taken")
        releasing.join()
        del locks.RUNNING.holders[threading.get_ident()]
    queues.FIRST.callers.clear()
    threads.join()
    assert len(done) == through + 1
    assert not waits()


def test_a_run_waits_within_a_run_for_one_that_ends(rng):
    """A thread that uses parameters for a while without a run hands them over."""
    model = es.nn.Linear(3, 2)
    x = rng.standard_normal((4, 3)).astype(np.float32)
    want = model(x)
    held, found, threads = threading.Event(), [], Threads()

    def use():
        with model.weight.memory.guard:
            held.set()
            until(lambda: threading.main_thread().ident in waits())
            time.sleep(3 * locks.LOOK)

    def handler():
        threads.start(use)
        held.wait()
        found.append(model(x))

    f = slow()
    with during(handler):
        f(rng.uniform(0, 2, 3))
    threads.join()
    np.testing.assert_array_equal(found[0], want)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("holds", [False, True])
def test_a_function_that_another_thread_calls_within_a_run(rng, holds, monkeypatch):
    """The other thread waits for the run to end. Where it has what the handler needs, the handler gets an error."""
    monkeypatch.setattr(queues, "usable_cores", lambda: 1)
    monkeypatch.setattr(queues, "queues", [queues.FIRST])
    f, g, model = slow(), es.jit(lambda v: v * 2), es.nn.Linear(3, 2)
    x, y = rng.uniform(0, 2, 3), rng.standard_normal((4, 3)).astype(np.float32)
    want, threads, found = f(x), Threads(), []
    g(x), model(y)

    def call():
        if holds:
            with model.weight.memory.guard:
                found.append(f(x) / 2)
        else:
            found.append(g(want) / 4)

    def handler():
        thread = threads.start(call)
        until(lambda: locks.RUNNING.is_awaited_by(thread.ident))
        if holds:
            swallowed(lambda: model(y))
        else:
            np.testing.assert_array_equal(g(x), x * 2)

    with during(handler):
        np.testing.assert_array_equal(f(x), want)
    threads.join()
    np.testing.assert_array_equal(found[0] * 2, want)
    assert not waits()


def test_a_handler_waits_while_its_thread_waits():
    """What is known of the outer wait stays."""
    outer, inner = locks.Reentrant("outer"), locks.Reentrant("inner")
    held, threads, seen = [threading.Event(), threading.Event()], Threads(), []

    def hold(lock, n):
        with lock:
            held[n].set()
            until(lambda: n in seen)

    def note(number, frame):
        threads.start(lambda: (until(lambda: waits().get(main) is inner), seen.append(1)))
        with inner:
            seen.append(waits().get(main))
        seen.append(0)

    main = threading.get_ident()
    threads.start(lambda: hold(outer, 0))
    threads.start(lambda: hold(inner, 1))
    for event in held:
        event.wait()
    before = signal.signal(signal.SIGALRM, note)
    threads.start(lambda: (until(lambda: waits().get(main) is outer), os.kill(os.getpid(), signal.SIGALRM)))
    try:
        with outer:
            pass
    finally:
        signal.signal(signal.SIGALRM, before)
    threads.join()
    assert seen == [1, outer, 0] and not waits()
