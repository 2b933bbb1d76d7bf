"""The process that tunes rests when it is told to, and for no longer than whoever said so is there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from einsmith.base.system import processes, processors
from einsmith.driver import workshop
from einsmith.tuning.calibration import load

LARGE = bytes(1 << 20)
"""More than a pipe holds."""


@pytest.fixture
def aside(monkeypatch) -> Iterator[workshop.WorkshopProcess]:
    monkeypatch.setattr(workshop.WorkshopProcess, "server", "tests.training.sleeper:Sleeper")
    monkeypatch.setattr(workshop.WorkshopProcess, "idle", False)
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


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no such policy")
@pytest.mark.parametrize("allowed", [True, False])
def test_a_process_beside_busy_processors_is_not_starved(monkeypatch, allowed: bool) -> None:
    """It leaves them to others only where these leave some to it. Without privileges it cannot return."""
    spare: list[float | None] = []
    policies, niceness = [os.SCHED_OTHER], []

    def set_policy(process: int, policy: int, parameters: Any) -> None:
        if policies[-1] == os.SCHED_IDLE and not allowed:
            raise PermissionError
        policies.append(policy)

    monkeypatch.setattr(load.Watch, "spare", lambda own: spare[-1])
    monkeypatch.setattr(os, "nice", niceness.append)
    monkeypatch.setattr(os, "sched_getscheduler", lambda process: policies[-1])
    monkeypatch.setattr(os, "sched_setscheduler", set_policy)
    monkeypatch.setattr(workshop.bench, "register", lambda patterns: None)
    spare.append(None)
    shop = workshop.Shop()
    shop.begin(20.0, (), True)
    assert niceness == [19] and policies == [os.SCHED_OTHER], "not known yet"
    for now, policy in (
        (0.05, os.SCHED_OTHER),
        (0.6, os.SCHED_IDLE),
        (0.0, os.SCHED_OTHER if allowed else os.SCHED_IDLE),
    ):
        spare.append(now)
        shop.choose_policy()
        assert policies[-1] == policy
    spare.append(0.6)
    shop = workshop.Shop()
    shop.begin(20.0, (), False)
    assert niceness == [19], "where it need not yield"


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no such policy")
@pytest.mark.parametrize("other", [False, True])
def test_a_process_yields_to_the_trainer(monkeypatch, other: bool) -> None:
    """On a machine that trains on all processors, it gets no time of theirs; beside another program it does."""
    now, policies = [0.0], [os.SCHED_OTHER]
    trainer = {os.getppid() + other: now}
    monkeypatch.setattr(processors, "allowed", lambda: [0, 1])
    monkeypatch.setattr(load, "_times", lambda: (now[0], 0.0, 0.0, 70.0 + 2 * now[0]))
    monkeypatch.setattr(processes, "processor_seconds", lambda pid: 2 * trainer.get(pid, [0.0])[0])
    monkeypatch.setattr(os, "nice", lambda niceness: None)
    monkeypatch.setattr(os, "sched_getscheduler", lambda process: policies[-1])
    monkeypatch.setattr(os, "sched_setscheduler", lambda process, policy, parameters: policies.append(policy))
    monkeypatch.setattr(workshop.bench, "register", lambda patterns: None)
    shop = workshop.Shop()
    shop.begin(20.0, (), True)
    now[0] = 1.0
    shop.choose_policy()
    assert policies[-1] == (os.SCHED_OTHER if other else os.SCHED_IDLE)
