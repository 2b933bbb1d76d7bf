"""Programs that tell other threads of what they have done, and wait for them."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

from einsmith.runtime.program import Program
from einsmith.runtime.steps import Await, CheckZero, Notify


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_a_program_tells_and_waits(pipe):
    """What it has told comes before the wait; the steps after it come when the other thread has answered."""
    there, back = pipe, os.pipe()
    message, checked = np.array([7], np.uint8), np.zeros(1, np.int32)
    steps = [Notify(there[1], message.ctypes.data), Await(back[0]), CheckZero(checked.ctypes.data, 3)]
    told = []

    def answer():
        told.append(os.read(there[0], 1))
        checked[0] = 1
        os.write(back[1], b"x")

    thread = threading.Thread(target=answer)
    thread.start()
    assert Program(steps, 1, 0).run() == 3 and told == [b"\7"]
    thread.join()
    for descriptor in back:
        os.close(descriptor)


def test_signals_are_handled_while_it_waits(pipe):
    """A handler that returns is no end of the wait."""
    reader, writer = pipe
    seen = []

    def handle(number, frame):
        seen.append(number)
        if len(seen) == 3:
            os.write(writer, b"x")

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        assert Program([Await(reader)], 1, 0).run() == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(seen) >= 3


def test_an_exception_of_a_signal_ends_the_wait(pipe):
    def handle(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handle)
    start = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            Program([Await(pipe[0])], 1, 0).run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - start < 10
