"""Answer requests in another process, which may crash or hang without harm to this one.

`Worker` starts the process (`processes`), sends it requests and waits for the answers with a time limit. If it dies,
takes too long or writes something that is not an answer, the request raises `Lost`, and the next request starts another
process.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from math import inf
from typing import Any, Self
from weakref import WeakSet

from einsmith.base import forks, locks, servers
from einsmith.base.errors import EinsmithError
from einsmith.base.system.processes import can_wait_for_pipes

LOOK = 1.0
"""Most seconds between two calls of `Worker._read_clock` during a wait."""
PIPE = 1 << 16
"""Most bytes that are read at once: as many as a pipe holds."""
_STARTING = locks.Awaited("starting a process")
"""A fork waits for it: a child that inherits the far ends of new pipes would keep them open when the process ends."""
_workers: WeakSet[Worker] = WeakSet()


class Lost(EinsmithError):
    """The process died while it worked on a request, or did not answer in time."""


class Failed(EinsmithError):
    """A request raised an error in the other process, or cannot be sent to it."""


class Worker:
    """A server (`servers.serve`) in a process of its own. The process starts when it is first needed, and again after
    it was lost. One thread at a time may use it; `with` ends the process. A forked child has no process yet.

    Args:
        server: the server's class, as in `servers.command`
        limit: most seconds that a request takes, unless it has a limit of its own
        start: most seconds that the process and the server's `begin` take to start
        hidden: first letters of the names of environment variables that the process does not get; empty: it gets all
    """

    def __init__(self, server: str, limit: float = inf, start: float = inf, hidden: str = ""):
        self.limit, self.hidden = limit, hidden
        self._server, self._start_limit = server, start
        self.process: subprocess.Popen | None = None
        self._begin_arguments: tuple = ()
        self.begun = False
        self.over = False
        """Whether no process may start any more (`kill`)."""
        self.starts = 0
        """Number of processes started so far."""
        self.is_asked = False
        """Whether the process has a request, or its beginning, to answer."""
        self._unsent, self._received = memoryview(b""), bytearray()
        """Bytes of the request that are not sent yet, and those of its answer so far."""
        self._request_limit = self._end = 0.0
        self._posted: tuple[str, tuple] | None = None
        """What is asked once the process has begun."""
        _workers.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set_up(self, *arguments: Any) -> None:
        """Set the arguments of the server's `begin`, which is called before the next request and after each restart."""
        self._begin_arguments, self.begun = arguments, False

    def start(self) -> None:
        """Start the process and call the server's `begin`, unless both have happened. Raises as `ask` does."""
        if self.over:
            raise Lost("the process is over")
        if not self.begun:
            if self.process is None:
                self._spawn()
            self._exchange("begin", self._begin_arguments, self._start_limit)
            self.begun = True

    def ask(self, name: str, *arguments: Any, limit: float | None = None) -> Any:
        """Call a method of the server and return its result.

        Raises Lost where the process dies or does not answer within `limit` seconds, Failed where the method raises an
        error or the system is Windows, and OSError where the system starts no process.
        """
        self.start()
        return self._exchange(name, arguments, self.limit if limit is None else limit)

    def post(self, name: str = "", *arguments: Any) -> None:
        """Ask without waiting; `poll` returns the answer. Without a name, the process starts ahead. Raises Lost, Failed
        and OSError as `ask` does."""
        if self.over:
            raise Lost("the process is over")
        self._posted = (name, arguments) if name else None
        if self.process is None:
            self._spawn()
        if self.is_asked:  # to begin
            return
        if not self.begun:
            self._send("begin", self._begin_arguments, self._start_limit)
        elif self._posted is not None:
            self._send(*self._posted, self.limit)

    def poll(self) -> Any:
        """Return the answer to what was posted; None while there is none. Raises Lost and Failed as `ask` does."""
        if not self.is_asked:
            return None
        try:
            answer = self._advance(0.0)
        except BaseException:
            self.close()
            raise
        if answer is None:
            return None
        result = _result_of(*answer)
        if self.begun:
            return result
        self.begun = True
        if self._posted is not None:
            self._send(*self._posted, self.limit)
        return None

    def _spawn(self) -> None:
        if not can_wait_for_pipes():
            raise Failed("Windows waits for no process with a time limit; measure and check kernels on Linux or macOS")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
        environment.pop("EINSMITH_TRACE", None)  # the file is that of the process that started this one
        if self.hidden:
            environment = {name: x for name, x in environment.items() if not name.startswith(self.hidden)}
        with _STARTING:
            self.process = subprocess.Popen(
                servers.command(self._server),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                bufsize=0,
            )
        self.starts += 1
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), False)  # a process that does not read meets the time limit, too
        if self.over:  # killed while the process was starting
            self.close()
            raise Lost("the process is over")

    def _exchange(self, name: str, arguments: tuple, limit: float) -> Any:
        self._send(name, arguments, limit)
        try:
            while (answer := self._advance(LOOK)) is None:
                pass
        except BaseException:  # lost, or interrupted between question and answer
            self.close()
            raise
        return _result_of(*answer)

    def _send(self, name: str, arguments: tuple, limit: float) -> None:
        """Begin a request, which `_advance` sends."""
        try:
            request = servers.encode((name, arguments))
        except Exception as e:
            raise Failed(f"the request cannot be sent to the other process: {e}") from e
        self._unsent, self._received, self.is_asked = memoryview(request), bytearray(), True
        self._request_limit, self._end = limit, self._read_clock() + limit

    def _advance(self, seconds: float) -> tuple[bool, Any] | None:
        """Exchange bytes with the process, after waiting at most `seconds` until it takes or gives some. Return the
        answer once it is whole."""
        pipe = self._wait(select.POLLOUT if self._unsent else select.POLLIN, seconds)
        if pipe is None:
            return None
        if self._unsent:
            try:
                self._unsent = self._unsent[os.write(pipe, self._unsent) :]
            except BrokenPipeError:
                raise Lost(self._explain_end()) from None
            return None
        part = os.read(pipe, PIPE)
        if not part:
            raise Lost(self._explain_end())
        self._received += part
        if len(self._received) < servers.HEAD:
            return None
        head = bytes(self._received[: servers.HEAD])
        missing = int.from_bytes(head[len(servers.MARK) :], "little") + servers.HEAD - len(self._received)
        if head.startswith(servers.MARK) and missing > 0:
            return None
        if head.startswith(servers.MARK) and missing == 0:
            with suppress(Exception):  # whatever unpickling raises
                good, answer = pickle.loads(self._received[servers.HEAD :])
                self.is_asked = False
                return good, answer
        raise Lost("it wrote something that is not an answer")

    def _wait(self, event: int, seconds: float) -> int | None:
        """Wait at most `seconds` until the process's input takes data (POLLOUT) or its output has some (POLLIN). Return
        the pipe, or None. Raises Lost where the request's time limit is over."""
        process = self.process
        if process is None or process.stdin is None or process.stdout is None:
            raise Lost("the process belongs to the one that this one was forked from")
        pipe = (process.stdin if event == select.POLLOUT else process.stdout).fileno()
        poll = select.poll()
        poll.register(pipe, event)
        left = self._end - self._read_clock()
        if left > 0:
            return pipe if poll.poll(1000 * min(left, seconds)) else None
        raise Lost(f"it did not end within {self._request_limit:g} s")

    def _read_clock(self) -> float:
        """Return the seconds of the clock that time limits refer to."""
        return time.monotonic()

    def _explain_end(self) -> str:
        """Return a description of how the process ended, after it has closed a pipe."""
        assert self.process is not None
        try:
            code = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "the process has closed its input or output"
        return (
            f"the process died of {signal.Signals(-code).name}" if code < 0 else f"the process ended with status {code}"
        )

    def kill(self) -> None:
        """End the process for good: no other one starts. Any thread may call this; the one that waits for an answer
        gets an error."""
        self.over = True
        process = self.process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process; the next request starts another one."""
        process = self.process
        if process is not None:
            process.kill()
            process.wait()
        self.leave()

    def leave(self) -> None:
        """Forget the process without ending it."""
        process, self.process, self.begun, self.is_asked = self.process, None, False, False
        if process is not None:
            process.poll()  # notes that a forked child has no such process
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _result_of(good: bool, answer: Any) -> Any:
    """Return the result that an answer holds; raise Failed where it is an error in words."""
    if not good:
        raise Failed(answer)
    return answer


def _leave_all() -> None:
    """Leave the workers of the parent to it, in a forked child."""
    for worker in list(_workers):
        worker.leave()


forks.at_fork(after_in_child=_leave_all)
