"""Start processes that end with their parent, even if it is killed while they are stopped, hang or have not begun to
run.

This file is run by its path: importing the child's module may take a second, and the parent may be killed meanwhile.
The child also reads its input until that ends, as not every system notifies a process of its parent's death.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Option of prctl(2). The signal comes when the thread that started the process ends."""


def command(what: str) -> list[str]:
    """Return the command that runs a module, or a file by its path, as a process that ends with this one."""
    return [sys.executable, "-P", __file__, str(os.getpid()), what]


def end_with(parent: int) -> None:
    """Have the system kill this process, whatever it is doing, when its parent has ended."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):  # a system without
        return
    if os.getppid() != parent:  # the parent ended before the signal was requested
        sys.exit(1)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    if sys.argv[2].endswith(".py"):
        runpy.run_path(sys.argv[2], run_name="__main__")
    else:
        runpy.run_module(sys.argv[2], run_name="__main__", alter_sys=True)
