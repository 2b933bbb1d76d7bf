"""Run peers in processes of their own, which are stopped while others run: problems by name, in any library."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.problem import Workload
from einsmith.base import environment, files, workers
from einsmith.bench.server import StepServer

PEERS = {
    "einsmith": "einsmith", "static-60": "einsmith", "static-300": "einsmith", "dynamic": "einsmith", "torch": "torch",
    "torchscript": "torch", "compile-max": "torch", "compile": "torch", "compile-cell": "torch", "reference": "torch",
    "jax": "jax", "jax-unrolled": "jax", "tensorflow": "tensorflow", "tensorflow-unrolled": "tensorflow",
    "xla": "tensorflow", "xla-unrolled": "tensorflow", "keops": "pykeops", "onnxruntime": "onnxruntime",
    "tvm": "tvm", "tvm-tuned": "tvm", "peak": "machine", "copy": "machine", "special": "machine",
}  # fmt: skip
"""Peers, and the library of each; "machine" measures what the machine can do."""
SPLIT = ("einsmith", "torch", "pykeops")
"""Libraries that have a module for each kind of problems."""
TVM_FOLDER = "BENCHMARKS_TVM_FOLDER"
"""Variable with the folder of TVM's databases, which outlives the fresh caches of a run: tuning takes minutes."""
LEAST_CAPS = {"tvm-tuned": 7200.0}
"""Seconds that a peer may take in all where the cap is less: measuring candidates is its first call."""
SERVER = "benchmarks.worker:PeerServer"
PATIENCE = 10
"""How many times longer than its limit a process may take where other work keeps it from the processors."""


def find(name: str) -> Workload:
    """Return the problem of a name. Raises KeyError where there is none."""
    from benchmarks import attention, elementwise, kernel_cases, models, pairs, problems, random_cases
    from benchmarks.recurrent_steps import FIRST_CALLS, RECURRENT

    drawn = (cases.named(name) for cases in (random_cases, pairs, attention, models, elementwise))
    known = kernel_cases.CASES | models.TRAINING | problems.OPERATORS | problems.COMPOSED | RECURRENT | FIRST_CALLS
    known |= kernel_cases.OF_ONE_IMAGE
    return next(filter(None, drawn), None) or known[name]


def module_of(problem: Workload, peer: str) -> Any:
    """Return the module that sets up a problem for a peer: `build(problem, arrays, threads, peer, variant)` returns a
    session, and `variants(problem, peer)`, where it exists, the names of the formulations among which the fastest is
    chosen. Raises ImportError where the peer has no such module."""
    library = PEERS[peer]
    return import_module(f"benchmarks.peers.{library}" + f"_{problem.kind}" * (library in SPLIT))


def build(problem: Workload, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str = "") -> Any:
    """Return the session of a problem in this process."""
    if peer == "reference":
        arrays = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in arrays.items()}
    return module_of(problem, peer).build(problem, arrays, threads, peer, variant)


def variants(problem: Workload, peer: str) -> tuple[str, ...]:
    """Return the names of the formulations of a problem; "" where there is one without a name."""
    listed = getattr(module_of(problem, peer), "variants", None)
    names = ("",) if listed is None else listed(problem, peer)
    return names[:1] if peer == "reference" else names


