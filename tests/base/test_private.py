"""Folders of entries that run: nothing is used that another user has written, or may have."""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from einsmith.base import private
from einsmith.base.private import PrivateFolder
from einsmith.codegen.cache import native, objects
from einsmith.tuning.calibration import store
from einsmith.tuning.kernels import database

OTHER = 12345
needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="files of another user")


def give(path: Path) -> None:
    os.chown(path, OTHER, OTHER)


def open_to_all(path: Path) -> None:
    path.chmod(0o777)


def open_to_a_group(path: Path) -> None:
    os.chown(path, -1, OTHER)
    path.chmod(0o775)


SPOILED = [pytest.param(give, marks=needs_root), open_to_all, pytest.param(open_to_a_group, marks=needs_root)]


@pytest.mark.parametrize("spoil", SPOILED)
@pytest.mark.parametrize("depth", range(4))
def test_every_folder_of_the_path_counts(tmp_path: Path, depth: int, spoil: Callable[[Path], None]) -> None:
    folder = tmp_path / "a" / "b" / "c"
    with PrivateFolder(folder) as opened:
        opened.write("x", b"mine", private.MODE)
    above = [folder, *folder.parents][depth]
    mode = above.stat().st_mode & 0o7777
    spoil(above)
    try:
        with pytest.raises(PermissionError, match=rf"{above} (belongs to another user|can be written by others)"):
            PrivateFolder(folder)
        with pytest.raises(PermissionError):
            PrivateFolder(above / "new" / "folder")
        assert not (above / "new").exists()
    finally:
        above.chmod(mode)
        if spoil is give:
            os.chown(above, os.geteuid(), os.getegid())
    with PrivateFolder(folder) as opened:
        assert opened.read("x") == b"mine"


def test_a_shared_folder_whose_files_others_cannot_rename_is_trusted(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    assert not private.distrust(tmp_path / "shared" / "mine")
    assert "chmod 700" in private.distrust(tmp_path / "shared"), "the folder of entries itself may not be shared"


def test_what_is_made_is_private_whatever_the_mask_is(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        with PrivateFolder(tmp_path / "a" / "b") as folder:
            folder.write("x", b"1", private.MODE)
            assert folder.write("y", b"1", private.MODE, is_new=True)
            assert not folder.write("y", b"2", private.MODE, is_new=True) and folder.read("y") == b"1"
    finally:
        os.umask(mask)
    modes = [oct((tmp_path / p).stat().st_mode & 0o777) for p in ("a", "a/b", "a/b/x", "a/b/y")]
    assert modes == ["0o700", "0o700", "0o600", "0o600"]


@pytest.mark.parametrize("spoil", SPOILED)
def test_entries_of_others_do_not_count(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    """Whatever the folder's mode is now: it may have been open to others when they were written."""
    with PrivateFolder(tmp_path / "a") as folder:
        folder.write("x", b"mine", private.MODE)
        assert folder.read("x") == b"mine" and not folder.distrust("x")
        spoil(tmp_path / "a" / "x")
        with pytest.raises(PermissionError):
            folder.read("x")
        assert folder.distrust("x")
        folder.write("x", b"mine again", private.MODE)
        assert folder.read("x") == b"mine again"
        os.symlink("x", tmp_path / "a" / "link")
        os.mkfifo(tmp_path / "a" / "fifo")
        for name in ("link", "fifo", "none"):
            with pytest.raises(OSError):
                folder.read(name)
            assert bool(folder.distrust(name)) == (name != "none")


def test_an_exchanged_folder_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "evil").mkdir()
    with PrivateFolder(tmp_path / "a") as folder:
        folder.write("x", b"mine", private.MODE)
        (tmp_path / "a").rename(tmp_path / "moved")
        (tmp_path / "evil").rename(tmp_path / "a")
        (tmp_path / "a" / "x").write_bytes(b"evil")
        assert folder.read("x") == b"mine"
        folder.write("y", b"mine", private.MODE)
    assert os.listdir(tmp_path / "a") == ["x"] and (tmp_path / "moved" / "y").exists()


def test_a_link_that_leads_elsewhere_after_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is opened where it was looked at, whatever a link above it says by then."""
    for name in ("mine", "evil"):
        with PrivateFolder(tmp_path / name / "objects") as folder:
            folder.write("x", name.encode(), private.MODE)
    (tmp_path / "link").symlink_to("mine")
    check = private._check

    def exchanged(place: Path) -> None:
        check(place)
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to("evil")

    monkeypatch.setattr(private, "_check", exchanged)
    with PrivateFolder(tmp_path / "link" / "objects") as folder:
        assert folder.read("x") == b"mine"


class Planted:
    def __init__(self, flag: Path):
        self.flag = flag

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.flag}",)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("spoil", SPOILED)
@pytest.mark.filterwarnings("ignore:compiled code is not kept")
def test_planted_code_never_runs(cache: Path, tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    objects.write_pickled("k", ("mine",))
    path, flag = cache / "objects" / "k", tmp_path / "flag"
    path.write_bytes(objects._encode(objects.CachedObject(pickle.dumps(((), Planted(flag))), (), {}), "k"))
    spoil(path)
    (cache / "objects").chmod(0o777)
    assert objects.read_pickled("k") is None
    (cache / "objects").chmod(0o700)  # as the warning says
    assert objects.read_pickled("k") is None and objects.read("k") is None and not flag.exists()
    objects.write_pickled("k", ("mine",))
    assert objects.read_pickled("k") == ("mine",)


@pytest.mark.parametrize("spoil", SPOILED)
def test_records_of_others_do_not_count(cache: Path, spoil: Callable[[Path], None]) -> None:
    static = native.host_target()
    store.save(static, ["fma"], overwrite=True)
    path = store.path_of(static)
    assert store.load(static) is not None
    spoil(path)
    assert store.load(static) is None
    store.save(static, ["fma"], overwrite=False)
    assert store.load(static) is not None


@pytest.mark.parametrize("spoil", SPOILED)
@pytest.mark.parametrize("end", ["", "-wal"])
def test_a_database_that_others_may_have_written_is_begun_anew(
    cache: Path, spoil: Callable[[Path], None], end: str, capfd: pytest.CaptureFixture[str]
) -> None:
    query = "SELECT count(*) FROM records"
    count = lambda link: link.execute(query).fetchone()[0]  # noqa: E731
    assert database.run(count, -1, write=True) == 0
    path = database.path_of()
    with sqlite3.connect(path) as link:
        link.execute("INSERT INTO records VALUES ('k','m','v',1,'evil',1,1,1,1,1,'d','s','e')")
    link.close()
    assert database.run(count, -1) == 1
    planted = path.with_name(path.name + end)
    planted.touch()
    spoil(planted)
    assert database.run(count, -1, write=True) == 0
    assert "is damaged" in capfd.readouterr().err and database.run(count, -1) == 0


@needs_root
def test_a_folder_of_another_user_is_not_used(cache: Path) -> None:
    cache.mkdir(mode=0o755)
    give(cache)
    code = "from einsmith.codegen.cache import objects as o; o.write('k', o.CachedObject(b'', (), {}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"{cache} belongs to another user" in run.stderr and not list(cache.iterdir())
