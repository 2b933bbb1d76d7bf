"""Find the workers that measure for `einsmith tune --workers`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from einsmith.base.arguments import show
from einsmith.base.errors import ArgumentError

MPI = "mpi"
DASK = ("tcp://", "tls://", "ucx://")
"""Beginnings of addresses of Dask's schedulers."""


@contextmanager
def executor_of(text: str) -> Iterator[Executor | None]:
    """Provide the executor that a text names: the other processes of mpirun ("mpi"), the workers of a Dask scheduler
    (its address), or what a function returns ("module:function").

    With "mpi", all processes enter; those that work for the first one get None when it has left. Raises ArgumentError
    for other texts, and where a library or the workers are missing."""
    if text == MPI:
        yield from _mpi()
    elif text.startswith(DASK):
        yield from _dask(text)
    else:
        with _call(text) as executor:
            yield executor


def _mpi() -> Iterator[Executor | None]:
    try:
        from mpi4py import MPI as mpi
        from mpi4py.futures import MPICommExecutor
    except ImportError as e:
        raise ArgumentError("--workers mpi needs mpi4py; pip install 'einsmith[mpi]'") from e
    if mpi.COMM_WORLD.Get_size() == 1:
        raise ArgumentError("--workers mpi needs several processes: mpirun --bind-to none -n 5 einsmith tune ...")
    with MPICommExecutor(mpi.COMM_WORLD, root=0) as executor:
        yield executor  # type: ignore[misc]  # it has no declared type


def _dask(address: str) -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError as e:
        raise ArgumentError(f"--workers {address} needs Dask; pip install distributed") from e
    try:
        client = Client(address, timeout="10s")
    except (OSError, ValueError) as e:
        raise ArgumentError(f"--workers {address}: no Dask scheduler answers there: {e}") from e
    with client:
        if not client.scheduler_info()["workers"]:
            raise ArgumentError(f"--workers {address}: the scheduler has no workers; start some by `dask worker`")
        yield client.get_executor()


def _call(text: str) -> Executor:
    module, _, function = text.partition(":")
    try:
        executor = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError, ValueError, TypeError) as e:
        raise ArgumentError(
            f"--workers {text}: neither mpi, nor an address of a Dask scheduler, nor a function that returns an "
            f"executor: {e}"
        ) from e
    if not isinstance(executor, Executor):
        raise ArgumentError(f"--workers {text}: the function returned {show(executor)}, which is no executor")
    return executor
