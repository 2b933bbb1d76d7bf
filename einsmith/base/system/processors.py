"""Processors of the machine: which this process may use, their cores, caches, names and features, and their load."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from einsmith.base.system import sources
from einsmith.base.system.sources import system

_CORE, _CACHE, _INSTRUCTIONS = 0, 2, 1
"""Kinds of Windows's records (RelationProcessorCore, RelationCache), and the kind of cache that holds no data."""
_RECORD = 32
"""Bytes of SYSTEM_LOGICAL_PROCESSOR_INFORMATION of Windows."""
_WINDOWS_FEATURES = {10: "sse2", 13: "pni", 36: "ssse3", 37: "sse4_1", 38: "sse4_2", 39: "avx", 40: "avx2",
                     41: "avx512f", 43: "asimddp"}  # fmt: skip
"""Features that Windows reports (IsProcessorFeaturePresent, winnt.h), by number, under Linux's names."""
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18
"""Linux's system call arch_prctl on x86-64, ARCH_REQ_XCOMP_PERM, and the number of the state of tile
registers (arch/x86/include/uapi/asm/prctl.h)."""


class _WindowsRecord(NamedTuple):
    """A physical core or a cache, as Windows describes it."""

    mask: int
    kind: int
    level: int
    size: int
    cache_kind: int

    def serves(self, cpu: int) -> bool:
        return bool(self.mask >> cpu & 1)


def allowed() -> list[int]:
    """Return the numbers of the processors that this process may use. macOS keeps no process from any; on Windows they
    are those of the process's own group of at most 64."""
    if system() == "win32":
        return sources.psutil().Process().cpu_affinity()
    if system() != "darwin" and hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def can_restrict() -> bool:
    """Return whether `restrict` can keep this process to some processors; not on macOS."""
    return system() == "win32" or system() != "darwin" and hasattr(os, "sched_setaffinity")


def restrict(cpus: Sequence[int]) -> None:
    """Restrict this process to processors of these numbers, if the system supports it. Raises OSError if it refuses."""
    if system() == "win32":
        sources.psutil().Process().cpu_affinity(list(cpus))
    elif can_restrict():
        os.sched_setaffinity(0, cpus)


