"""Other processes: whether one runs, what it has computed, and what identifies the numbers of processes."""

from __future__ import annotations

import os
import platform
from contextlib import suppress

from einsmith.base.system import sources
from einsmith.base.system.sources import system

BOOT_KEY = r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters"
"""Key of Windows's registry that holds BootId, which grows at each boot."""


def runs(process: int) -> bool:
    """Return whether a process of this number runs on this machine."""
    try:
        return sources.psutil().pid_exists(process)
    except OverflowError:  # no system has such numbers
        return False


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


def can_wait_for_pipes() -> bool:
    """Return whether a wait for a pipe can have a time limit; not on Windows, which waits so for sockets alone."""
    return system() != "win32"


def list_libraries() -> list[str]:
    """Return the files that are mapped into this process, shared libraries among them; [] except on Linux."""
    lines = sources.read("/proc/self/maps").splitlines() if system() == "linux" else []
    return list(dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "/" in line))


def processor_seconds(process: int) -> float:
    """Return the seconds that the processors have worked for a process; 0 where there is none of this number."""
    psutil = sources.psutil()
    try:
        times = psutil.Process(process).cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system
