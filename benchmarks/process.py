"""A worker process as the harness sees it: started, asked, stopped while others run, ended."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class WorkerError(Exception):
    """The worker answered with an error, died, or ran past its time. `kind`: missing, failed or timeout."""

    def __init__(self, kind: str, message: str):
        self.kind = kind
        super().__init__(message)


def environment(threads: int, caches: Path) -> dict[str, str]:
    """The same for every peer: the thread counts, no accelerator, and caches of code that start empty."""
    env = dict(os.environ)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "EINSMITH_THREADS"):
        env[name] = str(threads)
    env |= {
        "EINSMITH_CACHE_DIR": str(caches / "einsmith"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_ENABLE_DEPRECATION_WARNINGS": "0",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])]),
    }
    return env


class Worker:
    """A process running benchmarks.worker. Between two commands it is stopped by a signal, with all its threads and
    children: libraries whose idle threads spin would otherwise take the cores of the peer whose turn it is."""

    def __init__(self, peer: str, problem: str, threads: int, caches: Path, deadline: float):
        self.peer = peer
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", peer, problem, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(threads, caches),
            cwd=ROOT,
            start_new_session=True,
        )
        self._buffer = b""
        try:
            reply = self._answer(deadline)
        except BaseException:
            self.close()
            raise
        self.version, self.import_seconds = reply["ready"], reply["import_seconds"]
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass

    def _answer(self, deadline: float) -> dict:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise WorkerError("timeout", "over the time cap")
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

    def ask(self, command: str, deadline: float) -> dict:
        """The answer to a command. `deadline`: a time of time.monotonic(). Raises WorkerError."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(command.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer tells how the process ended
        reply = self._answer(deadline)
        self._signal(signal.SIGSTOP)
        return reply

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass
