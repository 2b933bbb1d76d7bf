"""Create, open and repair the SQLite file of tuned configurations.

Every operation has a connection of its own, so that no process inherits one, and is one transaction: a process that is
killed loses at most what it was writing. The file comes into being whole, by a link to a finished one. It is in WAL
mode, in which readers do not wait for writers, or in SQLite's plain mode where the file system has no shared memory.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from einsmith.base import environment, locks, messages, private
from einsmith.base.caches import Once
from einsmith.base.private import PrivateFolder
from einsmith.runtime.signals import Deferred

FORMAT = 1
"""Number of the format; it grows with every change of the tables."""
LOCK_SECONDS = 2.0
"""Seconds that an operation waits for another process's transaction."""
RETRY_SECONDS = 60.0
"""Seconds for which a store that could not be used is not tried again."""
_TABLES = """
CREATE TABLE records (
    kernel TEXT NOT NULL, machine TEXT NOT NULL, version TEXT NOT NULL, own INTEGER NOT NULL, text TEXT NOT NULL,
    seconds REAL NOT NULL, spread REAL NOT NULL, prior REAL NOT NULL, at REAL NOT NULL, confirmed INTEGER NOT NULL,
    described TEXT NOT NULL, structure TEXT NOT NULL, extents TEXT NOT NULL,
    PRIMARY KEY (kernel, machine, version, own)
);
CREATE INDEX by_structure ON records (structure);
"""

T = TypeVar("T")
_LOCK = locks.Awaited("using the store of tuned configurations")
_reported = Once("problems of the store of tuned configurations", 64)
_unusable: dict[bool, tuple[Path, float]] = {}
"""The store that could not be written (key True) or read (key False), and the clock time until which it is not tried
again."""


class Foreign(sqlite3.DatabaseError):
    """The file has another format."""


def path_of() -> Path:
    """Return the path of the store, which need not exist yet."""
    return environment.cache_dir() / "tuning" / "records.sqlite"


def attempt(work: Callable[[sqlite3.Connection], T], nothing: T, write: bool = False) -> T:
    """Run `work` like `run`, but return `nothing` where the store cannot be used; a message says so once, and the
    caller continues without the store."""
    path = path_of()
    unusable_path, until = _unusable.get(write, (None, 0.0))
    if unusable_path == path and time.monotonic() < until:
        return nothing
    try:
        return run(work, nothing, write)
    except (sqlite3.Error, OSError) as e:
        _unusable[write] = path, time.monotonic() + RETRY_SECONDS
        _say(f"tuned configurations are {'not kept' if write else 'not used'}: {path}: {e}")
        return nothing


def run(work: Callable[[sqlite3.Connection], T], nothing: T, write: bool = False) -> T:
    """Return what `work` returns for a connection to the store, or `nothing` where there is no store to read. With
    `write`, the work is one transaction that may create the store.

    A damaged store, or one of another format, is moved aside and begun anew, with a message. Raises sqlite3.Error or
    OSError where the store cannot be used.
    """
    path = path_of()
    try:
        folder = PrivateFolder(path.parent, create=write)
    except FileNotFoundError:
        return nothing
    path = folder.path / path.name  # where no link leads elsewhere later
    with folder, Deferred(), _LOCK:  # a search reads so often that Ctrl-C meets the lock's release
        for last in (False, False, True):
            inode = _inode_of(path)
            if not inode and not write:
                break
            try:
                _check_owner(folder, path)
                if not inode:
                    _create(folder, path)
                with _open(path, write) as link:
                    return work(link)
            except sqlite3.Error as e:
                if last or not (_is_damage(e) or _inode_of(path) != inode):  # else another process has moved it aside
                    raise
                if _is_damage(e):
                    _move_aside(folder, path, inode, e)
    return nothing


@contextmanager
def _open(path: Path, write: bool) -> Iterator[sqlite3.Connection]:
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    mode = "mode=rw" if writable else "mode=ro&immutable=1"  # else SQLite creates files next to it even to read
    link = sqlite3.connect(f"{path.as_uri()}?{mode}", LOCK_SECONDS, isolation_level=None, uri=True)
    link.text_factory = lambda data: data.decode("utf-8", "replace")  # a damaged text is read as an invalid decision
    try:
        (format_number,) = link.execute("PRAGMA user_version").fetchone()
        if format_number != FORMAT:
            raise Foreign(f"it has format {format_number}, not {FORMAT}")
        if write:
            link.execute("PRAGMA synchronous=NORMAL")
            link.execute("BEGIN IMMEDIATE")
        yield link
        if write:
            link.execute("COMMIT")
    except UnicodeDecodeError as e:  # in the names of columns
        raise Foreign(f"its text is not valid UTF-8: {e}") from None
    finally:
        link.close()  # rolls back what is not committed


def _check_owner(folder: PrivateFolder, path: Path) -> None:
    """Raise Foreign for files of the store that another user has, or may have, written."""
    for end in ("", "-wal", "-shm", "-journal"):
        if problem := folder.distrust(path.name + end):
            raise Foreign(f"{path.name}{end} {problem}")


def _create(folder: PrivateFolder, path: Path) -> None:
    """Put an empty store in place, unless another process is quicker."""
    with folder.temporary(path.name, private.MODE) as (work, file):
        file.close()
        link = sqlite3.connect(folder.path / work, LOCK_SECONDS, isolation_level=None)
        try:
            with suppress(sqlite3.OperationalError):
                link.execute("PRAGMA journal_mode=WAL")
            link.executescript(f"BEGIN; {_TABLES} PRAGMA user_version={FORMAT}; COMMIT;")
        finally:
            link.close()
        folder.put(work, path.name, is_new=True)


def _is_damage(e: sqlite3.Error) -> bool:
    code = getattr(e, "sqlite_errorcode", 0) & 0xFF
    return isinstance(e, Foreign) or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _move_aside(folder: PrivateFolder, path: Path, inode: int, why: Exception) -> None:
    """Move a damaged store away if its file still has the number `inode`: of two processes that find the damage, only
    one moves the file."""
    if _inode_of(path) != inode:
        return
    aside = f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{inode}"
    for end in ("-wal", "-shm", "-journal", ""):  # the file itself last: until then no process creates a new one
        with suppress(FileNotFoundError):
            folder.put(path.name + end, aside + end)
    _say(
        f"the store of tuned configurations {path} is damaged ({why}); a new one is begun, the damaged one is kept as "
        f"{aside}"
    )


def _inode_of(path: Path) -> int:
    """Return the file's inode number, which tells it from a file put in its place; 0 where there is no file."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _say(what: str) -> None:
    if _reported(what):
        messages.say(f"einsmith: {what}")
