"""Ctrl-C and other signals: long runs end by them, and what belongs together is not torn apart.

Python handles signals in its main thread, between instructions. A run of a program is one instruction, however long; so
the native program handles signals itself now and then (codegen/entry/watch.py), and what a handler raises ends the run.
"""

from __future__ import annotations

import ctypes
import threading

# The functions behind `signal`'s, which spend as long on making enumerations as a small training step takes.
from _signal import SIGINT, getsignal, signal  # type: ignore[import-not-found]
from collections.abc import Callable
from functools import cache
from types import FrameType, TracebackType

import numpy as np

from einsmith.codegen.cache import native
from einsmith.codegen.entry import watch
from einsmith.codegen.llvm import jit as llvm_jit
from einsmith.runtime import buffers

_WATCH = buffers.zeros((len(watch.WATCH_WORDS),), np.int64)
"""The words of codegen/entry/watch.py."""
_HANDLING = watch.WATCH_WORDS.index("handling")
_RAISED = (ctypes.c_void_p * 3)()
"""Type, value and traceback of what a handler has raised inside a run."""
llvm_jit.provide(watch.WATCH, lambda: buffers.address(_WATCH))
llvm_jit.provide(watch.RAISED, lambda: ctypes.addressof(_RAISED))


@cache
def handler() -> int:
    """The native function that handles signals in the middle of a run of the main thread."""
    found = native.compile_text(watch.HANDLER, (watch.HANDLE,), native.host_target())
    return found.addresses[watch.HANDLE]


def handler_here() -> int:
    """What a run of this thread is told: the handler, or 0 where another thread handles signals."""
    return handler() if threading.get_ident() == threading.main_thread().ident else 0


def raise_again() -> None:
    """Raises what has ended a run."""
    found = [ctypes.c_void_p(p) for p in _RAISED]
    _RAISED[:] = [None] * len(_RAISED)
    restore = ctypes.pythonapi.PyErr_Restore
    restore.restype = None
    restore(*found)  # which takes the references over


class Deferred:
    """Within `with Deferred():` SIGINT waits; its handler is called at the end, once for every time that it came. A run
    inside handles it at once as long as it has stored nothing that stays.

    Outside the main thread, which alone handles signals, it does nothing.
    """

    def __enter__(self) -> Deferred:
        self._came: list[tuple[int, FrameType | None]] = []
        self._handler: Callable[[int, FrameType | None], object] | None = None
        if threading.current_thread() is threading.main_thread():
            handler = getsignal(SIGINT)
            if callable(handler):
                self._handler = handler
                signal(SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if _WATCH[_HANDLING] and self._handler is not None:
            self._handler(number, frame)
        else:
            self._came.append((number, frame))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._handler is None:
            return
        signal(SIGINT, self._handler)
        for number, frame in self._came:
            self._handler(number, frame)
