"""Run the fork-join pools: workers that wait in native code.

Programs run on a pool's workers or on the threads of PyTorch's OpenMP runtime (`thread_count.current_team`); the
workers sleep while the OpenMP threads work. Workers are daemon Python threads, each inside one foreign call that lasts
as long as the pool; the interpreter lock is released there. Every queue of runs (runtime/queues.py) has a pool of its
own, so one program runs in a pool at a time. At exit the workers are stopped and joined before any code is freed; a
forked child starts without workers.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from einsmith.base import forks
from einsmith.base.caches import Once
from einsmith.base.errors import EinsmithError, EinsmithWarning
from einsmith.base.threads import start
from einsmith.codegen.cache import native
from einsmith.codegen.entry import entry_program
from einsmith.codegen.llvm import jit
from einsmith.cost.facts import MAX_THREADS
from einsmith.runtime import buffers, queues, thread_limits
from einsmith.runtime.queues import RunQueue


class Native(NamedTuple):
    """The native entry's functions, and the addresses that keep their code in memory. Calling them releases the
    interpreter lock, but for `run_holding`, which is `run` otherwise."""

    run: Callable[..., int]
    run_holding: Callable[..., int]
    worker: Callable[..., None]
    stop: Callable[..., None]
    run_team: Callable[..., int]
    addresses: Mapping[str, int]


@cache
def native_entry() -> Native:
    """Return the native entry, compiled for this machine (or taken from the cache)."""
    thread_limits.register_controller()
    target = native.host_target()
    addresses = native.compile_text(entry_program.emit_entry(target.triple), entry_program.NAMES, target).addresses
    word, pointer = ctypes.c_int64, ctypes.c_void_p
    run = ctypes.CFUNCTYPE(word, pointer)
    worker, stop = ctypes.CFUNCTYPE(None, pointer, word, word), ctypes.CFUNCTYPE(None, pointer)
    a, b, c, d = (addresses[name] for name in entry_program.NAMES[:4])
    holding = ctypes.PYFUNCTYPE(word, pointer)
    return Native(run(a), holding(a), worker(b), stop(c), run(d), addresses)


for _name in (entry_program.LOOK, *entry_program.FLUSH):
    jit.provide(_name, partial(lambda name: native_entry().addresses[name], _name))


_said = Once("numbers of threads that the system has not started", 16)


class Pool:
    """Worker threads, and the memory that they share with the thread that runs a program."""

    def __init__(self) -> None:
        self.native = native_entry()
        self.state = buffers.zeros((entry_program.STATE_BYTES,), np.uint8)
        self.address = self.state.ctypes.data
        self.workers: list[threading.Thread] = []
        self.most = MAX_THREADS
        """Most threads that run programs, as far as the system starts them."""
        self.team_state = buffers.zeros((entry_program.STATE_BYTES,), np.uint8)
        """State that an OpenMP team shares; no worker of the pool looks at it."""
        self.team_address = self.team_state.ctypes.data

    def grow(self, count: int) -> int:
        """Start workers until `count` - 1 of them wait (the caller's thread is the first), and return how many threads
        there are of these. Where the system starts fewer, half of those are used, to leave some to others."""
        try:
            self._start(min(count, self.most))
        except EinsmithError as e:
            started = 1 + len(self.workers)
            self.stop()
            self.state[...] = 0
            self.most = max(1, started // 2)
            if _said(self.most):
                text = f"programs run on {self.most} of {count} threads: {e}"
                warnings.warn(text, EinsmithWarning, stacklevel=6)
            return self.grow(count)
        return min(count, self.most)

    def _start(self, count: int) -> None:
        generation = self.state[:4].view(np.int32)
        while len(self.workers) < count - 1:
            number = len(self.workers) + 1
            worker = threading.Thread(
                target=self.native.worker,
                args=(self.address, number, int(generation[0])),
                name=f"einsmith-{number}",
                daemon=True,
            )
            start(worker)
            self.workers.append(worker)

    def stop(self) -> None:
        """End all workers and wait for them."""
        self.native.stop(self.address)
        for worker in self.workers:
            worker.join()
        self.workers.clear()


_pools: dict[RunQueue, Pool] = {}


def pool_of(queue: RunQueue) -> Pool:
    """Return the pool of a queue, whose lock the caller holds; it is created at its first use."""
    pool = _pools.get(queue)
    if pool is None:
        pool = _pools[queue] = Pool()
    return pool


def stop() -> None:
    """End the workers of queues in which nothing runs, when their runs have ended. The next runs start new ones."""
    for queue in list(queues.queues):
        with queue.lock:
            if queue in _pools and queue.depth == 0:
                _pools.pop(queue).stop()


def _exit() -> None:
    """Stop the workers, and keep the locks: a thread that outlives the interpreter's exit must not run freed code."""
    for queue in queues.close():
        queue.lock.acquire()
        if queue in _pools and queue.depth == 0:
            _pools[queue].stop()


atexit.register(_exit)
forks.at_fork(after_in_child=_pools.clear)
