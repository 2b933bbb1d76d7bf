"""Find the OpenMP runtime that PyTorch runs on, in a process that has loaded it. Never imports PyTorch."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

LIBRARY = "torch._C"
"""Python module that PyTorch's libraries are loaded with; while PyTorch is still being imported, it may be missing."""
_RUNTIME = re.compile(r"/lib(gomp|iomp5|omp)[-.][^/]*$")
_FORKED = 0x40
"""PF_FORKNOEXEC of the kernel's process flags: the process was forked and has run no other program since."""


class Team(NamedTuple):
    """Threads of an OpenMP runtime: the addresses of its functions GOMP_parallel and omp_get_thread_num."""

    fork: int
    number: int


def runtimes() -> list[str]:
    """Return the files of the OpenMP runtimes in this process, PyTorch's own first; [] on other systems than Linux."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    files = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "/" in line)
    torch = getattr(sys.modules.get(LIBRARY), "__file__", None)
    torch_folder = f"{Path(torch).parent}/" if torch else "/"
    return sorted((f for f in files if _RUNTIME.search(f)), key=lambda f: not f.startswith(torch_folder))


def find_team() -> Team | None:
    """Return the threads that PyTorch's operators run on; None where no OpenMP runtime is loaded.

    The process's global scope is asked first, because the linker asks it first for PyTorch: a runtime that is preloaded
    (Intel's, say) takes the place of the one that PyTorch brings along.
    """
    files = runtimes()
    for file in [None, *files] if files else []:
        try:
            library = ctypes.CDLL(file, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            functions = library.GOMP_parallel, library.omp_get_thread_num
        except (OSError, AttributeError):
            continue
        fork, number = (ctypes.cast(f, ctypes.c_void_p).value for f in functions)
        if fork and number:
            return Team(fork, number)
    return None


def is_forked() -> bool:
    """Return whether this process may be a fork of another one, which shares its libraries' memory but none of its
    threads."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return bool(int(fields[6]) & _FORKED)
    except (OSError, IndexError, ValueError):
        return True
