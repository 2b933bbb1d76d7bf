"""Run and end the background threads of an exploration."""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from einsmith.driver.backend import Workshop
from einsmith.schedule.kernel import Kernel

if TYPE_CHECKING:
    from einsmith.tuning.programs.online import Exploration

POLL_SECONDS = 0.1
"""Seconds between two polls of a waiting thread."""
JOIN_SECONDS = 0.2
"""Seconds that a closing program waits for its threads."""

RecordArguments = tuple[Kernel, str, float, float, float, bool]
"""Arguments of `Workshop.keep` for a configuration that won."""


class Flag:
    """A flag that threads poll: waiting for it needs no lock, which a fork could leave held."""

    up = False


def loop(ref: weakref.ref[Exploration], name: str) -> None:
    """Call the exploration's method `name`, and wait the seconds that it returns, until the exploration ends or is
    garbage-collected. Errors end the exploration, not the training."""
    while (exploration := ref()) is not None and not exploration._stop.up:
        stop, seconds = exploration._stop, 0.0
        try:
            exploration._record()
            if time.monotonic() > exploration._end:
                exploration.end("the time limit is reached")
            else:
                seconds = getattr(exploration, name)()
        except Exception as e:  # the training goes on
            if not exploration._stop.up:
                exploration.fail(e)
        del exploration
        end = time.monotonic() + seconds
        while not stop.up and ref() is not None and (remaining := end - time.monotonic()) > 0:
            time.sleep(min(POLL_SECONDS, remaining))


def close(
    pid: int,
    stop: Flag,
    workshop: Workshop,
    threads: Sequence[threading.Thread],
    unrecorded: queue.SimpleQueue[RecordArguments],
    recording: Any,
) -> None:
    """Stop the threads, close the workshop and record the unrecorded configurations; in a forked child, do nothing."""
    if os.getpid() != pid:  # a forked child has neither threads nor the process
        return
    stop.up = True
    workshop.close()
    for thread in threads:
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(JOIN_SECONDS)
    record(workshop, unrecorded, recording)


def record(workshop: Workshop, unrecorded: queue.SimpleQueue[RecordArguments], recording: Any) -> None:
    """Write queued configurations to the workshop's store, in their order."""
    with recording:
        while not unrecorded.empty():
            workshop.keep(*unrecorded.get())
