"""Control the process that measures candidates: a candidate that hangs or crashes it is reported and left behind."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

from einsmith.base import processes
from einsmith.base.caches import Once
from einsmith.base.errors import EinsmithError, EinsmithWarning
from einsmith.cost.facts import Target
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import Pattern
from einsmith.kernels.sources import is_builtin
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.tuning.kernels.genetic import Candidate

CHOICE = 0
"""The number of the model's choice, with which all other candidates are compared."""
LIMIT = 20.0
"""Seconds that compiling a candidate and running it once, or a race, may take at most; LLVM takes up to 2 for the
largest kernels there are."""
RUNS = 40
"""Runs of each candidate that the time limit of a race allows for, in case the candidates are slow."""
START = 60.0
"""Seconds that a process may take to start."""
_SAID = Once("patterns that tuning leaves out", 64)


def unsendable(pattern: Pattern) -> str:
    """Return why another process cannot import a pattern; empty where it can."""
    if type(pattern).__module__ == "__main__":
        return "its class is defined in a script"
    try:
        pickle.dumps(pattern)
        return ""
    except Exception as e:  # a user's class may raise anything
        return f"it cannot be pickled: {e}"


def own_patterns() -> list[Pattern]:
    """Return the user's patterns that another process can import (`worker.register`). Warns once of each other one."""
    found = [(p, unsendable(p)) for p in autoconfig.PATTERNS if not is_builtin(p)]
    for pattern, why in found:
        if why and _SAID((pattern.name, why)):
            warnings.warn(
                f"tuning tries no configuration of the pattern {pattern.name!r}, as its process cannot import "
                f"the pattern: {why}; define the class in a module that can be imported, with attributes that can be "
                "pickled",
                EinsmithWarning, stacklevel=3,
            )  # fmt: skip
    return [p for p, why in found if not why]


class Lost(EinsmithError):
    """The measuring process died while it worked on a request, or did not answer in time."""


class Failed(EinsmithError):
    """A request raised an error in the measuring process."""


class BenchProcess:
    """A `worker.Bench` (or the server that `module` names) in a process of its own. The process starts when it is
    first needed, and again after it was lost. One thread at a time may use it; `with` ends the process."""

    module = "einsmith.tuning.kernels.worker"

    def __init__(self, limit: float | None = None):
        self.limit = LIMIT if limit is None else limit
        self._process: subprocess.Popen | None = None
        self._given: tuple | None = None
        self._begun = False
        self._known: set[int] = set()
        self.starts = 0
        """Number of processes started so far."""

    def __enter__(self) -> BenchProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, kernel: Kernel | Rows, target: Target, threads: int, cold: bool = False) -> None:
        """Set the kernel that later requests are about. User patterns that no other process can import are left
        out."""
        self._given = (kernel, target, threads, cold, own_patterns())
        self._begun = False
        self._known = set()

    def prepare(self, number: int, candidate: Candidate) -> str:
        """Compile a candidate and run it once; return the reason where it cannot be run, else an empty string."""
        reason = self._ask("prepare", number, candidate)
        if not reason:
            self._known.add(number)
        return reason

    def ready(self, number: int) -> bool:
        """Return whether a candidate is prepared: a process that was lost has lost all its candidates."""
        return self._begun and number in self._known

    def drop(self, numbers: Sequence[int]) -> None:
        gone = [n for n in numbers if n in self._known]
        if gone and self._begun:
            self._ask("drop", gone)
        self._known.difference_update(gone)

    def race(
        self, numbers: Sequence[int], seconds: float, whole: bool = False, run: float = 0.0
    ) -> tuple[list[list[float]], str]:
        """Race candidates in the process; see `worker.Bench.race`. run: approximate seconds of one run."""
        limit = self.limit + seconds + RUNS * run * len(numbers)
        return self._ask("race", list(numbers), seconds, whole, limit=limit)

    def vet(self, number: int, seed: int) -> str:
        """Return why a candidate may not be used; see `worker.Bench.vet`."""
        return self._ask("vet", number, seed)

    def _ask(self, name: str, *arguments: Any, limit: float | None = None) -> Any:
        if not self._begun:
            assert self._given is not None, "a bench begins with a kernel"
            self._begun = True
            self._call("begin", self._given, START)
        return self._call(name, arguments, self.limit if limit is None else limit)

    def _call(self, name: str, arguments: tuple, limit: float) -> Any:
        try:
            data = pickle.dumps((name, arguments))
        except Exception as e:
            raise Failed(f"the kernel cannot be sent to the process that measures it: {e}") from e
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(len(data).to_bytes(8, "little") + data)
            self._process.stdin.flush()
            end = self._now() + limit
            size = int.from_bytes(self._read(8, end), "little")
            good, answer = pickle.loads(self._read(size, end))
        except (OSError, EOFError, TimeoutError) as e:
            raise Lost(self._lose(isinstance(e, TimeoutError), limit)) from None
        except BaseException:
            self.close()  # interrupted between question and answer
            raise
        if not good:
            raise Failed(answer)
        return answer

    def _read(self, count: int, end: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        pipe, out = self._process.stdout.fileno(), b""
        while len(out) < count:
            left = end - self._now()
            if left <= 0:
                raise TimeoutError
            if not self._wait(pipe, left):
                continue
            part = os.read(pipe, count - len(out))
            if not part:
                raise EOFError
            out += part
        return out

    def _wait(self, pipe: int, seconds: float) -> bool:
        """Wait at most `seconds` for data to read; return whether there is some."""
        return bool(select.select([pipe], [], [], seconds)[0])

    def _now(self) -> float:
        """Return the seconds of the clock that time limits refer to."""
        return time.monotonic()

    def _start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
        self._process = subprocess.Popen(
            processes.command(self.module), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment, bufsize=0,
        )  # fmt: skip
        self.starts += 1

    def _lose(self, late: bool, limit: float) -> str:
        """End the process and return in words what became of it."""
        process = self._process
        assert process is not None
        if late:
            self.close()
            return f"it did not end within {limit:g} s"
        try:
            code = process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        self.close()
        return (
            f"the process died of {signal.Signals(-code).name}" if code < 0 else f"the process ended with status {code}"
        )

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        self._begun, self._known = False, set()
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def leave(self) -> None:
        """Drop the process in a forked child without ending it: it belongs to the parent."""
        self._process, self._begun, self._known = None, False, set()
