"""Ctrl-C while something is compiled, tuned or taken back: nothing half made stays."""

from __future__ import annotations

import os
import signal
import subprocess
import threading

import numpy as np
import pytest

import einsmith as es
from einsmith.base import locks
from einsmith.data import fetch
from einsmith.runtime import nested, queues, signals
from tests.threads import inside, is_free, waits

from .test_interrupts import run

TRAIN = """
    class Late(Exception):
        pass
    def late(number, frame):
        if frame.f_code.co_name == "_remove_key":  # an exception leaves no callback of a weak reference
            signal.setitimer(signal.ITIMER_REAL, 1e-3)
            return
        raise Late
    signal.signal(signal.SIGALRM, late)
    es.manual_seed(3)
    es.set_threads(2)
    rng = np.random.default_rng(5)
    x, t = rng.standard_normal((4, 2, 9, 9)).astype(np.float32), rng.integers(0, 3, 4)
    model = es.nn.Sequential(
        es.nn.Conv2d(2, 5, 3), es.nn.BatchNorm2d(5), es.nn.ReLU(), es.nn.Flatten(), es.nn.Linear(245, 3)
    )
    step = es.TrainStep(model, F.cross_entropy, es.optim.Adam(lr=0.1))
    begun, ended, after = time.perf_counter(), 0, float(sys.argv[1])
    while after:
        try:
            signal.setitimer(signal.ITIMER_REAL, after)
            step.compile(x, t)
            signal.setitimer(signal.ITIMER_REAL, 0)
            break
        except Late:
            ended += 1
            after *= 1.5
    assert not sys.argv[1] > "0" or ended > 3
    print(ended, [step(x, t).hex() for _ in range(3)])
    same_as_ever()
"""

TUNE = """
    from einsmith.tuning.kernels import bench, records
    from einsmith.tuning.programs import graph_search
    started, searched, sent = bench.BenchProcess._spawn, graph_search.tune, []
    def send(where):
        def soon():
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)
        if not sent:  # a second signal would end the process
            sent.append(where)
            threading.Thread(target=soon, daemon=True).start()
    def start(self):
        started(self)
        send("kernels")
    def search(*arguments):
        send("graph")
        while True:  # until the signal comes
            searched(*arguments)
    bench.BenchProcess._spawn, graph_search.tune = start, search
    def children():
        with open(f"/proc/self/task/{os.getpid()}/children") as f:
            return f.read().split()
    def whole():
        assert not children()
        list(records.list_records())
        same_as_ever()
"""


def test_compiling(tmp_path):
    """A step that is interrupted at ever later places trains bit for bit as one that is not."""
    found = [
        run(TRAIN.replace("sys.argv[1]", f'"{after}"'), EINSMITH_CACHE_DIR=str(tmp_path / after))
        for after in ("0", "0.003")
    ]
    for done in found:
        assert done.returncode == 0, done.stderr
    plain, ended = (done.stdout.split(" ", 1) for done in found)
    assert plain[0] == "0" and int(ended[0]) > 3 and plain[1] == ended[1]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("graph", [False, True])
def test_tuning(tmp_path, graph):
    body = (
        TUNE
        + f"""
    x, t = np.ones((4, 8), np.float32), np.zeros(4, np.int64)
    model = es.nn.Linear(8, 3)
    before = {{n: v.copy() for n, v in model.state_dict().items()}}
    step = es.TrainStep(model, F.cross_entropy, es.optim.SGD(lr=0.1), tune={'"graph"' if graph else 3600})
    try:
        step(x, t)
        raise AssertionError("not interrupted")
    except KeyboardInterrupt:
        pass
    for n, v in model.state_dict().items():
        np.testing.assert_array_equal(v, before[n])
    assert step.steps == 0 and sent == [{'"graph"' if graph else '"kernels"'}]
    whole()
    """
    )
    done = run(body, EINSMITH_CACHE_DIR=str(tmp_path), EINSMITH_TUNED="1")
    assert done.returncode == 0, done.stderr


