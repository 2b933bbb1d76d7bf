"""Files that are written beside their place: whole or not there, and nothing stays of processes that were killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from einsmith.base import files

LEFT = """
import os, sys
from pathlib import Path
from einsmith.base import files
with files.replacing(Path(sys.argv[1])) as work:
    work.write_text("half")
    Path(str(work) + "-wal").write_text("more")
    os.kill(os.getpid(), 9)
"""


def killed(path: Path) -> None:
    """A process is killed while it writes a file."""
    assert subprocess.run([sys.executable, "-c", LEFT, str(path)]).returncode == -9


def test_a_file_takes_its_place_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with files.replacing(path) as work:
        work.write_text("one")
        assert not path.exists() and files.is_begun(work.name)
    with pytest.raises(ValueError), files.replacing(path) as work:
        work.write_text("two")
        raise ValueError
    assert path.read_text() == "one" and os.listdir(tmp_path) == ["x.json"]


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    killed(path)
    assert len(list(tmp_path.iterdir())) == 2 and not path.exists()
    killed(path)
    assert len(list(tmp_path.iterdir())) == 2, "the second one has removed what the first one left"
    with files.replacing(path) as work:
        work.write_text("whole")
    assert os.listdir(tmp_path) == ["x.json"]


def test_files_being_written_are_kept(tmp_path: Path) -> None:
    machine = files.machine()
    mine, alive = f".x.{machine}-{os.getpid()}-99.new", f".x.{machine}-{os.getppid()}-0.new"
    other, old = f".x.00000000-{os.getpid()}-0.new", ".x.00000000-1-0.new"
    others = {"x.new", ".x.new", ".x.1.new", ".x.zz-1-0.new"}
    for name in (mine, alive, other, old, *others):
        (tmp_path / name).write_text("")
    os.utime(tmp_path / old, (time.time() - 2 * files.ABANDONED,) * 2)
    with files.temporary_path(tmp_path / "y") as work:
        work.write_text("")
        files.sweep(tmp_path)
        assert set(os.listdir(tmp_path)) == {alive, other, work.name, *others}, "one had this process's number before"
    files.sweep(tmp_path / "none")
