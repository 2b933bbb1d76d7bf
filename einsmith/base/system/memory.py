"""Memory of the machine and of this process."""

from __future__ import annotations

import ctypes
import os

from einsmith.base.system import sources
from einsmith.base.system.sources import system

VM_INFO, _VM_WORDS = 4, 38
"""HOST_VM_INFO64 of macOS, and the words of vm_statistics64, of which the first are pages: free, active, inactive."""


def total_bytes() -> int | None:
    """Return the bytes of the machine's memory; None where the system does not tell."""
    if system() == "darwin":
        return sources.sysctl_number("hw.memsize") or None
    if system() == "win32":
        return _windows_memory()[0] or None
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def available_bytes() -> int | None:
    """Return how many bytes of memory processes can still have without swapping; None where the system does not
    tell."""
    if system() == "linux":
        return _in_kilobytes("/proc/meminfo", "MemAvailable")
    if system() == "darwin":
        pages = sources.host_statistics(VM_INFO, _VM_WORDS)
        return (pages[0] + pages[2]) * sources.sysctl_number("hw.pagesize") if len(pages) > 2 else None
    if system() == "win32":
        return _windows_memory()[1] or None
    return None


def resident_bytes() -> int:
    """Return the bytes of memory that this process holds; 0 where the system does not tell (only Linux does)."""
    return _in_kilobytes("/proc/self/status", "VmRSS") or 0


def peak_bytes() -> int:
    """Return the most bytes of memory that this process has held since `reset_peak`; 0 where the system does not tell
    (only Linux does)."""
    return _in_kilobytes("/proc/self/status", "VmHWM") or 0


def reset_peak() -> None:
    """Count the most that this process holds from here on, where the system counts it (proc(5), clear_refs)."""
    try:
        (sources.ROOT / "proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def give_back() -> None:
    """Give memory that was released back to the system, where the C library keeps it (glibc does)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if system() == "linux" else None
    if trim is not None:
        trim(0)


def _in_kilobytes(path: str, name: str) -> int | None:
    """Return the bytes of a line "name: number kB" of a file of Linux; None where there is no such line."""
    for line in sources.read(path).splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        if key == name and words and words[0].isdigit():
            return 1024 * int(words[0])
    return None


def _windows_memory() -> tuple[int, int]:
    """Return the bytes of the machine's memory, and those available; zeros if Windows refuses."""
    status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX begins with its size; words 1 and 2 are these
    answered = sources.kernel32().GlobalMemoryStatusEx(ctypes.byref(status))
    return (status[1], status[2]) if answered else (0, 0)
