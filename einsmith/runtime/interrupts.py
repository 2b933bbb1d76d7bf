"""Let Ctrl-C and other signals end long runs (`signals` defers signals until a step ends).

Python handles signals in its main thread, between instructions. A run of a program is one instruction, however long;
so the native program handles signals itself every 50 ms (codegen/entry/watch.c), and an exception of a handler ends
the run.
"""

from __future__ import annotations

import ctypes
from functools import cache
from threading import get_ident, main_thread

import numpy as np

from einsmith.codegen.cache import native
from einsmith.codegen.entry import entry_program, watch
from einsmith.codegen.llvm import jit
from einsmith.runtime import buffers, signals

WORDS = buffers.zeros((len(entry_program.WATCH_WORDS),), np.int64)
"""The words that codegen/entry/watch.c reads and writes."""
WORDS[entry_program.WATCH_WORDS.index("interval")] = entry_program.INTERVAL
_HANDLING = entry_program.WATCH_WORDS.index("handling")
_RAISED = (ctypes.c_void_p * 3)()
"""Type, value and traceback of the exception that a handler has raised inside a run."""
signals.is_handling = lambda: bool(WORDS[_HANDLING])
jit.provide(entry_program.WATCH, lambda: buffers.address(WORDS))
jit.provide(watch.RAISED, lambda: ctypes.addressof(_RAISED))


@cache
def compile_handler() -> int:
    """Return the address of the native function that handles signals in the middle of a run of the main thread."""
    code = native.compile_text(watch.HANDLER, (watch.HANDLE,), native.host_target())
    return code.addresses[watch.HANDLE]


def find_handler() -> int:
    """Return the handler's address for a run of this thread; 0 where another thread handles signals."""
    return compile_handler() if get_ident() == main_thread().ident else 0


def raise_again() -> None:
    """Raise the exception that has ended a run."""
    exception = [ctypes.c_void_p(p) for p in _RAISED]
    _RAISED[:] = [None] * len(_RAISED)
    restore = ctypes.pythonapi.PyErr_Restore
    restore.restype = None
    restore(*exception)  # it takes ownership of the references
