"""Memory as Linux, macOS and Windows tell of it, each simulated (`systems`)."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from einsmith.base.system import memory
from tests.base.system import systems


def test_linux(monkeypatch, tmp_path) -> None:
    status = "Name:\tVmRSS: 9 kB\nVmHWM:\t    2000 kB\nVmRSS:\t    1000 kB\n"
    systems.linux(monkeypatch, tmp_path, {"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    7 kB\n",
                                          "/proc/self/status": status, "/proc/self/clear_refs": ""})  # fmt: skip
    assert memory.available_bytes() == 7 << 10
    assert memory.resident_bytes() == 1000 << 10 and memory.peak_bytes() == 2000 << 10
    memory.reset_peak()
    assert (tmp_path / "proc/self/clear_refs").read_text() == "5"
    assert memory.total_bytes() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_linux_that_says_nothing(monkeypatch, tmp_path) -> None:
    systems.linux(monkeypatch, tmp_path, {"/proc/meminfo": "MemAvailable:\nMemAvailable: many\n"})
    assert memory.available_bytes() is None and memory.resident_bytes() == memory.peak_bytes() == 0
    memory.reset_peak()
    assert not (tmp_path / "proc/self").exists()


def test_macos(monkeypatch) -> None:
    pages = [100, 7, 50, 9, *[0] * 34]
    systems.mac(monkeypatch, {"hw.memsize": 16 << 30, "hw.pagesize": 16384}, {memory.VM_INFO: pages})
    assert memory.total_bytes() == 16 << 30 and memory.available_bytes() == 150 * 16384
    systems.mac(monkeypatch)
    assert memory.total_bytes() is None and memory.available_bytes() is None


@pytest.mark.parametrize("answers", [True, False])
def test_windows(monkeypatch, answers) -> None:
    def ask(status: Any) -> int:
        assert status._obj[0] == 64, "the size of the structure"
        if answers:
            status._obj[1:3] = 16 << 30, 5 << 30
        return answers

    systems.windows(monkeypatch, {"GlobalMemoryStatusEx": ask})
    assert [memory.total_bytes(), memory.available_bytes()] == ([16 << 30, 5 << 30] if answers else [None, None])
    assert memory.resident_bytes() == 0 or answers is not None


def test_another_system(monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "sunos5")
    assert memory.available_bytes() is None
    monkeypatch.delattr(os, "sysconf")
    assert memory.total_bytes() is None


def test_this_machine() -> None:
    total, available = memory.total_bytes(), memory.available_bytes()
    assert total is None or available is None or 0 < available <= total
