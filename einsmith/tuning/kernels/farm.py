"""Search kernels on several hosts of one kind at once, by an executor of `concurrent.futures`.

A task is one visit to a kernel: it takes the state of the search to a host that is free, and brings it back.
"""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from einsmith.base import files
from einsmith.base.errors import ArgumentError
from einsmith.base.system import file_locks, processes
from einsmith.cost.facts import Target
from einsmith.kernels.pattern import Pattern
from einsmith.tuning.calibration import store
from einsmith.tuning.kernels import records
from einsmith.tuning.kernels.bench import BenchProcess, MakeRunner, register, sendable_patterns
from einsmith.tuning.kernels.genetic import Candidate
from einsmith.tuning.kernels.measure import HostRunner


class Sender(NamedTuple):
    """What a worker must have in common with the process that sends it kernels.

    machine: digest of the facts of the machine (`store.machine_of`), without threads; version: hash of the sources that
    make code; patterns: the user's own; make: returns what runs kernels."""

    machine: str
    version: str
    patterns: list[Pattern]
    make: MakeRunner


class Visited(NamedTuple):
    """The state of a search after a visit, and the seconds of the candidates that the visit measured."""

    search: Any
    runs: list[tuple[Candidate, float]]


def sender(make: MakeRunner = HostRunner) -> Sender:
    """Return what workers must have in common with this process. make: returns what runs kernels."""
    return Sender(_machine(make), records.version(), sendable_patterns(), make)


def _machine(make: MakeRunner) -> str:
    return store.machine_of(make().target())


def count_workers(executor: Executor) -> int:
    """Return the number of visits that an executor can make at once.

    Executors do not say so in one way: those of mpi4py and Dask's clients are asked, then those of Python."""
    client = getattr(executor, "_client", None)  # of Dask's ClientExecutor
    known = (
        getattr(executor, "num_workers", None),
        len(client.scheduler_info()["workers"]) if client is not None else None,
        getattr(executor, "_max_workers", None),
    )
    return max(1, next((n for n in known if n), 1))


def visit(search: Any, threads: int, seconds: float, guesses: Sequence[Candidate], own: Sender) -> Visited:
    """Visit a kernel (`KernelSearch.visit`) on this host, while no other worker of it does. Runs in a worker.

    Raises ArgumentError where the host is of another kind, or has other sources of Einsmith, than the sender."""
    if own.version != records.version():
        raise ArgumentError(f"the worker on {platform.node()} has another version of Einsmith; install the same one")
    if own.machine != _machine(own.make):
        raise ArgumentError(
            f"the worker on {platform.node()} is another kind of machine ({_describe(own.make().target())}), where "
            "other configurations are fast; use hosts of one kind"
        )
    register(own.patterns)
    runs: list[tuple[Candidate, float]] = []
    bench = _bench()
    bench.make = own.make
    with _alone():
        search.visit(bench, threads, time.monotonic() + seconds, lambda _, c, s: runs.append((c, s)), lambda _: guesses)
    return Visited(search, runs)


def _describe(target: Target) -> str:
    return f"{target.cpu}, {target.cores} cores"


@cache
def _bench() -> BenchProcess:
    """Return the process that measures for this worker."""
    return BenchProcess()


@contextmanager
def _alone() -> Iterator[None]:
    """Keep the other workers of this host waiting: measurements at once would disturb each other."""
    user = processes.user_id()  # None where each user has a folder of temporary files
    path = Path(tempfile.gettempdir()) / f"einsmith-bench-{0 if user is None else user}.lock"
    try:
        turn: AbstractContextManager[None] = file_locks.hold(files.open_lock(path, 0o600))
    except OSError:  # another user has put something there
        turn = nullcontext()
    with turn:
        yield
