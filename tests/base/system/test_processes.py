"""Processes as Linux, macOS and Windows describe them, each simulated (`systems`)."""

from __future__ import annotations

import builtins
import io
import os
import sys
import time

import pytest

from einsmith.base import forks
from einsmith.base.system import processes
from tests.base.system import systems


def test_processes_of_this_machine() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # until the parent closes its end
        os._exit(0)
    assert processes.runs(child) and processes.runs(os.getpid()) and processes.runs(1)
    os.close(write)
    os.close(read)
    os.waitpid(child, 0)
    assert not processes.runs(child) and not processes.runs(1 << 70)


def test_numbers_of_processes_are_told_apart(monkeypatch, tmp_path) -> None:
    told = set()
    for boot in ("one", "two"):
        systems.linux(monkeypatch, tmp_path, {"/proc/sys/kernel/random/boot_id": boot, "/proc/self/ns/pid": ""})
        told.add(processes.number_space())
    os.replace(tmp_path / "proc/self/ns/pid", tmp_path / "old")
    (tmp_path / "proc/self/ns/pid").touch()  # another namespace has another number
    told.add(processes.number_space())
    for boot in ("one", "two"):
        systems.mac(monkeypatch, {"kern.bootsessionuuid": boot})
        told.add(processes.number_space())
    for number in (1, 2):
        systems.windows(monkeypatch, registry={(processes.BOOT_KEY, "BootId"): number})
        told.add(processes.number_space())
    monkeypatch.setattr(sys, "platform", "sunos5")
    told.add(processes.number_space())
    assert len(told) == 8


def test_processor_seconds() -> None:
    before, begun = processes.processor_seconds(os.getpid()), time.process_time()
    while time.process_time() - begun < 0.1:
        pass
    assert 0.05 < processes.processor_seconds(os.getpid()) - before < 5
    assert processes.processor_seconds(1 << 30) == 0


def test_what_windows_lacks(monkeypatch) -> None:
    assert processes.user_id() == os.geteuid() and processes.can_wait_for_pipes()
    systems.windows(monkeypatch)
    assert processes.user_id() is None and not processes.can_wait_for_pipes()


@pytest.mark.parametrize("name, texts", [("darwin", {}), ("win32", {}), ("linux", {"/proc/self/maps": "0-1 rw-p 0\n"})])
def test_libraries_are_listed_on_linux(monkeypatch, tmp_path, name, texts) -> None:
    systems.linux(monkeypatch, tmp_path, texts)
    monkeypatch.setattr(sys, "platform", name)
    assert processes.list_libraries() == []


def test_a_fork_is_known(monkeypatch) -> None:
    forked = forks.is_forked()  # pytest's own process may be one
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"yes" if forks.is_forked() else b"no")
        os._exit(0)
    assert os.read(read, 3) == b"yes"
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    for flags, is_forked in ((0x40, True), (0x400000, False)):
        text = f"7 (a) b) S 1 2 3 4 5 {flags} 9"
        monkeypatch.setattr(builtins, "open", lambda *_, text=text, **__: io.StringIO(text))
        assert forks.is_forked() is is_forked
    monkeypatch.undo()
    monkeypatch.setattr(forks, "STAT", "/none")
    assert forks.is_forked(), "what nobody knows may be"
    monkeypatch.setattr(sys, "platform", "win32")
    assert not forks.is_forked()
    assert forked in (True, False)


def test_nothing_is_registered_without_forks(monkeypatch) -> None:
    registered: list[dict] = []
    monkeypatch.setattr(os, "register_at_fork", lambda **how: registered.append(how))
    forks.at_fork(after_in_child=print, before=repr)
    assert registered == [{"after_in_child": print, "before": repr}]
    monkeypatch.delattr(os, "register_at_fork")
    forks.at_fork(after_in_child=print)
    assert len(registered) == 1
