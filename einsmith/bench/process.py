"""Run peers in processes of their own: started, asked, stopped while others run, ended."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from einsmith.base import environment, files
from einsmith.base.system import processes

ROOT = Path(__file__).resolve().parents[2]
"""Folder that holds the package."""


class WorkerError(Exception):
    """The worker answered with an error, died, or ran past its time. `kind`: missing, failed or timeout."""

    def __init__(self, kind: str, message: str):
        self.kind = kind
        super().__init__(message)


def variables(threads: int, caches: Path | None) -> dict[str, str]:
    """Return the environment of every peer: the thread counts and no accelerator; with `caches`, empty caches of
    code."""
    env = dict(os.environ)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "EINSMITH_THREADS"):
        env[name] = str(threads)
    env |= {
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_ENABLE_DEPRECATION_WARNINGS": "0",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])]),
    }
    if caches is not None:
        env |= {
            "EINSMITH_CACHE_DIR": str(caches / "einsmith"),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
        }
    return env


PATIENCE = 10
"""How many times longer than its cap a worker may take where other work keeps it from the processors."""


@contextmanager
def alone(command: str | None) -> Iterator[None]:
    """Run the block while a shell command keeps other work away: the block begins when the command prints a line, and
    at its end the command's input is closed and its end awaited. Raises OSError where it ends without a line."""
    if command is None:
        yield
        return
    with subprocess.Popen(
        command, shell=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            if not process.stdout.readline():
                raise OSError(f"ended without a line: {command}")
            yield
        finally:
            process.stdin.close()


@dataclass
class Allowance:
    """Seconds that answers may still take: `left` falls by what each took, or by what its worker computed where that is
    less, so that waiting for other work on the machine does not count."""

    left: float


class PeerProcess:
    """A process running einsmith.bench.worker. Between two commands it is stopped by a signal, with all its threads and
    children: libraries whose idle threads spin would otherwise take the cores of the peer whose turn it is.

    It starts at once, so that several import their libraries side by side; `ready` waits for it.
    """

    def __init__(self, peer: str, threads: int, caches: Path | None, table: str):
        self.peer = peer
        self.version, self.import_seconds = "", 0.0
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "einsmith.bench.worker", table, peer, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=variables(threads, caches),
            cwd=ROOT,
            start_new_session=True,
        )
        self._buffer = b""

    def ready(self, allowance: Allowance) -> None:
        """Wait until the library is imported. Raises WorkerError."""
        if not self.version:
            reply = self._answer(allowance)
            self.version, self.import_seconds = reply["ready"], reply["import_seconds"]
            self._signal(signal.SIGSTOP)

    @property
    def alive(self) -> bool:
        """Return whether it can be asked again after an error."""
        return bool(self.version) and self._process.poll() is None

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass

    def _answer(self, allowance: Allowance) -> dict:
        begun, before = time.monotonic(), processes.tree_seconds(self._process.pid)

        def used() -> float:
            now, after = time.monotonic() - begun, processes.tree_seconds(self._process.pid)
            return now if before is None or after is None else min(now, after - before)

        try:
            return self._read(allowance.left, used)
        finally:
            allowance.left -= used()

    def _read(self, allowed: float, used: Callable[[], float]) -> dict:
        assert self._process.stdout is not None
        fd, deadline = self._process.stdout.fileno(), time.monotonic() + allowed
        patience = max(0.0, allowed)
        while b"\n" not in self._buffer:
            if not select.select([fd], [], [], patience)[0]:
                left = allowed - used()
                if left <= 0 or time.monotonic() - deadline > (PATIENCE - 1) * allowed:
                    raise WorkerError("timeout", "over the time cap")
                patience = min(1.0, max(0.01, left))
                continue
            chunk = os.read(fd, 1 << 20)
            if not chunk:
                status = self._process.wait()
                self._errors.seek(0)
                tail = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
                raise WorkerError("failed", f"the process ended with status {status}: {' '.join(tail)}")
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        reply = json.loads(line)
        if "missing" in reply:
            raise WorkerError("missing", reply["missing"])
        if "error" in reply:
            raise WorkerError("failed", reply["error"])
        return reply

    def ask(self, command: str, allowance: Allowance) -> dict:
        """Return the answer to a command. Raises WorkerError."""
        self.ready(allowance)
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(command.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer tells how the process ended
        try:
            return self._answer(allowance)
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """End the process."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass


class Crew:
    """The workers of a run, one for each peer, started when they are first needed and again after a failure."""

    def __init__(self, threads: int, caches: Path | None, table: str):
        self.threads, self.table = threads, table
        self._caches = caches
        self._workers: dict[str, PeerProcess] = {}

    def caches(self, peer: str) -> Path | None:
        """Return where that peer's code is kept; None for the user's own caches."""
        return None if self._caches is None else self._caches / peer

    def start(self, peer: str) -> PeerProcess:
        """Return the peer's worker, which may still be importing."""
        if peer not in self._workers:
            caches = self.caches(peer)
            if caches is not None:
                caches.mkdir(parents=True, exist_ok=True)
            self._workers[peer] = PeerProcess(peer, self.threads, caches, self.table)
        return self._workers[peer]

    def keep_calibration(self, peers: Sequence[str] = ("einsmith",)) -> None:
        """Give the caches of peers that are Einsmith what was measured of the machine before: measured anew beside
        other work, it would be another machine's, and the peers would have other kernels."""
        known = environment.cache_dir() / "calibration"
        for peer in peers:
            caches = self.caches(peer)
            if caches is not None and files.is_folder(known):
                shutil.copytree(known, caches / "einsmith" / "calibration", dirs_exist_ok=True)

    def drop(self, peer: str) -> None:
        """End the peer's worker; the next `start` makes another."""
        if peer in self._workers:
            self._workers.pop(peer).close()

    def close(self) -> None:
        """End all workers."""
        for peer in list(self._workers):
            self.drop(peer)
