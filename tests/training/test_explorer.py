"""The workshop that is started ahead: one at a time, of one program, and closed where there is none."""

from __future__ import annotations

import threading
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from einsmith.driver import registry
from einsmith.tuning.programs import explorer
from einsmith.tuning.programs.explorer import Explorer


class Workshop:
    """A workshop that notes whether it is closed."""

    def __init__(self) -> None:
        self.closed = False
        self.target, self.threads = None, 0

    def prepare(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Workshops:
    """A back end whose workshops are listed. `waits`: what a thread does while it makes one."""

    def __init__(self) -> None:
        self.made: list[Workshop] = []
        self.waits = lambda: None

    def target(self, threads: int) -> str:
        return "target"

    def workshop(self, target: Any, threads: int) -> Workshop:
        self.waits()
        self.made.append(Workshop())
        return self.made[-1]


class Explored:
    """An exploration that does nothing."""

    over = ""

    def __init__(self, run: Any, workshop: Workshop, seconds: float):
        self.run, self.workshop, self.state = run, workshop, self

    def end(self, why: str) -> None:
        self.over = why
        self.workshop.close()


@pytest.fixture
def backend(monkeypatch) -> Workshops:
    made = Workshops()
    monkeypatch.setattr(registry, "DEFAULT", made)
    monkeypatch.setattr(explorer, "Exploration", Explored)
    return made


def program(backend: Workshops) -> Any:
    return SimpleNamespace(backend=backend, target="target")


def test_a_program_takes_the_workshop(backend) -> None:
    own: Any = Explorer()
    with own.preparing(None, 1, []):
        exploration = own.begin(program(backend), 2, inf, [])
    (workshop,) = backend.made
    assert exploration.workshop is workshop and not workshop.closed
    assert (workshop.target, workshop.threads) == ("target", 2)


def test_a_workshop_that_no_program_takes_is_closed(backend) -> None:
    own = Explorer()
    with pytest.raises(KeyboardInterrupt), own.preparing(None, 1, []):
        raise KeyboardInterrupt
    with own.preparing(None, 1, []):
        pass
    assert [w.closed for w in backend.made] == [True, True]


def test_a_workshop_that_is_interrupted_while_it_starts_is_closed(backend, monkeypatch) -> None:
    def interrupted(own: Workshop) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Workshop, "prepare", interrupted)
    with pytest.raises(KeyboardInterrupt), Explorer().preparing(None, 1, []):
        pass
    assert [w.closed for w in backend.made] == [True]


def test_a_workshop_of_another_back_end_is_not_taken(backend) -> None:
    own: Any = Explorer()
    other = Workshops()
    with own.preparing(None, 1, []):
        exploration = own.begin(program(other), 1, inf, [])
    assert exploration.workshop is other.made[0] and not other.made[0].closed
    assert [w.closed for w in backend.made] == [True]


def test_two_threads_prepare_one_workshop(backend) -> None:
    own: Any = Explorer()
    both, prepared = threading.Barrier(2), threading.Barrier(2)
    backend.waits = lambda: threading.Event().wait(0.2)  # time for the other thread to come here, too
    explorations: list[Explored] = []

    def compiles() -> None:
        both.wait(60)
        with own.preparing(None, 1, []):
            prepared.wait(60)
            explorations.append(own.begin(program(backend), 1, inf, []))

    threads = [threading.Thread(target=compiles) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(backend.made) == 2, "one was prepared, which one program took; the other program has another"
    assert {id(e.workshop) for e in explorations} == {*map(id, backend.made)}
    assert [w.closed for w in backend.made] == [True, False], "one program is explored at a time"


def test_a_thread_that_fails_leaves_the_workshop_of_another_one(backend) -> None:
    own: Any = Explorer()
    with own.preparing(None, 1, []):
        with pytest.raises(MemoryError), own.preparing(None, 1, []):
            raise MemoryError
        exploration = own.begin(program(backend), 1, inf, [])
    assert [w.closed for w in backend.made] == [False] and exploration.workshop is backend.made[0]
