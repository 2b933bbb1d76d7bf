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
from einsmith.schedule.kernel import Kernel, Rows

if TYPE_CHECKING:
    from einsmith.tuning.programs.online import Exploration

LOOK = 0.1
"""Seconds between two polls of a waiting thread."""
LEFT_SECONDS = 0.2
"""Seconds that a closing program waits for its threads."""

Kept = tuple[Kernel | Rows, str, float, float, float, bool]
"""Arguments of `Workshop.keep` for a configuration that won."""


class Flag:
    """A flag that threads poll: waiting for it needs no lock, which a fork could leave held."""

    up = False


def loop(ref: weakref.ref[Exploration], name: str) -> None:
    """Call the exploration's method `name`, and wait the seconds that it returns, until the exploration ends or is
    garbage-collected. Errors end the exploration, not the training."""
    while (own := ref()) is not None and not own._stop.up:
        stop, seconds = own._stop, 0.0
        try:
            own._record()
            if time.monotonic() > own._end:
                own.end("the time limit is reached")
            else:
                seconds = getattr(own, name)()
        except Exception as e:  # the training goes on
            if not own._stop.up:
                own.fail(e)
        del own
        end = time.monotonic() + seconds
        while not stop.up and ref() is not None and (left := end - time.monotonic()) > 0:
            time.sleep(min(LOOK, left))


def close(
    pid: int,
    stop: Flag,
    workshop: Workshop,
    threads: Sequence[threading.Thread],
    found: queue.SimpleQueue[Kept],
    recording: Any,
) -> None:
    """Stop the threads, close the workshop and record what was found; a forked child only leaves the workshop."""
    if os.getpid() != pid:  # a forked child has neither threads nor the process
        return
    stop.up = True
    workshop.close()
    for thread in threads:
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(LEFT_SECONDS)
    record(workshop, found, recording)


def record(workshop: Workshop, found: queue.SimpleQueue[Kept], recording: Any) -> None:
    """Write queued findings to the workshop's store, in their order."""
    with recording:
        while not found.empty():
            workshop.keep(*found.get())