class PeerServer(StepServer):
    """A peer in its process, which knows the problems by name."""

    def begin(self, peer: str, threads: int, caches: str | None) -> str:
        os.environ.setdefault(TVM_FOLDER, str(environment.cache_dir() / "tvm"))  # before its caches are fresh ones
        return super().begin(peer, threads, caches)

    def load(self) -> str:
        os.environ |= {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_DEPRECATION_WARNINGS": "0"}
        library = PEERS[self.peer]
        if library in ("einsmith", "torch"):
            return super().load()
        if library == "machine":
            return self.peer
        if library == "pykeops":
            super().load()
        if library == "tvm":
            os.environ["TVM_NUM_THREADS"] = str(self.threads)  # it is read when the library is loaded
        module = import_module(library)
        if library == "tensorflow":
            module.config.threading.set_intra_op_parallelism_threads(self.threads)
            module.config.threading.set_inter_op_parallelism_threads(self.threads)
        return f"{library} {module.__version__}"

    def open(self, problem: Any) -> None:
        super().open(find(problem))

    def list_variants(self) -> tuple[str, ...]:
        names = variants(self.problem, self.peer)
        if not names:
            raise ValueError("it has no operator for this problem")
        return names

    def make_session(self, variant: str) -> Any:
        return build(self.problem, self.arrays, self.threads, self.peer, variant)


class WorkerError(Exception):
    """The process answered with an error, died, or ran past its time. `kind`: missing, failed or timeout."""

    def __init__(self, kind: str, message: str):
        self.kind = kind
        super().__init__(message)


@dataclass
class Allowance:
    """Seconds that answers may still take: `left` falls by what each took, or by what its process computed where that
    is less, so that waiting for other work on the machine does not count."""

    left: float


class PeerProcess(workers.Worker):
    """A `PeerServer` in a process. Between two requests it is stopped by a signal: libraries whose idle threads spin
    would otherwise take the cores of the peer whose turn it is.

    `version`: of the library, once it is imported. server: the class, a `StepServer`."""

    def __init__(self, peer: str, threads: int, caches: Path | None, server: str = SERVER):
        super().__init__(server)
        self.peer, self.version = peer, ""
        self._arguments = peer, threads, None if caches is None else str(caches)

    @property
    def alive(self) -> bool:
        """Whether it can be asked again after an error."""
        return bool(self.version) and self.process is not None and self.process.poll() is None

    def ready(self, allowance: Allowance) -> None:
        """Wait until the library is imported. Raises WorkerError."""
        if not self.alive:
            self.version = self._answer("begin", self._arguments, allowance)
            self._begun = True

    def request(self, name: str, allowance: Allowance, *arguments: Any) -> Any:
        """Return the answer of a method of the server. Raises WorkerError."""
        self.ready(allowance)
        return self._answer(name, arguments, allowance)

    def _answer(self, name: str, arguments: tuple, allowance: Allowance) -> Any:
        if self.process is None:
            self._spawn()
        self._wall, self._computed = time.monotonic(), tree_seconds(self.process.pid)  # type: ignore[union-attr]
        self._signal(signal.SIGCONT)
        try:
            return self._exchange(name, arguments, max(0.0, allowance.left))
        except workers.Lost as e:
            late = "did not end within" in str(e)
            raise WorkerError("timeout" if late else "failed", "over the time cap" if late else str(e)) from None
        except workers.Failed as e:
            kind, _, text = str(e).partition(": ")
            missing = name == "begin" and kind in ("ImportError", "ModuleNotFoundError")
            raise WorkerError("missing" if missing else "failed", text if missing else str(e)) from None
        finally:
            allowance.left -= self._read_clock()
            self._signal(signal.SIGSTOP)

    def _read_clock(self) -> float:
        """Return the seconds since the request that count: those that the process computed, where that is less, and
        at least a part of those by the clock."""
        now = time.monotonic() - self._wall
        computed = None if self.process is None else tree_seconds(self.process.pid)
        if computed is None or self._computed is None:
            return now
        return max(now / PATIENCE, min(now, computed - self._computed))

    def _signal(self, number: int) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


def tree_seconds(process: int) -> float | None:
    """Return the processor seconds of a process and all that descend from it; None where it has ended."""
    seconds = 0.0
    try:
        root = psutil.Process(process)
        descendants = root.children(recursive=True)
        seconds += sum(root.cpu_times()[:4])  # its own and its ended children's, user and system
    except psutil.NoSuchProcess:
        return None
    for descendant in descendants:
        with suppress(psutil.NoSuchProcess):
            seconds += sum(descendant.cpu_times()[:4])
    return seconds


class Crew:
    """The processes of a run, one for each peer, started when they are first needed and again after a failure.

    caches: folder of their code; None for the user's own caches. server: as in `PeerProcess`."""

    def __init__(self, threads: int, caches: Path | None, server: str = SERVER):
        self.threads = threads
        self._caches, self._server = caches, server
        self._workers: dict[str, PeerProcess] = {}

    def caches(self, peer: str) -> Path | None:
        """Return where that peer's code is kept; None for the user's own caches."""
        return None if self._caches is None else self._caches / re.sub(r"[^\w-]+", "-", peer)

    def start(self, peer: str) -> PeerProcess:
        """Return the peer's process."""
        if peer not in self._workers:
            self._workers[peer] = PeerProcess(peer, self.threads, self.caches(peer), self._server)
        return self._workers[peer]

    def keep_calibration(self, peers: Sequence[str] = ("einsmith",)) -> None:
        """Give the caches of peers that are Einsmith what was measured of the machine before: measured anew beside
        other work, it would be another machine's, and the peers would have other kernels."""
        known = environment.cache_dir() / "calibration"
        for peer in peers:
            caches = self.caches(peer)
            if caches is not None and files.is_folder(known):
                shutil.copytree(known, caches / "EINSMITH_CACHE_DIR" / "calibration", dirs_exist_ok=True)

    def drop(self, peer: str) -> None:
        """End the peer's process; the next `start` makes another."""
        if peer in self._workers:
            self._workers.pop(peer).close()

    def close(self) -> None:
        """End all processes."""
        for peer in list(self._workers):
            self.drop(peer)


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
