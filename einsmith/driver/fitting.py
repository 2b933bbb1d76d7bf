"""Run a program of a capacity for smaller sizes: pad its inputs to the capacity, and cut its outputs to the size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base import environment
from einsmith.driver.binding import Binding
from einsmith.ir.nodes import nbytes, size
from einsmith.runtime import buffers

_POISON = {"f": np.nan, "i": 2**31 - 1}
"""What lies beyond the size in a checked run, by the kind of a type: no number, and no index."""


Explain = Callable[[Sequence[np.ndarray]], str | None]


class SizeFit(NamedTuple):
    """How a program of a capacity (`passes.capacity`) runs for a smaller size.

    inputs, outputs: shapes of the arrays at this size; numbers: the values of the program's last inputs; explain:
    describes for arrays of this size which index leaves its tensor."""

    inputs: tuple[tuple[int, ...], ...]
    numbers: tuple[np.ndarray, ...]
    outputs: tuple[tuple[int, ...], ...]
    explain: Explain


class Fitting:
    """The arrays of a program of a capacity for a smaller size.

    Those whose rows beyond the size no kernel touches (`Compiled.short`) are passed as they are; others are copied into
    arrays of the capacity, with anything beyond the size.

    allocated: shape, type and bytes of the arrays that each run allocates for outputs; runs: how often it has run
    """

    def __init__(self, fit: SizeFit, binding: Binding):
        self.compiled, self._fit, self.runs = binding.compiled, fit, 0
        short = set() if binding.copies else self.compiled.short
        self._padded = [
            (n, x, tuple(map(slice, shape)))
            for n, (x, shape) in enumerate(zip(self.compiled.inputs, fit.inputs, strict=False))
            if shape != x.shape and not (x in short and shape[1:] == x.shape[1:])
        ]
        self._is_cut = not binding.copies
        self.allocated = []
        for t, k, known in zip(self.compiled.outputs, binding.written, binding.allocated, strict=True):
            shape, dtype, _ = known
            rows = fit.outputs[k] if k >= 0 else shape
            is_short = t in short and t.shape == shape and rows[1:] == shape[1:]
            self.allocated.append((rows, dtype, size(rows) * dtype.itemsize) if is_short else known)
            self._is_cut &= is_short or rows == shape

    def pad(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the program's inputs, the numbers included."""
        out = [*arrays, *self._fit.numbers]
        memory = buffers.recycle_together([(x.shape, out[n].dtype, nbytes(x)) for n, x, _ in self._padded])
        for (n, _, part), (padded, _) in zip(self._padded, memory, strict=True):
            if environment.check_level():
                padded[...] = _POISON.get(padded.dtype.kind, 0)
            padded[part] = out[n]
            out[n] = padded
        return out

    def cut(self, arrays: list[np.ndarray], into: Sequence[int] | None = None) -> list[np.ndarray]:
        """Return the part of each of the program's outputs that belongs to the size, C-contiguous. into: addresses of
        memory of the caller's, which gets them."""
        if self._is_cut and into is None:
            return arrays
        parts = [
            a if a.shape == shape else a[tuple(map(slice, shape))]
            for a, shape in zip(arrays, self._fit.outputs, strict=True)
        ]
        if into is None:
            return [np.asarray(a, order="C") for a in parts]
        out = [buffers.array_at(at, a.shape, dt.dtype_of(a)) for at, a in zip(into, parts, strict=True)]
        for a, part in zip(out, parts, strict=True):
            np.copyto(a, part)
        return out
