"""Files that are written beside their place: whole or not there, and nothing stays of processes that were killed. What
is no plain file is not read, and not replaced."""

from __future__ import annotations

import os
import re
import resource
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from einsmith.base import files, folders

LEFT = """
import os, sys
from pathlib import Path
from einsmith.base import files
with files.Folder(Path(sys.argv[1])) as folder, folder.temporary("x.json") as (work, file):
    file.write(b"half")
    (Path(sys.argv[1]) / (work + "-wal")).write_text("more")
    os.kill(os.getpid(), 9)
"""
IS_ROOT = hasattr(os, "geteuid") and not os.geteuid()


def killed(path: Path) -> None:
    """A process is killed while it writes a file."""
    assert subprocess.run([sys.executable, "-c", LEFT, str(path.parent)]).returncode == -9


def test_a_file_takes_its_place_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    files.write(path, "one")

    def full(descriptor: int, content: bytes) -> None:
        assert [n for n in os.listdir(tmp_path) if files.is_begun(n)] and path.read_text() == "one"
        os.write(descriptor, content[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_write_all", full)
    with pytest.raises(OSError, match="No space"):
        files.write(path, "two")
    assert path.read_text() == "one" and os.listdir(tmp_path) == ["x.json"]


@pytest.mark.parametrize("is_relative", [True, False])
def test_folders_with_and_without_relative_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_relative: bool
) -> None:
    """Windows opens no names relative to a folder, and renames no open file."""
    monkeypatch.setattr(files, "_HAS_RELATIVE", is_relative)
    replace, link = os.replace, os.link

    def is_closed(place: str | Path, *, src_dir_fd: int | None = None, **_: object) -> bool:
        opened = [Path("/proc/self/fd") / n for n in os.listdir("/proc/self/fd")]
        inodes = [p.stat().st_ino for p in opened if p.exists()]
        return os.stat(place, dir_fd=src_dir_fd).st_ino not in inodes

    def checked(act: Any) -> Any:
        def call(source: Any, target: Any, **options: Any) -> None:
            assert is_closed(source, **options)
            act(source, target, **options)

        return call

    monkeypatch.setattr(os, "replace", checked(replace))
    monkeypatch.setattr(os, "link", checked(link))
    with files.Folder(tmp_path) as folder:
        assert folder.write("x", b"one", is_new=True) and not folder.write("x", b"two", is_new=True)
        assert folder.names() == ["x"] and folder.status("x").st_size == 3
        folder.touch("x")
        os.close(folder.open("x", os.O_RDONLY))
        folder.write("y", b"three")
        folder.remove("x")
        assert folder.names() == ["y"]
    files.write(tmp_path / "y", "four")
    assert (tmp_path / "y").read_text() == "four" and os.listdir(tmp_path) == ["y"]


def test_a_limit_of_files_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    code = (
        "import resource, sys; from einsmith.base import files\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: files.write(sys.argv[1], b'x' * 5000)\n"
        "except OSError as e: print(e.strerror)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path / "x")], capture_output=True, text=True)
    assert "large" in run.stdout and os.listdir(tmp_path) == ["x"] and (tmp_path / "x").read_text() == "old"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    killed(path)
    assert len(list(tmp_path.iterdir())) == 2 and not path.exists()
    killed(path)
    assert len(list(tmp_path.iterdir())) == 2, "the second one has removed what the first one left"
    files.write(path, "whole")
    assert os.listdir(tmp_path) == ["x.json"]


def test_files_being_written_are_kept(tmp_path: Path) -> None:
    machine, end = files.machine(), f"{0:016x}.new"
    mine, alive = f".x.{machine}-{os.getpid()}-{end}", f".x.{machine}-{os.getppid()}-{end}"
    other, old = f".x.00000000-{os.getpid()}-{end}", f".x.00000000-1-{end}"
    others = {"x.new", ".x.new", ".x.1.new", ".x.zz-1-0.new"}
    for name in (mine, alive, other, old, *others):
        (tmp_path / name).write_text("")
    os.utime(tmp_path / old, (time.time() - 2 * files.ABANDONED,) * 2)
    with files.Folder(tmp_path) as folder, folder.temporary("y") as (work, _):
        files.sweep(folder)
        assert set(os.listdir(tmp_path)) == {alive, other, work, *others}, "one had this process's number before"


def odd(folder: Path) -> dict[str, Path]:
    """What may stand in the place of a file, by kind."""
    made = {kind: folder / kind for kind in ("fifo", "socket", "folder", "loop", "missing", "link to a fifo")}
    os.mkfifo(made["fifo"])
    os.mknod(made["socket"], stat.S_IFSOCK | 0o600)
    made["folder"].mkdir()
    made["loop"].symlink_to("loop")
    made["link to a fifo"].symlink_to("fifo")
    return made | {"device": Path("/dev/zero"), "long": folder / ("n" * 300)}


@pytest.mark.parametrize(
    "kind", ["fifo", "socket", "folder", "loop", "missing", "link to a fifo", "device", "long", "below a file"]
)
@pytest.mark.parametrize("read", [files.read_bytes, files.read_text, files.reading, files.open_plain])
def test_only_plain_files_are_read(tmp_path: Path, kind: str, read: Any) -> None:
    (tmp_path / "plain").write_text("x")
    path = {**odd(tmp_path), "below a file": tmp_path / "plain" / "x"}[kind]
    with pytest.raises(OSError) as caught:
        read(path)
    assert caught.value.strerror and not files.is_file(path)
    assert files.is_folder(path) == (kind == "folder") and bool(files.why_not_folder(path)) == (kind != "folder")


def test_files_that_are_too_long_are_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "x", "wb") as f:
        f.truncate(1 << 40)  # takes no space
    with pytest.raises(OSError, match="1099511627776 bytes, and at most 1000 are read"):
        files.read_bytes(tmp_path / "x", 1000)
    (tmp_path / "x").write_bytes(b"x" * 1000)
    assert len(files.read_bytes(tmp_path / "x", 1000)) == 1000


def test_what_is_no_plain_file_is_written_to_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert not files.unwritable(tmp_path / "fifo")
    with pytest.raises(OSError):  # nobody reads it, and nobody waits
        files.write(tmp_path / "fifo", "x")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    files.write(tmp_path / "fifo", "read me")
    assert os.read(reader, 100) == b"read me" and stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)
    os.close(reader)
    with pytest.raises(OSError):
        files.write("/dev/full", "x")
    files.write("/dev/null", "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode) and stat.S_ISCHR(os.stat("/dev/full").st_mode)
    with pytest.raises(IsADirectoryError):
        files.write(tmp_path, "x")
    assert files.unwritable(tmp_path) == "it is a directory" and files.unwritable(tmp_path / "none" / "x")
    assert os.listdir(tmp_path) == ["fifo"]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_is_followed_and_stays(tmp_path: Path, is_there: bool) -> None:
    (tmp_path / "below").mkdir()
    target = tmp_path / "below" / "real"
    if is_there:
        target.write_text("old")
        target.chmod(0o640)
    (tmp_path / "middle").symlink_to("below/real")
    (tmp_path / "link").symlink_to("middle")
    assert not files.unwritable(tmp_path / "link")
    files.write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and not target.is_symlink() and target.read_text() == "new"
    assert not is_there or stat.S_IMODE(target.stat().st_mode) == 0o640


def test_the_output_of_the_process_is_not_replaced(tmp_path: Path) -> None:
    code = (
        "import sys; from einsmith.base import files\n"
        "print('first', flush=True); files.write('/dev/stdout', 'second\\n'); print('third')"
    )
    with open(tmp_path / "out", "w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "first\nsecond\nthird\n"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "first\nsecond\nthird\n"


def test_no_planted_name_is_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary names differ each time, and a link of that very name is an error."""
    seen: list[str] = []
    for _ in range(3):
        with files.Folder(tmp_path) as folder, folder.temporary("x") as (work, _descriptor):
            seen.append(work)
    assert len(set(seen)) == 3
    monkeypatch.setattr(files.secrets, "token_hex", lambda n: "0" * 16)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for planted in (os.symlink, os.link):
        name = tmp_path / re.sub("[0-9a-f]{16}", "0" * 16, seen[0])
        planted(victim, name)
        with files.Folder(tmp_path) as folder:
            files.sweep(folder)
            if not os.path.lexists(name):  # it had the number of this process, and was swept
                planted(victim, name)
        with pytest.raises(FileExistsError):
            files.write(tmp_path / "x", "new")
        assert victim.read_text() == "precious"
        os.unlink(name)


@pytest.mark.parametrize("plant", [os.symlink, os.link, lambda victim, lock: os.mkfifo(lock)])
def test_a_planted_lock_file_is_not_written_to(tmp_path: Path, plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "PATIENCE", 0)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    plant(victim, tmp_path / ".run.lock")
    with pytest.raises(OSError) as refused, folders.turn(tmp_path / "run"):
        pass
    assert not isinstance(refused.value, folders.TakenError)  # the file's own error, not that of a lock that is held
    assert victim.read_text() == "precious" and not folders.is_locked(tmp_path / "run")


def test_long_names_have_short_temporary_ones(tmp_path: Path) -> None:
    for name in ("n" * 255, "ü" * 127):
        files.write(tmp_path / name, "x")
        assert (tmp_path / name).read_text() == "x"


@pytest.mark.skipif(not IS_ROOT, reason="only root can be another user")
def test_a_folder_that_cannot_be_searched_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir(mode=0o700)
    (tmp_path / "hidden" / "x").write_text("x")
    pid = os.fork()
    if not pid:
        os.setgid(54321), os.setuid(54321)
        path = tmp_path / "hidden" / "x"
        is_seen = files.exists(path) or files.is_file(path) or files.is_folder(path)
        os._exit(bool(is_seen or "Permission denied" not in files.why_not_folder(path) + files.unwritable(path)))
    assert os.waitpid(pid, 0)[1] == 0
