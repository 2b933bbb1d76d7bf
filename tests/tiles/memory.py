"""Memory that knows which program has touched each of its elements: what GPUs leave to chance is a fault here."""

from __future__ import annotations

import numpy as np

BFLOAT = "bf16"
NUMPY = {
    "i1": np.bool_, "i8": np.int8, "u8": np.uint8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "f16": np.float16, "bf16": np.float32, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
"""What lanes are held in; bf16 as the float32 that it is."""
NOBODY, SEVERAL, ATOMIC = -1, -2, -3


class Fault(AssertionError):
    """An access outside of memory, of what nobody has written, or that differs from run to run."""


class Memory:
    """Elements as they lie in an array's bytes, which are changed. known: something is in them before the first run."""

    def __init__(self, raw: np.ndarray, elem: str, what: str, known: bool = True):
        assert raw.dtype == np.uint8 and raw.ndim == 1
        self.elem, self.what = elem, what
        self.elements: np.ndarray = raw.view(np.uint16 if elem == BFLOAT else NUMPY[elem])
        self.known = np.full(self.elements.size, known)
        self.begin()

    @property
    def size(self) -> int:
        return self.elements.size

    def begin(self) -> None:
        """What one function has done is done before the next one begins."""
        self._loaded, self._stored = np.zeros(self.size, bool), np.zeros(self.size, bool)
        self._forget()

    def meet(self) -> None:
        """What all programs have done before a grid barrier is done before any goes on."""
        self._loaded, self._stored = self.was_loaded, self.was_stored
        self._forget()

    @property
    def was_loaded(self) -> np.ndarray:
        """The elements that the function has loaded."""
        return self._loaded | (self.reader != NOBODY)

    @property
    def was_stored(self) -> np.ndarray:
        return self._stored | (self.writer != NOBODY)

    def stored_before(self, at: np.ndarray) -> np.ndarray:
        """Whether the function has stored elements before a grid barrier."""
        self._inside(at)
        return self._stored[at]

    def _forget(self) -> None:
        self.writer = np.full(self.size, NOBODY)
        self.reader = np.full(self.size, NOBODY)
        self.epoch = np.full(self.size, -1)

    def _inside(self, at: np.ndarray) -> None:
        if at.size and (at.min() < 0 or at.max() >= self.size):
            raise Fault(f"{self.what}: elements {at.min()} to {at.max()} of {self.size}")

    def load(self, at: np.ndarray, program: int, epoch: int) -> np.ndarray:
        """The elements; `epoch` counts the program's barriers."""
        self._inside(at)
        if not self.known[at].all():
            raise Fault(f"{self.what}: nobody has written what program {program} reads")
        writer = self.writer[at]
        if ((writer != NOBODY) & (writer != program)).any():
            raise Fault(f"{self.what}: program {program} reads what another one writes")
        if ((writer == program) & (self.epoch[at] == epoch)).any():
            raise Fault(f"{self.what}: program {program} reads what it has written since the last barrier")
        before = self.reader[at]
        self.reader[at] = np.where((before == NOBODY) | (before == program), program, SEVERAL)
        found = self.elements[at]
        return (found.astype(np.uint32) << 16).view(np.float32) if self.elem == BFLOAT else found

    def store(self, at: np.ndarray, values: np.ndarray, program: int, epoch: int) -> None:
        self._inside(at)
        if np.unique(at).size < at.size:
            raise Fault(f"{self.what}: two lanes of program {program} write one element")
        writer, reader = self.writer[at], self.reader[at]
        if ((writer != NOBODY) & (writer != program)).any():
            raise Fault(f"{self.what}: program {program} and another one write one element")
        if ((writer == program) & (self.epoch[at] == epoch)).any():
            raise Fault(f"{self.what}: program {program} writes an element twice without a barrier")
        if ((reader != NOBODY) & (reader != program)).any():
            raise Fault(f"{self.what}: program {program} writes what another one reads")
        self.writer[at], self.epoch[at], self.known[at] = program, epoch, True
        if self.elem == BFLOAT:
            values = (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)
        self.elements[at] = values

    def atomic_add(self, at: np.ndarray, values: np.ndarray) -> None:
        self._inside(at)
        if not self.known[at].all():
            raise Fault(f"{self.what}: nobody has written what is added to")
        if (~np.isin(self.writer[at], (NOBODY, ATOMIC)) | (self.reader[at] != NOBODY)).any():
            raise Fault(f"{self.what}: additions and others meet in an element")
        self.writer[at] = ATOMIC
        np.add.at(self.elements, at, values)


def rounded_to_bf16(x: np.ndarray) -> np.ndarray:
    """float32 numbers to the nearest bf16, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    out = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(x), x, out).astype(np.float32).reshape(np.shape(x))


def rounded_to_tf32(x: np.ndarray) -> np.ndarray:
    """float32 numbers with 10 bits of fraction, as tensor cores take them: the rest is cut off."""
    cut = (np.ascontiguousarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), cut, x).reshape(np.shape(x))


def _rest(x: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x), x - high, 0).astype(x.dtype)


def product(a: np.ndarray, b: np.ndarray, total: np.ndarray, precision: str) -> np.ndarray:
    """total + a @ b of operands in a precision, summed in the total's type."""
    if precision == "ieee":
        return total + a @ b
    low = rounded_to_tf32 if precision.startswith("tf32") else rounded_to_bf16
    high_a, high_b = low(a), low(b)
    out = total + high_a @ high_b
    if precision.endswith("x3"):
        rest_a, rest_b = low(_rest(a, high_a)), low(_rest(b, high_b))
        out = out + high_a @ rest_b + rest_a @ high_b
    return out.astype(total.dtype)
