from __future__ import annotations

import time

from benchmarks.worker import fastest, limit_cpus


class Sleeper:
    def __init__(self, seconds: float):
        self.seconds = seconds

    def step(self) -> float:
        time.sleep(self.seconds)
        return 0.0

    def results(self) -> dict:
        return {}


def test_the_fastest_formulation_is_chosen() -> None:
    seconds = {"a": 0.02, "b": 0.002, "c": 0.01}
    assert fastest(list(seconds), lambda name: Sleeper(seconds[name]), 3) == "b"


def test_limit_cpus_leaves_enough(monkeypatch) -> None:
    got: list[list[int]] = []
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(100, 108)), raising=False)
    monkeypatch.setattr("os.sched_setaffinity", lambda pid, cpus: got.append(list(cpus)), raising=False)
    limit_cpus(3)
    assert got == [[100, 101, 102]]
    limit_cpus(8)
    assert len(got) == 1
