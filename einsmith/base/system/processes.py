"""Other processes: whether one runs, what it has computed, and what identifies the numbers of processes."""

from __future__ import annotations

import ctypes
import os
import platform
from contextlib import suppress

from einsmith.base.system import sources
from einsmith.base.system.sources import system

_QUERY, _STILL_ACTIVE, _NO_PROCESS = 0x1000, 259, 87
"""PROCESS_QUERY_LIMITED_INFORMATION, the status of a process that runs, and the error for a number of no process, all
of Windows."""
BOOT_KEY = r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters"
"""Key of Windows's registry that holds BootId, which grows at each boot."""
_BEHIND_NAME = 3
"""Number of the first field of /proc/PID/stat behind the name, as proc(5) counts them."""


def runs(process: int) -> bool:
    """Return whether a process of this number runs on this machine."""
    if system() == "win32":  # where os.kill would end the process
        return _runs_on_windows(process)
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _runs_on_windows(process: int) -> bool:
    kernel32 = sources.kernel32()
    kernel32.OpenProcess.restype = ctypes.c_void_p
    handle = kernel32.OpenProcess(_QUERY, 0, process)
    if not handle:
        return ctypes.get_last_error() != _NO_PROCESS  # type: ignore[attr-defined]  # it may be another user's
    status = ctypes.c_uint32()
    answered = kernel32.GetExitCodeProcess(ctypes.c_void_p(handle), ctypes.byref(status))
    kernel32.CloseHandle(ctypes.c_void_p(handle))
    return not answered or status.value == _STILL_ACTIVE


def number_space() -> str:
    """Return a text that identifies the space of process numbers. It differs between machines that share a folder,
    between boots (Linux, macOS, Windows), and on Linux between containers."""
    identity = platform.node()
    if system() == "linux":
        identity += sources.read("/proc/sys/kernel/random/boot_id")
        with suppress(OSError):
            identity += str(os.stat(sources.ROOT / "proc/self/ns/pid").st_ino)
    elif system() == "darwin":
        identity += sources.sysctl_text("kern.bootsessionuuid")
    elif system() == "win32":
        identity += str(sources.read_registry(BOOT_KEY, "BootId"))
    return identity


def user_id() -> int | None:
    """Return the number of the user whose files this process makes; None on Windows, where users have none."""
    return None if system() == "win32" else os.geteuid()


def can_pause() -> bool:
    """Return whether processes can be paused and resumed by signals, together with those that they started; not on
    Windows."""
    return system() != "win32"


def can_wait_for_pipes() -> bool:
    """Return whether a wait for a pipe can have a time limit; not on Windows, which waits so for sockets alone."""
    return system() != "win32"


def list_libraries() -> list[str]:
    """Return the files that are mapped into this process, shared libraries among them; [] except on Linux."""
    lines = sources.read("/proc/self/maps").splitlines() if system() == "linux" else []
    return list(dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "/" in line))


def processor_seconds(process: int) -> float:
    """Return the seconds that the processors have worked for a process; 0 where the system does not tell (only Linux
    does)."""
    fields = _stat(process)[14 - _BEHIND_NAME : 16 - _BEHIND_NAME]  # utime, stime
    return sum(map(int, fields)) / _ticks() if len(fields) == 2 else 0.0


def tree_seconds(process: int) -> float | None:
    """Return the processor seconds of a process and all that descend from it; None where the system does not tell
    (only Linux does)."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in (sources.ROOT / "proc").glob("[0-9]*/stat"):
        number = int(path.parent.name)
        fields = _stat(number)
        if len(fields) > 17 - _BEHIND_NAME:
            parents[number] = int(fields[4 - _BEHIND_NAME])
            # its own and its ended children's, user and system
            ticks[number] = sum(map(int, fields[14 - _BEHIND_NAME : 18 - _BEHIND_NAME]))
    if process not in ticks:
        return None

    def descends(p: int) -> bool:
        while p not in (0, process):
            p = parents.get(p, 0)
        return p == process

    return sum(t for p, t in ticks.items() if descends(p)) / _ticks()


def _stat(process: int) -> list[str]:
    """Return the fields of a process's description by Linux from the third one on (proc(5)); [] where there is none."""
    return sources.read(f"/proc/{process}/stat").rpartition(")")[2].split()  # the name may have brackets, too


def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")
