"""Ctrl-C and other signals: long runs end by them, and what belongs together is not torn apart.

Python handles signals in its main thread, between instructions. A run of a program is one instruction, however long; so
the native program handles signals itself now and then (codegen/entry/watch.py), and what a handler raises ends the run.
"""

from __future__ import annotations

# The functions behind `signal`'s, which spend as long on making enumerations as a small training step takes.
import _signal  # type: ignore[import-not-found]
import ctypes
from _signal import getsignal, signal
from collections.abc import Callable
from functools import cache
from threading import get_ident, main_thread
from types import FrameType, TracebackType

import numpy as np

from einsmith import locks
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
    return handler() if get_ident() == main_thread().ident else 0


def raise_again() -> None:
    """Raises what has ended a run."""
    found = [ctypes.c_void_p(p) for p in _RAISED]
    _RAISED[:] = [None] * len(_RAISED)
    restore = ctypes.pythonapi.PyErr_Restore
    restore.restype = None
    restore(*found)  # which takes the references over


DEFERRED = tuple(
    int(getattr(_signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(_signal, name)
)
"""Signals by which people end, save or look at a training. Not those of profilers, which ask where the program is."""

Handler = Callable[[int, FrameType | None], object]


class Deferred:
    """Within `with Deferred():` the signals DEFERRED wait; their handlers are called at the end, in the order in which
    the signals came, once for every time. A run inside handles them at once as long as it has stored nothing that
    stays, and so does a thread that waits for parameters that another one uses, or for its turn to run.

    Outside the main thread, which alone handles signals, it does nothing.
    """

    __slots__ = ("_came", "_handlers", "_noting")

    def __enter__(self) -> Deferred:
        self._handlers: dict[int, Handler] = {}
        if get_ident() == main_thread().ident:
            self._came: list[tuple[int, FrameType | None]] = []
            noting = self._noting = self._note
            try:
                for number in DEFERRED:
                    handler = getsignal(number)
                    if handler.__class__ is not int and handler is not None:  # no function of Python's
                        self._handlers[number] = handler
                        signal(number, noting)
            except BaseException:  # of a handler that does not wait yet
                self._give_back()
                raise
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if _WATCH[_HANDLING] or locks.waits_for_run():
            self._handlers[number](number, frame)
        else:
            self._came.append((number, frame))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._handlers:
            try:
                self._give_back()
            finally:
                if self._came:
                    self._tell()

    def _give_back(self) -> None:
        """Put the handlers back, but where one of them has put another one there."""
        try:
            for number, handler in self._handlers.items():
                if getsignal(number) is self._noting:
                    signal(number, handler)
        except BaseException:  # of a handler that waits no more
            self._give_back()
            raise

    def _tell(self) -> None:
        """Call the handlers of the signals that came, the others too where one raises."""
        try:
            while self._came:
                number, frame = self._came.pop(0)
                self._handlers[number](number, frame)
        finally:
            if self._came:
                self._tell()
