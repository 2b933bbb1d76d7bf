"""Memory of the machine and of this process."""

from __future__ import annotations

import ctypes

from einsmith.base.system import sources
from einsmith.base.system.sources import system


def total_bytes() -> int:
    """Return the bytes of the machine's memory."""
    return sources.psutil().virtual_memory().total


def available_bytes() -> int:
    """Return how many bytes of memory processes can still have without swapping."""
    return sources.psutil().virtual_memory().available


def resident_bytes() -> int:
    """Return the bytes of memory that this process holds."""
    return sources.psutil().Process().memory_info().rss


def peak_bytes() -> int:
    """Return the most bytes of memory that this process has held since `reset_peak`; 0 where the system does not tell
    (only Linux does)."""
    for line in sources.read("/proc/self/status").splitlines():
        if line.startswith("VmHWM:"):  # in kB
            return 1024 * int(line.split()[1])
    return 0


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
