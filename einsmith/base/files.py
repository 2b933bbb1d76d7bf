"""Write files atomically: under a temporary name next to their place, then renamed, so that a reader always finds a
whole file.

The temporary name records the process that writes: leftovers of a killed process are removed by the next one that
writes into the folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from einsmith.base.system import processes

ABANDONED = 3600.0
"""Seconds after which an unfinished file of another machine counts as left by a process that has died."""
_BEGUN = re.compile(r"\..+\.([0-9a-f]{8})-(\d+)-\d+\.new(-\w+)?")
"""Temporary name of a file being written: machine, process, number. A library that writes the file may add a suffix."""
_numbers = count()
_mine: set[str] = set()
"""Temporary names that this process is writing."""
_swept: tuple[Path, int] = Path(), 0
"""The folder swept last, and the process that swept it: a process that writes many files sweeps a folder once."""


def machine() -> str:
    """Return a hash that identifies the process number space: it differs between machines that share a folder, boots
    and containers."""
    return hashlib.blake2b(processes.number_space().encode(), digest_size=4).hexdigest()


@contextmanager
def temporary_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path` for a file that is to replace it. At the end of the block, a file
    of that name is removed along with the files that SQLite puts next to it."""
    tidy(path.parent)
    name = f".{path.name}.{machine()}-{os.getpid()}-{next(_numbers)}.new"
    _mine.add(name)
    try:
        yield path.with_name(name)
    finally:
        for left in ("", "-wal", "-shm", "-journal"):  # suffixes of SQLite's own files
            with suppress(OSError):
                path.with_name(name + left).unlink()
        _mine.discard(name)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path; its file replaces `path` if the block ends without an error, and is removed otherwise.
    Raises OSError where the replacement fails."""
    with temporary_path(path) as work:
        yield work
        os.replace(work, path)


def tidy(folder: Path) -> None:
    """Sweep a folder, unless this process swept it last."""
    global _swept
    if _swept != (folder, os.getpid()):
        _swept = folder, os.getpid()
        sweep(folder)


def sweep(folder: Path) -> None:
    """Remove unfinished files in a folder whose processes have ended."""
    with suppress(OSError):
        for path in list(folder.iterdir()):
            found = _BEGUN.fullmatch(path.name)
            if found and _is_abandoned(path, found[1], int(found[2])):
                with suppress(OSError):  # another process has removed it
                    path.unlink()


def distrust(folder: Path) -> str:
    """Return why the contents of a cache folder must not be used, and the remedy; empty where they may be.

    The folder must be this user's own, and no other user may write into it. A folder that does not exist yet is
    trusted.
    """
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return ""
    except OSError as e:
        return f"{folder}: {e.strerror or e}; set EINSMITH_CACHE_DIR to a directory that can be written"
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is not a directory; remove it"
    user = processes.user_id()
    if user is not None:
        if found.st_uid != user:
            return f"{folder} belongs to another user; set EINSMITH_CACHE_DIR to a directory of your own"
        if stat.S_IMODE(found.st_mode) & 0o022:
            return f"{folder} can be written by others; run chmod 700 on it"
    return ""


def make_private(folder: Path) -> None:
    """Make a cache folder that only this user may access, unless it exists. Raises OSError where that fails, or where
    an existing folder must not be used (`distrust`)."""
    if not (problem := distrust(folder)):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = distrust(folder)  # another process may have made it first
    if problem:
        raise PermissionError(problem)


def is_begun(name: str) -> bool:
    """Return whether a file name is a temporary one, of a file that is not complete."""
    return _BEGUN.fullmatch(name) is not None


def _is_abandoned(path: Path, where: str, process: int) -> bool:
    if where != machine():
        return time.time() - path.lstat().st_mtime > ABANDONED
    if process == os.getpid():  # or an earlier process that had this number
        return not any(path.name.startswith(name) for name in list(_mine))
    return not processes.runs(process)
