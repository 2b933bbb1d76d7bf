"""Programs and the pool: order, checks, threads, denormals, fork, exit."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from einsmith.base import environment
from einsmith.base.errors import KnobError
from einsmith.codegen.cache.native import compile_functions
from einsmith.codegen.entry import entry_program
from einsmith.codegen.llvm import jit
from einsmith.codegen.loopnest.nest import Builder, Function
from einsmith.runtime import buffers, pool, queues, thread_count
from einsmith.runtime.program import HOLDING_BELOW, LEAST_SHARED, Program
from einsmith.runtime.steps import CheckFinite, CheckZero, Notify, RunLaunch
from einsmith.runtime.thread_count import get_threads, set_threads


@pytest.fixture(autouse=True)
def own_workers(monkeypatch):
    """Not the threads of another library that the process has loaded (tests/runtime/test_team.py)."""
    monkeypatch.setattr(thread_count, "team", None)
    monkeypatch.setattr(thread_count, "is_team_final", True)


CPU, FEATURES, TRIPLE = jit.host()
TARGET = SimpleNamespace(cpu=CPU, features=FEATURES, triple=TRIPLE, vector_bytes=32)
ROOT = Path(__file__).resolve().parents[2]


def address_of(f: Function) -> int:
    return compile_functions([f], TARGET)[f.name]


def increment() -> int:
    """buffer[16 * task] += 1"""
    b = Builder("increment", 1)
    at = b.mul(b.task, b.const(16))
    b.store(b.add(b.load(b.buffers[0], at, "i64"), b.const(1)), b.buffers[0], at)
    return address_of(b.finish())


def affine(scale: int) -> int:
    """buffer[task] = buffer[task] * scale + 1: the order of launches shows in the result."""
    b = Builder(f"affine{scale}", 1)
    x = b.load(b.buffers[0], b.task, "i64")
    b.store(b.add(b.mul(x, b.const(scale)), b.const(1)), b.buffers[0], b.task)
    return address_of(b.finish())


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_every_task_runs_once_and_launches_run_in_order(threads, rng):
    for tasks in (0, 1, 2, 3, 7, 64, 1001):
        data = rng.integers(0, 5, max(tasks, 1))
        scales = [int(s) for s in rng.integers(1, 4, 12)]
        program = Program([RunLaunch(affine(s), tasks, [data.ctypes.data]) for s in scales], threads)
        want = data.copy()
        for s in scales:
            want[:tasks] = want[:tasks] * s + 1
        assert program.run() == 0
        np.testing.assert_array_equal(data, want)


def test_uneven_tasks_are_shared_out():
    """One thread's share is all the work: the others take from it, and every task still runs once."""
    b = Builder("uneven", 1)
    with b.if_(b.op("lt", b.task, b.const(50))):
        with b.loop(0, 20000, init=[b.const(0)]) as row:
            row.next = [b.add(b.mul(row.carried[0], b.const(3)), row.var)]
        at = b.mul(b.task, b.const(8))
        b.store(b.add(b.load(b.buffers[0], at, "i64"), b.op("max", row.results[0], b.const(-1))), b.buffers[0], at)
    data = np.zeros(800, np.int64)
    program = Program([RunLaunch(address_of(b.finish()), 100, [data.ctypes.data])], 4)
    program.run()
    first = data.copy()
    for k in range(2, 20):
        program.run()
        np.testing.assert_array_equal(data, first * k)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_ten_thousand_runs(threads):
    data = np.zeros((8, 16), np.int64)
    program = Program([RunLaunch(increment(), n, [data.ctypes.data]) for n in (8, 1, 3)], threads)
    for _ in range(10_000):
        assert program.run() == 0
    assert data[:, 0].tolist() == [30_000, 20_000, 20_000] + [10_000] * 5


def test_workers_park_and_wake_again():
    data = np.zeros((2, 16), np.int64)
    program = Program([RunLaunch(increment(), 2, [data.ctypes.data])] * 3, 2)
    program.run()
    for pause in (0.0, 0.00004, 0.00006, 0.001, 0.02):
        for _ in range(30):
            time.sleep(pause)
            program.run()
    assert data[:, 0].tolist() == [453, 453]
    with queues.FIRST.lock:
        worker = pool.pool_of(queues.FIRST).workers[0]
    state = Path(f"/proc/self/task/{worker.native_id}/stat")
    while state.read_text().rpartition(")")[2].split()[0] != "S":  # a worker that watches for work parks in the end
        time.sleep(0.001)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux tells and moves threads' processors")
