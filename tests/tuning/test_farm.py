"""Searches whose kernels are measured by the workers of an executor."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import einsmith as es
from einsmith.cli.workers import executor_of
from einsmith.tuning.kernels import farm, session
from einsmith.tuning.kernels.farm import count_workers
from einsmith.tuning.kernels.session import KernelSearch, tune
from einsmith.tuning.kernels.tuner import Effort, Part
from tests.tuning.test_measure import kernel_of


@pytest.fixture(scope="module")
def kernels():
    """Two kernels, and their target."""
    found = [
        kernel_of(es.op("y[i,j] = sum[k](a[i,k]*b[k,j])"), np.ones((60, 37), np.float32), np.ones((37, n), np.float32))
        for n in (50, 70)
    ]
    return [k for k, _ in found], found[0][1]


@pytest.fixture
def brief(monkeypatch):
    monkeypatch.setattr(session, "THOROUGH", Effort(candidates=6, race_seconds=0.02, final_seconds=0.05))


def test_a_search_goes_on_in_another_process(kernels, brief, monkeypatch):
    """What it has measured goes with it: the second visit measures other candidates than the first, which has eight."""
    monkeypatch.setattr(session, "THOROUGH", session.THOROUGH._replace(candidates=12))
    (kernel, _), target = kernels
    search, told = KernelSearch(Part(kernel), target), []
    for _ in range(2):
        search = pickle.loads(pickle.dumps(search))
        visited = farm.visit(search, 1, 60.0, [], farm.sender())
        search = pickle.loads(pickle.dumps(visited.search))
        told += [c for c, _ in visited.runs]
    assert search.result.kernel == kernel and search.result.tried == 12 and len(set(told)) > 8


def test_workers_are_counted(kernels):
    with ThreadPoolExecutor(3) as pool:
        assert count_workers(pool) == 3
    assert count_workers(type("Pool", (Executor,), {"num_workers": 7})()) == 7
    assert count_workers(Executor()) == 1


@pytest.mark.slow
def test_processes_search_the_kernels_of_a_program(kernels, brief):
    every, target = kernels
    told, kept = [], []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        found = tune(
            [Part(k) for k in every], target, 1, 60.0, lambda f, c, s: told.append((f.kernel, c)), keep=kept.append,
            executor=pool,
        )  # fmt: skip
    assert [f.kernel for f in found] == every and all(f.kernel is k for f, k in zip(found, every, strict=True))
    assert all(f.tried for f in found) and {k for k, _ in told} == set(every)
    assert {f.kernel for f in found if f.best is not None} == {f.kernel for f in kept}


class Together(Executor):
    """Begins each visit on a thread, and knows how many were under way at once."""

    num_workers = 2

    def __init__(self):
        self._lock, self._now, self.most = threading.Lock(), 0, 0

    def submit(self, work, search, *arguments):
        future: Future = Future()

        def run():
            with self._lock:
                self._now += 1
                self.most = max(self.most, self._now)
            time.sleep(0.2)
            search.result.over, search.result.tried = "it was visited", 1
            with self._lock:
                self._now -= 1
            future.set_result(farm.Visited(search, []))

        threading.Thread(target=run).start()
        return future


def test_several_kernels_are_visited_at_once(kernels):
    every, target = kernels
    pool = Together()
    found = tune([Part(k) for k in every], target, 1, 60.0, executor=pool)
    assert pool.most == 2 and all(f.over == "it was visited" for f in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"machine": "another"}, "is another kind of machine"), ({"version": "older"}, "has another version of Einsmith")],
)
def test_other_workers_are_refused(kernels, change, message):
    (kernel, _), target = kernels
    search = KernelSearch(Part(kernel), target)
    with pytest.raises(es.ArgumentError, match=message):
        farm.visit(search, 1, 1.0, [], farm.sender()._replace(**change))


def test_a_host_measures_one_kernel_at_a_time():
    inside, most = [], []

    def work():
        with farm._alone():
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.05)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert most == [1] * 4


def test_an_executor_that_has_ended_is_refused(kernels):
    (kernel, _), target = kernels
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(es.ArgumentError, match="the executor takes no tasks"):
        tune([Part(kernel)], target, 1, 1.0, executor=pool)


def test_a_step_refuses_what_is_no_executor():
    with pytest.raises(es.ArgumentError, match="has no method submit"):
        es.TrainStep(es.nn.Linear(2, 2), es.functional.cross_entropy, es.optim.SGD(lr=0.1), executor="pool")


@pytest.mark.parametrize("text", ["", "nothing", "no.such.module:f", "time:time", "os:nothing", "time:sleep"])
def test_other_texts_are_refused(text):
    with pytest.raises(es.ArgumentError, match="--workers"), executor_of(text):
        pass


def test_a_function_gives_the_executor():
    with executor_of(f"{__name__}:Together") as executor:
        assert isinstance(executor, Together)


DASK = """
import sys
import distributed
import numpy as np
import einsmith as es
from distributed import LocalCluster
from einsmith.base.errors import ArgumentError
from einsmith.cli.workers import executor_of
from einsmith.tuning.kernels import session
from einsmith.tuning.kernels.farm import count_workers
from tests.tuning.test_measure import kernel_of

if __name__ == "__main__":
    session.THOROUGH = session.Effort(candidates=6, race_seconds=0.02, final_seconds=0.05)
    kernel, target = kernel_of(es.op("y[i,j] = sum[k](a[i,k]*b[k,j])"), np.ones((60, 37)), np.ones((37, 50)))
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with executor_of(cluster.scheduler_address) as executor:
            found = session.tune([session.Part(kernel)], target, 1, 60.0, executor=executor)
            print("tried", found[0].tried, "workers", count_workers(executor))
    connect = distributed.Client
    distributed.Client = lambda address, timeout: connect(address, timeout="0.5s")  # nobody will answer
    try:
        with executor_of("tcp://127.0.0.1:9"):
            pass
    except ArgumentError as e:
        print(e)
"""


@pytest.mark.slow
def test_workers_of_dask_search(tmp_path):
    """In a process of its own: here the tests of einsmith.distributed have the name of Dask's module."""
    if importlib.util.find_spec("dask") is None:
        pytest.skip("Dask is not installed; pip install distributed")
    script = tmp_path / "search.py"
    script.write_text(DASK)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)}, text=True,
        capture_output=True, timeout=120,
    )  # fmt: skip
    assert re.search(r"tried [1-9]\d* workers 2", done.stdout), done.stderr
    assert "no Dask scheduler answers there" in done.stdout
