"""Hardware facts as data: what a pattern may ask about the machine it configures itself for.

Sizes are static facts read from the operating system; the coefficients (operations and bytes per second) have static
defaults that calibration may replace with measured ones. Nothing here knows a code generator: `cpu`, `features` and
`triple` may be "host", which the code generator resolves.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_SPECIAL = (
    ("exp", 0.15e-9), ("log", 0.18e-9), ("tanh", 0.2e-9), ("sigmoid", 0.2e-9), ("sqrt", 0.1e-9), ("rsqrt", 0.15e-9),
    ("div", 0.08e-9), ("erf", 8e-9), ("sin", 10e-9), ("cos", 10e-9), ("pow", 20e-9), ("floordiv", 0.4e-9),
    ("mod", 0.4e-9),
)  # fmt: skip

_ONE_CORE = 0.7
"""The part of the machine's memory bandwidth that one core can use."""


@dataclass(frozen=True)
class Target:
    """One machine. Hashable, so that it can be part of a cache key.

    vector_bytes: bytes of one vector register; vector_registers: how many there are; l1, l2: bytes per core; l3: bytes
    that all cores share; cores: physical cores that may be used. Coefficients: `fma_per_second` f32 multiply-adds per
    core; `bytes_per_second` per core from (L1, L2, L3); `memory_bandwidth` bytes/s of the whole machine;
    `special_seconds` seconds per f32 element and core of a function that is not one instruction; `launch_seconds` to
    start one parallel sweep.
    """

    cpu: str = "host"
    features: str = "host"
    triple: str = "host"
    vector_bytes: int = 32
    vector_registers: int = 16
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 8 << 20
    cores: int = 1
    fma_per_second: float = 4e10
    bytes_per_second: tuple[float, float, float] = (1.5e11, 7e10, 3e10)
    memory_bandwidth: float = 4e10
    special_seconds: tuple[tuple[str, float], ...] = _SPECIAL
    launch_seconds: float = 2e-6

    def lanes(self, itemsize: int = 4) -> int:
        """Elements of `itemsize` bytes in one vector register."""
        return max(2, self.vector_bytes // itemsize)

    def special(self, fn: str) -> float:
        """Seconds per element and core of the scalar function `fn`; 0 for those that are one instruction."""
        return _special(self).get(fn, 0.0)

    def seconds_for_bytes(self, moved: float, footprint: float, tasks: int) -> float:
        """Seconds to move `moved` bytes when the data is `footprint` bytes in all and `tasks` run at once.

        The level is the smallest one that holds the footprint; private levels serve each core on its own.
        """
        cores = max(1, min(self.cores, tasks))
        for size, rate in zip((self.l1 * cores, self.l2 * cores, self.l3), self.bytes_per_second, strict=True):
            if footprint <= size:
                return moved / (rate * cores)
        return moved / (self.memory_bandwidth * min(1.0, _ONE_CORE * cores))


@cache
def _special(target: Target) -> dict[str, float]:
    return dict(target.special_seconds)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _bytes(text: str) -> int:
    """'48K' as 49152."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    digits = text.rstrip("KMG")
    return int(digits) * unit if digits.isdigit() else 0


def _caches(cpu: int) -> dict[int, int]:
    """Bytes per level of the data caches that one processor sees; empty where the system does not tell."""
    found = {}
    for index in range(8):
        at = f"/sys/devices/system/cpu/cpu{cpu}/cache/index{index}/"
        if _read(at + "type") in ("Data", "Unified"):
            found[int(_read(at + "level") or 0)] = _bytes(_read(at + "size"))
    return found


def _allowed() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _quota() -> int | None:
    """Whole processors that the control group grants, or None where it grants all."""
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        return max(1, -(-int(quota) // int(period)))
    v1 = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if v1.isdigit() and period.isdigit() and int(v1) > 0:
        return max(1, -(-int(v1) // int(period)))
    return None


def physical_cores() -> int:
    """Physical cores within this process's affinity and its control group's quota; at least 1."""
    allowed = _allowed()
    cores = set()
    for cpu in allowed:
        at = f"/sys/devices/system/cpu/cpu{cpu}/topology/"
        cores.add(_read(at + "core_cpus_list") or _read(at + "thread_siblings_list") or str(cpu))
    return max(1, min(len(cores), _quota() or len(cores)))


def cpu_flags() -> frozenset[str]:
    """Feature names as /proc/cpuinfo spells them; empty where there is no such file."""
    for line in _read("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


@cache
def host() -> Target:
    """The machine that this process runs on, with static coefficients. Read once."""
    flags, machine = cpu_flags(), platform.machine().lower()
    if "avx512f" in flags and "avx512vl" in flags:
        vector, registers, fma = 64, 32, 1.2e11
    elif "avx2" in flags and "fma" in flags:
        vector, registers, fma = 32, 16, 5e10
    elif machine in ("aarch64", "arm64"):
        vector, registers, fma = 16, 32, 2.4e10
    else:
        vector, registers, fma = 16, 16, 1.2e10
    allowed = _allowed()
    caches = _caches(allowed[0] if allowed else 0)
    per_core = 2.5 * vector * 1e9
    return Target(
        vector_bytes=vector,
        vector_registers=registers,
        l1=caches.get(1) or 32 << 10,
        l2=caches.get(2) or 512 << 10,
        l3=caches.get(3) or 8 << 20,
        cores=physical_cores(),
        fma_per_second=fma,
        bytes_per_second=(2 * per_core, per_core, 0.4 * per_core),
    )