@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: ())(0)) < 2, reason="needs two processors")
def test_a_worker_leaves_the_processor_of_the_caller():
    allowed = os.sched_getaffinity(0)
    data = np.zeros(64, np.int64)
    program = Program([RunLaunch(increment(), 4, [data.ctypes.data])] * 128, 2)
    program.run()
    with queues.FIRST.lock:
        held = pool.pool_of(queues.FIRST)
        worker = held.workers[0].native_id
        places = held.state[entry_program.WORDS["places"] :].view(np.int32)
    assert worker is not None
    here = {min(allowed)}
    try:
        os.sched_setaffinity(0, here)  # the calling thread alone
        os.sched_setaffinity(worker, here)
        for _ in range(200_000):
            program.run()
            if places[1] == min(allowed):
                break
        assert places[0] == places[1] == min(allowed)
        os.sched_setaffinity(worker, allowed)
        for _ in range(200_000):
            program.run()
            if places[1] != min(allowed):
                break
        assert places[0] == min(allowed) != places[1]
        assert os.sched_getaffinity(worker) == allowed
    finally:
        os.sched_setaffinity(0, allowed)


def test_scratch_is_the_threads_own():
    """Tasks fill their scratch, wait, and sum it: another thread's writes would show."""
    b = Builder("scratch", 1)
    mine = b.alloc("i64", 64)
    with b.loop(0, 200):
        with b.loop(0, 64) as row:
            b.store(b.add(row.var, b.task), mine, row.var)
    with b.loop(0, 64, init=[b.const(0)]) as row:
        row.next = [b.add(row.carried[0], b.load(mine, row.var, "i64"))]
    b.store(row.results[0], b.buffers[0], b.task)
    f = b.finish()
    assert f.scratch_bytes == 512
    for threads in (1, 2, 4):
        out = np.zeros(40, np.int64)
        program = Program([RunLaunch(address_of(f), 40, [out.ctypes.data])], threads, f.scratch_bytes)
        assert buffers.is_aligned(program.scratch)
        for _ in range(50):
            program.run()
        assert out.tolist() == [64 * t + 2016 for t in range(40)]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_failed_check_stops_what_follows(threads):
    flag, loss, wide = np.zeros(1, np.int32), np.ones(1, np.float32), np.ones(1, np.float64)
    data = np.zeros((4, 16), np.int64)
    step = RunLaunch(increment(), 4, [data.ctypes.data])
    program = Program(
        [
            step,
            CheckZero(flag.ctypes.data, 3),
            step,
            CheckFinite(loss.ctypes.data, "f32", 4),
            step,
            CheckFinite(wide.ctypes.data, "f64", 5),
            step,
        ],
        threads,
    )
    assert program.run() == 0 and data[0, 0] == 4
    for bad in (np.nan, np.inf, -np.inf):
        wide[0] = bad
        assert program.run() == 5
        wide[0] = np.finfo(np.float64).max
        loss[0] = bad
        assert program.run() == 4
        loss[0] = np.finfo(np.float32).max
    assert data[:, 0].tolist() == [19] * 4
    flag[0] = -7
    assert program.run() == 3 and data[0, 0] == 20
    status, seconds = program.run_timed()
    assert status == 3 and seconds.shape == (7,) and not seconds[2:].any() and seconds[0] > 0


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_recorded_run_says_which_thread_was_at_work_and_when(threads):
    flag, data = np.zeros(1, np.int32), np.zeros((4096, 16), np.int64)
    step = RunLaunch(increment(), len(data), [data.ctypes.data])
    alone = RunLaunch(increment(), 1, [data.ctypes.data])
    program = Program([step, CheckZero(flag.ctypes.data, 3), alone, step, CheckZero(flag.ctypes.data, 4)], threads)
    program.run()
    before = time.perf_counter_ns()
    status, times = program.run_recorded()
    after = time.perf_counter_ns()
    assert status == 0 and data[0, 0] == 6 and data[1, 0] == 4
    starts = times.starts[:, 0]
    ends = starts + times.seen
    if sys.platform == "linux":  # elsewhere the two clocks may have other origins
        assert before <= starts[0] and ends[-1] <= after
    assert (ends[:-1] <= starts[1:]).all()  # steps run in order
    assert times.busy.shape == (5, threads) and (times.busy >= 0).all()
    assert not times.busy[[1, 2, 4]].any()  # the calling thread runs these by itself
    if threads > 1:
        assert times.busy[[0, 3]].any(axis=1).all() and (times.busy <= times.seen[:, None]).all()
        worked = times.busy > 0
        assert (times.starts[worked] >= np.broadcast_to(starts[:, None], worked.shape)[worked]).all()
        assert (times.starts + times.busy <= ends[:, None])[worked].all()
    else:
        assert not times.busy.any()
    flag[0] = 1
    status, times = program.run_recorded()
    assert status == 3 and times.starts[0, 0] and not times.starts[2:].any() and not times.seen[2:].any()
    assert program.run() == 3  # and runs that are not recorded stay as they were


