"""Build the object code of many kernels, in this process and, where there are enough of them, in worker processes.

LLVM compiles on one thread of a process at a time here, so more cores need more processes. A worker takes about 0.1 s
to start, as long as three kernels take.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from einsmith.base import environment, messages, recording
from einsmith.base.errors import EinsmithError
from einsmith.base.system import processes, processors
from einsmith.base.threads import start
from einsmith.base.workers import Worker
from einsmith.codegen.cache.objects import CachedObject
from einsmith.codegen.llvm import jit
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.loopnest.nest import Function

PARALLEL_FROM = 24
"""Fewest missing kernels for which worker processes are started; below it, starting one costs more than it saves."""
MAX_WORKERS = 7
_SERVER = f"{Path(jit.__file__).with_name('compile_worker.py')}:Compiler"


class Job(NamedTuple):
    """A kernel's LLVM IR text to compile, and what its cache entry is made of."""

    key: str
    text: str
    names: tuple[str, ...]
    metadata: dict[str, Any]


def _compile(job: Job, target: Any) -> CachedObject:
    """Compile a job in this process."""
    with recording.phase("LLVM", functions=", ".join(job.names)):
        return CachedObject(jit.emit_object(job.text, target), job.names, job.metadata)


Makers = Mapping[str, Callable[[], tuple[Sequence[Function], dict[str, Any]]]]


def build(missing: Makers, target: Any) -> Iterator[tuple[str, CachedObject]]:
    """Lower and compile each kernel; yield its key and entry, in the order they get ready.

    Raises CompileError where a kernel cannot be lowered or compiled.
    """
    target = jit.resolve(target)
    jit.machine(target.cpu, target.features, target.triple)  # refuses a CPU name that would end the process
    crew = Crew(count_workers(len(missing)), target)
    try:
        for key, make in missing.items():
            with recording.phase("lower a kernel"):
                functions, metadata = make()
                job = Job(key, emit_module(functions, target), tuple(f.name for f in functions), metadata)
            if environment.debug() >= 5:
                messages.say(f"; {', '.join(job.names)}\n{job.text}")
            if not crew.workers:
                yield key, _compile(job, target)
            else:
                crew.waiting.put(job)
        if crew.workers:
            yield from crew.collect(len(missing))
    finally:
        crew.close()


def count_workers(kernels: int) -> int:
    """Return the number of worker processes worth starting besides this process for a number of kernels."""
    if kernels < PARALLEL_FROM or not sys.executable or not processes.can_wait_for_pipes():
        return 0
    return min(len(processors.allowed()) - 1, MAX_WORKERS, kernels // 4)


class Crew:
    """Worker processes, each with a thread that feeds it from one queue."""

    def __init__(self, count: int, target: Any):
        self.target = target = jit.resolve(target)
        self.waiting: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.ready: queue.SimpleQueue[tuple[Job, bytes]] = queue.SimpleQueue()
        self.workers = [Worker(_SERVER) for _ in range(count)]
        self.threads: list[threading.Thread] = []
        for worker in self.workers:
            worker.set_up(target.cpu, target.features, target.triple, jit.OPT)
            thread = threading.Thread(target=self._feed, args=(worker,), daemon=True)
            with suppress(EinsmithError):  # this process does the work, too
                start(thread)
                self.threads.append(thread)

    def _feed(self, worker: Worker) -> None:
        job = None
        with worker:
            try:
                worker.start()
                while (job := self.waiting.get()) is not None:
                    self.ready.put((job, worker.ask("compile", job.text)))
            except (EinsmithError, OSError):  # no process, or a wrong text: the others, or this process, do the work
                if job is not None:
                    self.waiting.put(job)

    def collect(self, count: int) -> Iterator[tuple[str, CachedObject]]:
        """Compile along with the workers until all `count` jobs are done; yield each key and entry."""
        for _ in range(count):
            job, data = self.finish_job()
            yield job.key, CachedObject(data, job.names, job.metadata)

    def finish_job(self) -> tuple[Job, bytes]:
        """Wait for a job that a worker has finished, or compile a waiting job in this process; return the job and its
        result."""
        while True:
            try:
                return self.ready.get_nowait()
            except queue.Empty:
                pass
            try:
                job = self.waiting.get_nowait()
            except queue.Empty:
                job = None
            if job is not None:
                return job, _compile(job, self.target).code
            try:
                return self.ready.get(timeout=0.02)  # a dead worker may have given its job back
            except queue.Empty:
                pass

    def close(self) -> None:
        """End the workers; a job that is being compiled is given up."""
        while True:
            try:
                self.waiting.get_nowait()
            except queue.Empty:
                break
        for worker in self.workers:
            self.waiting.put(None)
            worker.kill()
        for thread in self.threads:
            thread.join()
