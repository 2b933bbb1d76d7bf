"""Tune a module of loops by TVM's MetaSchedule, once for each program: its database is kept in the user's cache."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any
from unittest import mock

import tvm
import tvm_ffi
from tvm import relax
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from benchmarks.worker import TVM_FOLDER
from einsmith.base import files

TRIALS = "BENCHMARKS_TVM_TRIALS"
"""Variable with the number of candidates that are measured in all for a program."""
OF_NETWORK, OF_KERNEL = 256, 128
"""Usual number of trials."""
BATCH, LEAST_BATCH = 64, 4
"""Candidates of a task that are measured between two searches: MetaSchedule's own number at most, and fewer where a
program has so many tasks that some would get none."""
SEARCH: dict[str, int] = {"population_size": 128, "genetic_num_iters": 2, "init_min_unmeasured": 16}
"""The search between two batches of a program of many tasks, which has few candidates to choose: by MetaSchedule's own
settings (512, 4, 50) it takes 7 s for four of them on 2 cores, ten times what measuring them does."""
MANY = 10
"""Tasks from which on a program has many."""
BUILD_SECONDS = 60.0
INTRINSICS = "tvm.s_tir.tensor_intrin"
NOTE = "tuning.json"


def trials(is_network: bool) -> int:
    """Return how many candidates are to be measured for a program."""
    return int(os.environ.get(TRIALS) or (OF_NETWORK if is_network else OF_KERNEL))


def crashes() -> bool:
    """Return whether MetaSchedule ends the process by a segmentation fault: TVM 0.27 does beside apache-tvm-ffi 0.1.15,
    which its requirements admit."""
    ffi = tuple(map(int, tvm_ffi.__version__.split(".")[:3]))
    return tvm.__version__.startswith("0.27.") and ffi >= (0, 1, 15)


def tuned(mod: tvm.IRModule, target: Target, name: str, count: int) -> tuple[tvm.IRModule, dict[str, Any]]:
    """Return the module with the best schedules that `count` trials have met with, now or in an earlier process, and
    what tuning took: "tuning_seconds", "trials", "tasks"."""
    threads = target.attrs["num-cores"]
    digest = hashlib.sha256(f"{tvm.__version__}{target}{mod.script()}".encode()).hexdigest()[:12]
    folder = Path(os.environ[TVM_FOLDER]) / f"{name}-{threads}-{count}-{digest}"
    if not files.is_file(folder / NOTE):
        _tune(mod, target, folder, count, threads)
    database = ms.Database.create("json", work_dir=str(folder))
    with target, database:
        mod = relax.transform.MetaScheduleApplyDatabase()(mod)
    return mod, json.loads((folder / NOTE).read_text())


def _import_intrinsics() -> None:
    """Import what MetaSchedule imports, in seconds: its parser asks for the modules of all frames, half a minute."""
    with mock.patch.object(inspect, "getmodule", lambda *_: None):
        importlib.import_module(INTRINSICS)


def _builder(threads: int) -> Any:
    """Return a builder whose processes do not import the intrinsics, which are for integers and for GPUs."""

    def leave_out(name: str = INTRINSICS) -> None:  # of its own, as it is sent to those processes by value
        import sys
        import types

        sys.modules[name] = types.ModuleType(name)

    return ms.builder.LocalBuilder(max_workers=threads, timeout_sec=BUILD_SECONDS, initializer=leave_out)


def _tune(mod: tvm.IRModule, target: Target, folder: Path, count: int, threads: int) -> None:
    """Fill a folder with the database of a module, and at last with the note that it is complete."""
    if crashes():
        raise RuntimeError("MetaSchedule of TVM 0.27 crashes with apache-tvm-ffi 0.1.15: install 0.1.14.post1")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _import_intrinsics()
    begun = time.monotonic()
    tasks = len(ms.relax_integration.extract_tasks(mod, target))
    runner = ms.runner.LocalRunner()
    strategy = ms.search_strategy.EvolutionarySearch(**(SEARCH if tasks >= MANY else {}))
    try:
        ms.relax_integration.tune_relax(
            mod, {}, target, str(folder), count, builder=_builder(threads), runner=runner,
            strategy=strategy,
            num_trials_per_iter=min(BATCH, count, max(LEAST_BATCH, count // (2 * tasks))), seed=1,
        )  # fmt: skip
    finally:
        runner.pool.shutdown()
    note = {"tuning_seconds": time.monotonic() - begun, "trials": count, "tasks": tasks}
    files.write(folder / NOTE, json.dumps(note))