def test_pointers_and_functions_can_be_swapped():
    one, two = np.zeros(4, np.int64), np.zeros(4, np.int64)
    program = Program([RunLaunch(affine(2), 4, [one.ctypes.data])], 2)
    program.run()
    program.table[program.slots[0, 0]] = two.ctypes.data
    program.table[program.slots[0, "function"]] = affine(5)
    program.run()
    program.run()
    assert one.tolist() == [1] * 4 and two.tolist() == [6] * 4


@pytest.mark.skipif("x86" not in TRIPLE and "aarch64" not in TRIPLE, reason="no flush mode is known here")
def test_denormals_are_flushed_inside_and_only_there():
    b = Builder("halve", 2)
    half = b.const(0.5, "f32")
    b.store(b.mul(b.load(b.buffers[0], b.task, "f32"), half), b.buffers[1], b.task)
    small = np.full(64, np.finfo(np.float32).tiny, np.float32)
    out = np.ones(64, np.float32)
    f = address_of(b.finish())
    bad = np.full(1, np.nan, np.float32)
    for threads in (1, 2):
        for steps in ([], [CheckFinite(bad.ctypes.data, "f32", 1)]):
            out[:] = 1
            Program([RunLaunch(f, 64, [small.ctypes.data, out.ctypes.data]), *steps], threads).run()
            assert not out.any()
            assert (small * np.float32(0.5)).all() and np.float64(5e-324) * 1.0 > 0  # the caller's register is its own
    pointers = (ctypes.c_void_p * 2)(small.ctypes.data, out.ctypes.data)
    direct = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(f)
    direct(ctypes.addressof(pointers), None, 0)
    assert out[0] > 0


def test_programs_of_several_threads_take_turns():
    data = np.zeros((4, 16), np.int64)
    programs = [Program([RunLaunch(increment(), 4, [data.ctypes.data])] * 5, n) for n in (2, 3, 1)]
    callers = [threading.Thread(target=lambda p=p: [p.run() for _ in range(300)]) for p in programs]
    for c in callers:
        c.start()
    for c in callers:
        c.join(60)
        assert not c.is_alive()
    assert data[:, 0].tolist() == [3 * 300 * 5] * 4


def test_a_nested_run_is_inline(monkeypatch):
    data = np.zeros((4, 16), np.int64)
    program = Program([RunLaunch(increment(), 4, [data.ctypes.data])], 4)
    with queues.FIRST.lock:
        monkeypatch.setattr(queues.FIRST, "depth", 1)
        assert program.run() == 0
    assert data[:, 0].tolist() == [1] * 4


def test_stopping_the_pool_is_harmless():
    data = np.zeros((4, 16), np.int64)
    program = Program([RunLaunch(increment(), 4, [data.ctypes.data])], 3)
    pool.stop()
    others = set(threading.enumerate())  # among them workers of queues that other tests have exchanged
    for _ in range(20):
        program.run()
        pool.stop()
        assert not [t for t in threading.enumerate() if t.name.startswith("einsmith-") and t not in others]
    assert data[0, 0] == 20


def test_steps_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="code 0"):
        Program([CheckZero(0, 0)], 1)
    with pytest.raises(ValueError, match="tasks"):
        Program([RunLaunch(0, -1, [])], 1)
    with pytest.raises(ValueError, match="threads"):
        Program([], 0)
    with pytest.raises(ValueError, match="4096"):
        set_threads(0)


_SCRIPT = """
import os, sys, time, threading
import numpy as np
from tests.runtime.test_program import *
data = np.zeros((8, 16), np.int64)
program = Program([RunLaunch(increment(), 8, [data.ctypes.data])] * 3, 3)
for _ in range(100): program.run()
"""


