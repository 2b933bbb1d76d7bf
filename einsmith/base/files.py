"""Open, read and write files: every path of the package is opened here.

Only plain files are read: a FIFO, a device or a folder instead of a file raises an error and never blocks. A file is
written whole or not at all: under an unpredictable temporary name in the same folder, and then renamed. A symbolic link
is followed and kept; a device or a FIFO is written to and kept.

A temporary name contains the number of the writing process: the next writer in the folder removes the leftovers of a
killed process.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from einsmith.base.system import processes

ABANDONED = 3600.0
"""Seconds after which an unfinished file of another machine counts as left by a process that has died."""
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
"""Flag with which a symbolic link is not opened; 0 on Windows."""
_FLAGS: int = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY", "O_NOINHERIT"))
"""Flags of every open file. O_NONBLOCK: a FIFO is opened at once, to be looked at."""
_FOLDER_FLAGS: int = sum(getattr(os, name, 0) for name in ("O_DIRECTORY", "O_CLOEXEC", "O_PATH"))
_HAS_RELATIVE = os.open in os.supports_dir_fd
"""Whether the system opens names relative to an open folder; Windows does not."""
_SHOWN = 48
"""Most characters of a file's name that its temporary name repeats: names have a limit of 255 bytes."""
_BEGUN = re.compile(r"\..+\.([0-9a-f]{8})-(\d+)-[0-9a-f]{16}\.new(-\w+)?")
"""Temporary name of a file being written: machine, process, random digits. A library that writes the file may add a
suffix."""
_mine: set[str] = set()
"""Temporary names that this process is writing."""
_swept: tuple[Path, int] = Path(), 0
"""The folder swept last, and the process that swept it: a process that writes many files sweeps a folder once."""


# ------------------------------------------------------------------------------------------------------------ reading


def open_plain(path: str | os.PathLike, flags: int = os.O_RDONLY, mode: int = 0o666, folder: int | None = None) -> int:
    """Return a descriptor of a plain file, by its path or by its name in an open folder. Never waits.

    Raises OSError where the file cannot be opened, or is not a plain file."""
    try:
        descriptor = os.open(path, flags | _FLAGS, mode, dir_fd=folder)
    except ValueError as e:  # the path has a null byte
        raise OSError(errno.EINVAL, str(e), str(path)) from None
    try:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def reading(path: str | os.PathLike) -> io.BufferedReader:
    """Open a plain file to read. Raises OSError, also for what is not a plain file."""
    return os.fdopen(open_plain(path), "rb")


def read_bytes(path: str | os.PathLike, most: int | None = None) -> bytes:
    """Return the content of a plain file. Raises OSError, also for what is not a plain file, and for one of more than
    `most` bytes."""
    with reading(path) as f:
        size = os.fstat(f.fileno()).st_size
        if most is not None and size > most:
            raise OSError(errno.EFBIG, f"it has {size} bytes, and at most {most} are read", os.fspath(path))
        return f.read()


def read_text(path: str | os.PathLike) -> str:
    """Return the text of a plain file in UTF-8. Raises OSError, and UnicodeDecodeError for another encoding."""
    return read_bytes(path).decode()


def open_lock(path: Path, mode: int = 0o666) -> int:
    """Return a descriptor of a lock file, which is created where it is missing. Raises OSError, also for a symbolic
    link and for a file with a second hard link, because the content of a lock file is overwritten."""
    descriptor = open_plain(path, os.O_RDWR | os.O_CREAT | NO_FOLLOW, mode)
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EMLINK, "the lock file has another name elsewhere; remove it", str(path))
    return descriptor


def is_folder(path: str | os.PathLike) -> bool:
    """Return whether there is a folder; False where that cannot be looked at (`why_not_folder` says why)."""
    return os.path.isdir(path)


def is_file(path: str | os.PathLike) -> bool:
    """Return whether there is a plain file; False where that cannot be looked at."""
    return os.path.isfile(path)


def exists(path: str | os.PathLike) -> bool:
    """Return whether there is a file or a folder; False where that cannot be looked at."""
    return os.path.exists(path)