def test_the_release_of_the_store(tmp_path):
    """Ctrl-C where the lock is about to be released leaves it free."""
    body = """
    from einsmith.base.locks import Awaited
    from einsmith.tuning.kernels import database
    def at_release(frame, event, argument):
        if event == "call" and frame.f_code is Awaited.__exit__.__code__:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)
    sys.setprofile(at_release)
    try:
        database.run(lambda link: None, None, write=True)
        raise AssertionError("not interrupted")
    except KeyboardInterrupt:
        pass
    same_as_ever()
    """
    done = run(body, EINSMITH_CACHE_DIR=str(tmp_path), EINSMITH_TUNED="1")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_command_line(tmp_path):
    body = (
        TUNE
        + """
    from einsmith import cli
    from einsmith.cli.main import run as command
    assert command(["tune", "lenet5", "--batch", "4", "--seconds", "3600"]) == 1
    whole()
    """
    )
    done = run(body, EINSMITH_CACHE_DIR=str(tmp_path), EINSMITH_TUNED="1")
    assert done.returncode == 0, done.stderr
    assert "interrupted" in done.stderr


def test_stores_of_undone_runs_are_restored(rng, monkeypatch):
    """Ctrl-C in the middle of it waits for the rest."""
    model = es.nn.Sequential(es.nn.Linear(5, 16), es.nn.Linear(16, 3))
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.Adam(lr=0.1))
    x, y = rng.standard_normal((7, 5)).astype(np.float32), rng.integers(0, 3, 7)
    step(x, y)
    (program,) = [p for _, p in step.compiler.programs.items()]

    class Interrupting(dict):
        def items(self):
            return [(p, _Interrupting(a)) for p, a in super().items()]

    before = {p: a.copy() for p, a in program.bound.items()}
    whole = program.bound
    monkeypatch.setattr(program.memory, "arrays", Interrupting(whole))
    with pytest.raises(KeyboardInterrupt), program.preserve():
        program([x, y])
    assert all(np.array_equal(whole[p], old) for p, old in before.items())


class _Interrupting:
    """An array at whose storing a signal comes."""

    def __init__(self, array):
        self.array, self.flags = array, array.flags

    def copy(self):
        return self.array.copy()

    def __setitem__(self, at, value):
        signal.raise_signal(signal.SIGINT)
        self.array[at] = value


def test_a_state_is_loaded_whole(monkeypatch):
    model = es.nn.Sequential(es.nn.Linear(5, 4), es.nn.Linear(4, 3))
    new = {n: np.full_like(v, 7.0) for n, v in model.state_dict().items()}
    stored = type(model[0].weight.memory).store

    def store(self, array):
        signal.raise_signal(signal.SIGINT)
        stored(self, array)

    monkeypatch.setattr(type(model[0].weight.memory), "store", store)
    with pytest.raises(KeyboardInterrupt):
        model.load_state_dict(new)
    assert all(np.array_equal(v, new[n]) for n, v in model.state_dict().items())


class _Raising:
    """A lock at whose taking a signal comes: when it is taken already."""

    def __init__(self, lock):
        self.lock = lock

    def acquire(self, *args, **kwargs):
        got = self.lock.acquire(*args, **kwargs)
        signal.raise_signal(signal.SIGINT)
        return got

    def __getattr__(self, name):
        return getattr(self.lock, name)


def test_no_lock_stays_taken(monkeypatch):
    plain = threading.RLock()
    with monkeypatch.context() as patch:
        patch.setattr(threading, "RLock", lambda: _Raising(plain))
        lock = locks.Awaited("testing")
    with pytest.raises(KeyboardInterrupt), lock:
        raise AssertionError("taken")
    assert is_free(plain) and threading.get_ident() not in inside()


