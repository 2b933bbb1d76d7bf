"""Processors as Linux, macOS and Windows describe them, each simulated (`systems`), and where a system says nothing."""

from __future__ import annotations

import os
import sys

import psutil
import pytest

from einsmith.base.system import processors
from tests.base.system import systems


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors 0 to 3 may be used."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)


@pytest.mark.parametrize("text, cores", [("max 100000", 4), ("100000 100000", 1), ("150000 100000", 2), ("", 4)])
def test_quota_limits_the_cores(monkeypatch, tmp_path, four, text, cores) -> None:
    systems.linux(monkeypatch, tmp_path, {"/sys/fs/cgroup/cpu.max": text})
    assert processors.physical_cores() == cores


def test_quota_of_the_first_control_groups(monkeypatch, tmp_path, four) -> None:
    at = "/sys/fs/cgroup/cpu/cpu.cfs_"
    systems.linux(monkeypatch, tmp_path, {f"{at}quota_us": "250000", f"{at}period_us": "100000\n"})
    assert processors.quota() == 3
    systems.linux(monkeypatch, tmp_path, {f"{at}quota_us": "-1"})
    assert processors.quota() is None


def test_linux(monkeypatch, tmp_path, four) -> None:
    cpu, caches = "/sys/devices/system/cpu/cpu", "/sys/devices/system/cpu/cpu0/cache/index"
    levels = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K"), ("3", "Unified", "260M")]
    files = {f"{cpu}{n}/topology/core_cpus_list": s for n, s in {0: "0,2", 2: "0,2"}.items()}
    files |= {f"{cpu}{n}/topology/thread_siblings_list": "1,3" for n in (1, 3)}
    for n, words in enumerate(levels):
        files |= {f"{caches}{n}/{k}": w + "\n" for k, w in zip(("level", "type", "size"), words, strict=True)}
    files["/proc/cpuinfo"] = "processor\t: 0\nmodel name\t: Fast One\nflags\t\t: fpu avx2 fma\n\nmodel name\t: Other\n"
    systems.linux(monkeypatch, tmp_path, files)
    assert processors.cores() == [[0, 2], [1, 3]] and processors.physical_cores() == 2
    assert processors.caches() == {1: 48 << 10, 2: 2 << 20, 3: 260 << 20}
    assert processors.flags() == {"fpu", "avx2", "fma"} and processors.model() == "Fast One"


def test_features_of_an_arm_under_linux(monkeypatch, tmp_path) -> None:
    systems.linux(monkeypatch, tmp_path, {"/proc/cpuinfo": "processor : 0\nFeatures : fp asimd asimddp\n"})
    assert processors.flags() == {"fp", "asimd", "asimddp"} and processors.model()


def test_linux_that_says_nothing(monkeypatch, tmp_path, four) -> None:
    systems.linux(monkeypatch, tmp_path, {"/sys/devices/system/cpu/cpu0/cache/index0/level": ""})
    assert processors.cores() == [[0], [1], [2], [3]] and processors.caches() == {}
    assert processors.flags() == frozenset() and processors.quota() is None


def test_a_mac_of_apple(monkeypatch, four) -> None:
    values = {
        "hw.physicalcpu": 4, "hw.nperflevels": 2, "hw.perflevel0.l1dcachesize": 128 << 10,
        "hw.perflevel0.l2cachesize": 12 << 20, "hw.perflevel0.cpusperl2": 4, "hw.l1dcachesize": 64 << 10,
        "hw.l2cachesize": 4 << 20, "machdep.cpu.brand_string": "Apple M1",
    }  # fmt: skip
    systems.mac(monkeypatch, values)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {9}, raising=False)  # macOS has no such thing
    assert processors.allowed() == [0, 1, 2, 3] and processors.cores() == [[0], [1], [2], [3]]
    assert processors.caches() == {1: 128 << 10, 2: 3 << 20}
    assert processors.model() == "Apple M1" and processors.flags() == frozenset()
    assert processors.quota() is None and not processors.can_restrict()
    monkeypatch.setattr(os, "sched_setaffinity", None, raising=False)
    processors.restrict([0])  # is not called