def script(body: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = subprocess.run(
        [sys.executable, "-c", _SCRIPT + body], env=env, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert out.returncode == 0, out.stderr
    return out.stdout


def test_the_interpreter_exits_with_workers_asleep_or_awake():
    script("")
    script("time.sleep(0.01)")


def test_the_interpreter_exits_while_a_daemon_thread_runs_programs():
    script("""
def forever():
    while True: program.run()
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.05)
""")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_starts_its_own_workers():
    out = script("""
sys.stdout.flush()
child = os.fork()
if child == 0:
    for _ in range(100): program.run()
    print("child", data[0, 0], flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
for _ in range(10): program.run()
print("parent", data[0, 0])
""")
    assert out.split() == ["child", "600", "parent", "330"]


def test_default_threads_follow_the_knob(monkeypatch):
    monkeypatch.setenv("EINSMITH_THREADS", "3")
    assert get_threads() == 3 and Program([]).threads == 3
    try:
        set_threads(2)
        assert get_threads() == 2
    finally:
        set_threads(None)
    monkeypatch.delenv("EINSMITH_THREADS")
    assert 1 <= get_threads() <= (os.cpu_count() or 1)


def test_whether_a_variable_is_set(monkeypatch):
    """By what stands behind `os.environ`, and where that is another mapping."""
    monkeypatch.delenv("EINSMITH_THREADS", raising=False)
    before = replace(environment.THREADS).is_set
    for other in (False, True):
        if other:
            monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if k != "EINSMITH_THREADS"})
        for is_set in (before, replace(environment.THREADS).is_set):
            assert not is_set()
            monkeypatch.setenv("EINSMITH_THREADS", "2")
            assert is_set()
            monkeypatch.delenv("EINSMITH_THREADS")


@pytest.mark.parametrize(
    "name,text",
    [
        ("EINSMITH_THREADS", "0"),
        ("EINSMITH_THREADS", "two"),
        ("EINSMITH_DEBUG", "8"),
        ("EINSMITH_DEBUG", "-1"),
        ("EINSMITH_THREADS", "1.5"),
    ],
)
def test_bad_knobs_name_the_variable_and_the_remedy(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    knob = next(k for k in environment.ALL if k.name == name)
    with pytest.raises(KnobError, match=f"{name} is '{text}', but takes a whole number"):
        knob.get()


def test_knobs_have_defaults(monkeypatch, tmp_path):
    for knob in environment.ALL:
        monkeypatch.delenv(knob.name, raising=False)
        assert knob.get() == knob.default and knob.help and knob.accepts
    assert environment.cache_dir().name == "einsmith"
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    assert environment.cache_dir() == tmp_path and environment.data_dir() == tmp_path / "data"


@pytest.mark.parametrize("shape,dtype", [((3, 5), "f4"), ((), "f8"), ((0, 4), "i4"), ((17,), "i1"), ((2, 2), "bool")])
def test_aligned_arrays(shape, dtype):
    for make in (buffers.empty, buffers.zeros):
        a = make(shape, dtype)
        assert a.shape == shape and a.dtype == dtype and a.flags.c_contiguous and a.flags.writeable
        assert buffers.is_aligned(a)
    assert not buffers.zeros(shape, dtype).any()


@pytest.mark.parametrize(
    "triple", ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "arm64-apple-darwin", "x86_64-apple-darwin"]
)
def test_the_entry_compiles_for_other_machines(triple):
    target = SimpleNamespace(cpu="generic", features="", triple=triple)
    assert len(jit.emit_object(entry_program.emit_entry(triple), target)) > 500


def test_a_program_that_would_save_little_runs_on_the_calling_thread():
    data = np.zeros(64, np.int64)
    steps = [RunLaunch(increment(), 4, [data.ctypes.data])] * 3
    for saved, threads in ((0.0, 1), (0.9 * LEAST_SHARED, 1), (LEAST_SHARED, 2), (1.0, 2)):
        data[:] = 0
        program = Program(steps, 2, shared=saved)
        status, times = program.run_recorded()
        assert status == 0 and times.starts.shape == (3, threads)
        assert program.run() == 0 and (data[::16] == 6).all()


def test_short_programs_alone_keep_the_interpreter_lock():
    data, entry = np.zeros(64, np.int64), pool.native_entry()
    launch = RunLaunch(increment(), 4, [data.ctypes.data])
    short, unknown = 0.5 * HOLDING_BELOW, 0.0
    for steps, seconds, saved, keeps in (
        ([launch], short, 0.0, True),
        ([launch], unknown, 0.0, False),
        ([launch], HOLDING_BELOW, 0.0, False),
        ([launch], short, 1.0, False),
        ([launch, Notify(0, data.ctypes.data)], short, 0.0, False),
    ):
        program = Program(steps, 2, seconds=seconds, shared=saved)
        assert (program._run is entry.run_holding) == keeps
    program = Program([launch], 2, seconds=short, shared=0.0)
    assert program.run() == 0 and (data[::16] == 1).all()
