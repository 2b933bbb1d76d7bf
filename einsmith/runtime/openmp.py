"""Find the OpenMP runtime that PyTorch runs on, in a process that has loaded it. Never imports PyTorch."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from einsmith.base.system import processes

LIBRARY = "torch._C"
"""Python module that PyTorch's libraries are loaded with; while PyTorch is still being imported, it may be missing."""
_RUNTIME = re.compile(r"/lib(gomp|iomp5|omp)[-.][^/]*$")


class Team(NamedTuple):
    """Threads of an OpenMP runtime: the addresses of its functions GOMP_parallel and omp_get_thread_num."""

    fork: int
    number: int


def runtimes() -> list[str]:
    """Return the files of the OpenMP runtimes in this process, PyTorch's own first; [] on other systems than Linux."""
    torch = getattr(sys.modules.get(LIBRARY), "__file__", None)
    torch_folder = f"{Path(torch).parent}/" if torch else "/"
    files = filter(_RUNTIME.search, processes.list_libraries())
    return sorted(files, key=lambda f: not f.startswith(torch_folder))


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
