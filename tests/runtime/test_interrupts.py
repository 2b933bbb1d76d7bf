"""Ctrl-C ends long runs, and what comes after is as if they had not been.

Most of these run in a process of their own, which would take hours if nobody looked at signals; it is sent one when the
native program runs. How long it may take to end is no claim about speed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import einsmith as es
from einsmith.codegen.cache.native import compile_functions
from einsmith.codegen.llvm import signal_checks
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.loopnest.nest import Builder
from einsmith.ir.nodes import Leaf
from einsmith.runtime import interrupts
from einsmith.runtime.program import Program
from einsmith.runtime.steps import BeginLoop, EndLoop, RunLaunch

from .test_program import TARGET

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 120
"""Seconds after which a process counts as one that cannot be interrupted."""

BEGIN = """
import os, signal, sys, threading, time
import numpy as np
import einsmith as es
import einsmith.functional as F
from einsmith.runtime import interrupts

def signal_in_a_run(number=signal.SIGINT):
    def wait():
        while not interrupts.WORDS[0]:
            time.sleep(0.001)
        print("running", flush=True)
        os.kill(os.getpid(), number)
    threading.Thread(target=wait, daemon=True).start()

def interrupted(f, error=KeyboardInterrupt, number=signal.SIGINT):
    signal_in_a_run(number)
    try:
        f()
    except error:
        return
    raise AssertionError("not interrupted")

def endless(points=10**14):  # no less for those who look at each point
    return es.op("y[i] = sum[j](sin(x[i]*j))", extents={"j": points})

def same_as_ever():  # the pool, its locks and caches are sound, in other threads too
    a = np.random.default_rng(0).standard_normal((61, 67))
    found = []
    for _ in range(2):
        t = threading.Thread(target=lambda: found.append(F.matmul(es.jit(lambda v: v*2)(a), a.T)))
        t.start()
        t.join()
    found.append(F.matmul(2*a, a.T))
    for f in found:
        np.testing.assert_allclose(f, 2*a @ a.T, rtol=1e-10, atol=1e-10)
    short = endless(1001)
    x = np.array([0.3, 1.7])
    want = np.sin(x[:, None]*np.arange(1001)).sum(1)
    np.testing.assert_allclose(short(x), want, rtol=1e-9, atol=1e-9)
    assert list(interrupts.WORDS)[:1] + list(interrupts.WORDS)[4:6] == [0, 0, 0]
