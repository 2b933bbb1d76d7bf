"""Write folders atomically: under a temporary name, then renamed to their place, one writer after the other.

A writer holds the lock file `.NAME.lock` in the folder's parent: the kernel frees it when the process ends, however it
ends. File systems without locks are written to without; there, one of two concurrent writers may fail.
"""

from __future__ import annotations

import glob
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from einsmith.base import files, forks
from einsmith.base.errors import SaveError
from einsmith.base.system import file_locks, processes

PATIENCE = 600.0
"""Most seconds that a writer waits for others; a save of 100 GB at 200 MB/s takes 500 s."""
_POLL = 0.005
"""Seconds between two attempts at a lock."""
_held: set[int] = set()
"""Descriptors of open lock files."""


class TakenError(OSError):
    """Error for a folder that another writer has held for longer than PATIENCE; the message names it."""


def _lock_of(place: Path) -> Path:
    return place.parent / f".{place.name}.lock"


@contextmanager
def turn(place: Path) -> Iterator[None]:
    """Hold the exclusive right to change a folder; other processes and threads wait for it.

    The parent of the folder exists. Raises TakenError after PATIENCE, OSError where the parent cannot be written to.
    """
    path = _lock_of(place)
    descriptor = _acquire(path, place)
    try:
        yield
    finally:
        if descriptor in _held:  # the descriptor is not in a process that was forked meanwhile
            with suppress(OSError):
                path.unlink()
            _release(descriptor)


def is_locked(place: Path) -> bool:
    """Return whether another writer, or a thread of this process, holds the folder's lock."""
    try:
        descriptor = files.open_plain(_lock_of(place), os.O_RDONLY | files.NO_FOLLOW)
    except OSError:
        return False
    try:
        return file_locks.is_locked(descriptor)
    finally:
        os.close(descriptor)


def _acquire(path: Path, place: Path) -> int:
    """Return a descriptor of the lock file at `path`, with its lock held by this thread."""
    end = time.monotonic() + PATIENCE
    while True:
        descriptor = files.open_lock(path)
        _held.add(descriptor)
        try:
            if file_locks.lock(descriptor) and _is_at(descriptor, path):
                with suppress(OSError):  # on a full disk nobody reads who it is
                    os.ftruncate(descriptor, 0)
                    os.write(descriptor, f"process {os.getpid()} on {platform.node()}".encode())
                return descriptor
            if time.monotonic() >= end:
                owner = os.read(descriptor, 200).decode(errors="replace") or "another process"
                raise TakenError(f"{owner} has been writing to {place} for {PATIENCE:.0f} s")
        except BaseException:
            _release(descriptor)
            raise
        _release(descriptor)
        time.sleep(_POLL)


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the file at its path: the previous owner may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _release(descriptor: int) -> None:
    """Release a lock, even where a child that was forked meanwhile has the file open."""
    _held.discard(descriptor)
    file_locks.unlock(descriptor)
    os.close(descriptor)


def _forget() -> None:
    """Close the parent's lock files in a forked child: an open one would keep its lock when the parent dies."""
    for descriptor in list(_held):
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


forks.at_fork(after_in_child=_forget)


def _temporary_path(place: Path, what: str) -> Path:
    return place.parent / f".{place.name}.{files.machine()}-{os.getpid()}-{secrets.token_hex(8)}.{what}"


@contextmanager
def replacing(place: Path) -> Iterator[Path]:
    """Yield a new temporary folder that replaces `place` if the block ends without an error.

    The old folder stays whole until then, and is restored if something fails. The caller must hold the folder's turn.
    """
    _clear(place)
    work, old = _temporary_path(place, "new"), _temporary_path(place, "old")
    work.mkdir()
    try:
        yield work
        if files.exists(place):
            place.rename(old)
        work.rename(place)
    except BaseException:
        if files.exists(old) and not files.exists(place):
            old.rename(place)
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def absolute(path: Any) -> Path:
    """Return the absolute path of a folder. Raises SaveError for a path that is none."""
    try:
        if not os.fspath(path):
            raise ValueError("it is empty")
        return Path(path).resolve()
    except (TypeError, ValueError, OSError, RuntimeError) as e:
        raise SaveError(f"{path!r} is not the path of a folder: {e}") from e