def cores() -> list[list[int]]:
    """Return the processors of each physical core that this process may use. Where the system does not tell, each
    processor counts as a core."""
    cpus = allowed()
    if system() == "linux":
        by_core: dict[str, list[int]] = {}
        for cpu in cpus:
            at = f"/sys/devices/system/cpu/cpu{cpu}/topology/"
            core = sources.read(at + "core_cpus_list") or sources.read(at + "thread_siblings_list") or str(cpu)
            by_core.setdefault(core, []).append(cpu)
        return list(by_core.values())
    if system() == "darwin":
        each = -(-len(cpus) // (sources.sysctl_number("hw.physicalcpu") or len(cpus)))
        return [cpus[first : first + each] for first in range(0, len(cpus), each)]
    if system() == "win32":
        known = [[n for n in cpus if r.serves(n)] for r in _windows_records() if r.kind == _CORE]
        return [core for core in known if core] or [[n] for n in cpus]
    return [[n] for n in cpus]


def quota() -> int | None:
    """Return the whole processors that Linux's control group grants, or None where it grants all; None on other
    systems, which have no such groups."""
    granted, _, period = sources.read("/sys/fs/cgroup/cpu.max").partition(" ")
    if granted.isdigit() and period.isdigit():
        return max(1, -(-int(granted) // int(period)))
    v1 = sources.read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = sources.read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if v1.isdigit() and period.isdigit() and int(v1) > 0:
        return max(1, -(-int(v1) // int(period)))
    return None


def physical_cores() -> int:
    """Return the physical cores within this process's affinity and its control group's quota; at least 1."""
    count = len(cores())
    return max(1, min(count, quota() or count))


def caches() -> dict[int, int]:
    """Return the bytes per level of the data caches that this process's first processor sees; levels that the system
    does not report are missing.

    On macOS they are those of the fast cores, and a second level that several cores share is divided by their number.
    """
    if system() == "darwin":
        fast = "hw.perflevel0." if sources.sysctl_number("hw.nperflevels") else "hw."
        shared = sources.sysctl_number("hw.perflevel0.cpusperl2") or 1
        sizes = {
            1: sources.sysctl_number(f"{fast}l1dcachesize"),
            2: sources.sysctl_number(f"{fast}l2cachesize") // shared,
            3: sources.sysctl_number("hw.l3cachesize"),
        }
        return {level: size for level, size in sizes.items() if size}
    cpu = next(iter(allowed()), 0)
    if system() == "win32":
        levels = (r for r in _windows_records() if r.kind == _CACHE and r.cache_kind != _INSTRUCTIONS and r.serves(cpu))
        return {r.level: r.size for r in levels}
    return dict(_linux_caches(cpu))


def _linux_caches(cpu: int) -> Iterator[tuple[int, int]]:
    """Yield the level and bytes of each data cache of a processor."""
    for index in range(8):
        at = f"/sys/devices/system/cpu/cpu{cpu}/cache/index{index}/"
        level = sources.read(at + "level")
        if level.isdigit() and sources.read(at + "type") in ("Data", "Unified"):
            yield int(level), _parse_bytes(sources.read(at + "size"))


def _parse_bytes(text: str) -> int:
    """Parse a size with a unit: '48K' is 49152. 0 where it is not a number."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    digits = text.rstrip("KMG")
    return int(digits) * unit if digits.isdigit() else 0


def _windows_records() -> list[_WindowsRecord]:
    """Return Windows's description of the processors of this process's group; [] if Windows refuses."""
    ask = sources.kernel32().GetLogicalProcessorInformation
    size = ctypes.c_uint32(0)
    ask(None, ctypes.byref(size))
    data = ctypes.create_string_buffer(max(1, size.value))
    if not ask(data, ctypes.byref(size)):
        return []
    whole = size.value // _RECORD * _RECORD
    # mask, kind, then of a cache: level, ways, bytes of a line, size, kind
    fields = struct.iter_unpack("<QI4xBBHIIxxxx", data.raw[:whole])
    return [_WindowsRecord(mask, kind, level, nbytes, sort) for mask, kind, level, _, _, nbytes, sort in fields]


def flags() -> frozenset[str]:
    """Return the CPU's feature names as Linux spells them. macOS tells those of Intel's processors, Windows some; empty
    where the system does not tell."""
    if system() == "darwin":
        text = f"{sources.sysctl_text('machdep.cpu.features')} {sources.sysctl_text('machdep.cpu.leaf7_features')}"
        return frozenset({"avx1_0": "avx"}.get(w, w) for w in text.lower().replace(".", "_").split())
    if system() == "win32":
        has = sources.kernel32().IsProcessorFeaturePresent
        return frozenset(name for number, name in _WINDOWS_FEATURES.items() if has(number))
    return frozenset((_cpuinfo("flags") or _cpuinfo("Features")).split())


def model() -> str:
    """Return the processor's model name, or else the platform's name for it."""
    if system() == "darwin":
        name = sources.sysctl_text("machdep.cpu.brand_string")
    elif system() == "win32":
        key = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
        name = str(sources.read_registry(key, "ProcessorNameString") or "")
    else:
        name = _cpuinfo("model name")
    return name.strip() or platform.processor() or platform.machine()


def _cpuinfo(name: str) -> str:
    """Return the first value of this name in /proc/cpuinfo; empty where there is none."""
    for line in sources.read("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def load() -> float | None:
    """Return how many threads ran or waited for a processor, on average over the last minute; None on Windows, which
    does not count them."""
    return None if system() == "win32" else os.getloadavg()[0]


def seconds_worked() -> float:
    """Return the seconds that this process's processors have worked, or were withheld by the host of a virtual machine
    (which only Linux tells). macOS keeps the times of all processors."""
    times = sources.psutil().cpu_times(percpu=True)
    parts = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(getattr(times[n], part, 0.0) for n in allowed() if n < len(times) for part in parts)


@cache
def permit_tile_registers() -> bool:
    """Ask the system for Intel's tile registers (AMX); Linux requires this once per process. Return whether the process
    may use them. Return False on other systems."""
    if system() != "linux" or platform.machine() != "x86_64":
        return False
    return ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0
