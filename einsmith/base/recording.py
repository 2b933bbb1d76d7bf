"""Record the phases, runs and kernels of a process with their times, and write them as Chrome trace events, which
Perfetto (ui.perfetto.dev) shows.

The format is the JSON object format of "Trace Event Format" (Chromium project). Times are those of
`time.perf_counter_ns`; a file has them in microseconds from the recorder's beginning.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from einsmith.base import environment, files, forks, locks, messages
from einsmith.base.arguments import show
from einsmith.base.errors import ArgumentError, KindError, KnobError

MAX_EVENTS = 200_000
"""Most events of a file: about 35 MB, which Perfetto opens in a few seconds."""
WORKER_ROWS = 1000
"""Row of the first native thread; the rows of Python's threads come before."""
COMPILATION = "compilation"
"""Category of the phases of compilation."""


class Event(NamedTuple):
    """A span or the value of a counter.

    Attributes:
        name: what is shown.
        start: when it begins (nanoseconds).
        duration: how long it takes (nanoseconds); None for a counter.
        category: a span's category.
        row: number of the span's row; None for a counter, which has a track of its own.
        args: further facts about a span; the values of a counter.
    """

    name: str
    start: int
    duration: int | None
    category: str
    row: int | None
    args: Mapping[str, Any]


class Recorded(Protocol):
    """The record of a program's run. Its events are created when the file is written."""

    @property
    def threads(self) -> int:
        """Return the number of native threads that have rows."""
        ...

    @property
    def count(self) -> int:
        """Return the most events of the run."""
        ...

    def events(self, row: int) -> Iterable[Event]:
        """Yield the run's events, at most `count`, with those of the calling thread in `row`."""
        ...


class Recorder:
    """Collector of spans and runs, up to a limit, beyond which runs and phases are counted and left out.

    `labels`: what graph nodes were made for (`ir.labels`), while the nodes live.
    """

    def __init__(self, limit: int = MAX_EVENTS):
        self.limit, self.begun = limit, time.perf_counter_ns()
        self.labels: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._lock = locks.lock()
        self._events: list[Event] = []
        self._runs: list[tuple[Recorded, int]] = []
        self._rows: dict[int, tuple[int, str]] = {}
        self._count = self.left_out = 0

    def row(self) -> int:
        """Return the number of the row of the Python thread that asks."""
        thread = threading.current_thread()
        with self._lock:
            return self._rows.setdefault(thread.ident or 0, (len(self._rows) + 1, thread.name))[0]

    def _has_room(self, events: int) -> bool:
        """Take the room for a number of events. The caller holds the lock."""
        if self._count + events > self.limit:
            self.left_out += 1
            return False
        self._count += events
        return True

    def add_phase(self, name: str, start: int, end: int, args: Mapping[str, Any]) -> None:
        """Add a phase of compilation of the calling thread, from `start` to `end` (nanoseconds)."""
        row = self.row()
        with self._lock:
            if self._has_room(1):
                self._events.append(Event(name, start, end - start, COMPILATION, row, args))

    def add_run(self, run: Recorded) -> None:
        """Add a run of the thread that asks."""
        row = self.row()
        with self._lock:
            if self._has_room(run.count):
                self._runs.append((run, row))

    def data(self) -> dict[str, Any]:
        """Return the content of a file: metadata, then all events by time, those around others first."""
        process = os.getpid()
        with self._lock:
            events, runs, rows = list(self._events), list(self._runs), list(self._rows.values())
        for run, row in runs:
            events += run.events(row)
        threads = max((run.threads for run, _ in runs), default=0)
        rows += [(WORKER_ROWS + n, f"thread {n} of the program") for n in range(threads)]
        out: list[dict[str, Any]] = [_metadata("process_name", process, 0, name=f"einsmith {Path(sys.argv[0]).name}")]
        for row, name in rows:
            out.append(_metadata("thread_name", process, row, name=name))
            out.append(_metadata("thread_sort_index", process, row, sort_index=row))
        for e in sorted(events, key=lambda e: (e.start, -(e.duration or 0))):
            shown = {"name": e.name, "ph": "X", "ts": (e.start - self.begun) / 1000, "pid": process}
            if e.duration is None:
                shown |= {"ph": "C", "args": dict(e.args)}
            else:
                shown |= {"cat": e.category, "tid": e.row, "dur": e.duration / 1000, "args": dict(e.args)}
            out.append(shown)
        other: dict[str, Any] = {"events": len(events), "left out": self.left_out}
        if self.left_out:
            other["note"] = f"the file is full: {self.left_out} later runs and phases of compilation are left out"
        return {"traceEvents": out, "displayTimeUnit": "ns", "otherData": other}

    def write(self, path: Path) -> None:
        """Write the file whole, or not at all. Raises OSError."""
        files.write(path, json.dumps(self.data(), separators=(",", ":"), allow_nan=False))


