"""Processes that load PyTorch, before Einsmith or after it: all programs run on its threads, in all circumstances."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from einsmith.base.system import sources
from einsmith.runtime import openmp, thread_count

ROOT = Path(__file__).resolve().parents[2]

COMMON = """
import importlib, os, sys, threading
import numpy as np

rng = np.random.default_rng(int(sys.argv[1]))
a, b = rng.standard_normal((257, 33)), rng.standard_normal((33, 67))
wide = rng.standard_normal((64, 17)).astype(np.float32)
labels = rng.integers(0, 5, 64)

def load():
    global es, pool, queues, threads, product, model, step, dynamic
    import einsmith as es
    from einsmith.runtime import pool, queues, thread_count
    thread_count.MAX_WAIT_NS = 1 << 62  # busy as the machine may be
    es.set_threads(2)
    product = es.op("C[i,j] = sum[k](A[i,k] * B[k,j])")
    def network():
        return es.nn.Sequential(es.nn.Linear(17, 2001), es.nn.ReLU(), es.nn.Linear(2001, 5))
    model = network()
    step = es.TrainStep(network(), es.functional.cross_entropy, es.optim.SGD(lr=0.1))
    dynamic = es.TrainStep(network(), es.functional.cross_entropy, es.optim.SGD(lr=0.1), mode="dynamic")

def generations():  # how often workers of our own, and a team, have been told of a launch
    with queues.FIRST.lock:
        held = pool.pool_of(queues.FIRST)
        return tuple(int(s[:4].view(np.int32)[0]) for s in (held.state, held.team_state))

def jitted():
    f = es.jit(lambda a, b: es.functional.tanh(product(a, b)))
    for _ in range(3): np.testing.assert_allclose(f(a, b), np.tanh(a @ b), rtol=1e-9, atol=1e-12)

def operator():
    for _ in range(3): np.testing.assert_allclose(product(a, b), a @ b, rtol=1e-9, atol=1e-12)

def reference(m, x):  # in float64
    s = {k: np.asarray(v, np.float64) for k, v in m.state_dict().items()}
    return np.maximum(x @ s["0.weight"].T + s["0.bias"], 0) @ s["2.weight"].T + s["2.bias"]

def predicted():
    for _ in range(3): np.testing.assert_allclose(model.predict(wide), reference(model, wide), rtol=1e-4, atol=1e-4)

def trained(which=None):
    s = which or step
    out = reference(s.model, wide)
    log = out - np.log(np.exp(out - out.max(1, keepdims=True)).sum(1, keepdims=True)) - out.max(1, keepdims=True)
    want = -log[np.arange(64), labels].mean()
    np.testing.assert_allclose(s(wide, labels), want, rtol=1e-4)

def explored():
    for _ in range(3): trained(dynamic)

JOBS = [jitted, operator, predicted, trained, explored]

def regions():  # of PyTorch's own: its threads are there and awake
    t = torch.from_numpy(a)
    torch.set_num_threads(2)
    for _ in range(5):
        np.testing.assert_allclose(torch.mm(t, torch.from_numpy(b)).numpy(), a @ b, rtol=1e-9, atol=1e-12)
    torch.sigmoid(torch.rand(1 << 18))

def on_team(job):
    own, shared = generations()
    job()
    now = generations()
    assert now[0] == own and now[1] > shared, (job.__name__, own, shared, now)

def on_workers(job):
    own, shared = generations()
    job()
    now = generations()
    assert now[0] > own and now[1] == shared, (job.__name__, own, shared, now)

def in_child(*checks):
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            for check in checks: check()
            code = 0
        finally:
            if code:
                import traceback; traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


