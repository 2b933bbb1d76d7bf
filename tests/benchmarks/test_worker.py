from __future__ import annotations

import time

import pytest

from einsmith.base.system import processors
from einsmith.bench.server import limit_cpus, measure


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
    monkeypatch.setattr(processors, "cores", lambda: [[100, 104], [101, 105], [102, 106], [103, 107]])
    monkeypatch.setattr(processors, "restrict", got.append)
    limit_cpus(3)
    limit_cpus(5)
    assert got == [[100, 101, 102], [100, 101, 102, 103, 104]]
    limit_cpus(8)
    assert len(got) == 2
