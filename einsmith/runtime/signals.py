"""Defer signals until a unit of work, such as a training step, ends."""

from __future__ import annotations

# The module `signal` wraps these functions, and takes as long as a small training step to make enumerations.
import _signal  # type: ignore[import-not-found]
from _signal import getsignal, signal
from collections.abc import Callable
from threading import get_ident, main_thread
from types import FrameType, TracebackType

from einsmith.base import locks

is_handling: Callable[[], bool] = lambda: False  # noqa: E731  # nothing runs before
"""Whether a run of a program handles a signal just now; einsmith.runtime.interrupts sets the function."""
DEFERRED = tuple(
    int(getattr(_signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(_signal, name)
)
"""Signals by which people end, save or look at a training. Profilers' signals, which ask where the program is, are not
deferred."""

Handler = Callable[[int, FrameType | None], object]
_active: list[Deferred] = []
"""The contexts of the main thread that defer signals, the innermost last."""


class Deferred:
    """A context in which the signals DEFERRED wait. Their handlers are called at its end, in the order in which the
    signals came, once for every time.

    A run inside handles signals at once as long as it has stored nothing into parameters or state; so does a thread
    that waits for parameters that another one uses, or for its turn to run. Outside the main thread, which alone
    handles signals, the context does nothing.
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
                    if handler.__class__ is not int and handler is not None:  # a Python function
                        self._handlers[number] = handler
                        signal(number, noting)
                _active.append(self)
            except BaseException:  # of a handler that is not deferred yet
                self._give_back()
                raise
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if is_handling() or locks.waits_for_run():
            self._handlers[number](number, frame)
        else:
            self._came.append((number, frame))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._handlers:
            if self in _active:
                _active.remove(self)
            try:
                self._give_back()
            finally:
                if self._came:
                    self._tell()

    def _give_back(self) -> None:
        """Restore the handlers, except where one of them has installed another one."""
        try:
            for number, handler in self._handlers.items():
                if getsignal(number) is self._noting:
                    signal(number, handler)
        except BaseException:  # of a handler that is no longer deferred
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


def have_come() -> bool:
    """Return whether this thread defers signals that have come."""
    return get_ident() == main_thread().ident and any(deferred._came for deferred in _active)


def handle_now() -> None:
    """Call the handlers of deferred signals before the unit of work ends, which may wait for others for ever."""
    for deferred in _active[::-1]:  # an inner context hands signals to the next outer one
        deferred._tell()
