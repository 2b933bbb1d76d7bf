"""Memory of this machine and process, and Linux's count of the most that a process held, simulated (`systems`)."""

from __future__ import annotations

import sys

import numpy as np

from einsmith.base.system import memory
from tests.base.system import systems


def test_linux_counts_the_most(monkeypatch, tmp_path) -> None:
    status = "Name:\tVmRSS: 9 kB\nVmHWM:\t    2000 kB\nVmRSS:\t    1000 kB\n"
    systems.linux(monkeypatch, tmp_path, {"/proc/self/status": status, "/proc/self/clear_refs": ""})
    assert memory.peak_bytes() == 2000 << 10
    memory.reset_peak()
    assert (tmp_path / "proc/self/clear_refs").read_text() == "5"


def test_a_system_that_says_nothing(monkeypatch, tmp_path) -> None:
    systems.linux(monkeypatch, tmp_path, {})
    monkeypatch.setattr(sys, "platform", "sunos5")
    assert memory.peak_bytes() == 0
    memory.reset_peak()
    assert not (tmp_path / "proc/self").exists()


def test_this_machine() -> None:
    before = memory.resident_bytes()
    array = np.ones(1 << 23)
    assert memory.resident_bytes() - before > array.nbytes // 2
    assert 0 < memory.resident_bytes() < memory.total_bytes() and 0 < memory.available_bytes() <= memory.total_bytes()
