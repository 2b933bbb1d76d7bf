"""A process that forks while its other threads train, call, compile, save and evaluate: child and parent go on."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
ROOT = Path(__file__).resolve().parents[2]

RARE = ("new", "called", "saved", "evaluated")
"""What another thread is busy with in the slow run."""
COMMON = """
import faulthandler, itertools, os, signal, sys, threading, time
import numpy as np, numpy.testing  # an import under way in another thread stays so in a child: Python's own
import einsmith as es
from einsmith import nn
from einsmith.base import locks

REPEATS = 4
faulthandler.enable()  # a child that hangs is ended by SIGABRT, and says where it was
ended, failed, busy = threading.Event(), [], []
numbers = itertools.count()
rng = np.random.default_rng(0)
x, t = rng.standard_normal((13, 17)).astype(np.float32), rng.integers(0, 5, 13)
model = nn.Sequential(nn.Linear(17, 9), nn.ReLU(), nn.Linear(9, 5))
step = es.TrainStep(model, es.functional.cross_entropy, es.optim.Adam(lr=1e-3), threads=2)
product = es.op("C[i,j] = sum[k](A[i,k] * B[k,j])")
a, b = rng.standard_normal((5, 33)), rng.standard_normal((33, 7))
f = es.jit(lambda a, b: product(a, b) + 1)
f(a, b), step(x, t), step.evaluate([(x, t)])

def new():  # a formula that no cache holds
    n = f"{os.getpid()}{next(numbers)}"
    got = es.op(f"y[i] = sum[k](A[i,k] * A[i,k]) + {n}.0")(a)
    np.testing.assert_allclose(got, (a * a).sum(1) + float(n))

def called():
    np.testing.assert_allclose(f(a, b), a @ b + 1)
    big = np.ones((600, 700), np.float32)  # of memory that is kept for the next result
    assert (es.op("y[i,j] = x[i,j] + 1")(big) == 2).all()

def trained():
    before = step.steps
    for _ in range(3):
        assert np.isfinite(step(x, t))
    assert step.steps >= before + 3

def own():  # a step of its own, as a child would make one
    m = nn.Linear(17, 5)
    s = es.TrainStep(m, es.functional.cross_entropy, es.optim.SGD(lr=0.1))
    first = s(x, t)
    for _ in range(5): last = s(x, t)
    assert last < first

def evaluated():
    assert np.isfinite(step.evaluate([(x, t)] * 3)["loss"])

def saved():
    path = f"{sys.argv[1]}/step-{os.getpid()}-{threading.get_ident()}"
    es.save(step, path)
    made = nn.Sequential(nn.Linear(17, 9), nn.ReLU(), nn.Linear(9, 5))
    assert es.load(path, model=made).steps > 0

def work(jobs):
    def run():
        while not ended.is_set():
            for job in jobs:
                try: job()
                except BaseException as e:
                    failed.append(e); raise
            busy.append(1)
    return run

def child(jobs, deeper=0):
    code = 1
    try:
        for job in jobs: job()
        assert model.training
        if deeper:
            inner = os.fork()
            if inner == 0: child(jobs, deeper - 1)
            assert os.waitpid(inner, 0)[1] == 0
        code = 0
    finally:
        if code:
            import traceback; traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)

def forked(threads, jobs, deeper=0, repeats=REPEATS):
    running = [threading.Thread(target=work(w), daemon=True) for w in threads]
    for r in running: r.start()
    for n in range(repeats):
        time.sleep(0.002 * (n % 7))
        pid = os.fork()
        if pid == 0: child(jobs, deeper)
        end = time.monotonic() + 60
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done: break
            if time.monotonic() > end:
                os.kill(pid, signal.SIGABRT); os.waitpid(pid, 0)
                print("hang", n, flush=True); os._exit(3)
            time.sleep(0.002)
        assert status == 0, (n, status)
    here = len(busy)
    end = time.monotonic() + 60
    while len(busy) < here + len(threads) and time.monotonic() < end: time.sleep(0.01)
    assert len(busy) >= here + len(threads), "the parent's threads stand still"
    ended.set()
    for r in running: r.join(60); assert not r.is_alive()
    for job in jobs: job()
    assert not failed, failed
    print("fine", flush=True)
    os._exit(0)
