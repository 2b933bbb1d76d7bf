"""Ask an operating system: files of Linux, values of macOS's sysctl(3), functions of Windows's kernel32.

The other modules of the package ask through this one, so that tests can answer as any system would.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from functools import cache
from pathlib import Path
from typing import Any

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


def host_statistics(flavor: int, words: int) -> list[int]:
    """Return statistics of macOS's kernel (host_statistics64, mach/host_info.h) as at most `words` words of 32 bits.
    Return [] if the kernel refuses."""
    ask = ctypes.CDLL(None).host_statistics64
    ask.argtypes = ctypes.c_uint32, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
    counts, count = (ctypes.c_uint32 * words)(), ctypes.c_uint32(words)
    if ask(_host_port(), flavor, ctypes.byref(counts), ctypes.byref(count)):
        return []
    return list(counts)[: count.value]


@cache
def _host_port() -> int:
    """Return the port of macOS's kernel; each question for it would count another use that has to be given back."""
    ask = ctypes.CDLL(None).mach_host_self
    ask.restype = ctypes.c_uint32
    return ask()


def kernel32() -> Any:
    """Return the functions of Windows's kernel32; `ctypes.get_last_error` has the error of the last call."""
    return ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]


def this_process() -> ctypes.c_void_p:
    """Return the handle by which a process of Windows names itself."""
    return ctypes.c_void_p(-1)


def read_registry(key: str, name: str) -> Any:
    """Return a value below HKEY_LOCAL_MACHINE of Windows's registry; None where there is none."""
    if winreg is None:
        return None
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as opened:
            return winreg.QueryValueEx(opened, name)[0]
    except OSError:
        return None