@contextmanager
def rewriting(
    path: Any, is_whole: Callable[[Path], bool], what: str, error: type[Exception] = OSError
) -> Iterator[tuple[Path, Path]]:
    """Yield a folder's absolute path, and a new temporary folder that replaces it if the block ends without an error.

    Args:
        path: the folder, which need not exist
        is_whole: whether a folder that exists may be replaced; an empty one always may
        what: description of such a folder, with its article
        error: class of errors, besides OSError, of writing a file
    Raises:
        SaveError: the folder holds something else, or cannot be written.
    """
    target = absolute(path)
    try:
        if target in (here := Path.cwd(), *here.parents):
            raise SaveError(
                f"{target} is or contains the working directory, which cannot be replaced; name a new folder"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        with turn(target):
            restore(target, is_whole)
            if files.exists(target) and any(target.iterdir() if files.is_folder(target) else [target]):
                if not is_whole(target):
                    raise SaveError(f"{target} exists and is not {what}; choose another folder or remove it")
            with replacing(target) as work:
                yield target, work
    except SaveError:
        raise
    except TakenError as e:
        raise SaveError(f"cannot save to {target}: {e}; save to another folder, or end that process") from e
    except (OSError, error) as e:
        raise SaveError(f"cannot save to {target}: {e}; choose a folder that can be written") from e


def copy_others(place: Path, work: Path, written: Container[str]) -> None:
    """Copy the user's own files in the folder `place`, all but the names `written`, to the folder that will replace it;
    its own files stay as they are. Links are copied as links."""
    for other in sorted(place.iterdir()) if files.is_folder(place) else []:
        if other.name in written or os.path.lexists(work / other.name):
            continue
        if files.is_folder(other) and not os.path.islink(other):
            shutil.copytree(other, work / other.name, symlinks=True)
        else:
            shutil.copy2(other, work / other.name, follow_symlinks=False)


def restore(place: Path, is_whole: Callable[[Path], bool]) -> None:
    """Restore the old folder that a killed process had moved aside while replacing it.

    The caller must hold the folder's turn. is_whole: whether a folder is a complete one.
    """
    if files.exists(place):
        return
    for old in _moved_aside(place):
        if is_whole(old):
            old.rename(place)
            return


def find(place: Path, is_whole: Callable[[Path], bool]) -> None:
    """Wait until a folder that is being replaced is in its place, and put it back where its writer was killed.

    Does nothing where the parent cannot be written to.
    """
    if not files.exists(place) and (is_locked(place) or _moved_aside(place)):
        with suppress(OSError), turn(place):
            restore(place, is_whole)


def _moved_aside(place: Path) -> list[Path]:
    return sorted(place.parent.glob(f".{glob.escape(place.name)}.*.old"))


def _clear(place: Path) -> None:
    """Remove temporary folders that killed writers of `place` have left in its parent."""
    for left in list(place.parent.iterdir()):
        named = re.fullmatch(rf"\.{re.escape(place.name)}\.(?:([0-9a-f]{{8}})-)?(\d+)(?:-\w+)?\.(?:new|old)", left.name)
        if named and _is_abandoned(left, named[1], int(named[2])):
            shutil.rmtree(left, ignore_errors=True)


def _is_abandoned(path: Path, machine: str | None, process: int) -> bool:
    """Return whether a temporary folder has no living writer: its process, on this machine if `machine` is None, has
    ended. A folder of another machine is judged by its age."""
    if machine not in (None, files.machine()):
        with suppress(OSError):
            return time.time() - path.lstat().st_mtime > files.ABANDONED
        return False
    return process == os.getpid() or not processes.runs(process)
