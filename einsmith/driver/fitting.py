"""Run a program of a capacity for smaller sizes: pad its inputs to the capacity, and cut its outputs to the size."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

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


AllocatedArray = tuple[tuple[int, ...], np.dtype, int]
"""Shape, type and bytes of an array that a run allocates."""
Padding = list[tuple[np.ndarray, int]]
"""Arrays of the capacity for one run, and their addresses: of inputs that are padded, then of outputs that are cut."""


class Fitting:
    """The arrays of a program of a capacity for a smaller size.

    Those whose rows beyond the size no kernel touches (`Compiled.short`) are passed as they are; others are copied into
    arrays of the capacity, with anything beyond the size.

    allocated: shape, type and bytes of the arrays that each run allocates for outputs, None for those that are cut out
    of padding; runs: how often it has run
    """

    def __init__(self, fit: SizeFit, binding: Binding):
        self.compiled, self._fit, self.runs = binding.compiled, fit, 0
        short = set() if binding.copies else self.compiled.short
        self._padded = [
            (n, x, _part_of(shape))
            for n, (x, shape) in enumerate(zip(self.compiled.inputs, fit.inputs, strict=False))
            if shape != x.shape and not (x in short and shape[1:] == x.shape[1:])
        ]
        self._numbers = np.zeros(len(fit.numbers), np.uint64)  # each at the beginning of a word
        for word, number in zip(self._numbers.view(np.uint8).reshape(-1, 8), fit.numbers, strict=True):
            word[: number.nbytes] = number.reshape(1).view(np.uint8)
        self.allocated: list[AllocatedArray | None] = []
        self._cut = []  # the number of each output that is cut, and what is allocated for it
        for t, k, known in zip(self.compiled.outputs, binding.written, binding.allocated, strict=True):
            shape, dtype, _ = known
            rows = fit.outputs[k] if k >= 0 else shape
            if t in short and t.shape == shape and rows[1:] == shape[1:]:
                self.allocated.append((rows, dtype, size(rows) * dtype.itemsize))
            elif rows == shape or binding.copies:
                self.allocated.append(known)
            else:
                self._cut.append((k, known))
                self.allocated.append(None)
        self._kinds = [(x.shape, np.dtype(x.dtype.numpy), nbytes(x)) for _, x, _ in self._padded]
        self._kinds += [known for _, known in self._cut]
        self._spare = binding.padding.setdefault(tuple(self._kinds), [])

    def take(self) -> Padding:
        """Return memory for one run, which is to be given back behind it."""
        try:
            return self._spare.pop()
        except IndexError:
            pass
        return buffers.recycle_together(self._kinds) if self._kinds else []

    def give(self, padding: Padding) -> None:
        """Take memory back after a run."""
        self._spare.append(padding)

    def _set_numbers(self, binding: Binding) -> range:
        """Store the numbers where a binding reads them, and return their addresses."""
        numbers, count = binding.numbers, len(self._numbers)
        numbers[:count] = self._numbers
        begin = buffers.address(numbers)
        return range(begin, begin + 8 * count, 8)

    def pad(
        self, arrays: Sequence[np.ndarray], padding: Padding, binding: Binding
    ) -> tuple[list[np.ndarray], list[int]]:
        """Return the program's inputs, the numbers included, and their addresses."""
        out, places = [*arrays, *self._fit.numbers], [*map(buffers.address, arrays), *self._set_numbers(binding)]
        for (n, _, part), (whole, at) in zip(self._padded, padding, strict=False):
            _fill(whole, part, arrays[n])
            out[n], places[n] = whole, at
        return out, places

    def pad_at(self, addresses: Sequence[int], padding: Padding, binding: Binding) -> list[int]:
        """Return the addresses of the program's inputs, the numbers included, given those of the caller's arrays."""
        places = [*addresses, *self._set_numbers(binding)]
        for (n, x, part), (whole, at) in zip(self._padded, padding, strict=False):
            shape = self._fit.inputs[n]
            if shape[1:] == x.shape[1:] and not environment.check_level():
                ctypes.memmove(at, places[n], size(shape) * x.dtype.itemsize)
            else:
                _fill(whole, part, buffers.array_at(places[n], shape, x.dtype))
            places[n] = at
        return places

    def outputs_of(self, padding: Padding) -> Iterator[tuple[np.ndarray, int]]:
        """Return the arrays for outputs that are cut, each with its address."""
        return iter(padding[len(self._padded) :])

    def allocate(self, padding: Padding) -> list[tuple[np.ndarray, int]]:
        """Return the arrays that a run writes outputs into, each with its address."""
        whole = self.outputs_of(padding)
        return [next(whole) if kind is None else buffers.recycle(*kind) for kind in self.allocated]

    def cut(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the part of each of the program's outputs that belongs to the size, C-contiguous."""
        return [
            a if a.shape == shape else a[_part_of(shape)].copy()
            for a, shape in zip(arrays, self._fit.outputs, strict=True)
        ]

    def cut_at(self, padding: Padding, into: Sequence[int]) -> None:
        """Copy what is cut of outputs to the caller's memory, given by the addresses of all outputs."""
        for (k, _), (whole, at) in zip(self._cut, self.outputs_of(padding), strict=True):
            shape = self._fit.outputs[k]
            if shape[1:] == whole.shape[1:]:
                ctypes.memmove(into[k], at, size(shape) * whole.itemsize)
            else:
                buffers.array_of(into[k], shape, whole.dtype)[...] = whole[_part_of(shape)]


@lru_cache(4096)  # slices by the hundred for each size would bring the cycle collector about
def _part_of(shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the index of the part of an array that a smaller one of this shape takes."""
    return tuple(map(slice, shape))


def _fill(whole: np.ndarray, part: tuple[slice, ...], values: np.ndarray) -> None:
    if environment.check_level():
        whole[...] = _POISON.get(whole.dtype.kind, 0)
    whole[part] = values
