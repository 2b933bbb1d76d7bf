"""Lock open files between processes: by flock(2), and on Windows by msvcrt.

The system frees a lock when its process ends. On a system or a file system without locks every lock is acquired at
once.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from einsmith.base.system import sources

fcntl, msvcrt = sources.optional("fcntl"), sources.optional("msvcrt")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems that have no locks."""
_PLACE = 1 << 30
"""Byte that is locked on Windows, where nobody else can read what is locked: far behind the contents."""
_POLL = 0.01
"""Seconds between two attempts at a lock on Windows, whose own waiting gives up after ten seconds."""


def lock(descriptor: int) -> bool:
    """Lock an open file for this descriptor alone, without waiting; return whether the lock was acquired."""
    if fcntl is not None:
        return _flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return msvcrt is None or _lock_byte(descriptor, msvcrt.LK_NBLCK)


def is_locked(descriptor: int) -> bool:
    """Return whether another descriptor holds the lock of an open file."""
    if fcntl is not None:
        free = _flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    else:
        free = lock(descriptor)
    if free:
        unlock(descriptor)
    return not free


def unlock(descriptor: int) -> None:
    """Free the lock of an open file, even where a child that was forked meanwhile has the file open."""
    with suppress(OSError):
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        elif msvcrt is not None:
            _lock_byte(descriptor, msvcrt.LK_UNLCK)


@contextmanager
def hold(descriptor: int) -> Iterator[None]:
    """Hold the lock of an open file, which is closed at the end; other processes and threads wait for it."""
    try:
        if fcntl is not None:
            _flock(descriptor, fcntl.LOCK_EX)
        else:
            while not lock(descriptor):
                time.sleep(_POLL)
        yield
        unlock(descriptor)
    finally:
        os.close(descriptor)


def _flock(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    except OSError as e:
        if e.errno not in _NO_LOCKS:
            raise
    return True


def _lock_byte(descriptor: int, how: int) -> bool:
    """Lock or free the byte at _PLACE, which is counted from the file's position."""
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, _PLACE, os.SEEK_SET)
    try:
        msvcrt.locking(descriptor, how, 1)
    except OSError as e:
        if e.errno not in (errno.EACCES, errno.EDEADLK):  # another one holds it
            raise
        return False
    finally:
        os.lseek(descriptor, position, os.SEEK_SET)
    return True
