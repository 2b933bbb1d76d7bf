"""The threads that explore: what they do again and again, for how long they wait, and how they end."""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from einsmith.backends.backend import Workshop
from einsmith.plan.kernel import Kernel, Rows

if TYPE_CHECKING:
    from einsmith.training.dynamic import Exploration

LOOK = 0.1
"""Seconds between two looks of a thread that waits."""
LEFT_SECONDS = 0.2
"""Seconds that a closing program waits for its threads."""

Kept = tuple[Kernel | Rows, str, float, float, float, bool]
"""What a workshop is told of a configuration that stays (`Workshop.keep`)."""


class Flag:
    """What threads look at now and then: waiting for it needs no lock, which a fork could leave held."""

    up = False


def loop(ref: weakref.ref[Exploration], name: str) -> None:
    """What a thread does until its exploration ends, or nobody has it any more."""
    while (own := ref()) is not None and not own._stop.up:
        stop, seconds = own._stop, 0.0
        try:
            own._record()
            if time.monotonic() > own._end:
                own.end("the time for it is over")
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
    pid: int, stop: Flag, workshop: Workshop, threads: Sequence[threading.Thread], found: queue.SimpleQueue[Kept],
    recording: Any,
) -> None:  # fmt: skip
    if os.getpid() != pid:  # a forked child has neither threads nor the process
        workshop.leave()
        return
    stop.up = True
    workshop.close()
    for thread in threads:
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(LEFT_SECONDS)
    record(workshop, found, recording)


def record(workshop: Workshop, found: queue.SimpleQueue[Kept], recording: Any) -> None:
    """Records what was found, in the order in which it was."""
    with recording:
        while not found.empty():
            workshop.keep(*found.get())