@pytest.fixture
def script(torch, rng, tmp_path):
    """Run a script in a process of its own, with a time limit: a program that waits for threads that are not there
    waits for ever."""
    if openmp.find_team() is None:
        pytest.skip("no OpenMP runtime is loaded")

    def run(text: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", COMMON + textwrap.dedent(text), str(rng.integers(1 << 30))], cwd=ROOT, timeout=120,
            capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    return run


@pytest.mark.slow
def test_all_programs_run_on_the_threads_of_pytorch_loaded_before(script):
    script("""
    import torch
    load()
    for _ in range(2):
        for job in JOBS:
            on_team(job)
            regions()
    with queues.FIRST.lock: assert not pool.pool_of(queues.FIRST).workers
    """)


def test_all_programs_run_on_the_threads_of_pytorch_loaded_after(script):
    script("""
    load()
    for job in JOBS: on_workers(job)
    import torch
    for _ in range(2):
        for job in JOBS:
            on_team(job)
            regions()
    with queues.FIRST.lock: assert len(pool.pool_of(queues.FIRST).workers) == 1  # it sleeps
    """)


@pytest.mark.slow
def test_pytorch_that_is_loaded_while_programs_run(script):
    script("""
    load()
    jitted(), trained()
    ended = threading.Event()
    def work():
        global torch
        try:
            import torch
            regions()
        finally: ended.set()
    other = threading.Thread(target=work)
    other.start()
    while not ended.is_set():
        jitted(), trained()
    other.join()
    on_team(jitted), on_team(trained)
    """)


@pytest.mark.slow
def test_numbers_of_threads_of_either_side_change(script):
    script("""
    import torch
    load()
    x = torch.rand(1 << 17)
    want = torch.sigmoid(x.double()).float()
    for ours, theirs in [(2, 2), (2, 1), (1, 2), (3, 2), (2, 3), (5, 1), (1, 5), (2, 2)]:
        es.set_threads(ours)
        torch.set_num_threads(theirs)
        for _ in range(3):
            on_team(jitted) if ours > 1 else jitted()
            on_team(predicted) if ours > 1 else predicted()
            trained()
            torch.testing.assert_close(torch.sigmoid(x), want)
        assert torch.get_num_threads() == theirs
    """)


@pytest.mark.slow
def test_calls_from_several_threads(script):
    script("""
    import torch
    load()
    model.predict(wide)
    failed = []
    def work(jobs):
        try:
            for _ in range(5):
                for job in jobs: job()
        except BaseException as e: failed.append(e)
    for _ in range(2):  # and threads that come after others have ended
        lists = [predicted], [jitted, operator], [trained], [regions]
        others = [threading.Thread(target=work, args=(jobs,)) for jobs in lists]
        for t in others: t.start()
        work([regions, predicted])
        for t in others: t.join()
        assert not failed, failed
    on_team(predicted)
    """)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
class TestForks:
    """The runtime's threads stay in the parent: a child that asked for them would wait for ever."""

    @pytest.mark.slow
    def test_after_programs(self, script):
        script("""
        import torch
        load()
        regions(), jitted(), trained()
        checks = [lambda job=job: on_workers(job) for job in (jitted, operator, predicted, trained)]
        for _ in range(2):
            in_child(*checks, lambda: in_child(*checks))
            on_team(jitted), on_team(trained), regions()
        """)

    @pytest.mark.slow
    def test_after_regions_of_pytorch_alone(self, script):
        """Nobody had looked for PyTorch when the process was forked."""
        script("""
        load()
        import torch
        regions()
        in_child(lambda: on_workers(jitted), lambda: on_workers(trained))
        on_team(jitted)
        """)

    @pytest.mark.slow
    def test_before_pytorch_is_loaded(self, script):
        script("""
        load()
        jitted()
        def alone():
            global torch
            import torch
            regions()
            for job in (jitted, trained): on_team(job); regions()
        in_child(lambda: on_workers(jitted), alone)
        on_workers(jitted)
        """)

    @pytest.mark.slow
    def test_before_einsmith_is_loaded(self, script):
        """A child cannot know what its parent's threads were: it has workers of its own."""
        script("""
        import torch
        regions()
        in_child(load, lambda: on_workers(jitted), lambda: on_workers(trained))
        """)

    @pytest.mark.slow
    def test_before_the_front_end_is_loaded(self, script):
        script("""
        import torch
        load()
        regions()
        def front_end():
            from einsmith.frontends.torch import operator as made
            x = torch.from_numpy(a)
            np.testing.assert_allclose(made(product)(x, torch.from_numpy(b)).numpy(), a @ b, rtol=1e-9, atol=1e-12)
        in_child(front_end, lambda: on_workers(jitted))
        on_team(front_end)
        """)


@pytest.fixture
def undecided(monkeypatch):
    monkeypatch.setattr(thread_count, "team", None)
    monkeypatch.setattr(thread_count, "is_team_final", False)
    monkeypatch.setattr(thread_count, "team_unused_until", 0.0)


def test_a_library_that_is_still_being_imported_is_looked_for_again(undecided, monkeypatch):
    team = openmp.Team(1, 2)
    monkeypatch.setattr(openmp, "find_team", lambda: team)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.delitem(sys.modules, openmp.LIBRARY, raising=False)
    assert thread_count.current_team() is None and not thread_count.is_team_final
    monkeypatch.setitem(sys.modules, openmp.LIBRARY, ModuleType(openmp.LIBRARY))
    assert thread_count.current_team() is team and thread_count.is_team_final
    monkeypatch.setattr(openmp, "find_team", lambda: None)
    assert thread_count.current_team() is team


def test_a_library_without_openmp_is_looked_for_once(undecided, monkeypatch):
    looks = []
    monkeypatch.setattr(openmp, "runtimes", lambda: looks.append(1) or [])
    monkeypatch.setitem(sys.modules, openmp.LIBRARY, ModuleType(openmp.LIBRARY))  # has no file
    assert thread_count.current_team() is None and thread_count.current_team() is None
    assert thread_count.is_team_final and len(looks) == 1


def test_runtimes_of_pytorch_come_first(monkeypatch, tmp_path):
    maps = """7f0-7f1 r-xp 00000000 08:01 12 {other}/libgomp-24e2.so.1.0.0
7f1-7f2 r--p 00000000 08:01 12 {other}/libgomp-24e2.so.1.0.0
7f2-7f3 r-xp 00000000 08:01 13 /usr/lib/libgomples.so.1
7f3-7f4 rw-p 00000000 00:00 0
7f4-7f5 r-xp 00000000 08:01 14 {torch}/lib/libgomp.so.1
7f5-7f6 r-xp 00000000 08:01 15 /opt/intel of old/libiomp5.so
"""
    other, torch = tmp_path / "sklearn.libs", tmp_path / "torch"
    module = ModuleType(openmp.LIBRARY)
    module.__file__ = str(torch / "_C.so")
    monkeypatch.setitem(sys.modules, openmp.LIBRARY, module)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/maps").write_text(maps.format(other=other, torch=torch))
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    assert openmp.runtimes() == [
        f"{torch}/lib/libgomp.so.1", f"{other}/libgomp-24e2.so.1.0.0", "/opt/intel of old/libiomp5.so"
    ]  # fmt: skip
