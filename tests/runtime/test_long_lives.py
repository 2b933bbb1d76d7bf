"""A process that meets ever new shapes keeps to its memory and its memory maps, and computes the right results."""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import einsmith as es
from einsmith.api.jit import run_arrays
from einsmith.base import caches, environment
from einsmith.codegen.llvm import jit
from einsmith.driver import bound_program
from einsmith.ir import interned
from einsmith.lang import op
from einsmith.ops import call
from tests.caches import CHOICES, CODE, bound, count_objects, forget
from tests.programs import entries_of

ROOT = Path(__file__).resolve().parents[2]
MAPS = Path("/proc/self/maps")
needs_maps = pytest.mark.skipif(not MAPS.exists(), reason="needs /proc/self")
unchecked = pytest.mark.skipif(bool(environment.check_level()), reason="checked programs map guarded pages")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few programs, kernels and choices are kept."""
    for few in (bound_program.PROGRAMS, bound(CODE), bound(CHOICES)):
        monkeypatch.setattr(few, "entries", 6)


def function():
    product = es.op("C[i,j] = sum[k](A[i,k] * B[k,j])")
    return es.jit(lambda a, b: es.tanh(product(a, b)) + 1, sizes="each")


B = np.random.default_rng(0).standard_normal((5, 3))


def given(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, 5))


def agrees(found: np.ndarray, n: int) -> bool:
    return bool(np.allclose(found, np.tanh(given(n) @ B) + 1, rtol=1e-12, atol=1e-12))


def maps() -> int:
    return len(MAPS.read_text().splitlines())


@needs_maps
@unchecked
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((1, 2, 7, 8, 16, 17, 67, 131), id="some"),
        pytest.param((*range(1, 24), 67, 131), id="many", marks=pytest.mark.slow),
    ],
)
def test_shapes_come_and_go(few, new_objects, sizes) -> None:
    f = function()
    kept = {}
    counts = []
    for _ in range(3):
        for n in sizes:
            kept[n] = f(given(n), B)
            assert agrees(kept[n], n) and agrees(f(given(n), B), n)
            assert bound_program.PROGRAMS.held()[0] <= 6 and bound(CODE).held()[0] <= 6
            # A program and the cache of kernels may have one each; the rest is about to be unloaded.
            assert max(entries_of(f)) <= 6
        gc.collect(), jit.unload()
        counts.append((maps(), count_objects()))
    assert counts[2][0] <= counts[0][0] + 8 and counts[2][1] <= counts[0][1] + 2, counts
    assert all(agrees(found, n) for n, found in kept.items())  # results outlive the programs that made them


@needs_maps
@unchecked
def test_the_maps_of_code_come_back(few, new_objects) -> None:
    f = function()
    f(given(1), B)
    forget(CODE), gc.collect(), jit.unload()
    loaded = count_objects()
    for n in range(2, 8):
        f(given(n), B)
    assert count_objects() > loaded + 3
    del f
    forget(CODE), gc.collect(), jit.unload()
    assert count_objects() <= loaded


@unchecked
def test_nodes_die_with_the_caches_that_hold_them() -> None:
    """In a process of its own, in which few other objects live."""
    code = "from tests.runtime import test_long_lives; test_long_lives.check_that_nodes_die()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def check_that_nodes_die() -> None:
    def nodes() -> int:
        return len(interned._TABLE)

    def everything_forgotten() -> int:
        forget(*(b.name for b in caches.BOUNDS))
        for memo in [x for x in gc.get_objects() if isinstance(x, functools._lru_cache_wrapper)]:
            if memo.__module__.startswith("einsmith.") and memo.cache_parameters()["maxsize"] is not None:
                memo.cache_clear()
        gc.collect(), gc.collect()  # what ends in the first one holds some nodes until then
        return nodes()

    def used(sizes: range) -> int:
        f, grads = function(), es.jit(es.grad(lambda a, b: (es.tanh(a @ b) ** 3).sum(), (0, 1)))
        for n in sizes:
            f(given(n), B), grads(given(n), B)
        return nodes()

    used(range(11, 12))  # modules are used for the first time
    before = everything_forgotten()
    assert used(range(12, 16)) > before + 30
    assert everything_forgotten() <= before


def test_equal_calls_do_not_depend_on_each_other() -> None:
    """A call that was evicted may still run in one thread when another thread makes an equal one."""

    class Given:
        def __array__(self, dtype=None, copy=None) -> np.ndarray:
            held.clear()  # the other thread is done
            gc.collect()
            return np.ones(3)

    kept = functools.partial(call.cached_call, lambda x: x + x, call.freeze(((np.ones(3),), {}), []))
    held = [kept()]
    assert kept() is held[0]
    assert run_arrays(held[0], (np.ones(2),), {}).tolist() == [2, 2]
    forget("calls of functions of tensors")
    again = kept()
    assert again is not held[0]
    assert run_arrays(again, (Given(),), {}).tolist() == [2, 2, 2]


def test_values_of_static_parameters_come_and_go(few, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op.BOUND, "entries", 6)
    shifted = es.op("y[i] = x[i] + x[k]")
    for _ in range(2):
        for k in range(12):
            assert shifted(np.arange(12.0), k=k).tolist() == list(range(k, k + 12))
            assert op.BOUND.held()[0] <= 6


def test_threads_evict_what_others_run(few) -> None:
    f, failed = function(), []

    def work(seed: int) -> None:
        r = np.random.default_rng(seed)
        try:
            for n in r.integers(1, 20, 120).tolist():
                if not agrees(f(given(n), B), n):
                    failed.append(n)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed and bound_program.PROGRAMS.held()[0] <= 6


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_during_eviction_works(few) -> None:
    f, ended = function(), threading.Event()
    f(given(2), B)

    def work() -> None:
        n = 0
        while not ended.is_set():
            n = n % 17 + 1
            assert agrees(f(given(n), B), n)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(4):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    code = 0 if all(agrees(f(given(n), B), n) for n in (3, 9, 21, 2, 30, 31, 32, 33)) else 2
                finally:
                    os._exit(code)
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        ended.set()
        thread.join()


LONG = """
import numpy as np, einsmith as es, sys

def now():
    with open("/proc/self/statm") as statm, open("/proc/self/maps") as maps:
        return int(statm.read().split()[1]) * 4096 / 2**20, len(maps.readlines())

product = es.op("C[i,j] = sum[k](A[i,k] * B[k,j])")
f = es.jit(es.value_and_grad(lambda a, b: es.tanh(product(a, b)).sum(), 1))
rng = np.random.default_rng(0)
b = rng.standard_normal((5, 3))
for k in range(10):
    for i, n in enumerate(rng.permutation(1000) + 1):
        a = np.full((n, 5), 0.25)
        value, grad = f(a, b)
        t = np.tanh(a @ b)
        assert abs(value - t.sum()) < 1e-9 * n and np.allclose(grad, a.T @ (1 - t * t), rtol=1e-9)
    if k in (0, 9) or sys.argv[1:]:
        print(*now(), flush=True)
"""


@pytest.mark.slow
@needs_maps
@unchecked
def test_ten_thousand_calls_with_a_thousand_shapes(tmp_path: Path) -> None:
    variables = {
        **os.environ, "PYTHONPATH": str(ROOT), "EINSMITH_CACHE_DIR": str(tmp_path), "EINSMITH_CALIBRATE": "0"
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LONG)], capture_output=True, text=True, env=variables, timeout=3000
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (rss, lines), (after, more) = [map(float, line.split()) for line in done.stdout.splitlines()]
    assert after <= 1.5 * rss and more <= 1.5 * lines, done.stdout
