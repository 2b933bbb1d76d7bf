"""Build the object code of many kernels, in this process and, where there are enough of them, in worker processes.

LLVM compiles on one thread of a process at a time here, so more cores need more processes. A worker takes about 0.1 s
to start, as long as three kernels take.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from einsmith.base import environment, locks, processes
from einsmith.base.errors import CompileError
from einsmith.codegen.cache.objects import CachedObject
from einsmith.codegen.llvm import jit
from einsmith.codegen.llvm.nest import emit_module
from einsmith.codegen.loopnest.nest import Function

PARALLEL_FROM = 24
"""Fewest missing kernels for which worker processes are started; below it, starting one costs more than it saves."""
MAX_WORKERS = 7


class _Job(NamedTuple):
    key: str
    text: str
    names: tuple[str, ...]
    metadata: dict[str, Any]


Makers = Mapping[str, Callable[[], tuple[Sequence[Function], dict[str, Any]]]]


def build(missing: Makers, target: Any) -> Iterator[tuple[str, CachedObject]]:
    """Lower and compile each kernel; yield its key and entry, in the order they get ready.

    Raises CompileError where a kernel cannot be lowered or compiled.
    """
    target = jit.resolve(target)
    jit.machine(target.cpu, target.features, target.triple)  # refuses a CPU name that would end the process
    crew = _Crew(_workers(len(missing)), target)
    with locks.undone(crew.leave):
        yield from _build(crew, missing, target)


def _build(crew: _Crew, missing: Makers, target: Any) -> Iterator[tuple[str, CachedObject]]:
    try:
        for key, make in missing.items():
            functions, metadata = make()
            job = _Job(key, emit_module(functions, target), tuple(f.name for f in functions), metadata)
            if environment.debug() >= 5:
                print(f"; {', '.join(job.names)}\n{job.text}", file=sys.stderr)
            if not crew.processes:
                yield key, CachedObject(jit.emit_object(job.text, target), job.names, metadata)
            else:
                crew.waiting.put(job)
        if crew.processes:
            yield from crew.finish(len(missing))
    finally:
        crew.close()


def _workers(kernels: int) -> int:
    """Return the number of worker processes worth starting besides this process for a number of kernels."""
    if kernels < PARALLEL_FROM or not sys.executable:
        return 0
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    return min(cores - 1, MAX_WORKERS, kernels // 4)


class _Crew:
    """Worker processes, each with a thread that feeds it from one queue."""

    def __init__(self, count: int, target: Any):
        self.target = target = jit.resolve(target)
        self.waiting: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.ready: queue.SimpleQueue[tuple[_Job, bytes | Exception]] = queue.SimpleQueue()
        self.processes: list[subprocess.Popen] = []
        facts = {"cpu": target.cpu, "features": target.features, "triple": target.triple, "opt": jit.OPT}
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        script = str(Path(__file__).parent.with_name("llvm") / "worker.py")
        for _ in range(count):
            try:
                process = subprocess.Popen(
                    processes.command(script), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL, env=variables,
                )  # fmt: skip
            except OSError:  # no more processes: the others, or this process alone, do the work
                break
            self.processes.append(process)
            threading.Thread(target=self._feed, args=(process, json.dumps(facts)), daemon=True).start()

    def _feed(self, process: subprocess.Popen, facts: str) -> None:
        assert process.stdin is not None and process.stdout is not None
        head: bytes | None = facts.encode() + b"\n"
        while (job := self.waiting.get()) is not None:
            text = job.text.encode()
            try:
                process.stdin.write((head or b"") + len(text).to_bytes(8, "little") + text)
                process.stdin.flush()
                head = None
                answer = process.stdout.read(9)
                data = process.stdout.read(int.from_bytes(answer[1:], "little"))
                if len(answer) < 9:
                    raise OSError("the worker ended")
            except (OSError, ValueError):
                self.waiting.put(job)  # this process takes it
                return
            failed = answer[:1] != b"+"
            self.ready.put((job, CompileError(f"LLVM rejects the generated code: {data.decode()}") if failed else data))

    def finish(self, count: int) -> Iterator[tuple[str, CachedObject]]:
        """Compile along with the workers until all `count` jobs are done; yield each key and entry."""
        for _ in range(count):
            job, data = self._next()
            if isinstance(data, Exception):
                raise data
            yield job.key, CachedObject(data, job.names, job.metadata)

    def _next(self) -> tuple[_Job, bytes | Exception]:
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
                return job, jit.emit_object(job.text, self.target)
            try:
                return self.ready.get(timeout=0.02)  # a dead worker may have given its job back
            except queue.Empty:
                pass

    def leave(self) -> None:
        """Detach the pipes to the parent's workers in a forked child, so that nothing written here reaches them."""
        null = os.open(os.devnull, os.O_RDWR)
        for process in self.processes:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None and not pipe.closed:
                    os.dup2(null, pipe.fileno())
        os.close(null)

    def close(self) -> None:
        """End the workers; a job that is being compiled is given up."""
        while True:
            try:
                self.waiting.get_nowait()
            except queue.Empty:
                break
        for _ in self.processes:
            self.waiting.put(None)
        for process in self.processes:
            process.kill()
            process.wait()
