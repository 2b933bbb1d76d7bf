"""Folders that several writers replace: in turn, whole at any moment, whatever ends a writer."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from einsmith.base import files, folders
from einsmith.base.system import file_locks

HOLDS = """
import os, sys, time
from pathlib import Path
from einsmith.base import folders
with folders.turn(Path(sys.argv[1])):
    if "fork" in sys.argv and os.fork() == 0:
        print("child", flush=True)
        time.sleep(1e6)
    print("holds", flush=True)
    time.sleep(1e6)
"""


def put(place: Path, text: str) -> None:
    with folders.turn(place), folders.replacing(place) as work:
        (work / "a").write_text(text)
        (work / "b").write_text(text)


def holder(place: Path, *how: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(place), *how], stdout=subprocess.PIPE, text=True,
                               start_new_session=True)  # fmt: skip
    assert process.stdout is not None
    for _ in range(2 if "fork" in how else 1):
        assert process.stdout.readline()
    return process


def test_a_folder_takes_its_place_whole_or_not_at_all(tmp_path: Path) -> None:
    place = tmp_path / "run"
    put(place, "one")
    with pytest.raises(ValueError), folders.turn(place), folders.replacing(place) as work:
        (work / "a").write_text("two")
        assert f"{files.machine()}-{os.getpid()}" in work.name and (place / "a").read_text() == "one"
        raise ValueError
    put(place, "three")
    assert (place / "b").read_text() == "three" and os.listdir(tmp_path) == ["run"]


def test_threads_take_turns(tmp_path: Path) -> None:
    """Without turns, one of them moves away what another one is about to."""
    place, inside, most = tmp_path / "run", [], []

    def write(name: str) -> None:
        for n in range(10):
            with folders.turn(place), folders.replacing(place) as work:
                inside.append(name)
                most.append(len(inside))
                (work / "a").write_text(f"{name}{n}")
                time.sleep(0)
                inside.remove(name)

    threads = [threading.Thread(target=write, args=(n,)) for n in "abcd"]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert max(most) == 1 and len(most) == 40 and os.listdir(tmp_path) == ["run"]


def test_who_holds_a_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "run"
    process = holder(place)
    try:
        assert folders.is_locked(place)
        monkeypatch.setattr(folders, "PATIENCE", 0.0)
        with pytest.raises(folders.TakenError, match=f"^process {process.pid} on .* has been writing to {place}"):
            put(place, "one")
        assert not place.exists() and not folders._held
    finally:
        process.kill()
        process.wait()
    assert not folders.is_locked(place)
    put(place, "one")  # the lock of a process that is no more
    assert os.listdir(tmp_path) == ["run"]


def test_a_forked_child_does_not_hold_its_parents_folder(tmp_path: Path) -> None:
    place = tmp_path / "run"
    process = holder(place, "fork")
    try:
        assert folders.is_locked(place)
        process.kill()
        process.wait()
        assert not folders.is_locked(place)
        put(place, "one")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()


def test_a_folder_that_was_moved_aside_comes_back(tmp_path: Path) -> None:
    place = tmp_path / "run"
    put(place, "one")
    old = tmp_path / f".run.00000000-{os.getpid()}.old"
    place.rename(old)
    (tmp_path / f".run.00000000-{os.getpid() + 1}.old").mkdir()
    folders.find(place, lambda folder: (folder / "a").exists())
    assert (place / "b").read_text() == "one" and not old.exists()
    folders.find(tmp_path / "none", lambda folder: True)
    assert sorted(os.listdir(tmp_path)) == [f".run.00000000-{os.getpid() + 1}.old", "run"]


def test_folders_being_written_are_kept(tmp_path: Path) -> None:
    place, here = tmp_path / "run", files.machine()
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    gone = [f".run.{here}-{int(dead.stdout)}.new", f".run.{here}-{os.getpid()}.old", ".run.00000000-1.new"]
    stays = [f".run.{here}-{os.getppid()}.new", ".run.00000000-2.new", ".runner.00000000-1.new", ".run.zz-1.new"]
    for name in (*gone, *stays):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / gone[2], (time.time() - 2 * files.ABANDONED,) * 2)
    put(place, "one")
    assert set(os.listdir(tmp_path)) == {"run", *stays}


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(file_locks.fcntl, "flock", refuse)
    put(tmp_path / "run", "one")
    assert not folders.is_locked(tmp_path / "run") and os.listdir(tmp_path) == ["run"]


def test_a_lock_is_held_on_a_full_disk(tmp_path: Path) -> None:
    """The note of who holds it cannot be written, but nobody reads it; no lock file stays."""
    code = (
        "import os, resource, sys; from pathlib import Path; from einsmith.base import folders\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "with folders.turn(Path(sys.argv[1])): assert os.path.exists(sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run"), str(tmp_path / ".run.lock")], check=True)
    assert not list(tmp_path.iterdir())
