"""Other operating systems, simulated: `sys.platform` and answers of the sources that the package asks there. The code
of each system's form runs, on answers as that system's documentation has them; no such system does."""

from __future__ import annotations

import ctypes
import errno
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from einsmith.base.system import sources


def linux(monkeypatch: pytest.MonkeyPatch, folder: Path, files: Mapping[str, str]) -> None:
    """Be on Linux with these files of /proc and /sys, and no others."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sources, "ROOT", folder)
    for name, text in files.items():
        path = folder / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def mac(
    monkeypatch: pytest.MonkeyPatch,
    values: Mapping[str, int | str] | None = None,
) -> None:
    """Be on macOS. values: what sysctl tells by name."""
    data = {k: v.to_bytes(8, "little") if isinstance(v, int) else v.encode() + b"\0" for k, v in (values or {}).items()}

    def sysctlbyname(name: bytes, value: Any, size: Any, new: None, new_size: int) -> int:
        assert new is None and new_size == 0
        if name.decode() not in data:
            return -1
        told = data[name.decode()]
        if value is not None:
            ctypes.memmove(value, told, len(told))
        size._obj.value = len(told)
        return 0

    library = SimpleNamespace(sysctlbyname=sysctlbyname)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)


def windows(
    monkeypatch: pytest.MonkeyPatch,
    functions: Mapping[str, Callable[..., int]] | None = None,
    registry: Mapping[tuple[str, str], Any] | None = None,
) -> None:
    """Be on Windows. functions: those of kernel32, by name; registry: values below HKEY_LOCAL_MACHINE, by key and
    name."""

    class Opened(SimpleNamespace):
        def __enter__(self) -> Opened:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    def query(opened: Opened, name: str) -> tuple[Any, int]:
        if (opened.key, name) not in (registry or {}):
            raise FileNotFoundError(errno.ENOENT, "no such value")
        return (registry or {})[opened.key, name], 1

    known = {name: _named(f) for name, f in (functions or {}).items()}
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "WinDLL", lambda name, use_last_error: SimpleNamespace(**known), raising=False)
    hives = SimpleNamespace(
        HKEY_LOCAL_MACHINE=2, OpenKey=lambda hive, key: Opened(hive=hive, key=key), QueryValueEx=query
    )
    monkeypatch.setattr(sources, "winreg", hives)


def _named(f: Callable[..., int]) -> Callable[..., int]:
    return lambda *arguments: f(*arguments)  # a function of its own, whose `restype` can be set


def core(mask: int) -> bytes:
    """A physical core, as GetLogicalProcessorInformation describes it."""
    return struct.pack("<QI4xB15x", mask, 0, 1)


def cache(mask: int, level: int, size: int, kind: int) -> bytes:
    """A cache; kind 0 holds all, 1 instructions, 2 data."""
    return struct.pack("<QI4xBBHIIxxxx", mask, 2, level, 8, 64, size, kind)


def describing(records: bytes) -> Callable[..., int]:
    """GetLogicalProcessorInformation with these records."""

    def ask(data: Any, size: Any) -> int:
        room, size._obj.value = size._obj.value, len(records)
        if data is None or room < len(records):
            return 0
        data[: len(records)] = records
        return 1

    return ask
