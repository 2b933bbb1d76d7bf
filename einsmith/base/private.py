"""Keep entries in folders that no other user can write: caches hold machine code and pickles, which are executed.

A folder is used only if it belongs to this user, no other user may write into it, and no other user can replace it:
each folder above it belongs to this user or to the system, and other users may either not write into it or not rename
entries of others in it (/tmp). Folders are checked from the root down. No other user can replace a folder below one
that has passed, so this order leaves no gap. An entry is used only if it belongs to this user and no other user may
write it: what others put into the folder while it was open to them is never used, whatever the folder's mode is now.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from einsmith.base import files
from einsmith.base.system import processes, sources

MODE = 0o600
"""Mode of entries."""
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_REMEDY = "set EINSMITH_CACHE_DIR to a directory"


class PrivateFolder(files.Folder):
    """An open folder of this user alone, made where it is missing.

    Raises PermissionError, which says why, for a folder that must not be used (`distrust`), and OSError where it cannot
    be made or opened; with create=False also where there is none."""

    def __init__(self, path: Path, create: bool = True):
        place = _place_of(path)  # once: a link above may lead elsewhere later
        _check(place)
        if create and not files.is_folder(place):
            make_folders(place)
            _check(place)  # another process may have made it first
        super().__init__(place, files.NO_FOLLOW)

    def read(self, name: str) -> bytes:
        """Return the content of an entry. Raises PermissionError where another user has, or may have, written it,
        OSError where it cannot be read."""
        descriptor = self.open(name, os.O_RDONLY | files.NO_FOLLOW)
        with os.fdopen(descriptor, "rb") as f:
            if problem := _fault_of_entry(os.fstat(descriptor)):
                raise PermissionError(f"{self.path / name} {problem}")
            return f.read()

    def distrust(self, name: str) -> str:
        """Return why a file of the folder, which another library opens by its path, must not be used; empty where it
        may be, or where there is none."""
        try:
            status = self.status(name)
        except FileNotFoundError:
            return ""
        return _fault_of_entry(status) if stat.S_ISREG(status.st_mode) else "is not a plain file"


def _fault_of_entry(status: os.stat_result) -> str:
    user = processes.user_id()
    if user is None:
        return ""
    if status.st_uid != user:
        return "belongs to another user"
    return "can be written by others" if stat.S_IMODE(status.st_mode) & _OTHERS else ""


def _place_of(folder: Path) -> Path:
    """Return a folder's path without links above it; the folder itself may be none."""
    return Path(os.path.realpath(folder.parent)) / folder.name


def distrust(folder: Path) -> str:
    """Return why the contents of a cache folder must not be used, and the remedy; empty where they may be. A folder
    that does not exist yet is trusted where those above it are."""
    return _fault_of_path(_place_of(folder))


def _check(place: Path) -> None:
    if problem := _fault_of_path(place):
        raise PermissionError(problem)


def _fault_of_path(place: Path) -> str:
    """Return why a folder must not be used (`distrust`), by its path without links."""
    for part in (*reversed(place.parents), place):
        try:
            status = os.stat(part, follow_symlinks=False)
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as e:
            return f"{part}: {getattr(e, 'strerror', None) or e}; {_REMEDY} that can be written"
        if not stat.S_ISDIR(status.st_mode):
            return f"{part} is not a directory; {'remove it' if part == place else f'{_REMEDY} that can be written'}"
        if problem := _fault_of_folder(part, status, is_above=part != place):
            return problem
    return ""


def _fault_of_folder(path: Path, status: os.stat_result, is_above: bool) -> str:
    user = processes.user_id()
    if user is None:
        return ""
    # Whoever owns the root owns the machine; in a container that is not always the user 0.
    owners = (user, 0, os.stat("/").st_uid) if is_above else (user,)
    if status.st_uid not in owners:
        return f"{path} belongs to another user; {_REMEDY} of your own"
    if not status.st_mode & _OTHERS:
        return ""
    if not is_above:
        return f"{path} can be written by others; run chmod 700 on it"
    if status.st_mode & stat.S_ISVTX or (not status.st_mode & stat.S_IWOTH and _is_own_group(status.st_gid)):
        return ""
    return f"{path} can be written by others; run chmod go-w on it, or {_REMEDY} of your own"


def _is_own_group(group: int) -> bool:
    """Return whether a group is this user's alone, by its name and its members, as many systems give each user one."""
    pwd, grp = sources.optional("pwd"), sources.optional("grp")
    if pwd is None or grp is None:
        return False
    try:
        me, entry = pwd.getpwuid(processes.user_id()), grp.getgrgid(group)
    except KeyError:
        return False
    return me.pw_gid == group and entry.gr_name == me.pw_name and not set(entry.gr_mem) - {me.pw_name}


def describe(folder: Path, e: OSError) -> str:
    """Return why a cache folder cannot be used, and the remedy."""
    return f"{folder}: {e.strerror}; {_REMEDY} that can be written" if e.strerror else str(e)


def make_folders(path: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone. Raises OSError."""
    for part in (*reversed(path.parents), path):
        if not files.is_folder(part):
            part.mkdir(mode=0o700, exist_ok=True)
