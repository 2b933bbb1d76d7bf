"""One set of threads in a process with PyTorch: programs run on those of PyTorch's OpenMP runtime.

Its threads watch for work for milliseconds after every parallel operator of PyTorch's. Workers of our own beside them
would share their processors, and either side would run at half its speed whenever it follows the other.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

import torch

from einsmith.runtime.threads import Team, get_threads, share

_RUNTIME = re.compile(r"/lib(gomp|iomp5|omp)[-.][^/]*$")


def threads() -> int:
    """How many threads a program inside PyTorch has: no more than either side's setting."""
    return min(get_threads(), torch.get_num_threads())


def _loaded() -> list[str]:
    """The files of OpenMP runtimes in this process, PyTorch's own first."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:  # another system than Linux
        return []
    files = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "/" in line)
    own = str(Path(torch.__file__).parent)
    return sorted((f for f in files if _RUNTIME.search(f)), key=lambda f: not f.startswith(own))


def find_team() -> Team | None:
    """The OpenMP runtime that is loaded, where it has the two functions."""
    for file in _loaded():
        try:
            library = ctypes.CDLL(file, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            found = library.GOMP_parallel, library.omp_get_thread_num
        except (OSError, AttributeError):
            continue
        fork, number = (ctypes.cast(f, ctypes.c_void_p).value for f in found)
        if fork and number:
            return Team(fork, number)
    return None


share(find_team())