def why_not_folder(path: str | os.PathLike) -> str:
    """Return why a path is not a usable folder, as a clause that follows the path in a message; an empty string for a
    usable folder."""
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            return "is not a folder"
    except (FileNotFoundError, NotADirectoryError):
        return "is not a folder"
    except (OSError, ValueError) as e:
        return f"is not a folder that can be used: {getattr(e, 'strerror', None) or e}"
    is_usable = os.access(path, os.R_OK | os.X_OK)
    return "" if is_usable else f"is not a folder that can be used: {os.strerror(errno.EACCES)}"


# ------------------------------------------------------------------------------------------------------------ writing


class Folder:
    """An open folder, whose files are opened by name: a folder that replaces it meanwhile is ignored. On Windows, which
    lacks this, they are opened by path.

    Raises OSError if there is no such folder."""

    def __init__(self, path: Path, flags: int = 0):
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY | _FOLDER_FLAGS | flags) if _HAS_RELATIVE else None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)

    def _at(self, name: str) -> str:
        return name if self.descriptor is not None else str(self.path / name)

    def open(self, name: str, flags: int, mode: int = 0o666) -> int:
        """Return a descriptor of a plain file of the folder (`open_plain`)."""
        return open_plain(self._at(name), flags, mode, self.descriptor)

    def names(self) -> list[str]:
        """Return the names of all that is in the folder."""
        if self.descriptor is None:
            return os.listdir(self.path)
        listed = os.open(".", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0), dir_fd=self.descriptor)
        try:
            return os.listdir(listed)
        finally:
            os.close(listed)

    def status(self, name: str) -> os.stat_result:
        """Return the status of a file of the folder, or of a link, which is not followed."""
        return os.stat(self._at(name), dir_fd=self.descriptor, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a file from the folder."""
        os.unlink(self._at(name), dir_fd=self.descriptor)

    def touch(self, name: str) -> None:
        """Set the time of a file's last change to now."""
        os.utime(self._at(name), dir_fd=self.descriptor)

    def write(self, name: str, content: bytes, mode: int = 0o666, is_new: bool = False) -> bool:
        """Write a file of the folder whole, or not at all. With `is_new`, a file that exists stays; return whether the
        file was written."""
        with self.temporary(name, mode) as (work, file):
            _write_all(file.fileno(), content)
            file.close()  # Windows renames no open file
            return self.put(work, name, is_new)

    def put(self, work: str, name: str, is_new: bool = False) -> bool:
        """Put a temporary file in its place. With `is_new`, a file that exists stays; return whether one was put."""
        at, folders = (self._at(work), self._at(name)), (self.descriptor, self.descriptor)
        if is_new:
            try:
                os.link(*at, src_dir_fd=folders[0], dst_dir_fd=folders[1])
                return True
            except FileExistsError:
                return False
            except OSError:  # a file system without links
                with suppress(FileNotFoundError):
                    return not self.status(name)
        os.replace(*at, src_dir_fd=folders[0], dst_dir_fd=folders[1])
        return True

    @contextmanager
    def temporary(self, name: str, mode: int = 0o666) -> Iterator[tuple[str, io.FileIO]]:
        """Yield the name and the open file of a new file that is to become `name`. At the end of the block, a file of
        that name is removed along with the files that SQLite puts next to it."""
        tidy(self)
        work = f".{name[:_SHOWN]}.{machine()}-{os.getpid()}-{secrets.token_hex(8)}.new"
        _mine.add(work)
        try:
            file = io.FileIO(self.open(work, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW, mode), "w")
            try:
                yield work, file
            finally:
                file.close()
                for left in ("", "-wal", "-shm", "-journal"):  # suffixes of SQLite's own files
                    with suppress(OSError):
                        self.remove(work + left)
        finally:
            _mine.discard(work)


def write(path: str | os.PathLike, content: bytes | memoryview | str) -> None:
    """Write a file whole, or not at all; text in UTF-8. A file that a link leads to is replaced, the link stays, and so
    does the file's mode. A device or a FIFO is written to. Raises OSError, which names the path."""
    data = content.encode() if isinstance(content, str) else content
    try:
        status = _status(path)
        if status is not None and (stream := _stream_of(status)):
            _write_all(stream, data)
        elif status is not None and not stat.S_ISREG(status.st_mode):
            _write_through(path, data)
        else:
            _replace(Path(os.path.realpath(path)), data, status)
    except OSError as e:
        raise OSError(e.errno, e.strerror, os.fspath(path)) from e


def _replace(place: Path, content: bytes | memoryview, status: os.stat_result | None) -> None:
    """Put a new file at `place`, in the mode of the file that is there, if any."""
    with Folder(place.parent) as folder, folder.temporary(place.name) as (work, file):
        _write_all(file.fileno(), content)
        if status is not None and hasattr(os, "fchmod"):
            with suppress(OSError):  # some file systems have no modes
                os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode) & 0o777)
        file.close()
        folder.put(work, place.name)


