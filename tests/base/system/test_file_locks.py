"""Locks of files: those of this system, and those of Windows, whose msvcrt is simulated."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from einsmith.base import files, folders
from einsmith.base.system import file_locks


class Bytes:
    """The locks of msvcrt: of bytes from the position of a file, each held by one descriptor."""

    LK_UNLCK, LK_NBLCK = 0, 2

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], int] = {}

    def locking(self, descriptor: int, how: int, count: int) -> None:
        assert count == 1
        key = os.fstat(descriptor).st_ino, os.lseek(descriptor, 0, os.SEEK_CUR)
        assert key[1] > 1 << 20, "others can still read the contents"
        if how == self.LK_UNLCK:
            if self.held.pop(key, None) != descriptor:
                raise PermissionError(errno.EACCES, "not locked")
        elif self.held.setdefault(key, descriptor) != descriptor:
            raise PermissionError(errno.EACCES, "locked")


@pytest.fixture(params=["this system", "Windows", "without locks"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "this system":
        monkeypatch.setattr(file_locks, "fcntl", None)
        monkeypatch.setattr(file_locks, "msvcrt", Bytes() if request.param == "Windows" else None)
    return request.param


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Two descriptors of one file."""
    (tmp_path / "lock").write_text("owner")
    out = os.open(tmp_path / "lock", os.O_RDWR), os.open(tmp_path / "lock", os.O_RDWR)
    yield out
    for descriptor in out:
        os.close(descriptor)


def test_one_descriptor_holds_a_lock(kind: str, two: tuple[int, int]) -> None:
    first, second = two
    is_kept = kind != "without locks"
    assert not file_locks.is_locked(first) and file_locks.lock(first)
    assert file_locks.is_locked(second) == is_kept and file_locks.lock(second) != is_kept
    assert os.read(second, 9) == b"owner", "the position is as it was"
    file_locks.unlock(first)
    file_locks.unlock(first)  # it may be free already
    assert not file_locks.is_locked(second) and file_locks.lock(second)


def test_other_errors_are_raised(monkeypatch: pytest.MonkeyPatch, two: tuple[int, int]) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EBADF, "no such file")

    if file_locks.fcntl is not None:
        monkeypatch.setattr(file_locks.fcntl, "flock", refuse)
        with pytest.raises(OSError, match="no such file"):
            file_locks.lock(two[0])
    monkeypatch.setattr(file_locks, "fcntl", None)
    monkeypatch.setattr(file_locks, "msvcrt", SimpleNamespace(LK_NBLCK=2, locking=refuse))
    with pytest.raises(OSError, match="no such file"):
        file_locks.lock(two[0])


def test_holders_take_turns(kind: str, tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []
    begin = threading.Barrier(3)

    def work() -> None:
        begin.wait()
        for _ in range(5):
            with file_locks.hold(files.open_lock(tmp_path / "lock", 0o600)):
                inside.append(1)
                most.append(len(inside))
                threading.Event().wait(0.001)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(most) == 15 and (kind == "without locks" or max(most) == 1)
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


def test_an_error_frees_the_lock(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError), file_locks.hold(files.open_lock(tmp_path / "lock", 0o600)):
        raise ValueError
    with file_locks.hold(files.open_lock(tmp_path / "lock", 0o600)):
        pass


def test_folders_are_replaced_under_any_locks(kind: str, tmp_path: Path) -> None:
    with folders.turn(tmp_path / "run"), folders.replacing(tmp_path / "run") as work:
        (work / "a").write_text("one")
        assert folders.is_locked(tmp_path / "run") == (kind != "without locks")
    assert not folders.is_locked(tmp_path / "run") and (tmp_path / "run/a").read_text() == "one"
