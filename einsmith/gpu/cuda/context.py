"""Hold the primary context of a card: make it current, and free what the driver keeps for objects."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_uint, c_void_p
from typing import Any

from einsmith.base.errors import DeviceError
from einsmith.gpu.cuda import libcuda
from einsmith.gpu.cuda.libcuda import LibCuda


class DriverHandle:
    """A handle of the driver. A function frees its object when the last reference to the handle is gone."""

    __slots__ = ("value", "__weakref__")

    def __init__(self, value: int, free: Callable[..., None], *arguments: Any):
        self.value = value
        weakref.finalize(self, free, *arguments).atexit = False

    @property
    def _as_parameter_(self) -> int:
        """The value that ctypes passes."""
        return self.value


class CardContext:
    """The primary context of a card, and the streams in which work that uses its memory has been queued.

    Attributes:
        library: the driver.
        stream, copies: streams of this process, in which programs run and batches are copied.
    """

    def __init__(self, library: LibCuda, card: int):
        self.library = library
        self._context = library.new("cuDevicePrimaryCtxRetain", card)
        with self.current():
            self.stream, self.copies = (library.new("cuStreamCreate", libcuda.NON_BLOCKING) for _ in range(2))
            self._last = {s: library.new("cuEventCreate", libcuda.UNTIMED) for s in (self.stream, self.copies)}
        self._others: dict[int, Any] = {}
        """For each stream of others the event that the work queued there by this object has been done: such a stream
        may exist no longer when memory is freed."""

    @contextmanager
    def current(self) -> Iterator[Callable[..., None]]:
        """Make the context current in this thread, in the block, whose variable calls the driver."""
        call = self.library.call
        call("cuCtxPushCurrent_v2", self._context)
        try:
            yield call
        finally:
            call("cuCtxPopCurrent_v2", c_void_p())

    def give_back(self, *calls: tuple[Any, ...]) -> None:
        """Call functions that free something, given with their arguments; raise nothing where that is gone."""
        try:
            with self.current() as call:
                for name, *arguments in calls:
                    call(name, *arguments)
        except DeviceError as e:
            if e.code not in libcuda.GONE:
                raise

    def note(self, stream: int) -> None:
        """Note that work which uses memory has been queued in a stream; the context is current."""
        if stream not in self._last:
            event = self._others.get(stream) or self._others.setdefault(stream, self.new_event(libcuda.UNTIMED))
            self.library.call("cuEventRecord", event, stream)

    def wait_for_work(self, stream: int) -> list[tuple[Any, ...]]:
        """Return the calls (`give_back`) that let a stream wait for all work that uses memory."""
        return [
            *(("cuEventRecord", event, own) for own, event in self._last.items()),
            *(("cuStreamWaitEvent", stream, e, 0) for e in (*self._last.values(), *self._others.values())),
        ]

    def free_after_all(self, function: str, handle: int) -> None:
        """Wait for all work on the card, then call a function that frees what that work may use."""
        self.give_back(("cuCtxSynchronize",), (function, handle))

    def new_event(self, flags: int = 0) -> DriverHandle:
        """Return a new event; the context is current."""
        event = self.library.new("cuEventCreate", flags)
        return DriverHandle(event, self.give_back, ("cuEventDestroy_v2", event))

    def memory_type(self, address: int) -> int:
        """Return the type of memory that an address lies in; 0 where the driver does not know the memory. The context
        is current."""
        type = c_uint()
        result = self.library.result("cuPointerGetAttribute", byref(type), libcuda.MEMORY_TYPE, address)
        if result == libcuda.INVALID_VALUE:
            return 0
        self.library.check("cuPointerGetAttribute", result)
        return type.value