"""

CASES = {
    "an operator whose one task is long": """
        es.set_threads(1)
        interrupted(lambda: endless()(np.ones(1)))
        same_as_ever()
    """,
    "an operator on two threads": """
        es.set_threads(2)
        f = endless()
        for _ in range(2):
            interrupted(lambda: f(np.ones(1)))
            same_as_ever()
    """,
    "an operator of many tasks": """
        es.set_threads(2)
        f = endless(10**9)
        interrupted(lambda: f(np.linspace(0, 1, 100_003)))
        same_as_ever()
    """,
    "a large product": """
        a = np.zeros((60, 8), np.float32)
        f = es.op("y[i, j] = sum[k, l, m](tanh(x[i, k]*m + l)*x[j, k])", extents={"l": 10**6, "m": 10**6})
        interrupted(lambda: f(a))
        same_as_ever()
    """,
    "a jitted function": """
        f = endless()
        interrupted(lambda: es.jit(lambda x: f(x).sum() + 1)(np.ones(3)))
        same_as_ever()
    """,
    "a gradient": """
        f = endless()
        interrupted(lambda: es.grad(lambda x: f(x).sum())(np.ones(3)))
        same_as_ever()
    """,
    "a prediction and an evaluation": """
        class Slow(es.nn.Module):
            def __init__(self):
                self.own = es.nn.Linear(3, 2)
            def forward(self, x):
                return endless()(self.own(x)[0])
        x = np.ones((4, 3), np.float32)
        interrupted(lambda: Slow().predict(x))
        same_as_ever()
        step = es.TrainStep(Slow(), lambda y, t: (y.sum() - t.sum())**2, es.optim.SGD(lr=0.1))
        interrupted(lambda: step.evaluate([(x, np.ones(4, np.float32))], metrics={}))
        same_as_ever()
    """,
    "training": """
        x, t = np.random.default_rng(1).standard_normal((2, 8, 3)).astype(np.float32)
        def trained(slow):
            es.manual_seed(3)
            model = es.nn.Sequential(es.nn.Linear(3, 16), es.nn.BatchNorm1d(16), es.nn.Linear(16, 3))
            loss = {"quick": F.mse_loss, "slow": lambda y, t: F.mse_loss(y, t) + endless()(y[0]).sum()}
            step = es.TrainStep(model, loss["quick"], es.optim.Adam(lr=0.1))
            losses = [step(x, t), step(x, t)]
            if slow:
                before = {n: v.copy() for n, v in model.state_dict().items()}
                step.loss = loss["slow"]
                for run in (lambda: step(x, t), lambda: step.fit([(x, t)]*3, 1, progress=False)):
                    interrupted(run)
                    assert step.steps == 2 and step.position == 0
                    for n, v in model.state_dict().items():
                        np.testing.assert_array_equal(v, before[n])
                step.loss = loss["quick"]
            return losses + [step(x, t) for _ in range(3)]
        assert trained(True) == trained(False)
        same_as_ever()
    """,
    "a handler of one's own that raises": """
        def late(number, frame):
            raise TimeoutError
        signal.signal(signal.SIGALRM, late)
        interrupted(lambda: endless()(np.ones(1)), TimeoutError, signal.SIGALRM)
        same_as_ever()
    """,
    "handlers that do not raise and run programs": """
        came = []
        double = es.op("y[i] = 2*x[i]")
        def note(number, frame):
            came.append((double(np.array([3.0]))[0], np.float64(1e-310)*1.0 > 0))  # which is no zero out here
            if number == signal.SIGALRM and waiting:
                signal.setitimer(signal.ITIMER_REAL, 0.02)  # not before: it would interrupt this handler's program
        waiting = [True]
        for number in (signal.SIGINT, signal.SIGALRM):
            signal.signal(number, note)
        f = endless(10**7)
        x = np.array([0.3, 1.7, 0.9])
        want = f(x)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        signal_in_a_run()
        seen = []
        while len(seen) < 5:
            np.testing.assert_array_equal(f(x), want)
            seen.append(len(came))
        waiting.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert len(came) > 2 and set(came) == {(6.0, True)}
        for number in (signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGALRM else signal.default_int_handler)
        same_as_ever()
    """,
}


def run(body: str, **env: str) -> subprocess.CompletedProcess:
    script = BEGIN + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env={**os.environ, **env}, timeout=MINUTES, text=True,
        capture_output=True,
    )  # fmt: skip


@pytest.mark.thinned(5)
@pytest.mark.parametrize("case", CASES)
def test_ctrl_c_ends(case):
    done = run(CASES[case])
    assert done.returncode == 0, done.stderr
    assert "running" in done.stdout


def test_python_ends_as_after_ctrl_c():
    """Nothing catches it: the process dies of the signal, as others do."""
    done = run("signal_in_a_run()\nendless()(np.ones(1))")
    assert done.returncode == -signal.SIGINT and "KeyboardInterrupt" in done.stderr


def counting(buffer: np.ndarray, task: bool) -> RunLaunch:
    """buffer[0] += 1"""
    b = Builder("counting", 1)
    b.store(b.add(b.load(b.buffers[0], 0, "i64"), b.const(1)), b.buffers[0], 0)
    (address,) = compile_functions([b.finish()], TARGET).values()
    return RunLaunch(address, 1 + task, [buffer.ctypes.data])


@pytest.mark.parametrize("threads", [1, 2])
def test_between_the_turns_of_a_loop(threads):
    """Steps so short that none looks itself, in a loop of years."""

    class Ended(Exception):
        pass

    def end(number, frame):
        raise Ended

    data = np.zeros(1, np.int64)
    program = Program([BeginLoop(2**62, False, [], []), counting(data, False), EndLoop()], threads, seconds=1e9)
    before = signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Ended):
            program.run()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert data[0] > 0
    again = Program([BeginLoop(1000, False, [], []), counting(data, False), EndLoop()], threads, seconds=1e9)
    at = int(data[0])
    assert again.run() == 0 and data[0] == at + 1000


def test_persistent_stores_are_completed():
    """From its first step that stores what stays, a run goes on to its end, and the handler waits for that."""
    came = []
    data = np.zeros(1, np.int64)

    def note(number, frame):
        came.append(int(data[0]))

    loop = [BeginLoop(2 * 10**7, False, [], []), counting(data, False), EndLoop()]
    before = signal.signal(signal.SIGALRM, note)
    try:
        for commit, during in ((None, True), (1, False)):
            came.clear()
            data[0] = 0
            program = Program(loop, 1, seconds=1e9, commit=commit)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            assert program.run() == 0
            assert data[0] == 2 * 10**7 and len(came) == 1
            assert (came[0] < 2 * 10**7) == during
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_training_step_stores_nothing_before_its_commit(rng):
    """Its parameters, state and buffers are as they were when the run stops there."""
    model = es.nn.Sequential(es.nn.Linear(5, 16), es.nn.BatchNorm1d(16), es.nn.ReLU(), es.nn.Linear(16, 3))
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.Adam(lr=0.1), ema=0.9, clip_grad_norm=1.0)
    x, y = rng.standard_normal((7, 5)).astype(np.float32), rng.integers(0, 3, 7)
    step(x, y)
    (run,) = [run for _, run in step.compiler.programs.items()]
    whole = run.program
    assert 0 < whole._commit < len(whole.steps)
    leaves = [p for p, _ in run.graph.updates]
    assert all(isinstance(p, Leaf) for p in leaves)
    before = {p: run.bound[p].copy() for p in leaves}
    run([x, y])  # places the inputs in the table
    for p, old in before.items():
        run.bound[p][...] = old
    words = whole._record.words
    words[1] = whole._commit  # of the steps
    whole.run()
    assert all(np.array_equal(run.bound[p], old) for p, old in before.items())
    words[1] = len(whole.steps)
    whole.run()
    assert not all(np.array_equal(run.bound[p], old) for p, old in before.items())


def test_short_programs_are_not_watched():
    """No call of theirs is the slower."""
    f = es.op("y[i] = 2*x[i]")
    f(np.ones(17))
    seen = []
    told = interrupts.find_handler
    try:
        interrupts.find_handler = lambda: seen.append(1) or told()
        f(np.ones(17))
    finally:
        interrupts.find_handler = told
    assert not seen


def test_only_long_tasks_look_themselves():
    b = Builder("long", 1)
    with b.loop(0, 10**12) as row:
        b.store(b.add(b.load(b.buffers[0], 0, "i64"), row.var), b.buffers[0], 0)
        with b.loop(0, 3):
            b.store(b.const(1), b.buffers[0], 1)
    f = b.finish()
    assert signal_checks.CHECK_FUNCTION not in emit_module([f], TARGET)
    f.checks_signals = True
    assert emit_module([f], TARGET).count(f"call i32 @{signal_checks.CHECK_FUNCTION}") == 1
