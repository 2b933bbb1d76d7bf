"""Forks of this process: the handlers to run at one, and whether this process comes from one.

Windows has no forks. `import einsmith` loads this file, so it imports little.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

_FORKED = 0x40
"""PF_FORKNOEXEC of Linux's process flags: the process was forked and has run no other program since."""
_FLAGS = 6
"""Position of the process flags in /proc/self/stat behind the name (proc(5))."""
STAT = "/proc/self/stat"
"""Linux's description of this process."""


def at_fork(
    *,
    before: Callable[[], object] | None = None,
    after_in_parent: Callable[[], object] | None = None,
    after_in_child: Callable[[], object] | None = None,
) -> None:
    """Register functions that are called at each fork, as `os.register_at_fork` does; nothing without forks."""
    register = getattr(os, "register_at_fork", None)
    if register is not None:
        functions = {"before": before, "after_in_parent": after_in_parent, "after_in_child": after_in_child}
        register(**{when: f for when, f in functions.items() if f is not None})


def is_forked() -> bool:
    """Return whether this process may be a fork of another one, which shares its libraries' memory but none of its
    threads. Linux knows; Windows has no forks; True on other systems."""
    if sys.platform == "win32":
        return False
    try:
        with open(STAT, errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()  # the name may have brackets, too
        return bool(int(fields[_FLAGS]) & _FORKED)
    except (OSError, IndexError, ValueError):
        return True