def test_programs_that_end_anywhere_leave_the_pool_free(rng, handlers):
    """Signals at every place of a short call, also where the lock of the pool is taken and released."""

    class Ended(Exception):
        pass

    def end(number, frame):
        raise Ended

    f = es.jit(lambda x: x * 2)
    x = rng.standard_normal(17)
    f(x)
    handlers(signal.SIGALRM, end)
    for after in rng.uniform(2e-5, 2e-4, 2000):
        with pytest.raises(Ended):
            signal.setitimer(signal.ITIMER_REAL, after)
            while True:
                f(x)
        assert not queues.FIRST.depth and not queues.FIRST.lock._is_owned()
        assert not nested.under_way and not queues.FIRST.callers and not locks.RUNNING.holders
    assert is_free(queues.FIRST.lock)


def test_predictions_that_end_anywhere_leave_no_lock_held(rng, handlers):
    """Signals at every place of a short call that holds the lock of parameters."""

    class Ended(Exception):
        pass

    def end(number, frame):
        raise Ended

    model = es.nn.Linear(3, 2)
    x = rng.standard_normal((5, 3)).astype("f")
    want = model(x)
    guard = model.weight.memory.guard
    handlers(signal.SIGALRM, end)
    for after in rng.uniform(2e-5, 2e-4, 4000):
        with pytest.raises(Ended):
            signal.setitimer(signal.ITIMER_REAL, after)
            while True:
                model(x)
        assert threading.get_ident() not in inside()
        with guard:
            assert guard.mark() == (1, 1, 0)
    assert is_free(guard)
    np.testing.assert_array_equal(model(x), want)


def test_fetching_data(tmp_path):
    """The client that fetches is ended too, and nothing of what it has begun stays."""
    client, work = tmp_path / "npm", tmp_path / "work"
    client.write_text("#!/bin/sh\necho begun > begun.tgz\nexec sleep 3600\n")
    client.chmod(0o755)
    work.mkdir()
    body = f"""
    import glob
    from einsmith.data import fetch
    def send():
        while not glob.glob("{work}/*/begun.tgz"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=send, daemon=True).start()
    try:
        fetch.from_npm("some@1.0", dict)([], [], print)
        raise AssertionError("not interrupted")
    except KeyboardInterrupt:
        pass
    assert not os.listdir("{work}")
    with open(f"/proc/self/task/{{os.getpid()}}/children") as f:
        for child in f.read().split():
            while open(f"/proc/{{child}}/stat").read().split(")")[1].split()[0] != "Z":  # ended: nobody has asked yet
                time.sleep(0.01)
    """
    done = run(body, PATH=f"{tmp_path}:/usr/bin:/bin", TMPDIR=str(work))
    assert done.returncode == 0, done.stderr


def test_a_client_that_is_just_starting_is_ended(tmp_path, monkeypatch):
    """A signal that comes before `Popen` returns: the client runs, and nobody has hold of it yet."""
    started = []

    class Interrupted(subprocess.Popen):
        def _execute_child(self, *args, **kwargs):
            super()._execute_child(*args, **kwargs)
            started.append(self.pid)
            os.kill(os.getpid(), signal.SIGINT)

    client = tmp_path / "npm"
    client.write_text("#!/bin/sh\nexec sleep 3600\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(fetch.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch.from_npm("some@1.0", dict)([], [], print)
    (pid,) = started
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)  # it has ended, and been waited for


@pytest.fixture
def handlers():
    """Set handlers of signals, for the test alone."""
    before = {number: signal.getsignal(number) for number in signals.DEFERRED}
    yield signal.signal
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1])
def test_a_handler_sees_weights_and_counters_of_one_moment(number, rng, handlers, monkeypatch):
    """A signal that comes while a step stores is handled when all is stored: what a handler saves then is whole."""
    model = es.nn.Linear(3, 2)
    step = es.TrainStep(model, es.functional.mse_loss, es.optim.SGD(lr=0.1))
    x, t = rng.standard_normal((5, 3)), rng.standard_normal((5, 2))
    step(x, t)
    ((_, run),) = step.compiler.programs.items()
    plain, seen = run.program.run, []

    def stored_and_signalled():
        status = plain()
        signal.raise_signal(number)
        return status

    def note(number, frame):
        seen.append((step.steps, model.weight.numpy().tobytes()))
        raise TimeoutError

    monkeypatch.setattr(run.program, "run", stored_and_signalled)
    handlers(number, note)
    with pytest.raises(TimeoutError):
        step(x, t)
    assert seen == [(2, model.weight.numpy().tobytes())]
    assert signal.getsignal(number) is note


