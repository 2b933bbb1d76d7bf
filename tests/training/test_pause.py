"""The process that tunes rests when it is told to, and for no longer than whoever said so is there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from einsmith.tuning.kernels import workshop

LARGE = bytes(1 << 20)
"""More than a pipe holds."""


@pytest.fixture
def aside(monkeypatch) -> Iterator[workshop.WorkshopProcess]:
    monkeypatch.setattr(workshop.WorkshopProcess, "server", "tests.training.sleeper:Sleeper")
    monkeypatch.setattr(workshop.WorkshopProcess, "is_low", False)
    process = workshop.WorkshopProcess()
    yield process
    process.close()


def answer(aside: workshop.WorkshopProcess, seconds: float = 60.0) -> tuple | None:
    """What the process answers within so many seconds."""
    end = time.monotonic() + seconds
    while (result := aside.poll()) is None and time.monotonic() < end:
        time.sleep(0.01)
    return result


def state(aside: workshop.WorkshopProcess) -> str:
    """Of the process, as the system has it: T is stopped."""
    assert aside.process is not None
    return Path(f"/proc/{aside.process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_process_that_is_paused_works_on_later(aside, monkeypatch) -> None:
    """Time spent paused does not count towards its limit."""
    aside.post("work", 0.0)
    assert answer(aside) is not None
    aside.limit = 3.0
    aside.post("work", 0.3)
    assert aside.is_working
    aside.pause(True)
    assert not aside.is_working and answer(aside, 4.0) is None and state(aside) == "T"
    before = aside.seconds
    aside.pause(False)
    assert aside.is_working and answer(aside) is not None and not aside.is_working
    assert aside.seconds >= before + 0.2


def test_a_large_question_waits_for_nothing(aside) -> None:
    """A pipe does not hold it."""
    begin = time.monotonic()
    aside.post("work", 0.0, LARGE)
    assert time.monotonic() - begin < 5
    assert answer(aside) is not None


def test_a_process_that_has_not_begun_is_not_stopped(aside) -> None:
    """It would not end with its parent."""
    aside.prepare()
    aside.pause(True)
    assert aside.is_working and state(aside) != "T"
    aside.post("work", 0.0)
    assert answer(aside) is not None


def test_a_process_starts_ahead(aside) -> None:
    aside.prepare()
    process = aside.process
    assert process is not None and not aside.begun
    aside.post("work", 0.0)
    assert answer(aside) is not None and aside.process is process and aside.begun


def test_a_process_that_dies_is_replaced(aside) -> None:
    aside.post("work", 60.0)
    while not aside.begun:
        aside.poll()
    time.sleep(0.2)
    aside.process.kill()
    with pytest.raises(workshop.Lost, match="SIGKILL"):
        answer(aside)
    aside.post("work", 0.0)
    assert answer(aside) is not None and aside.seconds > 0


def test_a_process_has_a_low_priority(aside, monkeypatch) -> None:
    niceness: list[int] = []
    monkeypatch.setattr(os, "nice", niceness.append)
    for low in (True, False):
        workshop.Shop().begin(20.0, (), low)
    assert niceness == [10]
