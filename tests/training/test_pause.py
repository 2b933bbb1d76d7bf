"""The process that tunes rests when it is told to, and for no longer than whoever said so is there."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from einsmith.base.system import processes, processors
from einsmith.driver import workshop
from einsmith.driver.bound_program import BoundProgram
from einsmith.driver.executable import Executable
from einsmith.tuning.calibration import load
from einsmith.tuning.programs import exploring
from tests.training.test_dynamic import BATCH, Simulated, exploration, simulated, step, store

__all__ = ["simulated", "store"]
LARGE = bytes(1 << 20)
"""More than a pipe holds."""


@pytest.fixture
def aside(monkeypatch) -> Iterator[workshop.WorkshopProcess]:
    monkeypatch.setattr(workshop.WorkshopProcess, "server", "tests.training.sleeper:Sleeper")
    monkeypatch.setattr(workshop.WorkshopProcess, "idle", False)
    made = workshop.WorkshopProcess()
    yield made
    made.close()


def asked(aside: workshop.WorkshopProcess, *arguments: object) -> tuple[threading.Thread, list[tuple]]:
    """A thread that asks, and what it is answered."""
    answers: list[tuple] = []
    thread = threading.Thread(target=lambda: answers.append(aside.ask("work", *arguments)), daemon=True)
    thread.start()
    return thread, answers


def state(aside: workshop.WorkshopProcess) -> str:
    """Of the process, as the system has it: T is stopped."""
    assert aside.process is not None
    return Path(f"/proc/{aside.process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_an_expired_pause_ends(aside) -> None:
    aside.ask("work", 0.0)
    thread, answers = asked(aside, 0.5)
    while not aside.paused and thread.is_alive():
        aside.pause(2.0)
        time.sleep(0.01)
    assert state(aside) == "T" and aside.resumed == 0
    thread.join(60)
    assert answers and not aside.paused and aside.resumed == 1 and aside.paused_seconds >= 1.5


def test_an_idle_process_answers(aside) -> None:
    """Nor is it stopped while it has nothing to do, or is told something that a pipe does not hold."""
    aside.ask("work", 0.0)
    aside.pause(2.0)
    assert not aside.paused and state(aside) != "T"
    thread, answers = asked(aside, 0.0, LARGE)
    thread.join(60)
    assert answers


def test_a_process_that_has_not_begun_is_not_stopped(aside) -> None:
    """It would not end with its parent."""
    thread, answers = asked(aside, 0.0)
    while not answers and not aside.begun:
        aside.pause(0.5)
        assert not aside.paused or aside.begun
    thread.join(60)
    assert answers


def test_a_process_starts_ahead(aside) -> None:
    aside.prepare()
    process = aside.process
    assert aside.is_prepared and process is not None
    aside.start()
    assert not aside.is_prepared and aside.process is process


def test_another_thread_starts_no_process_ahead(aside) -> None:
    """It would end with the thread."""
    thread = threading.Thread(target=aside.prepare)
    thread.start()
    thread.join()
    assert aside.process is None and not aside.is_prepared


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


def test_work_within_a_step_is_seen(simulated: Simulated, monkeypatch) -> None:
    monkeypatch.setattr(exploring, "MAX_COST_SHARE", 0.0)
    made = step("dynamic")
    made.compile(*BATCH)
    (simulated.run,) = made.compiler.programs.values()
    called, quiet = BoundProgram.__call__, []
    budget = exploration(made).budget
    monkeypatch.setattr(budget, "step", lambda seconds, q, *_: quiet.append(q))

    def answers(run: Executable, arrays: Any) -> Any:
        simulated.start_count += len(quiet) % 2
        return called(run, arrays)

    monkeypatch.setattr(BoundProgram, "__call__", answers)
    for _ in range(4):
        made(*BATCH)
    assert quiet == [True, False, True, False]
