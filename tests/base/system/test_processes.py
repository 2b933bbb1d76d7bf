"""Processes as Linux, macOS and Windows describe them, each simulated (`systems`)."""

from __future__ import annotations

import builtins
import ctypes
import io
import os
import sys
from typing import Any

import pytest

from einsmith.base.system import forks, processes
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


@pytest.mark.parametrize(
    ("handle", "status", "error", "is_running"),
    [(5, 259, 0, True), (5, 0, 0, False), (None, 0, 87, False), (None, 0, 5, True)],
    ids=["runs", "ended", "no such process", "another user's"],
)
def test_processes_of_windows(monkeypatch, handle, status, error, is_running) -> None:
    closed: list[Any] = []

    def exit_code(of: ctypes.c_void_p, code: Any) -> int:
        assert of.value == handle
        code._obj.value = status
        return 1

    def close(of: ctypes.c_void_p) -> int:
        closed.append(of.value)
        return 1

    functions = {"OpenProcess": lambda *_: handle, "GetExitCodeProcess": exit_code, "CloseHandle": close}
    systems.windows(monkeypatch, functions, error=error)
    monkeypatch.setattr(os, "kill", None)  # ends processes there
    assert processes.runs(7) is is_running and closed == ([handle] if handle else [])


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


def test_processor_seconds(monkeypatch, tmp_path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")

    def stat(parent: int, *seconds: int) -> str:
        return f"7 (a) b) S {parent} 2 3 4 5 6 7 8 9 10 {' '.join(str(s * ticks) for s in seconds)} 20 0"

    texts = {7: stat(1, 3, 1, 20, 30), 8: stat(7, 2, 2, 0, 0), 9: stat(8, 1, 0, 0, 0), 5: stat(1, 9, 9, 9, 9)}
    files = {f"/proc/{n}/stat": text for n, text in texts.items()} | {"/proc/6/stat": "6 (a) S 1", "/proc/4/stat": ""}
    systems.linux(monkeypatch, tmp_path, files)
    assert [processes.processor_seconds(n) for n in (7, 9, 6, 4, 3)] == [4.0, 1.0, 0.0, 0.0, 0.0]
    assert processes.tree_seconds(7) == 59.0 and processes.tree_seconds(9) == 1.0
    assert processes.tree_seconds(6) is None and processes.tree_seconds(3) is None
    systems.linux(monkeypatch, tmp_path / "none", {})
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delattr(os, "sysconf")
    assert processes.processor_seconds(7) == 0 and processes.tree_seconds(7) is None


def test_what_windows_lacks(monkeypatch) -> None:
    assert processes.user_id() == os.geteuid() and processes.can_pause() and processes.can_wait_for_pipes()
    systems.windows(monkeypatch)
    assert processes.user_id() is None and not processes.can_pause() and not processes.can_wait_for_pipes()


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
