"""The benchmark of tuning: how many steps it takes, and what it says of dynamic mode."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from benchmarks import dynamic_mode, tuning
from benchmarks.worker import WorkerError


class Crew:
    """Workers whose steps take 10 ms, the first of all 0.5 s; the peer "xla" is missing."""

    def __init__(self, threads: int, caches: Any):
        self.steps: dict[str, int] = {}
        self.closed = False

    def keep_calibration(self, peers: Any) -> None:
        assert {"einsmith", "dynamic"} <= {*peers}

    def start(self, peer: str) -> PeerProcess:
        return PeerProcess(self, peer)

    def drop(self, peer: str) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class PeerProcess:
    def __init__(self, crew: Crew, peer: str):
        self.crew, self.peer = crew, peer

    def request(self, name: str, allowance: Any, *arguments: Any) -> Any:
        if self.peer == "xla":
            raise WorkerError("missing", "no TensorFlow")
        if name == "time":
            known, count = self.crew.steps.get(self.peer, 0), arguments[0]
            self.crew.steps[self.peer] = known + count
            return [0.01 if known + n else 0.5 for n in range(count)]
        explored = {"tried": 3, "kept": 1, "cost": 0.015, "state": "exploration goes on"}
        described = {"explored": explored if self.peer == "dynamic" else {}}
        return {
            "open": {},
            "first": {"seconds": 1.0},
            "steps": {"losses": [0.5]},
            "describe": described,
        }[name]


@pytest.mark.parametrize(("steps", "seconds", "taken"), [(200, 0.0, 200), (200, 10.0, 20 + 19 * 50)])
def test_all_peers_take_equally_many_steps(monkeypatch, steps: int, seconds: float, taken: int) -> None:
    made: list[Crew] = []
    monkeypatch.setattr(tuning, "Crew", lambda *arguments: made.append(Crew(*arguments[:2])) or made[-1])
    cell = tuning.measure("lenet5-b16", ["einsmith", "dynamic", "xla"], 2, steps, seconds, 100.0, print)
    (crew,) = made
    assert crew.steps == {"einsmith": taken, "dynamic": taken} and cell["steps"] == taken and crew.closed
    assert cell["peers"]["xla"]["status"] == "missing"
    assert cell["peers"]["dynamic"]["total"] == pytest.approx(1.0 + 0.5 + 0.01 * (taken - 1))
    (name, tried, kept, before, after, cost, state) = ([*c.cells][0] for c in tuning.explored({"lenet5": cell}).columns)
    assert (name, tried, kept, cost, state) == ("lenet5", "3", "1", "1.5%", "exploration goes on")
    assert before == after == "10.000 ms"


def test_a_neighbour_computes_until_the_end() -> None:
    with tuning.neighbour(False) as nothing:
        assert nothing is None
    with tuning.neighbour(True) as process:
        assert process is not None and process.poll() is None
        os.kill(process.pid, 0)
    assert process.returncode == -signal.SIGKILL


def test_the_curves_are_drawn(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(tuning, "Crew", lambda *arguments: Crew(*arguments[:2]))
    monkeypatch.setattr(Crew, "keep_calibration", lambda own, peers: None)
    plot = tmp_path / "curves.svg"
    assert dynamic_mode.main(["lenet5-b16", "milstm-b64-t28", "--seconds", "10", "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    assert "milstm-b64-t28" in out and "1.5%" in out and "10.000 ms" in out and "1.000" in out
    assert plot.read_text().count("<svg") == 1
