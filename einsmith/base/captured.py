"""Hold the arrays that a traced function reads around it: from closures, globals, attributes and default arguments."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from einsmith.base.arrays import to_array
from einsmith.base.errors import ShapeError


class CapturedArray(np.ndarray):
    """An array that a traced function reads although it is not an argument: a copy from the time of the trace or, once
    bound to a program, the memory of the array itself if programs can read it in place.

    source: the array, of NumPy or another library; None for lists, which are values of Python like numbers
    """

    source: Any = None

    def bind(self) -> np.ndarray:
        """Return the array that programs read once the trace has ended.

        - A FrozenArray, for whose values programs may be compiled, if the source is read-only.
        - The copy from the trace, if the source is a list, has no other reference, or was changed since it was read.
        - The memory of the source otherwise, if programs can read it in place; else a copy that `refresh` updates.
        """
        if _is_frozen(self.source):
            return to_array(self.source).view(FrozenArray)
        if self.source is None or _is_own(self):
            return self.view(np.ndarray)
        source, now = self.source, to_array(self.source)
        if (now.shape, now.dtype) != (self.shape, self.dtype) or now.tobytes() != self.tobytes():
            return self.view(np.ndarray)
        if isinstance(source, np.ndarray) and np.may_share_memory(now, source):
            out = now.view(CapturedArray)
            out.source = source
            return out
        return self

    @property
    def is_copy(self) -> bool:
        """True if `values` is a copy of the source, which `refresh` has to update."""
        return not (isinstance(self.source, np.ndarray) and np.may_share_memory(self, self.source))

    def apart(self) -> CapturedArray:
        """Return this array with a copy of its values, which `refresh` updates."""
        out = self.copy()
        out.source = self.source
        return out

    def refresh(self) -> None:
        """Copy the present values of the source. Raises ShapeError where its shape or type is another one by now."""
        now = to_array(self.source)
        if (now.shape, now.dtype) != (self.shape, self.dtype):
            raise ShapeError(
                f"an array that the function reads around it was {self.dtype}{list(self.shape)} and is "
                f"{now.dtype}{list(now.shape)} now; pass it as an argument"
            )
        self[...] = now


class FrozenArray(np.ndarray):
    """An array whose values do not change as long as programs read it, so that programs may be compiled for them."""


def capture(x: Any, name: str) -> CapturedArray:
    """Return a copy of an array that a trace reads, C-contiguous, which knows the array. Raises as `to_array`."""
    out = np.array(to_array(x, name), order="C", copy=True).view(CapturedArray)
    out.source = None if isinstance(x, (list, tuple)) else x
    return out


def _references(x: CapturedArray) -> tuple[int, int]:
    """Return the reference counts of x's source array, and of the array of which the source is a view (0 without
    one)."""
    source = x.source
    base = source.base
    return sys.getrefcount(source), 0 if base is None else sys.getrefcount(base)


_OWN = _references(capture(np.zeros(2), "")), _references(capture(np.zeros(2)[:1], ""))
"""References to a source that nobody else has: an array with memory of its own, and a view of one."""


def _is_own(x: CapturedArray) -> bool:
    """Return whether this process holds no other reference to the source of x, or to the array of which it is a
    view."""
    if not isinstance(x.source, np.ndarray) or not isinstance(x.source.base, (np.ndarray, type(None))):
        return False
    return _references(x) in _OWN


def _is_frozen(x: Any) -> bool:
    """Return whether x is a read-only array, whose memory belongs to read-only arrays alone."""
    return isinstance(x, np.ndarray) and not x.flags.writeable and (x.base is None or _is_frozen(x.base))