def test_a_mac_of_intel(monkeypatch, four) -> None:
    values = {
        "hw.physicalcpu": 2, "hw.l1dcachesize": 32 << 10, "hw.l2cachesize": 256 << 10, "hw.l3cachesize": 6 << 20,
        "machdep.cpu.features": "FPU SSE4.1 FMA AVX1.0", "machdep.cpu.leaf7_features": "AVX2 AVX512F AVX512VL",
    }  # fmt: skip
    systems.mac(monkeypatch, values)
    assert processors.cores() == [[0, 1], [2, 3]] and processors.caches() == {1: 32 << 10, 2: 256 << 10, 3: 6 << 20}
    assert processors.flags() == {"fpu", "sse4_1", "fma", "avx", "avx2", "avx512f", "avx512vl"}
    assert processors.model()


def test_windows(monkeypatch, four) -> None:
    records = systems.core(0b0101) + systems.core(0b1010) + systems.core(0b110000)
    records += systems.cache(0b0101, 1, 48 << 10, 2) + systems.cache(0b0101, 1, 32 << 10, 1)
    records += systems.cache(0b1010, 1, 64 << 10, 2) + systems.cache(0b1111, 3, 30 << 20, 0)
    kept: list[list[int]] = []

    def affinity(self: psutil.Process, cpus: list[int] | None = None) -> list[int]:
        kept.extend([cpus] if cpus else [])
        return [0, 1, 2, 3]

    monkeypatch.setattr(psutil.Process, "cpu_affinity", affinity)
    functions = {
        "GetLogicalProcessorInformation": systems.describing(records),
        "IsProcessorFeaturePresent": lambda number: number in (10, 40),
    }
    key = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
    systems.windows(monkeypatch, functions, {(key, "ProcessorNameString"): "Fast One  "})
    assert processors.allowed() == [0, 1, 2, 3] and processors.cores() == [[0, 2], [1, 3]]
    assert processors.caches() == {1: 48 << 10, 3: 30 << 20}
    assert processors.flags() == {"sse2", "avx2"} and processors.model() == "Fast One"
    assert processors.load() is None
    processors.restrict([0, 2])
    assert kept == [[0, 2]] and processors.can_restrict()


def test_windows_that_refuses(monkeypatch, four) -> None:
    names = ("GetLogicalProcessorInformation", "IsProcessorFeaturePresent")
    systems.windows(monkeypatch, dict.fromkeys(names, lambda *_: 0))
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: [0, 1, 2, 3])
    assert processors.allowed() == [0, 1, 2, 3] and processors.cores() == [[0], [1], [2], [3]]
    assert processors.caches() == {} and processors.flags() == frozenset()
    assert processors.model()


def test_another_system(monkeypatch, tmp_path, four) -> None:
    """It has no affinity, no files, no functions."""
    systems.linux(monkeypatch, tmp_path, {})
    monkeypatch.setattr(sys, "platform", "sunos5")
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    assert processors.cores() == [[0], [1], [2], [3]] and processors.caches() == {}
    assert processors.model() and not processors.can_restrict() and processors.physical_cores() == 4


@pytest.mark.parametrize("name", ["darwin", "win32", "other"])
def test_tile_registers_are_for_linux(monkeypatch, name) -> None:
    monkeypatch.setattr(sys, "platform", name)
    assert processors.permit_tile_registers.__wrapped__() is False


def test_this_machine() -> None:
    assert 1 <= processors.physical_cores() <= len(processors.allowed()) <= (os.cpu_count() or 1)
    assert sorted(cpu for core in processors.cores() for cpu in core) == processors.allowed()
    before = processors.seconds_worked()
    assert before > 0 and processors.model() and processors.seconds_worked() >= before