"""


def script(text: str, folder: Path, timeout: float = 300, **environment: str) -> str:
    cache = {"EINSMITH_CACHE_DIR": str(folder / "cache"), "EINSMITH_CALIBRATE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", COMMON + textwrap.dedent(text), str(folder)], cwd=ROOT, timeout=timeout,
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT), **cache, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("busy", ["trained", *(pytest.param(x, marks=pytest.mark.slow) for x in RARE)])
def test_a_child_forked_while_threads_work(busy, tmp_path):
    jobs = "[called, new, trained, own, evaluated]"
    other = "called" if busy == "evaluated" else busy  # `evaluate` sets the model's mode: by one thread at a time
    assert script(f"forked([[{busy}], [{other}]], {jobs})", tmp_path).split() == ["fine"]


@pytest.mark.parametrize("repeats", [4, pytest.param(10, marks=pytest.mark.slow)])
def test_all_at_once_and_nested(repeats, tmp_path):
    jobs = "[called, new, trained, saved]"
    threads = "[[trained], [called, new], [evaluated, saved]]"
    assert script(f"forked({threads}, {jobs}, deeper=2, repeats={repeats})", tmp_path).split() == ["fine"]


@pytest.mark.slow
def test_the_fork_context_of_multiprocessing(tmp_path):
    out = script(
        """
    import multiprocessing
    context = multiprocessing.get_context("fork")
    def task(n):
        called(); new()
        return float(f(a * n, b).sum())
    running = [threading.Thread(target=work(w), daemon=True) for w in ([trained], [new])]
    for r in running: r.start()
    for _ in range(REPEATS // 2):
        with context.Pool(2) as pool:
            got = pool.map_async(task, range(4)).get(timeout=60)
        np.testing.assert_allclose(got, [((a * n) @ b + 1).sum() for n in range(4)])
    ended.set()
    for r in running: r.join(60)
    assert not failed
    print("fine")
    """,
        tmp_path,
    )
    assert out.split() == ["fine"]


@pytest.mark.slow
def test_data_loaders_of_torch(tmp_path, torch):
    out = script("""
    import torch
    from einsmith.frontends.torch import operator
    op = operator(es.op("y[i] = x[i] * x[i] + 1"))
    class Data(torch.utils.data.Dataset):
        def __len__(self): return 12
        def __getitem__(self, n):
            v = torch.arange(5.0 + n % 3)
            assert torch.equal(op(v), v * v + 1)
            called()
            g = operator(es.op(f"y[i] = x[i] + {os.getpid()}{n}.0"))
            return float(g(v)[0])
    op(torch.arange(5.0))
    def register():
        operator(es.op(f"y[i] = x[i] * {os.getpid()}{next(numbers)}.0"))(torch.ones(3))
    running = [threading.Thread(target=work(w), daemon=True) for w in ([trained], [new, register])]
    for r in running: r.start()
    for _ in range(REPEATS // 4):
        loader = torch.utils.data.DataLoader(
            Data(), num_workers=2, batch_size=3, multiprocessing_context="fork", timeout=60)
        assert sum(len(batch) for batch in loader) == 12
    ended.set()
    for r in running: r.join(60)
    assert not failed
    print("fine")
    """, tmp_path)  # fmt: skip
    assert out.split() == ["fine"]


def test_a_child_sees_weights_between_two_steps(tmp_path):
    """Every weight moves by the same amount in every step, so a child that sees two amounts was forked inside one."""
    out = script(
        """
    weights = [nn.Parameter(np.zeros((300, 401), np.float32)) for _ in range(6)]
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            for n, w in enumerate(weights): setattr(self, f"w{n}", w)
        def forward(self, x):
            return sum((getattr(self, f"w{n}") * x).sum() for n in range(6))
    steady = es.TrainStep(Sum(), lambda out, t: out + 0 * t.sum(), es.optim.SGD(lr=1.0), threads=1)
    one, zero = np.ones((300, 401), np.float32), np.zeros(1, np.float32)
    steady(one, zero)
    def run(): steady(one, zero)
    def seen():
        values = {float(v) for w in weights for v in np.unique(w.data)}
        assert values == {-float(steady.steps)}, (values, steady.steps)
    forked([[run]], [seen], repeats=20)
    """,
        tmp_path,
    )
    assert out.split() == ["fine"]


def test_half_done_work_of_a_long_holder_is_rejected_and_that_of_the_forking_thread_is_not(tmp_path):
    out = script(
        """
    from einsmith.tracing import trace
    with step.store.guard, trace.LOCK:
        pid = os.fork()
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
    if pid == 0: child([called, new, trained])
    trained()

    locks.PATIENCE = 0.2
    inside, leave = threading.Event(), threading.Event()
    def hold():
        with step.store.guard:
            inside.set(); leave.wait(200)
    holder = threading.Thread(target=hold); holder.start(); inside.wait()
    def refused():
        try: step(x, t)
        except es.EinsmithError as e: assert "forked while another thread was using parameters or state" in str(e), e
        else: raise AssertionError("it trained")
    pid = os.fork()  # which does not wait for the holder's end: the step would not be refused then
    if pid == 0: child([called, new, own, refused])
    assert not leave.is_set() and holder.is_alive()
    assert os.waitpid(pid, 0)[1] == 0
    leave.set(); holder.join()
    trained()
    pid = os.fork()
    if pid == 0: child([trained])
    assert os.waitpid(pid, 0)[1] == 0
    print("fine")
    """,
        tmp_path,
    )
    assert out.split() == ["fine"]


def test_workers_that_compile_hear_nothing_of_a_child(tmp_path):
    """Many kernels are compiled by worker processes, whose pipes a child inherits."""
    out = script(
        """
    from einsmith.codegen.cache import build as worker
    worker.PARALLEL_FROM, worker.count_workers = 2, lambda kernels: 1 if kernels > 1 else 0
    def many():
        n = f"{os.getpid()}{next(numbers)}"
        x = np.ones((7, 5))
        g = es.jit(lambda x: [es.op(f"y[i] = sum[k](x[i,k]) * {k}.0 + {n}")(x).sum() for k in range(1, 6)])
        np.testing.assert_allclose(g(x), [7 * (5 * k + float(n)) for k in range(1, 6)])
    forked([[many]], [many, called])
    """,
        tmp_path,
    )
    assert out.split() == ["fine"]
