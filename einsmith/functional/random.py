"""Random numbers in formulas: dropout, and the streams that its bits come from.

Bits are Threefry words of the key (seed, step) and the counter (element, stream): a mask depends neither on layout,
threads and tuning nor on what else is drawn. In a training step the seed and the step's number are the step's own;
elsewhere they are those of `manual_seed`, and every call of a compiled function is a step.
"""

from __future__ import annotations

import os
import zlib
from math import prod
from typing import Any

import numpy as np

from einsmith import dtypes as dt
from einsmith.errors import ArgumentError, ShapeError, TraceError
from einsmith.functional.call import traced
from einsmith.functional.common import tensor
from einsmith.lang import builder as fb
from einsmith.lang.builder import Value
from einsmith.lang.trace import Trace, current_trace
from einsmith.runtime.memory import Memory

WORDS = 2**31
"""Seeds, and elements of a tensor, that a counter of 32 bits tells apart."""


class _State:
    """Seed and number of calls so far, which compiled functions read and advance in place."""

    def __init__(self) -> None:
        self.memory = Memory((2,), np.dtype(np.int32))
        self.memory.store([int.from_bytes(os.urandom(4), "little") % WORDS, 0])


_state = _State()


def manual_seed(seed: int) -> None:
    """Restarts the numbers that are drawn outside training steps."""
    _state.memory.store([seed % WORDS, 0])


def _key(trace: Trace) -> tuple[Any, Any]:
    """(seed, step) of what is being traced."""
    if trace.key is None:
        state = Value(trace.capture(_state, (2,), dt.i32))
        advanced = fb.compute((2,), lambda n: fb.where(n == 0, state[n], state[n] + 1))
        trace.update(_state, advanced.astype(dt.i32).tensor)
        trace.key = state[0], state[1]
    return trace.key


def _stream(trace: Trace, name: str) -> int:
    """A number for the stream `name`, another at every use of the name."""
    use = trace.streams[name] = trace.streams.get(name, -1) + 1
    return zlib.crc32(f"{name}#{use}".encode()) - WORDS


def random_bits(shape: tuple[int, ...], stream: str = "") -> Value:
    """Uniform int32 words; inside a trace. `stream`: its name, as a layer's path; equal ones are numbered."""
    trace = current_trace()
    if trace is None:
        raise TraceError("random bits are drawn inside traced functions")
    if prod(shape) > WORDS:
        raise ShapeError(f"random bits of shape {shape}: {prod(shape)} elements are more than {WORDS}")
    seed, step = _key(trace)
    number = _stream(trace, stream)

    def word(*i: Any) -> Any:
        flat: Any = 0
        for n, at in zip(shape, i, strict=True):
            flat = flat * n + at
        return fb.random_bits(seed, step, flat, number)

    return fb.compute(shape, word)


def drop(x: Value, p: float, stream: str = "") -> Value:
    """x with each element zero with probability p, the others divided by 1 - p."""
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0 <= p <= 1:
        raise ArgumentError(f"dropout: p={p!r} must lie in [0, 1]")
    threshold = round(p * 2 * WORDS) - WORDS
    if threshold == -WORDS:
        return x
    if threshold == WORDS:
        return fb.where(x == x, 0.0, 0.0).astype(x.dtype)
    bits = random_bits(x.shape, stream)
    kept = fb.compute(x.shape, lambda *i: bits[i] >= threshold)
    return fb.compute(x.shape, lambda *i: fb.where(kept[i], x[i] * (1 / (1 - p)), 0.0))


def layer_drop(x: Value, p: float, layer: Any, part: str = "") -> Value:
    """`drop` with a stream that is named by the layer's path in the model, and by `part` of it."""
    trace = current_trace()
    path = trace.paths.get(id(layer), type(layer).__name__) if trace is not None else ""
    return drop(x, p, f"{path}/{part}")


@traced
def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Value:
    """Each element zero with probability p and the others divided by 1 - p, where `training`; else the input itself.

    `inplace` is accepted: tensors have values, not places. Source: Srivastava et al. 2014.
    """
    x = tensor(input, "dropout", "input", kind="float")
    return drop(x, p) if training else x