def unwritable(path: Path) -> str:
    """Return why a file cannot be written; empty where it can. A file that exists keeps its content."""
    try:
        status = _status(path)
        if status is not None and stat.S_ISDIR(status.st_mode):
            return "it is a directory"
        if status is not None and not stat.S_ISREG(status.st_mode):
            return "" if os.access(path, os.W_OK) else os.strerror(errno.EACCES)
        place = Path(os.path.realpath(path))
        with Folder(place.parent) as folder, folder.temporary(place.name):
            return ""
    except (OSError, ValueError) as e:
        return getattr(e, "strerror", None) or str(e)


def _status(path: str | os.PathLike) -> os.stat_result | None:
    """Return the status of what a path leads to; None where there is nothing."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
    except ValueError as e:  # the path has a null byte
        raise OSError(errno.EINVAL, str(e), str(path)) from None


def _stream_of(status: os.stat_result) -> int | None:
    """Return the descriptor of standard output or standard error if it is the file with this status; None if neither
    is."""
    for number, stream in enumerate((sys.__stdout__, sys.__stderr__), 1):
        with suppress(OSError):  # it was closed since
            if stream is not None and os.path.samestat(os.fstat(number), status):
                return number
    return None


def _write_through(path: str | os.PathLike, content: bytes | memoryview) -> None:
    """Write to a device or a FIFO. Raises OSError if it is a folder, or a FIFO without a reader."""
    descriptor = os.open(path, os.O_WRONLY | _FLAGS)
    try:
        if hasattr(os, "set_blocking"):
            os.set_blocking(descriptor, True)
        _write_all(descriptor, content)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes | memoryview) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


# --------------------------------------------------------------------------------------------------- temporary names


def machine() -> str:
    """Return a hash that identifies the process number space: it differs between machines that share a folder, boots
    and containers."""
    return hashlib.blake2b(processes.number_space().encode(), digest_size=4).hexdigest()


def tidy(folder: Folder) -> None:
    """Sweep a folder, unless this process swept it last."""
    global _swept
    if _swept != (folder.path, os.getpid()):
        _swept = folder.path, os.getpid()
        sweep(folder)


def sweep(folder: Folder) -> None:
    """Remove unfinished files in a folder whose processes have ended."""
    with suppress(OSError):
        for name in folder.names():
            match = _BEGUN.fullmatch(name)
            if match and _is_abandoned(folder, name, match[1], int(match[2])):
                with suppress(OSError):  # another process has removed it
                    folder.remove(name)


def is_begun(name: str) -> bool:
    """Return whether a file name is a temporary one, of a file that is not complete."""
    return _BEGUN.fullmatch(name) is not None


def _is_abandoned(folder: Folder, name: str, where: str, process: int) -> bool:
    if where != machine():
        return time.time() - folder.status(name).st_mtime > ABANDONED
    if process == os.getpid():  # or an earlier process that had this number
        return not any(name.startswith(mine) for mine in list(_mine))
    return not processes.runs(process)
