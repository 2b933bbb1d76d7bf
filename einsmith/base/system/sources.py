"""Ask an operating system: psutil, and beyond it files of Linux, macOS's sysctl(3), functions of Windows's kernel32.

The other modules of the package ask through this one, so that tests can answer as any system would.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from pathlib import Path
from typing import Any

from einsmith.base import locks

ROOT = Path("/")
"""Folder in which Linux has /proc and /sys."""
SYSTEMS = ("linux", "darwin", "win32")
"""Linux, macOS and Windows, as `sys.platform` has them."""


def system() -> str:
    """Return one of SYSTEMS, or "other"."""
    return sys.platform if sys.platform in SYSTEMS else "other"


def optional(name: str) -> Any:
    """Return a module of the standard library that only some systems have; None on the others."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


winreg = optional("winreg")


def psutil() -> Any:
    """Return the library psutil, imported at its first use: a first call needs none of it."""
    with locks.IMPORTING:
        import psutil

    return psutil


def read(path: str) -> str:
    """Return the text of a file that describes a Linux system, such as /proc/stat; empty where there is none."""
    try:
        return (ROOT / path.lstrip("/")).read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def read_sysctl(name: str) -> bytes:
    """Return a value of macOS, such as that of hw.physicalcpu; empty where the system has none of the name."""
    ask = ctypes.CDLL(None).sysctlbyname
    ask.argtypes = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
    size = ctypes.c_size_t(0)
    if ask(name.encode(), None, ctypes.byref(size), None, 0):
        return b""
    value = ctypes.create_string_buffer(max(1, size.value))
    if ask(name.encode(), value, ctypes.byref(size), None, 0):
        return b""
    return value.raw[: size.value]


def sysctl_number(name: str) -> int:
    """Return a value of macOS that is a number; 0 where the system has none of the name."""
    return int.from_bytes(read_sysctl(name), "little")


def sysctl_text(name: str) -> str:
    """Return a value of macOS that is a text; empty where the system has none of the name."""
    return read_sysctl(name).partition(b"\0")[0].decode(errors="replace")


def kernel32() -> Any:
    """Return the functions of Windows's kernel32; `ctypes.get_last_error` has the error of the last call."""
    return ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]


def read_registry(key: str, name: str) -> Any:
    """Return a value below HKEY_LOCAL_MACHINE of Windows's registry; None where there is none."""
    if winreg is None:
        return None
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as opened:
            return winreg.QueryValueEx(opened, name)[0]
    except OSError:
        return None