def _metadata(what: str, process: int, row: int, **args: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": row, "args": args}


_own: ContextVar[Recorder | None] = ContextVar("einsmith_recorder", default=None)
_of_process: Recorder | None = None


def current() -> Recorder | None:
    """Return the recorder of this context, or that of the process where EINSMITH_TRACE is set; None where nothing is
    recorded. Raises KnobError where the variable's file cannot be written."""
    return _own.get() or (recorder_of_process() if environment.TRACE.is_set() else None)


def recorder_of_process() -> Recorder | None:
    """Return the recorder that writes the file of EINSMITH_TRACE at the process's exit; None where the variable is
    empty. Raises KnobError where the file cannot be written."""
    global _of_process
    path = environment.TRACE.get()
    if path is None or _of_process is not None:
        return _of_process
    path = path.with_name(path.name.replace("%p", str(os.getpid())))
    if problem := files.unwritable(path):
        raise KnobError(
            f"the environment variable {environment.TRACE.name} is {str(path)!r}, which cannot be written: {problem}; "
            "set it to a file that can be written, or unset it"
        )
    _of_process = recorder = Recorder()
    atexit.register(_write_at_exit, recorder, path, os.getpid())
    return recorder


def _write_at_exit(recorder: Recorder, path: Path, process: int) -> None:
    if os.getpid() != process:
        return
    try:
        recorder.write(path)
    except OSError as e:
        messages.say(f"einsmith: {environment.TRACE.name}={path} could not be written: {e}")


def file_to_write(path: Any) -> Path:
    """Return the path of a trace. Raises KindError for what is not a path, and ArgumentError where the file cannot be
    written."""
    if not isinstance(path, (str, os.PathLike)):
        raise KindError(f"trace={show(path)} must be the path of a file")
    try:
        file = Path(path).expanduser()
    except RuntimeError as e:  # there is no home folder
        raise ArgumentError(f"trace={str(path)!r} cannot be written: {e}; name another file") from None
    if problem := files.unwritable(file):
        raise ArgumentError(f"trace={str(file)!r} cannot be written: {problem}; name another file")
    return file


@contextmanager
def recording() -> Iterator[Recorder]:
    """Yield a recorder for programs that this context compiles, instead of the recorder of the process."""
    token = _own.set(recorder := Recorder())
    try:
        yield recorder
    finally:
        _own.reset(token)


def phase(name: str, **args: Any) -> AbstractContextManager[None]:
    """Return the context of a phase of compilation, which is recorded if anything is."""
    recorder = current()
    return nullcontext() if recorder is None else _phase(recorder, name, args)


@contextmanager
def _phase(recorder: Recorder, name: str, args: Mapping[str, Any]) -> Iterator[None]:
    start = time.perf_counter_ns()
    try:
        yield
    finally:
        recorder.add_phase(name, start, time.perf_counter_ns(), args)


def _forget() -> None:
    """Drop the records of a forked process: its parent writes the file."""
    global _of_process
    if _of_process is not None:
        _of_process = Recorder(limit=0)


forks.at_fork(after_in_child=_forget)