def test_every_deferred_signal_is_delivered(handlers):
    """Also where the handler of another one raises."""
    came = []

    def note(number, frame):
        came.append(number)
        raise TimeoutError

    order = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM)
    for number in set(order):
        handlers(number, note)
    with pytest.raises(TimeoutError), signals.Deferred():
        for number in order:
            signal.raise_signal(number)
        assert not came
    assert came == list(order)
    assert all(signal.getsignal(number) is note for number in order)


def test_handlers_come_back_whenever_one_of_them_raises(handlers, monkeypatch):
    """While they are exchanged, and while they are given back."""
    came = []

    def note(number, frame):
        came.append(number)
        raise TimeoutError

    set_handler = signals.signal
    for at in range(2 * len(signals.DEFERRED)):
        calls = []

        def raising(number, handler, at=at, calls=calls):
            set_handler(number, handler)
            calls.append(number)
            if len(calls) == at + 1:
                for each in signals.DEFERRED:
                    signal.raise_signal(each)

        for number in signals.DEFERRED:
            handlers(number, note)
        came.clear()
        with monkeypatch.context() as m:
            m.setattr(signals, "signal", raising)
            with pytest.raises(TimeoutError), signals.Deferred():
                pass
        assert all(signal.getsignal(number) is note for number in signals.DEFERRED)
        assert len(calls) >= at + 1


def test_a_handler_that_a_handler_sets_stays(handlers, monkeypatch):
    """A second Ctrl-C that kills, as many programs have it."""

    def first(number, frame):
        handlers(signal.SIGINT, second)

    def second(number, frame):
        pass

    handlers(signal.SIGINT, first)
    monkeypatch.setattr(signals, "is_handling", lambda: True)  # as in the middle of a run
    with signals.Deferred():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is second


def test_steps_that_end_anywhere_leave_no_lock_held(rng, handlers):
    """Signals at every place of a short step, also where its lock is taken and released."""

    class Ended(Exception):
        pass

    def end(number, frame):
        raise Ended

    model = es.nn.Linear(3, 2)
    step = es.TrainStep(model, es.functional.mse_loss, es.optim.SGD(lr=1e-6))
    x, t = rng.standard_normal((5, 3)), rng.standard_normal((5, 2))
    step(x, t)
    handlers(signal.SIGALRM, end)
    for after in rng.uniform(2e-5, 2e-4, 2000):
        with pytest.raises(Ended):
            signal.setitimer(signal.ITIMER_REAL, after)
            while True:
                step(x, t)
        assert not inside()
    assert is_free(step.store.guard)


def test_ctrl_c_ends_a_step_that_waits_for_another_thread(rng):
    model = es.nn.Linear(3, 2)
    step = es.TrainStep(model, es.functional.mse_loss, es.optim.SGD(lr=0.1))
    x, t = rng.standard_normal((5, 3)), rng.standard_normal((5, 2))
    step(x, t)
    main, held, leave = threading.get_ident(), threading.Event(), threading.Event()

    def average():
        with step.store.guard:
            held.set()
            while main not in waits():
                pass
            os.kill(os.getpid(), signal.SIGINT)
            leave.wait(60)

    thread = threading.Thread(target=average)
    thread.start()
    held.wait()
    with pytest.raises(KeyboardInterrupt):
        step(x, t)
    assert not leave.is_set() and thread.is_alive()
    leave.set()
    thread.join()
    assert step.steps == 1 and not waits() and not inside()
