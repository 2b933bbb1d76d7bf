from __future__ import annotations

import time

import pytest

from einsmith.bench.worker import limit_cpus, measure


class Sleeper:
    def __init__(self, seconds: float):
        self.seconds = seconds

    def step(self) -> float:
        time.sleep(self.seconds)
        return 0.0

    def results(self) -> dict:
        return {}


def test_every_formulation_is_measured() -> None:
    seconds = {"a": 0.02, "b": 0.002, "c": 0.01}

    def build(name: str) -> Sleeper:
        if name == "broken":
            raise ValueError(name)
        return Sleeper(seconds[name])

    got = measure([*seconds, "broken"], build, 3)
    assert list(got) == list(seconds) and min(got, key=got.__getitem__) == "b"
    with pytest.raises(ValueError, match="broken"):
        measure(["broken", "a"], build, 3)


def test_limit_cpus_leaves_enough(monkeypatch) -> None:
    got: list[list[int]] = []
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(100, 108)), raising=False)
    monkeypatch.setattr("os.sched_setaffinity", lambda pid, cpus: got.append(list(cpus)), raising=False)
    limit_cpus(3)
    assert got == [[100, 101, 102]]
    limit_cpus(8)
    assert len(got) == 1
