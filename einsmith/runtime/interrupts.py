"""Ctrl-C between steps: what belongs together is not torn apart by a signal."""

from __future__ import annotations

import threading

# The functions behind `signal`'s, which spend as long on making enumerations as a small training step takes.
from _signal import SIGINT, getsignal, signal  # type: ignore[import-not-found]
from collections.abc import Callable
from types import FrameType, TracebackType


class Deferred:
    """Within `with Deferred():` SIGINT waits; its handler is called at the end, once for every time that it came.

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
        self._came.append((number, frame))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._handler is None:
            return
        signal(SIGINT, self._handler)
        for number, frame in self._came:
            self._handler(number, frame)
